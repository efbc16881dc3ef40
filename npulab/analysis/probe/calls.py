"""The calls of a decoder: the words of each call, and the values that it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

Decode = Callable[[Array], Mapping[str, Any]]
SHOWN = 80  # an error or a printed text is shown with at most this many characters


class Other(NamedTuple):
    """A printed value that is neither a number nor a text: its type and its text."""

    kind: str
    text: str


# Stands for the value of a field in a call in which the decoder does not print the field.
NOTHING = Other("nothing", "nothing")


@dataclass(frozen=True)
class HeldBits:
    """The bits that are the same in all calls: those of the mask ``keep``, as in ``base`` (both
    ``(W,) uint32``). ``free`` are the numbers of all other bits.
    """

    base: Array
    keep: Array

    @cached_property
    def free(self) -> Array:
        return np.flatnonzero(bits_of(self.keep) == 0)

    def filled(self, pattern: Array) -> Array:
        """Return all bits of a call ``(32 * W,)``: the held bits, and ``pattern`` in the
        free bits.
        """
        bits = bits_of(self.base)
        bits[self.free] = pattern
        return bits


def ask(
    decode: Decode, patterns: Array, names: Sequence[str], held: HeldBits
) -> tuple[dict[int, dict[str, Any]], list[tuple[str, str]]]:
    """Call the decoder with each pattern. Return the printed values by the number of the call, and
    (call, error) for each call in which the decoder raised an error.
    """
    answers: dict[int, dict[str, Any]] = {}
    raised = []
    for row, (pattern, name) in enumerate(zip(patterns, names, strict=True)):
        packed = np.packbits(held.filled(pattern), bitorder="little")
        try:
            answer = decode(packed.view("<u4").astype(np.uint32))
        except Exception as error:
            raised.append((name, f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN]}"))
            continue
        if not isinstance(answer, Mapping):
            raise ValueError(
                f"decode: got {type(answer).__name__} in the call {name!r}, allowed is a "
                "mapping of values by name"
            )
        answers[row] = {str(field): _plain_value(value) for field, value in answer.items()}
    return answers, raised


def _plain_value(value: Any) -> Any:
    """Return whole numbers and bools as int, other floats as float, but float32 unchanged, to keep
    the bits of a nan; any other value becomes ``Other``.
    """
    if isinstance(value, int | np.bool_ | np.integer):
        return int(value)
    if isinstance(value, str | float | np.float32):
        return value
    if isinstance(value, np.floating):
        return float(value)
    return Other(type(value).__name__, short(value))


def checked_words(values: Any, count: int, name: str) -> Array:
    """Return words ``(count,) uint32``; raises ValueError for another shape or range."""
    words = np.asarray(values)
    fits = words.shape == (count,) and words.dtype.kind in "iu"
    if not fits or np.any(words < 0) or np.any(words > 0xFFFFFFFF):
        raise ValueError(
            f"{name}: got {words.dtype} of shape {words.shape}, allowed is uint32 of shape "
            f"({count},)"
        )
    return words.astype(np.uint32)


def bits_of(words: Array) -> Array:
    """Return the bits of words, ``(32 * W,)`` of 0 and 1, bit 0 of word 0 first."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")


def same(got: Any, predicted: Any) -> bool:
    """True if two printed values are equal numbers, or equal texts, or both nan."""
    alike = (is_number(got) and is_number(predicted)) or type(got) is type(predicted)
    return alike and bool(got == predicted or (got != got and predicted != predicted))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.float32)


def short(value: Any) -> str:
    """Return a printed value as text, cut after ``SHOWN`` characters."""
    if isinstance(value, Other):
        text = value.text
    elif isinstance(value, np.floating):
        text = str(value)
    else:
        text = repr(value)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}..."
