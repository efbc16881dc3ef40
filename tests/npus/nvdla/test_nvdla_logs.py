"""Logs of register accesses, traces that check registers only, and byte addresses in .txn files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import shared
from hypothesis import given, settings, strategies as st
from pace import limit
from refusals import refused

import npulab
from npulab.captures.capture import Capture
from npulab.captures.store import save
from npulab.npus.nvdla import imported, logs
from npulab.npus.nvdla.facts import ENABLE, LAUNCHES, TABLES
from npulab.npus.nvdla.writing import write_trace

# an SDP that reads from memory, by byte address of the full map; what is read back, and the
# interrupt
WRITES = [(0xA004, 0), (0xB004, 0), (0xA00C, 7), (0xB03C, 7), (0xA008, 1), (0xB038, 1)]
READ = (0xA00C, 7)
STATUS = (0x000C, 1)


def log_lines(capture: Capture) -> Iterator[str]:
    """The register writes of a capture as the virtual platform logs them, in order."""
    for job in capture.jobs:
        for offset, value in job.writes:
            yield (
                f"Info: nvdla.csb_adaptor: GP: iswrite=1 addr={offset:#x} len=4 data=0x {value:08x} "
                "resp=TLM_OK_RESPONSE"
            )


def adaptor(write: bool, at: int, value: int) -> str:
    return f"Info: nvdla.csb_adaptor: GP: iswrite={write:d} addr={at + 0x10200000:#x} len=4 data=0x {value:08x} resp=TLM_OK_RESPONSE"


def model(write: bool, at: int, value: int) -> str:
    where = "NV_NVDLA_csb_master.cpp: 1"
    lines = [
        f"{where}:NV_NVDLA_csb_master::nvdla2csb_b_transport, csb req to X_BASE,",
        f"{where}:Addr: {at:#x}",
        f"{where}:Data: {value * write:#x}",
        f"{where}:Is write: {write:#x}",
        f"{where}:nposted: 0x0",
    ]
    return "\n".join(lines + ([] if write else [f"{where}:Err bit: 0x0, Data: {value:#x}"]))


def driver(write: bool, at: int, value: int) -> str:
    return (
        f"[  219.053607] nvdla_reg_{'write' if write else 'read'} offset={at:#x} value={value:#x}"
    )


def called(write: bool, at: int, value: int) -> str:
    return f"dla_reg_write({at:#x}, {value:#x})" if write else f"dla_reg_read({at:#x}) = {value:#x}"


def swapped(write: bool, at: int, value: int) -> str:
    return f"reg {'write' if write else 'read'}: val {value:#010x}, addr {at:#010x}"


def player(write: bool, at: int, value: int) -> str:
    word = f"{at // 4:08x}"
    return (
        f"(12) write to nvdla: addr {word}, data {value:08x}"
        if write
        else f"(12) read from nvdla: addr {word}\n(14) read response from nvdla: {value:08x}"
    )


FORMS = {form.__name__: form for form in (adaptor, model, driver, called, swapped, player)}


def text_of(form: str) -> str:
    lines = [FORMS[form](True, *write) for write in WRITES]
    lines.insert(3, FORMS[form](False, *READ))
    return "\n".join(["[    0.0] Booting", *lines, FORMS[form](False, *STATUS), "no more", ""])


def written(tmp_path: Path, text: str, name: str = "run.log") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(tmp_path: Path, form: str) -> None:
    capture = npulab.load(written(tmp_path, text_of(form)))
    assert (capture.target, capture.chip, len(capture.jobs)) == ("nvdla", "nv_full", 1)
    assert sorted(capture.jobs[0].writes) == sorted(WRITES)
    assert capture.parameters["operations"][0]["units"] == {"SDP_RDMA": 0, "SDP": 0}
    assert capture.provenance == ("RTL simulation" if form == "player" else "open driver")
    skipped = capture.parameters["skipped"]
    assert [(row["text"], row["lines"]) for row in skipped] == [
        ("[    0.0] Booting", 1),
        ("no more", 1),
    ]
    (row,) = capture.parameters["register_checks"]
    assert (row["register"], row["value"]) == ("SDP_RDMA.D_DATA_CUBE_WIDTH", 7)
    result = npulab.check(capture)
    assert (result.verdict, result.compared) == ("equal", 4)


@pytest.mark.parametrize("form", FORMS)
def test_what_was_read_back_otherwise_differs(tmp_path: Path, form: str) -> None:
    text = text_of(form).replace(FORMS[form](False, *READ), FORMS[form](False, READ[0], 6))
    result = npulab.check(npulab.load(written(tmp_path, text)))
    assert (result.verdict, result.mismatches) == ("differs", 1)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_same_behind_saving(tmp_path: Path, form: str) -> None:
    capture = npulab.load(written(tmp_path, text_of(form)))
    for again in (
        npulab.load(save(capture, tmp_path / "saved")),
        npulab.load(write_trace(capture, tmp_path)),
        npulab.load(written(tmp_path, "\n".join(log_lines(capture)), "again.txt")),
    ):
        assert [job.writes for job in again.jobs] == [job.writes for job in capture.jobs]
        assert again.jobs[0].block == "FULL"


def test_the_map_is_that_which_names_the_addresses(tmp_path: Path) -> None:
    for name in (
        "nv_small/dc_1x1x8_1x1x8x1_int8_0",
        "nv_small/sdp_3x3x33_bs_int8_reg_0",
        "nv_large/pdp_3x3x33_2x2_ave_int8_0",
    ):
        capture = npulab.load(shared(f"data/nvdla/{name}"))
        again = npulab.load(written(tmp_path, "\n".join(log_lines(capture))))
        assert (again.jobs[0].block, again.jobs[0].writes) == ("SMALL", capture.jobs[0].writes)
    for path in sorted(shared("data/nvdla/nvdlav1").iterdir()):
        if path.is_dir():
            capture = npulab.load(path)
            again = npulab.load(written(tmp_path, "\n".join(log_lines(capture))))
            assert [job.writes for job in again.jobs] == [job.writes for job in capture.jobs]
            assert again.chip == "nv_full"


def test_an_address_without_a_register_is_counted(tmp_path: Path) -> None:
    text = text_of("driver") + driver(True, 0x9FFC, 1) + "\n"
    rows = npulab.load(written(tmp_path, text)).parameters["skipped"]
    assert rows[-1]["lines"] == 2
    assert (
        npulab.load(written(tmp_path, text.replace("no more\n", "")))
        .parameters["skipped"][-1]["text"]
        .startswith("no register at 0x9ffc: [")
    )


def test_a_log_that_holds_no_whole_operation_is_one_job(tmp_path: Path) -> None:
    capture = npulab.load(
        written(tmp_path, "\n".join(driver(True, *write) for write in WRITES[:-1]))
    )
    assert [*capture.jobs[0].writes] == WRITES[:-1]
    assert "SDP_RDMA enabled without SDP" in capture.parameters["undivided"][0]["reason"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            text_of("adaptor").replace("len=4", "len=8", 1),
            "line 2: got an access of 8 bytes, allowed are 4",
        ),
        (
            text_of("model").replace("NV_NVDLA_csb_master.cpp: 1:Addr: 0xa004\n", "", 1),
            "line 5: got the end of a request without Addr",
        ),
        (
            "\n".join(model(True, *WRITES[0]).split("\n")[:3]),
            "line 2: got a request that does not end",
        ),
        (text_of("player").replace(", data 00000000", "", 1), "line 2: got "),
        (adaptor(False, *READ), "got no register write, allowed is at least one"),
    ],
)
def test_broken_logs_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    refused(lambda: npulab.load(path), str(path), said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reg_write(NVDLA_SDP.D_OP_ENABLE_0, 0x1);\n" * 3,
        "reg_write 1 2\n",
        "spi_reg_write: addr=1, val=02\n" * 3,
    ],
)
def test_other_texts_are_no_log(tmp_path: Path, text: str) -> None:
    assert not logs.recognises(written(tmp_path, text))


OFFSETS = sorted(
    offset for _, offset, name in TABLES["FULL"].registers if name not in (ENABLE, *LAUNCHES)
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(OFFSETS), st.integers(0, 2**32 - 1)), min_size=1, max_size=20
    ),
    st.sampled_from([*FORMS]),
)
def test_any_writes_are_read_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], form: str
) -> None:
    writes = [(OFFSETS[-1], 0), *writes]  # so that the map is decided
    lines = [FORMS[form](True, *write) for write in writes]
    capture = npulab.load(written(tmp_path_factory.mktemp("any"), "\n".join(lines)))
    if capture.jobs[0].block == "FULL":
        assert [*capture.jobs[0].writes] == writes
    else:
        assert all(at in TABLES["SMALL"].index for at, _ in writes)


def test_time_is_linear(tmp_path: Path) -> None:
    begin = time.process_time()
    npulab.load(written(tmp_path, text_of("driver") * 1000))
    assert time.process_time() - begin < limit(3)
    begin = time.process_time()
    assert not logs.recognises(written(tmp_path, "reg_write " * 10**5 + "\n" + "Err bit: " * 10**5))
    assert time.process_time() - begin < limit(5)


# Traces that check registers

SANITY = """\
# load_mem(addr, offset,  file)
read_reg 0xffff100b 0xffffffe0 0x00000000 #NVDLA_BDMA.CFG_DST_SURF_0
write_reg 0xffff100b 0xf0a5a500 #NVDLA_BDMA.CFG_DST_SURF_0
read_reg 0xffff100b 0xffffffe0 0xf0a5a500 #NVDLA_BDMA.CFG_DST_SURF_0
"""


def test_a_trace_that_checks_registers(tmp_path: Path) -> None:
    path = written(tmp_path, SANITY, "input.txn")
    capture = npulab.load(path)
    assert [row["line"] for row in capture.parameters["register_checks"]] == [
        4
    ]  # the first one tells the reset value
    result = npulab.check(capture)
    assert (result.verdict, result.compared, result.mismatches) == ("equal", 4, 0)
    path.write_text(SANITY.replace("0xffffffe0 0xf0a5a500", "0xffffffe0 0xf0a5a5e0"))
    result = npulab.check(npulab.load(path))
    assert (result.verdict, result.mismatches) == ("differs", 1)
    assert npulab.check(npulab.load(save(capture, tmp_path / "saved"))).verdict == "equal"


def test_groups_of_registers_are_read_back_apart(tmp_path: Path) -> None:
    text = (
        "".join(f"write_reg 0xb004 {group}\nwrite_reg 0xb03c {7 + group}\n" for group in (0, 1))
        + "read_reg 0xb03c 0xffffffff 8\nwrite_reg 0xb004 0\nread_reg 0xb03c 0xffffffff 7\n"
    )
    result = npulab.check(npulab.load(written(tmp_path, text, "input.txn")))
    assert (result.verdict, result.compared) == ("equal", 8)


def test_byte_addresses_and_until(tmp_path: Path) -> None:
    words = "".join(f"write_reg {0xFFFF0000 + at // 4:#x} {value:#x}\n" for at, value in WRITES)
    plain = "".join(f"write_reg {at:#x} {value:#x}\t\t#{at:#06x}\n" for at, value in WRITES)
    first = npulab.load(
        written(
            tmp_path,
            words + "until 0xffff0003 0x00000001\nread_reg 0xffff0003 0 0\nread_reg 0xa00c 1 1\n",
            "a.txn",
        )
    )
    second = npulab.load(
        written(
            tmp_path, plain + "until 0xc 0x1\nread_reg 0x000c 0 0\nread_reg 0xa00c 1 1\n", "b.txn"
        )
    )
    assert first.jobs[0].writes == second.jobs[0].writes
    assert sorted(second.jobs[0].writes) == sorted(WRITES)
    assert second.parameters["operations"][0]["units"] == {"SDP_RDMA": 0, "SDP": 0}
    refused(
        lambda: imported.read_trace(written(tmp_path, plain + "until 0xc\n", "c.txn")),
        "line 7: got until with 1 arguments",
    )


def test_byte_addresses_of_the_small_map(tmp_path: Path) -> None:
    text = "write_reg 0x10048 0x1\nwrite_reg 0x3050 0x1\nread_reg 0x3050 1 1\n"
    capture = npulab.load(written(tmp_path, text, "input.txn"))
    assert (capture.chip, capture.jobs[0].block) == ("nv_small", "SMALL")
