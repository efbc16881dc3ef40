"""The Versatile Tensor Accelerator as a target: a stream of instructions, each a job. Its captures
were recorded from a simulator that nobody at npulab wrote."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vta_by_step as by_step
from conftest import shared

import npulab
from npulab import Capture, Conv2D, QuantParams, bisect_fields
from npulab.analysis.bisect import Bisection
from npulab.analysis.ignored import ignored_fields
from npulab.analysis.scan import scan_capture, scanned_fields
from npulab.bits import read_commands, write_commands
from npulab.capture import Job
from npulab.captures.devices import Simulated
from npulab.captures.sources import Lowered
from npulab.captures.tokens import waits_of
from npulab.cli import main
from npulab.quant.probes import rounding_probes
from npulab.target import Hang, Run, Target, Unsupported

FOLDER = Path(__file__).parents[1] / "outsider"
BLOCKS = ("LOAD", "STORE", "GEMM", "FINISH", "ALU")
MAXIMUM, ADD, SHIFT = 1, 2, 3  # codes of alu_opcode
SAMPLE = 12  # random layers, random streams
PARTS = 10  # of the recorded layers that are checked


@pytest.fixture(autouse=True)
def vta(monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.chdir(FOLDER)
    return npulab.target("vta")


def recorded(kind: str) -> dict[Path, Capture]:
    """The captures of a folder of dumps, by the dump's folder."""
    (importer,) = npulab.target("vta").importers
    folder = shared(f"data/vta/{kind}")
    captures = {}
    for name, capture in importer.read(folder).items():
        assert isinstance(capture, Capture), capture
        captures[folder / name] = capture
    return captures


def small(**changes: Any) -> Conv2D:
    """17 outputs, so two blocks, of 3 inputs."""
    rng = np.random.default_rng(3)
    weights = rng.integers(-128, 128, (17, 2, 3, 3)).astype(np.int8)
    layer = Conv2D(weights, rng.integers(-500, 500, 17), (5, 4, 3), padding="same")
    return replace(layer, **{"weight_q": QuantParams(2.0**-9), **changes})


def executed(layer: Conv2D, rule: str = "vta:floor") -> Capture:
    x = np.random.default_rng(4).integers(-128, 128, layer.input_shape).astype(np.int8)
    of = npulab.target("vta")
    capture = of.lower(layer, x=x, rule=rule)
    return replace(capture, buffers={**capture.buffers, "output": of.simulate(capture)})


def task(capture: Capture, block: str, **wanted: int) -> int:
    """The number of the first job of a block that has these values."""
    for number, job in enumerate(capture.jobs):
        if job.block == block:
            values = capture.maps[block].decode(job.words)
            if all(values[name] == value for name, value in wanted.items()):
                return number
    raise LookupError(block)


@pytest.mark.parametrize(
    ("kind", "count", "blocks"), [("layers", 60, set(BLOCKS)), ("driver", 8, {*BLOCKS} - {"ALU"})]
)
def test_every_recorded_stream_gives_the_recorded_output(
    kind: str, count: int, blocks: set[str], vta: Target
) -> None:
    """Jobs hold the stream, bit for bit, and no buffer holds it beside them."""
    maps = vta.maps("vta16")
    commands = {block: maps[block] for block in BLOCKS}
    found = Counter[str]()
    captures = recorded(kind)
    for folder, capture in captures.items():
        stream = (folder / "insns.bin").read_bytes()
        files = {file.stem for file in folder.glob("*.bin")}
        assert set(capture.buffers) == files - {"insns"}
        stated = json.loads((folder / "job.json").read_text())["addresses"]
        assert capture.addresses == {name: int(text, 0) for name, text in stated.items()}
        assert len(capture.jobs) == len(stream) // 16
        again = []
        for job in capture.jobs:
            words = maps[job.block].encode(maps[job.block].decode(job.words))
            again.append((job.block, words))
        assert write_commands(again, commands) == stream
        assert vta.simulate(capture) == (folder / "output.bin").read_bytes(), folder.name
        found.update(job.block for job in capture.jobs)
    assert len(captures) == count
    assert set(found) == blocks


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_recorded_layers_are_lifted_lowered_and_emulated(part: int, vta: Target) -> None:
    for capture in [*recorded("layers").values()][part::PARTS]:
        found = npulab.check(capture)
        verdicts = (found.verdict, found.words, found.coefficients)
        assert verdicts == ("equal", True, True), (capture.name, found.reason)
        layer, stated = vta.lift(capture).layer, capture.parameters
        assert layer.input_shape == tuple(stated[f"input_{name}"] for name in ("h", "w", "c"))
        assert layer.output_shape == tuple(stated[f"output_{name}"] for name in ("h", "w", "c"))
        assert layer.kernel == (stated["kernel_h"], stated["kernel_w"])
        assert layer.stride == (stated["stride_h"], stated["stride_w"])
        assert layer.activation == stated["activation"]
        assert layer.weight_q.scale == stated["weight_scale"]


