"""Coefficient buffers of the VeriSilicon engine: bytes and values, both formats, whole and
broken.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import vivante_by_item
from conftest import shared

from npulab.npus.vivante import coefficients
from npulab.npus.vivante.coefficients import Coefficients, Geometry, counts, huffman, plain
from npulab.quant.emulate import compiles

KERNELS = [1, 2, 3, 4, 5, 7]
CORES = [1, 2, 6, 8]
FAST = [False, True] if compiles() else [False]


def geometry(random: np.random.RandomState, huffman_format: bool, most: int = 60) -> Geometry:
    channels, cores = int(random.randint(1, most)), int(random.choice(CORES))
    share = -(-channels // min(cores, channels))
    resident = int(random.randint(1, share + 1))
    height = int(random.choice(KERNELS))
    width = height if random.randint(3) else int(random.choice(KERNELS))
    return Geometry(
        cores,
        channels,
        int(random.randint(1, 15)),
        height,
        width,
        -(-share // resident),
        int(random.randint(256)),
        int(random.randint(1, 500)),
        int(random.randint(3, 100)),
        bool(random.randint(2)),
        huffman_format,
    )


def content(random: np.random.RandomState, g: Geometry) -> Coefficients:
    """Weights around the zero point; the spread is drawn, so that each bit length is the usual
    length in some case."""
    spread = random.choice([0.2, 1, 3, 10, 40, 200])
    weights = (
        (np.round(random.normal(0, spread, g.shape)) + g.zero_point)
        .astype(np.int64)
        .astype(np.uint8)
    )
    bias = random.randint(-(2**31), 2**31, g.slots).astype(np.int32)
    size = int(random.choice([0, 20000]))
    if g.huffman:
        out = Coefficients(
            weights,
            bias,
            np.zeros(0, np.uint32),
            size=size,
            symbols=tuple(random.permutation(8).tolist()),
        )
        return with_runs(random, out, g) if random.randint(2) else out
    offsets = random.randint(0, 2**32, g.slots, dtype=np.uint32)
    zrl = random.randint(0, 9, random.choice([1, g.used]))
    return Coefficients(weights, bias, offsets, tuple(np.resize(zrl, g.used).tolist()), size)


def with_runs(random: np.random.RandomState, given: Coefficients, g: Geometry) -> Coefficients:
    """The content with zero runs in any of the ways that a stream allows: any table, any symbols,
    zero points in any pieces and the bytes at the end too."""
    share = random.choice([0.0, 0.3, 0.7, 0.95, 1])
    weights = given.weights.copy()
    weights[random.random_sample(g.shape) < share] = g.zero_point
    k = int(random.randint(1, 5))
    # short runs are the usual ones, so that several fit where zero points are
    most = int(random.choice([3, 10, 256]))
    table = random.randint(0, most, 2 + 2**k).astype(np.uint8).tobytes()
    lengths = [*range(9)]
    lengths.remove(int(random.choice([1, 2, 3, 4, 5, 6])))
    symbols = tuple(random.permutation(lengths).tolist())
    runs = bytes([len(table)]) + table.ljust(18, b"\0")
    out = dataclasses.replace(given, weights=weights, symbols=symbols, runs=runs)
    items = []
    for core in range(g.used):
        values = vivante_by_item.huffman_values(out, g, core)
        # a run may reach past the last value, where at most a pair of bytes begins
        items.append(bytes([*random_ways(random, values, out), int(random.randint(2))]))
    return dataclasses.replace(out, items=tuple(items))


def random_ways(
    random: np.random.RandomState, values: list[int], content: Coefficients
) -> list[int]:
    reaches = [entry + 1 for entry in content.runs[1 : 1 + content.runs[0]]]
    ways, at = [], 0
    while at < len(values) or len(ways) % 2:
        zeros = next((n for n, value in enumerate(values[at:]) if value), 300)
        if at >= len(values):
            zeros = 300
        fits = [n for n, reach in enumerate(reaches) if reach <= zeros]
        value = values[at] if at < len(values) else 0
        length = min(value, 256 - value).bit_length()
        step = 1
        if zeros and fits and random.randint(8):
            entry = int(random.choice(fits))
            ways.append(2 + entry)
            step = reaches[entry]
        elif 0 < length < 7 and length in content.symbols and random.randint(8):
            ways.append(0)
        else:
            ways.append(1)
        at += step
    return ways


def same(a: Coefficients, b: Coefficients) -> bool:
    arrays = ("weights", "bias", "offsets")
    return (
        all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        and (a.zrl, a.symbols, a.runs, a.items) == (b.zrl, b.symbols, b.runs, b.items)
        and a.channels == b.channels
        and a.weights.shape == b.weights.shape
    )


def by_item(buffer: bytes, g: Geometry) -> np.ndarray:
    """Weights as the items say them."""
    out = np.full(g.shape, g.zero_point, np.uint8)
    for item in coefficients.walk(buffer, g):
        if item.kind == "weight":
            out[item.channel, item.plane, item.row, item.column] = item.value
    return out


def vectors() -> Iterator[tuple[dict[str, Any], Geometry, np.ndarray, bytes]]:
    """What a driver sends: entry, geometry, lowered weights, buffer."""
    for entry in json.loads(shared("data/vivante/vectors/index.json").read_text()):
        with np.load(shared(f"data/vivante/vectors/{entry['id']}.npz")) as data:
            width, _, planes = entry["lowered_input"]
            g = Geometry(
                entry["nn_cores"],
                entry["output_channels"],
                planes,
                *entry["lowered_kernel"],
                entry["superblocks"],
                entry["weight_zero_point"],
                entry["output_w"] * entry["output_h"],
                width,
                entry["depthwise"],
                entry["nn_version"] == 8,
            )
            yield entry, g, data["lowered_oikk"].reshape(-1, *g.shape[1:]), data["coef"].tobytes()


def test_what_a_driver_sends() -> None:
    seen = set()
    for entry, g, weights, buffer in vectors():
        found = coefficients.decode(buffer, g)
        assert np.array_equal(found.weights, weights), entry["id"]
        assert coefficients.encode(found, g) == buffer, entry["id"]
        sums = (weights.astype(np.int64) - g.zero_point).sum((1, 2, 3))
        seen.add(g.order + "-depthwise" * (g.huffman and g.depthwise))
        if g.huffman:
            made = Coefficients(
                weights,
                found.bias,
                np.zeros(0, np.uint32),
                symbols=coefficients.choose_symbols(weights),
            )
            bits = huffman.read_header(buffer, g).bits
            assert list(bits) == entry["core_sizes"]
            added = 128 - entry["input_zero_point"]
        else:
            made = Coefficients(weights, found.bias, found.offsets, (), 0)
            made = dataclasses.replace(
                made, zrl=(coefficients.choose_zrl(made, g, entry["max_zrl_bits"]),) * g.used
            )
            assert coefficients.sizes(buffer, g)[: g.used] == entry["core_sizes"]
            assert made.zrl[0] == entry["zrl_bits"]
            added = -entry["input_zero_point"]
            assert found.offsets.tolist() == [channel * g.plane_bytes for channel in range(g.slots)]
        with np.load(shared(f"data/vivante/vectors/{entry['id']}.npz")) as data:
            assert np.array_equal(found.bias, data["bias"] + added * sums), entry["id"]
        assert coefficients.encode(made, g) == buffer, entry["id"]
        assert np.array_equal(by_item(buffer, g), weights) or made.zrl[:1] != (0,)
    assert seen == {"six", "inter", "blocks", "blocks-depthwise"}


# Both formats


@pytest.mark.parametrize("huffman_format", [False, True])
@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.long)])
def test_arrays_and_loops_do_as_bit_by_bit(huffman_format: bool, count: int) -> None:
    as_bit_by_bit(huffman_format, range(100, 100 + count))


@pytest.mark.long
@pytest.mark.parametrize("huffman_format", [False, True])
def test_arrays_and_loops_do_as_bit_by_bit_very_often(huffman_format: bool) -> None:
    as_bit_by_bit(huffman_format, range(1000, 2500))


def as_bit_by_bit(huffman_format: bool, seeds: range) -> None:
    for seed in seeds:
        random = np.random.RandomState(seed)
        g = geometry(random, huffman_format)
        given = content(random, g)
        buffer = vivante_by_item.write(given, g)
        assert same(vivante_by_item.read(buffer, g), given), (seed, g)
        for fast in FAST:
            assert coefficients.encode(given, g, fast) == buffer, (seed, g)
            found = coefficients.decode(buffer, g, fast)
            assert same(found, given), (seed, g)
            assert found.size == len(buffer) >= given.size


@pytest.mark.parametrize("often", [0, 1000])
@pytest.mark.parametrize("count", [6, pytest.param(12, marks=pytest.mark.long)])
def test_items_are_counted_in_small_chunks(
    often: int, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Both ways to count the items of short segments, from chunk to chunk."""
    monkeypatch.setattr(counts, "OFTEN", often)
    monkeypatch.setattr(counts, "CHUNK", 32)
    as_bit_by_bit(False, range(200, 200 + count))
    assert all(broken_streams(False, range(200, 208)))


