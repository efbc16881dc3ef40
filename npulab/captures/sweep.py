"""A sweep: the words of many captures of one target, with the parameters of the layer of each."""

from __future__ import annotations

import hashlib
import html
import io
import math
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import (
    CHANGED,
    PROVENANCES,
    TEXTS,
    Capture,
    CaptureSet,
    Job,
    is_records,
)
from npulab.captures.folders import is_hidden
from npulab.captures.registry import stated_target
from npulab.captures.store import load_all
from npulab.captures.unrecognised import undescribed
from npulab.quant.layers.spellings import spelled
from npulab.registers.map import RegisterMap
from npulab.support.files import opened, read_bounded, write_file
from npulab.support.late import pd
from npulab.support.refuse import near, need, need_path, refuse_if, refusing, shortly
from npulab.support.text import part_said, plural, six_digits

SUFFIX = ".npz"
STORE = ".store"  # end of the name of a store, a folder of Parquet parts
SUFFIXES = (SUFFIX, STORE)
HEAD = "store.json"  # the file that makes a folder a store
ARRAYS = ("words", "parameters", "names")
# the fields of Sweep that are texts and say where the captures come from
SWEEP_TEXTS = ("target", "chip", "block", *TEXTS, "looked_at")
# the name of the array in a sweep's file that has the sha256 of all other arrays; files written by
# numpy or by an older version of npulab lack this array
SUM = "sha256"
VERSION = 1  # ``VERSION`` is that of the file format.
STATED = "version"  # The array ``STATED`` has the version; files of npulab 0.1 lack this array.
MEMBERS = (*ARRAYS, *SWEEP_TEXTS, STATED, SUM)
# a sweep's file has at most ``MOST_BYTES`` bytes, and so have its unpacked arrays in all: 60,000
# captures of 1,000 words fit
MOST_BYTES = 2**28
WRITERS = "npulab.captures.sweep.save_sweep and numpy.savez"
WHOLE = 2**53  # a file has parameters as float64, which is exact for whole numbers to ``WHOLE``
MOST_LISTED = 16  # a list of more than ``MOST_LISTED`` elements is a tensor and becomes no columns
MOST_PARAMETERS = 2**18  # a sweep has at most ``MOST_PARAMETERS`` columns, each its own array
NPY_VERSIONS = ((1, 0), (2, 0), (3, 0))  # numpy writes npy files of ``NPY_VERSIONS``.
LAST_LETTER = 0x10FFFF  # ``LAST_LETTER`` is the last code point of Unicode.
SURROGATES = (0xD800, 0xDFFF)  # the code points of this range are halves of letters
AXES = {
    "kernel": "hw",
    "stride": "hw",
    "dilation": "hw",
    "input_shape": "hwc",
    "output_shape": "hwc",
}
STAMP = (1980, 1, 1, 0, 0, 0)  # files have the date ``STAMP``, so equal sweeps give equal bytes
PART = re.compile(r"\d+ of (?=\d+ )")  # in ``looked_at`` of some rows, ``PART`` comes first
CELL = "style='text-align:left'"


