"""Descriptors that the kernel driver prints: nvdla/sw#26, where somebody wondered about a model."""

from __future__ import annotations

from pathlib import Path
from random import Random

import fuzz_mutators
import pytest
from case_tables import fields

import npulab
from npulab import cli
from npulab.captures.documents import document

FIELDS = fields("""
conv_mode=0 entry_per_slice=6 data_format=36 data_bank=1 weight_bank=2 release=12
input_width_csc=12 input_channel_csc=20 kernel_width_csc=5 kernel_height_csc=5
kernel_channel_csc=20 input_width_cmac=8 bytes_per_kernel=1000
""")
TEXT = "\n".join(
    [
        "[   12.3] NVDLA FW ROI[0]: dla_conv_op_desc",
        *(f"[   12.3]     {name:<20}= {value}" for name, value in FIELDS.items()),
        "[   12.4] NVDLA FW ROI[0]: dla_conv_surface_desc",
        "    address = -1",
        "",
    ]
)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "dmesg.txt"
    path.write_bytes(data)
    return path


def test_descriptors_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, TEXT.encode())
    found = document(path)
    assert found is not None
    assert [*found.tables] == ["0: dla_conv_op_desc", "1: dla_conv_surface_desc"]
    rows = found.tables["0: dla_conv_op_desc"]
    assert {row["field"]: row["value"] for row in rows} == FIELDS
    assert [finding.text for finding in found.findings] == [
        "1000 bytes a kernel of 5 x 5 x 20 weights: 2 bytes each, int16 or float16",
        "columns of the output: 8 stated, 8 follow from input and kernel",
    ]
    assert cli.main(["show", str(path)]) == 0
    assert "2 bytes each, int16 or float16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "text"),
    [(500, "1 bytes each, int8"), (750, "1.5 bytes each, which no type of weights has")],
)
def test_bytes_of_a_weight(size: int, text: str, tmp_path: Path) -> None:
    found = document(written(tmp_path, TEXT.replace("= 1000", f"= {size}").encode()))
    assert found is not None
    assert text in found.findings[0].text


def shown(path: Path) -> str:
    """A document as text, "" if it is refused in one sentence."""
    said = ""
    try:
        return str(document(path) or "")
    except npulab.FormatError as error:
        said = str(error)
    assert "\n" not in said
    return ""


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.long)])
def test_damaged_texts(tmp_path: Path, count: int) -> None:
    read = 0
    for number in range(count):
        path = written(tmp_path, fuzz_mutators.change_text(Random(number), TEXT.encode()))
        read += bool(shown(path))
    assert read > count // 2
