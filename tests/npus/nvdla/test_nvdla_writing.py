"""Captures written as traces: what is read again is the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared
from nvdla_layers import public_traces

import npulab
from npulab.npus.nvdla import imported, writing
from npulab.npus.nvdla.images import read_records
from npulab.npus.nvdla.memory import Memory

WITHOUT = {"line", "name"}
ASKED = re.compile(r"^\s*((?:poll_|reg_read|intr_notify)\w*)\s*\(([^)]*)\)", re.MULTILINE)


def rows(capture: npulab.Capture, what: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in WITHOUT}
        for row in capture.parameters[what]
    ]


def asked(text: str) -> list[tuple[str, str]]:
    """The statements that ask the device; a unit's name may be in small letters."""
    return [(name, said.replace(" ", "").upper()) for name, said in ASKED.findall(text)]


def test_public_traces_come_back(tmp_path: Path) -> None:
    traces = [one for one in public_traces() if one.chip != "nv_full"]
    assert len(traces) == 29
    count = 0
    for one in traces:
        if sum(map(len, one.buffers.values())) > 2**18:
            continue
        path = writing.write_trace(one, tmp_path)
        assert path == tmp_path / one.chip / one.name
        statements = asked((path / f"{one.name}.cfg").read_text())
        assert statements == asked(Path(one.source).read_text())
        count += len(statements)
        again = npulab.load(path)
        assert (again.name, again.chip) == (one.name, one.chip)
        assert [job.writes for job in again.jobs] == [job.writes for job in one.jobs]
        assert rows(again, "memory") == rows(one, "memory")
        assert rows(again, "checks") == rows(one, "checks")
        assert again.buffers == one.buffers
        for a, b in zip(Memory.of(again).ranges, Memory.of(one).ranges, strict=True):
            assert a[:2] == b[:2]
            assert np.array_equal(a[2], b[2])
    assert count > 30


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_images_come_back(size: int, tmp_path: Path) -> None:
    data = np.random.RandomState(size).randint(1, 256, size).astype(np.uint8).tobytes()
    (tmp_path / "a.dat").write_text(writing.image_text(data))
    assert read_records(tmp_path / "a.dat").data == data
    if size < 64:
        return
    (tmp_path / "b.dat").write_text(writing.image_text(data, [(0, 3), (40, 60)]))
    image = read_records(tmp_path / "b.dat")
    assert image.runs.tolist() == [[0, 3], [40, 60]]
    assert image.data == data[:3] + bytes(37) + data[40:]


def test_what_makes_no_trace_is_told(tmp_path: Path) -> None:
    one = imported.read_trace(shared("data/nvdla/nvdlav1/sdp_relu_int16/input.txn"))
    with pytest.raises(ValueError, match="got memory any_mem, allowed are sec_mem, pri_mem"):
        writing.write_trace(one, tmp_path)
    with pytest.raises(ValueError, match="got no output and its address"):
        writing.write_trace(replace(one, parameters={}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_simulated_capture_stays_simulated(tmp_path: Path) -> None:
    layer = npulab.Conv2D(
        np.full((3, 2, 2, 5), 3, np.int8), np.arange(3), (4, 4, 5), padding="same"
    )
    x = np.arange(80).reshape(4, 4, 5).astype(np.int8)
    for chip in ("nv_small", "nv_full"):
        made = npulab.Simulated().record(
            npulab.target("nvdla").lower(layer, chip=chip, x=x, name="mine")
        )
        again = npulab.load(writing.write_trace(made, tmp_path))
        assert (again.name, again.chip, again.provenance, again.simulated) == (
            "mine",
            chip,
            "simulated",
            True,
        )
        assert again.words.tolist() == made.words.tolist()
        found = npulab.check(again)
        assert (found.verdict, found.simulated) == ("equal", True)
        assert (
            again.parameters["checks"][0]["size"] == found.compared == len(made.buffers["output"])
        )
        wrong = bytes([made.buffers["output"][0] ^ 1]) + made.buffers["output"][1:]
        other = writing.trace_files(made.with_buffers(output=wrong))
        assert other["mine.cfg"] != writing.trace_files(made)["mine.cfg"]
