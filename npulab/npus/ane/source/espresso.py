"""The weight files of a source network as arrays: ``model.espresso.weights`` and raw files.

A ``model.espresso.weights`` begins with the number of its payloads. For each payload follow its
number and its size in bytes, then come the payloads in this order without gaps. All numbers are
little-endian with 64 bits. This was confirmed by a file with payloads of 56, 32, 32 and 24 bytes:
the last begins at byte 192, as its network states. Other weight files, such as
``net.additional.weights``, are raw arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.source.network import Network, Unit
from npulab.npus.ane.source.parameters import Shape, kernel_of, shapes
from npulab.npus.kit import refuse_if, refusing

MOST_ENTRIES = 2**16
U64 = np.dtype("<u8")
DTYPES = {"Float16": "<f2", "Float32": "<f4", "UInt8": "u1", "Int8": "i1"}


class Entry(NamedTuple):
    """A payload of a ``model.espresso.weights``: its number, and its bytes in the file."""

    id: int
    data: bytes


class SourceWeights(NamedTuple):
    """The weights (OHWI) and the bias of a convolution, float16; bias is None if it has none."""

    weights: Array
    bias: Array | None


def read_espresso(data: bytes, name: str = "model.espresso.weights") -> tuple[Entry, ...]:
    """Return the payloads of a ``model.espresso.weights``, in the order of the file.

    Raises ValueError, with file, byte offset and field, for a file without a count, a count above
    65536, pairs or payloads past the end, a repeated number, and bytes after the last payload.

    >>> read_espresso(np.array([1, 3, 2], U64).tobytes() + b"ab")
    (Entry(id=3, data=b'ab'),)
    """
    with refusing(name):
        return _entries(data)


def _entries(data: bytes) -> tuple[Entry, ...]:
    if len(data) < U64.itemsize:
        raise ValueError(f"byte 0x0: count: got {len(data)} bytes, allowed are {U64.itemsize}")
    count = int(np.frombuffer(data, U64, 1)[0])
    place = U64.itemsize * (1 + 2 * count)
    if count > MOST_ENTRIES or place > len(data):
        raise ValueError(
            f"byte 0x0: count: got {count}, allowed are {MOST_ENTRIES} at most, "
            f"and pairs of {2 * U64.itemsize} bytes inside the file's {len(data)}"
        )
    entries: dict[int, bytes] = {}
    pairs = np.frombuffer(data, U64, 2 * count, U64.itemsize).reshape(-1, 2).tolist()
    for start, (number, size) in zip(range(8, place, 16), pairs, strict=True):
        refuse_if(number in entries, f"byte {start:#x}: id", f"{number} twice", "is once")
        if size > len(data) - place:
            raise ValueError(
                f"byte {start + 8:#x}: size: got {size} bytes at {place:#x}, "
                f"allowed are the {len(data) - place} that are left of the file"
            )
        entries[number] = data[place : place + size]
        place += size
    refuse_if(
        place != len(data),
        f"byte {place:#x}",
        f"{len(data) - place} bytes after the last payload",
        "is none",
    )
    return tuple(Entry(*entry) for entry in entries.items())


def source_weights(network: Network, files: Mapping[str, bytes]) -> dict[str, SourceWeights]:
    """Return weights and bias of each convolution by the unit's name.

    They are rounded to float16 as the compiler does (to nearest, ties to even). ``files`` are the
    bytes of the network's weight files by name without path, as ``plist.weights_files`` returns
    them; weights lie in a file as [output, input, row, column]. The bias is that of the unit after
    the convolution, if only this unit reads the convolution's output. Raises ValueError, with unit
    and key, for a kernel that is not ``Dense`` or has a depth, an unknown type, a missing index or
    file, and weights past the end of their file.
    """
    found = shapes(network)
    out = {}
    for unit in network.units:
        if unit.type == "Conv":
            out[unit.name] = _source(network, unit, found, files)
    return out


def _source(
    network: Network, unit: Unit, found: Mapping[str, Shape], files: Mapping[str, bytes]
) -> SourceWeights:
    kernel = kernel_of(unit)
    mode = unit.params.get("KernelMode", "Dense")
    refuse_if(mode != "Dense", f"{unit.name}.KernelMode", repr(mode), "is 'Dense'")
    outputs, inputs = found[unit.name].channels, found[unit.bottoms[0]].channels
    count = outputs * inputs * kernel.height * kernel.width * kernel.depth
    refuse_if(kernel.depth != 1, f"{unit.name}.KernelDepth", kernel.depth, "is 1")
    flat = _array(network, unit, "Kernel", count, files)
    weights = flat.reshape(outputs, inputs, kernel.height, kernel.width).transpose(0, 2, 3, 1)
    bias = None
    readers = network.readers[unit.name]
    after = readers[0] if len(readers) == 1 else None
    if isinstance(after, Unit) and after.type == "GOC" and "BiasIndex" in after.scalars:
        count = after.scalars.get("BiasCount", outputs)
        bias = _array(network, after, "Bias", count, files)
    return SourceWeights(np.ascontiguousarray(weights), bias)


def _array(
    network: Network, unit: Unit, what: str, count: int, files: Mapping[str, bytes]
) -> Array:
    """Return ``count`` numbers as float16 from the file, offset and type that a unit's keys state.

    ``what`` begins the names of these keys.
    """
    keys = unit.scalars
    kind = keys.get(f"{what}Type", "Float16")
    if kind not in DTYPES:
        raise ValueError(
            f"{unit.name}.{what}Type: got {kind!r:.40}, allowed is one of {', '.join(DTYPES)}"
        )
    if f"{what}Index" not in keys:
        raise ValueError(
            f"{unit.name}.{what}Index: got no value, allowed is the number of a file of Weights"
        )
    # Reading a network refuses an index without a file.
    assert network.weights is not None
    name = Path(network.weights[keys[f"{what}Index"]]).name
    refuse_if(
        name not in files,
        f"{unit.name}.{what}Index",
        f"no file {name!r:.80}",
        f"are the files of Weights ({', '.join(sorted(files)) or 'none was given'})",
    )
    start, data = keys.get(f"{what}Offset", 0), files[name]
    size = count * np.dtype(DTYPES[kind]).itemsize
    refuse_if(
        start + size > len(data),
        f"{unit.name}.{what}Offset",
        f"{size} bytes at {start:#x}",
        f"is up to byte {len(data):#x}, the end of {name}",
    )
    with np.errstate(over="ignore"):
        return np.frombuffer(data, DTYPES[kind], count, start).astype(np.float16)
