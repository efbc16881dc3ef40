"""The vivante target: importer, coefficient stream, lift and lower, the simulated device."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from conftest import shared
from record_simulated import conv

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.target import Target
from npulab.npus.vivante import commands, simulate

A311D, IMX8MP = "vipnano-qi-a311d", "vipnano-si-imx8mp"
SEED = 20231


# The capture of update 4


def test_lower_gives_the_start_commands_of_mesa(
    captures: npulab.CaptureSet, vivante: Target
) -> None:
    capture = captures["update4-mesa"]
    again = vivante.lower(vivante.lift(capture).layer, addresses=capture.addresses)
    assert again.jobs == capture.jobs
    assert again.buffers["commands"] == capture.buffers["commands"]


# Layers that Mesa's encoder lowered


def test_fields_of_every_vector_are_those_that_mesa_set(vivante: Target) -> None:
    """Both generations, each field that lies in one piece."""
    seen = 0
    chips = {7: A311D, 8: "vipnano-si-imx8mp"}
    for entry in json.loads(shared("data/vivante/vectors/index.json").read_text()):
        registers = vivante.maps(chips[entry["nn_version"]])["NN"]
        with np.load(shared(f"data/vivante/vectors/{entry['id']}.npz")) as data:
            raw = registers.decode(data["nn_words"], raw=True)
        for item in registers:
            if len(item.pieces) == 1 and not item.automatic:
                assert raw[item.name] == entry["nn_fields"].get(item.name, 0), (
                    entry["id"],
                    item.name,
                )
                seen += 1
    assert seen == 18 * 53 + 12 * 2  # two signs are fields of V7 only


# Random layers through lower, device and lift


def test_chip_that_is_not_covered(vivante: Target) -> None:
    layer = npulab.Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1))
    with pytest.raises(ValueError, match=f"^chip: got 'dream', allowed is one of {A311D}, "):
        vivante.lower(layer, chip="dream")
    with pytest.raises(
        ValueError,
        match=r"^x: got shape \(1, 8, 8\) uint8, allowed is \(8, 8, 1\) of the weights' uint8$",
    ):
        vivante.lower(layer, x=np.zeros((1, 8, 8), np.uint8))


# The coefficient stream


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, 65, "got core sizes"),
        (0, 0, "got core sizes"),
        (4, 64, "got core sizes"),
        (3, 255, "got core sizes"),
        (10, 1, "got core sizes"),
        (40, 1, "in the fill from byte 32 bit 0 to byte 64, allowed is 0"),
        (64, 9, "got zero-run width 9"),
        (65, 2, "2 kernels per core, allowed are a width of 0 to 8 and 1 kernels"),
        (100, 7, "in the fill from byte 91 bit . to byte 128"),
        (600, 1, "in the fill from byte 128 bit 0 to byte 640"),
        (64, 5, "a run of zero points goes 12 weights past the bias of channel 0"),
    ],
)
def test_broken_stream(
    captures: npulab.CaptureSet, vivante: Target, place: int, value: int, words: str
) -> None:
    data = bytearray(captures["update4-mesa"].buffers["coefficients"])
    data[place] = value
    broken = captures["update4-mesa"].with_buffers(coefficients=bytes(data))
    with pytest.raises(ValueError, match=f"^coefficients: .*{words}"):
        vivante.recode(broken)
    found = npulab.check(broken)
    assert (found.coefficients, found.verdict, found.ok) == (False, "differs", False)
    assert found.reason.startswith("coefficients: ")


# Commands


def test_load_of_several_states() -> None:
    states = [(0x3930, 0x10), (0x10A0, 0xFFFF3000), (0xFFFC, 2**32 - 1)]
    assert commands.commands(states)[0] == 0x08010E4C
    assert commands.writes(commands.commands(states)) == states
    words = np.array([0x08030E4C, 1, 2, 3, 0x18000000, 0, 0x08010E4C, 7], np.uint32)
    assert commands.writes(words) == [(0x3930, 1), (0x3934, 2), (0x3938, 3), (0x3930, 7)]
    with pytest.raises(
        ValueError,
        match="the LOAD_STATE at word 6 has 1 states, allowed are at most the 0 words that",
    ):
        commands.writes(words[:7])


# The simulated device


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
@pytest.mark.parametrize("dialect", ["mesa", "vendor"])
def test_device_shares_only_tables_and_kit_with_the_rest(
    chip: str, dialect: str, vivante: Target
) -> None:
    """Its agreement with lift and emulate means something only if it calls nothing of them."""
    layer, x = conv(1, (9, 8, 5), 6, 3, 2.0**-11, stride=(2, 2))
    capture = vivante.lower(layer, chip=chip, x=x, dialect=dialect)
    called: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    sys.setprofile(watch)
    try:
        simulate.simulate(capture)
    finally:
        sys.setprofile(None)
    package = Path(npulab.__file__).parent
    files = {
        Path(file).relative_to(package).as_posix() for file in called if package.as_posix() in file
    }
    rooms = {file.partition("/")[0] for file in files}
    assert rooms <= {"npus", "registers", "captures", "layout", "support"}
    ours = {file.partition("vivante/")[2] for file in files if file.startswith("npus/vivante/")}
    assert "simulate.py" in ours
    assert ours <= {"simulate.py", "device_v8.py", "device_vendor.py", "facts.py"}


def stream(place: int, value: int) -> Callable[[npulab.Capture], npulab.Capture]:
    def change(capture: npulab.Capture) -> npulab.Capture:
        data = bytearray(capture.buffers["coefficients"])
        data[place] = value
        return capture.with_buffers(coefficients=bytes(data))

    return change


def field(**values: Any) -> Callable[[npulab.Capture], npulab.Capture]:
    return lambda capture: capture.with_fields(**values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (field(kernel_xy_size=0), "kernel_xy_size is 0"),
        (field(out_image_tile_y_size=0), "out_image_tile_y_size is 0"),
        (field(kernels_per_core=0), "kernels_per_core is 0"),
        (field(in_image_x_stride=0), "in_image_x_stride is 0"),
        (field(in_image_address=0x3348E241), "off its alignment of 64"),
        (field(out_image_address=0x20), "off its alignment"),
        (field(kernel_z_size=5), "lies outside its strides or its 64 bytes"),
        (field(kernel_xy_size=15), "past the end of its coefficient stream"),
        (field(out_image_x_size=9), "larger than its strides"),
        (
            field(out_image_z_size=16383, out_image_x_stride=65535, out_image_y_stride=65535),
            "do not fit",
        ),
        (field(kernel_data_type="fp16"), "kernel_data_type is 1"),
        (stream(88, 1), "an output plane of .* at offset 256 lies outside"),
        (field(pooling="max"), "pooling is 1, the simulated unit knows 0 and 3 only"),
        (stream(0, 32), "core 0 is given 32 bytes"),
        (stream(1, 1), "core 0 is given 320 bytes|waits for 320 bytes"),
        (stream(0, 0), "core 0 is given 0 bytes"),
        (stream(4, 64), "core 1 is given 64 bytes"),
        (stream(64, 6), "zero-run width 6, the chip has at most 5"),
        (stream(65, 9), "past the end of its coefficient stream"),
        (stream(66, 255), "past the end of its coefficient stream"),
        (lambda capture: capture.with_buffers(coefficients=b""), "no room for its header"),
        (
            lambda capture: capture.with_buffers(input=b""),
            "lies outside its strides or its 0 bytes",
        ),
    ],
)
def test_what_hangs_hardware_hangs_the_device(
    captures: npulab.CaptureSet, reason: str, change: Callable[[npulab.Capture], npulab.Capture]
) -> None:
    run = Simulated().run(change(captures["update4-vendor"]))
    assert run.outcome == "hang"
    assert re.search(reason, run.reason), run.reason


# The text dump


@pytest.fixture(scope="module")
def dump_text() -> str:
    return shared("seeds/002_a8df49b9735cd1f4.txt").read_text(encoding="utf-8").replace("\xa0", " ")


def test_dump_gives_both_captures(
    dump_text: str, tmp_path: Path, captures: npulab.CaptureSet
) -> None:
    path = tmp_path / "both.txt"
    path.write_text(dump_text, encoding="utf-8")
    for side in ("mesa", "vendor"):
        got, want = npulab.load(path, side), captures[f"update4-{side}"]
        assert replace(got, name=want.name, source=want.source) == want


def test_one_side_as_a_plain_file(
    dump_text: str, tmp_path: Path, captures: npulab.CaptureSet
) -> None:
    path = tmp_path / "galcore.txt"
    path.write_text(side_of(dump_text, "+"), encoding="utf-8")
    got, want = npulab.load(path), captures["update4-vendor"]
    assert replace(got, name=want.name, source=want.source, date=want.date) == want


def side_of(text: str, sign: str) -> str:
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("@@"))
    return "\n".join(line[1:] for line in lines[start + 1 :] if line[:1] in (" ", sign))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "map->relu = 0x0;  /* (0) */",
            "",
            r"field relu \(word 2\[24\]\) is missing, allowed is a job with all 91 fields of its 34 words",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->relu = 0x2;  /* (2) */",
            r"line \d+, side mesa: register w2 field relu: got raw 2",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->relu = 0x1;  /* (0) */",
            "field relu: got 0x1 and .0., allowed is twice the same number",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->rely = 0x0;  /* (0) */",
            "got field rely, allowed are the names in update4",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->decode = 0x0;  /* (0) */",
            r"line \d+, side mesa: got field decode, allowed are the",
        ),
        ("map->relu =", "map->prelu =", "got field prelu a second time, allowed is once"),
        (
            "map->relu = 0x0;",
            "map->relu := 0x0;",
            r"fields? relu \(word 2\[24\]\), unused1 .* and \d+ more is missing",
        ),
        ("0x08010e4f,", "0x08010e4,", "allowed is a command word"),
        ("}\n", "\n", "allowed is a command word"),
        ("0x69, 0xd3", "0x69 0xd3", "allowed is a line of bytes of the input buffer"),
        ("0xf7, 0x64, 0xc3, 0xca", "0xf7, 0x64", "of input"),
        (
            "0xf7, 0x64, 0xc3, 0xca",
            "0xf7, 0x64,",
            r"line \d+, .*allowed is a line of bytes of the output buffer",
        ),
        ("--- /home", "-- /home", "got a diff whose @@ has no --- line before it"),
    ],
)
def test_broken_dump(dump_text: str, tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in dump_text
    path = tmp_path / "broken.txt"
    path.write_text(dump_text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=words) as error:
        npulab.load_all(path)
    assert str(error.value).startswith(f"{path}, ")


def test_missing_command_word(dump_text: str, tmp_path: Path) -> None:
    """Every command word that is taken out is missed."""
    lines = dump_text.split("\n")
    words = [i for i, line in enumerate(lines) if re.match(r"[ +-] *0x[0-9a-f]{8}, /\\*", line)]
    path = tmp_path / "broken.txt"
    for i in words:
        path.write_text("\n".join(lines[:i] + lines[i + 1 :]), encoding="utf-8")
        with pytest.raises(ValueError, match=r"a command word is missing|one is missing"):
            npulab.load_all(path)
    assert len(words) == 29


def test_truncated_dump(dump_text: str, tmp_path: Path) -> None:
    """Cut anywhere inside the dump, it is refused with where it ends."""
    lines = dump_text.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("@@")) + 2
    last = max(i for i, line in enumerate(lines) if "0x77, 0x77" in line)
    path = tmp_path / "cut.txt"
    for end in range(first + 4, last, 7):
        path.write_text("\n".join(lines[:end]), encoding="utf-8")
        with pytest.raises(ValueError, match=r"ends inside|is missing|of input|of output"):
            npulab.load_all(path)


def printed(capture: npulab.Capture) -> str:
    """A capture as the tool of update 4 prints it."""
    from npulab.npus.vivante.facts import PRINTED

    def rows(data: bytes) -> str:
        lines = [
            ", ".join(f"0x{byte:02x}" for byte in data[at : at + 12])
            for at in range(0, len(data), 12)
        ]
        return ",\n".join(f"  {line}" for line in lines)

    words = np.frombuffer(capture.buffers["commands"], "<u4")
    raw = PRINTED.decode(capture.words, raw=True)
    return "\n".join(
        [
            "{",
            *(f"    0x{word:08x}, /* ... */" for word in words),
            "}",
            *(
                f"map->{item.name} = {raw[item.name]:#x};  /* ({raw[item.name]}) */"
                for item in PRINTED
            ),
            *(rows(capture.buffers[name]) for name in ("coefficients", "input", "output")),
            "",
        ]
    )


def test_any_capture_printed_is_imported_the_same(
    captures: npulab.CaptureSet, tmp_path: Path
) -> None:
    """Each capture that has a command stream: the text prints a stream, and a compiler's layer has
    none."""
    whole = [capture for capture in captures if "commands" in capture.buffers]
    assert len(whole) == 9
    for capture in whole:
        path = tmp_path / f"{capture.name}.txt"
        path.write_text(printed(capture), encoding="utf-8")
        got = npulab.load(path)
        assert got.jobs == capture.jobs
        assert got.buffers == capture.buffers
        assert got.addresses == capture.addresses


def test_two_printed_captures_as_one_diff(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    a, b = captures["sim-1x1"], captures["sim-3x3-sparse"]
    lines = difflib.unified_diff(
        printed(a).splitlines(),
        printed(b).splitlines(),
        "/x/mesa.txt\t2026-01-02",
        "/x/galcore.txt\t2026-01-03",
        n=10**6,
        lineterm="",
    )
    path = tmp_path / "both.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    mesa, vendor = npulab.load(path, "mesa"), npulab.load(path, "vendor")
    assert (mesa.jobs, mesa.buffers, mesa.date) == (a.jobs, a.buffers, "2026-01-02")
    assert (vendor.jobs, vendor.buffers, vendor.provenance) == (b.jobs, b.buffers, "vendor driver")


def test_diff_that_leaves_lines_out(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    a, b = captures["update4-mesa"], captures["update4-vendor"]
    lines = difflib.unified_diff(
        printed(a).splitlines(), printed(b).splitlines(), "mesa.txt", "galcore.txt", lineterm=""
    )
    path = tmp_path / "both.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(
        ValueError,
        match=r"line \d+: the diff leaves lines out between its hunks; make it with diff -U",
    ):
        npulab.load_all(path)
