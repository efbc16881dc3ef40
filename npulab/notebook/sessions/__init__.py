"""Investigations kept in a file: captures, notes, laws and views, merged between people, told as a report.

``session`` is what people hold, made of ``contents`` (what is in it, as ``items``) and ``places`` (the files it speaks
of); ``file`` reads and writes its text, ``disk`` its file, ``merging`` makes two one, ``views`` keeps what was looked
at.  ``report`` tells it: ``story`` says what, from the ``evidence``; ``markdown`` reads the notes, ``pages`` writes
HTML and Markdown.

Git merges two people's sessions with ``*.session.json merge=npulab`` in ``.gitattributes`` and, once in each clone,
``git config merge.npulab.driver "npulab session merge %O %A %B"``; without these it merges most notes by itself.
"""

from npulab.notebook.sessions.items import AcceptedLaw, Anchor, Attached, Bookmark, Figure, MapVersion, Note
from npulab.notebook.sessions.state import Session, merge_sessions, session

__all__ = ["AcceptedLaw", "Anchor", "Attached", "Bookmark", "Figure", "MapVersion", "Note", "Session",
           "merge_sessions", "session"]
