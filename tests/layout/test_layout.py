"""Layouts against nested loops that are written out; found from markers, from repeating values,
from damaged buffers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
import pytest

from npulab.layout import (
    Constant,
    Found,
    Layout,
    Loop,
    Sums,
    Table,
    find_layout,
    hwc,
    kernel_groups,
    markers,
    nc1hwc2,
    only,
    packed_blocks,
    planar,
)
from npulab.layout.candidates import HEADERS, TILES, candidates
from npulab.layout.formats import strides_layout
from npulab.layout.found import Run, agreeing
from npulab.layout.places import Change, Pairs, Signature, Sought
from npulab.layout.rules import AxisDigit, _near
from npulab.layout.stored import Stored

Places = Iterator[tuple[tuple[int, ...], int]]


def up(size: int, align: int) -> int:
    return -(-size // align) * align


# Where elements lie, by loops as the sources have them: (index, byte offset)


def slow_hwc(shape: tuple[int, ...], size: int, row_pitch: int = 0) -> Places:
    h, w, c = shape
    for y, x, z in product(range(h), range(w), range(c)):
        yield (y, x, z), y * (row_pitch or w * c * size) + (x * c + z) * size


def slow_planar(shape: tuple[int, ...], size: int, row_align: int = 1) -> Places:
    h, w, c = shape
    row = up(w * size, row_align)
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


def case_of(
    make: Callable[..., Layout],
    slow: Callable[..., Places],
    shapes: list[tuple[int, ...]],
    *numbers: int,
    **fields: int,
) -> Case:
    """A layout and its loops, with numbers that both take."""
    return Case(
        lambda shape, dtype: make(shape, *numbers, dtype=dtype, **fields),
        lambda shape, size: slow(shape, size, *numbers, **fields),
        shapes,
    )


def atoms(shape: tuple[int, ...], atom: int, line: int, surface: int, *, dtype: str) -> Layout:
    elements = atom // np.dtype(dtype).itemsize
    return nc1hwc2(shape, elements, dtype=dtype, row_pitch=line, plane_pitch=surface)


def groups(shape: tuple[int, ...], kernels: int, channels: int, *, dtype: str) -> Layout:
    return kernel_groups(shape, kernels, channels, dtype=dtype, align=128)  # type: ignore[arg-type]


def blocks(shape: tuple[int, ...], rows: int, columns: int, *, dtype: str) -> Layout:
    return packed_blocks(shape, rows, columns, dtype=dtype, sums=True)  # type: ignore[arg-type]


IMAGES = [(5, 7, 3), (4, 3, 33), (1, 9, 20), (6, 5, 1), (3, 2, 16), (1, 1, 70)]
MATRICES = [(37, 13), (16, 8), (3, 2), (33, 1), (1, 19), (50, 70)]
WEIGHT_SHAPES = [
    (20, 3, 3, 12),
    (16, 1, 1, 8),
    (41, 5, 3, 14),
    (7, 2, 2, 5),
    (33, 1, 1, 65),
    (8, 1, 4, 33),
    (1, 3, 3, 40),
]
PITCHED = [(5, 7, 3), (4, 3, 33), (6, 5, 1)]
CASES = {
    "hwc": case_of(hwc, slow_hwc, IMAGES),
    "hwc pitch 500": case_of(hwc, slow_hwc, PITCHED, row_pitch=500),
    "planar": case_of(planar, slow_planar, IMAGES),
    "rows of 64": case_of(planar, slow_planar, IMAGES, row_align=64),
    "atoms 8": case_of(atoms, slow_atoms, IMAGES, 8, 96, 640),
    "atoms 32": case_of(atoms, slow_atoms, IMAGES, 32, 320, 2048),
}
for c2 in (2, 4, 8, 16):
    CASES[f"nc1hwc2 {c2}"] = case_of(nc1hwc2, slow_nc1hwc2, IMAGES, c2)
for kernels, channels in ((8, 8), (16, 32), (32, 64)):
    CASES[f"groups {kernels} {channels}"] = case_of(
        groups, slow_groups, WEIGHT_SHAPES, kernels, channels
    )
for rows, columns in ((16, 4), (16, 2), (4, 8), (4, 16)):
    CASES[f"blocks {rows} {columns}"] = case_of(blocks, slow_blocks, MATRICES, rows, columns)


def every() -> Iterator[Any]:
    """Every case with each of its shapes and types: in every run with elements of one size, under
    ``long`` with elements of the other size."""
    for number, (name, case) in enumerate(CASES.items()):
        types = ("uint8", "float16")
        if name.startswith("blocks"):
            types = ("int8", "int16")
        for (at, shape), (turn, dtype) in product(enumerate(case.shapes), enumerate(types, number)):
            marks = [pytest.mark.long] * ((turn + at) % 2)
            sizes = "x".join(map(str, shape))
            yield pytest.param(case, shape, dtype, id=f"{name} {sizes} {dtype}", marks=marks)


EVERY = [*every()]


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return raw.view(dtype)[..., 0]


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
    assert (
        layout.at(*np.unravel_index(np.arange(expected.size), shape)).tolist()
        == expected.ravel().tolist()
    )
    tensor = random(shape, dtype)
    buffer = layout.pack(tensor)
    assert len(buffer) == layout.size
    for index, at in case.slow(shape, size):
        assert buffer[at : at + size] == tensor[index].tobytes()
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
        assert (
            layout.pack(matrix)
            == blocks.tobytes() + padded.astype(np.int32).sum(0, dtype=np.int32).tobytes()
        )


def test_elements_are_stored_changed() -> None:
    tensor = np.array([[0, 1, 128, 255]], np.uint8)
    assert hwc((1, 4), xor=0x80).pack(tensor).hex(" ") == "80 81 00 7f"
    assert hwc((1, 4), add=3).pack(tensor).hex(" ") == "03 04 83 02"
    assert hwc((1, 4), xor=0xFF, add=1).pack(tensor).hex(" ") == "00 ff 80 01"
    assert (
        hwc((1, 1), dtype="uint16", big_endian=True, offset=1, size=6, fill=0x1234)
        .pack(np.array([[0xABCD]], np.uint16))
        .hex(" ")
        == "34 ab cd 12 34 12"
    )
    for stored in (
        {"xor": 0x80},
        {"add": 3},
        {"xor": 0x55, "add": 200},
        {"copies": (8, -4), "offset": 4, "size": 20},
    ):
        layout = hwc((1, 4), **stored)
        assert np.array_equal(layout.unpack(layout.pack(tensor)), tensor)
    assert (
        hwc((1, 2), copies=(3,), size=6, fill=9).pack(np.array([[1, 2]], np.uint8)).hex(" ")
        == "01 02 09 01 02 09"
    )


def test_what_is_said_of_how_elements_are_stored() -> None:
    parts = tuple(Constant(at, b"\1\2") for at in range(20, 32, 2))
    one = hwc(
        (4,),
        dtype="uint16",
        xor=0x80,
        add=3,
        big_endian=True,
        fill=0x99,
        copies=(8,),
        size=32,
        parts=parts,
    )
    told = (
        "(4,) uint16, xor 0x80, plus 0x3, big-endian, fill 0x99, copies +8 bytes away, 2 constant bytes at byte 20 (01 02), "
        "2 constant bytes at byte 22 (01 02), "
    )
    assert told in str(one), str(one)
    assert str(one).endswith(" more parts, 32 bytes")
    plain = str(hwc((4,)))
    assert plain.endswith("(4,) uint8, 4 bytes"), plain
    assert "words of 4 bytes swapped" in str(hwc((8,), swap=4))


def test_only_some_indices_lie_in_the_buffer() -> None:
    layout = only(planar((2, 3, 4), row_align=8), 2, 0, 1)
    tensor = random((2, 3, 4), "uint8")
    expected = np.full((2, 3, 4), -1)
    expected[:, :, 0] = [[0, 1, 2], [8, 9, 10]]
    assert np.array_equal(layout.index_map(), expected)
    back = layout.unpack(layout.pack(tensor))
    assert np.array_equal(back[:, :, 0], tensor[:, :, 0])
    assert not back[:, :, 1:].any()
    assert str(layout) == "CHW, strides 16 8 1: (2, 3, 4) uint8, only c 0 to 0, 64 bytes"


def test_parts_and_tables() -> None:
    layout = hwc(
        (1, 3), offset=4, size=16, parts=(Constant(0, b"\x01\x02"), Constant(12, b"\x07", 4))
    )
    tensor = np.array([[5, 6, 7]], np.uint8)
    assert layout.pack(tensor).hex(" ") == "01 02 00 00 05 06 07 00 00 00 00 00 07 07 07 07"
    assert str(layout) == (
        "RC, strides 3 1: (1, 3) uint8, from byte 4, 2 constant bytes at byte 0 (01 02), "
        "4 constant bytes at byte 12 (07 ...), 16 bytes"
    )
    table = Table((1, 3), np.array([[4, -1, 2]]), size=6)
    assert table.pack(tensor).hex(" ") == "00 00 07 00 05 00"
    assert table.unpack(table.pack(tensor)).tolist() == [[5, 0, 7]]
    assert str(table) == "table of 2 places: (1, 3) uint8, 6 bytes"
    assert np.array_equal(table.index_map(), [[4, -1, 2]])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Layout((4,), ()),
            r"^loops: got blocks of 4 indices of axis 0 inside of all loops, allowed is 1 index: add a loop over axis 0 with a tile of 1$",
        ),
        (lambda: Layout((4,), (Loop(0, 0),)), r"got a tile of 0, allowed is 1 or more$"),
        (
            lambda: Layout((4,), (Loop(0, 4), Loop(0, 2, 2), Loop(0))),
            r"got no stride, allowed is a stride: the loop is inside of a loop with a stride, which "
            r"is inside of a loop without one$",
        ),
        (
            lambda: Layout((4,), (Loop(0, 1, -1),)),
            r"^elements: got bytes -3 to 1, allowed is 0 to 1, the size$",
        ),
        (lambda: hwc((4,), dtype="int64"), r"^dtype: got 'int64', allowed is one of uint8, "),
        (
            lambda: hwc((4, 3, 2), row_pitch=5),
            r"^pitch of axis 0: got 5 bytes, allowed is 6 or more$",
        ),
        (
            lambda: nc1hwc2((4, 3, 2), 4, row_pitch=11),
            r"^row_pitch: got 11 bytes, allowed is 12 or more$",
        ),
        (lambda: nc1hwc2((4, 3, 2), 0), r"^c2: got 0, allowed is 1 or more$"),
        (
            lambda: Table((2,), np.array([[0, 1]]), size=4),
            r"^places: got \(1, 2\), allowed is \(2,\), the shape$",
        ),
        (
            lambda: Table((2,), np.array([0, 1]), size=9, parts=(Sums(4, 0, 1),)),
            r"^parts: got sums, allowed with a table are constants only$",
        ),
        (
            lambda: hwc((4,), swap=4, copies=(6,)),
            r"^copies: got 6, allowed are multiples of the 4 bytes that are swapped$",
        ),
        (lambda: hwc((4,), size=2**40), r"^size: got 1099511627776 bytes, allowed is 0 to "),
        (lambda: hwc((4,), size=-1), r"^size: got -1 bytes, allowed is 0 to "),
        (lambda: planar((4, 3)), r"^shape: got \(4, 3\), allowed is \(\.\.\., H, W, C\)$"),
        (
            lambda: hwc((4,), size=40, parts=(Sums(4, 0, 3),)),
            r"got axis 0, allowed is an axis of \(4,\) with at most 3 indices$",
        ),
        (
            lambda: hwc((4,)).pack(np.zeros(5, np.uint8)),
            r"^tensor: got uint8 \(5,\), allowed is uint8 \(4,\)$",
        ),
        (
            lambda: hwc((4,)).pack(np.zeros(4, np.int8)),
            r"^tensor: got int8 \(4,\), allowed is uint8 \(4,\)$",
        ),
        (lambda: hwc((4,)).unpack(bytes(5)), r"^buffer: got 5 bytes, allowed is 4$"),
        (
            lambda: hwc((4,)).unpack("abcd"),
            r"^buffer: got str, allowed are bytes or uint8 of one axis$",
        ),
        (lambda: markers((4,), "int64"), r"^dtype: got 'int64', allowed is one of "),
        (
            lambda: markers((1000, 1000), captures=2),
            r"^captures: got 2 for 1000000 elements with 256 possible values, allowed is 3 or more$",
        ),
    ],
)
def test_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_short_blocks_inside_of_strides() -> None:
    """Groups at fixed places, what is inside of each packed."""
    layout = Layout((5, 3), (Loop(0, 4, 100), Loop(1, 2), Loop(0), Loop(1)))
    expected = [[0, 1, 8], [2, 3, 9], [4, 5, 10], [6, 7, 11], [100, 101, 102]]
    assert layout.index_map().tolist() == expected
    assert layout.size == 103
    assert (
        str(layout)
        == "R1C1R2C2, R2=4, C2=2, strides 100 packed packed packed: (5, 3) uint8, 103 bytes"
    )


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


# Found again


def found_in(
    layout: Layout | Table,
    tensors: list[np.ndarray] | None = None,
    edit: Callable[[bytearray, int], Any] = lambda buffer, at: buffer,
) -> Found:
    """What is found in the buffers of markers, or of other tensors, after an edit of each."""
    tensors = markers(layout.shape, layout.dtype) if tensors is None else tensors
    return find_layout(
        tensors,
        [bytes(edit(bytearray(layout.pack(tensor)), at)) for at, tensor in enumerate(tensors)],
    )


def check_found(layout: Layout, found: Found) -> None:
    """The same place for each element, and the same buffers."""
    assert isinstance(found.layout, Layout), str(found)
    assert np.array_equal(found.index_map(), layout.index_map()), f"{layout}\n{found}"
    tensor = random(layout.shape, layout.dtype, 7)
    buffer = layout.pack(tensor)
    assert found.pack(tensor) == buffer, f"{layout}\n{found}"
    assert same(found.unpack(buffer), layout.unpack(buffer))


@pytest.mark.sample(34)
@pytest.mark.parametrize(("case", "shape", "dtype"), EVERY)
def test_found_from_markers(case: Case, shape: tuple[int, ...], dtype: str) -> None:
    layout = case.make(shape, dtype)
    found = found_in(layout)
    check_found(layout, found)
    # where a sum is that of one element, elements are there twice
    assert found.sure or (layout.parts and shape[0] == 1), str(found)


def random_layout(seed: int) -> Layout:
    """Up to four axes in up to three levels of tiles, in any order, completed, short or both; with
    an offset, fill, a
    change, copies or bytes at the end."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.integers(1, (400, 40, 14, 8)[rank - 1] + 1, rank))
    dtype = str(rng.choice(["uint8", "int8", "uint16", "float16"]))
    size = np.dtype(dtype).itemsize
    tiles: list[list[int]] = [[1] for _ in shape]
    for axis, n in enumerate(shape):
        for _ in range(int(rng.integers(0, 3))):
            tile = tiles[axis][-1] * int(rng.choice([2, 3, 4, 8]))
            tiles[axis] += [tile] if tile < n else []
    order = rng.permutation([axis for axis in range(rank) for _ in tiles[axis]]).tolist()
    nest = [(axis, tiles[axis].pop()) for axis in order]
    fixed = int(rng.choice([len(nest), 0, rng.integers(0, len(nest) + 1)]))
    left = list(shape)
    for axis, tile in nest[:fixed]:
        left[axis] = min(left[axis], tile)
    step, loops = (
        size * int(np.prod(left if fixed < len(nest) else 1)),
        [Loop(*one) for one in nest[fixed:]],
    )
    for at in reversed(range(fixed)):
        axis, tile = nest[at]
        step = up(step, int(rng.choice([1, 1, 1, 2, 4, 16, 64])))
        loops.insert(0, Loop(axis, tile, step))
        step *= -(
            -next((outer for other, outer in reversed(nest[:at]) if other == axis), shape[axis])
            // tile
        )
    layout = Layout(
        shape,
        tuple(loops),
        dtype=dtype,
        offset=int(rng.choice([0, 0, 4, 37, 64])),
        add=int(rng.choice([0, 0, 128, 5])),
        fill=int(rng.integers(0, 256)),
    )
    if rng.random() < 0.2:
        layout = replace(layout, copies=(up(layout.size - layout.offset, size),), size=0)
    return replace(layout, size=layout.size + int(rng.choice([0, 0, 1, 100])))


