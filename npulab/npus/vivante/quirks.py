"""Properties in which drivers differ; a quirk changes what is sent and not the results, unless its
comment says otherwise."""

# A stride 2 tile keeps an odd height (drivers of 2023; C:update4-vendor and -mesa); Mesa 25 makes
# it even.
ODD_STRIDE2_TILE = "odd-stride2-tile"
# The NN job comes without the jobs that move its tensors: each job is submitted by itself
# (C:update4-mesa).
NN_ALONE = "nn-job-alone"
# The layer's tensors lie in memory as H x W x C: a job before and a job after transposes them
# (Mesa, ends of a model).
HWC_TENSORS = "hwc-tensors"
# A border that is not "same" is made by a job of its own (Mesa: a model has a PAD operator there).
PAD_JOB = "pad-job"
# Mesa 25.0.7 gives "same" layers other windows than theirs, if they are stride 2 depthwise layers
# of an odd width other than 5 (and some narrow ones) or have kernels larger than 6. Wrong results.
MESA_OFFSETS = "mesa-offsets"
# Mesa 25.0.7 splits the kernel of V7 stride 2 depthwise layers 6 and 7 wide, but not their input.
# Wrong results.
KERNEL_SPLIT_6_7 = "kernel-split-6-7"
# The job is that of VeriSilicon's compiler and not Mesa's (`lower(..., dialect="vendor")`): rings,
# other marks in the words and, on V7, square kernels and other coefficient streams.
VENDOR_DIALECT = "vendor-dialect"
# The model is int8, which decides the symbol map of V8.
INT8_MODEL = "int8-model"
FEATURES = (
    INT8_MODEL,
    ODD_STRIDE2_TILE,
    NN_ALONE,
    HWC_TENSORS,
    PAD_JOB,
    MESA_OFFSETS,
    KERNEL_SPLIT_6_7,
    VENDOR_DIALECT,
)
# What the vendor's compiler is known to do too.
VENDOR_FEATURES = (INT8_MODEL, NN_ALONE, VENDOR_DIALECT)
