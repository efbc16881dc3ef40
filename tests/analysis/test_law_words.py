"""Laws between words of one capture: checksums, addresses that build on each other, and bits that
no layer explains."""

from __future__ import annotations

import zlib

import numpy as np
import pandas as pd
import pytest

from npulab.analysis.laws import Stated, check_stated, find_laws, parse_law
from npulab.analysis.laws.between import checksums
from npulab.analysis.laws.checksums import KINDS, Kind
from npulab.analysis.laws.expressions import Columns
from npulab.analysis.laws.found import Laws
from npulab.analysis.laws.library import Names
from npulab.analysis.laws.search import start
from npulab.analysis.laws.solved import Place
from npulab.analysis.laws.state import State, Watch

CODES = [kind for kind in KINDS.values() if kind.polynomial and not kind.high_first]
SIZES = ("width", "height", "channels")


def layers(n: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame({name: random.integers(4, 200, n) for name in SIZES})


def fields(p: pd.DataFrame) -> list[np.ndarray]:
    """Six words that follow from the layer; two of them are constant."""
    width, height, channels = p[[*SIZES]].to_numpy(np.int64).T
    first = width - 1 + (height - 1) * 2**16
    still = np.full(len(p), 0xC0FFEE01)
    return [first, channels * 2**4, width * channels, still, still * 0, height * 2**20 + 5]


def checked(p: pd.DataFrame, kind: Kind, sign: int = 1) -> np.ndarray:
    """The words of layers, and their checksum in the last word."""
    words = fields(p)
    words.append(sign * kind.value(words, len(p)) % 2 ** kind.widths[0])
    return np.stack(words, 1).astype(np.uint32)


def unsearched(words: np.ndarray) -> State:
    """The state before any law is found, with all bits that vary to be explained."""
    columns = Columns({"number": np.arange(len(words))})
    width = words.shape[1]
    ignored = np.zeros(width, np.uint32)
    quiet = Watch(lambda text: None)
    return start(words, columns, Names(["number"], []), ignored, [0] * width, quiet)


def bitwise(data: bytes, kind: Kind) -> int:
    """A cyclic code as its definition has it, bit by bit."""
    width, state = kind.widths[0], kind.initial
    for byte in data:
        for bit in range(8):
            place = bit if kind.reflected else 7 - bit
            top = (state >> (width - 1)) ^ (byte >> place & 1)
            state = (state << 1) & (2**width - 1)
            if top:
                state ^= kind.polynomial
    if kind.reflected:
        state = int(f"{state:0{width}b}"[::-1], 2)
    return state ^ kind.final


@pytest.mark.parametrize("kind", CODES, ids=[kind.name for kind in CODES])
def test_a_cyclic_code_is_that_of_its_definition(kind: Kind) -> None:
    words = np.random.default_rng(1).integers(0, 2**32, (3, 4))
    for name, order in ((kind.name, "<u4"), (f"{kind.name}_be", ">u4")):
        found = KINDS[name].value(words.T, len(words))
        assert found.tolist() == [bitwise(line.astype(order).tobytes(), kind) for line in words]


def test_crc32_is_that_of_zlib() -> None:
    words = np.array([[0x12345678, 0x9ABCDEF0]])
    assert KINDS["crc32"].value(words.T, 1)[0] == zlib.crc32(words.astype("<u4").tobytes())


def test_a_checksum_is_claimed_only_where_all_its_words_are() -> None:
    seen, unseen = layers(30, 1), layers(100, 2)
    laws = find_laws(checked(seen, KINDS["crc32"]), seen)
    (law,) = [law for law in laws.fields if law.word == 6]
    assert (law.text, law.open) == ("crc32(w0_0_32 to w5_0_32)", False)
    score = laws.score(checked(unseen, KINDS["crc32"]), unseen)
    here = score.by_bit[score.by_bit["word"] == 6]
    assert here["claimed"].sum() > 0.9 * here["cells"].sum()
    assert score.wrong == 0
    far = pd.DataFrame({"width": [50, 5000], "height": [60, 60], "channels": [70, 70]})
    _, mask = laws.predict(far)
    assert mask[:, 6].tolist() == [2**law.width - 1, 0]


def test_a_checksum_takes_the_place_of_laws_that_fit_parts_of_it() -> None:
    seen = layers(24, 13)
    laws = find_laws(checked(seen, KINDS["xor"]), seen)
    assert [law.text for law in laws.fields if law.word == 6] == ["xor(w0_0_32 to w5_0_32)"]


@pytest.mark.sample(10)
@pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])
def test_each_kind_is_found(kind: Kind) -> None:
    words = checked(layers(30, 1), kind)
    found = [solved for solved in checksums(unsearched(words)).solved if solved.word == 6]
    assert [str(solved.steps[0][1]) for solved in found] == [f"{kind.name}(w0_0_32 to w5_0_32)"]


def test_a_sum_may_be_negated() -> None:
    words = checked(layers(30, 1), KINDS["sum"], -1)
    (solved,) = [one for one in checksums(unsearched(words)).solved if one.word == 6]
    assert str(solved.steps[0][1]) == "0 - sum(w0_0_32 to w5_0_32)"