def test_strides_say_what_the_places_say() -> None:
    """Views by strides against each element at its place, fill, copies and what is cut off
    included.
    """
    strided = 0
    for seed in range(150):
        layout = random_layout(seed)
        tensor = random(layout.shape, layout.dtype, seed)
        stored, plain = layout.stored(tensor)[layout.inside], layout.blank(layout.size)
        Stored.write_places(layout, plain, stored)
        assert layout.pack(tensor) == plain.tobytes(), layout
        buffer = random((layout.size,), "uint8", seed)
        wanted = Stored.read_places(layout, buffer)
        assert all(map(same, layout.read_places(buffer), wanted)), layout
        assert same(layout.unpack(plain), tensor)
        strided += layout._strided
    assert strided >= 40


def test_copies_that_differ_are_named_by_their_first_place() -> None:
    layout = nc1hwc2((2, 3, 5), 2, copies=(64,), size=128)
    buffer = bytearray(layout.pack(random((2, 3, 5), "uint8")))
    buffer[layout.index_map()[1, 0, 2] + 64] ^= 1
    buffer[layout.index_map()[0, 2, 4] + 64] ^= 1
    at = layout.index_map()[0, 2, 4]
    with pytest.raises(
        ValueError, match=rf"two values of one element, at bytes {at} and {at + 64} \(its copy\)"
    ):
        layout.unpack(buffer)


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 3000), marks=pytest.mark.long)]
)
def test_random_nests_are_found_from_markers(seeds: range) -> None:
    for seed in seeds:
        layout = random_layout(seed)
        assert eval(repr(layout)) == layout
        found = found_in(layout)
        check_found(layout, found)
        assert found.sure, f"{seed}: {found}"


