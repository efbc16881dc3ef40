"""What ``npulab lab`` saves in a notebook."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.filemanager import FileContentsManager

from npulab.cli.saving import STATE, VIEW, _load_jupyter_server_extension, before_save

LANGUAGE = {"name": "python", "version": "3.99"}


def notebook(shown: tuple[str, ...] = (), **state: Any) -> dict[str, Any]:
    """A notebook whose outputs show the models of ``shown``, saved with ``state``."""
    outputs = [
        {"output_type": "display_data", "metadata": {}, "data": {VIEW: {"model_id": name}}}
        for name in shown
    ]
    widgets = {STATE: {"version_major": 2, "version_minor": 0, "state": state}}
    return {
        "cells": [
            {"cell_type": "code", "outputs": [*outputs, {"output_type": "stream", "text": ""}]},
            {"cell_type": "markdown"},
        ],
        "metadata": {"language_info": dict(LANGUAGE), "widgets": widgets},
    }


def saved(folder: Path, content: Any, kind: str = "notebook") -> Any:
    model = {"type": kind, "content": content}
    before_save(model=model, path="a.ipynb", contents_manager=SimpleNamespace(root_dir=str(folder)))
    return model["content"]


def test_state_is_kept_of_what_is_shown_and_what_that_refers_to(tmp_path: Path) -> None:
    state = {
        "view": {"state": {"layout": "IPY_MODEL_box"}},
        "box": {"state": {"style": "IPY_MODEL_view"}},
        "gone": {"state": {}},
    }
    metadata = saved(tmp_path, notebook(("view", "of another kernel"), **state))["metadata"]
    assert metadata["widgets"][STATE] == {
        "version_major": 2,
        "version_minor": 0,
        "state": {name: state[name] for name in ("view", "box")},
    }


def test_without_a_view_there_is_no_state(tmp_path: Path) -> None:
    assert saved(tmp_path, notebook(gone={"state": {}}))["metadata"] == {"language_info": LANGUAGE}
    assert saved(tmp_path, notebook())["metadata"] == {"language_info": LANGUAGE}


@pytest.mark.parametrize(
    ("before", "language"),
    [({"name": "python"}, {"name": "python"}), ({"name": "R"}, LANGUAGE), (None, LANGUAGE)],
)
def test_language_stays_as_the_file_has_it(
    tmp_path: Path, before: dict[str, str] | None, language: dict[str, str]
) -> None:
    (tmp_path / "a.ipynb").write_text(
        json.dumps({"metadata": {"language_info": before} if before else {}})
    )
    assert saved(tmp_path, notebook())["metadata"]["language_info"] == language


def test_other_files_are_left(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{")
    given = notebook()
    assert saved(tmp_path, deepcopy(given), "file") == given
    assert saved(tmp_path, "text", "file") == "text"
    assert saved(tmp_path, notebook())["metadata"]["language_info"] == LANGUAGE


def test_what_a_kernel_would_write_is_there_when_a_notebook_opens(tmp_path: Path) -> None:
    shipped = (ROOT / "notebooks" / "2-two-stacks.ipynb").read_bytes()
    (tmp_path / "a.ipynb").write_bytes(shipped)
    other = nbformat.v4.new_notebook(metadata={"language_info": {"name": "R"}})
    nbformat.write(other, tmp_path / "r.ipynb")
    manager = FileContentsManager(root_dir=str(tmp_path))
    _load_jupyter_server_extension(SimpleNamespace(contents_manager=manager))
    model = manager.get("a.ipynb")
    assert model["content"]["metadata"]["language_info"] == IPythonKernel.language_info
    assert manager.get("r.ipynb")["content"]["metadata"]["language_info"] == {"name": "R"}
    manager.save({"type": "notebook", "content": model["content"]}, "a.ipynb")
    assert (tmp_path / "a.ipynb").read_bytes() == shipped
