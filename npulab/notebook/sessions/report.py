"""A session's report in a file: one page of HTML that needs nothing else, or Markdown with its figures beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npulab.notebook.sessions.pages import MARK_HTML, MARK_MARKDOWN, Shown, html_page, markdown_page
from npulab.notebook.sessions.story import story_of
from npulab.support.files import replace_file

if TYPE_CHECKING:
    from npulab.notebook.sessions.state import Session

HEAD = 2 ** 10
SUFFIXES = (".html", ".md")


def write_report(session: Session, path: Path, pictures: Iterable[Any] = ()) -> Path:
    """Write what a session tells, in the place of a report that is there; the same session gives the same bytes.

    ``.html`` is one file with no script and nothing from elsewhere; ``.md`` has its figures in a folder beside it.
    Raises ValueError for another suffix, FileExistsError where something else than a report is there.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: got {path.suffix or 'no suffix'}, allowed is {' or '.join(SUFFIXES)}")
    if path.exists() and not _is_report(path):
        raise FileExistsError(f"{path}: is there already and is no report of npulab")
    story = story_of(session, pictures)
    if path.suffix == ".html":
        replace_file(path, html_page(story).encode())
        return path
    folder = path.with_name(f"{path.stem}-figures")
    page = markdown_page(story, folder.name).encode()
    for one in story:
        if isinstance(one, Shown) and not (folder / one.name).exists():
            replace_file(folder / one.name, one.png)
    replace_file(path, page)
    return path


def _is_report(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return MARK_HTML.encode() in head or head.startswith(MARK_MARKDOWN.encode())