def test_more_elements_than_two_bytes_number_take_three_captures() -> None:
    layout = nc1hwc2((64, 65, 66), 32)
    tensors = markers(layout.shape)
    assert len(tensors) == 3
    found = find_layout(tensors, [layout.pack(tensor) for tensor in tensors])
    assert np.array_equal(found.layout.index_map(), layout.index_map())


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", ["int8", pytest.param("int16", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_found_from_one_capture_of_random_values(case: Case, dtype: str) -> None:
    """Hardly an element has a value of its own: neighbours and the plain layouts tell."""
    shape = {2: (70, 41), 3: (4, 3, 40), 4: (17, 3, 2, 70)}[len(case.shapes[0])]
    layout = case.make(shape, dtype)
    found = found_in(layout, [random(shape, dtype)])
    check_found(
        replace(layout, parts=()), found
    ) if not layout.parts else np.testing.assert_array_equal(found.index_map(), layout.index_map())
    assert not found.rivals


def test_several_captures_of_few_values() -> None:
    layout = nc1hwc2((40, 60, 9), 4)
    tensors = [random((40, 60, 9), "uint8", seed) % 4 for seed in range(5)]
    found = found_in(layout, tensors)
    assert np.array_equal(found.index_map(), layout.index_map())
    assert (found.own, found.shared, len(found.missing)) == (0, 21600, 0)
    assert not found.sure


