"""The bits behind what a decoder prints, against oracles whose bits are known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import npulab
from npulab.analysis import probe
from npulab.analysis.probe import ProbedLayout, probe_layout
from npulab.analysis.probe.reading import bit_range
from npulab.registers.map import RegisterMap

WIDTHS = (1, 1, 1, 2, 3, 4, 5, 8, 13, 14, 16, 26, 32)
COPIES = ("plain", "split", "inverted", "signed", "plus", "alias")
ODD = ("gated", "either", "parity", "choice")


@dataclass
class Printer:
    """Fields over bits of the words: copies of bits in ``COPIES``, constants, and the kinds
    ``odd`` that are none.
    """

    words: int
    seed: int
    odd: tuple[str, ...] = ("gated", "either")
    calls: int = 0
    bits: dict[str, list[int]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.extra, self.plus = {}, {}
        at, size = 0, 32 * self.words
        while at < size - 80:
            if rng.random() < 0.1:
                at += int(rng.integers(1, 9))
                continue
            width = int(rng.choice(WIDTHS))
            kind = str(
                rng.choice(
                    (*COPIES, "constant", *self.odd),
                    p=[
                        0.6,
                        0.08,
                        0.08,
                        0.04,
                        0.05,
                        0.04,
                        0.03,
                        *[0.08 / len(self.odd)] * len(self.odd),
                    ],
                )
            )
            name = f"f{len(self.bits)}"
            bits = list(range(at, at + width))
            if kind == "split":
                bits = rng.permutation(np.arange(at, at + width + 5))[:width].tolist()
                width += 5
            elif kind == "alias" and self.bits:
                bits, width = [int(rng.integers(at))] if at else bits, 0 if at else width
            elif kind == "constant":
                bits, width = [], 0
            self.bits[name], self.kinds[name] = bits, kind
            self.plus[name] = int(rng.integers(1, 99)) if kind in ("plus", "constant") else 0
            self.extra[name] = rng.integers(0, size, (2, max(len(bits), 1)))
            if kind == "gated":
                self.extra[name][:] = rng.integers(size)  # one gate
            at += width
        names = list(self.bits)
        self.name_of = np.repeat(np.arange(len(names)), [len(self.bits[name]) for name in names])
        self.source = np.array([bit for name in names for bit in self.bits[name]], int)
        self.weight = np.array([2.0**n for name in names for n in range(len(self.bits[name]))])
        self.kind = np.array([self.kinds[name] for name in names])[self.name_of]
        self.other = np.concatenate(
            [self.extra[name][:, : len(self.bits[name])] for name in names], 1
        )
        signed = {
            names.index(name): len(self.bits[name])
            for name in names
            if self.kinds[name] == "signed"
        }
        for n, width in signed.items():
            self.weight[np.flatnonzero(self.name_of == n)[width - 1]] *= -1

    def __call__(self, words: np.ndarray) -> dict[str, Any]:
        self.calls += 1
        all_bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
        own, (one, two) = all_bits[self.source], all_bits[self.other]
        for kind, value in (
            ("inverted", 1 - own),
            ("gated", own & one),
            ("either", own | one),
            ("parity", own ^ one ^ two),
            ("choice", np.where(two, own, one)),
        ):
            own = np.where(self.kind == kind, value, own)
        values = np.bincount(self.name_of, own * self.weight, len(self.bits)).astype(np.int64)
        return {
            name: int(value) + self.plus[name]
            for name, value in zip(self.bits, values, strict=True)
        }

    def wrong(self, probed: ProbedLayout) -> list[str]:
        """Fields that were read as something else than they are, by their values on unseen
        words.
        """
        words = (
            np.random.default_rng(99)
            .integers(0, 2**32, (12, self.words), np.uint64)
            .astype(np.uint32)
        )
        out = set()
        for one in words:
            true, predicted = self(one), probed.predict(one)
            out |= {name for name, value in predicted.items() if true[name] != value}
        return sorted(out)

    def missed(self, probed: ProbedLayout) -> list[str]:
        found = {one.field for one in probed.readings}
        return [
            name
            for name, kind in self.kinds.items()
            if kind in (*COPIES, "constant") and name not in found
        ]

    def refuse_mistakes(self, probed: ProbedLayout) -> None:
        """Every copy found, plain ones bit by bit, and each where it lies."""
        assert not self.missed(probed)
        for one in probed.readings:
            if self.kinds[one.field] in ("plain", "split", "inverted"):
                assert [source.bit for source in one.sources] == self.bits[one.field], one
                assert {source.inverted for source in one.sources} == {
                    self.kinds[one.field] == "inverted"
                }, one
                assert (one.factor, one.offset, one.signed, one.f32) == (1, 0, False, False), one


@pytest.mark.parametrize(
    ("words", "calls", "seeds"),
    [
        (38, 17, range(8)),
        pytest.param(38, 17, range(8, 30), marks=pytest.mark.long),
        pytest.param(192, 19, range(20), marks=pytest.mark.long),
        pytest.param(2048, 23, range(1), marks=pytest.mark.long),
    ],
)
def test_every_copy_is_found_and_nothing_gated_is_claimed(
    words: int, calls: int, seeds: range
) -> None:
    for seed in seeds:
        printer = Printer(words, seed)
        probed = probe_layout(printer, words, seed=seed)
        assert printer.calls == probed.calls == calls
        printer.refuse_mistakes(probed)
        assert {printer.kinds[name] for name, _ in probed.unread} <= {"gated", "either"}
        assert len(probed.readings) + len(probed.unread) == len(printer.bits)
        if seed < 3:
            assert not printer.wrong(probed)


@pytest.mark.parametrize("seeds", [6, pytest.param(12, marks=pytest.mark.long)])
def test_xors_and_choices_read_wrong_no_oftener_than_luck_says(seeds: int) -> None:
    wrong, bound, left = 0, 0.0, 0
    for seed in range(seeds):
        printer = Printer(38, seed, odd=("parity", "choice"))
        probed = probe_layout(printer, 38, seed=seed)
        printer.refuse_mistakes(probed)
        luck = 1216 * 2.0**-14
        bound += sum(
            luck ** len(bits)
            for name, bits in printer.bits.items()
            if printer.kinds[name] in printer.odd
        )
        assert all(
            np.isclose(one.false_positive_probability, luck ** len(one.sources))
            for one in probed.readings
            if printer.kinds[one.field] == "plain"
        )
        wrong += len(printer.wrong(probed))
        more = probed.more(printer, 16)
        assert more.calls == 33
        printer.refuse_mistakes(more)
        left += len(printer.wrong(more))
    assert wrong <= 2 * bound
    assert left == 0


def words_of(value: int) -> np.ndarray:
    return np.frombuffer(value.to_bytes(8, "little"), "<u4")


def whole(words: np.ndarray) -> int:
    return int(words[0]) + 2**32 * int(words[1])


def cut(words: np.ndarray, lsb: int, width: int) -> int:
    return whole(words) // 2**lsb % 2**width


KINDS: dict[str, Any] = {
    "": lambda value: value,
    "bool": bool,
    "uint16": np.uint16,
    "f32": lambda value: np.uint32(value).view(np.float32),
}


def printer_of(description: str) -> Any:
    """A decoder of one value, from its description as JSON: the sum of ``cuts`` (lsb, width,
    factor) and ``plus``, ``modulo`` a number, 0 unless the bit of the ``gate`` is as it says,
    divided ``by`` a number; then of a kind, or its place in the list ``pick``.
    """
    of = {"cuts": [], "plus": 0, **json.loads(description)}

    def printed(words: np.ndarray) -> Any:
        value = of["plus"]
        for lsb, width, factor in of["cuts"]:
            value += factor * cut(words, lsb, width)
        if "modulo" in of:
            value %= of["modulo"]
        if "gate" in of and cut(words, of["gate"][0], 1) != of["gate"][1]:
            value = 0
        if "by" in of:
            value /= of["by"]
        return of["pick"][value] if "pick" in of else KINDS[of.get("kind", "")](value)

    return printed


# what the decoder prints | the bits | kind | value ("?": not looked at)
PRINTED = """
{"cuts": [[4, 5, 1]]} | w0[8:4] | plain
{"cuts": [[30, 4, 1]], "kind": "uint16"} | w0[31:30] w1[1:0] | plain
{"cuts": [[9, 1, 1]], "kind": "bool"} | w0[9] | plain
{"cuts": [[0, 64, 1]]} | w0[31:0] w1[31:0] | plain
{"cuts": [[40, 3, 1], [2, 3, 8]]} | w1[10:8] w0[4:2] | plain
{"cuts": [[4, 2, 1], [8, 1, 8]]} | w0[5:4] w0[8] | plain
{"cuts": [[4, 5, -1]], "plus": 31} | w0[8:4] | inverted | raw*-1+31
{"cuts": [[4, 1, -1]], "plus": 1} | w0[4] | inverted | raw*-1+1
{"cuts": [[4, 1, 1], [5, 2, -2], [7, 2, 8]], "plus": 6} | w0[4] ~w0[6:5] w0[8:7] | partly inverted | ?
{"cuts": [[4, 5, 1], [8, 1, -32]]} | w0[8:4] | signed | signed
{"cuts": [[8, 1, -1]]} | w0[8] | signed | signed
{"cuts": [[4, 5, -1], [8, 1, 32]], "plus": -1} | w0[8:4] | inverted | signed raw*-1+-1
{"cuts": [[4, 5, 1]], "plus": 1} | w0[8:4] | arithmetic | raw+1
{"cuts": [[4, 1, 1]], "plus": 1} | w0[4] | arithmetic | raw+1
{"cuts": [[4, 5, 1]], "plus": -127} | w0[8:4] | arithmetic | raw+-127
{"cuts": [[4, 5, -1]], "plus": 9} | w0[8:4] | arithmetic | raw*-1+9
{"cuts": [[4, 5, 64]]} | w0[8:4] | arithmetic | raw*64
{"cuts": [[4, 5, 12]], "plus": 7} | w0[8:4] | arithmetic | raw*12+7
{"cuts": [[4, 5, 3], [8, 1, -96]], "plus": -5} | w0[8:4] | arithmetic | signed raw*3+-5
{"cuts": [[4, 5, 1]], "by": 16} | w0[8:4] | arithmetic | raw>>4
{"cuts": [[4, 5, 1], [8, 1, -32]], "plus": 4, "by": 4} | w0[8:4] | arithmetic | signed raw+4>>2
{"cuts": [[32, 32, 1]], "kind": "f32"} | w1[31:0] | f32 | f32
{"cuts": [[16, 16, 65536]], "kind": "f32"} | w0[31:16] | f32 | f32
{"cuts": [[6, 1, 1]], "pick": ["no", "yes"]} | w0[6] | text | no or yes
{"plus": 5} |  | constant | 5
{"plus": 0.5} |  | constant | 0.5
{"pick": ["V7"]} |  | constant | V7
"""


@pytest.mark.parametrize("case", PRINTED.strip().split("\n"))
def test_what_a_field_is(case: str) -> None:
    description, bits, kind, value = (*case.split(" | "), "")[:4]
    printed = printer_of(description)
    probed = probe_layout(lambda words: {"x": printed(words)}, 2)
    row = probed.table.iloc[0]
    assert len(probed.table) == 1
    assert (row["field"], row["bits"], row["kind"]) == ("x", bits, kind)
    assert value in ("?", row["value"])
    fine = [
        words_of(int(one))
        for one in np.random.default_rng(3).integers(0, 2**63, 20)
        if (one // 2**23) % 256 < 255
    ]
    registers = probed.register_map()
    assert len(registers) == 2
    for words in fine:
        true = printed(words)
        assert probed.predict(words)["x"] == true
        if len(probed.left_out):
            assert probed.left_out.field.tolist() == ["x"]
        else:
            decoded = registers.decode(words)["x"]
            assert registers["x"].text(decoded) == true if kind == "text" else decoded == true
    assert len(probed.left_out) == (kind in ("constant", "partly inverted"))


# what the decoder prints => the reason why no bits are claimed
NO_COPY = r"""
{"cuts": [[4, 6, 1]], "gate": [50, 1]} => 6 of its 6 bits that change copy no single bit; changes only while w1[18] is 1
{"cuts": [[4, 6, 1]], "gate": [50, 0]} => 6 of its 6 bits that change copy no single bit; changes only while w1[18] is 0
{"cuts": [[4, 1, 1], [5, 1, 1]], "modulo": 2} => 1 of its 1 bits that change copy no single bit
{"cuts": [[4, 8, 7]], "modulo": 256} => 7 of its 8 bits that change copy no single bit
{"cuts": [[4, 2, 1]], "pick": ["a", "b", "c", "d"]} => prints 4 texts, such as
{"pick": [null]} => prints a value of type NoneType, such as None
{"pick": [[1, 2]]} => prints a value of type list, such as [1, 2]
{"cuts": [[0, 1, 1]], "pick": [7, "n/a"]} => prints both numbers and texts, such as 'n/a'
{"cuts": [[0, 1, 1]], "pick": [0.0, NaN]} => prints nan where its bits are a number
{"pick": [NaN]} => always prints nan
{"cuts": [[0, 1, 1]], "pick": [2.5e+300, Infinity]} => prints numbers that are neither
{"cuts": [[4, 20, 1]], "by": 10} => prints numbers that are neither
"""


@pytest.mark.parametrize("case", NO_COPY.strip().split("\n"))
def test_what_is_no_copy_is_listed_with_the_reason(case: str) -> None:
    description, reason = case.split(" => ")
    printed = printer_of(description)
    probed = probe_layout(lambda words: {"x": printed(words), "y": cut(words, 40, 3)}, 2)
    assert probed.table.field.tolist() == ["y"]
    ((name, said),) = probed.unread
    assert name == "x"
    assert said.startswith(reason)
    assert probed.unverified.values.tolist() == [[name, said]]


def test_a_real_map_is_recovered_whole() -> None:
    registers = npulab.target("vivante").registers
    probed = probe_layout(registers.decode, 34)
    assert probed.calls == 17
    assert not probed.unread
    found = probed.register_map("NN", evidence="K")
    assert {item.name: (item.bits, str(item.meaning)) for item in found} == {
        item.name: (item.bits, "" if item.meaning.enum else str(item.meaning)) for item in registers
    }
    assert probed.left_out.empty
    words = np.random.default_rng(5).integers(0, 2**31, (6, 34)).astype(np.uint32)
    true = registers.decode(words)
    assert all(
        np.array_equal(value, true[name], equal_nan=value.dtype.kind == "f")
        for name, value in found.decode(words).items()
    )


def probe_one_hot(decode: Any, words: int) -> ProbedLayout:
    """What setting one bit a call shows: n + 1 calls, and values behind a gate read as
    constants.
    """
    held = probe.held_bits(words, None, None)
    count = len(held.free)
    patterns = np.concatenate([np.zeros((1, count), np.uint8), np.eye(count, dtype=np.uint8)])
    names = ["all zeros", *(f"{bit_range(bit)} alone" for bit in held.free)]
    return probe.probed_with(decode, patterns, names, held)


def test_one_hot_and_index_code_agree() -> None:
    printer = Printer(8, 4, odd=("parity",))
    quick, slow = probe_layout(printer, 8, checks=12), probe_one_hot(printer, 8)
    assert (quick.calls, slow.calls) == (9 + 2 + 12, 257)
    assert [(one.field, one.bits, one.kind, one.value) for one in quick.readings] == [
        (one.field, one.bits, one.kind, one.value) for one in slow.readings
    ]
    assert (
        {name for name, _ in quick.unread}
        == {name for name, _ in slow.unread}
        == {name for name, kind in printer.kinds.items() if kind == "parity"}
        != set()
    )


def variants(words: np.ndarray) -> dict[str, Any]:
    """Prints one of two sets of fields; refuses words without its magic number."""
    if cut(words, 56, 8) != 0x5A:
        raise ValueError("bad magic\nat byte 7")
    return {
        "kind": cut(words, 3, 1),
        **({"size": cut(words, 8, 9)} if words[0] & 8 else {"rate": cut(words, 9, 3)}),
    }


def test_a_base_and_kept_bits_open_gates_and_satisfy_a_decoder() -> None:
    with pytest.raises(
        ValueError,
        match=r"^decode: got an error in 1[123] of 13 calls, first all zeros: ValueError: "
        r"bad magic at byte 7; allowed are errors in 3 calls; base and keep hold bits that the "
        r"decoder needs$",
    ):
        probe_layout(variants, 2)
    magic = np.array([0, 0x5A000000], np.uint32)
    probed = probe_layout(variants, 2, base=magic, keep=[0, 0xFF000000])
    assert probed.table.field.tolist() == ["kind"]
    assert dict(probed.unread) == {
        "rate": "printed in 6 of 12 calls; changes only while w0[3] is 0",
        "size": "printed in 6 of 12 calls; changes only while w0[3] is 1",
    }
    for gate, fields in (
        (0, {"kind": "", "rate": "w0[11:9]"}),
        (8, {"kind": "", "size": "w0[16:8]"}),
    ):
        probed = probe_layout(variants, 2, base=[gate, 0x5A000000], keep=[8, 0xFF000000])
        assert dict(zip(probed.table.field, probed.table.bits, strict=True)) == fields
        assert not probed.unread
        assert str(probed) == "2 fields found, 0 unverified, 12 calls, 55 bits"
        assert probed.more(variants, 3).calls == 15


def test_a_decoder_that_raises_now_and_then_loses_those_calls() -> None:
    printer, asked = Printer(38, 1), []

    def decode(words: np.ndarray) -> dict[str, Any]:
        asked.append(words.copy())
        if len(asked) in (2, 7) or np.all(words == 2**32 - 1):
            raise KeyError("no such mode")
        out = printer(words)
        words[:] = 0
        return out

    probed = probe_layout(decode, 38)
    assert probed.raised == (
        ("all ones", "KeyError: 'no such mode'"),
        ("code 5", "KeyError: 'no such mode'"),
    )
    assert str(probed).endswith(
        "17 calls, 1216 bits; 2 calls raised, first all ones: KeyError: 'no such mode'"
    )
    wrong = printer.wrong(probed)
    assert all(
        one.false_positive_probability > 0.01 for one in probed.readings if one.field in wrong
    )
    assert not printer.missed(probed)
    again = probed.more(decode, 12)
    assert not printer.wrong(again)
    assert set(wrong) == {name for name, said in again.unread if "further call" in said}


def test_without_the_call_of_all_zeros_copies_are_found_but_no_offset() -> None:
    def decode(words: np.ndarray) -> dict[str, Any]:
        if not words.any():
            raise ZeroDivisionError
        return {
            "a": cut(words, 4, 9),
            "b": 7 - cut(words, 20, 3),
            "c": cut(words, 40, 8) + 3,
            "d": "on" if words[0] & 2 else "off",
        }

    probed = probe_layout(decode, 2)
    assert {one.field: one.kind for one in probed.readings} == {
        "a": "plain",
        "b": "inverted",
        "d": "text",
    }
    assert [name for name, _ in probed.unread] == ["c"]
    assert probed.readings[2].value == "off or on"


def test_fields_that_share_bits_are_all_found_and_the_narrow_ones_are_in_the_map() -> None:
    probed = probe_layout(
        lambda w: {
            "word": int(w[0]),
            "mode": cut(w, 3, 4),
            "also": cut(w, 3, 4),
            "top": cut(w, 30, 4),
            "twice": cut(w, 40, 1) * 5,
        },
        3,
    )
    assert len(probed.table) == 5
    registers = probed.register_map("CFG", evidence="C:run")
    assert (len(registers), registers.mode.bits, registers.mode.block, registers.mode.evidence) == (
        3,
        "0[6:3]",
        "CFG",
        "C:run",
    )
    assert probed.left_out.values.tolist() == [
        ["word", "shares bits with mode, false positive probability 1.3e-33"],
        ["also", "shares bits with mode, false positive probability 7.7e-05"],
    ]
    assert registers.top.bits == "0[31:30] 1[1:0]"
    assert registers.decode(np.array([0, 2**8, 0], np.uint32))["twice"] == 5
    again = RegisterMap(registers.fields.to_dict("records"))
    assert [(item.name, item.pieces, item.meaning) for item in again] == [
        (item.name, item.pieces, item.meaning) for item in registers
    ]


def test_a_field_that_luck_may_have_read_takes_no_bits_from_others_in_the_map() -> None:
    def decode(words: np.ndarray) -> dict[str, Any]:
        return {"flag": cut(words, 3, 1), "word": int(words[0]), "alone": cut(words, 50, 1)}

    probed = probe_layout(decode, 34)
    assert probed.left_out.values.tolist() == [
        ["flag", "shares bits with word, false positive probability 0.066"]
    ]
    assert probed.register_map().alone.bits == "1[18]"
    assert probed.more(decode).left_out.values.tolist() == [
        ["word", "shares bits with flag, false positive probability 1.8e-115"]
    ]


def test_the_same_seed_gives_the_same_calls_and_another_others() -> None:
    seen: list[bytes] = []

    def decode(words: np.ndarray) -> dict[str, int]:
        seen.append(words.tobytes())
        return {"x": int(words[0])}

    for seed in (0, 0, 1):
        probe_layout(decode, 4, seed=seed).more(decode, 2).more(decode, 2)
    first, second, third = seen[:18], seen[18:36], seen[36:]
    assert first == second != third
    assert len(set(first)) == 18
    codes = np.array([np.unpackbits(np.frombuffer(one, np.uint8)) for one in first[2:14]]).T
    assert set(codes.sum(1).tolist()) == {6}
    assert all(np.any(a > b) for a, b in permutations(codes, 2))


def test_a_reading_that_a_further_call_refutes_becomes_unverified() -> None:
    probed = probe_layout(lambda w: {"x": cut(w, 0, 3), "c": 4, "gone": cut(w, 9, 9)}, 2)
    more = probed.more(lambda w: {"x": cut(w, 0, 3) ^ 1, "c": 5}, 2)
    assert more.table.empty
    assert [name for name, _ in more.unread] == ["x", "c", "gone"]
    assert more.unread[1] == ("c", "read as a constant; further call 1: got 5, predicted 4")
    assert more.unread[2][1].startswith("read as w0[17:9]; further call 1: got nothing, predicted ")


def test_it_shows_itself() -> None:
    probed = probe_layout(
        lambda w: (
            {f"<{n}>": cut(w, n, 1) for n in range(64)} | {"odd": "x" * 999 if w[0] & 1 else 3}
        ),
        2,
    )
    assert repr(probed) == "ProbedLayout(64 fields found, 1 unverified, 13 calls, 64 bits)"
    shown = probed._repr_html_()
    assert "&lt;0&gt;" in shown
    assert "<0>" not in shown
    assert shown.count("<tr") < 70
    assert len(shown) < 20000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"words": 0}, "words: got 0, allowed is 1 to 65536"),
        ({"checks": 2}, "checks: got 2, allowed is 3 to 32"),
        ({"base": [1]}, r"base: got int64 of shape \(1,\), allowed is uint32 of shape \(2,\)"),
        ({"base": [1, -1]}, r"base: got int64 of shape \(2,\), allowed is uint32"),
        ({"keep": [1.0, 2.0]}, r"keep: got float64 of shape"),
        (
            {"keep": [2**32 - 1] * 2},
            "keep: got a mask of all 64 bits, allowed is a mask that leaves out at least one",
        ),
        (
            {"decode": lambda words: [1]},
            "decode: got list in the call 'all zeros', allowed is a mapping of values by name",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        probe_layout(**{"decode": lambda words: {}, "words": 2, **arguments})


def test_a_decoder_that_prints_nothing_is_no_error() -> None:
    probed = probe_layout(lambda words: {}, 1)
    assert str(probed) == "0 fields found, 0 unverified, 12 calls, 32 bits"
    assert probed.table.columns.tolist() == [
        "field",
        "bits",
        "kind",
        "value",
        "false_positive_probability",
    ]
    assert probed.unverified.empty
    assert len(probed.register_map()) == 1
    with pytest.raises(ValueError, match=r"^calls: got 0, allowed is at least 1$"):
        probed.more(lambda words: {}, 0)