@dataclass(frozen=True, eq=False)
class Sweep:
    """Many captures of one target with the parameters of their layers.

    ``words`` are ``(N, W) uint32``, a row for one job of each capture, or for each job of one role.
    If the captures have further jobs, ``looked_at`` says which jobs the rows are: "60 jobs GEMM of
    823 jobs of 60 captures". ``parameters`` is a DataFrame of N rows, or a mapping of columns, with
    int64 for columns of whole numbers and float64 for the others. ``target``, ``chip`` and
    ``block`` say what the words belong to, or are empty if that is not known; ``registers`` is the
    map of that block, or None. ``provenance`` is one of ``capture.PROVENANCES`` or empty.
    ``sweep[:100]``, or an index or mask of rows, is a sweep of those rows.

    Raises ValueError (what, got, allowed) if words and parameters have different numbers of rows,
    if a word is no whole number of 32 bits, and if a parameter is no finite number.

    >>> Sweep([[1, 0], [3, 0]], {"input_w": [8, 16]}, name="two")
    Sweep(two: 2 captures of 2 words, 1 bit varies, 1 parameter)
    """

    words: Array
    parameters: pd.DataFrame
    name: str = ""
    target: str = ""
    chip: str = ""
    block: str = ""
    provenance: str = ""
    source: str = ""
    tool: str = ""
    date: str = ""
    registers: RegisterMap | None = None
    looked_at: str = ""

    def __post_init__(self) -> None:
        words = words_of(self.words)
        words.setflags(write=False)
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "parameters", _parameters(self.parameters, len(words)))
        stated = {name: getattr(self, name) for name in ("name", *SWEEP_TEXTS)}
        for name, text in stated.items():
            if not isinstance(text, str):
                raise ValueError(f"{name}: got {text!r:.80}, allowed is a text")
        if self.provenance not in ("", *PROVENANCES):
            raise ValueError(
                f"provenance: got {self.provenance!r:.80}, allowed is one of "
                f"{', '.join(PROVENANCES)}"
            )
        need("Sweep: registers", self.registers, (RegisterMap, type(None)), "is a RegisterMap")
        if self.registers is None:
            object.__setattr__(
                self, "registers", _registers(self.target, self.chip, self.block, words.shape[1])
            )
        if self.registers is not None and len(self.registers) != words.shape[1]:
            where = ""
            if self.block:
                where = f" (block {self.block})"
            raise ValueError(
                f"words: got {words.shape[1]} words in each capture, allowed are "
                f"{len(self.registers)} words{where}"
            )

    @property
    def simulated(self) -> bool:
        return self.provenance == "simulated"

    @property
    def texts(self) -> dict[str, str]:
        """The texts that say where the captures come from, by name: target, chip, block,
        provenance, source, tool, date; and ``looked_at`` if the captures have further jobs."""
        found = {name: getattr(self, name) for name in SWEEP_TEXTS}
        if not self.looked_at:
            del found["looked_at"]
        return found

    @cached_property
    def varying(self) -> Array:
        """``(W,) uint32``: in each word a 1 for every bit that is not the same in all captures."""
        changes = self.words ^ self.words[:1]
        return np.bitwise_or.reduce(changes, axis=0, initial=0).astype(np.uint32)

    @property
    def bits(self) -> int:
        """The number of bits that are not the same in all captures."""
        return int(np.bitwise_count(self.varying).sum())

    @property
    def ranges(self) -> pd.DataFrame:
        """One row per parameter: its name, its least and its greatest value, and the number of
        different values (``values``)."""
        rows: list[tuple[Any, ...]] = []
        for name in self.parameters:
            column = self.parameters[name].to_numpy()
            if len(column):
                least, most = column.min().item(), column.max().item()
                rows.append((name, least, most, len(np.unique(column))))
            else:
                rows.append((name, None, None, 0))
        return pd.DataFrame(rows, columns=["parameter", "least", "most", "values"], dtype=object)

    @property
    def unit(self) -> str:
        """What a row is called: "capture", or "job" if the captures have further jobs."""
        if self.looked_at:
            return "job"
        return "capture"

    @property
    def counts(self) -> dict[str, int]:
        """How many rows ("captures", or "jobs" as ``unit`` says), "words" and "parameters" there
        are, by these names."""
        return {
            f"{self.unit}s": len(self),
            "words": self.words.shape[1],
            "parameters": self.parameters.shape[1],
        }

    def __len__(self) -> int:
        """The number of rows, N."""
        return len(self.words)

    def __getitem__(self, which: Any) -> Sweep:
        if isinstance(which, int | np.integer):
            which = [which]
        elif not isinstance(which, slice):
            which = np.asarray(which)
            if which.ndim != 1 or which.dtype.kind not in "biu":
                raise TypeError(
                    f"sweep: got {which.dtype} of shape {which.shape}, allowed is a slice, a mask "
                    "or numbers of captures"
                )
        words = self.words[which]
        looked_at = self.looked_at
        if looked_at and len(words) != len(self):
            looked_at = f"{len(words)} of {PART.sub('', looked_at)}"
        return replace(
            self, words=words, parameters=self.parameters.iloc[which], looked_at=looked_at
        )

    def __repr__(self) -> str:
        about = ", ".join(filter(None, (self.name, self.target, self.chip, self.provenance)))
        if about:
            about += ": "
        text = f"Sweep({about}{self._counts()})"
        if self.looked_at:
            text += f"; {part_said(self.looked_at)}"
        return text

    def _counts(self) -> str:
        vary = "vary"
        if self.bits == 1:
            vary = "varies"
        return (
            f"{plural(len(self), self.unit)} of {plural(self.words.shape[1], 'word')}, "
            f"{plural(self.bits, 'bit')} {vary}, {plural(self.parameters.shape[1], 'parameter')}"
        )

    def _repr_html_(self) -> str:
        head = ""
        for name, text in {**self.texts, "holds": self._counts()}.items():
            if text:
                head += f"<tr><th {CELL}>{name}</th><td {CELL}>{html.escape(text)}</td></tr>"
        names = "".join(f"<th {CELL}>{name}</th>" for name in self.ranges)
        body = ""
        for row in self.ranges.itertuples(index=False):
            cells = "".join(f"<td {CELL}>{html.escape(six_digits(value))}</td>" for value in row)
            body += f"<tr>{cells}</tr>"
        return (
            f"<b>{html.escape(self.name or 'sweep')}</b><table>{head}</table>"
            f"<table><tr>{names}</tr>{body}</table>"
        )