def test_a_constant_tensor_leaves_rivals() -> None:
    layout = hwc((4, 6, 8))
    found = found_in(layout, [np.full((4, 6, 8), 5, np.uint8)])
    assert not found.sure
    assert found.more_rivals
    assert all(not np.array_equal(one.index_map(), found.index_map()) for one in found.rivals)
    assert [one.name for one in found.rivals[:3]] == ["HCW", "WHC", "WCH"]
    assert "8 or more other layouts agree as well: HCW, strides 48 6 1" in str(found)


def test_the_vocabulary_of_a_found_layout() -> None:
    found = found_in(nc1hwc2((9, 10, 20), 8, fill=7, offset=64, size=2300))
    assert str(found) == (
        "C1HWC2, C2=8, strides 720 80 8 1: (9, 10, 20) uint8, from byte 64, fill 0x7, 2300 bytes\n"
        "1800 of 1800 elements placed by values of their own in 2 pairs\n"
        "500 bytes beside them are fill (0x7)"
    )


# Damaged, moved, changed


BASE = nc1hwc2((9, 10, 20), 8, fill=7)


def test_cut_off() -> None:
    found = found_in(BASE, edit=lambda buffer, _: buffer[:1000])
    expected = BASE.index_map()
    missing = expected > 999
    assert np.array_equal(found.index_map(), np.where(missing, -1, expected))
    assert np.array_equal(found.layout.index_map(), expected)
    assert (found.own, len(found.missing), found.past_end) == (1000, 800, 800)
    assert np.array_equal(found.missing, np.argwhere(missing))
    assert not found.sure
    assert (
        "800 not found, 800 of them past the end of the buffer: (0, 0, 16), (0, 0, 17), (0, 0, 18), (0, 0, 19) ..."
        in str(found)
    )
    with pytest.raises(ValueError, match=r"^buffer: got 1000 bytes, allowed is 2156$"):
        found.unpack(bytes(1000))


def test_cut_off_in_front() -> None:
    """No layout begins before its buffer: a table of what is left."""
    found = found_in(BASE, edit=lambda buffer, _: buffer[37:])
    expected = BASE.index_map() - 37
    assert isinstance(found.layout, Table)
    assert np.array_equal(found.index_map(), np.maximum(expected, -1))
    assert not found.sure
    assert "no nest of loops was found that gives these places" in str(found)


def test_a_header() -> None:
    found = found_in(BASE, edit=lambda buffer, at: b"\x40\x00\x00" + bytes([at]) + buffer)
    assert np.array_equal(found.index_map(), BASE.index_map() + 4)
    assert isinstance(found.layout, Layout)
    assert found.layout.parts == (Constant(0, b"\x40\x00\x00"),)
    assert [(run.offset, run.size) for run in found.unexplained] == [(3, 1)]
    assert not found.sure


SURE = Found(
    Layout((2, 3), (Loop(0, 1, 3), Loop(1, 1, 1))),
    own=4,
    shared=2,
    missing=np.zeros((0, 2), int),
    past_end=0,
    outside=0,
    elsewhere=3,
    chance=0.0,
    filled=0,
    unexplained=(),
    captures=1,
)
OTHERS = tuple(Layout((2, 3), (Loop(0, 1, n), Loop(1, 1, 1))) for n in range(4, 9))