def test_streams_of_another_form_are_not_lifted(vta: Target) -> None:
    for capture in recorded("driver").values():
        with pytest.raises(Unsupported, match="ALU with alu_opcode 2: got none, allowed is one"):
            vta.lift(capture)


def test_dumps_become_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = executed(small(), "vta:half-up")
    dump = tmp_path / "dump"
    dump.mkdir()
    stream = write_commands([(job.block, job.words) for job in capture.jobs], capture.maps)
    for name, data in {**capture.buffers, "insns": stream}.items():
        (dump / f"{name}.bin").write_bytes(data)
    described = {"npu": "vta", "provenance": "simulated"}
    described["addresses"] = dict(capture.addresses)
    described["parameters"] = dict(capture.parameters)
    (dump / "job.json").write_text(json.dumps(described))
    assert npulab.load(dump) == replace(capture, name="dump")
    assert main(["import", str(dump), str(tmp_path / "captures" / "case")]) == 0
    assert main(["check", str(tmp_path / "captures")]) == 0
    assert "1 equal" in capsys.readouterr().out
    (dump / "insns.bin").unlink()
    with pytest.raises(ValueError, match=r"got no insns\.bin, allowed is a folder with this file"):
        npulab.load(dump)


def random_layer(rng: np.random.Generator) -> Conv2D:
    height, width, kernel_h, kernel_w = rng.integers((3, 3, 1, 1), (10, 10, 4, 4)).tolist()
    inputs, outputs = rng.integers(1, 40, 2).tolist()
    weights = rng.integers(-128, 128, (outputs, kernel_h, kernel_w, inputs)).astype(np.int8)
    edge = 2**31 - 1 if not rng.integers(3) else 10_000
    return Conv2D(
        weights,
        rng.integers(-edge, edge, outputs),
        (height, width, inputs),
        tuple(rng.integers(1, 3, 2).tolist()),
        ("same", "valid")[rng.integers(2)],
        activation=(None, "relu")[rng.integers(2)],
        weight_q=QuantParams(2.0 ** -int(rng.integers(0, 13))),
    )


def test_random_layers_are_equal_bit_for_bit(vta: Target) -> None:
    """Sums that wrap are among them, and sums that wrap as half is added."""
    for seed in range(SAMPLE):
        rng = np.random.default_rng(seed)
        layer = random_layer(rng)
        capture = executed(layer, ("vta:floor", "vta:half-up")[seed % 2])
        found = vta.lift(capture).layer
        for name in ("input_shape", "stride", "pads", "activation", "weight_q"):
            assert getattr(found, name) == getattr(layer, name), (seed, name)
        assert np.array_equal(found.weights, layer.weights)
        assert np.array_equal(found.bias, layer.bias)
        result = npulab.check(capture)
        assert result.verdict in ("equal", "one value"), (seed, result.reason)
        assert (result.words, result.coefficients, result.mismatches) == (True, True, 0), seed


def test_half_is_added_before_the_shift_and_may_wrap(vta: Target) -> None:
    """A sum of 2**31 - 1 that is shifted by 9: to 127 without half, to -128 with it."""
    weights = np.zeros((1, 1, 1, 1), np.int8)
    layer = Conv2D(weights, [2**31 - 1], (1, 1, 1), weight_q=QuantParams(2.0**-9))
    outputs = {}
    for rule in ("vta:floor", "vta:half-up"):
        capture = executed(layer, rule)
        assert vta.rule_of is not None
        assert vta.rule_of(capture) == rule
        lifted = vta.lift(capture)
        outputs[rule] = int(lifted.output[0, 0, 0])
        assert npulab.emulate(lifted.layer, lifted.x, rule) == lifted.output
    assert outputs == {"vta:floor": 127, "vta:half-up": -128}


