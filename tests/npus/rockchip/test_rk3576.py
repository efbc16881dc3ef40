"""The 63 models that Rockchip's compiler made for RK3576: what is read of them, each law that
``rk3576.csv`` states, weights and biases against the ``.onnx`` files.

The format and the laws were decided on the files 1, 3, 5, ... of the sorted list, and hold for the
others.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_tables import cases, fields
from conftest import shared
from refusals import refused
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab import find_laws
from npulab.captures.capture import Capture, CaptureSet
from npulab.captures.roles import roles
from npulab.captures.sweep import load_sweep
from npulab.models.onnx_layers import read_onnx
from npulab.npus.kit import up, values_of
from npulab.npus.rockchip import commands, compiled, rknn
from npulab.npus.rockchip.facts import FACTS, SECOND
from npulab.npus.rockchip.operands import constants
from npulab.npus.rockchip.tasks import BYTES, Task

Layer = Mapping[str, Any]
Values = Mapping[str, int]
FENCE = "fenceConv"
COUNT = 63
# Parameters that make a layer a distinct one.
GEOMETRY = ["input_h", "input_w", "input_c", "output_c", "kernel_h", "kernel_w"]
GEOMETRY += ["stride_h", "stride_w", "pad_top", "pad_left", "depthwise", "relu"]
TIE = 0.501  # a tie may round either way: the compiler computes in float32


def files() -> list[Path]:
    return sorted(shared("data/rk3576").glob("*.rknn"))


@pytest.fixture(scope="module")
def captures() -> list[Capture]:
    pytest.importorskip("onnx")
    found = [compiled.read(path)[path.stem] for path in files()]
    assert len(found) == COUNT
    return found


def entries(layer: Layer) -> int:
    """64-byte entries of a row of the input: an entry holds whole pixels, or a pixel takes whole
    entries.  (A file of the second half, of 48 channels, decided between two such
    laws.)
    """
    channels = up(layer["input_c"], 16)
    if channels < 64:
        return -(-layer["input_w"] // (64 // channels))
    return layer["input_w"] * -(-channels // 64)


def whole(pixels: int) -> int:
    return up(pixels, 4) if pixels > 1 else 1


def plane(layer: Layer) -> int:
    """Pixels between planes of the output."""
    return whole(layer["output_h"] * layer["output_w"])


def steps(layer: Layer, _: Values) -> int:
    taps = layer["kernel_h"] * layer["kernel_w"] * layer["input_c"]
    return taps // 8 if layer["depthwise"] else 2 * taps


def weight_bytes(layer: Layer, _: Values) -> int:
    taps = layer["kernel_h"] * layer["kernel_w"]
    if layer["depthwise"]:
        return 2 * taps * layer["input_c"]
    return taps * up(layer["input_c"], 16) * up(layer["output_c"], 2)


def stored(name: str) -> Callable[[Layer, Values], int]:
    return lambda layer, _: layer[name]


def rows(layer: Layer, v: Values) -> int:
    """Rows of the input that the task's rows of the output need."""
    reach = (v["CORE.DATAOUT_SIZE0.rows"] - 1) * layer["stride_h"] + layer["kernel_h"]
    return reach - v["CNA.PADDING.top"] - v["CNA.PADDING.bottom"]


def made(_: Layer, v: Values) -> int:
    return v["CORE.DATAOUT_SIZE0.rows"]


def first_row(layer: Layer, v: Values) -> int:
    """The first row of the output that the task makes, by the address that the file states."""
    return v["DPU.OUTPUT_ADDRESS.address"] // (16 * layer["output_w"])


def first_fetched(layer: Layer, v: Values) -> int:
    """The first row of the input that the task fetches: the first that it needs, past those which
    the stripe before it left."""
    needed = first_row(layer, v) * layer["stride_h"] - layer["pad_top"]
    return max(needed, 0) + rows(layer, v) - v["CNA.FETCH_SIZE0.rows"]


def channels(layer: Layer, _: Values) -> int:
    return up(layer["input_c"], 16)


