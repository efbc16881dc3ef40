"""Each NPU with a simulated device says on its page what a wrong field does, and how that is known."""

from __future__ import annotations

import pytest
from wrong_fields import HEAD, PAGES, rows_of

DEVICES = sorted(path.parent.name for path in PAGES.glob("*/simulate.py"))


def test_there_are_devices() -> None:
    assert DEVICES == ["ane", "nvdla", "onert", "rockchip", "vivante"]


@pytest.mark.parametrize("npu", DEVICES)
def test_the_page_has_the_table(npu: str) -> None:
    rows = rows_of(npu)
    assert len(rows) > 3
    for does, known in rows.values():
        assert does
        assert known


def test_a_new_npu_has_the_section() -> None:
    text = (PAGES / "template" / "files" / "README.md.txt").read_text(encoding="utf-8")
    assert HEAD in text
    assert "| what is wrong | the simulated device | how that is known |" in text