def random_capture(seed: int, vta: Target) -> tuple[Capture, bytes]:
    """A capture of random instructions, and its stream."""
    stream, buffers = by_step.random_stream(random.Random(seed))
    maps = vta.maps("vta16")
    commands = {block: maps[block] for block in BLOCKS}
    jobs = [Job(block, words) for block, words in read_commands(stream, commands, "opcode")]
    capture = Capture("random", "vta", "vta16", tuple(jobs), buffers, by_step.PLACES, maps=maps)
    return capture, stream


def test_random_streams_are_equal_step_by_step(vta: Target) -> None:
    """Of steps that read what steps before wrote, of every operation and sign of a shift."""
    seen = set()
    for seed in range(5 * SAMPLE):
        capture, stream = random_capture(seed, vta)
        memory = {}
        for name, data in capture.buffers.items():
            memory |= dict(enumerate(data, by_step.PLACES[name]))
        stored = by_step.run(stream, memory)
        assert [*stored] == [*range(by_step.PLACES["output"], by_step.PLACES["output"] + 384)]
        assert vta.simulate(capture) == bytes(stored.values()), seed
        for job in capture.jobs:
            values = capture.maps[job.block].decode(job.words)
            seen.add((job.block, values.get("alu_opcode"), values.get("use_imm")))
    assert len(seen) == 4 + 2 * 5


TOKENS = [
    ("GEMM", {"reset_reg": 0}, {"pop_next_dep": 1}, "compute", "store"),
    ("LOAD", {"memory_type": 1}, {"pop_next_dep": 1}, "load", "compute"),
    ("LOAD", {"memory_type": 1}, {"push_next_dep": 0}, "compute", "load"),
    ("ALU", {"alu_opcode": 0}, {"push_next_dep": 0}, "compute", "store"),
    ("ALU", {"alu_opcode": 0}, {"pop_prev_dep": 1}, "compute", "load"),
    ("STORE", {}, {"push_prev_dep": 0}, "compute", "store"),
]


@pytest.mark.parametrize(("block", "wanted", "changed", "unit", "of"), TOKENS)
def test_a_stream_that_pops_too_much_hangs(
    block: str, wanted: dict[str, int], changed: dict[str, int], unit: str, of: str, vta: Target
) -> None:
    capture = executed(small())
    bad = capture.with_fields(task(capture, block, **wanted), **changed)
    words = rf"^job \d+, \w+: the {unit} unit waits for a token of the {of} unit, which pushes none"
    with pytest.raises(Hang, match=words):
        vta.simulate(bad)
    assert npulab.Simulated(capture.buffers["output"])(bad) == "hang"


def test_tokens_without_a_neighbour_and_tokens_left_over_are_nothing(vta: Target) -> None:
    capture = executed(small())
    first, last = task(capture, "LOAD", memory_type=1), task(capture, "STORE")
    for number, name in ((first, "pop_prev_dep"), (last, "pop_next_dep"), (last, "push_next_dep")):
        assert vta.simulate(capture.with_fields(number, **{name: 1})) == capture.buffers["output"]
    more = capture.with_fields(task(capture, "GEMM"), push_prev_dep=1)
    assert vta.simulate(more) == capture.buffers["output"]


def test_jobs_that_never_begin_are_those_of_a_stream_that_hangs(vta: Target) -> None:
    """What the table of tokens says, against the device; one token of a stream is changed."""
    rng = random.Random(5)
    capture = executed(small())
    hung = 0
    for _ in range(SAMPLE):
        number = rng.randrange(len(capture.jobs))
        name = rng.choice(
            [f"{act}_{side}_dep" for act in ("pop", "push") for side in ("prev", "next")]
        )
        job = capture.jobs[number]
        if name not in {item.name for item in capture.maps[job.block]}:
            continue
        value = capture.maps[job.block].decode(job.words)[name]
        changed = capture.with_fields(number, **{name: 1 - value})
        stuck = waits_of(changed, vta.tokens).stuck
        if not stuck:
            vta.simulate(changed)
            continue
        hung += 1
        jobs = "|".join(map(str, stuck))
        with pytest.raises(Hang, match=f"^job ({jobs}), "):
            vta.simulate(changed)
    assert 0 < hung < SAMPLE
    for one in recorded("driver").values():
        found = waits_of(one, vta.tokens)
        assert (found.stuck, found.waits != ()) == ((), True)


