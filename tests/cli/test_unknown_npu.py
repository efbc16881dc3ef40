"""The words of an NPU that nobody has described, from a file to a map with names, a C header, rnndb
and a report, with the commands of the front page and nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zeta
from conftest import ROOT

import npulab
from npulab.cli.shell import main
from npulab.npus.template import new_target

COMMANDS = re.search(
    r"```sh\n((?:npulab [^\n]*zeta[^\n]*\n)+)```", (ROOT / "README.md").read_text()
)
PYTHON = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
HARD = [pytest.param(seed, True, marks=pytest.mark.long) for seed in (7, 11, 12, 13)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("seed", "hard"), [(7, False), *HARD])
def test_from_words_to_a_report_in_five_commands(
    seed: int, hard: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zeta.record(seed, here, hard)
    assert COMMANDS is not None
    commands = COMMANDS[1].splitlines()
    assert len(commands) == 5
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    capsys.readouterr()

    # each parameter that stands in the words has its name, and its value in layers not seen before
    registers = npulab.session("zeta.json").registers
    named = {item.name: item for item in registers if not item.automatic}
    layers, words = zeta.drawn(seed + 1000, 100)
    values = registers.decode(np.array(words, np.uint32))
    for name, (word, lsb, _) in zeta.PLAIN.items():
        assert named[name].pieces[0][:2] == (word, lsb)
        assert values[name].tolist() == [layer[name] for layer in layers], name

    # the same fields in each file
    held, xml = (npulab.read_map(f"zeta.{form}").map() for form in ("csv", "xml"))
    assert [(item.name, item.register, item.pieces, item.note) for item in held] == [
        (item.name, item.register, item.pieces, item.note) for item in xml
    ]
    header = Path("zeta.h").read_text()
    assert {*re.findall(r"uint32_t (\w+) : \d+;", header)} >= {*named}

    # the report holds each law against the captures
    session = npulab.session("zeta.json")
    page = Path("zeta.html").read_text()
    assert len(session.laws) > len(zeta.PLAIN)
    assert page.count("found: agrees in 60 of 60") == len(session.laws)
    for law in session.laws:
        assert law.field in page
    for name in named:
        assert f">{name}<" in page or f"{name}," in page, name


def test_the_three_lines_of_the_front_page_are_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeta.record(7, here)
    assert PYTHON is not None
    assert COMMANDS is not None
    assert len([line for line in PYTHON[1].splitlines() if line]) == 3
    searched: list[Any] = []
    monkeypatch.setattr(npulab, "find_laws", searched.append)
    exec(PYTHON[1], {})
    assert main(shlex.split(COMMANDS[1].splitlines()[0])[1:]) == 0
    saved = npulab.load_sweep("zeta.npz")
    assert searched[0].words.tolist() == saved.words.tolist()
    assert searched[0].parameters.equals(saved.parameters)


@pytest.fixture
def small(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A sweep of two words: two plain parameters, one that a law reads, a law of two."""
    draw = np.random.default_rng(5)
    height, width = draw.integers(8, 120, (2, 40))
    groups = draw.permutation(np.arange(40) % 8) + 1
    words = np.stack([width - 1 + 2**16 * height, groups - 1 + 2**16 * (groups * width)], axis=1)
    np.save("all.npy", words)
    rows = [f"{h},{w},{g}" for h, w, g in zip(height, width, groups, strict=True)]
    Path("layers.csv").write_text("\n".join(["input_h,input_w,groups", *rows]))
    assert main(["import", "all.npy", "s.npz", "--parameters", "layers.csv"]) == 0
    capsys.readouterr()
    return here


