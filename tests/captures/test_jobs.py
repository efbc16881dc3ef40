"""Jobs of register writes: masks, state, copies of a block; how copies are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import npulab
from npulab.analysis.bisect.parts import mix, parts_of
from npulab.analysis.check import diff
from npulab.analysis.sides import differing
from npulab.captures.capture import Capture, CaptureSet, Job, word_writes
from npulab.captures.listing import Decoded, folded
from npulab.cli import main
from npulab.notebook.widgets import DiffModel, RegisterModel
from npulab.npus.kit.fields import values_of
from npulab.npus.template import new_target
from npulab.registers.formats import read_map
from npulab.registers.map import RegisterMap

BASE, GROUP, LAYER = 0x2_5010_0000, 0x400000, 4  # above 32 bits
REGISTERS = f"""block,offset,register,field,lsb,width,value,evidence,count,stride
JOB,{BASE:#x},,group layer,,,sparse,,4 32,{GROUP:#x} {LAYER}
JOB,0x0,CTRL,relu,0,1,,guess,,
JOB,0x0,CTRL,pool,8,8,,guess,,
JOB,0x80,SIZE,rows,0,10,raw+1,guess,,
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target whose block repeats: 4 groups of 32 layers."""
    monkeypatch.chdir(tmp_path)
    new_target("acc")
    (tmp_path / "npulab_targets/acc/registers.csv").write_text(REGISTERS)
    return tmp_path


def at(group: int, layer: int, offset: int) -> int:
    return BASE + GROUP * group + LAYER * layer + offset


def made() -> Capture:
    """A layer on four groups, of which the last has other rows, and a write that no block has."""
    maps = npulab.target("acc").maps("acc")
    writes = [(at(group, 2, 0), 0x301) for group in range(4)]
    writes += [(0x40, 9), *((at(group, 2, 0x80), 5 + (group == 3)) for group in range(4))]
    jobs, rest = Job.split(writes, maps)
    assert rest == [(0x40, 9)]
    return Capture("two", "acc", "acc", tuple(jobs), provenance="simulated", maps=maps)


def test_writes_are_split_into_a_job_for_each_copy(folder: Path) -> None:
    jobs = made().jobs
    assert [(job.label, job.unit) for job in jobs] == [("layer 2", f"group {n}") for n in range(4)]
    assert [job.words.tolist() for job in jobs] == [[0x301, 5]] * 3 + [[0x301, 6]]
    assert jobs[0].writes == ((0, 0x301), (0x80, 5))


def test_labels_and_units_are_saved(folder: Path) -> None:
    again = npulab.load(npulab.save(made(), folder / "two"))
    assert again == made()
    assert replace(made().jobs[0], unit="group 7") != made().jobs[0]


def test_equal_units_are_shown_once(folder: Path) -> None:
    text = str(Decoded(made()))
    lines = [line.split("  ") for line in text.splitlines() if line.startswith("layer")]
    assert [line[0] for line in lines if "relu" in line] == ["layer 2, group 0-3"]
    assert [line[0] for line in lines if "rows" in line] == [
        "layer 2, group 0-2",
        "layer 2, group 3",
    ]
    assert len(Decoded(made()).records()) == 4 * len([*made().maps["JOB"]])  # the records are whole


def test_what_units_say_of_a_field_stands_together() -> None:
    """Whatever the order of the tasks: group by group here, so that layers are mixed."""
    jobs = [
        Job("B", np.zeros(1, int), label=f"layer {layer}", unit=f"group {group}")
        for group in range(3)
        for layer in range(2)
    ]
    jobs.append(Job("B", np.zeros(1, int)))
    rows = [
        {
            "task": task,
            "block": "B",
            "register": "R",
            "field": field,
            "a": task if field == "y" else 0,
        }
        for task in range(7)
        for field in ("x", "y")
    ]
    assert [(row["task"], row["field"], row["a"]) for row in folded(rows, jobs)] == [
        ("layer 0, group 0-2", "x", 0),
        ("layer 0, group 0", "y", 0),
        ("layer 0, group 1", "y", 2),
        ("layer 0, group 2", "y", 4),
        ("layer 1, group 0-2", "x", 0),
        ("layer 1, group 0", "y", 1),
        ("layer 1, group 1", "y", 3),
        ("layer 1, group 2", "y", 5),
        (6, "x", 0),
        (6, "y", 6),
    ]


def test_equal_units_of_a_diff_are_said_once(folder: Path) -> None:
    capture = made()
    jobs = [
        job.with_words(np.array([0x300, job.words[1]]), capture.maps["JOB"]) for job in capture.jobs
    ]
    found = differing(capture, replace(capture, jobs=tuple(jobs)))
    assert len(found.records()) == 4
    assert [line.split("  ")[0] for line in str(found).splitlines() if "relu" in line] == [
        "layer 2, group 0-3"
    ]


def test_two_jobs_of_one_capture_are_compared(folder: Path, capsys: Any) -> None:
    capture = made()
    frame = diff(capture, capture, tasks=(0, 3))
    assert frame[["field", "a", "b"]].to_numpy().tolist() == [["rows", 6, 7]]
    assert diff(capture, capture, tasks=(0, 1)).empty
    npulab.save(capture, folder / "two")
    assert main(["diff", "two", "--tasks", "2", "3"]) == 0
    out = capsys.readouterr().out
    assert "a Capture(acc/two task 2, layer 2, group 2, acc, simulated, 1 job)" in out
    assert "rows   6  7" in out
    with pytest.raises(LookupError, match=r"^capture two: got task 4, it has 0 to 3$"):
        diff(capture, capture, tasks=(0, 4))
    with pytest.raises(ValueError, match=r"^tasks: got 1, allowed are two, one of each side$"):
        diff(capture, capture, tasks=(0,))


def test_the_words_of_every_job_of_a_block(folder: Path) -> None:
    capture = made()
    assert capture.words_of("JOB").tolist() == [[0x301, 5]] * 3 + [[0x301, 6]]
    assert CaptureSet((capture, capture)).words_of("JOB").shape == (8, 2)
    with pytest.raises(LookupError, match=r"^block: got 'NN', the jobs are of JOB$"):
        capture.words_of("NN")


PLAIN = RegisterMap(
    [
        {"block": "B", "offset": 4 * n, "register": f"R{n}", "field": "f", "lsb": 0, "width": 32}
        for n in range(4)
    ]
)


def slow_state(writes: list[tuple[int, int, int]], state: dict[int, int]) -> dict[int, int]:
    """The definition: bit by bit."""
    for offset, value, mask in writes:
        for bit in (2**n for n in range(32)):
            if mask & bit:
                state[offset] = state.get(offset, 0) - (state.get(offset, 0) & bit) + (value & bit)
        state.setdefault(offset, 0)
    return state


WORDS = st.integers(0, 2**32 - 1)
WRITES = st.lists(st.tuples(st.sampled_from([0, 4, 8, 12, 0x1000]), WORDS, WORDS), max_size=12)


@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.long)])
def test_masked_writes_change_their_bits_of_what_jobs_before_left(count: int) -> None:
    settings(max_examples=count)(given(WRITES, WRITES)(masked_writes_hold))()


def masked_writes_hold(first: Any, second: Any) -> None:
    one = Job.from_writes("B", first, PLAIN)
    two = Job.from_writes("B", second, PLAIN, after=one)
    state = slow_state(second, slow_state(first, {}))
    assert two.state == state
    assert two.words.tolist() == [state.get(4 * n, 0) for n in range(4)]
    assert two.masks == {n: mask for n, (*_, mask) in enumerate(second) if mask != 2**32 - 1}
    wanted = np.array([1, 2, 3, 4])
    changed = two.with_words(wanted, PLAIN) if two.writes else two
    sent = [
        (offset, value, changed.masks.get(n, 2**32 - 1))
        for n, (offset, value) in enumerate(changed.writes)
    ]
    again = slow_state(sent, dict(changed.before))
    assert again == changed.state
    assert changed.words.tolist() == (wanted.tolist() if two.writes else two.words.tolist())


def test_state_is_carried_and_saved(folder: Path) -> None:
    maps = npulab.target("acc").maps("acc")
    first, _ = Job.split([(at(0, 0, 0), 0x101), (at(0, 0, 0x80), 7)], maps)
    (second,), _ = Job.split([(at(0, 0, 0), 0x200, 0xFF00)], maps, after=first)
    assert second.words.tolist() == [0x201, 7]
    assert values_of(second, maps)["JOB.SIZE.rows"] == 8
    capture = Capture("carried", "acc", "acc", (*first, second), maps=maps)
    again = npulab.load(npulab.save(capture, folder / "carried"))
    assert again == capture
    assert again.jobs[1].masks == {0: 0xFF00}
    assert '"format": 2' in (folder / "carried/capture.json").read_text()
    assert again.fields[
        (again.fields.task == 1) & (again.fields.field == "rows")
    ].value.tolist() == [8]


def test_state_is_carried_to_the_same_copy_whatever_the_job_is_called() -> None:
    rows = [{"block": "B", "register": "R", "field": "a", "lsb": 0, "width": 8}]
    four = RegisterMap([{"block": "B", "count": 4, "stride": 0x100, "field": "core"}, *rows])
    for maps, address, unit in ((RegisterMap(rows), 0, ""), (four, 0x200, "core 2")):
        first, _ = Job.split([(address, 7)], maps)
        other, _ = Job.split([(0, 9)], maps)
        named = [replace(job, label="conv1") for job in (other if unit else []) + first]
        (second,), _ = Job.split([(address, 0x100, 0x100)], maps, after=named)
        assert (second.words[0], second.unit, second.label) == (0x107, unit, "")


def test_offsets_of_64_bits_are_saved(folder: Path) -> None:
    maps = npulab.target("acc").maps("acc")
    job = Job.from_writes("JOB", [(0x2_0001_D000, 7), (0, 1)], maps["JOB"])
    capture = Capture("far", "acc", "acc", (job,), maps=maps)
    assert npulab.load(npulab.save(capture, folder / "far")) == capture
    data = (folder / "far/job.bin").read_bytes()
    assert np.frombuffer(data, "<u8").tolist() == [0x2_0001_D000, 7, 0, 1]


@pytest.mark.parametrize("mask", [2**32, -1])
def test_masks_that_are_none(mask: int) -> None:
    with pytest.raises(
        ValueError,
        match=rf"got mask {mask:#x} at offset .*, allowed are masks from 0 to 0xffffffff",
    ):
        Job.from_writes("B", [(0, 0, mask)], PLAIN)


@given(st.sampled_from([8, 16, 24, 32, 64]), st.data())
def test_writes_of_other_sizes_change_the_same_bytes(bits: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, 16 - bits // 8))
    value = data.draw(st.integers(0, 2**bits - 1))
    before = Job.from_writes("B", [(4 * n, 0x01020304 * (n + 1)) for n in range(4)], PLAIN)
    after = Job.from_writes("B", word_writes([(offset, value)], bits), PLAIN, after=before)
    memory = bytearray(before.words.tobytes())
    memory[offset : offset + bits // 8] = value.to_bytes(bits // 8, "little")
    assert after.words.tobytes() == memory
    with pytest.raises(ValueError, match=rf"allowed are values of {bits} bits$"):
        word_writes([(offset, 2**bits)], bits)


def carried(first: int, writes: list[tuple[int, ...]]) -> Capture:
    """One job after another that left ``first`` in R0."""
    before = Job.from_writes("B", [(0, first)], PLAIN)
    return Capture(
        "c", "demo", "x", (Job.from_writes("B", writes, PLAIN, after=before),), maps={"B": PLAIN}
    )


def test_state_of_jobs_before_is_mixed_as_fields_are() -> None:
    good, bad = carried(1, [(4, 0x12, 0xFF)]), carried(2, [(4, 0x34, 0xFF)])
    assert [part.field for part in parts_of(good, bad)] == ["f", "f"]
    for keys, state in (
        ([], [1, 0x12]),
        ([(0, "B", "R0", "f")], [2, 0x12]),
        ([(0, "B", "R1", "f")], [1, 0x34]),
    ):
        mixed = mix(good, bad, keys)
        assert mixed.words[:2].tolist() == state
        assert mixed.jobs[0].state == dict(zip((0, 4), state, strict=True))
    same = carried(1, [(4, 0x34, 0xFF)])
    assert mix(good, same, []) == good
    mixed = mix(good, same, [(0, "B", "R1", "f")])
    assert (mixed.jobs[0].before, mixed.jobs[0].writes) == (
        good.jobs[0].before,
        same.jobs[0].writes,
    )


def test_what_the_npu_alone_sets_is_not_set(tmp_path: Path) -> None:
    path = tmp_path / "registers.csv"
    path.write_text(
        "block,offset,register,field,lsb,width,access\n"
        "B,0,CTRL,relu,0,1,\nB,4,STATUS,busy,0,1,ro\nB,4,STATUS,count,8,8,ro\n"
    )
    registers = RegisterMap.read(path)
    assert [item.name for item in registers if item.read_only] == ["busy", "count"]
    assert registers.select(["x"])["busy"].read_only
    assert read_map(path).map()["busy"].bits == registers["busy"].bits
    good, bad = (
        Capture(name, "demo", "x", (Job("B", np.array(words)),), maps={"B": registers})
        for name, words in (("good", [0, 0x300]), ("bad", [1, 0x401]))
    )
    assert [part.field for part in parts_of(good, bad)] == ["relu"]
    assert diff(good, bad).field.tolist() == ["relu", "busy", "count"]
    assert np.array_equal(registers.encode(registers.decode(bad.words)), bad.words)
    with pytest.raises(ValueError, match=r"^fields: got STATUS.busy, which is read-only"):
        good.with_fields(busy=1)
    path.write_text(path.read_text().replace("ro", "wo"))
    with pytest.raises(
        ValueError, match=r"field 'busy': got access 'wo', allowed is blank, ro or start$"
    ):
        RegisterMap.read(path)


def test_views_fold_equal_units_and_name_jobs(folder: Path) -> None:
    a = made()
    changed = [0x300, 0x300, 0x300, 0x301]  # relu is off in three of four groups
    b = replace(
        a,
        name="off",
        jobs=tuple(
            job.with_words(np.array([word, job.words[1]]), a.maps["JOB"])
            for job, word in zip(a.jobs, changed, strict=True)
        ),
    )
    model = DiffModel(a, b)
    assert [(row.job, row.field, row.a, row.b) for row in model.rows] == [
        ("layer 2, group 0-2", "relu", "1", "0")
    ]
    assert model.summary.startswith(f"1 field differs, {4 * len([*a.maps['JOB']]) - 3} are equal")
    assert "| layer 2, group 0-2 | JOB CTRL | relu" in model.to_markdown()
    assert model.rows[0].line.startswith("layer 2, group 0-2 JOB CTRL relu [0] · a 0x1")
    assert RegisterModel(a, task=3).title == (
        "acc/two, job 3 JOB, layer 2, group 3, 1 of 4 jobs, 2 words"
    )


def test_one_case_is_checked(folder: Path, capsys: Any) -> None:
    for name in ("two", "three"):
        npulab.save(replace(made(), name=name), folder / "captures/acc" / name)
    assert main(["check", "captures", "--case", "acc/two", "--json"]) == 0
    assert [json.loads(line)["case"] for line in capsys.readouterr().out.splitlines()] == ["two"]
    assert main(["check", "captures", "--case", "four"]) == 2
    assert "--case: got 'four', the paths hold acc/three, acc/two" in capsys.readouterr().err
    for number in range(20):
        npulab.save(replace(made(), name=f"n{number}"), folder / "captures/acc" / f"n{number}")
    assert main(["check", "captures", "--case", "acc/n3x"]) == 2
    assert (
        "--case: got 'acc/n3x', the paths hold 22 cases; near are acc/n3" in capsys.readouterr().err
    )


def test_files_of_jobs_that_are_no_pairs_and_masks_of_no_write(folder: Path) -> None:
    maps = npulab.target("acc").maps("acc")
    job = Job.split([(at(0, 0, 0), 1, 0xF), (at(0, 0, 0x80), 2, 0xFF)], maps)[0][0]
    path = npulab.save(
        Capture("masked", "acc", "acc", (job,), provenance="simulated", maps=maps),
        folder / "masked",
    )
    text = (path / "capture.json").read_text()
    names = {one.name: one.read_bytes() for one in path.iterdir() if one.suffix != ".json"}
    (masks,) = [name for name in names if "masks" in name]
    assert npulab.load(path).jobs == (job,)
    for change, said in (
        (lambda data: data[:-4], "bytes, allowed are whole pairs .offset, value. of 32-bit words"),
        (
            lambda data: (9).to_bytes(4, "little") + data[4:],
            "got a mask for write 9, allowed are writes below 2$",
        ),
    ):
        data = change(names[masks])
        (path / masks).write_bytes(data)
        entry = text.replace(sha256(names[masks]).hexdigest(), sha256(data).hexdigest())
        (path / "capture.json").write_text(entry)
        with pytest.raises(ValueError, match=f"{masks}: .*{said}"):
            npulab.load(path)
