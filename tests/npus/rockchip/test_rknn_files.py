"""A ``.rknn`` file and a ``.onnx`` file made by hand: what is read of them, and what is refused."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flat_files import encoded
from refusals import refused
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab.models.onnx_layers import read_onnx
from npulab.npus.rockchip import commands, compiled, rknn
from npulab.npus.rockchip.commands import Command
from npulab.npus.rockchip.tasks import Task

COMMANDS = [
    Command(0x0201, 2, 0x1028),
    Command(0x0201, 0, 0x1088),
    Command(0x1001, 5, 0x4F00),  # a register that no row names
    Command(0x2001, 0x110, 0x501C),
]


def rknn_bytes(**changed: Any) -> bytes:
    """A file of one convolution with one task."""
    stream = commands.stream([*COMMANDS, *commands.block_end(0x1D)])
    record = Task(0, 1, 0x1D, 0x300, 0x1FFFF, 0, len(COMMANDS), 0, 0).job.words.tobytes()
    tensors = [
        {"name": "x", "use": 1, "shape": [1, 3, 8, 8]},
        {"name": "w", "use": 4, "shape": [4, 3, 3, 3]},
        {"name": "y", "use": 2, "shape": [1, 4, 8, 8]},
        {"name": "regcmd", "use": 9, "blob": 1},
        {"name": "task", "use": 10, "blob": 2},
    ]
    layer = {"dilations": [1, 1], "kernel": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    graph = {
        "tensors": tensors,
        "nodes": [{"op": "Conv", "name": "c", "inputs": [0, 1], "outputs": [2], "layer": layer}],
        "patches": [{"tensor": "x", "places": [2**32], "cores": [1]}],
        "programs": [0],
        **changed.pop("graph", {}),
    }
    blobs = [{"data": part} for part in (b"", stream, record)]
    root = {"platform": "rk3576", "compiler": "c", "graphs": [graph], "blobs": blobs, **changed}
    part = encoded(rknn.SCHEMA, "root", root)
    text = json.dumps({"name": "m"}).encode()
    header = struct.pack("<4sIQQ40x", b"RKNN", 0, 6, len(part))
    return header + part + struct.pack("<Q", len(text)) + text


def onnx_bytes(pads: tuple[int, ...] = (1, 1, 1, 1), **changed: Any) -> bytes:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weights = helper.make_tensor("w", onnx.TensorProto.FLOAT, [4, 3, 3, 3], [0.5] * 108)
    node = helper.make_node("Conv", ["x", "w"], ["t"], "c", pads=pads, **changed)
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["t"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4, 8, 8])],
        [weights],
    )
    return bytes(helper.make_model(graph).SerializeToString())


def files() -> dict[str, bytes]:
    return {"m_rk3576.rknn": rknn_bytes(), "m.onnx": onnx_bytes()}


def written(folder: Path, data: bytes, model: bytes | None = None) -> Path:
    path = folder / "m_rk3576.rknn"
    path.write_bytes(data)
    if model is not None:
        (folder / "m.onnx").write_bytes(model)
    return path


def test_a_file_by_hand_is_read(tmp_path: Path) -> None:
    capture = npulab.load(written(tmp_path, rknn_bytes()))
    assert capture.chip == "rk3576"
    assert capture.provenance == "compiler"
    (job,) = capture.jobs
    assert [(offset, value) for offset, value in job.writes] == [
        (one.register, one.value) for one in COMMANDS
    ]
    fields = capture.fields
    assert fields[fields.field == "channels"].value.tolist() == [3]
    assert any("4f00" in str(name) for name in fields.register)
    assert capture.parameters["kernel_h"] == 3
    assert capture.parameters["patches"] == [{"tensor": "x", "command": 1, "offset": 0, "core": 0}]
    assert compiled.encode(capture) == rknn_bytes()


def test_the_model_beside_adds_its_parameters(tmp_path: Path) -> None:
    path = written(tmp_path, rknn_bytes(), onnx_bytes())
    assert npulab.load(path).parameters["relu"] == 1
    (layer,) = read_onnx(tmp_path / "m.onnx")
    assert layer.parameters["output_h"] == 8
    assert layer.weights.shape == (4, 3, 3, 3)


def test_a_model_of_another_layer_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, rknn_bytes(), onnx_bytes(strides=[2, 2]))
    refused(lambda: npulab.load(path), "m.onnx", "as the .rknn has it")


def test_without_the_package_the_file_s_own_layer_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, rknn_bytes(), onnx_bytes())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.warns(UserWarning, match=r"pip install 'npulab\[onnx\]'"):
        parameters = npulab.load(path).parameters
    assert parameters["kernel_h"] == 3
    assert "relu" not in parameters


def test_a_folder_says_once_that_the_package_is_missing(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.rknn").write_bytes(rknn_bytes())
        (tmp_path / f"{name}.onnx").write_bytes(onnx_bytes())
    monkeypatch.setitem(sys.modules, "onnx", None)
    status, lines, error = run("import", tmp_path, tmp_path / "out")
    assert (status, len(lines)) == (0, 2)
    assert error.count("pip install 'npulab[onnx]'") == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: rknn_bytes()[:50], ["50 bytes"]),
        (lambda: rknn_bytes()[:-1], ["cut short"]),
        (lambda: rknn_bytes(platform="rk9"), ["platform", "rk9"]),
        (lambda: rknn_bytes(graphs=[]), ["graphs", "0"]),
        (
            lambda: rknn_bytes(graph={"patches": [{"tensor": "x", "places": [2**40]}]}),
            ["patches", "1 places and 0 cores"],
        ),
        (
            lambda: rknn_bytes(blobs=[{"data": part} for part in (b"", b"abc", b"")]),
            ["not a whole command"],
        ),
    ],
)
def test_a_broken_file_is_refused(
    data: Callable[[], bytes], words: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path, data())
    refused(lambda: npulab.load(path), str(path.name), *words)


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx_bytes(pads=(1, 1)))
    refused(lambda: read_onnx(path), "pads")
    path.write_bytes(onnx_bytes()[:-9])
    refused(lambda: read_onnx(path), "model")
