"""Sweeps: values, files, captures as a table, and what the repository holds."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import CAPTURES, shared
from record_sweeps import AGAIN, MADE, SMALL, sweep
from refusals import refused

import npulab
from npulab import cli
from npulab.analysis.sides import differing
from npulab.captures.sweep import Sweep, is_sweep, load_sweep, save_sweep, sweep_files, sweep_of
from npulab.registers.map import RegisterMap

WORDS = np.array([[1, 0, 7], [3, 0, 7], [3, 0xFFFFFFFF, 7]], np.uint32)
KNOWN = {"input_w": [8, 16, 17], "scale": [0.5, 0.25, 2.0]}
FILE = {
    "words": WORDS,
    "parameters": np.array([*zip(*KNOWN.values(), strict=True)]),
    "names": np.array([*KNOWN]),
}


@pytest.fixture(scope="module")
def made() -> dict[str, Sweep]:
    """The sweeps of the vivante target in the repository."""
    return {path.stem: load_sweep(path) for path in sweep_files(CAPTURES / "vivante")}


def same(a: Sweep, b: Sweep) -> None:
    assert np.array_equal(a.words, b.words)
    pd.testing.assert_frame_equal(a.parameters, b.parameters, check_exact=True)
    for name in ("name", "target", "chip", "block", "provenance", "source", "tool", "date"):
        assert getattr(a, name) == getattr(b, name)


# The value


def test_columns_are_whole_numbers_or_float64() -> None:
    given = pd.DataFrame(
        {
            "n": [1.0, 2.0, 3.0],
            "half": [0.5, 1.0, 2.0],
            "flag": [True, False, True],
            "small": np.array([1, 2, 3], np.uint8),
            "huge": [1e300, 1.0, 2.0],
        },
        index=[5, 7, 9],
    )
    found = Sweep(WORDS, given).parameters
    assert found.dtypes.astype(str).to_dict() == {
        "n": "int64",
        "half": "float64",
        "flag": "int64",
        "small": "int64",
        "huge": "float64",
    }
    assert found.index.tolist() == [0, 1, 2]
    assert given["n"].dtype == float


def test_a_sweep_is_its_own_and_does_not_change() -> None:
    words = WORDS.copy()
    found = Sweep(words, KNOWN)
    words[0, 0] = 99
    assert found.words[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        found.words[0, 0] = 2
    assert (
        repr(replace(found, name="s", provenance="simulated"))
        == "Sweep(s, simulated: 3 captures of 3 words, 33 bits vary, 2 parameters)"
    )
    assert replace(found, provenance="simulated").simulated
    assert not found.simulated


def test_html_says_simulated_and_escapes() -> None:
    page = Sweep(WORDS, {"<b>": [1, 2, 3]}, "a<i>", provenance="simulated")._repr_html_()
    assert "simulated" in page
    assert "<i>" not in page
    assert "&lt;b&gt;" in page


@pytest.mark.parametrize(
    ("words", "parameters", "said"),
    [
        ([["a"]], {}, "<U1"),
        (WORDS, {"a": [1, np.nan, 2]}, "a nan in row 1"),
        (WORDS, {"a": [1, 2, np.inf]}, "a inf in row 2"),
        (WORDS, {"a": pd.array([1, None, 2], "Int64")}, "in row 1"),
        (WORDS, {"a": [1j, 1, 2]}, "in row 0"),
        (WORDS, 7, "int"),
        (WORDS, pd.DataFrame([[1, 2]] * 3, columns=["a", "a"]), "column 'a'"),
        (WORDS, {"a": [1, 2, 3], "b": [1]}, "one length"),
    ],
)
def test_words_and_parameters_that_do_not_go_together(
    words: Any, parameters: Any, said: str
) -> None:
    refused(lambda: Sweep(words, parameters), said)


def test_texts_and_maps_that_do_not_fit() -> None:
    refused(lambda: Sweep(WORDS, KNOWN, provenance="guessed"), "guessed", "board")
    refused(lambda: Sweep(WORDS, KNOWN, target=3), "target")  # type: ignore[arg-type]
    refused(
        lambda: Sweep(WORDS, KNOWN, target="vivante", chip="vipnano-qi-a311d", block="NN"),
        "34",
        "NN",
    )
    assert Sweep(WORDS, KNOWN, target="vivante", chip="of tomorrow", block="NN").registers is None
    assert Sweep(WORDS, KNOWN, target="nobody's").registers is None


# The file


def test_a_file_gives_the_same_sweep(tmp_path: Path) -> None:
    found = Sweep(
        WORDS, KNOWN, "s", "vivante", "c", "B", "board", "somewhere", "a tool", "2026-01-02"
    )
    path = save_sweep(found, tmp_path / "new" / "s.npz")
    same(load_sweep(path), found)
    assert path.read_bytes() == save_sweep(found, tmp_path / "t.npz").read_bytes()
    assert [one.name for one in path.parent.iterdir()] == ["s.npz"]
    with np.load(path) as file:
        assert file["words"].dtype == np.uint32
        assert file["parameters"].dtype == np.float64
        assert file["names"].tolist() == ["input_w", "scale"]
    with zipfile.ZipFile(path) as file:
        assert {entry.date_time for entry in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    bare = Sweep(WORDS, {})
    same(load_sweep(save_sweep(bare, tmp_path / "bare.npz")), replace(bare, name="bare"))


def test_what_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Sweep(WORDS, KNOWN)
    refused(lambda: save_sweep(WORDS, tmp_path / "s.npz"), "ndarray")  # type: ignore[arg-type]
    (tmp_path / "s.npz").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="is there already"):
        save_sweep(found, tmp_path / "s.npz")
    monkeypatch.setattr(
        Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("the disk is full"))
    )
    with pytest.raises(OSError, match="the disk is full"):
        save_sweep(found, tmp_path / "t.npz")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("s.npz", b"mine")]


def broken(**changed: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(
        path, **{name: array for name, array in {**FILE, **changed}.items() if array is not None}
    )


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (broken(words=None), "words: got none"),
        (broken(parameters=None), "parameters: got none"),
        (broken(names=None), "names: got none"),
        (broken(words=WORDS.astype(np.int64)), "int64"),
        (broken(words=WORDS[0]), "(3,)"),
        (broken(words=WORDS[:0], parameters=np.zeros((0, 2))), "(0, 3)"),
        (broken(words=WORDS[:2]), "(2, P)"),
        (broken(parameters=np.ones(3)), "(3,)"),
        (broken(parameters=np.full((3, 2), np.nan)), "input_w nan in row 0"),
        (broken(parameters=np.ones((3, 2), complex)), "complex128"),
        (broken(names=np.array(["a"])), "2 texts"),
        (broken(names=np.array([1, 2])), "int64"),
        (broken(target=np.array(["a", "b"])), "target"),
        (broken(provenance=np.array("guess")), "provenance"),
        (broken(chip=np.array(3)), "chip"),
        (
            lambda path: np.savez(
                path, **{**FILE, "words": np.array([{}, 2], object)}, allow_pickle=True
            ),
            "of object",
        ),
        (lambda path: path.write_bytes(b"PK\3\4 and no more"), "torn"),
        (lambda path: path.write_bytes(b""), "torn"),
        (lambda path: path.write_bytes(b"\x93NUMPY"), "no npz file"),
    ],
)
def test_a_broken_file_is_a_sentence(
    tmp_path: Path, write: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "s.npz"
    write(path)
    assert refused(lambda: load_sweep(path), said).startswith(f"{path}: ")


@pytest.mark.parametrize("step", [21, pytest.param(7, marks=pytest.mark.long)])
def test_every_torn_file_is_refused(tmp_path: Path, step: int) -> None:
    """Cut anywhere; changed bits: tests/cli/test_hostile.py."""
    whole = save_sweep(Sweep(WORDS, KNOWN, "s"), tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "s.npz"
    for at in range(0, len(whole), step):
        path.write_bytes(whole[:at])
        refused(lambda: load_sweep(path), str(path))


def test_what_is_a_sweeps_file(tmp_path: Path) -> None:
    save_sweep(Sweep(WORDS, KNOWN), tmp_path / "b" / "s.npz")
    np.savez(tmp_path / "somebody's.npz", x=WORDS)
    (tmp_path / "a.npz").write_bytes(b"torn")
    (tmp_path / ".npulab-1.npz").write_bytes(b"torn")
    assert [path.name for path in sweep_files(tmp_path)] == ["a.npz", "s.npz"]
    assert not is_sweep(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_sweep(tmp_path / "nowhere.npz")
    refused(lambda: load_sweep(tmp_path), "no capture")


def test_the_public_sweep_loads() -> None:
    found = load_sweep(shared("data/vivante/sweep_imx8mp.npz"))
    assert (found.words.shape, found.bits, found.registers, found.provenance) == (
        (800, 34),
        192,
        None,
        "",
    )
    kinds = found.parameters.dtypes.astype(str)
    assert kinds[kinds == "float64"].index.tolist() == [
        "input_scale",
        "weight_scale",
        "output_scale",
    ]
    assert set(kinds) == {"int64", "float64"}


# Captures


def test_captures_become_a_sweep(captures: npulab.CaptureSet) -> None:
    chosen = [one for one in captures if one.simulated]
    found = sweep_of(chosen, "all")
    assert np.array_equal(found.words, [one.words for one in chosen])
    assert found.registers is chosen[0].maps["NN"]
    assert (found.name, found.target, found.block, found.simulated) == (
        "all",
        "vivante",
        "NN",
        True,
    )
    assert "changed" in replace(found, tool=sweep_of([chosen[0].with_fields(relu=1)]).tool).tool
    for one, row in zip(chosen, found.parameters.to_dict("records"), strict=True):
        for name in (
            "input_h",
            "kernel_w",
            "stride_h",
            "depthwise",
            "input_scale",
            "weight_zero_point",
        ):
            assert row[name] == one.parameters[name]
        assert row["same"] == (one.parameters["padding"] == "same")
        assert row["relu"] == (one.parameters["activation"] == "relu")
    assert not [name for name in found.parameters if name.startswith(("op", "dtype"))]


def test_what_makes_no_sweep(captures: npulab.CaptureSet) -> None:
    one = captures["sim-1x1"]
    refused(lambda: sweep_of([]), "none")
    refused(lambda: sweep_of(3), "int")  # type: ignore[arg-type]
    assert len(sweep_of(one)) == 1  # type: ignore[arg-type]
    refused(lambda: sweep_of([one, 3]), "int")  # type: ignore[list-item]
    refused(lambda: load_sweep(CAPTURES / "vivante"), str(CAPTURES), "provenance")


# The repository's


def test_sweeps_are_made_the_same_again(made: dict[str, Sweep]) -> None:
    assert sorted(made) == sorted(MADE)
    for name, (_, rows) in MADE.items():
        some = [2, 3, 5, len(rows) - 1]
        same(made[name][some], sweep(name, (rows[n]() for n in some)))
        assert len(made[name]) == len(rows)
        assert made[name].simulated
        assert next(CAPTURES.rglob(f"{name}.npz")).stat().st_size < 100 * 1024
    assert {made[name].chip for name in LAYERS} == {*npulab.target("vivante").chips}


LAYERS = [name for name in MADE if name.startswith("sweep-layers")]


@pytest.mark.parametrize("name", LAYERS)
def test_sweeps_are_not_confounded(name: str, made: dict[str, Sweep]) -> None:
    known = made[name].parameters
    assert not [name for name in known if known[name].nunique() < 2]
    related = known.corr().abs()
    sizes = {"coefficient_bytes", "largest_core_stream_bytes"}
    # weights that are not coded have as many bytes as channels make them
    coded = "unknown_coefficients" not in npulab.target("vivante").features(made[name].chip)
    usual = (
        set()
        if coded
        else {
            (a, b) for one in sizes for a, b in map(sorted, ((one, "input_c"), (one, "output_c")))
        }
    )
    usual |= {("reshuffled", "stride")}  # only layers of stride 2 are
    close = {(a, b) for a in known for b in known if a < b and related[a][b] > 0.7}
    assert close - usual == {("input_w", "output_w"), ("input_h", "output_h"), (*sorted(sizes),)}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("sweep-layers", ("kernel_caching_mode", "image_caching_mode", "in_image_x_offset")),
        ("sweep-layers-imx8mp", ("depthwise", "in_image_x_offset")),
        *(
            (f"sweep-layers-{chip}", ("kernel_caching_mode", "image_caching_mode"))
            for chip in ("s905d3", "stm32mp25")
        ),
    ],
)
def test_every_way_of_lowering_is_seen_often_enough(
    name: str, others: tuple[str, ...], made: dict[str, Sweep]
) -> None:
    """A field that takes another value in fewer than 20 captures would be no evidence of a law."""
    found = made[name]
    assert found.registers is not None
    raw = found.registers.decode(found.words, raw=True)
    for field in ("pooling", "relu", "kernel_pattern_msb", *others):
        seen = np.unique(raw[field], return_counts=True)[1]
        assert len(seen) > 1, field
        assert seen.min() >= 20, field


def test_repeated_layers_differ_in_addresses_only(made: dict[str, Sweep]) -> None:
    found = made["sweep-addresses"]
    first, again = found[:AGAIN], found[SMALL:]
    pd.testing.assert_frame_equal(first.parameters, again.parameters)
    told = npulab.diff(first, again)
    assert told[told.pairs > 0].field.tolist() == [
        "kernel_address",
        "in_image_address",
        "out_image_address",
    ]
    assert told[told.pairs > 0].address.all()


# Differences


def test_diff_of_sweeps_by_field() -> None:
    registers = RegisterMap(
        [
            {"offset": 0, "field": name, "lsb": lsb, "width": 4}
            for name, lsb in (("same", 0), ("some", 4), ("always", 8), ("other", 12), ("equal", 16))
        ]
    )
    a, b = (
        Sweep(registers.encode(fields)[:, None].reshape(2, 1), {"n": known}, registers=registers)
        for fields, known in (
            ({"same": 1, "some": [1, 2], "always": [1, 2], "other": 3, "equal": [1, 2]}, [0, 1]),
            ({"same": 1, "some": [2, 3], "always": [3, 4], "other": 4, "equal": [1, 2]}, [0, 1]),
        )
    )
    found = npulab.diff(a, b).set_index("field")
    assert found.differs.to_dict() == {
        "some": "sometimes",
        "always": "always",
        "other": "always",
        "equal": "sometimes",
    }
    assert found.constant.to_dict() == {
        "some": False,
        "always": False,
        "other": True,
        "equal": False,
    }
    assert found.pairs.to_dict() == {"some": 2, "always": 2, "other": 2, "equal": 0}
    assert {row["field"] for row in differing(a, b).fields} == {"some", "always", "other"}
    assert "0 fields differ" in str(differing(a, a))
    assert found.a["always"] == [1, 2]
    everything = npulab.diff(a, b, never=True).set_index("field").differs
    assert everything[["same", "w0_20_12"]].tolist() == ["never", "never"]
    assert "pairs" not in npulab.diff(a, b[::-1])
    assert not len(npulab.diff(a[:1], a[:1]))


def test_diff_of_sweeps_without_a_map() -> None:
    a, b = Sweep([[0b0110, 5], [0b0100, 5]], {}), Sweep([[0b1110, 5], [0b1100, 5]], {})
    found = npulab.diff(a, b, never=True)
    assert found[["field", "differs", "constant"]].to_numpy().tolist() == [
        ["w0_0_1", "never", False],
        ["w0_1_1", "sometimes", False],
        ["w0_2_1", "never", False],
        ["w0_3_1", "always", True],
        ["w0_4_28", "never", False],
        ["w1_0_32", "never", False],
    ]


def test_diff_of_sets_tells_what_never_differs(captures: npulab.CaptureSet) -> None:
    some = npulab.CaptureSet((captures["sim-1x1"], captures["sim-1x1"].with_fields(relu=1)))
    assert npulab.diff(some, some).field.tolist() == ["relu"]
    found = npulab.diff(some, some, never=True).set_index("field").differs
    assert found.pop("relu") == "sometimes"
    assert set(found) == {"never"}
    assert "post_shift" in found.index


def test_diff_of_what_cannot_be_compared(captures: npulab.CaptureSet) -> None:
    found = Sweep(WORDS, KNOWN, target="a", block="x")
    refused(lambda: npulab.diff(found, replace(found, target="b")), "targets a, b")
    refused(lambda: npulab.diff(found, replace(found, block="y")), "blocks x, y")
    refused(lambda: npulab.diff(found, replace(found, words=WORDS[:, :2])), "3 words")
    refused(lambda: npulab.diff(found, found[:0]), "0 of 3")
    refused(lambda: npulab.diff(found, captures), "sweep_of")
    refused(lambda: npulab.diff(captures[0], captures[0], never=True), "never")


# The shell


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str], str]]:
    def run(*arguments: Any) -> tuple[int, list[str], str]:
        status = cli.main([*map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err

    return run


def test_shell_imports_captures_into_a_sweep(run: Any, tmp_path: Path) -> None:
    for name in ("sim-1x1", "sim-3x3-same"):
        npulab.save(npulab.load(CAPTURES / "vivante" / name), tmp_path / "all" / name)
    path = tmp_path / "out" / "two.npz"
    assert run("import", tmp_path / "all", path, "--source", "here") == (0, [str(path)], "")
    found = load_sweep(path)
    assert (len(found), found.name, found.source, found.simulated) == (2, "two", "here", True)
    assert run("import", tmp_path / "all", path)[::2] == (
        2,
        f"npulab: {path}: is there already; give another path, or move it away\n",
    )
    status, _, err = run("import", CAPTURES, tmp_path / "x.npz")
    assert (status, err.count("\n"), (tmp_path / "x.npz").exists()) == (2, 1, False)
    assert run("import", tmp_path / "all", tmp_path / "y.npz", "--name", "y")[0] == 2


def test_shell_lists_and_shows_sweeps(run: Any, tmp_path: Path) -> None:
    save_sweep(Sweep(WORDS, KNOWN, "s", provenance="simulated"), tmp_path / "s.npz")
    _, (head, row), _ = run("list", tmp_path)
    assert head.split()[0] == "case"
    assert row.split() == [
        "s",
        "simulated",
        "-",
        "3",
        "captures,",
        "3",
        "words,",
        "2",
        "parameters",
    ]
    assert run("list", tmp_path / "s.npz")[1][1].split() == row.split()
    assert json.loads(run("list", tmp_path, "--json")[1][0]) | {
        "captures": 3,
        "words": 3,
        "parameters": 2,
    } == json.loads(run("list", tmp_path, "--json")[1][0])
    status, lines, _ = run("show", tmp_path / "s.npz")
    assert (status, lines[0]) == (
        0,
        "Sweep(s, simulated: 3 captures of 3 words, 33 bits vary, 2 parameters)",
    )
    assert "provenance simulated" in lines
    assert [line.split() for line in lines if line.startswith("scale")] == [
        ["scale", "0.25", "2", "3"]
    ]
    assert lines[-1].split() == ["1", "32", "0xffffffff"]
    first, *rest = map(json.loads, run("show", tmp_path / "s.npz", "--json")[1])
    assert (first["varying_bits"], first["provenance"], len(rest)) == (33, "simulated", 2)
    assert "a sweep, allowed is a capture" in run("show", tmp_path / "s.npz", "--field", "x")[2]
    (tmp_path / "torn.npz").write_bytes(b"PK")
    status, lines, err = run("list", tmp_path)
    assert (status, len(lines), err.count("\n")) == (2, 2, 1)
    assert "load_sweep" in run("check", tmp_path / "s.npz")[2]


@pytest.mark.parametrize(("name", "said"), [("s", "no suffix"), ("s.csv", r"\.csv")])
def test_a_sweep_is_a_file_of_its_suffix(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}: got '{said}', allowed is a file \.npz or a folder \.store$"
    ):
        save_sweep(load_sweep(CAPTURES / "vivante/sweep-addresses.npz")[:2], tmp_path / name)


@pytest.mark.parametrize("name", ["words", "parameters", "names", "provenance"])
def test_a_sweep_whose_content_is_not_that_of_its_sum(tmp_path: Path, name: str) -> None:
    """Every member is whole, with the checksum of its own; the sum over all is another."""
    with np.load(
        save_sweep(load_sweep(CAPTURES / "vivante/sweep-addresses.npz")[:2], tmp_path / "whole.npz")
    ) as file:
        arrays = {one: file[one] for one in file.files}
    if name == "provenance":
        arrays[name] = np.array("board")
    elif name == "names":
        arrays[name] = arrays[name][::-1]
    else:
        arrays[name] = arrays[name].copy()
        arrays[name].flat[0] += 1
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(
        ValueError, match=r"allowed is that of the file's content, which was changed or damaged$"
    ):
        load_sweep(tmp_path / "s.npz")
