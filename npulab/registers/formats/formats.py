"""The formats of register maps: which format a file is in, and the files that hold a map in
another."""

from __future__ import annotations

import gc
import importlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npulab.registers.formats.tables import COMMENT, ENUM_COLUMNS, RegisterTable, table_text
from npulab.registers.map import need_features
from npulab.registers.table import ENUMS, REQUIRED, own_enums
from npulab.support.files import first_bytes, need_file, read_table, write_files
from npulab.support.kinds import EMPTY, kind_of
from npulab.support.refuse import need, need_path, refuse_if, refusing


class Format(NamedTuple):
    """A format: its suffix, its name for people, and the functions that write and read it
    (``module:name``; blank for none)."""

    suffix: str
    what: str
    write: str
    read: str = ""


# by what --to calls it; where several have a suffix, the suffix alone means the first
FORMATS = {
    row.pop("format"): Format(**row) for row in read_table(Path(__file__).with_name("formats.csv"))
}
HEAD = 2**16  # bytes of a file by which its format is found
ROOTS = {"database": "xml", "device": "svd"}


@refusing()
def read_map(
    path: Path | str, define: Sequence[str] = (), include: Sequence[Path | str] = ()
) -> RegisterTable:
    """Return the registers in a file, in the format that its content shows: npulab's table, rnndb
    XML, SystemRDL, CMSIS-SVD or a C header.

    ``define`` (``NAME=VALUE``) and ``include`` (files) stand for the other headers that a C header
    needs; ``reading`` of the returned table says what of the header is lost. For rnndb, ``include``
    are folders with the files that it imports. A UserWarning counts and names what the table has no
    place for. Raises ValueError with file and line for a file that is broken or of no known format,
    FileNotFoundError if there is no file.
    """
    need_path("read_map", path)
    path = Path(path)
    need_file(path)
    head = first_bytes(path, HEAD)
    known = format_of(head)
    if not known:
        allowed = dict.fromkeys(one.what for one in FORMATS.values() if one.read)
        what = kind_of(head) or f"bytes that begin {head[:8].hex(' ')}"
        if what == EMPTY:
            got = "an empty file"
        else:
            got = what
        raise ValueError(f"{path}: got {got}, allowed is one of {', '.join(allowed)}")
    given: dict[str, Any] = {}
    if define:
        given["define"] = define
    if include:
        given["include"] = [*map(Path, include)]
    taken = {"xml": ("include",), "struct": ("define", "include")}.get(known, ())
    if given.keys() - {*taken}:
        raise ValueError(
            f"{path}: got define or include for {FORMATS[known].what}, allowed are both for a C "
            "header, and include alone for rnndb XML"
        )
    reader, collects = _function(FORMATS[known].read), gc.isenabled()
    gc.disable()  # the garbage collector would pass again and again over rows that stay
    try:
        table: RegisterTable = reader(path, **given)
    finally:
        if collects:
            gc.enable()
    return table


def format_of(head: bytes) -> str:
    """Return the format of a file by its beginning, in the words of ``--to``; blank for none.

    >>> format_of(b"<?xml version='1.0'?><!-- a --><device/>")
    'svd'
    >>> format_of(b"addrmap a { reg {} b; };")
    'rdl'
    """
    from npulab.registers.formats.c_reading import is_c
    from npulab.registers.formats.systemrdl import is_rdl

    if re.match(rb"(\xef\xbb\xbf)?\s*<(?!%)", head) or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        plain = re.sub(rb"<!--.*?-->|<\?.*?\?>|\0", b"", head, flags=re.DOTALL)
        root = re.search(rb"<(?:[\w.-]+:)?(\w+)", plain)
        return ROOTS.get(root[1].decode() if root else "", "xml")
    if _is_table(head):
        return "csv"
    if is_rdl(head):
        return "rdl"
    if is_c(head):
        return "struct"
    return ""


