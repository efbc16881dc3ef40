"""MIL programs as files: listed, checked, and held against what is known to go wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from npulab.captures.documents import Document, Finding
from npulab.npus.ane.training.mil import Function, Operation, Program, Value, check, quirks, read
from npulab.npus.ane.training.mil.values import File
from npulab.npus.kit import head_of, refusing
from npulab.support.files import read_bounded, text_of
from npulab.support.text import Row, plural

START = re.compile(r"(?:\s++|//[^\n]*+\n)*+program\s*+\(")
LINE = re.compile(r"line (\d+)")
MOST_TEXT, MOST_WEIGHTS = 2**23, 2**28
BESIDE = "@model_path/"  # where a program's weight files are
LOOK = 2**16
MOST_SHOWN = 60


def recognises(path: Path) -> bool:
    """A text that begins as a MIL program, behind comments."""
    return START.match(head_of(path, LOOK)) is not None


@refusing()
def list_program(path: Path) -> Document:
    """A MIL program: its functions, their operations, and what was found in it.

    An operation that is not understood, a quirk of the ANE, and weight files that are not beside
    the program are notes; names, types and shapes that do not go together are an error.  Raises
    ValueError with file, line and column for a text that is not MIL.
    """
    text = text_of(read_bounded(path, MOST_TEXT), path)
    with refusing(path):
        program = read(text)
    functions = [
        {
            "function": each.name,
            "target": each.target,
            "inputs": ", ".join(f"{kind} {name}" for name, kind in each.inputs),
            "operations": len(each.operations),
            "outputs": ", ".join(each.outputs),
        }
        for each in program.functions
    ]
    operations = [row for each in program.functions for row in _rows(each)]
    return Document(
        path.name,
        f"{path}: {program!r}",
        {
            "build info": [
                {"name": name, "value": value} for name, value in program.build_info.items()
            ],
            "functions": functions,
            "operations": operations,
        },
        [*_findings(path, program)],
    )


def _rows(function: Function) -> Iterator[Row]:
    for operation in function.operations:
        yield {
            "line": operation.line,
            "function": function.name,
            "operation": operation.op,
            "output": ", ".join(f"{kind} {name}" for name, kind in operation.outputs),
            "arguments": _arguments(operation),
        }


def _arguments(operation: Operation) -> str:
    given = [
        (name, argument)
        for name, argument in (*operation.arguments, *operation.attributes)
        if name != "name" and isinstance(argument, str | tuple | Value)
    ]
    return _cut(", ".join(f"{name}={_short(argument)}" for name, argument in given))


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
        line = LINE.search(text)
        yield Finding(int(line[1]) if line else 0, "program", text, wrong=True)
        missing = []
    used = Counter(each.op for function in program.functions for each in function.operations)
    lines = {
        each.op: each.line
        for function in program.functions
        for each in reversed(function.operations)
    }
    for op in missing:
        count = plural(used[op], "operation")
        yield Finding(lines[op], op, f"not understood ({count}): its outputs are taken as declared")
    blobs, absent = _weights(path, program)
    for name in absent:
        yield Finding(
            0, name, "weight file is not beside the program: its records are not looked at"
        )
    for quirk in quirks(program, blobs):
        yield Finding(quirk.line, quirk.op, quirk.text, quirk.source)


def _weights(path: Path, program: Program) -> tuple[dict[str, bytes], list[str]]:
    """The weight files of a program that lie beside it, and the names of the others."""
    names = dict.fromkeys(
        value.data.path
        for function in program.functions
        for operation in function.operations
        for _, value in (*operation.attributes, *operation.arguments)
        if isinstance(value, Value) and isinstance(value.data, File)
    )
    found, absent = {}, []
    for name in names:
        file = path.parent / name.removeprefix(BESIDE)
        inside = path.parent.resolve() in file.resolve().parents
        if inside and file.is_file():
            found[name] = read_bounded(file, MOST_WEIGHTS)
        else:
            absent.append(name)
    return found, absent
