"""A sweep: the words of many captures of one target and what is known of the layer of each."""

from __future__ import annotations

import hashlib
import html
import io
import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npulab.captures.capture import CHANGED, PROVENANCES, Capture, CaptureSet
from npulab.captures.registry import stated_target
from npulab.captures.store import load_all
from npulab.captures.unrecognised import undescribed
from npulab.registers.map import RegisterMap
from npulab.support.files import opened, read_bounded, write_file
from npulab.support.late import pd
from npulab.support.refuse import near, need, need_path, refuse_if, refusing, shortly
from npulab.support.text import plural, six_digits

SUFFIX = ".npz"
ARRAYS = ("words", "parameters", "names")
TEXTS = ("target", "chip", "block", "provenance", "source", "tool", "date")
SUM = "sha256"  # of all else that the file says; files of numpy and of older versions have none
MOST_BYTES = 2**28  # of a sweep's file and of what it unpacks to: 60,000 captures of 1,000 words
WRITERS = "npulab.captures.sweep.save_sweep and numpy.savez"
WHOLE = 2**53  # whole numbers up to here are the same in a file's float64
MOST_LISTED = 16  # a longer list is a tensor, not a parameter
MOST_PARAMETERS = 2**18  # columns of a sweep: an array by itself each
NPY_VERSIONS = ((1, 0), (2, 0), (3, 0))  # of the heads that numpy writes
LAST_LETTER = 0x10FFFF  # of Unicode
SURROGATES = (0xD800, 0xDFFF)  # halves of letters, no text by themselves
AXES = {
    "kernel": "hw",
    "stride": "hw",
    "dilation": "hw",
    "input_shape": "hwc",
    "output_shape": "hwc",
}
STAMP = (1980, 1, 1, 0, 0, 0)  # the same sweep gives the same bytes


@dataclass(frozen=True, eq=False)
class Sweep:
    """Many captures of one target with the parameters of their layers.

    ``words`` are ``(N, W) uint32``, those of each capture's first job; ``parameters`` a DataFrame
    of N rows, columns of whole numbers int64 and others float64 (a mapping of columns will do).
    ``target``, ``chip`` and ``block`` say what the words belong to, as far as that is known, and
    ``registers`` is the map of that block, or None. ``provenance`` is one of
    ``capture.PROVENANCES`` or empty.  ``sweep[:100]``, or an index or mask of rows, is a sweep of
    those captures.

    Raises ValueError (what, got, allowed) where words and parameters do not go together or are not
    finite numbers.

    >>> Sweep([[1, 0], [3, 0]], {"input_w": [8, 16]}, name="two")
    Sweep(two: 2 captures of 2 words, 1 bit varies, 1 parameter)
    """

    words: np.ndarray
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

    def __post_init__(self) -> None:
        words = words_of(self.words)
        words.setflags(write=False)
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "parameters", _parameters(self.parameters, len(words)))
        for name in ("name", *TEXTS):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}: got {getattr(self, name)!r:.80}, allowed is a text")
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
            raise ValueError(
                f"words: got {words.shape[1]} of each capture, allowed is {len(self.registers)}"
                f"{f' (block {self.block})' if self.block else ''}"
            )

    @property
    def simulated(self) -> bool:
        return self.provenance == "simulated"

    @cached_property
    def varying(self) -> np.ndarray:
        """``(W,) uint32``: the bits that are not the same in all captures."""
        return np.bitwise_or.reduce(self.words ^ self.words[:1], axis=0, initial=0).astype(
            np.uint32
        )

    @property
    def bits(self) -> int:
        """How many bits vary."""
        return int(np.bitwise_count(self.varying).sum())

    @property
    def ranges(self) -> pd.DataFrame:
        """One row per parameter: parameter, least, most, values (how many different ones)."""
        rows = [
            (
                name,
                *(
                    (column.min().item(), column.max().item(), len(np.unique(column)))
                    if len(column)
                    else (None, None, 0)
                ),
            )
            for name, column in (
                (name, self.parameters[name].to_numpy()) for name in self.parameters
            )
        ]
        return pd.DataFrame(rows, columns=["parameter", "least", "most", "values"], dtype=object)

    @property
    def counts(self) -> dict[str, int]:
        """How many captures, words and parameters it has."""
        return {
            "captures": len(self),
            "words": self.words.shape[1],
            "parameters": self.parameters.shape[1],
        }

    def __len__(self) -> int:
        """Captures, N."""
        return len(self.words)

    def __getitem__(self, which: Any) -> Sweep:
        if isinstance(which, int | np.integer):
            which = [which]
        elif not isinstance(which, slice):
            which = np.asarray(which)
            if which.ndim != 1 or which.dtype.kind not in "biu":
                raise TypeError(
                    f"sweep: got {which.dtype} of shape {which.shape}, allowed is a slice, a mask "
                    "or "
                    "numbers of captures"
                )
        return replace(self, words=self.words[which], parameters=self.parameters.iloc[which])

    def __repr__(self) -> str:
        told = [*filter(None, (self.name, self.target, self.chip, self.provenance))]
        return f"Sweep({', '.join(told)}{': ' if told else ''}{self._counts()})"

    def _counts(self) -> str:
        return (
            f"{plural(len(self), 'capture')} of {plural(self.words.shape[1], 'word')}, "
            f"{plural(self.bits, 'bit')} {'varies' if self.bits == 1 else 'vary'}, "
            f"{plural(self.parameters.shape[1], 'parameter')}"
        )

    def _repr_html_(self) -> str:
        told = [(name, getattr(self, name)) for name in TEXTS] + [("holds", self._counts())]
        head = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td "
            f"style='text-align:left'>{html.escape(text)}"
            "</td></tr>"
            for name, text in told
            if text
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td style='text-align:left'>{html.escape(six_digits(one))}</td>" for one in row
            )
            + "</tr>"
            for row in self.ranges.itertuples(index=False)
        )
        names = "".join(f"<th style='text-align:left'>{name}</th>" for name in self.ranges)
        return f"<b>{html.escape(self.name or 'sweep')}</b><table>{head}</table><table><tr>{names}</tr>{body}</table>"