def test_a_stream_ends_with_its_only_finish(vta: Target) -> None:
    capture = executed(small())
    with pytest.raises(Hang, match=r"^no FINISH ends the stream, which is a guess"):
        vta.simulate(replace(capture, jobs=capture.jobs[:-1]))
    with pytest.raises(ValueError, match=r"^job \d+: got STORE behind FINISH, allowed is FINISH"):
        vta.simulate(replace(capture, jobs=(*capture.jobs, capture.jobs[-2])))


WRONG = [
    ("GEMM", {"dst_factor_in": 2047}, r"dst_idx: got an index of \d+, allowed is below 2048"),
    ("GEMM", {"src_factor_in": 2047}, r"src_idx: got an index of \d+, allowed is below 2048"),
    ("GEMM", {"wgt_factor_in": 1023}, r"wgt_idx: got an index of \d+, allowed is below 1024"),
    ("ALU", {"src_factor_in": 2047}, r"src_idx: got an index of \d+, allowed is below 2048"),
    ("ALU", {"uop_end": 8193}, "uop_end: got 8193, allowed is at most 8192"),
    ("ALU", {"alu_opcode": 5}, "alu_opcode: got 5, allowed is one of min, max, add, shr, mul"),
    ("LOAD", {"sram_base": 8190}, r"sram_base: got \d+ entries of uop from 8190 on, allowed are"),
    (
        "LOAD",
        {"memory_type": 4},
        "memory_type: got out, allowed is one of uop, wgt, inp, acc, acc8",
    ),
    ("LOAD", {"dram_base": 4}, "row 0: got 56 bytes from 0x4 on, allowed are bytes of a buffer"),
    ("STORE", {"sram_base": 2040}, "sram_base: got 40 entries of acc from 2040 on, allowed are"),
    ("STORE", {"memory_type": 3}, "memory_type: got acc, allowed is one of out"),
]


@pytest.mark.parametrize(("block", "changed", "words"), WRONG)
def test_what_the_units_do_not_have_is_refused(
    block: str, changed: dict[str, int], words: str, vta: Target
) -> None:
    capture = executed(small())
    wanted = {"GEMM": {"reset_reg": 0}, "ALU": {"alu_opcode": 1}}.get(block, {})
    number = task(capture, block, **wanted)
    with pytest.raises(ValueError, match=rf"^job {number}, {block}: {words}"):
        vta.simulate(capture.with_fields(number, **changed))


def test_the_last_entries_are_there(vta: Target) -> None:
    capture = executed(small())
    number = task(capture, "GEMM", reset_reg=1)
    vta.simulate(capture.with_fields(number, iter_in=2, dst_factor_in=2047 - 22))
    with pytest.raises(ValueError, match="got an index of 2048, allowed is below 2048"):
        vta.simulate(capture.with_fields(number, iter_in=2, dst_factor_in=2048 - 22))
    number = task(capture, "STORE")
    vta.simulate(capture.with_fields(number, sram_base=2048 - 40))
    with pytest.raises(ValueError, match="got 40 entries of acc from 2009 on, allowed are"):
        vta.simulate(capture.with_fields(number, sram_base=2049 - 40))


def test_an_instruction_that_never_ends_hangs(vta: Target) -> None:
    capture = executed(small())
    number = task(capture, "GEMM", reset_reg=1)
    endless = {"iter_out": 9999, "iter_in": 9999, "dst_factor_in": 0}
    with pytest.raises(Hang, match="takes 199960002 steps, the simulated device 2097152 at most"):
        vta.simulate(capture.with_fields(number, **endless))


def test_every_memory_counts_its_own_entries(vta: Target) -> None:
    """The same bytes, loaded as accumulators of 64 bytes and of 16, and stored by 16."""
    data = bytes(range(192))
    maps = vta.maps("vta16")

    def ran(memory: int, base: int) -> bytes:
        jobs = [
            ("LOAD", {"memory_type": memory, "dram_base": base, "push_next_dep": 1}),
            ("STORE", {"memory_type": 4, "dram_base": 0x4000, "pop_prev_dep": 1}),
            ("FINISH", {}),
        ]
        made = []
        for block, values in jobs:
            size = {"y_size": 1, "x_size": 1} if block != "FINISH" else {}
            opcode = BLOCKS.index(block)
            made.append(Job(block, maps[block].encode({"opcode": opcode, **size, **values})))
        places = {"bias": 0x1000, "output": 0x4000}
        capture = Capture("moved", "vta", "vta16", tuple(made), {"bias": data}, places, maps=maps)
        return vta.simulate(capture)

    assert ran(3, 0x1000 + 64) == data[64:128:4]
    assert ran(5, 0x1000 + 16) == data[16:32]


