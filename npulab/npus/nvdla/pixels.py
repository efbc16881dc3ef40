"""Images as the convolution reads them: pixels of every format turned to channels of int8 or int16.

``pixels.csv`` says where the channels of a pixel lie.  Source: nvdla/hw cmod/cdma; the traces of
the ten orders of four 8-bit channels agree (evidence T).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npulab.npus.nvdla.rules import RULES, Rules
from npulab.npus.nvdla.units.rounding import saturated, shifted
from npulab.registers.table import read_table

WORD = 16  # bits that packed channels are moved up in
CONVERTED_BITS = 17  # a converted value is limited to these, then to those of an element
MOST_TRUNCATE = 63  # CDMA.D_CVT_CFG.CVT_TRUNCATE has 6 bits


@dataclass(frozen=True)
class Format:
    """A pixel format: elements of ``element`` bytes, pixels of ``pixel`` bytes in the first plane
    and ``pixel_uv`` in the second one, if there is one.

    ``channels`` are (first, width) of each channel in the order the convolution counts them.  A
    width of 0 is the element ``first`` of the pixel, those of the second plane behind those of the
    first; else the pixel is a word with the channel in so many bits from bit ``first`` on, which
    are moved up to the top of 16 bits.
    """

    raw: int
    name: str
    element: int
    pixel: int
    pixel_uv: int
    channels: tuple[tuple[int, int], ...]
    evidence: str = ""

    def unpack(self, rows: np.ndarray, rows_uv: np.ndarray | None = None) -> np.ndarray:
        """Channels ``(height, width, channels)``, uint8 or uint16, of rows of pixels ``(height,
        bytes) uint8``.

        Raises ValueError for rows that are no whole pixels, and a second plane that is missing or
        too much.
        """
        width, rest = divmod(rows.shape[1], self.pixel)
        wanted = None if not self.pixel_uv else (len(rows), width * self.pixel_uv)
        if rest or (None if rows_uv is None else rows_uv.shape) != wanted:
            raise ValueError(f"{self.name}: got rows {rows.shape} and {None if rows_uv is None else rows_uv.shape}, "
                             f"allowed are pixels of {self.pixel} bytes and a second plane of {wanted}")
        if any(bits for _, bits in self.channels):
            words = np.ascontiguousarray(rows).view("<u4")
            return np.stack([(words >> np.uint32(first)) % 2 ** bits * 2 ** (WORD - bits)
                             for first, bits in self.channels], 2).astype(np.uint16)
        type_ = np.dtype(f"<u{self.element}")
        planes = [np.ascontiguousarray(one).view(type_).reshape(len(rows), width, -1)
                  for one in (rows, rows_uv) if one is not None]
        elements = planes[0] if len(planes) == 1 else np.concatenate(planes, 2)
        return elements[:, :, [first for first, _ in self.channels]]

    def pack(self, channels: np.ndarray) -> list[np.ndarray]:
        """Rows of pixels ``(height, bytes) uint8`` of each plane, of channels as ``unpack`` gives
        them.

        Of packed channels the highest bits are kept.
        Raises ValueError for another count of channels or type.
        """
        if channels.ndim != 3 or channels.shape[2] != len(self.channels) or channels.dtype != f"u{self.element}":
            raise ValueError(f"{self.name}: got {channels.dtype} {channels.shape}, allowed is uint{8 * self.element} "
                             f"(height, width, {len(self.channels)})")
        if any(bits for _, bits in self.channels):
            words = sum(channels[:, :, at].astype(np.uint32) // 2 ** (WORD - bits) * np.uint32(2 ** first)
                        for at, (first, bits) in enumerate(self.channels))
            return [np.asarray(words).astype("<u4").view(np.uint8)]
        elements = np.empty(channels.shape, f"<u{self.element}")
        elements[:, :, [first for first, _ in self.channels]] = channels
        inside = self.pixel // self.element
        planes = [elements[:, :, :inside], elements[:, :, inside:]] if self.pixel_uv else [elements]
        return [np.ascontiguousarray(one).reshape(len(one), -1).view(np.uint8) for one in planes]


def _channel(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:\+(\d+))?", text)
    assert found is not None, text
    return int(found[1]), int(found[2] or 0)


FORMATS = {int(row["raw"]): Format(int(row["raw"]), row["format"], int(row["element"]), int(row["pixel"]),
                                   int(row["pixel_uv"] or 0), tuple(map(_channel, row["channels"].split())),
                                   row["evidence"])
           for row in read_table(Path(__file__).with_name("pixels.csv"))}


def converted(values: np.ndarray, offsets: Sequence[int] | int, scale: int, truncate: int, bits: int,
              rules: Rules = RULES) -> np.ndarray:
    """``(value - offset) * scale / 2**truncate`` rounded half away from zero, of ``bits`` (8 or
    16): int8 or int16.

    ``values`` are whole numbers ``(..., C)`` of at most 17 bits, ``offsets`` 16 bits signed, one or
    one per channel, ``scale`` 16 bits signed.  The result is limited to 17 bits, then to ``bits``.
    Raises ValueError for a truncate outside 0 to 63.

    >>> converted(np.array([3, 5, 255]), 0, 1, 1, 8)
    array([  2,   3, 127], dtype=int8)
    """
    if not 0 <= truncate <= MOST_TRUNCATE:
        raise ValueError(f"truncate: got {truncate}, allowed is 0 to {MOST_TRUNCATE}")
    moved = (values.astype(np.int64) - np.asarray(offsets, np.int64)) * scale
    short = saturated(shifted(moved, truncate, rules.rounding), CONVERTED_BITS)
    return saturated(short, bits).astype(np.int8 if bits == 8 else np.int16)
