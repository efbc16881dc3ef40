"""Error texts about files and folders that no target recognises: they say what the file is, and
what to do next."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from npulab.captures.dumps import DESCRIPTION, WORDS, WRITES, described, stated_npu
from npulab.captures.folders import DESCRIPTION as CAPTURE
from npulab.captures.registry import LOCAL, stated_target, targets
from npulab.models.sweeps import PARAMETERS as SWEEP
from npulab.registers.fields import WORD_BYTES
from npulab.registers.table import MOST_WORDS
from npulab.support.files import first_bytes
from npulab.support.kinds import EMPTY, kind_of
from npulab.support.refuse import named, near, reason
from npulab.support.text import Row, plural

HEAD = 4096
SWEPT = "npulab import FILE SWEEP --words N"
FORMATS = "npulab list --formats names what they read"


def formats() -> list[Row]:
    """A row (``target``, ``format``) for each format of files that a target reads; a target that
    does not load has one row, whose ``format`` is "none: " and the error."""
    rows: list[Row] = []
    for name in targets():
        try:
            known = stated_target(name)
            kinds = [importer.name for importer in known.importers]
            kinds += [f"{kind.name}, by show and check" for kind in known.documents]
            rows += [{"target": name, "format": kind} for kind in kinds]
        except ValueError as error:
            rows.append({"target": name, "format": f"none: {error}"})
    return rows


def sentence_of(path: Path) -> str:
    """The error text for a file that no target recognises: its kind, what to do with it, and the
    errors of targets that do not load."""
    parts = [_kind_and_step(path)]
    for row in formats():
        error = row["format"].removeprefix("none: ")
        if error != row["format"]:
            parts.append(error)
    return "; ".join(parts)


def unread_dumps(path: Path) -> str:
    """The reason why no target reads the dumps (folders with a ``job.json``) in a folder; "" if
    there are none."""
    wrong = [_refused_by(folder) for folder in described(path)]
    if len(wrong) > 1:
        return (
            f"{wrong[0]}; {plural(len(wrong) - 1, 'other folder')} of {path} cannot be read either"
        )
    if wrong:
        return wrong[0]
    return ""


def holds_none(path: Path) -> str:
    """The error text for a path that holds no capture, with what to do next if that can be told."""
    if (path / SWEEP).is_file():
        return f"{path}: holds no capture, npulab.models.check_sweep checks a sweep of models"
    return (
        f"{path}: holds no capture, allowed is a case folder, or a dump that a target recognises"
        f"{undescribed(path)}"
    )


def undescribed(path: Path) -> str:
    """The end of the error text for a path without captures; "" if nothing can be added.

    If a ``job.json`` or ``capture.json`` in the folder, or in a folder directly in it, is not a
    file, the text says so. Otherwise, if one of these folders holds recorded files but no
    ``job.json``, the text has the shell command that makes a ``job.json``.
    """
    folders = _with_folders(path)
    for inner in folders:
        wrong = _no_file(inner)
        if wrong:
            return f"; {wrong}"
    recorded = {}
    for inner in folders:
        name = _recorded(inner)
        if name:
            recorded[inner] = name
    if not recorded:
        return ""
    folder, name = next(iter(recorded.items()))
    others, count = "", len(recorded) - 1
    if count:
        lack = "lack"
        if count == 1:
            lack = "lacks"
        others = f"; {plural(count, 'other folder')} in {path} {lack} it too"
    line = f'echo \'{{"npu": "NAME"}}\' > {quote(str(folder / DESCRIPTION))}'
    return (
        f"; {folder / name} lies there without {DESCRIPTION}, which this line makes, with an NPU "
        f"of npulab list --formats or npulab new (npulab import {quote(str(path))} sweep.npz "
        f"--parameters layers.csv needs none to make a sweep of words): {line}{others}"
    )


def _with_folders(path: Path) -> list[Path]:
    """The folder and the folders directly in it; an empty list for a file."""
    if path.is_dir():
        return [path, *sorted(inner for inner in path.iterdir() if inner.is_dir())]
    return []


def _no_file(folder: Path) -> str:
    """The sentence that the folder's ``capture.json`` or ``job.json`` is not a file, but for
    example a link to nowhere or a pipe; "" if each is a file or missing."""
    for file in (folder / CAPTURE, folder / DESCRIPTION):
        if not os.path.lexists(file) or file.is_file():
            continue
        if file.is_symlink():
            place = f"{str(file.readlink())!r:.80}"
            return f"{file} is a link to {place}, which is no file that can be read"
        kind = "no file that can be read"
        if file.is_dir():
            kind = "a folder"
        return f"{file} is {kind}, allowed is a file"
    return ""


def _recorded(folder: Path) -> str:
    """The name of a recorded file in a folder; "" if the folder has a ``job.json``, or no recorded
    file."""
    names = sorted(file.name for file in folder.iterdir() if file.is_file())
    if DESCRIPTION in names:
        return ""
    for name in (WORDS, WRITES, *names):
        if name in names and (name == WRITES or name.endswith(".bin")):
            return name
    return ""


def _refused_by(folder: Path) -> str:
    """The error text that says why the NPU named in a folder's ``job.json`` does not read it."""
    where = folder / DESCRIPTION
    try:
        npu, known = stated_npu(folder), targets()
        if npu not in known:
            begin = near(npu, known) or f"; npulab new {npu} begins one"
            return (
                f"{where}: npu: got {npu!r:.60}, allowed is one of {', '.join(known)} (a folder in "
                f"./{LOCAL} counts too){begin}"
            )
        readers = ", ".join(importer.name for importer in stated_target(npu).importers)
    except (ValueError, LookupError, OSError) as error:
        return named(where, reason(error))
    return f"{where}: npu: {npu} does not read such a folder, it reads {readers or 'nothing yet'}"


def _kind_and_step(path: Path) -> str:
    size = path.stat().st_size
    head = first_bytes(path, HEAD)
    kind = kind_of(head)
    if kind == EMPTY:
        return f"{path}: is empty, allowed is a dump that a target recognises; record it again"
    if kind:
        return f"{path}: is {kind}, no target recognises this file; {FORMATS}"
    words, rest = divmod(size, WORD_BYTES)
    if rest or not 2 <= words <= MOST_WORDS:
        return f"{path}: is {plural(size, 'byte')}, no target recognises this file; {FORMATS}"
    begin = f"npulab new NAME --words {words}"
    if path.suffix == ".bin":
        begin = f"npulab new NAME --from {path}"
    return (
        f"{path}: is {plural(words, 'word')} of 32 bits or other bytes, no target recognises this "
        f"file; {FORMATS}; words without a target: {SWEPT}, or begin with {begin}"
    )
