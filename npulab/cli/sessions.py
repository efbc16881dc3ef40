"""``npulab report`` and ``session``: a session as a page, two people's made one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from npulab.cli.output import Add
from npulab.notebook.sessions import Session, merge_sessions
from npulab.support.files import replace_file


def _report_options(add: Add) -> None:
    add("session", metavar="SESSION")
    add("dest", metavar="OUT", help="a file .html or .md")


def _report(options: argparse.Namespace) -> None:
    if not Path(options.session).is_file():
        raise FileNotFoundError(f"{options.session}: there is no such session")
    path = Session(options.session, autosave=False).report(options.dest)
    print(json.dumps({"report": str(path)}) if options.json else path)


def _session_options(add: Add) -> None:
    add("what", choices=("merge",))
    add("base", metavar="BASE", help="what both began with; an empty file where that is nothing")
    add("ours", metavar="OURS", help="which is written to")
    add("theirs", metavar="THEIRS")


def _session(options: argparse.Namespace) -> int:
    """Both sessions in the file OURS; 1 where something is to be looked at, which git calls a
    conflict."""
    merged = merge_sessions(options.base, options.ours, options.theirs)
    replace_file(Path(options.ours), merged.text.encode())
    if options.json:
        print(json.dumps({"session": options.ours, "notes": len(merged.notes), "conflicts": merged.conflicts}))
    else:
        print("".join(f"npulab: {text}\n" for text in merged.conflicts), file=sys.stderr, end="")
    return 1 if merged.conflicts else 0


COMMANDS = {"report": (_report_options, _report), "session": (_session_options, _session)}