@refusing()
def load_sweep(
    path: str | os.PathLike[str], chip: str | None = None, target: str | None = None
) -> Sweep:
    """The sweep in an npz file, or of the captures in a folder or foreign dump (``sweep_of``).

    The file has ``words`` ``(N, W) uint32``, ``parameters`` ``(N, P)`` and ``names`` ``(P,)``, and
    may have the texts target, chip, block, provenance, source, tool and date.  Nothing in it is
    run.  ``chip`` and ``target`` are those whose captures are taken of a folder of several. Raises
    FileNotFoundError; ValueError (file, what, got, allowed) for a file or folder that
    is no sweep.
    """
    need_path("load_sweep", path)
    need("load_sweep: chip", chip, (str, type(None)), "is the name of a chip")
    need(
        "load_sweep: target",
        target,
        (str, type(None)),
        "is an NPU's name, as npulab.targets() gives",
    )
    path = Path(path)
    if path.is_file() and (path.suffix == SUFFIX or _is_zip(path)):
        return _read(path)
    every = load_all(path)
    refuse_if(
        not len(every),
        path,
        "no capture",
        f"is a folder of captures or a file {SUFFIX}{undescribed(path)}",
    )
    found = [one for one in every if chip in (None, one.chip) and target in (None, one.target)]
    for what, wanted in (("chip", chip), ("target", target)):
        here = {str(getattr(one, what)) for one in every}
        refuse_if(
            wanted is not None and wanted not in here,
            path,
            f"no capture of {what} {wanted}",
            f"is one of {', '.join(sorted(here))}{near(str(wanted), here)}",
        )
    refuse_if(
        not found, path, f"no capture of target {target} and chip {chip}", "is a chip of the target"
    )
    with refusing(path):
        return sweep_of(found, path.resolve().stem)


