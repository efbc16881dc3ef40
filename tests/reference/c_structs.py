"""Random structs of C, and where gcc puts their members."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
SIZES = {
    "uint8_t": 8,
    "uint16_t": 16,
    "uint32_t": 32,
    "uint64_t": 64,
    "unsigned": 32,
    "int": 32,
    "int8_t": 8,
    "short": 16,
    "unsigned long long": 64,
    "long": 64,
    "_Bool": 1,
    "enum mode": 32,
}
WHOLE = (*SIZES, "float", "void *", "double", "char")
HEAD = "#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\nenum mode { MODE_A, MODE_B = 5 };\n"
SHOW = """static void show(const char *name, const void *at, unsigned long size) {
    const unsigned char *bytes = at;
    printf("%s %lu ", name, size);
    for (unsigned long i = size; i > 0; i--) printf("%02x", bytes[i - 1]);
    printf("\\n");
}
"""


class Leaf(NamedTuple):
    """A member that holds a number: how C names it inside its struct, whether it is a bit-field."""

    path: str
    bits: bool


def gcc() -> str:
    """The compiler; skips where there is none."""
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("gcc is not installed")
    return found


def compiled(folder: Path, text: str, *options: str, name: str = "it.c") -> Path:
    """A program or library of a C text; fails with what gcc says."""
    source, out = folder / name, folder / f"{name}.out"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [gcc(), *options, "-o", str(out), str(source)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[:3000]
    return out


def struct(random: Random, name: str) -> tuple[str, list[Leaf]]:
    """The declaration of a random struct and its leaves."""
    body, leaves = _body(random, 0, count())
    before, after = "", ""
    kind = random.random()
    if kind < 0.2:
        after = " __attribute__((packed))"
    elif kind < 0.25:
        before = "__attribute__((packed)) "
    elif kind < 0.3:
        after = f" __attribute__((packed, aligned({random.choice([1, 2, 4, 8])})))"
    elif kind < 0.35:
        after = f" __attribute__((aligned({random.choice([4, 8, 16])})))"
    text = f"struct {before}{name} {{\n{body}}}{after};\n"
    if 0.35 <= kind < 0.45:
        text = f"#pragma pack(push, {random.choice([1, 2, 4])})\n{text}#pragma pack(pop)\n"
    return text, leaves


def _body(random: Random, depth: int, numbers: Iterator[int]) -> tuple[str, list[Leaf]]:
    lines, leaves = [], list[Leaf]()
    for _ in range(random.randint(1, 9 if depth == 0 else 4)):
        n = next(numbers)  # no name stands twice
        name, pad = f"m{n}", "    " * (depth + 1)
        what = random.random()
        if what < 0.62:
            kind = random.choice([*SIZES])
            width = random.randint(1, SIZES[kind])
            if random.random() < 0.1:
                lines.append(f"{pad}{kind} : {random.choice([0, width])};")
                continue
            own = (
                " __attribute__((packed))"
                if random.random() < 0.04
                else f" __attribute__((aligned({random.choice([2, 4, 8])})))"
                if random.random() < 0.03
                else ""
            )
            lines.append(f"{pad}{kind} {name} : {width}{own}; /* of {width} bits */")
            leaves.append(Leaf(name, True))
        elif what < 0.8 or depth > 1:
            kind = random.choice(WHOLE)
            counts = [random.randint(1, 3) for _ in range(random.choice([0, 0, 0, 1, 2]))]
            own = (
                " __attribute__((packed))"
                if random.random() < 0.06
                else f" __attribute__((aligned({random.choice([2, 4, 8, 16])})))"
                if random.random() < 0.06
                else ""
            )
            lines.append(f"{pad}{kind} {name}{''.join(f'[{count}]' for count in counts)}{own};")
            leaves += [Leaf(name + index, False) for index in _indices(counts)]
        else:
            body, inner = _body(random, depth + 1, numbers)
            named = random.random() < 0.7
            if random.random() < 0.25:
                body = f"{pad}    struct {{\n{body}{pad}    }}{f' s{n}' if named else ''};\n{pad}    uint32_t view{n}[{random.randint(1, 4)}];\n"
                inner = [
                    Leaf(f"s{n}.{leaf.path}" if named else leaf.path, leaf.bits) for leaf in inner
                ]
                head = "union"
            else:
                head = "struct"
            packed = " __attribute__((packed))" if random.random() < 0.15 else ""
            counts = [random.randint(1, 3)] if named and random.random() < 0.4 else []
            lines.append(
                f"{pad}{head} {{\n{body}{pad}}}{packed}{f' {name}' if named else ''}"
                f"{''.join(f'[{count}]' for count in counts)};"
            )
            leaves += [
                Leaf(f"{name}{index}.{leaf.path}" if named else leaf.path, leaf.bits)
                for index in _indices(counts)
                for leaf in inner
            ]
    if not leaves:
        name = f"last{next(numbers)}"
        lines.append(f"uint32_t {name};")
        leaves.append(Leaf(name, False))
    return "\n".join(lines) + "\n", leaves


def _indices(counts: list[int]) -> list[str]:
    out = [""]
    for most in counts:
        out = [f"{one}[{n}]" for one in out for n in range(most)]
    return out


def places(folder: Path, structs: list[tuple[str, list[Leaf]]]) -> list[tuple[int, dict[str, int]]]:
    """(bytes, mask of the bits of each leaf) of structs named s0, s1, ..., as gcc says by a
    program that sets each.
    """
    runs = []
    for n, (_, leaves) in enumerate(structs):
        sets = "".join(
            f"    memset(&x, 0, sizeof x); {f'x.{leaf.path} = -1' if leaf.bits else f'memset(&x.{leaf.path}, 255, sizeof x.{leaf.path})'}; "
            f'show("{leaf.path}", &x, sizeof x);\n'
            for leaf in leaves
        )
        runs.append(
            f'static void run{n}(void) {{\n    struct s{n} x;\n    printf("# {n}\\n");\n{sets}}}\n'
        )
    main = (
        "int main(void) {\n"
        + "".join(f"    run{n}();\n" for n in range(len(structs)))
        + "    return 0;\n}\n"
    )
    program = compiled(
        folder,
        HEAD + "".join(text for text, _ in structs) + SHOW + "".join(runs) + main,
        "-w",
        "-O0",
    )
    told = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout
    out: list[tuple[int, dict[str, int]]] = []
    for line in told.splitlines():
        path, size, *rest = line.split(" ")
        if path == "#":
            out.append((0, {}))
        else:
            out[-1][1][path] = int(rest[0], 16)
            out[-1] = int(size), out[-1][1]
    return out
