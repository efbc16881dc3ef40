"""Weight streams of Ethos-U: decoded and encoded, beside the encoder that Vela ships."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from npulab.npus.ethosu.traversal import Order
from npulab.npus.ethosu.weights import decode, encode, encode_slices, slices

# made by Vela's encoder: a palette, runs of zeros, indices without quotients
GOLDEN = {
    "00004000100000e0ffffffffffffffff": [0],
    "36005c15a42bf9ffffffffffffffffff": [5, -5, 5, 5, -5, 5, 5],
    "08006021c2690014a00000100004c0ff": [1, 0, -1, 0, 2, 0, 0, 0],
    "6e005cd1989a23d8691715390b52082064a8dc9b5713ffffffffffffffffffff": [*range(-20, 20, 3)],
}


def drawn(random: np.random.Generator, kind: int, size: int) -> np.ndarray:
    """Weights as networks have them, and as they do not: even, narrow, sparse, of few values, of
    one."""
    wide = np.rint(random.normal(0, random.uniform(0.3, 40), size)).clip(-255, 255)
    kept = random.random(size) < random.uniform(0.01, 0.7)
    few = random.integers(-255, 256, int(random.integers(1, 40)))
    halves = np.where(np.arange(size) < size // 2, wide.clip(-3, 3), wide * kept)
    made = (
        random.integers(-127, 128, size),
        wide,
        wide * kept,
        random.choice(few, size),
        halves,
        np.full(size, few[0]),
    )
    return made[kind % len(made)].astype(np.int16)


def cases(seed: int, count: int, most: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [drawn(random, kind, int(random.integers(1, most))) for kind in range(count)]


def test_streams_come_back() -> None:
    for weights in cases(1, 30, 1200):
        stream = encode(weights)
        assert len(stream) % 16 == 0
        assert np.array_equal(decode(stream), weights)
        assert encode_slices(slices(stream)) == stream


def test_streams_of_several_slices() -> None:
    weights = drawn(np.random.default_rng(2), 1, 2**15 + 5)
    parts = [*slices(encode(weights))]
    assert [(len(one.indices), one.new) for one in parts] == [(2**15, True), (5, False)]
    assert np.array_equal(np.concatenate([one.weights for one in parts]), weights)


@pytest.mark.parametrize(("stream", "weights"), GOLDEN.items())
def test_streams_that_vela_made(stream: str, weights: list[int]) -> None:
    data = bytes.fromhex(stream)
    assert decode(data).tolist() == weights
    assert encode_slices(slices(data)) == data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (encode(np.arange(-90, 90))[:40], "got 40 bytes that end inside the slice at bit 0"),
        (bytes([0x06, 0, 0, 0]), "got a slice at bit 0 without a palette"),
        (
            bytes([0x04, 0, 0x40, 0, 0, 0, 0, 0]),
            "got zdiv 4 and wdiv 0 at bit 0, allowed are zdiv 0 to 3 or 6",
        ),
    ],
)
def test_broken_streams_are_refused(data: bytes, said: str) -> None:
    refused(lambda: decode(data), "weight stream", said)


@pytest.mark.parametrize("weights", [[], [256], [-256]])
def test_weights_that_no_stream_has_are_refused(weights: list[int]) -> None:
    refused(lambda: encode(np.array(weights, int)), "allowed are one or more of -255 to 255")


# Vela's encoder


@pytest.fixture(scope="module")
def codec() -> object:
    return pytest.importorskip(
        "ethosu.mlw_codec", reason="vela is not installed: pip install npulab[compilers]"
    )


def check_codec(codec: object, weights: np.ndarray) -> None:
    stream = bytes(codec.encode(weights.tolist()))  # type: ignore[attr-defined]
    assert np.array_equal(decode(stream), weights)
    assert encode_slices(slices(stream)) == stream
    assert codec.decode(bytearray(encode(weights))) == weights.tolist()  # type: ignore[attr-defined]


def test_vela_reads_and_writes_the_same_streams(codec: object) -> None:
    for weights in cases(3, 24, 1500):
        check_codec(codec, weights)


@pytest.mark.long
def test_vela_reads_and_writes_many_of_the_same_streams(codec: object) -> None:
    for weights in cases(4, 600, 40_000):
        check_codec(codec, weights)


def check_order(codec: object, random: np.random.Generator, number: int, most: int) -> None:
    """A job of any shape, as each part would have it."""
    depthwise, part = number % 3 == 2, number % 3 == 1
    shape = (
        int(random.integers(1, most)),
        *random.integers(1, 10, 2).tolist(),
        1 if depthwise else int(random.integers(1, most)),
    )
    small = (8, 4) if number % 2 else (8, 8)
    dilation = tuple(random.integers(1, 3, 2).tolist())
    order = Order(
        int(random.choice([8, 16, 24, 32, 64, 128])),
        depthwise,
        part,
        int(random.choice([8, 16])),
        small,
        dilation,
    )
    weights = random.integers(-9, 10, shape).astype(np.int16)
    stream, _ = codec.reorder_encode(  # type: ignore[attr-defined]
        *small,
        weights,
        order.block_depth,
        depthwise,
        part,
        order.input_bits,
        *(8 // apart for apart in dilation),
    )
    found = decode(bytes(stream))
    assert np.array_equal(order.unpack(found, shape), weights), (order, shape)
    assert np.array_equal(order.pack(weights), found), (order, shape)


def test_weights_lie_where_vela_puts_them(codec: object) -> None:
    random = np.random.default_rng(5)
    for number in range(18):
        check_order(codec, random, number, 40)


@pytest.mark.long
def test_weights_lie_where_vela_puts_them_in_many_shapes(codec: object) -> None:
    random = np.random.default_rng(6)
    for number in range(600):
        check_order(codec, random, number, 90)


def test_orders_come_back_and_count() -> None:
    random = np.random.default_rng(7)
    for depthwise, part in ((False, False), (False, True), (True, False)):
        weights = random.integers(-127, 128, (21, 3, 5, 1 if depthwise else 19)).astype(np.int8)
        order = Order(16, depthwise, part)
        assert np.array_equal(order.unpack(order.pack(weights), weights.shape), weights)
    refused(
        lambda: Order(16).unpack(np.zeros(3), (21, 3, 5, 19)),
        "weights: got a stream of 3, allowed for (21, 3, 5",
    )
