"""Captures read from disk and written to it; ``folders`` describes the files of a case folder."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import (
    MOST_STARTS,
    OUTPUT_TEXT,
    TEXTS,
    Capture,
    CaptureSet,
    Job,
    Writes,
)
from npulab.captures.folders import (
    AT,
    DESCRIPTION,
    FORMATS,
    PAIRS,
    WIDE,
    capture_files,
    is_hidden,
    need_there,
    plain_name,
)
from npulab.captures.registry import stated_target, target, working_targets
from npulab.captures.target import Importer, Target
from npulab.captures.unrecognised import holds_none, sentence_of, unread_dumps
from npulab.models import is_model
from npulab.quant.layers.spellings import spelled
from npulab.registers.map import RegisterMap
from npulab.support.files import need_file, read_bounded, read_json, write_folders
from npulab.support.refuse import near, need, need_path, reason, refuse_if, refusing
from npulab.support.text import one_line

# A job in capture.json has one of the keys ``WORDS``, which names the file with the job's words or
# writes.
WORDS = ("words", "writes", f"writes{WIDE}", "commands")
MOST_BYTES = 2**30  # Each file beside capture.json has at most ``MOST_BYTES`` bytes.
MOST_NAMED = 12  # an error text names at most ``MOST_NAMED`` cases
FILES = {*WORDS, *PAIRS, *(kind + WIDE for kind in PAIRS)}
KINDS: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}


@refusing()
def load(path: str | os.PathLike[str], case: str | None = None) -> Capture:
    """The capture in a case folder, or one case of a foreign dump that a target recognises.

    Raises FileNotFoundError; ValueError (file and reason) for a broken folder, dump or case; and
    LookupError, which lists the cases, if a path holds several and ``case`` names none of them.
    """
    need_path("load", path)
    need("load: case", case, (str, type(None)), "is the name of a case")
    cases = load_cases(path)
    if case is not None:
        wrong = cases.get(case)
        if isinstance(wrong, ValueError):
            raise wrong
    found = _unbroken(cases)
    if case is None and len(cases) == 1:
        return found[0]
    names = [*found.names, *(f"{capture.target}/{capture.name}" for capture in found)]
    if case is None or case not in names:
        raise LookupError(_which_case(Path(path), case, found.names))
    return found[case]


def _which_case(path: Path, case: str | None, names: Sequence[str]) -> str:
    """The error text if a path holds several cases and ``case`` is None, or if no case has the name
    ``case``."""
    if not names:
        return holds_none(path)
    listed = ", ".join(names[:MOST_NAMED])
    more = ""
    if len(names) > MOST_NAMED:
        more = f" and {len(names) - MOST_NAMED} more"
    if case is None:
        return (
            f"{path}: holds {len(names)} captures: {listed}{more}; say which with --case "
            f"{quote(names[0])}, in Python case={names[0]!r}"
        )
    return f"{path}: got case {case!r}, it holds {listed}{more}{near(case, names)}"


@refusing()
def load_all(path: str | os.PathLike[str]) -> CaptureSet:
    """The set of all captures under a folder, or in a foreign dump.

    If some cases of a dump are broken and some are not, a UserWarning reports each broken case.
    Raises as ``load``, and ValueError for a file that no target recognises.
    """
    need_path("load_all", path)
    cases = load_cases(path)
    found = _unbroken(cases)
    for case in cases.values():
        if isinstance(case, ValueError):
            warnings.warn(str(case), UserWarning, stacklevel=2)
    return found


def _unbroken(cases: Mapping[str, Capture | ValueError]) -> CaptureSet:
    """The captures among ``cases``, without errors; raises the first error if all are errors."""
    captures = tuple(case for case in cases.values() if isinstance(case, Capture))
    errors = [case for case in cases.values() if isinstance(case, ValueError)]
    if errors and not captures:
        raise errors[0]
    return CaptureSet(captures)


def load_cases(path: str | os.PathLike[str]) -> dict[str, Capture | ValueError]:
    """Every capture by its name: the relative path under a folder, or the case in a foreign dump.
    In place of a broken case of a dump stands its ValueError.

    Raises as ``load_all`` for a broken case folder or a broken dump.
    """
    out: dict[str, Capture | ValueError] = {}
    for name, case in unloaded(path, empty=True).items():
        try:
            out[name] = case.read()
        except ValueError as error:
            if not case.of_dump:
                raise
            out[name] = error
    return out


class Case(NamedTuple):
    """A capture that is read only when ``read`` is called; it can be sent to another process."""

    reader: Callable[[], Capture]
    of_dump: bool  # True for a case of a dump, False for a case folder

    @refusing()
    def read(self, chip: str | None = None) -> Capture:
        return on_chip(self.reader(), chip)

    def torn(self, error: Exception) -> bool:
        """True if an error of ``read`` means that this case of a dump is broken: any error but a
        LookupError, such as for an unknown chip. False for a case folder."""
        return self.of_dump and not isinstance(error, LookupError)


def unloaded(path: str | os.PathLike[str], empty: bool = False) -> dict[str, Case]:
    """Every capture as a ``Case`` that is not read yet, by its name: the relative path under a
    folder, or the case in a foreign dump.

    Raises as ``case_readers``; and ValueError for a path without captures, unless ``empty``.
    """
    path = Path(path)
    cases: dict[str, Case] = {}
    if path.is_dir():
        for folder in case_folders(path):
            name = folder.relative_to(path).as_posix()
            cases[name] = Case(partial(read_folder, folder), False)
    if not cases:
        cases = {name: Case(read, True) for name, read in case_readers(path).items()}
    if not cases and not empty:
        raise ValueError(holds_none(path))
    return cases


def on_chip(capture: Capture, chip: str | None) -> Capture:
    """The capture with the name and the maps of another chip; with None the capture itself."""
    if chip is None:
        return capture
    return replace(capture, chip=chip, maps=target(capture.target).maps(chip))


def recognising(path: Path) -> Importer | None:
    """The first importer of any target that recognises a file or folder as a dump; None if there is
    none."""
    for known in working_targets():
        for importer in known.importers:
            if importer.recognises(path):
                return importer
    return None


@refusing()
def case_readers(path: str | os.PathLike[str]) -> dict[str, Callable[[], Capture]]:
    """The readers of a foreign dump, by case: each returns the capture of its case or raises
    ValueError, and can be sent to another process.

    For a folder that no target recognises, the dumps that are files in the folder are read, and the
    names are ``file`` or, if a file has several cases, ``file/case``. Raises ValueError for a path
    that no target recognises and for a dump of which no case can be read.
    """
    path = Path(path)
    need_there(path)
    if not path.is_dir():
        need_file(path)
    cases = _recognised(path)
    if cases is not None:
        return cases
    if path.is_dir():
        return _readers_in_folder(path)
    if is_model(path):
        raise ValueError(
            f"{path}: is a TensorFlow Lite model, which npulab.read_model and npulab show read, "
            "allowed is a capture"
        )
    if path.suffix == ".npz":
        raise ValueError(
            f"{path}: is an npz file, which npulab.load_sweep and npulab show read where it is a "
            "sweep, allowed is a capture"
        )
    raise ValueError(sentence_of(path))


def _recognised(path: Path) -> dict[str, Callable[[], Capture]] | None:
    """The readers of a dump by case; None if no target recognises the path as a dump."""
    importer = recognising(path)
    if importer is None:
        return None
    if importer.readers:
        return dict(importer.readers(path))
    return {case: partial(_given, found) for case, found in importer.read(path).items()}


def _readers_in_folder(folder: Path) -> dict[str, Callable[[], Capture]]:
    """The readers of the dumps that are files directly in a folder; raises ValueError if a
    ``job.json`` in it is wrong."""
    wrong = unread_dumps(folder)
    if wrong:
        raise ValueError(wrong)
    readers = {}
    for file in sorted(folder.iterdir()):
        if not file.is_file():
            continue
        cases = _readers_of_file(file)
        for case, read in cases.items():
            if len(cases) == 1:
                readers[file.name] = read
            else:
                readers[f"{file.name}/{case}"] = read
    return readers


def _readers_of_file(file: Path) -> dict[str, Callable[[], Capture]]:
    """The readers of a file by case, none if no target recognises the file. A broken file has one
    reader, "", which raises the file's error, so that other files can be read."""
    try:
        with refusing():
            return _recognised(file) or {}
    except ValueError as error:
        return {"": partial(_given, error)}


