"""Sweeps and their laws drawn: bits that flip, bits that are explained, what goes with what, a law
through captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.patches import Patch

from npulab.analysis.correlate import flips, related
from npulab.analysis.laws.naming import Naming, naming_of
from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, bare, canvas
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

# colour, mark and its colour: nobody has to tell two colours apart
STATUSES = {
    "law": ("#2b6ca3", "", "white"),
    "constant": ("#d9d9d9", "=", "#4a4a4a"),
    "rivals": ("#f6c667", "/", "black"),
    "open": ("#c4501b", "?", "white"),
    "never exercised": ("#ffffff", "·", "#4a4a4a"),
    "nuisance": ("#4a4a4a", "×", "white"),
}
MARKS = "os^DvPp*h<>"
FIGURES = {
    "mutual_information": ("bits of mutual information", "Blues"),
    "pearson": ("Pearson's r", "RdBu"),
    "spearman": ("Spearman's rho", "RdBu"),
}
MOST_FIELDS = 64
LABELLED = 72  # words up to which each has its number
TALLEST = 24.0  # inches
LEGEND = 56  # letters


def flip_map(words: Any, parameters: Any = None, sort: str | None = None) -> Picture:
    """How often each bit flips from a capture to its neighbour: a row per word, bit 31 on the left.

    Arguments and errors as of ``flips``: words ``(N, W) uint32`` or a sweep, as they come or sorted
    by a parameter.
    """
    shares = flips(words, parameters, sort)
    words_of = np.asarray(getattr(words, "words", words))
    word, bit = np.unravel_index(int(np.argmax(shares)), shares.shape)
    order = "as they come"
    if sort:
        order = f"sorted by {sort}"
    most = "none flips"
    if shares.any():
        most = f"most often word {word} bit {bit}, {shares[word, bit]:.1%}"
    text = (
        f"{len(words_of)} captures{_simulated(words)} {order}: {np.count_nonzero(shares)} of "
        f"{shares.size} bits "
        f"flip, {most}"
    )
    with canvas(_size(len(shares))) as (figure, ax):
        scale = PowerNorm(0.5, 0, max(shares.max(), 0.1))  # so that a bit that flips once is seen
        image = ax.imshow(shares[:, ::-1], cmap="Oranges", aspect="auto", norm=scale)
        figure.colorbar(image, ax=ax, label="share of neighbours", fraction=0.04)
        _grid(ax, Naming.of(len(shares), getattr(words, "registers", None)).words)
        ax.set_title(text)
    return Picture(text, figure)


def law_map(laws: Any) -> Picture:
    """What is known of each bit: a row per word, bit 31 on the left, lines where the field of a law
    ends."""
    status = np.asarray(laws.status)
    counts = {name: int(np.count_nonzero(status == name)) for name in STATUSES}
    text = (
        f"{len(status)} words{_simulated(laws)}: "
        + ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        + f" of {status.size} bits"
    )
    with canvas(_size(len(status))) as (figure, ax):
        colours = np.zeros((*status.shape, 3))
        for name, (colour, mark, ink) in STATUSES.items():
            colours[status == name] = to_rgb(colour)
            rows, bits = np.nonzero(status == name)
            if mark:
                if mark == "·":
                    marker, size = ".", 5
                else:
                    marker, size = f"${mark}$", 14
                ax.scatter(
                    WORD_BITS - 1 - bits, rows, s=size, marker=marker, color=ink, linewidths=0
                )
        ax.imshow(colours[:, ::-1], aspect="auto")
        edges = {
            (item.word, WORD_BITS - 0.5 - bit)
            for item in laws.fields
            for bit in (item.lsb, item.lsb + item.width)
        }
        ax.add_collection(
            LineCollection(
                [[(at, row - 0.5), (at, row + 0.5)] for row, at in sorted(edges)],
                colors="black",
                linewidths=1,
            )
        )
        _grid(ax, naming_of(laws).words)
        figure.legend(
            handles=[
                Patch(
                    facecolor=colour,
                    edgecolor="black",
                    linewidth=0.5,
                    label=f"{mark} {name}".strip(),
                )
                for name, (colour, mark, _) in STATUSES.items()
                if counts[name]
            ],
            loc="outside lower center",
            ncols=len(STATUSES),
            frameon=False,
        )
        ax.set_title(text)
    return Picture(text, figure)


def correlation_map(table: pd.DataFrame, by: str = "mutual_information") -> Picture:
    """Fields against parameters, from the table of ``correlate``; a dot is a law hit.

    ``by`` is a column of figures: "mutual_information", "pearson" or "spearman".  Parameters stand
    in the order in which the table has them first; of the fields that go with any, the first
    ``MOST_FIELDS`` are shown, by place. Raises ValueError for another column and for a table
    without rows.
    """
    refuse_if(by not in FIGURES, "by", repr(by), f"is one of {', '.join(FIGURES)}")
    refuse_if(table.empty, "table", "no rows", "are fields against parameters")
    moving = table.loc[table[by] != 0, "field"].unique()
    shown = table[
        table["field"].isin((moving if len(moving) else table["field"].unique())[:MOST_FIELDS])
    ]
    fields = shown.sort_values(["word", "lsb"], kind="stable")["field"].unique()
    parameters = table["parameter"].unique()
    values = (
        shown.pivot(index="field", columns="parameter", values=by)
        .loc[fields, parameters]
        .to_numpy()
    )
    hits = (
        shown.pivot(index="field", columns="parameter", values="law")
        .loc[fields, parameters]
        .to_numpy(bool)
    )
    total = table["field"].nunique()
    best = table.iloc[table[by].abs().argmax()]
    name, colours = FIGURES[by]
    if total == len(fields):
        shape = f"{total} fields"
    else:
        shape = f"{len(fields)} of {total} fields"
    if table.attrs.get("simulated"):
        simulated = " (simulated)"
    else:
        simulated = ""
    text = (
        f"{shape}, {len(parameters)} parameters{simulated}: {np.count_nonzero(hits)} law hits; "
        f"most {name}: "
        f"{best['field']} with {best['parameter']}, {best[by]:.3g}"
    )
    limit = 1.0
    if colours == "Blues":
        limit = max(float(np.abs(values).max()), 0.1)
    with canvas((2.6 + 0.26 * len(parameters), 1.6 + 0.15 * len(fields))) as (figure, ax):
        image = ax.imshow(
            values,
            cmap=colours,
            vmin=0 if colours == "Blues" else -limit,
            vmax=limit,
            aspect="auto",
        )
        rows, columns = np.nonzero(hits)
        ax.scatter(columns, rows, s=9, color="black", edgecolors="white", linewidths=0.8)
        ax.set_yticks(range(len(fields)), fields)
        ax.set_xticks(
            range(len(parameters)), parameters, rotation=60, ha="right", rotation_mode="anchor"
        )
        ax.tick_params(length=0)
        figure.colorbar(image, ax=ax, label=f"{name} (dot: law hit)")
        figure.suptitle(text, fontsize=8, wrap=True)
    return Picture(text, figure)


def law_scatter(laws: Any, field: Any, parameter: str | None = None) -> Picture:
    """Captured values of a field against a parameter, with the law drawn through them, each step in
    a mark of its own.

    ``field`` is one of ``laws.fields``, its index or name; or any run of bits as ``(word, lsb,
    width)`` or ``"w3_6_13"``.  ``parameter`` is by default the one that tells most about the field.
    Values are raw, unsigned. Raises LookupError for an unknown field or parameter.
    """
    item = _field(laws, field)
    place = Piece(item.word, item.lsb, item.width, 0)
    name = naming_of(laws).name(place.word, place.lsb, place.width)
    values = Field("", "", name, (place,)).extract(np.asarray(laws.words)).astype(np.int64)
    if parameter is not None and parameter not in laws.parameters:
        raise LookupError(
            f"parameter: got {parameter!r}, known are {', '.join(map(str, laws.parameters))}"
        )
    if parameter is None:
        parameter = next(
            (name for name, _ in related(values, laws.parameters, 1)),
            str(next(iter(laws.parameters))),
        )
    across = np.asarray(laws.parameters[parameter])
    text = f"{name} against {parameter}{_simulated(laws)}: {len(values)} captures"
    with canvas((7.2, 3.6)) as (figure, ax):
        if isinstance(item, Piece) or item.open:
            text += f", {len(np.unique(values))} values, no law"
            ax.plot(across, values, ".", color="#4a4a4a", markersize=4)
        else:
            told = np.asarray(item.values(laws.parameters))
            steps = item.which(laws.parameters)
            text += (
                f", {np.count_nonzero((told == values) & (steps >= 0))} as the law has them, in "
                f"{len(item.steps)} "
                f"step{'s' * (len(item.steps) != 1)}"
            )
            _through(ax, across, values, told, steps, item)
            figure.legend(loc="outside lower center", frameon=False)
        ax.set_xlabel(parameter)
        bare(ax, f"{name}, raw")
        ax.set_title(text, loc="left")
    return Picture(text, figure)


def _through(
    ax: Any, across: np.ndarray, values: np.ndarray, told: np.ndarray, steps: np.ndarray, item: Any
) -> None:
    """Captures that are as the law has them, a mark per step; those that are not, and what it has
    instead."""
    open_ = steps < 0
    right = (told == values) | open_
    if open_.any():
        ax.plot(
            across[open_],
            values[open_],
            ".",
            color="#4a4a4a",
            markersize=4,
            label=f"without a law  ({np.count_nonzero(open_)})",
        )
    for number, (when, law) in enumerate(item.steps):
        here = steps == number
        if not here.any():
            continue
        if str(when) in ("", "always"):
            condition = "else"
        else:
            condition = f"when {when}"
        if len(item.steps) == 1:
            label = str(law)
        else:
            label = f"{law}   {condition}"
        if not (len(label) <= LEGEND):
            label = f"{label[:LEGEND]}…"
        order = np.argsort(across[here], kind="stable")
        x, y = across[here][order], told[here][order]
        colour = f"C{number}"
        if all(
            y[1:][x[1:] == x[:-1]] == y[:-1][x[1:] == x[:-1]]
        ):  # one value at each place: a line is true
            ax.plot(x, y, "-", color=colour, linewidth=0.8, zorder=1)
        ax.plot(
            across[here & right],
            values[here & right],
            MARKS[number % len(MARKS)],
            color=colour,
            markersize=4,
            fillstyle="none",
            label=f"{label}  ({np.count_nonzero(here)})",
        )
    if not right.all():
        ax.plot(
            across[~right],
            values[~right],
            "x",
            color=WRONG,
            markersize=5,
            zorder=3,
            label=f"captured, not as the law has it ({np.count_nonzero(~right)})",
        )
        ax.plot(
            across[~right],
            told[~right],
            "_",
            color=RIGHT,
            markersize=7,
            zorder=3,
            label="what the law has there",
        )


def _field(laws: Any, field: Any) -> Any:
    """A law's field, or the piece of a word that has no law of its own."""
    fields = tuple(laws.fields)
    if hasattr(field, "steps"):
        return field
    if isinstance(field, int | np.integer) and 0 <= field < len(fields):
        return fields[field]
    if isinstance(field, str):
        field = naming_of(laws).place(field) or field
    if isinstance(field, tuple) and len(field) == 3:
        word, lsb, width = (int(number) for number in field)
        same = [item for item in fields if (item.word, item.lsb, item.width) == (word, lsb, width)]
        inside = (
            0 <= word < np.shape(laws.words)[1] and lsb >= 0 < width and lsb + width <= WORD_BITS
        )
        if same:
            field = same[0]
        elif inside:
            field = Piece(word, lsb, width, 0)
        else:
            field = field
    if not isinstance(field, Piece) and not hasattr(field, "steps"):
        raise LookupError(
            f"field: got {field!r}, allowed is one of the {len(fields)} fields of the laws, its "
            "name or "
            f"index, or (word, lsb, width) inside {np.shape(laws.words)[1]} words"
        )
    return field


def _size(words: int) -> tuple[float, float]:
    return 8.4, min(1.2 + 0.16 * words, TALLEST)


def _grid(ax: Any, names: Sequence[str]) -> None:
    """A row per word, by its name, and a column per bit, bit 31 first."""
    words = len(names)
    if words <= LABELLED:
        step = 1
    else:
        step = 8
    ax.set_yticks(range(0, words, step), names[::step])
    ax.set_xticks(
        [WORD_BITS - 1 - bit for bit in range(0, WORD_BITS, 4)] + [0],
        [*range(0, WORD_BITS, 4), WORD_BITS - 1],
    )
    ax.set_xticks(np.arange(-0.5, WORD_BITS), minor=True)
    ax.set_yticks(np.arange(-0.5, words), minor=True)
    ax.grid(which="minor", color="#b0b0b0", linewidth=0.3)
    ax.tick_params(which="both", length=0)
    ax.set_xlim(-0.5, WORD_BITS - 0.5)
    ax.set_ylim(words - 0.5, -0.5)
    ax.set_xlabel("bit")


def _simulated(shown: Any) -> str:
    if getattr(shown, "simulated", False):
        return " (simulated)"
    return ""
