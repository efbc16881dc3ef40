"""An NPU that does not exist, as somebody writes it who has read the README and one page about it:
commands of 16, 48 and 64 bits, four register files in arrays, byte lanes, bits that are set and
cleared, weights of 4 bits with holes, averages toward zero, sums as outputs, two chips."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npulab
from npulab import Capture, Conv2D, Network, Pool2D, QuantParams
from npulab.analysis.ignored import ignored_fields
from npulab.captures.listing import Decoded
from npulab.cli import main

FOLDER = Path(__file__).parents[1] / "outsider"
MOST_LINES = 560  # of the folder as formatted, tables and its page with them
SAMPLE, ALL = 12, 1000


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both targets of the folder are asked for by name: a dump is shown to each of them."""
    monkeypatch.chdir(FOLDER)
    for name in ("wren", "vta"):
        npulab.target(name)


def random_layer(rng: np.random.Generator, chip: str) -> Any:
    """A layer or a network of up to four: pooling, a convolution, or pooling in front of one."""
    shape, q, layers = (
        (*rng.integers(3, 14, 2).tolist(), int(rng.integers(1, 20))),
        QuantParams(1.0),
        list[Any](),
    )
    count = int(rng.integers(1, 5))
    for number in range(count):
        parts, kind = list[Any](), rng.integers(3)
        if kind < 2:
            kernel = int(rng.integers(1, min(4, *shape[:2]) + 1))
            average = bool(rng.integers(2))
            parts.append(
                Pool2D(
                    "average" if average else "max",
                    (kernel,) * 2,
                    shape,
                    (int(rng.integers(1, 4)),) * 2,
                    input_q=q,
                    **({"rounding": "toward-zero"} if average else {}),
                )
            )
            shape = parts[-1].output_shape
        if kind > 0:
            kernel, outputs = int(rng.integers(1, min(3, *shape[:2]) + 1)), int(rng.integers(1, 30))
            sums = chip == "wren2" and number == count - 1 and bool(rng.integers(2))
            shift = int(rng.integers(0, 11))
            pad = int(rng.integers(0, kernel))
            parts.append(
                Conv2D(
                    rng.integers(-8, 8, (outputs, kernel, kernel, shape[2])).astype(np.int8),
                    rng.integers(-2000, 2000, outputs),
                    shape,
                    (int(rng.integers(1, 4)),) * 2,
                    ((pad, pad), (pad, pad)),
                    activation=[None, "relu"][rng.integers(2)],
                    input_q=q,
                    weight_bits=4,
                    output_q=QuantParams(1.0 if sums else q.scale * 2.0**shift),
                    output="sums" if sums else "codes",
                )
            )
            shape, q = parts[-1].output_shape, parts[-1].output_q
        layers.append(parts[0] if len(parts) == 1 else Network(tuple(parts)))
    return layers[0] if count == 1 else Network(tuple(layers))


def leaves(layer: Any) -> list[Any]:
    return (
        [leaf for one in layer.layers for leaf in leaves(one)]
        if isinstance(layer, Network)
        else [layer]
    )


def same(a: Any, b: Any) -> bool:
    """Whether two layers or networks are equal in every field."""
    if isinstance(a, Network):
        return (
            isinstance(b, Network)
            and (a.inputs, a.outputs) == (b.inputs, b.outputs)
            and all(map(same, a.layers, b.layers))
        )
    values = [[getattr(one, item.name) for one in (a, b)] for item in fields(a)]
    return type(a) is type(b) and all(
        np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in values
    )


def executed(layer: Any, chip: str, x: np.ndarray) -> Capture:
    capture = npulab.target("wren").lower(layer, chip=chip, x=x)
    return replace(
        capture, buffers={**capture.buffers, "output": npulab.target("wren").simulate(capture)}
    )


