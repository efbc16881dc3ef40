"""Which parameter moves which bit: correlation of fields with layer parameters, and the bits that
flip over a sweep.

These figures say where to look; a high figure is not a law.  Mutual information is in bits, of
binned columns: a column with no more values than bins has a bin for each value, every other column
has bins of equal counts with equal values kept together.  There are as many bins as leave
``PER_CELL`` captures for each pair of bins, 2 to ``MOST_BINS``.  What chance alone would give is
subtracted after Miller and Madow ((occupied cells - 1) / 2N nats added to each entropy), and the
result is limited to 0 and the smaller of the two entropies.  A column that never changes has 0
everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from npulab.captures.sweep import no_captures, words_of
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.registers.names import automatic_name
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

PER_CELL = 5  # captures for each pair of bins
MOST_BINS = 64
TEXT = "U"  # kind of the columns that hold texts
COLUMNS = (
    "field",
    "word",
    "lsb",
    "width",
    "parameter",
    "pearson",
    "spearman",
    "mutual_information",
    "law",
)


def correlate(
    words: Any,
    parameters: Any = None,
    registers: RegisterMap | None = None,
    laws: Any = None,
) -> pd.DataFrame:
    """Return how each field goes with each parameter: a row per pair, most mutual information
    first.

    ``words`` are ``(N, W) uint32``, or a sweep, which has its parameters; ``parameters`` a
    DataFrame or a mapping of columns, N rows.  The fields are those of ``registers``; or else those
    of ``laws``, if given, and the longest runs of other bits that vary.

    Columns: ``field``, ``word`` and ``lsb`` of its lowest piece, ``width``, ``parameter``;
    ``pearson`` and ``spearman`` (-1 to 1, equal values share their mean rank, 0 for a parameter of
    texts) of the value as meant; ``mutual_information`` in bits; ``law``: the field is the
    parameter in every capture, as a number or as the pattern of a float32, or its law in ``laws``
    names the parameter.  Its ``attrs["simulated"]`` is true if the sweep or the laws are simulated.
    Raises ValueError for fewer than two captures, numbers that are not finite and arrays that do
    not fit.

    >>> words = np.arange(64, dtype=np.uint32)[:, None]
    >>> correlate(words, {"height": np.arange(64)})[["field", "parameter", "law"]].values.tolist()
    [['w0_0_6', 'height', True]]
    """
    no_captures("correlate", words)
    simulated = any(getattr(source, "simulated", False) for source in (words, laws))
    known = getattr(laws, "registers", None) or getattr(words, "registers", None)
    words, columns = _arrays(words, parameters)
    if registers is None:
        fields = _fields(words, laws, known)
        names = [item.name for item in fields]
    else:
        if len(registers) != words.shape[1]:
            raise ValueError(
                f"registers: got a map of {len(registers)} words, allowed is {words.shape[1]} as "
                "in the words"
            )
        fields = list(registers)
        names = [registers.key(item) for item in fields]
    places = np.array([(*item.pieces[0][:2], item.width) for item in fields], int).reshape(-1, 3)
    word, lsb, width = places.repeat(len(columns), axis=0).T
    figures = _figures(fields, words, columns)
    figures["law"] |= _named(fields, columns, laws)
    table = pd.DataFrame(
        {
            "field": np.repeat(names, len(columns)),
            "word": word,
            "lsb": lsb,
            "width": width,
            "parameter": list(columns) * len(fields),
            **{name: figure.ravel() for name, figure in figures.items()},
        },
        columns=list(COLUMNS),
    )
    order = np.lexsort((-np.abs(table["spearman"]), -table["mutual_information"]))
    table = table.iloc[order].reset_index(drop=True)
    table.attrs["simulated"] = simulated
    return table


def _figures(
    fields: Sequence[Field], words: np.ndarray, columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the figures ``(F, P)`` of fields and parameters by column of the table."""
    stored = []
    meant = []
    for item in fields:
        raw = item.extract(words)
        value = np.asarray(item.value(raw))
        if not np.isfinite(value).all():
            value = raw
        stored.append(raw)
        meant.append(value)
    numbers = []
    for column in columns.values():
        if column.dtype.kind == TEXT:
            column = np.zeros(len(words))
        numbers.append(column)
    bins = _bins(len(words), 1)
    ranks, codes = _ranked(meant, bins)
    parameter_ranks, parameter_codes = _ranked(columns.values(), bins)
    ordered = np.array([column.dtype.kind != TEXT for column in columns.values()], bool)
    return {
        "pearson": _pearson(_stack(meant), _stack(numbers)),
        "spearman": np.where(ordered, _pearson(ranks, parameter_ranks), 0.0),
        "mutual_information": _information(codes, parameter_codes),
        "law": _same_numbers(stored, meant, columns),
    }


