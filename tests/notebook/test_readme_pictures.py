"""The README's pictures are there in both themes, as `tests/tools/draw_readme.py` draws them."""

from __future__ import annotations

import re
from pathlib import Path

from draw_readme import FOLDER, HOME, MOST_BYTES, SCALE, THEMES, VIEWS, WIDTH
from PIL import Image


def test_the_readme_shows_each_picture_in_both_themes() -> None:
    shown = re.findall(
        r'(?:src|srcset)="([^"]+\.png)"', (HOME / "README.md").read_text(encoding="utf-8")
    )
    drawn = {f"{FOLDER.relative_to(HOME)}/{name}-{theme}.png" for name in VIEWS for theme in THEMES}
    assert set(shown) == drawn == {str(path.relative_to(HOME)) for path in FOLDER.iterdir()}
    assert sum(Path(HOME, path).stat().st_size for path in shown) <= MOST_BYTES
    for path in shown:
        with Image.open(HOME / path) as picture:
            assert picture.width == WIDTH * SCALE, "shown at its own size: its texts keep theirs"
            lightness = picture.convert("L").resize((1, 1)).getpixel((0, 0))
            assert (lightness > 128) == ("light" in path)
