"""A folder that cannot be read as a dump says why: its ``job.json``, its NPU, or what it lacks."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import npulab
from npulab.captures.registry import trust
from npulab.cli import main
from npulab.npus.template import new_target

WORDS = bytes(range(64))


def made(name: str, text: str | None = None, file: str = "words.bin") -> Path:
    """A folder with words and a description."""
    folder = Path(name)
    folder.mkdir(parents=True)
    (folder / file).write_bytes(WORDS)
    if text is not None:
        (folder / "job.json").write_text(text)
    return folder


@pytest.fixture(scope="module")
def zeta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target ``zeta``."""
    folder: Path = tmp_path_factory.mktemp("zeta")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        new_target("zeta")
    return folder


@pytest.fixture
def dump(zeta: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """``made``, beside the target; what was made is removed after the test."""
    monkeypatch.chdir(zeta)
    yield made
    for path in zeta.iterdir():
        if path.name != "npulab_targets":
            shutil.rmtree(path)


# what its importer says of jobs itself
OWN = """
from npulab.capture import Job

def jobs(path, buffers, maps):
    if path.name == "bad":
        raise {}
    return [Job("JOB", [*buffers["words"][:16]])]

IMPORTERS ="""


def let_zeta_read(raised: str) -> None:
    """A target ``zeta`` here, whose importer reads jobs itself, and raises an error in "bad"."""
    new_target("zeta")
    file = Path("npulab_targets/zeta/dumps.py")
    text = file.read_text().replace("CHIPS, TABLES)", "CHIPS, TABLES, jobs)")
    file.write_text(text.replace("IMPORTERS =", OWN.format(raised)))
    trust(Path("npulab_targets/zeta"))


BROKEN = [
    ('{"npu": "zeta"', "a/job.json, line 1, column 15: is not JSON: got the end of the text"),
    (
        '{"npu": "zeta",\n "parameters": {kernel: 3}}',
        "a/job.json, line 2, column 17: is not JSON: got 'k'",
    ),
    ('{"npu": "zetta"}', "a/job.json: npu: got 'zetta', allowed is one of .*zeta.*; near is zeta$"),
    ('{"npu": "ZETA"}', "near is zeta$"),
    ('{"npu": "vivant"}', "near is vivante$"),
    ('{"npu": "quokka"}', "got 'quokka', allowed is one of .*; npulab new quokka begins one$"),
    ('{"npu": 5}', "a/job.json: npu: got 5, allowed is an NPU's name"),
    ('{"chip": "zeta"}', "a/job.json: npu: got nothing, allowed is an NPU's name"),
    ('["zeta"]', "a/job.json: got list, allowed is an object"),
    ('{"npu": "nvdla"}', "a/job.json: npu: nvdla does not read such a folder, it reads "),
    ('{"npu": "zeta", "chip": []}', r"a/job.json: chip: got \[\], allowed is a text$"),
    ('{"npu": "zeta", "chip": 0}', "a/job.json: chip: got 0, allowed is a text$"),
    ('{"npu": "zeta", "source": {"a": 1}}', "a/job.json: source: got {'a': 1}, allowed is a text$"),
    (
        '{"npu": "zeta", "block": "Q"}',
        "a/job.json: got the key 'block', allowed are npu, chip, provenance, .*, big_endian$",
    ),
    ('{"npu": "zeta", "outputs": 3}', "a/job.json: got the key 'outputs', allowed are npu, "),
    (
        '{"npu": "zeta", "adress": {}}',
        "a/job.json: got the key 'adress', allowed are .*; near is addresses$",
    ),
    ('{"npu": "zeta", "": {}}', "a/job.json: got the key '', allowed are "),
    (
        '{"npu": "zeta", "chip": "zeto"}',
        "a/job.json: chip: got 'zeto', allowed is one of zeta; near is zeta$",
    ),
]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_broken_description_is_told(dump: Callable[..., Path], text: str, words: str) -> None:
    path = dump("a", text)
    for read in (npulab.load, npulab.load_all, npulab.load_sweep):
        with pytest.raises((ValueError, LookupError), match=words):
            read(path)


@pytest.mark.parametrize(
    "command",
    [
        "show a",
        "check a",
        "list a",
        "diff a a",
        "import a new",
        "unread a",
        "laws a",
        "bisect a a --device simulated",
    ],
)
def test_every_command_tells_it(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    dump("a", '{"npu": "zeta"')
    assert main(command.split()) == 2
    told = capsys.readouterr()
    assert "a/job.json, line 1, column 15: is not JSON" in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("name", "file"),
    [("a", "words.bin"), ("my dumps", "words.bin"), ("a", "writes.txt"), ("a", "input.bin")],
)
def test_a_folder_without_a_description_gets_the_line_that_makes_it(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str], name: str, file: str
) -> None:
    path = dump(name, file=file)
    assert main(["show", name]) == 2
    told = capsys.readouterr().err
    assert f"{path / file} lies there without job.json" in told
    line = told[told.index("echo ") :].rstrip()
    assert line == f'echo \'{{"npu": "NAME"}}\' > {shlex.quote(f"{name}/job.json")}'
    if file == "words.bin":
        subprocess.run(["sh", "-c", line.replace("NAME", "zeta")], check=True)
        assert npulab.load(path).target == "zeta"


