"""Checks of the words and parameters that users give; an error is one sentence."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.expressions import Array, Columns
from npulab.analysis.laws.naming import Naming
from npulab.captures.listing import Wanted
from npulab.captures.sweep import Sweep, is_sweep, load_sweep
from npulab.captures.sweep_store import SweepStore
from npulab.quant.layers.spellings import spelled
from npulab.registers.fields import WORD_BITS
from npulab.registers.map import RegisterMap
from npulab.registers.names import FIELD
from npulab.support.refuse import near
from npulab.support.text import plural

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 2**53  # whole numbers up to LARGEST are exact as float64

FIELD_NAME = FIELD  # matches the names that bits get by their place, such as w3_0_7
GivenLaws = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, eq=False)
class Table:
    """Parameters by name: int64 if all values are whole numbers, else float32.

    ``constant`` are the parameters of either kind that never vary in the captures.
    """

    integers: dict[str, Array]
    reals: dict[str, Array]
    constant: dict[str, Array] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(next(iter({**self.integers, **self.reals}.values())))

    def rows(self, rows: Array) -> Table:
        """The parameters of some of the captures."""
        kinds = []
        for columns in (self.integers, self.reals, self.constant):
            kinds.append({name: values[rows] for name, values in columns.items()})
        return Table(*kinds)

    def columns(self, given: Mapping[str, Array] | None = None) -> Columns:
        return Columns({**self.integers, **self.reals, **self.constant}, given)


def checked_words(words: Any) -> Array:
    """Words as ``(N, W) uint32``.

    Raises ValueError for rows of different lengths, and for values that are not whole numbers of 0
    to 0xffffffff.
    """
    try:
        array = np.asarray(words)
    except ValueError:
        array = np.zeros(0, object)
    if array.dtype == object or array.ndim != 2:
        widths = sorted(
            {len(row) for row in words if hasattr(row, "__len__")} if np.iterable(words) else ()
        )
        if len(widths) > 1:
            got = f"rows of {' and '.join(map(str, widths))} words"
        else:
            got = f"shape {array.shape}"
        raise ValueError(
            f"words: got {got}, allowed is (captures, words), each row as wide as the others"
        )
    if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() < 2**32):
        raise ValueError(f"words: got {array.dtype}, allowed are whole numbers of 0 to 0xffffffff")
    return array.astype(np.uint32)


def checked_sweep(words: Any) -> Array:
    """Words as ``(N, W) uint32``, at least two rows that are not all the same.

    Raises ValueError otherwise, and as ``checked_words``.
    """
    array = checked_words(words)
    if len(array) < 2 or array.shape[1] < 1:
        raise ValueError(
            f"words: got {len(array)} rows of {array.shape[1]} words, allowed are two captures or "
            "more"
        )
    if (array == array[0]).all():
        raise ValueError(
            f"words: got {len(array)} rows that are all the same, allowed is at least one bit that "
            "varies"
        )
    return array


def checked_parameters(
    parameters: Any, rows: int | None = None, like: Table | None = None
) -> Table:
    """Parameters from a DataFrame or a mapping of columns.

    With ``like``, the columns must be those of this table and get their types there. Raises
    ValueError if a column is not ``rows`` finite numbers, and without ``like`` also if no column
    varies.
    """
    import pandas as pd

    try:
        if isinstance(parameters, pd.DataFrame):
            frame = parameters
        else:
            frame = pd.DataFrame(dict(parameters))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"parameters: got {type(parameters).__name__} ({error}), allowed is a DataFrame or "
            "columns of one length by name"
        ) from None
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    for name in frame.columns:
        if FIELD_NAME.fullmatch(name):
            raise ValueError(
                f"parameters: got a column {name!r}, allowed is a name unlike those of bits "
                "(w3_0_7: word, lowest bit, width)"
            )
    if rows is not None and len(frame) != rows:
        raise ValueError(
            f"parameters: got {len(frame)} rows, allowed are {rows}, one for each row of words"
        )
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"parameters: got column {twice!r} twice, allowed is each name once")
    if not len(frame.columns):
        raise ValueError("parameters: got no columns, allowed is at least one")
    if like is None:
        return _typed(frame)
    return _like(frame, like)


def _like(frame: pd.DataFrame, like: Table) -> Table:
    """The columns of ``frame`` that the table ``like`` has, converted to the types that they have
    there.
    """
    integers, reals = {}, {}
    names = ", ".join((*like.integers, *like.reals))
    for name in (*like.integers, *like.reals):
        if name not in frame:
            raise ValueError(f"parameters: got no column {name!r}, allowed are {names}")
        column = checked_numbers(frame[name], name)
        if name in like.reals:
            reals[name] = column.astype(np.float32)
        elif (column != np.round(column)).any():
            raise ValueError(
                f"parameters: got {column[column != np.round(column)][0]} in {name!r}, allowed are "
                "whole numbers, as in the captures that the laws were made from"
            )
        else:
            integers[name] = column.astype(np.int64)
    constant = {}
    for name, values in like.constant.items():
        # if layers do not state this parameter, it has the constant value of the captures
        if name in frame:
            column = checked_numbers(frame[name], name)
        else:
            column = np.full(len(frame), values[0])
        whole = values.dtype.kind == "i" and bool((column == np.round(column)).all())
        constant[name] = column.astype(np.int64 if whole else np.float32)
    return Table(integers, reals, constant)


def _typed(frame: pd.DataFrame) -> Table:
    integers, reals, constant = {}, {}, {}
    for name in frame.columns:
        column = checked_numbers(frame[name], name)
        whole = (column == np.round(column)).all()
        typed = column.astype(np.int64 if whole else np.float32)
        if (column == column[:1]).all():
            constant[str(name)] = typed
        elif whole:
            integers[str(name)] = typed
        else:
            reals[str(name)] = typed
    if not integers and not reals:
        names = ", ".join(constant)
        raise ValueError(
            f"parameters: got {names} with one value each, allowed is at least one that varies"
        )
    if constant:
        warnings.warn(
            f"parameters: got {', '.join(constant)} with one value only, so no law can be seen to "
            "depend on "
            f"{'it' if len(constant) == 1 else 'them'}",
            stacklevel=4,
        )
    return Table(integers, reals, constant)


def checked_numbers(values: Any, name: str) -> Array:
    """``values`` as ``(N,) float64``; raises ValueError if one is no number, not finite, or beyond
    2**53.
    """
    try:
        column = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        got = getattr(values, "dtype", "values that are not numbers")
        raise ValueError(f"parameters: got {got} in {name!r}, allowed are numbers") from None
    wrong = ~np.isfinite(column) | (np.abs(column) > LARGEST)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"parameters: got {column[row]} in {name!r} (row {row}), allowed are finite numbers to "
            "2**53"
        )
    return column


def given_columns(laws: GivenLaws, parameters: Any, rows: int) -> dict[str, Array]:
    """The values ``(N,) int64`` of a user's laws for these parameters, by the text of the law.

    Raises ValueError if a law is not a function, or does not give a whole number for each row.
    """
    allowed = (
        "allowed are functions of the parameters by text, each with a whole number for each row"
    )
    if not isinstance(laws, Mapping):
        raise ValueError(f"laws: got {type(laws).__name__}, {allowed}")
    out = {}
    for text, law in laws.items():
        if not callable(law):
            raise ValueError(f"laws: got {type(law).__name__} for {text!r}, {allowed}")
        try:
            values = np.asarray(law(parameters))
        except Exception as error:
            raise ValueError(
                f"laws: got {type(error).__name__} ({error}) from {text!r}, {allowed}"
            ) from error
        if values.shape != (rows,) or values.dtype.kind not in "iub":
            raise ValueError(
                f"laws: got {values.dtype} of shape {values.shape} from {text!r}, {allowed}"
            )
        out[str(text)] = values.astype(np.int64)
    return out


def named_bits(
    texts: Sequence[str],
    width: int,
    registers: RegisterMap | None = None,
    argument: str = "--nuisance",
) -> Array | None:
    """``(W,) uint32``: a mask of the bits that texts name; None without a text.

    A text is the name of a word, or of a run of its bits, as ``registers`` name them by their
    place. An error names the ``argument``.

    >>> [hex(mask) for mask in named_bits(["w0", "w1_6_3"], 2)]
    ['0xffffffff', '0x1c0']
    """
    mask = np.zeros(width, np.uint32)
    naming = Naming.of(width, registers)
    for text in texts:
        word = naming.word(text)
        if word is None:
            place = naming.place(text)
        else:
            place = word, 0, WORD_BITS
        if place is None:
            first, last = naming.words[0], naming.words[-1]
            raise ValueError(
                f"{argument}: got {text!r}, allowed is a word, {first} to {last}, or bits of it, "
                f"as {first}_6_13 (word, lowest, how many)"
            )
        word, lsb, bits = place
        mask[word] |= np.uint32((2**bits - 1) * 2**lsb)
    if texts:
        return mask
    return None


def field_bits(globs: Sequence[str], registers: RegisterMap | None) -> Array:
    """``(W,) uint32``: a mask of the bits of all fields whose names match one of the globs. A glob
    may begin with the register or the block.

    Raises LookupError for a glob that no field matches, and if there is no map.
    """
    fields = []
    if registers is not None:
        fields = list(registers)
    mask = np.zeros(len(registers) if registers is not None else 0, np.uint32)
    for glob in globs:
        found = []
        for item in fields:
            if Wanted(glob).named(item.block, item.register, item.name):
                found.append(item)
        if not found:
            raise LookupError(
                f"--field: got {glob!r}, the sweep's map has {plural(len(fields), 'field')}"
                f"{near(glob, [item.name for item in fields])}"
            )
        for piece in itertools.chain.from_iterable(item.pieces for item in found):
            mask[piece.word] |= np.uint32((2**piece.width - 1) * 2**piece.lsb)
    return mask


def field_starts(registers: RegisterMap | None, width: int) -> list[int]:
    """``(W,) uint32``: a mask of the lowest bits of the fields of a map; 0 without a map."""
    starts = [0] * width
    for piece in itertools.chain.from_iterable(item.pieces for item in registers or ()):
        starts[piece.word] |= 2**piece.lsb
    return starts


def candidate_layers(path: str, sweep: Sweep | SweepStore) -> pd.DataFrame:
    """Layers to choose from, read from a .csv table or a sweep. Their columns are the parameters of
    ``sweep``, in its order.

    Raises ValueError for another kind of file, a missing parameter, and a file without rows.
    """
    import pandas as pd

    try:
        if is_sweep(path):
            layers = load_sweep(path).parameters
        else:
            layers = pd.read_csv(path)
            layers = layers.rename(columns=dict(zip(layers, spelled(dict(layers)), strict=True)))
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--candidates: got {path}, which is no table ({error}), allowed is .csv with a "
            "column for each parameter"
        ) from None
    missing = [name for name in sweep.parameters if name not in layers]
    if missing or not len(layers):
        got = "no row"
        if missing:
            got = f"no column {missing[0]!r}"
        raise ValueError(
            f"--candidates: got {got} in {path}, allowed is a column for each parameter of "
            f"{sweep.name}, a row for each layer"
        )
    return layers[[*sweep.parameters]]
