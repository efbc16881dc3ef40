"""What the simulated units share: a job's values, and cubes as they lie in memory, plane by plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.capture import Job
from npulab.captures.target import Hang, Unanswerable
from npulab.npus.nvdla.device_memory import MEMORIES, Memory
from npulab.registers.map import RegisterMap

BYTES = {0: 1, 1: 2}  # of an element, by the raw value of a precision field
MOST = 2 ** 23  # elements of a result, or of one channel
Values = Mapping[str, int]


def values_of(job: Job, registers: RegisterMap) -> dict[str, int]:
    """A job's fields by ``UNIT.REGISTER.FIELD``: numbers from 0 on, addresses and pitches in bytes on either map."""
    words = job.words.tolist()
    return {name: words[word] // low % high * unit for name, word, low, high, unit in _cuts(registers)}


@cache
def _cuts(registers: RegisterMap) -> list[tuple[str, int, int, int, int]]:
    """Of each field its name, its word, its lowest bit's weight, how many values it has, and what it counts in."""
    return [(f"{item.block}.{item.register}.{item.name}", item.pieces[0].word, 2 ** item.pieces[0].lsb,
             2 ** item.width, dict(item.meaning.steps).get("*", 1)) for item in registers if not item.automatic]


def whole(value: int, bits: int) -> int:
    """The lowest bits of a value as a two's complement number."""
    half = 2 ** (bits - 1)
    return (value + half) % (2 * half) - half


def limit(x: np.ndarray, bits: int) -> np.ndarray:
    """Values saturated to so many signed bits."""
    return np.clip(x, -2 ** (bits - 1), 2 ** (bits - 1) - 1)


def right(x: np.ndarray, shift: int) -> np.ndarray:
    """Values of int64 below 2**62 shifted right, halves away from zero."""
    if shift == 0:
        return x
    if shift > 62:
        return np.zeros_like(x)
    return np.sign(x) * (np.abs(x) + 2 ** (shift - 1) >> shift)


def few(count: int, what: str, most: int = MOST) -> None:
    """Raise Unanswerable for more than plain loops do in seconds and little memory."""
    if count > most:
        raise Unanswerable(f"{what} are {count}, the simulated device covers {most}")


def covered(v: Values, **allowed: Any) -> None:
    """Raise Unanswerable for a field (dots of its name as two underscores) that has a value that is not covered."""
    for name, values in allowed.items():
        name = name.replace("__", ".")
        if v[name] not in values:
            raise Unanswerable(f"{name} is {v[name]}, the simulated device covers {', '.join(map(str, values))}")


def element_bytes(v: Values, *names: str) -> int:
    """Bytes of an element that precision fields agree on; Unanswerable for fp16 and for a change of type."""
    for name in names:
        if v[name] not in BYTES or v[name] != v[names[0]]:
            raise Unanswerable(f"{name} is {v[name]}, the simulated device covers 0 and 1, the same as {names[0]}")
    return BYTES[v[names[0]]]


class Cube(NamedTuple):
    """A cube in memory: ``lanes`` elements of ``size`` bytes make an atom, ``parts`` numbers an element."""

    what: str
    memory: str
    base: int
    row_pitch: int
    plane_pitch: int
    height: int
    width: int
    lanes: int
    size: int
    parts: int = 1

    def places(self, channel: int, part: int = 0) -> np.ndarray:
        """Addresses ``(H, W)`` of the lowest bytes of a channel."""
        few(self.height * self.width, f"the elements of a channel of {self.what}")
        rows, columns = np.arange(self.height)[:, None], np.arange(self.width)[None, :]
        step = self.parts * self.size
        return (self.base + channel // self.lanes * self.plane_pitch + rows * self.row_pitch
                + columns * (self.lanes * step) + channel % self.lanes * step + part * self.size)

    def plane(self, memory: Memory, channel: int, part: int = 0) -> np.ndarray:
        """A channel ``(H, W)`` int64."""
        at = self.places(channel, part)
        out = memory.take(self.memory, at, self.what).view(np.int8).astype(np.int64)
        if self.size == 2:
            out = (out & 0xFF) + 256 * memory.take(self.memory, at + 1, self.what).view(np.int8).astype(np.int64)
        return out

    def put(self, memory: Memory, channel: int, plane: np.ndarray) -> None:
        """Write a channel ``(H, W)`` of numbers that fit."""
        at = self.places(channel)
        for byte in range(self.size):
            memory.put(self.memory, at + byte, (plane >> 8 * byte & 0xFF).astype(np.uint8), self.what)

    def span(self, channels: int) -> int:
        """Bytes from the base to behind the last atom."""
        surfaces = -(-channels // self.lanes)
        return ((surfaces - 1) * self.plane_pitch + (self.height - 1) * self.row_pitch
                + self.width * self.lanes * self.parts * self.size)


def cube(v: Values, unit: str, side: str, ram: str, shape: tuple[int, int], atom: int, size: int) -> Cube:
    """The cube that a unit's SRC or DST registers place; Hang for an address or pitch off the atom's alignment."""
    names = [f"{unit}.D_{side}_{part}.{side}_{part}" for part in ("BASE_ADDR_LOW", "LINE_STRIDE", "SURFACE_STRIDE")]
    for name in names:
        if v[name] % atom:
            raise Hang(f"{name} is {v[name]:#x}, off its alignment of {atom}")
    base = v[names[0]] + 2 ** 32 * v[names[0].replace("_LOW", "_HIGH")]
    return Cube(f"{unit} ({side})", MEMORIES[v[ram]], base, v[names[1]], v[names[2]], *shape, atom // size, size)


def same(v: Values, why: str, *names: str) -> None:
    """Raise Hang where fields differ that have to agree."""
    for name in names[1:]:
        if v[name] != v[names[0]]:
            raise Hang(f"{name} is {v[name]} and {names[0]} is {v[names[0]]}: {why}")


def lanes_of(channels: int, lanes: int) -> Iterator[int]:
    """The channels and what fills their last atom."""
    return iter(range(-(-channels // lanes) * lanes))
