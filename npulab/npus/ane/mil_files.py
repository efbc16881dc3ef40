"""Files of MIL programs: their operations listed, checked, and compared with known quirks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from npulab.captures.documents import Document, Finding
from npulab.npus.ane.training.mil import Operation, Program, Value, check, quirks, read
from npulab.npus.ane.training.mil.values import File
from npulab.npus.kit import head_of, refusing
from npulab.support.files import read_bounded, text_of
from npulab.support.text import Row, plural

START = re.compile(r"(?:\s++|//[^\n]*+\n)*+program\s*+\(")
LINE = re.compile(r"line (\d+)")
MOST_TEXT, MOST_WEIGHTS = 2**23, 2**28
# In the paths of weight files, this text stands for the program's folder.
BESIDE = "@model_path/"
LOOK = 2**16
MOST_SHOWN = 60


def recognises(path: Path) -> bool:
    """Return true if a file begins with a MIL program; comments may stand before it."""
    return START.match(head_of(path, LOOK)) is not None


@refusing()
def list_program(path: Path) -> Document:
    """Return the document of a MIL file: its functions, their operations, and findings.

    Wrong names, types or shapes are a finding that is an error. Operations without a rule, quirks
    of the ANE, and weight files that are not in the program's folder are findings that are notes.
    Raises ValueError, with file, line and column, for a text that is not MIL.
    """
    text = text_of(read_bounded(path, MOST_TEXT), path)
    with refusing(path):
        program = read(text)
    info = [{"name": name, "value": value} for name, value in program.build_info.items()]
    functions: list[Row] = []
    operations: list[Row] = []
    for function in program.functions:
        functions.append(
            {
                "function": function.name,
                "target": function.target,
                "inputs": _typed(function.inputs),
                "operations": len(function.operations),
                "outputs": ", ".join(function.outputs),
            }
        )
        for operation in function.operations:
            operations.append(
                {
                    "line": operation.line,
                    "function": function.name,
                    "operation": operation.op,
                    "output": _typed(operation.outputs),
                    "arguments": _arguments(operation),
                }
            )
    tables = {"build info": info, "functions": functions, "operations": operations}
    return Document(path.name, f"{path}: {program!r}", tables, [*_findings(path, program)])


def _typed(pairs: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{kind} {name}" for name, kind in pairs)


def _arguments(operation: Operation) -> str:
    given = []
    for name, argument in (*operation.arguments, *operation.attributes):
        if name != "name" and isinstance(argument, str | tuple | Value):
            given.append(f"{name}={_short(argument)}")
    return _cut(", ".join(given))


def _short(argument: str | tuple[str | Value, ...] | Value) -> str:
    if isinstance(argument, Value):
        data = argument.data
        if isinstance(data, File):
            return f"{data.path}+{data.offset}"
        return _cut(str(data))
    if isinstance(argument, str):
        return argument
    return f"({', '.join(map(_short, argument))})"


def _cut(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[: MOST_SHOWN - 3]}..."


def _findings(path: Path, program: Program) -> Iterator[Finding]:
    try:
        missing = check(program)
    except ValueError as error:
        text = str(error).removeprefix("mil: ")
        found = LINE.search(text)
        line = int(found[1]) if found else 0
        yield Finding(line, "program", text, wrong=True)
        missing = []
    lines: dict[str, list[int]] = defaultdict(list)
    for operation in _operations(program):
        lines[operation.op].append(operation.line)
    for op in missing:
        count = plural(len(lines[op]), "operation")
        text = f"not understood ({count}): its outputs are taken as declared"
        yield Finding(lines[op][0], op, text)
    blobs, absent = _weights(path, program)
    for name in absent:
        text = "weight file is not in the folder of the program: its records are not checked"
        yield Finding(0, name, text)
    for quirk in quirks(program, blobs):
        yield Finding(quirk.line, quirk.op, quirk.text, quirk.source)


def _operations(program: Program) -> Iterator[Operation]:
    for function in program.functions:
        yield from function.operations


def _weights(path: Path, program: Program) -> tuple[dict[str, bytes], list[str]]:
    """Return the bytes of the weight files by their path in the program, and the missing paths.

    A path outside of the program's folder counts as missing.
    """
    names: dict[str, None] = {}
    for operation in _operations(program):
        for _, value in (*operation.attributes, *operation.arguments):
            if isinstance(value, Value) and isinstance(value.data, File):
                names[value.data.path] = None
    found, absent = {}, []
    for name in names:
        file = path.parent / name.removeprefix(BESIDE)
        inside = path.parent.resolve() in file.resolve().parents
        if inside and file.is_file():
            found[name] = read_bounded(file, MOST_WEIGHTS)
        else:
            absent.append(name)
    return found, absent
