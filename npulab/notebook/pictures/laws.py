"""Pictures of sweeps and their laws: how often bits flip, which bits have a law, which parameters
go with a field, and the captured values of a field with its law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.patches import Patch

from npulab.analysis.correlate import flips, related
from npulab.analysis.laws.naming import Naming, naming_of
from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, bare, canvas, legend
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.shown import LOOKED_AT
from npulab.support.late import pd
from npulab.support.refuse import refuse_if
from npulab.support.text import part_said, plural

# colour, mark and the mark's colour by a bit's status; the mark is for readers who cannot tell the
# colours apart
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
LABELLED = 72  # a map of more words than this has a label at every eighth word only
TALLEST = 24.0  # the greatest height of a map, in inches
LEGEND = 56  # the legend shows at most this many letters of a law
OTHER = "#4a4a4a"  # the colour of captures without a law
SIMULATED = " (simulated)"


def flip_map(words: Any, parameters: Any = None, sort: str | None = None) -> Picture:
    """Draw how often each bit flips from a capture to the next: a row per word, bit 31 on the left.

    Arguments and errors as for ``flips``: words ``(N, W) uint32`` or a sweep; captures follow one
    another as they are given, or sorted by the parameter ``sort``.
    """
    if parameters is None:
        parameters = getattr(words, "parameters", None)
    shares = flips(getattr(words, "words", words), parameters, sort)
    captures = len(getattr(words, "words", words))
    order = "as they come"
    if sort:
        order = f"sorted by {sort}"
    most = "none flips"
    if shares.any():
        word, bit = np.unravel_index(shares.argmax(), shares.shape)
        share = shares[word, bit]
        most = f"most often word {word} bit {bit}, {share:.1%}"
    flipped = np.count_nonzero(shares)
    text = f"{captures} {_unit(words)}{_simulated(words)} {order}: "
    text += f"{flipped} of {shares.size} bits flip, {most}{_part(words)}"
    with canvas(map_size(len(shares))) as (figure, ax):
        scale = PowerNorm(0.5, 0, max(shares.max(), 0.1))  # a root, so that a single flip is seen
        image = ax.imshow(shares[:, ::-1], cmap="Oranges", aspect="auto", norm=scale)
        figure.colorbar(image, ax=ax, label="share of neighbours", fraction=0.04)
        naming = Naming.of(len(shares), getattr(words, "registers", None))
        bit_grid(ax, naming.words)
        ax.set_title(text)
    return Picture(text, figure)


def law_map(laws: Any) -> Picture:
    """Draw the status of each bit (law, constant, rivals, open, ...): a row per word, bit 31 on the
    left. Lines stand where the fields of the laws begin and end.
    """
    status = np.asarray(laws.status)
    counts = Counter(status.ravel().tolist())
    known = [name for name in STATUSES if counts[name]]
    by_status = ", ".join(f"{counts[name]} {name}" for name in known)
    block = f"{len(status)} words{_simulated(laws)}"
    text = f"{block}: {by_status} of {status.size} bits{_part(laws)}"
    with canvas(map_size(len(status))) as (figure, ax):
        colours = np.zeros((*status.shape, 3))
        patches = []
        for name in known:
            colour, mark, ink = STATUSES[name]
            colours[status == name] = to_rgb(colour)
            rows, bits = np.nonzero(status == name)
            x = WORD_BITS - 1 - bits
            if mark == "·":  # a dot drawn as a letter would stand too high
                ax.scatter(x, rows, s=5, marker=".", color=ink, linewidths=0)
            elif mark:
                letter = f"${mark}$"
                ax.scatter(x, rows, s=14, marker=letter, color=ink, linewidths=0)
            label = f"{mark} {name}".strip()
            patches.append(Patch(facecolor=colour, edgecolor="black", linewidth=0.5, label=label))
        ax.imshow(colours[:, ::-1], aspect="auto")
        edges = LineCollection(bit_edges(laws.fields), colors="black", linewidths=1)
        ax.add_collection(edges)
        bit_grid(ax, naming_of(laws).words)
        legend(figure, patches, len(STATUSES))
        ax.set_title(text)
    return Picture(text, figure)


def bit_edges(fields: Iterable[Any]) -> list[list[tuple[float, float]]]:
    """Return a vertical line, as two points (x, y), at each bit boundary where a field of a law
    begins or ends.
    """
    ends = set()
    for field in fields:
        low = WORD_BITS - 0.5 - field.lsb
        ends |= {(field.word, low), (field.word, low - field.width)}
    lines = []
    for row, x in sorted(ends):
        top = x, row - 0.5
        bottom = x, row + 0.5
        lines.append([top, bottom])
    return lines


def correlation_map(table: pd.DataFrame, by: str = "mutual_information") -> Picture:
    """Draw fields against parameters, from the table of ``correlate``; a dot marks a pair whose
    column ``law`` is True.

    ``by`` is the column of numbers to draw: "mutual_information", "pearson" or "spearman".
    Parameters stand in the table's order, fields by word and bit. The table's first
    ``MOST_FIELDS`` fields are shown; fields whose numbers are all 0 are left out, unless every
    field has only zeros.
    Raises ValueError for another column and for a table without rows.
    """
    refuse_if(by not in FIGURES, "by", repr(by), f"is one of {', '.join(FIGURES)}")
    refuse_if(table.empty, "table", "no rows", "are fields against parameters")
    related_rows = table[table[by] != 0]
    if related_rows.empty:
        related_rows = table
    first = related_rows["field"].unique()
    shown = table[table["field"].isin(first[:MOST_FIELDS])]
    shown = shown.sort_values(["word", "lsb"], kind="stable")
    fields = shown["field"].unique()
    parameters = table["parameter"].unique()
    cells = shown.pivot(index="field", columns="parameter", values=[by, "law"])
    values = cells[by].loc[fields, parameters].to_numpy(float)
    hits = cells["law"].loc[fields, parameters].to_numpy(bool)
    text = _correlation_text(table, by, len(fields), int(hits.sum()))
    name, colours = FIGURES[by]
    low = -1.0
    high = 1.0
    if colours == "Blues":
        low = 0.0
        high = max(values.max(), 0.1)
    width = 2.6 + 0.26 * len(parameters)
    height = 1.6 + 0.15 * len(fields)
    with canvas((width, height)) as (figure, ax):
        image = ax.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
        rows, columns = np.nonzero(hits)
        ax.scatter(columns, rows, s=9, color="black", edgecolors="white", linewidths=0.8)
        ax.set_yticks(range(len(fields)), fields)
        places = range(len(parameters))
        ax.set_xticks(places, parameters, rotation=60, ha="right", rotation_mode="anchor")
        ax.tick_params(length=0)
        figure.colorbar(image, ax=ax, label=f"{name} (dot: law hit)")
        figure.suptitle(text, fontsize=8, wrap=True)
    return Picture(text, figure)


def _correlation_text(table: pd.DataFrame, by: str, shown: int, hits: int) -> str:
    total = table["field"].nunique()
    fields = f"{total} fields"
    if shown < total:
        fields = f"{shown} of {fields}"
    simulated = ""
    if table.attrs.get("simulated"):
        simulated = SIMULATED
    best = table.loc[table[by].abs().idxmax()]
    parameters = table["parameter"].nunique()
    name, _ = FIGURES[by]
    pair = f"{best['field']} with {best['parameter']}"
    most = f"most {name}: {pair}, {best[by]:.3g}"
    text = f"{fields}, {parameters} parameters{simulated}: {hits} law hits; {most}"
    if table.attrs.get(LOOKED_AT):
        text += f"; {part_said(table.attrs[LOOKED_AT])}"
    return text


def law_scatter(laws: Any, field: Any, parameter: str | None = None) -> Picture:
    """Draw the captured values of a field against a parameter, with the law's values, and a mark
    for each step of the law (a formula and its condition).

    ``field`` is one of ``laws.fields``, its index or name; or any run of bits as ``(word, lsb,
    width)`` or ``"w3_6_13"``. ``parameter`` is by default the parameter most related to the field.
    Values are raw, unsigned. Raises LookupError for an unknown field or parameter.
    """
    item = _field(laws, field)
    place = Piece(item.word, item.lsb, item.width, 0)
    name = naming_of(laws).name(place.word, place.lsb, place.width)
    bits = Field("", "", name, (place,))
    values = bits.extract(np.asarray(laws.words)).astype(np.int64)
    parameters = [*map(str, laws.parameters)]
    if parameter is None:
        parameter = parameters[0]
        for most, _ in related(values, laws.parameters, 1):
            parameter = most
    if parameter not in parameters:
        raise LookupError(f"parameter: got {parameter!r}, known are {', '.join(parameters)}")
    across = np.asarray(laws.parameters[parameter])
    pair = f"{name} against {parameter}{_simulated(laws)}"
    text = f"{pair}: {len(values)} {_unit(laws)}"
    with canvas((7.2, 3.6)) as (figure, ax):
        if isinstance(item, Piece) or item.open:
            distinct = len(np.unique(values))
            text += f", {distinct} values, no law"
            ax.plot(across, values, ".", color=OTHER, markersize=4)
        else:
            predicted = np.asarray(item.values(laws.parameters))
            steps = item.which(laws.parameters)
            right = np.count_nonzero((predicted == values) & (steps >= 0))
            count = plural(len(item.steps), "step")
            text += f", {right} as the law has them, in {count}"
            captured = {"x": across, "raw": values, "predicted": predicted, "step": steps}
            _draw_steps(ax, pd.DataFrame(captured), item.steps)
            figure.legend(loc="outside lower center")
        text += _part(laws)
        ax.set_xlabel(parameter)
        bare(ax, f"{name}, raw")
        ax.set_title(text, loc="left")
    return Picture(text, figure)


def _draw_steps(ax: Any, captured: pd.DataFrame, steps: Sequence[Any]) -> None:
    """Draw captures that no step of the law decides, then each step (a formula and its condition)
    with a line and a mark of its own, then captures that contradict the law, with its values."""
    open_ = captured[captured.step < 0]
    if len(open_):
        label = f"without a law  ({len(open_)})"
        ax.plot(open_.x, open_.raw, ".", color=OTHER, markersize=4, label=label)
    for number, (when, law) in enumerate(steps):
        decided = captured[captured.step == number]
        if decided.empty:
            continue
        colour = f"C{number}"
        line = decided.sort_values("x", kind="stable")
        # without a line if other parameters change the law's value at the same x
        if line.groupby("x").predicted.nunique().max() == 1:
            ax.plot(line.x, line.predicted, "-", color=colour, linewidth=0.8, zorder=1)
        label = _step_label(str(law), str(when), len(steps))
        label += f"  ({len(decided)})"
        mark = MARKS[number % len(MARKS)] + colour
        right = decided[decided.predicted == decided.raw]
        ax.plot(right.x, right.raw, mark, markersize=4, fillstyle="none", label=label)
    decided = captured[captured.step >= 0]
    wrong = decided[decided.predicted != decided.raw]
    if len(wrong):
        label = f"captured, not as the law has it ({len(wrong)})"
        ax.plot(wrong.x, wrong.raw, "x", color=WRONG, markersize=5, zorder=3, label=label)
        label = "what the law has there"
        ax.plot(wrong.x, wrong.predicted, "_", color=RIGHT, markersize=7, zorder=3, label=label)


def _step_label(law: str, when: str, steps: int) -> str:
    label = law
    if steps > 1:
        condition = "else"
        if when not in ("", "always"):
            condition = f"when {when}"
        label = f"{law}   {condition}"
    if len(label) > LEGEND:
        return f"{label[:LEGEND]}…"
    return label


def _field(laws: Any, field: Any) -> Any:
    """Return the field of ``laws`` that ``field`` means, or the bits of a word as a field without a
    law, if no field of the laws has exactly these bits.

    Raises LookupError for an unknown name, an index out of range, or bits outside the words.
    """
    fields = laws.fields
    if isinstance(field, Piece) or hasattr(field, "steps"):
        return field
    if isinstance(field, int | np.integer) and 0 <= field < len(fields):
        return fields[field]
    place = field
    if isinstance(field, str):
        place = naming_of(laws).place(field)
    _, words = np.shape(laws.words)
    if isinstance(place, tuple) and len(place) == 3:
        word, lsb, width = map(int, place)
        for item in fields:
            if (item.word, item.lsb, item.width) == (word, lsb, width):
                return item
        if 0 <= word < words and 0 <= lsb < lsb + width <= WORD_BITS:
            return Piece(word, lsb, width, 0)
    raise LookupError(
        f"field: got {field!r}, allowed is one of the {len(fields)} fields of the laws, its name "
        f"or index, or (word, lsb, width) inside {words} words"
    )


def map_size(words: int) -> tuple[float, float]:
    """Return the width and height in inches of a picture with a row for each word."""
    height = 1.2 + 0.16 * words
    return 8.4, min(height, TALLEST)


def bit_grid(ax: Any, names: Sequence[str]) -> None:
    """Give the axes a row for each word, with its name, and a column for each bit, bit 31 first."""
    words = len(names)
    step = 1
    if words > LABELLED:
        step = 8
    ax.set_yticks(range(0, words, step), names[::step])
    bits = [*range(0, WORD_BITS, 4), WORD_BITS - 1]
    ax.set_xticks(np.subtract(WORD_BITS - 1, bits), bits)
    ax.set_xticks(np.arange(-0.5, WORD_BITS), minor=True)
    ax.set_yticks(np.arange(-0.5, words), minor=True)
    ax.grid(which="minor", color="#b0b0b0", linewidth=0.3)
    ax.tick_params(which="both", length=0)
    ax.set_xlim(-0.5, WORD_BITS - 0.5)
    ax.set_ylim(words - 0.5, -0.5)
    ax.set_xlabel("bit")


def _unit(shown: Any) -> str:
    if getattr(shown, "looked_at", ""):
        return "jobs"
    return "captures"


def _part(shown: Any) -> str:
    looked_at = getattr(shown, "looked_at", "")
    if looked_at:
        return f"; {part_said(looked_at)}"
    return ""


def _simulated(shown: Any) -> str:
    if getattr(shown, "simulated", False):
        return SIMULATED
    return ""