@refusing()
def load_sweep(
    path: str | os.PathLike[str],
    chip: str | None = None,
    target: str | None = None,
    *,
    role: str | None = None,
    block: str | None = None,
    job: int | None = None,
) -> Sweep:
    """The sweep in an npz file or a store, or a sweep made of the captures in a folder or foreign
    dump (``sweep_of``).

    A store of more than 1,048,576 captures is not read at once: ``open_store`` of
    ``npulab.captures.sweep_store`` opens it.

    An npz file has ``words`` ``(N, W) uint32``, ``parameters`` ``(N, P)`` and ``names`` ``(P,)``,
    and may have the texts target, chip, block, provenance, source, tool, date and looked_at. No
    code in the file is run. A parameter with another name of ``SPELLINGS`` (``input_channels``)
    gets npulab's name (``input_c``). If a folder holds captures of several chips or targets,
    ``chip`` and ``target`` choose captures. If captures have several jobs, ``role``, ``block`` or
    ``job`` choose jobs, as in ``sweep_of``. Raises FileNotFoundError; ValueError (file, what, got,
    allowed) for a file or folder that is not a sweep; LookupError for a role, block or job that the
    captures do not have.
    """
    need_path("load_sweep", path)
    path = Path(path)
    stored = path.is_dir() and (path / HEAD).is_file()
    if stored or (path.is_file() and (path.suffix == SUFFIX or _is_zip(path))):
        _need_choice("load_sweep", chip, target)
        chosen = {"role": role, "block": block, "job": job}
        for name, value in chosen.items():
            refuse_if(
                value is not None,
                f"{path}: {name}",
                f"{value!r} for a file of one sweep",
                "is a folder of captures, which have jobs",
            )
        if stored:
            # the module of stores imports this module
            from npulab.captures.sweep_store import open_store

            return open_store(path).read()
        return _read_npz(path)
    found = load_captures(path, chip, target)
    with refusing(path):
        return sweep_of(found, path.resolve().stem, role=role, block=block, job=job)


def load_captures(
    path: str | os.PathLike[str], chip: str | None = None, target: str | None = None
) -> list[Capture]:
    """The captures in a folder or foreign dump, only those of ``chip`` and of ``target`` if these
    are given; raises ValueError if there are none."""
    _need_choice("load_sweep", chip, target)
    every = load_all(path)
    path = Path(path)
    refuse_if(
        not len(every),
        path,
        "no capture",
        f"is a folder of captures or a file {SUFFIX}{undescribed(path)}",
    )
    for what, wanted in (("chip", chip), ("target", target)):
        known = {str(getattr(capture, what)) for capture in every}
        refuse_if(
            wanted is not None and wanted not in known,
            path,
            f"no capture of {what} {wanted}",
            f"is one of {', '.join(sorted(known))}{near(str(wanted), known)}",
        )
    found = []
    for capture in every:
        if chip in (None, capture.chip) and target in (None, capture.target):
            found.append(capture)
    refuse_if(
        not found, path, f"no capture of target {target} and chip {chip}", "is a chip of the target"
    )
    return found


def _need_choice(what: str, chip: object, target: object) -> None:
    need(f"{what}: chip", chip, (str, type(None)), "is the name of a chip")
    need(
        f"{what}: target",
        target,
        (str, type(None)),
        "is an NPU's name, as npulab.targets() gives",
    )


