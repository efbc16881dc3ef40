"""What the macros of a C header say, by gcc's preprocessor and a few lines: fields of a mask and a
shift, or of one macro
that places bits, under the longest name around them that is an offset. It shares nothing with npulab's reader."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from c_structs import gcc

BITS = (
    "BIT(n)=(1<<(n))",
    "BIT_MASK(n)=(1<<(n))",
    "BIT_ULL(n)=(1<<(n))",
    "GENMASK(h,l)=((1<<((h)+1))-(1<<(l)))",
    "GENMASK_ULL(h,l)=((1<<((h)+1))-(1<<(l)))",
    "_MK_ADDR_CONST(x)=x",
    "_MK_MASK_CONST(x)=x",
    "_MK_SHIFT_CONST(x)=x",
    "_MK_ENUM_CONST(x)=x",
    "_MK_FIELD_CONST(m,s)=((m)<<(s))",
)
NUMBER = re.compile(r"[\s\d()xXa-fA-F+\-*|&~<>uUlL]+")
PAIRS = (("__MASK", "__SHIFT"), ("_MASK", "_SHIFT"), ("_FIELD", "_SHIFT"), ("_Msk", "_Pos"))


class Bits(NamedTuple):
    """A field: the offset of its register, its lowest bit and width."""

    offset: int
    lsb: int
    width: int


def values(path: Path) -> dict[str, int]:
    """The numbers of a header's macros without parameters."""
    text = re.sub(
        r"^[ \t]*#[ \t]*include.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    command = [gcc(), "-E", "-P", "-undef", "-w", *(f"-D{one}" for one in BITS), "-x", "c", "-"]
    shown = subprocess.run(
        [*command, "-dM"], input=text, capture_output=True, text=True, check=False, timeout=60
    ).stdout
    made = re.findall(r"^#define ([A-Za-z]\w*)(\([\w\s,]*\))? (.*)", shown, re.MULTILINE)
    # an array's first element stands for it
    names = [
        name + (f"({','.join('0' for _ in taken.split(','))})" if taken else "")
        for name, taken, body in made
        if not taken or "+" in body
    ]
    asked = (
        text
        + "\n"
        + "\n".join(
            f"npulab_asks {name[:1]}_{name.partition('(')[0][1:]} = {name} ;" for name in names
        )
    )
    out = {}
    shown = subprocess.run(
        command, input=asked, capture_output=True, text=True, check=False, timeout=60
    ).stdout
    for name, body in re.findall(r"npulab_asks (\w+) = (.*?) ;", shown, re.DOTALL):
        if NUMBER.fullmatch(body) and re.search(r"\d", body):
            try:
                number = eval(
                    re.sub(r"(?<=[\da-fA-F])[uUlL]+\b", "", re.sub(r"\b0+(?=\d)", "", body)),
                    {"__builtins__": {}},
                )
            except (SyntaxError, TypeError, NameError):
                continue
            if isinstance(number, int) and number >= 0:
                out[name[0] + name[2:]] = number
    return out


def fields(path: Path) -> dict[str, Bits]:
    """The fields of a header whose register is sure, by name."""
    numbers = values(path)
    found: dict[str, int] = {}
    for mask, shift in PAIRS:
        for name in numbers:
            base = name.removesuffix(mask)
            if (
                base == name
                or base.endswith("_")
                or base in found
                or f"{base}{shift}" not in numbers
            ):
                continue
            bits, low = numbers[name], numbers[f"{base}{shift}"]
            found[base] = bits << low if low and bits & 1 else bits
    heads = {
        re.sub(r"^REG_|^mm(?=[A-Z])", "", name): number
        for name, number in numbers.items()
        if number % 4 == 0
        and not (found.keys() & {re.sub(r"_{1,2}(MASK|SHIFT|FIELD|Msk|Pos)$", "", name)})
    }
    # a power of two among 1 and 2 of a register is one of its bits
    below = {
        (name.rpartition("_")[0], number) for name, number in numbers.items() if number in (1, 2)
    }
    flagged = {
        head
        for head in heads
        if any(outer == head or outer.startswith(f"{head}_") for outer, _ in below)
    }
    heads = {
        name: number
        for name, number in heads.items()
        if number.bit_count() != 1
        or number >= 2**12
        or not any(name.startswith(f"{head}_") and heads[head] > number for head in flagged)
    }
    out = {}
    for base, bits in found.items():
        outer = next(
            (
                base[:at]
                for at in range(len(base) - 1, 0, -1)
                if base[at] == "_" and base[:at] in heads
            ),
            "",
        )
        low = (bits & -bits).bit_length() - 1
        if outer and bits and bits + (bits & -bits) == 1 << bits.bit_length() and bits < 2**32:
            out[base] = Bits(heads[outer], low, bits.bit_length() - low)
    return out
