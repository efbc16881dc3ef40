"""Writer of SVG: the bits of each register as a row of boxes, the highest bit left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.drawn import Box, Drawn, drawn
from npulab.registers.formats.tables import RegisterTable

# the width of a bit, the height of a box and the margin of the drawing, in px
BIT, HEIGHT, MARGIN = 30, 46, 16
LETTER, LINE = 6.2, 13  # the width and height of a letter of a sans-serif face of 11 px, in px
LINES = 3  # a name in its box has at most so many lines
PARTS = re.compile(r"[_.\-\s\[]*(?:[A-Z]+(?![a-z])|[A-Z]?[^A-Z_.\-\s\[]+|[_.\-\s\[]+$)")
STYLE = Path(__file__).with_name("svg.css").read_text(encoding="utf-8")


def svg_text(table: RegisterTable) -> str:
    """Return the drawing of a table: a row for each register; if a register has rows with features,
    a row for each feature.

    A name that does not fit into its box is split over at most three lines. If it still does not
    fit, the box has a number, and the name stands below the row. Each field has its bits, value,
    evidence and note as its title; addresses have a bold frame. The drawing follows the reader's
    light or dark setting; it loads nothing and runs nothing.
    """
    body: list[str] = []
    top = MARGIN
    for register in drawn(table):
        lines, height = _register(register, top)
        body += lines
        top += height
    width = 2 * MARGIN + WORD_BITS * BIT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" '
            f'height="{top}" role="group" aria-label="Registers and their fields">',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{top}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _register(register: Drawn, top: int) -> tuple[list[str], int]:
    """Return the lines of SVG for a register whose row begins at the height ``top``, and the row's
    own height."""
    chips = ""
    if register.feature:
        chips = f" ({register.feature})"
    name = ".".join(filter(None, (register.block, register.register))) + chips
    out = [
        f'<g role="group" aria-label={quoteattr(name)}>',
        f'<text class="register" x="{MARGIN}" y="{top + 14}">{escape(name)}: '
        f"{register.offset:#06x}</text>",
    ]
    boxes = top + 34
    below: list[str] = []
    for box in reversed(register.boxes):
        out += _box(box, boxes, below)
    bottom = boxes + HEIGHT
    for line in below:
        bottom += LINE
        out.append(f'<text x="{MARGIN}" y="{bottom}">{escape(line)}</text>')
    return [*out, "</g>"], bottom + 2 * MARGIN - top


def _box(box: Box, top: int, below: list[str]) -> Iterator[str]:
    """Yield the lines of SVG for a box; a name that does not fit into it is added to ``below``."""
    left = MARGIN + BIT * (WORD_BITS - box.lsb - box.width)
    width = BIT * box.width
    kind = "box"
    said = [f"{box.name or 'unnamed'} [{box.bits}]", box.meaning]
    if "address" in box.row:
        said.append("an address")
    said += [box.row.get("evidence", ""), box.row.get("note", "")]
    if "field" not in box.row:
        kind = "box open"
    elif "address" in box.row:
        kind = "box address"
    yield f"<g><title>{escape('; '.join(filter(None, said)))}</title>"
    yield f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{HEIGHT}"/>'
    ends = [(box.lsb + box.width - 1, left + BIT / 2)]
    if box.width > 1:
        ends.append((box.lsb, left + width - BIT / 2))
    for bit, middle in ends:
        yield f'<text class="bit" x="{middle:g}" y="{top - 4}" text-anchor="middle">{bit}</text>'
    lines = split_name(box.name, int((width - 6) / LETTER))
    if box.name and not lines:
        below.append(f"{len(below) + 1}: {box.name} [{box.bits}]")
        lines = [str(len(below))]
    first = top + HEIGHT / 2 + 4 - LINE * (len(lines) - 1) / 2
    for n, line in enumerate(lines):
        yield (
            f'<text x="{left + width / 2:g}" y="{first + LINE * n:g}" '
            f'text-anchor="middle">{escape(line)}</text>'
        )
    yield "</g>"


def split_name(name: str, letters: int) -> list[str]:
    """Return a name as at most three lines of at most ``letters`` letters, split at the ends of its
    words; an empty list if it does not fit.

    >>> split_name("kernel_z_size", 8), split_name("outImageTile", 6), split_name("indivisible", 4)
    (['kernel_z', '_size'], ['out', 'Image', 'Tile'], [])
    """
    lines: list[str] = []
    for word in PARTS.findall(name) or filter(None, [name]):
        if lines and len(lines[-1] + word) <= letters:
            lines[-1] += word
        else:
            lines.append(word)
    if len(lines) <= LINES and all(len(line) <= letters for line in lines):
        return lines
    return []