def test_the_recorded_output_is_not_in_memory(vta: Target) -> None:
    capture = executed(small())
    number = task(capture, "LOAD", memory_type=3)
    bad = capture.with_fields(number, dram_base=capture.addresses["output"])
    with pytest.raises(ValueError, match=r"row 0: got 128 bytes from 0x300000 on, allowed are"):
        vta.simulate(bad)


def test_a_planted_field_is_found(vta: Target) -> None:
    good = executed(small())
    number = task(good, "ALU", alu_opcode=3)
    bad = good.with_fields(number, imm=7).with_fields(number + 1, reset_reg=1)
    found = bisect_fields(good, bad, npulab.Simulated(good.buffers["output"]))
    assert found.culprits == ((number, "ALU", "W3", "imm"),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_q": QuantParams(0.3)}, r"ratio of scales: got 0\.3, allowed with vta:floor is a"),
        ({"weight_q": QuantParams(1.0, 3)}, "weight_q: zero point: got 3, allowed is 0"),
        ({"activation": "relu6"}, "activation: got relu6, allowed is None or relu"),
        ({"dilation": (2, 1)}, r"dilation: got \(2, 1\), allowed is \(1, 1\)"),
        (
            {"input_shape": (40, 40, 3)},
            "layer: got 3202 entries of acc, allowed are 2048, as it has one pass",
        ),
    ],
)
def test_a_layer_that_no_stream_of_one_pass_has_is_refused(
    changes: dict[str, Any], words: str, vta: Target
) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        vta.lower(small(**changes))


def test_what_differs_from_the_layer_lowered_again_is_not_lifted(vta: Target) -> None:
    capture = executed(small())
    number = task(capture, "GEMM", reset_reg=0)
    words = f"job {number}, GEMM.wgt_factor_out: got 1, allowed is 0, as its layer is lowered"
    with pytest.raises(Unsupported, match=words):
        vta.lift(capture.with_fields(number, wgt_factor_out=1))
    data = bytes(byte ^ 1 for byte in capture.buffers["uops"])
    with pytest.raises(Unsupported, match="capture lowered: "):
        vta.lift(capture.with_buffers(uops=data))


@pytest.mark.long
def test_lift_looks_at_every_field() -> None:
    assert ignored_fields(executed(small())).empty


def test_every_bit_of_the_weights_is_explained() -> None:
    capture = executed(small())
    table = npulab.explain(capture)
    assert table["bits"].sum() == 8 * len(capture.buffers["coefficients"])
    assert (table["kind"] == "weight").sum() == 17 * 2 * 3 * 3


def test_simulate_reads_tables_only() -> None:
    own = []
    for line in (FOLDER / "npulab_targets/vta/simulate.py").read_text().splitlines():
        if line.startswith("from ."):
            own.append(line.split()[1])
    assert own == [".facts"]


def changed(capture: Capture, number: int, **values: Any) -> Job:
    """A job of a capture with other values in some fields."""
    job = capture.jobs[number]
    registers = capture.maps[job.block]
    return replace(job, words=registers.encode({**registers.decode(job.words), **values}))


def planted(good: Capture, kind: str) -> tuple[Capture, str]:
    """A stream with one edit that changes the output among others that do not; and the part of it
    that matters."""
    jobs = list(good.jobs)
    add, shift = task(good, "ALU", alu_opcode=ADD), task(good, "ALU", alu_opcode=SHIFT)
    # a maximum of what is at least as large already
    harmless = changed(good, shift, alu_opcode=MAXIMUM, use_imm=1, imm=-(2**15))
    if kind == "changed":
        jobs[shift] = changed(good, shift, imm=3)
        part = "imm"
    elif kind == "inserted":
        jobs.insert(shift, changed(good, shift, alu_opcode=ADD, use_imm=1, imm=4000))
        part = f"inserted job {shift}"
    else:
        del jobs[add]
        part = f"left out job {add}"
    last = max(number for number, job in enumerate(jobs) if job.block == "ALU")
    jobs.insert(last, harmless)
    return good.with_jobs(jobs), part


@pytest.mark.parametrize("kind", ["changed", "inserted", "left out"])
def test_bisect_finds_a_job_of_another_stream(kind: str) -> None:
    good = executed(small())
    bad, part = planted(good, kind)
    assert len(bad.jobs) != len(good.jobs) or kind == "left out"
    found = bisect_fields(good, bad, Simulated())
    assert [[key[3] for key in group] for group in found.groups] == [[part]], found
    job = {"changed": "ALU shr W3.imm = 3", "inserted": "(ALU add) inserted before job"}
    assert job.get(kind, "(ALU add) left out") in found.sentence


