"""A picture of a register map: the words of its blocks as bits, with their fields."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from npulab.analysis.laws.naming import Naming
from npulab.notebook.pictures.laws import LABELLED, bit_edges, bit_grid, map_size
from npulab.notebook.pictures.picture import Picture, canvas, legend
from npulab.registers.fields import WORD_BITS
from npulab.registers.map import GUESSES, UNKNOWN, RegisterMap

# a colour, light enough for black letters, for each kind of bits in ``RegisterMap.status``
COLOURS = {"explained": "#8fbfe3", "guessed": "#f6c667", "open": "#ffffff"}
LETTERS = 3.3  # this many letters of a name fit into the width of a bit


def block_map(registers: RegisterMap) -> Picture:
    """Draw a register map: a row per word, bit 31 on the left, a box for each field, with its name
    where there is room, and a colour for what is explained, guessed and open.

    A map of more than ``LABELLED`` words has no names in its boxes.
    """
    text = registers.status().attrs["summary"]
    colours = np.ones((len(registers), WORD_BITS, 3))
    pieces = []
    with canvas(map_size(len(registers))) as (figure, ax):
        for item in registers:
            if item.automatic and item.evidence == UNKNOWN:
                continue
            colour = COLOURS["explained"]
            if item.evidence in GUESSES:
                colour = COLOURS["guessed"]
            for piece in item.pieces:
                end = WORD_BITS - piece.lsb
                begin = end - piece.width
                colours[piece.word, begin:end] = to_rgb(colour)
                pieces.append(piece)
                if len(registers) <= LABELLED and len(item.name) <= LETTERS * piece.width:
                    middle = (begin + end - 1) / 2
                    name = ax.text(middle, piece.word, item.name, ha="center", va="center_baseline")
                    name.set_in_layout(False)  # the name lies inside its box
        ax.imshow(colours, aspect="auto")
        ax.add_collection(LineCollection(bit_edges(pieces), colors="black", linewidths=1))
        bit_grid(ax, Naming.of(len(registers), registers).words)
        patches = []
        for name, colour in COLOURS.items():
            patches.append(Patch(facecolor=colour, edgecolor="black", linewidth=0.5, label=name))
        legend(figure, patches)
        ax.set_title(text)
    return Picture(text, figure)