def proved(seeds: range) -> int:
    """Lift, lower, words, weights and outputs of random layers; how many outputs were compared."""
    of, compared = npulab.target("wren"), 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        chip = [*of.chips][seed % 2]
        layer = random_layer(rng, chip)
        x = rng.integers(-128, 128, leaves(layer)[0].input_shape).astype(np.int8)
        capture = executed(layer, chip, x)
        found, given, _ = of.lift(capture)
        assert same(layer, found), seed
        assert np.array_equal(given, x), seed
        result = npulab.check(capture)
        # outputs that are all 0 or all 0xFF are what memory may hold before a job ran
        stored = set(result.captured.tobytes())
        verdict = "one value" if stored in ({0}, {0xFF}) else "equal"
        assert (result.verdict, result.words) == (verdict, True), (seed, result.reason)
        assert result.coefficients in (True, None), seed
        compared += result.compared
    return compared


def test_random_layers_are_equal_bit_for_bit() -> None:
    assert proved(range(SAMPLE)) > 10 * SAMPLE


@pytest.mark.long
def test_a_thousand_random_layers_are_equal_bit_for_bit() -> None:
    assert proved(range(SAMPLE, SAMPLE + ALL)) > 10 * ALL


def small(**changes: Any) -> Conv2D:
    """A convolution of 1x1 whose sums are its inputs less 3."""
    return replace(
        Conv2D(np.eye(2, dtype=np.int8)[:, None, None], np.full(2, -3), (2, 2, 2), weight_bits=4),
        **changes,
    )


def network() -> Network:
    pool = Pool2D("average", (2, 2), (6, 6, 6), (2, 2), rounding="toward-zero")
    rng = np.random.default_rng(1)
    weights = [rng.integers(-8, 8, (7, 3, 3, n)).astype(np.int8) for n in (6, 7)]
    first = Conv2D(
        weights[0],
        np.arange(7),
        (3, 3, 6),
        padding=((1, 1), (1, 1)),
        weight_bits=4,
        output_q=QuantParams(16.0),
    )
    second = Conv2D(
        weights[1],
        np.arange(7),
        (3, 3, 7),
        padding=((1, 1), (1, 1)),
        weight_bits=4,
        input_q=QuantParams(16.0),
        output="sums",
    )
    return Network((Network((pool, first)), second))


X = np.random.default_rng(2).integers(-128, 128, (6, 6, 6)).astype(np.int8)


def test_another_arithmetic_differs() -> None:
    """Of the rule, of the averages, of the weights, of the bytes' order."""
    capture = executed(network(), "wren2", X)
    assert npulab.check(capture).verdict == "equal"
    of = npulab.target("wren")
    lifted = of.lift(capture)
    for rule in ("single-half-up", "gemmlowp"):
        assert not np.array_equal(npulab.emulate(lifted.layer, X, rule), lifted.output)
    pooled, last = network().layers
    average = replace(pooled.layers[0], rounding="half-away")
    other = Network((Network((average, pooled.layers[1])), last))
    assert not np.array_equal(npulab.emulate(other, X, of.rule), lifted.output)
    for name in ("coefficients", "input", "bias"):
        data = bytes(byte ^ 0x44 for byte in capture.buffers[name])
        assert npulab.check(capture.with_buffers(**{name: data})).verdict == "differs"


def test_the_first_wrong_layer_is_named() -> None:
    capture = executed(network(), "wren2", X)
    first = network().layers[0]
    between = npulab.target("wren").simulate(npulab.target("wren").lower(first, chip="wren2", x=X))
    good = replace(capture, buffers={**capture.buffers, "output:0": between})
    assert npulab.check(good).verdict == "equal"
    assert npulab.check(good).compared == 3 * 3 * (7 + 7)
    bad = good.with_buffers(**{"output:0": bytes(len(between))})
    assert npulab.check(bad).reason == "layer 0 is the first of 1 captured layers that differs"


