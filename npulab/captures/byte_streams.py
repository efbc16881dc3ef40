"""Streams of bytes, a file for each capture and of any length, with the parameters of their
layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulab.captures.words import BYTES, columns_of, files_in
from npulab.support.files import read_bounded
from npulab.support.refuse import near, need_path, refuse_if, refusing
from npulab.support.text import by_numbers, plural

MOST_BYTES = 2**28  # most bytes of all streams of a folder


@dataclass(frozen=True, eq=False)
class ByteStreams:
    """The bytes that a compiler wrote for each capture, by the names of their files, and columns of
    parameters by name."""

    names: tuple[str, ...]
    rows: tuple[bytes, ...]
    columns: dict[str, Any]

    def without(self, names: Sequence[str]) -> ByteStreams:
        """The streams without some columns; raises LookupError for a column that is not there."""
        for name in names:
            if name not in self.columns:
                raise LookupError(
                    f"column: got {name!r:.60}, allowed are the columns of the parameters"
                    f"{near(name, self.columns)}"
                )
        kept = {name: values for name, values in self.columns.items() if name not in names}
        return ByteStreams(self.names, self.rows, kept)


@refusing()
def read_streams(path: str | os.PathLike[str], parameters: Any = None) -> ByteStreams:
    """The streams in a folder of ``.bin`` files, one a capture, also one in each of its folders.

    ``parameters`` is a ``.csv`` with a column of numbers for each parameter and a row for each
    capture, or columns by name. Rows are joined by a column "name" if the table has one, else by
    the order of the names, numbers in them by size.

    Raises FileNotFoundError, NotADirectoryError; ValueError (file, what, got, allowed) for a folder
    without streams, and a table that does not fit them.
    """
    need_path("read_streams", path)
    folder = Path(path)
    if not folder.exists():
        beside = [sibling.name for sibling in folder.parent.glob("*")]
        raise FileNotFoundError(f"{folder}: there is no such folder{near(folder.name, beside)}")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder}: got a file, allowed is a folder of files {BYTES}")
    found = files_in(folder, (BYTES,))
    names = sorted(found, key=by_numbers)
    rows = []
    size = 0
    for name in names:
        rows.append(read_bounded(found[name], MOST_BYTES))
        size += len(rows[-1])
        refuse_if(size > MOST_BYTES, folder, plural(size, "byte"), f"are at most {MOST_BYTES}")
    columns = columns_of(parameters, names, len(rows), folder)
    return ByteStreams(tuple(names), tuple(rows), dict(columns))
