"""Records in buffers: decoded, encoded, changed, compared, bisected, shown."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

import npulab
from npulab import Capture, bisect_fields
from npulab.analysis.bisect import Bisection, mix
from npulab.analysis.bisect.parts import families, parts_of
from npulab.analysis.records import MOST_PARTS, beside
from npulab.analysis.sides import differing
from npulab.bits import RegisterMap
from npulab.capture import Job
from npulab.captures.listing import Decoded, Wanted
from npulab.captures.records import Records, holders

OP = [
    {"block": "OP", "field": "kind", "lsb": 0, "width": 2, "value": "enum:kind"},
    {"block": "OP", "field": "dst", "lsb": 2, "width": 11},
    {"block": "OP", "field": "src", "lsb": 13, "width": 11},
]
# 80 bits, every 12 bytes, behind 16 bytes of a head
SCALE = [
    {"block": "SCALE", "offset": 0, "register": "R0", "field": "bias", "lsb": 0, "width": 32},
    {"block": "SCALE", "offset": 4, "register": "R1", "field": "scale", "lsb": 0, "width": 32},
    {"block": "SCALE", "offset": 8, "register": "R2", "field": "shift", "lsb": 0, "width": 6},
]
SCALE_PLACE = {"block": "SCALE", "offset": 16, "bits": 80, "stride": 12, "buffer": "scales"}
ENUMS = {"kind": {0: "none", 1: "mul", 2: "add"}}


def maps(**place: Any) -> dict[str, RegisterMap]:
    head = [{"block": "NN", "field": "go", "lsb": 0, "width": 1}]
    ops = {"block": "OP", "buffer": "ops", **place}
    return {
        "NN": RegisterMap(head),
        "OP": RegisterMap([ops, *OP], enums=ENUMS),
        "SCALE": RegisterMap([SCALE_PLACE, *SCALE]),
    }


def capture(name: str = "good", ops: Any = (), tail: bytes = b"", **place: Any) -> Capture:
    data = np.asarray(ops, "<u4").tobytes() + tail
    job = Job("NN", [1])
    return Capture(name, "vivante", "x", (job,), {"ops": data}, maps=maps(**place))


def random_ops(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**24, count, dtype=np.uint32)


def test_records_are_as_many_as_fit_and_as_the_map_allows() -> None:
    for size, count in ((0, 0), (3, 0), (4, 1), (11, 2), (12, 3)):
        one = capture().with_buffers(ops=bytes(size)).records["ops"]
        assert (len(one), one.outside) == (count, (b"", bytes(size - 4 * count)))
    assert len(capture(ops=[1, 2, 3], count=2).records["ops"]) == 2
    assert capture(ops=[1, 2, 3], offset=4).records["ops"].words.tolist() == [[2], [3]]
    assert len(capture(ops=[1], offset=9).records["ops"]) == 0
    assert Capture("none", "demo", "x", (Job("NN", [1]),), maps=maps()).records == {}


def test_values_are_those_that_each_record_has_alone() -> None:
    ops = random_ops(200)
    held = capture(ops=ops).records["ops"]
    registers = held.registers
    for number, word in enumerate(ops):
        alone = registers.decode(np.array([word], np.uint32))
        for name, value in held.values.items():
            assert value[number] == alone[name]
    assert [*held.rows()][5] == {
        "record": 5,
        **{item.name: item.text(item.extract(ops[5:6])) for item in registers},
    }
    assert [*held.table.columns] == ["record", "kind", "dst", "src", "w0_24_8"]
    assert set(held.table["kind"]) == {"none", "mul", "add", 3}


def test_a_hundred_thousand_records_take_well_under_a_second() -> None:
    held = capture(ops=random_ops(100_000)).records["ops"]
    start = time.process_time()
    again = held.with_words(held.registers.encode(held.values))
    assert time.process_time() - start < 0.5
    assert again == held.data


def scales(count: int, size: int) -> Records:
    data = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8).tobytes()
    one = Capture("s", "demo", "x", (Job("NN", [1]),), {"scales": data}, maps=maps())
    held = one.records["scales"]
    assert len(held) == count
    return held


@pytest.mark.parametrize(("count", "size"), [(0, 25), (1, 26), (1, 37), (2, 38), (5, 79)])
def test_records_that_end_inside_a_word_and_have_gaps(count: int, size: int) -> None:
    held = scales(count, size)
    for number, words in enumerate(held.words):
        start = 16 + 12 * number
        stored = int.from_bytes(held.data[start : start + 10], "little")
        assert [int(word) for word in words] == [stored >> at & 0xFFFFFFFF for at in (0, 32, 64)]
    assert held.with_words(held.words) == held.data
    assert [*held.fields] == ["bias", "scale", "shift", "w2_6_26"]
    parts = [held.data[:16], held.data[held.end :]]
    assert [*held.outside] == parts
    gaps = b"".join(held.data[26 + 12 * n : 28 + 12 * n] for n in range(count - 1))
    assert held.gaps == gaps


def test_more_and_fewer_records_keep_what_lies_around_them() -> None:
    held = scales(2, 40)
    words = np.concatenate([held.words[:1], held.words])
    data = held.with_words(words)
    assert len(data) == 52
    assert (data[:16], data[-2:]) == (held.data[:16], held.data[-2:])
    assert data[26:28] == data[38:40] == bytes(2)
    assert data[28:38] == data[16:26] == held.data[16:26]
    assert held.with_words(words[:0]) == held.data[:16] + held.data[-2:]


def test_what_does_not_fit_into_records_is_refused() -> None:
    held = scales(2, 40)
    words = held.words.copy()
    words[1, 2] |= 2**16
    with pytest.raises(ValueError, match="got set bits after byte 10 of record 1, allowed are set"):
        held.with_words(words)
    with pytest.raises(ValueError, match=r"got uint32 of shape \(2, 2\), allowed are words \(N, 3"):
        held.with_words(held.words[:, :2])
    few = capture(ops=[1, 2], count=2).records["ops"]
    with pytest.raises(ValueError, match="buffer ops: records of OP: got 3, allowed are at most 2"):
        few.with_words(np.zeros((3, 1), np.uint32))


def test_fields_of_one_and_of_several_records_are_changed() -> None:
    one = capture(ops=random_ops(6), tail=b"ab")
    changed = one.with_records("ops", 4, kind="add", dst=7)
    ops = changed.records["ops"].values
    assert (ops["kind"][4], ops["dst"][4]) == (2, 7)
    assert ops["src"].tolist() == one.records["ops"].values["src"].tolist()
    assert changed.changed
    assert changed.buffers["ops"][-2:] == b"ab"
    assert np.array_equal(
        np.delete(changed.records["ops"].words, 4, 0), np.delete(one.records["ops"].words, 4, 0)
    )
    for index in (slice(1, 4), [1, 2, 3], np.arange(6) // 3 * 0 + [0, 1, 1, 1, 0, 0] == 1):
        several = one.with_records("ops", index, dst=[5, 6, 7]).records["ops"].values["dst"]
        assert several[1:4].tolist() == [5, 6, 7]
    assert one.with_records("ops", 2, dst=int(one.records["ops"].values["dst"][2])) is one


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (("tops", 0, {}), LookupError, "got buffer 'tops', allowed are buffers with records: ops"),
        (("ops", 3, {"dst": 0}), LookupError, "buffer ops: record: got 3, allowed is 0 to 2"),
        (("ops", -1, {"dst": 0}), LookupError, "buffer ops: record: got -1, allowed is 0 to 2"),
        (("ops", "1", {"dst": 0}), TypeError, "record: got str '1', allowed is a number, a slice"),
        (("ops", [0.5], {"dst": 0}), TypeError, "record: got list of 1, allowed is a number"),
        (("ops", [True], {"dst": 0}), ValueError, r"got a mask of shape \(1,\), allowed is one of"),
        (("ops", 0, {"dust": 0}), LookupError, "got field 'dust', the map has dst"),
        (("ops", 0, {"dst": 2048}), ValueError, "field dst: got raw 2048, allowed is 0 to 2047"),
        (("ops", 0, {"kind": "sub"}), LookupError, "got 'sub', allowed is one of none, mul, add"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(
    given: tuple[str, Any, dict[str, Any]], error: type[Exception], words: str
) -> None:
    buffer, index, values = given
    with pytest.raises(error, match=words):
        capture(ops=[1, 2, 3]).with_records(buffer, index, **values)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"stride": 3}, "block 'OP': got a stride of 3 bytes, allowed are at least 4, the bytes"),
        ({"bits": 40}, "got records of 40 bits, allowed are at most 32, the bits of its 1 word"),
        ({"offset": -4}, "block 'OP': got offset -4, allowed is at least 0"),
        ({"count": 0}, "block 'OP': got count 0, allowed is at least 1, or blank"),
        ({"count": "n"}, "block 'OP': got count 'n', allowed are whole numbers"),
        (
            {"value": "sparse"},
            "block 'OP': got value 'sparse' in a row with a buffer, allowed is a blank",
        ),
        (
            {"field": "group"},
            "block 'OP': got field 'group' in a row with a buffer, allowed is a blank",
        ),
    ],
)
def test_a_malformed_place_of_records_is_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        maps(**row)


def test_a_buffer_belongs_to_a_block_and_not_to_a_field() -> None:
    with pytest.raises(ValueError, match="got buffer 'ops' in a row of a field, allowed is buffer"):
        RegisterMap([{**OP[0], "register": "R", "buffer": "ops"}], enums=ENUMS)
    other = RegisterMap([{"block": "B", "buffer": "ops x"}, {**OP[1], "block": "B"}])
    with pytest.raises(ValueError, match="buffer ops: got records of OP and of B, allowed are"):
        holders({**maps(), "B": other})
    assert [*holders({"B": other})] == ["ops", "x"]


def test_records_have_no_address() -> None:
    registers = maps(offset=4)["OP"]
    assert not registers.holds(0)
    assert not registers.holds(4)
    with_chip = RegisterMap([{"block": "OP", "buffer": "ops", "feature": "new"}, *OP], enums=ENUMS)
    assert [*holders({"OP": with_chip})] == []
    assert [*holders({"OP": with_chip.select(["new"])})] == ["ops"]


def test_a_diff_names_the_record_and_its_field() -> None:
    good = capture(ops=[0, 4, 8, 12])
    bad = capture("bad", ops=[0, 4, 8 | 1, 12 | 2**13])
    assert [*npulab.diff(good, bad).itertuples(index=False, name=None)] == [
        (0, "buffer", "ops", "record 2 OP.kind", "none", "mul", False),
        (0, "buffer", "ops", "record 3 OP.src", 0, 1, False),
    ]
    text = str(differing(good, bad))
    assert "records differ in 2 fields" in text
    assert "buffer ops record 2 OP.kind  none  mul" in text
    assert [row["task"] for row in differing(good, bad).records()] == [None] * 3
    only = differing(good, bad, Wanted("OP.src")).records()
    assert [row["field"] for row in only] == ["record 3 OP.src"]
    assert npulab.diff(good, bad, tasks=(0, 0)).empty


def test_records_are_aligned_if_one_is_inserted_left_out_or_moved() -> None:
    ops = random_ops(40)
    good = capture(ops=ops)
    more = capture("more", ops=np.insert(ops, 7, 99))
    assert [*npulab.diff(good, more)["field"]] == ["inserted record 7"]
    assert [*npulab.diff(more, good)["field"]] == ["left out record 7"]
    moved = np.insert(np.delete(ops, 30), 3, ops[30])
    assert [*npulab.diff(good, capture("moved", ops=moved))["field"]] == ["moved record 3"]
    both = np.insert(ops, 7, 99)
    both[20] ^= 4
    fields = [*npulab.diff(good, capture("both", ops=both))["field"]]
    assert fields == ["inserted record 7", "record 19 OP.dst"]


def test_records_of_a_table_with_a_count_are_compared_by_number() -> None:
    good, bad = (capture(ops=ops, count=3) for ops in ([4, 8, 12, 16], [8, 12, 16, 20]))
    found = npulab.diff(good, bad)
    assert [*found["field"]] == [f"record {number} OP.dst" for number in range(3)]
    keys = [part.key for part in parts_of(good, bad)]
    assert [key[3] for key in keys[3:]] == ["(bytes in no record)"]
    assert mix(good, bad, keys).buffers == bad.buffers


def test_many_records_are_aligned_too() -> None:
    ops = np.random.default_rng(5).permutation(2**20)[:6_000].astype(np.uint32)
    other = np.delete(ops, 5)
    other[4_000] ^= 4
    found = npulab.diff(capture(ops=ops), capture("bad", ops=other))
    assert [*found["field"]] == ["left out record 5", "record 4001 OP.dst"]
    apart = capture("apart", ops=2**20 + np.arange(6_001))
    assert len(beside(capture(ops=ops), apart)["ops"].pairs) == 6_001


def edited(ops: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    for _ in range(rng.integers(1, 4)):
        at, way = rng.integers(len(ops) - 1), rng.integers(4)
        if way == 0:
            ops = np.delete(ops, at)
        elif way == 1:
            ops = np.insert(ops, at, rng.integers(2**24))
        elif way == 2:
            ops = ops ^ np.uint32(2 ** int(rng.integers(24))) * (np.arange(len(ops)) == at)
        else:
            ops = np.concatenate([ops[:at], ops[at : at + 2][::-1], ops[at + 2 :]])
    return ops.astype(np.uint32)


def test_all_parts_together_make_the_bad_capture_and_none_the_good() -> None:
    rng = np.random.default_rng(2)
    for seed in range(60):
        ops = random_ops(30, seed) & np.uint32(0xF00F if seed % 2 else 0xFFFFFF)
        place = ({}, {"count": 28}, {"offset": 5}, {"stride": 8, "offset": 120})[seed % 4]
        good = capture(ops=ops, tail=bytes(rng.integers(0, 2, rng.integers(3), np.uint8)), **place)
        tail = bytes(rng.integers(0, 2, rng.integers(9), np.uint8))
        bad = capture("bad", ops=edited(ops, rng), tail=tail, **place)
        if bad.buffers == good.buffers:
            continue
        keys = [part.key for part in parts_of(good, bad)]
        assert mix(good, bad, keys).buffers == bad.buffers, seed
        assert mix(good, bad, []) == good
        for key in keys:
            assert mix(good, bad, [key]).buffers != good.buffers, (seed, key)


def test_gaps_that_differ_make_a_buffer_one_part() -> None:
    good = Capture("g", "demo", "x", (Job("NN", [1]),), {"scales": bytes(64)}, maps=maps())
    gap = good.with_buffers(scales=bytes(27) + b"\1" + bytes(36))
    assert [part.key for part in parts_of(good, gap)] == [(0, "buffer", "scales", "(bytes)")]
    head = good.with_buffers(scales=b"\1" + bytes(15) + b"\2" + bytes(47))
    keys = [part.key[3] for part in parts_of(good, head)]
    assert keys == ["record 0 SCALE.bias", "(bytes in no record)"]
    outside = mix(good, head, [(0, "buffer", "scales", keys[1])]).buffers["scales"]
    assert outside == b"\1" + bytes(63)
    with pytest.raises(
        LookupError,
        match=r"got 0/buffer/scales/record 9 SCALE\.bias, allowed are the fields of g and g$",
    ):
        mix(good, head, [(0, "buffer", "scales", "record 9 SCALE.bias")])


def test_a_bisection_finds_the_field_of_a_record_and_the_inserted_record() -> None:
    ops = random_ops(60)
    good = capture(ops=ops)
    other = ops ^ np.uint32(2**13)
    bad = capture("bad", ops=np.insert(other, 40, 5))
    dst = 12

    def oracle(trial: Capture) -> str:
        found = trial.records["ops"]
        if found.values["src"][dst] == good.records["ops"].values["src"][dst] ^ 1:
            return "fail"
        return "fail" if 5 in found.words else "pass"

    found = bisect_fields(good, bad, oracle)
    assert found.found
    assert set(found.culprits) == {
        (0, "buffer", "ops", f"record {dst} OP.src"),
        (0, "buffer", "ops", "inserted record 40"),
    }
    assert f"buffer ops record {dst} OP.src = " in found.sentence
    assert "buffer ops inserted record 40" in found.sentence
    assert found.queries < 40


def test_addresses_and_read_only_fields_of_records_are_left_out() -> None:
    rows = [
        {"block": "D", "buffer": "ops"},
        {"block": "D", "field": "next", "lsb": 0, "width": 16, "address": "yes"},
        {"block": "D", "field": "busy", "lsb": 16, "width": 1, "access": "ro"},
        {"block": "D", "field": "image_size_x", "lsb": 17, "width": 4},
        {"block": "D", "field": "image_size_y", "lsb": 21, "width": 4},
    ]
    both = {"NN": maps()["NN"], "D": RegisterMap(rows)}
    words = np.array([0, 2**24 + 1, 7], "<u4")
    good, bad = (
        Capture(name, "demo", "x", (Job("NN", [1]),), {"ops": data.tobytes()}, maps=both)
        for name, data in (("good", words), ("bad", words ^ np.uint32(2**25 - 1)))
    )
    parts = parts_of(good, bad)
    assert [part.field.rpartition(".")[2] for part in parts] == ["image_size_x", "image_size_y"] * 3
    assert families(parts) == [[0, 1], [2, 3], [4, 5]]
    assert len(parts_of(good, bad, addresses=True)) == 9
    with pytest.raises(ValueError, match=r"got D\.busy|got \w+\.busy, which is read-only"):
        good.with_records("ops", 0, busy=1)


def test_too_many_parts_are_one_buffer() -> None:
    ops = random_ops(MOST_PARTS + 1)
    good, bad = capture(ops=ops), capture("bad", ops=ops ^ np.uint32(4))
    assert [part.field for part in parts_of(good, bad)] == ["(bytes)"]
    fewer = bad.with_records("ops", 0, dst=int(good.records["ops"].values["dst"][0]))
    assert len(Bisection(good, fewer).differences) == MOST_PARTS
    assert mix(good, bad, [(0, "buffer", "ops", "(bytes)")]).buffers == bad.buffers


def test_records_are_shown_and_their_number_is_bounded() -> None:
    decoded = Decoded(capture(ops=[1] * 100))
    text = str(decoded)
    assert "buffer ops: 100 records of OP, the first 60 (--json prints all)" in text
    assert "\n59      mul" in text
    assert "\n60      mul" not in text
    rows = [row for row in decoded.records() if row.get("buffer")]
    assert len(rows) == 100
    assert json.dumps(rows[3])
    assert rows[3] == {
        "buffer": "ops",
        "block": "OP",
        "record": 3,
        "kind": "mul",
        "dst": 0,
        "src": 0,
        "w0_24_8": 0,
    }
    one = Decoded(capture(ops=[0, 4]), Wanted("OP.dst", nonzero=True))
    one.refuse()
    assert one.records() == [{"buffer": "ops", "block": "OP", "record": 1, "dst": 1}]
    assert "2 records of OP" in repr(capture(ops=[0, 4]).records["ops"])
    assert "<b>ops: 2 records of OP</b>" in capture(ops=[0, 4]).records["ops"]._repr_html_()
