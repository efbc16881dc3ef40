"""Widths of fields that Rockchip's compiler states in its log, against the map
(airockchip/rknn-toolkit2#193, #419, #163, #251, rknn-llm#417, rockchip-linux/rknn-toolkit2#173).
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import fuzz_mutators
import pytest

import npulab
from npulab import cli
from npulab.registers.stated import against, statements
from npulab.support.text import CONTROL, MOST_LETTERS

MAP = Path(npulab.__file__).parent / "npus/rockchip/registers.csv"
# offset, lowest bit; each has 13 bits
PLACES = (
    (0x4030, 0),
    (0x405C, 0),
    (0x4038, 0),
    (0x4038, 16),
    (0x5048, 19),
    (0x500C, 0),
    (0x5014, 0),
)
LINE = (
    "E RKNN: REGTASK: The bit width of field value exceeds the limit, target: v2, "
    "offset: {:#x}, shift = {}, limit: {:#x}, value: 0x4210\n"
)


def log(path: Path, *places: tuple[int, int, int]) -> Path:
    file = path / "compiler.txt"
    lines = [LINE.format(*place) for place in places]
    file.write_text("".join(["I begins\n", *lines, "E datain_entries: 2100, limitation: 2048\n"]))
    return file


def test_the_map_has_the_seven_widths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path, *[(*place, 0x1FFF) for place in (*PLACES, PLACES[0])])
    assert cli.main(["map", str(MAP), "--against", str(file), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(int(row["offset"], 0), row["lsb"]) for row in rows] == [*PLACES]
    assert {row["verdict"] for row in rows} == {"equal"}
    assert rows[4]["field"] == "RDMA_SRC_DMA_CFG.LINE_NOTCH_ADDR"
    assert cli.main(["map", str(MAP), "--against", str(file)]) == 0
    assert capsys.readouterr().out.endswith("7 statements, 7 agree, 0 differ\n")


@pytest.mark.parametrize(
    ("place", "verdict", "has"),
    [
        ((0x4030, 0, 0xFFF), "differs", "bits 12:0"),
        ((0x4030, 1, 0x1FFF), "differs", "no field from bit 1 on"),
        ((0xF000, 0, 0x1FFF), "not covered", "no register there"),
        ((0x4030, 0, 0x1000), "differs", "bits 12:0; the limit 0x1000 is not 2**n - 1"),
    ],
)
def test_what_does_not_agree_is_told(
    place: tuple[int, int, int],
    verdict: str,
    has: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = log(tmp_path, place)
    status = cli.main(["map", str(MAP), "--against", str(file), "--json"])
    row = json.loads(capsys.readouterr().out)
    assert (row["verdict"], row["map"], status) == (verdict, has, int(verdict == "differs"))


@pytest.mark.parametrize("arguments", [[], ["out.csv", "--against", "log.txt"]])
def test_one_of_both_is_asked(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["map", str(MAP), *arguments]) == 2
    said = capsys.readouterr().err
    assert said == "npulab: map: got OUT and --against, or neither, allowed is one of both\n"
    assert not [*tmp_path.iterdir()]


def test_a_log_without_a_statement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"compiler\.txt: got no statement about a field, allowed"):
        statements(log(tmp_path))


def read_damaged(numbers: range, folder: Path) -> int:
    """How many damaged logs were compared; the others are refused in one sentence."""
    rows = npulab.read_map(MAP).rows
    whole = log(folder, *[(*place, 0x1FFF) for place in PLACES]).read_bytes()
    read = 0
    for number in numbers:
        file = folder / "damaged.txt"
        file.write_bytes(fuzz_mutators.change_text(Random(f"stated:{number}"), whole))
        try:
            text = str(against(rows, statements(file)))
            read += 1
        except ValueError as error:
            said = str(error)
            assert not CONTROL.search(said), number
            assert len(said) < MOST_LETTERS, number
            assert said.startswith(str(file)), number
        else:
            assert " agree, " in text, number
    return read


def test_damaged_logs(tmp_path: Path) -> None:
    assert read_damaged(range(30), tmp_path)


@pytest.mark.long
def test_many_damaged_logs(tmp_path: Path) -> None:
    assert read_damaged(range(30, 3000), tmp_path) > 1000
