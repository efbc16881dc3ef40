"""Which format a file of registers is in, and the files that a map makes in another."""

from __future__ import annotations

import re
from pathlib import Path

from npulab.bits import REQUIRED
from npulab.interop.rnndb import read_rnndb
from npulab.interop.rnndb_writing import rnndb_text
from npulab.interop.tables import COMMENT, ENUMS, RegisterTable, read_csv

FORMATS = {".xml": "rnndb XML", ".csv": "npulab's table"}
HEAD = 2 ** 16


def read_map(path: Path) -> RegisterTable:
    """The registers in a file, in by content.

    Raises ValueError with file and line for one that is broken or of no known format, FileNotFoundError for none.
    """
    with path.open("rb") as file:
        head = file.read(HEAD)
    if _is_xml(head):
        return read_rnndb(path)
    if _is_table(head):
        return read_csv(path)
    raise ValueError(f"{path}: got a file that begins {head[:20]!r}, allowed is one of {', '.join(FORMATS.values())}")


def map_files(table: RegisterTable, path: Path, to: str = "") -> dict[Path, bytes]:
    """The files that hold a map, by path: ``path`` itself, and beside a table its enums.

    The format is that of the path's suffix or of ``to``, a suffix with or without its dot.  Raises ValueError for one
    that cannot be written.
    """
    suffix = f".{to.removeprefix('.')}" if to else path.suffix
    if suffix not in FORMATS:
        allowed = ", ".join(f"{name} ({what})" for name, what in FORMATS.items())
        raise ValueError(f"{'--to' if to else path}: got {suffix or 'no suffix'}, allowed is {allowed}")
    table.check()
    if suffix == ".xml":
        return {path: rnndb_text(table).encode()}
    out = {path: table.csv().encode()}
    enums = table.enums_csv().encode()
    if enums and path.name == ENUMS:
        raise ValueError(f"{path}: got the name of the table of enums that goes beside it, allowed is another")
    return {**out, path.parent / ENUMS: enums} if enums else out


def _is_xml(head: bytes) -> bool:
    return re.match(rb"(\xef\xbb\xbf)?\s*<", head) is not None or head[:2] in (b"\xff\xfe", b"\xfe\xff")


def _is_table(head: bytes) -> bool:
    lines = head.decode("utf-8-sig", "replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith(COMMENT)), "")
    return {*REQUIRED} <= {name.strip().strip('"') for name in first.split(",")}
