"""Rows of a table that give the numbers of fields."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from npulab.npus.kit.facts import Facts
from npulab.npus.kit.rows import numbers_of, read_rows

TABLE = """when,field,number,unit,note
,A.w0.size,tensor.size,64,a size
# a comment
wide,A.w0.mode,0x10,,
wide second,A.w0.other,3,,
,A.w0.lost,nothing,,
,A.w0.bit,wide,,
"""


def rows_of(folder: Path, **subject: object) -> dict[str, int]:
    (folder / "rows.csv").write_text(TABLE)
    return {
        row.field: number
        for row, number in numbers_of(
            read_rows(folder / "rows.csv"), SimpleNamespace(nothing=None, **subject)
        )
    }


def test_rows_apply_if_all_that_they_name_is_true(tmp_path: Path) -> None:
    tensor = SimpleNamespace(size=128)
    assert rows_of(tmp_path, tensor=tensor, wide=True, second=False) == {
        "A.w0.size": 2,
        "A.w0.mode": 16,
        "A.w0.bit": 1,
    }
    assert rows_of(tmp_path, tensor=tensor, wide=False, second=True) == {
        "A.w0.size": 2,
        "A.w0.bit": 0,
    }


def test_numbers_that_are_none_or_no_multiple_of_the_unit_are_left_out(tmp_path: Path) -> None:
    assert rows_of(tmp_path, tensor=SimpleNamespace(size=100), wide=True, second=True) == {
        "A.w0.mode": 16,
        "A.w0.other": 3,
        "A.w0.bit": 1,
    }


def test_expected_values_are_by_case_and_field(tmp_path: Path) -> None:
    (tmp_path / "expected.csv").write_text(
        "when,field,allowed,note\ntask,A.w0.mode,0 0x10,\nother,A.w0.mode,1,\n"
    )
    facts = Facts(tmp_path, {}, "", {})
    assert facts.expected() == {"task": {"A.w0.mode": (0, 16)}, "other": {"A.w0.mode": (1,)}}
