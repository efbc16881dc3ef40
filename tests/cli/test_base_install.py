"""The base install: every command runs, and what needs an extra says so in one sentence, in the
shell and in Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, ROOT
from without_extras import without_extras

import npulab
from npulab.support.files import read_table

COMMANDS = [row["command"] for row in read_table(ROOT / "npulab" / "cli" / "commands.csv")]
WALK = ROOT / "tests" / "reference" / "without_extras.py"
VIVANTE = CAPTURES / "vivante"
HEADER = "struct regs { unsigned a : 3; unsigned b : 29; };\n"
RDL = "addrmap chip { reg { field {} a[3:0]; } r @ 0x4; };\n"
TABLE = "block,offset,register,field,lsb,width\nB,0x0000,R,a,0,3\n"
LAYER = "import numpy as np, npulab; layer = npulab.FullyConnected(np.ones((4, 8), np.int8), np.zeros(4, int)); "
MAPS, FAST, COMPILERS = (
    f"pip install 'npulab[{extra}]'" for extra in ("maps", "fast", "compilers")
)
SWEEP = str(CAPTURES / "ethosu" / "explored-u55-128.npz")
VELA = f"{sys.executable} -m ethosu.vela {{model}} --output-dir {{out}}"
# by name: arguments of a command that the base install runs
RUNS = {
    "lab": ["lab", "--version"],
    "lower": ["lower", "m.tflite", "jobs", "--target", "vivante"],
    "list": ["list", VIVANTE],
    "show": ["show", VIVANTE / "sim-1x1"],
    "diff": ["diff", VIVANTE / "update4-vendor", VIVANTE / "update4-mesa"],
    "check": ["check", VIVANTE / "sim-1x1", "--explain"],
    "roles": ["roles", VIVANTE / "sim-1x1"],
    "unread": ["unread", CAPTURES / "onert" / "sim-hybrid-2d"],
    "import": ["import", VIVANTE / "sim-1x1", "imported.npz"],
    "bisect": [
        "bisect",
        VIVANTE / "sim-3x3-same",
        VIVANTE / "sim-other-driver",
        "--device",
        "simulated",
        "--resume",
        "j",
        "--controls",
        "--verdict",
        "v.json",
    ],
    "verdict": ["verdict", "v.json"],
    "repair": ["repair", "j", "again"],
    "scan": [
        "scan",
        VIVANTE / "sim-1x1",
        "--device",
        "simulated",
        "--task",
        "0",
        "--input",
        VIVANTE / "sim-1x1",
        "--max-hangs",
        "0",
    ],
    "layout": ["layout", "a.npy", "b.npy", "--markers", "2,3"],
    "laws": ["laws", "sweep.npz"],
    "constants": ["constants", "sweep.npz"],
    "explore": ["explore", "--source", VELA, "--target", "ethosu", "--budget", "2"],
    "map": ["map", "map.csv", "map.svd"],
    "new": ["new", "owl", "--dest", "targets"],
    "trust": ["trust", "targets/owl"],
    "completion": ["completion", "bash"],
    "session": ["session", "new", "s.json"],
    "report": ["report", "s.json", "s.html"],
}
SLOW = {
    "bench": ["bench", "decode", "--rounds", "1"],
    "bench emulate": ["bench", "emulate", "--rounds", "1"],
}
# by name: arguments of a command that needs an extra, and the install that brings it
NEEDS = {
    "map from C": (["map", "regs.h", "x.csv"], MAPS),
    "map from C as JSON": (["map", "regs.h", "x.csv", "--json"], MAPS),
    "map with an included header": (["map", "regs.h", "x.csv", "--include", "regs.h"], MAPS),
    "map from SystemRDL": (["map", "chip.rdl", "x.csv"], MAPS),
    "new from C": (["new", "crow", "--dest", "targets", "--from", "regs.h"], MAPS),
    "new from SystemRDL": (["new", "crow", "--dest", "targets", "--from", "chip.rdl"], MAPS),
}
# by name: a line of Python that needs an extra, and the install that brings it
CALLS = {
    "read_map of C": ("import npulab; npulab.read_map('regs.h')", MAPS),
    "read_map of SystemRDL": ("import npulab; npulab.read_map('chip.rdl')", MAPS),
    "draft of C": ("import npulab; npulab.draft('regs.h')", MAPS),
    "draft of SystemRDL": ("import npulab; npulab.draft('chip.rdl')", MAPS),
    "new_target": (
        "from npulab.npus.template import new_target as n; from pathlib import Path; n('owl', Path('t'), 4, 'regs.h')",
        MAPS,
    ),
    "prepare": (LAYER + "npulab.quant.emulate.prepare(layer, fast=True)", FAST),
    "coefficients": (
        "import npulab; from npulab.npus.vivante import coefficients as c; c.decode(b'', None, fast=True)",
        FAST,
    ),
    "a compiler": (
        LAYER
        + f"answer = npulab.Compiler({VELA!r})(npulab.load_sweep({SWEEP!r}).parameters.iloc[0]); "
        "assert answer.outcome == 'failed', answer; raise ImportError(answer.text)",
        COMPILERS,
    ),
}
# lines of Python that need flatbuffers, which somebody removed
MODELS = {
    "single_op_model": LAYER + "npulab.single_op_model(layer)",
    "write_model": LAYER + "from npulab.models import write_model; write_model([layer])",
    "write_sweep": "from npulab.models import write_sweep; write_sweep('sweep', {'kernel': [1, 3]})",
    "a compiler": LAYER
    + f"answer = npulab.Compiler('cat {{model}}')(npulab.load_sweep({SWEEP!r}).parameters.iloc[0]); "
    "assert answer.outcome == 'failed', answer; raise ImportError(answer.text)",
}


def walk(
    folder: Path,
    environment: dict[str, str],
    commands: dict[str, Any],
    calls: dict[str, str],
    modules: bool = False,
) -> Any:
    """What commands and calls do in a program of its own."""
    (folder / "regs.h").write_text(HEADER)
    (folder / "chip.rdl").write_text(RDL)
    (folder / "map.csv").write_text(TABLE)
    layer = npulab.FullyConnected(np.ones((4, 8), np.int8), None)
    (folder / "m.tflite").write_bytes(npulab.single_op_model(layer))
    sizes = np.arange(1, 17, dtype=np.uint32)
    np.savez(
        folder / "sweep.npz",
        words=np.stack([sizes - 1, sizes * 0 + 7], axis=1),
        parameters=np.stack([sizes, sizes / 16], axis=1).astype(np.float32),
        names=np.array(["input_w", "input_scale"]),
    )
    asked = {
        "commands": {name: [str(one) for one in arguments] for name, arguments in commands.items()},
        "calls": calls,
        "modules": modules,
    }
    done = subprocess.run(
        [sys.executable, WALK],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What every command and every call does without an extra."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("base")
    commands = RUNS | {name: arguments for name, (arguments, _) in NEEDS.items()}
    return walk(
        folder,
        without_extras(site),
        commands,
        {name: code for name, (code, _) in CALLS.items()},
        modules=True,
    )


def test_every_command_is_walked() -> None:
    assert {*COMMANDS} == {*RUNS, *SLOW} - {"bench emulate"}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", RUNS)
def test_the_base_install_runs_every_command(base: Any, name: str) -> None:
    did = base["commands"][name]
    assert did["status"] in (0, 1), did
    assert "Traceback" not in did["err"]
    assert "ModuleNotFoundError" not in did["out"] + did["err"]


@pytest.mark.parametrize("name", NEEDS)
def test_a_command_that_needs_an_extra_says_so(base: Any, name: str) -> None:
    did = base["commands"][name]
    assert (did["status"], did["out"]) == (2, ""), did
    assert one_sentence(did["err"].removeprefix("npulab: ").removesuffix("\n"), NEEDS[name][1])


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_needs_an_extra_says_so(base: Any, name: str) -> None:
    did = base["calls"][name]
    assert "ImportError" in did["kinds"], did
    assert "ModuleNotFoundError" not in did["kinds"]
    assert did["before"] == "None"  # no second error above it
    assert one_sentence(did["text"], CALLS[name][1])


def test_modules_load_or_say_what_they_need(base: Any) -> None:
    compiled = (
        "npulab.npus.vivante.coefficients.loops",
        "npulab.quant.emulate.dots",
        "npulab.quant.emulate.jit",
    )
    said = f"MissingPackage: compiling loops needs numba, which is not installed: {FAST}"
    assert base["modules"] == dict.fromkeys(compiled, said)


def test_models_say_what_they_need_where_flatbuffers_was_removed(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    commands = {"explore": RUNS["explore"]}
    did = walk(tmp_path, without_extras(tmp_path / "site", "flatbuffers"), commands, MODELS)
    for told in did["calls"].values():
        assert "ImportError" in told["kinds"], told
        assert "ModuleNotFoundError" not in told["kinds"]
        assert (
            told["text"]
            == "writing a model needs flatbuffers, which is not installed: pip install flatbuffers"
        )
    assert did["commands"]["explore"]["status"] in (0, 1)
    assert "Traceback" not in did["commands"]["explore"]["err"]


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW)
def test_the_base_install_measures(tmp_path: Path, name: str) -> None:
    (tmp_path / "site").mkdir()
    did = walk(tmp_path, without_extras(tmp_path / "site"), {name: SLOW[name]}, {})
    assert did["commands"][name]["status"] == 0, did


def one_sentence(text: str, install: str) -> bool:
    """Whether a text is one line that ends in the command, and no program's."""
    return (
        re.fullmatch(r"[^\n]+ needs [\w.-]+, which is not installed: " + re.escape(install), text)
        is not None
    )
