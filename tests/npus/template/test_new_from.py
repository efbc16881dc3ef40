"""What ``npulab new --from`` makes of each kind of file loads, passes its own tests and plants
nothing.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import npulab
from npulab.cli import main
from npulab.npus.template import Reading, new_target

MAPS = ROOT.parent / "shared" / "data" / "maps"
HEADER = """#include <stdint.h>
#include <far/away_const.h>
typedef struct { uint64_t opcode : OPCODE_BITS; uint64_t wait : 1; uint64_t pad_0 : 64 - OPCODE_BITS - 1; uint64_t pad_1 : 64; } Any;
typedef struct { uint64_t opcode : OPCODE_BITS; uint64_t wait : 1; uint64_t kind : KIND_BITS; uint64_t base : BASE_BITS;
                 uint64_t rows : ROW_BITS; uint64_t columns : ROW_BITS; } Move;
typedef struct { uint64_t opcode : OPCODE_BITS; uint64_t wait : 1; uint64_t count : COUNT_BITS; } Multiply;
union Command { Any any; Move move; Multiply multiply; };
"""
CONSTANTS = {"OPCODE_BITS": 3, "KIND_BITS": 2, "BASE_BITS": 32, "ROW_BITS": 16, "COUNT_BITS": 14}
DEFINES = [f"{name}={value}" for name, value in CONSTANTS.items()]
SOURCES = {
    "macros.h": "#define NPU_CFG 0x0010\n#define NPU_CFG_STRIDE_SHIFT 4\n#define NPU_CFG_STRIDE_MASK 0x70\n",
    "struct.h": "struct job { unsigned stride : 2; unsigned pad : 3; unsigned : 27; unsigned base; };\n",
    "union.h": "struct job { unsigned kind : 4; unsigned : 28; union { struct { unsigned a : 8; unsigned b : 8; } x; "
    "struct { unsigned c : 5; unsigned d : 20; } y; } u; };\n",
    "two.h": "struct job { union { struct { unsigned a : 8; } x; struct { unsigned b : 5; } y; } u; "
    "union { struct { unsigned c : 8; } v; struct { unsigned d : 5; } w; } t; };\n",
    "npu.svd": """<?xml version="1.0"?><device><name>D</name><peripherals><peripheral><name>CNN</name><baseAddress>0x50100000</baseAddress>
<registers><register><name>CTRL</name><addressOffset>0x0</addressOffset><size>32</size><fields><field><name>RELU</name><lsb>0</lsb>
<msb>0</msb></field></fields></register></registers></peripheral></peripherals></device>""",
    "npu.rdl": "addrmap npu { reg { field {} relu[1]; field {} pool[4]; } ctrl; };\n",
    "npu.xml": """<database xmlns="http://nouveau.freedesktop.org/"><domain name="NPU" width="32"><reg32 offset="0x4" name="CFG">
<bitfield name="STRIDE" low="0" high="3"/></reg32></domain></database>""",
    "features.xml": """<database xmlns="http://nouveau.freedesktop.org/"><enum name="gen"><value value="1" name="A"/><value value="2" name="B"/>
</enum><domain name="NPU" width="32" varset="gen"><reg32 offset="0x4" name="OLD" variants="A"><bitfield name="STRIDE" low="0" high="3"/>
</reg32><reg32 offset="0x4" name="NEW" variants="B"><bitfield name="PAD" low="0" high="5"/></reg32></domain></database>""",
    "npu.csv": "block,offset,register,field,lsb,width,feature\nJOB,0x0,CFG,stride,0,2,\nJOB,0x4,W,old,0,8,small\nJOB,0x4,W,new,4,8,large\n",
    "apart.csv": "block,offset,register,field,lsb,width,feature\nJOB,0x0,CFG,stride,0,2,\nJOB,0x4,W,old,0,4,small\nJOB,0x4,W,new,4,8,large\n",
    "only.csv": "block,offset,register,field,lsb,width,feature\nJOB,0x0,CFG,stride,0,2,small\n",
    "arrays.csv": "block,offset,register,field,lsb,width,value,bits,count,stride\nJOB,0x0,LUT,entry,0,8,,8,16,1\n",
    "log.txt": "0x0010 0x1\n0x0014 0x2\n",
    "words.bin": "0123" * 24,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def passes(name: str, folder: Path) -> None:
    """The target's own tests hold, none of them skipped."""
    made = runpy.run_path(f"npulab_targets/{name}/test_{name}.py")
    target: Any = npulab.target(name)
    tests = [test for test in made if test.startswith("test_")]
    assert len(tests) == 4
    folder.mkdir()
    for test in tests:
        made[test](target, *[folder] * (test == "test_dumps_are_read"))


