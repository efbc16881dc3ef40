"""The rows of tinygrad's notes on a task's bytes (source S), checked as laws with real files."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from ane_networks import PAIRS, bare, image, network, recorded, source, unit
from ane_writers import parameters_table
from conftest import shared

from npulab.analysis.laws.stated import check_rows
from npulab.analysis.laws.texts import parse_law, parse_steps
from npulab.npus.ane.source import seed
from npulab.npus.ane.source.network import Network
from npulab.npus.ane.source.parameters import parameters

LARGE = (1600, 2560, 1)
Captures = dict[str, tuple[dict[str, int], dict[str, int]]]


@pytest.fixture(scope="module")
def pairs() -> Captures:
    networks = {name: source(name) for name in PAIRS}
    return seed.captures_of(networks, {name: recorded(name) for name in PAIRS})  # type: ignore[return-value]


@pytest.fixture(scope="module")
def others() -> Captures:
    """Bare tasks with a network of their size."""
    found: Captures = {}
    for name, kind in (
        ("activation/relu", "ReLU"),
        ("unary/tanh", "Tanh"),
        ("unary/sqrt", "Sqrt"),
        ("unary/sign", "Sign"),
    ):
        made = network(unit("Neuron", params={"Type": kind}), inputs=(image(*LARGE),))
        found[name] = bare(name)[0], parameters(made)
    return found


def by_line(found: pd.DataFrame, source: str = "seed") -> pd.DataFrame:
    rows = found[found["source"] == source]
    return rows[rows["type"] != ""].set_index("offset")


def words(name: str) -> list[np.ndarray]:
    """The words of each task, from the file."""
    known = json.loads(shared(f"data/ane/expected/hwx_{name}.json").read_text())
    start = next(one["offset"] for one in known["sections"] if one["sect"] == "__text")
    data = shared(f"data/ane/hwx/{name}/model.hwx").read_bytes()
    return [
        np.frombuffer(data, "<u4", task["words"], start + task["offset"]) for task in known["tasks"]
    ]


def test_the_table_is_whole() -> None:
    text = shared("seeds/000_571751982c67fd8a.txt").read_text()
    section = text[text.index("== min.plist ==") : text.index("== Zin Constants ==")]
    lines = [
        line.strip()
        for line in section.splitlines()
        if " = " in line and line.split()[0].startswith("u")
    ]
    stated = {row["seed"] for row in seed.ROWS}
    assert len(lines) == 39
    assert set(lines) <= stated
    assert len(seed.ROWS) == 57
    for row in seed.ROWS:
        assert row["source"] in ("seed", "refined")
        assert bool(row["law"]) == bool(row["type"]) == bool(row["fields"]) == bool(row["offset"])
        if row["law"]:
            parse_steps(row["law"], 0)
            parse_law(row["fields"], 0)
    known = set().union(*chain.from_iterable(map(recorded, PAIRS)))
    for row in seed.ROWS:
        if row["fields"]:
            leaves = chain.from_iterable(parse_law(row["fields"], i).walk() for i in range(16))
            assert {leaf.args[0] for leaf in leaves if leaf.op == "field"} <= known


def test_each_row_agrees_is_contradicted_or_never_varied(pairs: Captures) -> None:
    found = check_rows(seed.ROWS, pairs)
    assert not found["status"].str.startswith("found").any()  # seven different tasks
    rows = by_line(found)
    assert rows.loc["0x128", ["verdict", "status"]].tolist() == [
        "agrees",
        "agrees in 8 of 8 (7 different ones), too few to call it found",
    ]
    agree = {
        "0x1c",
        "0x128",
        "0x134",
        "0x138",
        "0x13C",
        "0x178",
        "0x17C",
        "0x180",
        "0x260",
        "0x264",
        "0x268",
        "0xB4",
    }
    same = {
        "0x12A",
        "0x12C",
        "0x13E",
        "0x140",
        "0x144",
        "0x146",
        "0x150",
        "0x1A7",
        "0x1E5",
        "0x211",
        "0x232",
        "0x241",
        "0x273",
        "0x74",
    }
    wrong = {
        "0x34": "sum64",
        "0x130": "sum64",
        "0x14C": "concat16 task 0, concat16 task 1, relu16, sigmoid77",
        "0x184": ", ".join(pairs),
        "0x26C": ", ".join(pairs),
        "0x1F4": "relu16, sigmoid77",
        "0x1F8": "relu16, sigmoid77",
        "0x220": "concat16 task 0, concat16 task 1, relu16, sigmoid77, sum64",
        "0x224": "concat16 task 0, concat16 task 1, relu16, sigmoid77, sum64",
        "0x240": "sum64",
        "0x246": "relu16, sum64",
    }
    assert set(rows.index[rows["verdict"] == "agrees"]) == agree
    assert set(rows.index[rows["verdict"] == "not varied"]) == same
    assert rows.loc[rows["verdict"] == "contradicted", "contradicts"].to_dict() == wrong
    assert rows.loc[rows["verdict"] == "nothing to compare", "status"].to_dict() == {
        "0x20": "no capture has OutputAddress",
        "0x230": "no capture has BiasScalar",
    }
    refined = by_line(found, "refined")
    assert set(refined["verdict"]) == {"agrees", "not varied"}
    assert len(refined) == 12


def test_one_row_for_each_file_says_seven_of_seven(pairs: Captures) -> None:
    found = by_line(
        check_rows(
            seed.ROWS, {name: pair for name, pair in pairs.items() if name != "concat16 task 1"}
        )
    )
    assert found.loc["0x134", "status"] == "agrees in 7 of 7, too few to call it found"
    assert (
        found.loc["0x134", "supports"]
        == "compiled, concat16 task 0, conv_bias, conv_twos, relu16, sigmoid77, sum64"
    )


def test_words_of_the_files_say_the_same_as_their_fields(pairs: Captures) -> None:
    tasks = chain.from_iterable(map(words, PAIRS))
    raw = {name: (one, known) for (name, (_, known)), one in zip(pairs.items(), tasks, strict=True)}
    from_words, from_fields = check_rows(seed.ROWS, raw), check_rows(seed.ROWS, pairs)
    pd.testing.assert_frame_equal(from_words, from_fields)


def test_eight_different_tasks_find_what_they_vary(pairs: Captures, others: Captures) -> None:
    found = check_rows(seed.ROWS, {**pairs, **others})
    rows = by_line(found)
    for offset in (
        "0x128",
        "0x12A",
        "0x13C",
        "0x13E",
        "0x178",
        "0x17C",
        "0x180",
        "0x260",
        "0x264",
        "0x268",
        "0x134",
    ):
        assert rows.loc[offset, "status"] == "found: agrees in 12 of 12", offset
    assert rows.loc["0x12C", "verdict"] == "not varied"
    assert rows.loc["0x150", "verdict"] == "agrees"
    # a row of 3200 bytes is cut into patches, of which no law here knows the width
    assert by_line(found, "refined").loc["0x1F4", "contradicts"] == ", ".join(others)


def test_a_row_that_is_wrong_is_contradicted(pairs: Captures) -> None:
    row = next(dict(row) for row in seed.ROWS if row["offset"] == "0x134")
    found = check_rows(
        [row | {"law": "InputChannels + (InputWidth > 60)"}, row | {"law": "OutputChannels"}], pairs
    )
    assert found["contradicts"].tolist() == ["sigmoid77", "compiled, conv_bias"]


def test_parameters_of_the_pairs_are_what_a_search_takes() -> None:
    table = parameters_table({name: source(name) for name in PAIRS})
    assert np.isfinite(table.to_numpy()).all()
    assert table.index.tolist() == PAIRS


def test_networks_without_their_tasks_are_told() -> None:
    made: dict[str, Network] = {"a": network(unit("Neuron", params={"Type": "ReLU"}))}
    with pytest.raises(ValueError, match="a: got 0 tasks, allowed are 1, as its network says"):
        seed.captures_of(made, {})
