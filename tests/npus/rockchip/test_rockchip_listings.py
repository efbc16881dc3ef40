"""Listings of command words: EMIT statements, and rows of hexadecimal words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from case_tables import cases
from conftest import shared
from hypothesis import given, settings, strategies as st
from pace import limit
from refusals import refused

import npulab
from npulab.captures import store
from npulab.npus.rockchip import commands, dumps, listings
from npulab.npus.rockchip.commands import Command

TEXT = """\
As the decoder prints it:
```
EMIT(REG_CNA_CBUF_CON0, CNA_CBUF_CON0_WEIGHT_BANK(11) | CNA_CBUF_CON0_DATA_BANK(1));
EMIT(REG_CNA_DCOMP_REGNUM, 0x0);
ops[2] = EMIT(REG_DPU_S_POINTER, DPU_S_POINTER_POINTER_PP_MODE(1) |
                                 DPU_S_POINTER_POINTER_PP_EN(1));  // on two lines
800 3030 0
[0x00000010] 0x0000 CNA   EMIT(REG_CNA_CONV_CON3, CNA_CONV_CON3_CONV_Y_STRIDE(2) | CNA_CONV_CON3_CONV_X_STRIDE(1)) ;
emit(regs, REG_DPU_OUT_CVT_OFFSET, -5); EMIT(REG_CNA_WEIGHT_SIZE0, 2048u);
# EMIT(REG_CNA_WEIGHT_SIZE0, 1);
// EMIT(REG_CNA_WEIGHT_SIZE0, 1);
123 4567 89
emit_raw(regs, 0x81, REG_PC_OPERATION_ENABLE, PC_OPERATION_ENABLE_RESERVED_0(6) | PC_OPERATION_ENABLE_OP_EN(1));
EMIT(REG_CNA_DCOMP_REGNUM, 0x7);
```
"""
WRITES = [
    (0x1040, 0xB1),
    (0x1104, 0),
    (0x4004, 0xA),
    (0x3030, 0),
    (0x1014, 0x11),
    (0x4080, 2**32 - 5),
    (0x1030, 2048),
    (0x0008, 0xD),
]


def listing(writes: Iterable[tuple[int, int]]) -> str:
    """Register writes (offset, value) as a listing, as Mesa's decoder prints them."""
    by_offset = {offset: name for name, offset in [*listings.names().registers.items()][::-1]}
    return "".join(_emit(offset, value, by_offset.get(offset, "")) for offset, value in writes)


def _emit(offset: int, value: int, register: str) -> str:
    if not register or "RESERVED" in register:
        return f"{Command.to(offset, value).target - commands.WRITE:x} {offset:x} {value:x}\n"
    shown = {}
    for name, (at, lsb, width) in listings.names().fields.items():
        if at == offset and name.startswith(f"{register[4:]}_"):
            shown[lsb] = name, value >> lsb & 2**width - 1
    if value != sum(raw * 2**lsb for lsb, (_, raw) in shown.items()):
        return f"EMIT({register}, {value:#x});\n"
    parts = [f"{name}({raw})" for _, (name, raw) in sorted(shown.items(), reverse=True) if raw]
    return f"EMIT({register}, {' | '.join(parts) or '0x0'});\n"


def written(tmp_path: Path, text: str, name: str = "a.txt") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_listing_is_read(tmp_path: Path) -> None:
    capture = npulab.load(written(tmp_path, TEXT))
    assert [[*job.writes] for job in capture.jobs] == [WRITES, [(0x1104, 7)]]
    skipped = capture.parameters["skipped"]
    assert [(row["line"], row["lines"]) for row in skipped] == [(1, 2), (10, 3), (15, 1)]
    assert skipped[1]["text"] == "# EMIT(REG_CNA_WEIGHT_SIZE0, 1);"


def test_it_is_the_same_behind_saving(tmp_path: Path) -> None:
    capture = npulab.load(written(tmp_path, TEXT))
    again = npulab.load(store.save(capture, tmp_path / "saved"))
    assert [job.writes for job in again.jobs] == [job.writes for job in capture.jobs]
    assert again.buffers == capture.buffers
    text = "".join(listing(job.writes) for job in capture.jobs)
    assert [*npulab.load(written(tmp_path, text, "b.txt")).jobs[0].writes] == WRITES


@pytest.mark.parametrize(
    ("wrong", "right", "text"),
    cases("""
WEIGHT_BANK(11) | WEIGHT_BANK(16) | line 3: CNA_CBUF_CON0_WEIGHT_BANK: got 16, allowed is 0 to 0xf
CON0_WEIGHT_BANK | CON0_WEIGHT_BNK | line 3: got field 'CNA_CBUF_CON0_WEIGHT_BNK', allowed is CNA_CBUF_CON0_WEIGHT_BANK or
REG_CNA_DCOMP_REGNUM, 0x0 | REG_CNA_DCOMP_REGNO, 0x0 | line 4: got register 'REG_CNA_DCOMP_REGNO', allowed is
REG_CNA_DCOMP_REGNUM, 0x0 | REG_CNA_DCOMP_REGNUM, con0 | line 4: value: got 'con0', allowed is a number
REG_CNA_DCOMP_REGNUM, 0x0 | REG_CNA_DCOMP_REGNUM, 0x100000000 | line 4: value: got 0x100000000, allowed is 0 to
REG_CNA_DCOMP_REGNUM, 0x0 | REG_CNA_DCOMP_REGNUM | line 4: got EMIT with 1 arguments, allowed are
PP_EN(1));  // | PP_EN(1);  // | allowed is
CONV_CON3_CONV_Y_STRIDE(2) | CONV_CON2_KERNEL_GROUP(2) | line 8: got field 'CNA_CONV_CON2_KERNEL_GROUP'
"""),
)
def test_what_is_wrong_is_refused(tmp_path: Path, wrong: str, right: str, text: str) -> None:
    assert wrong in TEXT
    path = written(tmp_path, TEXT.replace(wrong, right, 1))
    refused(lambda: npulab.load(path), str(path), text)


