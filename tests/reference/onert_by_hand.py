"""Plain references of onert and of models, from the facts alone: ruy's packing, hybrid layers,
model files, lifetimes.

Nothing of the package is used here.  Everything is slow and as the facts have it, one element at a
time where that helps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import flatbuffers
import numpy as np

# path: kernel blocks (rows, columns) of weights and of input rows, columns of float blocks of both
PATHS = {
    "neon-aarch64": ((16, 4), (16, 4), 8, 8),
    "neon-armv7": ((16, 4), (16, 2), 8, 4),
    "neon-dotprod": ((4, 8), (4, 8), 8, 8),
    "avx": ((4, 8), (4, 8), 8, 8),
    "avx2": ((4, 8), (4, 8), 8, 8),
    "avx512": ((4, 16), (4, 16), 16, 16),
}
ARM = ("neon-aarch64", "neon-armv7", "neon-dotprod")
CLAMPS = {
    None: (-math.inf, math.inf),
    "relu": (0, math.inf),
    "relu6": (0, 6),
    "relu_n1_to_1": (-1, 1),
}
ACTIVATIONS = (None, "relu", "relu_n1_to_1", "relu6")


# ---- packed matrices


def up(n: int, block: int) -> int:
    return n + -n % block


def place(r: int, c: int, rows: int, block: tuple[int, int]) -> int:
    """Element offset of row r, column c of a packed matrix of so many rows."""
    kr, kc = block
    r0, c0 = r - r % kr, c - c % kc
    return r0 * kc + c0 * up(rows, kr) + (r - r0) + (c - c0) * kr


def packed(columns: Any, block: tuple[int, int], zero_point: int = 0, uint8: bool = False) -> bytes:
    """Packed bytes of columns ``(C, depth)`` of codes, then the int32 sum of each packed column."""
    columns = np.asarray(columns).astype(int)
    count, depth = columns.shape
    rows, width = up(depth, block[0]), up(count, block[1])
    out, sums = bytearray(rows * width), [0] * width
    for c in range(width):
        for r in range(rows):
            code = int(columns[c, r]) if c < count and r < depth else zero_point
            byte = (code ^ 0x80 if uint8 else code) & 0xFF
            out[place(r, c, depth, block)] = byte
            sums[c] += byte - 256 if byte > 127 else byte
    return bytes(out) + struct.pack(f"<{width}i", *sums)


# ---- arithmetic


def hybrid(
    x: np.ndarray,
    weights: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    activation: str | None,
    fused: bool = False,
) -> np.ndarray:
    """Output ``(batches, units)`` float32 of rows ``(batches, inputs)``; ``scale`` is one or one
    per unit.
    """
    f = np.float32
    low, high = CLAMPS[activation]
    out = np.zeros((len(x), len(weights)), np.float32)
    for b, row in enumerate(x):
        most = max((abs(v) for v in row), default=f(0))
        inverse, step = (f(127) / most, most / f(127)) if most else (f(0), f(1))
        codes = [
            max(-127, min(127, int(math.copysign(math.floor(abs(float(v * inverse)) + 0.5), v))))
            for v in row
        ]
        for u, line in enumerate(weights.astype(int).tolist()):
            total = f(sum(c * w for c, w in zip(codes, line, strict=True)))
            factor = step * f(scale[u % len(scale)])
            value = fma(total, factor, bias[u]) if fused else total * factor + bias[u]
            out[b, u] = bias[u] if not x.any() else value
    return np.clip(out, f(low), f(high))


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """``a * b + c`` rounded once, ties to even, by fractions."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(float(exact))
    choices = [
        np.nextafter(near, np.float32(-np.inf)),
        near,
        np.nextafter(near, np.float32(np.inf)),
    ]
    return min(choices, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.int32)) % 2))


def multiplier(ratio: float) -> tuple[int, int]:
    """(q, e): the ratio is about q * 2**(e - 31)."""
    m, e = math.frexp(ratio)
    q = math.floor(m * 2**31 + 0.5)
    return (2**30, e + 1) if q == 2**31 else (q, e)


def requantized(
    accumulators: np.ndarray,
    ratios: Sequence[float],
    arm: bool,
    zero_point: int,
    low: int,
    high: int,
) -> np.ndarray:
    """Codes of accumulators ``(batches, units)``: one rounding half up on Arm, two of them on
    x86.
    """
    out = np.zeros(accumulators.shape, int)
    for (b, u), a in np.ndenumerate(accumulators):
        q, e = multiplier(ratios[u % len(ratios)])
        a = int(a)
        if arm:
            v = (a * q + 2 ** (30 - e)) >> (31 - e)
        else:
            h = (a * 2 ** max(e, 0) * q + 2**30) >> 31
            v = h if e >= 0 else (h + 2 ** (-e - 1)) >> -e
        out[b, u] = max(low, min(high, v + zero_point))
    return out


# ---- model files

TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "int8": 9}
WIDTHS = {"float32": 4, "int32": 4, "uint8": 1, "int64": 8, "int8": 1}
CODES = {
    "ADD": (0, 11),
    "CONV_2D": (3, 1),
    "DEPTHWISE_CONV_2D": (4, 2),
    "FULLY_CONNECTED": (9, 8),
    "LOGISTIC": (14, 0),
    "SOFTMAX": (25, 9),
}


class File:
    """A model put together slot by slot, tensors and buffers numbered as one likes."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[tuple[str, list[int], list[int], dict[int, tuple[str, int]], int]] = []
        self.buffers: list[bytes] = [b""]
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        data: bytes | None = None,
        **more: Any,
    ) -> int:
        buffer = more.pop("buffer", 0)
        if data is not None:
            self.buffers.append(data)
            buffer = len(self.buffers) - 1
        self.tensors.append(
            {"name": name, "shape": list(shape), "dtype": dtype, "buffer": buffer, **more}
        )
        return len(self.tensors) - 1

    def operator(
        self,
        name: str,
        inputs: list[int],
        outputs: list[int],
        options: dict[int, tuple[str, int]] | None = None,
        version: int = 1,
    ) -> None:
        self.operators.append((name, inputs, outputs, options or {}, version))

    def build(self, identifier: bytes = b"TFL3", graphs: int = 1) -> bytes:
        b = flatbuffers.Builder(1024)
        buffers = [
            _table(b, {0: ("offset", _bytes(b, data))} if data else {}) for data in self.buffers
        ]
        kinds = sorted({(name, version) for name, _, _, _, version in self.operators})
        subgraphs = []
        for graph in range(graphs):
            tensors = []
            for one in self.tensors:
                scales, zeros = one.get("scale", []), one.get("zero_point", [])
                quantization = (
                    _table(
                        b,
                        {
                            2: ("offset", _vector(b, scales, "Float32", 4)),
                            3: ("offset", _vector(b, zeros, "Int64", 8)),
                            6: ("Int32", one.get("axis", 0)),
                        },
                    )
                    if scales
                    else 0
                )
                slots = {
                    0: ("offset", _vector(b, one["shape"], "Int32", 4)),
                    1: ("Int8", TYPES[one["dtype"]]),
                    2: ("Uint32", one["buffer"]),
                    3: ("offset", b.CreateString(one["name"])),
                }
                tensors.append(
                    _table(b, slots | ({4: ("offset", quantization)} if quantization else {}))
                )
            operators = []
            for name, inputs, outputs, options, version in self.operators:
                made = _table(b, options)
                operators.append(
                    _table(
                        b,
                        {
                            0: ("Uint32", kinds.index((name, version))),
                            1: ("offset", _vector(b, inputs, "Int32", 4)),
                            2: ("offset", _vector(b, outputs, "Int32", 4)),
                            3: ("Uint8", CODES[name][1]),
                            4: ("offset", made),
                        },
                    )
                )
            subgraphs.append(
                _table(
                    b,
                    {
                        0: ("offset", _offsets(b, tensors)),
                        1: ("offset", _vector(b, self.inputs, "Int32", 4)),
                        2: ("offset", _vector(b, self.outputs, "Int32", 4)),
                        3: ("offset", _offsets(b, operators)),
                        4: ("offset", b.CreateString(f"graph {graph}")),
                    },
                )
            )
        codes = [
            _table(
                b,
                {0: ("Int8", CODES[name][0]), 2: ("Int32", version), 3: ("Int32", CODES[name][0])},
            )
            for name, version in kinds
        ]
        model = {
            0: ("Uint32", 3 if identifier == b"TFL3" else 0),
            1: ("offset", _offsets(b, codes)),
            2: ("offset", _offsets(b, subgraphs)),
            3: ("offset", b.CreateString("by hand")),
            4: ("offset", _offsets(b, buffers)),
            **self._beside(b),
        }
        b.Finish(_table(b, model), file_identifier=identifier)
        return bytes(b.Output())

    def _beside(self, b: flatbuffers.Builder) -> dict[int, tuple[str, int]]:
        """The slots of metadata and signatures, as TensorFlow's converter writes them."""
        metadata = _table(b, {0: ("offset", b.CreateString("min_runtime_version"))})
        maps = [
            _offsets(b, [_table(b, {0: ("offset", b.CreateString("x")), 1: ("Uint32", 0)})])
            for _ in "io"
        ]
        signature = _table(
            b,
            {
                0: ("offset", maps[0]),
                1: ("offset", maps[1]),
                2: ("offset", b.CreateString("serving")),
            },
        )
        return {6: ("offset", _offsets(b, [metadata])), 7: ("offset", _offsets(b, [signature]))}