def save_sweep(sweep: Sweep, path: str | os.PathLike[str]) -> Path:
    """Write a sweep as an npz file, or as a store if the path ends with ``.store``, and return its
    path; equal sweeps give equal bytes of an npz file, and if it fails nothing is left on the disk.

    Raises FileExistsError if the path exists; ValueError for another end of the name, a sweep
    without captures, or a whole number above 2**53, which the file cannot hold.
    """
    path = Path(path)
    if not isinstance(sweep, Sweep):
        raise TypeError(
            f"save_sweep: got {type(sweep).__name__}, allowed is Sweep, as npulab.load_sweep gives"
        )
    suffix = repr(path.suffix or "no suffix")
    refuse_if(path.suffix not in SUFFIXES, path, suffix, f"is a file {SUFFIX} or a folder {STORE}")
    refuse_if(not len(sweep), path, "a sweep of no captures", "is one or more")
    if path.suffix == STORE:
        from npulab.captures.sweep_store import new_store

        return new_store(sweep, path)
    for name, column in sweep.parameters.items():
        if column.dtype.kind == "i" and max(abs(int(column.min())), abs(int(column.max()))) > WHOLE:
            raise ValueError(
                f"{path}: parameters: got {name} past 2**53, allowed are whole numbers up to "
                "2**53, which float64 holds exactly"
            )
    arrays = {
        "words": sweep.words.astype("<u4"),
        "parameters": sweep.parameters.to_numpy("<f8"),
        "names": np.array([*sweep.parameters], dtype="<U"),
    }
    for name, text in sweep.texts.items():
        if text:
            arrays[name] = np.array(text, dtype="<U")
    arrays[STATED] = np.array(VERSION, dtype="<u4")
    arrays[SUM] = np.array(_sum(arrays), dtype="<U")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", STAMP)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), (1, 0), False)
            file.writestr(entry, member.getvalue())
    return write_file(path, buffer.getvalue())


def _is_zip(path: Path) -> bool:
    with opened(path) as file:
        return zipfile.is_zipfile(file)


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """True if a path is a store, an npz file with words, or a broken npz file; False for an npz
    file without words, a file with another suffix, and any other path."""
    path = Path(path)
    if (path / HEAD).is_file():
        return True
    if path.suffix != SUFFIX or not path.is_file():
        return False
    try:
        with opened(path) as raw, zipfile.ZipFile(raw) as file:
            return "words.npy" in file.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return True