def save_sweep(sweep: Sweep, path: str | os.PathLike[str]) -> Path:
    """Write a sweep as an npz file, whole or not at all; the same sweep gives the same bytes.

    Raises FileExistsError where the file exists; ValueError for a name without ``.npz``, a sweep
    without captures, or a whole number past 2**53, which the file cannot hold.
    """
    path = Path(path)
    if not isinstance(sweep, Sweep):
        raise TypeError(
            f"save_sweep: got {type(sweep).__name__}, allowed is Sweep, as npulab.load_sweep gives"
        )
    refuse_if(path.suffix != SUFFIX, path, repr(path.suffix or "no suffix"), f"is a file {SUFFIX}")
    refuse_if(not len(sweep), path, "a sweep of no captures", "is one or more")
    for name, column in sweep.parameters.items():
        if column.dtype.kind == "i" and max(abs(int(column.min())), abs(int(column.max()))) > WHOLE:
            raise ValueError(
                f"{path}: parameters: got {name} past 2**53, allowed is what float64 holds exactly"
            )
    arrays = {
        "words": sweep.words.astype("<u4"),
        "parameters": sweep.parameters.to_numpy("<f8"),
        "names": np.array([*sweep.parameters], dtype="<U"),
    }
    arrays |= {
        name: np.array(getattr(sweep, name), dtype="<U") for name in TEXTS if getattr(sweep, name)
    }
    arrays[SUM] = np.array(_sum(arrays), dtype="<U")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", STAMP)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            part = io.BytesIO()
            np.lib.format.write_array(
                part, np.ascontiguousarray(array) if array.ndim else array, (1, 0), False
            )
            file.writestr(entry, part.getvalue())
    return write_file(path, buffer.getvalue())


def _is_zip(path: Path) -> bool:
    with opened(path) as file:
        return zipfile.is_zipfile(file)


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a sweep's npz, whole or broken: one of that suffix, unless it holds no
    words."""
    path = Path(path)
    if path.suffix != SUFFIX or not path.is_file():
        return False
    try:
        with opened(path) as raw, zipfile.ZipFile(raw) as file:
            return "words.npy" in file.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return True


def sweep_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The sweeps' files under a folder, sorted; hidden ones, as a killed save leaves, are none."""
    return sorted(
        found
        for found in Path(folder).rglob(f"*{SUFFIX}")
        if is_sweep(found)
        and not any(part.startswith(".") for part in found.relative_to(folder).parts)
    )


def sweep_of(captures: CaptureSet | Iterable[Capture], name: str = "") -> Sweep:
    """A sweep of captures: the words of their first jobs and ``capture.parameters`` as columns of
    numbers.

    Values by name inside a parameter become columns ``name_inner``; a list becomes ``name_0``, ...,
    or ``stride_h`` and ``stride_w`` where its axes are known.  Lists of more than 16 numbers, or of
    another length in some captures (scales per channel), are tensors and left out; so are lists of
    records, as descriptions of tensors.  A text becomes a column of 0 and 1 for each of its values
    but one (``activation_relu``, 0 where there is none; ``padding_same``, 0 where it is "valid");
    one that is the same in all captures is left out.

    Raises ValueError (what, got, allowed) for captures of more than one target, chip, block, length
    or provenance, and for a parameter that some captures lack, naming one.
    """
    if isinstance(captures, Iterable):
        found = tuple(captures)
    else:
        found = (captures,)
    for one in found:
        if not isinstance(one, Capture):
            raise TypeError(
                f"sweep_of: got {type(one).__name__}, allowed are captures, as npulab.load_all "
                "gives"
            )
    refuse_if(not found, "captures", "none", "is one or more")
    for what, kinds in (
        ("target", [one.target for one in found]),
        ("chip", [one.chip for one in found]),
        ("block", [one.jobs[one.main].block for one in found]),
        ("number of words", [len(one.words) for one in found]),
        ("provenance", [one.provenance for one in found]),
    ):
        for one, kind in zip(found, kinds, strict=True):
            if kind != kinds[0]:
                raise ValueError(
                    f"captures: got {what} {kinds[0]} ({found[0].name}) and {kind} ({one.name}), "
                    "allowed "
                    f"is one; {_part(what, kinds[0])}"
                )
    first, columns = found[0], _columns(found)
    block = first.jobs[first.main].block
    return Sweep(
        np.stack([one.words for one in found]),
        columns,
        name,
        first.target,
        first.chip,
        block,
        first.provenance,
        _all_of(one.source for one in found),
        _tools(found),
        _all_of(one.date for one in found),
        first.maps.get(block),
    )


