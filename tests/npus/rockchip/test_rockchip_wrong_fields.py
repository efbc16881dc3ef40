"""What the simulated device does with a wrong field, as the page says it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import shared
from wrong_fields import Wrong, check_row, rows_of, unnamed_reasons

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
ROWS = {
    "buffer banks, grains, DMA and prefetch, `PROC_PRECISION`, sizes per kernel, bits without a name": (
        Wrong(CONV, {"CNA.CBUF_CON0.DATA_BANK": 1, "CNA.CBUF_CON0.WEIGHT_BANK": 1}),
        Wrong(CONV, {"CNA.CBUF_CON1.DATA_ENTRIES": 1, "CNA.CONV_CON2.FEATURE_GRAINS": 1}),
        Wrong(CONV, {"CNA.WEIGHT_SIZE1.WEIGHT_BYTES_PER_KERNEL": 1}),
        Wrong(CONV, {"CNA.CONV_CON1.PROC_PRECISION": 3, "CORE.MISC_CFG.PROC_PRECISION": 3}),
    ),
    "sizes that the DPU and its readers have of their own": (
        Wrong(CONV, {"DPU.DATA_CUBE_WIDTH.WIDTH": 9, "DPU.DATA_CUBE_HEIGHT.HEIGHT": 9}),
        Wrong(CONV, {"CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL": 99}),
        Wrong(CONV, {"CNA.DATA_SIZE0.DATAIN_WIDTH": 3, "CNA.DATA_SIZE2.DATAOUT_WIDTH": 1}),
    ),
    "size, count or stride of 0": (
        Wrong(CONV, {"CNA.DATA_SIZE0.DATAIN_WIDTH": 0}, "hang", r"[A-Z0-9._]+ is 0"),
        Wrong(CONV, {"CNA.WEIGHT_SIZE2.WEIGHT_KERNELS": 0}, "hang", "WEIGHT_KERNELS is 0"),
        Wrong(CONV, {"CNA.CONV_CON3.CONV_X_STRIDE": 0}, "hang", "CONV_X_STRIDE is 0"),
    ),
    "mode of a convolution that the device does not have": (
        Wrong(
            CONV, {"CNA.CONV_CON1.CONV_MODE": 1}, "hang", r"the simulated unit knows [\d and]+ only"
        ),
        Wrong(CONV, {"CNA.CONV_CON1.DECONV": 1}, "hang", "DECONV is 1"),
        Wrong(CONV, {"CNA.CONV_CON1.IN_PRECISION": 1}, "hang", "IN_PRECISION is 1"),
        Wrong(CONV, {"DPU.BN_CFG.BN_BYPASS": 0}, "hang", "BN_BYPASS is 0"),
        Wrong(CONV, {"DPU.EW_CFG.EW_BYPASS": 0}, "hang", "EW_BYPASS is 0"),
    ),
    "precision of the output, mode of fp16 elements, a task that is neither": (
        Wrong(CONV, {"DPU.DATA_FORMAT.OUT_PRECISION": 1}, "refused", "OUT_PRECISION is 1"),
        Wrong(DUMP, {"DPU.FEATURE_MODE_CFG.TP_EN": 1}, "refused", "TP_EN is 1", 30),
        Wrong(DUMP, {"DPU.BS_CFG.BS_ALU_ALGO": 0}, "refused", "BS_ALU_ALGO is 0", 30),
        Wrong(DUMP, {"DPU.FEATURE_MODE_CFG.FLYING_MODE": 0}, "refused", "convolutions and ele", 30),
    ),
    "address or pitch of what is read": (
        Wrong(CONV, {"CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR": 0x40}, "hang", "^input: reads"),
        Wrong(CONV, {"CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0": 0x40}, "hang", "^weights: reads"),
        Wrong(CONV, {"DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR": 0x40}, "hang", "^biases: reads"),
        Wrong(
            DUMP, {"DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR": 0}, "hang", "^elements: reads", 30
        ),
        Wrong(CONV, {"CNA.DMA_CON1.LINE_STRIDE": 2000}, "hang", "^input: reads"),
        Wrong(CONV, {"CNA.DMA_CON1.LINE_STRIDE": 1}, "other bytes"),
    ),
    "address or pitch of the output": (
        Wrong(CONV, {"DPU.DST_BASE_ADDR.DST_BASE_ADDR": 0x40}, "other bytes"),
        Wrong(CONV, {"DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0": 5}, "other bytes"),
        Wrong(CONV, {"DPU.DST_SURF_STRIDE.DST_SURF_STRIDE": 1}, "ignored"),
    ),
    "weights that are fewer than kernels take, or kernels fewer than outputs": (
        Wrong(CONV, {"CNA.WEIGHT_SIZE0.WEIGHT_BYTES": 16}, "hang", "end before the kernels do"),
        Wrong(CONV, {"CNA.WEIGHT_SIZE2.WEIGHT_WIDTH": 5}, "hang", "end before the kernels do"),
        Wrong(CONV, {"CNA.WEIGHT_SIZE2.WEIGHT_KERNELS": 1}, "hang", "output channels of . kernels"),
        Wrong(OLDER, {"DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL": 2}, "hang", "3 output channels of 2"),
    ),
    "sizes of the output, fewer channels, smaller kernels, strides, dilations, padding": (
        Wrong(CONV, {"CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH": 0}, "other bytes"),
        Wrong(CONV, {"CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH": 6}, "other bytes"),
        Wrong(CONV, {"DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL": 0}, "other bytes"),
        Wrong(CONV, {"CNA.WEIGHT_SIZE2.WEIGHT_WIDTH": 2}, "other bytes"),
        Wrong(CONV, {"CNA.CONV_CON3.CONV_X_STRIDE": 2}, "other bytes"),
        Wrong(CONV, {"CNA.CONV_CON3.ATROUS_X_DILATION": 1}, "other bytes"),
        Wrong(CONV, {"CNA.PAD_CON0.PAD_TOP": 1}, "other bytes"),
    ),
    "biases, shares, ReLU, shift, scale and offset of the output": (
        Wrong(CONV, {"DPU.BS_CFG.BS_BYPASS": 1}, "other bytes"),
        Wrong(CONV, {"DPU.BS_CFG.BS_RELU_BYPASS": 0}, "other bytes"),
        Wrong(CONV, {"DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT": 3}, "other bytes"),
        Wrong(CONV, {"DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET": 3}, "other bytes"),
        Wrong(CONV, {"DPU.BS_OW_OP.OW_OP": 3}, "other bytes"),
        Wrong(CONV, {"DPU.DATA_FORMAT.OUT_PRECISION": 4}, "other bytes"),
        Wrong(CONV, {"CORE.CLIP_TRUNCATE.CLIP_TRUNCATE": 1}, "other bytes"),
        Wrong(DUMP, {"DPU.BS_ALU_CFG.BS_ALU_OPERAND": 0}, "other bytes", task=30),
    ),
    "tensors larger than the simulation allows": (
        Wrong(
            CONV,
            {"CNA.DATA_SIZE1.DATAIN_CHANNEL": 65535, "CNA.DATA_SIZE0.DATAIN_HEIGHT": 2047},
            "hang",
            "does not fit the simulated unit's",
        ),
        Wrong(
            CONV,
            {
                "DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0": 8191,
                "CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT": 2047,
            },
            "hang",
            "the output of .* bytes does not fit",
        ),
    ),
    "a task record that says which tasks ended": (ended(0),),
}


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