# Fields with the evidence R76 that hold a parameter of the layer.
STORED = """
CNA.CONV_CON1.depthwise        | depthwise
CNA.CONV_CON3.CONV_X_STRIDE    | stride_w
CNA.CONV_CON3.CONV_Y_STRIDE    | stride_h
CNA.WEIGHT_SIZE2.kernel_a      | kernel_h
CNA.WEIGHT_SIZE2.kernel_b      | kernel_w
CNA.DATA_SIZE1.columns         | input_w
CNA.DATA_SIZE2.columns         | output_w
CNA.COLUMNS.columns            | input_w
CNA.FETCH_SIZE0.columns        | input_w
CNA.PADDING.left               | pad_left
CNA.PADDING.right              | pad_right
CNA.PAD_VALUE.value            | input_zero_point
CNA.FULL_SIZE.rows             | input_h
CNA.FULL_SIZE.columns          | input_w
CORE.MISC_CFG.depthwise        | depthwise
CORE.MISC_CFG.depthwise_too    | depthwise
CORE.DATAOUT_SIZE0.columns     | output_w
CORE.DATAOUT_SIZE1.channels    | output_c
DPU.FEATURE_MODE_CFG.depthwise | depthwise
DPU.OUTPUT_SIZE0.columns       | output_w
DPU.OUTPUT_SIZE2.channels      | output_c
DPU.WRITE_SIZE0.channels       | output_c
DPU.WRITE_SIZE1.columns        | output_w
DPU.OUT_CVT_OFFSET.offset      | output_zero_point
"""
# The others; BELOW has those that other tests of this file are about.
LAWS: dict[str, Callable[[Layer, Values], int]] = {
    "CNA.WEIGHT_SIZE0.weight_bytes": weight_bytes,
    "CNA.WEIGHT_SIZE1.kernel_bytes": lambda layer, _: (
        layer["kernel_h"] * layer["kernel_w"] * up(layer["input_c"], 16)
    ),
    "CNA.WEIGHT_SIZE2.kernels": lambda layer, _: (
        2 if layer["depthwise"] else up(layer["output_c"], 2)
    ),
    "CNA.DATA_SIZE0.channels": channels,
    "CNA.DATA_SIZE0.entries": lambda layer, v: entries(layer) * v["CNA.FETCH_SIZE0.rows"],
    "CNA.DATA_SIZE1.rows": rows,
    "CNA.DATA_SIZE2.steps": steps,
    "CNA.DATA_SIZE3.pixels": lambda layer, v: layer["output_w"] * made(layer, v),
    "CNA.ROW.entries": lambda layer, _: entries(layer),
    "CNA.COLUMNS.entries": lambda layer, _: entries(layer),
    "CNA.FETCH_SIZE1.channels": channels,
    "CNA.FETCHED.pixels": lambda layer, v: whole(layer["input_w"] * v["CNA.FETCH_SIZE0.rows"]),
    "CNA.PADDING.top": lambda layer, v: 0 if first_row(layer, v) else layer["pad_top"],
    "CNA.PADDING.bottom": lambda layer, v: (
        0 if first_row(layer, v) + made(layer, v) < layer["output_h"] else layer["pad_bottom"]
    ),
    "CNA.INPUT_ADDRESS.address": lambda layer, v: 16 * layer["input_w"] * first_fetched(layer, v),
    "CNA.ROW_PITCH.pitch": lambda layer, _: 16 * layer["input_w"],
    "CNA.PLANE_PITCH.pitch": lambda layer, _: 16 * layer["input_h"] * layer["input_w"],
    "CORE.MISC_CFG.dense": lambda layer, _: 1 - layer["depthwise"],
    "DPU.OUTPUT_PITCH.pitch": lambda layer, _: 16 * plane(layer),
    "DPU.OUTPUT_SIZE1.rows": made,
    "DPU.WRITE_SIZE1.rows": made,
    "DPU.OUTPUT_ADD.add": lambda layer, v: (
        (4 if layer["depthwise"] else 2) * plane(layer) - v["CNA.DATA_SIZE3.pixels"]
    ),
    "DPU_RDMA.RDMA_DATA_CUBE_WIDTH.WIDTH": lambda layer, _: layer["output_w"] - 1,
    "DPU_RDMA.RDMA_DATA_CUBE_HEIGHT.HEIGHT": lambda layer, v: made(layer, v) - 1,
    "DPU_RDMA.RDMA_DATA_CUBE_CHANNEL.CHANNEL": lambda layer, _: layer["output_c"] - 1,
}
LAWS |= {field: stored(name) for field, name in cases(STORED)}