def _part(what: str, value: object = "") -> str:
    """What takes a part of captures that make no sweep together."""
    if value:
        folder = f"a folder with those of one {what} alone"
    else:
        folder = f"a folder with those that have {what} alone"
    if what in ("target", "chip"):
        return f"--{what} {value} takes these, or give {folder}"
    return f"give {folder}"


def no_captures(what: str, given: object) -> None:
    """Raise TypeError for captures, or a path, where a sweep or words are asked for."""
    if isinstance(given, list | tuple):
        some = given[:1]
    else:
        some = [given]
    if given is None or any(
        isinstance(one, Capture | CaptureSet | str | os.PathLike) for one in some
    ):
        raise TypeError(
            f"{what}: got {shortly(given)}, allowed is a Sweep, as npulab.load_sweep(path) or "
            "npulab.captures.sweep.sweep_of(captures) gives, or words (N, W) with parameters"
        )


def words_of(table: Any) -> np.ndarray:
    """``(N, W) uint32``, a copy; raises ValueError for anything else."""
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
            "shape "
            "(N, W)"
        )
    return np.array(words, np.uint32, order="C")


def _parameters(given: Any, rows: int) -> pd.DataFrame:
    try:
        if isinstance(given, pd.DataFrame):
            frame = given
        else:
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
    return pd.DataFrame(
        {name: _numbers(name, frame[name].tolist()) for name in names}, index=range(rows)
    )


def _refuse_many(count: int) -> None:
    refuse_if(count > MOST_PARAMETERS, "parameters", f"{count} columns", f"are {MOST_PARAMETERS}")


def _twice(names: Iterable[str]) -> str:
    """The name that stands most often among some."""
    return Counter(names).most_common(1)[0][0]


def _numbers(name: str, values: list[Any]) -> np.ndarray:
    """A column as int64 where all are whole, else as float64."""
    for row, value in enumerate(values):
        if not isinstance(value, int | float) or not abs(value) < (
            2**63 if isinstance(value, int) else np.inf
        ):
            raise ValueError(
                f"parameters: got {name} {value!r:.80} in row {row}, allowed are finite numbers, "
                "whole "
                "ones within 64 bits"
            )
    if all(isinstance(value, int) or value.is_integer() for value in values) and all(
        -(2**63) <= value < 2**63 for value in values
    ):
        return np.array([int(value) for value in values], np.int64)
    return np.array(values, np.float64)


def _registers(name: str, chip: str, block: str, count: int) -> RegisterMap | None:
    """The map of a block; None where target, chip or block are not known here.

    A sweep that does not say its chip is taken for one of the usual chip, if it has as many words
    as that.
    """
    try:
        of = stated_target(name)
        found = of.maps(chip or next(iter(of.chips))).get(block)
    except LookupError:
        return None
    if chip or (found is not None and len(found) == count):
        return found
    return None


def _read(path: Path) -> Sweep:
    data = read_bounded(path, MOST_BYTES)
    with refusing(path):
        arrays, known = _members(data)
        lost = known is None and f"{SUM}.npy".encode() in data  # with what else its directory had
        refuse_if(
            lost, SUM, "none in the directory", "is that of the content; it was changed or damaged"
        )
        for name in ARRAYS:
            refuse_if(name not in arrays, name, "none", f"is a file with {', '.join(ARRAYS)}")
        if known is not None and known != _sum(arrays):
            raise ValueError(
                f"{SUM}: got {known!r:.80}, the file's content has another; it was changed or "
                "damaged"
            )
        return _made(path.stem, **arrays)


