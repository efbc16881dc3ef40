"""Source networks of layers: their statements hold of what ``lower`` makes, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ane_writers import write_plist

import npulab
from npulab.captures.target import Unsupported
from npulab.npus.ane import beside, tables
from npulab.npus.ane.source import plist
from npulab.npus.ane.source.of_layers import source_of
from npulab.npus.ane.tables import functions
from npulab.quant.layers import Activation, Concat, Elementwise

LAYERS = 40


def halves(random: np.random.RandomState, *shape: int) -> np.ndarray:
    return (random.randint(-511, 512, shape) / 256).astype(np.float16)


def random_layer(seed: int) -> Any:
    random = np.random.RandomState(seed)
    height, width, channels = (int(random.randint(1, most)) for most in (9, 70, 33))
    kind = seed % 4
    if kind == 0:
        kernel = int(random.choice([1, 3]))
        outputs = int(random.choice([3, 16, 20, 32, 48]))
        return npulab.Conv2D(
            halves(random, outputs, kernel, kernel, channels),
            halves(random, outputs) * int(random.randint(2)),
            (height, width, channels),
            padding="same",
            activation=[None, "relu"][int(random.randint(2))],
        )
    if kind == 1:
        return Elementwise(
            str(random.choice(["add", "multiply", "maximum", "minimum"])), (height, width, channels)
        )
    if kind == 2:
        return Concat([(height, width, channels), (height, width, int(random.randint(1, 33)))])
    name = str(random.choice(["tanh", "sigmoid", "exp2", "sqrt", "log2", "sign"]))
    return Activation((height, width, channels), tables.outputs(functions.fit(name)), name)


def compiled(layer: Any, source: Any = None) -> npulab.Capture:
    """A layer lowered, with the network of it, or of another one, beside it."""
    made = npulab.target("ane").lower(layer)
    network, files = source_of(layer if source is None else source)
    return replace(made, buffers={**made.buffers, "net.plist": write_plist(network), **files})


@pytest.mark.sample(14)
@pytest.mark.parametrize("seed", range(LAYERS))
def test_every_statement_holds_of_the_lowered_layer(seed: int) -> None:
    layer = random_layer(seed)
    claims = beside.claims(compiled(layer))
    assert len(claims) >= 45
    assert [str(claim) for claim in claims if not claim.agrees] == []
    if isinstance(layer, npulab.Conv2D):
        asked = {
            claim.what.split(" of ")[0]: claim.expected
            for claim in claims
            if claim.field == "coefficients"
        }
        assert asked == {"weights": layer.weights.size} | (
            {"biases": len(layer.bias)} if np.any(layer.bias) else {}
        )


@pytest.mark.parametrize(
    "change",
    [
        {"padding": "valid"},
        {"activation": "relu"},
        {"bias": np.zeros(20, np.float16)},
        {"stride": (2, 2)},
        {"weights": np.full((20, 3, 3, 4), 0.5, np.float16)},
        {"input_shape": (8, 9, 4)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_network_of_another_layer_is_told_apart(change: dict[str, Any]) -> None:
    random = np.random.RandomState(1)
    layer = npulab.Conv2D(
        halves(random, 20, 3, 3, 4), halves(random, 20) + np.float16(4), (8, 8, 4), padding="same"
    )
    assert not npulab.check(compiled(layer)).claims_wrong
    found = npulab.check(compiled(layer, replace(layer, **change)))
    assert (found.verdict, found.ok, found.claims_wrong > 0) == ("differs", False, True)


def test_networks_are_written_and_read_back() -> None:
    for seed in range(LAYERS):
        network, files = source_of(random_layer(seed), name="one")
        assert plist.read_plist(write_plist(network)).network == network
        assert {*(network.weights or ())} == {*files}


def test_names_are_those_of_the_tensors() -> None:
    network, files = source_of(Elementwise("maximum", (2, 3, 4)), ("image", "image2", "probs"))
    assert [one.name for one in network.inputs] == ["image", "image2"]
    assert [(one.type, one.bottoms, one.params["Type"]) for one in network.units] == [
        ("ScaledElementWise", ("image", "image2"), "Max")
    ]
    assert (network.outputs[0].name, network.outputs[0].bottom, files) == (
        "probs@output",
        "probs",
        {},
    )
    with pytest.raises(
        ValueError, match="names: got \\('a', 'b'\\), allowed are 3 different names"
    ):
        source_of(Elementwise("add", (2, 3, 4)), ("a", "b"))


def test_a_fully_connected_layer_is_a_convolution() -> None:
    layer = npulab.FullyConnected(np.ones((4, 8), np.float16), np.zeros(4, np.float16))
    network, files = source_of(layer)
    assert [(one.type, one.keys["OutputChannels"]) for one in network.units] == [("Conv", 4)]
    assert {name: len(data) for name, data in files.items()} == {"net.weights": 64}


DEPTHWISE = npulab.Conv2D(
    np.ones((1, 3, 3, 8), np.float16), np.zeros(8, np.float16), (4, 4, 8), depthwise=True
)
GROUPED = npulab.Conv2D(
    np.ones((8, 3, 3, 4), np.float16), np.zeros(8, np.float16), (4, 4, 8), groups=2
)
DILATED = npulab.Conv2D(
    np.ones((8, 3, 3, 8), np.float16), np.zeros(8, np.float16), (9, 9, 8), dilation=(2, 2)
)
OPEN = [
    DEPTHWISE,
    GROUPED,
    DILATED,
    Elementwise("subtract", (2, 2, 2)),
    Elementwise("abs", (2, 2, 2)),
    Elementwise("add", (2, 2, 2), scale=0.5),
    Elementwise("add", (2, 2, 2), bias=1.0),
    Elementwise("add", (2, 2, 2), other_shape=(1, 1, 2)),
    Elementwise("add", (2, 2, 2), activation="relu"),
    Activation((2, 2, 2), np.zeros(65536, np.float16), "mine"),
    Concat([(2, 2, 2), (3, 2, 2)], axis=0),
    Concat([(2, 2), (2, 2)]),
]


@pytest.mark.parametrize("layer", OPEN, ids=repr)
def test_what_no_network_says_is_refused(layer: Any) -> None:
    with pytest.raises(Unsupported, match=r"^source network: got .*allowed is "):
        source_of(layer)


def test_a_folder_of_files_that_npulab_wrote_is_read_as_simulated(tmp_path: Path) -> None:
    made = compiled(random_layer(4))
    for name in ("hwx", "net.plist", "net.weights", "net.additional.weights"):
        if name in made.buffers:
            (tmp_path / ("model.hwx" if name == "hwx" else name)).write_bytes(made.buffers[name])
    read = npulab.load(tmp_path)
    assert (read.provenance, read.tool, read.simulated) == ("simulated", "npulab lower", True)
    assert (read.jobs, read.buffers["coefficients"]) == (made.jobs, made.buffers["coefficients"])
    assert (npulab.check(read).verdict, npulab.check(read).claims_wrong) == ("claims agree", 0)
