"""Bit strings."""

from __future__ import annotations

import pytest
from bit_strings import pack_bits
from hypothesis import given, settings, strategies as st

from npulab.layout.bitstream import BitReader

ITEMS = st.lists(
    st.integers(0, 32).flatmap(lambda w: st.tuples(st.integers(0, 2**w - 1), st.just(w)))
)


@given(ITEMS)
@settings(max_examples=100)
def test_packed_items_read_back(items: list[tuple[int, int]]) -> None:
    reader = BitReader(pack_bits(items))
    assert [reader.read(width) for _, width in items] == [value for value, _ in items]


@given(ITEMS)
@settings(max_examples=100)
def test_packing_is_one_long_number(items: list[tuple[int, int]]) -> None:
    total = at = 0
    for value, width in items:
        total, at = total + value * 2**at, at + width
    assert pack_bits(items) == total.to_bytes((at + 7) // 8, "little")


def test_values_are_taken_modulo_their_width() -> None:
    assert pack_bits([(-1, 8), (0x1FF, 8)]) == b"\xff\xff"


def test_reader_stops_at_its_end() -> None:
    reader = BitReader(b"\xff\xff", 3, 11)
    assert reader.read(8) == 0xFF
    with pytest.raises(EOFError, match=r"^bit string ends at bit 11, 1 bits wanted at bit 11$"):
        reader.read(1)


def test_width_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"^bit string: got width 33, allowed is 0 to 32$"):
        pack_bits([(0, 33)])
