"""The types of C that members may have, as GCC has them on a little-endian machine of 64 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A type of C: bits, alignment in bits, the value column, whether it is an address, whether
    plain words."""

    size: int
    align: int
    value: str = ""
    address: bool = False
    plain: bool = True


def _basic() -> Mapping[str, Kind]:
    """Types by their words, sorted."""
    out: dict[str, Kind] = {}
    sizes = {"char": 8, "short": 16, "int": 32, "long": 64, "long long": 64}
    for name, size in sizes.items():
        for sign in ("", "signed", "unsigned"):
            for tail in ("", "int") if name not in ("char", "int") else ("",):
                value = "" if sign == "unsigned" or (name == "char" and not sign) else "signed"
                out[" ".join(sorted(f"{sign} {name} {tail}".split()))] = Kind(size, size, value, plain=not value)
    for sign, value in (("unsigned", ""), ("signed", "signed")):
        out[sign] = Kind(32, 32, value, plain=not value)
    for size in (8, 16, 32, 64):
        for unsigned in (f"uint{size}_t", f"u{size}", f"__u{size}", f"__le{size}", f"uint_least{size}_t",
                         f"uint{size}"):
            out[unsigned] = Kind(size, size)
        for signed in (f"int{size}_t", f"s{size}", f"__s{size}", f"int_least{size}_t", f"int{size}"):
            out[signed] = Kind(size, size, "signed", plain=False)
    for name, size in (("BYTE", 8), ("WORD", 16), ("DWORD", 32), ("QWORD", 64), ("UINT8", 8), ("UINT16", 16),
                       ("UINT32", 32), ("UINT64", 64), ("uint", 32), ("ulong", 64), ("ushort", 16), ("uchar", 8),
                       ("u_char", 8), ("u_int", 32), ("size_t", 64), ("uintptr_t", 64), ("dma_addr_t", 64),
                       ("phys_addr_t", 64)):
        out[name] = Kind(size, size)
    out["_Bool"] = out["bool"] = Kind(8, 8, plain=False)
    out["float"] = Kind(32, 32, "f32", plain=False)
    out["_Float16"] = out["__fp16"] = Kind(16, 16, "f16", plain=False)
    out["double"] = Kind(64, 64, plain=False)
    return out


BASIC = _basic()