def test_long_segments() -> None:
    """Streams whose segments are longer than what is counted at once, few and many zero points."""
    for zrl, share, planes, kernel in (
        (1, 0.1, 60, 3),
        (2, 0.6, 60, 3),
        (5, 0.99, 60, 3),
        (8, 1, 60, 3),
        (8, 0.2, 60, 3),
        (1, 0.5, 600, 1),
        (8, 1, 600, 1),
    ):
        random = np.random.RandomState(zrl)
        g = Geometry(2, 40, planes, kernel, kernel, 3, 77)
        weights = random.randint(0, 256, g.shape).astype(np.uint8)
        weights[random.random_sample(g.shape) < share] = 77
        given = Coefficients(
            weights, np.arange(40, dtype=np.int32), np.arange(40, dtype=np.uint32), (zrl,) * 2
        )
        buffer = vivante_by_item.write(given, g)
        for fast in FAST:
            assert coefficients.encode(given, g, fast) == buffer
            assert same(
                coefficients.decode(buffer, g, fast), dataclasses.replace(given, size=len(buffer))
            )


@pytest.mark.parametrize("count", [20, pytest.param(40, marks=pytest.mark.long)])
def test_zero_run_width_is_the_smallest_from_the_widest_down(count: int) -> None:
    seen = set()
    for seed in range(count):
        random = np.random.RandomState(seed)
        g = dataclasses.replace(geometry(random, False), channels=5, superblocks=1)
        given = content(random, g)
        widest = int(random.randint(2, 9))
        words = [
            sum(
                -(
                    -sum(width for _, width in vivante_by_item.plain_items(given, g, core, zrl))
                    // 32
                )
                for core in range(g.used)
            )
            for zrl in range(widest + 1)
        ]
        best = widest
        while best and words[best - 1] <= words[best]:
            best -= 1
        best = 0 if g.kernel_h == g.kernel_w == 1 else best
        assert coefficients.choose_zrl(given, g, widest) == best
        seen.add(best)
    assert len(seen) > 3


@pytest.mark.parametrize("huffman_format", [False, True])
@pytest.mark.parametrize("count", [6, pytest.param(15, marks=pytest.mark.long)])
def test_items_cover_every_bit_and_weight(huffman_format: bool, count: int) -> None:
    for seed in range(count):
        random = np.random.RandomState(seed)
        g = geometry(random, huffman_format, most=20)
        given = content(random, g)
        buffer = coefficients.encode(given, g)
        items = list(coefficients.walk(buffer, g))
        assert items[0].bit == 0
        assert items[-1].bit + items[-1].bits == 8 * len(buffer)
        assert all(item.bit + item.bits == then.bit for item, then in pairwise(items))
        assert sum(item.weights for item in items) == given.weights.size
        assert {item.channel: item.value for item in items if item.kind == "bias"} == dict(
            enumerate(given.bias.astype(np.uint32).tolist())
        )
        if g.huffman:
            assert np.array_equal(by_item(buffer, g), given.weights)
            # a weight has a symbol before its payload, and an escape between where its code asks
            # for one
            places = [(item.kind, *item[5:9]) for item in items if item.plane is not None]
            symbols = [key[1:] for key in places if key[0] == "symbol"]
            assert symbols == [key[1:] for key in places if key[0] in ("weight", "run")]
            assert {key[1:] for key in places if key[0] == "escape"} <= set(symbols)


@pytest.mark.parametrize("huffman_format", [False, True])
def test_every_kernel_lies_in_one_core(huffman_format: bool) -> None:
    for seed in range(150):
        g = geometry(np.random.RandomState(seed), huffman_format)
        blocks = [g.blocks(core) for core in range(g.used)]
        assert sorted(
            np.concatenate([block.channels for core in blocks for block in core])
        ) == list(range(g.slots))
        shares = [g.kernels(core) for core in range(g.used)]
        assert sum(shares) == g.slots
        assert max(shares) == g.per_core
        assert min(shares) >= g.per_core - 1


def test_geometry_that_cannot_be() -> None:
    with pytest.raises(
        ValueError,
        match=r"^coefficients: superblocks: got 4, allowed are so few that the 5 kernels of a core",
    ):
        Geometry(1, 5, 1, 1, 1, 4, 0)
    with pytest.raises(ValueError, match=r"^coefficients: planes: got 0, allowed is at least 1"):
        Geometry(1, 5, 0, 1, 1, 1, 0)
    with pytest.raises(
        ValueError,
        match=r"^coefficients: channels: got 70000 on 1 cores, allowed are at most 65535 for each core",
    ):
        Geometry(1, 70000, 1, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"weights": np.zeros((3, 2, 3, 4), np.uint8)},
            r"weights: got \(3, 2, 3, 4\) uint8, allowed is \(3, 2, 3, 3\) uint8",
        ),
        (
            {"weights": np.zeros((3, 2, 3, 3), np.int8)},
            r"weights: got \(3, 2, 3, 3\) int8, allowed is",
        ),
        ({"bias": np.zeros(4, np.int32)}, r"bias: got \(4,\) int32, allowed is \(3,\)"),
        (
            {"symbols": (0, 1, 2)},
            r"symbols: got \(0, 1, 2\), allowed are different bit lengths from 0 to 7",
        ),
        ({"offsets": np.zeros(2, np.uint32)}, r"offsets: got \(2,\) uint32, allowed is \(3,\)"),
        ({"zrl": (1, 2)}, r"zrl: got \(1, 2\), allowed is 0 to 8 for each of 3 cores"),
        ({"zrl": (1, 9, 0)}, r"zrl: got \(1, 9, 0\), allowed is 0 to 8"),
    ],
)
def test_content_that_does_not_go_with_its_geometry(change: dict[str, Any], words: str) -> None:
    buffer, g = a_buffer()
    given = coefficients.decode(buffer, g)
    if {"offsets", "zrl"} & {*change}:
        g = dataclasses.replace(g, huffman=False)
        given = dataclasses.replace(given, offsets=np.zeros(3, np.uint32), zrl=(0, 0, 0))
    coefficients.encode(given, g)
    with pytest.raises(ValueError, match=f"^coefficients: {words}"):
        coefficients.encode(dataclasses.replace(given, **change), g)


