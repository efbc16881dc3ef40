"""How the simulated device reads an engine's coefficients: halfword by halfword from the bytes, as
the words say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from npulab.captures.target import Hang, Unsupported
from npulab.npus.ane.facts import ENGINES, EXPECTED
from npulab.npus.kit.fields import expect
from npulab.npus.kit.numbers import ceil_div, up

ALIGN = 64  # bytes: of bases, sizes, and what a group's planes fill up
TABLE_BYTES = 128
TABLE = 2
SMALL_LANES, LANES = 4, 2  # the least that a mask has bits for
Values = Mapping[str, int]


class Weight(NamedTuple):
    """A weight: input channel of its group, row, column of the kernel."""

    value: float
    source: int
    row: int
    column: int


class Reader:
    """The bytes of one engine; Hang where it asks for more than its stream has."""

    def __init__(self, data: bytes, engine: int) -> None:
        self.data, self.at, self.engine = data, 0, engine

    def take(self, size: int) -> int:
        self.at += size
        if self.at > len(self.data):
            raise Hang(f"engine {self.engine} waits for {self.at} bytes of coefficients, its stream has "
                       f"{len(self.data)}")
        return int.from_bytes(self.data[self.at - size:self.at], "little")

    def half(self) -> float:
        return float(np.uint16(self.take(2)).view(np.float16))


def understood(v: Values, case: str) -> None:
    """Unsupported for a field with a value that the simulated device has no meaning for."""
    expect(v, EXPECTED[case], "{name}: got {got}, known is {allowed}", Unsupported)


def kernels(v: Values, data: bytes) -> Iterator[tuple[int, int, float, list[Weight]]]:
    """(group, output channel, bias, weights) of every output channel of a convolution task.

    ``data`` is what the kernel base points to.  Raises Hang for streams that are off or end too
    early, Unsupported for forms that are not known.
    """
    understood(v, "device kernel")
    each, share, parts = (v["Common.GroupConvCfg.UnicastEn"], v["Common.Cout.Cout"],
                          v["Common.GroupConvCfg.NumGroups"])
    for engine in range(min(ENGINES, share)):
        size = ALIGN * v[f"KernelDMASrc.CoeffBfrSize[{engine}].MemBfrSize"]
        reader = Reader(_stream(v, data, engine, "coefficients", size), engine)
        if v["NE.MACCfg.NonlinearMode"] == TABLE:
            reader.at = TABLE_BYTES
        for part in range(parts):
            for first, lanes in _planes(engine, share, 1 if each else 2 ** v["Common.ConvCfg.OCGSize"]):
                biases = [reader.half() if v["NE.MACCfg.BiasMode"] else 0.0 for _ in range(lanes)]
                weights = _weights(v, reader, lanes, 1 if each else v["Common.Cin.Cin"])
                for lane in range(lanes):
                    yield part, part * share + first + lane, biases[lane], weights[lane]
            reader.at = up(reader.at, ALIGN)


def table(v: Values, data: bytes) -> bytes:
    """The activation table, as the first engine reads it."""
    return _stream(v, data, 0, "its table", TABLE_BYTES)


def _stream(v: Values, data: bytes, engine: int, what: str, size: int) -> bytes:
    if not v[f"KernelDMASrc.CoeffDMAConfig[{engine}].En"]:
        raise Hang(f"engine {engine} waits for {what}, its stream is off")
    begin = ALIGN * v[f"KernelDMASrc.CoeffBaseAddr[{engine}].Addr"]
    if begin + size > len(data):
        raise Hang(f"coefficients are read to byte {begin + size:#x}, there are {len(data):#x}")
    return data[begin:begin + size]


def _planes(engine: int, share: int, most: int) -> Iterator[tuple[int, int]]:
    """(first channel, lanes) of an engine's planes: all sixteen have one of so many lanes, ever
    fewer at the end."""
    begin = 0
    while begin < share:
        lanes = most
        while lanes > 1 and ENGINES * lanes > share - begin:
            lanes //= 2
        first = begin + engine * lanes
        if first + lanes <= share:
            yield first, lanes
        begin += ENGINES * lanes


def _weights(v: Values, reader: Reader, lanes: int, inputs: int) -> list[list[Weight]]:
    """The weights of each lane of a plane."""
    sparse, small = v["NE.KernelCfg.SparseFmt"], v["Common.Cfg.SmallSourceMode"]
    width = max(lanes, SMALL_LANES if small else LANES) if sparse else lanes
    end = reader.take(3) + reader.at if sparse else 0
    out: list[list[Weight]] = [[] for _ in range(lanes)]
    mask, bit = 0xFF, 0
    for source, row, column in _taps(v, inputs):
        there = row < v["Common.ConvCfg.Kh"] and column < v["Common.ConvCfg.Kw"]
        for lane in range(width):
            if sparse and bit % 8 == 0:
                mask = reader.take(1)
            value = reader.half() if mask // 2 ** (bit % 8) % 2 else 0.0
            bit += 1
            if there and lane < lanes:
                out[lane].append(Weight(value, source, row, column))
    if sparse and reader.at != end:
        raise Hang(f"engine {reader.engine}: masks and weights end at byte {reader.at}, their count says {end}")
    return out


def _taps(v: Values, inputs: int) -> Iterator[tuple[int, int, int]]:
    """(input, row, column) of every place: by phase of the stride, as many taps in each, so that
    some are absent."""
    high, wide = v["Common.ConvCfg.Sy"], v["Common.ConvCfg.Sx"]
    rows, columns = ceil_div(v["Common.ConvCfg.Kh"], high), ceil_div(v["Common.ConvCfg.Kw"], wide)
    for source in range(inputs):
        for phase in np.ndindex(high, wide):
            for i, j in np.ndindex(rows, columns):
                yield source, phase[0] + high * i, phase[1] + wide * j
