"""The scan: every bit of toys and of simulated streams, with the fewest runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npulab
from npulab.analysis.scan import Probe, Scan, impulses, scan, scan_capture
from npulab.captures.devices import Probed, Run
from npulab.captures.journal import Journal
from npulab.npus.vivante.lifting import geometry_of
from npulab.npus.vivante.lowering import coded_chip
from npulab.quant.layers import Conv2D
from npulab.quant.rules import QuantParams

HANG, CONTROL, DEAD = "hang", "control", "dead"


@dataclass(frozen=True)
class Toy:
    """A made-up NPU: magic bits that hang, bits that permute all weights, a zero point, a bias and
    weights per
    channel, and filling; ``data`` are its bytes, ``truth`` and ``places`` what its bits are."""

    layer: Conv2D
    bits: np.ndarray
    truth: np.ndarray
    places: np.ndarray
    weight_bits: int = 8
    dtype: Any = np.int16

    @property
    def data(self) -> bytes:
        return np.packbits(self.bits, bitorder="little").tobytes()

    def run(self, data: bytes, x: np.ndarray) -> np.ndarray | None:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        hang = self.truth == HANG
        if np.any(bits[hang] != self.bits[hang]):
            return None
        channels, height, width, depth = self.layer.weights.shape
        role = self.places[:, 0] >= 0
        body = bits[role].reshape(channels, -1).astype(np.int64)
        bias = body[:, :32] @ 2 ** np.arange(32)
        bias -= (bias >= 2**31) * 2**32
        weights = body[:, 32:].reshape(channels, depth, height, width, -1) @ 2 ** np.arange(
            self.weight_bits
        )
        turn = int(bits[8:14] @ 2 ** np.arange(6))
        weights = np.roll(weights, turn * 7 + 1) if turn else weights
        weights = weights - 2 ** (self.weight_bits - 1) - int(bits[16:20] @ 2 ** np.arange(4))
        (top, bottom), (left, right) = self.layer.pads
        padded = np.pad(x.astype(np.int64), ((top, bottom), (left, right), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (0, 1))
        windows = windows[:: self.layer.stride[0], :: self.layer.stride[1]]
        out = np.einsum("yxirc,oirc->yxo", windows, weights) + bias
        info = np.iinfo(self.dtype)
        return np.clip(out, info.min, info.max).astype(self.dtype)


def toy(
    seed: int,
    channels: int = 16,
    kernel: int = 3,
    depth: int = 3,
    size: int = 8,
    weight_bits: int = 8,
    tail: int = 64,
    **layer: Any,
) -> Toy:
    rng = np.random.default_rng(seed)
    taps = kernel * kernel * depth
    each = 32 + taps * weight_bits
    count = -(-(64 + channels * each + tail) // 8) * 8
    bits = rng.integers(0, 2, count).astype(np.uint8)
    bits[:8] = bits[-4:] = 1
    bits[8:14] = 0
    truth = np.full(count, DEAD, "U7")
    truth[:8] = truth[-4:] = HANG
    truth[8:14] = truth[16:20] = CONTROL
    truth[64 : 64 + channels * each] = "data"
    places = np.full((count, 5), -1)
    for channel in range(channels):
        start = 64 + channel * each
        bits[start : start + 32] = 0
        places[start : start + 32, 0] = channel
        places[start : start + 32, 4] = range(32)
        for tap in range(taps):
            at = start + 32 + tap * weight_bits
            plane, cell = divmod(tap, kernel * kernel)
            places[at : at + weight_bits, :4] = channel, cell // kernel, cell % kernel, plane
            places[at : at + weight_bits, 4] = range(weight_bits)
    shape = Conv2D(
        np.zeros((channels, kernel, kernel, depth), np.uint8),
        np.zeros(channels, int),
        (size, size, depth),
        **layer,
    )
    return Toy(shape, bits, truth, places, weight_bits)


def inputs_of(one: Toy, seed: int = 0) -> list[Probe]:
    dense = np.random.default_rng(seed).integers(1, 4, one.layer.input_shape)
    return [Probe(image, image, 1.0) for image in (*impulses(one.layer), dense)]


def scanned(one: Toy, orders: int) -> Scan:
    """The scan of a toy, which has to give every kind and place, and the orders that it can tell:
    at least those below ``orders``.
    """
    found = scan(one.data, one.run, inputs_of(one), one.layer)
    np.testing.assert_array_equal(found.kinds, one.truth)
    data = one.truth == "data"
    np.testing.assert_array_equal(found.places[data, :4], one.places[data, :4])
    told = data & (found.places[:, 4] >= 0)
    np.testing.assert_array_equal(found.places[told, 4], one.places[told, 4])
    assert told[data & (one.places[:, 4] < orders)].all()
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2))
def test_every_bit_of_the_toy_within_the_goal(seed: int) -> None:
    one = toy(seed)
    found = scanned(one, 15)  # an output of 16 bits does not tell later bits of a bias apart
    # every kind was measured; of dead bits it is said how far they were tried
    np.testing.assert_array_equal(found.certain, one.truth != "dead")
    assert (
        found.tried
        == "dead: moved nothing alone, all at once or in random halves, with 2 inputs and all other bits as they are"
    )
    assert found.runs <= 300
    assert found.hangs <= 20


def impulse_each(one: Toy) -> list[np.ndarray]:
    """An impulse in the middle of each channel, then a dense image: what a person tries first."""
    height, width, depth = one.layer.input_shape
    images = np.zeros((depth, height, width, depth), np.int64)
    images[range(depth), height // 2, width // 2, range(depth)] = 1
    return [*images, np.random.default_rng(5).integers(1, 4, one.layer.input_shape)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("flat", [False, True])
def test_the_toy_without_a_layer(flat: bool) -> None:
    one = toy(3)

    def run(data: bytes, x: np.ndarray) -> np.ndarray | None:
        out = one.run(data, x)
        return out if out is None or not flat else out.transpose(2, 0, 1).ravel()

    found = scan(one.data, run, impulse_each(one))
    np.testing.assert_array_equal(found.kinds, one.truth)
    assert found.runs <= 520
    assert found.hangs <= 20


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "shape",
    [
        {"channels": 5, "kernel": 5, "depth": 1, "size": 11},
        {"channels": 6, "weight_bits": 4, "size": 7, "padding": "same"},
        {"channels": 4, "size": 9, "stride": (2, 2)},
        {"channels": 9, "kernel": 1, "depth": 4, "size": 5, "tail": 4},
        {"channels": 4, "kernel": 2, "depth": 2, "weight_bits": 16, "size": 6},
    ],
    ids=str,
)
def test_toys_of_other_shapes(shape: dict[str, Any]) -> None:
    scanned(toy(11, **shape), 12)


def test_real_outputs_and_bits_the_other_way_round() -> None:
    one = toy(5, channels=3)

    def turned(data: bytes) -> bytes:
        return np.packbits(
            np.unpackbits(np.frombuffer(data, np.uint8), bitorder="big"), bitorder="little"
        ).tobytes()

    def run(data: bytes, x: np.ndarray) -> np.ndarray | None:
        out = one.run(turned(data), x)
        return None if out is None else (out * 0.37).astype(np.float32)

    found = scan(turned(one.data), run, [probe.given for probe in inputs_of(one)], one.layer)
    places = np.arange(len(one.truth)) // 8 * 8 + 7 - np.arange(len(one.truth)) % 8
    np.testing.assert_array_equal(found.kinds[places], one.truth)
    weights = found.table[found.table.role == "weight"]
    assert set(zip(weights.bits, weights.order, weights.toward, strict=True)) == {(8, 7, -1)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("bias", [0, 32])
def test_outputs_of_8_bits_through_several_scales(bias: int) -> None:
    """A bias of half a step turns every output into a tie, which is rounded to even."""
    one = toy(5, channels=4)
    bits = one.bits.copy()
    bits[
        np.isin(one.places[:, 4], np.flatnonzero(bias // 2 ** np.arange(32) % 2))
        & (one.places[:, 1] < 0)
    ] = 1
    one = replace(one, bits=bits)
    wide = replace(one, dtype=np.int64)

    def run(data: bytes, x: tuple[np.ndarray, int]) -> np.ndarray | None:
        out = wide.run(data, x[0])
        return None if out is None else np.clip(np.rint(out / x[1]) + 128, 0, 255).astype(np.uint8)

    image = impulses(one.layer, 64)[0]
    dense = np.random.default_rng(0).integers(-4, 5, one.layer.input_shape)
    probes = [
        Probe((x, step), x, float(step), 128.0) for step in (64, 256, 1024) for x in (image, dense)
    ]
    probes += [
        Probe((image, 2**power), image, float(2**power), 128.0) for power in (0, 3, 14, 19, 24, 28)
    ]
    found = scan(one.data, run, probes, one.layer)
    np.testing.assert_array_equal(found.kinds, one.truth)
    data = one.truth == "data"
    np.testing.assert_array_equal(found.places[data, :5], one.places[data])


def test_outputs_that_cannot_move_further_make_dead_bits_unsure() -> None:
    one = replace(toy(5, channels=4), dtype=np.int8)
    found = scan(one.data, one.run, inputs_of(one), one.layer)
    wrong = found.kinds != one.truth
    assert not found.certain[wrong].any()
    assert found.saturated > 0
    assert "end of their type" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (lambda data, x: np.zeros(3, np.uint8), "dead"),
        (lambda data, x: None if any(data) else np.zeros(3), "hang"),
    ],
)
def test_buffers_of_one_kind(run: Callable[..., Any], kind: str) -> None:
    found = scan(bytes(6), run, [0, 1])
    assert found.counts == {kind: 48}
    assert len(found.table) == 1


def test_a_limit_of_hangs_is_kept() -> None:
    found = scan(
        bytes(64), lambda data, x: None if any(data[:32]) else np.zeros(4), [0, 1], most_hangs=9
    )
    assert found.hangs <= 9
    assert set(found.kinds[:256]) <= {"hang", "unknown"}
    assert not np.any(found.certain[found.kinds == "unknown"])


class Killed(Exception):
    """The process ends here."""


def test_a_killed_scan_goes_on_where_it_was(tmp_path: Path) -> None:
    one = toy(1, channels=2, depth=1, size=6)
    whole = scan(one.data, one.run, inputs_of(one), one.layer)
    calls = 0

    def run(data: bytes, x: np.ndarray) -> np.ndarray | None:
        nonlocal calls
        calls += 1
        if calls % 40 == 0:
            raise Killed
        return one.run(data, x)

    found: Scan | None = None
    while found is None:
        try:
            found = scan(
                one.data,
                run,
                inputs_of(one),
                one.layer,
                journal=Journal(tmp_path / "j.jsonl", {"toy": 1}),
            )
        except Killed:
            continue
    assert calls == whole.runs + (calls - 1) // 40 or calls == whole.runs + calls // 40
    assert (found.runs, found.hangs) == (whole.runs, whole.hangs)
    np.testing.assert_array_equal(found.kinds, whole.kinds)
    np.testing.assert_array_equal(found.places, whole.places)
    with pytest.raises(ValueError, match="journal: belongs to another scan"):
        scan(
            bytes([one.data[0], one.data[1] ^ 255]) + one.data[2:],
            one.run,
            inputs_of(one),
            one.layer,
            journal=Journal(tmp_path / "j.jsonl"),
        )


def test_a_device_that_does_not_repeat_itself_is_noticed_and_outvoted() -> None:
    one, rng = toy(2, channels=2, depth=1, size=6), np.random.default_rng(0)

    def run(data: bytes, x: np.ndarray) -> np.ndarray | None:
        out = one.run(data, x)
        if out is not None and rng.random() < 0.02:
            out[rng.integers(out.shape[0])] += 1
        return out

    with pytest.raises(ValueError, match="allowed is a device that gives the same output again"):
        for _ in range(9):
            scan(one.data, run, inputs_of(one), one.layer)
    found = scan(one.data, run, inputs_of(one), one.layer, votes=5)
    np.testing.assert_array_equal(found.kinds, one.truth)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"data": b""}, "data: got an empty buffer, allowed are one or more bytes"),
        ({"inputs": []}, "inputs: got none"),
        ({"votes": 0}, "votes: got 0, allowed is a whole number from 1"),
        ({"hang_cost": -1}, "hang_cost: got -1"),
        ({"run": lambda data, x: None}, "data: got a buffer that hangs as it is"),
        ({"run": lambda data, x: np.array(["a"])}, "run: got an output of <U1"),
        ({"inputs": [Probe(0, step=0.0)]}, "inputs: got a step of 0.0"),
    ],
)
def test_bad_input_is_one_sentence(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scan(**{"data": bytes(2), "run": lambda data, x: np.zeros(2), "inputs": [0, 1], **changed})


def test_what_a_scan_shows() -> None:
    one = toy(4, channels=2, depth=1, size=6)
    told: list[tuple[int, int]] = []
    found = scan(
        one.data,
        one.run,
        inputs_of(one),
        one.layer,
        progress=lambda done, about: told.append((done, about)),
    )
    assert len(told) == found.runs
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert f"{found.runs} runs, {found.hangs} hung" in repr(found)
    assert "<table" in found._repr_html_()
    table = found.table
    assert table.bits.sum() == len(one.truth)
    weights = table[table.role == "weight"]
    assert set(zip(weights.bits, weights.order, weights.toward, strict=True)) == {(8, 0, 1)}
    assert len(found.map) == np.count_nonzero(one.truth == "data")


def lowered(
    seed: int,
    channels: int,
    depth: int,
    kernel: int,
    size: int,
    zeros: float = 0.0,
    **layer: Any,
) -> tuple[Conv2D, npulab.Capture]:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 256, (channels, kernel, kernel, depth)).astype(np.uint8)
    weights[rng.random(weights.shape) < zeros] = 128
    made = Conv2D(
        weights,
        rng.integers(-3000, 3000, channels),
        (size, size, depth),
        input_q=QuantParams(0.02, 120),
        weight_q=QuantParams(0.01, 128),
        output_q=QuantParams(0.05, 100),
        **layer,
    )
    return made, npulab.target("vivante").lower(
        made, x=rng.integers(0, 256, made.input_shape).astype(np.uint8)
    )


def stream_truth(capture: npulab.Capture) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and places of the bits of a coefficient buffer of a stride 1 layer, as its format
    says.
    """
    count = 8 * len(capture.buffers["coefficients"])
    kinds, places = np.full(count, CONTROL, "U7"), np.full((count, 5), -1)
    geometry = geometry_of(capture.values, coded_chip(capture.chip))
    core, reach = -1, 0
    for item in npulab.target("vivante").explain(capture):
        bits = slice(item.bit, item.bit + item.bits)
        if item.kind == "fill":
            kinds[bits] = DEAD
        elif item.kind == "kernels per core":
            kinds[bits] = "count"
        elif item.kind == "bias":
            kinds[bits], places[bits, 0], places[bits, 4] = "data", item.channel, range(32)
        elif item.kind == "weight":
            core, reach = item.core, (reach if item.core == core else 0) + item.weights
            place = [event for event in geometry.events(core) if event.kind == "weight"][reach - 1]
            literal = slice(item.bit + item.bits - 8, item.bit + item.bits)
            kinds[literal], places[literal, 4] = "data", range(8)
            places[literal, :4] = place.channel, place.row, place.column, place.plane
    return kinds, places


