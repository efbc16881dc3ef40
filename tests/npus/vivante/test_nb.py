"""Network binary graphs (.nb): files of the vendor's compiler beside the checkout, files written by
hand, and broken ones.
"""

from __future__ import annotations

import json
import struct
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import nb_files as nb
import numpy as np
import pytest
from conftest import shared
from pace import limit
from refusals import refused
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab.captures import store
from npulab.captures.target import Unsupported
from npulab.support.refuse import FormatError
from npulab.support.text import CONTROL

FOLDER = "data/vivante_vendor/nb"
CHIPS = {
    "a311d-pid88": "vipnano-qi-a311d",
    "imx8mp-pid9f": "vipnano-si-imx8mp",
    "pid99": "vipnano-qi-s905d3",
    "stm32mp25-pid15": "gcnanoultra31-stm32mp25",
}
# The words of the NN job for PID 0x88, as a person typed them from the compiler's own print.
TYPED = """
a010010c 00400200 a400003f 00400200 10234008 0 0 0 00083004 0 0 00000900 00000b00 0 00000800
0ac00200 00080008 47000008 60000008 0c000000 00000004 0 00006478 0 0 0 0 0 03ffffff 7f800000
ff800000 00007800 0 0
"""
ALL = (nb.NN, nb.SHADER, nb.TP, nb.NN, nb.STREAM, 9)


def saved(tmp_path: Path, data: bytes, name: str = "model.nb") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def loaded(tmp_path: Path, data: bytes) -> npulab.Capture:
    return npulab.load(saved(tmp_path, data))


