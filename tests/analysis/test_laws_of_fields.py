"""Laws of the fields that a map has: nothing joins two of them, and the others are left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npulab
from npulab.analysis.laws import find_laws
from npulab.analysis.laws.expressions import Columns, parameter
from npulab.analysis.laws.inputs import field_bits
from npulab.analysis.laws.parity import parity
from npulab.bits import RegisterMap
from npulab.captures.sweep import Sweep, load_sweep
from npulab.cli.shell import main

ROWS = [
    {"block": "JOB", "offset": 0, "register": "SIZE", "field": "low", "lsb": 0, "width": 4},
    {"block": "JOB", "offset": 0, "register": "SIZE", "field": "high", "lsb": 4, "width": 4},
    {"block": "JOB", "offset": 4, "register": "WIDE", "field": "noise", "lsb": 0, "width": 32},
]
MAP = RegisterMap(ROWS)


def sweep() -> Sweep:
    size = np.arange(100)
    noise = np.random.default_rng(0).integers(0, 2**32, 100)
    return Sweep(
        np.stack([size, noise], 1).astype(np.uint32),
        {"size": size},
        "mine",
        block="JOB",
        registers=MAP,
    )


def places(laws: npulab.Laws) -> list[list[object]]:
    return laws.table[["word", "lsb", "width", "law"]].values.tolist()


def test_exclusive_ors_are_of_bits_that_say_different_things() -> None:
    """No bit beside two that cancel out, as those of two parameters that are always equal."""
    a, b, c = np.random.default_rng(0).integers(0, 2, (3, 64))
    columns = Columns({"a": a, "same": a, "not_a": 1 - a, "b": b, "c": c})
    leaves = [*map(parameter, ("a", "same", "not_a", "b", "c"))]
    assert parity(b == 1, columns, leaves) == []
    assert {str(law) for law in parity(a ^ b == 1, columns, leaves)} == {
        "a ^ b",
        "same ^ b",
        "(not_a ^ b) + 1",
    }
    assert {str(law) for law in parity(a ^ b ^ c == 1, columns, leaves)} == {
        "a ^ b ^ c",
        "same ^ b ^ c",
        "(not_a ^ b ^ c) + 1",
    }


def test_a_law_ends_where_its_field_ends() -> None:
    mine = sweep()
    nuisance = ~field_bits(["low", "SIZE.h*"], MAP)
    assert nuisance.tolist() == [0xFFFFFF00, 0xFFFFFFFF]
    assert places(find_laws(mine, nuisance=nuisance)) == [[0, 0, 7, "size"]]
    found = find_laws(mine, nuisance=nuisance, registers=mine.registers)
    assert places(found) == [[0, 0, 4, "size"], [0, 4, 3, "size // 16"]]
    words, known = found.predict(mine.parameters)
    assert not np.any((words ^ mine.words) & known)


def test_a_name_that_no_field_has_is_refused() -> None:
    with pytest.raises(LookupError, match=r"--field: got 'q\*', the sweep's map has 4 fields"):
        field_bits(["q*"], RegisterMap(ROWS))
    with pytest.raises(LookupError, match="--field: got 'low', the sweep's map has 0 fields"):
        field_bits(["low"], None)


def test_the_shell_takes_one_chip_of_a_folder_and_fields_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Captures of two chips, of a target that npulab has."""
    layer = npulab.Conv2D(
        np.ones((8, 3, 3, 4), np.uint8), np.zeros(8, int), (9, 9, 4), padding="same"
    )
    of = npulab.target("vivante")
    first, second = [*of.chips][:2]
    lowered = {chip: of.lower(layer, chip=chip) for chip in (first, second)}
    for number, chip in enumerate([*[first] * 24, second]):
        made = lowered[chip].with_fields(in_image_x_size=3 + number)
        made = npulab.Capture(
            f"c{number}",
            made.target,
            chip,
            made.jobs,
            parameters={"width": 3 + number},
            provenance="simulated",
            maps=made.maps,
        )
        npulab.save(made, tmp_path / "captures" / made.name)
    with pytest.raises(ValueError, match="got chip"):
        load_sweep(tmp_path / "captures")
    assert (
        main(
            [
                "laws",
                str(tmp_path / "captures"),
                "--chip",
                first,
                "--field",
                "in_image_x_size",
                "--json",
            ]
        )
        == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["steps"][0]["law"] for row in rows if row["kind"] == "field"] == ["width"]
    assert main(["laws", str(tmp_path / "captures"), "--chip", "nix"]) == 2
    assert "got no capture of chip nix" in capsys.readouterr().err


def test_a_flag_is_told_as_itself_though_other_words_have_one_more() -> None:
    """A wider field is ``deep + 1``, of which the flag is bit 1: that other words share it makes
    it cheap, not plain.
    """
    deep, width = (np.arange(63) % 10 == 3).astype(np.int64), np.arange(63)
    words = np.stack(
        [deep, (deep + 1) | (deep << 3), ((1 - deep) << 10) | (width << 16)], 1
    ).astype(np.uint32)
    laws = npulab.find_laws(words, {"deep": deep, "width": width})
    told = {(law.word, law.lsb): law.text for law in laws.fields}
    assert (told[0, 0], told[1, 3]) == ("deep", "deep")