BELOW = {
    "CNA.FETCH_SIZE0.rows",
    "CORE.DATAOUT_SIZE0.rows",
    "DPU.OUTPUT_ADDRESS.address",
    "CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0",
    "DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR",
    "DPU_RDMA.BS_CFG_ADDRESS.address",
    "DPU_RDMA.BRDMA_CFG.operands",
    "DPU.BS_ZERO.zero_points",
    "DPU.OUT_CVT_SCALE.scale",
    "DPU.OUT_CVT_SHIFT.shift",
    "PC.OPERATION_ENABLE.OP_EN",
    "PC.BASE_ADDRESS.PC_SOURCE_ADDR",
    "PC.REGISTER_AMOUNTS.PC_DATA_AMOUNT",
}
# The register of each kind of address, by the end of the tensor's name.
ADDRESSES = fields("weight=0x1110 input=0x1088 output=0x4018 bias=0x5020 BScfgTensor=0x5024")


def values(capture: Capture, task: int) -> Values:
    return values_of(capture.jobs[task], capture.maps)


def main_tasks(capture: Capture) -> list[int]:
    return [task for task, job in enumerate(capture.jobs) if FENCE not in job.label]


def test_each_law_of_the_map_holds_in_every_task(captures: list[Capture]) -> None:
    wrong: list[object] = []
    tasks = 0
    for capture in captures:
        for task in main_tasks(capture):
            v = values(capture, task)
            tasks += 1
            for name, law in LAWS.items():
                stated = law(capture.parameters, v)
                if v[name] != stated:
                    wrong.append((capture.name, task, name, v[name], stated))
    assert not wrong
    assert tasks > 4 * COUNT


def test_each_row_of_the_map_that_claims_the_files_has_a_law() -> None:
    fields = FACTS.maps("rk3576")[SECOND].fields
    claimed = fields[fields.evidence == "R76"]
    names = {f"{row.block}.{row.register}.{row.field}" for row in claimed.itertuples()}
    assert names == LAWS.keys() | BELOW
    assert set(fields.evidence) == {"R76", "guess", "unknown"}


def test_the_tasks_of_a_program_tile_the_output(captures: list[Capture]) -> None:
    """A core alone fetches each row once; where both work, each has rows of its own."""
    for capture in captures:
        programs: dict[str, list[Values]] = {}
        for task in main_tasks(capture):
            program = capture.jobs[task].label.split(",")[0]
            programs.setdefault(program, []).append(values(capture, task))
        layer = capture.parameters
        for program, tasks in programs.items():
            at = 0
            for v in sorted(tasks, key=lambda v: first_row(layer, v)):
                assert v["DPU.OUTPUT_ADDRESS.address"] == 16 * layer["output_w"] * at
                at += v["CORE.DATAOUT_SIZE0.rows"]
            assert at == layer["output_h"], (capture.name, program)
            if "alone" in program:
                fetched = sum(v["CNA.FETCH_SIZE0.rows"] for v in tasks)
                assert fetched == tasks[-1]["CNA.FETCH_SIZE0.rows"] + sum(
                    v["CNA.DATA_SIZE1.rows"] for v in tasks[:-1]
                )


def test_patches_name_the_commands_that_hold_addresses(captures: list[Capture]) -> None:
    found = Counter()
    for capture in captures:
        words = commands.commands(capture.buffers["commands"])
        for patch in capture.parameters["patches"]:
            word = words[patch["command"]]
            kind = re.split(r"[._]", patch["tensor"])[-1]
            assert word["register"] == ADDRESSES[kind], (capture.name, patch)
            assert word["value"] == patch["offset"]
            found[kind] += 1
    assert found.keys() == ADDRESSES.keys()