def rows(capture: npulab.Capture, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = capture.parameters[name]
    return found


@pytest.mark.parametrize("name", CHIPS)
def test_a_file_of_the_compiler_is_one_nn_job(name: str) -> None:
    capture = npulab.load(shared(f"{FOLDER}/{name}.nb"))
    assert (capture.name, capture.chip, capture.provenance) == (name, CHIPS[name], "compiler")
    assert [job.block for job in capture.jobs] == ["NN"]
    (layer,) = rows(capture, "layers")
    assert layer["name"] == "ConvolutionReluPoolingLayer2"
    source, result = rows(capture, "tensors")
    assert (source["sizes"], source["format"]) == ([8, 8, 4, 1], "uint8")
    assert (source["scale"], source["zero_point"]) == (0.5, 128)
    assert (result["sizes"], result["scale"], result["zero_point"]) == ([8, 8, 8, 1], 0.25, 100)
    values = capture.values
    assert values["kernel_xy_size"] == 3
    assert (values["out_zero_point"], values["coef_zero_point"]) == (100, 120)
    # the words of the layer are asked for with weights of scale 0.02
    assert capture.parameters["weight_scale"] == pytest.approx(0.02, rel=1e-4)
    # two checksums of sections and that of the file; all of them are CRC-32
    assert [row["of"] for row in rows(capture, "checksums")] == [
        "the file",
        "nn_instr",
        "coef_data",
        "load_state",
    ]
    assert all(row["stated"] == row["found"] for row in rows(capture, "checksums"))


def test_the_words_are_those_that_were_typed() -> None:
    capture = npulab.load(shared(f"{FOLDER}/a311d-pid88.nb"))
    assert capture.words.tolist() == [int(word, 16) for word in TYPED.split()]


@pytest.mark.parametrize("name", CHIPS)
def test_every_byte_of_a_file_is_spoken_for(name: str) -> None:
    """Sections, and the parts of a capture that hold them, make up the file."""
    path = shared(f"{FOLDER}/{name}.nb")
    data, capture = path.read_bytes(), npulab.load(path)
    seen = bytearray(data)
    seen[: 0x3C + 44 * 16] = bytes(0x3C + 44 * 16)
    for row in rows(capture, "sections"):
        part = data[row["byte"] : row["byte"] + row["bytes"]]
        seen[row["byte"] : row["byte"] + row["bytes"]] = bytes(row["bytes"])
        if row["kept"].endswith("buffer"):
            assert capture.buffers[row["name"]] == part
    assert not any(seen)
    section = {row["name"]: row for row in rows(capture, "sections")}
    (job,) = capture.jobs
    assert job.start is not None
    assert job.start.start is not None
    assert (job.start.block, job.start.start.block) == ("STATE", "NN_REST")
    words = np.concatenate([job.words, job.start.start.words])
    at = section["nn_instr"]["byte"]
    assert words.astype("<u4").tobytes() == data[at : at + 192]
    at = section["coef_data"]["byte"]
    coefficients = capture.buffers["coefficients"]
    assert coefficients == data[at : at + len(coefficients)]
    assert len(rows(capture, "patches")) * 28 == section["patch_data"]["bytes"]
    assert "coef_data" not in capture.buffers


@pytest.mark.parametrize("name", CHIPS)
def test_what_follows_the_map_is_shown(name: str, run: Any) -> None:
    code, out, _ = run("show", "--json", "--nonzero", str(shared(f"{FOLDER}/{name}.nb")))
    assert code == 0
    found = [json.loads(line) for line in out]
    past = [(row["register"], row["raw"]) for row in found if row["block"] == "NN_REST"]
    assert past == [("w35", 0x03FFFFFF)]


@pytest.mark.parametrize("name", CHIPS)
def test_the_words_that_are_addresses_are_named(name: str) -> None:
    patches = rows(npulab.load(shared(f"{FOLDER}/{name}.nb")), "patches")
    own = [
        (row["field"], row["source"], row["adds"]) for row in patches if row["of"] == "operation 1"
    ]
    assert own == [
        ("NN_INST_ADDR", "the operation's own instruction", 0),
        ("in_image_address", "input", 0),
        ("in_image_circular_buf_end_addr_plus_1", "input", 0x100),
        ("out_image_address", "output", 0),
        ("out_image_circular_buf_end_addr_plus_1", "output", 0x200),
        ("kernel_address", "coefficients", 0),
    ]
    assert all(row["of"] != "nothing" for row in patches)


def test_a_saved_file_is_the_same_capture(tmp_path: Path) -> None:
    capture = npulab.load(shared(f"{FOLDER}/imx8mp-pid9f.nb"))
    again = npulab.load(store.save(capture, tmp_path / "imx8mp-pid9f"))
    assert replace(again, folder=None) == capture


def test_one_nn_job_is_lifted_with_its_weights() -> None:
    """The layer is in the field's report: bytes of a generator, in the order W H C of the SDK."""
    capture = npulab.load(shared(f"{FOLDER}/imx8mp-pid9f.nb"))
    plain = capture.with_fields(out_image_circular_buf_size=0, in_image_circular_buf_size=0)
    layer = npulab.target("vivante").lift(plain).layer
    state, drawn = 1, []
    for _ in range(8 * 8 * 4 + 3 * 3 * 4 * 8 + 8):
        state = (state * 1664525 + 1013904223) % 2**32
        drawn.append(state >> 24)
    weights = np.array(drawn[256:544], np.uint8).reshape(8, 4, 3, 3)
    assert np.array_equal(layer.weights, weights.transpose(0, 2, 3, 1))
    assert layer.bias.tolist() == [16 * byte - 2000 for byte in drawn[544:]]
    assert layer.input_q.scale == 0.5


def test_a_folder_of_files_is_checked(run: Any) -> None:
    code, out, _ = run("check", "--json", str(shared(FOLDER)))
    assert code in (0, 1)
    found = [json.loads(line) for line in out]
    assert {line["case"] for line in found if "case" in line} >= set(CHIPS)
    for line in found:
        if line.get("case") in CHIPS:
            assert line["words"] == "equal"
            assert line["coefficients"] != "differs"
            assert (line["claims"], line["claims_wrong"]) == (4, 0)


def test_two_files_are_compared(run: Any) -> None:
    """Two PIDs whose words are the same."""
    a, b = (str(shared(f"{FOLDER}/{name}.nb")) for name in ("pid99", "stm32mp25-pid15"))
    code, out, _ = run("diff", "--json", a, b)
    assert code == 0
    found = [json.loads(line) for line in out]
    assert not [row for row in found if row.get("block") in ("NN", "NN_REST")]


# Files written by hand


def test_jobs_of_a_network_are_in_the_order_of_its_operations(tmp_path: Path) -> None:
    capture = loaded(tmp_path, nb.network(ALL))
    units = ["NN", "SH", *["TP"] * 4, "NN", "OP", "OP"]
    assert [job.block for job in capture.jobs] == units
    assert [job.words[0] for job in capture.jobs[:7]] == [0, 1, 21, 22, 23, 24, 3]
    assert [job.unit for job in capture.jobs[2:6]] == [f"core {n}" for n in range(4)]
    assert capture.jobs[7].words[0] == nb.STREAM
    kinds = [row["kind"] for row in rows(capture, "operations")]
    assert kinds == ["start-up", "NN", "shader", "TP", "NN", "stream processor", "type 9"]
    starts = [job.start for job in capture.jobs]
    states = [start.writes[-1] for start in starts if start and start.block == "STATE"]
    assert states == [(0x10A4, number) for number in range(6)]
    assert capture.jobs[0].start.writes[:2] == ((0xA28, 0x11), (0x384C, 2))
    assert all((job.start.writes or job.start.words.size) for job in capture.jobs if job.start)
    data = capture.buffers["coef_data"]
    entries = rows(capture, "coefficient_entries")
    assert [(row["task"], data[row["byte"] :][: row["bytes"]]) for row in entries] == [
        (0, bytes(640)),
        (6, bytes([3]) * 640),
    ]
    again = npulab.load(store.save(capture, tmp_path / "model"))
    assert replace(again, folder=None) == capture
    fields = {row["field"] for row in rows(capture, "patches") if row["task"] == 3}
    assert fields == {npulab_name("TP", 0x1C)}


def npulab_name(block: str, offset: int) -> str:
    """The name of the widest field of a word."""
    registers = npulab.target("vivante").maps("vipnano-qi-a311d")[block]
    inside = [
        item
        for item in registers
        if any(registers.registers[p.word][1] == offset for p in item.pieces)
    ]
    return max(inside, key=lambda item: sum(p.width for p in item.pieces)).name


def test_a_network_is_not_lifted_but_split(tmp_path: Path) -> None:
    capture = loaded(tmp_path, nb.network(ALL))
    vivante = npulab.target("vivante")
    with pytest.raises(Unsupported, match="a layer is lifted from one NN job"):
        vivante.lift(capture)
    parts = vivante.split(capture)
    assert [[job.block for job in part.jobs] for part in parts] == [
        ["NN"],
        ["SH"],
        ["TP"] * 4,
        ["NN"],
        ["OP"],
        ["OP"],
    ]
    assert [dict(part.buffers) for part in parts[:2]] == [{"coefficients": bytes(640)}, {}]
    assert parts[3].buffers["coefficients"] == bytes([3]) * 640
    parts = vivante.split(loaded(tmp_path, nb.network([nb.SHADER, nb.NN])))
    assert [dict(part.buffers) for part in parts] == [{}, {"coefficients": bytes([1]) * 640}]
    alone = loaded(tmp_path, nb.network([nb.NN]))
    assert vivante.split(alone) == [alone]


def test_a_shader_job_beside_an_nn_job_is_counted(tmp_path: Path) -> None:
    """The vendor splits planes with a shader: the layer has a job beside its NN job."""
    capture = loaded(tmp_path, nb.network([nb.SHADER, nb.NN]))
    assert capture.main == 1
    assert set(capture.buffers) >= {"coefficients"}
    with pytest.raises(Unsupported, match="got jobs SH, NN"):
        npulab.target("vivante").lift(capture)


@pytest.mark.parametrize(
    ("pid", "v8", "chip"),
    [
        (0x88, False, "vipnano-qi-a311d"),
        (0xA0, True, "vipnano-si-imx8mp"),
        (0x1000003B, True, "vipnano-si-imx8mp"),
        (0x1000003B, False, "vipnano-qi-a311d"),
    ],
)
def test_the_pid_gives_the_chip(tmp_path: Path, pid: int, v8: bool, chip: str) -> None:
    vivante = npulab.target("vivante")
    table = vivante.maps("vipnano-si-imx8mp")["NN"]
    words = table.encode({"no_z_offset": int(v8)}).tolist()
    data = nb.network([nb.NN], lambda _: [*words, *[0] * 14], pid=pid)
    path = saved(tmp_path, data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        capture = npulab.load(path)
    assert capture.chip == chip
    assert capture.parameters["pid"] == pid
    told = [str(one.message) for one in caught if f"PID {pid:#x}" in str(one.message)]
    assert bool(told) is (pid == 0x1000003B)
    if told:
        assert "give --chip" in told[0]


def test_an_unknown_pid_takes_a_chip(tmp_path: Path, run: Any) -> None:
    path = saved(tmp_path, nb.network([nb.NN], pid=0x1234))
    code, _, err = run("import", str(path), str(tmp_path / "a"), "--chip", "vipnano-si-imx8mp")
    assert code == 0, err
    (case,) = (tmp_path / "a").iterdir()
    assert npulab.load(case).chip == "vipnano-si-imx8mp"


def test_unknown_sections_and_bytes_between_are_kept(tmp_path: Path) -> None:
    data = nb.network([nb.NN], more=[(25, b"shaders!", 1), (77, b"nobody knows", 3)])
    capture = loaded(tmp_path, data)
    assert capture.buffers["section25"] == b"shaders!"
    assert capture.buffers["section77"] == b"nobody knows"
    assert ("section77", "buffer") in [
        (row["name"], row["kept"]) for row in rows(capture, "sections")
    ]
    size = len(data) + 4
    behind = nb.summed(data[:16] + struct.pack("<I", size) + data[20:] + b"more")
    assert loaded(tmp_path, behind).buffers["between_sections"].endswith(b"more")


def test_words_that_nobody_named_are_kept_where_they_are_not_zero(tmp_path: Path) -> None:
    data = nb.network([nb.NN])
    plain = loaded(tmp_path, data).buffers
    assert not {"headers", "patch_data", "operation_info", "input_info"} & set(plain)
    for number, byte, name in (
        (10, 24, "patch_data"),
        (4, 24, "operation_info"),
        (1, 32, "input_info"),
    ):
        changed = patched(data, section_of(data, number) + byte, 5)
        (size,) = struct.unpack_from("<I", data, place_of(data, number) + 12)
        at = section_of(data, number)
        assert loaded(tmp_path, changed).buffers[name] == changed[at : at + size]
    for at in (0x14, 0x24, 0x2C, 0x3C + 40):
        changed = patched(data, at, 5)
        assert loaded(tmp_path, changed).buffers["headers"] == changed[: section_of(data, 35)]


def test_coefficients_that_no_entry_holds_are_kept(tmp_path: Path) -> None:
    data = nb.network([nb.NN], coefficients=lambda _: b"x" * 60)
    at = data.index(b"x" * 60)
    told = nb.summed(data[: at + 60] + b"left" + data[at + 64 :])
    capture = loaded(tmp_path, told)
    assert capture.buffers["coefficients"] == b"x" * 60
    assert capture.buffers["coef_data"] == b"x" * 60 + b"left"
    # the section's own sum is another one then
    wrong = [row["of"] for row in rows(capture, "checksums") if row["stated"] != row["found"]]
    assert wrong == ["coef_data"]


def test_a_wrong_checksum_is_told_by_check(tmp_path: Path, run: Any) -> None:
    data = bytearray(nb.network([nb.NN]))
    data[12] ^= 1
    code, out, _ = run("check", str(saved(tmp_path, bytes(data))))
    assert code == 1
    assert "CRC of the file" in "".join(out)
    sound = npulab.check(loaded(tmp_path, nb.network([nb.NN, nb.TP])))
    assert (sound.claims_wrong, len(sound.claims), sound.words) == (0, 4, True)
    changed = loaded(tmp_path, bytes(data)).with_fields(relu=1)
    assert npulab.check(changed).claims == ()


def test_zero_parts_of_a_tp_instruction_are_no_jobs(tmp_path: Path) -> None:
    data = nb.network([nb.TP], cores=4)
    begin = data.index(nb.words([2] * 31))
    capture = loaded(tmp_path, data[:begin] + bytes(192) + data[begin + 192 :])
    assert [job.unit for job in capture.jobs] == ["core 0", "core 2", "core 3"]


def patched(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + struct.pack("<I", value % 2**32) + data[at + 4 :]


def place_of(data: bytes, number: int) -> int:
    """Where the header of a section lies."""
    (count,) = struct.unpack_from("<I", data, 0x38)
    return next(
        at
        for at in range(0x3C, 0x3C + 44 * count, 44)
        if struct.unpack_from("<I", data, at) == (number,)
    )


def section_of(data: bytes, number: int) -> int:
    """Where a section begins."""
    return int(struct.unpack_from("<I", data, place_of(data, number) + 4)[0])


SOUND = nb.network(ALL)
NN_AT, OPERATIONS = place_of(SOUND, 7), section_of(SOUND, 4)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"VPMN" + bytes(8), "header at byte 0x0: got 12 bytes, allowed are 48"),
        (
            nb.network([nb.NN])[:4] + struct.pack("<I", 0x00010020) + nb.network([nb.NN])[8:],
            "header at byte 0x4: got version 0x00010020, allowed is 0x00020005, the one whose "
            "layout is known",
        ),
        (
            SOUND[:-4],
            f"header at byte 0x10: got {len(SOUND)}, allowed is {len(SOUND) - 4}, the bytes of the "
            "file; it may be cut short",
        ),
        (patched(SOUND, 0x20, 2), "header at byte 0x20: got 2 parts, allowed is 1"),
        (
            patched(SOUND, 0x38, 2**31),
            "part at byte 0x30: got 2147483648 sections, allowed are at most 256",
        ),
        (
            patched(SOUND, NN_AT + 8, 1),
            f"section 7 (nn_instr) at byte {2**32 + section_of(SOUND, 7):#x}: got 384 bytes, "
            "allowed are at most the 0 from this byte to the file's end",
        ),
        (
            patched(SOUND, NN_AT + 4, section_of(SOUND, 4)),
            f"section 7 (nn_instr) at byte {OPERATIONS:#x}: got bytes {OPERATIONS:#x} to "
            f"{OPERATIONS + 384:#x}, allowed are bytes from {OPERATIONS + 224:#x} on, where "
            f"section 4 (operation_info) at byte {OPERATIONS:#x} ends",
        ),
        (
            patched(SOUND, NN_AT + 32, 136),
            f"section 7 (nn_instr) at byte {section_of(SOUND, 7):#x}: got items of 136 bytes, "
            "allowed are 192",
        ),
        (
            patched(SOUND, NN_AT, 8),
            f"section header at byte {NN_AT + 44:#x}: got the number 8 again, allowed is a section "
            "of each number",
        ),
        (
            patched(SOUND, OPERATIONS + 32 + 4, 9),
            f"section 4 (operation_info) at byte {OPERATIONS:#x}, item 1: item: got 9, allowed are "
            "the 2 of nn_instr",
        ),
        (
            patched(SOUND, OPERATIONS + 32 + 8, 6),
            f"section 4 (operation_info) at byte {OPERATIONS:#x}, item 1: layer: got 6, allowed "
            "are the 6 of the file, or 0xffffffff for none",
        ),
        (
            patched(SOUND, OPERATIONS + 32 + 20, 2**30),
            f"section 4 (operation_info) at byte {OPERATIONS:#x}, item 1: patches: got 1073741824 "
            "from 0 on, allowed are 14 of all operations together",
        ),
        (
            patched(SOUND, section_of(SOUND, 23) + 4, 2**31),
            f"section 23 (coef_data_table) at byte {section_of(SOUND, 23):#x}, entry 0: got bytes "
            "0x0 to 0x80000000, allowed are the 0x500 bytes of section coef_data",
        ),
        (
            patched(SOUND, section_of(SOUND, 1) + 40, 0x7FC00000),
            f"section 1 (input_info) at byte {section_of(SOUND, 1):#x}, item 0: scale: got nan, "
            "allowed is a finite number",
        ),
        (
            nb.network([]),
            f"section 4 (operation_info) at byte {section_of(nb.network([]), 4):#x}: got no "
            "operation that makes a job, allowed is at least one",
        ),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, data: bytes, text: str) -> None:
    path = saved(tmp_path, data)
    assert refused(lambda: npulab.load(path)) == f"{path}: {text}"


def test_names_of_a_file_stay_on_their_line(tmp_path: Path) -> None:
    data = nb.network([nb.NN]).replace(b"Layer2\0\0\0\0\0\0", b"a\x1b[2J\nb\xff\0\0\0\0")
    (layer,) = rows(loaded(tmp_path, data), "layers")
    assert layer["name"] == "a\\u001b[2J b\ufffd"


# Broken files by the thousand


def seeds() -> list[bytes]:
    """Files written by hand, and the compiler's files if they lie beside the checkout."""
    made = [nb.network(ALL), nb.network([nb.NN]), nb.network([nb.NN, nb.TP, nb.NN], cores=1)]
    try:
        folder = shared(FOLDER)
    except pytest.skip.Exception:
        return made
    return made + [path.read_bytes() for path in sorted(folder.glob("*.nb"))]


def read_or_refused(path: Path, data: bytes) -> bool:
    """True if a broken file is read; False if it is refused with a sentence that names it."""
    path.write_bytes(data)
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is not in the table of chips", UserWarning)
            capture = npulab.load(path)
    except FormatError as error:
        text = str(error)
        assert text.startswith(str(path))
        assert not CONTROL.search(text)
        assert "\n" not in text
        return False
    finally:
        assert time.process_time() - start < limit(1.0)
    assert len(capture.jobs) >= 1
    assert sum(map(len, capture.buffers.values())) <= 2 * len(data)
    return True


def mutants(tmp_path: Path, numbers: Sequence[int]) -> int:
    """The number of broken files that are read; the others are refused."""
    known = seeds()
    path = tmp_path / "broken.nb"
    path.write_bytes(known[0])
    npulab.load(path)  # the first load imports all targets
    read = 0
    for number in numbers:
        r = Random(number)
        data = nb.broken(r, known[number % len(known)])
        if data[:4] == b"VPMN":  # of another kind is a file that begins with other bytes
            read += read_or_refused(path, data)
    return read


def test_broken_files_are_read_or_refused(tmp_path: Path) -> None:
    read = mutants(tmp_path, range(100))
    assert 7 < read < 93


@pytest.mark.long
def test_ten_thousand_broken_files_are_read_or_refused(tmp_path: Path) -> None:
    read = mutants(tmp_path, range(100, 10_100))
    assert 600 < read < 9_500


@pytest.mark.parametrize("count", [1000, pytest.param(4000, marks=pytest.mark.long)])
def test_a_whole_network_is_read_in_half_a_second(tmp_path: Path, count: int) -> None:
    """10 KB for each operation: 10 MB of 1,000, 40 MB of 4,000."""
    r = Random(7)
    kinds = [r.choice((nb.NN, nb.NN, nb.NN, nb.TP, nb.SHADER)) for _ in range(count)]
    data = nb.network(kinds, coefficients=lambda number: bytes([number % 251]) * 16_000)
    assert 8e3 * count < len(data) < 12e3 * count
    loaded(tmp_path, nb.network([nb.NN]))  # the first load imports all targets
    path = saved(tmp_path, data)
    start = time.process_time()
    capture = npulab.load(path)
    assert time.process_time() - start < limit(count / 2000)
    assert sum(job.block == "NN" for job in capture.jobs) == kinds.count(nb.NN)
