"""Which parameter moves which bit: correlation of fields with layer parameters, and what flips over
a sweep.

These say where to look; a high figure is no law.  Mutual information is in bits, of binned columns:
a column with no more values than bins has a bin for each, others have bins of equal counts with
equal values kept together.  There are as many bins as leave ``PER_CELL`` captures for each pair of
bins, 2 to ``MOST_BINS``.  What chance alone would give is taken off after Miller and Madow
((occupied cells - 1) / 2N nats added to each entropy), and the result held between 0 and the
smaller of the two entropies.  A column that never changes has 0 everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from npulab.captures.sweep import no_captures, words_of
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.registers.names import automatic_name
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

PER_CELL = 5
MOST_BINS = 64
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
    """How each field goes with each parameter: a row per pair, most mutual information first.

    ``words`` are ``(N, W) uint32``, or a sweep, which has its parameters; ``parameters`` a
    DataFrame or a mapping of columns, N rows.  Fields are those of ``registers``; else those of
    ``laws`` and, of the bits that have none, the longest runs that vary; else such runs alone.
    Columns: ``field``, ``word`` and ``lsb`` of its lowest piece, ``width``, ``parameter``;
    ``pearson`` and ``spearman`` (-1 to 1, equal values share their mean rank, 0 for a parameter of
    texts) of the value as meant; ``mutual_information`` in bits; ``law``: the field is the
    parameter in every capture, as a number or as the pattern of a float32, or its law in ``laws``
    names the parameter.  Its ``attrs["simulated"]`` says whether the sweep or the laws are. Raises
    ValueError for less than two captures, numbers that are not finite and arrays that do not fit.

    >>> words = np.arange(64, dtype=np.uint32)[:, None]
    >>> correlate(words, {"height": np.arange(64)})[["field", "parameter", "law"]].values.tolist()
    [['w0_0_6', 'height', True]]
    """
    no_captures("correlate", words)
    simulated = any(getattr(source, "simulated", False) for source in (words, laws))
    known = getattr(laws, "registers", None) or getattr(words, "registers", None)
    words, columns = _arrays(words, parameters)
    if registers is not None and len(registers) != words.shape[1]:
        raise ValueError(
            f"registers: got a map of {len(registers)} words, allowed is {words.shape[1]} as in "
            "the words"
        )
    if registers is not None:
        fields = list(registers)
    else:
        fields = _fields(words, laws, known)
    raw = [item.extract(words) for item in fields]
    meant = [_meant(item, one) for item, one in zip(fields, raw, strict=True)]
    bins = _bins(len(words), 1)
    (ranks, codes), (parameter_ranks, parameter_codes) = (
        _ranked(meant, bins),
        _ranked(columns.values(), bins),
    )
    ordered = np.array([column.dtype.kind != "U" for column in columns.values()], bool)
    numbers = [
        column if column.dtype.kind != "U" else np.zeros(len(words)) for column in columns.values()
    ]
    pearson = _pearson(_stack(meant), _stack(numbers))
    spearman = np.where(ordered, _pearson(ranks, parameter_ranks), 0.0)
    information = _information(codes, parameter_codes)
    exact = _same(raw, meant, columns) | _named(fields, columns, laws)
    pieces = [item.pieces[0] for item in fields]
    table = pd.DataFrame(
        {
            "field": np.repeat(
                [registers.key(item) if registers else item.name for item in fields], len(columns)
            ),
            **{
                name: np.repeat(
                    np.array([getattr(piece, name) for piece in pieces], int), len(columns)
                )
                for name in ("word", "lsb")
            },
            "width": np.repeat(np.array([item.width for item in fields], int), len(columns)),
            "parameter": list(columns) * len(fields),
            "pearson": pearson.ravel(),
            "spearman": spearman.ravel(),
            "mutual_information": information.ravel(),
            "law": exact.ravel(),
        },
        columns=list(COLUMNS),
    )
    order = np.lexsort((-np.abs(table["spearman"]), -table["mutual_information"]))
    table = table.iloc[order].reset_index(drop=True)
    table.attrs["simulated"] = simulated
    return table


def flips(words: Any, parameters: Any = None, sort: str | None = None) -> np.ndarray:
    """Share of neighbouring captures in which each bit flips: ``(W, 32)`` float, 0 to 1, bit 0
    first.

    Captures are neighbours as they come, or sorted by the parameter ``sort`` (equal ones stay in
    order): a bit that follows it flips rarely then.  Raises ValueError as ``correlate``;
    LookupError for an unknown parameter.

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
    return np.stack(
        [(changed >> np.uint32(bit) & np.uint32(1)).mean(axis=0) for bit in range(WORD_BITS)],
        axis=1,
    )


