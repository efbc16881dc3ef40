"""Compiled files, tasks and coefficients compared with a second reader, and damaged files.

Written from the facts and the public names alone.  The reader ``ane_files`` uses nothing of the
package; it also changes files in memory so that nothing lies where the real files have it.
"""

from __future__ import annotations

import json
import random
import re
import resource
import struct
import time
from functools import cache
from itertools import chain
from pathlib import Path

import ane_files
import numpy as np
import pytest
from conftest import shared

import npulab
from npulab.captures.target import Unsupported
from npulab.npus.ane import coefficients, hwx, imported, tasks
from npulab.npus.ane.coefficients.kernel import Kernel, from_registers, places_of

NAMES = ["compiled", "concat16", "conv_bias", "conv_twos", "gemm64", "mul_v541", "mul_v9509_compact", "relu16", "sigmoid77", "sum64"]  # fmt: skip
ELSEWHERE = {
    "base": 0x4800_0000,
    "order": lambda places: places[::-1],
    "commands_in": lambda found: found[::-1],
    "bars": {0: 9, 1: 17, 4: 30, 5: 4, 6: 5},
    "start": 0x40,
    "pitch": 0x340,
    "names": {"image": "the image of another network", "input_0": "z", "probs@output": "p@output"},
    "gap": 0xC000,
}


def real(name: str) -> bytes:
    return shared(f"data/ane/hwx/{name}/model.hwx").read_bytes()


@cache
def capture_of(name: str) -> npulab.Capture:
    return npulab.load(shared(f"data/ane/hwx/{name}/model.hwx"))


def raw(capture: npulab.Capture) -> list[dict[str, int]]:
    """The raw fields of each task, as ``capture.fields`` has them."""
    table = capture.fields
    names = table["block"] + "." + table["register"] + "." + table["field"]
    found: list[dict[str, int]] = [{} for _ in range(int(table["task"].max()) + 1)]
    for task, name, value in zip(table["task"], names, table["raw"], strict=True):
        found[task][name] = int(value)
    return found


def expected_fields(fields: dict[str, int]) -> dict[str, int]:
    return {k.replace("aneTD.", "Header.").replace("aneRegs.", ""): v for k, v in fields.items()}


def bare(tasks_of: list[tuple[tuple[int, ...], dict[int, int]]], kernel: bytes = b"") -> bytes:
    """A bare task list, put together word by word: header words and registers of each task, then
    coefficients.
    """
    out = bytearray()
    for i, (header, registers) in enumerate(tasks_of):
        body, todo = list(header), sorted(registers)
        start = next(j for j, a in enumerate(todo) if a >= 0x1F800)
        todo = todo[start:] + todo[:start]
        while todo:
            run = 1
            while run < min(len(todo), 64) and todo[run] == todo[0] + 4 * run:
                run += 1
            body += [(run - 1) * 2**26 | todo[0], *(registers[a] for a in todo[:run])]
            todo = todo[run:]
        last = i + 1 == len(tasks_of)
        if not last:
            body[7] = len(out) + (4 * len(body) + 255) // 256 * 256
        out += struct.pack(f"<{len(body)}I", *body)
        out += bytes((-len(out)) % 256 if not last else (-len(out)) % 16)
    return bytes(out) + kernel


def oracle(name: str) -> tuple[dict, tuple[int, ...], dict[int, int]]:
    case = json.loads(shared(f"data/ane/oracle_words/{name}.json").read_text())
    header = tuple(int(w, 16) for w in case["header_words"])
    return case, header, {int(a, 16): int(v, 16) for a, v in case["registers"].items()}


ORACLES = (
    "binary_add_1x64x8x8",
    "env_conv_k3_c64_n64_s16_st1_g1_bias0",
    "env_conv_k3_c64_n64_s16_st1_g64_bias0",
)