def without_effect(capture: Capture, number: int) -> Job:
    """The no-operation with the tokens of a job."""
    idle = npulab.target("vta").idle
    assert idle is not None
    job = idle(capture, number)
    assert isinstance(job, Job)
    return job


def test_an_instruction_of_no_rows_and_no_steps_does_nothing_but_pass_its_tokens(
    vta: Target,
) -> None:
    """The second opinion, which knows no tokens, runs each before and after every job of streams at
    random; the device runs each without its tokens, and in place of its job."""
    for seed in range(SAMPLE):
        capture, stream = random_capture(seed, vta)
        memory = {}
        for name, data in capture.buffers.items():
            memory |= dict(enumerate(data, by_step.PLACES[name]))
        wanted = by_step.run(stream, memory)
        jobs = []
        silent = []
        for number, job in enumerate(capture.jobs[:-1]):
            idle = without_effect(capture, number)
            jobs += [idle, job, idle]
            silent += [replace(idle, words=idle.words & np.uint32([0xFFFFFF87, *[2**32 - 1] * 3]))]
            silent += [job, silent[-1]]
            instead = [*capture.jobs]
            instead[number] = idle
            swapped = capture.with_jobs(instead)
            assert waits_of(swapped, vta.tokens) == waits_of(capture, vta.tokens)
            if job.block != "STORE":
                vta.simulate(swapped)
        more = write_commands([(job.block, job.words) for job in jobs], capture.maps)
        assert by_step.run(more + stream[-16:], memory) == wanted
        quiet = capture.with_jobs([*silent, capture.jobs[-1]])
        assert vta.simulate(quiet) == bytes(wanted.values())
    assert vta.idle is not None
    assert vta.idle(capture, len(capture.jobs) - 1) is None


EFFECT = {
    "inserted, breaks by what it does": (
        "what job 7 of BAD (ALU add) does breaks it (trial 6: pass with a no-operation in its "
        "place)",
        "what it does",
    ),
    "inserted, breaks by its tokens": (
        "the tokens of job 7 of BAD (ALU max) suffice (trial {}: hang with a no-operation in its "
        "place)",
        "its tokens",
    ),
    "left out, what it does is missed": (
        "what job 6 (ALU add) does is missed (trial 6: fail with a no-operation in its place)",
        "what it does",
    ),
    "left out, its tokens are missed": (
        "the tokens of job 9 (ALU min) are missed, what it does is not (trial {}: pass with a "
        "no-operation in its place)",
        "its tokens",
    ),
    "left out, both are missed": (
        "both the tokens of job 2 (LOAD wgt) and what it does matter (trial {}: fail with a "
        "no-operation in its place)",
        "both",
    ),
}


def edited(good: Capture, kind: str) -> Capture:
    """A stream with one edit that breaks it; and a field that does not."""
    jobs = list(good.jobs)
    shift = task(good, "ALU", alu_opcode=SHIFT)
    if kind == "inserted, breaks by what it does":
        return planted(good, "inserted")[0]
    if kind == "left out, what it does is missed":
        return planted(good, "left out")[0]
    jobs[shift + 1] = changed(good, shift + 1, reset_reg=1)
    harmless = changed(good, shift, alu_opcode=MAXIMUM, use_imm=1, imm=-(2**15), pop_next_dep=1)
    if kind == "inserted, breaks by its tokens":
        jobs.insert(shift, harmless)
    elif kind == "left out, its tokens are missed":
        del jobs[task(good, "ALU", push_next_dep=1)]
    else:
        del jobs[task(good, "LOAD", push_next_dep=1)]
    return good.with_jobs(jobs)


