"""Words of an NPU that has no target: files of them, with a table of the layers, as a sweep."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.folders import is_hidden, need_there
from npulab.captures.layer_tables import NAMES, read_layers
from npulab.captures.sweep import SUFFIX, Sweep, npy_array
from npulab.support.files import need_file, read_bounded, text_of
from npulab.support.refuse import need, need_path, need_whole, refuse_if, refusing
from npulab.support.text import by_numbers, plural

BYTES = ".bin"
ARRAY = ".npy"
TEXTS = (".csv", ".txt", ".hex")
WIDTHS = range(8, 65, 8)  # a word has one of the numbers ``WIDTHS`` of bits
MOST_WORDS = 2**24  # a file, and a folder in all, has at most ``MOST_WORDS`` words
MOST_TEXT = 2**25  # a text of words has at most ``MOST_TEXT`` bytes
WORD = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16})")  # ``WORD`` matches a word in base 16.
APART = re.compile(r"[\s,;]+")


@refusing()
def read_words(
    path: str | os.PathLike[str],
    words: int | None = None,
    parameters: Any = None,
    *,
    bits: int = 32,
    big_endian: bool = False,
) -> Sweep:
    """A sweep of words that no target describes, with the parameters of their layers.

    ``path`` is a file with the words of all captures, one capture after another: bytes, ``.npy``
    ``(N, W)`` of whole numbers, or a text (``.csv``, ``.txt``, ``.hex``) of words in base 16. Or it
    is a folder with a ``.bin`` or ``.npy`` file for each capture, or with a folder for each capture
    that has one such file. ``words`` is the number of words of a capture; a file of bytes needs it.
    A word has ``bits`` bits, 8 to 64 in steps of 8. A word of at most 32 bits is one word of the
    sweep; a wider word is two, the low bits first. Bytes are little-endian unless ``big_endian``.

    ``parameters`` is a ``.csv`` with a column of numbers for each parameter and a row for each
    capture, or columns by name. If the captures have names (files of a folder, or a column "name"
    in a text of words) and the table has a column "name", rows are joined by name. Otherwise rows
    are in the order of the captures; a folder's captures are sorted by name, numbers by size.

    Raises FileNotFoundError; ValueError (file, what, got, allowed) for a file that does not hold
    whole captures, a word of more than ``bits`` bits, and a table that does not fit the captures.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "two.hex")
    >>> size = path.write_text("1 ff\\n3 ff\\n")
    >>> read_words(path, 2, {"input_w": [8, 16]})
    Sweep(two: 2 captures of 2 words, 1 bit varies, 1 parameter)
    """
    need_path("read_words", path)
    form = _Form(words, bits, big_endian)
    form.check()
    path = Path(path)
    names: list[str] = []
    if path.is_dir():
        names, numbers = _of_folder(path, form)
    else:
        names, numbers = _of_file(path, form)
    columns = columns_of(parameters, names, len(numbers), path)
    held = form.words_of(numbers)
    return Sweep(held, columns, path.stem)


@dataclass(frozen=True)
class _Form:
    """How words lie in files: the number of ``words`` of a capture (None: a row, or all of a file),
    the ``bits`` of a word, and the order of its bytes."""

    words: int | None
    bits: int
    big_endian: bool

    def check(self) -> None:
        """Raise TypeError or ValueError for a form that no file can have."""
        if self.words is not None:
            need_whole("read_words: words", self.words)
            refuse_if(
                not 0 < self.words <= MOST_WORDS, "words", self.words, f"are 1 to {MOST_WORDS}"
            )
        need_whole("read_words: bits", self.bits)
        refuse_if(self.bits not in WIDTHS, "bits", self.bits, "are 8 to 64, in steps of 8")
        need("read_words: big_endian", self.big_endian, bool, "is True or False")

    def little(self, path: Path) -> None:
        """Raise ValueError if ``big_endian`` is set for a file whose words are not raw bytes."""
        refuse_if(self.big_endian, path, "big-endian", "is big-endian for a file of bytes")

    def rows(self, path: Path, numbers: Array) -> Array:
        """The words of a file, ``(n,)`` or ``(N, W)``, with a row for each capture: ``(N, W)``."""
        refuse_if(not numbers.size, path, "no words", "is at least one; record it again")
        refuse_if(
            numbers.size > MOST_WORDS, path, f"{numbers.size} words", f"are at most {MOST_WORDS}"
        )
        count = self.words
        if count is None:
            count = numbers.shape[-1]
        wrong = numbers.size % count or (numbers.ndim == 2 and numbers.shape[1] != count)
        got = plural(numbers.size, "word")
        if numbers.ndim == 2:
            got = f"{plural(len(numbers), 'row')} of {plural(numbers.shape[1], 'word')}"
        refuse_if(wrong, path, got, f"are {plural(count, 'word')} for each capture")
        return numbers.reshape(-1, count)

    def words_of(self, numbers: Array) -> Array:
        """The words ``(N, W)`` of files as words of a sweep, ``uint32``: ``(N, 2 * W)`` if they
        have more than 32 bits, low bits first."""
        wide = numbers.astype("<u8", order="C")
        if self.bits <= 32:
            return wide.astype(np.uint32)
        return wide.view("<u4")


def _of_folder(folder: Path, form: _Form) -> tuple[list[str], Array]:
    """The names of the captures in a folder with a file for each, and their words ``(N, W)``."""
    found = files_in(folder)
    names = sorted(found, key=by_numbers)
    rows: list[Array] = []
    size = 0
    for name in names:
        _, numbers = _of_file(found[name], form, alone=True)
        refuse_if(
            len(numbers) > 1,
            found[name],
            f"{len(numbers)} captures of {plural(numbers.shape[1], 'word')}",
            "is one in each file of a folder",
        )
        width = plural(numbers.shape[1], "word")
        if rows and numbers.shape[1] != rows[0].shape[1]:
            first = f"{plural(rows[0].shape[1], 'word')} as in {found[names[0]].name}"
            raise ValueError(f"{found[name]}: got {width}, allowed are {first}")
        rows.append(numbers)
        size += numbers.size
        refuse_if(size > MOST_WORDS, folder, f"{size} words", f"are at most {MOST_WORDS}")
    return names, np.concatenate(rows)


def files_in(folder: Path, suffixes: Sequence[str] = (BYTES, ARRAY)) -> dict[str, Path]:
    """The file of each capture in a folder, by the capture's name: the files directly in it, or if
    there are none, one file in each folder in it. Raises ValueError for a capture with two files,
    and if there is no file."""
    kinds = " or ".join(suffixes)
    found: dict[str, Path] = {}
    for file in _of_words(folder, suffixes):
        refuse_if(
            file.stem in found, folder, f"two files {file.stem}", "is one file for each capture"
        )
        found[file.stem] = file
    if found:
        return found
    for inner in sorted(folder.iterdir()):
        if not inner.is_dir() or is_hidden(inner, folder):
            continue
        files = _of_words(inner, suffixes)
        chosen = [file for file in files if file.stem == "words"] or files
        refuse_if(
            len(chosen) > 1,
            inner,
            " and ".join(file.name for file in chosen[:2]),
            f"is one file {kinds}, or one called words{BYTES}",
        )
        for file in chosen:
            found[inner.name] = file
    refuse_if(
        not found,
        folder,
        f"no file {kinds}",
        "is one for each capture, here or a folder below",
    )
    return found


def _of_words(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files of words directly in a folder, sorted."""
    files = []
    for file in sorted(folder.iterdir()):
        if file.suffix in suffixes and file.is_file() and not is_hidden(file, folder):
            files.append(file)
    return files