# ---- containers


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_its_bytes_say(name: str) -> None:
    data, expected = (
        real(name),
        json.loads(shared(f"data/ane/expected/hwx_{name}.json").read_text()),
    )
    agrees(data)
    file = hwx.read(data)
    assert [hex(c) for c in file.commands] == expected["load_commands"]
    kinds = (file.cputype, file.subtype, file.filetype)
    assert kinds == (expected["cputype"], expected["cpusubtype"], expected["filetype"])
    assert (file.compiler, ane_files.asked_for(file.identity)) == (
        expected["compiler"],
        expected["target"],
    )
    assert {str(n): hex(a) for n, a in file.programs[0].bars.items()} == expected["bars"]
    relocations = chain.from_iterable(section.relocations for section in file.sections)
    assert [
        (hex(r.address), r.section, int(r.pc_relative), r.log2_bytes, int(r.external), r.type)
        for r in relocations
    ] == [
        (r["addr"], r["section_ordinal"], r["pcrel"], r["log2len"], r["extern"], r["type"])
        for r in expected["relocs"]
    ]
    described = {d["name"]: d for d in ane_files.described(file.symbols)}
    for tensor in expected["tensors_stabs"]:
        found = described[tensor["name"]]
        assert found["type"] == tensor["type_ref"]
        assert ane_files.types(file.symbols)[found["type"]] == "float16"
        assert dict(found["axes"]) == {
            axis: (tensor[axis], tensor[f"stride_{axis}"]) for axis in "nchw"
        }


def agrees(data: bytes) -> npulab.Capture:
    """What the package reads in a file against what is read here; the capture."""
    plain, file = ane_files.plain(data), hwx.read(data)
    assert [(s.segment, s.name, s.address, s.size, s.data) for s in file.sections] == [
        (s["segment"], s["name"], s["address"], s["size"], s["data"]) for s in plain.sections
    ]
    for section, says in zip(file.sections, plain.sections, strict=True):
        assert [(r.address, r.section) for r in section.relocations] == says["relocations"]
    (program,) = file.programs
    assert (dict(program.bars), program.first_task, program.first_words, program.tasks) == (
        plain.bars,
        plain.first,
        plain.words,
        plain.count,
    )
    numbers = {address: number for number, address in plain.bars.items()}
    for tensor, says in zip(file.tensors, plain.tensors, strict=True):
        assert {name: getattr(tensor, name) for name in says} == says
        assert tensor.bar == numbers[tensor.address]
    assert [(s.name, s.type, s.section, s.value) for s in file.symbols] == plain.symbols
    assert file.identity.strip() == plain.identity.strip()
    capture = imported.compiled(data, "mine", "mine.hwx")
    assert len(capture.jobs) == len(plain.tasks) == plain.count
    for job, task in zip(capture.jobs, plain.tasks, strict=True):
        state = dict(job.writes)
        for address, value in task["registers"].items():
            assert state[address] == value
        assert len(state) == len(task["header"]) + len(task["registers"])
    return capture


VARIANTS = {
    "addresses": {"base": 0x7000_0000},
    "segments": {"order": lambda places: places[1:] + places[:1]},
    "commands": {"commands_in": lambda found: found[-3:] + found[:-3]},
    "bars": {"bars": {0: 1, 1: 0, 4: 31, 5: 8, 6: 12}},
    "tasks": {"start": 0x100, "pitch": 0x400},
    "names": {"names": {"image": "ä", "input_1": "x" * 200, "output@output": "o"}},
    "bytes": {"gap": 0x1C000},
    "all": ELSEWHERE,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "change"),
    [("concat16", change) for change in VARIANTS]
    + [("conv_twos", "all"), ("mul_v9509_compact", "all")],
)
def test_nothing_is_where_the_real_files_have_it(name: str, change: str) -> None:
    data = ane_files.rebuilt(real(name), **VARIANTS[change])
    capture, was = agrees(data), capture_of(name)
    moves = (
        "Header[7].NextPointer",
        "Header[8].RBase",
        "Header[8].WBase",
        "Header[8].TBase",
        "Header[9].KBase",
    )
    for now, before in zip(raw(capture), raw(was), strict=True):
        for field, value in before.items():
            if not field.startswith(tuple(f"Header.{m}" for m in moves)):
                assert now[field] == value, field
    assert capture.buffers.get("coefficients") == was.buffers.get("coefficients")
    bars = {i: i for i in range(32)} | VARIANTS[change].get("bars", {})
    for now, before in zip(raw(capture), raw(was), strict=True):
        for field, valid in (("RBase0", "RBE0"), ("RBase1", "RBE1"), ("WBase", "WBE")):
            if before[f"Header.Header[8].{valid}"]:
                assert now[f"Header.Header[8].{field}"] == bars[before[f"Header.Header[8].{field}"]]
    # the tasks' bases are those of the tensors
    by_bar = {t["bar"]: t["kind"] for t in capture.parameters["tensors"]}
    for values in raw(capture):
        assert by_bar[values["Header.Header[8].RBase0"]] == "input"
        assert by_bar[values["Header.Header[8].WBase"]] == "output"