def flips(words: Any, parameters: Any = None, sort: str | None = None) -> np.ndarray:
    """Return the share of neighbouring captures in which each bit flips: ``(W, 32)`` float, 0 to 1,
    bit 0 first.

    Captures are neighbours in the order given, or sorted by the parameter ``sort`` (equal captures
    stay in order): then a bit that follows the parameter flips rarely.  Raises ValueError as
    ``correlate``, LookupError for an unknown parameter.

    >>> flips(np.array([[0], [1], [2]], np.uint32))[0, :3].tolist()
    [1.0, 0.5, 0.0]
    """
    if sort is None:
        words = words_of(getattr(words, "words", words))
        _enough(len(words))
    else:
        words, columns = _arrays(words, parameters)
        if sort not in columns:
            raise LookupError(f"sort: got {sort!r}, known are {', '.join(columns)}")
        words = words[np.argsort(columns[sort], kind="stable")]
    changed = words[1:] ^ words[:-1]
    out = np.zeros((words.shape[1], WORD_BITS))
    for bit in range(WORD_BITS):
        out[:, bit] = (changed >> np.uint32(bit) & np.uint32(1)).mean(axis=0)
    return out


def bit_effects(words: Any, parameters: Any = None) -> np.ndarray:
    """Return the mutual information of every bit with every parameter: ``(W, 32, P)`` float, 0 to 1
    bits, bit 0 first.

    Arguments and errors as of ``correlate``.

    >>> bit_effects(np.array([[0], [1]] * 8, np.uint32), {"relu": [0, 1] * 8})[0, :2, 0].tolist()
    [1.0, 0.0]
    """
    words, columns = _arrays(words, parameters)
    theirs = _ranked(columns.values(), _bins(len(words), 2))[1]
    out = np.zeros((words.shape[1], WORD_BITS, len(columns)))
    for word, varies in enumerate(_varying(words)):
        bits = np.flatnonzero(varies)
        values = words[:, word, None] >> bits.astype(np.uint32) & np.uint32(1)
        out[word, bits] = _information(values.astype(np.intp), theirs)
    return out


def best_related(bit: Any, parameters: Any, n: int = 3) -> Any:
    """Return the parameters that say most about a bit: at most ``n`` pairs (name, bits of mutual
    information).

    ``bit`` is ``(N,)`` of 0 and 1; for ``(N, K)`` there is a list of pairs for each of the K, which
    is quicker than to ask for one at a time.  Parameters that say nothing are left out, so that a
    bit that never changes has none. Raises ValueError as ``correlate``, and for a bit that is
    neither 0 nor 1.

    >>> best_related([0, 1] * 8, {"height": [3, 3] * 8, "relu": [0, 1] * 8})
    [('relu', 1.0)]
    """
    bits = np.asarray(bit)
    if bits.ndim not in (1, 2):
        raise ValueError(f"bit: got shape {bits.shape}, allowed is (N,) or (N, K) of 0 and 1")
    wrong = bits[(bits != 0) & (bits != 1)]
    if wrong.size:
        raise ValueError(f"bit: got {wrong[0]}, allowed is 0 and 1")
    found = _best(bits.reshape(len(bits), -1).astype(np.intp), parameters, n, 2)
    if bits.ndim == 2:
        return found
    return found[0]


def related(values: Any, parameters: Any, n: int = 3) -> list[tuple[str, float]]:
    """Return the parameters that say most about values ``(N,)`` of a field: at most ``n`` pairs
    (name, mutual information).

    Parameters that say nothing are left out.  Errors as of ``correlate``.

    >>> related([5, 7] * 8, {"height": [1, 2] * 8, "width": [8] * 16})
    [('height', 1.0)]
    """
    values = _column("values", values, _enough(len(np.asarray(values))))
    return _best(_ranked([values], _bins(len(values), 1))[1], parameters, n, 1)[0]


