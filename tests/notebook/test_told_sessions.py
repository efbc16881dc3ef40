"""A session whose every text is hostile: its report runs nothing."""

from __future__ import annotations

import re
from pathlib import Path

from hostile_maps import EVIL, Tags, harmless
from told_session import folder, hostile  # noqa: F401


def test_a_report_opens_anywhere_and_runs_nothing(folder: Path) -> None:
    one = hostile(folder)
    page = one.report(folder / "out.html").read_text(encoding="utf-8")
    harmless(page)
    assert EVIL in Tags(page).text
    assert not re.search(r"url\((?!['\"]?data:)|@import", page)
    markdown = one.report(folder / "out.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(`{3,}).*?^\1", "", markdown, flags=re.M | re.S)
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"`+[^`]*`+", "", prose))
    assert not re.search(r"(?<!\\)\]\(<?javascript", prose)