def write_map(
    table: RegisterTable,
    path: Path | str,
    to: str = "",
    features: Iterable[str] | None = None,
) -> list[Path]:
    """Write a register map into new files, all of them or none, and return them.

    The format follows from the path's suffix or ``to``, one of FORMATS; with ``features`` the
    files hold the map of a chip that has these features, as ``of_chip`` makes it. A file of
    enums next to a table stays if it has the same text. Raises ValueError for a format or a map
    that cannot be written, FileExistsError if a file exists already.

    >>> import npulab
    >>> table = npulab.read_map("registers.svd")  # doctest: +SKIP
    >>> npulab.write_map(table, "registers.h", to="macros")  # doctest: +SKIP
    """
    need("write_map", table, RegisterTable, "is a RegisterTable, as npulab.read_map gives")
    need_path("write_map: path", path)
    need("write_map: to", to, str, f"is one of {', '.join(FORMATS)}")
    path = Path(path)
    if features is not None:
        table = of_chip(table, features)
    files = map_files(table, path, to)
    for file in {*files} - {path}:
        if file.is_file() and file.read_bytes() == files[file]:
            del files[file]
    return write_files(files)


def of_chip(table: RegisterTable, features: Iterable[str]) -> RegisterTable:
    """Return the map of a chip: the rows without a feature, and the rows of its ``features``.

    The returned rows have no feature. Raises ValueError for a feature that no row has, and if rows
    of two of the features overlap.
    """
    wanted = {*need_features("of_chip", features)}
    unknown = sorted(wanted - {*table.features})
    if unknown:
        raise ValueError(
            f"feature: got {unknown[0]!r}, allowed is one of {', '.join(table.features) or 'none'}"
        )
    rows = [{**row, "feature": ""} for row in table.rows if row.get("feature", "") in ("", *wanted)]
    out = RegisterTable.of(rows, table.enums, table.copyright, table.by_address)
    out.check()
    return out


def of_blocks(table: RegisterTable, blocks: Iterable[str]) -> RegisterTable:
    """Return the map of some blocks with the enums that they use; raises ValueError for a block
    that the table does not have."""
    wanted, known = [*blocks], dict.fromkeys(row.get("block", "") for row in table.rows)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"block: got {unknown[0]!r}, allowed is one of {', '.join(known)}")
    rows = [row for row in table.rows if row.get("block", "") in wanted]
    used = " ".join(str(row.get("value", "")) for row in rows).split()
    enums = {name: codes for name, codes in table.enums.items() if f"enum:{name}" in used}
    return RegisterTable.of(rows, enums, table.copyright, table.by_address)


def map_files(table: RegisterTable, path: Path, to: str = "") -> dict[Path, bytes]:
    """Return the files that hold a map, by path: ``path`` itself and, for a table, its enums
    next to it, in a file of their own if another map's enums lie there.

    The format follows from the path's suffix or from ``to``, one of FORMATS or a suffix with or
    without its dot. Raises ValueError for a format that cannot be written.
    """
    known = _written_format(path, to)
    refuse_if(not table.rows, path, "a map without a field", "is one that has some")
    table.check()
    if known.write:
        return {path: str(_function(known.write)(table)).encode()}
    out = {path: table.csv().encode()}
    enums, shared = table.enums_csv().encode(), path.parent / ENUMS
    if path == shared and enums:
        raise ValueError(
            f"{path}: got the name of the table of enums that lies next to it, allowed is another"
        )
    if shared.is_file() and shared.read_bytes() != enums and shared != path:
        return {**out, own_enums(path): enums or table_text(ENUM_COLUMNS, []).encode()}
    if enums:
        return {**out, shared: enums}
    return out


def _written_format(path: Path, to: str) -> Format:
    """The format that a name or suffix asks for, by default the suffix of the path."""
    if to in FORMATS:
        return FORMATS[to]
    suffix, got = path.suffix, f"{path}: got {path.suffix or 'no suffix'}"
    if to:
        suffix, got = f".{to.removeprefix('.')}", f"--to: got {to}"
    allowed = []
    for name, known in FORMATS.items():
        if known.suffix == suffix:
            return known
        if name == known.suffix[1:]:
            allowed.append(f"{known.suffix} ({known.what})")
        else:
            allowed.append(f"{name} ({known.what}, {known.suffix})")
    raise ValueError(f"{got}, allowed is {', '.join(allowed)}")


def _function(name: str) -> Any:
    """The reader or writer ``module:name``, imported on first use."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(f"npulab.registers.formats.{module}"), function)


def _is_table(head: bytes) -> bool:
    """True if the first line that is not a comment has the columns of a table."""
    lines = head.decode("utf-8-sig", "replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith(COMMENT)), "")
    return {*REQUIRED} <= {name.strip().strip('"') for name in first.split(",")}