def _best(codes: np.ndarray, parameters: Any, n: int, levels: int) -> list[list[tuple[str, float]]]:
    refuse_if(n < 1, "n", n, "is at least 1")
    columns = _columns(parameters, _enough(len(codes)))
    _, theirs = _ranked(columns.values(), _bins(len(codes), levels))
    names = list(columns)
    found = []
    for row in _information(codes, theirs):
        best = np.argsort(-row, kind="stable")[:n]
        found.append([(names[i], float(row[i])) for i in best if row[i] > 0])
    return found


# ---- arguments ----


def _enough(rows: int) -> int:
    refuse_if(rows < 2, "words", plural(rows, "capture"), "are two or more to compare")
    return rows


def _columns(parameters: Any, rows: int) -> dict[str, np.ndarray]:
    """Return each parameter as int64, float64 or text, none missing."""
    if not hasattr(parameters, "keys"):
        raise ValueError(
            f"parameters: got {type(parameters).__name__}, allowed is a DataFrame or a mapping of "
            "columns"
        )
    out = {str(name): _column(str(name), parameters[name], rows) for name in parameters.keys()}  # noqa: SIM118
    refuse_if(not out, "parameters", "no columns", "is one or more")
    return out


def _column(name: str, values: Any, rows: int) -> np.ndarray:
    column = np.asarray(values)
    if column.shape != (rows,):
        raise ValueError(
            f"parameters: got shape {column.shape} in {name!r}, allowed is ({rows},) as of the "
            "captures"
        )
    if column.dtype.kind in "biu":
        return column.astype(np.int64)
    kind: type = str
    wrong = np.array([value is None or value != value for value in column], bool)
    if column.dtype.kind == "f":
        kind = np.float64
        wrong = ~np.isfinite(column)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"parameters: got {column[row]} in {name!r} row {row}, allowed are finite numbers"
        )
    return column.astype(kind)