@pytest.mark.parametrize(
    ("change", "sure", "lines"),
    [
        ({}, True, ["3 have values of their own at another place, by chance about 0 would have"]),
        ({"elsewhere": 4}, False, ["4 have values"]),
        (
            {"elsewhere": 5, "chance": 1.0},
            True,
            ["5 have values of their own at another place, by chance about 1 would have"],
        ),
        (
            {"own": 3, "shared": 3},
            False,
            [
                "3 of 6 elements placed by values of their own in 1 pair",
                "3 more agree, but their values are elsewhere too",
            ],
        ),
        (
            {"own": 6, "shared": 0, "captures": 2, "elsewhere": 0, "tried": 9},
            True,
            [
                "6 of 6 elements placed by values of their own in 2 pairs",
                "of 9 layouts that were tried besides no other agrees",
            ],
        ),
        ({"missing": np.array([[1, 2]]), "own": 5, "shared": 0}, False, ["1 not found: (1, 2)"]),
        (
            {"missing": np.array([[1, n % 3] for n in range(5)]), "past_end": 1},
            False,
            [
                "5 not found, 1 of them past the end of the buffer: (1, 0), (1, 1), (1, 2), (1, 0) ..."
            ],
        ),
        (
            {"missing": np.array([[1, 2], [1, 1]]), "outside": 2, "shared": 0},
            True,
            ["2 are not in the buffer"],
        ),
        (
            {"missing": np.array([[1, 2], [1, 1]]), "outside": 2, "own": 3, "shared": 1},
            False,
            ["2 are not in the buffer"],
        ),
        (
            {"missing": np.array([[1, 2], [1, 1]]), "outside": 1, "shared": 0},
            False,
            ["1 are not in the buffer"],
        ),
        ({"filled": 7}, True, ["7 bytes beside them are fill (0x0)"]),
        (
            {"unexplained": (Run(5, 2, b"\1\2"), Run(9, 3, b"\1\2"))},
            False,
            ["5 bytes not explained: 2 at byte 5 (01 02), 3 at byte 9 (01 02 ...)"],
        ),
        (
            {"unexplained": tuple(Run(n, 1, b"\0") for n in range(5))},
            False,
            [
                "5 bytes not explained: 1 at byte 0 (00), 1 at byte 1 (00), 1 at byte 2 (00), 1 at byte 3 (00) ..."
            ],
        ),
        (
            {"rivals": OTHERS[:1], "tried": 9},
            False,
            [f"1 other layout agrees as well: {OTHERS[0]}"],
        ),
        (
            {"rivals": OTHERS, "more_rivals": True},
            False,
            ["5 or more other layouts agree as well: " + "; ".join(map(str, OTHERS[:4]))],
        ),
        (
            {"layout": Table((2, 3), np.arange(6).reshape(2, 3), size=6)},
            False,
            ["no nest of loops was found that gives these places"],
        ),
    ],
)
def test_what_is_said_of_a_layout_and_whether_it_is_sure(
    change: dict[str, Any], sure: bool, lines: list[str]
) -> None:
    found = replace(SURE, **change)
    said = str(found).split("\n")
    assert found.sure is sure
    assert said[0] == str(found.layout)
    assert all(
        any(one.startswith(line) if line.endswith("values") else one == line for one in said)
        for line in lines
    ), said
    assert len(said) == 2 + sum(
        map(
            bool,
            (
                isinstance(found.layout, Table),
                found.shared,
                found.outside or len(found.missing),
                found.elsewhere,
                found.filled,
                found.unexplained,
                found.rivals or found.tried,
            ),
        )
    )


def test_elements_agree_to_the_last_byte_of_a_buffer() -> None:
    one = Layout((1,), (Loop(0, 1, 2),), dtype="uint16")
    for buffer, agrees in ((b"\x34\x12", True), (b"\x34\x13", False), (b"\x34", False)):
        pairs = Pairs(
            (np.array([0x1234], np.uint16),), (np.frombuffer(buffer, np.uint8),), "uint16"
        )
        assert agreeing(one, pairs).tolist() == [agrees]


def test_noise_is_reported() -> None:
    tensors = markers(BASE.shape)
    clean = np.array([np.frombuffer(BASE.pack(tensor), np.uint8) for tensor in tensors])
    noisy = clean.copy()
    rng = np.random.default_rng(0)
    for buffer in noisy:
        buffer[rng.integers(0, BASE.size, 20)] ^= rng.integers(1, 256, 20, np.uint8)
    changed = np.flatnonzero((noisy != clean).any(0))
    found = find_layout(tensors, [*noisy])
    expected = BASE.index_map()
    wrong = np.isin(expected, changed)
    assert np.array_equal(found.index_map(), np.where(wrong, -1, expected))
    assert np.array_equal(found.missing, np.argwhere(wrong))
    assert np.array_equal(found.layout.index_map(), expected)
    runs = [np.arange(run.offset, run.offset + run.size) for run in found.unexplained]
    assert np.array_equal(np.concatenate(runs), np.setdiff1d(changed, expected))
    assert not found.sure


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "change", [{"xor": 0x80}, {"add": 3}, {"xor": 0xFF}, {"xor": 0x55, "fill": 0x99}, {"add": 200}]
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_changed_elements(change: dict[str, int], dtype: str) -> None:
    layout = nc1hwc2((9, 10, 20), 8, dtype=dtype, **change)
    found = found_in(layout)
    check_found(layout, found)
    assert found.sure


@pytest.mark.parametrize(
    "stored",
    [
        {"big_endian": True},
        {"big_endian": True, "add": 0x8000},
        {"offset": 3, "size": 5000},
        {"row_pitch": 407},
    ],
)
def test_two_bytes_in_other_ways(stored: dict[str, Any]) -> None:
    layout = (hwc if "row_pitch" in stored else planar)((9, 10, 20), dtype="uint16", **stored)
    check_found(layout, found_in(layout))


@pytest.mark.parametrize("copies", [(2160,), (2160, 5160), (2200, 4400, 6600)])
def test_copies(copies: tuple[int, ...]) -> None:
    layout = replace(BASE, copies=copies, size=0)
    found = found_in(layout)
    check_found(layout, found)
    assert found.layout.copies == copies
    assert found.sure


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "layout",
    [
        only(planar((9, 10, 20), row_align=64), 2, 0, 1),
        only(planar((9, 10, 20), row_align=64), 0, 3, 7),
        only(hwc((9, 10, 20)), 1, 2, 3),
        only(planar((9, 10, 20), dtype="float16", row_align=64), 2, 0, 1),
    ],
)
def test_windows(layout: Layout) -> None:
    found = found_in(layout)
    check_found(layout, found)
    assert found.sure
    assert found.outside == layout.index_map().size - layout.elements
    assert f"{found.outside} are not in the buffer" in str(found)


def test_axes_backwards_and_interleaved() -> None:
    for layout in (
        Layout((8, 8), (Loop(0, 1, -8), Loop(1, 1, 1)), offset=56, size=64),
        Layout((8, 8), (Loop(0, 2, 16), Loop(0, 1, 8), Loop(1, 2, 1), Loop(1, 1, 4)), size=64),
    ):
        found = found_in(layout)
        check_found(layout, found)
        assert found.sure


