"""Compiled files and task lists of the Apple Neural Engine: read from the bytes as they are, or
refused with a place.
"""

from __future__ import annotations

import random
import re
import struct
import time
from pathlib import Path

import ane_streams
import numpy as np
import pytest
from conftest import shared
from pace import limit

import npulab
from npulab.captures.capture import Capture
from npulab.npus.ane import hwx, tasks

PLACED = re.compile(r"byte 0x[0-9a-f]+|address 0x[0-9a-f]+|at 0x[0-9a-f]+")


def data(name: str = "conv_bias") -> bytes:
    return shared(f"data/ane/hwx/{name}/model.hwx").read_bytes()


def text_of(found: hwx.Hwx) -> bytes:
    return found.section("__TEXT", "__text").data


def task_list(found: hwx.Hwx) -> list[tasks.Task]:
    (program,) = found.programs
    text = found.section("__TEXT", "__text")
    return tasks.read_list(text.data, program.first_task - text.address, program.first_words)


def fields(capture: Capture, task: int) -> dict[str, int]:
    """Raw by block.register.field."""
    return {
        f"{block}.{item.register}.{item.name}": int(raw)
        for block, item, raw in capture.jobs[task].values(capture.maps)
        if not item.automatic
    }


def test_capture_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    for name in ("concat16", "mul_v9509_compact"):
        capture = npulab.load(shared(f"data/ane/hwx/{name}"))
        npulab.save(capture, tmp_path / name)
        assert npulab.load(tmp_path / name) == capture


def test_a_changed_field_changes_one_write() -> None:
    capture = npulab.load(shared("data/ane/hwx/conv_twos"))
    changed = capture.with_fields(Win=5)
    assert npulab.diff(capture, changed)[
        ["block", "register", "field", "a", "b"]
    ].to_numpy().tolist() == [["Common", "InDim", "Win", 1, 5]]
    assert len(changed.jobs[0].writes) == len(capture.jobs[0].writes)


def test_the_same_layer_of_two_compilers_differs_by_field() -> None:
    a, b = (
        npulab.load(shared(f"data/ane/hwx/{name}")) for name in ("mul_v541", "mul_v9509_compact")
    )
    rows = npulab.diff(a, b)
    found = {(row.register, row.field) for row in rows.itertuples()}
    assert ("Header[8]", "WBase") in found
    assert ("InDim", "Win") not in found
    assert ("CoeffBfrSize[0]", "MemBfrSize") in found  # which the compact task does not write


def test_extended_task_has_a_header_word_more() -> None:
    (task,) = task_list(hwx.read(data()))
    header = [*task.header, 7]
    tde = 2 ** tasks.TDE[0]
    header[tasks.H13.flags] |= tde
    place = 0x40000 + 4 * len(task.header)
    writes = [
        (offset, value if offset != 0x40018 else value | tde) for offset, value in task.job_writes
    ]
    extended = tasks.records([*writes[:10], (place, 7), *writes[10:]])
    text = tasks.write([extended])
    (again,) = tasks.read_list(text, words=158)
    assert again.header_words == tasks.H13.words + 1
    assert again.header == tuple(header)
    assert [one.values for one in again.records] == [one.values for one in task.records]


def test_a_later_generation_is_read_by_its_own_map() -> None:
    whole = bytearray(data("conv_bias"))
    common = tasks.Record(0x0, (16 * 2**16 + 7,))  # InDim: Win 7, Hin 16
    text = ane_streams.write_h14(
        ane_streams.place_h14([ane_streams.make_h14((1, 0, 0, 0, 0, 0, 0, 0), [common])])
    )
    whole[0x4000:0x4274] = text + bytes(0x274 - len(text))
    struct.pack_into("<I", whole, 0x8, 5)
    capture = _load(bytes(whole))
    assert (capture.chip, capture.jobs[0].block, len(capture.jobs)) == ("h14", "H14", 1)
    assert {name: raw for name, raw in fields(capture, 0).items() if name.startswith("Common")} == {
        "Common.InDim.Win": 7,
        "Common.InDim.Hin": 16,
    }
    struct.pack_into("<I", whole, 0x8, 3)
    with pytest.raises(
        ValueError, match=r"header at byte 0x8: got subtype 3, allowed are 4 \(h13\), 1 \(h11\)"
    ):
        _load(bytes(whole))


# What is broken


def test_file_cut_anywhere_is_refused_with_a_place() -> None:
    whole = data()
    ends = [*range(32, 0x1300, 96), 0x4000, 0x4100, 0x4273, 0x42A0, 0x7FFF]
    for end in ends:
        with pytest.raises(ValueError, match=PLACED) as told:
            _load(whole[:end])
        assert str(told.value).startswith("cut.hwx: ")


