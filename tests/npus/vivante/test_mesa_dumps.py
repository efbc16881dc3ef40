"""Folders that Mesa's dump_shaders writes, and runs of whole models checked by operator."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared
from lowered_layers import random_layer
from record_simulated import conv
from test_cli import run  # noqa: F401 - a fixture
from test_vivante_lower import layer_of

import npulab
import npulab.analysis.mismatch.model_run
import npulab.models
from npulab import QuantParams
from npulab.analysis.mismatch.matching import _alignments
from npulab.analysis.mismatch.model_run import RunCheck
from npulab.captures.devices import Simulated
from npulab.captures.target import Target
from npulab.npus.vivante import mesa
from npulab.npus.vivante.commands import commands
from npulab.quant.layers import Layer

A311D, IMX8MP = "vipnano-qi-a311d", "vipnano-si-imx8mp"
CORES = {"vipnano-qi_a311d": A311D, "vipnano-si+_imx8mp": IMX8MP}
PAGE = 4096
Q = [
    QuantParams(0.02, 120),
    QuantParams(0.03, 130),
    QuantParams(0.025, 118),
    QuantParams(0.04, 125),
]
TP_STARTS = ((0x393C, 0), (0x3940, 0), (0x394C, 0), (0x3950, 0))


def layer(
    number: int, shape: tuple[int, int, int], outputs: int, kernel: int, **given: Any
) -> npulab.Conv2D:
    """The layer ``number`` of a chain."""
    random = np.random.RandomState(number)
    kind = given.pop("dtype", "uint8")
    weights = random.randint(0, 256, (outputs, kernel, kernel, shape[2]))
    down = 128 if kind == "int8" else 0
    q = [
        QuantParams(one.scale, one.zero_point - down)
        for one in (
            Q[number % 4],
            QuantParams(0.003 + 0.001 * (number % 4), 121 + number % 4),
            Q[(number + 1) % 4],
        )
    ]
    if down:
        q[1] = replace(q[1], zero_point=0)  # as a file has it
    return npulab.Conv2D(
        (weights - down).astype(kind),
        random.randint(-3000, 3000, outputs),
        shape,
        input_q=q[0],
        weight_q=q[1],
        output_q=q[2],
        **given,
    )


def three(size: int = 8, kernel: int = 3, **given: Any) -> list[npulab.Conv2D]:
    return [
        layer(0, (size, size, 3), 6, kernel, padding="same", **given),
        layer(1, (size, size, 6), 8, kernel, padding="same", activation="relu", **given),
        layer(2, (size, size, 8), 5, 1, **given),
    ]


def filled(data: bytes, stale: bytes = b"\0") -> bytes:
    """As a memory page holds it."""
    return data + (stale * PAGE)[: -len(data) % PAGE]


def dumped(
    folder: Path, layers: Iterable[npulab.Conv2D], first: int = 0, turned: bool = False
) -> list[npulab.Capture]:
    """A run of layers in order, as the simulated device runs it; ``turned`` puts jobs of the tensor
    processor around it, four parts before and one part after."""
    folder.mkdir(exist_ok=True)
    layers, out = list(layers), []
    x = np.random.RandomState(7).randint(0, 256, layers[0].input_shape).astype(np.uint8)
    number = first
    if turned:
        tensor_job(folder, number, 4, reads=0x08000000, writes=0x30000000)
        number += 1
    for n, one in enumerate(layers):
        at = 0x10000000 * (n + 1)
        given = (x.astype(int) - 128).astype(np.int8) if one.dtype == "int8" else x
        capture = npulab.target("vivante").lower(
            one,
            x=given,
            addresses={
                "nn": at,
                "coefficients": at + 0x100000,
                "input": 0x30000000 + n * 0x100000,
                "output": 0x30000000 + (n + 1) * 0x100000,
            },
        )
        capture = capture.with_buffers(output=Simulated().run(capture).output)
        for kind, data in (
            ("nn", filled(capture.words.astype("<u4").tobytes(), b"\xa5")),
            ("cmd", capture.buffers["commands"]),
            ("compressed", filled(capture.buffers["coefficients"])),
            ("input", filled(capture.buffers["input"])),
            ("output", filled(capture.buffers["output"], b"\x5a")),
        ):
            put(folder, kind, number, data)
        out.append(capture)
        number += 1
        rows, columns, channels = one.output_shape
        x = (
            np.frombuffer(capture.buffers["output"], np.uint8)
            .reshape(channels, rows, columns)
            .transpose(1, 2, 0)
        )
    if turned:
        tensor_job(folder, number, 1, reads=0x30000000 + len(layers) * 0x100000, writes=0x7F000000)
    return out


def put(folder: Path, kind: str, number: int, data: bytes, part: int = 0) -> Path:
    path = folder / f"mesa-{kind}-{number:03}-{part:03}.bin"
    path.write_bytes(data)
    return path


def tensor_job(folder: Path, number: int, parts: int, reads: int, writes: int) -> None:
    """A job of the tensor processor that nothing is known of but its addresses."""
    states: list[tuple[int, int]] = []
    for part in range(parts):
        words = np.zeros(31, "<u4")
        words[10], words[13] = reads + 64 * part, writes + 64 * part
        put(folder, "tp", number, filled(words.tobytes()), part)
        states += [*TP_STARTS, (0x10B8, 0x20000000 + 0x1000 * part + (part < parts - 1))]
    put(
        folder,
        "cmd",
        number,
        commands([*states, (0x10A4, 0), (0x380C, 0xC23), (0x380C, 0xC23)]).tobytes(),
    )
    for kind in ("input", "output"):
        put(folder, kind, number, bytes(PAGE))


def checked(folder: Path, layers: Sequence[Layer]) -> RunCheck:
    return npulab.analysis.mismatch.model_run.check_run(
        npulab.load_all(folder), npulab.models.write_model(list(layers))
    )


# The folder


def test_a_folder_is_a_run_of_jobs(tmp_path: Path) -> None:
    sent = dumped(tmp_path / "run", three())
    found = npulab.load_all(tmp_path / "run")
    assert found.names == ["000-nn", "001-nn", "002-nn"]
    for capture, lowered in zip(found, sent, strict=True):
        assert capture.jobs == lowered.jobs
        assert (capture.chip, capture.provenance, capture.source) == (A311D, "open driver", "run")
        assert capture.addresses == {
            name: lowered.addresses[name] for name in ("coefficients", "input", "output", "nn")
        }
        assert capture.buffers["commands"] == lowered.buffers["commands"]
        assert {
            name: data[: len(lowered.buffers[name])] for name, data in capture.buffers.items()
        } == lowered.buffers
        assert npulab.check(capture).verdict == "equal"
    assert [c.provenance for c in mesa.read(tmp_path / "run", provenance="simulated").values()] == [
        "simulated"
    ] * 3
    with pytest.raises(LookupError, match="holds 3 captures: 000-nn, 001-nn, 002-nn"):
        npulab.load(tmp_path / "run")
    assert npulab.load(tmp_path / "run", "001-nn").jobs == sent[1].jobs


def test_one_job_needs_no_name(tmp_path: Path) -> None:
    (sent,) = dumped(tmp_path / "run", three()[:1])
    assert npulab.load(tmp_path / "run").jobs == sent.jobs


def test_jobs_of_the_tensor_processor_have_parts(tmp_path: Path) -> None:
    dumped(tmp_path, three(), turned=True)
    found = npulab.load_all(tmp_path)
    assert found.names == ["000-tp", "001-nn", "002-nn", "003-nn", "004-tp"]
    before, behind = found[0], found[4]
    assert [(job.block, len(job.words)) for job in before.jobs] == [("TP", 31)] * 4
    starts = [job.start.writes for job in before.jobs if job.start]
    assert [writes[:5] for writes in starts] == [
        (*TP_STARTS, (0x10B8, 0x20000000 + 0x1000 * n + (n < 3))) for n in range(4)
    ]
    assert starts[3][5:] == ((0x10A4, 0), (0x380C, 0xC23), (0x380C, 0xC23))
    assert before.addresses == {"input": 0x08000000, "output": 0x30000000}
    assert len(behind.jobs) == 1
    assert npulab.check(before).verdict in ("nothing to compare", "equal")


def test_import_writes_what_was_recorded(tmp_path: Path, run: Any) -> None:
    dumped(tmp_path / "run", three(), turned=True)
    status, lines, err = run(
        "import", tmp_path / "run", tmp_path / "to", "--provenance", "simulated", "--name", "mine"
    )
    assert (status, err) == (0, "")
    assert [Path(line).name for line in lines] == [
        "mine-000-tp",
        "mine-001-nn",
        "mine-002-nn",
        "mine-003-nn",
        "mine-004-tp",
    ]
    again = npulab.load_all(tmp_path / "to")
    for capture, recorded in zip(again, npulab.load_all(tmp_path / "run"), strict=True):
        assert (capture.jobs, capture.buffers, capture.addresses) == (
            recorded.jobs,
            recorded.buffers,
            recorded.addresses,
        )
        assert capture.simulated
    assert (
        npulab.analysis.mismatch.model_run.check_run(
            again, npulab.models.write_model(three())
        ).counts["equal"]
        == 3
    )
    dumped(tmp_path / "plain", three())
    run("import", tmp_path / "plain", tmp_path / "s.npz", "--provenance", "simulated")
    assert npulab.load_sweep(tmp_path / "s.npz").simulated


@pytest.mark.parametrize("older", [True, False])
def test_tensors_within_a_buffer_of_others(tmp_path: Path, older: bool) -> None:
    """Mesa 25.0.7 dumps the whole buffer, newer drivers its rest from the tensor on."""
    first, second = layer(0, (8, 8, 3), 6, 3, padding="same"), layer(1, (8, 8, 12), 4, 1)
    random = np.random.RandomState(1)
    x, half = random.randint(0, 256, (8, 8, 3)).astype(np.uint8), 6 * 64
    base, lower = 0x40000000, npulab.target("vivante").lower
    a = lower(
        first,
        x=x,
        addresses={"nn": 0x1000, "coefficients": 0x10000, "input": 0x20000, "output": base + half},
    )
    a = a.with_buffers(output=Simulated().run(a).output)
    whole = filled(random.bytes(half) + a.buffers["output"])
    planes = np.frombuffer(whole[: 2 * half], np.uint8).reshape(12, 8, 8).transpose(1, 2, 0)
    b = lower(
        second,
        x=planes,
        addresses={"nn": 0x2000, "coefficients": 0x30000, "input": base, "output": 0x60000000},
    )
    b = b.with_buffers(output=Simulated().run(b).output)
    for number, one in enumerate((a, b)):
        put(tmp_path, "nn", number, one.words.astype("<u4").tobytes())
        put(tmp_path, "compressed", number, one.buffers["coefficients"])
        put(tmp_path, "input", number, one.buffers["input"])
        put(tmp_path, "output", number, one.buffers["output"])
    put(tmp_path, "output", 0, whole if older else whole[half:])
    put(tmp_path, "input", 1, whole)
    found = npulab.load_all(tmp_path)
    assert found[0].buffers["output"] == whole[half:]
    assert found[1].buffers["input"] == whole
    assert [npulab.check(one).verdict for one in found] == ["equal", "equal"]


def test_what_another_left_behind_the_coefficients_is_cut_off(tmp_path: Path) -> None:
    (sent,) = dumped(tmp_path, three()[:1])
    put(tmp_path, "compressed", 0, filled(sent.buffers["coefficients"], b"\xee"))
    capture = npulab.load(tmp_path)
    assert capture.buffers["coefficients"] == sent.buffers["coefficients"]
    assert npulab.check(capture).ok


def test_the_chip_is_told_where_the_jobs_tell_it(tmp_path: Path, vivante: Target) -> None:
    (sent,) = dumped(tmp_path / "a311d", three()[:1])
    words = sent.words.copy()
    words[0] |= 2  # no_z_offset
    (tmp_path / "v8").mkdir()
    put(tmp_path / "v8", "nn", 0, words.astype("<u4").tobytes())
    put(tmp_path / "v8", "output", 0, bytes(PAGE))
    assert npulab.load(tmp_path / "v8").chip == IMX8MP
    (tmp_path / "v8" / "mesa-nn-000-000.bin").write_bytes(sent.words.astype("<u4").tobytes())
    with pytest.warns(
        UserWarning,
        match=f"the jobs fit {A311D} and .* equally, they are read as jobs of {A311D}; give --chip",
    ):
        assert npulab.load(tmp_path / "v8").chip == A311D
    (tmp_path / "tp").mkdir()
    tensor_job(tmp_path / "tp", 0, 3, 0, 0x10000)
    assert npulab.load(tmp_path / "tp").chip == IMX8MP
    other = mesa.read(tmp_path / "a311d", chip=IMX8MP)["000-nn"]
    assert (other.chip, other.maps) == (IMX8MP, vivante.maps(IMX8MP))
    with pytest.raises(LookupError, match="chip: got 'a311d', allowed are vipnano-qi-a311d"):
        mesa.read(tmp_path / "a311d", chip="a311d")


def test_gaps_and_large_numbers(tmp_path: Path, run: Any) -> None:
    dumped(tmp_path / "run", three(), first=998)
    found = npulab.load_all(tmp_path / "run")
    assert found.names == ["0998-nn", "0999-nn", "1000-nn"]
    for file in (tmp_path / "run").glob("*-999-*"):
        file.unlink()
    with pytest.warns(UserWarning, match="no files of job 999"):
        assert npulab.load_all(tmp_path / "run").names == ["0998-nn", "1000-nn"]
    status, _, err = run("check", tmp_path / "run")
    assert (status, err) == (0, f"npulab: {tmp_path / 'run'}: no files of job 999\n")
    for file in list((tmp_path / "run").glob("*-1000-*")):
        file.rename(file.with_name(file.name.replace("-1000-", "-99999999999999999999-")))
    with pytest.warns(UserWarning, match="no files of job 999 to 99999999999999999998$"):
        assert npulab.load_all(tmp_path / "run").names[0] == "00000000000000000998-nn"


def test_without_outputs_it_says_how_to_record(tmp_path: Path) -> None:
    dumped(tmp_path, three())
    for file in [*tmp_path.glob("mesa-output-*"), *tmp_path.glob("mesa-cmd-*")]:
        file.unlink()
    with pytest.warns(
        UserWarning, match="no output was recorded.*ETNA_MESA_DEBUG=dump_shaders,npu_no_batching"
    ):
        found = npulab.load_all(tmp_path)
    assert found[0].jobs[0].start is None
    assert npulab.check(found[0]).verdict == "nothing to compare"


def cut(kind: str, size: int, number: int = 1) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        os.truncate(folder / f"mesa-{kind}-{number:03}-000.bin", size)

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def beside(name: str, data: bytes = bytes(PAGE)) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return change


def as_folder(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            cut("nn", 135),
            "mesa-nn-001-000.bin: got 135 bytes, allowed are whole 32-bit words, at least the 34 of a parameter block",
        ),
        (
            cut("nn", 132),
            "mesa-nn-001-000.bin: got 132 bytes, allowed are whole 32-bit words, at least the 34",
        ),
        (cut("nn", 4094), "mesa-nn-001-000.bin: got 4094 bytes"),
        (
            cut("tp", 120, 0),
            "mesa-tp-000-000.bin: got 120 bytes, allowed are whole 32-bit words, at least the 31",
        ),
        (cut("cmd", 58), "mesa-cmd-001-000.bin: got 58 bytes, allowed are whole 32-bit words"),
        (
            cut("cmd", 60),
            "mesa-cmd-001-000.bin: commands: the LOAD_STATE at word 14 has 1 states, allowed are at most the 0 words that follow",
        ),
        (
            cut("cmd", 0),
            "mesa-cmd-001-000.bin: got commands that start 0 jobs of block NN, allowed are 1",
        ),
        (
            beside("mesa-cmd-002-000.bin", b""),
            "mesa-cmd-002-000.bin: got commands that start 0 jobs",
        ),
        (
            cut("output", 100),
            "mesa-output-001-000.bin: got 100 bytes from the tensor's start on, allowed are at least the 384",
        ),
        (
            cut("input", 191),
            "mesa-input-001-000.bin: got 191 bytes from the tensor's start on, allowed are at least the 192",
        ),
        (
            cut("input", 2**40),
            "mesa-input-001-000.bin: got 1099511627776 bytes, allowed are at most 67108864",
        ),
        (cut("compressed", 2**40), "mesa-compressed-001-000.bin: got 1099511627776 bytes"),
        (cut("cmd", 2**40), "mesa-cmd-001-000.bin: got 1099511627776 bytes"),
        (
            without("mesa-nn-002-000.bin"),
            "allowed is a job with either mesa-nn-002-000.bin or mesa-tp-002-000.bin",
        ),
        (
            without("mesa-tp-000-001.bin"),
            "mesa-tp-000-001.bin is missing, which belongs to the same job as mesa-tp-000-000.bin",
        ),
        (
            without("mesa-tp-000-003.bin"),
            "mesa-cmd-000-000.bin: got commands that start 4 jobs of block TP, allowed are 3",
        ),
        (beside("mesa-nn-000-000.bin"), "got mesa-nn-000-000.bin and mesa-tp-000-000.bin"),
        (
            beside("mesa-nn-001-001.bin"),
            "mesa-nn-001-001.bin: got core 1, allowed is 0 for a file of kind nn",
        ),
        (
            beside("mesa-nn-0001-000.bin"),
            "mesa-nn-001-000.bin: got mesa-nn-0001-000.bin for the same job, kind and core",
        ),
        (
            beside("mesa-compressed-000-000.bin"),
            "mesa-compressed-000-000.bin: got coefficients for a TP job",
        ),
        (as_folder("mesa-output-001-000.bin"), "mesa-output-001-000.bin: got no regular file"),
    ],
)
def test_broken_folders_say_which_file(
    tmp_path: Path,
    run: Any,
    change: Callable[[Path], None],
    words: str,
) -> None:
    dumped(tmp_path / "run", three(), turned=True)
    change(tmp_path / "run")
    with pytest.raises(ValueError) as caught:
        npulab.load_all(tmp_path / "run")
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "m.tflite").write_bytes(npulab.models.write_model(three()))
    for arguments in (
        ["check"],
        ["check", "--model", tmp_path / "m.tflite"],
        ["import", tmp_path / "to"],
        ["list"],
    ):
        status, _, err = run(arguments[0], tmp_path / "run", *arguments[1:])
        assert (status, err.count("\n"), err.startswith("npulab: ")) == (2, 1, True)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("count", [8, pytest.param(16, marks=pytest.mark.long)])
def test_bytes_at_random_are_refused_or_read(tmp_path: Path, count: int) -> None:
    dumped(tmp_path / "good", three(), turned=True)
    names = sorted(file.name for file in (tmp_path / "good").iterdir())
    model = npulab.read_model(npulab.models.write_model(three()))
    random = np.random.RandomState(3)
    read, told = 0, list[str]()
    for n in range(count):
        folder = tmp_path / f"bad{n}"
        shutil.copytree(tmp_path / "good", folder)
        for name in random.choice(names, 2):
            data = bytearray((folder / name).read_bytes())
            for _ in range(random.randint(1, 40)):
                data[random.randint(min(len(data), 200))] = random.randint(256)
            (folder / name).write_bytes(
                data[: random.randint(len(data))] if random.randint(4) == 0 else data
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                captures = npulab.load_all(folder)
            except ValueError as error:
                told.append(str(error))
                continue
        npulab.analysis.mismatch.model_run.check_run(captures, model)
        read += 1
    assert read > count // 5
    assert len(told) > count // 5
    assert all("mesa-" in one for one in told)


# A run beside its model


def test_the_wrong_layer_in_the_middle_is_named(tmp_path: Path, run: Any) -> None:
    sent = dumped(tmp_path / "run", three(3, 1))
    (tmp_path / "m.tflite").write_bytes(npulab.models.write_model(three(3, 1)))
    arguments = ["check", tmp_path / "run", "--model", tmp_path / "m.tflite"]
    status, lines, err = run(*arguments)
    assert (status, err, lines[-1]) == (0, "", "3 operators (3 equal)")
    output = bytearray(sent[1].buffers["output"])
    output[70] ^= 4
    put(tmp_path / "run", "output", 1, bytes(output))
    status, lines, _ = run(*arguments, "--explain")
    assert status == 1
    assert (
        "3 operators (2 equal, 1 differs); first wrong: operator 1, CONV_2D (job 001-nn): 1 of 72 outputs differ, "
        "first at (2, 1, 7), largest 4" in lines
    )
    assert any("first difference at (row, column, channel) (2, 1, 7)" in line for line in lines)
    status, lines, _ = run(*arguments, "--json")
    rows = [json.loads(line) for line in lines]
    assert status == 1
    assert [(row["operator"], row["name"], row["jobs"], row["verdict"]) for row in rows] == [
        (0, "CONV_2D", ["000-nn"], "equal"),
        (1, "CONV_2D", ["001-nn"], "differs"),
        (2, "CONV_2D", ["002-nn"], "equal"),
    ]
    assert all(
        {"case", "target", "words", "coefficients", "compared", "mismatches", "verdict"} <= set(row)
        for row in rows
    )
    assert [(row["compared"], row["mismatches"], row["coefficients"]) for row in rows] == [
        (54, 0, "equal"),
        (72, 1, "equal"),
        (45, 0, "equal"),
    ]


def test_int8_models_are_stored_as_uint8(tmp_path: Path) -> None:
    layers = three(dtype="int8")
    dumped(tmp_path, layers)
    found = checked(tmp_path, layers)
    assert found.counts == {"equal": 3}
    assert found.ok


def test_strides_and_depthwise_layers_are_read_as_the_model_has_them(tmp_path: Path) -> None:
    wide = layer(1, (8, 8, 6), 6, 3, padding="same")
    deep = replace(wide, weights=wide.weights[:1], depthwise=True)
    layers = [
        layer(0, (16, 16, 3), 6, 3, padding="same", stride=(2, 2)),
        deep,
        layer(2, (8, 8, 6), 9, 3, stride=(2, 2), padding="same"),
    ]
    dumped(tmp_path, layers)
    found = checked(tmp_path, layers)
    assert found.counts == {"equal": 3}
    assert [str(one.comparison.layer) for one in found.operators if one.comparison] == [
        str(one) for one in layers
    ]


def test_a_job_that_says_otherwise_than_the_model(tmp_path: Path) -> None:
    layers = three()
    dumped(tmp_path, layers)
    weights, bias = layers[1].weights.copy(), layers[1].bias.copy()
    weights[3, 1, 1, 2] ^= 1
    bias[5] += 7
    found = checked(
        tmp_path, [layers[0], replace(layers[1], weights=weights, bias=bias), layers[2]]
    )
    assert found.first is found.operators[1]
    assert (
        found.first.reason
        == "the job differs from the operator: 1 of 432 weights differ, 1 of 8 biases differ"
    )
    other = (
        replace(layers[1], activation=None),
        replace(layers[1], output_q=QuantParams(0.025, 119)),
    )
    (first, second) = (
        checked(tmp_path, [layers[0], one, replace(layers[2], input_q=one.output_q)])
        for one in other
    )
    assert (
        first.operators[1].reason
        == "the job differs from the operator: its outputs are within (118, 255), the model's (0, 255)"
    )
    assert second.operators[1].reason.startswith(
        "the job differs from the operator: output zero point is 118, the model's 119"
    )
    assert [one.verdict for one in second.operators] == ["equal", "differs", "differs"]


def test_what_ran_on_the_cpu_is_left_out(tmp_path: Path) -> None:
    first, second, third = three()
    pool = npulab.Pool2D("max", (1, 1), (8, 8, 6), input_q=Q[1], dtype="uint8")
    dumped(tmp_path, [first, second])
    found = checked(tmp_path, [first, pool, second, third])
    assert [(one.operator, one.verdict, one.cases) for one in found.operators] == [
        (0, "equal", ("000-nn",)),
        (1, "not run", ()),
        (2, "equal", ("001-nn",)),
        (3, "not run", ()),
    ]
    assert found.operators[1].reason == "no job is known that does max_pool"
    assert (
        found.operators[3].reason
        == "no job of the run is like it; the driver left it to the CPU, or its files are missing"
    )
    assert found.ok


def test_a_job_of_another_model(tmp_path: Path, run: Any) -> None:
    dumped(tmp_path / "run", three())
    found = checked(tmp_path / "run", [three()[0]])
    assert [(one.operator, one.verdict, one.cases) for one in found.operators] == [
        (0, "equal", ("000-nn",)),
        (None, "no operator", ("001-nn",)),
        (None, "no operator", ("002-nn",)),
    ]
    assert found.table.operator.isna().sum() == 2
    (tmp_path / "m.tflite").write_bytes(npulab.models.write_model([layer(3, (4, 4, 2), 2, 1)]))
    status, lines, _ = run("check", tmp_path / "run", "--model", tmp_path / "m.tflite")
    assert (status, lines[-1]) == (0, "4 operators (1 not run, 3 no operator)")


def test_jobs_of_the_tensor_processor_go_with_their_operator(tmp_path: Path) -> None:
    dumped(tmp_path, three(), turned=True)
    found = checked(tmp_path, three())
    assert [one.cases for one in found.operators] == [
        ("000-tp", "001-nn"),
        ("002-nn",),
        ("003-nn", "004-tp"),
    ]
    assert {one.verdict for one in found.operators} <= {"equal", "differs"}
    assert found.operators[1].verdict == "equal"


def test_a_wrong_move_is_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vivante: Target
) -> None:
    """Where the simulated device runs such jobs, as a stand-in does here."""
    dumped(tmp_path, three(), turned=True)
    put(tmp_path, "output", 4, bytes(100) + b"\1" + bytes(PAGE - 101))
    device = replace(vivante, simulate=lambda capture: bytes(PAGE + 64))
    monkeypatch.setattr("npulab.analysis.mismatch.model_run.target", lambda name: device)
    found = checked(tmp_path, three())
    assert [one.verdict for one in found.operators] == ["equal", "equal", "differs"]
    assert found.operators[2].reason == "004-tp: 1 of 4096 moved bytes differ"
    assert found.first is not None
    assert found.first.text == "operator 2, CONV_2D (jobs 003-nn 004-tp)"
    assert found.first.comparison is not None
    assert (
        found.first.comparison.case,
        found.first.comparison.first,
        found.first.comparison.rule,
    ) == ("004-tp", (100,), "simulated device")


def plain_alignments(weights: np.ndarray) -> list[list[int]]:
    """All matchings that keep the order, one by one."""
    rows, columns = weights.shape
    every: list[tuple[int, tuple[tuple[int, int], ...]]] = []

    def extend(row: int, column: int, total: int, pairs: tuple[tuple[int, int], ...]) -> None:
        every.append((total, pairs))
        for i in range(row, rows):
            for j in range(column, columns):
                if weights[i, j]:
                    extend(i + 1, j + 1, total + int(weights[i, j]), (*pairs, (i, j)))

    extend(0, 0, 0, ())
    best = max(total for total, _ in every)
    on = {pair for total, pairs in every if total == best for pair in pairs}
    return [[j for j in range(columns) if (i, j) in on] for i in range(rows)]


def test_alignments_are_all_of_the_heaviest() -> None:
    random = np.random.RandomState(5)
    for n in range(60):
        weights = random.randint(0, 4, random.randint(0, 5, 2)) * (random.randint(0, 3) > 0)
        assert _alignments(weights) == plain_alignments(weights), n


def test_twins_are_told_by_their_weights(tmp_path: Path) -> None:
    """Layers alike in all that words say, of which the driver ran the second and the third."""
    one = replace(layer(0, (6, 6, 4), 4, 1), output_q=Q[0])
    layers = [
        one,
        *(
            replace(
                one,
                weights=np.random.RandomState(n)
                .randint(0, 256, one.weights.shape)
                .astype(np.uint8),
            )
            for n in (1, 2)
        ),
    ]
    dumped(tmp_path, layers[1:])
    found = checked(tmp_path, layers)
    assert [(row.verdict, row.cases, row.reason) for row in found.operators[1:]] == [
        ("equal", ("000-nn",), ""),
        ("equal", ("001-nn",), ""),
    ]
    assert found.operators[0].verdict == "not run"
    same = checked(tmp_path, [layers[1], layers[1], layers[2]])
    assert [row.verdict for row in same.operators] == ["equal", "not run", "equal"]
    assert same.operators[0].reason == "operator 1 would fit as well"


def test_several_inferences_in_one_recording(tmp_path: Path, run: Any) -> None:
    """Newer drivers count on."""
    dumped(tmp_path / "run", three())
    sent = dumped(tmp_path / "run", three(), first=3)
    put(tmp_path / "run", "output", 4, bytes([sent[1].words[22] >> 8 & 255]) * 512)
    found = checked(tmp_path / "run", three())
    assert [(one.inference, one.operator, one.verdict) for one in found.operators] == [
        (0, 0, "equal"),
        (0, 1, "equal"),
        (0, 2, "equal"),
        (1, 0, "equal"),
        (1, 1, "not executed"),
        (1, 2, "equal"),
    ]
    assert not found.ok  # what never ran is no run that went well
    (tmp_path / "m.tflite").write_bytes(npulab.models.write_model(three()))
    _, lines, _ = run("check", tmp_path / "run", "--model", tmp_path / "m.tflite")
    assert lines[0].split()[0] == "inference"
    # the same job twice is no second inference where the model has it twice
    one = replace(layer(0, (6, 6, 4), 4, 1), output_q=Q[0])
    dumped(tmp_path / "twice", [one])
    for file in sorted((tmp_path / "twice").iterdir()):
        shutil.copy(file, file.with_name(file.name.replace("-000-000", "-001-000")))
    assert [row.inference for row in checked(tmp_path / "twice", [one, one]).operators] == [0, 0]


def test_what_is_not_covered_says_why(tmp_path: Path) -> None:
    dumped(tmp_path, three())
    captures = [replace(one, chip="vipnano-qi-s905d3") for one in npulab.load_all(tmp_path)]
    found = npulab.analysis.mismatch.model_run.check_run(
        captures, npulab.models.write_model(three())
    )
    assert found.counts == {"not covered": 3}
    assert "S905D3".lower() in found.operators[0].reason
    with pytest.raises(ValueError, match="captures: got 0 of targets none"):
        npulab.analysis.mismatch.model_run.check_run([], npulab.models.write_model(three()))


@pytest.mark.parametrize("count", [20, pytest.param(27, marks=pytest.mark.long)])
def test_outlines_of_words_are_those_of_layers(vivante: Target, count: int) -> None:
    for n in range(count):
        given, *_ = random_layer(n, A311D)
        words, said = vivante.outline(vivante.lower(given)), vivante.outline(given)
        if not isinstance(given, npulab.Add):
            assert words.pop("scale") == pytest.approx(said.pop("scale"), rel=2.0**-14)
        assert {name: words[name] for name in said} == said
    add = npulab.Add((4, 4, 3), input_q=Q[0], other_q=Q[1], output_q=Q[2], dtype="int8")
    assert vivante.outline(add) == {"outputs": 48, "output zero point": 118 + 128}
    assert vivante.outline(npulab.Pool2D("max", (2, 2), (4, 4, 3))) == {}
    many = replace(conv(0, (4, 4, 1), 2, 1, 0.01)[0], weight_q=QuantParams((0.1, 0.2), 121))
    assert "scale" not in vivante.outline(many)


def network(dtype: str) -> npulab.Network:
    """Operators of every kind that drivers make jobs of."""
    down = 128 if dtype == "int8" else 0
    q = [QuantParams(one.scale, one.zero_point - down) for one in Q]
    deep = layer(1, (8, 8, 6), 6, 3, padding="same", activation="relu", dtype=dtype)
    weights = np.random.RandomState(9).randint(0, 256, (10, 256)) - down
    return npulab.Network(
        (
            layer(0, (16, 16, 3), 6, 3, padding="same", stride=(2, 2), dtype=dtype),
            replace(deep, weights=deep.weights[:1], depthwise=True),
            npulab.Add((8, 8, 6), input_q=q[2], other_q=q[1], output_q=q[2], dtype=dtype),
            layer(2, (8, 8, 6), 8, 1, dtype=dtype),
            layer(3, (8, 8, 8), 4, 3, padding=((1, 1), (1, 1)), dtype=dtype),
            npulab.FullyConnected(
                weights.astype(dtype),
                np.arange(10),
                input_q=q[0],
                output_q=q[3],
                weight_q=QuantParams(0.002, 120 - down if not down else 0),
            ),
        ),
        ((-1,), (0,), (1, 0), (2,), (3,), (4,)),
    )


def moved_and_run(folder: Path, model: npulab.Network, chip: str, target: Target) -> int:
    """A run in which the tensor processor turns the first and the fifth operator's tensors; how
    many jobs it has.
    """
    folder.mkdir()
    kind = model.layers[0].dtype
    known = [
        (np.random.RandomState(7).randint(0, 256, (16, 16, 3)) + np.iinfo(kind).min).astype(kind)
    ]
    number = 0
    for n, (one, sources) in enumerate(zip(model.layers, model.inputs, strict=True)):
        given: Any = [known[source + 1] for source in sources]
        given = tuple(given) if len(given) > 1 else given[0].reshape(-1) if n == 5 else given[0]
        asked = ["hwc-tensors"] if n in (0, 4) else []
        usual = target.lower(one, chip=chip, x=given, features=asked).addresses
        capture = target.lower(
            one,
            chip=chip,
            x=given,
            features=asked,
            addresses={name: at + n * 0x100000 for name, at in usual.items()},
        )
        known.append(npulab.emulate(one, given, target.rule_of(capture)))
        data, first = capture.buffers.get("tensor", capture.buffers["input"]), 0
        for end, job in enumerate(capture.jobs, 1):
            block = job.block.lower()
            states = [
                state for one_job in capture.jobs[first:end] for state in one_job.start.writes
            ]
            put(folder, block, number, filled(job.words.astype("<u4").tobytes()), end - 1 - first)
            if block == "tp" and dict(job.start.writes)[0x10B8] % 64:
                continue  # another part follows
            if block == "nn":
                put(folder, "compressed", number, filled(capture.buffers["coefficients"]))
            written = capture.maps[job.block].decode(capture.jobs[first].words)[
                "out_image_address" if block == "nn" else "out_image_base_address"
            ]
            put(folder, "cmd", number, commands(states).tobytes())
            put(folder, "input", number, filled(data))
            data = target.simulate(
                replace(
                    capture,
                    jobs=capture.jobs[:end],
                    addresses={**capture.addresses, "output": written},
                )
            )
            put(folder, "output", number, filled(data))
            first, number = end, number + 1
    return number


@pytest.mark.parametrize(("chip", "dtype"), [(A311D, "uint8"), (IMX8MP, "int8")])
def test_a_model_of_every_kind_of_operator(
    chip: str,
    dtype: str,
    tmp_path: Path,
    vivante: Target,
    run: Any,
) -> None:
    model = network(dtype)
    assert moved_and_run(tmp_path / "run", model, chip, vivante) == 11
    recorded = npulab.load_all(tmp_path / "run")
    assert {one.chip for one in recorded} == {chip}
    found = npulab.analysis.mismatch.model_run.check_run(recorded, npulab.models.write_model(model))
    assert [(one.name, one.verdict, one.cases) for one in found.operators] == [
        ("CONV_2D", "equal", ("000-tp", "001-tp", "002-nn", "003-tp")),
        ("DEPTHWISE_CONV_2D", "equal", ("004-nn",)),
        ("ADD", "equal", ("005-nn",)),
        ("CONV_2D", "equal", ("006-nn",)),
        ("CONV_2D", "equal", ("007-tp", "008-nn", "009-tp")),
        ("FULLY_CONNECTED", "equal", ("010-nn",)),
    ]
    if dtype == "int8":
        return
    (tmp_path / "m.tflite").write_bytes(npulab.models.write_model(model))
    file = tmp_path / "run" / "mesa-output-005-000.bin"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    status, lines, _ = run("check", tmp_path / "run", "--model", tmp_path / "m.tflite")
    assert status == 1
    assert lines[-1].startswith(
        "6 operators (5 equal, 1 differs); first wrong: operator 2, ADD (job 005-nn): 1 of 384 outputs"
    )


# Jobs that Mesa's encoder made


def test_mesa_vectors_as_folders(tmp_path: Path) -> None:
    entries = json.loads(shared("data/vivante/vectors/index.json").read_text())
    for entry in entries:
        folder = tmp_path / entry["id"]
        folder.mkdir()
        with np.load(shared(f"data/vivante/vectors/{entry['id']}.npz")) as data:
            parts, number = data["tp_words"].reshape(-1, 31), 0
            for part, words in enumerate(parts):
                put(folder, "tp", 0, words.astype("<u4").tobytes(), part)
                number = 1
            put(folder, "nn", number, filled(data["nn_words"].astype("<u4").tobytes()))
            put(folder, "compressed", number, data["coef"].tobytes())
            if entry["op"] != "conv":
                continue
            one = layer_of(entry, data)
        with pytest.warns(UserWarning, match="no output was recorded"):
            found = npulab.load_all(folder)
        assert {one.chip for one in found} == {CORES[entry["core"]]}, entry["id"]
        assert [len(one.jobs) for one in found] == [len(parts)] * bool(len(parts)) + [1]
        if len(found[-1].buffers["coefficients"]) > 2**15:
            continue
        row, *others = npulab.analysis.mismatch.model_run.check_run(
            found, npulab.single_op_model(one)
        ).operators
        assert (row.operator, others) == (0, []), entry["id"]
        assert row.cases == tuple(found.names)
        if entry["nn_version"] == 7:
            assert row.verdict == "nothing to compare", row
        else:
            assert row.verdict in ("nothing to compare", "not covered"), row
