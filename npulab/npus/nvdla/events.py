"""The events of a trace, statement by statement: both grammars are read to these."""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.nvdla.images import Image


class Write(NamedTuple):
    """A register write by byte address."""

    line: int
    offset: int
    value: int


class Read(NamedTuple):
    """A register that was read, by byte address, and the ``value`` of its bits in ``mask``."""

    line: int
    offset: int
    mask: int
    value: int


class Zero(NamedTuple):
    """Memory set aside and zeroed."""

    line: int
    memory: str
    address: int
    size: int


class Load(NamedTuple):
    """An image put into memory; ``file`` is its name in the trace."""

    line: int
    memory: str
    address: int
    image: Image
    file: str


class Done(NamedTuple):
    """A wait for an operation, of this unit and group if the trace says so; ``sync`` names the
    event."""

    line: int
    unit: str = ""
    group: int | None = None
    sync: str = ""


class Check(NamedTuple):
    """A comparison of memory with a CRC-32, or with the bytes of an image."""

    line: int
    memory: str
    address: int
    size: int
    crc: int | None = None
    golden: Image | None = None
    sync: str = ""


Event = Write | Read | Zero | Load | Done | Check
