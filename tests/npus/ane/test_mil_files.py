"""MIL programs from the shell: listed and checked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pace import limit
from refusals import refused
from test_cli import run  # noqa: F401 - a fixture

from npulab.captures.documents import document
from npulab.npus.ane import mil_files

TEXT = """\
// a program
program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}})]
{
    func main<ios18>(tensor<fp16, [1, 4, 1, 32]> x) {
        tensor<fp16, [1, 4, 1, 32]> y = add(x = x, y = x)[name = string("y")];
        tensor<fp16, [1, 4, 1, 32]> z = gelu(x = y)[name = string("z")];
    } -> (z);
}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.mil"
    path.write_text(text)
    return path


def test_a_program_is_listed(tmp_path: Path, run: Any) -> None:
    path = written(tmp_path, TEXT)
    status, out, _ = run("show", str(path))
    assert status == 0
    assert any("gelu" in line and "x=y" in line for line in out)
    status, out, _ = run("show", str(path), "--json")
    rows = [json.loads(line) for line in out]
    assert [row["operation"] for row in rows if row["table"] == "operations"] == ["add", "gelu"]
    assert [row["value"] for row in rows if row["table"] == "build info"] == ["3510.2.1"]
    assert [
        (row["finding"], row["line"], row["about"]) for row in rows if row["table"] == "findings"
    ] == [("note", 7, "gelu")]
    status, _, error = run("show", str(path), "--field", "x")
    assert (status, error.count("\n")) == (2, 1)


def test_a_program_is_checked(tmp_path: Path, run: Any) -> None:
    path = written(tmp_path, TEXT)
    status, out, _ = run("check", str(path), "--json")
    assert (status, json.loads(out[0])) == (0, {"case": "a.mil", "verdict": "right", "findings": 1})
    path.write_text(TEXT.replace("1, 32]> y", "1, 31]> y"))
    status, out, _ = run("check", str(path), "--json")
    assert (status, json.loads(out[0])["verdict"]) == (1, "wrong")
    assert "line 6, add y: type of y: got tensor<fp16, [1, 4, 1, 31]>" in json.loads(out[1])["text"]
    path.write_text(TEXT.replace("func", "fun"))
    status, out, error = run("check", str(path))
    assert (status, out) == (2, [])
    assert error == f"npulab: {path}: mil: line 5, column 5: got 'fun', allowed is 'func'\n"


def test_weights_are_looked_at_where_they_lie_beside(tmp_path: Path) -> None:
    text = TEXT.replace("gelu(x = y)", "add(x = y, y = w)").replace(
        "        tensor<fp16, [1, 4, 1, 32]> z",
        '        tensor<fp16, [1, 4, 1, 32]> w = const()[name = string("w"), val = tensor<fp16, [1, 4, 1, 32]>'
        '(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];\n'
        "        tensor<fp16, [1, 4, 1, 32]> z",
    )
    path = written(tmp_path, text)
    absent = document(path)
    assert absent is not None
    assert any("not in the folder of the program" in finding.text for finding in absent.findings)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "weight.bin").write_bytes(bytes(256))
    found = document(path)
    assert found is not None
    assert not any("not in the folder of the program" in finding.text for finding in found.findings)
    assert any(finding.about == "const" for finding in found.findings)
    outside = text.replace("@model_path/weights/weight.bin", "@model_path/../weights/weight.bin")
    found = document(written(tmp_path, outside))
    assert found is not None
    assert any("not in the folder of the program" in finding.text for finding in found.findings)


@pytest.mark.parametrize(
    "text", ["", "// program(\n", "import coremltools\nprogram(1.0)\n", "\0program(1.3)"]
)
def test_other_texts_are_no_program(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    assert not mil_files.recognises(path)
    assert document(path) is None


def test_recognising_takes_no_time(tmp_path: Path) -> None:
    begin = time.process_time()
    assert not mil_files.recognises(written(tmp_path, " \n// a\n" * 10**6))
    assert time.process_time() - begin < limit(2)


def test_a_text_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT[:-4])
    refused(lambda: document(path), str(path), "line ")