def test_streams_are_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of both chips; a bias that was recorded with the highest byte first."""
    for chip in ("wren1", "wren2"):
        layer = small() if chip == "wren1" else network()
        x = X[:2, :2, :2] if chip == "wren1" else X
        capture = executed(layer, chip, x)
        dump = tmp_path / chip
        dump.mkdir()
        for name, data in capture.buffers.items():
            turned = np.frombuffer(data, "<u4").astype(">u4").tobytes() if name == "bias" else data
            (dump / f"{name}.bin").write_bytes(turned)
        (dump / "job.json").write_text(
            json.dumps(
                {
                    "npu": "wren",
                    "chip": chip,
                    "provenance": "simulated",
                    "addresses": dict(capture.addresses),
                    "big_endian": {"bias": 4},
                }
            )
        )
        assert npulab.load(dump) == replace(capture, name=chip)
        assert main(["import", str(dump), str(tmp_path / "captures" / chip)]) == 0
    assert main(["check", str(tmp_path / "captures")]) == 0
    assert "2 equal" in capsys.readouterr().out


def test_groups_are_shown_once_and_their_writes_have_masks() -> None:
    capture = executed(network(), "wren2", X)
    rows = [
        line.split("  ")[0]
        for line in str(Decoded(capture)).splitlines()
        if " pool_kernel " in line
    ]
    assert rows == ["layer 0, group 0-3", "layer 1, group 0-3"]
    assert all(len(job.masks) == 4 for job in capture.jobs)
    table = npulab.diff(capture, capture, tasks=(0, 3))
    assert table["field"].tolist() == ["first", "count", "weights", "bias"]


def test_every_bit_of_the_weights_is_explained() -> None:
    capture = executed(network(), "wren2", X)
    table = npulab.explain(capture)
    assert table["bits"].sum() == 8 * len(capture.buffers["coefficients"])
    assert (table["kind"] == "weight").sum() == 7 * 9 * (6 + 7)


def test_lift_looks_at_all_that_changes_what_the_device_does() -> None:
    two = executed(small(activation="relu"), "wren1", X[:2, :2, :2])
    assert ignored_fields(two).empty  # what is no group's own has to be equal
    one = small(weights=np.ones((1, 1, 1, 2), np.int8), bias=[1])
    found = ignored_fields(executed(one, "wren1", X[:2, :2, :2]))
    assert set(found["effect"]) == {"same output"}
    named = found[~found["field"].str.fullmatch(r"r[0-9a-f]{4,}_\d+_\d+")]
    assert set(named["field"]) == {"pool_kernel", "pool_stride"}  # of pooling, which is off


@pytest.mark.parametrize(
    ("layer", "chip", "words"),
    [
        (
            small(output="sums"),
            "wren1",
            r"^layer: got Conv2D.*, allowed on wren1 are weights of 4 bits and outputs",
        ),
        (small(weight_bits=8), "wren2", r"^layer: got Conv2D"),
        (
            Pool2D("average", (2, 2), (4, 4, 1)),
            "wren1",
            r"^rounding: got half-away, allowed is toward-zero$",
        ),
    ],
)
def test_what_the_chip_has_not_is_refused(layer: Any, chip: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        npulab.target("wren").lower(layer, chip=chip)


def test_simulate_calls_neither_lift_nor_emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = executed(network(), "wren2", X)
    of = npulab.target("wren")
    module = sys.modules["npulab_targets.wren.layers"]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    for name in ("lift", "steps", "followed", "parts_of"):
        monkeypatch.setattr(module, name, refuse)
    for name in ("npulab.quant.emulate", "npulab.quant.layers", "npulab.quant.rules"):
        for attribute in ("emulate", "prepare", "outputs", "Conv2D", "Pool2D", "shift_right"):
            if hasattr(sys.modules[name], attribute):
                monkeypatch.setattr(sys.modules[name], attribute, refuse)
    assert of.simulate(capture) == capture.buffers["output"]
    imported = {
        name.split(".")[0]
        for line in (FOLDER / "npulab_targets/wren/simulate.py").read_text().splitlines()
        if line.startswith("from .")
        for name in [line.split()[1][1:]]
    }
    assert imported == {"facts", "layouts"}


def test_the_folder_is_short() -> None:
    files = [file for file in (FOLDER / "npulab_targets/wren").iterdir() if file.is_file()]
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES
