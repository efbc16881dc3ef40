"""One board over ssh, as the manual has it, with a shell script in the place of ssh; and verdict
files that are written, checked again, changed and damaged."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_trials import pair

import npulab
from npulab import cli
from npulab.captures.verdicts import Verdict

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/captures/golden"
MANUAL = ROOT / "npulab/README.md"
# The board: it knows one bit of the words that breaks a job, and nothing of npulab.
BOARD = """#!{python} -IS
import sys
words = open(sys.argv[1] + "/" + {words!r}, "rb").read()
given = open(sys.argv[1] + "/input.bin", "rb").read()
out = bytes(range(1, 90)) + given[:1]
if words[{byte}] != {value}:
    out = out[::-1]
open(sys.argv[1] + "/output.bin", "wb").write(out)
"""
SSH = """#!/bin/sh
# stands for ssh: HOST COMMAND, in the folder of that board
cd "{home}/$1" && shift && exec sh -c "$*"
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with captures ``good`` and ``bad``, and a board behind a script named ssh."""
    of = pair("onert", 3)
    good = replace(of.good, name="good").with_buffers(
        output=bytes(range(1, 90)) + of.good.buffers["input"][:1]
    )
    npulab.save(good, tmp_path / "good")
    npulab.save(replace(of.bad, name="bad"), tmp_path / "bad")
    a, b = (capture.jobs[0].words.tobytes() for capture in (of.good, of.bad))
    byte = next(place for place in range(len(a)) if a[place] != b[place])
    job = json.loads((tmp_path / "good/capture.json").read_text(encoding="utf-8"))["jobs"][0]
    for host in ("board", "switch"):
        (tmp_path / "hosts" / host).mkdir(parents=True)
    script(tmp_path / "bin/ssh", SSH.format(home=tmp_path / "hosts"))
    script(
        tmp_path / "hosts/board/run",
        BOARD.format(python=sys.executable, words=job["words"], byte=byte, value=a[byte]),
    )
    script(tmp_path / "hosts/switch/power-cycle", "#!/bin/sh\nexit 0\n")
    for name, text in (("npu.bin", "firmware 1"), ("model.tflite", "model"), ("boot_id", "1")):
        (tmp_path / "hosts/board" / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def shell_of_the_manual() -> str:
    """The lines of the section "One board over ssh"."""
    text = MANUAL.read_text(encoding="utf-8")
    section = text[text.index("## One board over ssh") :]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(arguments)
    said = capsys.readouterr()
    return status, said.out + said.err


def test_the_ten_lines_of_the_manual_work(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shell_of_the_manual()
    assert len(lines.splitlines()) <= 12
    made, _, rest = lines.partition("chmod +x run.sh\n")
    subprocess.run(["sh", "-c", f"{made}chmod +x run.sh"], check=True, cwd=bench)
    commands = rest.replace("\\\n", " ").splitlines()
    bisect, verdict = (shlex.split(command)[1:] for command in commands)
    status, said = run(bisect, capsys)
    assert status == 0, said
    assert "the known-good job passed in" in said
    status, said = run(verdict, capsys)
    assert (status, said.splitlines()[-1]) == (0, "the verdict holds"), said
    found = Verdict.read("verdict.json")
    assert "npu.bin" in found["fingerprint"]
    assert "run.sh: sha256" in found["fingerprint"]

    (bench / "hosts/board/npu.bin").write_text("firmware 2", encoding="utf-8")
    (bench / "good/input.bin").write_bytes((bench / "bad/input.bin").read_bytes()[::-1])
    status, said = run(verdict, capsys)
    assert status == 1
    assert "input.bin is not as it was" in said


def written(bench: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    status, said = run(
        ["bisect", "good", "bad", "--device", "simulated", "--different-layers", *more], capsys
    )
    assert status == 0, said
    return json.loads((bench / "v.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_a_verdict_is_checked_again(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = written(bench, capsys, "--controls", "--verdict", "v.json")
    assert {*entries["inputs"]} == {"good", "bad"}
    status, said = run(["verdict", "v.json", "--device", "simulated"], capsys)
    assert (status, said.splitlines()[-1]) == (0, "the verdict holds"), said
    status, said = run(["verdict", "v.json", "--json"], capsys)
    first = json.loads(said.splitlines()[0])
    assert (status, first["holds"]) == (0, True)

    shutil.move(bench / "bad", bench / "elsewhere")
    status, said = run(["verdict", "v.json"], capsys)
    assert status == 1
    assert "does not hold" in said


def test_a_verdict_that_was_changed_is_refused_or_does_not_hold(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = written(bench, capsys, "--verdict", "v.json")
    changed = {**entries, "outcome": {**entries["outcome"], "found": False}}
    for text in (json.dumps(changed), "{}", "[", json.dumps({**entries, "version": 2})):
        (bench / "v.json").write_text(text, encoding="utf-8")
        status, said = run(["verdict", "v.json"], capsys)
        assert status == 2
        assert len(said.strip().splitlines()) == 1, said
    # somebody who makes the sum anew still has to make the journal say it
    groups = [[[0, "A", "b", "c"]]]
    forged = {**entries, "outcome": {**entries["outcome"], "groups": groups}}
    controls = [{**one, "held": False} for one in entries["controls"]["runs"]]
    failed = {**entries, "controls": {**entries["controls"], "runs": controls}}
    for made, point in ((forged, "outcome recounted"), (failed, "known-good control")):
        Verdict({name: made[name] for name in made if name != "sha256"}).write(bench / "v.json")
        status, said = run(["verdict", "v.json"], capsys)
        assert status == 1
        assert re.search(rf"{point}\s+does not hold", said), said


def test_options_of_controls_are_refused_where_they_say_nothing(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = ["bisect", "good", "bad", "--different-layers", "--controls", "--device"]
    for more, said in (
        (["manual"], "allowed is a device that runs without a person"),
        (["simulated", "--probe"], "--probe: got controls too"),
        (["simulated", "--verdict", "none/v.json"], "allowed is a file in a folder that exists"),
        (["simulated", "--verdict", "good/capture.json"], "is there and is no verdict"),
        (["simulated", "--never", "nothing == 1"], "never: got 'nothing == 1'"),
        (["simulated", "--every", "0"], "every: got 0"),
    ):
        status, told = run([*begin, *more], capsys)
        assert status == 2, told
        assert said in told


def test_a_golden_verdict_is_read() -> None:
    verdict = Verdict.read(GOLDEN / "verdict.json")
    assert verdict["question"] == "bisect"
    assert verdict["controls"]["runs"][0]["control"] == "good"
    assert verdict["outcome"]["found"] is True
