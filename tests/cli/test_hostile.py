"""What a stranger's file, name or folder can do: every reader ends soon, in one sentence."""

from __future__ import annotations

import hashlib
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES
from map_rows import map_rows

import npulab
from npulab.captures import installed, trusted
from npulab.captures.dumps import folder_importer
from npulab.captures.journal import Journal, Trial, repair
from npulab.captures.registry import stated_target
from npulab.captures.sweep import load_sweep, save_sweep
from npulab.cli.shell import main
from npulab.npus.template import begin, new_target
from npulab.npus.vivante import dump as dumps
from npulab.quant.rules import rule
from npulab.registers.formats import read_map
from npulab.registers.map import RegisterMap
from npulab.registers.meaning import Meaning
from npulab.support.text import CONTROL, one_line, visible

CASE = CAPTURES / "vivante/sim-1x1"
SWEEP = CAPTURES / "vivante/sweep-addresses.npz"


def copy(tmp_path: Path, **changed: Any) -> Path:
    """A case whose description says something else."""
    folder = tmp_path / "case"
    folder.mkdir()
    for file in CASE.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    said = json.loads((folder / "capture.json").read_bytes())
    (folder / "capture.json").write_text(json.dumps({**said, **changed}))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence with which the shell refuses; no control character is in it."""
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("npulab: ")
    assert said.count("\n") == 1
    assert not CONTROL.search(said)
    return said


# Journals


def test_deep_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path, {"a": 1})
    with path.open("a") as file:
        file.write("[" * 100_000 + "\n")
    with pytest.raises(
        npulab.FormatError, match=r"^\S+j, line 2, .*npulab repair makes a journal of the lines"
    ):
        Journal(path)


def test_a_broken_journal_is_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "j"
    journal = Journal(path, {"a": 1})
    journal.add(Trial(("x",), "first", "fail"))
    twice = path.read_text().splitlines()[1]
    journal.add(Trial(("y",), "second", "pass"))
    with path.open("a") as file:
        file.write(f"{twice}\n{{torn\n")
    before = path.read_bytes()
    assert main(["repair", str(path), str(tmp_path / "new"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["trials"], [one[:16] for one in said["dropped"]]) == (3, ["line 5, column 2"])
    assert [trial.subset[0] for trial in Journal.read(tmp_path / "new")] == ["x", "y", "x"]
    assert path.read_bytes() == before
    with pytest.raises(FileExistsError):
        repair(path, tmp_path / "new")
    (tmp_path / "none").write_text("{}\n")
    assert "none, line 1: got no head of a journal" in refused(
        capsys, "repair", tmp_path / "none", tmp_path / "o"
    )


def test_a_text_with_any_end_of_line_is_one_trial(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.add(Trial(("a\u2028b\x85c\x0bd",), "\u2029", "pass"))
    assert Journal.read(tmp_path / "j")[0].subset == ("a\u2028b\x85c\x0bd",)


def test_who_reads_a_journal_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path).add(Trial(("x",), "", "pass"))
    path.write_bytes(path.read_bytes()[:-5])
    before = path.read_bytes()
    path.chmod(0o400)
    assert len(Journal.read(path)) == 0
    assert path.read_bytes() == before


# Sweeps


def test_a_sweep_is_no_bomb(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "s.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("words.npy", "w") as part,
    ):
        part.write(b"\x93NUMPY\x01\x00")
        for _ in range(260):
            part.write(bytes(2**20))
    with pytest.raises(npulab.FormatError, match=r"unpacked: got \d+ bytes, allowed are \d+$"):
        load_sweep(tmp_path / "s.npz")


def test_a_changed_bit_of_a_sweep_is_seen(tmp_path: Path) -> None:
    """One changed bit anywhere in the file: the same sweep or a refusal, never another one."""
    sweep = load_sweep(SWEEP)[:3]
    data = save_sweep(sweep, tmp_path / "s.npz").read_bytes()
    random = np.random.default_rng(26)
    for number, bit in enumerate(random.integers(0, 8 * len(data), 150).tolist()):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(
            data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        )
        try:
            found = load_sweep(path)
        except npulab.FormatError:
            continue
        except ValueError as error:
            pytest.fail(f"bit {bit}: {error!r}")
        assert np.array_equal(found.words, sweep.words)
        assert found.parameters.equals(sweep.parameters)
        assert (found.target, found.chip, found.provenance, found.source) == (
            sweep.target,
            sweep.chip,
            sweep.provenance,
            sweep.source,
        )


def test_what_a_sweep_has_no_place_for_is_refused(tmp_path: Path) -> None:
    data = io.BytesIO(SWEEP.read_bytes())
    with zipfile.ZipFile(data, "a") as file:
        file.writestr("provenence.npy", b"")
    (tmp_path / "s.npz").write_bytes(data.getvalue())
    with pytest.raises(
        npulab.FormatError, match=r"s\.npz: got member 'provenence', allowed are words, "
    ):
        load_sweep(tmp_path / "s.npz")


def test_sweeps_of_the_time_before_sums_open(tmp_path: Path) -> None:
    with zipfile.ZipFile(SWEEP) as file:
        assert "sha256.npy" not in file.namelist()
    sweep = load_sweep(SWEEP)
    again = load_sweep(save_sweep(sweep, tmp_path / "s.npz"))
    assert np.array_equal(again.words, sweep.words)


# What is no plain file, and what is too large


@pytest.mark.parametrize("name", ["capture.json", "nn.bin"])
def test_a_case_leads_nowhere(tmp_path: Path, name: str) -> None:
    folder = copy(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(
        ValueError, match=r"is no plain file, allowed is a file$|is a link, allowed is a file"
    ):
        npulab.load(folder)


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (
            npulab.load,
            npulab.load_all,
            load_sweep,
            npulab.read_model,
            npulab.read_map,
            Journal.read,
            begin,
        ):
            with pytest.raises(
                npulab.FormatError,
                match=r"^\S+: got something that is no plain file, allowed is a file$",
            ):
                read(path)


def test_a_text_dump_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    with path.open("wb") as file:
        file.write(b"map->relu = 0x0; /* (0) */\n")
        file.truncate(2**26 + 1)
    with pytest.raises(ValueError, match=r"big\.txt: got 67108865 bytes, allowed are 67108864$"):
        dumps.read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"big_endian": 5},
        {"addresses": [1]},
        {"parameters": "x"},
        {"big_endian": {"input": [4]}},
        {"big_endian": {"input": 4.0}},
    ],
)
def test_a_recorders_folder_says_objects(tmp_path: Path, change: dict[str, Any]) -> None:
    (name,) = change
    (tmp_path / "job.json").write_text(json.dumps({"npu": "mine"} | change))
    (tmp_path / "words.bin").write_bytes(bytes(8))
    (tmp_path / "input.bin").write_bytes(bytes(8))
    table = RegisterMap(
        map_rows(
            """
            offset,register,field,lsb,width
            0,a,f,0,1
            4,b,g,0,1
            """
        )
    )
    with pytest.raises(ValueError, match=rf"^{tmp_path}/job\.json: {name}: got "):
        folder_importer("mine", {"c": {}}, {"JOB": table}).read(tmp_path)


def test_a_pipe_in_a_recorders_folder_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"npu": "mine"}')
    os.mkfifo(tmp_path / "input.bin")
    with pytest.raises(
        ValueError, match=r"input\.bin: got something that is no plain file, allowed is a file$"
    ):
        folder_importer(
            "mine",
            {"c": {}},
            {"JOB": RegisterMap([{"offset": 0, "field": "f", "lsb": 0, "width": 1}])},
        ).read(tmp_path)


def test_a_number_beside_an_operation_has_64_bits() -> None:
    with pytest.raises(npulab.FormatError, match=r"allowed are numbers of at most 64 bits$"):
        Meaning.parse(f"raw+{10**4000:#x}")


def test_lines_of_a_text_dump_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"map->relu = 0x0; /* (0) */\n" + b"x\n" * 2**21)
    with pytest.raises(ValueError, match=r"long\.txt: got 2097153 lines, allowed are 2097152$"):
        dumps.read(path)


# Errors


def test_an_error_is_one_line_and_short() -> None:
    long = one_line(f"value {'x' * 5000!r}: got {'y' * 5000},\nallowed is \x1b[2J less")
    assert len(long) < 320
    assert "allowed is \\u001b[2J less" in long
    assert one_line(
        "a file's words, and its owner's words that go on and on and on and on and on and on, "
        "and on: the file's"
    ).endswith("the file's")
    assert visible("two\nlines\tand \x9b3J") == "two\nlines\tand \\u009b3J"


@pytest.mark.parametrize("text", ["+" * 5000, "*" + "9" * 5000])
def test_a_grammar_echoes_little(text: str) -> None:
    with pytest.raises(npulab.FormatError) as caught:
        Meaning.parse(text)
    assert len(str(caught.value)) < 500


def test_names_of_a_description_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a\nb\x1b[2J", "n" * 5000)):
        (tmp_path / str(number)).mkdir()
        folder = copy(tmp_path / str(number), buffers={"input": name})
        assert len(refused(capsys, "show", folder)) < 700


@pytest.mark.parametrize("name", ["n" * 5000, "a\nb\x1b[2J"])
@pytest.mark.parametrize("field", ["chip", "target"])
def test_a_name_that_nobody_knows_is_short(tmp_path: Path, field: str, name: str) -> None:
    with pytest.raises(LookupError) as caught:
        npulab.load(copy(tmp_path, **{field: name}))
    assert len(str(caught.value)) < 900
    assert not CONTROL.search(str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_terminal_gets_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(tmp_path, source="\x1b]0;title\x07\x1b[2J", tool="\x9b2J")
    for more in ([], ["--json"]):
        assert main(["show", str(folder), *more]) == 0
        said = capsys.readouterr().out
        assert more or "\\u001b]0;title" in said
        assert not CONTROL.search(said)


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(
        OSError, match=re.escape(f"No space left on device: '{tmp_path / 's.npz'}'")
    ):
        save_sweep(load_sweep(SWEEP)[:2], tmp_path / "s.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_map_with_an_unknown_enum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("field,lsb,width,value\na,0,4,enum:gone\n")
    with pytest.raises(npulab.FormatError, match=r"m\.csv: .*got enum 'gone', known are none"):
        npulab.draft(tmp_path / "m.csv")


def test_names_of_enums_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "enums.csv").write_text("enum,raw,name\na\x00b,0,off\n")
    (tmp_path / "nn.csv").write_text(
        "block,offset,register,field,lsb,width,value\nNN,0,w0,a,0,1,enum:b\n"
    )
    with pytest.raises(LookupError) as error:
        read_map(tmp_path / "nn.csv").map()
    assert CONTROL.search(str(error.value)) is None
    assert "a\\u0000b" in str(error.value)


def test_bits_at_four_thousand_million_are_not_computed(tmp_path: Path) -> None:
    header = tmp_path / "wide.h"
    header.write_text(
        "#define R_A 0x10\n#define R_A_X_SHIFT 4000000000\n#define R_A_X_MASK 3\n"
        "#define R_A_GO_SHIFT 1\n#define R_A_GO_MASK 2\n"
    )
    assert [row["field"] for row in read_map(header).rows] == ["GO"]
    chip = tmp_path / "wide.svd"
    chip.write_text("""<device><peripherals><peripheral><name>N</name><baseAddress>0</baseAddress><registers><register>
        <name>R</name><addressOffset>0</addressOffset><size>32</size><fields><field><name>F</name><bitOffset>0</bitOffset>
        <bitWidth>4000000000</bitWidth><enumeratedValues><enumeratedValue><name>on</name><value>1</value></enumeratedValue>
        </enumeratedValues></field></fields></register></registers></peripheral></peripherals></device>""")
    with pytest.warns(UserWarning, match="0 to 3999999999 are not inside"):
        read_map(chip)


def test_a_number_that_python_does_not_print_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(f"field,lsb,width,offset\na,0,0x{'f' * 4000},0\n")
    with pytest.raises(npulab.FormatError) as caught:
        npulab.draft(tmp_path / "m.csv")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "view",
    [
        {"kind": "RegisterView", "capture": "gone", "task": 0},
        {"kind": "MapEditor", "capture": "gone"},
        {"kind": "ByteView", "data": "gone", "query": [None]},
    ],
)
def test_a_view_that_cannot_be_shown(tmp_path: Path, view: dict[str, Any]) -> None:
    session = npulab.session(tmp_path / "s.json")
    session.open_view(view, "v")
    with pytest.raises((ValueError, LookupError)):
        session.show("v")


# Code of strangers

TARGET = "from pathlib import Path\nPath('ran').touch()\n"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a target in it, and something to look at that is of no known target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NPULAB_TARGETS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copy(tmp_path, target="aaa")
    folder = tmp_path / "npulab_targets" / "aaa"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(TARGET)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "case"),
        ("check", "case"),
        ("diff", "case", "case"),
        ("list", "."),
        ("list", "--formats"),
        ("show", "dump.txt"),
        ("import", "dump.txt", "out"),
        ("show", "dump"),
        ("show", "sweep.npz"),
        ("diff", "sweep.npz", "sweep.npz"),
    ],
)
def test_no_code_runs_because_a_file_is_looked_at(
    stranger: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    Path("dump.txt").write_text("neither one nor the other\n")
    Path("dump").mkdir()
    save_sweep(replace(load_sweep(SWEEP), target="aaa"), "sweep.npz")
    assert main([*arguments]) == (0 if "--formats" in arguments else 2)
    said = capsys.readouterr()
    assert f"target aaa: its code is not run, for {stranger} is not trusted" in said.out + said.err
    assert f"npulab trust {stranger}" in said.out + said.err
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../npus/vivante", "../../npulab_targets/aaa", "/aaa", "kit"]
)
def test_a_name_is_no_path(stranger: Path, name: str) -> None:
    said = json.loads(Path("case/capture.json").read_bytes())
    Path("case/capture.json").write_text(json.dumps({**said, "target": name or str(stranger)}))
    with pytest.raises(LookupError, match=r"target: got '.*', allowed is one of"):
        npulab.load("case")
    with pytest.raises(LookupError, match=r"^target: got '.*', allowed is one of"):
        npulab.target(name)


@pytest.mark.parametrize("of", ["npulab_targets", "npulab_targets/aaa"])
def test_a_trusted_folder_runs(
    stranger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    assert main(["trust", of]) == 0
    assert (stranger.parents[1] / "state/npulab/trusted.json").exists()
    assert "target aaa: does not load: AttributeError" in refused(capsys, "show", "case")
    assert Path("ran").exists()
    # only that folder: not one of the same name elsewhere, nor another one beside it
    Path("ran").unlink()
    Path("elsewhere").mkdir()
    shutil.copytree("npulab_targets", "elsewhere/npulab_targets")
    monkeypatch.chdir("elsewhere")
    assert "is not trusted" in refused(capsys, "show", "../case")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("__init__.py", "__init__.py has changed"),
        ("more.py", "more.py is new"),
        ("run.sh", "run.sh is new"),
        ("inner/deep.py", "inner/deep.py is new"),
        ("fast.abi3.so", "fast.abi3.so is new"),
        ("old.py", "old.py is gone"),
    ],
)
def test_what_is_not_as_it_was_trusted_does_not_run(
    stranger: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    (stranger / "old.py").touch()
    (stranger / "registers.csv").touch()
    assert main(["trust", "npulab_targets"]) == 0
    assert "does not load" in refused(capsys, "show", "case")
    before = {path: path.read_bytes() for path in stranger.glob("*.py")}
    # another folder of this path, or one that a pull has changed: the size and time may be the same
    (stranger / name).parent.mkdir(exist_ok=True)
    if name == "old.py":
        (stranger / name).unlink()
    else:
        (stranger / name).write_text(TARGET.replace("ran", "run"))
    Path("ran").unlink()
    for _ in range(2):
        assert refused(capsys, "show", "case") == (
            f"npulab: case/capture.json: target aaa: its code is not run, for {stranger} is not as it was trusted: {told}; if you "
            f"know who changed it: npulab trust {stranger}\n"
        )
    assert not {Path("ran"), Path("run")} & {*Path().iterdir()}
    assert main(["trust", str(stranger)]) == 0
    assert "does not load" in refused(capsys, "show", "case")
    # as it was it is another one now
    for path, data in before.items():
        path.write_bytes(data)
    (stranger / name).unlink() if name not in {path.name for path in before} else None
    assert "is not as it was trusted" in refused(capsys, "show", "case")


def test_tables_and_texts_change_without_a_question(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "mine"]) == 0
    folder = stranger.parent / "mine"
    Path("first").mkdir()
    Path("first/words.bin").write_bytes(bytes(64))
    Path("first/job.json").write_text('{"npu": "mine"}')
    for name in ("registers.csv", "README.md"):
        with (folder / name).open("a") as file:
            file.write("\n")
        assert main(["show", "first"]) == 0
    with (folder / "dumps.py").open("a") as file:
        file.write("# mine\n")
    capsys.readouterr()
    main(["show", "first"])
    assert (
        "mine is not as it was trusted: dumps.py has changed; if you know who changed it: npulab trust "
        in capsys.readouterr().err
    )
    assert main(["trust", str(folder)]) == 0
    assert main(["show", "first"]) == 0


def test_a_compiled_copy_beside_trusted_code_does_not_run(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, name in (
        (stranger / "__init__.py", "ran1"),
        (stranger / "more.py", "ran2"),
        (stranger / "inner/__init__.py", "ran3"),
    ):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({name!r}, 'w').close()\n")
        py_compile.compile(
            str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        file.write_text("")
    (stranger / "__init__.py").write_text(
        'import importlib\nfor one in (".more", ".inner"):\n    importlib.import_module(one, __name__)\n'
    )
    assert main(["trust", "npulab_targets"]) == 0
    assert "does not load: AttributeError" in refused(capsys, "show", "case")
    assert not [*Path().glob("ran*")]


def test_a_folder_that_leads_elsewhere_is_not_trusted(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("elsewhere").mkdir()
    (stranger / "inner").symlink_to(Path("elsewhere").absolute())
    assert "aaa/inner: got a link to a folder, allowed are folders that lie in" in refused(
        capsys, "trust", "npulab_targets"
    )
    (stranger / "inner").unlink()
    assert main(["trust", "npulab_targets"]) == 0
    (stranger / "inner").symlink_to(Path("elsewhere").absolute())
    assert "aaa is not as it was trusted: " in refused(capsys, "show", "case")
    assert not Path("ran").exists()


def test_paths_alone_are_no_trust(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("state/npulab").mkdir(parents=True)
    for record in (
        [str(stranger)],
        {str(stranger): {}},
        {str(stranger): None},
        {str(stranger): {"__init__.py": ""}},
    ):
        Path("state/npulab/trusted.json").write_text(json.dumps(record))
        assert "trusted" in refused(capsys, "show", "case")
    assert not Path("ran").exists()


def test_a_rule_that_a_name_states_runs_no_code(stranger: Path) -> None:
    with pytest.raises(ValueError, match=r"^target aaa: its code is not run, for "):
        rule("aaa:half")
    assert not Path("ran").exists()


# Distributions in the working folder

LOOKS = """
import sys, warnings, npulab
warnings.simplefilter("always")
for path in sys.argv[1:]:
    try:
        npulab.load(path)
    except (ValueError, LookupError) as error:
        print(path, error)
