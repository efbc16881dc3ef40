"""Encodings of real numbers, the rows of ``encodings.csv``: each turns a value into the number that
a stream holds for it, its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

from npulab.support.files import read_table

TABLE = Path(__file__).with_name("encodings.csv")
FLOAT, FIXED, MANTISSA = "float", "fixed", "mantissa"
ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "even": np.rint,
    "zero": np.trunc,
    "away": lambda values: np.trunc(values + np.copysign(0.5, values)),
}
SAID = {"even": "half to even", "zero": "toward zero", "away": "half away"}


@dataclass(frozen=True)
class Encoding:
    """A way to store a real number in ``width`` bytes, with a precision of ``bits`` bits."""

    name: str
    width: int
    kind: str
    bits: int
    rounding: str

    def encode(self, values: Array, fraction: Array | int = 0) -> tuple[Array, Array]:
        """The codes ``(F, N) uint32`` of values ``(F, N) float64``, and ``(F,) bool``: the rows in
        which all values have codes.

        ``fraction`` is the number of bits after the point of fixed-point numbers, one for each row
        or one for all rows. Negative fixed-point numbers are two's complements in words of
        ``width`` bytes.

        >>> bf16, = (one for one in encodings() if str(one) == "bf16 toward zero")
        >>> codes, _ = bf16.encode(np.array([[35.75, 17.875, 8.9375]]))
        >>> [hex(code) for code in codes[0]]
        ['0x420f', '0x418f', '0x410f']
        """
        with np.errstate(all="ignore"):
            if self.kind == FLOAT:
                return self._floats(values)
            if self.kind == MANTISSA:
                codes, _ = self.mantissas(values)
                return codes, np.all(codes > 0, axis=1)
            return self._fixed(values, np.broadcast_to(fraction, len(values)))

    def _floats(self, values: Array) -> tuple[Array, Array]:
        single = values.astype(np.float32)
        # a number below the smallest normal one has lost its precision
        plain = np.isfinite(single) & (np.abs(single) >= np.finfo(np.float32).tiny)
        if self.bits == 11:
            half = values.astype(np.float16)
            plain &= np.isfinite(half) & (half != 0)
            return half.view(np.uint16).astype(np.uint32), np.all(plain, axis=1)
        raw = single.view(np.uint32)
        if self.bits == 24:
            return raw, np.all(plain, axis=1)
        if self.rounding == "even":
            # half to even: a half goes up if the last bit that stays is 1
            raw = raw + np.uint32(0x7FFF) + (raw >> 16 & 1)
        return raw >> 16, np.all(plain, axis=1)

    def _fixed(self, values: Array, fraction: Array) -> tuple[Array, Array]:
        codes = ROUNDINGS[self.rounding](np.ldexp(values, fraction[:, None]))
        size = 2.0**self.bits
        negative = (codes < 0).any(1)
        most = np.where(negative, size / 2, size)
        fits = (codes.max(1) < most) & (codes.min(1) >= -size / 2)
        whole = np.where(fits[:, None], codes, 0).astype(np.int64) % int(size)
        return whole.astype(np.uint32), fits

    def mantissas(self, values: Array) -> tuple[Array, Array]:
        """Multipliers ``uint32`` and left shifts ``int64`` of values, as TFLite's
        ``QuantizeMultiplier`` gives them. Both are 0 for a value that is not positive.
        """
        valid = np.isfinite(values) & (values > 0)
        # 0.5 <= part < 1, so that the multiplier has its highest bit set
        part, shift = np.frexp(np.where(valid, values, 1.0))
        codes = ROUNDINGS[self.rounding](np.ldexp(part, self.bits))
        over = codes >= 2.0**self.bits
        codes = np.where(over, codes / 2, codes)
        shift = shift + over
        return np.where(valid, codes, 0).astype(np.uint32), np.where(valid, shift, 0).astype(int)

    def __str__(self) -> str:
        return f"{self.name} {SAID[self.rounding]}"


@cache
def encodings() -> tuple[Encoding, ...]:
    """The encodings of ``encodings.csv``."""
    return tuple(_rows())


def _rows() -> Iterator[Encoding]:
    for row in read_table(TABLE):
        yield Encoding(
            row["encoding"], int(row["bytes"]), row["kind"], int(row["bits"]), row["rounding"]
        )
