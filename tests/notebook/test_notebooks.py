"""The notebooks' form; that they still say the same is nbval's part of the test run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
import store_notebooks
from conftest import ROOT, shared

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_NOTEBOOKS, MOST_LINES = 14, 10


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    return nbformat.read(request.param, 4)


def test_notebooks_have_each_a_number_of_the_plan() -> None:
    numbers = sorted(int(path.name.split("-")[0]) for path in NOTEBOOKS)
    assert numbers == sorted(set(numbers))
    assert set(range(5)) <= set(numbers) <= set(range(MOST_NOTEBOOKS))


def test_outputs_are_as_the_tool_stores_them(notebook: Any) -> None:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert notebook.metadata == store_notebooks.METADATA
    assert store_notebooks.volatile(notebook) == []
    assert not [
        output
        for cell in code
        for output in cell.outputs
        if store_notebooks.WIDGET in output.get("data", {})
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_files_are_byte_stable(path: Path) -> None:
    assert store_notebooks.text_of(nbformat.read(path, 4)) == path.read_text(encoding="utf-8")


def test_cells_are_short_and_end_in_something_seen(notebook: Any) -> None:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert max(len(cell.source.splitlines()) for cell in code) <= MOST_LINES
    assert all(cell.outputs for cell in code)
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]


def test_the_answer_is_first_and_the_asserts_are_folded_at_the_end(notebook: Any) -> None:
    first, last = notebook.cells[0], notebook.cells[-1]
    title, answer = first.source.split("\n\n")[:2]
    assert title.startswith("# ")
    printed = store_notebooks.printed_last(notebook)
    assert len(printed) > 60
    assert answer == f"**Answer.** {printed}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if "assert " in cell.source] == [last]
    assert last.metadata == {"jupyter": {"source_hidden": True}}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<object at 0x7f1234567890ab>", "a memory address"),
        ("/tmp/x", "a path of this machine"),
        ("2026-01-02 03:04", "a time stamp"),
        ("12.5 it/s", "a rate"),
        ("ipykernel_123", "a kernel's number"),
    ],
)
def test_what_changes_from_run_to_run_is_refused(text: str, what: str) -> None:
    output = nbformat.v4.new_output("stream", text=text)
    found = store_notebooks.volatile(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])
    )
    assert len(found) == 1
    assert what in found[0]


def test_check_tells_a_changed_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text(
        store_notebooks.text_of(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)", id="a")])
        )
    )
    assert store_notebooks.main([str(path)]) == 0
    assert store_notebooks.main([str(path), "--check"]) == 0
    path.write_text(path.read_text().replace('"1\\n"', '"2\\n"'))
    assert store_notebooks.main([str(path), "--check"]) == 1
    assert '+      "1\\n"' in capsys.readouterr().out


def test_what_the_last_cell_prints_is_written_into_the_first(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    text, last = "# A\n\n**Answer.** of yesterday\n\nMore.", "print('of\\n', 6 * 7)"
    folded = {"jupyter": {"source_hidden": True}, "trusted": True}
    cells = [
        nbformat.v4.new_markdown_cell(text, id="a"),
        nbformat.v4.new_code_cell(last, id="b", metadata=folded),
    ]
    path.write_text(store_notebooks.text_of(nbformat.v4.new_notebook(cells=cells)))
    assert store_notebooks.main([str(path)]) == 0
    stored = nbformat.read(path, 4).cells
    assert stored[0].source == "# A\n\n**Answer.** of 42\n\nMore."
    assert stored[1].metadata == {"jupyter": {"source_hidden": True}}


@pytest.mark.long
@pytest.mark.parametrize("name", ["hwx", "h13_tasks"])
def test_the_neural_engines_notebook_runs_on_files_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A folder of compiled files beside their networks, and one of bare tasks that have none."""
    folder = shared(f"data/ane/{name}")
    monkeypatch.setenv("NPULAB_HWX", str(folder))
    ran = store_notebooks.run(ROOT / "notebooks" / "8-apple-neural-engine.ipynb")
    said = "".join(
        output.get("text", "") for cell in ran.cells for output in cell.get("outputs", [])
    )
    assert ("sim-3x3-same, h13" in said, said.count(", h13, compiler, ")) == (False, 1)
    assert f"{'543 of 543' if name == 'hwx' else '0 of 0'} statements agree" in said


@pytest.mark.long
def test_the_notebook_of_traces_runs_on_those_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPULAB_TRACES", str(shared("data/nvdla")))
    ran = store_notebooks.run(ROOT / "notebooks" / "9-nvdla-rockchip.ipynb")
    said = "".join(
        output.get("text", "") for cell in ran.cells for output in cell.get("outputs", [])
    )
    # of one trace a range is 0 throughout, which is one value and not equal
    assert "31 of 32 equal, 974608 bytes compared" in said
    assert "31 of 32 traces equal; 13 of 18 changed rules noticed" in said


def test_the_start_notebook_opens_on_a_picture_and_says_what_it_found() -> None:
    cells = [
        cell
        for cell in nbformat.read(ROOT / "notebooks" / "0-start.ipynb", 4).cells
        if cell.cell_type == "code"
    ]
    shown = [
        "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)
        for cell in cells
    ]
    assert "<b>vivante/update4-vendor" in shown[0]  # recorded, not simulated
    assert "in_image_x_size" in shown[0]
    assert "in_image_border_const" in shown[1]
    drawn = [
        cell
        for cell in cells
        if any("image/png" in output.get("data", {}) for output in cell.outputs)
    ]
    assert len(drawn) == 2  # its trials; the output before and after
    verdicts = next(text for text in shown if ">not executed<" in text)
    assert verdicts.count("background:") >= 3 * verdicts.count(">not executed<")
    assert "<b>vivante/update4-mesa" in shown[-2]  # the reader's own
