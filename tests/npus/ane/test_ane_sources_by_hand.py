"""Networks, weights, tables and programs made up by hand, and the commands of the shell on them.

Written from the facts and the public names alone.
"""

from __future__ import annotations

import copy
import json
import math
import plistlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import ane_files
import ane_writers
import numpy as np
import pytest
from conftest import ROOT, shared

import npulab
from npulab.cli import main
from npulab.npus.ane import tables
from npulab.npus.ane.source import agreement, plist
from npulab.npus.ane.tables.entries import Table, decode
from npulab.npus.ane.training import mil
from npulab.quant.floats import ulps

PAIRED = ["compiled", "concat16", "conv_bias", "conv_twos", "relu16", "sigmoid77", "sum64"]


# ---- activation tables


def half(value: Fraction) -> float:
    """The float16 nearest to an exact number, ties to even; beyond the largest infinite."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = max(-14, math.frexp(float(size))[1] - 1)
    while size >= 2 ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - 10)
    steps = size / step
    whole = steps.numerator // steps.denominator
    rest = steps - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    result = whole * step
    return math.copysign(math.inf if result >= 65520 else float(result), value)


def looked_up(slots: list[float], step: int, first: int, symmetry: int, x: float) -> float:
    """A table of kind 0 to 2 looked up plainly: slots as the facts number them."""
    if symmetry == 3 and math.copysign(1, x) < 0:
        return -looked_up(slots, step, first, 0, -x)
    if x <= slots[0]:
        return slots[2]
    if x >= slots[1]:
        return slots[3]
    knots = slots[4:37]
    at = Fraction(x) * Fraction(2) ** step - first if step < 64 else None
    if at is None or at < 0 or at > 32:
        left = x < 0 if at is None else at < 0
        slope, intercept = slots[37:39] if left else slots[39:41]
        return half(Fraction(slope) * Fraction(x) + Fraction(intercept))
    low = min(31, math.floor(at))
    return half(
        Fraction(knots[low]) + (at - low) * (Fraction(knots[low + 1]) - Fraction(knots[low]))
    )


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("symmetry", [0, 3])
@pytest.mark.parametrize("step", [-3, 0, 2, 7])
def test_random_tables_give_what_exact_fractions_give(kind: int, symmetry: int, step: int) -> None:
    rng = np.random.default_rng(kind + 10 * symmetry + 100 * (step + 3))
    slots = [float(v) for v in rng.normal(size=41).astype(np.float16)]
    slots[0], slots[1] = -200.0, 300.0
    raw = np.zeros(64, "<u2")
    raw[:41] = np.array(slots, "<f2").view("<u2")
    raw[41], raw[42] = np.array([step], "<i2").view("<u2")[0], kind + 32 * symmetry
    table = decode(raw.tobytes())
    assert table.encode() == raw.tobytes()
    span = 40 * 2.0**-step
    inputs = np.concatenate(
        [rng.uniform(-span, span, 300), rng.normal(size=60) * 200, [0, 2.0**-24, 65504, -65504]]
    )
    inputs = inputs.astype(np.float16)
    if symmetry == 3:
        inputs = inputs[inputs != 0]
    mine = [
        looked_up(slots, step, {0: 0, 1: -16, 2: -32}[kind], symmetry, float(x)) for x in inputs
    ]
    assert ulps(tables.evaluate(table, inputs), np.array(mine, np.float16)).max() == 0


def test_a_kind_that_nobody_knows_is_refused_with_its_slot() -> None:
    raw = np.frombuffer(
        shared("data/ane/h13_tasks/unary/tanh.bin").read_bytes()[-128:], "<u2"
    ).copy()
    raw[42] = 29
    table = decode(raw.tobytes())
    assert table.encode() == raw.tobytes()
    with pytest.raises(Exception, match=r"slot 42.*byte 0?x?[0-9a-f]+|byte.*slot 42"):
        tables.evaluate(table, [1.0])
    with pytest.raises(ValueError, match="128"):
        decode(raw.tobytes()[:127])


def test_the_error_of_a_table_is_that_of_its_interpolation() -> None:
    from npulab.npus.ane.tables import functions

    data = shared("data/ane/h13_tasks/unary/tanh.bin").read_bytes()
    table = decode(data[-128:])
    codes = np.arange(65536, dtype=np.uint16).view(np.float16)
    x = codes[np.isfinite(codes)]
    error = np.abs(tables.evaluate(table, x).astype(float) - np.tanh(x.astype(float)))
    assert float(functions.errors(table, "tanh").loc["absolute", "largest"]) == pytest.approx(
        error.max(), rel=1e-12
    )
    interpolated = functions.errors(table, "tanh", rounded=False)
    assert float(interpolated.loc["absolute", "largest"]) == pytest.approx(1.4e-3, abs=5e-5)
    assert functions.identify(table) == "tanh"


# ---- networks


def real(name: str) -> Path:
    return shared(f"data/ane/hwx/{name}")


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, (*path, key))
    else:
        yield path, value


def changed(source: dict, path: tuple, value: Any) -> bytes:
    out = at = copy.deepcopy(source)
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return plistlib.dumps(out)


TOLD = {
    # keys of which another number is another file
    "conv_bias": ["InputChannels", "InputHeight", "InputWidth", "OutputChannels", "Step", "KernelOffset",
                  "BiasOffset", "BiasCount", "InputInterleave", "OutputInterleave"],
    "conv_twos": ["InputChannels", "InputHeight", "InputWidth", "OutputChannels", "Step", "KernelOffset"],
    "sigmoid77": ["InputChannels", "InputHeight", "InputWidth"],
    "concat16": ["InputChannels", "InputHeight", "InputWidth"],
    "sum64": ["InputChannels", "Scale", "OutputInterleave"],
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TOLD)
def test_one_changed_number_of_a_network_is_told(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(real(name), tmp_path / name)
    source = plistlib.loads((folder / "net.plist").read_bytes())
    assert npulab.check(npulab.load(folder)).verdict == "claims agree"
    told = set()
    for path, value in leaves(source["net"]):
        key = next(k for k in reversed(path) if isinstance(k, str))
        if key not in TOLD[name]:
            continue
        (folder / "net.plist").write_bytes(changed(source, ("net", *path), value + 1))
        try:
            comparison = npulab.check(npulab.load(folder))
        except ValueError:
            pass  # parts that do not go together, refused before anything is compared
        else:
            assert comparison.verdict == "differs", path
            if key not in ("Step", "KernelOffset", "BiasOffset"):
                assert [c for c in comparison.claims if c.expected != c.got], path
        told.add(key)
    assert told == set(TOLD[name])
    for key in ("InputRowStride", "InputPlaneStride", "OutputRowStride", "OutputPlaneStride"):
        for path, value in leaves(source["net"]):
            if path[-1] == key:
                (folder / "net.plist").write_bytes(changed(source, ("net", *path), value + 64))
                assert npulab.check(npulab.load(folder)).verdict == "differs", path


@pytest.mark.parametrize(
    ("name", "was", "other"),
    [("sigmoid77", "Sigmoid", "Tanh"), ("sigmoid77", "Sigmoid", "Exp2"), ("sigmoid77", "Sigmoid", "ReLU"),
     ("relu16", "ReLU", "Sigmoid"), ("sum64", "Add", "Mult"), ("sum64", "Add", "Max")],
)  # fmt: skip
def test_another_function_is_told(name: str, was: str, other: str, tmp_path: Path) -> None:
    folder = shutil.copytree(real(name), tmp_path / name)
    text = (folder / "net.plist").read_text()
    assert text.count(f"<string>{was}</string>") == 1
    (folder / "net.plist").write_text(
        text.replace(f"<string>{was}</string>", f"<string>{other}</string>")
    )
    assert npulab.check(npulab.load(folder)).verdict == "differs"


def test_a_network_of_units_that_no_file_shows_is_still_told_apart(tmp_path: Path) -> None:
    folder = shutil.copytree(real("conv_twos"), tmp_path / "a")
    for name, verdict in (("broadcast", "differs"), ("inputview", "differs"), ("scaled", "differs"),
                          ("convuint8", "differs"), ("simple_quadconv", "nothing to compare")):  # fmt: skip
        shutil.copy(shared(f"data/ane/plists/{name}.plist"), folder / "net.plist")
        assert npulab.check(npulab.load(folder)).verdict == verdict, name
    text = (real("conv_bias") / "net.plist").read_text()
    folder = shutil.copytree(real("conv_bias"), tmp_path / "c")
    for key in ("InputType", "OutputType"):
        before, middle, after = text.rpartition(f"<key>{key}</key>") if key == "InputType" else text.partition(
            "<key>OutputRowStride</key>")  # fmt: skip
        (folder / "net.plist").write_text(
            before + middle + after.replace(">Float16<", ">UInt8<", 1)
        )
        assert npulab.check(npulab.load(folder)).verdict == "differs", key
    folder = shutil.copytree(real("sum64"), tmp_path / "b")
    source = plistlib.loads((folder / "net.plist").read_bytes())
    for key in ("InputHeight", "InputWidth", "InputChannels"):
        (folder / "net.plist").write_bytes(changed(source, ("net", "image2", key), 2))
        assert npulab.check(npulab.load(folder)).verdict == "differs", key


def test_one_changed_weight_is_told(tmp_path: Path) -> None:
    for name, file, at in (("conv_twos", "twos.weights", 7), ("conv_bias", "net.additional.weights", 1),
                           ("conv_bias", "model.espresso.weights", 194)):  # fmt: skip
        folder = shutil.copytree(real(name), tmp_path / f"{name}-{file}")
        data = bytearray((folder / file).read_bytes())
        data[at] ^= 4
        (folder / file).write_bytes(data)
        comparison = npulab.check(npulab.load(folder))
        assert comparison.verdict == "differs"
        assert [c.got for c in comparison.claims if c.expected != c.got] in ([5], [1], [8])


def test_the_same_network_spelled_another_way_says_the_same() -> None:
    for name in PAIRED:
        data = (real(name) / "net.plist").read_bytes()
        network = plist.read_plist(data).network
        source = plistlib.loads(data)
        spelled = {
            "binary": plistlib.dumps(source, fmt=plistlib.FMT_BINARY),
            "sorted": plistlib.dumps(source, sort_keys=True),
            "backwards": plistlib.dumps(dict(reversed(source.items())), sort_keys=False),
            "listed": plistlib.dumps(listed(source)),
            "written": ane_writers.write_plist(plist.read_plist(data)),
        }
        wanted = {(c.task, c.field): c.expected for c in agreement.claims(network)}
        for how, other in spelled.items():
            again = plist.read_plist(other)
            assert {
                (c.task, c.field): c.expected for c in agreement.claims(again.network)
            } == wanted, (name, how)
            assert plist.read_plist(ane_writers.write_plist(again)) == again
        without = copy.deepcopy(source)
        for part in without["net"].values():
            if isinstance(part, dict):
                for key in [
                    k
                    for k in part
                    if "Stride" in k or k in ("BatchSize", "InputInterleave", "Version")
                ]:
                    del part[key]
        again = plist.read_plist(plistlib.dumps(without)).network
        assert {(c.task, c.field): c.expected for c in agreement.claims(again)} == wanted, name


def listed(source: dict) -> dict:
    """The same with the only bottom of a unit as a list, which the grammar allows."""
    out = copy.deepcopy(source)
    for unit in out["net"]["Units"]:
        if isinstance(out["net"][unit]["Bottom"], str):
            out["net"][unit]["Bottom"] = [out["net"][unit]["Bottom"]]
    return out


# ---- programs


MIL = """// a program as a person types it
program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-component-MIL", "5.33.5"}})]
{
  func main<ios16>(tensor<fp16, [1, 3, 1, 40]> x) {
    tensor<string, []> pt = const()[name = tensor<string, []>("pt"), val = tensor<string, []>("valid")];
    tensor<int32, [2]> st = const()[name = tensor<string, []>("st"), val = tensor<int32, [2]>([1, 1])];
    tensor<int32, [4]> pd = const()[name = tensor<string, []>("pd"), val = tensor<int32, [4]>([0, 0, 0, 0])];
    tensor<int32, [2]> dl = const()[name = tensor<string, []>("dl"), val = tensor<int32, [2]>([1, 1])];
    tensor<int32, []> gr = const()[name = tensor<string, []>("gr"), val = tensor<int32, []>(1)];
    tensor<fp16, [2, 3, 1, 1]> W = const()[name = tensor<string, []>("W"),
      val = tensor<fp16, [2, 3, 1, 1]>([[[[0x1p+0]],[[2.0]],[[-0.5]]],[[[3]],[[0]],[[1e-1]]]])];
    tensor<fp16, [1, 2, 1, 40]> y = conv(dilations = dl, groups = gr, pad = pd, pad_type = pt, strides = st,
                                         weight = W, x = x)[name = tensor<string, []>("y")];
  } -> (y);
}
"""


def test_mil_text_of_another_hand() -> None:
    program = mil.read(MIL)
    assert (program.version, program.build_info) == ("1.0", {"coremlc-component-MIL": "5.33.5"})
    assert mil.check(program) == []
    x = np.random.default_rng(1).normal(size=(1, 3, 1, 40)).astype(np.float16)
    weights = np.array([[1, 2, -0.5], [3, 0, 0.1]])
    exact = mil.run(program, {"x": x}, float64=True)["y"]
    assert np.allclose(exact[0, :, 0], weights @ x[0, :, 0].astype(float), rtol=1e-12)
    again = mil.read(mil.write(program))
    assert again == program
    squeezed = mil.read("\n".join(line.strip() for line in MIL.splitlines()).replace(" = ", "="))
    assert squeezed == program


def test_a_bare_number_that_no_int32_is_is_refused() -> None:
    program = mil.read(
        MIL.replace("dl = const", "dl2 = const").replace("dilations = dl", f"dilations = {10**20}")
    )
    with pytest.raises(ValueError, match="int32"):
        mil.check(program)


# ---- shell


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    try:
        code = main(list(arguments))
    except SystemExit as end:
        code = int(end.code or 0)
    return int(code or 0), "".join(capsys.readouterr())


def test_the_shell_shows_differs_checks_lists_and_imports(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = real("conv_bias").parent
    code, text = said(capsys, "show", str(folder / "concat16/model.hwx"), "--field", "Win")
    assert code == 0
    assert text.count("Win") == 2
    code, text = said(capsys, "show", "--json", str(folder / "relu16/model.hwx"))
    rows = [json.loads(line) for line in text.splitlines()]
    assert any(row.get("field") == "Win" and row["raw"] == 16 for row in rows)
    code, text = said(
        capsys,
        "diff",
        "--json",
        str(folder / "conv_bias/model.hwx"),
        str(folder / "conv_twos/model.hwx"),
    )
    fields = {row["field"]: row for row in map(json.loads, text.splitlines()) if "field" in row}
    assert (fields["Cout"]["a"], fields["Cout"]["b"], fields["Cout"]["address"]) == (2, 3, False)
    assert fields["Addr"]["address"] is True
    code, text = said(capsys, "list", str(folder))
    assert [n for n in PAIRED if n in text] == PAIRED
    code, text = said(capsys, "check", "--json", str(folder))
    lines = {row["case"]: row for row in map(json.loads, text.splitlines())}
    assert code == 0
    assert len(lines) == 10
    for row in lines.values():
        assert {
            "case",
            "target",
            "words",
            "coefficients",
            "compared",
            "mismatches",
            "verdict",
        } <= row.keys()
        assert (row["target"], row["words"]) == ("ane", "equal")
    assert all(
        lines[name]["claims"] > 50 and lines[name]["verdict"] == "claims agree" for name in PAIRED
    )
    code, text = said(capsys, "import", str(folder / "conv_twos"), str(tmp_path), "--name", "mine")
    assert code == 0
    before, after = (
        npulab.load(folder / "conv_twos"),
        npulab.load(next(tmp_path.rglob("capture.json")).parent),
    )
    assert after.fields.equals(before.fields)
    assert after.buffers == before.buffers
    assert npulab.check(after).verdict == "claims agree"
    assert said(capsys, "check", str(tmp_path))[0] == 0
    shutil.copytree(folder, tmp_path / "paired", ignore=shutil.ignore_patterns("gemm64", "mul_*"))
    assert said(capsys, "import", str(tmp_path / "paired"), str(tmp_path / "all.npz"))[0] == 0
    sweep = npulab.load_sweep(tmp_path / "all.npz")
    assert len(sweep.words) == len(PAIRED)
    assert sorted(sweep.parameters["InputWidth"]) == [1, 1, 1, 1, 1, 16, 77]


def test_the_shell_refuses_a_broken_file_in_a_sentence(tmp_path: Path) -> None:
    data = (real("conv_twos") / "model.hwx").read_bytes()
    (tmp_path / "model.hwx").write_bytes(data[:0x4100])
    run = subprocess.run(
        [sys.executable, "-m", "npulab", "show", str(tmp_path / "model.hwx")],
        capture_output=True, text=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert run.stderr.count("\n") == 1
    assert "Traceback" not in run.stderr


def test_a_folder_of_one_wrong_network_exits_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(real("conv_twos"), tmp_path / "a")
    shutil.copy(real("relu16") / "net.plist", folder / "net.plist")
    shutil.copytree(real("relu16"), tmp_path / "b")
    code, text = said(capsys, "check", "--json", str(tmp_path))
    verdicts = {row["case"]: row["verdict"] for row in map(json.loads, text.splitlines())}
    assert code == 1
    assert verdicts == {"a": "differs", "b": "claims agree"}


def test_a_file_of_another_chip_is_not_read_as_h13(tmp_path: Path) -> None:
    data = bytearray((real("relu16") / "model.hwx").read_bytes())
    for subtype, chip in ((5, "h14"), (9, "h17"), (99, None)):
        struct.pack_into("<I", data, 8, subtype)
        (tmp_path / "model.hwx").write_bytes(data)
        with pytest.raises(ValueError, match=r"model\.hwx"):
            npulab.load(tmp_path / "model.hwx")
        if chip:
            assert chip in npulab.target("ane").chips
    assert ane_files.plain(bytes(data)).count == 1


def test_a_table_made_here_reads_back() -> None:
    knots = np.random.default_rng(0).normal(size=33)
    table = Table(-4, 4, -1, 1, knots, step_exponent=3, kind="centred", symmetry="none")
    assert decode(table.encode()) == table
    at = np.asarray(table.positions)
    inside = (at > -4) & (at < 4)
    assert np.array_equal(tables.evaluate(table, at[inside]), np.asarray(table.knots)[inside])
