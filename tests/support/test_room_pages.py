"""The pages of the package: those of rooms are short, and have examples that run."""

from __future__ import annotations

import doctest

import pytest
from conftest import ROOT

PACKAGE = ROOT / "npulab"
PAGES = [page.parent.relative_to(PACKAGE).as_posix() for page in PACKAGE.rglob("README.md")]
# By room: how many examples its page has that run. The pages of the package and of NPUs have none.
EXAMPLES = {
    "analysis": 7,
    "analysis/laws": 8,
    "captures": 6,
    "layout": 4,
    "models": 5,
    "notebook": 7,
    "npus/kit": 5,
    "quant": 7,
    "registers/formats": 1,  # two more need a file of the reader's
}
MOST_LINES = 60  # of the page of a room


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_examples_of_a_page_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(ROOT)
    page = str(PACKAGE / name / "README.md")
    assert doctest.testfile(page, module_relative=False) == (0, EXAMPLES.get(name, 0))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_of_a_room_is_short(name: str) -> None:
    text = (PACKAGE / name / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