def test_channels_by_core() -> None:
    """Superblocks take their channels core by core. In the plain format all cores have as many
    kernels; in the Huffman format the first cores have one more kernel in the last superblock if
    the number does not divide."""
    plain_ = Geometry(4, 10, 1, 1, 1, 2, 0)
    assert [[block.channels.tolist() for block in plain_.blocks(core)] for core in range(4)] == [
        [[0, 1], [8]],
        [[2, 3], [9]],
        [[4, 5], [10]],
        [[6, 7], [11]],
    ]
    other = Geometry(4, 21, 1, 1, 1, 2, 0, huffman=True)
    assert [[block.channels.tolist() for block in other.blocks(core)] for core in range(4)] == [
        [[0, 1, 2], [12, 13, 14]],
        [[3, 4, 5], [15, 16]],
        [[6, 7, 8], [17, 18]],
        [[9, 10, 11], [19, 20]],
    ]


@pytest.mark.parametrize(
    ("planes", "input_w", "depthwise", "pairs"),
    [
        (2, 10, False, True),
        (1, 10, False, False),
        (1, 64, False, False),
        (1, 65, False, True),
        (1, 10, True, True),
    ],
)
def test_cells_of_a_wide_kernel(planes: int, input_w: int, depthwise: bool, pairs: bool) -> None:
    cells = [
        5 * row + column
        for row, column in Geometry(1, 1, planes, 5, 5, 1, 0, 0, input_w, depthwise).cells()
    ]
    wanted = list(range(25))
    if pairs:
        wanted[:20] = [0, 1, 2, 5, 6, 7, 3, 4, 8, 9, 10, 11, 12, 15, 16, 17, 13, 14, 18, 19]
    assert cells == wanted


# The Huffman format


