"""Lists descriptors of operations as the kernel driver prints them (``dla_debug.c`` of nvdla/sw).

::

    NVDLA FW ROI[0]: dla_conv_op_desc
        kernel_width_csc = 5
        bytes_per_kernel = 1000

A table for each descriptor has its fields in order; what the fields of a convolution say of each
other is a note: the bytes of a weight, and the columns of the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from npulab.captures.documents import Document, Finding
from npulab.npus.kit import head_of, lines_of
from npulab.support.text import Row, plural

HEAD = re.compile(r"\bROI\[(\d{1,9})\]: *(dla_\w{1,60})")
FIELD = re.compile(r"(?:^|[\s\]:])([a-z]\w{0,60}) *= *(-?\d{1,20})\s*$")
TYPES: Mapping[float, str] = {1: "int8", 2: "int16 or float16"}  # by bytes of a weight
KERNEL = ("kernel_width_csc", "kernel_height_csc", "kernel_channel_csc")
MOST_FIELDS = 2**16


def recognises(path: Path) -> bool:
    """True if the beginning of a text has the head of a descriptor."""
    return HEAD.search(head_of(path)) is not None


def read(path: Path) -> Document:
    """Return the descriptors of a text as a document; raises ValueError for too many fields."""
    tables: dict[str, list[Row]] = {}
    now: list[Row] | None = None
    for number, text in lines_of(path):
        head = HEAD.search(text)
        if head:
            now = tables.setdefault(f"{len(tables)}: {head[2]}", [])
        field = FIELD.search(text)
        if field and now is not None and len(now) < MOST_FIELDS:
            now.append({"field": field[1], "value": int(field[2]), "line": number})
    findings: list[Finding] = []
    for name, rows in tables.items():
        values = {str(row["field"]): int(row["value"]) for row in rows}
        findings += [Finding(0, name, text) for text in _said(values)]
    title = f"{path}: {plural(len(tables), 'descriptor')} of NVDLA's operations"
    return Document(path.name, title, tables, findings)


def _said(v: Mapping[str, int]) -> Iterator[str]:
    """Yield what the fields of a convolution say of each other."""
    size = v.get("bytes_per_kernel", 0)
    weights = prod(v.get(name, 0) for name in KERNEL)
    if size and weights:
        shape = " x ".join(str(v[name]) for name in KERNEL)
        kind = TYPES.get(size / weights, "which no type of weights has")
        yield f"{size} bytes a kernel of {shape} weights: {size / weights:g} bytes each, {kind}"
    if "input_width_cmac" in v and "kernel_width_csc" in v:
        padded = v.get("input_width_csc", 0) + v.get("pad_x_left", 0) + v.get("pad_x_right", 0)
        spread = (v["kernel_width_csc"] - 1) * max(v.get("dilation_x", 1), 1)
        width = (padded - spread - 1) // max(v.get("conv_stride_x", 1), 1) + 1
        got = v["input_width_cmac"]
        yield f"columns of the output: {got} stated, {width} follow from input and kernel"
