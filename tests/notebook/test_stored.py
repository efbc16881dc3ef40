"""Cells of notebooks that need a package which may be missing: their stored results, and that
the rest goes without.
"""

from __future__ import annotations

import json

import nbformat
import pytest
import store_notebooks
from conftest import ROOT

from npulab.notebook import stored

NOTEBOOKS = [nbformat.read(path, 4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


def test_stored_results_are_those_of_the_notebooks() -> None:
    files = {}
    for notebook in NOTEBOOKS:
        files |= store_notebooks.kept(notebook)
    assert sorted(files) == sorted(stored.HERE.glob("*.json"))
    for path, text in files.items():
        assert json.loads(text) == stored.outputs(path.stem)
        assert stored.outputs(path.stem)


def test_a_stored_result_stands_below_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    stored.show_stored("read-c", ImportError("reading C needs libclang"))
    assert capsys.readouterr().out == (
        "Stored result, because reading C needs libclang\n"
        "read back from it: 31 of 31 fields the same\n"
    )


def test_tables_and_pictures_are_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    data = {"text/plain": "a table", "text/html": "<table></table>"}
    monkeypatch.setattr(
        stored, "outputs", lambda _: [{"output_type": "execute_result", "data": data}]
    )
    monkeypatch.setattr("IPython.display.publish_display_data", shown.append)
    stored.show_stored("any", "why")
    assert shown == [data]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        LookupError,
        match=r"^stored result: got 'no', allowed is one of ask-vela, many-again, .*, read-c$",
    ):
        stored.show_stored("no", "why")


def test_a_run_without_the_package_is_not_stored() -> None:
    output = nbformat.v4.new_output(
        "stream", text=f"{stored.BEGINS} this needs Vela\ncaptured 97 words\n"
    )
    cell = nbformat.v4.new_code_cell('show_stored("ask-vela", why)', outputs=[output])
    found = store_notebooks.volatile(nbformat.v4.new_notebook(cells=[cell]))
    assert len(found) == 1
    assert "a package is missing" in found[0]
