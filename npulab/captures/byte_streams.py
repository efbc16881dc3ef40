"""Streams of bytes, one file of any length for each capture, with the parameters of the captures'
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

MOST_BYTES = 2**28  # the most bytes of all streams of a folder together


@dataclass(frozen=True, eq=False)
class ByteStreams:
    """The bytes ``rows`` that a compiler wrote for each capture, with the ``names`` of their files,
    and the values of the layers' parameters in ``columns``: by parameter name, one value a row."""

    names: tuple[str, ...]
    rows: tuple[bytes, ...]
    columns: dict[str, Any]

    def without(self, names: Sequence[str]) -> ByteStreams:
        """The same streams without the named columns; raises LookupError for an unknown column."""
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
    """The streams in the ``.bin`` files of a folder, one file a capture; the files lie in the
    folder itself or one in each of its subfolders.

    ``parameters`` is a ``.csv`` with a column of numbers for each parameter and a row for each
    capture, or a mapping of such columns by name. A row belongs to the file that its column "name"
    names; without that column, rows belong to the files in the order of their names, in which
    numbers are sorted by value.

    Raises FileNotFoundError and NotADirectoryError for a wrong ``path``, and ValueError (file,
    what, got, allowed) for a folder without streams and for a table that does not fit the files.
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
