"""The colours of signed differences, the same in every picture and view."""

from __future__ import annotations

LARGER = "#d9480f"  # the captured value is larger than the predicted one
SMALLER = "#1d70b8"
# the same colours as CSS variables, for style sheets
VARIABLES = f":root {{ --npulab-larger: {LARGER}; --npulab-smaller: {SMALLER}; }}\n"
