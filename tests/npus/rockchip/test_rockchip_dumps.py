"""The rockchip target's map, command words, task records, and the dumps of boards."""

from __future__ import annotations

import gzip
import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import astuple
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from case_tables import cases, escaped, whole
from conftest import shared
from fuzz_mutators import change_bytes
from hypothesis import given, strategies as st
from pace import limit
from refusals import refused
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab.npus.rockchip import commands, dumps, facts, gems, tasks
from npulab.npus.rockchip.commands import Command

NAMES = ("x2", "+2")
INPUT_PITCH, PIXEL = 88, 8  # in fp16 values
PAGE = 4096


@pytest.fixture
def folder() -> Path:
    return shared("data/rknpu")


def dump(name: str) -> Path:
    return shared(f"data/rknpu/phhusson_dump-{name}.txt.gz")


@cache
def loaded(name: str) -> npulab.Capture:
    """The capture of a dump, read once."""
    return npulab.load(dump(name))


def case(name: str) -> dict[str, Any]:
    return json.loads(shared("data/rknpu/cases.json").read_text())[f"dump-{name}"]


def matrix(rows: int) -> tuple[bytes, bytes]:
    """Commands of two blocks, the second one behind a gap, and their two task records."""
    first = [
        Command.to(0x1070, 0x1000),
        Command.to(0x1110, 0x2000),
        Command.to(0x4020, 0x3000 + rows),
    ]
    second = [Command.to(0x5018, 0x3000), Command.to(0x4020, 0x4000)]
    base, gap = 0xFFC60000, bytes(64 - 8 * (3 + 4))
    blob = (
        commands.stream([*first, *commands.block_end(0x0D, base + 64, 2 + 4)])
        + gap
        + commands.stream([*second, *commands.block_end(0x18)])
    )
    records = [
        tasks.Task(0, 1, 0x0D, 0x300, 0x1FFFF, 0, 3, 0, base),
        tasks.Task(0, 2, 0x18, 0x300, 0x1FFFF, 0x300, 2, 8, base + 64),
    ]
    return blob + bytes(PAGE - len(blob)), b"".join(
        one.job.words.tobytes() for one in records
    ) + bytes(PAGE - 80)


def text_of(
    *buffers: bytes, before: str = "drm name is rknpu\n", behind: str = "[0] -118768\n\tffc60000\n"
) -> str:
    """A dump of GEM buffers."""
    out = before
    for number, data in enumerate(buffers, 1):
        out += f"gem open got 0 {number} {len(data)}\nmmap returned 0x420b90\nGem {number}\n"
        words = [f"{int(word):08x}" for word in np.frombuffer(data, "<u4")]
        out += "".join(
            f"[{4 * n:08x}] = {' '.join(words[n : n + 4])}\n" for n in range(0, len(words), 4)
        )
    return out + behind


def small() -> str:
    return text_of(bytes(range(64)), *matrix(0), bytes(PAGE))


# The map


def test_every_register_of_the_facts_has_all_its_bits_named() -> None:
    registers = npulab.target("rockchip").registers
    assert len(registers) == 199 + 2  # two that every program writes and the XML does not have
    assert not registers.lint()
    assert len([*registers]) == 711 + 2 + 1  # and the shift that the XML has in BS_CFG.RESERVED_1
    assert registers["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"].address
    assert registers["CNA.CONV_CON1.PROC_PRECISION"].evidence == "M"
    known = {item.evidence for item in registers} - {"unknown"}
    assert known <= {*npulab.target("rockchip").sources}
    assert list(npulab.target("rockchip").chips) == ["rk3588", "rv1103", "rv1106", "rk3576"]


def test_tables_say_only_what_has_a_source() -> None:
    rows = [line.split(",") for line in (facts.HERE / "chips.csv").read_text().splitlines()[1:]]
    assert {row[3] for row in rows} - {"guess"} <= {*npulab.target("rockchip").sources}