def test_depthwise_channels_by_core() -> None:
    """Cores take the channels in turn, the last core first, and the first cores what is left
    over.
    """
    g = Geometry(6, 20, 20, 3, 3, 2, 0, depthwise=True, huffman=True)
    channels = [
        [channel for block in g.blocks(core) for channel in block.channels.tolist()]
        for core in range(6)
    ]
    assert channels == [
        [5, 11, 17, 19],
        [4, 10, 16, 18],
        [3, 9, 15],
        [2, 8, 14],
        [1, 7, 13],
        [0, 6, 12],
    ]
    assert g.depth == 1
    # where there are fewer channels than cores each has its core; the driver would read before its
    # weights
    few = Geometry(6, 3, 3, 3, 3, 1, 0, depthwise=True, huffman=True)
    assert [few.blocks(core)[0].first for core in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(
    ("cores", "channels", "superblocks"),
    [
        (1, 7, 3),
        (6, 3, 1),
        (6, 6, 1),
        (6, 7, 1),
        (6, 7, 2),
        (6, 20, 2),
        (6, 25, 3),
        (8, 33, 3),
        (8, 40, 5),
        (8, 64, 4),
    ],
)
def test_shares_that_do_not_go_round(
    cores: int, channels: int, superblocks: int, depthwise: bool
) -> None:
    """Several superblocks, cores with one kernel less, fewer channels than cores: all readers
    agree."""
    g = Geometry(cores, channels, 2, 3, 3, superblocks, 9, depthwise=depthwise, huffman=True)
    given = content(np.random.RandomState(channels), g)
    buffer = vivante_by_item.write(given, g)
    assert np.array_equal(by_item(buffer, g), given.weights)
    for fast in FAST:
        assert coefficients.encode(given, g, fast) == buffer
        assert same(coefficients.decode(buffer, g, fast), given)


@pytest.mark.parametrize(
    ("size", "planes", "depthwise", "block", "stored"),
    [
        (3, 2, False, 9, 18),
        (5, 1, False, 9, 27),
        (1, 10, False, 9, 18),
        (2, 4, True, 9, 9),
        (3, 4, True, 9, 9),
        (5, 4, True, 27, 27),
    ],
)
def test_blocks(size: int, planes: int, depthwise: bool, block: int, stored: int) -> None:
    g = Geometry(1, 1, planes, size, size, 1, 0, depthwise=depthwise, huffman=True)
    kinds = [event.kind for event in g.events(0)]
    assert (g.block, len(kinds)) == (block, stored)
    assert kinds == ["weight"] * g.kernel_size + ["completion"] * (stored - g.kernel_size)


def test_symbols_of_the_driver() -> None:
    # 0xFF has no magnitude, and is counted as one bit; ties are left by the comparisons in an order
    # of their own
    assert coefficients.choose_symbols(np.full(3, 0xFF, np.uint8)) == (1, 0, 2, 3, 4, 5, 6, 7)
    assert coefficients.choose_symbols(np.zeros(0, np.uint8)) == tuple(range(8))
    assert coefficients.choose_symbols(np.array([-3, -3, 100], np.int8)) == (2, 7, 0, 3, 4, 1, 6, 5)
    # the vendor's are chosen with zero runs, by the encoder
    assert coefficients.choose_symbols(np.zeros(3, np.uint8), "vendor") == ()


def changed(buffer: bytes, at: int, value: int) -> bytes:
    return buffer[:at] + bytes([value]) + buffer[at + 1 :]


def vendor(
    stream: int = 0xEC024938,
    bits: int = 53,
    symbols: tuple[int, ...] = (1, 8, 7, 0, 4, 5, 6, 2),
    table: bytes = bytes([3, 1, 0, 1]),
) -> bytes:
    """The coefficients of the vendor's V8 job, put together from the driver's tables."""
    head = huffman.layout(6).build(
        {
            "flags": 0x10,
            "run_size": 4,
            "run_table": table.ljust(18, b"\0"),
            "average_bias": 0,
            "reserved": 0,
            "symbols": sum(length * 16**n for n, length in enumerate(symbols)),
            "bits": [bits] + [0] * 5,
        }
    )
    return head + stream.to_bytes(64, "little") + (0x1FE00).to_bytes(4, "little")


VENDOR = Geometry(6, 1, 1, 2, 2, 1, 0, huffman=True)


def test_the_vendors_job() -> None:
    found = coefficients.decode(vendor(), VENDOR)
    assert found.weights.ravel().tolist() == [0xFF] * 4
    assert found.bias.tolist() == [0x1FE00]
    assert (found.symbols, found.runs[:5]) == ((1, 8, 7, 0, 4, 5, 6, 2), bytes([4, 3, 1, 0, 1]))
    items = [item for item in coefficients.walk(vendor(), VENDOR) if 512 <= item.bit < 512 + 53]
    assert sum(item.bits for item in items) == 53
    read = [
        (item.kind, item.value, item.bits) for item in items if item.kind not in ("symbol", "flush")
    ]
    assert read == [
        ("kernels per core", 1, 0),
        ("kernels per core", 0, 8),
        *[("weight", 0xFF, 0)] * 4,
        ("run", 4, 1),
        ("completion", 0, 8),
    ]
    # 4 zeros of the 5 that complete the block are a run, the last is written as it is
    assert found.items == (bytes([0, 1, 0, 0, 0, 0, 2, 1, 0]),)
    assert coefficients.encode(found, VENDOR) == vendor()


def test_the_older_vendors_job() -> None:
    found = coefficients.decode(vendor(0xEC000038), VENDOR)
    assert found.weights.ravel().tolist() == [1] * 4
    assert coefficients.encode(found, VENDOR) == vendor(0xEC000038)


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (
            vendor(bits=52),
            "the stream of core 0 from byte 64 bit 0 runs past its end at byte 70 bit 4",
        ),
        (
            vendor(bits=54),
            "the stream of core 0 from byte 64 bit 0 runs past its end at byte 70 bit 6",
        ),
        (
            vendor(symbols=(1, 8, 7, 0, 4, 5, 6, 6)),
            r"byte 20, symbol map: got \[1, 8, 7, 0, 4, 5, 6, 6\]",
        ),
        (
            vendor(symbols=(8, 1, 7, 0, 4, 5, 6, 2)),
            "core 0 at byte 66 bit 2: got 0 as a byte of the kernels per core, allowed is 1",
        ),
        (
            vendor(table=bytes([1, 1, 0, 1])),
            "the stream of core 0 from byte 64 bit 0 stands for 9 values with its zero runs, allowed "
            "are 11 and the fill of the last pair",
        ),
        (
            changed(vendor(), 1, 5),
            "header at byte 1, run-length size: got 5, allowed is one of 0, 4, 6, 10, 18",
        ),
        (
            vendor(stream=0xEC024938 ^ 2**35),
            "core 0 at byte 68 bit 0: got codes 0x8 after the last weight, allowed is 0x0 or 0x24",
        ),
        (
            vendor(stream=0xEC024938 ^ 2**40),
            "core 0 at byte 68 bit 6: got codes 0x4 after the last weight, allowed is 0x0",
        ),
        (
            vendor(stream=0xEC024938 ^ 2**52),
            "core 0 at byte 69 bit 5: got 128 in the fill of a block, allowed is 0",
        ),
    ],
)
def test_broken_zero_runs(buffer: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        coefficients.decode(buffer, VENDOR)


@hypothesis.given(
    st.integers(1, 8),
    st.integers(1, 30),
    st.integers(1, 6),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.booleans(),
    st.sampled_from([0, 0.5, 0.8, 0.95, 1]),
    st.integers(0, 2**32 - 1),
)
@hypothesis.settings(max_examples=8, deadline=None)
def test_zero_runs_in_every_way(
    cores: int,
    channels: int,
    planes: int,
    kernel: tuple[int, int],
    depthwise: bool,
    share: float,
    seed: int,
) -> None:
    """Many zero points, kernels with borders of them, any table: all ways to read and to write
    agree, and the vendor's dialect is never longer than a stream without runs."""
    random = np.random.RandomState(seed)
    per_core = -(-channels // min(cores, channels))
    superblocks = -(-per_core // int(random.randint(1, per_core + 1)))
    g = Geometry(
        cores, channels, planes, *kernel, superblocks, seed % 256, depthwise=depthwise, huffman=True
    )
    bare = content(random, g)
    weights = bare.weights.copy()
    weights[random.random_sample(g.shape) < share] = g.zero_point
    weights[:, :, : random.randint(3)] = g.zero_point
    weights[..., kernel[1] - random.randint(3) :] = g.zero_point
    bare = dataclasses.replace(bare, weights=weights, size=0, symbols=(), runs=b"", items=())
    dialect = dataclasses.replace(g, dialect="vendor")
    symbols = coefficients.choose_symbols(weights - np.uint8(g.zero_point))
    plain_ = dataclasses.replace(bare, symbols=symbols)
    buffer = coefficients.encode(bare, dialect)
    assert len(buffer) <= len(coefficients.encode(plain_, g))
    every_way(buffer, weights, g)
    other = with_runs(random, plain_, g)
    every_way(coefficients.encode(other, g), other.weights, g)
    # with a table and no ways to write, the encoder finds some
    no_ways = dataclasses.replace(other, items=())
    every_way(coefficients.encode(no_ways, g), other.weights, g)


def every_way(buffer: bytes, weights: np.ndarray, g: Geometry) -> None:
    found = vivante_by_item.read(buffer, g)
    assert np.array_equal(found.weights, weights)
    assert vivante_by_item.write(found, g) == buffer
    for fast in FAST:
        assert same(coefficients.decode(buffer, g, fast), found)
        assert coefficients.encode(found, g, fast) == buffer
    items = list(coefficients.walk(buffer, g))
    assert all(item.bit + item.bits == then.bit for item, then in pairwise(items))
    assert sum(item.weights for item in items) == weights.size


def test_a_table_has_as_many_entries_as_pay() -> None:
    """The vendor's dialect takes no table, or a table of each size, depending on the weights."""
    random = np.random.RandomState(0)
    g = Geometry(1, 64, 64, 3, 3, 1, 0, huffman=True, dialect="vendor")
    sizes = []
    for runs in ([0], [5], [1, 2, 3, 4, 5, 6], [*range(1, 11)], [*range(20, 220, 7)]):
        count = int(np.prod(g.shape))
        weights = np.zeros(count, np.uint8)
        places = np.cumsum(random.choice(runs, count) + 1) - 1
        places = places[places < count]
        weights[places] = random.randint(1, 4, places.size)
        given_ = Coefficients(
            weights.reshape(g.shape),
            np.zeros(64, np.int32),
            np.zeros(0, np.uint32),
        )
        buffer = coefficients.encode(given_, g)
        sizes.append(buffer[1])
        assert np.array_equal(coefficients.decode(buffer, g).weights, given_.weights)
    assert sizes == [0, 4, 6, 10, 18]


def test_the_vendors_job_without_zero_runs() -> None:
    """From a compiler's container (PID 0x9F): weights and biases alone give its bytes."""
    data = shared("data/vivante_vendor/nb/imx8mp-pid9f.nb").read_bytes()
    at = data.index(bytes.fromhex("1000" + 18 * "00" + "67451023"))
    buffer = data[at : at + 640]
    g = Geometry(6, 8, 4, 3, 3, 1, 120, huffman=True, dialect="vendor")
    found = coefficients.decode(buffer, g)
    assert (found.symbols, found.runs) == ((7, 6, 5, 4, 0, 1, 3, 2), b"")
    every_way(buffer, found.weights, g)
    drawn = np.array(bytes_drawn(4 * 8 * 8 + 3 * 3 * 4 * 8 + 8), np.uint8)
    assert np.array_equal(found.weights.ravel(), drawn[256:544])
    bias = 16 * drawn[544:].astype(int) - 2000  # the input's zero point is 128: nothing is folded
    assert found.bias.tolist() == bias.tolist()
    assert coefficients.encode(dataclasses.replace(found, symbols=()), g) == buffer


def bytes_drawn(count: int) -> list[int]:
    """The bytes that its layer was made of."""
    state, out = 1, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        out.append(state >> 24)
    return out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": b"\5" + bytes(18)}, "runs: got 19 bytes that begin with 5, allowed is the size"),
        ({"runs": b"\4\3"}, "runs: got 2 bytes that begin with 4, allowed is the size of the"),
        (
            {"symbols": (1, 8, 7, 0, 4, 5, 6, 9)},
            "symbols: got .* different bit lengths from 0 to 8",
        ),
        (
            {"symbols": ()},
            r"symbols: got \(\), allowed are different bit lengths from 0 to 8",
        ),
        (
            {"symbols": (2, 8, 3, 0, 4, 5, 6, 1)},
            r"symbols: got .*, allowed are those that can write byte 0 of core 0",
        ),
        ({"items": (b"", b"")}, "items: got those of 2 cores, allowed are none, or with zero runs"),
        ({"runs": b"", "symbols": (*range(8),)}, "items: got those of 1 cores, allowed are none"),
        ({"items": (bytes([0, 1, 0, 0, 0, 0, 2, 2, 1]),)}, None),
        (
            {"items": (bytes([0, 1, 0, 0, 0, 2, 1, 1, 0]),)},
            "items: got ways to write bytes of core 0 that do not",
        ),
        (
            {"items": (bytes([0, 1, 0, 0, 0, 0, 2, 6, 0]),)},
            "items: got ways to write bytes of core 0 that do not",
        ),
        (
            {"items": (bytes([0, 1, 0, 0, 0, 0, 2, 0]),)},
            "items: got ways to write bytes of core 0 that do not",
        ),
        ({"items": (b"",)}, "items: got ways to write bytes of core 0 that do not"),
        ({"weights": np.zeros((1, 1, 2, 2), np.uint8)}, "symbols: .* without items the encoder"),
    ],
)
def test_zero_runs_that_do_not_go_with_the_weights(
    change: dict[str, Any], words: str | None
) -> None:
    given_ = dataclasses.replace(coefficients.decode(vendor(), VENDOR), **change)
    if words is None:
        assert same(coefficients.decode(coefficients.encode(given_, VENDOR), VENDOR), given_)
        return
    with pytest.raises(ValueError, match=f"^coefficients: {words}") as caught:
        coefficients.encode(given_, VENDOR)
    assert "\n" not in str(caught.value)


def test_runs_that_hold_more_than_there_is() -> None:
    """The bound is the densest stream: 3 bits that stand for 256 zero points."""
    g = Geometry(1, 64, 64, 4, 4, 1, 7, huffman=True, dialect="vendor")
    bare = Coefficients(
        np.full(g.shape, 7, np.uint8), np.zeros(64, np.int32), np.zeros(0, np.uint32)
    )
    buffer = coefficients.encode(bare, g)
    assert len(buffer) < 640 < g.slots * g.kernel_size / (8 / 3) / 35
    every_way(buffer, bare.weights, g)
    larger = dataclasses.replace(g, planes=64000)
    with pytest.raises(ValueError, match=r"allowed are as many as \d+ bytes can hold"):
        coefficients.decode(buffer, larger)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"stands for 6\d* values with its zero runs, allowed"):
            coefficients.decode(buffer, dataclasses.replace(g, planes=200))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def a_buffer() -> tuple[bytes, Geometry]:
    g = Geometry(6, 3, 2, 3, 3, 1, 100, huffman=True)
    weights = np.arange(54, dtype=np.uint8).reshape(g.shape) + np.uint8(73)
    return coefficients.encode(
        Coefficients(
            weights,
            np.array([1, -2, 3], np.int32),
            np.zeros(0, np.uint32),
            size=700,
            symbols=tuple(range(8)),
        ),
        g,
    ), g


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, 0x20, "header at byte 0, flags: got 0x20, allowed is 0x10"),
        (2, 1, "header at byte 2, run-length table: got 01"),
        (20, 0x11, r"header at byte 20, symbol map: got \[1, 1, 2, 3, 4, 5, 6, 7\]"),
        (25, 1, "header at byte 24, average bias: got 0x100, allowed is 0x0"),
        (26, 9, "header at byte 26, reserved: got 0x9"),
        (
            28 + 3 * 4,
            1,
            r"header at byte 28: got core sizes \[.*, 1, 0, 0\] \(bits\), allowed are sizes above 0 for the first 3",
        ),
        (28 + 3, 1, r"which with 3 biases end at byte 2\d*, allowed is at most byte 700"),
        (53, 4, "a bit that is set at byte 53 bit 2, in the fill from byte 52 bit 0 to byte 64"),
        (
            127,
            128,
            "a bit that is set at byte 127 bit 7, in the fill from byte 8. bit . to byte 128",
        ),
        (
            699,
            1,
            "a bit that is set at byte 699 bit 0, in the fill from byte 268 bit 0 to byte 700",
        ),
    ],
)
def test_broken_header_and_fill(at: int, value: int, words: str) -> None:
    buffer, g = a_buffer()
    assert buffer[at] != value
    with pytest.raises(ValueError, match=f"^coefficients: .*{words}"):
        coefficients.decode(changed(buffer, at, value), g)


