"""The verdict file of a search: what was asked of which device, what it answered, and what a reader
needs to check it again.

::

    {"npulab": "verdict", "version": 1, "made with": "npulab 0.2.0", "date": "...",
     "question": "bisect", "command": ["npulab", "bisect", ...], "device": "command:...",
     "inputs": {"good": {"path": "...", "files": {"capture.json": "<sha256>"},
     "content": "<sha256>"}, ...}, "settings": {...}, "fingerprint": "...",
     "controls": {"runs": [{"control": "good", "outcome": "pass", "held": true, "run": 1}, ...],
     "errors": 0, "measured": 12, "says": "..."}, "journal": "...",
     "outcome": {"found": true, "groups": [...], "sentence": "..."}, "sha256": "<of all the rest>"}

The sha256 is of the other entries as JSON with sorted keys and without blanks. It shows damage, not
who wrote the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulab.captures.capture import Capture
from npulab.captures.fingerprints import content_hash, hash_of
from npulab.support.files import bounded_sum, read_bounded, replace_file
from npulab.support.json_text import json_of
from npulab.support.refuse import refuse_if, refusing

VERSION = 1
MOST_BYTES = 2**28  # a verdict file, with its whole journal, has at most ``MOST_BYTES`` bytes
MOST_INPUT = 2**28  # each file of an input has at most ``MOST_INPUT`` bytes
SUM = "sha256"
KEYS: dict[str, type | tuple[type, ...]] = {
    "made with": str,
    "date": str,
    "question": str,
    "command": list,
    "device": str,
    "inputs": dict,
    "settings": dict,
    "fingerprint": str,
    "controls": dict,
    "journal": str,
    "outcome": dict,
}


@dataclass(frozen=True)
class Verdict:
    """The entries of a verdict file, by JSON key; the docstring of this module lists them."""

    entries: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.entries[name]

    @classmethod
    @refusing()
    def read(cls, path: str | Path) -> Verdict:
        """The verdict in a file; raises ValueError for a file that is no verdict, was changed or
        damaged, or is of another version."""
        path = Path(path)
        found = json_of(read_bounded(path, MOST_BYTES), path)
        known = isinstance(found, dict) and found.get("npulab") == "verdict"
        refuse_if(not known, path, "no head of a verdict", "is a verdict file of npulab")
        version = found.get("version")
        refuse_if(version != VERSION, f"{path}: version", repr(version), f"is {VERSION}")
        stated = found.pop(SUM, None)
        refuse_if(
            stated != hash_of(found),
            path,
            "content that does not have its sha256: the file is damaged or was changed",
            "is a verdict file as it was written",
        )
        for name, kind in KEYS.items():
            right = isinstance(found.get(name), kind)
            refuse_if(not right, f"{path}: {name}", f"{found.get(name)!r:.40}", "is as written")
        return cls(found)

    def write(self, path: str | Path) -> None:
        """Write the verdict to a file, in place of an older one."""
        head = {"npulab": "verdict", "version": VERSION}
        entries = json.loads(json.dumps({**head, **self.entries}))
        entries[SUM] = hash_of(entries)
        text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
        replace_file(Path(path), text.encode())


def input_of(capture: Capture, path: str | Path) -> dict[str, Any]:
    """What a verdict says of an input: its ``path``, the sha256 of each of its ``files``, and the
    ``content_hash`` of the capture (``content``), which covers what a device gets."""
    return {"path": str(path), "files": sums_of(path), "content": content_hash(capture)}


def sums_of(path: str | Path) -> dict[str, str]:
    """The sha256 of each file in a folder, by relative path, or that of a single file, by name;
    hidden files in a folder are left out.

    Raises OSError for a path that cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return {path.name: bounded_sum(path, MOST_INPUT)}
    sums = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            sums[file.relative_to(path).as_posix()] = bounded_sum(file, MOST_INPUT)
    return sums
