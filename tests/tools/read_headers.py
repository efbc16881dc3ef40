"""Reads a folder of other people's register files and prints a table: read or refused, registers,
fields, what is lost, how many lines are explained, whether every format gives the same table again.

    python tests/tools/read_headers.py FOLDER [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import npulab

TO = ("csv", "struct", "macros", "xml", "rdl", "svd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    records = [record(path) for path in sorted(options.folder.rglob("*")) if path.is_file()]
    for one in records:
        print(json.dumps(one) if options.json else text(one))
    if not options.json:
        counts = Counter(one["what"] for one in records)
        print(", ".join(f"{count} {what}" for what, count in counts.items()))


def record(path: Path) -> dict[str, Any]:
    """What happened to one file."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = npulab.read_map(path)
            table.check()
        except (ValueError, LookupError) as error:
            return {
                "file": path.name,
                "what": "refused",
                "why": " ".join(str(error).replace(str(path), path.name).split()),
            }
        out = {
            "file": path.name,
            "what": "read",
            **table.counts,
            "seconds": round(time.process_time() - start, 1),
            "comes_back": [],
        }
        if table.reading is not None:
            lost = Counter(kind for kind, *_ in table.reading.lost)
            out |= {
                "lines": table.reading.lines,
                "explained": table.reading.explained,
                "lost": dict(lost),
            }
        with tempfile.TemporaryDirectory() as folder:
            for to in TO:
                again = (
                    Path(folder)
                    / f"{to}.{npulab.registers.formats.FORMATS[to].suffix.removeprefix('.')}"
                )
                try:
                    npulab.write_map(table, again, to)
                    out["comes_back"] += [to] * (npulab.read_map(again) == table)
                except (ValueError, LookupError) as error:
                    out.setdefault("not_written", {})[to] = str(error)[:200]
    return out


def text(one: dict[str, Any]) -> str:
    if one["what"] == "refused":
        return f"{one['file'][:60]:60} refused: {one['why'][:200]}"
    lines = f"{one['explained']}/{one['lines']} lines, " if "lines" in one else ""
    lost = ", ".join(f"{count} {kind}" for kind, count in one.get("lost", {}).items())
    return (
        f"{one['file'][:60]:60} {one['registers']:6} registers {one['fields']:6} fields, {lines}{one['seconds']} s, "
        f"comes back from {' '.join(one['comes_back']) or 'none'}"
        + (f"; lost: {lost}" if lost else "")
    )


if __name__ == "__main__":
    main()
