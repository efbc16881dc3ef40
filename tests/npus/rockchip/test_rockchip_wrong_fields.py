"""What the simulated device does with a wrong field, as the page says it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import shared
from wrong_fields import Wrong, check_row, rows_of, unnamed_reasons, wrong_rows

import npulab
from npulab.captures.capture import Capture
from npulab.captures.devices import Simulated


def ended(*tasks: int) -> Wrong:
    """The dump, whose records say that these tasks ended, and no other."""

    def change(capture: Capture) -> Capture:
        jobs = []
        for number, job in enumerate(capture.jobs):
            start = job.start
            assert start
            assert start.start
            task, maps = start.start, capture.maps["TASK"]
            values = maps.decode(task.words)
            values["interrupt_status"] = 256 * (number in tasks)
            record = task.with_words(maps.encode(values), maps)
            jobs.append(replace(job, start=replace(start, start=record)))
        return replace(capture, jobs=tuple(jobs))

    return Wrong(DUMP, {}, "other bytes", change=change)


CONV, OLDER, DUMP = "a convolution", "a convolution of RV1103", "the dump of a board"
ROWS = wrong_rows(Path(__file__).with_name("wrong_fields.csv"))
ROWS["a task record that says which tasks ended"] = (ended(0),)


@pytest.fixture(scope="module")
def goods() -> dict[str, Capture]:
    random = np.random.RandomState(0)
    weights = random.randint(-20, 20, (2, 3, 3, 4)).astype(np.int8)
    scales = [npulab.QuantParams(scale, 0) for scale in (0.02, 0.01, 0.05)]
    names = ("input_q", "weight_q", "output_q")
    layer = npulab.Conv2D(
        weights, np.array([30, -40]), (5, 5, 4), **dict(zip(names, scales, strict=True))
    )
    x = random.randint(-100, 100, (5, 5, 4)).astype(np.int8)
    lower = npulab.target("rockchip").lower
    return {
        CONV: Simulated().record(lower(layer, chip="rk3588", x=x)),
        OLDER: Simulated().record(lower(layer, chip="rv1103", x=x)),
        DUMP: Simulated().record(npulab.load(shared("data/rknpu/phhusson_dump-+2.txt.gz"))),
    }


@pytest.mark.parametrize("row", ROWS)
def test_the_device_does_what_the_page_says(row: str, goods: dict[str, Capture]) -> None:
    check_row("rockchip", row, goods, ROWS[row])


def test_each_row_of_the_page_is_tried() -> None:
    assert [*ROWS] == [*rows_of("rockchip")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [CONV, OLDER])
def test_no_field_hangs_for_a_reason_that_the_page_lacks(
    name: str, goods: dict[str, Capture]
) -> None:
    assert not unnamed_reasons(goods[name], ROWS)