@pytest.mark.parametrize("description", ["job.json", "capture.json"])
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/dev/zero", "is a link to '/dev/zero', which is no file that can be read"),
        ("nowhere", "is a link to 'nowhere', which is no file that can be read"),
        ("pipe", "is a link to 'pipe', which is no file that can be read"),
        ("..", "is a link to '..', which is no file that can be read"),
        ("capture.json", "is a link to 'capture.json', which is no file that can be read"),
        ("", "is a folder, allowed is a file"),
    ],
)
@pytest.mark.parametrize("of", ["a", "a/b"])
def test_a_description_that_is_no_file_is_told_as_that(
    dump: Callable[..., Path], description: str, place: str, why: str, of: str
) -> None:
    file = dump(of) / description
    os.mkfifo(file.parent / "pipe")
    if place:
        file.symlink_to(place if place != "capture.json" else description)
    else:
        file.mkdir()
    with pytest.raises((ValueError, LookupError)) as told:
        npulab.load("a")
    text = str(told.value).replace(repr(description), "'capture.json'")
    # where something is at the end of the link, a capture is refused as it is read
    refused_as_read = text.startswith(
        (f"{file}: got a folder, allowed", f"{file}: got something that is no plain file, allowed")
    )
    assert f"{file} {why}" in text or refused_as_read
    assert "echo" not in text


@pytest.mark.parametrize(
    "command", ["show runs", "check runs", "import runs new", "laws runs", "diff runs runs"]
)
def test_so_does_a_folder_of_them(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for number in range(3):
        dump(f"runs/{number}")
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert 'echo \'{"npu": "NAME"}\' > runs/0/job.json; 2 other folders in runs lack it too' in told


def test_one_broken_dump_of_several_is_told_with_its_folder(dump: Callable[..., Path]) -> None:
    dump("runs/good", '{"npu": "zeta"}')
    dump("runs/torn", '{"npu": "zeta"')
    dump("runs/typed", '{"npu": "zetta"}')
    dump("runs/other", '{"npu": "quokka"}')  # another's
    with pytest.warns(UserWarning, match="job.json") as told:
        assert npulab.load_all("runs").names == ["good"]
    texts = sorted(str(one.message) for one in told)
    assert len(texts) == 2
    assert texts[0].startswith("runs/torn/job.json, line 1, column 15: is not JSON")
    assert (
        texts[1]
        == "runs/typed/job.json: npu: got 'zetta', allowed is 'zeta', as the dumps beside it have it; near is zeta"
    )


@pytest.mark.parametrize(
    "raised",
    [
        'ValueError("byte 0x10: got opcode 0x7")',
        'LookupError("byte 0x10: got opcode 0x7")',
        'KeyError("byte 0x10: got opcode 0x7")',
    ],
)
def test_what_the_jobs_of_a_dump_refuse_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    monkeypatch.chdir(tmp_path)
    let_zeta_read(raised)
    made("runs/good", '{"npu": "zeta"}')
    made("runs/bad", '{"npu": "zeta"}')
    with pytest.warns(UserWarning, match=r"runs/bad\b.*byte 0x10: got opcode 0x7"):
        assert npulab.load_all("runs").names == ["good"]


def test_a_case_of_several_is_asked_for_by_the_option(
    capsys: pytest.CaptureFixture[str], dump: Callable[..., Path]
) -> None:
    for number in range(14):
        dump(f"runs/board{number:02d}", json.dumps({"npu": "zeta"}))
    assert main(["show", "runs"]) == 2
    told = capsys.readouterr().err
    assert "runs: holds 14 captures: board00, board01, " in told
    assert "board11 and 2 more; say which with --case board00, in Python case='board00'" in told
    assert main(["show", "runs", "--case", "board00"]) == 0
    assert main(["show", "runs", "--case", "bored00"]) == 2
    assert "got case 'bored00', it holds board00, " in capsys.readouterr().err
    with pytest.raises(LookupError, match="near are board00"):
        npulab.load("runs", "bored00")


def test_captures_that_make_no_sweep_say_which_option_takes_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("zeta", "beta"):
        new_target(name)
        for number in range(2):
            text = json.dumps({"npu": name, "parameters": {"k": number}})
            folder = made(f"all/{name}{number}", text)
            npulab.save(npulab.load(folder), Path("captures", name, str(number)))
    with pytest.raises(
        ValueError,
        match=r"got target beta .* and zeta .*; --target beta takes these, or give a folder",
    ) as told:
        npulab.load_sweep("captures")
    assert "sweep_of" not in str(told.value)
    assert npulab.load_sweep("captures", target="zeta").target == "zeta"
    with pytest.raises(
        ValueError,
        match="got no capture of target zita, allowed is one of beta, zeta; near is zeta",
    ):
        npulab.load_sweep("captures", target="zita")


def test_a_reader_of_its_own_may_have_keys_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    let_zeta_read("ValueError")
    assert npulab.load(made("a", '{"npu": "zeta", "queue": 3}')).target == "zeta"
    with pytest.raises(
        ValueError, match=r"got the key 'parameter', allowed are .*; near is parameters$"
    ):
        npulab.load(made("b", '{"npu": "zeta", "parameter": {}}'))


def test_import_keeps_the_names_of_folders(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("runs/run00", "runs/run01"):
        dump(name, '{"npu": "zeta"}')
    assert main(["import", "runs", "captures/zeta"]) == 0
    assert capsys.readouterr().out.split() == ["captures/zeta/run00", "captures/zeta/run01"]
    assert main(["import", "runs", "captures/zeta", "--name", "mine"]) == 0
    assert capsys.readouterr().out.split() == [
        "captures/zeta/mine-run00",
        "captures/zeta/mine-run01",
    ]