def sweep_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The npz files of sweeps and the stores under a folder, sorted; hidden files, which a save
    that was killed leaves, are left out."""
    found = []
    for path in Path(folder).rglob(HEAD):
        if not is_hidden(path, Path(folder)):
            found.append(path.parent)
    for path in Path(folder).rglob(f"*{SUFFIX}"):
        if is_sweep(path) and not is_hidden(path, Path(folder)):
            found.append(path)
    return sorted(found)


def sweep_of(
    captures: CaptureSet | Iterable[Capture],
    name: str = "",
    *,
    role: str | None = None,
    block: str | None = None,
    job: int | None = None,
) -> Sweep:
    """A sweep of captures: the words of one job of each, and their ``parameters`` as columns of
    numbers.

    By default, the job is the main job of each capture. ``role`` takes all jobs of a role that
    ``npulab.roles(captures)`` lists, ``block`` those of the only role of a block, and ``job`` the
    job of this number in each capture. If the captures have further jobs, ``looked_at`` of the
    sweep says which jobs were taken.

    A mapping inside a parameter becomes columns ``name_inner``; a list becomes ``name_0``,
    ``name_1``, ..., or ``stride_h`` and ``stride_w`` if its axes are known. A list of more than 16
    numbers, or of different lengths in different captures (scales per channel), is a tensor and
    left out; so is a list of records, which describes tensors. A text becomes a column of 0 and 1
    for each of its values (``activation_relu6``), except the last by name, or except None if a
    capture has None. The columns of ReLU and of padding "same" are called ``relu`` and ``same``. A
    text that is the same in all captures is left out.

    Raises ValueError (what, got, allowed) for captures of more than one target, chip, block, number
    of words or provenance, and for a parameter that some captures lack; the error names one of the
    captures. Raises LookupError for a role, block or job that the captures do not have.
    """
    found: tuple[Any, ...] = (captures,)
    if isinstance(captures, Iterable):
        found = tuple(captures)
    for capture in found:
        if not isinstance(capture, Capture):
            raise TypeError(
                f"sweep_of: got {type(capture).__name__}, allowed are captures, as npulab.load_all "
                "gives"
            )
    refuse_if(not found, "captures", "none", "is one or more")
    choices = {"role": role, "block": block, "job": job}
    given = []
    for what, value in choices.items():
        if value is not None:
            given.append(what)
    refuse_if(len(given) > 1, "sweep_of", " and ".join(given), "is one of role, block and job")
    if job is not None:
        tasks = [capture.task_of(job) for capture in found]
        return sweep_of_jobs(found, tuple(enumerate(tasks)), f"number {job}", name)
    if given:
        # the module of roles imports this module
        from npulab.captures.roles import roles

        known = roles(found)
        return known.sweep(known.chosen(role, block), name=name)
    return _of_main_jobs(found, name)


def _of_main_jobs(captures: Sequence[Capture], name: str) -> Sweep:
    mains = [capture.main for capture in captures]
    own = captures[0].jobs[mains[0]].block
    kind = "job"
    for capture in captures:
        others = capture.jobs[capture.main + 1 :]
        if any(job.block == own for job in others):
            kind = "first job"
    return sweep_of_jobs(captures, tuple(enumerate(mains)), own, name, kind)


def sweep_of_jobs(
    captures: Sequence[Capture],
    jobs: Sequence[tuple[int, int]],
    label: str,
    name: str = "",
    kind: str = "job",
) -> Sweep:
    """A sweep of ``jobs``, each (number of its capture, task), with the parameters of their
    captures. If the captures have further jobs, ``looked_at`` calls the jobs "KIND LABEL". Raises
    as ``sweep_of``."""
    numbers, places = np.unique([number for number, _ in jobs], return_inverse=True)
    held = tuple(captures[number] for number in numbers.tolist())
    of_job = []
    shared = []
    words = []
    for number, task in jobs:
        capture = captures[number]
        of_job.append(capture)
        shared.append(_shared(capture, capture.jobs[task]))
        words.append(capture.jobs[task].words)
    first = of_job[0]
    for what, value in shared[0].items():
        for capture, values in zip(of_job, shared, strict=True):
            if values[what] != value:
                raise ValueError(
                    f"captures: got {what} {value} ({first.name}) and {values[what]} "
                    f"({capture.name}), allowed is one for all; {_advice(what, value)}"
                )
    block = str(shared[0]["block"])
    parameters = _columns(held)
    if len(jobs) != len(held):
        rows = places.tolist()
        for column, values in parameters.items():
            parameters[column] = [values[row] for row in rows]
    looked_at = ""
    every = sum(len(capture.jobs) for capture in captures)
    if len(jobs) != every:
        looked_at = f"{plural(len(jobs), kind)} {label} of {plural(every, 'job')}"
        looked_at += f" of {plural(len(captures), 'capture')}"
    return Sweep(
        np.stack(words),
        parameters,
        name,
        first.target,
        first.chip,
        block,
        first.provenance,
        _all_of(capture.source for capture in held),
        _tools(held),
        _all_of(capture.date for capture in held),
        first.maps.get(block),
        looked_at,
    )


def _shared(capture: Capture, job: Job) -> dict[str, object]:
    """The properties that must be the same of every job of a sweep, by name."""
    return {
        "target": capture.target,
        "chip": capture.chip,
        "block": job.block,
        "number of words": len(job.words),
        "provenance": capture.provenance,
    }


def _advice(what: str, value: object = "") -> str:
    """The end of an error text that says how to take only captures with the same ``what``."""
    folder = f"a folder with those that have {what} alone"
    if value:
        folder = f"a folder with those of one {what} alone"
    if what in ("target", "chip"):
        return f"--{what} {value} takes these, or give {folder}"
    return f"give {folder}"


def no_captures(what: str, given: object) -> None:
    """Raise TypeError if captures or a path are given where a sweep or words are needed."""
    start = [given]
    if isinstance(given, list | tuple):
        start = [*given[:1]]
    wrong = Capture, CaptureSet, str, os.PathLike
    if given is None or any(isinstance(item, wrong) for item in start):
        raise TypeError(
            f"{what}: got {shortly(given)}, allowed is a Sweep, as npulab.load_sweep(path) or "
            "npulab.captures.sweep.sweep_of(captures) gives, or words (N, W) with parameters"
        )


def words_of(table: Any) -> Array:
    """The words as a new array ``(N, W) uint32``; raises ValueError unless the table has two axes
    and whole numbers from 0 to 0xffffffff.
    """
    try:
        words = np.asarray(table)
    except ValueError:
        raise ValueError(
            "words: got rows of different lengths, allowed is (N, W), as many words in each capture"
        ) from None
    if (
        words.ndim != 2
        or words.dtype.kind not in "iu"
        or not words.shape[1]
        or np.any(words < 0)
        or np.any(words > 0xFFFFFFFF)
    ):
        raise ValueError(
            f"words: got {words.dtype} of shape {words.shape}, allowed are 0 to 0xffffffff of "
            "shape (N, W)"
        )
    return np.array(words, np.uint32, order="C")


def _parameters(given: Any, rows: int) -> pd.DataFrame:
    """The given parameters as a DataFrame of ``rows`` rows, with columns of int64 or float64;
    raises ValueError for anything else."""
    try:
        frame = given
        if not isinstance(given, pd.DataFrame):
            frame = pd.DataFrame(dict(given))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"parameters: got {type(given).__name__}, allowed are columns of one length by name: "
            f"{error}"
        ) from None
    names = [*frame.columns]
    _refuse_many(len(names))
    seen = set[str]()
    for name in names:
        if not isinstance(name, str) or not name or name in seen:
            raise ValueError(f"parameters: got column {name!r:.80}, allowed are names, each once")
        seen.add(name)
    refuse_if(
        names and len(frame) != rows,
        "parameters",
        plural(len(frame), "row"),
        f"is one for each of the {plural(rows, 'capture')}",
    )
    columns = {name: _numbers_of(name, frame[name]) for name in names}
    return pd.DataFrame(columns, index=range(rows))


def _refuse_many(count: int) -> None:
    refuse_if(count > MOST_PARAMETERS, "parameters", f"{count} columns", f"are {MOST_PARAMETERS}")


def _numbers_of(name: str, column: pd.Series) -> Array:
    """The values of a column as ``_as_numbers`` gives them, without a loop if they are numbers of
    numpy below 2**63."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "if":
        values = column.to_numpy()
        # float64 is not exact near the ends of int64, so such numbers are judged one by one
        if not np.all(np.abs(values.astype(np.float64)) < 2.0**63):
            return _as_numbers(name, values.tolist())
        if values.dtype.kind == "i" or np.all(np.trunc(values) == values):
            return values.astype(np.int64)
        return values.astype(np.float64)
    return _as_numbers(name, column.tolist())