def test_every_command_is_a_job_s_or_a_block_s_end(captures: list[Capture]) -> None:
    """All that is left of the commands are zeros that fill a block up."""
    named = kept = 0
    fields = FACTS.maps("rk3576")[SECOND].fields
    offsets = set(fields.offset.map(int))
    for capture in captures:
        words = commands.commands(capture.buffers["commands"])
        covered = np.zeros(len(words), bool)
        records = capture.buffers["tasks"]
        for number, job in enumerate(capture.jobs):
            task = Task.of(records[number * BYTES :][:BYTES])
            first = task.command_address // 8
            covered[first : first + task.commands + commands.END_WORDS] = True
            assert len(job.writes) == task.commands
            for offset, _ in job.writes:
                named += offset in offsets
                kept += offset not in offsets
        assert not words[~covered].tobytes().strip(b"\0"), capture.name
    assert (named, kept) == (38_365, 0)


def test_the_end_of_a_block_names_the_next_one(captures: list[Capture]) -> None:
    chained = 0
    for capture in captures:
        tasks = [
            Task.of(capture.buffers["tasks"][at:][:BYTES])
            for at in range(0, len(capture.buffers["tasks"]), BYTES)
        ]
        by_address = {task.command_address: task for task in tasks}
        for task, job in zip(tasks, capture.jobs, strict=True):
            assert job.start is not None
            end = dict(job.start.writes)
            assert end[0x0008] % 256 == task.enable_mask
            if 0x0010 in end:
                following = by_address[end[0x0010]]
                assert end[0x0014] % 2**16 == (following.commands + 3) // 2
                chained += 1
            else:
                assert end[0x0014] % 2**16 == 0
    assert chained > 20


def test_weights_and_biases_are_those_of_the_model(captures: list[Capture]) -> None:
    """Bytes from the floats of the ``.onnx`` file: a scale for each channel or one for all, the
    range with 0 over 255 steps.  Ties of float32 differ by 1 in some weights."""
    weights = off = 0
    for capture in captures:
        layer = capture.parameters
        found = constants(capture)
        model = read_onnx(files()[0].with_name(capture.name.replace("_rk3576", ".onnx")))[0]
        assert model.biases is not None
        order = (1, 2, 3, 0) if layer["depthwise"] else (0, 2, 3, 1)
        real = model.weights.transpose(order).astype(float)
        channel = 3 if layer["depthwise"] else 0
        axes: tuple[int, ...] = tuple({0, 1, 2, 3} - {channel})
        if found.shares is None:
            axes = (0, 1, 2, 3)
        least = np.minimum(real.min(axes, keepdims=True), 0)
        scale = (np.maximum(real.max(axes, keepdims=True), 0) - least) / 255
        zero = np.rint(-128 - least / scale)
        wanted = np.clip(np.rint(real / scale) + zero, -128, 127)
        weights += wanted.size
        off += np.count_nonzero(wanted != found.weights)
        assert np.abs(wanted - found.weights).max() <= 1
        if found.zero_points is not None:
            assert np.array_equal(-zero.ravel(), found.zero_points)
        sums = (found.weights - zero).sum(tuple({0, 1, 2, 3} - {channel}))
        codes = np.rint(model.biases / (layer["input_scale"] * scale.ravel()))
        assert np.array_equal(found.biases, codes - layer["input_zero_point"] * sums)
        if found.shares is not None:
            shares = 2**14 * scale.ravel() / scale.max()
            assert np.abs(found.shares - shares).max() < TIE
        v = values(capture, 0)
        shift = v["DPU.OUT_CVT_SHIFT.shift"]
        ratio = layer["input_scale"] * scale.max() / layer["output_scale"]
        assert abs(v["DPU.OUT_CVT_SCALE.scale"] - ratio * 2**shift) < TIE
        assert 2**14 <= v["DPU.OUT_CVT_SCALE.scale"] < 2**15
        dense_zeros = found.zero_points is not None and not layer["depthwise"]
        assert v["DPU.BS_ZERO.zero_points"] == dense_zeros
    assert weights > 1_000_000
    assert off < 0.001 * weights