def test_places_without_a_rule() -> None:
    table = Table(
        (9, 10, 20), np.random.default_rng(0).permutation(1900)[:1800].reshape(9, 10, 20), size=1900
    )
    found = found_in(table)
    assert isinstance(found.layout, Table)
    assert np.array_equal(found.index_map(), table.places)
    assert not found.sure
    tensor = random((9, 10, 20), "uint8")
    assert found.pack(tensor) == table.pack(tensor)
    assert np.array_equal(found.unpack(table.pack(tensor)), tensor)


@pytest.mark.parametrize(
    ("tensors", "buffers", "said"),
    [
        (
            [np.zeros(4, np.uint8)],
            [bytes(4), bytes(4)],
            r"^tensors, buffers: got 1 tensors and 2 buffers, allowed are one or more tensors and as many buffers$",
        ),
        ([], [], r"^tensors, buffers: got 0 tensors and 0 buffers, "),
        (
            [np.zeros(4, np.uint8), np.zeros(5, np.uint8)],
            [bytes(4)] * 2,
            r"^tensors\[1\]: got uint8 \(5,\), allowed is uint8 \(4,\), as the first tensor is$",
        ),
        (
            np.zeros(4, np.int64),
            bytes(4),
            r"^tensors\[0\]: got int64 \(4,\), allowed are 1 to 67108864 elements of uint8, ",
        ),
        (
            [np.zeros(4, np.uint8)] * 2,
            [bytes(4), bytes(5)],
            r"^buffers\[1\]: got 5 bytes, allowed is 4, as in the first buffer; a length that moves with the values says that the tensor is compressed",
        ),
        (np.zeros(4, np.uint8), b"", r"^buffers\[0\]: got 0 bytes, allowed is 1 to 2147483648$"),
        (
            np.zeros(4, np.uint8),
            ["abcd"],
            r"^buffers\[0\]: got str, allowed are bytes or uint8 of one axis$|^tensors, buffers: ",
        ),
        (
            np.arange(100, dtype=np.uint8),
            bytes(100),
            r"^buffers: got no nest of loops, and a place for [01] of 100 elements in 100 bytes, allowed are more elements than chance places, about 0; no planes of bits were found: got 1 buffers",
        ),
    ],
)
def test_pairs_refused(tensors: Any, buffers: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_layout(tensors, buffers)


def test_unrelated_buffers_are_refused() -> None:
    rng = np.random.default_rng(0)
    tensors = markers((9, 10, 20))
    with pytest.raises(
        ValueError,
        match=r"^buffers: got no nest of loops, and a place for \d+ of 1800 elements in 1800 bytes, allowed are more elements than chance places, about 49; no planes of bits were found: got 2 buffers besides those held back, allowed are 14 or more",
    ):
        find_layout(tensors, [rng.integers(0, 256, 1800, np.uint8) for _ in tensors])


@pytest.mark.parametrize(
    ("dtype", "signature"),
    [
        ("uint8", Signature(0, 1)),
        ("uint16", Signature(0, 2)),
        ("uint16", Signature(1, 2)),
        ("uint16", Signature(0, 1)),
        ("uint8", Signature(0, 1, 1, 3, 2)),
        ("float16", Signature(0, 2, 0, 2, 4)),
    ],
)
@pytest.mark.parametrize("captures", [1, 2, 7, 8])
def test_places_are_those_of_a_dictionary(dtype: str, signature: Signature, captures: int) -> None:
    """Sorted numbers against values looked up one by one; eight captures do not fit beside a place
    in 64 bits, and are mixed.
    """
    shape, size = (6, 7), np.dtype(dtype).itemsize
    raw = tuple(random(shape, f"u{size}", at) % 7 for at in range(captures))
    rng = np.random.default_rng(1)
    buffers = tuple(rng.permutation(one.astype(f"<u{size}").ravel()).view(np.uint8) for one in raw)
    if captures > 1:
        order = rng.permutation(42)
        buffers = tuple(one.astype(f"<u{size}").ravel()[order].view(np.uint8) for one in raw)
    stands: dict[bytes, list[int]] = defaultdict(list)
    for place in range(signature.first, len(buffers[0]), signature.step):
        bytes_of = place + signature.lag * np.arange(signature.count)[:, None] + np.arange(size)
        if bytes_of[-1, -1] < len(buffers[0]):
            stands[b"".join(buffer[bytes_of].tobytes() for buffer in buffers)].append(place)
    keys: dict[bytes, list[tuple[int, ...]]] = defaultdict(list)
    for index in np.ndindex(shape):
        line: list[Any] = [*index]
        line[signature.axis] = slice(index[signature.axis], index[signature.axis] + signature.count)
        values = [one[tuple(line)].astype(f"<u{size}") for one in raw]
        if len(values[0]) == signature.count:
            keys[b"".join(value.tobytes() for value in values)].append(index)
    seen = Sought(Pairs(raw, buffers, dtype), signature).look_up(Change())
    for key, indices in keys.items():
        places, alone = stands[key], len(indices) == 1
        for index in indices:
            if signature.count == 1:
                assert seen.count[index] == len(places)
                assert seen.shared[index] != alone
                assert seen.place[index] == [*places, -1][0]
            elif alone and len(places) == 1:
                assert seen.place[index] == places[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nc1hwc2((20, 30, 77), 32, row_pitch=1024),
        lambda: planar((20, 30, 77), row_align=64),
        lambda: kernel_groups((41, 3, 3, 70), 16, 32),
    ],
    ids=["tiles", "planes", "groups"],
)
def test_found_from_one_capture_of_sparse_weights(make: Callable[[], Layout]) -> None:
    """Four of five values are 0: runs of them stand in many places, and next to fill in wrong
    ones.
    """
    layout, rng = make(), np.random.default_rng(0)
    tensor = random(layout.shape, "uint8") * (rng.random(layout.shape) < 0.2).astype(np.uint8)
    found = found_in(layout, [tensor])
    assert np.array_equal(found.index_map(), layout.index_map())
    assert not found.sure
    assert not found.rivals


