"""The wheel without extras in a real browser: ``npulab lab`` copies the notebooks out, and each
runs to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import base_install
import pytest
from blank_page import chromium
from conftest import ROOT
from lab import Lab, Opened
from playwright.sync_api import Browser

NAMES = sorted(
    (path.name for path in (ROOT / "notebooks").glob("*.ipynb")),
    key=lambda name: int(name.split("-")[0]),
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, chrome: Browser) -> Iterator[Opened]:
    chromium()
    folder = tmp_path_factory.mktemp("base")
    programs = base_install.install(folder)
    lab = Lab(tmp_path_factory.mktemp("lab"), programs=programs, here=folder)
    assert lab.root == folder
    with Opened(lab, chrome) as page:
        yield page
    lab.close()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_to_its_end(opened: Opened, name: str) -> None:
    path = Path(base_install.COPY, "notebooks", name)
    opened.turn_to(path.as_posix())
    cells = [cell for cell in opened.run_all() if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    base_install.refuse(path, cells)
    assert opened.problems == []
