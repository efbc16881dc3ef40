"""The kit: what every NPU's folder needs, each part against the definition in a line."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

import npulab
from npulab.captures.capture import Capture, Job
from npulab.captures.target import Hang, Unsupported
from npulab.layout import hwc
from npulab.npus.kit.facts import Facts
from npulab.npus.kit.fields import (
    DEVICE,
    agree,
    expect,
    known,
    names_of,
    offsets_of,
    only_job,
    values_of,
)
from npulab.npus.kit.layers import as_1x1, behind, of_type, padding_names
from npulab.npus.kit.lowering import features_asked, lowered, placed
from npulab.npus.kit.memory import PAGE, Memory, address_of, buffer_of, bytes_at, tensor_at
from npulab.npus.kit.numbers import as_codes, ceil_div, up, wrapped
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.registers.map import RegisterMap

Q = npulab.QuantParams
HEAD = "block,offset,register,field,lsb,width,at,value"
TABLE = """
U,0,SIZE,width,0,8,,
U,0,SIZE,zero,8,8,,signed
U,4,LOW,at,6,26,0,raw*64
U,8,HIGH,at,0,2,26,
U,12,SCALE,real,0,32,,f32"""
TWO_WORDS = """
U,0,a,f,0,32,,
U,4,b,f,0,32,,"""


def map_of(rows: str) -> RegisterMap:
    return RegisterMap(csv.DictReader(f"{HEAD}{rows}".splitlines()), dense=False)


MAP = map_of(TABLE)


def job(*writes: tuple[int, int]) -> Job:
    return Job.from_writes("U", writes, MAP)


def test_values_are_those_that_the_map_decodes() -> None:
    words = np.random.RandomState(0).randint(0, 2**32, 4, np.uint32)
    words[3] = np.float32(1.5).view(np.uint32)
    names = {f"{item.block}.{item.register}.{item.name}": MAP.key(item) for item in MAP}
    for raw in (False, True):
        decoded = MAP.decode(words, raw=raw)
        assert values_of(Job("U", words), {"U": MAP}, raw=raw) == {
            name: decoded[key] for name, key in names.items()
        }


@pytest.mark.parametrize("name", ["rockchip", "ane", "vivante", "onert", "nvdla"])
def test_values_of_every_map_are_those_that_it_decodes(name: str) -> None:
    for block, registers in npulab.target(name).tables.items():
        words = np.random.RandomState(1).randint(0, 2**31, len(registers), np.uint32)
        names = [f"{item.block}.{item.register}.{item.name}" for item in registers]
        decoded = registers.decode(words, raw=True).values()
        assert values_of(Job(block, words), {block: registers}, raw=True) == dict(
            zip(names, decoded, strict=True)
        )


def test_only_what_is_written_has_values() -> None:
    v = values_of(job((0, 0xFF05), (0x40, 1)), {"U": MAP})
    assert (v["U.SIZE.width"], v["U.SIZE.zero"]) == (5, -1)
    assert "U.SCALE.real" not in v
    with pytest.raises(
        Unsupported, match=re.escape("field U.SCALE.real: the task does not write its register")
    ):
        v["U.SCALE.real"]
    assert v.get("U.SCALE.real") is None
    assert (
        values_of(job((8, 1)), {"U": MAP})["U.LOW.at"] == 2**26 * 64
    )  # one of its pieces is written
    assert values_of(job((8, 1)), {"U": MAP}, unwritten=True)["U.SIZE.width"] == 0
    started = replace(job((0, 5)), start=job((12, 0)))
    assert values_of(started, {"U": MAP}).keys() >= {"U.SIZE.width", "U.SCALE.real"}
    with pytest.raises(LookupError, match=re.escape("block: got 'U', maps are known for none")):
        values_of(job(), {})


def test_the_one_job_of_a_capture() -> None:
    words = np.zeros(4, np.uint32)
    capture = Capture("c", "t", "x", (Job("U", words),), maps={"U": MAP})
    assert only_job(capture, "U", "a layer is lifted from") == MAP.decode(words)
    two = replace(capture, jobs=capture.jobs * 2)
    with pytest.raises(
        ValueError, match=r"^capture c: got jobs U, U, a layer is lifted from one of U$"
    ):
        only_job(two, "U", "a layer is lifted from")


def test_registers_by_name_and_by_offset() -> None:
    registers = map_of(TWO_WORDS)
    assert offsets_of(registers) == {"U.a": 0, "U.b": 4}
    assert names_of(registers) == {0: "U.a", 4: "U.b"}


def test_expected_values() -> None:
    v = {"a": 1, "b": 2, "c": 0}
    got = "{name}: got {got}, allowed is {allowed}"
    expect(v, {"a": (0, 1), "b": (2,)}, "")
    agree(v, [("a", "a", "")], "")
    expect(v, {"a": (), "b": ()}, "")
    known(v, {"a": (), "b": ()})
    hexadecimal = partial(expect, style="#x")
    for call, allowed, text, words in (
        (hexadecimal, {"a": (1,), "b": (0, 3)}, got, "b: got 0x2, allowed is 0x0 or 0x3"),
        (expect, {"a": range(2), "b": range(5, 10)}, got, "b: got 2, allowed is 5 to 9"),
        (expect, {"b": range(5, 2**62)}, got, f"b: got 2, allowed is 5 to {2**62 - 1}"),
        (expect, {"a": (), "c": ()}, got, "c: got 0, allowed is any but 0"),
        (known, {"b": (0, 3)}, DEVICE, "b is 2, the simulated unit knows 0 and 3 only"),
        (known, {"a": (), "c": ()}, DEVICE, "c is 0"),
        (agree, [("a", "b", "it does")], "{a} {got}, {b} {other}: {why}", "a 1, b 2: it does"),
    ):
        error = Hang if call is known else ValueError
        with pytest.raises(error, match=f"^{re.escape(words)}$"):
            call(v, allowed, text)


def test_memory_holds_what_was_written() -> None:
    random, plain = np.random.RandomState(3), {}
    memory = Memory({"a": b"\1\2\3", "b": b"none"}, {"a": PAGE - 2})
    plain.update(zip(range(PAGE - 2, PAGE + 1), b"\1\2\3", strict=True))
    for _ in range(60):
        start = int(random.randint(0, 4 * PAGE))
        data = random.bytes(int(random.randint(0, 2 * PAGE)))
        memory.write(start, data)
        plain.update(zip(range(start, start + len(data)), data, strict=True))
        places = random.randint(0, 4 * PAGE, 50)
        memory.scatter(places, values := random.randint(0, 256, 50).astype(np.uint8))
        plain.update(zip(places.tolist(), values.tolist(), strict=True))
        at, size = int(random.randint(0, 4 * PAGE)), int(random.randint(0, PAGE))
        written = takewhile(plain.__contains__, range(at, at + size))
        assert memory.stretch(at, size) == bytes(map(plain.__getitem__, written))
        assert memory.gather(places).tolist() == [plain[n] for n in places.tolist()]
    many = np.arange(2**14 + 1) * PAGE
    for call, arguments, words in (
        (memory.gather, (many[9:10],), "a job reads memory near 0x9000 that holds nothing"),
        (memory.read, (0x9000, 1), "a job reads memory at 0x9000 that holds nothing"),
        (memory.read, (0x9000, 4, "biases"), "biases: reads 4 bytes at 0x9000, which no buffer"),
        (memory.scatter, (many, many), f"more than the simulated device's {2**26} bytes of memory"),
    ):
        with pytest.raises(Hang, match=re.escape(words)):
            call(*arguments)


def test_buffers_by_address() -> None:
    capture = Capture("c", "t", "x", (), {"input": bytes(range(8)), "other": b""}, {"input": 0x100})
    assert (buffer_of(capture, "input"), address_of(capture, "input", "")) == (
        bytes(range(8)),
        0x100,
    )
    assert buffer_of(capture, "input", 8) == bytes(range(8))
    assert bytes_at(capture, "input", 0x102, 3) == b"\2\3\4"
    assert tensor_at(capture, "input", 0x102, hwc((2, 1, 3), dtype="uint8"))[1, 0].tolist() == [
        5,
        6,
        7,
    ]
    for call, arguments, text in (
        (buffer_of, ("no",), "buffer 'no' is missing, there are input, other"),
        (buffer_of, ("input", 7), "buffer 'input': got 8 bytes, allowed by its words are 7"),
        (bytes_at, ("other", 0, 0), "address 'other' is missing, which says where the"),
        (bytes_at, ("input", 0x106, 3), "'input' has 8 bytes from 0x100 on, the words"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            call(capture, *arguments)


def test_numbers() -> None:
    for n in range(40):
        assert (ceil_div(n, 7), up(n, 7)) == (len(range(0, n, 7)), 7 * len(range(0, n, 7)))
    assert (
        wrapped(np.arange(-300, 300), 8).tolist() == np.arange(-300, 300).astype(np.int8).tolist()
    )
    signed = np.arange(-128, 128).astype(np.int8)
    assert as_codes(signed, "uint8").tolist() == [*range(256)]
    assert np.array_equal(as_codes(as_codes(signed, "uint8")[::-1], "int8"), signed[::-1])
    assert as_codes(signed, "int8") is signed


def test_layers_of_the_other_type_say_the_same() -> None:
    random = np.random.RandomState(5)
    layer = Conv2D(
        random.randint(0, 256, (4, 3, 3, 2)).astype(np.uint8),
        random.randint(-9, 9, 4),
        (6, 5, 2),
        padding="same",
        input_q=Q(0.5, 3),
        weight_q=Q(0.25, 130),
        output_q=Q(2.0, 9),
    )
    x = random.randint(0, 256, layer.input_shape).astype(np.uint8)
    moved = of_type(layer, "int8")
    assert np.array_equal(
        as_codes(npulab.emulate(moved, as_codes(x, "int8")), "uint8"), npulab.emulate(layer, x)
    )
    back = of_type(moved, "uint8")
    assert np.array_equal(back.weights, layer.weights)
    assert (back.input_q, back.weight_q, back.output_q) == (
        layer.input_q,
        layer.weight_q,
        layer.output_q,
    )
    full = FullyConnected(
        random.randint(-9, 9, (3, 4)).astype(np.int8), np.arange(3), input_q=Q(0.5, 1)
    )
    x = random.randint(-99, 99, 4).astype(np.int8)
    assert (
        npulab.emulate(as_1x1(full), x[None, None]).ravel().tolist()
        == npulab.emulate(full, x).ravel().tolist()
    )


def test_borders_by_name() -> None:
    for size, kernel, stride, spread in ((8, 3, 2, 1), (7, 3, 1, 2), (9, 4, 3, 1)):
        layer = Conv2D(
            np.zeros((1, kernel, kernel, 1), np.int8),
            np.zeros(1, int),
            (size, size, 1),
            (stride, stride),
            "same",
            (spread, spread),
        )
        (top, bottom), _ = layer.pads
        assert max(behind(size, layer.output_shape[0], kernel, stride, top, spread), 0) == bottom
        assert padding_names(replace(layer, padding=layer.pads), (None, "valid", "same")) == [
            "same"
        ]


def test_what_is_asked_for() -> None:
    features_asked({"b"}, ["b", "a"])
    with pytest.raises(LookupError, match=r"^features: got 'c', allowed are b, a$"):
        features_asked({"d", "c"}, ["b", "a"])
    defaults = {"input": 0x40, "a": 0}
    assert placed(defaults, {"a": 0x80}, 64) == {"input": 0x40, "a": 0x80}
    with pytest.raises(LookupError, match=r"^addresses: got 'b', allowed are a, input$"):
        placed(defaults, {"b": 0}, 64)
    for address in (1, 2**32, -64, "0"):
        with pytest.raises(
            ValueError,
            match=rf"^addresses: got a {address!r}, allowed is a multiple of 64 within 32",
        ):
            placed(defaults, {"a": address}, 64)  # type: ignore[dict-item]


def test_facts_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "owl"
    folder.mkdir()
    (folder / "chips.csv").write_text(
        "chip,feature,value\nbarn,cores,2\nbarn,wide,1\nsnow,cores,0x10\n"
    )
    (folder / "enums.csv").write_text("enum,raw,name\nkind,1,a\nkind,0x2,b\nother,1,c\n")
    (folder / "u.csv").write_text(
        "offset,register,field,lsb,width,feature\n0,A,x,0,8,\n8,B,y,0,8,wide\n"
    )
    facts = Facts.beside(
        str(folder / "facts.py"), {"U": "u.csv", "MADE": MAP, "S": "u.csv"}, sparse=("S",)
    )
    assert (facts.usual_chip, facts.features("snow"), facts.enum("kind")) == (
        "barn",
        {"cores": 16},
        {"a": 1, "b": 2},
    )
    assert [len(table) for table in facts.maps("barn").values()] == [3, 4, 2]
    assert [len(table) for table in facts.maps("snow").values()] == [1, 4, 1]
    with pytest.raises(Unsupported, match=r"^chip: got 'fog', allowed is one of barn, snow$"):
        facts.features("fog")
    capture = lowered(facts, "n", "snow", [], ({"input": b"1"}, {"input": 4}), {"k": 1})
    assert (capture.target, capture.provenance, capture.tool) == (
        "owl",
        "simulated",
        "npulab lower",
    )
    assert capture.maps.keys() == {"U", "MADE", "S"}
