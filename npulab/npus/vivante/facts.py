"""The tables beside this file, read once."""

from collections.abc import Mapping
from typing import Any

from npulab.npus.kit.facts import Facts
from npulab.registers.map import RegisterMap
from npulab.registers.table import read_table

# Driver quirks; unless a comment says otherwise they change what is sent and not what comes out.
# A stride 2 tile keeps an odd height (drivers of 2023; C:update4-vendor and -mesa); Mesa 25 makes
# it even.
ODD_STRIDE2_TILE = "odd-stride2-tile"
# The NN job comes without the jobs that move its tensors, as where each job is submitted by itself
# (C:update4-mesa).
NN_ALONE = "nn-job-alone"
# The layer's tensors lie in memory as H x W x C: a job before and one behind transposes them (Mesa,
# ends of a model).
HWC_TENSORS = "hwc-tensors"
# A border that is no "same" is made by a job of its own (Mesa: a model has a PAD operator there).
PAD_JOB = "pad-job"
# Mesa 25.0.7's windows of "same" layers, which for stride 2 depthwise layers of an odd width other
# than 5 (and some narrow ones) and for kernels past 6 are not where the layer's windows are.  Wrong
# results.
MESA_OFFSETS = "mesa-offsets"
# Mesa 25.0.7 splits the kernel of V7 stride 2 depthwise layers 6 and 7 wide, and not their input.
# Wrong results.
KERNEL_SPLIT_6_7 = "kernel-split-6-7"
# The model is int8, which decides the symbol map of V8.
INT8_MODEL = "int8-model"
FEATURES = (INT8_MODEL, ODD_STRIDE2_TILE, NN_ALONE, HWC_TENSORS, PAD_JOB, MESA_OFFSETS, KERNEL_SPLIT_6_7)

RING_OFF = 0x3FFFFFF  # of circular buffers that are not used (C:update4-vendor, Mesa 25)

FACTS = Facts.beside(__file__, {"NN": "nn.csv", "STATE": "states.csv", "TP": "tp.csv"},
                     sparse=("STATE",))
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
maps, EXPECTED = FACTS.maps, FACTS.expected()
PATTERNS = [tuple(int(row[name], 0) for name in ("channels", "msb", "low", "high"))
            for row in read_table(HERE / "patterns.csv")]
PRINTED = RegisterMap.read(HERE / "update4.csv")  # NN words by the names that update 4 prints


def expected(facts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The values that fields of a chip's NN job may have."""
    cases = ("layer", "v8" if facts.get("nn_v8") else "v7",
             *(() if facts.get("native_depthwise") else ("dense",)))
    return {field: allowed for case in cases for field, allowed in EXPECTED[case].items()}


def tensor_bytes(v: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of the input and output that the values of an NN job say."""
    return {"input": v["kernel_z_size"] * v["in_image_y_stride"] * v["in_image_x_stride"],
            "output": v["out_image_z_size"] * v["out_image_y_stride"] * v["out_image_x_stride"]}