def _given(found: Capture | ValueError) -> Capture:
    if isinstance(found, ValueError):
        raise found
    return found


def case_folders(path: Path) -> list[Path]:
    """The case folders under a folder, itself included, sorted; hidden folders, which a save that
    was killed leaves, are left out."""
    return sorted(found.parent for found in path.rglob(DESCRIPTION) if not is_hidden(found, path))


def save(capture: Capture, folder: str | os.PathLike[str]) -> Path:
    """Write a capture as a case folder and return its path; if it fails, nothing is left on the
    disk.

    Raises FileExistsError if the folder exists; ValueError if the capture cannot be written.
    """
    need("save", capture, Capture, "is a Capture, as npulab.load gives, and then the folder")
    need_path("save: folder", folder)
    return save_all({Path(folder): capture})[0]


def save_all(captures: Mapping[Path, Capture]) -> list[Path]:
    """Write captures as case folders and return their paths; all of them are written or none."""
    return write_folders(
        {folder: capture_files(capture, target) for folder, capture in captures.items()}
    )


def read_folder(folder: Path) -> Capture:
    """The capture in a case folder; raises ValueError, LookupError or OSError naming the file."""
    where = folder / DESCRIPTION
    description = read_json(where)
    try:
        return _capture(folder, description)
    except (ValueError, LookupError, OSError) as error:
        text = reason(error)
        if not text.startswith(f"{folder}{os.sep}"):
            text = f"{where}: {text}"
        raise type(error)(one_line(text)) from None


