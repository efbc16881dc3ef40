"""Layouts with lists of bases, joint axes, starts inside a tile, swapped words and elements below 8
bits, against each
element placed one by one; found in whole memories, from markers and from weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

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
    markers,
    nc1hwc2,
    packed_blocks,
)
from npulab.layout.stored import BITS, held_as

TYPES = ("uint1", "uint2", "int2", "uint4", "int4", "uint8", "int8", "uint16")
MEMORY = 64 * 6912  # bytes of 64 kernel memories
HOLES = tuple(6912 * processor for processor in (0, 1, 2, 5, 16, 17, 30, 32, 48, 63))


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 2 ** BITS[dtype], shape)
    if dtype.startswith("int"):
        values -= 2 ** (BITS[dtype] - 1)
    return values.astype(held_as(dtype))


def slow_place(layout: Layout, index: tuple[int, ...]) -> int:
    """Before words are swapped: by each loop in turn."""
    left = [n - first for n, (first, _) in zip(index, layout.window, strict=True)]
    for first, *others in layout.join:
        for axis in others:
            left[first] = left[first] * layout.extents[axis] + left[axis]
            left[axis] = 0
    left = [n + start for n, start in zip(left, layout.starts, strict=True)]
    place = layout.offset
    for loop in layout.loops:
        block, left[loop.axis] = divmod(left[loop.axis], loop.tile)
        place += int(loop.reach(block))
    return place


def slow_pack(layout: Layout, tensor: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The buffer bit by bit, and where each element lies in it: its first byte, or the number of
    its bits' run.
    """
    bits = BITS[layout.dtype]
    whole, places = 0, np.full(layout.shape, -1)
    for index in product(*(range(*ends) for ends in layout.window)):
        first = slow_place(layout, index) * min(bits, 8)
        if bits < 8 and layout.big_endian:
            first = first // 8 * 8 + (8 - bits) - first % 8
        value = (int(tensor[index]) % 2**bits) ^ layout.xor
        if bits > 8 and layout.big_endian:
            value = value % 256 * 256 + value // 256
        whole |= value << first
        byte, within = divmod(first, 8)
        if layout.swap:
            word = byte // layout.swap * layout.swap
            byte = 2 * word + layout.swap - byte - max(bits // 8, 1)
        places[index] = (8 * byte + within) // min(bits, 8)
    data = whole.to_bytes(layout.size, "little")
    step = layout.swap or 1
    return b"".join(data[at : at + step][::-1] for at in range(0, layout.size, step)), places


def random_layout(seed: int) -> Layout:
    """Up to four axes, two of them joined or in a window, that begin inside of tiles, with strides
    or lists of bytes in any direction."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 7, int(rng.integers(2, 5))).tolist())
    dtype = str(rng.choice(TYPES))
    starts, window = rng.integers(0, 4, len(shape)).tolist(), [(0, n) for n in shape]
    axes = rng.permutation(len(shape)).tolist()
    for axis in axes[rng.integers(0, len(shape)) :]:
        first = int(rng.integers(0, shape[axis]))
        window[axis] = first, int(rng.integers(first, shape[axis])) + 1
    lengths = [stop - first for first, stop in window]
    join: tuple[tuple[int, ...], ...] = ()
    if rng.random() < 0.5:
        first, second = axes[:2]
        join = ((first, second),)
        lengths[first] *= lengths[second]
        starts[second] = 0
        axes.remove(second)
    loops: list[Loop] = []
    itemsize = max(BITS[dtype] // 8, 1)
    step = itemsize
    for axis in axes:
        tiles = [*sorted({1, *rng.integers(1, 6, 2).tolist()}), lengths[axis] + starts[axis]]
        for tile, wide in pairwise(tiles):
            count = -(-wide // tile)
            stride: Any = step * int(rng.choice([1, 1, -1]))
            if rng.random() < 0.2:
                stride = tuple((step * rng.permutation(count + 2)[:count]).tolist())
                count += 2
            loops.insert(0, Loop(axis, tile, stride))
            step *= count
    return Layout(
        shape,
        tuple(loops),
        dtype=dtype,
        offset=step,
        size=-(-(2 * step * min(BITS[dtype], 8) // 8 + 1) // 16) * 16,
        starts=tuple(starts),
        window=tuple(window),
        join=join,
        swap=int(rng.choice([0, 0, 2, 4, 8, 16])),
        xor=int(rng.integers(0, 2)),
        big_endian=BITS[dtype] != 8 and bool(rng.integers(2)),
    )


@pytest.mark.parametrize(
    "seeds", [range(200), pytest.param(range(200, 5000), marks=pytest.mark.long)]
)
def test_every_element_lies_where_each_loop_in_turn_puts_it(seeds: range) -> None:
    kinds = set()
    for seed in seeds:
        layout = random_layout(seed)
        tensor = np.zeros(layout.shape, held_as(layout.dtype))
        tensor[layout.inside] = random(layout.extents, layout.dtype, seed)
        data, places = slow_pack(layout, tensor)
        assert layout.pack(tensor) == data, f"{seed}: {layout!r}"
        assert np.array_equal(layout.index_map(), places), f"{seed}: {layout!r}"
        index = np.argwhere(places >= 0).T
        assert np.array_equal(layout.at(*index), places[tuple(index)])
        again = layout.unpack(data)
        assert again.dtype == tensor.dtype
        assert np.array_equal(again, tensor)
        assert layout.recode(data) == data
        assert eval(repr(layout)) == layout
        table = Table(
            layout.shape,
            places,
            dtype=layout.dtype,
            size=layout.size,
            xor=layout.xor,
            big_endian=layout.itemsize > 1 and bool(layout.swap) != layout.big_endian,
        )
        assert table.pack(tensor) == data
        assert np.array_equal(table.unpack(data), tensor)
        kinds |= {
            ("swap", layout.swap),
            ("join", bool(layout.join)),
            ("starts", any(layout.starts)),
            ("window", layout.extents != layout.shape),
            layout.dtype,
            ("bases", any(isinstance(loop.stride, tuple) for loop in layout.loops)),
        }
    assert len(kinds) == 5 + 4 * 2 + len(TYPES)


def test_sums_of_elements_below_8_bits() -> None:
    matrix = random((5, 3), "int4")
    layout = packed_blocks((5, 3), 4, 2, dtype="int4", sums=True, fill=0xE)
    buffer = layout.pack(matrix)
    padded = np.full((8, 4), -2)
    padded[:5, :3] = matrix
    assert np.frombuffer(buffer, "<i4", 4, 16).tolist() == padded.sum(0).tolist()
    assert np.array_equal(layout.unpack(buffer), matrix)


@pytest.mark.parametrize(
    ("dtype", "swap"),
    [*product(["int8", "uint16", "int4", "float16"], [0, 4]), ("uint8", 8)],
)
def test_items_account_for_every_bit(dtype: str, swap: int) -> None:
    layout = nc1hwc2(
        (3, 4, 5),
        4,
        dtype=dtype,
        fill=9,
        swap=swap,
        size=424,
        offset=8,
        copies=(200,),
    )
    if dtype == "float16":
        tensor = random((3, 4, 5), "uint16").view(np.float16)
        values = tensor.view(np.uint16)
    else:
        layout = replace(layout, parts=(Constant(0, b"\x07\x08"), Sums(400, 2, 5)))
        values = tensor = random((3, 4, 5), dtype)
    data = layout.pack(tensor)
    items = layout.items(data, row=0, column=1, channel=2)
    end = 0
    for item in items:
        assert item.bit == end
        end += item.bits
    assert end == 8 * len(data)
    seen = [item for item in items if item.kind == "weight"]
    assert len(seen) == 2 * tensor.size
    places = layout.index_map()
    for item in seen:
        index = (item.row, item.column, item.channel)
        assert item.value == values[index]
        step = min(layout.bits, 8)
        assert item.bit in (places[index] * step, (places[index] + 200) * step)
    kinds = {"weight", "fill"}
    if layout.parts:
        kinds |= {"constant", "sum"}
    assert {item.kind for item in items} == kinds
    assert {item.value for item in items if item.kind == "fill"} == {9}
    broken = bytearray(data)
    broken[3 ^ max(swap - 1, 0)] ^= 0x55
    assert "other" in {item.kind for item in layout.items(broken)}
    assert layout.recode(broken) == data


# Found in whole memories


def weights(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).normal(0, 20, shape).round(), -128, 127).astype(
        np.int8
    )


CONVOLUTION = Layout(
    (60, 3, 3, 60),
    (Loop(3, 1, 6912), Loop(0, 1, 9), Loop(1, 1, 3), Loop(2, 1, 1)),
    dtype="int8",
    size=MEMORY,
)
JOINT = Layout(
    (12, 30, 64),
    (Loop(2, 1, 6912), Loop(0, 9, 9), Loop(0, 1, -1)),
    dtype="int8",
    offset=8,
    size=MEMORY,
    join=((0, 1),),
)
LISTED = Layout(
    (48, 3, 3, 10),
    (Loop(3, 1, HOLES), Loop(0, 1, 9), Loop(1, 1, 3), Loop(2, 1, 1)),
    dtype="int8",
    size=MEMORY,
)
NIBBLES = Layout(
    (48, 3, 3, 64),
    (Loop(3, 1, 13824), Loop(0, 1, 9), Loop(1, 1, 3), Loop(2, 1, 1)),
    dtype="int4",
    size=MEMORY,
)
MEMORIES = {
    "convolution": CONVOLUTION,
    "words swapped": replace(CONVOLUTION, swap=4),
    "tiles of two axes": JOINT,
    "tiles of two axes, begun inside, words swapped": replace(JOINT, starts=(4, 0, 0), swap=4),
    "one axis with taps": Layout(
        (48, 3, 64),
        (Loop(2, 1, 6912), Loop(0, 3, 9), Loop(0, 1, -3), Loop(1, 1, 1)),
        dtype="int8",
        offset=6,
        size=MEMORY,
    ),
    "holes": LISTED,
    "holes, words swapped": replace(LISTED, swap=4),
    "packed nibbles": NIBBLES,
    "packed nibbles, the first high": replace(NIBBLES, big_endian=True),
    "packed nibbles, words swapped": replace(NIBBLES, swap=4),
    "tiles of two axes under holes": Layout(
        (12, 30, 10),
        (Loop(2, 1, HOLES), Loop(1, 9, 9), Loop(1, 1, -1)),
        dtype="int8",
        offset=8,
        size=MEMORY,
        join=((1, 0),),
    ),
    "tiles of three axes": Layout(
        (6, 3, 3, 10),
        (Loop(3, 1, 6912), Loop(0, 7, 8), Loop(0, 1, 1)),
        dtype="int8",
        size=MEMORY,
        join=((0, 1, 2),),
    ),
    "tiles of three axes under holes": Layout(
        (48, 3, 3, 10),
        (Loop(3, 1, HOLES), Loop(0, 16, 20), Loop(0, 1, -1)),
        dtype="int8",
        offset=16,
        size=MEMORY,
        join=((0, 1, 2),),
    ),
    "holes along two axes": Layout(
        (48, 3, 3, 10),
        (
            Loop(3, 1, HOLES),
            Loop(0, 1, tuple(9 * n + 3 * (n // 4) for n in range(48))),
            Loop(1, 1, 3),
            Loop(2, 1, 1),
        ),
        dtype="int8",
        size=MEMORY,
    ),
    "halves in swapped words": hwc((20, 9, 30), dtype="uint16", offset=64, size=65536, swap=8),
}


def check_found(found: Found, layout: Layout) -> None:
    assert np.array_equal(found.index_map(), layout.index_map()), str(found)
    assert isinstance(found.layout, Layout), str(found)
    tensor = random(layout.shape, layout.dtype, 9)
    assert found.pack(tensor) == layout.pack(tensor), str(found)
    assert not found.unexplained


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", MEMORIES.values(), ids=MEMORIES)
def test_found_from_markers(layout: Layout) -> None:
    tensors = markers(layout.shape, layout.dtype)
    found = find_layout(tensors, [layout.pack(tensor) for tensor in tensors], dtype=layout.dtype)
    check_found(found, layout)
    assert found.sure, str(found)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    [
        "convolution",
        "words swapped",
        "tiles of two axes",
        "one axis with taps",
        "holes",
        "packed nibbles",
        "tiles of two axes under holes",
        "tiles of three axes",
        "tiles of three axes under holes",
        "holes along two axes",
    ],
)
def test_found_from_weights(name: str) -> None:
    layout = MEMORIES[name]
    tensor = (
        weights(layout.shape)
        if layout.dtype == "int8"
        else np.clip(weights(layout.shape) // 5, -8, 7)
    )
    found = find_layout(tensor, layout.pack(tensor), dtype=layout.dtype)
    check_found(found, layout)
    assert not found.sure
    assert not found.rivals


def test_found_among_other_weights() -> None:
    """A memory of which half is the weights of other layers."""
    tensor = weights(CONVOLUTION.shape)
    memory = np.concatenate(
        [
            np.frombuffer(CONVOLUTION.pack(tensor), np.uint8),
            weights((MEMORY,), 1).view(np.uint8),
        ]
    )
    found = find_layout(tensor, memory)
    assert np.array_equal(found.index_map(), CONVOLUTION.index_map())
    assert len(found.missing) == 0


def test_what_is_not_explained_is_named_as_recorded() -> None:
    layout = Layout((6, 3, 3, 60), CONVOLUTION.loops, dtype="int8", size=MEMORY, swap=4)
    tensors = markers(layout.shape, "int8")
    buffers = [bytearray(layout.pack(tensor)) for tensor in tensors]
    for at, buffer in enumerate(buffers):
        buffer[100_001] = 17 + at
    found = find_layout(tensors, buffers)
    assert [(run.offset, run.size, run.start) for run in found.unexplained] == [
        (100_001, 1, b"\x11")
    ]
    assert np.array_equal(found.index_map(), layout.index_map())


def test_random_places_along_an_axis_are_no_list_of_bases() -> None:
    """A list as long as the tensor says nothing that a table does not."""
    places = np.random.default_rng(0).permutation(4000)[:2000]
    table = Table((2000,), places, size=4000)
    tensors = markers((2000,))
    found = find_layout(tensors, [table.pack(tensor) for tensor in tensors])
    assert isinstance(found.layout, Table)
    assert np.array_equal(found.index_map(), places)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "tensors",
    [[weights((60, 3, 3, 20))], markers((60, 3, 3, 20), "int8")],
    ids=["weights", "markers"],
)
def test_unrelated_memories_are_refused(tensors: list[np.ndarray]) -> None:
    memories = [
        np.random.default_rng(at).integers(0, 256, MEMORY // 8, np.uint8)
        for at in range(len(tensors))
    ]
    with pytest.raises(
        ValueError,
        match=r"^buffers: got no nest of loops, and a place for \d+ of 10800 elements",
    ):
        find_layout(tensors, memories)


def test_axes_that_loops_reach_one_by_one_are_not_joined() -> None:
    """Rows and columns without gaps, in kernels that are symmetric: the plain order."""
    half = np.random.default_rng(3).normal(0, 12, (20, 3, 3, 13))
    tensor = (128 + half + half.transpose(0, 2, 1, 3)).clip(0, 255).astype(np.uint8)
    found = find_layout(tensor, tensor.tobytes())
    assert isinstance(found.layout, Layout)
    assert found.layout.join == ()
    assert {found.layout.name, *(rival.name for rival in found.rivals)} == {"OHWI", "OWHI"}
