"""Coefficients of Ethos-U where the jobs of a layer read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from ethosu_streams import CHIPS, RECORDS, WEIGHTS, by_hand, compiler
from refusals import refused

from npulab.captures.layers import made
from npulab.models.write import single_op_model
from npulab.npus.ethosu.coefficients import Records, recode, weights_and_records
from npulab.npus.ethosu.operations import operations


def test_jobs_of_one_layer_have_its_weights() -> None:
    capture = by_hand()
    (operation,) = operations(capture)
    assert (operation.tasks, operation.slices) == ((0, 2), [8, 4])
    weights, records = weights_and_records(capture, operation)
    assert np.array_equal(weights, WEIGHTS)
    assert all(np.array_equal(one, other) for one, other in zip(records, RECORDS, strict=True))
    assert recode(capture) == capture.buffers["coefficients"]


def test_records_come_back() -> None:
    again = Records.of(RECORDS.encoded())
    assert all(np.array_equal(one, other) for one, other in zip(again, RECORDS, strict=True))
    low = Records(np.array([-(2**39), 2**39 - 1]), np.array([2**32 - 1, 0]), np.array([63, 0]))
    assert [one.tolist() for one in Records.of(low.encoded())] == [one.tolist() for one in low]


def test_coefficients_that_nobody_moved_are_refused() -> None:
    capture = by_hand()
    refused(
        lambda: recode(replace(capture, jobs=(capture.jobs[0], capture.jobs[2]))),
        "bytes of coefficients at 0x40",
        "of region 1, allowed are bytes that a DMA job before this task moved",
    )


def test_weights_of_one_core_are_those_of_two(tmp_path: Path) -> None:
    parameters = {
        "input_h": 9,
        "input_w": 8,
        "input_c": 19,
        "output_c": 29,
        "kernel_h": 3,
        "kernel_w": 2,
        "stride_h": 1,
        "stride_w": 1,
        "input_scale": 0.02,
        "weight_scale": 0.01,
        "output_scale": 0.05,
    }
    layer, _ = made(parameters, 23, "int8")
    found = []
    for chip in CHIPS:
        capture = compiler(tmp_path)(single_op_model(layer), chip)
        (operation,) = operations(capture)[:1]
        found.append(weights_and_records(capture, operation))
        assert recode(capture) == capture.buffers["coefficients"]
    assert np.array_equal(found[0][0], layer.weights)
    assert np.array_equal(found[0][1].bias, layer.bias)
    for weights, records in found[1:]:
        assert np.array_equal(weights, found[0][0])
        assert all(
            np.array_equal(one, other) for one, other in zip(records, found[0][1], strict=True)
        )