def assert_told_apart(found: Scan, kinds: np.ndarray) -> None:
    """Data, control and filling; of a count of kernels some bits do nothing: the kernels it adds
    are not stored.
    """
    same = np.where(np.isin(found.kinds, ["hang", "length"]), CONTROL, found.kinds)
    count = kinds == "count"
    np.testing.assert_array_equal(same[~count], kinds[~count])
    assert set(same[count]) <= {CONTROL, DEAD}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "layer",
    [
        {"seed": 0, "channels": 2, "depth": 2, "kernel": 3, "size": 6},
        {
            "seed": 7,
            "channels": 2,
            "depth": 1,
            "kernel": 3,
            "size": 7,
            "padding": "same",
            "activation": "relu",
        },
    ],
    ids=str,
)
def test_a_stream_without_zero_runs_is_mapped_bit_by_bit(layer: dict[str, Any]) -> None:
    assert scanned_stream(**layer).mapped == 1.0


def test_a_stream_with_zero_runs() -> None:
    found = scanned_stream(seed=2, channels=2, depth=2, kernel=3, size=6, zeros=0.7)
    assert found.mapped > 0.97


def scanned_stream(**layer: Any) -> Scan:
    """The scan of a simulated stream, which has to give kinds, and places where it tells them."""
    _, capture = lowered(**layer)
    kinds, places = stream_truth(capture)
    found = scan_capture(capture, npulab.Simulated())
    assert_told_apart(found, kinds)
    told = (kinds == "data") & (found.places[:, 4] >= 0)
    np.testing.assert_array_equal(found.places[told, :5], places[told])
    return found


