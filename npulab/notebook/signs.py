"""The colours of signed differences, the same in every picture and view."""

from __future__ import annotations

LARGER = "#d9480f"  # if the captured value is larger than the predicted value
SMALLER = "#1d70b8"
# both colours as CSS variables, for style sheets
VARIABLES = f":root {{ --npulab-larger: {LARGER}; --npulab-smaller: {SMALLER}; }}\n"