def named_fields(name: str) -> set[str]:
    target = npulab.target(name)
    maps = [registers for chip in target.chips for registers in target.maps(chip).values()]
    return {item.name for registers in maps for item in registers if not item.automatic}


@pytest.mark.parametrize("file", SOURCES)
def test_every_kind_of_source_loads_and_passes_its_tests(here: Path, file: str) -> None:
    if file.endswith(".h"):
        pytest.importorskip("clang")
    if file.endswith(".rdl"):
        pytest.importorskip("systemrdl")
    Path(file).write_text(SOURCES[file])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of holes
        new_target("mine", source=file)
    passes("mine", here / "dump")
    assert "kernel_h" not in named_fields("mine")
    page = Path("npulab_targets/mine/README.md").read_text()
    assert "kernel_h, the worked" not in page
    assert "@" not in page


def test_alternatives_of_a_union_are_blocks(here: Path) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(HEADER)
    new_target("mine", source="npu.h", reading=Reading(DEFINES))
    target = npulab.target("mine")
    assert {*target.tables} == {"any", "move", "multiply"}
    assert {len(registers) for registers in target.tables.values()} == {
        4
    }  # each as long as the union
    assert [item.name for item in target.tables["move"] if not item.automatic][:4] == [
        "opcode",
        "wait",
        "kind",
        "base",
    ]
    assert (
        "all of them have `opcode`, `wait` in the same bits"
        in Path("npulab_targets/mine/README.md").read_text()
    )
    passes("mine", here / "dump")


OPCODES = "".join(
    f"#define WREN_OPCODE_{name} {raw}\n"
    for raw, name in enumerate(("FETCH", "MULTIPLY", "FINISH", "KEEP"), 1)
)


def blocks_of(name: str) -> dict[str, list[str]]:
    """The names of the fields of each block."""
    maps = npulab.target(name).tables
    return {
        block: [item.name for item in registers if not item.automatic]
        for block, registers in maps.items()
    }