def _arrays(words: Any, parameters: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    if parameters is None:
        parameters = getattr(words, "parameters", None)
    words = words_of(getattr(words, "words", words))
    return words, _columns(parameters, _enough(len(words)))


# ---- fields ----


def _varying(words: np.ndarray) -> np.ndarray:
    """Return the bits of each word that are not the same in all captures, ``(W, 32) bool``."""
    masks = np.bitwise_or.reduce(words ^ words[0], axis=0)
    return (masks[:, None] >> np.arange(WORD_BITS, dtype=np.uint32) & np.uint32(1)).astype(bool)


def _fields(words: np.ndarray, laws: Any, known: RegisterMap | None) -> list[Field]:
    """Return the fields of laws and the runs of other bits that vary, called by their place in the
    map of the words."""
    names = tuple(f"w{word}" for word in range(words.shape[1]))
    if known is not None and len(known) == len(names):
        names = known.word_names
    places: list[tuple[int, int, int]] = []
    free = _varying(words)
    if laws is not None:
        for item in laws.fields:
            places.append((item.word, item.lsb, item.width))
            free[item.word, item.lsb : item.lsb + item.width] = False
    edges = np.diff(np.pad(free, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    starts, ends = np.argwhere(edges > 0), np.argwhere(edges < 0)
    for (word, lsb), (_, end) in zip(starts.tolist(), ends.tolist(), strict=True):
        places.append((word, lsb, end - lsb))
    fields = []
    for word, lsb, width in sorted(places):
        name = automatic_name(names[word], lsb, width)
        piece = Piece(word, lsb, width, 0)
        fields.append(Field("", names[word], name, (piece,), automatic=True))
    return fields


def _same_numbers(
    stored: Sequence[np.ndarray], meant: Sequence[np.ndarray], columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return ``(F, P)`` bool: the field varies and is the parameter, as stored, as meant or as the
    pattern of a float32."""
    out = np.zeros((len(stored), len(columns)), bool)
    for row, raw, value in zip(out, stored, meant, strict=True):
        if not np.any(raw != raw[0]):
            continue
        real = None
        if raw.dtype == np.uint32:
            real = raw.view(np.float32)
        for number, column in enumerate(columns.values()):
            if column.dtype.kind != TEXT:
                row[number] = _is_column(raw, column) or _is_column(value, column)
                if real is not None:
                    row[number] |= _is_column(real, column)
    return out


def _is_column(values: np.ndarray, column: np.ndarray) -> bool:
    if values.dtype == np.float32:
        column = column.astype(np.float32)
    return np.array_equal(values, column)


def _named(fields: Sequence[Field], columns: Mapping[str, np.ndarray], laws: Any) -> np.ndarray:
    """Return ``(F, P)`` bool: a law of some of the field's bits names the parameter."""
    out = np.zeros((len(fields), len(columns)), bool)
    if laws is None:
        return out
    texts: dict[tuple[int, int], str] = {}
    for item in laws.fields:
        text = " ".join(map(str, chain.from_iterable(item.steps)))
        for bit in range(item.lsb, item.lsb + item.width):
            texts[item.word, bit] = text
    for row, item in zip(out, fields, strict=True):
        of_field = ""
        for piece in item.pieces:
            for bit in range(piece.lsb, piece.lsb + piece.width):
                of_field += texts.get((piece.word, bit), "") + "\n"
        for number, name in enumerate(columns):
            row[number] = bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", of_field))
    return out


# ---- figures ----


def _bins(rows: int, levels: int) -> int:
    """Return the bins of a column against one of ``levels`` values, 1 if both are binned alike."""
    if levels == 1:
        fit = math.isqrt(rows // PER_CELL)
    else:
        fit = rows // (PER_CELL * levels)
    return min(max(fit, 2), MOST_BINS)


def _stack(columns: Iterable[np.ndarray]) -> np.ndarray:
    columns = list(columns)
    if columns:
        return np.stack(columns, axis=1).astype(np.float64)
    return np.zeros((0, 0))


def _ranked(columns: Iterable[np.ndarray], bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean ranks ``(N, K)`` float of columns, and their bins ``(N, K)`` from 0."""
    ranks, codes = [], []
    for column in columns:
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        # how many captures lie below the middle of those with this value
        middle = np.cumsum(counts) - counts / 2
        binned = np.arange(len(counts))
        if len(counts) > bins:
            wide = (middle * bins // len(column)).astype(np.intp)
            _, binned = np.unique(wide, return_inverse=True)
        ranks.append((middle + 0.5)[place])
        codes.append(binned[place])
    return _stack(ranks), _stack(codes).astype(np.intp)


def _pearson(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return ``(F, P)`` for columns ``(N, F)`` and ``(N, P)``; 0 for a column that never
    changes."""
    if ours.size:
        return np.clip(_unit(ours).T @ _unit(theirs), -1, 1)
    return np.zeros((0, theirs.shape[1]))


def _unit(columns: np.ndarray) -> np.ndarray:
    """Return columns with mean 0 and length 1; 0 for a column that never changes."""
    moves = (columns != columns[:1]).any(axis=0)
    columns = np.where(moves, columns - columns.mean(axis=0), 0.0)
    # the squares of very large and very small numbers would not be finite, or be 0
    size = np.abs(columns).max(axis=0, initial=0)
    columns = columns / np.where(size > 0, size, 1)
    length = np.sqrt((columns**2).sum(axis=0))
    return columns / np.where(length > 0, length, 1)


def _information(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return ``(F, P)`` bits of mutual information of bins ``(N, F)`` and ``(N, P)``, corrected as
    the module says."""
    rows, count = theirs.shape
    out = np.zeros((ours.shape[1], count))
    if not ours.size:
        return out
    high = int(theirs.max()) + 1
    place = np.arange(count) * high + theirs
    size = count * high
    marginal, occupied = _entropy(
        np.bincount(place.ravel(), minlength=size).reshape(count, high), rows
    )
    for field, codes in enumerate(ours.T):
        levels = int(codes.max()) + 1
        cell = codes[:, None] * size + place
        joint = np.bincount(cell.ravel(), minlength=levels * size).reshape(levels, count, high)
        mine, bins = _entropy(joint[:, 0].sum(axis=1)[None], rows)
        both, cells = _entropy(joint.transpose(1, 0, 2).reshape(count, -1), rows)
        chance = (cells - occupied - bins + 1) / (2 * rows * math.log(2))
        out[field] = np.clip(mine + marginal - both - chance, 0, np.minimum(mine, marginal))
    return out


def _entropy(counts: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits of entropy ``(K,)`` of counts ``(K, levels)`` out of ``rows``, and how many
    counts are not 0."""
    table = np.arange(rows + 1) / rows
    table[1:] *= -np.log2(table[1:])
    table[0] = 0
    return table[counts].sum(axis=1), np.count_nonzero(counts, axis=1)