def test_a_tensor_of_a_name_that_the_capture_has_for_other_things_hides_nothing() -> None:
    names = {"image": "coefficients", "probs@output": "text"}
    capture = agrees(ane_files.rebuilt(real("conv_twos"), names=names))
    plain = ane_files.plain(capture.buffers["hwx"])
    assert capture.addresses["text"] == plain.section("__TEXT", "__text")["address"]
    assert capture.addresses["coefficients"] == plain.section("__TEXT", "__const")["address"]
    assert [(t["name"], t["bar"]) for t in capture.parameters["tensors"]] == [
        ("coefficients", 5),
        ("text", 4),
    ]


# ---- tasks


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_every_file_is_the_expected_one(name: str) -> None:
    expected = json.loads(shared(f"data/ane/expected/hwx_{name}.json").read_text())["tasks"]
    capture = npulab.load(shared(f"data/ane/hwx/{name}"))
    assert (capture.name, capture.target, capture.chip) == (name, "ane", "h13")
    assert capture.provenance == "compiler"
    same_fields(capture, [task["fields"] for task in expected])
    text = hwx.read(real(name)).section("__TEXT", "__text").data
    found = tasks.read_list(text, words=expected[0]["words"])
    for task, says in zip(found, expected, strict=True):
        extended = task.header_words > tasks.H13.words
        assert (task.offset, len(task.words), extended) == (
            says["offset"],
            says["words"],
            says["extended_header"],
        )
        assert [hex(w) for w in task.header] == says["header"]
        assert [(place, hex(r.address), len(r.values)) for place, r in task.placed] == [
            (r["offset"], r["hw_addr"], r["count"]) for r in says["records"]
        ]
    assert tasks.write(found) == text
    written = [tasks.records(task.job_writes, task.offset) for task in found]
    assert tasks.write(written) == text


def same_fields(capture: npulab.Capture, expected: list[dict[str, int]]) -> None:
    """Every expected field has its number, and no named field is set that nobody expects."""
    found = raw(capture)
    assert len(found) == len(expected)
    for values, says in zip(found, map(expected_fields, expected), strict=True):
        assert {k: values[k] for k in says} == says
        unexpected = [k for k, v in values.items() if v and k not in says]
        assert not [
            k
            for k in unexpected
            if "KernelDMASrc.Aux" not in k and not re.search(r"\.r[0-9a-f]{4,}_\d+_\d+$", k)
        ]


def blobs() -> list[str]:
    folder = shared("data/ane/h13_tasks")
    return sorted(str(path.relative_to(folder))[:-4] for path in folder.rglob("*.bin"))


def test_every_field_of_every_bare_task_list_is_the_expected_one() -> None:
    expected = json.loads(shared("data/ane/expected/h13_tasks.json").read_text())
    index = json.loads(shared("data/ane/h13_tasks/index.json").read_text())
    folder = shared("data/ane/h13_tasks")
    assert sorted(expected) == blobs()
    assert [capture.name for capture in npulab.load_all(folder)] == [
        name.replace("/", "-") for name in blobs()
    ]
    for name, says in expected.items():
        capture = npulab.load(folder / f"{name}.bin")
        assert len(capture.jobs) == says["td_count_list"] == index[name]["td_count"], name
        same_fields(capture, [task["fields"] for task in says["tasks"]])
        if "coefficients" in capture.buffers:
            data = (folder / f"{name}.bin").read_bytes()
            assert capture.buffers["coefficients"] == data[says["kernel_offset"] :]