def _of_file(path: Path, form: _Form, alone: bool = False) -> tuple[list[str], Array]:
    """The names of the captures in a file, [] if it has none, and their words ``(N, W)``; with
    ``alone``, a file of bytes without a number of words is one capture."""
    need_there(path)
    need_file(path)
    refuse_if(path.suffix == SUFFIX, path, "a sweep", "are words; npulab show lists a sweep")
    if path.suffix in TEXTS:
        return _of_text(path, form)
    if path.suffix == ARRAY:
        return [], _of_array(path, form)
    if form.words is None and not alone:
        raise ValueError(
            f"{path}: got no number of words of a capture, allowed is a number, as --words 24 "
            "(words=24 in Python)"
        )
    return [], _of_bytes(path, form)


def _of_bytes(path: Path, form: _Form) -> Array:
    size = form.bits // 8
    data = read_bounded(path, MOST_WORDS * size)
    step = size * (form.words or 1)
    each = plural(form.words or 1, "word")
    refuse_if(
        len(data) % step,
        path,
        plural(len(data), "byte"),
        f"is a multiple of {step}, {each} of {form.bits} bits",
    )
    raw = np.frombuffer(data, np.uint8).reshape(-1, size)
    if form.big_endian:
        raw = raw[:, ::-1]
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, :size] = raw
    return form.rows(path, wide.view("<u8")[:, 0])