def test_a_folder_with_programs_has_no_listing(tmp_path: Path) -> None:
    written(tmp_path, TEXT, "regcmd.c")
    assert not dumps.recognises(tmp_path)
    written(tmp_path, TEXT, "log.txt")
    assert [*dumps.read(tmp_path)] == ["log"]


@pytest.mark.parametrize(
    "text", ["", "EMIT(\n", "int EMIT(int register, int value);\n", "0x1 0x2\n", "Gem\n"]
)
def test_other_texts_are_no_listing(tmp_path: Path, text: str) -> None:
    assert not dumps.recognises(written(tmp_path, text))


@pytest.mark.parametrize(
    "form",
    [
        "{0:#018x}",
        "0xffff8000:\t{0:#018x}",
        "    {0:#018x}ULL, /* x */",
        "{1:#010x} {2:#010x}",
        "0x7fb0 <ops+16>:  {1:#010x}\t{2:#010x}",
    ],
)
def test_rows_of_hexadecimal_words(tmp_path: Path, form: str) -> None:
    stream = commands.stream([Command.to(offset, value) for offset, value in WRITES[:-1]])
    numbers = np.frombuffer(stream, "<u8").tolist()
    rows = "\n".join(form.format(number, number % 2**32, number >> 32) for number in numbers)
    capture = npulab.load(written(tmp_path, f"(gdb) x/8gx ops\n{rows}\n"))
    assert [*capture.jobs[0].writes] == WRITES[:-1]
    assert capture.buffers["commands"] == stream
    assert capture.parameters["skipped"] == [{"line": 1, "lines": 1, "text": "(gdb) x/8gx ops"}]


# mtx512/rk3588-npu#3: an RK3568 job, printed by a patched kernel
PRINTED = """\
[  302.972100] RKNPU: job 1
[  302.972445]   0: 0x02010000000e1004 ( op: 0x0201 reg: 0x1004 value: 0x0000000e )
[  302.973188]   1: 0x04010000000e2004 ( op: 0x0401 reg: 0x2004 value: 0x0000000e )
[  302.973840]   2: 0x08010000000e3004 ( op: 0x0801 reg: 0x3004 value: 0x0000000e )
[  302.974668]   3: 0x0201000000711040 ( op: 0x0201 reg: 0x1040 value: 0x00000071 )
[  302.975319]   4: 0x10010000000e4004 ( op: 0x1001 reg: 0x4004 value: 0x0000000e )
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: re.sub(r" 0x\w{16} ", " ", text),
        lambda text: re.sub(r" \( .*", "", text),
        lambda text: re.sub(r"(?m)^\[.*\]", "", text),
    ],
    ids=["whole", "parts alone", "words alone", "without times"],
)
def test_commands_that_a_kernel_prints(change: Callable[[str], str], tmp_path: Path) -> None:
    capture = npulab.load(written(tmp_path, change(PRINTED)))
    registers = (0x1004, 0x2004, 0x3004, 0x1040, 0x4004)
    assert capture.jobs[0].writes == tuple(zip(registers, (14, 14, 14, 0x71, 14), strict=True))
    fields = capture.fields
    banks = fields[fields.register == "CBUF_CON0"].set_index("field").raw
    assert (banks.DATA_BANK, banks.WEIGHT_BANK, len(capture.parameters["skipped"])) == (1, 7, 1)


def test_a_print_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, PRINTED.replace("value: 0x00000071", "value: 0x00000017"))
    said = f"{path}, line 5: got 0x0201000000711040 beside the parts of 0x0201000000171040, allowed"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        npulab.load(path)


def test_the_commands_of_a_board_as_a_listing(tmp_path: Path) -> None:
    path = shared("data/rknpu/wtwver_matmul_int8_regcmd.bin")
    jobs = [block.job for block in commands.split(commands.commands(path.read_bytes()), path)]
    text = "".join(listing(job.writes) for job in jobs)
    capture = npulab.load(written(tmp_path, text))
    assert [write for job in capture.jobs for write in job.writes] == [
        write for job in jobs for write in job.writes
    ]


REGISTERS = sorted(
    offset for offset in listings.names().registers.values() if offset >= 0x1000 and offset < 0x8000
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(REGISTERS), st.integers(0, 2**32 - 1)), min_size=1, max_size=30
    )
)
def test_any_writes_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]]
) -> None:
    path = written(
        tmp_path_factory.mktemp("any"), "EMIT(REG_CNA_CONV_CON2, 0);\n" + listing(writes)
    )
    assert [*npulab.load(path).jobs[0].writes][1:] == writes


def test_time_is_linear(tmp_path: Path) -> None:
    took = []
    for count in (1, 4):
        path = written(tmp_path, TEXT * (125 * count))
        begin = time.process_time()
        npulab.load(path)
        took.append(time.process_time() - begin)
    assert took[1] < 10 * max(took[0], 0.05)
    begin = time.process_time()
    with pytest.raises(ValueError, match="does not end"):
        npulab.load(written(tmp_path, "EMIT(REG_CNA_CONV_CON2, " + "((" * 2 * 10**5))
    assert time.process_time() - begin < limit(2)
