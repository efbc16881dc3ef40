"""Models that a writer of its own made (``onert_by_hand.File``): listings, broken files, and which
tensors live when.

The listings are those of a page on the development of Samsung ONE (``NOTES``)."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onert_by_hand as hand
import pytest
from conftest import shared
from onert_by_hand import PATHS, File

import npulab
import npulab.models
from npulab import FullyConnected, cli
from npulab.models.listing import memory_text

NOTES = "seeds/003_78f469e58df80a91.txt"


def long(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def lines(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """Exit status, output, and what was said beside it."""
    try:
        status = cli.main([str(one) for one in arguments])
    except SystemExit as gone:
        status = int(gone.code or 0)
    told = capsys.readouterr()
    return status, told.out, told.err


# ---- listings


SEEN = re.compile(
    r"\s+Tensor\s+(\d+) : buffer\s+(\d+) \|\s*(\w+) \| (\w+)\s+\| Memory (\S+)\s*\| Shape (\[.*?\]) \((.*)\)"
)


def noted_listing() -> tuple[list[list[str]], dict[int, tuple[str, ...]]]:
    """The lines of both operators, without what the paste left behind them, and what they say of
    each tensor.
    """
    text = shared(NOTES).read_text(encoding="utf-8").splitlines()
    found, tensors = [], {}
    for i, line in enumerate(text):
        if line.startswith("Operator "):
            end = next(j for j in range(i, len(text)) if not text[j].strip())
            found.append([one.rstrip() for one in text[i:end]])
            tensors |= {
                int(m[1]): m.groups()[1:] for one in found[-1] if (m := SEEN.fullmatch(one))
            }
    return found, tensors


def block(listing: str, number: int) -> list[str]:
    every = listing.splitlines()
    start = next(i for i, line in enumerate(every) if line.startswith(f"Operator {number}:"))
    return every[start : next(i for i in range(start, len(every)) if not every[i].strip())]


@pytest.mark.parametrize("identifier", [b"TFL3", b"CIR0"])
def test_a_model_with_the_noted_tensors_lists_as_noted(
    identifier: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model with tensors and buffers of the noted numbers, among others: both operators are listed
    to the character."""
    operators, tensors = noted_listing()
    assert len(operators) == 2
    assert len(tensors) == 7
    file = File()
    file.buffers = [b""] * 44
    for number in range(42):
        if number in tensors:
            buffer, state, dtype, _, shape, name = tensors[number]
            sizes = json.loads(shape)
            data = (
                bytes(math.prod(sizes) * hand.WIDTHS[dtype.lower()]) if state == "Filled" else b""
            )
            file.tensor(name, sizes, dtype.lower(), buffer=int(buffer))
            file.buffers[int(buffer)] = data
        else:
            file.tensor(f"other {number}", [1, 1])
    file.operator("FULLY_CONNECTED", [0, 41, 25], [36], {0: ("Int8", 0)}, 3)
    file.operator("ADD", [3, 4], [5], {0: ("Int8", 1)})
    file.operator("FULLY_CONNECTED", [1, 26, 25], [24], {0: ("Int8", 0)}, 3)
    path = tmp_path / "noted.bin"
    path.write_bytes(file.build(identifier))
    model = npulab.read_model(path)
    for number, expected_lines in zip((0, 2), operators, strict=True):
        assert block(model.listing("earlier"), number) == expected_lines
        assert block(str(model), number) == expected_lines
    status, out, _ = lines(capsys, "show", path, "--form", "earlier")
    assert status == 0
    for number, expected_lines in zip((0, 2), operators, strict=True):
        assert block(out, number) == expected_lines


def small(seed: int = 0) -> File:
    """A model of some operators, every table in it: constants, quantization, an input left out,
    odd names.
    """
    rng = np.random.default_rng(seed)
    file = File()
    x = file.tensor("x\n\t\x1b[31m", [1, 4, 4, 2], "int8", scale=[0.5], zero_point=[3])
    w = file.tensor(
        "Gewicht/ä\u202e\U0001f600",
        [3, 2, 2, 2],
        "int8",
        rng.bytes(24),
        scale=[0.1, 0.2, 0.3],
        zero_point=[0, 0, 0],
    )
    b = file.tensor(
        "",
        [3],
        "int32",
        np.arange(3, dtype="<i4").tobytes(),
        scale=[0.05, 0.1, 0.15],
        zero_point=[0, 0, 0],
    )
    y = file.tensor("y" * 300, [1, 3, 3, 3], "int8", scale=[2.0], zero_point=[-1])
    z = file.tensor("z", [1, 3, 3, 3], "int8", scale=[1 / 256], zero_point=[-128])
    file.operator(
        "CONV_2D",
        [x, w, b],
        [y],
        {0: ("Int8", 1), 1: ("Int32", 1), 2: ("Int32", 1), 3: ("Int8", 0)},
        3,
    )
    file.operator("LOGISTIC", [y], [z])
    file.operator("FULLY_CONNECTED", [z, w, -1], [y], {0: ("Int8", 3)}, 4)
    file.inputs, file.outputs = [x], [z]
    return file


