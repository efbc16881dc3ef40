"""Which parameter changes which bit: correlation of fields with layer parameters, and the bits that
flip over a sweep.

These figures say where to look; a high figure is not a law.

Mutual information is in bits and computed from binned columns. A column with no more values than
bins has a bin for each value. Every other column has bins of about equally many captures; equal
values stay in one bin. The number of bins, 2 to ``MOST_BINS``, is chosen so that each pair of bins
has ``PER_CELL`` captures on average. The information that chance alone would give is subtracted
after Miller and Madow: (occupied cells - 1) / 2N nats are added to each entropy. The result is
limited to the range from 0 to the smaller of the two entropies. A column that never changes has 0
everywhere.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from npulab.captures.sweep import no_captures, words_of
from npulab.captures.sweep_store import SweepStore
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.registers.names import automatic_name
from npulab.registers.shown import with_part
from npulab.support.refuse import refuse_if
from npulab.support.text import part_said, plural

# The number of bins is limited so that each pair of bins has this many captures on average.
PER_CELL = 5
MOST_BINS = 64
# Figures of a store are made of at most n = MOST_CORRELATED captures: 32 for each pair of MOST_BINS
# bins. Then chance alone gives 63**2 / (2 * n * ln 2), 0.02 bits, which the correction subtracts.
MOST_CORRELATED = 2**17
# The kind of a numpy column that holds texts.
TEXT = "U"
# By the name of a parameter: its values, one for each capture.
Columns = dict[str, Array]


def correlate(
    words: Any,
    parameters: Any = None,
    registers: RegisterMap | None = None,
    laws: Any = None,
) -> pd.DataFrame:
    """Return how far each field depends on each parameter: a row for each pair, most mutual
    information first.

    ``words`` are ``(N, W) uint32``, or a sweep or a store (131,072 captures); ``parameters`` is a
    DataFrame or a mapping of columns, N rows. The fields are those of ``registers``. Without it
    they are the fields of ``laws``, if given, and the longest runs of other bits that vary.

    Columns: ``field``; ``word`` and ``lsb`` of its lowest piece; ``width``; ``parameter``;
    ``pearson`` and ``spearman`` of the scaled value (-1 to 1; equal values share their mean rank; 0
    for a parameter of texts); ``mutual_information`` in bits; ``law``, which is True if the field
    is equal to the parameter in every capture, as a number or as the bit pattern of a float32, or
    if the law of the field in ``laws`` names the parameter. ``attrs["simulated"]`` of the table is
    True if the sweep or the laws are simulated. If the table is of some jobs only, a line below it
    says of how many (``attrs["looked_at"]``).

    Raises ValueError for fewer than two captures, numbers that are not finite, and arrays of
    different lengths.

    >>> words = np.arange(64, dtype=np.uint32)[:, None]
    >>> correlate(words, {"height": np.arange(64)})[["field", "parameter", "law"]].values.tolist()
    [['w0_0_6', 'height', True]]
    """
    no_captures("correlate", words)
    sources = words, laws = _sampled(words), laws
    known = getattr(laws, "registers", None) or getattr(words, "registers", None)
    words, columns = _arrays(words, parameters)
    if registers is None:
        fields = _fields(words, laws, known)
        names = [item.name for item in fields]
    else:
        count = words.shape[1]
        if len(registers) != count:
            got = f"a map of {len(registers)} words"
            raise ValueError(
                f"registers: got {got}, allowed is a map of {count} words, as the captures have"
            )
        fields = list(registers)
        names = [registers.key(item) for item in fields]
    rows = []
    for name, item in zip(names, fields, strict=True):
        lowest = item.pieces[0]
        for parameter in columns:
            rows.append((name, lowest.word, lowest.lsb, item.width, parameter))
    table = pd.DataFrame(rows, columns=["field", "word", "lsb", "width", "parameter"])
    table = table.astype({"word": int, "lsb": int, "width": int})
    figures = _figures(fields, words, columns)
    figures["law"] |= _named(fields, columns, laws)
    for name, figure in figures.items():
        table[name] = figure.ravel()
    strength = np.abs(table["spearman"])
    order = np.lexsort((-strength, -table["mutual_information"]))
    table = table.iloc[order].reset_index(drop=True)
    table.attrs["simulated"] = any(getattr(source, "simulated", False) for source in sources)
    return with_part(table, *sources)


def _figures(fields: Sequence[Field], words: Array, columns: Columns) -> dict[str, Array]:
    """Return the figures of F fields and P parameters, ``(F, P)`` each, by the name of the column
    of the table."""
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
    ordered = []
    for column in columns.values():
        number = column.dtype.kind != TEXT
        if not number:
            column = np.zeros(len(words))
        numbers.append(column)
        ordered.append(number)
    bins = _bins(len(words), 1)
    ranks, codes = _ranked(meant, bins)
    parameter_ranks, parameter_codes = _ranked(columns.values(), bins)
    spearman = _pearson(ranks, parameter_ranks)
    return {
        "pearson": _pearson(_stack(meant), _stack(numbers)),
        "spearman": np.where(np.array(ordered, bool), spearman, 0.0),
        "mutual_information": _information(codes, parameter_codes),
        "law": _same_numbers(stored, meant, columns),
    }


def flips(words: Any, parameters: Any = None, sort: str | None = None) -> Array:
    """Return, for each bit, the share of neighbouring pairs of captures in which it flips: ``(W,
    32)`` float, 0 to 1, bit 0 first.

    Captures are neighbours in the order given. With ``sort`` they are sorted by that parameter
    first (captures with equal values keep their order): a bit that follows the parameter then flips
    rarely. If the sweep has not all jobs of its captures, a UserWarning says of how many jobs the
    shares are. Raises ValueError as ``correlate``, LookupError for an unknown parameter.

    >>> flips(np.array([[0], [1], [2]], np.uint32))[0, :3].tolist()
    [1.0, 0.5, 0.0]
    """
    if isinstance(words, SweepStore):
        return _flips_of(words, sort)
    _tell_part(words)
    if sort is None:
        words = words_of(getattr(words, "words", words))
        _enough(len(words))
    else:
        words, columns = _arrays(words, parameters)
        if sort not in columns:
            raise LookupError(f"sort: got {sort!r}, known are {', '.join(columns)}")
        order = np.argsort(columns[sort], kind="stable")
        words = words[order]
    changed = words[1:] ^ words[:-1]
    out = np.zeros((words.shape[1], WORD_BITS))
    for bit in range(WORD_BITS):
        out[:, bit] = _bits_at(changed, bit).mean(axis=0)
    return out


def _flips_of(store: SweepStore, sort: str | None) -> Array:
    """``flips`` of a store, part by part."""
    _tell_part(store)
    _enough(len(store))
    if sort is not None:
        known = store.parameters
        refuse_if(sort not in known, "sort", repr(sort), f"are {', '.join(known)}", LookupError)
        store = store.sort(f'"{sort}"')
    out = np.zeros((store.head.words, WORD_BITS))
    last = None
    for sweep in store:
        words = sweep.words
        if last is not None:
            words = np.concatenate([last, words])
        changed = words[1:] ^ words[:-1]
        for bit in range(WORD_BITS):
            out[:, bit] += _bits_at(changed, bit).sum(axis=0)
        last = words[-1:]
    return out / (len(store) - 1)


def bit_effects(words: Any, parameters: Any = None) -> Array:
    """Return the mutual information of every bit with every parameter: ``(W, 32, P)`` float, 0 to 1
    (bits of information), bit 0 first.

    Arguments and errors are those of ``correlate``, the warning is that of ``flips``.

    >>> bit_effects(np.array([[0], [1]] * 8, np.uint32), {"relu": [0, 1] * 8})[0, :2, 0].tolist()
    [1.0, 0.0]
    """
    words = _sampled(words)
    _tell_part(words)
    words, columns = _arrays(words, parameters)
    _, theirs = _ranked(columns.values(), _bins(len(words), 2))
    out = np.zeros((words.shape[1], WORD_BITS, len(columns)))
    for word, varies in enumerate(_varying(words)):
        bits = np.flatnonzero(varies)
        values = _bits_at(words[:, word, None], bits)
        out[word, bits] = _information(values.astype(np.intp), theirs)
    return out


def best_related(bit: Any, parameters: Any, n: int = 3) -> Any:
    """Return the parameters that share most information with a bit: at most ``n`` pairs (name,
    mutual information in bits).

    ``bit`` is ``(N,)`` of 0 and 1; for ``(N, K)`` a list with the pairs of each of the K bits is
    returned, which takes less time than K calls. Parameters without mutual information are left
    out, so that a bit that never changes has none. Raises ValueError as ``correlate``, and for a
    value that is neither 0 nor 1.

    >>> best_related([0, 1] * 8, {"height": [3, 3] * 8, "relu": [0, 1] * 8})
    [('relu', 1.0)]
    """
    bits = np.asarray(bit)
    if bits.ndim not in (1, 2):
        raise ValueError(f"bit: got shape {bits.shape}, allowed is (N,) or (N, K) of 0 and 1")
    wrong = bits[(bits != 0) & (bits != 1)]
    if wrong.size:
        raise ValueError(f"bit: got {wrong[0]}, allowed are 0 and 1")
    codes = bits.reshape(len(bits), -1).astype(np.intp)
    found = _best(codes, parameters, n, 2)
    if bits.ndim == 2:
        return found
    return found[0]


def related(values: Any, parameters: Any, n: int = 3) -> list[tuple[str, float]]:
    """Return the parameters that share most information with the values ``(N,)`` of a field: at
    most ``n`` pairs (name, mutual information in bits).

    Parameters without mutual information are left out. Errors are those of ``correlate``.

    >>> related([5, 7] * 8, {"height": [1, 2] * 8, "width": [8] * 16})
    [('height', 1.0)]
    """
    rows = _enough(len(np.asarray(values)))
    values = _column("values", values, rows)
    _, codes = _ranked([values], _bins(rows, 1))
    [best] = _best(codes, parameters, n, 1)
    return best


def _best(codes: Array, parameters: Any, n: int, levels: int) -> list[list[tuple[str, float]]]:
    refuse_if(n < 1, "n", n, "is at least 1")
    rows = _enough(len(codes))
    columns = _columns(parameters, rows)
    _, theirs = _ranked(columns.values(), _bins(rows, levels))
    names = list(columns)
    found = []
    for row in _information(codes, theirs):
        best = np.argsort(-row, kind="stable")[:n]
        pairs = [(names[i], float(row[i])) for i in best if row[i] > 0]
        found.append(pairs)
    return found


def _bits_at(words: Array, bits: Any) -> Array:
    """Return the bits of words at a place, or at an array of places, as 0 and 1."""
    return words >> np.asarray(bits, np.uint32) & np.uint32(1)


# ---- arguments as arrays ----


def _sampled(words: Any) -> Any:
    """The words of a store as a sweep; of more than ``MOST_CORRELATED`` captures only a random
    sample, named in ``looked_at``. Words of no store are returned as they are.
    """
    if not isinstance(words, SweepStore):
        return words
    if len(words) <= MOST_CORRELATED:
        return words.read()
    of = f"{MOST_CORRELATED} captures at random of {plural(len(words), 'capture')}"
    return replace(words.sample(MOST_CORRELATED), looked_at=of)


def _tell_part(words: Any) -> None:
    """Warn if the words of a sweep are of only some jobs of its captures, because a returned array
    cannot say so.
    """
    looked_at = getattr(words, "looked_at", "")
    if looked_at:
        warnings.warn(part_said(looked_at), UserWarning, stacklevel=3)


def _enough(rows: int) -> int:
    refuse_if(rows < 2, "words", plural(rows, "capture"), "are two or more to compare")
    return rows


def _columns(parameters: Any, rows: int) -> Columns:
    """Return each parameter as an array of int64, float64 or text; raises ValueError if there are
    none, or if a value is missing."""
    if not hasattr(parameters, "keys"):
        got = type(parameters).__name__
        allowed = "a DataFrame or a mapping of columns"
        raise ValueError(f"parameters: got {got}, allowed is {allowed}")
    out = {}
    for key in parameters.keys():  # noqa: SIM118
        name = str(key)
        out[name] = _column(name, parameters[key], rows)
    refuse_if(not out, "parameters", "no columns", "is one or more")
    return out


def _column(name: str, values: Any, rows: int) -> Array:
    column = np.asarray(values)
    if column.shape != (rows,):
        got = f"shape {column.shape} in {name!r}"
        raise ValueError(f"parameters: got {got}, allowed is ({rows},), a value for each capture")
    if column.dtype.kind in "biu":
        return column.astype(np.int64)
    dtype: type = str
    wrong = np.array([value is None or value != value for value in column], bool)
    if column.dtype.kind == "f":
        dtype = np.float64
        wrong = ~np.isfinite(column)
    if wrong.any():
        row = int(np.argmax(wrong))
        got = f"{column[row]} in {name!r} row {row}"
        raise ValueError(f"parameters: got {got}, allowed are finite numbers")
    return column.astype(dtype)


def _arrays(words: Any, parameters: Any) -> tuple[Array, Columns]:
    if parameters is None:
        parameters = getattr(words, "parameters", None)
    words = words_of(getattr(words, "words", words))
    rows = _enough(len(words))
    return words, _columns(parameters, rows)


# ---- fields ----


def _varying(words: Array) -> Array:
    """Return a mask ``(W, 32) bool`` of the bits that are not the same in all captures."""
    masks = np.bitwise_or.reduce(words ^ words[0], axis=0)
    return _bits_at(masks[:, None], np.arange(WORD_BITS)).astype(bool)


def _fields(words: Array, laws: Any, known: RegisterMap | None) -> list[Field]:
    """Return the fields of the laws, and the runs of other bits that vary; a run is named after its
    word.
    """
    names = tuple(f"w{word}" for word in range(words.shape[1]))
    if known is not None and len(known) == len(names):
        names = known.word_names
    places: list[tuple[int, int, int]] = []
    free = _varying(words)
    if laws is not None:
        for item in laws.fields:
            places.append((item.word, item.lsb, item.width))
            free[item.word, item.lsb : item.lsb + item.width] = False
    padded = np.pad(free, ((0, 0), (1, 1))).astype(np.int8)
    edges = np.diff(padded, axis=1)
    starts, ends = np.argwhere(edges > 0), np.argwhere(edges < 0)
    for (word, lsb), (_, end) in zip(starts.tolist(), ends.tolist(), strict=True):
        places.append((word, lsb, end - lsb))
    fields = []
    for word, lsb, width in sorted(places):
        name = automatic_name(names[word], lsb, width)
        piece = Piece(word, lsb, width, 0)
        item = Field("", names[word], name, (piece,), automatic=True)
        fields.append(item)
    return fields


def _same_numbers(stored: Sequence[Array], meant: Sequence[Array], columns: Columns) -> Array:
    """Return ``(F, P) bool``: True if the field varies and its raw value, its scaled value, or its
    raw value read as a float32 is equal to the parameter in every capture."""
    out = np.zeros((len(stored), len(columns)), bool)
    for row, raw, value in zip(out, stored, meant, strict=True):
        if np.all(raw == raw[0]):
            continue
        readings = [raw, value]
        if raw.dtype == np.uint32:
            readings.append(raw.view(np.float32))
        for number, column in enumerate(columns.values()):
            if column.dtype.kind != TEXT:
                row[number] = any(_is_column(reading, column) for reading in readings)
    return out


def _is_column(values: Array, column: Array) -> bool:
    if values.dtype == np.float32:
        column = column.astype(np.float32)
    return np.array_equal(values, column)


def _named(fields: Sequence[Field], columns: Columns, laws: Any) -> Array:
    """Return ``(F, P) bool``: True if the law of any bit of the field names the parameter."""
    out = np.zeros((len(fields), len(columns)), bool)
    if laws is None:
        return out
    texts: dict[tuple[int, int], str] = {}
    for item in laws.fields:
        steps = map(str, chain.from_iterable(item.steps))
        text = " ".join(steps)
        for bit in range(item.lsb, item.lsb + item.width):
            texts[item.word, bit] = text
    for row, item in zip(out, fields, strict=True):
        lines = []
        for piece in item.pieces:
            for bit in range(piece.lsb, piece.lsb + piece.width):
                lines.append(texts.get((piece.word, bit), ""))
        of_field = "\n".join(lines)
        for number, name in enumerate(columns):
            word = rf"(?<!\w){re.escape(name)}(?!\w)"
            row[number] = re.search(word, of_field) is not None
    return out


# ---- ranks, bins, correlation, information ----


def _bins(rows: int, levels: int) -> int:
    """Return the number of bins for a column of ``rows`` values that is compared with a column of
    ``levels`` bins. If ``levels`` is 1, both columns get the returned number of bins.
    """
    if levels == 1:
        fit = math.isqrt(rows // PER_CELL)
    else:
        fit = rows // (PER_CELL * levels)
    return min(max(fit, 2), MOST_BINS)


def _stack(columns: Iterable[Array]) -> Array:
    columns = list(columns)
    if columns:
        return np.stack(columns, axis=1).astype(np.float64)
    return np.zeros((0, 0))


def _ranked(columns: Iterable[Array], bins: int) -> tuple[Array, Array]:
    """Return the mean ranks ``(N, K)`` float of K columns, and the numbers ``(N, K)``, from 0, of
    the bins of their values."""
    ranks, codes = [], []
    for column in columns:
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        # for each value: the number of captures with a smaller value, plus half the number with
        # this value
        middle = np.cumsum(counts) - counts / 2
        binned = np.arange(len(counts))
        if len(counts) > bins:
            wide = (middle * bins // len(column)).astype(np.intp)
            _, binned = np.unique(wide, return_inverse=True)
        ranks.append((middle + 0.5)[place])
        codes.append(binned[place])
    return _stack(ranks), _stack(codes).astype(np.intp)


def _pearson(ours: Array, theirs: Array) -> Array:
    """Return the correlation ``(F, P)`` of columns ``(N, F)`` with columns ``(N, P)``; 0 for a
    column that never changes."""
    if not ours.size:
        return np.zeros((0, theirs.shape[1]))
    product = _unit(ours).T @ _unit(theirs)
    return np.clip(product, -1, 1)


def _unit(columns: Array) -> Array:
    """Return the columns shifted to mean 0 and scaled to length 1; zeros for a column that never
    changes."""
    moves = np.any(columns != columns[:1], axis=0)
    centred = columns - columns.mean(axis=0)
    columns = np.where(moves, centred, 0.0)
    # scale first: squares of very large numbers would be infinite, of very small numbers 0
    size = np.abs(columns).max(axis=0, initial=0)
    size[size == 0] = 1
    columns = columns / size
    length = np.sqrt((columns**2).sum(axis=0))
    length[length == 0] = 1
    return columns / length


def _information(ours: Array, theirs: Array) -> Array:
    """Return the mutual information ``(F, P)``, in bits, of the bins ``(N, F)`` with the bins ``(N,
    P)``, corrected for chance as the docstring of the module says."""
    rows, count = theirs.shape
    out = np.zeros((ours.shape[1], count))
    if not ours.size:
        return out
    high = int(theirs.max()) + 1
    place = np.arange(count) * high + theirs
    size = count * high
    counts = np.bincount(place.ravel(), minlength=size)
    marginal, occupied = _entropy(counts.reshape(count, high), rows)
    for field, codes in enumerate(ours.T):
        levels = int(codes.max()) + 1
        cell = codes[:, None] * size + place
        counts = np.bincount(cell.ravel(), minlength=levels * size)
        joint = counts.reshape(levels, count, high)
        # all parameters have the same captures, so the first one gives the count of each of our
        # bins
        alone = joint[:, 0].sum(axis=1)
        mine, bins = _entropy(alone[None], rows)
        both, cells = _entropy(joint.transpose(1, 0, 2).reshape(count, -1), rows)
        chance = (cells - occupied - bins + 1) / (2 * rows * math.log(2))
        shared = mine + marginal - both - chance
        out[field] = np.clip(shared, 0, np.minimum(mine, marginal))
    return out


def _entropy(counts: Array, rows: int) -> tuple[Array, Array]:
    """Return the entropy ``(K,)``, in bits, of each row of counts ``(K, levels)``, which sum up to
    ``rows``, and the number of counts in it that are not 0."""
    table = np.arange(rows + 1) / rows
    table[1:] *= -np.log2(table[1:])
    table[0] = 0
    return table[counts].sum(axis=1), np.count_nonzero(counts, axis=1)
