"""Layouts that values do not tell apart, and how nests are checked, said and written, against
plain definitions.
"""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from npulab.layout import Layout, Loop, Table, hwc, nest as nests
from npulab.layout.candidates import candidates
from npulab.layout.conventions import convert_axes, dense_weights
from npulab.layout.formats import (
    format_layout,
    format_strides,
    is_format,
    memory_format,
    strides_layout,
)

ROUND = (4, 8, 16, 32, 64, 128, 256)


def kinds(
    shape: tuple[int, ...], size: int, **stored: Any
) -> list[tuple[tuple[tuple[int, int, Any], ...], list[int]]]:
    return [
        (tuple((one.axis, one.tile, one.stride) for one in layout.loops), offsets)
        for layout, offsets in candidates(shape, size, **stored)
    ]


def up(n: int, align: int) -> int:
    return -(-n // align) * align


def test_candidates_of_one_axis_in_their_order() -> None:
    """Plain, each element rounded up, what fills the buffer; then tiles completed or short,
    which here are the same places.
    """
    found = kinds((5,), 100)
    plain = [nest for nest, _ in found if len(nest) == 1]
    # a step of 32 or more would put the last element behind the end
    assert plain[:5] == [((0, 1, 1),), ((0, 1, 4),), ((0, 1, 8),), ((0, 1, 16),), ((0, 1, 20),)]
    assert [nest for nest, _ in found[len(plain) :]] == [
        ((0, 2, 2), (0, 1, 1)),
        ((0, 2, None), (0, 1, None)),
        ((0, 4, 4), (0, 1, 1)),
        ((0, 4, None), (0, 1, None)),
    ]
    # the start, the end (with the last tile completed, with the last element), headers with room
    assert dict(found)[((0, 1, 1),)] == [0, 95, 4, 8, 16, 32, 64]
    assert dict(found)[((0, 1, 16),)] == [0, 20, 35, 4, 8, 16, 32]
    assert dict(found)[((0, 2, 2), (0, 1, 1))] == [0, 94, 95, 4, 8, 16, 32, 64]
    assert dict(found)[((0, 2, None), (0, 1, None))] == [0, 95, 4, 8, 16, 32, 64]


def test_candidates_fit_their_buffer() -> None:
    for size, wide in ((65, 16), (64, 8), (33, 8), (32, 4), (17, 4), (16, 1), (5, 1)):
        steps = [nest[0][2] for nest, _ in kinds((5,), size) if len(nest) == 1]
        assert max(step for step in steps if step in (1, *ROUND)) == wide, size
        assert (size // 5 in steps) == (size % 5 == 0 or size // 5 in (1, *ROUND))
    assert not kinds((5,), 4)
    assert {tuple(offsets) for _, offsets in kinds((5,), 5)} == {(0,)}
    assert kinds((5,), 9)[0] == (((0, 1, 1),), [0, 4])
    assert kinds((5,), 13)[0] == (((0, 1, 1),), [0, 8, 4])
    assert kinds((1,), 3) == [((), [0, 2])]
    assert kinds((1, 1), 4, dtype="uint16") == [((), [0, 2])]
    assert kinds((3,), 11, dtype="uint16")[0] == (((0, 1, 2),), [0, 5, 4])


def test_candidates_of_rows() -> None:
    """Rows and elements of rows with gaps: a step rounded up, two of them, and what fills the
    buffer.
    """
    shape, size = (3, 5), 120
    found = [nest for nest, _ in kinds(shape, size) if len(nest) == 2]
    expected: set[tuple[tuple[int, int, int], ...]] = set()
    for outer, inner in permutations(range(2)):
        n = shape[inner]
        for step, pitch in product((1, *ROUND), (1, *ROUND, 40, 24)):
            fills = 120 // shape[outer]
            if pitch in (40, 24) and pitch != fills:
                continue
            row = up(n * step, pitch)
            nest = ((outer, 1, row), (inner, 1, step))
            if row * (shape[outer] - 1) + step * (n - 1) < size and (
                pitch in (1, fills) or step == 1 or pitch > step
            ):
                expected.add(nest)
        # each element in its share of the buffer
        if size % 15 == 0:
            expected.add(((outer, 1, n * 8), (inner, 1, 8)))
    got = set(found)
    assert len(found) == len(got)
    assert got <= expected
    assert {
        ((0, 1, 5), (1, 1, 1)),
        ((1, 1, 3), (0, 1, 1)),
        ((0, 1, 8), (1, 1, 1)),
        ((0, 1, 40), (1, 1, 1)),
        ((1, 1, 24), (0, 1, 1)),
        ((0, 1, 40), (1, 1, 8)),
        ((0, 1, 20), (1, 1, 4)),
        ((0, 1, 32), (1, 1, 4)),
        ((0, 1, 40), (1, 1, 4)),
        ((1, 1, 16), (0, 1, 4)),
    } <= got
    # the two orders without gaps come first
    assert found[:2] == [((0, 1, 5), (1, 1, 1)), ((1, 1, 3), (0, 1, 1))]
    # with gaps after elements and rows as well, only what ends in the buffer with its last row
    # completed
    two = [nest for nest in got if nest[1][2] > 1 and nest[0][2] != nest[1][2] * shape[nest[1][0]]]
    assert two
    assert all(nest[0][2] * shape[nest[0][0]] <= size for nest in two)


@pytest.mark.parametrize(("rank", "orders"), [(2, 2), (3, 6), (4, 24), (5, 2)])
def test_orders_of_up_to_four_axes_are_all_tried(rank: int, orders: int) -> None:
    shape = (2,) * rank
    nests = [
        tuple(axis for axis, _, _ in nest) for nest, _ in kinds(shape, 2**rank) if len(nest) == rank
    ]
    found = [*dict.fromkeys(nests)]
    assert found == (
        list(permutations(range(rank)))
        if orders > 2 or rank == 2
        else [tuple(range(rank)), tuple(range(rank))[::-1]]
    )
    # axes of one index are none
    some = (2, 1, 2, 1, 2)
    assert {
        tuple(axis for axis, _, _ in nest) for nest, _ in kinds(some, 8) if len(nest) == 3
    } == set(permutations((0, 2, 4)))


def test_candidates_of_tiles_are_completed_or_short() -> None:
    shape = (3, 5)
    found = kinds(shape, 4096)
    for nest, offsets in found:
        tiles = [tile for _, tile, _ in nest if tile > 1]
        if not tiles:
            continue
        assert all(tile in (2, 4) and tile < shape[axis] for axis, tile, _ in nest if tile > 1)
        packed = {stride is None for _, _, stride in nest}
        assert len(packed) == 1
        if packed == {False}:
            step = 1
            whole = list(shape)
            for at in reversed(range(len(nest))):
                axis, tile, stride = nest[at]
                assert stride == step
                outer = next(
                    (wide for other, wide, _ in reversed(nest[:at]) if other == axis), whole[axis]
                )
                step *= math.ceil(outer / tile)
            assert offsets[1] == 4096 - step
        else:
            assert offsets[1] == 4096 - 15


# Nests


def slow_places(layout: Layout) -> dict[tuple[int, ...], int]:
    """Places by the definition: short blocks are counted element by element where a loop has no
    stride.
    """
    extents = layout.extents

    def walk(depth: int, left: tuple[range, ...]) -> list[tuple[tuple[int, ...], int]]:
        if depth == len(layout.loops):
            return [(tuple(one[0] for one in left), 0)]
        loop, out, behind = layout.loops[depth], [], 0
        mine = left[loop.axis]
        for block in range(math.ceil(len(mine) / loop.tile)):
            part = mine[block * loop.tile : (block + 1) * loop.tile]
            inner = walk(depth + 1, (*left[: loop.axis], part, *left[loop.axis + 1 :]))
            at = (
                behind
                if loop.stride is None
                else loop.stride[block]
                if isinstance(loop.stride, tuple)
                else block * loop.stride
            )
            out += [(index, place + at) for index, place in inner]
            behind += layout.itemsize * len(inner)
        return out

    return {
        tuple(i + start for i, (start, _) in zip(index, layout.window, strict=True)): layout.offset
        + place
        for index, place in walk(0, tuple(range(n) for n in extents))
    }


NESTS = [
    Layout((5, 7), (Loop(0, 2), Loop(1, 3), Loop(0), Loop(1))),
    Layout(
        (5, 7), (Loop(0, 4), Loop(1, 3), Loop(0, 2), Loop(1), Loop(0)), dtype="uint16", offset=3
    ),
    Layout((5, 7), (Loop(1, 3, 100), Loop(0, 2), Loop(0), Loop(1))),
    Layout(
        (5, 7), (Loop(1, 3, (0, 200, 100)), Loop(0, 2), Loop(0), Loop(1)), window=((1, 5), (0, 7))
    ),
    Layout(
        (5, 7),
        (Loop(0, 3, 60), Loop(1, 1, 6), Loop(0, 1, 2)),
        dtype="uint16",
        window=((1, 5), (2, 7)),
        offset=8,
    ),
    Layout(
        (3, 4, 5),
        (Loop(2, 2), Loop(0), Loop(1, 3), Loop(1), Loop(2)),
        window=((0, 3), (0, 4), (1, 4)),
    ),
    Layout((9,), (Loop(0, 4, -4), Loop(0, 1, 1)), offset=8),
    Layout((9,), (Loop(0, 1, (3, 50, 9, 8, 7, 6, 5, 4, 11)),)),
    Layout((1, 1), ()),
    Layout((30, 60), (Loop(0, 7), Loop(1, 11), Loop(0), Loop(1))),
    Layout((3, 700), (Loop(0, 2), Loop(1, 64), Loop(0), Loop(1)), dtype="uint16"),
]


@pytest.mark.parametrize("layout", NESTS, ids=range(len(NESTS)))
def test_places_of_nests_by_their_definition(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, and a few elements at a time, as those of large tensors."""
    expected = np.full(layout.shape, -1)
    slow = slow_places(layout)
    expected[tuple(np.array([*slow]).T)] = [*slow.values()]
    for slab in (nests.SLAB, 16, 100):
        monkeypatch.setattr(nests, "SLAB", slab)
        assert np.array_equal(layout.index_map(), expected)
    assert layout.size == expected.max() + layout.itemsize
    some = list(slow)[:: max(len(slow) // 300, 1)]
    assert [int(layout.at(*one)) for one in some] == [slow[one] for one in some]
    assert layout.elements == len(slow)
    tensor = np.random.default_rng(0).integers(1, 256, layout.shape).astype(layout.dtype)
    buffer = np.zeros(layout.size, np.uint8)
    inside = expected >= 0
    for byte in range(layout.itemsize):
        buffer[expected[inside] + byte] = tensor[inside] >> (8 * byte) & 255
    assert layout.pack(tensor) == buffer.tobytes()
    assert np.array_equal(layout.unpack(buffer), np.where(inside, tensor, 0))


def test_joined_axes_are_one() -> None:
    layout = Layout(
        (3, 4, 5), (Loop(1, 1, 100), Loop(2, 7, 30), Loop(2, 1, 2)), join=((2, 0),), offset=1
    )
    number = 5 * np.zeros((3, 1, 1), int) + 3 * np.arange(5) + np.arange(3)[:, None, None]
    expected = 1 + 100 * np.arange(4)[:, None] + number // 7 * 30 + number % 7 * 2
    assert np.array_equal(layout.index_map(), np.broadcast_to(expected, (3, 4, 5)))
    assert [int(layout.at(*one)) for one in np.ndindex(3, 4, 5)] == expected.ravel().tolist()
    tensor = np.random.default_rng(0).integers(1, 256, (3, 4, 5), np.uint8)
    assert np.array_equal(layout.unpack(layout.pack(tensor)), tensor)
    assert str(layout).startswith(
        "W(CH)1(CH)2, (CH)2=7, strides 100 30 2: (3, 4, 5) uint8, from byte 1, "
    )
    part = Layout((3, 4, 5), layout.loops, join=((2, 0),), window=((1, 3), (0, 4), (0, 5)))
    number = np.arange(2)[:, None, None] + 2 * np.arange(5)
    inner = 100 * np.arange(4)[:, None] + number // 7 * 30 + number % 7 * 2
    assert np.array_equal(part.index_map()[1:], np.broadcast_to(inner, (2, 4, 5)))
    assert [int(part.at(*one)) for one in ((1, 0, 0), (2, 3, 4))] == [
        0,
        300 + 9 // 7 * 30 + 9 % 7 * 2,
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"join": ((0, 0),)}, "^join: "),
        ({"join": ((0, 1), (1,))}, "^join: "),
        ({"join": ((0, 2),)}, "^join: "),
        ({"join": ((),)}, "^join: "),
        ({"join": ((-1, 0),)}, "^join: "),
        ({"starts": (1,)}, "^starts: .*for each axis"),
        ({"starts": (0, 0, 0)}, "^starts: .*for each axis"),
        ({"starts": (-1, 0)}, "^starts: .*for each axis"),
        ({"starts": (0, 1), "join": ((0, 1),), "loops": (Loop(0, 1, 1),)}, "^starts: .*joined"),
        (
            {"starts": (1, 0), "loops": (Loop(0, 2), Loop(1), Loop(0))},
            "^starts: .*if a loop has no stride",
        ),
        ({"join": ((0, 1),)}, "got an axis that is joined"),
        ({"window": ((0, 2),)}, "^window"),
        ({"window": ((0, 2), (1, 1))}, "^window"),
        ({"window": ((0, 2), (-1, 2))}, "^window"),
        ({"window": ((0, 3), (0, 3))}, "^window"),
        ({"loops": (Loop(-1, 1, 1),)}, "got axis -1, allowed is 0 to 1"),
        ({"loops": (Loop(2, 1, 1),)}, "got axis 2, allowed is 0 to 1"),
        (
            {"loops": (Loop(0, 1, 3),)},
            "^loops: got blocks of 3 indices of axis 1 inside of all loops, allowed is 1 index: add a loop over axis 1 with a tile of 1$",
        ),
        ({"loops": (Loop(0, 1, 2), Loop(1, 1, 1))}, "^loops: got two elements at one place"),
        ({"loops": (Loop(0, 1, (0, 2)), Loop(1, 1, 1))}, "^loops: got two elements at one place"),
        (
            {"loops": (Loop(0, 1, (0,)), Loop(1, 1, 1))},
            "got the bytes to 1 blocks, allowed are the bytes to all 2 blocks$",
        ),
        (
            {"loops": (Loop(0, 1, 2), Loop(1)), "dtype": "uint8"},
            "^loops: got two elements at one place",
        ),
        (
            {"loops": (Loop(0, 1, 2**27), Loop(1, 1, 2**27))},
            r"^loops: got strides that interleave from byte 0 to 402653185, allowed over more than 67108864 bytes are strides that span all loops with smaller strides$",
        ),
    ],
)
def test_nests_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Layout((2, 3), **{"loops": (Loop(0, 1, 3), Loop(1, 1, 1)), **fields})


ROWS = (Loop(0, 1, 3), Loop(1, 1, 1))


@pytest.mark.parametrize(
    ("layout", "places"),
    [
        (Layout((2, 3), ROWS, join=((1,),)), [0, 1, 2, 3, 4, 5]),
        (
            Layout((2, 3), (Loop(0, 1, 1),), join=((0, 1),), starts=(0, 0)),
            [0, 1, 2, 3, 4, 5],
        ),
        (
            Layout((2, 3), (Loop(0, 4, 9), Loop(0, 1, 1)), join=((0, 1),), starts=(2, 0)),
            [2, 3, 9, 10, 11, 12],
        ),
        (Layout((2, 3), (Loop(0, 1, (0, 3)), ROWS[1])), [0, 1, 2, 3, 4, 5]),
        (Layout((2, 3), (ROWS[0], Loop(1))), [0, 1, 2, 3, 4, 5]),
        (Layout((1, 3), (Loop(0, 1, (7,)), ROWS[1])), [7, 8, 9]),
        # strides of two axes that interleave; one tile as wide as its axis
        (Layout((2, 3), (Loop(0, 1, 1), Loop(1, 1, 2))), [0, 2, 4, 1, 3, 5]),
        (Layout((2, 3), (ROWS[0], Loop(1, 1, 2))), [0, 2, 4, 3, 5, 7]),
        (Layout((2, 3), (Loop(0, 2, 0), *ROWS)), [0, 1, 2, 3, 4, 5]),
        (Layout((2, 3), (Loop(0, 1, -3), Loop(1, 1, -1)), offset=5), [5, 4, 3, 2, 1, 0]),
        # places as far apart as can be checked one by one, far from the start of the buffer
        (
            Layout((2, 2), (ROWS[0], Loop(1, 1, 2**26 - 4)), offset=2**30),
            [2**30, 2**30 + 2**26 - 4, 2**30 + 3, 2**30 + 2**26 - 1],
        ),
    ],
)
def test_nests_at_their_limits(layout: Layout, places: list[int]) -> None:
    assert layout.index_map().ravel().tolist() == places
    assert layout.size == max(places) + 1


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout((1,), ()), "one element: (1,) uint8, 1 bytes"),
        (
            Layout((4,), (Loop(0, 1, (0, 2, 4, 6)),)),
            "I, strides (0, 2, 4, 6): (4,) uint8, 7 bytes",
        ),
        (
            Layout((5,), (Loop(0, 1, (0, 2, 4, 6, 8)),)),
            "I, strides (0, 2, 4, 6, ...): (5,) uint8, 9 bytes",
        ),
        (hwc((3,), dtype="uint4", offset=2), "I, strides 1: (3,) uint4, from place 2, 3 bytes"),
        (
            Layout(
                (5, 2),
                (Loop(0, 3, 9), Loop(0, 1, 2), Loop(1, 1, 1)),
                starts=(2, 0),
                window=((0, 5), (1, 2)),
            ),
            "R1R2C, R2=3, strides 9 2 1: (5, 2) uint8, only c 1 to 1, r from place 2 of its tile, "
            "19 bytes",
        ),
        (
            Layout((2,) * 5, tuple(map(Loop, range(5)))),
            "A0_A1_A2_A3_A4_, packed: (2, 2, 2, 2, 2) uint8, 32 bytes",
        ),
        (
            Layout((4, 9, 9, 2), (Loop(3), Loop(1, 6), Loop(1, 3), Loop(2), Loop(1), Loop(0))),
            "IH1H2WH3O, H2=6, H3=3, packed: (4, 9, 9, 2) uint8, 648 bytes",
        ),
    ],
)
def test_what_a_nest_says(layout: Layout, text: str) -> None:
    assert str(layout) == text


def test_a_layout_is_as_long_as_its_words() -> None:
    assert [hwc((n,), swap=8).size for n in (1, 7, 8, 9)] == [8, 8, 8, 16]
    assert [hwc((n,), dtype="uint2").size for n in (1, 4, 5)] == [1, 1, 2]
    assert hwc((3,), dtype="uint4", copies=(5,)).size == 4
    assert hwc((3,), copies=(-2,), offset=2).size == 5
    with pytest.raises(ValueError, match=r"^swap: got an offset"):
        Layout((2,), (Loop(0, 1, (0, 3)),), dtype="uint16", swap=4)


# Formats and orders of axes


def test_an_empty_axis_counts_as_one_in_the_contiguous_format_alone() -> None:
    for shape, contiguous, last in (
        ((2, 0, 4, 5), (20, 20, 5, 1), (0, 1, 0, 0)),
        ((0, 3, 4, 5), (60, 20, 5, 1), (60, 1, 15, 3)),
        ((2, 3, 0, 5), (15, 5, 5, 1), (0, 1, 15, 3)),
    ):
        assert format_strides(shape, "contiguous") == contiguous
        assert format_strides(shape, "channels_last") == last
        assert is_format(shape, (9, 9, 9, 9), "contiguous")
        assert is_format(shape, last, "channels_last")
        assert not is_format(shape, (9, 9, 9, 9), "channels_last")


@pytest.mark.parametrize(
    "shape",
    [(2, 3, 4, 5), (1, 1, 1, 1), (1, 7, 1, 9), (4, 1, 3, 3), (2, 3, 4, 5, 6), (1, 2, 1, 3, 1)],
)
def test_formats_are_strides_of_the_same_numbers(shape: tuple[int, ...]) -> None:
    """A tensor permuted to the format's order, contiguous, and seen in its logical order again."""
    tensor = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    orders = {"contiguous": tuple(range(len(shape)))}
    orders |= (
        {"channels_last": (0, 2, 3, 1)}
        if len(shape) == 4
        else {"channels_last_3d": (0, 2, 3, 4, 1)}
    )
    for name, order in orders.items():
        stored = np.ascontiguousarray(tensor.transpose(order))
        seen = stored.transpose(np.argsort(order))
        assert np.array_equal(seen, tensor)
        strides = format_strides(shape, name)
        there = np.lib.stride_tricks.as_strided(stored.ravel(), shape, [4 * s for s in strides])
        assert np.array_equal(there, tensor)
        assert is_format(shape, strides, name)
        assert format_layout(shape, name, dtype="int32").pack(tensor) == stored.tobytes()
        if min(n for n in shape[1:]) > 1:
            assert memory_format(shape, strides) == name
            others = {"contiguous", "channels_last", "channels_last_3d"} - {name}
            assert not any(is_format(shape, strides, other) for other in others)


def test_formats_by_their_strides() -> None:
    assert format_strides((2, 3, 4, 5, 6), "channels_last_3d") == (360, 1, 90, 18, 3)
    assert memory_format((2, 3, 4, 5, 6), (360, 1, 90, 18, 3)) == "channels_last_3d"
    for strides in ((60, 1, 15, 3), (90, 1, 20, 4)):
        assert memory_format((2, 3, 4, 5), strides) == "channels_last"
    for shape, *strides in (
        ((2, 3, 4, 5), 60, 1, 15, 2),
        ((2, 3, 4, 5), 59, 1, 15, 3),
        ((2, 3, 4, 5), 60, 0, 15, 3),
        ((2, 3, 0, 5), 60, 1, 15, 3),
        ((2, 3, 4), 12, 1, 3),
        ((4, 1, 1, 1), 1, 1, 1, 1),
    ):
        assert memory_format(shape, tuple(strides)) == "contiguous"
    assert not is_format((2, 3, 4), (12, 1, 3), "channels_last")
    assert is_format((2, 3), (3, 1), "contiguous")
    assert not is_format((2, 3), (1, 2), "contiguous")
    assert format_layout((2, 3, 4, 5), "channels_last", dtype="uint16").index_map()[
        1, 2, 3, 4
    ] == 2 * (60 + 2 + 45 + 12)
    assert strides_layout((2, 3), (-3, 1), offset=3).index_map().tolist() == [[3, 4, 5], [0, 1, 2]]
    assert [one.axis for one in strides_layout((2, 3), (1, -2), offset=4).loops] == [1, 0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: format_strides((2, 3), "channels_last"),
            r"^shape: got \(2, 3\), allowed with channels_last are 4 axes|^shape: ",
        ),
        (lambda: format_strides((2, 3), "none"), r"^format: got 'none'"),
        (
            lambda: format_strides((2, -1), "contiguous"),
            r"^shape: got \(2, -1\), allowed are whole numbers, none negative$",
        ),
        (lambda: format_strides((2, 1.5), "contiguous"), r"^shape: got \(2, 1.5\)"),
        (
            lambda: is_format((2, 3), (1,), "contiguous"),
            r"^strides: got \(1,\), allowed are 2, one for each axis of \(2, 3\)$",
        ),
        (
            lambda: is_format((2, 3), (1, "a"), "contiguous"),
            r"^strides: got \(1, 'a'\), allowed are whole numbers$",
        ),
    ],
)
def test_formats_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
    assert strides_layout((1, 1), (-(2**62), 0)).size == 1


def test_axes_that_are_split_and_joined() -> None:
    tensor = np.arange(24).reshape(1, 2, 12)
    assert np.array_equal(
        convert_axes(tensor, "1H(CM)", "CMH", C=3), tensor.reshape(2, 3, 4).transpose(1, 2, 0)
    )
    assert np.array_equal(
        convert_axes(tensor, "1H(CM)", "CMH", M=4), tensor.reshape(2, 3, 4).transpose(1, 2, 0)
    )
    assert np.array_equal(convert_axes(tensor, "1H(CM)", "HCM", C=3, M=4), tensor.reshape(2, 3, 4))
    assert np.array_equal(
        convert_axes(tensor, "1H(CM)", "(CM)1H1"), tensor.reshape(2, 12).T.reshape(12, 1, 2, 1)
    )
    assert np.array_equal(
        convert_axes(tensor, "1H(CM)", "(MC)H", C=3),
        tensor.reshape(2, 3, 4).transpose(2, 1, 0).reshape(12, 2),
    )
    assert np.array_equal(convert_axes(tensor, "1H(CM)", "H(CM)", C=12, M=1), tensor.reshape(2, 12))
    assert convert_axes(tensor.reshape(1, 1, 2, 12), "1HWC", "HWCM", C=12).shape == (1, 2, 12, 1)


@pytest.mark.parametrize(
    ("shape", "source", "to", "sizes", "said"),
    [
        ((2, 3), "HW", "HC", {}, "^to: "),
        ((2, 3), "HW", "H", {}, "^to: got 'H', allowed are the letters of 'HW', each once$"),
        ((2, 3), "HW", "HWW", {}, "^to: got 'HWW', allowed are capital letters, each once"),
        ((2, 3), "H(W", "HW", {}, r"^source: got 'H\(W', allowed are capital letters"),
        ((2, 3), "HWC", "HWC", {}, r"^tensor: got shape \(2, 3\), allowed are 3 axes"),
        ((2, 3), "HW", "WH", {"C": 2}, "^sizes: got C=2, allowed are letters of 'HW'$"),
        ((2, 3), "1W", "W", {}, "^tensor: got 2 indices on an axis that the order calls 1"),
        (
            (2, 12),
            "H(CM)",
            "HCM",
            {},
            "^sizes: got no size of C, M, allowed are sizes of all but one of these letters, such as C=2: they divide the 12 indices",
        ),
        (
            (2, 12),
            "H(CM)",
            "HCM",
            {"C": 5},
            "^sizes: got C=5, allowed are sizes whose product is the 12 indices of CM$",
        ),
        ((2, 12), "H(CM)", "HCM", {"C": 0}, "^sizes: got C=0"),
        ((2, 12), "H(CM)", "HCM", {"C": 3, "M": 2}, "^sizes: got C=3, M=2"),
        ((2, 12), "H(CM)", "HCM", {"C": -1, "M": -12}, "^sizes: got C=-1, M=-12"),
        ((2, 3), "HH", "H", {}, "^source: "),
        ((2, 3), "Hw", "H", {}, "^source: "),
        ((2, 3), "", "H", {}, "^source: "),
        ((2, 3), "HW", "W(H", {}, "^to: "),
    ],
)
def test_orders_refused(
    shape: tuple[int, ...], source: str, to: str, sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        convert_axes(np.zeros(shape), source, to, **sizes)


def test_weights_in_groups_are_dense_ones() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (6, 2, 3, 4), np.int8)  # OIHW
    for groups in (1, 2, 3, 6):
        dense = dense_weights(weights, "OIHW", groups, -5)
        expected = np.full((6, 3, 4, 2 * groups), -5, np.int8)
        for o in range(6):
            own = o // (6 // groups)
            expected[o, :, :, 2 * own : 2 * own + 2] = weights[o].transpose(1, 2, 0)
        assert np.array_equal(dense, expected)
    deep = rng.integers(0, 256, (3, 3, 4, 2), np.uint8)  # HWCM
    dense = dense_weights(deep, "HWCM", 4, 255, "HWIO")
    for c, m in product(range(4), range(2)):
        assert np.array_equal(dense[:, :, c, 2 * c + m], deep[:, :, c, m])
        assert (np.delete(dense[:, :, :, 2 * c + m], c, 2) == 255).all()
    for groups in (0, 4, -1):
        with pytest.raises(
            ValueError,
            match=rf"^groups: got {groups}, allowed is a divisor of the 6 output channels$",
        ):
            dense_weights(weights, "OIHW", groups)
    for fill, said in ((128, "128"), (-129, "-129")):
        with pytest.raises(
            ValueError, match=rf"^fill: got {said}, allowed is -128 to 127, the range of int8$"
        ):
            dense_weights(weights, "OIHW", 2, fill)
    assert dense_weights(weights, "OIHW", 2, 127).max() == 127
    assert dense_weights(weights, "OIHW", 2, -128).min() == -128
    assert dense_weights(weights.astype(np.float32), "OIHW", 2, 0.5)[0, 0, 0, 3] == 0.5


def test_a_table_is_written_where_it_says() -> None:
    table = Table((2,), np.array([2, 0]), dtype="uint16", swap=4, size=4)
    assert table.index_map().tolist() == [2, 0]
    assert table.pack(np.uint16([0x1234, 0x5678])).hex() == "56781234"


def test_candidates_of_codes_of_4_bits_fit_their_places() -> None:
    found = list(candidates((3, 4), 20, dtype="int4"))
    assert found
    for layout, starts in found:
        assert layout.per_byte == 2
        assert all(0 <= start <= 20 - 2 * layout.size for start in starts)
    assert any(20 - 2 * layout.size in starts for layout, starts in found)


def test_interleaved_steps_are_checked_up_to_2_to_the_26_bytes() -> None:
    def far(more: int) -> Layout:
        return Layout((3, 2, 2), (Loop(0, 1, 2), Loop(1, 1, 3), Loop(2, 1, 2**26 - 8 + more)))

    assert far(0).size == 2**26
    with pytest.raises(
        ValueError,
        match=r"^loops: got strides that interleave from byte 0 to 67108865, allowed over more than 67108864 bytes are strides that span all loops with smaller strides$",
    ):
        far(1)
