"""Records of a task stream: a word that says which registers are written, and their values behind
it.

H14 and later (``compact``): a record is dense (consecutive registers, and perhaps a base of the
program that is added to the values) or sparse (a first register and those of the 16 behind it that
a mask names); registers are counted in words.  Up to H13 all records are dense and count bytes.

Sources: JW (record words of 2251 H14 tasks and some hundred of H15 to H18), FT, AG for H11; see the
tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from npulab.registers.fields import WORD_BYTES

# Bits of a record's first word, (lsb, width)
PLACE, COUNT, SELECTOR, MASK, SPARSE = (0, 15), (15, 6), (21, 10), (15, 16), (31, 1)
SELECTS, BASE = (8, 1), (2, 6)  # of SELECTOR: base BASE of the program is added to the values (JW, inferred)
OLD_PLACE, OLD_COUNT = (0, 26), (26, 6)  # up to H13


def cut(word: int, bits: tuple[int, int]) -> int:
    """The bits (lsb, width) of a word.

    >>> cut(0x2280_8542, COUNT), hex(4 * cut(0x2280_8542, PLACE))
    (1, '0x1508')
    """
    lsb, width = bits
    return word >> lsb & 2 ** width - 1


def put(value: int, bits: tuple[int, int]) -> int:
    """A value at its bits (lsb, width), the rest 0; raises ValueError where it does not fit."""
    lsb, width = bits
    if not 0 <= value < 2 ** width:
        raise ValueError(f"record: got {value:#x} for bits {lsb + width - 1}:{lsb}, allowed is 0 to "
                         f"{2 ** width - 1:#x}")
    return value * 2 ** lsb


def with_bits(word: int, value: int, bits: tuple[int, int]) -> int:
    """The word with another value at its bits (lsb, width)."""
    return word + put(value, bits) - put(cut(word, bits), bits)


class Record(NamedTuple):
    """Register writes of one record: the byte address of the first register and the values in
    order.

    ``mask`` is None for a dense record; otherwise bit i says that the register ``1 + i`` words
    behind the first one is written too.  ``selector`` are the upper bits of a dense record of H14
    and later.

    >>> Record(0x504, (1, 2), mask=0b100).writes
    ((1284, 1), (1296, 2))
    """

    address: int
    values: tuple[int, ...]
    mask: int | None = None
    selector: int = 0

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """(byte address, value) of every write, in order."""
        steps = range(len(self.values)) if self.mask is None else \
            [0, *(1 + i for i in range(MASK[1]) if self.mask >> i & 1)]
        return tuple((self.address + WORD_BYTES * step, value) for step, value in zip(steps, self.values, strict=True))

    @property
    def base(self) -> int | None:
        """The program's base (BAR) that is added to the values when the task is loaded; None where
        none is."""
        return cut(self.selector, BASE) if cut(self.selector, SELECTS) else None

    @classmethod
    def to(cls, address: int, *values: int, base: int | None = None) -> Record:
        """A dense record from ``address`` (bytes) on, its values added to ``base`` of the program.

        >>> hex(Record.to(0x1508, 0, 0, base=5).words(True)[0])
        '0x22808542'
        """
        return cls(address, values, None, 0 if base is None else put(1, SELECTS) + put(base, BASE))

    def words(self, compact: bool) -> list[int]:
        """The words of the record, ``compact`` as on H14 and later; raises ValueError for what has
        no words."""
        steps = MASK[1] + 1 if self.mask is not None else 2 ** COUNT[1]
        held = 1 + self.mask.bit_count() if self.mask is not None else len(self.values)
        if not 0 < len(self.values) <= steps or len(self.values) != held or self.address % WORD_BYTES:
            raise ValueError(f"record at {self.address:#x}: got {len(self.values)} values, allowed is "
                             f"{f'1 to {steps}' if self.mask is None else held}, from a multiple of {WORD_BYTES} on")
        if not compact and (self.mask is not None or self.selector):
            raise ValueError(f"record at {self.address:#x}: got a mask or selector, allowed from H14 on")
        if not compact:
            return [put(self.address, OLD_PLACE) + put(len(self.values) - 1, OLD_COUNT), *self.values]
        head = put(self.address // WORD_BYTES, PLACE)
        if self.mask is None:
            return [head + put(len(self.values) - 1, COUNT) + put(self.selector, SELECTOR), *self.values]
        if self.selector:
            raise ValueError(f"record at {self.address:#x}: got a mask and a selector, allowed is one of them")
        return [head + put(self.mask, MASK) + put(1, SPARSE), *self.values]


def words_of(raw: bytes) -> list[int]:
    return np.frombuffer(raw, "<u4").tolist()  # type: ignore[no-any-return]


def bytes_of(words: Sequence[int]) -> bytes:
    return np.array(words, "<u4").tobytes()


def split(words: Sequence[int], start: int, compact: bool, what: str, offset: int = 0) -> Iterator[Record]:
    """The records in words from ``start`` on; raises ValueError for one that runs past the words or
    registers.

    ``what`` and the byte ``offset`` of the words are for errors.
    """
    last = 2 ** (PLACE[1] if compact else OLD_PLACE[1] - 2)  # words of the address space
    at = start
    while at < len(words):
        head, mask, selector = words[at], None, 0
        if compact:
            place = cut(head, PLACE)
            if cut(head, SPARSE):
                mask = cut(head, MASK)
                count, reach = 1 + mask.bit_count(), 1 + mask.bit_length()
            else:
                count = reach = 1 + cut(head, COUNT)
                selector = cut(head, SELECTOR)
        else:
            place, odd = divmod(cut(head, OLD_PLACE), WORD_BYTES)
            count = reach = 1 + cut(head, OLD_COUNT)
            if odd:
                raise ValueError(f"{what}, record at byte {offset + WORD_BYTES * at:#x}: got the address "
                                 f"{cut(head, OLD_PLACE):#x}, allowed is a multiple of {WORD_BYTES}")
        if place + reach > last:
            raise ValueError(f"{what}, record at byte {offset + WORD_BYTES * at:#x}: got registers up to "
                             f"{WORD_BYTES * (place + reach - 1):#x}, allowed is up to {WORD_BYTES * (last - 1):#x}")
        if at + count >= len(words):
            raise ValueError(f"{what}, record at byte {offset + WORD_BYTES * at:#x}: got {count} values, allowed is "
                             f"the {len(words) - at - 1} words that the task has left")
        yield Record(WORD_BYTES * place, tuple(words[at + 1:at + 1 + count]), mask, selector)
        at += 1 + count


def first_broken(words: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> int | None:
    """The first of many runs of compact records that ``split`` would refuse, or None; all runs at a
    time.

    ``words`` are those of the section ``(n,) uint32``, a run goes from word ``starts[i]`` to
    ``ends[i]``, excluded.
    """
    run, at = np.flatnonzero(starts < ends), starts[starts < ends].astype(np.int64)
    broken = len(starts)
    while len(run):
        head = words[at]
        mask = head >> np.uint32(MASK[0]) & np.uint32(2 ** MASK[1] - 1)
        sparse, dense = head >= 2 ** SPARSE[0], mask & np.uint32(2 ** COUNT[1] - 1)
        count = 1 + np.where(sparse, np.bitwise_count(mask), dense).astype(np.int64)
        reach = 1 + np.where(sparse, np.frexp(mask)[1], dense).astype(np.int64) + (head & np.uint32(2 ** PLACE[1] - 1))
        at += 1 + count
        bad = (reach > 2 ** PLACE[1]) | (at > ends[run])
        broken = min([broken, *run[bad][:1].tolist()])
        keep = ~bad & (at < ends[run])
        run, at = run[keep], at[keep]
    return None if broken == len(starts) else broken