@pytest.mark.parametrize("name", ORACLES)
def test_transcribed_words_decode_to_their_layer(name: str, tmp_path: Path) -> None:
    case, header, registers = oracle(name)
    path = tmp_path / "task.bin"
    path.write_bytes(bare([(header, registers)], bytes(case["constant_section_bytes"])))
    capture = npulab.load(path)
    (values,) = raw(capture)
    _, channels, height, width = case["input_shape"]
    assert {
        k: values[f"Common.{k}"]
        for k in ("InDim.Win", "InDim.Hin", "Cin.Cin", "OutDim.Wout", "OutDim.Hout")
    } == {
        "InDim.Win": width,
        "InDim.Hin": height,
        "Cin.Cin": channels,
        "OutDim.Wout": case["output_shape"][3],
        "OutDim.Hout": case["output_shape"][2],
    }
    state = dict(capture.jobs[0].writes)
    assert {a: state[a] for a in registers} == registers
    if "kernel" not in case["parameters"]:
        assert places_of(values).shape == (0, 2)
        with pytest.raises(ValueError, match=r"KernelFmt: got 0x0, allowed is 0x2"):
            from_registers(values)
    else:
        kernel = from_registers(values)
        assert kernel == Kernel(
            64, 64, 3, 3, groups=case["parameters"]["groups"], lanes=kernel.lanes
        )
        at = places_of(values)
        assert (
            at[:, 1].sum()
            == case["constant_section_bytes"]
            == coefficients.engines(kernel)[:, 1].sum()
        )
        assert np.array_equal(at, coefficients.engines(kernel))


@pytest.mark.parametrize("pitch", [0x280, 0x300, 0x1000])
def test_classic_compact_and_extended_tasks_in_one_list(pitch: int) -> None:
    _, header, registers = oracle(ORACLES[0])
    classic = ane_files.tasks(hwx.read(real("conv_twos")).section("__TEXT", "__text").data, 0, 157)[
        0
    ]
    kinds = [
        (list(classic["header"]), classic["registers"]),
        (list(header), registers),
        ([*header[:6], header[6] | 0x01000000, *header[7:], 0x1234], registers),
        (list(classic["header"]), classic["registers"]),
    ]
    bodies = []
    for one, state in kinds:
        data = bare([(tuple(one), state)])
        bodies.append(bytearray(data))
    sizes = [157, 126, 127, 157]
    text = bytearray(pitch * 3 + 4 * 157)
    for i, (body, size) in enumerate(zip(bodies, sizes, strict=True)):
        last = i + 1 == len(bodies)
        struct.pack_into("<I", body, 28, 0 if last else (i + 1) * pitch)
        struct.pack_into("<I", body, 4, 0 if last else (sizes[i + 1] - 1) * 2**16 | 77)
        text[i * pitch : i * pitch + 4 * size] = body[: 4 * size]
    found = tasks.read_list(bytes(text), 0, 157)
    assert [(t.offset, len(t.words), t.header_words > tasks.H13.words) for t in found] == [
        (i * pitch, size, i == 2) for i, size in enumerate(sizes)
    ]
    mine = ane_files.tasks(bytes(text), 0, 157)
    for task, plain in zip(found, mine, strict=True):
        assert task.header == plain["header"]
        assert dict(task.writes) == plain["registers"]
    assert tasks.write(found) == bytes(text)
    capture = imported.bare(bytes(text), "four", "four.bin")
    assert [job["Header.Header[1].ExeCycles"] for job in raw(capture)] == [77, 77, 77, 0]
    assert list(capture.fields["task"].unique()) == [0, 1, 2, 3]


def test_every_bit_of_every_word_is_spoken_for() -> None:
    for name in ("conv_bias", "mul_v9509_compact"):
        capture = capture_of(name)
        table = capture.fields
        bits = np.zeros(len(capture.words), int)
        for text in table["bits"]:
            for piece in str(text).split(","):
                word, _, span = piece.strip().partition("[")
                high, _, low = span.rstrip("]").partition(":")
                bits[int(word)] += int(high) - int(low or high) + 1
        written = bits > 0
        assert set(bits[written]) == {32}
        assert written.sum() >= {"conv_bias": 150, "mul_v9509_compact": 118}[name]


# ---- coefficients


