"""Imports the files that Vela writes: a ``.tflite`` file whose custom operator holds a driver
payload, or a payload alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from npulab.models import Model, is_model, read_model
from npulab.npus.ethosu.facts import FACTS, USUAL_CHIP
from npulab.npus.ethosu.stream import MAGIC, jobs, payload
from npulab.npus.kit import Capture, first_bytes, read_bounded

OPERATOR = "CUSTOM(ethos-u)"
MOST_BYTES = 2**28
STREAM, WEIGHTS = 0, 1  # numbers of the custom operator's inputs: the payload, the coefficients
PAYLOAD = MAGIC.to_bytes(4, "little")


def recognises(path: Path) -> bool:
    """Return true for a driver payload, and for a model with a custom operator for the NPU."""
    if first_bytes(path, 4) == PAYLOAD:
        return True
    # Most models do not contain the operator's name. A search for it is quicker than reading the
    # operators.
    name = OPERATOR.removeprefix("CUSTOM(").removesuffix(")").encode()
    if not is_model(path) or name not in read_bounded(path, MOST_BYTES):
        return False
    try:
        return any(operator.name == OPERATOR for operator in read_model(path).operators)
    except ValueError:
        return False


def read(path: Path) -> dict[str, Capture]:
    """Return a capture for each custom operator of the NPU, by the file's name; if there are
    several, by the file's name and the operator's number."""
    data = read_bounded(path, MOST_BYTES)
    if data[:4] == PAYLOAD:
        return {path.stem: _capture(path, path.stem, data, b"")}
    graph = read_model(path)
    captures = {}
    for number, operator in enumerate(graph.operators):
        if operator.name == OPERATOR:
            name = f"{path.stem}-{number}"
            stream = _input(graph, operator.inputs, STREAM)
            weights = _input(graph, operator.inputs, WEIGHTS)
            captures[name] = _capture(path, name, stream, weights)
    if len(captures) == 1:
        (capture,) = captures.values()
        return {path.stem: replace(capture, name=path.stem)}
    return captures


def _input(graph: Model, inputs: Sequence[int], place: int) -> bytes:
    """Return the bytes of input number ``place`` of an operator; no bytes if the operator has no
    such input or the model holds no data for it."""
    if len(inputs) <= place:
        return b""
    tensor = inputs[place]
    if not graph.buffers[graph.tensors[tensor].buffer]:
        return b""
    return graph.data(tensor).tobytes()


def _capture(path: Path, name: str, data: bytes, weights: bytes) -> Capture:
    words, chip = payload(data, str(path))
    if chip not in FACTS.chips:
        chip = USUAL_CHIP
    maps = FACTS.maps(chip)
    buffers = {"stream": np.asarray(words, "<u4").tobytes()}
    if weights:
        buffers["coefficients"] = weights
    return Capture(
        name,
        "ethosu",
        chip,
        jobs(words, maps, str(path)),
        buffers,
        provenance="compiler",
        source=path.name,
        tool="Vela",
        maps=maps,
    )