def fully_connected(
    weights: np.ndarray,
    scale: Sequence[float],
    bias: np.ndarray,
    activation: str | None,
    leading: Sequence[int],
    label: str = "int8",
) -> File:
    """A model of one hybrid fully connected layer."""
    units, inputs = weights.shape
    file = File()
    x = file.tensor("x", [*leading, inputs])
    w = file.tensor(
        "w",
        [units, inputs],
        label,
        weights.tobytes(),
        scale=list(scale),
        zero_point=[0] * len(scale),
    )
    c = file.tensor("b", [units], "float32", bias.astype("<f4").tobytes())
    y = file.tensor("y", [math.prod(leading), units])
    file.operator(
        "FULLY_CONNECTED",
        [x, w, c],
        [y],
        {0: ("Int8", ACTIVATIONS.index(activation))},
        12 if len(scale) > 1 else 3,
    )
    file.inputs, file.outputs = [x], [y]
    return file


def _table(b: flatbuffers.Builder, slots: dict[int, tuple[str, Any]]) -> int:
    b.StartObject(max(slots, default=-1) + 1)
    for slot, (kind, value) in slots.items():
        if kind == "offset":
            b.PrependUOffsetTRelativeSlot(slot, value, 0)
        else:
            getattr(b, f"Prepend{kind}Slot")(slot, value, None)
    return b.EndObject()


def _vector(b: flatbuffers.Builder, values: Sequence[Any], kind: str, width: int) -> int:
    b.StartVector(width, len(values), width)
    for value in reversed(values):
        getattr(b, f"Prepend{kind}")(value)
    return b.EndVector()


def _bytes(b: flatbuffers.Builder, data: bytes) -> int:
    b.StartVector(1, len(data), 16)
    b.head -= len(data)
    b.Bytes[b.head : b.head + len(data)] = data
    return b.EndVector()


def _offsets(b: flatbuffers.Builder, made: Sequence[int]) -> int:
    b.StartVector(4, len(made), 4)
    for one in reversed(made):
        b.PrependUOffsetTRelative(one)
    return b.EndVector()


# ---- where a file's offsets lie

SLOTS = {
    "Model": {
        1: "[OperatorCode",
        2: "[SubGraph",
        3: "text",
        4: "[Buffer",
        6: "[Metadata",
        7: "[SignatureDef",
    },
    "OperatorCode": {1: "text"},
    "SubGraph": {0: "[Tensor", 1: "numbers", 2: "numbers", 3: "[Operator", 4: "text"},
    "Tensor": {0: "numbers", 3: "text", 4: "Quantization"},
    "Quantization": {0: "numbers", 1: "numbers", 2: "numbers", 3: "numbers"},
    "Operator": {1: "numbers", 2: "numbers", 4: "Options"},
    "Options": {},
    "Buffer": {0: "numbers"},
    "Metadata": {0: "text"},
    "SignatureDef": {0: "[TensorMap", 1: "[TensorMap", 2: "text"},
    "TensorMap": {0: "text"},
}


def offsets(data: bytes) -> Iterator[tuple[int, str, str]]:
    """(place, table, what) of every offset and vector length in a file: "table", "vector" or "text"
    for an offset
    to one, "length" for a vector's, "slots" for that of a table to its slots."""

    def uint(at: int) -> int:
        return int(struct.unpack_from("<I", data, at)[0])

    def table(at: int, name: str) -> Iterator[tuple[int, str, str]]:
        slots = at - struct.unpack_from("<i", data, at)[0]
        yield at, name, "slots"
        size, _ = struct.unpack_from("<HH", data, slots)
        for slot, kind in SLOTS[name].items():
            field = (
                struct.unpack_from("<H", data, slots + 4 + 2 * slot)[0]
                if 4 + 2 * slot < size
                else 0
            )
            if not field:
                continue
            there = at + field + uint(at + field)
            if kind in SLOTS:
                yield at + field, name, "table"
                yield from table(there, kind)
            else:
                yield at + field, name, "text" if kind == "text" else "vector"
                yield there, name, "length"
                if kind.startswith("["):
                    for i in range(uint(there)):
                        at_i = there + 4 + 4 * i
                        yield at_i, kind[1:], "table"
                        yield from table(at_i + uint(at_i), kind[1:])

    yield 0, "Model", "table"
    yield from table(uint(0), "Model")


# ---- lifetimes


def lifetimes(file: File) -> list[tuple[int, int] | None]:
    """First and last operator of each tensor, None for constants and those nobody has."""
    last = len(file.operators) - 1
    found: list[tuple[int, int] | None] = []
    for number, one in enumerate(file.tensors):
        made = [i for i, op in enumerate(file.operators) if number in op[2]]
        taken = [i for i, op in enumerate(file.operators) if number in op[1]]
        if file.buffers[one["buffer"]] or not (made or taken or number in file.inputs):
            found.append(None)
        else:
            start = 0 if number in file.inputs else made[0]
            end = last if number in file.outputs else max(taken + made + [start])
            found.append((start, end))
    return found


def size(one: dict[str, Any]) -> int:
    return math.prod(one["shape"]) * WIDTHS[one["dtype"]]