def _capture(folder: Path, description: Any) -> Capture:
    d = _of(description, "the description", dict)
    if d.get("format") not in FORMATS:
        raise ValueError(
            f"format: got {d.get('format')!r}, allowed is {' or '.join(map(str, FORMATS))}"
        )
    known = stated_target(_need(d, "target", str))
    chip = _need(d, "chip", str)
    maps = known.maps(chip)
    sums = _need(d, "sha256", dict)
    files = {name: _file(folder, name, sums) for name in _names(d)}
    buffers = {name: files[file] for name, file in _need(d, "buffers", dict).items()}
    stated = _of(d.get("addresses", {}), "addresses", dict)
    addresses = {name: _address(name, text) for name, text in stated.items()}
    jobs = [_job(job, files, known, maps) for job in _need(d, "jobs", list)]
    refuse_if(not jobs, "jobs", "none", "is at least one")
    _need(d, "provenance", str)
    texts = {name: _of(d.get(name, ""), name, str) for name in (*TEXTS, OUTPUT_TEXT)}
    return Capture(
        folder.resolve().name,
        known.name,
        chip,
        tuple(jobs),
        buffers,
        addresses,
        spelled(_of(d.get("parameters", {}), "parameters", dict)),
        maps=maps,
        folder=folder.absolute(),
        **texts,
    )


def _names(description: Mapping[str, Any]) -> set[str]:
    """The names of all files of buffers and jobs in ``description``, the contents of a
    capture.json."""
    out = {_of(name, "buffers", str) for name in _need(description, "buffers", dict).values()}
    for first in _need(description, "jobs", list):
        job: Any = first
        for _ in range(MOST_STARTS + 1):
            found = _of(job, "jobs", dict)
            out |= {_of(found[kind], f"jobs {kind}", str) for kind in FILES if kind in found}
            if "start" not in found:
                break
            job = found["start"]
        else:
            raise ValueError(
                f"jobs: got a job with start nested more than {MOST_STARTS} deep, allowed is a "
                f"depth of {MOST_STARTS}"
            )
    return out