@pytest.mark.parametrize("name", ["conv_twos", "conv_bias", "compiled"])
def test_weights_out_of_the_bytes_are_the_source(name: str) -> None:
    folder = shared(f"data/ane/hwx/{name}")
    capture = capture_of(name)
    (values,) = raw(capture)
    kernel = from_registers(values)
    weights, bias = coefficients.decode(
        kernel, capture.buffers["coefficients"], at=places_of(values)
    )
    if name == "conv_twos":
        source = np.frombuffer((folder / "twos.weights").read_bytes(), "<f2", 9)
        assert bias is None
    else:
        source = np.frombuffer((folder / "model.espresso.weights").read_bytes(), "<f4", 6, 192)
        assert np.array_equal(
            bias, np.frombuffer((folder / "net.additional.weights").read_bytes(), "<f2", 2)
        )
    assert np.array_equal(weights.ravel(), source.astype(np.float16))


def test_one_changed_weight_is_one_changed_half_word() -> None:
    """By the facts' rule, computed here: engine p % 16, order p // 16, lane n % lanes, one step
    of r after another.
    """
    kernel = Kernel(64, 5, 3, 3, bias=True)
    weights, bias = np.zeros(kernel.shape, np.float16), np.zeros(64, np.float16)
    zero = coefficients.encode(kernel, weights, bias)
    lanes, steps = 4, 5 * 9
    size = (2 * lanes * (steps + 1) + 63) // 64 * 64
    assert len(zero) == 16 * size
    for n, y, x, c in ((0, 0, 0, 0), (37, 2, 1, 4), (63, 1, 2, 3)):
        weights[:] = 0
        weights[n, y, x, c] = 1
        data = coefficients.encode(kernel, weights, bias)
        changed = [i for i in range(len(data)) if data[i] != zero[i]]
        r = c * 9 + y * 3 + x
        engine = n // lanes % 16
        assert changed == [engine * size + 2 * (lanes * (1 + r) + n % lanes) + 1]


# ---- damage


STRUCTURES = [
    "header",
    "command",
    "segment",
    "section",
    "program",
    "task",
    "record",
    "tensor",
    "symbol",
    "relocation",
    "thread",
    "table",
    "name",
    "text",
]


def refusal_of(data: bytes, path: Path, seconds: float = 60) -> str | None:
    """What loading says, within a time; None where it loads, its fields too."""
    began = time.process_time()
    path.write_bytes(data)
    try:
        capture = npulab.load(path)
        _ = capture.words
        if len(capture.jobs) < 50:
            _ = capture.fields
    except (ValueError, LookupError) as error:
        assert time.process_time() - began < seconds
        return str(error)
    assert time.process_time() - began < seconds
    return None


def batter(count: int, seed: int, path: Path, seconds: float = 60) -> dict[str, int]:
    rng = random.Random(seed)
    files = [real(name) for name in NAMES]
    files += [ane_files.rebuilt(file, **ELSEWHERE) for file in files]
    outcome = {"refused": 0, "read": 0}
    for i in range(count):
        done, data = ane_files.damaged(files[i % len(files)], rng)
        said = refusal_of(data, path, seconds)
        outcome["read" if said is None else "refused"] += 1
        if said is not None and len(data) >= 32 and data[:4] == files[0][:4]:
            place = said.partition(path.name)[2] or said
            assert any(s in place.lower() for s in STRUCTURES), f"{done}: {said}"
            assert any(c.isdigit() for c in place), f"{done}: {said}"
            assert len(said) < 500, done
            assert "\n" not in said, f"{done}: {said}"
    return outcome


def test_damaged_files_are_refused_with_their_place(tmp_path: Path) -> None:
    outcome = batter(80, 1, tmp_path / "broken.hwx")
    assert outcome["refused"] > 24
    assert outcome["read"] > 4