def _as_numbers(name: str, values: list[Any]) -> Array:
    """The values of a column as int64 if all are whole numbers of 64 bits, else as float64; raises
    ValueError for anything but finite numbers."""
    whole = True
    for row, value in enumerate(values):
        limit = np.inf
        if isinstance(value, int):
            limit = 2**63
        if not isinstance(value, int | float) or not abs(value) < limit:
            raise ValueError(
                f"parameters: got {name} {value!r:.80} in row {row}, allowed are finite numbers, "
                "whole ones within 64 bits"
            )
        whole = whole and int(value) == value and -(2**63) <= value < 2**63
    if whole:
        return np.array([int(value) for value in values], np.int64)
    return np.array(values, np.float64)


def _registers(name: str, chip: str, block: str, count: int) -> RegisterMap | None:
    """The register map of a block; None if target, chip or block are not known.

    If a sweep does not name its chip, the map is that of the target's first chip, if this map has
    ``count`` words.
    """
    try:
        target = stated_target(name)
        found = target.maps(chip or next(iter(target.chips))).get(block)
    except LookupError:
        return None
    if chip or (found is not None and len(found) == count):
        return found
    return None


def _read_npz(path: Path) -> Sweep:
    data = read_bounded(path, MOST_BYTES)
    with refusing(path):
        arrays = _members(data)
        stated = None
        if SUM in arrays:
            stated = arrays.pop(SUM).item()
        # if a damaged file's zip directory has lost the entry of the checksum, the entry's name is
        # still in the bytes
        lost = stated is None and f"{SUM}.npy".encode() in data
        refuse_if(
            lost, SUM, "none in the directory", "is that of the content; it was changed or damaged"
        )
        for name in ARRAYS:
            refuse_if(name not in arrays, name, "none", f"is a file with {', '.join(ARRAYS)}")
        if stated is not None and stated != _sum(arrays):
            raise ValueError(
                f"{SUM}: got {stated!r:.80}, allowed is that of the file's content, which was "
                "changed or damaged"
            )
        version = arrays.pop(STATED, np.array(VERSION)).tolist()
        refuse_if(version != VERSION, STATED, version, f"is {VERSION}")
        return _sweep_of_arrays(path.stem, **arrays)