def test_sizes_past_the_end_name_their_structure() -> None:
    whole = data()
    text = 0x68  # the segment's command
    big = 2**32
    for at, form, value, words in (
        (
            text + 0x20,
            "<Q",
            big,
            r"segment __TEXT at byte 0x68: got 0x100000000 bytes from address 0x30000000",
        ),
        (
            text + 0x30,
            "<Q",
            big,
            r"segment __TEXT at byte 0x68: got 0x100000000 bytes from byte 0x4000, the file",
        ),
        (
            text + 0x48 + 0x28,
            "<Q",
            big,
            r"section __TEXT,__text at byte 0xb0: got 0x100000000 bytes",
        ),
        (text + 0x40, "<I", 10**6, r"segment __TEXT at byte 0x68: got 1000000 sections"),
        (text + 4, "<I", 10**6, r"load command 1 at byte 0x68: got size 0xf4240"),
        (text + 4, "<I", 0, r"load command 1 at byte 0x68: got size 0x0, allowed are 8 to"),
        (0x10, "<I", 10**9, r"load command 11 at byte 0xf58: needs 8 bytes"),
        (0x14, "<I", 2**31, r"header at byte 0x0: got 2147483648 bytes of load commands"),
        (0x0, "<I", 0xFEEDFACE, r"header at byte 0x0: got magic 0xfeedface, allowed is 0xbeefface"),
        (0xF48, "<I", 2**31, r"symbol table at byte 0xf40: got 16 symbols from byte 0x80000000"),
        (0xF4C, "<I", 2**31, r"symbol table at byte 0xf40: got 2147483648 symbols"),
        (0xF58, "<I", 2**20, r"symbol 0 at byte 0xf58: got its name at 0x100000"),
        (
            0x1248,
            "<I",
            2**20,
            r"relocation 0 of section __TEXT,__text at byte 0xb0: got address 0x100000",
        ),
        (0x2C8 + 0x818, "<I", 10**6, r"task 0 at byte 0x0: needs 1000001 words"),
        (
            0x2C8 + 0x810,
            "<Q",
            big,
            r"program thread 'net' at byte 0x2c8: got its first task at 0x100000000",
        ),
        (
            0x2C8 + 0x81C,
            "<I",
            5,
            r"program thread 'net' at byte 0x2c8: got 5 tasks, its list has 1",
        ),
    ):
        broken = bytearray(whole)
        struct.pack_into(form, broken, at, value)
        with pytest.raises(ValueError, match=words):
            _load(bytes(broken))


def test_segments_and_sections_do_not_overlap() -> None:
    whole = bytearray(data())
    struct.pack_into("<Q", whole, 0x150 + 0x18, 0x30000000)
    struct.pack_into("<Q", whole, 0x150 + 0x48 + 0x20, 0x30000000)
    with pytest.raises(
        ValueError, match="got addresses 0x30000000 to 0x30004000, of which segment __"
    ):
        _load(bytes(whole))
    whole = bytearray(data())
    struct.pack_into("<I", whole, 0x68 + 0x48 + 0x50 + 0x30, 0x4000)
    with pytest.raises(ValueError, match=r"section __TEXT,__.* got bytes 0x4000 to"):
        _load(bytes(whole))


def test_task_list_with_a_loop_or_an_overlap_is_refused() -> None:
    found = hwx.read(data("concat16"))
    for pointer, size, words in (
        (0x0, 157, None),
        (0x300, 157, "comes back to it"),
        (0x302, 157, "not a multiple of 4"),
        (0x4000000, 157, "needs 157 words"),
    ):
        text = bytearray(text_of(found))
        struct.pack_into("<I", text, 0x300 + 4 * tasks.H13.pointer, pointer)
        struct.pack_into("<I", text, 0x300 + 4 * tasks.SIZE, (size - 1) * 2**16)
        if words is None:
            assert len(tasks.read_list(bytes(text), 0, 157)) == 2
        else:
            with pytest.raises(ValueError, match=rf"task 2 at byte {pointer:#x}: .*{words}"):
                tasks.read_list(bytes(text), 0, 157)


def test_task_inside_another_is_refused() -> None:
    (outer,) = task_list(hwx.read(data()))
    inner = tasks.make((0,) * 10, [tasks.Record(0x1F800, (1, 2, 3))])
    header = [*outer.header]
    header[tasks.SIZE], header[tasks.H13.pointer] = (len(inner.words) - 1) * 2**16, 0x60
    text = bytearray(tasks.make(header, outer.records).raw)
    text[0x60 : 0x60 + len(inner.raw)] = inner.raw
    with pytest.raises(
        ValueError, match="task 1 at byte 0x60: its 14 words overlap an earlier task"
    ):
        tasks.read_list(bytes(text), 0, len(outer.words))


