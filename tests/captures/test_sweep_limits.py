"""Which numbers, words and columns a sweep takes, and what it says of them."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from npulab.captures.capture import Capture, Job
from npulab.captures.layers import made
from npulab.captures.sweep import MOST_PARAMETERS, Sweep, load_sweep, save_sweep, sweep_of
from npulab.cli import main
from npulab.support.refuse import FormatError

WORDS = [[1, 0], [3, 0], [1, 0]]


def columns(*given: dict[str, Any]) -> dict[str, list[Any]]:
    found = [
        Capture(f"c{n}", "none", "x", (Job("A", [n]),), parameters=one)
        for n, one in enumerate(given)
    ]
    return sweep_of(found).parameters.to_dict("list")  # type: ignore[no-any-return]


def test_what_a_sweep_says() -> None:
    sweep = Sweep(WORDS, {"k": [3, 1, 3], "s": [0.5, 1, 2]}, "name", block="A")
    assert repr(sweep) == "Sweep(name: 3 captures of 2 words, 1 bit varies, 2 parameters)"
    assert repr(sweep[1]) == "Sweep(name: 1 capture of 2 words, 0 bits vary, 2 parameters)"
    assert (
        repr(Sweep([[0], [3]], {"k": [1, 2]}))
        == "Sweep(2 captures of 1 word, 2 bits vary, 1 parameter)"
    )
    assert (sweep.varying.tolist(), sweep.bits, len(sweep), sweep.counts) == (
        [2, 0],
        1,
        3,
        {"captures": 3, "words": 2, "parameters": 2},
    )
    assert sweep.ranges.to_numpy().tolist() == [["k", 1, 3, 2], ["s", 0.5, 2.0, 3]]
    assert sweep[:0].ranges.to_numpy().tolist() == [["k", None, None, 0], ["s", None, None, 0]]
    for which, left in (
        (slice(1, None), [[3, 0], [1, 0]]),
        ([2, 0], [[1, 0], [1, 0]]),
        ([False, True, False], [[3, 0]]),
        (-1, [[1, 0]]),
    ):
        part = sweep[which]
        assert (part.words.tolist(), part.name, part.block) == (left, "name", "A")
        assert part.parameters.index.tolist() == [*range(len(left))]
    for which in ([0.5], [[0]], "a", ["k"]):
        with pytest.raises(
            TypeError, match=r"^sweep: got .*, allowed is a slice, a mask or numbers of captures$"
        ):
            sweep[which]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (2**63 - 1, "i"),
        (-(2**63) + 1, "i"),
        (2**63, ""),
        (-(2**63), ""),
        (2.0**63, "f"),
        (-(2.0**64), "f"),
        (-(2.0**63), "i"),
        (2.0**62, "i"),
        (0.5, "f"),
        (True, "i"),
        (np.inf, ""),
        (np.nan, ""),
        ("1", ""),
        (None, ""),
    ],
)
def test_numbers_of_parameters(number: Any, kind: str) -> None:
    if kind:
        column = Sweep([[1]], {"k": [number]}).parameters["k"]
        assert (column.dtype.kind, column[0]) == (kind, number)
    else:
        with pytest.raises(
            ValueError,
            match=r"^parameters: got k .* in row 0, allowed are finite numbers, whole ones within 64 bits$",
        ):
            Sweep([[1]], {"k": [number]})


def test_words_and_names_of_parameters() -> None:
    assert Sweep([[0, 2**32 - 1]], {}).words.tolist() == [[0, 2**32 - 1]]
    for words in ([[-1]], [[2**32]], [[0.0]], [1], [[]], [[[1]]]):
        with pytest.raises(
            ValueError, match=r"^words: got .*, allowed are 0 to 0xffffffff of shape \(N, W\)$"
        ):
            Sweep(words, {})
    with pytest.raises(ValueError, match=r"^words: got rows of different lengths"):
        Sweep([[1], [1, 2]], {})
    for given, words in (
        ({"": [1]}, "got column ''"),
        ({3: [1]}, "got column 3"),
        ({"k": [1, 2]}, "got 2 rows, allowed is one for each of the 1 capture$"),
    ):
        with pytest.raises(ValueError, match=rf"^parameters: {words}"):
            Sweep([[1]], given)


def test_whole_numbers_that_a_file_holds(tmp_path: Path) -> None:
    for number, fits in (
        (2**53, True),
        (-(2**53), True),
        (2**53 + 1, False),
        (-(2**53) - 1, False),
    ):
        sweep, path = Sweep(WORDS, {"k": [0, number, 1]}), tmp_path / f"{number}.npz"
        if fits:
            again = load_sweep(save_sweep(sweep, path))
            assert (again.parameters["k"].tolist(), again.words.tolist()) == ([0, number, 1], WORDS)
        else:
            with pytest.raises(
                ValueError,
                match=r"parameters: got k past 2\*\*53, allowed are whole numbers up to 2\*\*53, which float64 holds exactly$",
            ):
                save_sweep(sweep, path)
    with pytest.raises(ValueError, match=r"got a sweep of no captures, allowed is one or more$"):
        save_sweep(Sweep(WORDS, {})[:0], tmp_path / "none.npz")


def test_columns_of_lists_texts_and_what_is_inside() -> None:
    assert columns({"k": [1, 2]}, {"k": [3, 4]}) == {"k_0": [1, 3], "k_1": [2, 4]}
    assert columns({"k": [[1, 2], [3, 4]]}) == {
        "k_0_0": [1],
        "k_0_1": [2],
        "k_1_0": [3],
        "k_1_1": [4],
    }
    assert columns({"stride": [1, 2]}) == {"stride_h": [1], "stride_w": [2]}
    assert columns({"stride": [1, 2, 3]}) == {"stride_0": [1], "stride_1": [2], "stride_2": [3]}
    assert [len(columns({"k": [0] * count})) for count in (16, 17)] == [16, 0]
    assert (
        columns({"k": [1]}, {"k": [1, 2]})
        == columns({"k": [{"a": 1}]})
        == columns({"k": [[1], [1, 2]]})
        == columns({"k": None})
        == {}
    )
    assert columns({"a": {"b": 1, "c": {"d": 2}}}) == {"a_b": [1], "a_c_d": [2]}
    assert columns({"p": "same"}, {"p": "valid"}, {"p": "same"}) == {"p_same": [1, 0, 1]}
    assert columns({"p": "a"}, {"p": "c"}, {"p": "b"}) == {"p_a": [1, 0, 0], "p_b": [0, 0, 1]}
    assert columns({"p": "relu"}, {"p": None}) == {"p_relu": [1, 0]}
    assert columns({"p": "same"}, {"p": "same"}) == {}
    assert columns({"input_shape": [8, 9, 3], "flag": True, "empty": []}) == {
        "input_h": [8],
        "input_w": [9],
        "input_c": [3],
        "flag": [1],
    }
    for given, words in (
        (({"k": 1}, {"k": "a"}), "got k of c0, which is number, and of c1, which is text"),
        (({"k": 1}, {"k": None}), "and of c1, which is nothing"),
        (({"k": 1}, {"k": [1]}), "and of c1, which is list"),
        (({"k": 1}, {"k": b"2"}), "and of c1, which is something else"),
        (({"k": b"1"},), "got k b'1' of c0"),
        (({"k": [{"a": 1}, 2]},), r"got k_0 \{'a': 1\} of c0"),
        (({"k": 1}, {"k": float("nan")}), "got k nan of c1"),
        (({"k": 1}, {}), "got c1 without k, which c0 has"),
        (({}, {"k": 1}), "got c0 without k, which c1 has"),
        (({"k": float("inf")},), "got k inf of c0, allowed are finite numbers"),
        (({"a": {"b": 1}, "a_b": 2},), "got parameter 'a_b' of c0 twice"),
        (({"a": [1], "a_0": 2},), "got parameter 'a_0' twice"),
    ):
        with pytest.raises(ValueError, match=rf"^captures: .*{words}"):
            columns(*given)


def test_texts_of_several_captures() -> None:
    one = Capture("c", "none", "x", (Job("A", [1]),))
    for sources, text in (
        ("", ""),
        ("a", "a"),
        ("aba", "a, b"),
        ("abc", "a, b, c"),
        ("abcd", "4 different ones"),
    ):
        found = sweep_of([replace(one, source=source) for source in sources] or [one])
        assert found.source == text
    for other, words in (
        (replace(one, target="o", name="d"), r"target none \(c\) and o \(d\)"),
        (replace(one, provenance="simulated"), "provenance board"),
        (replace(one, chip="y"), "chip"),
        (replace(one, jobs=(Job("B", [1]),)), "block A"),
        (replace(one, jobs=(Job("A", [1, 2]),)), "number of words 1"),
    ):
        with pytest.raises(ValueError, match=rf"^captures: got {words}"):
            sweep_of([one, other])


def test_weights_of_layers_that_are_made() -> None:
    size = {
        "input_h": 5,
        "input_w": 4,
        "input_c": 3,
        "output_c": 2,
        "kernel_h": 3,
        "kernel_w": 2,
        "stride_h": 1,
        "stride_w": 1,
        "input_scale": 1,
        "weight_scale": 1,
        "output_scale": 1,
    }
    for more, weights, bias in (
        ({}, (2, 3, 2, 3), 2),
        ({"depthwise": 1}, (1, 3, 2, 3), 3),
        ({"op": 1}, (2, 60), 2),
    ):
        layer: Any = made({**size, **more})[0]
        assert (layer.weights.shape, layer.bias.shape) == (weights, (bias,))
        assert np.abs(made({**size, **more, "output_c": 900})[0].bias).max() <= 1000  # type: ignore[union-attr]
    assert [made({**size, "relu": relu})[0].activation for relu in (0, 1)] == [None, "relu"]


def test_the_order_of_words_in_memory_does_not_change_the_file(tmp_path: Path) -> None:
    words = np.arange(12, dtype=np.uint32).reshape(4, 3)
    files = [
        save_sweep(Sweep(given, {"a": [1, 2, 3, 4]}, "s"), tmp_path / f"{n}.npz")
        for n, given in enumerate((words, np.asfortranarray(words), np.repeat(words, 2, 1)[:, ::2]))
    ]
    assert len({file.read_bytes() for file in files}) == 1


def test_a_sweep_says_that_captures_were_changed() -> None:
    def tool_of(*tools: str) -> str:
        return sweep_of(
            [
                Capture(f"c{n}", "none", "x", (Job("A", [n]),), parameters={"k": n}, tool=tool)
                for n, tool in enumerate(tools)
            ]
        ).tool

    assert tool_of("a", "a") == "a"
    assert tool_of("a", "b, changed with npulab") == "a, b, changed with npulab"
    assert tool_of("a", "b", "c", "d") == "4 different ones"
    assert (
        tool_of("a", "b", "c", "d, changed with npulab") == "4 different ones, changed with npulab"
    )


def file_of(path: Path, **changed: bytes) -> Path:
    """A sweep's file of two captures with some members in other bytes."""
    arrays = {
        "words": np.zeros((2, 3), "<u4"),
        "parameters": np.zeros((2, 1)),
        "names": np.array(["k"]),
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            plain = io.BytesIO()
            np.save(plain, array)
            file.writestr(f"{name}.npy", changed.get(name, plain.getvalue()))
    return path


def npy_of(descr: str, shape: str, data: bytes, version: bytes = b"\1\0") -> bytes:
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    size = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + len(head).to_bytes(size, "little") + head.encode() + data


def test_heads_of_arrays_that_numpy_does_not_write(tmp_path: Path) -> None:
    letter = npy_of("<U1", "(1,)", b"k\0\0\0")
    assert load_sweep(file_of(tmp_path / "good.npz", names=letter)).counts["parameters"] == 1
    for version in (b"\2\0", b"\3\0"):
        assert load_sweep(
            file_of(
                tmp_path / f"good{version[0]}.npz", names=npy_of("<U1", "(1,)", b"k\0\0\0", version)
            )
        )
    broken = [
        ("words", npy_of("<u4", shape, bytes(24)), r"words: got 24 bytes of uint32 of shape \(")
        for shape in ("(True, 6)", "(2, 3, True)", "(-2, -3)", "(2, 9)", f"(2, {10**14})")
    ]
    for shape in ("(2, (", "2"):
        broken.append(("words", npy_of("<u4", shape, bytes(24)), "words: got no npy array"))
    for number in (0x110000, 0x7FFFFFFF, 0xFFFFFFFF, 0xD800, 0xDFFF):
        for order, name in (("little", "<U2"), ("big", ">U2")):
            texts = ord("k").to_bytes(4, order) + number.to_bytes(4, order)
            broken.append(
                (
                    "names",
                    npy_of(name, "(1,)", texts),
                    f"names: got letter {number:#x}, allowed are letters of Unicode",
                )
            )
    for version, told in ((b"\x09\0", "9.0"), (b"\4\0", "4.0"), (b"\1\1", "1.1"), (b"\0\0", "0.0")):
        broken.append(
            (
                "names",
                npy_of("<U1", "(1,)", b"k\0\0\0", version),
                rf"names: got no npy array \(version: got {told}",
            )
        )
    for number, (member, data, words) in enumerate(broken):
        path = file_of(tmp_path / f"{number}.npz", **{member: data})
        with pytest.raises(FormatError, match=rf"^{path}: {words}") as caught:
            load_sweep(path)
        assert "\n" not in str(caught.value)
        assert main(["show", str(path)]) == 2


def test_names_of_parameters_are_looked_at_once_each() -> None:
    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    many = [Counted(f"p{number}") for number in range(1000)]
    frame = pd.DataFrame(np.zeros((1, len(many))))
    frame.columns = pd.Index(many, dtype=object)
    Counted.compared = 0
    assert Sweep([[1]], frame).counts["parameters"] == len(many)
    assert Counted.compared < 20 * len(many)  # each against each would be 1,000 times


@pytest.mark.parametrize("shape", [(0, MOST_PARAMETERS + 1), (1, MOST_PARAMETERS + 1)])
def test_how_many_parameters_a_sweep_has(shape: tuple[int, int]) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^parameters: got {MOST_PARAMETERS + 1} columns, allowed are {MOST_PARAMETERS}$",
    ):
        Sweep(np.zeros((1, 1), np.uint32), pd.DataFrame(np.zeros(shape)))


def test_a_file_of_more_parameters_than_allowed_is_refused_before_they_are_read(
    tmp_path: Path,
) -> None:
    count = MOST_PARAMETERS + 1
    np.savez(
        tmp_path / "many.npz",
        words=np.zeros((1, 1), np.uint32),
        parameters=np.zeros((1, count)),
        names=np.arange(count).astype("U7"),
    )
    with pytest.raises(
        FormatError,
        match=f"many.npz: parameters: got {count} columns, allowed are {MOST_PARAMETERS}$",
    ):
        load_sweep(tmp_path / "many.npz")


def test_a_name_that_is_there_twice_among_many(tmp_path: Path) -> None:
    names = np.arange(100_000).astype("U6")
    names[7] = names[-1]
    np.savez(
        tmp_path / "many.npz",
        words=np.zeros((1, 1), np.uint32),
        parameters=np.zeros((1, len(names))),
        names=names,
    )
    with pytest.raises(FormatError, match=r"names: got '99999' twice, allowed is each once$"):
        load_sweep(tmp_path / "many.npz")