def _members(data: bytes) -> dict[str, Array]:
    """The arrays of an npz file by name; the CRC-32 that the zip archive has of each is compared.

    Raises ValueError before anything is unpacked for bytes that are not an npz file, an array that
    no sweep has, and arrays of more than ``MOST_BYTES`` in all; later for a broken array.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in file.infolist()}
            wrong = [f"{name!r:.80}" for name in sorted({*entries} - {*MEMBERS})]
            if len(entries) < len(file.infolist()):
                wrong.append("twice")
            if wrong:
                raise ValueError(
                    f"got member {wrong[0]}, allowed are {', '.join(MEMBERS)}, each at most once"
                )
            size = sum(entry.file_size for entry in entries.values())
            refuse_if(size > MOST_BYTES, "unpacked", f"{size} bytes", f"are {MOST_BYTES}")
            return {name: npy_array(name, file.read(entry)) for name, entry in entries.items()}
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        OSError,
    ) as error:
        raise ValueError(
            f"got no npz file, or a torn one ({error}), allowed is what {WRITERS} write"
        ) from None


def npy_array(name: str, data: bytes, written: str = f"{WRITERS} write") -> Array:
    """The array in ``data``, the bytes of an npy file; raises ValueError, which begins with
    ``name`` and ends with ``written`` ("X writes"), if they are anything but one whole npy file."""
    member = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(member)
        refuse_if(
            version not in NPY_VERSIONS,
            "version",
            ".".join(map(str, version)),
            "are 1.0, 2.0 and 3.0",
        )
        head = np.lib.format.read_array_header_2_0
        if version == (1, 0):
            head = np.lib.format.read_array_header_1_0
        shape, by_column, dtype = head(member)
    except Exception as error:  # numpy's parser of headers may raise any error
        raise ValueError(
            f"{name}: got no npy array ({error!s:.80}), allowed is what {written}"
        ) from None
    start = member.tell()
    size = len(data) - start
    # numpy's parser accepts True as the length of an axis
    plain = all(type(axis) is int and axis >= 0 for axis in shape)
    sized = dtype.itemsize and not dtype.hasobject
    if not plain or not sized or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(
            f"{name}: got {size} bytes of {dtype} of shape {shape}, allowed is what {written}"
        )
    array = np.frombuffer(data, dtype, offset=start)
    if dtype.kind == "U":
        _refuse_letters(name, array)
    if by_column:
        return array.reshape(shape, order="F")
    return array.reshape(shape)


def _refuse_letters(name: str, texts: Array) -> None:
    """Raise ValueError for texts with a number that is no character of Unicode; numpy does not
    check this.
    """
    letters = texts.view(np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
    first, last = SURROGATES
    wrong = letters[(letters > LAST_LETTER) | ((letters >= first) & (letters <= last))]
    if wrong.size:
        raise ValueError(
            f"{name}: got letter {int(wrong[0]):#x}, allowed are letters of Unicode, up to "
            f"{LAST_LETTER:#x} without {first:#x} to {last:#x}"
        )


def _sum(arrays: Mapping[str, Array]) -> str:
    """The sha256 over the name, type, shape and values of every array of a file."""
    sums = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        sums.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return sums.hexdigest()


def _sweep_of_arrays(
    name: str, words: Array, parameters: Array, names: Array, **texts: Array
) -> Sweep:
    if words.dtype.newbyteorder("=") != np.uint32 or words.ndim != 2 or 0 in words.shape:
        raise ValueError(
            f"words: got {words.dtype} of shape {words.shape}, allowed is uint32 of shape (N, W)"
        )
    if parameters.dtype.kind not in "iufb" or parameters.ndim != 2 or len(parameters) != len(words):
        raise ValueError(
            f"parameters: got {parameters.dtype} of shape {parameters.shape}, allowed are numbers "
            f"of shape ({len(words)}, P)"
        )
    if names.dtype.kind != "U" or names.shape != parameters.shape[1:]:
        raise ValueError(
            f"names: got {names.dtype} of shape {names.shape}, allowed are {parameters.shape[1]} "
            "texts, one for each column of parameters"
        )
    for what, text in texts.items():
        if text.dtype.kind != "U" or text.shape:
            raise ValueError(f"{what}: got {text.dtype} of shape {text.shape}, allowed is one text")
    _refuse_many(names.size)
    columns = names.tolist()
    if len(set(columns)) != len(columns):
        twice = Counter(columns).most_common(1)[0][0]
        raise ValueError(f"names: got {twice!r:.80} twice, allowed is each once")
    frame: Any = spelled(dict(zip(columns, parameters.T, strict=True)))
    return Sweep(words, frame, name, **{what: text.item() for what, text in texts.items()})


def _columns(captures: tuple[Capture, ...]) -> Any:
    """The parameters of captures as columns by name: lists of numbers, one for each capture."""
    # key: the name of the parameter, then the number of the capture
    values: dict[str, dict[int, Any]] = {}
    for number, capture in enumerate(captures):
        for name, value in _leaves(capture.parameters):
            of_name = values.setdefault(name, {})
            if number in of_name:
                raise ValueError(
                    f"captures: got parameter {name!r:.80} of {capture.name} twice, by itself and "
                    "inside another parameter, allowed is once"
                )
            of_name[number] = value
    columns: dict[str, list[Any]] = {}
    for name, of_name in values.items():
        for number, capture in enumerate(captures):
            if number not in of_name:
                other = captures[min(of_name)].name
                raise ValueError(
                    f"captures: got {capture.name} without {name}, which {other} has, allowed are "
                    f"the same parameters in all of them; {_advice(name)}"
                )
        cases = [capture.name for capture in captures]
        for column, numbers in _column(name, [*of_name.values()], cases):
            if column in columns:
                raise ValueError(
                    f"captures: got parameter {column!r} twice, by itself and inside another "
                    "parameter, allowed is once"
                )
            columns[column] = numbers
    return spelled(columns)


def _leaves(values: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (``outer_inner`` name, value) for every value inside nested mappings; lists of records
    are left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{front}{name}_")
        elif not is_records(value):
            yield f"{front}{name}", value


def _column(name: str, values: list[Any], cases: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name, numbers) for each column that a parameter becomes: none, one or several."""
    kinds = {_kind(value) for value in values} - {"nothing"}
    if len(kinds) > 1 or (kinds not in (set(), {"text"}) and None in values):
        _refuse_kinds(name, values, cases)
    if kinds == {"list"}:
        yield from _columns_of_lists(name, [_list(value) for value in values], cases)
    elif kinds == {"text"}:
        texts = sorted({value for value in values if value is not None})
        if None not in values:
            texts.pop()
        for text in texts:
            yield f"{name}_{text}", [int(value == text) for value in values]
    elif kinds:
        for case, value in zip(cases, values, strict=True):
            if kinds == {"something else"} or not abs(value) < np.inf:
                raise ValueError(
                    f"captures: got {name} {value!r:.80} of {case}, allowed are finite numbers, "
                    "texts, and lists of these"
                )
        yield name, values


