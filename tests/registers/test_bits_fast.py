"""Decoding and encoding of many captures against ``Field.extract`` and ``Field.insert``, one
field at a time.
"""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from round_trip import row

from npulab.registers import map as bits
from npulab.registers.fields import WORD_BITS
from npulab.registers.map import RegisterMap

SHAPES = [(), (1,), (0,), (7,), (2, 0, 3), (3, 2, 5), (300,)]
MOST = {np.float64: 2**53 - 1, object: 2**64 - 1}


def random_map(seed: int) -> RegisterMap:
    """Words cut at random places: fields, pieces of split fields (some with gaps) and bits
    without a row.
    """
    random = np.random.RandomState(seed)
    runs = []
    for word in range(random.randint(1, 7)):
        cuts = sorted(
            {0, WORD_BITS, *random.randint(1, WORD_BITS, random.choice([0, 1, 3, 8])).tolist()}
        )
        runs += [(word, low, high - low) for low, high in pairwise(cuts)]
    random.shuffle(runs)
    rows = [row("last", 3, 5, offset=4 * 7)]
    while runs:
        kind = random.choice(["plain", "split", "hole"])
        if kind == "hole":
            runs.pop()
        elif kind == "plain":
            word, lsb, width = runs.pop()
            value = random.choice(["", "signed", "raw*3+1"])
            rows.append(row(f"f{len(rows)}", lsb, width, offset=4 * word, value=value))
        else:
            at, name = random.choice([0, 0, 5]), f"s{len(rows)}"
            for _ in range(random.randint(1, 5)):
                if runs and at + runs[-1][2] <= 60:
                    word, lsb, width = runs.pop()
                    rows.append(row(name, lsb, width, offset=4 * word, at=at))
                    at += width + random.choice([0, 0, 2])
    return RegisterMap(rows)


def random_words(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)