def _of_array(path: Path, form: _Form) -> Array:
    form.little(path)
    array = npy_array(path.name, read_bounded(path, 8 * MOST_WORDS), "numpy.save writes")
    refuse_if(
        array.dtype.kind not in "iu" or array.ndim not in (1, 2),
        path,
        f"{array.dtype} of shape {array.shape}",
        "are whole numbers of shape (captures, words)",
    )
    numbers = form.rows(path, array)
    least, most = int(numbers.min()), int(numbers.max())
    wrong = most
    if least < 0:
        wrong = least
    if not 0 <= wrong < 2**form.bits:
        raise ValueError(_too_wide(path, hex(wrong), form))
    return numbers.astype(np.uint64)


def _too_wide(where: object, word: str, form: _Form) -> str:
    return f"{where}: got {word}, allowed are words of {form.bits} bits; --bits takes up to 64"


def _of_text(path: Path, form: _Form) -> tuple[list[str], Array]:
    """The names and words ``(N, W)`` in a text: a line is a capture if it has a name, or if the
    number of words is not given."""
    form.little(path)
    found: list[int] = []
    names: list[str] = []
    width = 0  # the number of words in the first line of words
    named = False
    for place, (number, cells) in enumerate(_lines(path)):
        if not place:
            named = cells[0].lower() in NAMES
            if named or not any(map(WORD.fullmatch, cells)):
                continue
        where = f"{path}, line {number}"
        if named:
            names.append(cells.pop(0))
        width = width or len(cells)
        refuse_if(
            len(cells) != width and (named or form.words is None),
            where,
            plural(len(cells), "word"),
            f"are {width}, as in the first capture",
        )
        found += [_word(cell, where, form) for cell in cells]
    numbers = np.array(found, np.uint64)
    if found and (named or form.words is None):
        numbers = numbers.reshape(-1, width)
    return names, form.rows(path, numbers)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of each line of a text of words; what follows a # is left out."""
    text = text_of(read_bounded(path, MOST_TEXT), path)
    for number, line in enumerate(text.splitlines(), 1):
        cells = APART.split(line.partition("#")[0].strip(" \t,;"))
        if any(cells):
            yield number, cells


def _word(cell: str, where: str, form: _Form) -> int:
    found = WORD.fullmatch(cell)
    if found is None:
        raise ValueError(
            f"{where}: got {cell!r:.60}, allowed are words in base 16, of at most 16 digits, "
            "and names in a first column called name"
        )
    word = int(found[1], 16)
    if word >= 2**form.bits:
        raise ValueError(_too_wide(where, cell, form))
    return word


def columns_of(given: Any, names: Sequence[str], rows: int, of: Path) -> Any:
    """The parameters of ``rows`` captures as columns: ``given``, or the columns of the table in the
    file ``given``, with its rows in the order of the captures (matched by name if both have names).
    """
    for name, times in Counter(names).items():
        refuse_if(times > 1, of, f"capture {name!r:.60} {times} times", "is each once")
    if given is None:
        return {}
    if not isinstance(given, str | os.PathLike):
        return given
    path = Path(given)
    with refusing(path):
        table = read_layers(path)
        if names and table.names:
            return table.columns(table.numbers_of(names))
        refuse_if(
            len(table.rows) != rows,
            path,
            plural(len(table.rows), "row"),
            f"is one for each of the {plural(rows, 'capture')} of {of}",
        )
        return table.columns()