# Weights as they are, in one capture: values repeat, kernels are symmetric, all but the scale of
# them is alike


KERNELS = (20, 3, 3, 13)


def blur(shape: tuple[int, ...], seed: int) -> np.ndarray:
    scale = np.random.default_rng(seed).integers(-6, 7, (shape[0], 1, 1, shape[3]))
    return (128 + np.outer([1, 2, 1], [1, 2, 1])[None, :, :, None] * scale).astype(np.uint8)


def ternary(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(127, 130, shape, np.uint8)


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(128, 6, shape).round().astype(np.uint8)


def symmetric(shape: tuple[int, ...], seed: int) -> np.ndarray:
    half = normal(shape, seed) // 2
    return half + half.swapaxes(1, 2)


WEIGHTS = {"blur": blur, "ternary": ternary, "normal": normal, "symmetric": symmetric}
STORED: dict[str, Callable[..., Layout]] = {
    "hwc": partial(hwc, KERNELS),
    "groups": partial(kernel_groups, KERNELS, 16, 8, align=64),
    "groups of whole channels": partial(kernel_groups, KERNELS, 16, 16, offset=16),
    "tiles": partial(nc1hwc2, KERNELS, 8),
    "tiles after 64": partial(nc1hwc2, KERNELS, 8, offset=64),
    "tiles after 16": partial(nc1hwc2, (24, 3, 3, 12), 8, offset=16),
    "planes": partial(planar, KERNELS, row_align=8, plane_align=64),
    "planes of one": partial(planar, (17, 1, 1, 30), plane_align=64, offset=16),
}


def check_weights(layout: Layout, tensor: np.ndarray, swapped: bool) -> None:
    """Found with every element and byte explained, sure of nothing; the same with rows for columns
    where these are
    alike, and no other."""
    found = found_in(layout, [tensor])
    check_found(layout, found)
    assert (len(found.missing), found.unexplained, found.sure) == (0, (), False), str(found)
    assert found.layout.size == layout.size
    expected = layout.index_map().swapaxes(1, 2)
    assert [one.index_map().tolist() for one in found.rivals] == (
        [expected.tolist()] if swapped else []
    ), str(found)
    assert ("\n1 other layout agrees as well: " in str(found)) == swapped


# each way of storing once in every run, with other weights
USUAL = set(zip(STORED, [*WEIGHTS, *WEIGHTS], strict=True)) | {
    ("tiles", "blur"),
    ("groups", "symmetric"),
    ("planes of one", "normal"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("stored", "weights", "seeds"),
    [
        pytest.param(
            stored,
            weights,
            seeds,
            marks=() if (stored, weights) in USUAL and len(seeds) == 1 else pytest.mark.long,
        )
        for stored, weights, seeds in product(STORED, WEIGHTS, (range(1), range(1, 20)))
        # kernels of one element are all symmetric
        if stored != "planes of one" or weights in ("ternary", "normal")
    ],
)
def test_found_from_one_capture_of_weights(stored: str, weights: str, seeds: range) -> None:
    for seed in seeds:
        layout = STORED[stored](fill=(128, 0)[seed % 2])
        check_weights(
            layout, WEIGHTS[weights](layout.shape, seed), weights in ("blur", "symmetric")
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("stored", "weights", "seed"),
    [("hwc", "blur", 3), ("groups", "symmetric", 16), ("planes", "symmetric", 2)],
)
def test_of_layouts_that_agree_alike_the_plainest_is_found(
    stored: str, weights: str, seed: int
) -> None:
    """Though neighbours suggest columns before rows, or a nest that a few elements are in."""
    layout = STORED[stored](fill=(128, 0)[seed % 2])
    check_weights(layout, WEIGHTS[weights](layout.shape, seed), True)


def test_a_change_of_few_values() -> None:
    """Three values say hardly anything about what was added to them."""
    layout = nc1hwc2(KERNELS, 8, dtype="int8", add=128, fill=128)
    check_weights(layout, (ternary(KERNELS, 0) ^ 128).view(np.int8), False)


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 300), marks=pytest.mark.long)])
def test_small_buffers_hold_no_longer_layouts(seeds: range) -> None:
    layout = nc1hwc2((4, 3, 4), 2)
    for seed in seeds:
        found = found_in(layout, [random((4, 3, 4), "uint8", seed) % 4])
        assert found.layout.size == layout.size
        assert (len(found.missing), found.unexplained, found.sure) == (0, (), False)
        assert any(
            np.array_equal(one.index_map(), layout.index_map())
            for one in (found.layout, *found.rivals)
        )


def test_a_buffer_cut_off_is_no_longer_layout() -> None:
    """That what is missing came after the end is for markers to say."""
    tensor = random(BASE.shape, "uint8")
    with pytest.raises(
        ValueError,
        match=r"^buffers: got no nest of loops, and a place for \d+ of 1800 elements in 1000 bytes",
    ):
        find_layout(tensor, BASE.pack(tensor)[:1000])
    found = find_layout(tensor, hwc(BASE.shape).pack(tensor)[:1000])
    assert (found.layout.size, found.outside, found.sure) == (1000, 800, False)