UNITS = """
PC        | 0x8    | 0x100
CNA       | 0x1070 | 0x200
UNIT_2000 | 0x2004 | 0x400
CORE      | 0x3030 | 0x800
DPU       | 0x4020 | 0x1000
DPU_RDMA  | 0x5018 | 0x2000
PPU       | 0x6070 | 0x4000
PPU_RDMA  | 0x701C | 0x8000
"""


def test_targets_are_those_of_the_table() -> None:
    for name, at, target in cases(UNITS, str, whole, whole):
        assert facts.OWNERS[at // facts.RANGE] == target, name
    refused(
        lambda: Command.to(0x8000, 1), "register: got 0x8000"
    )  # DDMA: its id has more bits than a word has room for
    refused(lambda: Command.to(0xA000, 1), "0x4000")
    refused(lambda: Command(1, 2**32, 3).bytes, "16 bits of target, 32 of value")


# Command words


@given(
    st.lists(
        st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)),
        max_size=20,
    )
)
def test_command_words_as_the_formula_has_them(some: list[tuple[int, int, int]]) -> None:
    data = commands.stream(Command(*one) for one in some)
    assert data == b"".join(
        (target * 2**48 + value * 2**16 + register).to_bytes(8, "little")
        for target, value, register in some
    )
    words = commands.commands(data)
    assert [(int(one["target"]), int(one["value"]), int(one["register"])) for one in words] == some
    assert [Command(*reversed(word)) for word in np.frombuffer(data, commands.WORDS).tolist()] == [
        Command(*one) for one in some
    ]
    slow = [(register, value) for target, value, register in some if _writes(target, register)]
    assert commands.writes(np.frombuffer(data, "<u4")) == slow


def _writes(target: int, register: int) -> bool:
    """Whether a word writes a register, one by one."""
    if (target, register) == (0x81, 8):
        return True
    unit = {0: 0x100, 1: 0x200, 3: 0x800, 4: 0x1000, 5: 0x2000, 6: 0x4000, 7: 0x8000}.get(
        register // 0x1000
    )
    return target == (unit or -2) + 1 and register % 4 == 0


def test_a_rest_that_is_no_command_is_refused() -> None:
    refused(
        lambda: commands.commands(bytes(20), "x.bin"),
        "x.bin: got 20 bytes, the last 4 from byte 0x10 on",
    )
    assert commands.writes(np.array([0, 0, 5], np.uint32)) == []


# Task records