def bit_effects(words: Any, parameters: Any = None) -> np.ndarray:
    """Mutual information of every bit with every parameter: ``(W, 32, P)`` float, 0 to 1 bits, bit
    0 first.

    Arguments and errors as of ``correlate``.

    >>> bit_effects(np.array([[0], [1]] * 8, np.uint32), {"relu": [0, 1] * 8})[0, :2, 0].tolist()
    [1.0, 0.0]
    """
    words, columns = _arrays(words, parameters)
    theirs = _ranked(columns.values(), _bins(len(words), 2))[1]
    out = np.zeros((words.shape[1], WORD_BITS, len(columns)))
    for word, mask in enumerate(_varying(words)):
        bits = [bit for bit in range(WORD_BITS) if mask >> bit & 1]
        if bits:
            values = words[:, word, None] >> np.array(bits, np.uint32) & np.uint32(1)
            out[word, bits] = _information(values.astype(np.intp), theirs)
    return out


def best_related(bit: Any, parameters: Any, n: int = 3) -> Any:
    """The parameters that tell most about a bit: at most ``n`` pairs (name, bits of mutual
    information).

    ``bit`` is ``(N,)`` of 0 and 1; of ``(N, K)`` there is a list of pairs for each of the K, which
    is quicker than to ask for one at a time.  Parameters that tell nothing are left out, so that a
    bit that never changes has none. Raises ValueError as ``correlate``, and for a bit that is
    neither 0 nor 1.

    >>> best_related([0, 1] * 8, {"height": [3, 3] * 8, "relu": [0, 1] * 8})
    [('relu', 1.0)]
    """
    bits = np.asarray(bit)
    if bits.ndim not in (1, 2) or np.any((bits != 0) & (bits != 1)):
        raise ValueError(
            f"bit: got shape {bits.shape}, allowed is (N,) or (N, K) of 0 and 1"
            if bits.ndim not in (1, 2)
            else f"bit: got {bits[(bits != 0) & (bits != 1)][0]}, allowed is 0 and 1"
        )
    found = _best(bits.reshape(len(bits), -1).astype(np.intp), parameters, n, 2)
    if bits.ndim == 2:
        return found
    return found[0]


def related(values: Any, parameters: Any, n: int = 3) -> list[tuple[str, float]]:
    """The parameters that tell most about values ``(N,)`` of a field: at most ``n`` pairs (name,
    mutual information).

    Parameters that tell nothing are left out.  Errors as of ``correlate``.

    >>> related([5, 7] * 8, {"height": [1, 2] * 8, "width": [8] * 16})
    [('height', 1.0)]
    """
    values = _column("values", values, _enough(len(np.asarray(values))))
    return _best(_ranked([values], _bins(len(values), 1))[1], parameters, n, 1)[0]


def _best(codes: np.ndarray, parameters: Any, n: int, levels: int) -> list[list[tuple[str, float]]]:
    refuse_if(n < 1, "n", n, "is at least 1")
    columns = _columns(parameters, _enough(len(codes)))
    information = _information(codes, _ranked(columns.values(), _bins(len(codes), levels))[1])
    names = list(columns)
    return [
        [(names[i], float(row[i])) for i in np.argsort(-row, kind="stable")[:n] if row[i] > 0]
        for row in information
    ]


# ---- what comes in ----


def _enough(rows: int) -> int:
    refuse_if(rows < 2, "words", plural(rows, "capture"), "are two or more to compare")
    return rows


def _columns(parameters: Any, rows: int) -> dict[str, np.ndarray]:
    """Each parameter as int64, float64 or text, none missing."""
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
    if column.dtype.kind == "f":
        wrong = ~np.isfinite(column)
    else:
        wrong = np.array([value is None or value != value for value in column], bool)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"parameters: got {column[row]} in {name!r} row {row}, allowed are finite numbers"
        )
    return column.astype(np.float64 if column.dtype.kind == "f" else str)


