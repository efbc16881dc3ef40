"""The events of a trace, statement by statement: both grammars are read to these."""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.nvdla.images import Image


class Write(NamedTuple):
    """A register write by byte address."""

    line: int
    offset: int
    value: int


class Ask(NamedTuple):
    """A register that the player reads once or polls, by byte address: the trace's ``statement``
    and its ``arguments`` after the register, as the text has them."""

    line: int
    offset: int
    statement: str
    arguments: tuple[str, ...] = ()


class Read(NamedTuple):
    """A register that was read, by byte address, and the ``value`` of its bits in ``mask``; with
    the statement of a trace, as ``Ask`` has it."""

    line: int
    offset: int
    mask: int
    value: int
    statement: str = ""
    arguments: tuple[str, ...] = ()


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
    event. ``statement`` is the trace's, as in ``Ask``."""

    line: int
    unit: str = ""
    group: int | None = None
    sync: str = ""
    statement: str = ""
    arguments: tuple[str, ...] = ()


class Check(NamedTuple):
    """A comparison of memory with a CRC-32, or with the bytes of an image."""

    line: int
    memory: str
    address: int
    size: int
    crc: int | None = None
    golden: Image | None = None
    sync: str = ""


Event = Write | Ask | Read | Zero | Load | Done | Check
ASKS = (Ask, Read)  # events that change nothing
