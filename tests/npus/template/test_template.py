"""``npulab new``: one folder, which loads and passes its own tests, and nothing else is touched."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_new_from import passes

import npulab
from npulab.captures.registry import trust
from npulab.cli import main
from npulab.npus.template import new_target

PACKAGE = Path(npulab.__file__).parent
# without the plugins that other tests need: loading them takes longer than the target's tests
BARE = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_target_passes_its_tests_and_is_one_folder(here: Path) -> None:
    """What adding a target touches, counted: files in one folder, none elsewhere."""
    (here / "mine.txt").write_text("mine")
    before, package = files_of(here), files_of(PACKAGE)
    assert main(["new", "heron"]) == 0
    after = files_of(here)
    new = sorted(set(after) - set(before))
    assert {Path(name).parent.as_posix() for name in new} == {"npulab_targets/heron"}
    assert {name: after[name] for name in before} == before
    assert files_of(PACKAGE) == package
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "npulab_targets/heron"],
        capture_output=True,
        text=True,
        env=BARE,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_its_table_has_one_worked_field(here: Path) -> None:
    new_target("heron")
    fields = npulab.target("heron").registers.fields["field"]
    assert (~fields.str.fullmatch(r"(\w+\.)?w\d+_\d+_\d+")).sum() == 1


def test_a_changed_line_of_its_table_is_a_discovery(here: Path) -> None:
    new_target("heron")
    table = here / "npulab_targets" / "heron" / "registers.csv"
    lines = table.read_text().splitlines()
    lines.insert(2, "JOB,0x0000,KERNEL,kernel_w,4,4,,raw+1,,,,guess,")
    table.write_text("\n".join(lines) + "\n")
    registers = npulab.target("heron").registers
    assert {
        name: registers.decode(np.array([0x21, *[0] * 15], np.uint32))[name]
        for name in ("kernel_h", "kernel_w")
    } == {"kernel_h": 2, "kernel_w": 3}
    assert registers.coverage().bits == (8, 16 * 32 - 8)


def test_a_dump_of_a_new_target_is_a_capture(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_target("heron")
    dump = here / "first"
    dump.mkdir()
    (dump / "words.bin").write_bytes(np.arange(16, dtype="<u4").tobytes())
    (dump / "job.json").write_text(json.dumps({"npu": "heron", "provenance": "simulated"}))
    assert main(["import", "first", "captures/heron", "--name", "sim-first"]) == 0
    assert main(["check", "captures", "--json"]) == 0
    capsys.readouterr()
    assert main(["show", "captures/heron/sim-first", "--json", "--field", "kernel_h"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == 1


def test_a_folder_of_dumps_is_a_set_of_captures(here: Path) -> None:
    """One of them broken, another of somebody else's NPU."""
    new_target("heron")
    for number, name in enumerate(("b", "a", "short", "other")):
        (here / "dumps" / name).mkdir(parents=True)
        (here / "dumps" / name / "words.bin").write_bytes(
            np.full(16, number, "<u4").tobytes()[: 60 if name == "short" else 64]
        )
        (here / "dumps" / name / "job.json").write_text(
            json.dumps({"npu": "owl" if name == "other" else "heron"})
        )
    with pytest.warns(UserWarning, match="short/words.bin: got 60 bytes, allowed is 64"):
        captures = npulab.load_all(here / "dumps")
    assert [(one.name, int(one.words[0])) for one in captures] == [("a", 1), ("b", 0)]
    assert npulab.load(here / "dumps", "b") == npulab.load(here / "dumps" / "b")
    assert not npulab.target("heron").importers[0].recognises(here)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            "[",
            "job.json, line 1, column 2: is not JSON: got the end of the text, allowed is a value",
        ),
        ("[]", "job.json: got list, allowed is an object"),
        ('{"npu": "heron", "chip": "owl"}', "chip: got 'owl', allowed is one of heron"),
        (
            '{"npu": "heron", "addresses": {"a": "here"}}',
            "job.json: addresses, a: got 'here', allowed is a number such as",
        ),
        ('{"npu": "heron", "addresses": 3}', "job.json: addresses: got 3, allowed is an object"),
        (
            '{"npu": "heron", "provenance": "hearsay"}',
            "got provenance 'hearsay', allowed is one of board",
        ),
    ],
)
def test_a_broken_dump_is_told(here: Path, broken: str, words: str) -> None:
    new_target("heron")
    dump = here / "dump"
    dump.mkdir()
    (dump / "words.bin").write_bytes(bytes(64))
    (dump / "job.json").write_text(broken)
    (reader,) = npulab.target("heron").importers
    with pytest.raises(ValueError, match=words):
        reader.read(dump)


