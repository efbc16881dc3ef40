"""The meaning of a field's raw number: signed, a float, scaled, or an enum."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.support.refuse import refusing

# numpy's types of the float and of the integer that stores its bits
FLOATS: dict[str, tuple[Any, Any]] = {
    "f16": (np.float16, np.uint16),
    "f32": (np.float32, np.uint32),
}
MOST_BITS = 64  # most bits of a number after *, + or >> in a value column
UNIT = re.compile(r"(?:raw\s*)?\*\s*(?P<by>[A-Za-z_]\w*)\s*\((?P<factors>[^()]*)\)")
FLOAT_BITS = 53  # float64 holds every whole number of at most this many bits exactly


@dataclass(frozen=True)
class Meaning:
    """The way from a field's raw number to its value.

    - ``kind`` is "", ``signed`` or the type of a float (``f16``, ``f32``).
    - ``steps`` are applied in their order, each an operation and a number: ``*n``, ``+n``, and
      ``>>n``, which is the last. ``>>n`` means a fixed-point number: it divides by ``2**n`` without
      rounding.
    - ``enum`` is the name of the enum whose codes the raw numbers are.
    - ``by`` is the name of another field of the block, which names the unit; ``factors`` has the
      unit for each raw number of that field. ``raw*kind(4 256 0 64)`` counts units of 4 if the
      field ``kind`` is 0, and units of 256 if it is 1. If the factor is 0 or absent (``kind`` is 2,
      or 4 and more), no unit is stated, and the value is the raw number.

    >>> Meaning.parse("signed raw*2+1").value(np.uint32(15), 4)
    np.int64(-1)
    """

    kind: str = ""
    steps: tuple[tuple[str, int], ...] = ()
    enum: str = ""
    by: str = ""
    factors: tuple[int, ...] = ()

    GRAMMAR = (
        "blank, or signed, f16 or f32, then raw, *n, +n, >>n (last) at most once each, or "
        "enum:NAME, or raw*FIELD(n n ...)"
    )

    @classmethod
    @refusing()
    def parse(cls, text: str) -> Meaning:
        words = re.findall(
            r"signed\b|f16\b|f32\b|raw\b|enum:\w+|>>|\*|\+|-?0x[0-9a-fA-F]+|-?\d+|\S", text
        )
        unit = UNIT.fullmatch(text.strip())
        if unit:
            factors = [cls._number(word, unit["by"], text) for word in unit["factors"].split()]
            if not factors or min(factors) < 0:
                raise ValueError(
                    f"value {text!r}: got {unit['factors']!r} in brackets, allowed are one or more "
                    "numbers from 0 on"
                )
            return cls(by=unit["by"], factors=tuple(factors))
        kind = ""
        if words and words[0] in ("signed", *FLOATS):
            kind = words.pop(0)
        if len(words) == 1 and words[0].startswith("enum:"):
            return cls(kind, (), words[0].removeprefix("enum:"))
        if words and words[0] == "raw":
            words.pop(0)
        steps: list[tuple[str, int]] = []
        while words:
            operation = words.pop(0)
            if (
                operation not in ("*", "+", ">>")
                or {operation, ">>"} & set(dict(steps))
                or not words
            ):
                raise ValueError(f"value {text!r}: got {operation!r}, allowed is {cls.GRAMMAR}")
            steps.append((operation, cls._number(words.pop(0), operation, text)))
        if kind in FLOATS and steps:
            raise ValueError(f"value {text!r}: got arithmetic on {kind}, allowed is {cls.GRAMMAR}")
        return cls(kind, tuple(steps))

    @classmethod
    def _number(cls, word: str, operation: str, text: str) -> int:
        try:
            number = int(word, 0)
        except ValueError:
            raise ValueError(
                f"value {text!r}: got {word!r} after {operation!r}, allowed is {cls.GRAMMAR}"
            ) from None
        if number.bit_length() > MOST_BITS:
            raise ValueError(
                f"value {text!r}: got {word!r}, allowed are numbers of at most {MOST_BITS} bits"
            )
        if (operation == "*" and number == 0) or (operation == ">>" and not 0 <= number < 64):
            raise ValueError(
                f"value {text!r}: got {operation}{number}, which has no inverse, allowed are a "
                "factor other than 0 and a shift by 0 to 63"
            )
        return number

    def __str__(self) -> str:
        if self.by:
            return f"raw*{self.by}({' '.join(map(str, self.factors))})"
        words = [self.kind]
        if self.enum:
            words.append(f"enum:{self.enum}")
        elif self.steps:
            words.append(
                "raw" + "".join(f"{operation}{number}" for operation, number in self.steps)
            )
        return " ".join(filter(None, words))

    def refuse_width(self, width: int) -> None:
        """Raise ValueError if int64 or float64 cannot hold each value of a field of ``width`` bits
        exactly, and for a float whose type has another width."""
        # the bits that the largest value needs
        reach = width + max(self.factors, default=0).bit_length()
        for operation, number in self.steps:
            bits = number.bit_length()
            if operation == "+":
                reach = max(reach, bits) + 1
            elif operation == "*":
                reach += bits
            # a shift divides in float64, which cannot hold a value of more bits exactly: a reach of
            # 64 is refused below
            elif reach > FLOAT_BITS:
                reach = 64
        if self.kind in FLOATS:
            bits = 8 * np.dtype(FLOATS[self.kind][0]).itemsize
            wrong, allowed = width != bits, f"one of {bits} bits for {self.kind}"
        else:
            most = 64
            if self.steps or self.by:
                most = 63
            wrong = reach > most and bool(self.steps or self.by or self.kind)
            allowed = f"one whose values fit into {most} bits ({FLOAT_BITS} with >>)"
        if wrong:
            raise ValueError(
                f"value {str(self)!r}: got a field of {width} bits, allowed is {allowed}"
            )

    def value(self, raw: Any, width: int, unit: Any = 1) -> Any:
        """Return the values of raw (unsigned) numbers of a field of ``width`` bits, elementwise;
        the value of an enum is its raw number. ``unit`` counts only if another field names it.
        """
        if self.by:
            return (np.asarray(raw).astype(np.int64) * unit)[()]
        if self.kind in FLOATS:
            real, stored = FLOATS[self.kind]
            return np.asarray(raw, stored).view(real)[()]
        if not self.kind and not self.steps:
            return raw
        out: Any = np.asarray(raw).astype(np.int64)
        # nothing is subtracted from a field of 64 bits: its bits are an int64 already, and numpy's
        # 1 << 64 is 0
        if self.kind == "signed":
            out = out - np.where(out >> (width - 1) & 1, np.int64(1) << np.int64(width), 0)
        for operation, number in self.steps:
            if operation == "*":
                out = out * number
            elif operation == "+":
                out = out + number
            else:
                out = out / 2.0**number
        return out[()]

    def raw(self, value: Any, unit: Any = 1) -> Any:
        """Return the raw numbers of values, elementwise. They may be negative or too wide for the
        field: ``Field.raw`` and ``Field.stored`` check that. ``unit`` counts only if another field
        names it.

        Raises ValueError if a value has no raw number. The message says which values are allowed;
        ``Field.raw`` puts the field and the value in front.
        """
        out: Any = np.asarray(value)
        if out.dtype.kind not in "iufb":
            raise ValueError("allowed is a number of at most 64 bits")
        if self.kind in FLOATS:
            real, stored = FLOATS[self.kind]
            # numpy would turn a number that is too large for the type into infinity
            if np.any(np.isfinite(out) & (np.abs(out) > np.finfo(real).max)):
                raise ValueError(f"allowed is a value in the range of {np.dtype(real)}")
            return out.astype(real).view(stored).astype(np.int64)
        if not np.all(np.isfinite(out)):
            raise ValueError("allowed is a finite value")
        if out.dtype.kind != "f":
            if out.dtype.kind in "iu" and not self.kind and not self.steps and not self.by:
                return out
            # the cast to int64 would make a number of 2**63 or more negative
            if out.dtype == np.uint64 and np.any(out > np.uint64(2**63 - 1)):
                raise ValueError("allowed is a value of at most 63 bits")
            out = out.astype(np.int64)
        if self.by:
            out = _divided(out, unit, f", the unit named by field {self.by}")
        for operation, number in reversed(self.steps):
            if operation == "*":
                out = _divided(out, number)
            elif operation == "+":
                out = out - number
            else:
                out = out * 2.0**number
        if out.dtype.kind == "f":
            if np.any(out != np.floor(out)) or np.any(np.abs(out) >= 2.0**63):
                raise ValueError("allowed is a value with a whole raw number of at most 63 bits")
            out = out.astype(np.int64)
        return out


def _divided(values: Any, units: Any, what: str = "") -> Any:
    """Return values divided by their units, elementwise; raises ValueError for a value that is not
    a multiple of its unit. ``what`` ends the message: it says which field names the unit, if
    any."""
    rest = values % units
    if np.any(rest):
        wrong = np.broadcast_to(units, np.shape(rest))[rest != 0]
        raise ValueError(f"allowed is a multiple of {wrong.flat[0]}{what}")
    return values // units
