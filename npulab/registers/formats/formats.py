"""The formats of register maps: reading a file of any format, and writing a map in any format."""

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
    """A format: its suffix, its name for people (``what``), and the functions that write and read
    it, as ``module:name``. A blank ``read`` means that it is not read, a blank ``write`` that it is
    npulab's own table."""

    suffix: str
    what: str
    write: str
    read: str = ""


# the formats, by the name that --to takes; a suffix that several have means the first of them
FORMATS = {
    row.pop("format"): Format(**row) for row in read_table(Path(__file__).with_name("formats.csv"))
}
HEAD = 2**16  # a format is recognised by so many first bytes of a file
OPTIONS = {"xml": ("include",), "struct": ("define", "include")}  # the options of a format
ROOTS = {"database": "xml", "device": "svd"}  # formats of XML, by their root element


@refusing()
def read_map(
    path: Path | str, define: Sequence[str] = (), include: Sequence[Path | str] = ()
) -> RegisterTable:
    """Return the registers in a file, in the format that its content shows: npulab's table, rnndb
    XML, SystemRDL, CMSIS-SVD or a C header.

    If a C header needs other headers, ``include`` names their files, or ``define`` (``NAME=VALUE``)
    states their names; ``reading`` of the returned table says what of the header is lost. For
    rnndb, ``include`` are folders with the files that it imports. A UserWarning counts and names
    what the table has no place for. Raises ValueError for a file that is broken (with the line) or
    in no known format, FileNotFoundError if there is no file.
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
    if given.keys() - {*OPTIONS.get(known, ())}:
        raise ValueError(
            f"{path}: got define or include for {FORMATS[known].what}, allowed are both for a C "
            "header, and include alone for rnndb XML"
        )
    reader, collects = _function(FORMATS[known].read), gc.isenabled()
    gc.disable()  # the garbage collector would look again and again at rows that are all needed
    try:
        table: RegisterTable = reader(path, **given)
    finally:
        if collects:
            gc.enable()
    return table


def format_of(head: bytes) -> str:
    """Return the format (a key of FORMATS) of a file from its first bytes; blank if it is in no
    known format.

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
    """Write a register map into new files, and return the files; if one cannot be written, none is.

    ``to`` is a key of FORMATS or a suffix; by default, the path's suffix decides. With
    ``features``, the files hold the map of a chip that has these features, as ``of_chip`` makes it.
    If the file of enums beside a table exists with the same text, it stays and is not returned.
    Raises ValueError for a format or a map that cannot be written, FileExistsError if any other
    file exists already.

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

    The returned rows have no feature. Raises ValueError for a feature that no row has, and if two
    rows of the chip overlap.
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
    """Return the bytes of the files that hold a map, by path. They are ``path`` itself and, for
    npulab's table, its enums in ``enums.csv`` beside it, or in ``NAME.enums.csv`` if ``enums.csv``
    exists and has other enums.

    ``to`` is a key of FORMATS, or a suffix with or without its dot; by default, the path's suffix
    decides. Raises ValueError for an unknown format, and for a map that cannot be
    written.
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
            f"{path}: got the name of the table of enums that lies next to it, "
            "allowed is any other name"
        )
    if shared.is_file() and shared.read_bytes() != enums and shared != path:
        return {**out, own_enums(path): enums or table_text(ENUM_COLUMNS, []).encode()}
    if enums:
        return {**out, shared: enums}
    return out


def _written_format(path: Path, to: str) -> Format:
    """Return the format that ``to`` names, by its name or suffix; by default, the suffix of the
    path decides."""
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
    """Return the reader or writer ``module:name``; its module is imported on first use."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(f"npulab.registers.formats.{module}"), function)


def _is_table(head: bytes) -> bool:
    """True if the first line that is not a comment has the columns of a table."""
    lines = head.decode("utf-8-sig", "replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith(COMMENT)), "")
    return {*REQUIRED} <= {name.strip().strip('"') for name in first.split(",")}
