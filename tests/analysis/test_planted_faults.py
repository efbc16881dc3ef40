"""Faults planted in layers of the NPUs that simulate: the right explanation is named, a right output
gets none, and two faults at once are not called one.
"""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import CAPTURES
from planted_faults import ABSENT, FAULTS, NPUS, answer, planted

import npulab
from npulab.analysis.checks import explained, nearby
from npulab.analysis.mismatch import words

# The search was made with the layers 0 to 19; these are others.
JUDGES = range(1000, 1020)
ONE_EACH = [
    ("vivante", "shift"),
    ("rockchip", "weight"),
    ("onert", "zero point"),
    ("ane", "weight"),
    ("nvdla", "channels"),
    ("rockchip", "stride"),
    ("vivante", "padding"),
]


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few fields are tried."""
    monkeypatch.setattr(words, "WORK", 0)
    monkeypatch.setattr(words, "FEWEST", 20)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("npu", "fault"), ONE_EACH)
def test_a_fault_is_named(npu: str, fault: str, briefly: None) -> None:
    assert answer(planted(npu, (fault,), 500)).outcome in ("first", "tied")


@pytest.mark.parametrize("npu", NPUS)
def test_a_right_output_is_not_explained(npu: str, briefly: None) -> None:
    assert answer(planted(npu, (), 500)).outcome == "silent"


def test_two_faults_are_more_than_one(briefly: None) -> None:
    wrong = planted("rockchip", ("shift", "weight"), 500)
    found = answer(wrong)
    assert (found.outcome, found.both) == ("more", True)
    checked = npulab.check(wrong.capture)
    lines = explained(checked, nearby(checked, iter))
    assert "  no single change explains it: it takes more than one" in lines


@pytest.mark.long
@pytest.mark.parametrize("npu", NPUS)
def test_faults_are_named_in_layers_that_were_not_looked_at(npu: str) -> None:
    """In 95 of 100; of two faults at once none is called one."""
    outcomes: Counter[str] = Counter()
    for fault in FAULTS:
        for number in JUDGES:
            if (npu, fault) not in ABSENT:
                outcomes[answer(planted(npu, (fault,), number)).outcome] += 1
    assert outcomes["first"] + outcomes["tied"] >= 0.95 * outcomes.total()
    for number in JUDGES:
        assert answer(planted(npu, (), number)).outcome == "silent"
        two = answer(planted(npu, ("weight", "channels"), number))
        assert two.outcome == "more"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("case", "name", "step"),
    [
        ("sim-max-pool", "D_POOLING_PADDING_CFG.PAD_LEFT", 1),
        ("sim-average-pool", "PDP.D_POOLING_KERNEL_CFG.KERNEL_STRIDE_WIDTH", -1),
        ("sim-add", "BN_ALU_OPERAND", 1),
        pytest.param("sim-3x3-same", "CVT_SHIFT", 1, marks=pytest.mark.long),
    ],
)
def test_a_field_is_named(case: str, name: str, step: int) -> None:
    good = npulab.load(CAPTURES / "nvdla" / case)
    value = int(good.values[name])
    output = npulab.target("nvdla").simulate(good.with_fields(**{name: value + step}))
    wrong = npulab.check(good.with_buffers(output=output))
    found = npulab.hypotheses(wrong)
    said = f"{name} {value + step}, not {value} (simulated)"
    (row,) = found[found.change == said].itertuples()
    assert (row.kind, row.mismatches, row.equal) == ("field", 0, True)
    assert f"equal with: {said}" in " ".join(explained(wrong, found))