@pytest.fixture(params=[False, True], ids=["blocks as they are", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few captures have many blocks, tiles and pieces of memory."""
    if request.param:
        for name, number in (("BLOCK_ROWS", 11), ("TILE_WORDS", 0), ("SHARED_BYTES", 3000)):
            monkeypatch.setattr(bits, name, number)


@pytest.mark.sample(16)
@pytest.mark.parametrize("seed", range(40))
def test_random_maps(seed: int, blocks: None) -> None:
    registers = random_map(seed)
    for number, shape in enumerate(SHAPES):
        words = random_words((*shape, len(registers)), number)
        words.flags.writeable = False
        raw, meant = registers.decode(words, raw=True), registers.decode(words)
        assert list(raw) == [registers.key(item) for item in registers]
        for item in registers:
            want = item.extract(words)
            got = raw[registers.key(item)]
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(meant[registers.key(item)], item.value(want))
            assert np.shape(got) == shape
            assert isinstance(got, int) if not shape else got.dtype == want.dtype
        again = registers.encode(raw, raw=True)
        assert again.dtype == np.uint32
        np.testing.assert_array_equal(again, words)
        np.testing.assert_array_equal(registers.encode(meant), words)


@pytest.mark.sample(42)
@pytest.mark.parametrize("seed", range(40, 60))
@pytest.mark.parametrize(
    "kind", [np.uint8, np.int16, np.uint32, np.int64, np.uint64, np.float64, object]
)
def test_some_fields_of_any_type(seed: int, kind: type) -> None:
    """Absent fields are 0, narrow values go into wide fields, a number stands for every capture."""
    registers, random = random_map(seed), np.random.RandomState(seed)
    want, values = np.zeros((23, len(registers)), np.uint32), {}
    for item in registers:
        if random.rand() < 0.3:
            continue
        raw = item.extract(random_words((23, len(registers)), seed))
        raw &= raw.dtype.type(min(MOST.get(kind) or np.iinfo(kind).max, np.iinfo(raw.dtype).max))
        values[registers.key(item)] = given = (
            raw[4].astype(kind) if random.rand() < 0.2 else raw.astype(kind)
        )
        item.insert(want, given)
    before = {name: np.copy(value) for name, value in values.items()}
    np.testing.assert_array_equal(registers.encode(values, raw=True), want if values else want[0])
    for name, value in values.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40, 60))
def test_numbers_of_python(seed: int) -> None:
    """Of one capture, and beside an array of many."""
    registers = random_map(seed)
    rows = random_words((2, len(registers)), seed)
    first, second = (registers.decode(row, raw=True) for row in rows)
    for name, item in ((registers.key(item), item) for item in registers):
        want = rows[[0, 0]].copy()
        item.insert(want[1], second[name])
        np.testing.assert_array_equal(
            registers.encode(first | {name: second[name]}, raw=True), want[1]
        )
        both = registers.encode(first | {name: np.array([first[name], second[name]])}, raw=True)
        np.testing.assert_array_equal(both, want)
        for wrong in (-1, 2**item.width):
            with pytest.raises(ValueError, match=f"got raw {wrong}, allowed is 0 to"):
                registers.encode({name: wrong}, raw=True)


def test_transposed_and_foreign_words() -> None:
    registers = random_map(3)
    words = random_words((50, len(registers)), 1)
    want = registers.decode(words, raw=True)
    spread = np.zeros((100, 2 * len(registers)), np.uint32)
    spread[::2, ::2] = words
    for same in (
        np.asfortranarray(words),
        words.astype(">u4"),
        words.astype(np.int64),
        words.tolist(),
        spread[::2, ::2],
    ):
        for name, value in registers.decode(same, raw=True).items():
            np.testing.assert_array_equal(value, want[name])


def test_values_are_their_own() -> None:
    """Changing one value changes neither the words nor another value."""
    registers = RegisterMap([row("word", 0, 32), row("f", 0, 3, offset=4)])
    words = random_words((40, 2), 0)
    before, values = words.copy(), registers.decode(words, raw=True)
    f = values["f"].copy()
    values["word"] += np.uint32(1)
    np.testing.assert_array_equal(words, before)
    np.testing.assert_array_equal(values["f"], f)


def test_a_value_that_does_not_fit_among_many() -> None:
    registers = RegisterMap([row("a", 0, 9), row("b", 9, 3, at=1), row("b", 12, 3, at=5)])
    fits = np.zeros(20_000, np.uint16)
    for kind in (np.uint16, np.int32, np.uint64):
        a = fits.astype(kind)
        a[[19_990, 19_999]] = 512, 600
        with pytest.raises(
            ValueError, match=r"^register w0 field a: got raw 512, allowed is 0 to 511 \(9 bits\)$"
        ):
            registers.encode({"b": fits, "a": a}, raw=True)
    with pytest.raises(ValueError, match=r"field a: got raw -2, allowed is 0 to 511"):
        registers.encode({"a": fits.astype(np.int8) - 2})
    gap = fits.astype(np.uint8)
    gap[7] = 16
    words = np.zeros((20_000, 1), np.uint32)
    for put in (lambda: registers.encode({"b": gap}), lambda: registers.b.insert(words, gap)):
        with pytest.raises(
            ValueError, match=r"^register w0 field b: got a value with bits set that no piece holds"
        ):
            put()
    assert not words.any()


def test_two_spellings_of_one_field_the_last_counts() -> None:
    registers = RegisterMap([row("f", 4, register="R")])
    assert registers.encode({"f": 0xFF, "R.f": 0x21}).tolist() == [0x210]


def test_a_map_that_was_copied_or_sent_decodes_alike() -> None:
    registers = random_map(5)
    words = random_words((9, len(registers)), 2)
    values = registers.decode(words)
    registers.encode(values)
    for other in (copy.deepcopy(registers), pickle.loads(pickle.dumps(registers))):
        np.testing.assert_array_equal(other.encode(other.decode(words)), words)


def test_a_map_of_thousands_of_words() -> None:
    registers = RegisterMap([row("last", 31, 1, offset=4 * 5000)])
    words = random_words((300, len(registers)), 0)
    values = registers.decode(words, raw=True)
    np.testing.assert_array_equal(values["last"], words[:, -1] >> 31)
    np.testing.assert_array_equal(registers.encode(values, raw=True), words)