def test_record_that_writes_no_register_names_its_byte() -> None:
    text = bytearray(text_of(hwx.read(data())))
    struct.pack_into("<I", text, 0x124, 0x3C000102)
    with pytest.raises(
        ValueError,
        match=r"task 0 at byte 0x0, record at byte 0x124: got the address 0x102, "
        r"allowed is a multiple of 4",
    ):
        tasks.read_list(bytes(text), 0, 157)
    struct.pack_into("<I", text, 0x124, 0xF401F800)
    with pytest.raises(
        ValueError,
        match=r"record at byte 0x124: got 62 registers from 0x1f800, some of which the task wrote",
    ):
        tasks.read_list(bytes(text), 0, 157)
    with pytest.raises(
        ValueError, match=r"record at byte 0x254: got 7 values, allowed is the 5 words"
    ):
        tasks.read_list(text_of(hwx.read(data())), 0, 155)


def test_register_that_no_map_has_is_an_unknown_word() -> None:
    whole = bytearray(data())
    struct.pack_into("<I", whole, 0x4000 + 0x124, 0x3C000100)
    capture = _load(bytes(whole))
    row = capture.fields.query("field == 'r0100_0_32'")
    assert row[["task", "raw", "evidence"]].to_numpy().tolist() == [[0, 0x10001, "unknown"]]
    assert tasks.write(task_list(hwx.read(bytes(whole)))) == text_of(hwx.read(bytes(whole)))


def test_other_files_are_no_compiled_files(tmp_path: Path) -> None:
    (tmp_path / "a.hwx").write_bytes(b"\xcf\xfa\xed\xfe")
    (tmp_path / "b.bin").write_bytes(bytes(400))
    assert len(npulab.load_all(tmp_path)) == 0
    with pytest.raises(ValueError, match="no target recognises this file"):
        npulab.load_all(tmp_path / "a.hwx")


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_mutated_files_are_read_or_refused_with_a_place(count: int) -> None:
    draw = random.Random(7)
    wholes = [data(name) for name in ("conv_bias", "concat16", "mul_v9509_compact")]
    refused, slowest = list[str](), 0.0
    for _ in range(count):
        broken = _mutated(draw.choice(wholes), draw)
        begin = time.process_time()
        try:
            _load(broken)
        except ValueError as error:
            refused.append(str(error))
        slowest = max(slowest, time.process_time() - begin)
    assert [text for text in refused if not PLACED.search(text)] == []
    assert len(refused) > count // 4
    assert count < 10_000 or slowest < limit(1)  # seconds, as promised; sampled runs are not timed


@pytest.mark.parametrize("many", ["symbols", "tasks", "sections"])
def test_a_megabyte_made_to_be_slow_is_refused(many: str) -> None:
    import tracemalloc

    whole = bytearray(data()) + bytes(2**20)
    if many == "symbols":  # each name the whole table
        struct.pack_into(
            "<4I", whole, 0xF48, 0x8000, 30_000, 0x8000 + 480_000, len(whole) - 0x8000 - 480_000
        )
        whole[0x8000 + 480_000 :] = b"a" * (len(whole) - 0x8000 - 480_000)
    elif many == "tasks":
        struct.pack_into("<2Q", whole, 0x68 + 0x28, 0x4000, len(whole) - 0x4000)
    else:
        struct.pack_into("<I", whole, 0x68 + 0x40, 2**32 - 1)
    tracemalloc.start()
    with pytest.raises(ValueError, match=PLACED) if many != "tasks" else pytest.raises(ValueError):
        _load(bytes(whole) if many != "tasks" else bytes(whole[:-5]))
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()


def _load(broken: bytes) -> Capture:
    from npulab.npus.ane.imported import compiled

    return compiled(broken, "cut", "cut.hwx")


def _mutated(whole: bytes, draw: random.Random) -> bytes:
    """A few words or bits changed where something is, or the file cut."""
    out = bytearray(whole)
    busy = np.flatnonzero(np.frombuffer(whole, np.uint8)).tolist()
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = min(draw.choice(busy), len(out) - 1) // 4 * 4
        if len(out) < 48:
            break
        kind = draw.randrange(5)
        if kind == 0:
            del out[draw.randrange(40, len(out)) :]
        elif kind == 1:
            struct.pack_into(
                "<I", out, min(at, len(out) - 4), draw.choice((0, 1, 2**31, 2**32 - 1, 0x4000, 12))
            )
        elif kind == 2:
            struct.pack_into("<I", out, min(at, len(out) - 4), draw.randrange(2**32))
        elif kind == 3:
            out[at] ^= 2 ** draw.randrange(8)
        else:
            struct.pack_into(
                "<Q", out, min(at, len(out) - 8), draw.choice((2**32, 2**63, 2**64 - 1))
            )
    return bytes(out)
