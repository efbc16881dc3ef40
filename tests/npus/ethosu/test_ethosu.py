"""Command streams of Ethos-U: made by hand, and as Vela compiles them where it is installed."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

import npulab
from npulab.captures.sources import Compiler, reader_of
from npulab.captures.store import load_cases
from npulab.cli.shell import main
from npulab.models.file import pack
from npulab.models.graph import Graph, Operator, Tensor
from npulab.npus.ethosu import stream
from npulab.npus.ethosu.facts import FACTS

REGISTERS = FACTS.tables["NPU"]


def small(opcode: int, value: int) -> int:
    return opcode + value * 2**16


def large(opcode: int, data: int, value: int = 0) -> list[int]:
    return [opcode + 2**14 + value * 2**16, data]


# sets a kernel 3 wide with stride 3 and a weight address, convolves, changes one register,
# convolves again
WORDS = np.array(
    [
        small(0x120, 2),
        small(0x122, 0x40),
        *large(0x20, 0x1234, 5),
        small(2, 0),
        small(0x120, 4),
        small(2, 0),
        small(0, 0xFFFF),
    ],
    "<u4",
)


def payload(words: np.ndarray, config: int = 0x1807) -> bytes:
    head = [
        stream.MAGIC,
        stream.CONFIG,
        config,
        0x10066001,
        stream.NOTHING,
        stream.COMMANDS + len(words) * 2**16,
    ]
    return np.array([*head, *words], "<u4").tobytes()


def test_commands_are_writes_and_each_operation_a_job() -> None:
    first, second = stream.jobs(WORDS, FACTS.tables, "x")
    values = {item.name: item.text(raw) for _, item, raw in first.values({"NPU": REGISTERS})}
    assert (values["kernel_width_m1"], values["stride_x_m1"], values["weight_base"]) == (
        2,
        2,
        5 * 2**32 + 0x1234,
    )
    assert values["command"] == "conv"
    later = {item.name: item.text(raw) for _, item, raw in second.values({"NPU": REGISTERS})}
    assert (later["kernel_width_m1"], later["weight_base"]) == (4, values["weight_base"])


def test_moves_are_jobs_of_their_own() -> None:
    moved = np.array([small(0x130, 3), *large(0x32, 640), small(0x10, 0), *WORDS], "<u4")
    first, second, _ = stream.jobs(moved, FACTS.tables, "x")
    assert (first.block, second.block) == ("DMA", "NPU")
    values = {item.name: item.text(raw) for _, item, raw in first.values(FACTS.tables)}
    assert (values["region"], values["dma0_len"], values["command"]) == (3, 640, "dma_start")
    assert second == stream.jobs(WORDS, FACTS.tables, "x")[0]


@pytest.mark.parametrize(
    ("config", "chip"),
    [
        (0x1807, "ethos-u55-128"),
        (0x1005, "ethos-u55-32"),
        (0x10003008, "ethos-u65-256"),
        (0x20000008, "ethos-u85-256"),
    ],
)
def test_a_payload_says_its_chip(config: int, chip: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.bin"
    path.write_bytes(payload(WORDS, config))
    capture = npulab.load(path)
    assert (capture.chip, capture.provenance, len(capture.jobs)) == (chip, "compiler", 2)
    assert npulab.save(capture, tmp_path / "kept")
    assert npulab.load(tmp_path / "kept").jobs == capture.jobs


def test_models_with_an_operator_of_the_npu_are_captures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = payload(WORDS)
    tensors = (
        Tensor("stream", (len(data),), "uint8", 1),
        Tensor("weights", (3,), "uint8", 2),
        Tensor("x", (1, 4), "int8"),
        Tensor("y", (1, 4), "int8"),
    )
    graph = Graph(
        tensors, (Operator("CUSTOM(ethos-u)", (0, 1, 2), (3,)),), (b"", data, b"abc"), (2,), (3,)
    )
    path = tmp_path / "layer.tflite"
    path.write_bytes(pack(graph))
    capture = npulab.load(path)
    assert (capture.target, capture.buffers["coefficients"]) == ("ethosu", b"abc")
    assert main(["show", str(path), "--field", "kernel_width_m1"]) == 0  # its words
    assert "KERNEL_WIDTH_M1" in capsys.readouterr().out
    assert main(["show", str(path), "--operators"]) == 0  # as a model
    assert "CUSTOM(ethos-u)" in capsys.readouterr().out
    plain = replace(graph, operators=(Operator("CUSTOM(other)", (0, 1, 2), (3,)),))
    path.write_bytes(pack(plain))
    with pytest.raises(ValueError, match="is a TensorFlow Lite model"):
        npulab.load(path)
    assert main(["show", str(path)]) == 0
    assert "CUSTOM(other)" in capsys.readouterr().out


def test_a_folder_of_payloads_is_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.bin").write_bytes(payload(WORDS))
    (tmp_path / "notes.txt").write_text("both are of one board\n")
    assert main(["list", str(tmp_path)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["good", "ethosu"]
    ]
    (tmp_path / "torn.bin").write_bytes(payload(WORDS)[:-4])
    cases = load_cases(tmp_path)
    assert (sorted(cases), isinstance(cases["torn.bin"], ValueError)) == (
        ["good.bin", "torn.bin"],
        True,
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (payload(WORDS)[:-4], "a command stream of 8 words"),
        (payload(WORDS)[:-3], "whole words"),
        (payload(WORDS)[:20], "without a command stream"),
        (
            np.array([stream.MAGIC, 9], "<u4").tobytes(),
            "got action 9 of the payload at byte 4, allowed is 1 to 5",
        ),
        (payload(np.array([small(0x120, 1)], "<u4")), "start no operation"),
        (payload(np.array([0x4020], "<u4")), "whose data follows in a second word"),
    ],
)
def test_broken_payloads_are_refused(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.bin"
    path.write_bytes(data)
    refused(lambda: npulab.load(path), said, str(path))


def test_every_register_has_a_row_and_words_come_back() -> None:
    random = np.random.default_rng(3)
    words = random.integers(0, 2**32, (50, len(REGISTERS)), dtype=np.uint64).astype(np.uint32)
    assert np.array_equal(REGISTERS.encode(REGISTERS.decode(words)), words)
    assert {offset for _, offset, _ in REGISTERS.registers} >= {
        0,
        4 * 0x100,
        4 * 0x18F,
        0x800,
        0x800 + 8 * 0x93,
    }


# Vela


VELA = Path(sys.executable).with_name("vela")
LAYER = {
    "op": 0,
    "input_h": 16,
    "input_w": 12,
    "input_c": 8,
    "output_c": 16,
    "kernel_h": 3,
    "kernel_w": 3,
    "stride_h": 1,
    "stride_w": 1,
    "same": 1,
    "relu": 1,
    "input_scale": 0.02,
    "weight_scale": 0.01,
    "output_scale": 0.05,
}


@pytest.fixture(scope="module")
def vela() -> str:
    found = str(VELA) if VELA.exists() else shutil.which("vela")
    if not found:
        pytest.skip("vela is not installed: pip install npulab[compilers]")
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("chip", ["ethos-u55-32", "ethos-u55-128", "ethos-u65-256"])
def test_vela_is_a_source(vela: str, chip: str) -> None:
    source = Compiler(
        f"{vela} {{model}} --output-dir {{out}} --accelerator-config {chip}",
        reader_of("ethosu"),
        timeout=120,
    )
    answer = source(LAYER)
    assert answer.outcome == "captured", answer.text
    assert answer.capture is not None
    assert answer.capture.chip == chip
    values = answer.capture.values
    assert (
        values["ifm_depth_m1"],
        values["ofm_depth_m1"],
        values["kernel_height_m1"],
        values["ofm_height_m1"],
    ) == (7, 15, 2, 15)
    assert source({**LAYER, "input_h": 0}).outcome == "refused"