def test_in_npulab_itself_it_imports_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import npulab.npus.template as template

    monkeypatch.setattr(template, "HERE", tmp_path.resolve())
    files = {path.name: path.read_text() for path in new_target("heron", tmp_path)}
    assert "from npulab.npus.heron.facts import CHIPS" in files["__init__.py"]
    assert not any("@" in text.replace("@pytest", "") for text in files.values())


@pytest.mark.parametrize(
    "name",
    ["", "1st", "Heron", "a b", "../up", "/abs", "a.b", "x" * 41, "<script>", "a\n", "class"],
)
def test_a_name_that_no_module_can_have_is_refused(here: Path, name: str) -> None:
    with pytest.raises(ValueError, match="allowed are up to 40 of a-z, 0-9 and _, a letter first"):
        new_target(name)
    assert files_of(here) == {}


def test_a_target_that_is_there_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="which another target has"):
        new_target("vivante")
    new_target("heron")
    before = files_of(here)
    assert main(["new", "heron"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("npulab_targets/heron: is there already")
    assert files_of(here) == before


@pytest.mark.parametrize("words", [2, 20])
def test_a_block_of_as_many_words_as_are_asked_for(here: Path, words: int) -> None:
    assert main(["new", "heron", "--words", str(words)]) == 0
    assert len(npulab.target("heron").registers) == words


@pytest.mark.parametrize("words", [-1, 0, 1, 2**16 + 1])
def test_other_numbers_of_words_are_refused(here: Path, words: int) -> None:
    with pytest.raises(ValueError, match=f"words: got {words}, allowed are 2 to 65536"):
        new_target("heron", words=words)
    assert files_of(here) == {}


def test_a_sweep_that_says_no_chip_is_read_as_the_usual_one(here: Path) -> None:
    sweep = npulab.Sweep(
        np.zeros((3, 20), np.uint32), {"kernel_h": [1, 2, 3]}, target="heron", block="JOB"
    )
    assert sweep.registers is None
    new_target("heron", words=20)
    found = npulab.Sweep(sweep.words, sweep.parameters, target="heron", block="JOB").registers
    assert found is not None
    assert len(found) == 20
    assert (
        npulab.Sweep(
            np.zeros((3, 7), np.uint32), sweep.parameters, target="heron", block="JOB"
        ).registers
        is None
    )


def test_json_names_the_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "owl", "--dest", "elsewhere", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["target"] == "owl"
    assert all((here / path).is_file() for path in said["files"])
    assert "elsewhere/owl/registers.csv" in [Path(path).as_posix() for path in said["files"]]


@pytest.mark.parametrize("source", [["--words", "6"], ["--from", "my words.bin"]])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_commands_that_it_ends_with_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: bool,
    source: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As they are printed: each is read as a shell reads it, those of npulab run here."""
    project = tmp_path / "it's mine"
    project.mkdir()
    for folder in (project, tmp_path):
        for name in ("words.bin", "my words.bin"):
            (folder / name).write_bytes(np.arange(6, dtype="<u4").tobytes())
    monkeypatch.chdir(tmp_path if elsewhere else project)
    where = ["--dest", str(project / "npulab_targets")] if elsewhere else []
    assert main(["new", "owl", *source, *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line.strip() for line in lines if line.startswith("  ")]
    assert len(commands) == 3 + elsewhere
    for command in commands:
        name, *arguments = shlex.split(command)
        if name == "npulab":
            assert main(arguments) == 0
        elif name == "cd":
            monkeypatch.chdir(*arguments)
        else:
            subprocess.run(["sh", "-c", command], check=True)
    assert "0x5" in capsys.readouterr().out
    assert (project / "captures" / "owl" / "first" / "capture.json").is_file()
    (table,) = [word for line in lines for word in line.split() if word.endswith("registers.csv")][
        :1
    ]
    assert elsewhere or (project / table).is_file()


SVD = """<?xml version="1.0"?><device><name>D</name><peripherals>
<peripheral><name>CNN</name><baseAddress>0x50100000</baseAddress><registers>
<register><name>CTRL</name><addressOffset>0x0</addressOffset><size>32</size><fields>
<field><name>RELU</name><lsb>0</lsb><msb>0</msb></field><field><name>POOL</name><lsb>8</lsb><msb>11</msb></field>
</fields></register></registers></peripheral>
<peripheral><name>DMA</name><baseAddress>0x50200000</baseAddress><registers>
<register><name>GO</name><addressOffset>0x40</addressOffset><size>32</size></register></registers></peripheral>
</peripherals></device>"""
HEADER = (
    "#define NPU_CFG 0x0010\n#define NPU_CFG_STRIDE_SHIFT 4\n#define NPU_CFG_STRIDE_MASK 0x70\n"
)
LOG = "# recorded by hand\n[1] write 0x50100000 = 0x301\nwrite 0x50100080 = 0x5 // rows\n0x50100000 0x302\n"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("file", "text", "fields", "blocks"),
    [
        ("npu.svd", SVD, {"RELU", "POOL", "GO"}, 2),
        ("npu.h", HEADER, {"STRIDE"}, 1),
        ("log.txt", LOG, set(), 1),
    ],
)
def test_a_target_begins_with_what_there_is(
    here: Path, file: str, text: str, fields: set[str], blocks: int
) -> None:
    if file.endswith(".h"):
        pytest.importorskip("clang")
    (here / file).write_text(text)
    assert main(["new", "heron", "--from", file]) == 0
    target = npulab.target("heron")
    assert len(target.tables) == blocks
    named = {
        item.name.rpartition(".")[2]
        for table in target.tables.values()
        for item in table
        if not item.automatic
    }
    assert {name.lower() for name in named} == {name.lower() for name in fields}
    assert "kernel_h" not in named
    page = (here / "npulab_targets/heron/README.md").read_text()
    assert file in page
    assert "@" not in page
    passes("heron", here / "dump")


def test_writes_of_a_new_target_are_a_capture(here: Path) -> None:
    (here / "log.txt").write_text(LOG)
    new_target("heron", source="log.txt")
    (here / "dump").mkdir()
    (here / "dump/writes.txt").write_text(LOG)
    (here / "dump/job.json").write_text(json.dumps({"npu": "heron"}))
    capture = npulab.load(here / "dump")
    assert capture.jobs[0].writes == ((0x50100000, 0x301), (0x50100080, 5), (0x50100000, 0x302))
    assert capture.words.tolist() == [0x302, 5]
    table = npulab.target("heron").registers.fields
    assert table["note"].tolist() == ["written 2 times: 0x301, 0x302", "written once: 0x5"]


def test_words_say_how_many_there_are(here: Path) -> None:
    (here / "job.bin").write_bytes(bytes(4 * 21))
    new_target("heron", source="job.bin")
    assert len(npulab.target("heron").registers) == 21
    (here / "odd.bin").write_bytes(bytes(7))
    with pytest.raises(ValueError, match=r"^odd.bin: got 7 bytes, allowed are words of 4$"):
        new_target("owl", source="odd.bin")
    (here / "bad.txt").write_text("0x10 0x1\nfoo\n")
    with pytest.raises(
        ValueError, match=r"^bad.txt line 2: got 'foo', allowed is an address and a value"
    ):
        new_target("owl", source="bad.txt")
    (here / "bad.txt").write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"^bad.txt: got no write"):
        new_target("owl", source="bad.txt")
    (here / "bad.txt").write_text("0x11 0x1\n")
    with pytest.raises(ValueError, match=r"^bad.txt line 1: .*; addresses are multiples of 4$"):
        new_target("owl", source="bad.txt")
    with pytest.raises(FileNotFoundError):
        new_target("owl", source="none.txt")
    assert not (here / "npulab_targets/owl").exists()


def test_generated_tests_hold_when_the_placeholder_is_gone(here: Path) -> None:
    """The user's own table and importer in the place of the template's."""
    new_target("heron")
    folder = here / "npulab_targets/heron"
    (folder / "registers.csv").write_text(
        "block,offset,register,field,lsb,width,evidence\nTOP,0x0,A,rows,0,9,guess\n"
        "TOP,0x8,B,,0,32,unknown\nTWO,0x4,C,mode,30,2,guess\n"
    )
    passes("heron", here / "dump")
    (folder / "dumps.py").write_text("""
import numpy as np
from npulab.capture import Capture, Job
from npulab.target import Importer
from .facts import BLOCK, TABLES

def is_dump(path):
    return path.suffix == ".hex"

def read_dump(path):
    words = np.array([int(word, 16) for word in path.read_text().split()], np.uint32)
    return {path.stem: Capture(path.stem, "heron", "heron", (Job(BLOCK, words),), maps=TABLES)}

IMPORTERS = (Importer("words in hexadecimal", is_dump, read_dump),)
""")
    (folder / "samples").mkdir()
    (folder / "samples/one.hex").write_text("1f 0 ffffffff")
    trust(folder)
    passes("heron", here / "unused")
    (folder / "samples/one.hex").write_text("1f 0 zz")
    trust(folder)
    with pytest.raises(ValueError, match=r"base 16: 'zz', at heron/dumps.py:"):
        passes("heron", here / "unused too")


def test_one_peripheral_of_a_file_becomes_a_target(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "npu.svd").write_text(SVD)
    assert main(["map", "npu.svd", "dma.csv", "--block", "DMA"]) == 0
    assert {row.split(",")[0] for row in (here / "dma.csv").read_text().splitlines()[1:]} == {"DMA"}
    assert main(["new", "heron", "--from", "dma.csv"]) == 0
    assert [*npulab.target("heron").tables] == ["DMA"]
    capsys.readouterr()
    assert main(["map", "npu.svd", "none.csv", "--block", "NPU"]) == 2
    assert "block: got 'NPU', allowed is one of CNN, DMA" in capsys.readouterr().err
    assert not (here / "none.csv").exists()


def test_a_table_with_arrays_is_taken_as_it_is(here: Path) -> None:
    text = (
        "block,offset,register,field,lsb,width,value,bits,count,stride,evidence\n"
        "L,0x8000,,group layer,,,sparse,,4 8,0x1000 4,sheet\nL,0x40,LUT,entry,0,4,signed,8,4,1,sheet\n"
    )
    (here / "sheet.csv").write_text(text)
    folder = new_target("heron", source="sheet.csv")[0].parent
    assert (folder / "registers.csv").read_text() == text
    assert npulab.target("heron").registers.place(0x9047) == ("L", (1, 1), 0x43)
    assert npulab.target("heron").sources["sheet"].startswith("sheet.csv")


def test_big_endian_words_are_turned_and_jobs_are_the_folders_own(here: Path) -> None:
    new_target("heron")
    for name, turned in (("little", 1), ("big", -1)):
        (here / name).mkdir()
        words = np.arange(16, dtype="<u4")
        (here / name / "words.bin").write_bytes(
            words[:, None].view(np.uint8)[:, ::turned].tobytes()
        )
        said = {"npu": "heron"} | ({"big_endian": {"words": 4}} if turned < 0 else {})
        (here / name / "job.json").write_text(json.dumps(said))
    assert npulab.load("big").words.tolist() == npulab.load("little").words.tolist() == [*range(16)]
    for wrong in ({"words": 3}, {"words": 0}, {"input": 4}):
        (here / "big/job.json").write_text(json.dumps({"npu": "heron", "big_endian": wrong}))
        with pytest.raises(
            ValueError,
            match=r"^big/job.json: big_endian: got '\w+' in words of \d bytes, allowed are",
        ):
            npulab.load("big")
    file = here / "npulab_targets/heron/dumps.py"
    file.write_text(
        file.read_text().replace(
            'IMPORTERS = (folder_importer("heron", CHIPS, TABLES),)',
            """
from npulab.capture import Job

def jobs(path, buffers, maps):
    return [Job("JOB", [*buffers["words"][:16]]), Job("JOB", [*buffers["extra"]])]

IMPORTERS = (folder_importer("heron", CHIPS, TABLES, jobs),)
""",
        )
    )
    trust(file.parent)  # code that was changed is asked for again
    with pytest.raises(
        ValueError, match=r"^target heron: jobs of little: KeyError: 'extra', at heron/dumps.py:\d+"
    ):
        npulab.load("little")
    (here / "little/extra.bin").write_bytes(bytes(range(1, 17)))
    assert npulab.load("little").jobs[1].words.tolist() == [*range(1, 17)]
    file.write_text(
        file.read_text()
        .replace(
            "return [Job",
            """from npulab.captures.dumps import Recorded
    return Recorded([Job""",
        )
        .replace(
            '[*buffers["extra"]])]',
            """[*buffers["extra"]])], {"mine": buffers["extra"]},
                    {"mine": 0x7_0000_0000})""",
        )
    )
    trust(file.parent)
    of = npulab.load("little")
    assert (dict(of.buffers), dict(of.addresses)) == (
        {"mine": bytes(range(1, 17))},
        {"mine": 0x7_0000_0000},
    )
    assert len(of.jobs) == 2
    (here / "made").mkdir()
    made = runpy.run_path("npulab_targets/heron/test_heron.py")
    with pytest.raises(
        pytest.skip.Exception,
        match=r"put a dump into .*samples: target heron: jobs of .*KeyError: 'extra'",
    ):
        made["test_dumps_are_read"](npulab.target("heron"), here / "made")


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("json", "a module of Python's own"),
        ("site", "a module of Python's own"),
        ("npulab", "the module "),
        ("numpy", "the module "),
        ("pytest", "the module "),
        ("helper_y", "the module "),
    ],
)
def test_a_name_that_a_module_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, of: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("helper_y.py").touch()
    with pytest.raises(
        ValueError, match=f"^name: got '{name}', which is the name of {of}.* such as {name}_npu$"
    ):
        new_target(name)
    assert not Path("npulab_targets").exists()


def test_a_folder_of_captures_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("quokka").mkdir()
    Path("quokka/words.bin").touch()
    assert new_target("quokka")