"""


def distribution(folder: Path, code: str, name: str = "evil", package: bool = False) -> Path:
    """A distribution with an entry point; gives where its module lies."""
    head = folder / f"{name}-1.dist-info"
    head.mkdir(parents=True)
    (head / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (head / "entry_points.txt").write_text(f"[npulab.targets]\n{name} = {name}mod\n")
    file = folder / (f"{name}mod/__init__.py" if package else f"{name}mod.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    return file.parent if package else file


def python(*arguments: str, **environment: str) -> str:
    """What Python says in the working folder, which is in its path."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize(
    "how", ["-m", "-c", "relative", "absolute", "below", "moved", "above", "beside"]
)
def test_an_entry_point_of_the_working_folder_wants_trust(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, how: str, package: bool
) -> None:
    shutil.rmtree(stranger.parent)
    here = Path.cwd()
    lies = {"relative": "inner", "below": "inner", "beside": "libraries"}
    place = distribution(
        here / lies.get(how, ""), TARGET.replace("ran", f"{here}/ran"), package=package
    )
    Path("unknown.dump").write_text("hello\n")
    paths = {
        "relative": "inner",
        "absolute": str(here),
        "below": str(here / "inner"),
        "above": "..",
        "beside": "../libraries",
    }
    program = (
        LOOKS
        if how != "moved"
        else f"import os, npulab.captures.registry\nos.mkdir('away')\nos.chdir('away')\n{LOOKS}"
    )
    first = ["-m", "npulab", "show"] if how == "-m" else ["-c", program]
    if how in ("absolute", "below", "moved"):
        paths.setdefault("moved", str(here))
        first = ["-P", *first]
    told = f"target evil: its code is not run, for {place} is not trusted; if you know who wrote it: npulab trust {place}"
    said = json.loads(Path("case/capture.json").read_bytes())
    Path("case/capture.json").write_text(json.dumps({**said, "target": "evil"}))
    looked_at = [str(here / "unknown.dump"), str(here / "case")]
    if how in ("above", "beside"):
        Path("sub").mkdir()
        monkeypatch.chdir("sub")
    answers = python(*first, *looked_at[: 1 if how == "-m" else 2], PYTHONPATH=paths.get(how, ""))
    assert f"{looked_at[0]}: is text, no target recognises this file" in answers
    assert answers.count(told) >= 2
    assert how == "-m" or f"{looked_at[1]} {looked_at[1]}/capture.json: {told}" in answers
    assert not (here / "ran").exists()


