"""What Vela leaves: a ``.tflite`` file whose custom operator holds a payload; a payload of its
own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npulab.models import is_model, read_model
from npulab.npus.ethosu.facts import FACTS, USUAL_CHIP
from npulab.npus.ethosu.stream import MAGIC, jobs, payload
from npulab.npus.kit import Capture, first_bytes, read_bounded

OPERATOR = "CUSTOM(ethos-u)"
MOST_BYTES = 2**28
# the operator's inputs, in their order; the tensors of the network follow
STREAM, WEIGHTS = 0, 1


def recognises(path: Path) -> bool:
    """Whether a file is a payload, or a model with an operator for the NPU."""
    if first_bytes(path, 4) == MAGIC.to_bytes(4, "little"):
        return True
    if not is_model(path) or OPERATOR[7:-1].encode() not in read_bounded(path, MOST_BYTES):
        return False
    try:
        return any(one.name == OPERATOR for one in read_model(path).operators)
    except ValueError:
        return False


def read(path: Path) -> dict[str, Capture]:
    """A capture for each operator of the NPU, by the file's name and, if there are several, a
    number."""
    data = read_bounded(path, MOST_BYTES)
    if data[:4] == MAGIC.to_bytes(4, "little"):
        return {path.stem: _capture(path, path.stem, data, {})}
    graph = read_model(path)
    places = [number for number, one in enumerate(graph.operators) if one.name == OPERATOR]
    out = {}
    for number in places:
        inputs = graph.operators[number].inputs
        filled = [
            len(inputs) > place and graph.buffers[graph.tensors[inputs[place]].buffer]
            for place in (STREAM, WEIGHTS)
        ]
        stream, weights = (
            graph.data(inputs[place]).tobytes() if there else b""
            for place, there in zip((STREAM, WEIGHTS), filled, strict=True)
        )
        if len(places) == 1:
            name = path.stem
        else:
            name = f"{path.stem}-{number}"
        out[name] = _capture(path, name, stream, {"coefficients": weights} if weights else {})
    return out


def _capture(path: Path, name: str, data: bytes, buffers: dict[str, bytes]) -> Capture:
    words, chip = payload(data, str(path))
    if chip not in FACTS.chips:
        chip = USUAL_CHIP
    maps = FACTS.maps(chip)
    streams = {"stream": np.asarray(words, "<u4").tobytes(), **buffers}
    return Capture(
        name,
        "ethosu",
        chip,
        jobs(words, maps, str(path)),
        streams,
        provenance="compiler",
        source=path.name,
        tool="Vela",
        maps=maps,
    )
