"""Layouts against nested loops that are written out; found from markers, from repeating values, from damaged buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from npulab.layout import (
    Constant,
    Layout,
    Loop,
    Sums,
    Table,
    hwc,
    kernel_groups,
    markers,
    nc1hwc2,
    only,
    packed_blocks,
    planar,
)

Places = Iterator[tuple[tuple[int, ...], int]]


def up(size: int, align: int) -> int:
    return -(-size // align) * align


# Where elements lie, by loops as the sources have them: (index, byte offset)


def slow_hwc(shape: tuple[int, ...], size: int, row_pitch: int = 0) -> Places:
    h, w, c = shape
    for y, x, z in product(range(h), range(w), range(c)):
        yield (y, x, z), y * (row_pitch or w * c * size) + (x * c + z) * size


def slow_planar(shape: tuple[int, ...], size: int, align: int = 1) -> Places:
    h, w, c = shape
    row = up(w * size, align)
    for z, y, x in product(range(c), range(h), range(w)):
        yield (y, x, z), z * h * row + y * row + x * size


def slow_nc1hwc2(shape: tuple[int, ...], size: int, c2: int) -> Places:
    h, w, c = shape
    for y, x, z in product(range(h), range(w), range(c)):
        yield (y, x, z), ((z // c2) * h * w * c2 + (y * w + x) * c2 + z % c2) * size


def slow_atoms(shape: tuple[int, ...], size: int, atom: int, line: int, surface: int) -> Places:
    h, w, c = shape
    e = atom // size
    for y, x, z in product(range(h), range(w), range(c)):
        yield (y, x, z), (z // e) * surface + y * line + x * atom + (z % e) * size


def slow_groups(shape: tuple[int, ...], size: int, kernels: int, channels: int) -> Places:
    o, h, w, i = shape
    at = 0
    for group in range(0, o, kernels):
        for block in range(0, i, channels):
            for y, x in product(range(h), range(w)):
                for k in range(group, min(group + kernels, o)):
                    for z in range(block, min(block + channels, i)):
                        yield (k, y, x, z), at
                        at += size


def slow_blocks(shape: tuple[int, ...], size: int, rows: int, columns: int) -> Places:
    r, c = shape
    for y, x in product(range(r), range(c)):
        y0, x0 = y - y % rows, x - x % columns
        yield (y, x), (y0 * columns + x0 * up(r, rows) + (y - y0) + (x - x0) * rows) * size


class Case(NamedTuple):
    make: Callable[[tuple[int, ...], str], Layout]
    slow: Callable[[tuple[int, ...], int], Places]
    shapes: list[tuple[int, ...]]


IMAGES = [(5, 7, 3), (4, 3, 33), (1, 9, 20), (6, 5, 1), (3, 2, 16), (1, 1, 70)]
MATRICES = [(37, 13), (16, 8), (3, 2), (33, 1), (1, 19), (50, 70)]
CASES = {
    "hwc": Case(lambda shape, dtype: hwc(shape, dtype=dtype), slow_hwc, IMAGES),
    "hwc pitch 300": Case(lambda shape, dtype: hwc(shape, dtype=dtype, row_pitch=300), lambda shape, size: slow_hwc(shape, size, 300), [(5, 7, 3), (4, 3, 33), (6, 5, 1)]),
    "planar": Case(lambda shape, dtype: planar(shape, dtype=dtype), slow_planar, IMAGES),
    "rows of 64": Case(lambda shape, dtype: planar(shape, dtype=dtype, row_align=64), lambda shape, size: slow_planar(shape, size, 64), IMAGES),
    **{f"nc1hwc2 {c2}": Case(lambda shape, dtype, c2=c2: nc1hwc2(shape, c2, dtype=dtype), lambda shape, size, c2=c2: slow_nc1hwc2(shape, size, c2), IMAGES) for c2 in (2, 4, 8, 16)},
    "atoms 8": Case(lambda shape, dtype: nc1hwc2(shape, 8 // np.dtype(dtype).itemsize, dtype=dtype, row_pitch=96, plane_pitch=640),
                    lambda shape, size: slow_atoms(shape, size, 8, 96, 640), IMAGES),
    "atoms 32": Case(lambda shape, dtype: nc1hwc2(shape, 32 // np.dtype(dtype).itemsize, dtype=dtype, row_pitch=320, plane_pitch=2048),
                     lambda shape, size: slow_atoms(shape, size, 32, 320, 2048), IMAGES),
    **{f"groups {k} {c}": Case(lambda shape, dtype, k=k, c=c: kernel_groups(shape, k, c, dtype=dtype, align=128), lambda shape, size, k=k, c=c: slow_groups(shape, size, k, c),
                               [(20, 3, 3, 12), (16, 1, 1, 8), (41, 5, 3, 14), (7, 2, 2, 5), (33, 1, 1, 65), (8, 1, 4, 33), (1, 3, 3, 40)])
       for k, c in ((8, 8), (16, 32), (32, 64))},
    **{f"blocks {r} {c}": Case(lambda shape, dtype, r=r, c=c: packed_blocks(shape, r, c, dtype=dtype, sums=True), lambda shape, size, r=r, c=c: slow_blocks(shape, size, r, c), MATRICES)
       for r, c in ((16, 4), (16, 2), (4, 8), (4, 16))},
}
EVERY = [pytest.param(case, shape, dtype, id=f"{name} {'x'.join(map(str, shape))} {dtype}")
         for name, case in CASES.items() for shape in case.shapes for dtype in ("uint8", "float16")]


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return raw.view(dtype)[..., 0] if np.dtype(dtype).itemsize > 1 else raw[..., 0].view(dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit: float16 may be nan."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("case", "shape", "dtype"), EVERY)
def test_index_map_is_that_of_the_loops(case: Case, shape: tuple[int, ...], dtype: str) -> None:
    layout, size = case.make(shape, dtype), np.dtype(dtype).itemsize
    expected = np.full(shape, -1, np.int64)
    for index, at in case.slow(shape, size):
        expected[index] = at
    assert np.array_equal(layout.index_map(), expected)
    assert layout.at(*np.unravel_index(np.arange(expected.size), shape)).tolist() == expected.ravel().tolist()
    tensor = random(shape, dtype)
    buffer = layout.pack(tensor)
    assert len(buffer) == layout.size
    for index, at in case.slow(shape, size):
        assert buffer[at:at + size] == tensor[index].tobytes()
    assert same(layout.unpack(buffer), tensor)
    assert eval(repr(layout)) == layout


def test_blocks_are_those_of_the_formula_with_sums() -> None:
    """``reshape, transpose, ravel`` of the padded matrix, then a sum for each padded column."""
    matrix = random((37, 13), "int8")
    for (rows, columns), fill in product([(16, 4), (4, 8), (4, 16)], [0, 5, 250]):
        padded = np.full((up(37, rows), up(13, columns)), fill, np.uint8).view(np.int8)
        padded[:37, :13] = matrix
        blocks = padded.reshape(-1, rows, up(13, columns) // columns, columns).transpose(2, 0, 3, 1)
        layout = packed_blocks((37, 13), rows, columns, dtype="int8", sums=True, fill=fill)
        assert layout.pack(matrix) == blocks.tobytes() + padded.astype(np.int32).sum(0, dtype=np.int32).tobytes()


def test_elements_are_stored_changed() -> None:
    tensor = np.array([[0, 1, 128, 255]], np.uint8)
    assert hwc((1, 4), xor=0x80).pack(tensor).hex(" ") == "80 81 00 7f"
    assert hwc((1, 4), add=3).pack(tensor).hex(" ") == "03 04 83 02"
    assert hwc((1, 4), xor=0xFF, add=1).pack(tensor).hex(" ") == "00 ff 80 01"
    assert hwc((1, 1), dtype="uint16", big_endian=True, offset=1, size=6, fill=0x1234).pack(np.array([[0xABCD]], np.uint16)).hex(" ") == "34 ab cd 12 34 12"
    for stored in ({"xor": 0x80}, {"add": 3}, {"xor": 0x55, "add": 200}, {"copies": (8, -4), "offset": 4, "size": 20}):
        layout = hwc((1, 4), **stored)
        assert np.array_equal(layout.unpack(layout.pack(tensor)), tensor)
    assert hwc((1, 2), copies=(3,), size=6, fill=9).pack(np.array([[1, 2]], np.uint8)).hex(" ") == "01 02 09 01 02 09"


def test_only_some_indices_lie_in_the_buffer() -> None:
    layout = only(planar((2, 3, 4), row_align=8), 2, 0, 1)
    tensor = random((2, 3, 4), "uint8")
    expected = np.full((2, 3, 4), -1)
    expected[:, :, 0] = [[0, 1, 2], [8, 9, 10]]
    assert np.array_equal(layout.index_map(), expected)
    back = layout.unpack(layout.pack(tensor))
    assert np.array_equal(back[:, :, 0], tensor[:, :, 0])
    assert not back[:, :, 1:].any()
    assert str(layout) == "[c][h][w] with strides 16, 8, 1: (2, 3, 4) uint8, only c 0 to 0, 64 bytes"


def test_parts_and_tables() -> None:
    layout = hwc((1, 3), offset=4, size=16, parts=(Constant(0, b"\x01\x02"), Constant(12, b"\x07", 4)))
    tensor = np.array([[5, 6, 7]], np.uint8)
    assert layout.pack(tensor).hex(" ") == "01 02 00 00 05 06 07 00 00 00 00 00 07 07 07 07"
    assert str(layout) == ("[r][c] with strides 3, 1: (1, 3) uint8, from byte 4, 2 constant bytes at byte 0 (01 02), "
                           "4 constant bytes at byte 12 (07 ...), 16 bytes")
    table = Table((1, 3), np.array([[4, -1, 2]]), size=6)
    assert table.pack(tensor).hex(" ") == "00 00 07 00 05 00"
    assert table.unpack(table.pack(tensor)).tolist() == [[5, 0, 7]]
    assert str(table) == "table of 2 places: (1, 3) uint8, 6 bytes"
    assert np.array_equal(table.index_map(), [[4, -1, 2]])


@pytest.mark.parametrize(("make", "said"), [
    (lambda: Layout((), ()), r"^shape: got \(\), allowed are one or more axes of at least 1$"),
    (lambda: Layout((2, 0), (Loop(0),)), r"^shape: got \(2, 0\), allowed are one or more axes of at least 1$"),
    (lambda: Layout((10 ** 6, 10 ** 6), ()), r"^shape: got \(1000000, 1000000\), allowed are at most 67108864 elements$"),
    (lambda: Layout((4,), ()), r"^loops: got blocks of 4 indices of axis 0 at the innermost, allowed is 1$"),
    (lambda: Layout((4,), (Loop(0, 2),)), r"^loops: got blocks of 2 indices of axis 0 at the innermost, allowed is 1$"),
    (lambda: Layout((4,), (Loop(1),)), r"got axis 1, allowed is 0 to 0$"),
    (lambda: Layout((4,), (Loop(0, 0),)), r"got a tile of 0, allowed is 1 or more$"),
    (lambda: Layout((4,), (Loop(0, 2), Loop(0, 1, 1))), r"got a stride inside of a loop without one$"),
    (lambda: Layout((4,), (Loop(0, 1, 0),)), r"^loops: got two elements at one place in \[i\]$"),
    (lambda: Layout((4, 4), (Loop(0, 1, 3), Loop(1, 1, 1))), r"^loops: got two elements at one place in \[r\]\[c\]$"),
    (lambda: Layout((4,), (Loop(0, 1, -1),)), r"^elements: got bytes -3 to 1, allowed is 0 to 1, the size$"),
    (lambda: hwc((4,), size=3), r"^elements: got bytes 0 to 4, allowed is 0 to 3, the size$"),
    (lambda: hwc((4,), dtype="int64"), r"^dtype: got 'int64', allowed is one of uint8, "),
    (lambda: hwc((4,), fill=256), r"^fill: got 256, allowed is 0 to 255$"),
    (lambda: hwc((4,), window=((0, 5),)), r"^window: got \(\(0, 5\),\), allowed is \(start, stop\) for each axis of \(4,\)$"),
    (lambda: hwc((4, 3, 2), row_pitch=5), r"^pitch of axis 0: got 5 bytes, allowed is 6 or more$"),
    (lambda: nc1hwc2((4, 3, 2), 4, row_pitch=11), r"^row_pitch: got 11 bytes, allowed is 12 or more$"),
    (lambda: nc1hwc2((4, 3, 2), 0), r"^c2: got 0, allowed is 1 or more$"),
    (lambda: planar((4, 3)), r"^shape: got \(4, 3\), allowed is \(\.\.\., H, W, C\)$"),
    (lambda: hwc((4,), size=4, parts=(Sums(4, 0, 4),)), r"^4 sums over axis 0 at byte 4: got bytes 4 to 20, allowed is 0 to 4, the size$"),
    (lambda: hwc((4,), size=40, parts=(Sums(4, 0, 3),)), r"got axis 0, allowed is an axis of \(4,\) with at most 3 indices$"),
    (lambda: hwc((4,)).pack(np.zeros(5, np.uint8)), r"^tensor: got uint8 \(5,\), allowed is uint8 \(4,\)$"),
    (lambda: hwc((4,)).pack(np.zeros(4, np.int8)), r"^tensor: got int8 \(4,\), allowed is uint8 \(4,\)$"),
    (lambda: hwc((4,)).unpack(bytes(5)), r"^buffer: got 5 bytes, allowed is 4$"),
    (lambda: hwc((4,)).unpack("abcd"), r"^buffer: got str, allowed are bytes or uint8 of one axis$"),
    (lambda: hwc((2,), copies=(2,)).unpack(bytes([1, 2, 1, 3])), r"^buffer: got two values of one element, at bytes 1 and 3 \(its copy\)$"),
    (lambda: Table((2,), np.array([0, 9]), size=4), r"^elements: got bytes 0 to 10, allowed is 0 to 4, the size$"),
    (lambda: markers((4,), "int64"), r"^dtype: got 'int64', allowed is one of "),
    (lambda: markers((1000, 1000), captures=2), r"^captures: got 2 for 1000000 elements of 256 values, allowed is 3 or more$"),
    (lambda: markers((4,), avoid=range(256)), r"^avoid: got all but 0 values, allowed are enough for 4 elements$"),
])
def test_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_short_blocks_inside_of_strides() -> None:
    """Groups at fixed places, what is inside of each packed."""
    layout = Layout((5, 3), (Loop(0, 4, 100), Loop(1, 2), Loop(0), Loop(1)))
    expected = [[0, 1, 8], [2, 3, 9], [4, 5, 10], [6, 7, 11], [100, 101, 102]]
    assert layout.index_map().tolist() == expected
    assert layout.size == 103
    assert str(layout) == "[r/4][c/2][r%4][c%2] with strides 100, packed, packed, packed: (5, 3) uint8, 103 bytes"


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "float16"])
@pytest.mark.parametrize("shape", [(3,), (255,), (257,), (300, 300), (7, 11, 13)])
def test_markers_spell_every_element(shape: tuple[int, ...], dtype: str) -> None:
    avoid = {0, 1, 100}
    tensors = markers(shape, dtype, avoid=avoid)
    spelled = list(zip(*(tensor.ravel().tolist() for tensor in tensors), strict=True))
    assert len(set(spelled)) == len(spelled)
    assert not any(len(set(values)) == 1 for values in spelled)
    assert not avoid & {value for values in spelled for value in values}
    assert all(tensor.dtype == dtype and np.isfinite(tensor).all() for tensor in tensors)


def test_markers_are_as_few_as_it_takes() -> None:
    assert len(markers((1000, 1000))) == 3
    assert len(markers((65280,))) == 2
    assert len(markers((65281,))) == 3
    assert len(markers((10,), captures=5)) == 5
    assert replace(hwc((2,)), dtype="int8") == hwc((2,), dtype="int8")