@pytest.mark.sample(1)
@pytest.mark.parametrize("huffman_format", [False, True])
@pytest.mark.parametrize("part", range(2))
def test_broken_streams(huffman_format: bool, part: int) -> None:
    errors, whole = broken_streams(huffman_format, range(15 * part, 15 * part + 15))
    assert errors
    assert whole


@pytest.mark.long
@pytest.mark.parametrize("huffman_format", [False, True])
@pytest.mark.parametrize("part", range(10))
def test_very_many_broken_streams(huffman_format: bool, part: int) -> None:
    broken_streams(huffman_format, range(1000 + 1000 * part, 2000 + 1000 * part))


def broken_streams(huffman_format: bool, seeds: range) -> tuple[int, int]:
    """Change buffers of each seed five times: cut off, bits flipped, random bytes. Return how many
    give an error that says where, the same from each reader, and how many a content that encodes to
    such a buffer."""
    errors = whole = 0
    for seed in seeds:
        random = np.random.RandomState(seed)
        g = dataclasses.replace(
            geometry(random, huffman_format, most=17), planes=int(random.randint(1, 4))
        )
        buffer = coefficients.encode(content(random, g), g, fast=False)
        for kind in ("flip", "flip", "flips", "cut", "chance"):
            data = np.frombuffer(buffer, np.uint8).copy()
            if kind == "cut":
                data = data[: random.randint(len(data))]
            elif kind == "chance":
                start = int(random.choice([0, 24, 64]))
                data[start:] = random.randint(0, 256, len(data) - start)
            else:
                within = len(data) if kind == "flips" or random.randint(2) else min(len(data), 128)
                for bit in random.randint(0, 8 * within, 1 if kind == "flip" else 5):
                    data[bit // 8] ^= 2 ** (bit % 8)
            said = outcome(data.tobytes(), g)
            errors, whole = errors + (said == "error"), whole + (said == "whole")
    return errors, whole


def outcome(buffer: bytes, g: Geometry) -> str:
    """Return "error" or "whole", the same for arrays, compiled loops and bit by bit."""
    by_bit = error_or_content(lambda: vivante_by_item.read(buffer, g))
    for fast in FAST:
        found = error_or_content(lambda: coefficients.decode(buffer, g, fast))  # noqa: B023
        assert (
            found == by_bit
            if isinstance(by_bit, str) or isinstance(found, str)
            else same(found, by_bit)
        )
    if isinstance(by_bit, str):
        assert re.match(r"coefficients: .*(byte|bytes)\b", by_bit), by_bit
        return "error"
    again = coefficients.encode(by_bit, g, fast=False)
    # a zero point may be run over or written out, and the driver's way is one of several
    assert (
        again == buffer
        if g.huffman or not any(by_bit.zrl)
        else same(coefficients.decode(again, g), by_bit)
    )
    return "whole"


def error_or_content(read: Callable[[], Coefficients]) -> str | Coefficients:
    try:
        return read()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("huffman_format", [False, True])
@pytest.mark.parametrize("size", [4000, pytest.param(250_000, marks=pytest.mark.long)])
def test_what_is_too_large_is_not_made(huffman_format: bool, size: int) -> None:
    """Words that say more than a broken buffer can hold take neither long nor much memory."""
    random = np.random.RandomState(0)
    for channels, planes, kernel in (
        (1, 2**20, 1),
        (2**14, 1, 1),
        (2**14, 2**20, 15),
        (1, size // 2, 5),
        (1, size, 15),
        (size // 50, 50, 15),
        (size // 9, 1, 3),
    ):
        g = Geometry(8, channels, planes, kernel, kernel, 1, 0, huffman=huffman_format)
        idle, share = [0] * (8 - g.used), size // g.used // 64 * 64
        if huffman_format:
            head = (
                a_buffer()[0][:28]
                + np.array([8 * share] * g.used + idle, "<u4").tobytes()
                + bytes(4)
            )
            each, behind = b"", bytes(4 * channels)
        else:
            head, behind = plain.header(8).build([share] * g.used + idle), b""
            each = bytes([8]) + g.per_core.to_bytes(2, "little")
        for body in (bytes(share), random.bytes(share)):
            buffer = head + (each + body[len(each) :]) * g.used + behind
            for fast in FAST:
                tracemalloc.start()
                try:
                    with pytest.raises(ValueError, match=r"^coefficients: "):
                        coefficients.decode(buffer, g, fast)
                    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
                finally:
                    tracemalloc.stop()
