"""The pages of the rooms: short, with an example that runs."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import npulab

PAGES = sorted(Path(npulab.__file__).parent.glob("*/README.md"))
MOST_LINES = 60


@pytest.mark.parametrize("page", PAGES, ids=[page.parent.name for page in PAGES])
def test_a_page_is_short_and_its_example_runs(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted
    assert not found.failed
