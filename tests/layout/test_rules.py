"""The rule of places: windows, digits, blocks and nests by themselves, on a few places each."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from npulab.layout import Layout, Loop
from npulab.layout.rules import (
    UNKNOWN,
    AxisDigit,
    Digit,
    _any_digits,
    _blocks,
    _deeper,
    _extended,
    _line,
    _nests,
    _origin,
    _steps,
    _together,
    _wide,
    _window,
    digits_of,
    layouts,
)


def known(line: np.ndarray) -> np.ndarray:
    return np.ones(len(line), bool)


def line_of(n: int, digits: list[tuple[int, int]]) -> np.ndarray:
    """Distances of ``n`` indices: of each digit, the highest first, the number of its block
    times its stride.
    """
    out = []
    for left in range(n):
        place = 0
        for tile, stride in reversed(digits):
            place += left // tile * stride
            left %= tile
        out.append(place)
    return np.array(out)


@pytest.mark.parametrize(
    ("n", "digits"),
    [
        (2, [(1, 5)]),
        (9, [(1, -3)]),
        (9, [(1, 1), (4, 100)]),
        (8, [(1, 1), (4, 100)]),
        (5, [(1, 1), (4, 100)]),
        (3, [(1, 7), (2, 1)]),
        (30, [(1, 1), (3, 10), (12, 1000)]),
        (100, [(1, 2), (7, 50), (21, -4)]),
        (64, [(1, 3), (2, 100), (4, 1), (8, 1000)]),
        (200, [(1, 1), (64, 1000)]),
        (200, [(1, 1), (65, 1000)]),
        (130, [(1, 1), (128, 500)]),
    ],
)
def test_digits_are_read_from_a_line(n: int, digits: list[tuple[int, int]]) -> None:
    line = line_of(n, digits)
    assert digits_of(line, known(line)) == digits
    # the same where some places are not known, and say anything
    holes = known(line)
    for hole in range(1, n):
        if (
            n > 8
            and n - hole > 3
            and hole > 1
            and hole % digits[-1][0] not in (0, 1, digits[-1][0] - 1)
            and len(digits) < 3
        ):
            holes[:] = True
            holes[hole] = False
            assert digits_of(np.where(holes, line, 12345), holes) == digits


def test_lines_withoutdigits_of() -> None:
    one = np.array([0, 2, 4])
    assert digits_of(one[:1], known(one[:1])) == []
    assert digits_of(one, np.array([True, False, False])) is None
    assert digits_of(one, np.array([False, True, True])) is None
    assert digits_of(one, np.array([True, False, True])) == [(1, 2)]
    assert digits_of(np.array([0, 0, 3]), np.array([True, False, True])) is None  # no whole step
    for line in ([0, 3, 4, 9, 1], [0, 1, 5, 6, 11, 13]):
        assert digits_of(np.array(line), known(np.array(line))) is None


def test_a_wrong_place_is_no_tile() -> None:
    for wrong, stride in ((20, 3), (7, -4), (30, 1)):
        line = stride * np.arange(40)
        line[wrong] += 5
        assert digits_of(line, known(line)) == [(1, stride)]
        tiled = line_of(40, [(1, 1), (8, 100)])
        tiled[17] += 5
        assert digits_of(tiled, known(tiled)) == [(1, 1), (8, 100)]


def test_a_tile_may_end_anywhere_in_a_hole() -> None:
    """The largest that goes on is taken: ends up to 64 indices before the first place known to
    be wrong are tried.
    """
    line = line_of(40, [(1, 1), (8, 100)])
    holes = known(line)
    holes[[6, 7, 14, 15, 22, 23, 30, 31, 38, 39]] = False
    assert digits_of(line, holes) == [(1, 1), (8, 100)]
    for hidden, found in ((40, True), (80, False)):
        line = line_of(800, [(1, 1), (100, 1000)])
        holes = known(line)
        holes[100 : 100 + hidden] = False
        digits = digits_of(line, holes) or [(1, 1)]
        assert (
            len(digits) == 2 and abs(digits[1][0] - 100) <= 4 and digits[1][1] == 900 + digits[1][0]
        ) == found


def test_blocks_are_those_that_most_of_their_indices_say() -> None:
    line = np.array([7, 7, 7, 7, 9, 9, 9, 9, 4])
    middle, there = _blocks(line, known(line), 4)  # type: ignore[misc]
    assert middle.tolist() == [7, 9, 4]
    assert there.tolist() == [True, True, True]
    # one wrong of eight is borne, of seven not
    for count, borne in ((8, True), (7, False), (16, True)):
        line = np.full(count, 5)
        line[2] = 6
        found = _blocks(line, known(line), count)
        assert (found is not None) == borne
        assert not borne or found[0].tolist() == [5]  # type: ignore[index]
    # places that are not known do not count, a block of them is not known
    line = np.array([7, 0, 0, 7, 1, 2, 3, 3, 8, 8])
    have = np.array([True, False, False, True, False, False, False, False, True, True])
    middle, there = _blocks(line, have, 4)  # type: ignore[misc]
    assert there.tolist() == [True, False, True]
    assert middle[there].tolist() == [7, 8]
    # of two values in one block the lower stands for it
    line, have = np.array([3, 9, *[4] * 14]), np.ones(16, bool)
    assert _blocks(line, have, 2)[0].tolist() == [3, *[4] * 7]  # type: ignore[index]


def test_what_most_lines_say_is_a_line() -> None:
    places = np.array(
        [[10, 11, 12, 13], [20, 21, 25, 23], [30, 31, 32, -1], [-1, 5, 6, 7], [40, 41, 42, 47]]
    )
    middle, sure = _line(places, 1, 64)
    assert middle.tolist() == [0, 1, 2, 3]
    assert sure.tolist() == [True, True, True, True]
    first, alone = _line(places, 1, 1)
    assert (first.tolist(), alone.tolist()) == ([0, 1, 2, 3], [True] * 4)
    assert _line(places[3:4], 1, 64)[1].tolist() == [False] * 4
    assert _line(places[3:4], 1, 64)[0].tolist() == [0] * 4
    for second, distance, most in (
        ([1, 2, 3, 1], 1, False),  # half of the lines are not most of them
        ([1, 2, 3], 2, False),
        ([1, 1, 3], 1, True),
        ([1, 3, 3], 3, True),
        ([1, 2, 3, 3, 3], 3, True),
    ):
        middle, sure = _line(np.array([[0, place] for place in second]), 1, 9)
        assert (middle[1], sure.tolist()) == (distance, [True, most])
    # a place that one line alone has is known
    assert _line(np.array([[0, -1, 2], [5, -1, -1]]), 1, 4)[1].tolist() == [True, False, True]
    # of the lines those near the origin: 4 are 2 times 2 of three axes
    cube = np.full((5, 5, 3), -1)
    cube[:2, :2] = np.arange(3)
    cube[2:, :, :] = cube[:, 2:, :] = 7 * np.arange(3)
    assert _line(cube, 2, 4)[0].tolist() == [0, 1, 2]
    assert _line(cube, 2, 64)[0].tolist() == [0, 7, 14]
    assert _line(cube[:, :1], 2, 2)[0].tolist() == [0, 1, 2]


def test_the_window_is_where_places_are() -> None:
    assert _window(np.full((2, 3), -1)) == ()
    assert _window(np.zeros((2, 3), int)) == ((0, 2), (0, 3))
    places = np.full((12, 20), -1)
    places[3:9, 5:15] = 0
    assert _window(places) == ((3, 9), (5, 15))
    # a stray place is none of it, one of eight is
    for count, inside in ((7, True), (8, True), (9, False), (16, False)):
        places = np.full((12, 20), -1)
        places[3:9, :count] = 0
        places[10, 0] = 0
        assert _window(places)[0] == ((3, 11) if inside else (3, 9)), count
    assert _window(np.array([-1, 0])) == ((1, 2),)


def test_joined_axes_need_a_tile_that_is_of_all_of_them() -> None:
    for tile, start, axes, together in (
        (3, 0, 2, True),  # no multiple nor divisor of 4
        (2, 0, 2, False),
        (8, 0, 2, False),
        (4, 0, 2, False),
        (4, 1, 2, True),
        (6, 0, 2, True),
        (1, 0, 2, False),
        # of three axes: of 20 and of 5
        (3, 0, 3, True),
        (4, 0, 3, False),
        (15, 0, 3, False),
    ):
        digits = [Digit(1, 1), Digit(tile, 9)]
        assert _together(digits, start, (6, 4, 5), range(axes)) == together, (tile, start, axes)


def test_lines_that_begin_inside_of_a_tile() -> None:
    for start, tile, blocks in product(range(1, 5), (5, 6), (3, 4)):
        whole = line_of(tile * blocks, [(1, 2), (tile, 100)])
        line = whole[start:] - whole[start]
        assert _any_digits(line, known(line), False) == (start, [(1, 2), (tile, 100)])
        assert _any_digits(line, known(line), True) == (start, [(1, 2), (tile, 100)])
    line = line_of(12, [(1, 2), (4, 100)])
    assert _any_digits(line, known(line), False) == (0, [(1, 2), (4, 100)])
    assert _any_digits(np.arange(3) * 5, np.ones(3, bool), False) == (0, [(1, 5)])


def test_lines_with_holes_that_begin_inside_of_a_tile() -> None:
    """Only of neighbours that are both known is the distance known."""
    whole = line_of(32, [(1, 2), (8, 100)])
    line = whole[3:] - whole[3]
    have = np.arange(29) % 2 == 0
    for end in (5, 13, 21):
        have[end - 2 : end + 2] = True
    line[~have] = -1000
    assert _any_digits(line, have, False) == (3, [(1, 2), (8, 100)])
    assert _any_digits(line, have, True) == (3, [(1, 2), (8, 100)])


def test_nests_of_the_first_lines_come_first() -> None:
    """Then those of what most lines say, then those of the far corner."""
    tiles = Layout((7, 5), (Loop(0, 4), Loop(1, 2), Loop(0), Loop(1))).index_map()
    first = next(iter(layouts(tiles)))
    assert {(loop.axis, loop.tile) for loop in first.loops} == tiles_of(tiles, False)
    rows = Layout((9, 9), (Loop(0, 3, 50), Loop(0, 1, 10), Loop(1, 1, 1))).index_map()
    rows[0, 4:] = rows[4:, 0] = 777
    found = [one.loops for one in layouts(rows)]
    assert (Loop(0, 3, 50), Loop(0, 1, 10), Loop(1, 1, 1)) in found


def test_lines_that_are_a_list() -> None:
    line = np.array([0, 3, 4, 9, 1])
    assert _any_digits(line, known(line), False) == (0, [(1, (0, 3, 4, 9, 1))])
    assert _any_digits(line, known(line), True) == (0, None)
    line = np.array([0, 3, 4, 9, 1, 7, 30, 2])
    holes = known(line)
    holes[3] = False
    assert _any_digits(line, holes, False) == (0, None)
    # blocks of three at any places, the last one short
    line = np.array([0, 2, 4, 50, 52, 54, 20, 22, 24, 90, 92])
    assert _any_digits(line, known(line), False) == (0, [(1, 2), (3, (0, 50, 20, 90))])
    line[-1] = 93
    assert _any_digits(line, known(line), False) == (0, [(1, tuple(line.tolist()))])


def test_how_far_apart_blocks_are() -> None:
    assert [_wide(one) for one in (7, -7, 0, (5,), (0, 10), (0, 30, 10, 20), (9, 3, 5))] == [
        7,
        7,
        0,
        0,
        10,
        10,
        3,
    ]


def test_the_first_element_of_a_whole_tensor() -> None:
    steps = [AxisDigit(0, 4, 100), AxisDigit(0, 1, 1), AxisDigit(1, 1, 10)]
    for window, shape, first in (
        (((0, 8), (0, 3)), (8, 3), 500),
        (((4, 8), (0, 3)), (8, 3), 400),
        (((4, 8), (2, 3)), (8, 3), 380),
        (((5, 8), (0, 3)), (8, 3), None),
        (((0, 8), (0, 3), (0, 1)), (8, 3, 1), 500),
        (((0, 8), (0, 3), (0, 1)), (8, 3, 2), None),
    ):
        assert _extended(window, shape, steps, 500) == first
    assert _extended(((2, 3),), (4,), [AxisDigit(0, 1, (0, 7, 9, 30))], 500) == 491


def test_the_first_element_is_what_most_of_those_near_it_say() -> None:
    steps = [AxisDigit(0, 2, 50), AxisDigit(0, 1, 3), AxisDigit(1, 1, 10)]
    places = np.array(
        [[100 + r // 2 * 50 + r % 2 * 3 + 10 * c for c in range(6)] for r in range(9)]
    )
    assert _origin(places, steps) == 100
    wrong = places.copy()
    wrong[0, 0], wrong[3, 1], wrong[1, 1] = 7, 900, -1
    assert _origin(wrong, steps) == 100
    assert _origin(places[1:] - 3, steps, (1, 0)) == 97
    far = np.full((200, 6), -1)
    far[150] = 100 + 75 * 50 + 10 * np.arange(6)
    assert _origin(far, steps) == 100
    far[:] = -1
    far[150, 0] = 0
    assert _origin(far, steps) == -3750
    # of an even number of them that disagree the lower of the two in the middle
    assert _origin(np.array([5, 7]), [AxisDigit(0, 1, 0)]) == 5
    assert _origin(np.array([5, 7, 7, 9]), [AxisDigit(0, 1, 0)]) == 7
    assert _origin(np.array([5, 7, 8, 9]), [AxisDigit(0, 1, 0)]) == 7


def tiles_of(places: np.ndarray, corners: bool) -> set[tuple[int, int]]:
    return {(step.axis, step.tile) for step in _steps(places, 1, corners) or []}


def test_digits_of_all_axes() -> None:
    layout = Layout((6, 10), (Loop(1, 4, 60), Loop(0, 1, 10), Loop(1, 1, 2)))
    assert _steps(layout.index_map(), 1, False) == [
        AxisDigit(0, 1, 10),
        AxisDigit(1, 1, 2),
        AxisDigit(1, 4, 60),
    ]
    assert _steps(layout.index_map()[:1], 1, False) == [AxisDigit(1, 1, 2), AxisDigit(1, 4, 60)]
    none = layout.index_map()
    none[0, 1:] = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    assert _steps(none, 1, False) is None
    # at the far corner rows are in tiles of three, which the near corner cannot show
    short = Layout((7, 4), (Loop(1, 3), Loop(0), Loop(1))).index_map()
    assert tiles_of(short, False) == {(0, 1), (1, 1), (1, 3)}
    assert tiles_of(short, True) == {(0, 1), (1, 1), (1, 3)}
    # the columns of the last row lie 0, 1, 6, 7, 10 bytes from its first: as if in tiles of four
    # made of tiles of two
    tiles = Layout((7, 5), (Loop(0, 4), Loop(1, 2), Loop(0), Loop(1))).index_map()
    assert tiles_of(tiles, False) == {(0, 1), (0, 4), (1, 1), (1, 2)}
    assert tiles_of(tiles, True) == {(0, 1), (0, 4), (1, 1), (1, 2), (1, 4)}
    assert all(
        one.stride == tiles[(one.tile, 0) if one.axis == 0 else (0, one.tile)]
        for one in _steps(tiles, 1, True) or []
    )


def nests(shape: tuple[int, ...], *steps: tuple[int, int, Any], **fields: Any) -> list[Layout]:
    return list(_nests(shape, [AxisDigit(*step) for step in steps], fields, False))


def loops(*steps: tuple[int, ...]) -> tuple[Loop, ...]:
    return tuple(Loop(*step) for step in steps)


def test_nests_are_with_all_strides_then_with_ever_fewer() -> None:
    steps = (0, 1, 10), (1, 1, 1), (1, 4, 60)
    made = nests((6, 10), *steps, offset=3, size=300)
    assert [one.loops for one in made] == [
        loops((1, 4, 60), (0, 1, 10), (1, 1, 1)),
        loops((1, 4), (0,), (1,)),
        loops((1, 4, 60), (0,), (1,)),
        loops((1, 4, 60), (0, 1, 10), (1,)),
    ]
    assert {(one.size, one.offset) for one in made} == {(300, 3)}
    small = nests((6, 10), *steps, offset=3, size=10)
    assert [one.size for one in small] == [3 + 120 + 50 + 2, 63, 3 + 120 + 12, 3 + 120 + 50 + 2]
    # a list has no packed form, nor has an axis that begins inside of a tile
    assert len(nests((3,), (0, 1, (0, 5, 3)))) == 1
    assert len(nests((3,), (0, 2, 9), (0, 1, 1), starts=(1,))) == 1
    # packed tiles of one axis with nothing between them are one loop, unless they do not divide one
    # another
    assert [one.loops for one in nests((12,), (0, 4, 4), (0, 1, 1))] == [
        loops((0, 4, 4), (0, 1, 1)),
        loops((0,)),
        loops((0, 4, 4), (0,)),
    ]
    uneven = [one.loops for one in nests((12,), (0, 3, 3), (0, 2, 2), (0, 1, 1))]
    assert loops((0, 3), (0, 2), (0,)) not in uneven
    assert loops((0, 3), (0,)) in uneven
    # loops that no layout can have are left out
    assert nests((4,), (0, 1, 0)) == [Layout((4,), (Loop(0),))]
    # the larger tile is outside, wherever its stride puts it
    assert nests((4,), (0, 1, 9), (0, 2, 1))[0].loops == loops((0, 2, 1), (0, 1, 9))


def test_nests_of_a_few_places() -> None:
    """The plainest first, windows after the whole tensor."""
    places = Layout((5, 6), (Loop(0, 1, 8), Loop(1, 1, 1)), offset=16).index_map()
    whole = list(layouts(places))
    assert whole[0] == Layout((5, 6), (Loop(0, 1, 8), Loop(1, 1, 1)), offset=16)
    assert all(one.window == ((0, 5), (0, 6)) for one in whole)
    hidden = places.copy()
    hidden[:2] = -1
    part = list(layouts(hidden))
    assert (part[0].window, part[0].offset) == (((0, 5), (0, 6)), 16)
    assert any((one.window, one.offset) == (((2, 5), (0, 6)), 32) for one in part)
    hidden = places - 16
    hidden[:2] = -1
    hidden[2:] -= 16
    assert all(one.window == ((2, 5), (0, 6)) for one in layouts(hidden))
    assert list(layouts(np.full((5, 6), -1))) == []
    assert list(layouts(np.full((5, 6), -1), True)) == []
    assert len({str(one) for one in layouts(places)}) == len(whole)


def test_deeper_nests_of_a_few_places() -> None:
    joined = Layout((4, 6), (Loop(0, 5, 40), Loop(0, 1, 3)), join=((0, 1),))
    found = [
        (fields["join"], fields["starts"], fields["offset"], steps)
        for fields, steps in _deeper(joined.index_map())
    ]
    assert (((0, 1),), (0, 0), 0, [AxisDigit(0, 1, 3), AxisDigit(0, 5, 40)]) in found
    assert joined in list(layouts(joined.index_map(), True))
    begun = Layout(
        (10, 3), (Loop(0, 4, 100), Loop(0, 1, 5), Loop(1, 1, 1)), starts=(3, 0), offset=20
    )
    assert next(iter(layouts(begun.index_map(), True))) == begun
    listed = Layout((4, 4), (Loop(0, 1, (0, 50, 20, 30)), Loop(1, 1, 1)))
    assert next(iter(layouts(listed.index_map(), True))) == listed
    # of each index of a list there are four elements at least
    for count, enough in ((4, True), (3, False)):
        one = Layout((4, count), (Loop(0, 1, (0, 50, 20, 30)), Loop(1, 1, 1))).index_map()
        assert bool(list(layouts(one, True))) == enough
    three = Layout((2, 3, 4), (Loop(2, 5, 64), Loop(2, 1, 2), Loop(0, 1, 1)), join=((2, 1),))
    assert any(
        np.array_equal(one.index_map(), three.index_map()) and one.join == ((2, 1),)
        for one in layouts(three.index_map(), True)
    )


def test_windows_of_one_index_are_nodigits_of() -> None:
    places = np.full((5, 1, 4), -1)
    places[2, 0] = [9, 10, 11, 12]
    found = list(layouts(places))
    assert found
    assert all(
        one.window == ((2, 3), (0, 1), (0, 4)) and one.index_map()[2, 0].tolist() == [9, 10, 11, 12]
        for one in found
    )
    assert UNKNOWN > 2**60
    assert all(a.loops != b.loops or a.window != b.window for a, b in pairwise(found))