def _members(data: bytes) -> tuple[dict[str, np.ndarray], str | None]:
    """The arrays of an npz file by name, each held against its checksum, and the sum over all of
    them where the file has one.

    Raises ValueError for what is no npz file, a member that no sweep has, and members that are
    larger than allowed, before they are unpacked.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in file.infolist()}
            unknown = sorted({*entries} - {*ARRAYS, *TEXTS, SUM})
            if unknown or len(entries) < len(file.infolist()):
                raise ValueError(
                    f"got member {f'{unknown[0]!r:.80}' if unknown else 'twice'}, allowed are "
                    f"{', '.join((*ARRAYS, *TEXTS, SUM))}, each at most once"
                )
            size = sum(entry.file_size for entry in entries.values())
            refuse_if(size > MOST_BYTES, "unpacked", f"{size} bytes", f"are {MOST_BYTES}")
            arrays = {name: _array(name, file.read(entry)) for name, entry in entries.items()}
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
    return arrays, arrays.pop(SUM).item() if SUM in arrays else None


def _array(name: str, data: bytes) -> np.ndarray:
    """The array in an npy file that is read whole; raises ValueError for any other."""
    part = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(part)
        refuse_if(
            version not in NPY_VERSIONS,
            "version",
            ".".join(map(str, version)),
            "are 1.0, 2.0 and 3.0",
        )
        head = np.lib.format.read_array_header_2_0
        if version == (1, 0):
            head = np.lib.format.read_array_header_1_0
        shape, by_column, dtype = head(part)
    except Exception as error:  # of every kind, from numpy's parser of headers
        raise ValueError(
            f"{name}: got no npy array ({error!s:.80}), allowed is what {WRITERS} write"
        ) from None
    size = len(data) - part.tell()
    plain = all(
        type(axis) is int and axis >= 0 for axis in shape
    )  # True is a whole number to the parser
    if (
        not plain
        or dtype.hasobject
        or math.prod(shape) * dtype.itemsize != size
        or not dtype.itemsize
    ):
        raise ValueError(
            f"{name}: got {size} bytes of {dtype} of shape {shape}, allowed is what {WRITERS} write"
        )
    array = np.frombuffer(data, dtype, offset=part.tell())
    if dtype.kind == "U":
        _refuse_letters(name, array)
    return array.reshape(shape, order="F" if by_column else "C")


def _refuse_letters(name: str, texts: np.ndarray) -> None:
    """Refuse texts with numbers that are no letters of Unicode, which numpy takes unseen."""
    letters = texts.view(np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
    first, last = SURROGATES
    wrong = letters[(letters > LAST_LETTER) | ((letters >= first) & (letters <= last))]
    if wrong.size:
        raise ValueError(
            f"{name}: got letter {int(wrong[0]):#x}, allowed are letters of Unicode, up to "
            f"{LAST_LETTER:#x} without {first:#x} to {last:#x}"
        )


def _sum(arrays: Mapping[str, np.ndarray]) -> str:
    """The sha256 over all that a sweep's file says: name, type, shape and values of each array."""
    sums = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        sums.update(
            f"{name} {array.dtype.str} {array.shape}".encode()
            + np.ascontiguousarray(array).tobytes()
        )
    return sums.hexdigest()


def _made(
    name: str, words: np.ndarray, parameters: np.ndarray, names: np.ndarray, **texts: np.ndarray
) -> Sweep:
    if words.dtype.newbyteorder("=") != np.uint32 or words.ndim != 2 or 0 in words.shape:
        raise ValueError(
            f"words: got {words.dtype} of shape {words.shape}, allowed is uint32 of shape (N, W)"
        )
    if parameters.dtype.kind not in "iufb" or parameters.ndim != 2 or len(parameters) != len(words):
        raise ValueError(
            f"parameters: got {parameters.dtype} of shape {parameters.shape}, allowed are numbers "
            "of "
            f"shape ({len(words)}, P)"
        )
    if names.dtype.kind != "U" or names.shape != parameters.shape[1:]:
        raise ValueError(
            f"names: got {names.dtype} of shape {names.shape}, allowed are {parameters.shape[1]} "
            "texts, "
            "one for each column of parameters"
        )
    for what, text in texts.items():
        if text.dtype.kind != "U" or text.shape:
            raise ValueError(f"{what}: got {text.dtype} of shape {text.shape}, allowed is one text")
    _refuse_many(names.size)
    columns = names.tolist()
    if len(set(columns)) != len(columns):
        raise ValueError(f"names: got {_twice(columns)!r:.80} twice, allowed is each once")
    frame: Any = dict(zip(columns, parameters.T, strict=True))
    return Sweep(words, frame, name, **{what: text.item() for what, text in texts.items()})


