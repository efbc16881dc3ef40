"""Properties in which drivers differ; a quirk changes what is sent and not the results, unless its
comment says otherwise."""

# The output tile of a stride 2 layer may have an odd number of rows (drivers of 2023;
# C:update4-vendor and -mesa). Mesa 25 makes the number even.
ODD_STRIDE2_TILE = "odd-stride2-tile"
# A capture has the NN job without the jobs that move its tensors, because the driver submits each
# job by itself (C:update4-mesa).
NN_ALONE = "nn-job-alone"
# The layer's input and output lie in memory as H x W x C, so a job before the NN job and a job
# after it transpose them (Mesa, first and last layer of a model).
HWC_TENSORS = "hwc-tensors"
# A separate job adds a border that is not "same" (Mesa: the model has a PAD operator for it).
PAD_JOB = "pad-job"
# Mesa 25.0.7 starts the windows of some "same" layers at a wrong row and column, so their results
# are wrong: stride 2 depthwise layers of an odd width other than 5, some narrow layers, and kernels
# larger than 6.
MESA_OFFSETS = "mesa-offsets"
# Mesa 25.0.7 on V7: for stride 2 depthwise layers whose input has 6 or 7 columns, the kernel is
# split into four planes but the input is not, so the results are wrong.
KERNEL_SPLIT_6_7 = "kernel-split-6-7"
# The job is that of VeriSilicon's compiler instead of Mesa's (`lower(..., dialect="vendor")`): it
# has rings (memory ranges of tensors), other marks and, on V7, square kernels and other coefficient
# streams.
VENDOR_DIALECT = "vendor-dialect"
# The model is int8; on V8 this decides the bit length that each Huffman symbol stands for.
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
# The quirks that jobs of the vendor's compiler may have.
VENDOR_FEATURES = (INT8_MODEL, NN_ALONE, VENDOR_DIALECT)
