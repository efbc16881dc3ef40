"""A capture cannot contradict itself: the opcode names the block, and what is set is set before
the units start.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES
from ethosu_streams import by_hand

import npulab
from npulab import cli
from npulab.analysis.ignored import ignored_fields
from npulab.captures.capture import Capture, Job
from npulab.captures.target import Lifted, Target
from npulab.quant.layers import Elementwise
from npulab.registers.commands import opcodes, read_commands, write_commands
from npulab.registers.map import RegisterMap

ENUMS = {"kind": {1: "READ", 2: "MULTIPLY", 5: "WRITE", 7: "END"}}
BLOCKS = ("READ", "MULTIPLY", "WRITE")


def block(name: str, enum: str = "enum:kind") -> RegisterMap:
    rows: list[dict[str, Any]] = [
        {
            "block": name,
            "offset": 0,
            "register": "HEAD",
            "field": "kind",
            "lsb": 29,
            "width": 3,
            "value": enum,
        },
        {"block": name, "offset": 0, "register": "HEAD", "field": "count", "lsb": 0, "width": 8},
        {"block": name, "offset": 4, "register": "BODY", "field": "what", "lsb": 0, "width": 32},
    ]
    return RegisterMap(rows, enums=ENUMS)


MAPS = {name: block(name) for name in BLOCKS}


def job(name: str, code: int, count: int = 3) -> Job:
    return Job(name, np.array([code * 2**29 + count, 9], np.uint32))


def stream() -> Capture:
    return Capture(
        "run", "demo", "x", (job("READ", 1), job("MULTIPLY", 2), job("WRITE", 5)), maps=MAPS
    )


def test_the_opcode_names_the_block_however_a_capture_is_changed() -> None:
    capture = stream()
    said = r"^capture run: task 1: field kind of block MULTIPLY: got WRITE \(0x5\), allowed is MULTIPLY \(0x2\), because the opcode names"
    wrong = job("MULTIPLY", 5)
    for change in (
        lambda: capture.with_fields(task=1, kind="WRITE"),
        lambda: capture.with_words(wrong.words, 1),
        lambda: capture.with_job(wrong, 1),
        lambda: replace(capture, jobs=(capture.jobs[0], wrong)),
        lambda: Capture("run", "demo", "x", (capture.jobs[0], wrong), maps=MAPS),
    ):
        with pytest.raises(ValueError, match=said):
            change()
    for raw, text in ((7, r"END \(0x7\)"), (3, "0x3")):
        with pytest.raises(ValueError, match=f"got {text}, allowed is MULTIPLY"):
            capture.with_fields(task=1, kind=raw)
    started = replace(capture.jobs[0], start=wrong)
    with pytest.raises(ValueError, match="task 0: field kind of block MULTIPLY"):
        capture.with_job(started, 0)
    # the rest of the word is free, and a job of another block may take the place
    assert capture.with_fields(task=1, count=8, kind="MULTIPLY").jobs[1].words[0] == 2 * 2**29 + 8
    assert [one.block for one in capture.with_job(job("WRITE", 5), 1).jobs] == [
        "READ",
        "WRITE",
        "WRITE",
    ]
    data = write_commands([(one.block, one.words) for one in capture.jobs], MAPS)
    assert [name for name, _ in read_commands(data, MAPS, "kind")] == list(BLOCKS)


def test_only_a_field_that_names_the_blocks_is_an_opcode() -> None:
    assert {name: item.name for name, item in opcodes(MAPS).items()} == dict.fromkeys(
        BLOCKS, "kind"
    )
    assert not opcodes({"READ": MAPS["READ"]})  # one block is told apart from none
    assert not opcodes({"READ": MAPS["READ"], "WRITE": block("WRITE", "")})
    for name in npulab.targets():
        of = npulab.target(name)
        for chip in of.chips:
            assert not opcodes(of.maps(chip)), (
                name
            )  # no block of these is named by a field of its words
    mixed = Capture(
        "one", "demo", "x", (Job("READ", np.array([2**31, 0])),), maps={"READ": MAPS["READ"]}
    )
    assert mixed.with_fields(kind="WRITE").values["kind"] == 5


def test_a_folder_that_contradicts_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Target("demo", "a demo", {"x": {}}, MAPS)
    for place in ("target", "stated_target"):
        monkeypatch.setattr(f"npulab.captures.store.{place}", lambda name: made)
    folder = npulab.save(stream(), tmp_path / "run")
    description = folder / "capture.json"
    known = json.loads(description.read_text())
    known["jobs"][1]["block"] = "WRITE"
    description.write_text(json.dumps(known))
    with pytest.raises(
        ValueError,
        match=r"task 1: field kind of block WRITE: got MULTIPLY \(0x2\), allowed is WRITE",
    ):
        npulab.load(folder)
    assert cli.main(["show", str(folder)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "the opcode names the block" in err


def test_an_opcode_is_not_called_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lift that goes by the block alone does not notice the opcode; the capture does."""
    layer = Elementwise("copy", (2, 2, 2))

    def lift(capture: Capture) -> Lifted:
        counts = [int(one.words[1]) for one in capture.jobs]
        return Lifted(replace(layer, scale=float(sum(counts))), None, None)

    made = Target("demo", "a demo", {"x": {}}, MAPS, lift=lift)
    monkeypatch.setattr("npulab.analysis.ignored.target", lambda _: made)
    assert set(ignored_fields(stream()).field) == {"count", "w0_8_21"}


