"""Places, distances, what is left over and what is said of it, on small made-up buffers against
plain loops.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from npulab.layout import (
    Constant,
    Layout,
    Loop,
    Sums,
    Table,
    find_layout,
    hwc,
    markers,
    packed_blocks,
)
from npulab.layout.candidates import candidates
from npulab.layout.find import (
    _agreeing_candidates,
    _agreeing_offsets,
    _better,
    _by_value,
    _chance,
    _complete,
    _entropy,
    _fits,
    _in_buffer,
    _in_step,
    _neighbours,
    _plainest,
    _proven,
    _readings,
    _share,
    _sparse,
    _table,
    _Trial,
    _unexplained,
)
from npulab.layout.found import Run, _usual, accounted, agreeing, runs_of, unexplained
from npulab.layout.lags import Window, _distances, _windows, lags
from npulab.layout.places import Change, Pairs, Seen, Signature, Sought, changes, halved, known
from npulab.layout.stored import opened, place_bytes


def pairs_of(layout: Any, tensors: list[np.ndarray], extra: int = 0) -> Pairs:
    buffers = tuple(np.frombuffer(layout.pack(one) + bytes(extra), np.uint8) for one in tensors)
    return Pairs(tuple(one.view(f"u{one.itemsize}") for one in tensors), buffers, layout.dtype)


def pair(raw: Any, buffer: Any, dtype: str = "uint8") -> Pairs:
    """A tensor and its buffer, from numbers or arrays."""
    elements = np.asarray(raw, f"u{place_bytes(dtype)}")
    return Pairs((elements,), (np.asarray(buffer, np.uint8),), dtype)


PLAIN = Change()


def sought_in(pairs: Pairs, *signature: int) -> Sought:
    """The signatures in a buffer: single elements at every byte, or what the numbers say."""
    return Sought(pairs, Signature(*(signature or (0, 1))))


def look_up(pairs: Pairs, *signature: int, change: Change = PLAIN) -> Seen:
    return sought_in(pairs, *signature).look_up(change)


def sums_in(account: Any) -> list[Sums]:
    return [part for part in account.parts if isinstance(part, Sums)]


def row_of(*parts: Any) -> np.ndarray:
    return np.concatenate(parts).astype(np.uint8)


def noise(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n, np.uint8)


# Places of values


def test_elements_that_share_a_value() -> None:
    for raw in ([1, 7, 7], [7, 1, 7], [7, 7, 1], [7, 7, 7], [1, 2, 3, 3], [1, 8, 8, 2, 5, 8, 1]):
        seen = look_up(pair(raw, [0, 0, 0]))
        assert seen.shared.tolist() == [raw.count(one) > 1 for one in raw]
    many = np.arange(200000) % 199999
    seen = look_up(pair(many.astype(np.uint32), np.zeros(4, np.uint8), "uint32"), 0, 4)
    assert np.flatnonzero(seen.shared).tolist() == [0, 199999]


def test_places_step_by_step() -> None:
    pairs = pair([0x0201, 0x0403, 0x0302], [9, 1, 2, 3, 4], "uint16")
    for signature, places in (
        ((0, 1), [1, 3, 2]),
        ((1, 2), [1, 3, -1]),
        ((0, 2), [-1, -1, 2]),
        ((2, 1), [-1, 3, 2]),
        ((3, 2), [-1, 3, -1]),
        ((4, 1), [-1] * 3),
        ((9, 1), [-1] * 3),
    ):
        assert look_up(pairs, *signature).place.tolist() == places, signature
    big = look_up(pairs, change=Change(big_endian=True))
    assert big.place.tolist() == [-1] * 3
    assert look_up(
        pair([0x0102, 0x0304], [9, 1, 2, 3, 4], "uint16"), change=Change(big_endian=True)
    ).place.tolist() == [1, 3]
    assert look_up(pair([1, 250], [4, 253]), change=Change(add=3)).place.tolist() == [0, 1]
    assert look_up(pair([1, 250], [254, 5]), change=Change(xor=255)).place.tolist() == [0, 1]


def test_counts_stop_at_255() -> None:
    for many in (254, 255, 256, 600):
        seen = look_up(pair([7, 8], [7] * many + [8]))
        assert seen.count.tolist() == [min(many, 255), 1]


def test_neighbours_have_the_places_behind_them() -> None:
    """Three along an axis, 2 bytes apart; what a known element has behind it is known as well."""
    raw = np.array([[1, 2, 3, 4, 5], [1, 2, 9, 9, 9]], np.uint8)
    buffer = np.array([0, 1, 0, 2, 0, 3, 0, 4, 8], np.uint8)
    pairs = pair(raw, buffer)
    seen = look_up(pairs, 0, 1, 1, 3, 2)
    assert seen.place.tolist() == [[1, 3, 5, 7, -1], [-1] * 5]
    assert seen.count.tolist() == [[1, 1, 1, 1, 0], [0] * 5]
    down = look_up(pair(raw.T.copy(), buffer), 0, 1, 0, 3, 2)
    assert down.place.T.tolist() == seen.place.tolist()
    # fewer than the signature has: none
    none = sought_in(pairs, 0, 1, 0, 3, 2)
    assert none.look_up(Change()).place.tolist() == [[-1] * 5] * 2
    assert none.share(PLAIN) == 0
    assert none.sample() == []
    assert sought_in(pairs, 0, 1, 1, 3, 2).share(PLAIN) == pytest.approx(2 / 6)
    # the last place a signature fits at is looked at
    end = Sought(
        pair(np.uint8([[3, 4, 5]]), np.uint8([9, 3, 4, 5])),
        Signature(0, 1, 1, 3, 1),
    )
    assert end.look_up(Change()).place.tolist() == [[1, 2, 3]]


def test_copies_are_distances_that_most_share() -> None:
    tensor = np.arange(20, dtype=np.uint8) + 1

    twice = np.concatenate([tensor, np.zeros(5), tensor])
    for buffer, expected in (
        (twice, (25,)),
        (tensor, ()),
        (np.tile(tensor, 3), (20, 40)),
        (np.tile(tensor, 16), tuple(range(20, 320, 20))),
        (np.tile(tensor, 17), ()),
        # more than half of them twice: copies; fewer: none
        (row_of(tensor, tensor[:11]), (20,)),
        (row_of(tensor, tensor[:9]), ()),
        # half at one distance, half at another: no distance is that of most
        (row_of(tensor, tensor[:10], np.zeros(3), tensor[10:]), ()),
        (row_of(tensor, tensor[:11], np.zeros(3), tensor[11:]), (20,)),
    ):
        assert look_up(pair(tensor, buffer)).copies == expected
    # elements that are not there, or share a value, have no say
    for more in (np.arange(100, 150), np.full(50, 99)):
        both = row_of(tensor, more)
        assert look_up(pair(both, row_of(twice, [99]))).copies == (25,)
    wide = tensor.astype(np.uint16)
    both = np.concatenate([wide, wide, wide[:3] * 0, wide]).view(np.uint8)
    for step in (1, 2):
        assert look_up(pair(wide, both, "uint16"), 0, step).copies == (40, 86)


def test_shares_are_of_a_sample_that_is_there() -> None:
    sought = sought_in(pair([1, 2, 3, 4], [1, 2, 3, 9]))
    assert sought.share(PLAIN, [np.uint8([1, 2, 3, 4])]) == 0.75
    assert sought.share(PLAIN, [np.uint8([4])]) == 0
    assert sought.share(Change(add=5), [np.uint8([4])]) == 1
    assert sought.share(PLAIN, []) == 0
    assert sought.share(PLAIN, [np.zeros(0, np.uint8)]) == 0
    assert sought_in(pair([1], [1]), 5, 1).share(PLAIN, [np.uint8([1])]) == 0
    for name, changed in (("add", int.__add__), ("xor", int.__xor__)):
        expected = np.zeros(256, int)
        for value, number in product((1, 2), range(256)):
            expected[number] += changed(value, number) % 256 in (1, 2, 3, 9)
        assert np.array_equal(sought.often(name, [np.uint8([1, 2])]), expected)
    assert len(sought.often("add", [np.full(40, 1, np.uint8)])) == 256
    assert sought.often("add", [np.full(40, 1, np.uint8)]).max() == 16
    assert len(Sought(pair(list(range(200)), [0]), Signature(0, 1)).sample(10)[0]) <= 10


def test_changes_are_rated_by_what_is_found() -> None:
    tensor = noise(100) % 50
    for change in (Change(), Change(add=128), Change(add=7), Change(xor=0x35)):
        pairs = pair(tensor, change.of(tensor))
        rated = changes(sought_in(pairs))
        assert rated[0][0] == 1
        assert change in [one for share, one in rated if share == 1]
        assert [share for share, _ in rated] == sorted((share for share, _ in rated), reverse=True)
        assert all(share > 0 for share, _ in rated)
        assert len({one for _, one in rated}) == len(rated) <= 18
        assert not any(one.big_endian for _, one in rated)
    wide = noise(200).view(np.uint16)
    for change in (
        Change(big_endian=True),
        Change(add=0x8000, big_endian=True),
        Change(add=0x1234),
        Change(xor=0xFF00),
    ):
        stored = change.of(wide).astype("<u2").view(np.uint8)
        share, best = changes(sought_in(pair(wide, stored, "uint16"), 0, 2))[0]
        assert share == 1
        assert np.array_equal(best.of(wide), change.of(wide))
    for bits in (1, 2, 4):
        few = noise(64) % 2**bits
        for number in range(2**bits):
            rated = changes(sought_in(pair(few, few ^ number, f"uint{bits}"), 0, 1, 0, 8, 1))
            assert (1.0, Change(xor=number)) in rated
    assert [halved(bits) for bits in (1, 4)] == [Change(xor=1), Change(xor=8)]
    assert [halved(bits).add for bits in (8, 16, 32)] == [128, 32768, 2**31]
    nothing = pair(np.full(4, 3, np.uint32), np.zeros(4, np.uint8), "uint32")
    assert changes(sought_in(nothing, 0, 4)) == []


def test_pairs_are_read_otherwise() -> None:
    raw = (np.arange(8, dtype=np.uint8) % 4,)
    pairs = Pairs(raw, (np.arange(8, dtype=np.uint8),), "uint4")
    assert (pairs.bits, pairs.size, pairs.bytes, pairs.itemsize, pairs.shape) == (4, 8, 4, 1, (8,))
    assert Pairs(raw, (np.arange(8, dtype=np.uint8),), "uint8").bytes == 8
    other = pairs.read(4, True)
    assert other.buffers[0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert (
        other.recorded(other.buffers[0]).tolist()
        == pairs.recorded(pairs.buffers[0]).tolist()
        == [0x10, 0x32, 0x54, 0x76]
    )
    assert pairs.read(2, False).buffers[0].tolist() == [2, 3, 0, 1, 6, 7, 4, 5]
    wide = pair([0, 0], np.zeros(16), "uint32")
    odd = pair([0, 0], np.zeros(6))
    for given, orders, swaps in (
        (pairs, (False, True), (0, 4, 2)),
        (wide, (False,), (0, 4, 8, 16)),
        (odd, (False,), (0, 2)),
    ):
        readings = [(one.swap, one.high_first) for one in _readings(given)]
        assert readings == [*product(swaps, orders)]


# Distances of neighbours


@pytest.mark.parametrize(("lag", "seed"), [(1, 0), (3, 1), (-1, 2), (-4, 3), (50, 4)])
def test_distances_of_neighbours(lag: int, seed: int) -> None:
    """Lines of 40 in a sea of small numbers, their neighbours so many elements apart."""
    line = np.random.default_rng(seed).permutation(200)[:120].astype(np.uint8).reshape(3, 40) + 50
    buffer = noise(8000, seed) % 50
    for row, begin in enumerate((100, 2300, 5001)):
        where = begin + lag * np.arange(40) - min(0, 39 * lag)
        buffer[where] = line[row]
    assert lags(pair(line, buffer), 1) == [lag]
    assert lags(pair(line.T.copy(), buffer), 0) == [lag]
    wide = (line.astype(np.uint16) * 257,)
    assert lags(Pairs(wide, ((buffer.astype(np.uint16) * 257).view(np.uint8),), "uint16"), 1) == [
        lag
    ]
    assert lags(pair(line, buffer + 128), 1) == [lag]
    assert lags(pair(line[:, :7], buffer), 1) == []
    assert lags(pair(line[:, :8], buffer), 1) in ([lag], [])
    assert lags(pair(line, noise(8000, seed + 9) % 50), 1) == []


def test_a_distance_needs_two_windows_and_three_are_kept() -> None:
    rng = np.random.default_rng(0)
    line = rng.permutation(250)[:240].astype(np.uint8).reshape(5, 48)
    buffer = np.full(6000, 251, np.uint8)
    at = 0
    for row, lag in enumerate((2, 3, 5, 7, 2)):
        buffer[at : at + 48 * lag : lag] = line[row]
        at += 48 * lag + 10
    found = lags(pair(line, buffer), 1)
    assert len(found) <= 3
    assert set(found) <= {2, 3, 5, 7}
    # one window alone says nothing: nine elements have no more than one place each to begin
    one = np.arange(1, 9, dtype=np.uint8)[None]
    buffer = np.zeros(300, np.uint8)
    buffer[100:124:3] = one[0]
    windows = [
        *_windows([one], np.sort(buffer), np.argsort(buffer, kind="stable").astype(np.int32))
    ]
    assert len(windows) == 8
    assert all(_distances(window, [buffer]) == {3} for window in windows)
    assert lags(pair(one, buffer), 1) == [3]


def test_distances_are_those_at_which_all_values_stand() -> None:
    def distances(values: list[int], cells: list[int], rare: tuple[int, int]) -> set[int]:
        cell = np.array(cells, np.uint8)
        return _distances(
            Window(
                [np.array(values, np.uint8)],
                [np.flatnonzero(cell == one).astype(np.int32) for one in values],
                rare,
            ),
            [cell],
        )

    def slow(values: list[int], cells: list[int]) -> set[int]:
        n = len(cells)
        return {
            lag
            for lag, begin in product(range(-n, n + 1), range(n))
            if lag
            and all(
                0 <= begin + at * lag < n and cells[begin + at * lag] == value
                for at, value in enumerate(values)
            )
        }

    rng = np.random.default_rng(0)
    seen: set[int] = set()
    for _ in range(60):
        cells = rng.integers(0, 3, 14).tolist()
        values = rng.integers(0, 3, 3).tolist()
        for rare in ((0, 1), (0, 2), (1, 2)):
            assert distances(values, cells, rare) == slow(values, cells)
            seen |= slow(values, cells)
    assert {-6, -1, 1, 6} <= seen


# What is left


def test_runs() -> None:
    for text in ("", "0", "1", "0110", "1101", "111", "10101"):
        expected, start = [], None
        for at, one in enumerate([*text, "0"]):
            if one == "1" and start is None:
                start = at
            elif one == "0" and start is not None:
                expected.append((start, at))
                start = None
        assert runs_of(np.array([one == "1" for one in text], bool)) == expected


def test_agreeing_with_copies_and_ends() -> None:
    spread = Layout((3,), (Loop(0, 1, 4),), copies=(1, -1), offset=1, size=12)
    for buffer, agrees in (
        ([1, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3, 0], [0, 1, 2]),
        ([1, 1, 1, 0, 2, 2, 2, 0, 3, 3], [0, 1]),
        ([1, 1, 1, 0, 2, 2, 9, 0, 3, 3, 3, 0], [0, 2]),
        ([1, 1, 1, 0, 9, 2, 2, 0, 3, 3, 3, 0], [0, 2]),
    ):
        got = agreeing(spread, pair([1, 2, 3], buffer))
        assert np.flatnonzero(got).tolist() == agrees
    table = Table((3,), np.array([0, -1, 2]), size=3)
    assert agreeing(table, pair([5, 6, 7], [5, 6, 7])).tolist() == [True, False, True]
    assert agreeing(table, pair([5, 6, 7], [5, 6])).tolist() == [True, False, False]


def test_what_a_buffer_holds_beside_its_elements() -> None:
    """The usual value between elements is fill, what is the same in all captures constants, the
    rest is left.
    """
    layout = Layout((2, 3), (Loop(0, 1, 8), Loop(1, 1, 1)), offset=4, size=30)
    buffers = []
    for at in range(2):
        buffer = np.full(30, 7, np.uint8)
        buffer[:4] = [1, 2, 3, 9 + at]
        buffer[layout.index_map()] = 10 * at + np.arange(6).reshape(2, 3)
        buffer[20:30] = 5
        buffer[29] = 6 + at
        buffers.append(buffer)
    raw = tuple(10 * at + np.arange(6, dtype=np.uint8).reshape(2, 3) for at in range(2))
    pairs = Pairs(raw, tuple(buffers), "uint8")
    account, filled, rest = accounted(layout, pairs)
    assert (account.fill, filled) == (7, 10)
    assert account.parts == (Constant(0, b"\1\2\3"), Constant(20, b"\5", 9))
    assert np.flatnonzero(rest).tolist() == [3, 29]
    assert unexplained(rest, pairs) == (Run(3, 1, b"\x09"), Run(29, 1, b"\x06"))
    # of one capture nothing is constant; of one and the same value up to 8 bytes are written out
    alone, _, left = accounted(layout, replace(pairs, raw=raw[:1], buffers=pairs.buffers[:1]))
    assert alone.parts == ()
    assert np.flatnonzero(left).tolist() == [0, 1, 2, 3, *range(20, 30)]
    assert unexplained(left, pairs) == (Run(0, 4, b"\1\2\3\x09"), Run(20, 10, b"\5" * 8))
    assert [str(one) for one in unexplained(left, pairs)] == [
        "4 at byte 0 (01 02 03 09)",
        "10 at byte 20 (05 05 05 05 05 05 05 05 ...)",
    ]
    for size, part in ((8, Constant(12, b"\5" * 8)), (9, Constant(12, b"\5", 9))):
        row = Layout((2,), (Loop(0, 1, 10),), size=13 + size)
        buffers = [
            row_of([at + 1], np.full(9, 7), [at + 3], [7], [5] * size, [7]) for at in range(2)
        ]
        found, _, left = accounted(
            row,
            Pairs(tuple(np.uint8([at + 1, at + 3]) for at in range(2)), tuple(buffers), "uint8"),
        )
        assert found.parts == (part,)
        assert not left.any()


@pytest.mark.parametrize("runs", [256, 257])
def test_so_many_constants_become_parts(runs: int) -> None:
    buffers = [np.zeros(2 * runs + 6, np.uint8) for _ in range(2)]
    layout = Layout((2,), (Loop(0, 1, 4),), size=2 * runs + 6)
    for at, one in enumerate(buffers):
        one[[0, 4]] = [1 + at, 3 + at]
        one[6::2][:runs] = 9
    account, _, rest = accounted(
        layout, Pairs(tuple(np.uint8([1 + at, 3 + at]) for at in range(2)), tuple(buffers), "uint8")
    )
    assert (len(account.parts), int(np.count_nonzero(rest))) == (
        (256, 0) if runs == 256 else (0, 257)
    )


def test_fill_is_the_usual_element_of_whole_ones() -> None:
    layout = Layout((1,), (), dtype="uint16", offset=1)
    pairs = pair([0x0201], [9, 1, 2, 3, 4, 3, 4, 5, 6, 7], "uint16")
    where = np.ones(10, bool)
    assert _usual(where, layout, pairs) == 0x0403
    assert _usual(where, replace(layout, big_endian=True), pairs) == 0x0304
    where[4] = where[6] = False
    assert _usual(where, layout, pairs) in (0x0201, 0x0605)
    where[:] = False
    where[[1, 3, 5, 7, 8]] = True
    assert _usual(where, layout, pairs) == 0x0605
    where[8] = False
    assert _usual(where, layout, pairs) == 0
    one = Layout((1,), ())
    assert _usual(np.ones(5, bool), one, pair([1], [4, 5, 4, 5, 4])) == 4
    assert _usual(np.array([0, 1, 0, 0, 1], bool), one, pair([1], [4, 5, 4, 4, 5])) == 5


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("fill", [0, 3, 250])
@pytest.mark.parametrize("shape", [(5, 6), (7, 4), (2, 9)])
def test_sums_beside_elements_are_found(dtype: str, fill: int, shape: tuple[int, int]) -> None:
    layout = packed_blocks(shape, 4, 4, dtype=dtype, sums=True, fill=fill)
    tensors = [
        np.random.default_rng(at).integers(0, 256, shape, np.uint8).view(dtype) for at in range(3)
    ]
    pairs = pairs_of(layout, tensors)
    account, _, rest = accounted(replace(layout, parts=(), fill=0), pairs)
    assert not rest.any()
    assert account.fill == fill
    for tensor in tensors:
        assert account.pack(tensor) == layout.pack(tensor)
    sums = sums_in(account)
    assert [(one.offset, one.axis, one.signed or dtype == "uint8") for one in sums] == [
        (layout.parts[0].offset, 1, True)
    ]
    assert (sums[0].fills, sums[0].count) == (
        layout.parts[0].fills if fill else 0,
        layout.parts[0].count,
    )


def test_sums_of_rows_and_of_unsigned() -> None:
    tensors = [noise(20, at).reshape(4, 5) for at in range(2)]
    for axis, (signed, offset) in product((0, 1), ((False, 20), (False, 23), (True, 20))):
        count = (4, 5)[axis]
        layout = hwc(
            (4, 5), size=offset + 4 * count, parts=(Sums(offset, axis, count, signed=signed),)
        )
        account, filled, rest = accounted(replace(layout, parts=()), pairs_of(layout, tensors))
        (found,) = sums_in(account)
        assert found == Sums(offset, axis, count, signed=signed)
        assert (filled, rest.any()) == (offset - 20, False)
    # not where an element is a float, or has fewer than 8 bits
    for dtype, kind in (("float16", np.uint16), ("uint4", np.uint8)):
        plain = hwc((2, 4), dtype=np.dtype(kind).name)
        whole = replace(plain, size=0, parts=(Sums(plain.size, 1, 4),))
        raw = [noise(plain.size, at).view(kind).reshape(2, 4) % 16 for at in range(2)]
        pairs = replace(pairs_of(whole, raw), dtype=dtype)
        assert not sums_in(accounted(hwc((2, 4), dtype=dtype, size=pairs.bytes), pairs)[0])


def test_sums_of_wide_elements_wrap() -> None:
    tensors = [
        np.frombuffer(noise(48, at).tobytes(), np.uint32).reshape(3, 4) | 2**31 for at in range(2)
    ]
    for signed in (True, False):
        layout = hwc((3, 4), dtype="uint32", size=48 + 16, parts=(Sums(48, 1, 4, signed=signed),))
        account, _, rest = accounted(replace(layout, parts=()), pairs_of(layout, tensors))
        # modulo 2 ** 32 signed and unsigned sums are equal
        assert [replace(part, signed=signed) for part in sums_in(account)] == [*layout.parts]
        assert not rest.any()


def test_fill_is_looked_for_between_elements_first() -> None:
    for buffer in ([1, 7, 2, 5, 5, 5], [5, 5, 5, 1, 7, 2], [5, 5, 1, 7, 2, 5]):
        offset = buffer.index(1)
        layout = Layout((2,), (Loop(0, 1, 2),), offset=offset, size=6)
        account, filled, rest = accounted(layout, pair([1, 2], buffer))
        assert (account.fill, filled) == (7, 1)
        assert int(np.count_nonzero(rest)) == 3


def test_windows_are_as_short_as_chance_allows() -> None:
    """Beginning, ending or about the middle at a rare value, never past the ends of the line."""
    line = np.arange(64, dtype=np.uint8)
    lines = [line[None]]
    count = 8
    # 1448 places of each of two values are compared, 1449 are more than 2 ** 21 together
    for shown in (1, 40, 1448, 1449):
        buffer = row_of(np.tile(line, shown), np.full(10, 200))
        order = np.argsort(buffer, kind="stable").astype(np.int32)
        windows = [*_windows(lines, buffer[order], order)]
        assert len(windows) == (0 if shown == 1449 else 48)
        for turn, window in enumerate(windows):
            start = min(max(turn - (0, count - 1, count // 2)[turn % 3], 0), 64 - count)
            assert window.values[0].tolist() == list(range(start, start + count)), turn
            assert [len(one) for one in window.places] == [shown] * count
            assert window.rare == (0, 1)
            assert all(
                (buffer[where] == value).all()
                for where, value in zip(window.places, window.values[0], strict=True)
            )


@pytest.mark.parametrize(("size", "count"), [(4, 8), (6, 16), (64, 16), (66, 32), (2000, 32)])
def test_windows_of_two_values_are_longer(size: int, count: int) -> None:
    """Half of the places have each: n of them stand somewhere by chance in ``size ** 2 / 2 **
    n`` ways, one in 16 is borne.
    """
    buffer = np.arange(size, dtype=np.uint8) % 2
    order = np.argsort(buffer, kind="stable").astype(np.int32)
    lines = [np.arange(40, dtype=np.uint8)[None] % 2]
    assert {len(window.values[0]) for window in _windows(lines, buffer[order], order)} == {count}
    assert not [*_windows([lines[0][:, : count - 1]], buffer[order], order)]
    assert [*_windows([lines[0][:, :count]], buffer[order], order)]


# Steps of the search


def trial(layout: Any, pairs: Pairs, seen: Seen | None = None) -> _Trial:
    return _Trial(layout, agreeing(layout, pairs), seen, pairs)


def seen_of(places: list[int], count: list[int]) -> Seen:
    return Seen(np.array(places), np.array(count, np.uint8), np.zeros(len(places), bool), ())


def test_elements_begin_at_the_step_of_their_size() -> None:
    raw = np.array([0x0102, 0x0304, 0x0506, 0x0708], np.uint16)
    data = raw.view(np.uint8)
    for front, signature in (
        (0, Signature(0, 2)),
        (1, Signature(1, 2)),
        (2, Signature(0, 2)),
        (3, Signature(1, 2)),
    ):
        buffer = np.concatenate([np.zeros(front, np.uint8), data])
        assert _in_step(pair(raw, buffer, "uint16")) == signature
    mixed = row_of(data[:4], [9], data[4:])
    assert _in_step(pair(raw, mixed, "uint16")) == Signature(0, 1)
    partly = row_of([9], data[:6], [9, 9])
    assert _in_step(pair(raw, partly, "uint16")) == Signature(1, 2)
    assert _in_step(pair(raw.view(np.uint8), mixed)) == Signature(0, 1)


def test_how_much_values_tell() -> None:
    assert _entropy(pair([5] * 8, [0])) == 0
    assert _entropy(pair([1, 2, 3, 4], [0])) == 2
    assert _entropy(pair([1, 1, 2, 2], [0])) == 1
    two = Pairs(
        (np.uint8([1, 2, 3, 4]), np.uint8([1, 1, 2, 2])), (np.zeros(1, np.uint8),) * 2, "uint8"
    )
    assert _entropy(two) == 3
    # of many elements about as many as are enough, from all over the tensor
    many = pair(np.repeat(np.arange(4, dtype=np.uint8), 2**16), np.zeros(1, np.uint8))
    assert _entropy(many) == 2


def test_what_chance_gives() -> None:
    pairs = pair(np.zeros(100, np.uint8), np.uint8([0, 0, 0, 1, 2]))
    assert _chance(pairs) == 100 * 2 / 256
    two = Pairs(
        (np.zeros(100, np.uint8),) * 2,
        (np.uint8([0, 0, 0, 1, 2]), np.uint8([4, 4, 5, 4, 4])),
        "uint8",
    )
    assert _chance(two) == 100 * 3 / 2**16
    assert _chance(pair(np.zeros(100, np.uint8), np.arange(200, dtype=np.uint8), "uint4")) == 100
    wide = pair(np.zeros(100, np.uint16), np.uint8([0, 0, 0, 1, 2]), "uint16")
    assert _chance(wide) == 100 * 2 / 2**16


def test_most_of_a_buffer_is_something_else() -> None:
    for dtype, wide in (("uint8", 1), ("uint16", 2)):
        for size, sparse in ((4 * 10 * wide, False), (4 * 10 * wide + 1, True), (10 * wide, False)):
            assert _sparse(pair(np.zeros(10, dtype), np.zeros(size, np.uint8), dtype)) == sparse


def test_how_far_a_layout_agrees() -> None:
    tensor = np.arange(20, dtype=np.uint8) + 1
    whole = pairs_of(hwc((20,)), [tensor])
    assert _share(hwc((20,)), whole, 64) == 1
    assert _share(hwc((20,), xor=255), whole, 64) == 0
    assert _share(Layout((20,), (Loop(0, 1, 1),), offset=30), whole, 64) == 0
    cut = replace(whole, buffers=(whole.buffers[0][:10],))
    assert _share(hwc((20,)), cut, 64) == 1
    one = trial(hwc((20,)), cut)
    assert (one.count, one.known, _in_buffer(one)) == (10, 0, 10)
    assert not _complete(one)  # no more than half
    more = trial(hwc((20,)), replace(whole, buffers=(whole.buffers[0][:11],)))
    assert _complete(more)
    assert _unexplained(more) is None
    assert _unexplained(trial(hwc((20,)), pairs_of(hwc((20,), size=25, fill=0), [tensor]))) == 0
    part = trial(hwc((20,), window=((0, 12),)), replace(whole, buffers=(whole.buffers[0][:12],)))
    assert (_in_buffer(part), _complete(part)) == (12, True)
    assert _agreeing_offsets(hwc((20,)), pairs_of(hwc((20,), offset=5), [tensor]), [0, 3, 5]) == [5]
    wide = pairs_of(hwc((9,), dtype="uint16"), [np.arange(9, dtype=np.uint16)])
    assert (
        _in_buffer(
            trial(hwc((10,), dtype="uint16"), replace(wide, raw=(np.arange(10, dtype=np.uint16),)))
        )
        == 9
    )
    some = replace(whole, raw=(whole.raw[0][:3],))
    assert _in_buffer(trial(Table((3,), np.array([0, -1, 2]), size=20), some)) == 2


def test_when_a_layout_is_enough() -> None:
    tensor = np.arange(100, dtype=np.uint8) + 1
    layout = hwc((100,))
    for right, fits in ((100, True), (90, True), (89, False)):
        buffer = row_of(tensor[:right], np.zeros(100 - right))
        assert _fits(trial(layout, pair(tensor, buffer))) == fits
    for n, right, fits in ((5, 5, True), (5, 4, False), (8, 8, True), (9, 8, False)):
        buffer = row_of(tensor[:right], np.zeros(n - right))
        assert _fits(trial(hwc((n,)), pair(tensor[:n], buffer))) == fits, n
    assert not _fits(trial(layout, pair(tensor, tensor[:7])))
    assert _fits(trial(layout, pair(tensor, tensor[:8])))
    # more places that are known than agree speak against it
    pairs = pair(tensor, tensor[:50])
    for more, fits in ((55, True), (56, False)):
        seen = seen_of([0] * 100, [1] * more + [0] * (100 - more))
        assert _fits(trial(layout, pairs, seen)) == fits
    for some, proven in ((26, True), (25, False)):
        assert (
            _proven(trial(layout, pairs, seen_of([0] * 100, [1] * some + [0] * (100 - some))))
            == proven
        )
    # three more than agree, and twice what chance gives (here 0.2), may be known elsewhere
    wide = tensor.astype(np.uint16)
    pairs = pair(wide, wide[:60].view(np.uint8), "uint16")
    for more, complete in ((63, True), (64, False)):
        assert (
            _complete(
                trial(
                    hwc((100,), dtype="uint16"),
                    pairs,
                    seen_of([0] * 100, [1] * more + [0] * (100 - more)),
                )
            )
            == complete
        )


def test_a_table_needs_more_than_chance_gives() -> None:
    """Of more than six elements four have to be found, of fewer one."""
    for n, have, enough in ((7, 4, True), (7, 3, False), (6, 1, True), (6, 0, False)):
        places = [*range(have), *[-1] * (n - have)]
        pairs = pair(np.zeros(n, np.uint8), np.zeros(20, np.uint8))
        seen = seen_of(places, [1] * have + [0] * (n - have))
        if enough:
            assert _table(pairs, seen).places.tolist() == places
        else:
            with pytest.raises(
                ValueError,
                match=rf"^buffers: got no nest of loops, and a place for {have} of {n} elements in 20 bytes, allowed are more elements than chance places, about 0$",
            ):
                _table(pairs, seen)
    with pytest.raises(ValueError, match=r"a place for 0 of 3 elements"):
        _table(pair(np.zeros(3, np.uint8), np.zeros(20, np.uint8)), None)


def test_the_smallest_pairs() -> None:
    found = find_layout(np.uint16([0x1234]), b"\x34\x12")
    assert (found.own, found.index_map().tolist()) == (1, [0])
    for tensors, buffers, dtype, said in (
        (np.uint16([0x1234]), b"4", "", r"^buffers\[0\]: got 1 bytes, allowed is 2 to 2147483648$"),
        (np.zeros(0, np.uint8), b"4", "", r"^tensors\[0\]: got uint8 \(0,\), allowed are 1 to "),
        (np.uint8(3), b"4", "", r"^tensors\[0\]: got uint8 \(\), allowed are 1 to 67108864 "),
        (np.zeros(3, np.int16), b"4", "uint4", "elements of uint8$"),
        (np.zeros(3, np.uint8), b"4", "uint17", "^dtype: got 'uint17', allowed is one of "),
        (
            [np.zeros(3, np.uint8), np.zeros(3, np.int8)],
            [b"abc", b"abc"],
            "",
            r"^tensors\[1\]: got int8 \(3,\), allowed is uint8 \(3,\), as the first tensor is$",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            find_layout(tensors, buffers, dtype=dtype)


def test_a_report_counts_every_element() -> None:
    tensors = markers((6, 8), captures=2)
    layout = hwc((6, 8), row_pitch=10, offset=2, size=70, fill=9)
    buffers = [bytearray(layout.pack(one)) for one in tensors]
    for one in buffers:
        one[layout.index_map()[2, 3]] ^= 0x55
    found = find_layout(tensors, [bytes(one) for one in buffers])
    assert np.array_equal(found.layout.index_map(), layout.index_map())
    assert (
        found.own,
        found.shared,
        found.missing.tolist(),
        found.past_end,
        found.outside,
        found.captures,
    ) == (47, 0, [[2, 3]], 0, 0, 2)
    assert (found.filled, found.unexplained, found.rivals, found.tried, found.elsewhere) == (
        22,
        (),
        (),
        0,
        0,
    )
    assert found.index_map()[2, 3] == -1


def test_the_plainest_explains_most() -> None:
    """Of the layouts that agree the first of those that leave the fewest bytes; none where the
    best so far leaves as few.
    """
    outcomes = set()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        buffer = np.resize(
            np.repeat(rng.choice([5, 5, 6, 7], 12), rng.integers(1, 5, 12)), 26
        ).astype(np.uint8)
        pairs = pair(np.full(3, 5, np.uint8), buffer)
        agree = [
            replace(layout, offset=offset, size=26)
            for layout, offsets in candidates((3,), 26)
            for offset in offsets
            if (buffer[layout.index_map() + offset] == 5).all()
        ][:64]
        left = [int(np.count_nonzero(accounted(one, pairs)[2])) for one in agree]
        found = _plainest(pairs, None)
        if not agree:
            assert found is None
            continue
        best = agree[left.index(min(left))]
        assert found is not None
        assert found.layout == best
        assert found.count == 3
        for one, least in [*zip(agree, left, strict=True)][::2]:
            more = _plainest(pairs, trial(one, pairs))
            outcomes.add(more is None)
            assert (more is None) == (min(left) >= least > 0)
            assert more is None or more.layout == best
    assert True in outcomes
    # what lies between the elements is taken for fill: steps of four leave more
    pairs = pair(np.uint8([5, 5]), np.uint8([5, 7, 7, 7, 5, 5, 6, 6, 6, 6, 6, 6]))
    for stride, offset, better in ((4, 0, True), (1, 4, False)):
        found = _plainest(
            pairs, trial(Layout((2,), (Loop(0, 1, stride),), offset=offset, size=12), pairs)
        )
        assert (found is not None) == better
        assert not better or found.layout == Layout((2,), (Loop(0, 1, 1),), offset=4, size=12)  # type: ignore[union-attr]


def test_the_plainest_may_be_changed() -> None:
    tensor = noise(12).reshape(3, 4)
    for change in (Change(), Change(add=128), Change(add=9)):
        pairs = pair(tensor, np.concatenate([np.full(4, 200, np.uint8), change.of(tensor).ravel()]))
        best = trial(hwc((3, 4), add=change.add), pairs)
        found = _plainest(pairs, best)
        assert found is not None
        assert (found.layout.add, found.layout.index_map().ravel().tolist()) == (
            change.add,
            list(range(4, 16)),
        )
        assert (_plainest(pairs, None) is None) == (change.add == 9)


def test_the_better_of_two() -> None:
    tensor = np.arange(6, dtype=np.uint8)
    pairs = pair(tensor, tensor)
    whole, none = trial(hwc((6,)), pairs), trial(hwc((6,), add=1), pairs)
    same = trial(hwc((6,)), pairs)
    assert _better(None, None) is None
    assert _better(None, none) is none
    assert _better(none, None) is none
    assert _better(none, whole) is whole
    assert _better(whole, none) is whole
    assert _better(whole, same) is whole


def test_agreeing_candidates_are_counted_and_agree() -> None:
    tensor = np.arange(6, dtype=np.uint8).reshape(2, 3)
    buffer = row_of([9, 9, 9, 9], tensor.ravel(), [9] * 6)
    pairs, counter = pair(tensor, buffer), [0]
    found = [*_agreeing_candidates(pairs, {}, counter)]
    assert counter[0] == len([*candidates((2, 3), 16)])
    assert found
    assert all(
        one.index_map().ravel().tolist() == list(range(4, 10)) and one.size == 16 for one in found
    )
    assert found[0] == hwc((2, 3), offset=4, size=16)
    # one wrong element of many is seen
    many = noise(3000)
    for wrong in (0, 1234, 2999):
        buffer = many.copy()
        buffer[wrong] ^= 1
        assert not [*_agreeing_candidates(pair(many, buffer), {})]


def test_ways_of_reading_values() -> None:
    """As they are first, then at most three changes or steps that find some, the most first."""
    tensor = noise(64, 3).view(np.uint16)
    for change, front in ((Change(big_endian=True), 1), (Change(xor=0x8001), 2)):
        buffer = row_of(np.zeros(front), change.of(tensor).astype("<u2").view(np.uint8))
        pairs = pair(tensor, buffer, "uint16")
        ways = [*_by_value(pairs, Signature(0, 2))]
        assert ways[0][1] == Change()
        assert len(ways) <= 4
        full = [(one, seen.place.tolist()) for seen, one in ways if known(seen).all()]
        assert full
        assert all(
            np.array_equal(one.of(tensor), change.of(tensor))
            and place == list(range(front, front + 64, 2))
            for one, place in full
        )
    # where values tell less than two bits short of the place of an element they are looked for as
    # they are alone
    for distinct, more in ((64, True), (63, False)):
        many = np.resize(np.arange(distinct, dtype=np.uint8), 256)
        ways = [*_by_value(pair(many, many + 128), Signature(0, 1))]
        assert (len(ways) > 1) == more


def test_trials_of_neighbours() -> None:
    """Of so many elements, so many elements apart, along an axis that has as many."""
    tensor = noise(60, 5).reshape(6, 10)
    pairs = pairs_of(hwc((6, 10), row_pitch=12), [tensor])
    for count, lag, axis, found in (
        (3, 1, 1, True),
        (10, 1, 1, True),
        (11, 1, 1, False),
        (3, 2, 1, False),
        (6, 12, 0, True),
        (7, 12, 0, False),
        (3, -1, 1, False),
        (3, 13, 0, False),
    ):
        trials = [*_neighbours(pairs, [(count, lag, axis)])]
        whole = [one for one in trials if one is not None and one.count == 60]
        assert len(whole) == found, (count, lag, axis)
        assert all(
            np.array_equal(one.layout.index_map(), hwc((6, 10), row_pitch=12).index_map())
            for one in whole
        )
        assert all(one is None or one.seen is None for one in trials)
    back = Layout((6, 10), (Loop(0, 1, 10), Loop(1, 1, -1)), offset=9)
    pairs = pairs_of(back, [tensor])
    for count in (3, 10):
        (one,) = _neighbours(pairs, [(count, -1, 1)], pairs)
        assert one is not None
        assert np.array_equal(one.layout.index_map(), back.index_map())
    # lines of all axes together, wide elements, changed
    wide = noise(80, 6).view(np.uint16).reshape(4, 10)
    for add in (0, 0x8000):
        pairs = pairs_of(hwc((4, 10), dtype="uint16", add=add), [wide])
        lined = replace(pairs, raw=(pairs.raw[0].reshape(40),))
        whole = [
            one
            for one in _neighbours(pairs, [(3, 1, 0)], lined)
            if one is not None and one.count == 40
        ]
        assert whole
        assert all(
            one.layout.index_map().ravel().tolist() == list(range(0, 80, 2))
            and one.layout.add == add
            for one in whole
        )


def test_rivals_are_told_apart_by_their_places() -> None:
    """Of 2 times 3 equal elements in their bytes alone the other order is a rival."""
    one = find_layout(np.full((2, 3), 5, np.uint8), bytes([5] * 6))
    assert (len(one.rivals), one.more_rivals, one.own, one.shared) == (
        len({str(rival.index_map()) for rival in one.rivals}),
        False,
        0,
        6,
    )
    assert one.tried == len([*candidates((2, 3), 6)])
    assert f"{one.index_map()}" not in {f"{rival.index_map()}" for rival in one.rivals}


def test_a_report_of_what_is_past_the_end_or_elsewhere() -> None:
    tensors = markers((8, 10))
    layout = hwc((8, 10))
    buffers = [bytearray(layout.pack(one)) for one in tensors]
    cut = find_layout(tensors, [bytes(one[:73]) for one in buffers])
    assert (cut.own, len(cut.missing), cut.past_end, cut.outside, cut.elsewhere) == (73, 7, 7, 0, 0)
    for one in buffers:
        one[0], one[1] = one[1], one[0]
    moved = find_layout(tensors, [bytes(one) for one in buffers])
    assert (moved.own, moved.missing.tolist(), moved.past_end, moved.outside, moved.elsewhere) == (
        78,
        [[0, 0], [0, 1]],
        0,
        0,
        2,
    )
    # the last element of a buffer is not past its end
    for one in buffers:
        one[79] ^= 0x11
    last = find_layout(tensors, [bytes(one) for one in buffers])
    assert (last.missing.tolist(), last.past_end) == ([[0, 0], [0, 1], [7, 9]], 0)
    wide = markers((4, 10), "uint16")
    for size, past in ((80, 0), (79, 1), (78, 1), (77, 2)):
        found = find_layout(wide, [hwc((4, 10), dtype="uint16").pack(one)[:size] for one in wide])
        assert (found.past_end, found.own) == (past, 40 - past)
    window = find_layout(tensors, [hwc((8, 10)).pack(one)[20:60] for one in tensors])
    assert (window.outside, window.own, window.sure) == (40, 40, True)
    assert window.index_map().ravel().tolist() == [-1] * 20 + [*range(40)] + [-1] * 20


@pytest.mark.parametrize(
    "stored",
    [
        {"swap": 4},
        {"swap": 8, "dtype": "uint16"},
        {"dtype": "uint4", "big_endian": True},
        {"dtype": "uint4", "swap": 2},
        {"dtype": "uint2", "swap": 4, "big_endian": True},
    ],
)
def test_buffers_that_are_read_otherwise(stored: dict[str, Any]) -> None:
    """Swapped, or as a nest of loops that says the same of every element."""
    tensors = markers((3, 11), stored.get("dtype", "uint8"))
    layout = hwc((3, 11), **stored)
    found = find_layout(
        tensors, [layout.pack(one) for one in tensors], dtype=stored.get("dtype", "")
    )
    assert np.array_equal(found.index_map(), layout.index_map())
    assert (found.own, found.tried) == (33, 0)
    assert found.pack(tensors[0][::-1]) == layout.pack(tensors[0][::-1])


def test_constants_beside_codes_of_4_bits_explain_their_own_bytes_only() -> None:
    plain = Layout((8,), (Loop(0, 1, 1),), dtype="int4", offset=16, size=12)
    codes = [np.arange(8, dtype=np.uint8) + at for at in range(2)]
    buffers = []
    for at, one in enumerate(codes):
        # four bytes that differ, four that are constant, four of codes
        bytes_ = [
            *(17 * (at + 1) + n for n in range(4)),
            *b"\x21\x43\x65\x87",
            *(int(low | high << 4) for low, high in one.reshape(4, 2)),
        ]
        buffers.append(opened(np.array(bytes_, np.uint8), 4, 0, False))
    pairs = Pairs(tuple(codes), tuple(buffers), "int4")
    account, filled, rest = accounted(plain, pairs)
    assert (account.fill, filled) == (1, 0)  # a half of a byte that is constant is no fill
    assert account.parts == (Constant(4, b"\x21\x43\x65\x87"),)
    assert np.flatnonzero(rest).tolist() == list(range(8))


def test_copies_past_the_end_of_a_buffer_are_not_accounted() -> None:
    layout = replace(Layout((2,), (Loop(0, 1, 1),), size=4), copies=(2,))
    pairs = pair([1, 2], [1, 2, 1])
    assert np.flatnonzero(accounted(layout, pairs)[2]).tolist() == []