@pytest.mark.parametrize("seed", range(2))
def test_lengths_of_runs_move_what_follows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = Conv2D(np.zeros((2, 3, 3, 2), np.uint8), np.zeros(2, int), (7, 7, 2))
    taps, items = layer.weights.size, 18
    skips = np.where(np.arange(items) % 3, 0, 1)
    # an item: 2 bits of how many zeros precede it, 8 bits of a weight; the stream ends in filling
    bits = np.concatenate(
        [np.r_[[skip % 2, skip // 2], rng.integers(0, 2, 7), 1] for skip in skips]
        + [np.zeros(36, int)]
    ).astype(np.uint8)

    def run(data: bytes, x: np.ndarray) -> np.ndarray:
        stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[
            : 10 * items
        ].reshape(items, 10)
        places = np.cumsum(stream[:, 0] + 2 * stream[:, 1].astype(int) + 1) - 1
        weights = np.zeros(taps + 4 * items, int)
        weights[places] = stream[:, 2:] @ 2 ** np.arange(8)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (0, 1))
        return np.einsum("yxirc,orci->yxo", windows, weights[:taps].reshape(2, 3, 3, 2)).astype(
            np.int32
        )

    dense = rng.integers(1, 9, layer.input_shape)
    found = scan(
        np.packbits(bits, bitorder="little").tobytes(),
        run,
        [Probe(image, image, 1.0) for image in (*impulses(layer), dense)],
        layer,
    )
    stream = found.kinds[: 10 * items].reshape(items, 10)
    assert np.all(stream[:, 2:] == "data")
    np.testing.assert_array_equal(
        found.places[: 10 * items, 4].reshape(items, 10)[:, 2:], np.tile(range(8), (items, 1))
    )
    at = np.ravel_multi_index(
        found.places[: 10 * items].reshape(items, 10, 6)[:, 2, :4].T, (2, 3, 3, 2)
    )
    np.testing.assert_array_equal(at, np.cumsum(skips + 1) - 1)
    assert set(stream[:, :2].ravel()) <= {"length", CONTROL}
    assert np.all(stream[2:-2, :2] == "length")
    assert set(found.kinds[10 * items :]) == {DEAD}


def test_impulses_show_every_weight_alone() -> None:
    for layer in (
        Conv2D(np.zeros((2, 3, 3, 3), np.uint8), np.zeros(2, int), (8, 8, 3)),
        Conv2D(
            np.zeros((1, 3, 3, 2), np.uint8),
            np.zeros(2, int),
            (9, 7, 2),
            (2, 2),
            "same",
            depthwise=True,
        ),
    ):
        assert (
            sum(int(np.count_nonzero(image)) for image in impulses(layer)) >= layer.input_shape[2]
        )
        one = replace(layer, bias=np.zeros_like(layer.bias))
        sums = [
            npulab.accumulate(
                replace(one, weights=np.full_like(one.weights, 1)), image.astype(np.uint8)
            )
            for image in impulses(layer)
        ]
        assert all(np.max(total) <= 1 for total in sums)


# Bits that act together, or elsewhere


def planted(
    seed: int,
    acts: Callable[[np.ndarray, int], bool],
    count: int,
    bits: int = 64,
    hangs: bool = False,
) -> tuple[Any, np.ndarray]:
    """A scan of a buffer with two numbers of 8 bits, and bits that ``acts`` says of: their
    flips, and the input.
    """
    random = np.random.default_rng(seed)
    data, pick = random.bytes(bits // 8), random.permutation(bits)
    base = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    hidden = pick[16 : 16 + count]

    def run(changed: bytes, x: int) -> np.ndarray | None:
        now = np.unpackbits(np.frombuffer(changed, np.uint8), bitorder="little").astype(int)
        if hangs and acts((now ^ base)[hidden], x):
            return None
        weights = 2 ** np.arange(8)
        numbers = [int(now[pick[8 * k : 8 * k + 8]] @ weights) for k in range(2)]
        return np.array([number * (x + 1) for number in numbers]) + 1000 * acts(
            (now ^ base)[hidden], x
        )

    return scan(data, run, [0, 3, 7], seed=seed), hidden


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("hangs", "said"),
    [
        (False, "move something together and nothing alone"),
        (True, "hang the device together and not alone"),
    ],
)
def test_bits_that_act_only_together_are_found(
    seed: int, count: int, hangs: bool, said: str
) -> None:
    found, hidden = planted(seed, lambda flips, _: bool(flips.all()), count, hangs=hangs)
    assert tuple(sorted(hidden.tolist())) in found.together
    assert set(found.kinds[hidden]) == {"control"}
    assert not found.certain[hidden].any()
    assert any(said in note for note in found.notes)
    if hangs:
        assert len(found.together) == 1
        assert found.counts == {"data": 16, "control": count, "dead": 48 - count}
        assert found.hangs <= 40
    else:
        assert found.runs <= 92 + 20 * 3


@pytest.mark.parametrize(
    ("acts", "count", "sets"),
    [
        (lambda flips, _: bool(flips[0] and (flips[1] or flips[2])), 3, [(0, 1), (0, 2)]),
        (
            lambda flips, _: bool((flips[0] and flips[1]) or (flips[2] and flips[3])),
            4,
            [(0, 1), (2, 3)],
        ),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_several_pairs_that_hang_are_all_named(
    acts: Callable[[np.ndarray, int], bool], count: int, sets: list[tuple[int, ...]], seed: int
) -> None:
    found, hidden = planted(seed, acts, count, hangs=True)
    assert set(found.together) == {
        tuple(sorted(hidden[list(members)].tolist())) for members in sets
    }
    assert set(found.kinds[hidden]) == {"control"}


@pytest.mark.parametrize("seed", range(6))
def test_a_dead_bit_is_dead_as_far_as_it_was_tried(seed: int) -> None:
    found, hidden = planted(seed, lambda flips, x: bool(flips.all()) and x >= 50, 1)
    assert found.kinds[hidden[0]] == "dead"  # with these inputs
    assert not found.certain[found.kinds == "dead"].any()
    assert (found.inputs, "with 3 inputs" in found.tried, found.tried in repr(found)) == (
        3,
        True,
        True,
    )
    assert "not certain" not in repr(found)  # of what was measured all is
    assert not found.table[found.table.kind == "dead"].certain.any()
    assert found.runs <= 92 + 7


@pytest.mark.parametrize("seed", range(4))
def test_parity_and_nothing_cost_a_few_runs_more(seed: int) -> None:
    nothing, _ = planted(seed, lambda *_: False, 1)
    parity, hidden = planted(seed, lambda flips, _: bool(flips.sum() % 2), 3)
    assert (nothing.together, parity.together) == ((), ())
    assert set(parity.kinds[hidden]) <= {"control", "data"}
    assert max(nothing.runs, parity.runs) <= 100


def test_a_run_that_spoils_the_device_counts_as_a_hang() -> None:
    """Bit 3 of the buffer leaves the device so that the known-good capture does not run."""
    good = npulab.Capture("good", "demo", "x", (), {"data": b"\x00", "output": b"\x07"})

    class Board:
        def __init__(self) -> None:
            self.spoiled = False

        def run(self, capture: npulab.Capture) -> Run:
            output = bytes([7 ^ (capture.buffers["data"][0] & 7)])
            if self.spoiled:
                output = b"\xff"
            self.spoiled |= bool(capture.buffers["data"][0] & 8)
            return Run("done", output)

        def recover(self) -> None:
            self.spoiled = False

        def judge(self, capture: npulab.Capture, run: Run) -> str:
            return "pass"

        def __call__(self, capture: npulab.Capture) -> str:
            return "pass"

    device = Probed(Board(), good)
    found = scan_capture(good, device, "data", inputs=[good])
    assert found.kinds[3] == "hang"
    assert "hang" not in [*found.kinds[:3], *found.kinds[4:]]