# What was not written before


def placed(capture: Capture, name: str, raw: int) -> tuple[list[int], int, list[int]]:
    """Offsets of the writes with one more field, where the new one stands, and where units are
    started.
    """
    registers = capture.maps[capture.jobs[0].block]
    item = registers[name]
    changed = capture.with_fields(task=0, **{name: item.value(raw)})
    offsets = [offset for offset, _ in changed.jobs[0].writes]
    new = [
        number
        for number, offset in enumerate(offsets)
        if offset not in dict(capture.jobs[0].writes)
    ]
    assert len(new) == 1
    starting = {
        registers.registers[piece.word][1]
        for item in registers
        if item.starts
        for piece in item.pieces
    }
    assert changed.jobs[0].words[registers.index[offsets[new[0]]]]
    kept = [write for number, write in enumerate(changed.jobs[0].writes) if number != new[0]]
    assert kept == list(capture.jobs[0].writes)
    return offsets, new[0], [number for number, offset in enumerate(offsets) if offset in starting]


def unwritten(capture: Capture, task: int = 0) -> list[str]:
    """Fields of registers that the job does not write and that are not read-only."""
    job_, registers = capture.jobs[task], capture.maps[capture.jobs[task].block]
    return [
        f"{item.block}.{item.register}.{item.name}"
        for item in registers
        if not item.read_only
        and not item.automatic
        and not item.starts
        and registers.registers[item.pieces[0].word][1] not in job_.state
    ]


@pytest.mark.parametrize(
    "name", ["sim-3x3-same", "sim-max-pool", "sim-other-driver", "sim-full-map"]
)
def test_a_new_write_stands_before_the_units_start(name: str) -> None:
    capture = npulab.load(CAPTURES / "nvdla" / name)
    fields = [one for one in unwritten(capture) if ".D_" in one and ".D_OP_ENABLE" not in one]
    assert fields
    registers = capture.maps[capture.jobs[0].block]
    for field in fields[:: max(1, len(fields) // 12)]:
        offsets, new, starts = placed(capture, field, 1)
        unit = field.split(".")[0]
        own = [at for at in starts if registers.registers[registers.index[offsets[at]]][0] == unit]
        assert starts
        assert new < min(own or starts), field


def test_a_write_of_ethos_u_stands_before_the_operation() -> None:
    capture = by_hand()
    for field in unwritten(capture)[:6]:
        offsets, new, starts = placed(capture, field, 1)
        assert starts == [len(offsets) - 1]
        assert new == len(offsets) - 2


def test_masks_go_with_their_writes() -> None:
    rows = [
        {
            "block": "B",
            "offset": 4 * n,
            "register": f"R{n}",
            "field": f"f{n}",
            "lsb": 0,
            "width": 32,
        }
        for n in range(3)
    ]
    rows.append(
        {
            "block": "B",
            "offset": 12,
            "register": "GO",
            "field": "go",
            "lsb": 0,
            "width": 1,
            "access": "start",
        }
    )
    registers = RegisterMap(rows)
    one = Job.from_writes("B", [(0, 5), (12, 1, 1), (4, 0xF0, 0xFF)], registers)
    capture = Capture("c", "demo", "x", (one,), maps={"B": registers})
    changed = capture.with_fields(f2=7).jobs[0]
    assert changed.writes == ((0, 5), (8, 7), (12, 1), (4, 0xF0))
    assert dict(changed.masks) == {2: 1, 3: 0xFF}
    # where nothing starts a unit a new write comes last
    plain = RegisterMap(rows[:3])
    last = Capture(
        "c", "demo", "x", (Job.from_writes("B", [(0, 5), (4, 6)], plain),), maps={"B": plain}
    )
    assert last.with_fields(f2=7).jobs[0].writes == ((0, 5), (4, 6), (8, 7))
    assert registers.select(["x"])["go"].starts
