"""Files and folders that no target recognises, told as what they are, with the next step."""

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
FORMATS = "npulab list --formats names what they read"


def formats() -> list[Row]:
    """The dumps that targets read: target and format; of a broken target what is wrong."""
    rows: list[Row] = []
    for name in targets():
        try:
            of = stated_target(name)
            rows += [{"target": name, "format": importer.name} for importer in of.importers]
            rows += [
                {"target": name, "format": f"{kind.name}, by show and check"}
                for kind in of.documents
            ]
        except ValueError as error:
            rows.append({"target": name, "format": f"none: {error}"})
    return rows


def sentence_of(path: Path) -> str:
    """What a file is that no target recognises, what to do with it, and targets that are broken."""
    broken = [
        row["format"].removeprefix("none: ")
        for row in formats()
        if row["format"].startswith("none: ")
    ]
    return "; ".join([_what(path), *broken])


def unread_dumps(path: Path) -> str:
    """Why no target reads the descriptions of dumps in a folder that none recognises; "" without
    a description."""
    wrong = [_wrong(folder) for folder in described(path)]
    if len(wrong) > 1:
        return (
            f"{wrong[0]}; {plural(len(wrong) - 1, 'other folder')} of {path} cannot be read either"
        )
    if wrong:
        return wrong[0]
    return ""


def holds_none(path: Path) -> str:
    """That a folder holds no capture, with what may be meant."""
    if (path / SWEEP).is_file():
        return f"{path}: holds no capture, npulab.models.check_sweep checks a sweep of models"
    return (
        f"{path}: holds no capture, allowed is a case folder, or a dump that a target recognises"
        f"{undescribed(path)}"
    )


def undescribed(path: Path) -> str:
    """The end of a refusal of a folder without captures: a description in it, or in a folder of it,
    that is no file; else the line that makes the description of what was recorded there; "" where
    nothing was."""
    folders = _with_folders(path)
    for one in folders:
        wrong = _no_file(one)
        if wrong:
            return f"; {wrong}"
    recorded = {}
    for one in folders:
        file = _recorded(one)
        if file:
            recorded[one] = file
    if not recorded:
        return ""
    folder, file = next(iter(recorded.items()))
    count = len(recorded) - 1
    others = ""
    if count:
        others = (
            f"; {plural(count, 'other folder')} in {path} lack{'s' if count == 1 else ''} it too"
        )
    line = f'echo \'{{"npu": "NAME"}}\' > {quote(str(folder / DESCRIPTION))}'
    return (
        f"; {folder / file} lies there without {DESCRIPTION}, which this line makes, with an NPU "
        "of npulab list "
        f"--formats or npulab new: {line}{others}"
    )


def _with_folders(path: Path) -> list[Path]:
    """A folder and those in it; none where it is a file."""
    if path.is_dir():
        return [path, *sorted(one for one in path.iterdir() if one.is_dir())]
    return []


def _no_file(folder: Path) -> str:
    """That a description is there and cannot be read, as a link to nowhere or to a pipe cannot; ""
    where
    none is, or can."""
    for file in (folder / CAPTURE, folder / DESCRIPTION):
        if not os.path.lexists(file) or file.is_file():
            continue
        if file.is_symlink():
            return f"{file} is a link to {str(file.readlink())!r:.80}, which is no file that can be read"
        return f"{file} is {'a folder' if file.is_dir() else 'no file that can be read'}, allowed is a file"
    return ""


def _recorded(folder: Path) -> str:
    """The name of a file of a dump in a folder that says not what it is of; "" if there is none."""
    names = sorted(file.name for file in folder.iterdir() if file.is_file())
    dumped = [
        name
        for name in (WORDS, WRITES, *names)
        if name in names and (name == WRITES or name.endswith(".bin"))
    ]
    if dumped and DESCRIPTION not in names:
        return dumped[0]
    return ""


def _wrong(folder: Path) -> str:
    """Why no target reads a folder by its description."""
    where = folder / DESCRIPTION
    try:
        npu, known = stated_npu(folder), targets()
        if npu not in known:
            begin = near(npu, known) or f"; npulab new {npu} begins one"
            return (
                f"{where}: npu: got {npu!r:.60}, allowed is one of {', '.join(known)} (a folder in "
                f"./{LOCAL} "
                f"counts too){begin}"
            )
        readers = ", ".join(importer.name for importer in stated_target(npu).importers)
    except (ValueError, LookupError, OSError) as error:
        return named(where, reason(error))
    return f"{where}: npu: {npu} does not read such a folder, it reads {readers or 'nothing yet'}"


def _what(path: Path) -> str:
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
    if path.suffix == ".bin":
        begin = f"npulab new NAME --from {path}"
    else:
        begin = f"npulab new NAME --words {words}"
    return (
        f"{path}: is {plural(words, 'word')} of 32 bits or other bytes, no target recognises this "
        f"file; {FORMATS}, "
        f"words of an NPU that has no target begin with {begin}"
    )