def test_names_of_fields_are_the_same_everywhere(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In laws, the map, rnndb, a C header, the functions that pack, the session and show."""
    assert main(["laws", "s.npz", "--map", "s.csv", "--session", "s.json"]) == 0
    told = capsys.readouterr().out
    names = {item.name for item in npulab.read_map("s.csv").map() if "C:" in item.evidence}
    assert len(names) == 4
    assert {*re.findall(r"^(w\d+_\d+_\d+) ", told, re.MULTILINE)} == names
    assert {law.field for law in npulab.session("s.json").laws} == names
    for out in ("s.xml", "s.h", "pack.h"):
        assert main(["map", "s.csv", out, *["--to", "pack"][: 2 * (out == "pack.h")]]) == 0
    assert names <= {*re.findall(r'bitfield name="(\w+)"', Path("s.xml").read_text())}
    assert names <= {*re.findall(r"uint32_t (\w+) : \d+;", Path("s.h").read_text())}
    assert names <= {*re.findall(r"uint32_t (\w+);", Path("pack.h").read_text())}
    new_target("zeta", source="s.csv")
    Path("job").mkdir()
    Path("job/words.bin").write_bytes(np.load("all.npy")[0].astype("<u4").tobytes())
    Path("job/job.json").write_text('{"npu": "zeta"}')
    capsys.readouterr()
    assert main(["show", "job"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in names)


def test_a_field_of_one_parameter_gets_its_name(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its value is the parameter; if other laws read the field, its name says that it is raw."""
    assert main(["laws", "s.npz", "--map", "s.csv", "--named"]) == 0
    registers = npulab.read_map("s.csv").map()
    sweep = npulab.load_sweep("s.npz")
    values = registers.decode(sweep.words)
    for name in ("input_w", "input_h"):
        assert values[name].tolist() == sweep.parameters[name].tolist()
    product = next(item for item in registers if item.pieces[0][:2] == (1, 16))
    assert product.automatic
    for name in re.findall(r"[a-z]\w*", product.note):
        assert name in sweep.parameters or name in registers


def test_a_session_keeps_the_laws_of_the_last_search(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Notes stay, and laws that a person accepted; the found ones are there once."""
    assert main(["session", "new", "mine.json", "--title", "mine"]) == 0
    session = npulab.session("mine.json")
    session.note("from the board")
    session.accept("input_w + 1", "w0_0_7", by="me", sweep="s.npz")
    for _ in range(2):
        assert main(["laws", "s.npz", "--session", "mine.json"]) == 0
    session = npulab.session("mine.json")
    assert (session.title, len(session.notes), session.paths) == ("mine", 1, ("s.npz",))
    assert [law.by for law in session.laws].count("npulab laws") == 4
    assert [law.law for law in session.laws if law.by == "me"] == ["input_w + 1"]
    assert main(["report", "mine.json", "mine.md"]) == 0
    assert Path("mine.md").read_text().count("found: agrees in 40 of 40") == 4


REFUSED = {
    "laws none.npz --session a.json": "none.npz: there is no such file or folder",
    "laws captures --session a.json": "--session: got captures, allowed is a file .npz of one sw",
    "laws s.npz --session a.json --map ../b.csv": "--map: got ../b.csv, allowed is a file in ",
    "laws s.npz --session torn.json": "torn.json, line 1, column 1: is not JSON",
    "laws s.npz --session below/a.json": "s.npz: lies outside the session's folder",
    "laws s.npz --named": "--named: got no --map, allowed is --map FILE with it",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_session_is_refused_before_the_search(
    command: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("captures").mkdir()
    Path("below").mkdir()
    Path("torn.json").write_text("no")
    before = sorted(small.rglob("*"))
    assert main(command.split()) == 2
    told = capsys.readouterr()
    assert REFUSED[command] in told.err
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert sorted(small.rglob("*")) == before


def test_words_that_nobody_named_are_shown_in_base_16(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A diff has their xor; a value stands only where it says more than the raw number."""
    Path("zeta.csv").write_text(
        "block,offset,register,field,lsb,width,value\n,0,w0,size,0,8,raw+1\n,0,w0,mode,8,4,\n"
        ",4,w1,,0,32,\n"
    )
    new_target("zeta", source="zeta.csv")
    for name, words in (("a", (0x1F, 33031616)), ("b", (0x2F, 2622912))):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "words.bin").write_bytes(np.array(words, "<u4").tobytes())
        Path("runs", name, "job.json").write_text('{"npu": "zeta"}')
    assert main(["diff", "runs/a", "runs/b"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "JOB", "w0", "size", "32", "48", "-"] in lines
    assert ["0", "JOB", "w1", "w1_0_32", "0x1f805c0", "0x2805c0", "0x1d00000"] in lines
    assert main(["show", "runs/a"]) == 0
    out = capsys.readouterr().out
    assert re.search(r" size +0\[7:0\] +0x1f +32 ", out)
    assert re.search(r" mode +0\[11:8\] +0x0 +[^0 ]", out)
    assert re.search(r" w1_0_32 +1\[31:0\] +0x1f805c0 ", out)
    assert "33031616" not in out
    assert main(["diff", "runs/a", "runs/b", "--json"]) == 0
    assert '"a": 33031616, "b": 2622912' in capsys.readouterr().out
