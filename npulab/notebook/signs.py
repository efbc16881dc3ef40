"""The colours of signed differences, the same in every picture and view."""

from __future__ import annotations

LARGER, SMALLER = (
    "#d9480f",
    "#1d70b8",
)  # what was captured is larger, smaller than what was predicted
# for style sheets, which name the colours so
VARIABLES = f":root {{ --npulab-larger: {LARGER}; --npulab-smaller: {SMALLER}; }}\n"
