"""NVDLA layers for traces of one's own: written as text, computed once more element by element with
Python's integers.

Nothing here is shared with ``npulab.npus.nvdla``: memory is a dict of bytes, a layer a dict of
plain numbers, an operation a loop, so that agreement means something.  Registers go by the names of
the public register files.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

ATOMS = {
    "nv_small": (8, 8, 8),
    "nv_small_256": (32, 8, 8),
    "nv_small_256_full": (32, 8, 8),
    "nv_medium_512": (32, 16, 16),
    "nv_medium_1024_full": (32, 32, 32),
    "nv_large": (64, 32, 32),
}
FULL_INT16 = (64, 16, 32)
PIXELS = {
    12: (0, 1, 2, 3),
    16: (0, 1, 2, 3),
    13: (2, 1, 0, 3),
    17: (2, 1, 0, 3),
    26: (2, 1, 0, 3),
    14: (1, 2, 3, 0),
    18: (1, 2, 3, 0),
    27: (1, 2, 3, 0),
    15: (3, 2, 1, 0),
    19: (3, 2, 1, 0),
}


def rounded(value: int, shift: int) -> int:
    """Half away from zero."""
    if shift <= 0:
        return value * 2**-shift
    return (abs(value) + 2 ** (shift - 1)) // 2**shift * (1 if value >= 0 else -1)


def clamp(value: int, bits: int) -> int:
    return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, value))


def signed(value: int, bits: int) -> int:
    value %= 2**bits
    return value - 2**bits if value >= 2 ** (bits - 1) else value


class Memory(dict[int, int]):
    """Bytes by address, zero where none was written."""

    def read(self, address: int, size: int = 1) -> int:
        return signed(sum(self.get(address + i, 0) * 256**i for i in range(size)), 8 * size)

    def write(self, address: int, value: int, size: int = 1) -> None:
        for i in range(size):
            self[address + i] = value // 256**i % 256

    def bytes(self, address: int, size: int) -> bytes:
        return bytes(self.get(address + i, 0) for i in range(size))

    def load(self, address: int, data: bytes) -> None:
        self.update(zip(range(address, address + len(data)), data, strict=True))


class Cube:
    """A feature cube in memory: atoms of ``atom`` bytes, lines and surfaces at their strides."""

    def __init__(
        self,
        base: int,
        shape: tuple[int, int, int],
        atom: int,
        gap: tuple[int, int] = (0, 0),
        size: int = 1,
    ) -> None:
        self.base, self.shape, self.atom, self.size = base, shape, atom, size
        self.lanes = atom // size
        self.line = (shape[1] + gap[0]) * atom
        self.surface = self.line * (shape[0] + gap[1])
        self.channels = -(-shape[2] // self.lanes) * self.lanes
        self.bytes = self.surface * (self.channels // self.lanes)

    def at(self, y: int, x: int, c: int) -> int:
        return (
            self.base
            + c // self.lanes * self.surface
            + y * self.line
            + x * self.atom
            + c % self.lanes * self.size
        )


def table(x: int, t: dict[str, Any], fraction_bits: int) -> int:
    """What the two look-up tables give."""

    def out(y: int, slope: int, shift: int, by: int) -> int:
        term = y + rounded(by * slope, shift)
        return term if fraction_bits == 35 else clamp(term, 16)

    def inside(values: list[int], index: int, f: int) -> int:
        if fraction_bits == 35:
            return rounded(values[index] * (2**35 - f) + values[index + 1] * f, 35)
        return values[index] + rounded((values[index + 1] - values[index]) * f, 16)

    def linear(
        values: list[int],
        start: int,
        end: int,
        select: int,
        uflow: tuple[int, int],
        oflow: tuple[int, int],
    ) -> tuple[str, int]:
        d = x - start
        if d <= 0:
            return "under", out(values[0], *uflow, d)
        index = d // 2**select if select >= 0 else d * 2**-select
        if index >= len(values) - 1:
            return "over", out(values[-1], *oflow, x - end)
        return "hit", inside(
            values, index, d % 2**select * 2**fraction_bits // 2**select if select > 0 else 0
        )

    le: tuple[str, int]
    if t["exponent"]:
        d, offset = x - t["le_start"], t["le_offset"]
        log = d.bit_length() - 1 if d > 0 else None
        if log is None or log < offset:
            bias = 2**offset if offset > 0 or (offset == 0 and fraction_bits == 16) else 0
            le = "under", out(t["le"][0], *t["le_under"], d - bias)
        elif log - offset >= 64:
            le = "over", out(t["le"][-1], *t["le_over"], x - t["le_end"])
        else:
            le = "hit", inside(t["le"], log - offset, (d - 2**log) * 2**fraction_bits // 2**log)
    else:
        le = linear(
            t["le"], t["le_start"], t["le_end"], t["le_select"], t["le_under"], t["le_over"]
        )
    lo = linear(t["lo"], t["lo_start"], t["lo_end"], t["lo_select"], t["lo_under"], t["lo_over"])
    if le[0] == lo[0] == "under":
        return (le, lo)[t["under_first"]][1]
    if le[0] == lo[0] == "over":
        return (le, lo)[t["over_first"]][1]
    if (le[0] == "hit") != (lo[0] == "hit"):
        return (le if le[0] == "hit" else lo)[1]
    return (le, lo)[t["both_first"]][1]


def stage(v: int, s: dict[str, Any], alu: int, mul: int) -> int:
    """X1 or X2 of SDP."""
    if s["bypass"]:
        return v
    if not s["alu_bypass"]:
        op = clamp(alu * 2 ** s["alu_shift"], 32)
        v = clamp({0: max(v, op), 1: min(v, op), 2: v + op}[s["algo"]], 33)
    if s["mul_bypass"] or not (s["prelu"] and v >= 0):
        v = rounded(v if s["mul_bypass"] else v * mul, s["mul_shift"])
    v = clamp(v, 32)
    return v if s["relu_bypass"] else max(v, 0)


def element(v: int, s: dict[str, Any], alu: int, mul: int) -> int:
    """Y of SDP."""
    if s["bypass"]:
        return v
    if not s["mul_bypass"] and not (s["prelu"] and v >= 0):
        v = clamp(rounded(v * mul, s["mul_shift"]), 32)
    if not s["alu_bypass"]:
        v = clamp({0: max(v, alu), 1: min(v, alu), 2: v + alu, 3: int(v != alu)}[s["algo"]], 32)
    return table(v, s["table"], 35) if s.get("table") else v


def random_stage(rng: random.Random, element_wise: bool = False) -> dict[str, Any]:
    """Operands in registers; every bypass comes up, no comparison, which writes nothing."""
    wide = 2**20 if element_wise else 2**15
    s: dict[str, Any] = {
        "bypass": rng.random() < 0.2,
        "alu_bypass": rng.random() < 0.3,
        "algo": rng.randrange(3),
        "mul_bypass": rng.random() < 0.3,
        "prelu": int(rng.random() < 0.3),
        "relu_bypass": rng.random() < 0.6,
        "alu_shift": rng.randrange(6),
        "mul_shift": rng.randrange(3, 16),
        "alu": rng.randrange(-300, 300),
        "mul": rng.randrange(-wide, wide),
        "alu_memory": None,
        "mul_memory": None,
    }
    if element_wise:
        s["mul_shift"] += 6
    return s


@cache
def known(fields: Path) -> tuple[dict[str, list[tuple[str, int, int]]], dict[tuple[str, str], int]]:
    """Fields of each register of the small map; byte addresses of the registers of both maps."""
    rows: dict[str, list[tuple[str, int, int]]] = {}
    where = {}
    with fields.open() as file:
        for row in csv.DictReader(file):
            if "@" not in row["block"]:
                rows.setdefault(f"{row['block']}.{row['register']}", []).append(
                    (row["field"], int(row["lsb"]), int(row["width"]))
                )
            where[row["block"], row["register"]] = int(row["address"], 16)
    return rows, where


class Trace:
    """A trace being written, and the memory that its hardware would leave."""

    def __init__(self, chip: str, fields: Path, seed: int = 0) -> None:
        self.size = 2 if chip == "nv_full" else 1
        self.atomic_c, self.atomic_k, self.atom = ATOMS.get(chip, FULL_INT16)
        self.seed, self.random = seed, random.Random(seed)
        self.memory, self.lines = Memory(), []
        self.files: dict[str, bytes] = {}
        self.checks: list[tuple[int, int]] = []
        self.layers, self.free = 0, 0x80000000
        self.rows, self.where = known(fields)

    def reserve(self, size: int) -> int:
        base, self.free = self.free, self.free + -(-size // 256) * 256 + 4096
        self.lines.append(f"mem_init(pri_mem, 0x{base:x}, 0x{size:x}, ALL_ZERO);")
        return base

    def place(self, data: bytes) -> int:
        """Data loaded from a file of its own."""
        base, name = self.reserve(len(data)), f"image_{len(self.files)}.dat"
        self.files[name] = data
        self.memory.load(base, data)
        self.lines.append(f'mem_load(pri_mem, 0x{base:x}, "{name}");')
        return base

    def noise(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def cube(
        self, shape: tuple[int, int, int], gap: tuple[int, int] = (0, 0), random_bytes: bool = True
    ) -> Cube:
        cube = Cube(0, shape, self.atom, gap, self.size)
        data = self.noise(cube.bytes) if random_bytes else bytes(cube.bytes)
        cube.base = self.place(data) if random_bytes else self.reserve(cube.bytes)
        return cube

    def program(self, unit: str, group: int, values: dict[str, int]) -> None:
        """Registers of a unit: the values given by ``REGISTER.FIELD``, noise in those that
        nothing reads.
        """
        self.lines.append(f"reg_write(NVDLA_{unit}.S_POINTER_0, 0x{group:x});")
        words: dict[str, int] = {}
        for name, value in values.items():
            register, field = name.split(".")
            lsb, width = {f: (a, b) for f, a, b in self.rows[f"{unit}.{register}"]}[field]
            if (
                register.endswith(("LOW", "STRIDE", "LOW_0"))
                or "ADDR" in register
                or register == "D_WEIGHT_BYTES"
            ):
                lsb, width = 0, 32
            words[register] = words.get(register, 0) + value % 2**width * 2**lsb
        self.lines += [
            f"reg_write(NVDLA_{unit}.{register}_0, 0x{word:x});" for register, word in words.items()
        ]

    def start(self, units: str, group: int, done: str, output: Cube | tuple[int, int]) -> None:
        self.lines += [f"reg_write(NVDLA_{unit}.D_OP_ENABLE_0, 0x1);" for unit in units.split()]
        self.lines.append(f"intr_notify({done}_{group}, sync_id_{self.layers});")
        base, size = (output.base, output.bytes) if isinstance(output, Cube) else output
        crc = zlib.crc32(self.memory.bytes(base, size))
        self.lines.append(
            f"check_crc(sync_id_{self.layers}, 1, 0x{base:x}, 0x{size:x}, 0x{crc:x});"
        )
        self.checks.append((base, size))
        self.layers += 1

    def chain(self, v: int, stages: dict[str, Any], place: tuple[int, int, int]) -> int:
        """SDP from accumulator to output byte; ``place`` is (y, x, c)."""

        def operand(s: dict[str, Any], kind: str) -> int:
            read = s[f"{kind}_memory"]
            raw = int(s[kind]) if read is None else self.operand(read, place)
            convert = s.get(f"{kind}_convert")
            if read is not None and convert:
                offset, scale, shift = convert
                raw = clamp(rounded((raw - offset) * scale, shift), 32)
            return raw

        for name in ("BS", "BN"):
            v = stage(v, stages[name], operand(stages[name], "alu"), operand(stages[name], "mul"))
        v = element(v, stages["EW"], operand(stages["EW"], "alu"), operand(stages["EW"], "mul"))
        offset, scale, shift = stages["out"]
        return clamp(clamp(rounded((v - offset) * scale, shift), 17), 8 * self.size)

    def operand(self, read: dict[str, Any], place: tuple[int, int, int]) -> int:
        y, x, c = place
        size, parts, e = read["size"], read["parts"], self.atom // self.size
        atom = e * size * parts
        at = read["base"] + c % e * size * parts + read["part"] * size
        at += (
            c // e * read["surface"] + y * read["line"] + x * atom
            if read["element"]
            else c // e * atom
        )
        return self.memory.read(at, size)

    def in_memory(
        self,
        shape: tuple[int, int, int],
        element_wise: bool,
        size: int,
        parts: int = 1,
        part: int = 0,
    ) -> dict[str, Any]:
        h, w, c = shape
        lanes = self.atom // self.size
        atom = lanes * size * parts
        line, surface = w * atom, w * h * atom
        blocks = -(-c // lanes)
        base = self.place(self.noise(blocks * (surface if element_wise else atom)))
        return {
            "base": base,
            "size": size,
            "parts": parts,
            "part": part,
            "element": element_wise,
            "line": line,
            "surface": surface,
        }

    def sdp(
        self,
        group: int,
        shape: tuple[int, int, int],
        stages: dict[str, Any],
        flying: bool,
        to_pdp: bool,
        dst: Cube | None,
    ) -> None:
        h, w, c = shape
        values = {
            "D_DATA_CUBE_WIDTH.WIDTH": w - 1,
            "D_DATA_CUBE_HEIGHT.HEIGHT": h - 1,
            "D_DATA_CUBE_CHANNEL.CHANNEL": c - 1,
            "D_DST_DMA_CFG.DST_RAM_TYPE": 1,
            "D_DST_BATCH_STRIDE.DST_BATCH_STRIDE": self.random.randrange(2**32),
            "D_FEATURE_MODE_CFG.FLYING_MODE": int(flying),
            "D_FEATURE_MODE_CFG.OUTPUT_DST": int(to_pdp),
            "D_DATA_FORMAT.PROC_PRECISION": self.size - 1,
            "D_DATA_FORMAT.OUT_PRECISION": self.size - 1,
            "D_CVT_OFFSET.CVT_OFFSET": stages["out"][0],
            "D_CVT_SCALE.CVT_SCALE": stages["out"][1],
            "D_CVT_SHIFT.CVT_SHIFT": stages["out"][2],
            "D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW": dst.base if dst else 0x12340,
            "D_DST_BASE_ADDR_HIGH.DST_BASE_ADDR_HIGH": 0,
            "D_DST_LINE_STRIDE.DST_LINE_STRIDE": dst.line if dst else 0,
            "D_DST_SURFACE_STRIDE.DST_SURFACE_STRIDE": dst.surface if dst else 0,
        }
        reads: dict[str, int] = {}
        for name in ("BS", "BN", "EW"):
            s, cfg = stages[name], f"D_DP_{name}_CFG.{name}_"
            values |= {
                cfg + "BYPASS": int(s["bypass"]),
                cfg + "ALU_BYPASS": int(s["alu_bypass"]),
                cfg + "ALU_ALGO": s["algo"],
                cfg + "MUL_BYPASS": int(s["mul_bypass"]),
                cfg + "MUL_PRELU": s["prelu"],
            }
            alu, mul = f"D_DP_{name}_ALU_CFG.{name}_ALU_", f"D_DP_{name}_MUL_CFG.{name}_MUL_"
            values |= {
                alu + "SRC": int(s["alu_memory"] is not None),
                mul + "SRC": int(s["mul_memory"] is not None),
                f"D_DP_{name}_ALU_SRC_VALUE.{name}_ALU_OPERAND": s["alu"],
                f"D_DP_{name}_MUL_SRC_VALUE.{name}_MUL_OPERAND": s["mul"],
            }
            if name == "EW":
                values |= {
                    cfg + "LUT_BYPASS": int(not s.get("table")),
                    "D_DP_EW_TRUNCATE_VALUE.EW_TRUNCATE": s["mul_shift"],
                }
                for kind, where in (("ALU", alu), ("MUL", mul)):
                    convert = s.get(f"{kind.lower()}_convert")
                    values[where + "CVT_BYPASS"] = int(not convert)
                    for part, value in zip(
                        ("OFFSET", "SCALE", "TRUNCATE"), convert or (77, 12, 3), strict=True
                    ):
                        values[f"D_DP_EW_{kind}_CVT_{part}_VALUE.EW_{kind}_CVT_{part}"] = value
            else:
                values |= {
                    cfg + "RELU_BYPASS": int(s["relu_bypass"]),
                    alu + "SHIFT_VALUE": s["alu_shift"],
                    mul + "SHIFT_VALUE": s["mul_shift"],
                }
            sources = [k for k in ("mul", "alu") if s[f"{k}_memory"] is not None]
            dma = {"BS": "B", "BN": "N", "EW": "E"}[name] + "RDMA"
            reads[f"D_{dma}_CFG.{dma}_DISABLE"] = int(not sources)
            if sources:
                read = s[f"{sources[0]}_memory"]
                reads |= {
                    f"D_{dma}_CFG.{dma}_DATA_USE": 2
                    if len(sources) == 2
                    else ("mul", "alu").index(sources[0]),
                    f"D_{dma}_CFG.{dma}_DATA_SIZE": read["size"] - 1,
                    f"D_{dma}_CFG.{dma}_DATA_MODE": int(read["element"]),
                    f"D_{dma}_CFG.{dma}_RAM_TYPE": 1,
                    f"D_{name}_BASE_ADDR_LOW.{name}_BASE_ADDR_LOW": read["base"],
                    f"D_{name}_BASE_ADDR_HIGH.{name}_BASE_ADDR_HIGH": 0,
                    f"D_{name}_LINE_STRIDE.{name}_LINE_STRIDE": read["line"],
                    f"D_{name}_SURFACE_STRIDE.{name}_SURFACE_STRIDE": read["surface"],
                }
        self.program("SDP", group, values)
        self.sdp_reads = {
            "D_DATA_CUBE_WIDTH.WIDTH": w - 1,
            "D_DATA_CUBE_HEIGHT.HEIGHT": h - 1,
            "D_DATA_CUBE_CHANNEL.CHANNEL": c - 1,
            **reads,
            "D_FEATURE_MODE_CFG.FLYING_MODE": int(flying),
            **{
                f"D_FEATURE_MODE_CFG.{name}_PRECISION": self.size - 1
                for name in ("IN", "PROC", "OUT")
            },
        }

    def sdp_table(self, unit: str, t: dict[str, Any]) -> None:
        """Both tables and what selects them, of SDP or CDP."""

        def put(register: str, value: int) -> None:
            self.lines.append(f"reg_write(NVDLA_{unit}.{register}_0, 0x{value:x});")

        for which, values in enumerate((t["le"], t["lo"])):
            put("S_LUT_ACCESS_CFG", 2**17 + which * 2**16)
            for value in values:
                put("S_LUT_ACCESS_DATA", value % 2**16)
        put(
            "S_LUT_CFG",
            int(not t["exponent"])
            + 16 * t["under_first"]
            + 32 * t["over_first"]
            + 64 * t["both_first"],
        )
        put(
            "S_LUT_INFO",
            t["le_offset"] % 256 + t["le_select"] % 256 * 256 + t["lo_select"] % 256 * 65536,
        )
        for which in ("le", "lo"):
            for end in ("start", "end"):
                name, value = f"S_LUT_{which.upper()}_{end.upper()}", t[f"{which}_{end}"]
                if unit == "SDP":
                    put(name, value % 2**32)
                else:
                    put(name + "_LOW", value % 2**32)
                    put(name + "_HIGH", value // 2**32 % 2**6)
            (us, ut), (vs, vt) = t[f"{which}_under"], t[f"{which}_over"]
            put(f"S_LUT_{which.upper()}_SLOPE_SCALE", us % 65536 + vs % 65536 * 65536)
            put(f"S_LUT_{which.upper()}_SLOPE_SHIFT", ut % 32 + vt % 32 * 32)

    def sdp_alone(
        self,
        shape: tuple[int, int, int],
        stages: dict[str, Any],
        gap: tuple[int, int] = (0, 0),
        pool: dict[str, Any] | None = None,
    ) -> None:
        """SDP from memory to memory, or to PDP."""
        group, src = self.layers % 2, self.cube(shape, gap)
        result = {
            (y, x, c): self.chain(self.memory.read(src.at(y, x, c), self.size), stages, (y, x, c))
            for y in range(shape[0])
            for x in range(shape[1])
            for c in range(src.channels)
        }
        if stages["EW"].get("table"):
            self.sdp_table("SDP", stages["EW"]["table"])
        dst = None if pool else self.cube(shape, gap, random_bytes=False)
        self.sdp(group, shape, stages, False, pool is not None, dst)
        self.program(
            "SDP_RDMA",
            group,
            self.sdp_reads
            | {
                "D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW": src.base,
                "D_SRC_BASE_ADDR_HIGH.SRC_BASE_ADDR_HIGH": 0,
                "D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": src.line,
                "D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": src.surface,
                "D_SRC_DMA_CFG.SRC_RAM_TYPE": 1,
            },
        )
        if pool:
            self.pool(shape, result, pool, group, "SDP SDP_RDMA")
            return
        assert dst is not None
        for place, value in result.items():
            self.memory.write(dst.at(*place), value, self.size)
        self.start("SDP SDP_RDMA", group, "SDP", dst)

    def pooling(
        self, shape: tuple[int, int, int], p: dict[str, Any], gap: tuple[int, int] = (0, 0)
    ) -> None:
        """PDP from memory."""
        group, src = self.layers % 2, self.cube(shape, gap)
        values = {
            (y, x, c): self.memory.read(src.at(y, x, c), self.size)
            for y in range(shape[0])
            for x in range(shape[1])
            for c in range(src.channels)
        }
        self.program(
            "PDP_RDMA",
            group,
            {
                "D_DATA_CUBE_IN_WIDTH.CUBE_IN_WIDTH": shape[1] - 1,
                "D_DATA_CUBE_IN_HEIGHT.CUBE_IN_HEIGHT": shape[0] - 1,
                "D_DATA_CUBE_IN_CHANNEL.CUBE_IN_CHANNEL": shape[2] - 1,
                "D_FLYING_MODE.FLYING_MODE": 1,
                "D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW": src.base,
                "D_SRC_BASE_ADDR_HIGH.SRC_BASE_ADDR_HIGH": 0,
                "D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": src.line,
                "D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": src.surface,
                "D_SRC_RAM_CFG.SRC_RAM_TYPE": 1,
                "D_DATA_FORMAT.INPUT_DATA": self.size - 1,
                "D_POOLING_KERNEL_CFG.KERNEL_WIDTH": p["kernel"][1] - 1,
                "D_POOLING_KERNEL_CFG.KERNEL_STRIDE_WIDTH": p["stride"][1] - 1,
                "D_POOLING_PADDING_CFG.PAD_WIDTH": p["pad"][1][0],
                "D_OPERATION_MODE_CFG.SPLIT_NUM": 0,
            },
        )
        self.pool(shape, values, p, group, "PDP_RDMA", src)

    def average(self, total: int, recip: list[int]) -> int:
        """A sum times the reciprocals of width and height; of int8 the unit keeps few bits."""
        if self.size == 2:
            return clamp(rounded(rounded(total * recip[1], 16) * recip[0], 16), 16)
        for factor, bits in ((recip[1], 11), (recip[0], 8)):
            product = total * factor
            kept = rounded(product, 16)
            if product >= 0:
                floor = product >> 16
                kept = floor % 2 ** (bits - 1) + kept - floor
            total = signed(kept, bits)
        return total

    def pool(
        self,
        shape: tuple[int, int, int],
        values: dict[tuple[int, int, int], int],
        p: dict[str, Any],
        group: int,
        units: str,
        src: Cube | None = None,
    ) -> None:
        (kh, kw), (sh, sw), ((top, bottom), (left, right)) = p["kernel"], p["stride"], p["pad"]
        h, w, c = shape
        out = (h + top + bottom - kh) // sh + 1, (w + left + right - kw) // sw + 1, c
        dst = self.cube(out, p.get("gap", (0, 0)), random_bytes=False)
        recip = [(65536 + size // 2) // size for size in (kh, kw)]
        for oy in range(out[0]):
            for ox in range(out[1]):
                ys, xs = (
                    range(oy * sh - top, oy * sh - top + kh),
                    range(ox * sw - left, ox * sw - left + kw),
                )
                rows, columns = [y for y in ys if 0 <= y < h], [x for x in xs if 0 <= x < w]
                for lane in range(dst.channels):
                    window = [values[y, x, lane] for y in rows for x in columns]
                    if p["method"]:
                        result = (max if p["method"] == 1 else min)(window)
                    else:
                        sums = [0, *p["sums"]]
                        total = (
                            sum(window)
                            + len(rows) * sums[kw - len(columns)]
                            + sums[kh - len(rows)] * kw
                        )
                        result = self.average(total, recip)
                    self.memory.write(dst.at(oy, ox, lane), result, self.size)
        self.program(
            "PDP",
            group,
            {
                "D_DATA_CUBE_IN_WIDTH.CUBE_IN_WIDTH": w - 1,
                "D_DATA_CUBE_IN_HEIGHT.CUBE_IN_HEIGHT": h - 1,
                "D_DATA_CUBE_IN_CHANNEL.CUBE_IN_CHANNEL": c - 1,
                "D_DATA_CUBE_OUT_WIDTH.CUBE_OUT_WIDTH": out[1] - 1,
                "D_DATA_CUBE_OUT_HEIGHT.CUBE_OUT_HEIGHT": out[0] - 1,
                "D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL": c - 1,
                "D_OPERATION_MODE_CFG.POOLING_METHOD": p["method"],
                "D_OPERATION_MODE_CFG.FLYING_MODE": int(src is not None),
                "D_OPERATION_MODE_CFG.SPLIT_NUM": 0,
                "D_POOLING_KERNEL_CFG.KERNEL_WIDTH": kw - 1,
                "D_POOLING_KERNEL_CFG.KERNEL_HEIGHT": kh - 1,
                "D_POOLING_KERNEL_CFG.KERNEL_STRIDE_WIDTH": sw - 1,
                "D_POOLING_KERNEL_CFG.KERNEL_STRIDE_HEIGHT": sh - 1,
                "D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH": recip[1],
                "D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT": recip[0],
                "D_POOLING_PADDING_CFG.PAD_LEFT": left,
                "D_POOLING_PADDING_CFG.PAD_TOP": top,
                "D_POOLING_PADDING_CFG.PAD_RIGHT": right,
                "D_POOLING_PADDING_CFG.PAD_BOTTOM": bottom,
                "D_DATA_FORMAT.INPUT_DATA": self.size - 1,
                "D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW": src.base if src else 0,
                "D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": src.line if src else 0,
                "D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": src.surface if src else 0,
                "D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW": dst.base,
                "D_DST_BASE_ADDR_HIGH.DST_BASE_ADDR_HIGH": 0,
                "D_DST_LINE_STRIDE.DST_LINE_STRIDE": dst.line,
                "D_DST_SURFACE_STRIDE.DST_SURFACE_STRIDE": dst.surface,
                "D_DST_RAM_CFG.DST_RAM_TYPE": 1,
                **{
                    f"D_POOLING_PADDING_VALUE_{i}_CFG.PAD_VALUE_{i}X": v
                    for i, v in enumerate(p["sums"], 1)
                },
            },
        )
        self.start(f"PDP {units}", group, "PDP", dst)

    def normalization(self, shape: tuple[int, int, int], p: dict[str, Any]) -> None:
        """CDP; channels fill their atoms."""
        group, (h, w, c) = self.layers % 2, shape
        src, dst = self.cube(shape), self.cube(shape, random_bytes=False)
        self.sdp_table("CDP", p["table"])
        for y in range(h):
            for x in range(w):
                z = [
                    clamp(
                        rounded(
                            (self.memory.read(src.at(y, x, i)) - p["in"][0]) * p["in"][1],
                            p["in"][2],
                        ),
                        9,
                    )
                    for i in range(c)
                ]
                for i in range(c):
                    reach = p["length"] + 1
                    s = (
                        z[i]
                        if p["square_bypass"]
                        else sum(v * v for v in z[max(0, i - reach) : i + reach + 1])
                    )
                    m = table(s, p["table"], 16)
                    m = m if p["mul_bypass"] else signed(m * z[i], 25)
                    offset, scale, shift = p["out"]
                    self.memory.write(
                        dst.at(y, x, i), clamp(rounded((m - offset) * scale, shift), 8)
                    )
        self.program(
            "CDP",
            group,
            {
                "D_FUNC_BYPASS.SQSUM_BYPASS": int(p["square_bypass"]),
                "D_FUNC_BYPASS.MUL_BYPASS": int(p["mul_bypass"]),
                "D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW": dst.base,
                "D_DST_BASE_ADDR_HIGH.DST_BASE_ADDR_HIGH": 0,
                "D_DST_LINE_STRIDE.DST_LINE_STRIDE": dst.line,
                "D_DST_SURFACE_STRIDE.DST_SURFACE_STRIDE": dst.surface,
                "D_DST_DMA_CFG.DST_RAM_TYPE": 1,
                "D_DATA_FORMAT.INPUT_DATA_TYPE": 0,
                "D_LRN_CFG.NORMALZ_LEN": p["length"],
                "D_DATIN_OFFSET.DATIN_OFFSET": p["in"][0],
                "D_DATIN_SCALE.DATIN_SCALE": p["in"][1],
                "D_DATIN_SHIFTER.DATIN_SHIFTER": p["in"][2],
                "D_DATOUT_OFFSET.DATOUT_OFFSET": p["out"][0],
                "D_DATOUT_SCALE.DATOUT_SCALE": p["out"][1],
                "D_DATOUT_SHIFTER.DATOUT_SHIFTER": p["out"][2],
            },
        )
        self.program(
            "CDP_RDMA",
            group,
            {
                "D_DATA_CUBE_WIDTH.WIDTH": w - 1,
                "D_DATA_CUBE_HEIGHT.HEIGHT": h - 1,
                "D_DATA_CUBE_CHANNEL.CHANNEL": c - 1,
                "D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW": src.base,
                "D_SRC_BASE_ADDR_HIGH.SRC_BASE_ADDR_HIGH": 0,
                "D_SRC_LINE_STRIDE.SRC_LINE_STRIDE": src.line,
                "D_SRC_SURFACE_STRIDE.SRC_SURFACE_STRIDE": src.surface,
                "D_SRC_DMA_CFG.SRC_RAM_TYPE": 1,
                "D_DATA_FORMAT.INPUT_DATA": self.size - 1,
            },
        )
        self.start("CDP CDP_RDMA", group, "CDP", dst)

    def weights(self, values: list[list[list[list[int]]]]) -> bytes:
        """KRSC in the order of the convolution buffer, filled up to 128 bytes."""
        k, r, s, c = len(values), len(values[0]), len(values[0][0]), len(values[0][0][0])
        out = []
        for group in range(0, k, self.atomic_k):
            for block in range(0, c, self.atomic_c):
                for y in range(r):
                    for x in range(s):
                        for kernel in range(group, min(group + self.atomic_k, k)):
                            out += values[kernel][y][x][block : min(block + self.atomic_c, c)]
        out += [0] * (-len(out) * self.size % 128 // self.size)
        return b"".join((v % 256**self.size).to_bytes(self.size, "little") for v in out)

    def convolution(
        self,
        shape: tuple[int, int, int],
        kernels: tuple[int, int, int],
        stages: dict[str, Any],
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pad: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)),
        pad_value: int = 0,
        truncate: int = 0,
        gap: tuple[int, int] = (0, 0),
        pixel: dict[str, Any] | None = None,
        pool: dict[str, Any] | None = None,
    ) -> None:
        """CDMA to CACC, through SDP; ``pixel`` for an image of four channels."""
        group, (h, w, c), (k, r, s), rng = self.layers % 2, shape, kernels, self.random
        (sh, sw), (dh, dw), ((top, bottom), (left, right)) = stride, dilation, pad
        oh = (h + top + bottom - (r - 1) * dh - 1) // sh + 1
        ow = (w + left + right - (s - 1) * dw - 1) // sw + 1
        kernel = [
            [
                [
                    [
                        rng.randrange(-(2 ** (8 * self.size - 1)), 2 ** (8 * self.size - 1))
                        for _ in range(c)
                    ]
                    for _ in range(s)
                ]
                for _ in range(r)
            ]
            for _ in range(k)
        ]
        if pixel:
            line = -(-w * 4 // 32) * 32 + 32
            base = self.place(self.noise(line * h))
            x = [
                [self.pixel(base + y * line + 4 * column, pixel) for column in range(w)]
                for y in range(h)
            ]
            flat = [[[[v for tap in row for v in tap]] for row in one] for one in kernel]
            data, surface, channels = self.weights(flat), rng.randrange(2**20) * 32, s * 4
        else:
            src = self.cube(shape, gap)
            base, line, surface, channels = src.base, src.line, src.surface, c
            x = [
                [
                    [self.memory.read(src.at(y, column, i), self.size) for i in range(c)]
                    for column in range(w)
                ]
                for y in range(h)
            ]
            data = self.weights(kernel)
        # whole entries of the convolution buffer: what is fetched past them spoils the next job
        entry = {8: 8}.get(self.atom, 128)
        stored = -(-k * r * s * c * self.size // entry) * entry
        weights = self.place(data)
        out = (oh, ow, k)
        dst = None if pool else self.cube(out, gap, random_bytes=True)
        lanes = -(-k * self.size // self.atom) * (self.atom // self.size)
        result = {}
        for oy in range(oh):
            for ox in range(ow):
                taps = [
                    (r_, s_, oy * sh - top + r_ * dh, ox * sw - left + s_ * dw)
                    for r_ in range(r)
                    for s_ in range(s)
                ]
                for o in range(lanes):
                    total = 0
                    for r_, s_, y, column in taps if o < k else ():
                        value = x[y][column] if 0 <= y < h and 0 <= column < w else [pad_value] * c
                        total += sum(a * b for a, b in zip(kernel[o][r_][s_], value, strict=True))
                    v = clamp(rounded(clamp(total, (34, 48)[self.size - 1]), truncate), 32)
                    result[oy, ox, o] = self.chain(v, stages, (oy, ox, o))
        self.sdp(group, out, stages, True, pool is not None, dst)
        units = "SDP"
        if any(
            stages[n][f"{m}_memory"] is not None for n in ("BS", "BN", "EW") for m in ("alu", "mul")
        ):
            self.program("SDP_RDMA", group, self.sdp_reads)
            units = "SDP SDP_RDMA"
        banks = {"D_BANK.DATA_BANK": 7, "D_BANK.WEIGHT_BANK": 7}
        self.program(
            "CDMA",
            group,
            banks
            | {
                "D_MISC_CFG.CONV_MODE": 0,
                "D_MISC_CFG.IN_PRECISION": self.size - 1,
                "D_MISC_CFG.PROC_PRECISION": self.size - 1,
                "D_DATAIN_FORMAT.DATAIN_FORMAT": int(pixel is not None),
                "D_DATAIN_FORMAT.PIXEL_FORMAT": pixel["format"]
                if pixel
                else rng.choice(list(PIXELS)),
                "D_DATAIN_FORMAT.PIXEL_SIGN_OVERRIDE": pixel["signed"]
                if pixel
                else rng.randrange(2),
                "D_DATAIN_SIZE_0.DATAIN_WIDTH": w - 1,
                "D_DATAIN_SIZE_0.DATAIN_HEIGHT": h - 1,
                "D_DATAIN_SIZE_1.DATAIN_CHANNEL": c - 1,
                "D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT": w - 1,
                "D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT": h - 1,
                "D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE": 1,
                "D_PIXEL_OFFSET.PIXEL_X_OFFSET": 0 if pixel else rng.randrange(8),
                "D_DAIN_ADDR_HIGH_0.DATAIN_ADDR_HIGH_0": 0,
                "D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0": base,
                "D_DAIN_ADDR_LOW_1.DATAIN_ADDR_LOW_1": rng.randrange(2**27) * 32,
                "D_LINE_STRIDE.LINE_STRIDE": line,
                "D_SURF_STRIDE.SURF_STRIDE": surface,
                "D_LINE_UV_STRIDE.UV_LINE_STRIDE": rng.randrange(2**27) * 32,
                "D_BATCH_NUMBER.BATCHES": 0,
                "D_ENTRY_PER_SLICE.ENTRIES": -(-w * -(-c // self.atomic_c)) - 1,
                "D_WEIGHT_FORMAT.WEIGHT_FORMAT": 0,
                "D_WEIGHT_SIZE_0.BYTE_PER_KERNEL": r * s * c * self.size - 1,
                "D_WEIGHT_SIZE_1.WEIGHT_KERNEL": k - 1,
                "D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE": 1,
                "D_WEIGHT_ADDR_HIGH.WEIGHT_ADDR_HIGH": 0,
                "D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW": weights,
                "D_WEIGHT_BYTES.WEIGHT_BYTES": stored,
                "D_CONV_STRIDE.CONV_X_STRIDE": sw - 1,
                "D_CONV_STRIDE.CONV_Y_STRIDE": sh - 1,
                "D_ZERO_PADDING.PAD_LEFT": left,
                "D_ZERO_PADDING.PAD_RIGHT": right,
                "D_ZERO_PADDING.PAD_TOP": top,
                "D_ZERO_PADDING.PAD_BOTTOM": bottom,
                "D_ZERO_PADDING_VALUE.PAD_VALUE": pad_value,
                "D_MEAN_FORMAT.MEAN_FORMAT": int(bool(pixel and "means" in pixel)),
                "D_CVT_CFG.CVT_EN": int(bool(pixel)),
                "D_CVT_CFG.CVT_TRUNCATE": pixel["shift"] if pixel else 5,
                "D_CVT_OFFSET.CVT_OFFSET": pixel["offset"] if pixel else 9,
                "D_CVT_SCALE.CVT_SCALE": pixel["scale"] if pixel else 3,
                **{
                    name: (pixel or {}).get("means", (7, 8, 9, 10))[i]
                    for i, name in enumerate(
                        (
                            "D_MEAN_GLOBAL_0.MEAN_RY",
                            "D_MEAN_GLOBAL_0.MEAN_GU",
                            "D_MEAN_GLOBAL_1.MEAN_BV",
                            "D_MEAN_GLOBAL_1.MEAN_AX",
                        )
                    )
                },
            },
        )
        self.program(
            "CSC",
            group,
            banks
            | {
                "D_MISC_CFG.CONV_MODE": 0,
                "D_MISC_CFG.IN_PRECISION": self.size - 1,
                "D_MISC_CFG.PROC_PRECISION": self.size - 1,
                "D_DATAIN_FORMAT.DATAIN_FORMAT": int(pixel is not None),
                "D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT": w - 1,
                "D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT": h - 1,
                "D_DATAIN_SIZE_EXT_1.DATAIN_CHANNEL_EXT": c - 1,
                "D_BATCH_NUMBER.BATCHES": 0,
                "D_ENTRY_PER_SLICE.ENTRIES": -(-w * -(-c // self.atomic_c)) - 1,
                "D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT": 0 if pixel else s - 1,
                "D_WEIGHT_SIZE_EXT_0.WEIGHT_HEIGHT_EXT": r - 1,
                "D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT": channels - 1,
                "D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL": k - 1,
                "D_WEIGHT_BYTES.WEIGHT_BYTES": stored,
                "D_DATAOUT_SIZE_0.DATAOUT_WIDTH": ow - 1,
                "D_DATAOUT_SIZE_0.DATAOUT_HEIGHT": oh - 1,
                "D_DATAOUT_SIZE_1.DATAOUT_CHANNEL": k - 1,
                "D_ATOMICS.ATOMICS": oh * ow - 1,
                "D_RELEASE.RLS_SLICES": h - 1,
                "D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT": sw - 1,
                "D_CONV_STRIDE_EXT.CONV_Y_STRIDE_EXT": sh - 1,
                "D_DILATION_EXT.X_DILATION_EXT": dw - 1,
                "D_DILATION_EXT.Y_DILATION_EXT": dh - 1,
                "D_ZERO_PADDING.PAD_LEFT": left,
                "D_ZERO_PADDING.PAD_TOP": top,
                "D_ZERO_PADDING_VALUE.PAD_VALUE": pad_value,
                "D_POST_Y_EXTENSION.Y_EXTENSION": 0,
            },
        )
        for mac in ("CMAC_A", "CMAC_B"):
            self.program(
                mac, group, {"D_MISC_CFG.CONV_MODE": 0, "D_MISC_CFG.PROC_PRECISION": self.size - 1}
            )
        self.program(
            "CACC",
            group,
            {
                "D_MISC_CFG.CONV_MODE": 0,
                "D_MISC_CFG.PROC_PRECISION": self.size - 1,
                "D_DATAOUT_SIZE_0.DATAOUT_WIDTH": ow - 1,
                "D_DATAOUT_SIZE_0.DATAOUT_HEIGHT": oh - 1,
                "D_DATAOUT_SIZE_1.DATAOUT_CHANNEL": k - 1,
                "D_DATAOUT_ADDR.DATAOUT_ADDR": rng.randrange(2**27) * 32,
                "D_BATCH_NUMBER.BATCHES": 0,
                "D_CLIP_CFG.CLIP_TRUNCATE": truncate,
            },
        )
        self.lines.append("poll_reg_equal(NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0, 0x1);")
        units += " CACC CMAC_A CMAC_B CSC CDMA"
        if pool:
            self.pool(out, result, pool, group, units)
            return
        assert dst is not None
        for place, value in result.items():
            self.memory.write(dst.at(*place), value, self.size)
        self.start(units, group, "SDP", dst)

    def pixel(self, address: int, p: dict[str, Any]) -> list[int]:
        """The four channels of a pixel, converted."""
        out = []
        for channel, byte in enumerate(PIXELS[p["format"]]):
            v = self.memory.get(address + byte, 0)
            v = signed(v, 8) if p["signed"] else v
            v -= p["means"][channel] if "means" in p else p["offset"]
            out.append(clamp(clamp(rounded(v * p["scale"], p["shift"]), 17), 8))
        return out

    def write(self, folder: Path, name: str, packed: bool = False) -> Path:
        """The trace in a folder of its own, its images as ``.dat`` or ``.dat.gz``."""
        case = folder / name
        case.mkdir(parents=True)
        (case / f"{name}.cfg").write_text("\n".join(["// by hand", *self.lines]) + "\n")
        for file, data in self.files.items():
            step = (4, 32)[len(data) % 64 == 0]
            records = [
                f"{{offset:0x{at:x}, size:{len(data[at : at + step])}, payload:"
                + " ".join(f"0x{v:02x}" for v in data[at : at + step])
                + "}"
                for at in range(0, len(data), step)
            ]
            text = "{\n" + " ,\n".join(records) + "\n}\n"
            if packed:
                (case / (file + ".gz")).write_bytes(gzip.compress(text.encode()))
            else:
                (case / file).write_text(text)
        return case

    def write_transactions(self, folder: Path, name: str) -> Path:
        """The same as a ``.txn`` of the full register file; what memory is to be in the end lies
        in files.
        """
        case = folder / name
        case.mkdir(parents=True)
        sizes = {
            int(m[1], 16): int(m[2], 16)
            for m in map(re.compile(r"mem_init\(pri_mem, 0x(\w+), 0x(\w+)").match, self.lines)
            if m
        }
        loads = {
            int(m[1], 16): m[2]
            for m in map(re.compile(r'mem_load\(pri_mem, 0x(\w+), "(.+)"').match, self.lines)
            if m
        }
        files = dict(self.files)
        text = ["# by hand"]
        for base, size in sizes.items():
            file = loads.get(base, f"zeros_{base:x}.dat")
            files.setdefault(file, bytes(size))
            text.append(f"load_mem 0x{base:x} 0x{size:x} {file} #0x{size:x}")
        for line in self.lines:
            found = re.match(r"reg_write\(NVDLA_(\w+)\.(\w+)_0, (0x\w+)\)", line)
            if found:
                at = self.where[found[1] + "@nv_full", found[2]]
                text.append(
                    f"write_reg 0x{0xFFFF0000 + at // 4:x} {found[3]} #NVDLA_{found[1]}.{found[2]}_0"
                )
            elif line.startswith("intr_notify"):
                text.append("wait")
        for i, (base, size) in enumerate(self.checks):
            files[f"golden_{i}.dat"] = self.memory.bytes(base, size)
            text.append(f"dump_mem 0x{base:x} 0x{size:x} golden_{i}.dat ")
        (case / "input.txn").write_text("\n".join(text) + "\n")
        for file, data in files.items():
            rows = [
                " ".join(f"0x{v:02x}" for v in data[at : at + 32]) for at in range(0, len(data), 32)
            ]
            (case / file).write_text(
                "\n".join(["# by hand", f"Data_size=0x{len(data):x}", *rows]) + "\n"
            )
        return case
