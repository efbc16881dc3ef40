"""What the simulated device does with a wrong field, as the page says it."""

from __future__ import annotations

import pytest
from conftest import CAPTURES
from wrong_fields import Wrong, check_row, rows_of, unnamed_reasons

import npulab
from npulab.captures.capture import Capture

CONV, DEPTHWISE, ADD, TANH, CONCAT = (
    "sim-3x3-same",
    "sim-3x3-depthwise",
    "sim-add",
    "sim-tanh",
    "sim-concat",
)
WIDE = {"Common.InDim.Hin": 32767, "Common.InDim.Win": 32767}
TALL = {"Common.OutDim.Hout": 32767, "Common.ConvCfg.Sy": 3}
ROWS = {
    "events, priorities, cache hints, tiles and patches, places and strides in L2, `InFmt` and `OutFmt`, interleaving, bits without a name": (
        Wrong(CONV, {"Header.Header[6].NextPriority": 1, "Common.TileCfg.TileHeight": 1}),
        Wrong(CONV, {"Common.ChCfg.InFmt": 0, "Common.ChCfg.OutFmt": 0}),
        Wrong(CONV, {"TileDMASrc.Fmt.Interleave": 0, "L2.SourceRowStride.Stride": 16}),
        Wrong(ADD, {"Common.PECfg.Src2Broadcast": 1}),
    ),
    "biases and shifts of the accumulator, matrix bias": (
        Wrong(CONV, {"NE.AccBias.AccBias": 4, "NE.PostScale.PostRightShift": 1}),
        Wrong(CONV, {"NE.MACCfg.MatrixBiasEn": 1}),
    ),
    "number of engines": (
        Wrong(CONV, {"Common.Cfg.ActiveNE": 0}),
        Wrong(CONV, {"Common.Cfg.ActiveNE": 7}, "hang", r"\d+ engines, there are 16"),
    ),
    "size, kernel or stride of 0": (
        Wrong(CONV, {"Common.OutDim.Wout": 0}, "hang", "a size is 0"),
        Wrong(CONV, {"Common.ConvCfg.Kw": 0}, "hang", "a kernel or stride is 0"),
    ),
    "base address that is not valid, or that has no buffer": (
        Wrong(CONV, {"Header.Header[8].RBE0": 0}, "hang", "Base0? is not valid"),
        Wrong(CONV, {"Header.Header[8].WBE": 0}, "hang", "WBase is not valid"),
        Wrong(CONV, {"Header.Header[8].RBase0": 9}, "hang", "base 9 is read, and nothing"),
        Wrong(
            ADD, {"Header.Header[8].RBase1": 31}, "hang", "base .* is read, and nothing is there"
        ),
        Wrong(CONV, {"Header.Header[9].KBE0": 0}, "hang", "coefficients are read to byte"),
    ),
    "base address of the result": (
        Wrong(CONV, {"Header.Header[8].WBase": 9}, "ignored"),
        Wrong(CONCAT, {"Header.Header[8].WBase": 9}, "other bytes", task=0),
    ),
    "pitch or address inside a buffer's base": (
        Wrong(CONV, {"TileDMASrc.RowStride.Stride": 0}, "other bytes"),
        Wrong(CONV, {"TileDMADst.RowStride.RowStride": 0}, "other bytes"),
        Wrong(CONV, {"Common.Cin.Cin": 400}, "hang", "base . is read at byte"),
        Wrong(CONV, {"TileDMADst.PlaneStride.PlaneStride": 2**20}, "hang", "written at byte"),
    ),
    "streams of the engines that are off, too short, or elsewhere": (
        Wrong(CONV, {"KernelDMASrc.CoeffDMAConfig[1].En": 0}, "hang", "its stream is off"),
        Wrong(CONV, {"KernelDMASrc.CoeffBfrSize[0].MemBfrSize": 0}, "hang", "its stream has"),
        Wrong(CONV, {"KernelDMASrc.CoeffBaseAddr[1].Addr": 2**20}, "hang", "are read to byte"),
        Wrong(CONV, {"KernelDMASrc.CoeffBaseAddr[1].Addr": 0}, "other bytes"),
        Wrong(CONV, {"NE.KernelCfg.SparseFmt": 1}, "hang", "masks and weights end at byte"),
        Wrong(TANH, {"KernelDMASrc.CoeffDMAConfig[0].En": 0}, "hang", "waits for its table"),
    ),
    "kernel, strides, channels, padding, biases on": (
        Wrong(CONV, {"Common.ConvCfg.Kw": 1}, "other bytes"),
        Wrong(CONV, {"Common.ConvCfg.Px": 0}, "other bytes"),
        Wrong(CONV, {"Common.Cout.Cout": 1}, "other bytes"),
        Wrong(CONV, {"Common.ConvCfg.OCGSize": 0}, "other bytes"),
        Wrong(CONV, {"NE.MACCfg.BiasMode": 0}, "other bytes"),
        Wrong(CONV, {"Common.ConvCfg.Sx": 2}, "hang", "waits for .* bytes of coefficients"),
    ),
    "sizes of source and result that disagree": (
        Wrong(ADD, {"Common.OutDim.Hout": 3}, "hang", "its output is .* its sources give"),
        Wrong(CONV, {"NE.MACCfg.OpMode": 4}, "hang", "output of a bypass is not as large"),
        Wrong(DEPTHWISE, {"Common.Cout.Cout": 3}, "hang", "has other outputs than inputs"),
    ),
    "source in L2 or from the task before, where none was left; a result that goes nowhere": (
        Wrong(CONV, {"L2.SourceCfg.SourceType": 3}, "hang", "task before, which hands on nothing"),
        Wrong(CONV, {"L2.SourceCfg.SourceType": 0}, "hang", "where no task left anything"),
        Wrong(ADD, {"Header.Header[8].RBE1": 0}, "hang", "where no task left anything"),
        Wrong(CONV, {"L2.ResultCfg.ResultType": 0}, "hang", "no task writes to memory"),
    ),
    "type of a task, depth, formats in memory and of kernels, modes and operations that are not known": (
        Wrong(CONV, {"Common.Cfg.TaskType": 1}, "refused", r": got \d+, known is"),
        Wrong(CONV, {"Common.InDepth.Din": 2}, "refused", "Din: got 2"),
        Wrong(CONV, {"TileDMASrc.Fmt.MemFmt": 1}, "refused", "MemFmt: got 1"),
        Wrong(CONV, {"NE.KernelCfg.PalettizedEn": 1}, "refused", "PalettizedEn: got 1"),
        Wrong(CONV, {"Common.ConvCfg.Oy": 2}, "refused", "Oy: got 2"),
        Wrong(ADD, {"PE.Cfg.PoolMode": 1}, "refused", "PoolMode: got 1"),
        Wrong(DEPTHWISE, {"Common.GroupConvCfg.NumGroups": 2}, "refused", "channelwise layer"),
    ),
    "scales and biases after the sums, activation, planar operation, second source's sign": (
        Wrong(CONV, {"NE.PostScale.PostScale": 0}, "other bytes"),
        Wrong(CONV, {"NE.MACCfg.NonlinearMode": 1}, "other bytes"),
        Wrong(TANH, {"NE.MACCfg.NonlinearMode": 0}, "other bytes"),
        Wrong(ADD, {"PE.Cfg.OpMode": 1}, "other bytes"),
        Wrong(ADD, {"PE.Cfg.SecSrc": 3}, "other bytes"),
        Wrong(ADD, {"PE.PreScale.PreScale": 0}, "other bytes"),
    ),
    "tensors larger than the simulation allows": (
        Wrong(CONV, WIDE, "hang", "is more than the device holds"),
        Wrong(CONV, TALL, "hang", "past what rows and columns can be counted with"),
    ),
}


@pytest.fixture(scope="module")
def goods() -> dict[str, Capture]:
    names = (CONV, DEPTHWISE, ADD, TANH, CONCAT)
    return {name: npulab.load(CAPTURES / "ane" / name) for name in names}


@pytest.mark.parametrize("row", ROWS)
def test_the_device_does_what_the_page_says(row: str, goods: dict[str, Capture]) -> None:
    check_row("ane", row, goods, ROWS[row])


def test_each_row_of_the_page_is_tried() -> None:
    assert [*ROWS] == [*rows_of("ane")]


@pytest.mark.parametrize(
    "name",
    [
        ADD,
        pytest.param(CONV, marks=pytest.mark.long),
        pytest.param(DEPTHWISE, marks=pytest.mark.long),
        pytest.param(TANH, marks=pytest.mark.long),
    ],
)
def test_no_field_hangs_for_a_reason_that_the_page_lacks(
    name: str, goods: dict[str, Capture]
) -> None:
    assert not unnamed_reasons(goods[name], ROWS)