def test_names_of_an_opcode_are_blocks_of_a_stream(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(OPCODES + HEADER)
    defines = [f"--define={one}" for one in DEFINES]
    stated = ["--opcode=FETCH=move", "--opcode=KEEP=move", "--opcode", "FINISH=any"]
    assert main(["new", "mine", "--from", "npu.h", *defines, *stated]) == 0
    assert "guess" not in capsys.readouterr().err
    move = ["opcode", "wait", "kind", "base", "rows", "columns"]
    assert blocks_of("mine") == {
        "FETCH": move,
        "KEEP": move,
        "MULTIPLY": ["opcode", "wait", "count"],
        "FINISH": ["opcode", "wait", "pad_0", "pad_1"],
    }
    passes("mine", here / "dump")
    # a stream of commands of several kinds becomes a job for each, and the same words again
    words = np.zeros((3, 4), "<u4")
    words[:, 0] = 4 + 8, 2 + 16 * 9, 3
    Path("stream").mkdir()
    Path("stream/words.bin").write_bytes(words.tobytes())
    Path("stream/job.json").write_text(json.dumps({"npu": "mine"}))
    capture = npulab.load("stream")
    assert [job.block for job in capture.jobs] == ["KEEP", "MULTIPLY", "FINISH"]
    assert np.array_equal([job.words for job in capture.jobs], words)
    values = capture.fields.set_index(["block", "field"]).value
    assert values["KEEP", "wait"] == 1
    assert values["MULTIPLY", "count"] == 9
    words[1, 0] = 7
    Path("stream/words.bin").write_bytes(words.tobytes())
    with pytest.raises(ValueError, match=r"stream.*byte 0x10: got opcode 0x7, allowed is 0x1"):
        npulab.load("stream")


def test_an_alternative_that_is_guessed_says_so(here: Path) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(OPCODES + HEADER)
    with pytest.warns(UserWarning, match="`FETCH`, `KEEP` have the fields of `move` is a guess"):
        new_target("mine", source="npu.h", reading=Reading(DEFINES, opcodes={"FINISH": "any"}))
    maps = npulab.target("mine").tables
    evidence = {item.name: item.evidence for item in maps["KEEP"] if not item.automatic}
    assert {evidence[name] for name in ("opcode", "wait")} == {"source"}
    assert {evidence[name] for name in ("kind", "base", "rows", "columns")} == {"guess"}
    assert "is a guess" in Path("npulab_targets/mine/README.md").read_text()
    passes("mine", here / "dump")


def test_an_opcode_without_any_alternative_has_the_fields_of_all(here: Path) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(
        "enum opcode { A_RUN, A_WAIT, A_STOP };\nunion insn { struct { unsigned opcode : 2; unsigned a : 9; unsigned b; } run;"
        " struct { unsigned opcode : 2; unsigned c : 5; } wait; };\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of holes
        new_target("mine", source="npu.h")
    assert blocks_of("mine") == {
        "RUN": ["opcode", "a", "b"],
        "WAIT": ["opcode", "c"],
        "STOP": ["opcode"],
    }
    assert {len(registers) for registers in npulab.target("mine").tables.values()} == {2}
    passes("mine", here / "dump")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("KEPT=move", "opcode: got 'KEPT', allowed is one of FETCH, MULTIPLY, FINISH, KEEP"),
        ("KEEP=moves", "opcode KEEP: got alternative 'moves', allowed is one of any, move, multi"),
        ("KEEP", "--opcode: got 'KEEP', allowed is NAME=ALTERNATIVE"),
    ],
)
def test_an_opcode_that_nobody_has_is_refused(
    here: Path, given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(OPCODES + HEADER)
    defines = [f"--define={one}" for one in DEFINES]
    assert main(["new", "mine", "--from", "npu.h", *defines, "--opcode", given]) == 2
    assert told in capsys.readouterr().err
    assert not Path("npulab_targets/mine").exists()


@pytest.mark.parametrize(
    ("file", "known", "chip"),
    [
        ("npu.csv", {"stride", "new"}, {"small": 0, "large": 1}),
        ("apart.csv", {"stride", "old", "new"}, {"small": 1, "large": 1}),
        ("only.csv", {"stride"}, {"small": 1}),
    ],
)
def test_a_chip_has_the_features_that_go_together(
    here: Path, file: str, known: set[str], chip: dict[str, int]
) -> None:
    Path(file).write_text(SOURCES[file])
    new_target("mine", source=file)
    assert named_fields("mine") == known
    assert npulab.target("mine").chips == {"mine": chip}
    assert ("leaves out `small`" in Path("npulab_targets/mine/README.md").read_text()) == (
        chip.get("small") == 0
    )


@pytest.mark.long
@pytest.mark.skipif(not MAPS.is_dir(), reason="the maps of other projects are not here")
def test_maps_of_other_projects_load_and_pass_their_tests(here: Path) -> None:
    pytest.importorskip("clang")
    pytest.importorskip("systemrdl")
    made = 0
    files = sorted(
        file
        for file in MAPS.rglob("*")
        if file.suffix in (".h", ".svd", ".rdl", ".xml") and file.stat().st_size < 20_000
    )
    for number, file in enumerate(files):
        name = f"of_{number}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                new_target(name, source=file)
        except ValueError as error:  # no map, or a broken one
            assert "\n" not in str(error)  # noqa: PT017
            continue
        passes(name, here / f"dump{number}")
        made += 1
    assert made > len(files) // 2


def test_words_of_several_jobs_are_divided(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that it ends with work as they are printed."""
    Path("all.bin").write_bytes(np.arange(60 * 24, dtype="<u4").tobytes())
    assert main(["new", "zeta", "--from", "all.bin", "--words", "24"]) == 0
    out = capsys.readouterr().out
    assert "with the 24 words of the first of 60 jobs in all.bin (96 bytes, little-endian)" in out
    assert len(npulab.target("zeta").registers) == 24
    commands = [line.strip() for line in out.splitlines() if line.startswith("  ")]
    python = f'npulab() {{ {shlex.quote(sys.executable)} -m npulab "$@"; }}; set -e'
    done = subprocess.run(
        ["sh", "-c", "\n".join([python, commands[0]])], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    assert npulab.load("first").words.tolist() == [*range(24)]
    assert named_fields("zeta") <= {""}
    passes("zeta", here / "dump")


@pytest.mark.parametrize(
    ("file", "words", "told"),
    [
        (
            "all.bin",
            25,
            "all.bin: got 1440 words, which are no whole jobs of 25, allowed for --words is a number that divides 1440",
        ),
        ("all.bin", 0, "words: got 0, allowed are 2 to 65536"),
        ("all.bin", -24, "words: got -24"),
        ("odd.bin", 2, "odd.bin: got 7 bytes, allowed are words of 4"),
        ("empty.bin", 2, "empty.bin: got 0 bytes"),
        (
            "large.bin",
            None,
            "large.bin: got 65538 words, allowed are 2 to 65536 of a job; --words N says how many",
        ),
        ("log.txt", 24, "log.txt: words: got 24, allowed is 2, as the file itself says"),
        ("npu.csv", 24, "npu.csv: words: got 24, allowed is 2"),
        ("none.bin", 24, "none.bin: there is no such file"),
    ],
)
def test_words_that_cannot_be_are_refused_with_a_reason(
    here: Path, file: str, words: int | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"all.bin": 5760, "odd.bin": 7, "empty.bin": 0, "large.bin": 4 * 65538}
    if file in sizes:
        Path(file).write_bytes(bytes(sizes[file]))
    elif file in SOURCES:
        Path(file).write_text(SOURCES[file])
    assert (
        main(
            ["new", "zeta", "--from", file, *(["--words", str(words)] if words is not None else [])]
        )
        == 2
    )
    assert told in capsys.readouterr().err
    assert not Path("npulab_targets/zeta").exists()


def test_words_of_a_large_file_are_divided(here: Path) -> None:
    Path("large.bin").write_bytes(bytes(4 * 65538))
    new_target("zeta", source="large.bin", words=2)
    assert len(npulab.target("zeta").registers) == 2


def test_a_header_takes_defines_and_includes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(HEADER)
    Path("away_const.h").write_text(
        "".join(f"#define {name} {value}\n" for name, value in CONSTANTS.items())
    )
    for number, options in enumerate(
        [
            [f"--define={one}" for one in DEFINES],
            ["--include", "away_const.h"],
            ["--include=away_const.h", "--define", "UNUSED=1"],
        ]
    ):
        assert main(["new", f"mine{number}", "--from", "npu.h", *options]) == 0
        assert {"opcode", "rows", "count"} <= named_fields(f"mine{number}")
    capsys.readouterr()
    Path("words.bin").write_bytes(bytes(8))
    for source in (["--from", "words.bin"], []):
        assert main(["new", "other", *source, "--define", "A=1"]) == 2
        assert re.search("got .*, allowed (are these with|is) a C header", capsys.readouterr().err)


@pytest.mark.parametrize("command", ["map npu.h out.csv", "new mine --from npu.h"])
def test_all_that_a_header_lacks_is_named_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(HEADER)
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert all(f"--define {name}=VALUE" in told for name in CONSTANTS)
    assert "#include <far/away_const.h> (line 2) is read only if --include FILE names it" in told
    assert "stdint.h" not in told
    assert "5 names declared nowhere" in told
    asked = re.findall(r"--define (\w+)=VALUE", told)
    defined = [f"--define={name}={CONSTANTS[name]}" for name in dict.fromkeys(asked)]
    assert main([*command.split(), *defined]) == 0


def test_what_a_part_of_a_header_lacks_is_named_too(here: Path) -> None:
    pytest.importorskip("clang")
    Path("npu.h").write_text(f"{HEADER}struct plain {{ unsigned a : 3; unsigned b : 29; }};\n")
    with pytest.warns(
        UserWarning,
        match=r"5 names declared nowhere: --define \w+=VALUE .*far/away_const.h> \(line 2\)",
    ):
        table = npulab.read_map("npu.h")
    assert {row["field"] for row in table.rows} == {"a", "b"}


def test_the_example_of_a_row_is_not_shown_as_known(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_target("zeta")
    Path("first").mkdir()
    Path("first/words.bin").write_bytes(np.full(16, 0x11, "<u4").tobytes())
    Path("first/job.json").write_text(json.dumps({"npu": "zeta"}))
    assert main(["show", "first", "--json", "--field", "kernel_h"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["evidence"] == "unknown"
    assert "an example of a row and nothing that is known" in row["note"]