@pytest.mark.long
def test_a_trusted_entry_point_runs_as_it_was_trusted(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(stranger.parent)
    place = distribution(Path.cwd(), TARGET)
    Path("unknown.dump").write_text("hello\n")
    # a compiled copy of other code, of the same time and size, is not what was trusted
    place.write_text(TARGET.replace("ran", "bad"))
    py_compile.compile(str(place), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    place.write_text(TARGET)
    assert main(["trust", "evilmod.py"]) == 0
    python("-m", "npulab", "show", "unknown.dump")
    assert [path.name for path in Path().iterdir() if path.name in ("ran", "bad")] == ["ran"]
    Path("ran").unlink()
    place.write_text(f"{TARGET}\n")
    assert f"{place} is not as it was trusted: evilmod.py has changed;" in python(
        "-m", "npulab", "show", "unknown.dump"
    )
    assert not Path("ran").exists()
    assert "does not load: AttributeError" in python("-c", "import npulab\nnpulab.target('evil')")
    assert Path("ran").exists()
    Path("ran").unlink()
    assert "target: got 'evil'" in python(
        "-c", "import npulab\nnpulab.target('evil')", NPULAB_TARGETS="none"
    )
    assert not Path("ran").exists()


@pytest.mark.parametrize("inside", [".venv/lib/site-packages", "."])
def test_an_environment_in_the_working_folder_is_installed(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    shutil.rmtree(stranger.parent)
    monkeypatch.syspath_prepend(Path(inside).absolute())
    place = distribution(Path(inside), TARGET, name="well")
    point = next(one for one in entry_points(group="npulab.targets") if one.name == "well")
    monkeypatch.setattr(
        installed, "_installed", lambda: (Path(".venv/lib/site-packages").resolve(),)
    )
    assert installed.place_of(point, point.dist) == (place.absolute(), inside == ".")


def test_a_module_in_front_of_an_installed_one_wants_trust(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(".venv").absolute())
    distribution(Path(".venv"), TARGET, name="well")
    monkeypatch.setattr(installed, "_installed", lambda: (Path(".venv").resolve(),))
    point = next(one for one in entry_points(group="npulab.targets") if one.name == "well")
    Path("wellmod.py").touch()
    monkeypatch.syspath_prepend(Path.cwd())
    assert installed.place_of(point, point.dist) == (Path("wellmod.py").absolute(), True)
    # unless somebody installed it as a link to there
    told = {"url": Path.cwd().as_uri(), "dir_info": {"editable": True}}
    Path(".venv/well-1.dist-info/direct_url.json").write_text(json.dumps(told))
    assert installed.place_of(point, point.dist) == (Path("wellmod.py").absolute(), False)


def test_a_new_target_is_trusted_alone(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine"]) == 0
    Path("first").mkdir()
    Path("first/words.bin").write_bytes(bytes(64))
    Path("first/job.json").write_text('{"npu": "mine"}')
    capsys.readouterr()
    assert main(["show", "first"]) == 0
    assert not Path("ran").exists()
    assert main(["import", "first", "captures"]) == 0
    capsys.readouterr()
    assert "is not trusted" in refused(capsys, "show", "case")


def test_a_new_target_is_made_where_nothing_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=r"npulab_targets/mine: is made, and not recorded as trusted: "
    ):
        assert new_target("mine")


def test_what_is_no_target_is_not_trusted(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "got no target, allowed is a target's folder" in refused(capsys, "trust", "case")
    assert not (stranger.parents[1] / "state").exists()


@pytest.mark.parametrize("record", ["", "[", "{}", "[1, null]", "7"])
def test_a_broken_record_trusts_nothing(
    stranger: Path, capsys: pytest.CaptureFixture[str], record: str
) -> None:
    Path("state/npulab").mkdir(parents=True)
    Path("state/npulab/trusted.json").write_text(record)
    assert "is not trusted" in refused(capsys, "show", "case")
    assert main(["trust", "npulab_targets"]) == 0
    assert "does not load" in refused(capsys, "show", "case")


def test_a_target_that_is_asked_for_by_name_runs(stranger: Path) -> None:
    (stranger / "__init__.py").write_text(f"{TARGET}from npulab.npus.vivante import TARGET\n")
    with pytest.warns(
        ImportWarning, match=f"^target aaa runs code of {stranger}; npulab trust {stranger} says"
    ):
        npulab.target("aaa")
    assert Path("ran").exists()
    assert npulab.load("case").chip


def test_no_code_runs_if_none_is_trusted(
    stranger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPULAB_TARGETS", "none")
    assert "target: got 'aaa', allowed is one of" in refused(capsys, "show", "case")
    assert not Path("ran").exists()
    monkeypatch.setenv("NPULAB_TARGETS", str(stranger.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "aaa" in npulab.targets()
    assert "target aaa: does not load" in refused(capsys, "show", "case")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "raise SystemExit(0)",
            "npulab: case/capture.json: target aaa: does not load: SystemExit: 0, at ",
        ),
        ("raise KeyboardInterrupt", "npulab: stopped while target aaa loaded"),
    ],
)
def test_code_that_ends_the_program_is_told(
    stranger: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    told: str,
) -> None:
    (stranger / "__init__.py").write_text(f"{code}\n")
    monkeypatch.setenv("NPULAB_TARGETS", str(stranger.parent))
    assert main(["show", "case"]) == (130 if "Keyboard" in code else 2)
    assert capsys.readouterr().err.startswith(told)


def test_a_capture_says_its_sum() -> None:
    said = json.loads((CASE / "capture.json").read_bytes())
    assert all(
        hashlib.sha256((CASE / name).read_bytes()).hexdigest() == known
        for name, known in said["sha256"].items()
    )


# What trusted code imports


def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that a test imports are gone when it ends."""
    for name in ("evilmod", "helper_x", "helper_x.inner", "npulab_targets.zeta"):
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)


def helped(how: str, inside: str = "") -> tuple[Path, Path]:
    """Trusted code that imports a helper of the working folder; gives what was trusted, and the
    helper.
    """
    helper = Path("helper_x.py")
    helper.write_text("")
    code = (
        f"def later():\n    import {inside or 'helper_x'}\nfrom npulab.npus.vivante import TARGET\n"
    )
    code += "" if how == "later" else "later()\n"
    shutil.rmtree("npulab_targets")
    if how == "module":
        return distribution(Path.cwd(), code), helper
    folder = Path("npulab_targets/zeta")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(code)
    return folder, helper


@pytest.mark.parametrize("package", [False, True])
def test_a_module_next_to_a_trusted_one_is_trusted_with_it(
    stranger: Path,
    capsys: pytest.CaptureFixture[str],
    package: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, helper = helped("module", "helper_x.inner" if package else "")
    if package:
        helper.unlink()
        helper = Path("helper_x/inner.py")
        helper.parent.mkdir()
        helper.touch()
    Path("data-1").mkdir()
    Path("data-1/no_module.py").touch()  # no import leads there
    monkeypatch.syspath_prepend(Path.cwd())
    forgotten(monkeypatch)
    assert main(["trust", str(place)]) == 0
    assert json.loads(Path("state/npulab/trusted.json").read_bytes())[str(place)].keys() == {
        "evilmod.py",
        helper.as_posix(),
    }
    assert stated_target("evil").name == "vivante"
    Path("data-1/no_module.py").write_text("#")
    assert stated_target("evil").name == "vivante"
    helper.write_text(TARGET)
    with pytest.raises(
        ValueError,
        match=rf"^target evil: its code is not run, for {place} is not as it was trusted: {helper} has "
        rf"changed; if you know who changed it: npulab trust {place}$",
    ):
        stated_target("evil")
    assert not Path("ran").exists()


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_trusted_folder_imports_what_is_trusted(
    stranger: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
    package: bool,
) -> None:
    folder, helper = helped(how)
    if package:
        helper.unlink()
        helper = Path("helper_x/__init__.py")
        helper.parent.mkdir()
    wanted = helper.parent if package else helper
    helper.write_text(TARGET.replace("ran", "bad"))
    (helper.parent / "__pycache__").mkdir()
    py_compile.compile(str(helper), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    helper.write_text(TARGET)
    monkeypatch.syspath_prepend(Path.cwd())
    forgotten(monkeypatch)

    def run() -> None:
        stated_target("zeta")
        if how == "later":
            sys.modules["npulab_targets.zeta"].later()

    told = (
        rf"helper_x: its code is not run, for {helper.absolute()} is not trusted as it is now; if you know who wrote it: "
        rf"npulab trust {wanted.absolute()}"
    )
    assert main(["trust", str(folder)]) == 0
    for _ in range(2):
        with pytest.raises((ValueError, ImportError), match=told):
            run()
        assert not {Path("ran"), Path("bad")} & {*Path().iterdir()}
        helper.write_text(f"{TARGET}# other\n")
    assert main(["trust", str(wanted)]) == 0
    (folder / "more.csv").touch()  # loaded anew
    run()
    assert {Path("ran"), Path("bad")} & {*Path().iterdir()} == {Path("ran")}


def test_a_notebook_imports_its_own_modules(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, helper = helped("later")
    helper.write_text(TARGET)
    monkeypatch.syspath_prepend(Path.cwd())
    forgotten(monkeypatch)
    assert main(["trust", str(folder)]) == 0
    assert stated_target("zeta").name == "vivante"
    import_module("helper_x")
    assert Path("ran").exists()


def test_trust_of_a_module_is_bounded(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, _ = helped("module")
    for name in ("one", "two", "three"):
        Path(name).mkdir()
        Path(name, "more.py").touch()
    monkeypatch.setattr(trusted, "MOST_FILES", 4)
    assert (
        refused(capsys, "trust", str(place))
        == f"npulab: {place}: got more than 4 files of code, allowed are 4\n"
    )
    monkeypatch.setattr(trusted, "MOST_FOLDERS", 3)
    assert (
        "folders that evilmod.py can import, allowed are 3; move it to a folder of its own"
        in refused(capsys, "trust", str(place))
    )


# What the system refuses, and the interpreter's limits


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="this system has no file of a program's memory"
)
@pytest.mark.parametrize("name", ["capture.json", "job.json", "map.csv", "dump"])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    Path("x", name).symlink_to("/proc/self/mem")
    asked = (
        ("map", "x/map.csv", "out.csv")
        if name == "map.csv"
        else ("show", "x/dump" if name == "dump" else "x")
    )
    assert refused(capsys, *asked) == f"npulab: x/{name}: Input/output error\n"


def test_a_working_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["list", "--formats"]) == 0
    assert main(["show", str(CASE)]) == 0
    capsys.readouterr()
    assert (
        refused(capsys, "check", str(tmp_path / "none"))
        == f"npulab: {tmp_path}/none: there is no such file or folder\n"
    )
    assert (
        refused(capsys, "new", "mine")
        == "npulab: the working folder was removed; go to another one\n"
    )


@pytest.mark.parametrize("deep", [99, 600, 900, 5000])
def test_parameters_have_a_depth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deep: int
) -> None:
    folder = copy(tmp_path, parameters="?")
    said = (folder / "capture.json").read_text()
    (folder / "capture.json").write_text(said.replace('"?"', '{"a":' * deep + "1" + "}" * deep))
    assert (
        re.search(
            rf"capture\.json, line 1, column \d+: is not JSON: got values {deep + 1} deep, allowed are 100\n$",
            refused(capsys, "show", folder),
        )
        or deep == 99
    )
    parameters: dict[str, Any] = {}
    for _ in range(deep):
        parameters = {"a": parameters}
    with pytest.raises(
        ValueError,
        match="parameters: a: got lists or mappings nested more than 64 deep, allowed is a depth of 64",
    ):
        replace(npulab.load(CASE), parameters=parameters)


def test_parameters_of_the_largest_depth_are_kept(tmp_path: Path) -> None:
    parameters: Any = 1
    for _ in range(65):
        parameters = {"a": parameters}
    capture = replace(npulab.load(CASE), parameters=parameters)
    assert npulab.load(npulab.save(capture, tmp_path / "one")).parameters == parameters


@pytest.mark.parametrize("name", ["c", "chip", "co", "coefficients.bin"])
def test_a_folder_whose_name_begins_a_refusal_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, chip=3).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert (
        refused(capsys, "show", name)
        == f"npulab: {name}/capture.json: chip: got 3, allowed is a text\n"
    )


@pytest.mark.parametrize(
    ("text", "column"), [('{"npu": "aaa", "x": %s}', 21), ('["%s", -%s]', 10_006), ("%s", 1)]
)
def test_a_number_of_many_digits_is_one_sentence(
    tmp_path: Path, text: str, column: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.json").write_text(text.replace("%s", "1" * 10_000))
    (tmp_path / "words.bin").write_bytes(bytes(8))
    told = refused(capsys, "show", tmp_path)
    assert f"job.json, line 1, column {column}: " in told
    assert told.endswith(": is not JSON: got a number of 10000 digits, allowed are 4300\n")
