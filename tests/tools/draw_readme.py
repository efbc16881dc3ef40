"""Draw the README's pictures from a running lab, light and dark: `python
tests/tools/draw_readme.py`.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import nbformat
from blank_page import browser
from lab import Lab, Opened
from PIL import Image
from store_notebooks import METADATA

HOME = Path(__file__).parents[2]
FOLDER = HOME / "notebooks" / "pictures"
SCRATCH = "draw-readme.ipynb"  # in the folder that the lab serves, taken away again
WIDTH = 830  # CSS pixels, as many as a README has: a wider picture would be made smaller there
HEIGHT = 640
SCALE = 1.5
LEAST_POINTS = 8
MOST_BYTES = 500_000
COLOURS = 64
IMPORTS = "import npulab\nimport npulab.notebook.widgets\n"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

# what the cell makes and shows, the view's root, rules for the picture alone
VIEWS = {
    "registers": (
        """\
captures = npulab.load_all("captures/vivante")
view = npulab.RegisterView(captures["update4-vendor"], captures["update4-mesa"])
piece = captures["update4-vendor"].maps["NN"].post_multiplier.pieces[0]
view.cursor = (piece.word, piece.lsb)
view""",
        ".npulab-registers",
        "",
    ),
    "laws": (
        """\
sweep = npulab.load_sweep("captures/vivante/sweep-layers.npz")
layer = sweep.parameters
plain = (layer.stride == 1) & (layer.depthwise == 0) & (layer.kernel_w > 1) & (layer.kernel_h > 1)
names = ["input_w", "input_h", "input_c", "output_w", "output_h", "output_c", "kernel_w", "kernel_h", "same"]
blind = npulab.Sweep(sweep.words[plain][:, [1, 3, 4, 8]], layer.loc[plain, names], provenance="simulated")
view = npulab.notebook.widgets.LawView(npulab.find_laws(blind[:120:4]))
view.place, view.opened = (2, 20), True
view""",
        ".npulab-laws",
        ".npulab-laws { max-height: 730px; }",
    ),
    "sweep": (
        """\
view = npulab.notebook.widgets.SweepView(npulab.load_sweep("captures/vivante/sweep-layers.npz"))
view.sort, view.at = "input_w", 425
view""",
        ".npulab-sweep",
        ".npulab-sweep .npulab-grid { max-height: 210px; }",
    ),
}

# A text of 0 points is one that a view hides on purpose; what stands instead is drawn by CSS, and
# measured as all such text is.
SMALL = """([root, least]) => {
  const out = [], top = document.querySelector(root), walk = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
  const judge = (text, style) => {
    const points = parseFloat(style.fontSize) * 0.75;
    if (points > 0 && points < least) out.push(`${points} pt: ${text.slice(0, 40)}`);
    return points > 0;
  };
  const drawn = element => ['::before', '::after'].map(part => getComputedStyle(element, part))
    .filter(({ content }) => !['none', 'normal', '""'].includes(content));
  while (walk.nextNode()) {
    const text = walk.currentNode, element = text.parentElement;
    if (!text.data.trim() || !element.checkVisibility()) continue;
    if (!judge(text.data, getComputedStyle(element)) && !drawn(element).length) out.push(`nothing instead of ${text.data.slice(0, 40)}`);
  }
  for (const element of [top, ...top.querySelectorAll('*')]) {
    if (element.checkVisibility()) for (const style of drawn(element)) judge(style.content, style);
  }
  return out;
}"""


def draw(page: Opened, root: str, name: str, rules: str) -> list[str]:
    """The pictures of a view; its texts that are too small."""
    page.page.wait_for_selector(root)
    for short, theme in THEMES.items():
        page.theme(theme)
        page.page.add_style_tag(
            content=f"{root} {{ width: {WIDTH}px; max-height: {HEIGHT}px; overflow: hidden; }}{rules}"
        )
        picture = Image.open(io.BytesIO(page.page.locator(root).screenshot()))
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
            FOLDER / f"{name}-{short}.png", optimize=True
        )
    return page.page.evaluate(SMALL, [root, LEAST_POINTS])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    small: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, browser() as started:
        lab = Lab(Path(scratch))
        notebook = lab.root / SCRATCH
        try:
            for name, (code, root, rules) in VIEWS.items():
                cells = [nbformat.v4.new_code_cell(IMPORTS + code)]
                nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=METADATA), notebook)
                with Opened(lab, started, SCRATCH, SCALE) as page:
                    page.run_all()
                    small += draw(page, root, name, rules)
        finally:
            notebook.unlink(missing_ok=True)
            lab.close()
    size = sum(path.stat().st_size for path in FOLDER.glob("*.png"))
    print(f"{size} bytes in {FOLDER}")
    if small or size > MOST_BYTES:
        sys.exit(
            "\n".join(
                [
                    *small,
                    f"got {size} bytes, allowed is {MOST_BYTES}, and text of {LEAST_POINTS} pt or more",
                ]
            )
        )


if __name__ == "__main__":
    main()