def test_names_options_and_inputs_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Names stay on their line and send no terminal anything; JSON has them as they are."""
    file = small()
    path = tmp_path / "odd.tflite"
    path.write_bytes(file.build())
    for form in ("earlier", "later"):
        status, out, _ = lines(capsys, "show", path, "--form", form)
        assert status == 0
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert re.search(r"-1\b.*\n", out)
        assert out.count("Fused Activation:") == 3
        assert "Stride W:H = 1:1" in out
        assert "RELU6" in out
    assert "Options" in out
    status, out, _ = lines(capsys, "show", path, "--form", "earlier", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == ["CONV_2D", "LOGISTIC", "FULLY_CONNECTED"]
    assert [t["name"] for t in rows[0]["inputs"]] == [one["name"] for one in file.tensors[:3]]
    assert rows[2]["inputs"][2] is None
    assert rows[0]["inputs"][1]["zero_point"] == [0, 0, 0]


def test_models_of_many_operators_of_none_and_of_several_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = File()
    before = file.tensor("t0", [2, 3])
    file.inputs = [before]
    for number in range(1, 600):
        after = file.tensor(f"t{number}", [2, 3])
        file.operator("ADD", [before, before], [after], {0: ("Int8", number % 4)})
        before = after
    file.outputs = [before]
    model = npulab.read_model(file.build())
    listing = model.listing("earlier")
    assert listing.count("Operator ") == 599
    assert re.search(r"ADD +: +599\n", listing)
    assert f"Expected TOTAL  memory: {600 * 24 / 1024:.1f}K" in listing
    empty = File()
    for graphs in (0, 1, 3):
        path = tmp_path / f"{graphs}.tflite"
        path.write_bytes(empty.build(graphs=graphs))
        status, out, err = lines(capsys, "show", path, "--form", "earlier")
        if graphs:
            assert status == 0
            assert "Number of all operators" in out
            assert out.count("Expected TOTAL") == graphs
        else:
            assert status == 2
            assert "graph" in err.lower()
    assert [len(npulab.read_model(small().build(graphs=3)).graphs)] == [3]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0B"),
        (1, "1.0B"),
        (1023, "1023.0B"),
        (1024, "1.0K"),
        (1075, "1.0K"),
        (16000, "15.6K"),
        (96000, "93.8K"),
        (2**20 - 1, "1024.0K"),
        (2**20, "1.0M"),
        (5 * 2**30 + 2**29, "5.5G"),
    ],
)
def test_memory_in_units_of_1024(size: int, text: str) -> None:
    assert memory_text(size) == text


# ---- broken files


def read_or_refused(data: bytes) -> str:
    """The refusal of a file, or nothing where it is read, listed and taken apart."""
    try:
        model = npulab.read_model(data)
        (
            str(model),
            model.listing("later"),
            model.rows,
            list(model.quantization()),
            npulab.models.model_memory(model),
        )
    except ValueError as problem:
        return str(problem)
    with suppress(ValueError):
        model.layers  # noqa: B018
    return ""


TABLE_NAMES = {"Model", "OperatorCode", "SubGraph", "Tensor", "Quantization", "Operator", "Buffer"}


@pytest.mark.parametrize("identifier", [b"TFL3", b"CIR0"])
def test_offsets_past_the_end_are_refused_by_table(identifier: bytes) -> None:
    """Every offset and every length in the file, made too large, one at a time: the table is
    named, or its parent.
    """
    data = small().build(identifier)
    told = set()
    for at, table, what in hand.offsets(data):
        for value in (len(data), 2**31 - 8, 2**32 - 1):
            broken = bytearray(data)
            if what == "slots":
                struct.pack_into("<i", broken, at, -min(value, 2**31 - 8))
            else:
                struct.pack_into("<I", broken, at, value)
            message = read_or_refused(bytes(broken))
            names = {"Options": r"\w+Options|Operator"}.get(table, table)
            if what == "table":  # what is there, or what points to it
                names += r"|Quantization|\w+Options"
            assert re.search(rf"\b({names})\b.*got .*, allowed ", message), (
                at,
                table,
                what,
                value,
                message,
            )
            assert "\n" not in message
            told.add(table)
    assert told >= TABLE_NAMES


def test_numbers_of_others_past_the_end_are_refused() -> None:
    """Tensors, buffers and operator codes that are not there."""
    for change, word in [
        (lambda f: f.tensors[0].update(buffer=77), "buffer"),
        (lambda f: f.inputs.append(99), "99"),
        (lambda f: f.outputs.append(-2), "-2"),
        (lambda f: f.operators[1][1].append(1000), "1000"),
        (lambda f: f.operators[1][2].append(-7), "-7"),
        (lambda f: f.tensors[1].update(shape=[3, -2, 2]), "-2"),
    ]:
        file = small()
        change(file)
        message = read_or_refused(file.build())
        assert word in message.lower(), (word, message)
        assert "got " in message


def cuts(data: bytes, step: int) -> None:
    for size in range(0, len(data), step):
        message = read_or_refused(data[:size])
        assert message, size
        if size >= 8:
            assert any(name in message for name in TABLE_NAMES), (size, message)


def test_a_file_cut_at_any_byte() -> None:
    cuts(small().build(), 3)


@pytest.mark.long
def test_a_file_cut_at_every_byte() -> None:
    cuts(small().build(), 1)
    cuts(small().build(b"CIR0"), 1)
    layer = FullyConnected(np.ones((5, 17), np.int8), np.zeros(5, np.int32))
    cuts(npulab.single_op_model(layer), 1)


# ---- memory


def random_network(seed: int) -> File:
    """Operators that take anything made before, tensors used late, never, or given out; weights
    used twice.
    """
    rng = random.Random(seed)
    file = File()
    held = [file.tensor(f"in{i}", [rng.randrange(1, 40)]) for i in range(rng.randrange(1, 4))]
    file.inputs = list(held)
    weights = [
        file.tensor(f"w{i}", [rng.randrange(1, 9), rng.randrange(1, 30)], "int8", b"")
        for i in range(3)
    ]
    for w in weights:
        one = file.tensors[w]
        file.buffers[one["buffer"]] = bytes([1] * hand.size(one))
    for number in range(rng.randrange(1, 25)):
        outs = [
            file.tensor(f"t{number}.{i}", [rng.randrange(1, 60)], rng.choice(["float32", "int8"]))
            for i in range(rng.choice([1, 1, 2]))
        ]
        if rng.random() < 0.4:
            file.operator(
                "FULLY_CONNECTED",
                [rng.choice(held), rng.choice(weights), -1],
                outs,
                {0: ("Int8", 0)},
                3,
            )
        else:
            file.operator(
                "ADD", [rng.choice(held), rng.choice(held + weights)], outs, {0: ("Int8", 0)}
            )
        held += outs
    file.outputs = rng.sample(held, min(len(held), 2))
    return file


@pytest.mark.parametrize("first", [0, *long(*range(40, 1000, 40))])
def test_which_tensors_live_when(first: int) -> None:
    """From the file alone, against a count of one's own: lives, peak, sum, places, packed
    weights, mapping.
    """
    for seed in range(first, first + 40):
        file = random_network(seed)
        model = npulab.read_model(file.build())
        lives = hand.lifetimes(file)
        steps = range(len(file.operators))
        live = [
            sum(
                hand.size(one)
                for one, life in zip(file.tensors, lives, strict=True)
                if life and life[0] <= step <= life[1]
            )
            for step in steps
        ]
        total = sum(hand.size(one) for one, life in zip(file.tensors, lives, strict=True) if life)
        taken = {n for _, inputs, *_ in file.operators for n in inputs}
        packs = {op[1][1] for op in file.operators if op[0] == "FULLY_CONNECTED"}
        for path, planner, align in [
            ("neon-armv7", "wic", 1),
            ("avx512", "first-fit", 64),
            ("avx2", "bump", 4),
        ]:
            kr, kc = PATHS[path][0]

            def packed(rows: int, columns: int, kr: int = kr, kc: int = kc) -> int:
                return hand.up(rows, kr) * hand.up(columns, kc) + 4 * hand.up(columns, kc)

            memory = npulab.models.model_memory(model, packed, planner=planner, align=align)
            assert memory.live.tolist() == live, seed
            assert (memory.peak, memory.total) == (max(live), total)
            assert memory.constants == sum(map(len, file.buffers))
            for n, life in enumerate(lives):
                if life:
                    assert (memory.first[n], memory.last[n]) == life, (seed, n)
                    assert memory.offsets[n] % align == 0
                    assert 0 <= memory.offsets[n] <= memory.planned - hand.size(file.tensors[n])
                else:
                    assert memory.offsets[n] == -1 or not hand.size(file.tensors[n])
                shape = file.tensors[n]["shape"]
                assert memory.packed[n] == (packed(shape[1], shape[0]) if n in packs else 0)
            at = [
                (memory.offsets[n], memory.offsets[n] + hand.size(file.tensors[n]), *life)
                for n, life in enumerate(lives)
                if life
            ]
            assert not any(
                a[0] < b[1] and b[0] < a[1] and a[2] <= b[3] and b[2] <= a[3]
                for i, a in enumerate(at)
                for b in at[:i]
            ), "two live tensors lie in one place"
            assert memory.planned >= memory.peak
            if planner == "bump":
                assert memory.planned >= memory.total
            held = memory.held.set_index("way")
            extra = sum(
                packed(file.tensors[n]["shape"][1], file.tensors[n]["shape"][0]) for n in packs
            )
            copied, mapped = held.loc["constants copied"], held.loc["file mapped"]
            assert copied["heap"] == memory.planned + memory.constants
            assert mapped["heap"] == memory.planned
            assert mapped["saved"] == memory.constants
            if packs:
                assert (
                    held.loc["constants copied, weights packed"]["heap"] == copied["heap"] + extra
                )
                assert held.loc["file mapped, weights packed"]["pages"] == copied["heap"] + extra
            assert (held["rss_least"] <= held["rss_most"]).all()
            assert (held["heap"] <= held["pages"]).all()
        assert packs <= taken