def _refuse_kinds(name: str, values: list[Any], cases: list[str]) -> None:
    """Raise ValueError that names the first case whose value is of another kind (text, list,
    number) than the value of the first case."""
    first = _kind(values[0])
    for case, value in zip(cases, values, strict=True):
        if _kind(value) != first:
            raise ValueError(
                f"captures: got {name} of {cases[0]}, which is {first}, and of {case}, which is "
                f"{_kind(value)}, allowed is the same in all of them"
            )


def _columns_of_lists(
    name: str, arrays: list[Array], cases: list[str]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield (name, a number for each capture) for each place in the lists of one parameter. Lists
    of more than ``MOST_LISTED`` numbers or of several shapes are tensors and give nothing."""
    shape = arrays[0].shape
    if arrays[0].size > MOST_LISTED or any(array.shape != shape for array in arrays):
        return
    axes = AXES.get(name, "")
    named = shape == (len(axes),)
    if named and axes:
        name = name.removesuffix("_shape")
    for at in np.ndindex(shape):
        inner = "_".join(map(str, at))
        if named:
            inner = axes[at[0]]
        yield from _column(f"{name}_{inner}", [array[at] for array in arrays], cases)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "list"
    if isinstance(value, int | float):
        return "number"
    return "something else"


def _list(value: list[Any]) -> Array:
    """A list as an array; a list of lists of different lengths gives an array that is too long to
    become columns."""
    try:
        np.shape(value)
    except ValueError:
        return np.empty(MOST_LISTED + 1, object)
    return np.array(value, object)


def _all_of(texts: Iterable[str]) -> str:
    """The different texts joined by commas, or how many they are if more than 3; empty texts are
    left out."""
    different = [*dict.fromkeys(filter(None, texts))]
    if len(different) <= 3:
        return ", ".join(different)
    return f"{len(different)} different ones"


def _tools(captures: tuple[Capture, ...]) -> str:
    text = _all_of(capture.tool for capture in captures)
    if CHANGED in text or not any(capture.changed for capture in captures):
        return text
    return f"{text}, {CHANGED}"