def test_a_file_is_written_back(captures: list[Capture]) -> None:
    """Header, commands, task records and the JSON text from what was read of them."""
    for path, capture in zip(files(), captures, strict=True):
        data = path.read_bytes()
        assert compiled.encode(capture) == data
        words = commands.commands(capture.buffers["commands"])
        again = [
            commands.Command(*map(int, (one["target"], one["value"], one["register"])))
            for one in words
        ]
        tasks = [job.start and (job.start.start or job.start) for job in capture.jobs]
        records = b"".join(job.words.tobytes() for job in tasks if job)
        buffers = {**capture.buffers, "commands": commands.stream(again), "tasks": records}
        assert compiled.encode(replace(capture, buffers=buffers)) == data
        read = rknn.read(data)
        text = json.dumps(read.network, separators=(",", ":")).encode()
        assert data.endswith(len(text).to_bytes(8, "little") + text)


def test_a_changed_command_is_written_into_the_file(captures: list[Capture]) -> None:
    stream = bytearray(captures[0].buffers["commands"])
    stream[2] ^= 1
    data = compiled.encode(
        replace(captures[0], buffers={**captures[0].buffers, "commands": bytes(stream)})
    )
    before = captures[0].buffers["container"]
    assert [at for at, byte in enumerate(data) if byte != before[at]] == [
        before.index(captures[0].buffers["commands"]) + 2
    ]
    short = replace(captures[0], buffers={**captures[0].buffers, "commands": b"abc"})
    refused(lambda: compiled.encode(short), "buffer commands", "3 bytes", "2304 of the file")


def test_a_folder_becomes_a_sweep_of_a_role_in_one_command(run: Any, tmp_path: Path) -> None:
    """Eleven files, of which some have two tasks of the role."""
    folder = tmp_path / "models"
    folder.mkdir()
    for path in files()[::6]:
        model = path.with_name(path.name.replace("_rk3576.rknn", ".onnx"))
        for one in (path, model):
            (folder / one.name).write_bytes(one.read_bytes())
    sweep = tmp_path / "sweep.npz"
    code, _, error = run("import", folder, sweep, "--role", "core 1 alone")
    assert code == 0, error
    loaded = load_sweep(sweep)
    assert len(set(loaded.parameters["output_scale"])) == 11
    assert loaded.chip == "rk3576"
    assert {"kernel_h", "relu", "depthwise", "place_in_run"} <= set(loaded.parameters)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:parameters. got .* with one value only")
def test_laws_of_half_of_the_layers_hold_for_the_other_half(captures: list[Capture]) -> None:
    """At most 0.2 % of what is claimed is wrong, over five splits of four roles."""
    found = roles(CaptureSet(tuple(captures)))
    claimed = wrong = 0
    for role in ("core 0 alone", "core 1 alone", "both cores, core 0", "both cores, core 1"):
        sweep = found.sweep(role)
        same = sweep.parameters.groupby(GEOMETRY, sort=False).ngroup().to_numpy()
        for seed in range(5):
            order = np.random.default_rng(seed).permutation(same.max() + 1)
            learnt = np.isin(same, order[: len(order) // 2])
            judged = sweep.parameters[~learnt].reset_index(drop=True)
            laws = find_laws(sweep.words[learnt], sweep.parameters[learnt].reset_index(drop=True))
            score = laws.score(sweep.words[~learnt], judged)
            claimed += score.claimed
            wrong += score.wrong
    assert claimed > 50_000
    assert wrong <= 0.002 * claimed


def test_what_is_not_known_of_the_chip_is_refused(captures: list[Capture]) -> None:
    target = npulab.target("rockchip")
    refused(lambda: target.lift(captures[0]), "NPU2")
    layer = npulab.FullyConnected(np.ones((4, 16), np.int8), np.zeros(4, int))
    refused(lambda: target.lower(layer, chip="rk3576"), "rk3576", "RK3588")