def _columns(captures: tuple[Capture, ...]) -> Any:
    """Parameters of captures as columns of numbers by name."""
    cases = [one.name for one in captures]
    leaves = []
    for case, capture in zip(cases, captures, strict=True):
        found = [*_leaves(capture.parameters)]
        leaves.append(dict(found))
        if len(leaves[-1]) < len(found):
            name = _twice(name for name, _ in found)
            raise ValueError(
                f"captures: got parameter {name!r:.80} of {case} twice, as such and "
                "inside another, allowed is once"
            )
    out: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for one in leaves for name in one):
        for case, one in zip(cases, leaves, strict=True):
            if name not in one:
                other = next(case for case, one in zip(cases, leaves, strict=True) if name in one)
                raise ValueError(
                    f"captures: got {case} without {name}, which {other} has, allowed are the same "
                    f"parameters in all of them; {_part(name)}"
                )
        for column, numbers in _column(name, [one[name] for one in leaves], cases):
            if column in out:
                raise ValueError(
                    f"captures: got parameter {column!r} twice, as such and inside another, "
                    "allowed is "
                    "once"
                )
            out[column] = numbers
    return out


def _leaves(values: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{front}{name}_")
        elif (
            not isinstance(value, list)
            or not value
            or not all(isinstance(one, Mapping) for one in value)
        ):
            yield f"{front}{name}", value


def _column(name: str, values: list[Any], cases: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """The columns that a parameter becomes, by name."""
    kinds = {_kind(value) for value in values} - {"nothing"}
    if len(kinds) > 1 or (kinds not in (set(), {"text"}) and None in values):
        first = _kind(values[0])
        case, other = next(
            (case, _kind(value))
            for case, value in zip(cases, values, strict=True)
            if _kind(value) != first
        )
        raise ValueError(
            f"captures: got {name} of {cases[0]}, which is {first}, and of {case}, which is "
            f"{other}, "
            "allowed is the same in all of them"
        )
    if kinds == {"list"}:
        arrays = [_list(value) for value in values]
        shape = arrays[0].shape
        if all(one.shape == shape for one in arrays) and arrays[0].size <= MOST_LISTED:
            axes = ""
            if shape == (len(AXES.get(name, "")),):
                axes = AXES.get(name, "")
            for at in np.ndindex(shape):
                if axes:
                    inner = axes[at[0]]
                else:
                    inner = "_".join(map(str, at))
                yield from _column(
                    f"{name.removesuffix('_shape') if axes else name}_{inner}",
                    [one[at] for one in arrays],
                    cases,
                )
    elif kinds == {"text"}:
        texts = sorted({value for value in values if value is not None})
        for text in texts if None in values else texts[:-1]:
            yield f"{name}_{text}", [int(value == text) for value in values]
    elif kinds:
        for case, value in zip(cases, values, strict=True):
            if kinds == {"something else"} or not abs(value) < np.inf:
                raise ValueError(
                    f"captures: got {name} {value!r:.80} of {case}, allowed are finite numbers, "
                    "texts and "
                    "lists of them"
                )
        yield name, values


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


def _list(value: list[Any]) -> np.ndarray:
    """A list as an array of its shape; what is ragged inside keeps its rows as lists, with a shape
    no other has."""
    try:
        np.shape(value)
    except ValueError:
        return np.empty(MOST_LISTED + 1, object)
    return np.array(value, object)


def _all_of(texts: Iterable[str]) -> str:
    """The text of all captures, or a few of them side by side."""
    different = [*dict.fromkeys(filter(None, texts))]
    if len(different) <= 3:
        return ", ".join(different)
    return f"{len(different)} different ones"


def _tools(captures: tuple[Capture, ...]) -> str:
    text = _all_of(one.tool for one in captures)
    if CHANGED in text or not any(one.changed for one in captures):
        return text
    return f"{text}, {CHANGED}"
