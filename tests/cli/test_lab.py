"""Where ``npulab lab`` opens: npulab's notebooks in its own folder, and everywhere else the
folder of the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from npulab import cli
from npulab.cli import lab

START = "/lab/tree/notebooks/0-start.ipynb"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What JupyterLab is asked to serve and to open, from a folder."""
    given: list[str] = []
    monkeypatch.setattr("jupyterlab.labapp.main", lambda arguments: given.extend(arguments) or 0)

    def command(folder: Path, *options: str) -> tuple[str | None, str | None]:
        monkeypatch.chdir(folder)
        given.clear()
        assert cli.main(["lab", *options]) == 0
        by_name = dict(text.split("=", 1) for text in given if "=" in text)
        return by_name.get("--ServerApp.root_dir"), by_name.get("--LabApp.default_url")

    return command


def wheel(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """npulab as a wheel installs it: without a checkout around it."""
    notebooks = folder / "site" / "npulab" / "share" / "notebooks"
    notebooks.mkdir(parents=True)
    (notebooks / lab.START).write_text("{}")
    monkeypatch.setattr(lab, "PACKAGE", folder / "site" / "npulab")


def test_in_the_checkout_the_start_notebook(opened: Any) -> None:
    for folder in (ROOT, ROOT / "notebooks"):
        assert opened(folder) == (str(ROOT), START)


def test_a_folder_of_ones_own_opens_itself(
    opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opened(tmp_path) == (str(tmp_path), "/lab")
    assert f"its own notebooks are in {ROOT}" in capsys.readouterr().err


def test_from_a_wheel_the_notebooks_are_copied_once(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(monkeypatch, tmp_path)
    mine = tmp_path / "mine"
    (mine / "deeper").mkdir(parents=True)
    assert opened(mine) == (str(mine), f"/lab/tree/{lab.COPY}/notebooks/{lab.START}")
    (mine / lab.COPY / "notebooks" / lab.START).write_text("changed by me")
    assert opened(mine) == (str(mine), "/lab")
    assert opened(mine / "deeper") == (str(mine / "deeper"), "/lab")
    assert not (mine / "deeper" / lab.COPY).exists()
    assert opened(mine / lab.COPY) == (str(mine / lab.COPY), START)
    assert (mine / lab.COPY / "notebooks" / lab.START).read_text() == "changed by me"


def test_a_copy_without_its_notebooks_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(monkeypatch, tmp_path)
    (tmp_path / "mine" / lab.COPY).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine")
    assert cli.main(["lab"]) == 2
    assert "is there without notebooks/0-start.ipynb" in capsys.readouterr().err


def test_a_folder_that_is_asked_for_is_left_to_jupyterlab(opened: Any, tmp_path: Path) -> None:
    assert opened(tmp_path, f"--notebook-dir={tmp_path}")[0] is None
