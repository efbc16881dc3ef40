"""Investigations kept in a file: captures, notes, laws and views, merged between people, written as
a report.

``state`` has the session that people hold: ``contents`` (its items, which ``items`` declares) and
the functions that change them. ``file`` reads, checks (by ``session.schema.json``) and writes its
file, ``merging`` merges two sessions, ``views`` keeps the state of views. ``report`` fills its two
templates from the ``evidence``; ``markdown`` reads the notes.

Git merges two people's sessions with ``*.session.json merge=npulab`` in ``.gitattributes`` and,
once in each clone, ``git config merge.npulab.driver "npulab session merge %O %A %B"``; without
these it merges most notes by itself.
"""

from npulab.notebook.sessions.items import (
    AcceptedLaw,
    Anchor,
    Attached,
    Bookmark,
    Figure,
    MapVersion,
    Note,
)
from npulab.notebook.sessions.state import Session, merge_sessions, session

__all__ = [
    "AcceptedLaw",
    "Anchor",
    "Attached",
    "Bookmark",
    "Figure",
    "MapVersion",
    "Note",
    "Session",
    "merge_sessions",
    "session",
]