def _job(
    d: Mapping[str, Any],
    files: Mapping[str, bytes],
    of: Target,
    maps: Mapping[str, RegisterMap],
) -> Job:
    kinds, block = [kind for kind in WORDS if kind in d], _need(d, "block", str)
    refuse_if(
        len(kinds) != 1 or block not in maps,
        "jobs",
        f"block {block!r} with {kinds}",
        f"is one of {', '.join(maps)} with one of words, writes, commands",
    )
    name = d[kinds[0]]
    data = files[name]
    refuse_if(len(data) % 4, name, f"{len(data)} bytes", "is a multiple of 4, for 32-bit words")
    words = np.frombuffer(data, "<u4")
    if AT in d:
        words = _words_at(name, words, d[AT], len(maps[block]))
    more: dict[str, Any] = {}
    for key in ("label", "unit"):
        more[key] = _of(d.get(key, ""), f"jobs {key}", str)
    if "start" in d:
        more["start"] = _job(d["start"], files, of, maps)
    if kinds == ["words"]:
        if len(words) != len(maps[block]):
            raise ValueError(
                f"{name}: got {len(words)} words, allowed are {len(maps[block])} words "
                f"(block {block})"
            )
        return Job(block, words, **more)
    if kinds == ["commands"]:
        writes = of.writes(words)
    else:
        writes = _pairs("writes", d, files)
    before, masks = _pairs("before", d, files), dict(_pairs("masks", d, files))
    if masks and max(masks) >= len(writes):
        raise ValueError(
            f"{d['masks']}: got a mask for write {max(masks)}, allowed are writes below "
            f"{len(writes)}"
        )
    job = replace(Job.from_writes(block, writes, maps[block]), before=before, **more)
    return replace(job, masks=masks or job.masks).read_with(maps[block])


def _words_at(name: str, words: Array, at: Any, count: int) -> Array:
    """The ``count`` words of a job that begin at byte ``at`` of a file of several jobs."""
    whole = isinstance(at, int) and not isinstance(at, bool)
    if not whole or at % 4 or not 0 <= at <= 4 * (len(words) - count):
        raise ValueError(
            f"{name}: got {AT} {at!r}, allowed is a multiple of 4 from which {count} words follow "
            f"in the file's {4 * len(words)} bytes"
        )
    return words[at // 4 : at // 4 + count]


def _pairs(kind: str, d: Mapping[str, Any], files: Mapping[str, bytes]) -> Writes:
    """The pairs of numbers in the file that a job names under the key ``kind`` (32 bits each) or
    under ``kind`` + "64" (64 bits each); () if the job has neither key."""
    for key, words in ((kind, np.dtype("<u4")), (kind + WIDE, np.dtype("<u8"))):
        if key in d:
            if len(files[d[key]]) % (2 * words.itemsize):
                raise ValueError(
                    f"{d[key]}: got {len(files[d[key]])} bytes, allowed are whole pairs "
                    f"(offset, value) of {8 * words.itemsize}-bit words"
                )
            pairs = np.frombuffer(files[d[key]], words).reshape(-1, 2).tolist()
            return tuple((first, second) for first, second in pairs)
    return ()


def _file(folder: Path, name: str, sums: Mapping[str, str]) -> bytes:
    """The bytes of a file that lies in the folder itself and has the stated sha256."""
    plain_name(name, "file")
    path = folder / name
    if path.is_symlink():
        raise ValueError(f"{name}: is a link, allowed is a file that lies in the folder")
    if not path.is_file():
        raise ValueError(f"{name}: there is no such file in the folder")
    data = read_bounded(path, MOST_BYTES)
    got = hashlib.sha256(data).hexdigest()
    if name not in sums or sums[name] != got:
        raise ValueError(
            f"{name}: got sha256 {got}, {DESCRIPTION} says {sums.get(name, 'nothing')}; if the "
            "file was changed on purpose, correct the sha256 there"
        )
    return data


def _address(name: str, text: Any) -> int:
    try:
        return int(str(text), 0)
    except ValueError:
        raise ValueError(
            f'addresses, {name}: got {text!r}, allowed is a number such as "0x3348e240"'
        ) from None


def _need(description: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in description:
        raise ValueError(f"{name}: is missing, a capture.json has it as {KINDS[kind]}")
    return _of(description[name], name, kind)


def _of(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: got {value!r:.80}, allowed is {KINDS[kind]}")
    return value