@pytest.mark.long
def test_ten_thousand_damaged_files(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = batter(10_000, 2, tmp_path / "broken.hwx", 1)
    assert outcome["refused"] > 3000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


# ---- other generations, by hand


def stream(
    *tasks_of: list[tuple[int, list[int]]], sparse: tuple[int, int, list[int]] | None = None
) -> bytes:
    """Tasks of H14 as the facts say: preamble, eight header words, dense records of words, on 16
    bytes.
    """
    out = bytearray(struct.pack("<4I", 1, 0, 0, 0))
    for number, runs in enumerate(tasks_of):
        body = []
        for address, values in runs:
            body += [(len(values) - 1) * 2**15 | address // 4, *values]
        if sparse and number == 0:
            base, mask, values = sparse
            body += [2**31 | mask * 2**15 | base // 4, *values]
        header = [(8 + len(body)) * 2**16 | number, 0, 0, 0, 0, 0, 0, 0]
        out += struct.pack(f"<{8 + len(body)}I", *header, *body)
        out += bytes(-len(out) % 16 + 16)
    return bytes(out)


def test_a_file_of_h14_made_by_hand() -> None:
    shape = 0x20010  # 16 wide, 2 high
    text = stream(
        [(0, [shape, 1, 0x22, 20, 12, shape, 1])], [(0x14, [0x20008]), (0x10, [7])],
        sparse=(0x20, 0b1, [1 + 64 * 3, 0x77]),
    )  # fmt: skip
    data = bytearray(ane_files.rebuilt(real("relu16"), gap=0x4000))
    struct.pack_into("<I", data, 8, 5)
    at = 32
    for command in ane_files.commands(bytes(data)):
        if ane_files.u32(command, 0) == 0x19 and command[8:].startswith(b"__TEXT"):
            offset = ane_files.u32(command, 72 + 48)
            data[offset : offset + 0x400] = text.ljust(0x400, b"\0")
            struct.pack_into("<Q", data, at + 72 + 40, len(text))
        if ane_files.u32(command, 0) == 4 and ane_files.u32(command, 8) == 1:
            struct.pack_into("<Q", data, at + 0x810, ane_files.u64(command, 0x810) + 16)
            struct.pack_into("<II", data, at + 0x818, 0, 2)
        at += len(command)
    capture = imported.compiled(bytes(data), "h14", "h14.hwx")
    assert capture.chip == "h14"
    first, second = raw(capture)
    assert (first["Common.InDim.Win"], first["Common.InDim.Hin"], first["Common.Cin.Cin"]) == (
        16,
        2,
        20,
    )
    assert (first["Common.ConvCfg.Kw"], first["Common.ConvCfg.Kh"]) == (1, 3)
    assert (second["Common.Cout.Cout"], second["Common.OutDim.Wout"]) == (7, 8)
    assert set(capture.fields["evidence"]) <= {"JW", "FT", "AG", "guess", "unknown"}
    # nobody held the meaning of these fields against a file: no layer is made of them
    ane = npulab.target("ane")
    for answer in (ane.lift, ane.explain, ane.simulate):
        with pytest.raises(Unsupported, match="H14"):
            answer(capture)
    assert ane.outline(capture) == {}
    assert npulab.check(capture).verdict == "nothing to compare"
    network = shared("data/ane/hwx/relu16/net.plist").read_bytes()
    assert (
        npulab.check(capture.with_buffers(**{"net.plist": network})).verdict == "nothing to compare"
    )


def test_the_enums_of_tinygrad_s_notes_are_all_there() -> None:
    import csv

    table = shared("seeds/000_571751982c67fd8a.txt").read_text().splitlines()
    lines = [line.strip() for line in table if line.strip() not in ("", "|")]
    path = Path(npulab.__file__).parent / "npus/ane/enums.csv"
    rows = [
        r
        for r in csv.reader(path.read_text().splitlines())
        if len(r) == 3 and not r[0].startswith("#")
    ]
    found: dict[str, dict[int, str]] = {}
    for enum, number, name in rows[1:]:
        found.setdefault(enum, {})[int(number)] = name
    lists: list[dict[int, str]] = []
    for line in lines:
        number, colon, name = line.partition(": ")
        if colon and number.isdigit() and name.replace("_", "").isalnum():
            if number == "0":
                lists.append({})
            lists[-1][int(number)] = name
    assert len(lists) >= 2
    assert (len(lists[0]), len(lists[1])) == (49, 32)
    for one in lists:
        assert one in found.values(), one
    for line in lines:
        name, equals, number = line.partition(" = ")
        if equals and name.startswith("kZinTensorFormat"):
            assert found["format"][int(number)] == name.removeprefix("kZinTensorFormat")
