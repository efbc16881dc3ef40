"""Reading a model that Rockchip's compiler made (``.rknn``, version 6).

A file has a header of 64 bytes, a part in FlatBuffers' encoding (``rknn.csv`` has its tables), and
the length and bytes of a JSON text. Blobs in the FlatBuffers part are the constants, the commands
and the task records. The format was found from 32 of 63 files of convolutions for RK3576, and holds
for the other 31 files. Nothing of it was read in the vendor's tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npulab.models.flat import Flat, read_schema
from npulab.npus.kit import refuse_if
from npulab.support.json_text import MOST_DEEP, json_of
from npulab.support.text import Row

MAGIC, VERSION = b"RKNN", 6
HEADER = np.dtype(
    [("magic", "S4"), ("w1", "<u4"), ("version", "<u8"), ("bytes", "<u8"), ("w6", "<u4", 10)]
)
# The type of the length of the JSON text.
LENGTH = np.dtype("<u8")
SCHEMA = read_schema(Path(__file__).with_name("rknn.csv"))
MOST_BYTES = 2**30
# Some numbers of 64 bits hold two numbers of 32 bits: ``divmod`` by this number separates them.
HALF = 2**32
# Codes of a tensor's use: an input or output of the model, the commands, the task records.
INPUT, OUTPUT, COMMAND_USE, TASK_USE = 1, 2, 9, 10


@dataclass(frozen=True, eq=False)
class Compiled:
    """The contents of a file: its bytes, the FlatBuffers tables ``root`` and ``graph``, and the
    value of the JSON text as ``network``."""

    data: bytes
    root: Row
    graph: Row
    network: Any

    @property
    def tensors(self) -> Sequence[Row]:
        return self.graph["tensors"]

    def tensor(self, number: int) -> Row:
        """Return the tensor with a number; raise ValueError if the file has fewer tensors."""
        count = len(self.tensors)
        refuse_if(number >= count, "tensor", f"number {number}", f"are the {count} of the file")
        return self.tensors[number]

    def place(self, tensor: Mapping[str, Any]) -> range:
        """Return the range of the file's bytes that have a tensor's data, empty if none have."""
        inner = self.root["blobs"][tensor["blob"]]["data"]
        start = HEADER.itemsize + inner.start
        return range(start, start + len(inner))

    def held(self, tensor: Mapping[str, Any]) -> bytes:
        """Return the bytes of a tensor's data."""
        place = self.place(tensor)
        return self.data[place.start : place.stop]

    def of_use(self, use: int) -> Row:
        """Return the only tensor with a code of use; raise ValueError for none and for several."""
        found = [tensor for tensor in self.tensors if tensor["use"] == use]
        refuse_if(len(found) != 1, f"tensors of use {use}", len(found), "is 1")
        return found[0]


def is_rknn(head: bytes) -> bool:
    """Return true if bytes begin with the magic of a ``.rknn`` file."""
    return head.startswith(MAGIC)


def read(data: bytes) -> Compiled:
    """Return the contents of a ``.rknn`` file, read from its bytes.

    Raises ValueError, with the byte, for another version, for a file that is cut short, and for
    tables, tensors and blobs outside of the file.
    """
    size = len(data)
    head = HEADER.itemsize
    refuse_if(size < head + LENGTH.itemsize, "file", f"{size} bytes", "are a header and more")
    header = np.frombuffer(data, HEADER, 1)[0]
    version, inner = int(header["version"]), int(header["bytes"])
    allowed = f"is {VERSION}, the one whose tables are known"
    refuse_if(version != VERSION, "header at byte 0x8", f"version {version}", allowed)
    left = size - head - LENGTH.itemsize
    refuse_if(inner > left, "header at byte 0x10", f"{inner} bytes", f"are at most {left}")
    flat = Flat(data[head : head + inner], SCHEMA)
    root = flat.table("root", flat.number("I", 0, "root"))
    graphs = root["graphs"]
    refuse_if(len(graphs) != 1, "graphs", len(graphs), "is 1")
    for number, tensor in enumerate(graphs[0]["tensors"]):
        blob, blobs = tensor["blob"], len(root["blobs"])
        refuse_if(blob >= blobs, f"tensor {number}", f"blob {blob}", f"are 0 to {blobs - 1}")
    return Compiled(data, root, graphs[0], _network(data, head + inner))


def _network(data: bytes, at: int) -> Any:
    """Return the value of the JSON text whose length stands at byte ``at``."""
    length = int(np.frombuffer(data, LENGTH, 1, at)[0])
    begin = at + LENGTH.itemsize
    refuse_if(
        length != len(data) - begin,
        f"length of the JSON text at byte {at:#x}",
        length,
        f"is {len(data) - begin}, the bytes behind it; the file may be cut short",
    )
    return json_of(data[begin:], f"JSON text at byte {begin:#x}", most_deep=MOST_DEEP)