def made(seed: int = 3, n: int = 24) -> tuple[np.ndarray, pd.DataFrame]:
    """Words with a counter, a free address, one that is behind it, and random bits in the sum."""
    p, random = layers(n, seed), np.random.default_rng(seed + 100)
    base = 0x40000000 + random.integers(0, 2**14, n) * 4096
    words = fields(p)[:1]
    words.append(0x48000000 + 4096 * np.arange(n))
    words.append(base)
    words.append(base + -(-p["width"].to_numpy() * p["height"].to_numpy() // 64) * 64)
    words.append(random.integers(0, 2**16, n))
    words.append(KINDS["xor"].value(words, n))
    return np.stack(words, 1).astype(np.uint32), p[["width", "height"]]


@pytest.fixture(scope="module")
def found() -> Laws:
    words, p = made()
    return find_laws(words, p)


def details(laws: Laws, place: Place) -> set[str]:
    """What ``open`` says of the bits of a place."""
    open_ = laws.open
    bits = open_["bit"].between(place.lsb, place.end - 1)
    return {str(text) for text in open_.loc[(open_["word"] == place.word) & bits, "detail"]}


def test_a_checksum_of_words_without_laws_cannot_be_computed_yet(found: Laws) -> None:
    (law,) = [law for law in found.fields if law.word == 5 and law.open]
    assert (law.text, law.probability) == ("xor(w0_0_32 to w4_0_32)", (0.0,))
    (detail,) = details(found, law)
    assert detail.startswith(f"follows from fields without a law: {law.name} = xor(")


def test_an_address_is_another_one_plus_a_size(found: Laws) -> None:
    (law,) = [law for law in found.fields if law.word == 3 and law.open]
    assert law.text == "(w2_0_32 + ceil((width * height) / 64) * 64) // 4096"
    (detail,) = details(found, Place(2, 12, 14))
    assert detail.startswith("looks random")


def test_a_counter_and_random_bits_are_proposed_as_nuisance(found: Laws) -> None:
    assert details(found, Place(1, 12, 5)) == {
        "grows by 1 from each capture to the next; find_laws(..., nuisance=['w1_12_5']) leaves it out"
    }
    (detail,) = details(found, Place(4, 0, 16))
    assert detail.startswith("looks random")
    assert "nuisance=['w4_0_16']" in detail


def test_nuisance_may_be_names_of_bits() -> None:
    p = layers(20, 1)
    words = np.stack(fields(p), 1).astype(np.uint32)
    laws = find_laws(words, p, nuisance=["w1_4_8", "w2"])
    assert laws.nuisance.tolist() == [0, 0xFF0, 0xFFFFFFFF, 0, 0, 0]
    with pytest.raises(ValueError, match=r"^nuisance: got 'w99', allowed is a word, w0 to w5"):
        find_laws(words, p, nuisance=["w99"])


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.long)])
def test_shuffled_words_have_no_checksum(count: int) -> None:
    words, _ = made()
    assert len(checksums(unsearched(words)).solved) == 1
    random, wrong = np.random.default_rng(1), 0
    for _ in range(count):
        mixed = np.stack([random.permutation(column) for column in words.T], 1)
        wrong += len(checksums(unsearched(mixed)).solved)
    assert wrong == 0


def test_copies_of_one_word_are_no_checksum() -> None:
    """Two equal words cancel in an exclusive or, so any third one would be left."""
    random = np.random.default_rng(1).integers(0, 2**32, (60, 2))
    words = np.column_stack([random[:, 0], random, random[:, 1]]).astype(np.uint32)
    assert checksums(unsearched(words)).solved == ()


def test_a_word_that_holds_a_checksum_and_another_field() -> None:
    words = fields(layers(30, 1))
    words[1] += KINDS["crc16_modbus"].value(words, 30) * 2**16
    found = checksums(unsearched(np.stack(words, 1).astype(np.uint32))).solved
    texts = {(one.word, one.lsb): str(one.steps[0][1]) for one in found}
    assert texts[1, 16] == "crc16_modbus(w0_0_32 to w5_0_32 without w1_16_16)"


def test_a_word_that_hardly_varies_is_told_from_a_covered_one() -> None:
    """The first word is set in one capture only, and the checksum does not cover it."""
    p = layers(60, 1)
    rare = np.where(np.arange(60) == 25, 1, 0)
    words = [rare, *checked(p, KINDS["xor"]).T]
    (solved,) = checksums(unsearched(np.stack(words, 1).astype(np.uint32))).solved
    assert str(solved.steps[0][1]) == "xor(w1_0_32 to w6_0_32)"


@pytest.mark.parametrize(
    ("law", "first"),
    [
        ("xor(w0_0_32 to w2_0_32)", 1 ^ 2 ^ 0xF0003),
        ("xor(w0_0_32 to w2_0_32 without w2_16_16) ^ 1", 1 ^ 2 ^ 3 ^ 1),
        ("0 - sum16(w0_0_32 to w2_0_32)", 2**32 - 1 - 2 - 3 - 0xF),
        ("crc32(w0_0_32 to w1_0_32 without w1_0_32)", zlib.crc32(bytes([1, *[0] * 7]))),
    ],
)
def test_a_checksum_is_read_back_from_its_text(law: str, first: int) -> None:
    words = np.array([[1, 2, 0xF0003, first]], np.uint32)
    checked = check_stated([Stated.parse("sum", f"({law}) % 0x100000000", "w3_0_32")], words)
    assert (checked["agree"].tolist(), checked["contradict"].tolist()) == ([1], [0])
    assert str(parse_law(law)) == law


@pytest.mark.parametrize(
    "law", ["xor(width)", "xor(w0_0_32 to w90000_0_32)", "crc32(w2_0_32 to w1_0_32)"]
)
def test_a_checksum_of_anything_else_is_refused(law: str) -> None:
    with pytest.raises(ValueError, match=r"^law '.*allowed is .*a checksum"):
        parse_law(law)