def test_rivals_explain_as_many_bytes() -> None:
    """Equal rows may be read in steps that leave bytes between them, which the plain order has
    no need for.
    """
    tensor = np.tile(np.arange(1, 9, dtype=np.uint8), (4, 3, 1))
    layout = hwc((4, 3, 8), size=200, fill=9)
    found = found_in(layout, [tensor])
    assert np.array_equal(found.index_map(), layout.index_map())
    assert not found.unexplained
    assert found.rivals
    for one in found.rivals:
        assert one.pack(tensor) == layout.pack(tensor)


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 3000), marks=pytest.mark.long)])
def test_what_is_claimed_is_there(seeds: range) -> None:
    """Of buffers that are random, cut, doubled or empty either ValueError, or every element
    stands where it is said to.
    """
    outcomes: set[Any] = set()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rank, kind = int(rng.integers(1, 5)), seed % 5
        shape = tuple(int(n) for n in rng.integers(1, (300, 30, 12, 6)[rank - 1] + 1, rank))
        dtype = str(rng.choice(["uint8", "int8", "uint16", "float16", "int32", "float32"]))
        tensors = [
            random(shape, dtype, seed + at) if kind else np.zeros(shape, dtype)
            for at in range(int(rng.integers(1, 4)))
        ]
        size = max(tensors[0].nbytes + int(rng.integers(-20, 200)), tensors[0].itemsize)
        start = int(rng.integers(0, size))
        buffers = [
            {
                0: b"",
                1: rng.bytes(size),
                2: one.tobytes()[start:],
                3: one.tobytes() * 2,
                4: one.tobytes() + rng.bytes(size),
            }[kind]
            for one in tensors
        ]
        buffers = [(one + bytes(size))[:size] for one in buffers]
        try:
            found = find_layout(tensors, buffers)
        except ValueError as error:
            outcomes.add(str(error).split(" of loops, ")[0])
            continue
        outcomes.add(found.sure or type(found.layout))
        places = found.index_map()
        assert found.own + found.shared == np.count_nonzero(places >= 0)
        for tensor, buffer in zip(tensors, buffers, strict=True):
            stored = found.layout.stored(tensor)[places >= 0]
            order = stored.astype(
                stored.dtype.newbyteorder(">" if found.layout.big_endian else "<")
            )
            for at, expected in enumerate(order.view(np.uint8).reshape(-1, stored.itemsize).T):
                assert np.array_equal(
                    np.frombuffer(buffer, np.uint8)[places[places >= 0] + at], expected
                ), seed
            if found.sure:
                assert found.pack(tensor) == buffer, f"{seed}: {found}"
    assert outcomes == {"buffers: got no nest", True, Layout, Table}


def test_elements_below_a_byte_are_checked() -> None:
    layout = Layout((3,), (Loop(0, 1, 1),), dtype="int4")
    assert layout.unpack(layout.pack(np.int8([-8, 7, 3]))).tolist() == [-8, 7, 3]
    for wrong in (8, -9):
        with pytest.raises(ValueError, match=rf"^tensor: got {wrong}, allowed are values of int4$"):
            layout.pack(np.int8([0, wrong, 0]))
    with pytest.raises(ValueError, match=r"^tensor: got uint8 \(3,\), allowed is int8 \(3,\)$"):
        layout.pack(np.zeros(3, np.uint8))


@pytest.mark.parametrize(
    ("offset", "stride", "whole"),
    [(0, 2, True), (2, 2, True), (2, 4, True), (1, 2, False), (0, 3, False), (3, 4, False)],
)
def test_swapped_words_hold_whole_elements(offset: int, stride: int, whole: bool) -> None:
    def made() -> Layout:
        return Layout((2,), (Loop(0, 1, stride),), dtype="uint16", offset=offset, swap=4)

    if whole:
        assert made().unpack(made().pack(np.uint16([1, 0x203]))).tolist() == [1, 0x203]
    else:
        with pytest.raises(
            ValueError, match=r"^swap: got an offset or a stride that is not a multiple of 2 bytes"
        ):
            made()


def test_axes_of_one_index_are_last_among_equal_strides() -> None:
    assert [loop.axis for loop in strides_layout((1, 3), (3, 3)).loops] == [1, 0]
    assert [loop.axis for loop in strides_layout((3, 1), (3, 3)).loops] == [0, 1]


def test_ends_of_a_tile_are_tried_nearby() -> None:
    """A tile of six indices, 2 bytes apart; the next tile is 100 bytes further.  Axes with other
    tiles have none.
    """
    steps = [AxisDigit(1, 1, 1), AxisDigit(0, 6, 100), AxisDigit(0, 1, 2)]
    near = {
        one[1].tile: one[1].stride
        for one in _near(steps)
        if [*one[:1], *one[2:]] == [*steps[:1], *steps[2:]]
    }
    assert near == {tile: 100 + 2 * (tile - 6) for tile in (3, 4, 5, 7, 8, 9)}
    assert len([*_near(steps)]) == 6
    assert [one[0].tile for one in _near([AxisDigit(0, 3, 9), AxisDigit(0, 1, 1)])] == [4, 2, 5, 6]
    assert not [*_near([AxisDigit(0, 1, 1)])]
    assert not [*_near([AxisDigit(0, 12, 200), AxisDigit(0, 6, 100), AxisDigit(0, 1, 2)])]


def test_candidates_have_every_order_and_every_two_tiles() -> None:
    """An axis or two in tiles, the indices within them innermost, in either order, whatever the
    order of the tiles.
    """
    shape = (5, 20, 6)
    found = {
        tuple((loop.axis, loop.tile) for loop in layout.loops)
        for layout, _ in candidates(shape, 4096)
    }
    assert {tuple((axis, 1) for axis in order) for order in permutations(range(3))} <= found
    tiles = {axis: [tile for tile in TILES if tile < n] for axis, n in enumerate(shape)}
    for order in permutations(range(3)):
        for axis, tile in ((one, tile) for one in order for tile in tiles[one]):
            nest = [(one, tile if one == axis else 1) for one in order]
            assert (*nest, (axis, 1)) in found
            assert order[-1] == axis or (*nest[:-1], (axis, 1), nest[-1]) in found
    for a, b in permutations(range(3), 2):
        (rest,) = {0, 1, 2} - {a, b}
        for wide, high in product(tiles[a], tiles[b]):
            assert {
                ((a, wide), (b, high), (rest, 1), (a, 1), (b, 1)),
                ((a, wide), (b, high), (rest, 1), (b, 1), (a, 1)),
            } <= found


@pytest.mark.parametrize("size", [120, 121, 128, 4096])
def test_candidates_begin_and_end_with_the_buffer_or_behind_a_header(size: int) -> None:
    for layout, offsets in candidates((2, 3, 20), size):
        room = size - layout.size
        assert {0, room} <= set(offsets) == set(offsets) & set(range(room + 1))
        assert set(offsets) >= {header for header in HEADERS if header <= room}
        assert len(set(offsets)) == len(offsets)
        assert len(np.unique(layout.index_map())) == 120
