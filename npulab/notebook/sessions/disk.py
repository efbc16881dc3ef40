"""A session's file and what lies beside it: read with bounds, written whole."""

from __future__ import annotations

import hashlib
import io
from errno import EINVAL
from pathlib import Path
from typing import Any

from npulab.captures.folders import DESCRIPTION
from npulab.notebook.sessions.file import MOST_BYTES, Document, read_session
from npulab.support.files import read_bounded

PNG = b"\x89PNG\r\n\x1a\n"


def on_disk(path: Path) -> tuple[Document, bytes]:
    """The session in a file, and the file's bytes.

    Raises ValueError with file and place for what is none, or has a path that leads out of the file's folder.
    """
    data = read_bounded(path, MOST_BYTES)
    document = read_session(data, str(path))
    named = [*document["captures"], *document["journals"], *(one["path"] for one in document["figures"].values()),
             *([document["map"]["path"]] if "map" in document else [])]
    for name in named:
        try:
            inside(path.parent, name)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return document, data


def inside(folder: Path, path: str) -> Path:
    """Where a path of a session lies; raises ValueError where links lead out of the session's folder."""
    found = folder / path
    if not found.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path!r:.80}: leads out of the session's folder over a link, allowed is a path inside it")
    return found


def sum_of(path: Path) -> str:
    """The sha256 of a file, or of the description in a case folder; raises OSError where there is none."""
    path = path / DESCRIPTION if path.is_dir() else path
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "is no file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def png(picture: Any) -> bytes:
    """The PNG of a picture; raises ValueError for what draws none."""
    data: Any = b""
    if isinstance(picture, bytes):
        data = picture
    elif hasattr(picture, "_repr_png_"):
        data = picture._repr_png_()
    elif hasattr(picture, "savefig"):
        out = io.BytesIO()
        picture.savefig(out, format="png", metadata={"Software": None})
        data = out.getvalue()
    if not isinstance(data, bytes) or not data.startswith(PNG):
        raise ValueError(f"figure: got {type(picture).__name__}, allowed is a picture of npulab, a matplotlib figure "
                         "or the bytes of a PNG")
    return data