@pytest.mark.parametrize("kind", EFFECT)
def test_what_a_job_does_is_told_from_its_tokens(
    kind: str, vta: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = executed(small())
    bad = edited(good, kind)
    found = bisect_fields(good, bad, Simulated(), journal=tmp_path / "a.jsonl")
    text, matters = EFFECT[kind]
    assert f"; {text.format(found.queries)}" in found.sentence
    assert "\n" not in found.sentence
    (idle,) = found.idle
    assert ((idle.job,), (idle.matters,)) == (found.culprits, (matters,))
    assert found.records()[0]["idle"] == found.idle
    assert found.journal[-1].subset == (f"{'/'.join(map(str, idle.job))} as a no-operation",)
    assert found.done
    # a target that states none is bisected as before
    silent = replace(vta, idle=None)
    monkeypatch.setattr("npulab.analysis.bisect.idle.stated_target", lambda _: silent)
    before = bisect_fields(good, bad, Simulated())
    assert (before.queries, before.idle) == (found.queries - 1, ())
    assert before.groups == found.groups
    assert "no-operation" not in before.sentence
    pairs = zip(before.journal, found.journal, strict=False)
    assert all(one.subset == other.subset for one, other in pairs)


def test_a_journal_that_stopped_before_the_no_operation_goes_on(tmp_path: Path) -> None:
    good = executed(small())
    bad = edited(good, "left out, its tokens are missed")
    path = tmp_path / "a.jsonl"
    device = Simulated()
    session = Bisection(good, bad, journal=path)
    while session.trial is not None and session.trial.idle is None:
        session.tell(device(session.trial.capture))
    stopped = session.result
    assert (stopped.done, stopped.found, len(stopped.groups)) == (False, True, 1)
    assert session.left == 1
    assert "; not tried yet: a no-operation in place of job 9 (ALU min)" in stopped.sentence
    again = Bisection(good, bad, journal=path)
    asked = str(again.trial)
    assert asked.startswith("is it what job 9 (ALU min) does, or its tokens? with a no-operation")
    assert "W1.iter_out = 0" in asked
    assert asked.endswith("\n  job 9 (ALU) left out, but with a no-operation in its place")
    found = bisect_fields(good, bad, device, journal=path)
    assert (found.done, found.queries) == (True, stopped.queries + 1)
    assert Bisection(good, bad, journal=path).result.sentence == found.sentence
    whole = Bisection(good, bad, journal=path)
    assert repr(whole).endswith(f": {found.sentence})")
    whole.again()  # a no-operation is run once more as it was
    assert whole.trial is not None
    assert (whole.trial.idle, whole.result.queries) == (found.idle[0].job, found.queries)
    whole.tell("hang")
    assert whole.result.idle[0][1:] == (("pass", "hang"), "open")
    assert "it is open if the tokens of job 9 (ALU min) matter or what it does" in repr(whole)
    whole.undo(2)
    assert whole.result.sentence == stopped.sentence


def test_every_micro_op_is_a_record_that_is_encoded_to_the_same_bytes(vta: Target) -> None:
    count = 0
    for kind in ("layers", "driver"):
        for folder, capture in recorded(kind).items():
            data = (folder / "uops.bin").read_bytes()
            held = capture.records["uops"]
            again = held.registers.encode(held.values)
            assert held.with_words(again) == data == held.data, folder.name
            assert (len(held), held.outside) == (len(data) // 4, (b"", b""))
            stored = np.frombuffer(data, "<u4")
            assert np.array_equal(held.values["dst_idx"], stored & 2047)
            assert np.array_equal(held.values["wgt_idx"], stored >> 22)
            count += len(held)
    assert count == 5954


def test_dram_base_is_the_byte_at_which_the_buffer_lies(vta: Target) -> None:
    """The micro-ops, the weights and the bias are loaded from the start of their buffers."""
    names = {"uop": "uops", "wgt": "coefficients", "acc": "bias", "inp": "input"}
    for capture in recorded("layers").values():
        found: dict[str, list[int]] = {}
        for job in capture.jobs:
            if job.block == "LOAD":
                values = capture.maps["LOAD"].decode(job.words)
                name = names[vta.maps("vta16")["LOAD"]["memory_type"].text(values["memory_type"])]
                found.setdefault(name, []).append(values["dram_base"])
        for name, starts in found.items():
            assert min(starts) == capture.addresses[name], (capture.name, name)
        table = capture.fields
        shown = table[(table["field"] == "dram_base") & (table["block"] == "LOAD")]["value"]
        assert sorted(shown) == sorted(chain.from_iterable(found.values()))


def test_dram_base_counts_what_memory_type_names(vta: Target) -> None:
    load = vta.maps("vta16")["LOAD"]
    for kind, size in enumerate((4, 256, 16, 64, 16, 16)):
        words = load.encode({"memory_type": kind, "dram_base": 0x12300})
        assert load.decode(words, raw=True)["dram_base"] == 0x12300 // size
        with pytest.raises(
            ValueError, match=f"allowed is a multiple of {size}, the unit named by field memory_ty"
        ):
            load.encode({"dram_base": 0x12302, "memory_type": kind})
    capture = executed(small())
    number = task(capture, "LOAD", memory_type=3)
    moved = capture.with_fields(number, dram_base=0x2000, memory_type=1)
    assert moved.fields.query(f"task == {number} and field == 'dram_base'")["raw"].item() == 0x20


def test_a_planted_micro_op_is_found(vta: Target) -> None:
    """Among others that change nothing: what resets and what ALU do, reads no weights."""
    good = recorded("layers")[shared("data/vta/layers") / "layer-004"]
    held = good.records["uops"].values
    resets = task(good, "GEMM", reset_reg=1)
    values = good.maps["GEMM"].decode(good.jobs[resets].words)
    harmless = range(values["uop_bgn"], values["uop_end"])
    bad = good.with_records("uops", list(harmless), wgt_idx=1)
    bad = bad.with_records("uops", 12, dst_idx=int(held["dst_idx"][12]) + 3)
    found = bisect_fields(good, bad, npulab.Simulated(good.buffers["output"]))
    assert len(found.differences) == len(harmless) + 1 > 5
    assert found.culprits == ((0, "buffer", "uops", "record 12 UOP.dst_idx"),)
    assert "buffer uops record 12 UOP.dst_idx = " in found.sentence


class Refusing:
    """The simulated device, which fails where it refuses a capture."""

    def run(self, capture: Capture) -> Run:
        try:
            return npulab.Simulated().run(capture)
        except ValueError as error:
            return Run("failed", reason=str(error))


def test_micro_ops_are_scanned_field_by_field() -> None:
    """The second micro-op resets the sums and adds the bias; it reads no weights."""
    layer = small(
        weights=np.ones((16, 1, 1, 3), np.int8), bias=np.full(16, 500), input_shape=(2, 2, 3)
    )
    capture = executed(layer)
    found = scanned_fields(scan_capture(capture, Refusing(), "uops"), capture, "uops")
    assert [*zip(found["record"], found["field"], strict=True)] == [
        (record, name) for record in range(2) for name in ("dst_idx", "src_idx", "wgt_idx")
    ]
    dead = found.set_index(["record", "field"])["dead"]
    assert dead[1, "wgt_idx"] == 10
    assert dead.drop((1, "wgt_idx")).sum() == 0
    assert found.drop(columns=["record", "block", "register", "field"]).sum(axis=1).tolist() == [
        *(11, 11, 10) * 2
    ]


def test_probes_are_what_the_target_allows_and_name_its_own_rules(vta: Target) -> None:
    rules = ["gemmlowp", *vta.rules]
    probes = rounding_probes("int8", rules, per_channel=False, allowed=vta.allowed)
    for by in vta.rules:
        outputs = []
        for layer in probes.layers:
            capture = vta.lower(layer, x=np.zeros(layer.input_shape, np.int8), rule=by.name)
            lifted = vta.lift(capture.with_buffers(output=vta.simulate(capture)))
            outputs.append(lifted.output.ravel())
        assert probes.name(outputs).fits == (by.name,)


def test_its_own_rules_are_candidates_for_its_own_captures(vta: Target) -> None:
    layer = small(weight_q=QuantParams(2.0**-9))
    x = np.random.default_rng(5).integers(-128, 128, layer.input_shape).astype(np.int8)
    floor, half_up = vta.rules
    asked = vta.lower(layer, x=x, rule=half_up.name)
    output = vta.simulate(asked)
    sums = npulab.quant.emulate.accumulate(layer, x)
    codes = vta.lift(asked.with_buffers(output=output)).output
    assert half_up.name in npulab.identify_rounding(sums, codes, layer, own=vta.rules).fits
    assert half_up.name not in npulab.identify_rounding(sums, codes, layer).fits
    # a stream without the half, and the output of one with it
    wrong = vta.lower(layer, x=x, rule=floor.name).with_buffers(output=output)
    found = npulab.hypotheses(npulab.check(wrong))
    assert f"rounding rule {half_up.name}" in found[found.equal].change.to_list()


def test_a_source_keeps_to_what_the_target_allows(vta: Target) -> None:
    ranges = {"input_h": (3, 6), "input_w": (3, 6), "input_c": (1, 20), "output_c": (1, 20)}
    found = npulab.explore(Lowered("vta"), ranges, budget=8)
    assert len(found.sweep) == 8