@given(st.builds(tasks.Task, *[st.integers(0, 2**32 - 1)] * 8, st.integers(0, 2**64 - 1)))
def test_task_records_come_back(task: tasks.Task) -> None:
    words = np.frombuffer(task.job.words.tobytes(), "<u4")
    *parts, address = astuple(task)
    assert words.tolist() == [*parts, address % 2**32, address // 2**32]
    values = facts.TABLES["TASK"].decode(task.job.words)
    assert values == {name: getattr(task, name) for name in values}
    if task.plausible:
        assert tasks.tasks(task.job.words.tobytes() + bytes(40) + b"rest") == [task]


def test_records_that_can_be_none_are_refused_with_their_byte() -> None:
    good = tasks.tasks(matrix(0)[1])
    assert [one.commands for one in good] == [3, 2]
    refused(
        lambda: tasks.tasks(good[0].job.words.tobytes() + b"\1" * 40, "x"), "x: task 1 at byte 0x28"
    )
    refused(
        lambda: tasks.tasks(good[0].job.words.tobytes() + b"\1" * 30, "x"),
        "x: task 1 at byte 0x28: got 30 bytes",
    )


# The dumps of boards, as cases.json and the facts have them


@pytest.mark.parametrize("name", NAMES)
def test_dump_holds_what_its_case_says(name: str) -> None:
    known, capture = case(name), loaded(name)
    assert hashlib.sha1(gzip.decompress(dump(name).read_bytes())).hexdigest() == known["raw_sha1"]
    assert (capture.target, capture.chip, capture.provenance) == ("rockchip", "rk3588", "board")
    assert len(capture.jobs) == known["tasks"]
    assert len(capture.jobs[0].writes) == known["task0_words"]
    records = [
        facts.TABLES["TASK"].decode(job.start.start.words)
        for job in capture.jobs
        if job.start and job.start.start
    ]
    assert len(records) == known["tasks"]
    assert [one["commands"] for one in records] == [len(job.writes) for job in capture.jobs]
    assert {one["enable_mask"] for one in records} == {0x0D, 0x18}
    assert all(one["interrupt_mask"] == 0x300 for one in records)
    for job, record in zip(capture.jobs, records, strict=True):
        assert dict(job.start.writes)[0x8] == record["enable_mask"]  # type: ignore[union-attr]
    blocks = {one["command_address"]: one["commands"] for one in records}
    for job in capture.jobs:
        end = dict(job.start.writes)  # type: ignore[union-attr]
        amount = commands.next_amount(blocks[end[0x10]] + 4) if 0x10 in end else 0
        assert end[0x14] % 2**16 == amount


@pytest.mark.parametrize("name", NAMES)
def test_every_command_word_is_spoken_for(name: str) -> None:
    """Zeros apart, every word of the buffer belongs to a job or is the word that writes no
    register.
    """
    capture = loaded(name)
    words = commands.commands(capture.buffers["commands"])
    used = words[words.view("<u8") != 0]
    written = sum(len(job.writes) + len(job.start.writes) for job in capture.jobs if job.start)
    assert len(used) == written + int(np.sum(used["target"] == commands.SYNC))
    listed = [
        one
        for job in capture.jobs
        for one in (*job.writes, *(job.start.writes if job.start else ()))
    ]
    assert commands.writes(np.frombuffer(capture.buffers["commands"], "<u4")) == listed


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_named_or_reserved(name: str) -> None:
    capture = loaded(name)
    rows = capture.fields
    assert set(rows.block) == {"PC", "CNA", "CORE", "DPU", "DPU_RDMA", "TASK"}
    assert not rows.field.str.fullmatch(r"(w\d+|w?0x[0-9a-f]+)_\d+_\d+").any()
    used = rows[rows.field.str.startswith("RESERVED") & (rows.raw != 0)]
    reserved = used.groupby(["block", "register"]).raw.agg(set).to_dict()
    assert reserved == {
        ("PC", "OPERATION_ENABLE"): {0x0D // 2, 0x18 // 2},
        ("PC", "REGISTER_AMOUNTS"): {1, 2},
        ("CNA", "S_POINTER"): {2**11, 2**12},
        ("CORE", "S_POINTER"): {2**11, 2**12},
        ("CNA", "CONV_CON2"): {2**4, 2**5},
    }
    registers = npulab.target("rockchip").registers
    assert all(
        registers[f"{row.block}.{row.register}.RESERVED_0"].evidence == "PH"
        for row in used.itertuples()
    )


@pytest.mark.parametrize(
    ("name", "starts"),
    [("x2", [0, 5, 10, 15, 20, 21, 26, 27]), ("+2", [0, 5, 10, 15, 20, 22, 27, 29])],
)
def test_the_model_is_there_for_one_two_and_three_cores(name: str, starts: list[int]) -> None:
    """The whole layer for each of three cores, halves for two, thirds for three: bits that the
    XML calls reserved say it.
    """
    tasks_of = {
        n: dict(job.writes) for n, job in enumerate(loaded(name).jobs) if 0x1004 in dict(job.writes)
    }
    assert [*tasks_of] == starts
    assert [one[0x1004] >> 28 for one in tasks_of.values()] == [0, 1, 2, 0, 1, 0, 1, 2]
    assert [one[0x1010] >> 28 for one in tasks_of.values()] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [one[0x1020] % 2**16 for one in tasks_of.values()] == [85, 85, 85, 43, 42, 29, 28, 28]


@pytest.mark.parametrize("name", NAMES)
def test_tensors_lie_where_the_registers_say(name: str) -> None:
    known, capture = case(name), loaded(name)
    assert list(capture.buffers) == ["coefficients", "commands", "tasks", "work", "input", "output"]
    writes = dict(capture.jobs[0].writes)

    def numbers(name: str, rows: int, columns: int, register: int = 0) -> np.ndarray:
        """float16 numbers of a buffer, from its beginning or from where a register points."""
        first = 0
        if register:
            first = writes[register] - capture.addresses[name]
        return np.frombuffer(capture.buffers[name], "<f2", rows * columns, first).reshape(
            rows, columns
        )

    x = numbers("input", known["rows"], INPUT_PITCH)
    assert known["input_line_pixels"] == INPUT_PITCH
    assert (x[:, : known["width"]] == known["input_value"]).all()
    assert (x[:, known["width"] :] != known["input_value"]).any()
    pixels = known["rows"] * known["width"]
    output = numbers("output", pixels, PIXEL)
    assert (output[:, 0] == known["output_value"]).all()
    every = numbers("output", 1, len(capture.buffers["output"]) // 2)
    assert np.count_nonzero(every) == known["output_nonzero"] == pixels
    assert writes[0x4020] - capture.addresses["work"] == known["intermediate_first_byte"]
    between = numbers("work", pixels, PIXEL, 0x4020)
    assert (between[:, 0] == known["intermediate_value"]).all()
    assert numbers("coefficients", 1, 1, 0x1110) == 1.0
    for job in capture.jobs:
        values = dict(job.writes)
        if 0x1070 in values:
            assert 0 <= values[0x1070] - capture.addresses["input"] < len(capture.buffers["input"])
            assert values[0x1020] // 2**16 == INPUT_PITCH


def test_plain_texts_are_as_packed_ones(tmp_path: Path) -> None:
    plain = tmp_path / "phhusson_dump-x2.txt"
    plain.write_bytes(gzip.decompress(dump("x2").read_bytes()))
    assert npulab.load(plain).buffers == loaded("x2").buffers


def test_commands_and_record_of_the_matmul_are_one_capture(folder: Path) -> None:
    with pytest.warns(UserWarning, match="wtwver_gem2_regdump.bin: no command has the flag 0x01"):
        found = npulab.load_all(folder)
    assert found.names == [
        "phhusson_dump-+2",
        "phhusson_dump-x2",
        "wtwver_gem2_regdump",
        "wtwver_matmul_int8",
        "wtwver_gem1_regdump",
    ]
    matmul = found["wtwver_matmul_int8"]
    assert len(matmul.jobs) == 1
    assert len(matmul.jobs[0].writes) == 108
    record = matmul.jobs[0].start
    assert record is not None
    assert facts.TABLES["TASK"].decode(record.words)["commands"] == 108
    assert matmul.addresses == {"commands": 0xFFFEB000}
    values = matmul.values
    assert [
        values[name]
        for name in (
            "DATAIN_WIDTH",
            "DATAIN_HEIGHT",
            "DATAIN_CHANNEL",
            "WEIGHT_KERNELS",
            "WEIGHT_BYTES",
        )
    ] == [1, 4, 32, 32, 1024]
    assert not matmul.fields.field.str.fullmatch(r"(w\d+|w?0x[0-9a-f]+)_\d+_\d+").any()
    assert [len(job.words) for job in found["wtwver_gem1_regdump"].jobs] == [10] * 9
    assert [len(job.writes) for job in found["wtwver_gem2_regdump"].jobs] == [71, 71, 70]


def test_captures_are_kept_as_they_are(folder: Path, tmp_path: Path, run: Any) -> None:
    capture = loaded("+2")
    again = npulab.load(npulab.save(capture, tmp_path / capture.name))
    assert again == capture
    assert run("import", folder / "wtwver_matmul_int8_regcmd.bin", tmp_path / "cases")[0] == 0
    kept = npulab.load(tmp_path / "cases" / "wtwver_matmul_int8_regcmd")
    assert kept.jobs == npulab.load(folder / "wtwver_matmul_int8_regcmd.bin").jobs
    status, lines, _ = run(
        "show", tmp_path / "cases" / "wtwver_matmul_int8_regcmd", "--field", "DATAIN_*"
    )
    assert status == 0
    assert any("DATA_SIZE0" in line for line in lines)


def test_two_boards_differ_by_field() -> None:
    a, b = (loaded(name) for name in NAMES)
    rows = npulab.diff(a, b)
    assert {"FEATURE_BASE_ADDR", "DECOMPRESS_ADDR0"} <= set(rows[rows.address].field)
    assert "DECOMPRESS_ADDR0" not in set(rows[~rows.address].field)


# Texts of our own


def test_small_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(small())
    capture = npulab.load(path)
    assert list(capture.buffers) == ["gem1", "commands", "tasks", "gem4"]
    assert capture.addresses == {"commands": 0xFFC60000}
    assert [job.writes for job in capture.jobs] == [
        ((0x1070, 0x1000), (0x1110, 0x2000), (0x4020, 0x3000)),
        ((0x5018, 0x3000), (0x4020, 0x4000)),
    ]
    assert [job.start.writes for job in capture.jobs if job.start] == [
        ((0x10, 0xFFC60040), (0x14, 2), (0x8, 0x0D)),
        ((0x14, 0), (0x8, 0x18)),
    ]


def test_commands_may_begin_behind_others(tmp_path: Path) -> None:
    """The buffer begins a page before the first block that a record names."""
    blob, records = matrix(0)
    path = tmp_path / "run.txt"
    path.write_text(text_of(records, bytes(PAGE) + blob))
    capture = npulab.load(path)
    assert capture.addresses == {"commands": 0xFFC60000 - PAGE}
    assert len(capture.jobs) == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    cases(
        r"""
Gem 2\n | Gem 1\n | line 11: got Gem 1 a second time
Gem 3\n | Gem 9\n | got Gem 9 without its size
gem open got 0 1 64 | gem open got 0 1 68 | line 9: Gem 1: got 64 bytes up to there, allowed are the 68
gem open got 0 1 64 | gem open got 0 1 60 | line 8: Gem 1: got more bytes than it was opened with, allowed are up to 60
gem open got 0 1 64 | gem open got 0 1 66 | line 4: Gem 1: got 66 bytes
gem open got 0 1 64 | gem open got 0 1 999999999 | 999999999 bytes
[00000010] = 13121110 | [00000020] = 13121110 | line 6: Gem 1: got offset 00000020, allowed is 00000010
[00000010] = 13121110 | [00000010] = 1312111 | line 6: Gem 1: got '[00000010] = 1312111\x20
0000000d 00000300 | 0000000d 00000000 | none with task records
00000018 00000300 | 00000018 00000000 | Gem 3: task 1 at byte 0x28
00000003 00000000\n | 0000f003 00000000\n | Gem 3: task 0: got 61443 commands from 0xffc60000 on, allowed are the 512 that Gem 2 has room for
00000003 00000000\n | 000f0003 00000000\n | none with task records
10001070 02010000 | 10001070 08010000 | line 12: Gem 2: task 0: command at byte 0x0: got target 0x0801 and register 0x1070
30005018 20010000 | 30005018 20020000 | line 16: Gem 2: task 1: command at byte 0x40: got target 0x2002 and register 0x5018
""",
        escaped,
        escaped,
        escaped,
    ),
)
def test_broken_texts_are_refused_with_their_line(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = small()
    assert old in text
    path = tmp_path / "run.txt"
    path.write_text(text.replace(old, new, 1))
    assert str(path) in refused(lambda: npulab.load(path), said)


def test_broken_commands_are_refused_with_their_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    good = matrix(0)[0][:112]
    path.write_bytes(good)
    assert [len(job.writes) for job in npulab.load(path).jobs] == [3, 2]
    path.write_bytes(good[:8] + Command(0x0301, 7, 0x1070).bytes + good[16:])
    refused(
        lambda: npulab.load(path),
        f"{path}: command at byte 0x8: got target 0x0301 and register 0x1070",
    )
    path.write_bytes(good[:-3])
    refused(lambda: npulab.load(path), f"{path}: got 109 bytes, the last 5 from byte 0x68 on")
    path.write_bytes(good + bytes(2**21))
    refused(lambda: npulab.load(path), "allowed are 2097152")


def test_tasks_that_share_commands_without_end_are_refused() -> None:
    one = tasks.Task(0, 1, 0x0D, 0x300, 0x1FFFF, 0, 65535, 0, 0xFFC60000)
    refused(
        lambda: tasks.tasks(one.job.words.tobytes() * 5, "x"),
        "x: got 5 tasks of 327675 commands together, at most 262144 are allowed",
    )


def test_texts_cut_short_are_refused(tmp_path: Path) -> None:
    path, text = tmp_path / "run.txt", small()
    end = text.index("[0] -118768")
    for cut in np.linspace(text.index("Gem 1") + 6, end - 2, 40).astype(int):
        path.write_text(text[:cut])
        refused(lambda: npulab.load(path), str(path))
    packed = gzip.compress(text.encode())
    path.write_bytes(packed[: len(packed) // 2])
    refused(lambda: npulab.load(path), "gzip file that is broken")


def test_lines_without_end_and_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gems, "MOST_OTHERS", 10000)
    monkeypatch.setattr(gems, "MOST_LINES", 12000)
    path = tmp_path / "run.txt.gz"
    for text, said in (
        ("gem open got 0 1 8\nGem 1\n" + "x" * 10**7, "line 3: got more than 1023 characters"),
        (
            "gem open got 0 1 8\n" * 20000,
            "line 10001: got more than 10000 lines that are not a row",
        ),
        (text_of(bytes(16 * 12100)), "more than 12000 lines"),
        (
            "".join(f"gem open got 0 {n} 8\n" for n in range(2000)),
            "line 1025: got more than 1024 GEM buffers",
        ),
    ):
        path.write_bytes(gzip.compress(text.encode()))
        refused(lambda: npulab.load(path), said)


def test_files_of_others_are_not_taken(tmp_path: Path, folder: Path) -> None:
    for data in (
        b"",
        b"\0" * 400,
        b"hello\n" * 99,
        bytes(range(256)) * 9,
        b"\x1f\x8bnothing",
        np.arange(999, dtype="<u4").tobytes(),
    ):
        (tmp_path / "a.bin").write_bytes(data)
        assert not dumps.recognises(tmp_path / "a.bin")
        assert not dumps.recognises(tmp_path)
    for name in ("README.md", "cases.json", "registers.xml"):
        assert not dumps.recognises(folder / name)


def refusals_of(count: int, path: Path) -> Iterator[str]:
    random = Random(588)
    blob, records = matrix(0)
    texts = [
        small().encode(),
        text_of(bytes(64), blob[:256], records[:160]).encode(),
        blob[:256],
        records[:200],
        gzip.compress(small().encode()),
    ]
    for n in range(count):
        path.write_bytes(change_bytes(random, texts[n % len(texts)]))
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for capture in dumps.read(path).values():
                    assert capture.jobs
                    assert capture.words.dtype == np.uint32
            except ValueError as error:
                yield str(error)
        assert time.process_time() - begin < limit(1)


@pytest.mark.parametrize("count", [300, pytest.param(10000, marks=pytest.mark.long)])
def test_changed_files_are_read_or_refused(count: int, tmp_path: Path) -> None:
    path = tmp_path / "changed.bin"
    said = [*refusals_of(count, path)]
    assert count // 4 < len(said) < count
    assert all(one.startswith(str(path)) and "\n" not in one for one in said)