def _arrays(words: Any, parameters: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    if parameters is None:
        parameters = getattr(words, "parameters", None)
    words = words_of(getattr(words, "words", words))
    return words, _columns(parameters, _enough(len(words)))


# ---- fields ----


def _varying(words: np.ndarray) -> list[int]:
    """Mask of the bits of each word that are not the same in all captures."""
    return [int(mask) for mask in np.bitwise_or.reduce(words ^ words[0], axis=0)]


def _fields(words: np.ndarray, laws: Any, known: RegisterMap | None) -> list[Field]:
    """The fields of laws and the other runs that vary, called by their place in the map of the
    words."""
    names = tuple(f"w{word}" for word in range(words.shape[1]))
    if known is not None and len(known) == len(names):
        names = known.word_names
    places: list[tuple[int, int, int]] = []
    if laws is not None:
        places = [(item.word, item.lsb, item.width) for item in laws.fields]
    owned = {(word, bit) for word, lsb, width in places for bit in range(lsb, lsb + width)}
    for word, mask in enumerate(_varying(words)):
        free = "".join(
            "1" if mask >> bit & 1 and (word, bit) not in owned else "0" for bit in range(WORD_BITS)
        )
        places += [(word, run.start(), len(run.group())) for run in re.finditer("1+", free)]
    return [
        Field(
            "",
            names[word],
            automatic_name(names[word], lsb, width),
            (Piece(word, lsb, width, 0),),
            automatic=True,
        )
        for word, lsb, width in sorted(places)
    ]


def _meant(item: Field, raw: np.ndarray) -> np.ndarray:
    value = np.asarray(item.value(raw))
    if np.isfinite(value).all():
        return value
    return raw


def _same(
    raw: Iterable[np.ndarray], meant: Iterable[np.ndarray], columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """``(F, P)`` bool: the field varies and is the parameter, as stored, as meant or as the pattern
    of a float32."""
    out = []
    for stored, value in zip(raw, meant, strict=True):
        faces = [stored, value, *([stored.view(np.float32)] if stored.dtype == np.uint32 else [])]
        moves = bool(np.any(stored != stored[0]))
        out.append(
            [
                moves
                and column.dtype.kind != "U"
                and any(
                    np.array_equal(
                        face, column.astype(np.float32) if face.dtype == np.float32 else column
                    )
                    for face in faces
                )
                for column in columns.values()
            ]
        )
    return np.array(out, bool).reshape(-1, len(columns))


def _named(fields: Iterable[Field], columns: Mapping[str, np.ndarray], laws: Any) -> np.ndarray:
    """``(F, P)`` bool: a law of some of the field's bits names the parameter."""
    spoken: dict[tuple[int, int], str] = {}
    for item in () if laws is None else laws.fields:
        text = " ".join(str(part) for step in item.steps for part in step)
        spoken |= {(item.word, bit): text for bit in range(item.lsb, item.lsb + item.width)}
    names = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in columns]
    out = []
    for item in fields:
        texts = {
            spoken.get((piece.word, bit), "")
            for piece in item.pieces
            for bit in range(piece.lsb, piece.lsb + piece.width)
        }
        out.append([any(name.search(text) for text in texts) for name in names])
    return np.array(out, bool).reshape(-1, len(columns))


# ---- figures ----


def _bins(rows: int, levels: int) -> int:
    """Bins of a column against one of ``levels`` values, 1 where that is binned alike."""
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
    """Mean ranks ``(N, K)`` float of columns side by side, and their bins ``(N, K)`` from 0."""
    ranks, codes = [], []
    for column in columns:
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        middle = (
            np.cumsum(counts) - counts / 2
        )  # captures below the middle of those with this value
        if len(counts) <= bins:
            binned = np.arange(len(counts))
        else:
            binned = np.unique((middle * bins // len(column)).astype(np.intp), return_inverse=True)[
                1
            ]
        ranks.append((middle + 0.5)[place])
        codes.append(binned[place])
    return _stack(ranks), _stack(codes).astype(np.intp)


def _pearson(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """``(F, P)`` of columns ``(N, F)`` and ``(N, P)``; 0 for one that never changes."""

    def normal(columns: np.ndarray) -> np.ndarray:
        moves = (columns != columns[:1]).any(axis=0)
        columns = np.where(moves, columns - columns.mean(axis=0), 0.0)
        size = np.abs(columns).max(axis=0, initial=0)
        columns = columns / np.where(
            size > 0, size, 1
        )  # the squares of very large and small ones would not do
        length = np.sqrt((columns**2).sum(axis=0))
        return columns / np.where(length > 0, length, 1)

    if ours.size:
        return np.clip(normal(ours).T @ normal(theirs), -1, 1)
    return np.zeros((0, theirs.shape[1]))


def _information(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """``(F, P)`` bits of mutual information of bins ``(N, F)`` and ``(N, P)``, corrected as the
    module says."""
    rows, count = theirs.shape
    out = np.zeros((ours.shape[1], count))
    if not ours.size:
        return out
    high = int(theirs.max()) + 1
    place = np.arange(count) * high + theirs
    marginal, occupied = _entropy(
        np.bincount(place.ravel(), minlength=count * high).reshape(count, high), rows
    )
    for field in range(ours.shape[1]):
        levels = int(ours[:, field].max()) + 1
        joint = np.bincount(
            (ours[:, field, None] * (count * high) + place).ravel(), minlength=levels * count * high
        )
        joint = joint.reshape(levels, count, high)
        mine, bins = _entropy(joint[:, 0].sum(axis=1)[None], rows)
        both, cells = _entropy(joint.transpose(1, 0, 2).reshape(count, -1), rows)
        chance = (cells - occupied - bins + 1) / (2 * rows * math.log(2))
        out[field] = np.clip(mine + marginal - both - chance, 0, np.minimum(mine, marginal))
    return out


def _entropy(counts: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits of entropy ``(K,)`` of counts ``(K, levels)`` out of ``rows``, and how many are not
    0."""
    table = np.arange(rows + 1) / rows
    table[1:] *= -np.log2(table[1:])
    table[0] = 0
    return table[counts].sum(axis=1), np.count_nonzero(counts, axis=1)
