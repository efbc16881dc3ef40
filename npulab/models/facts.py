"""The numbers of the ``.tflite`` format, and of ``.circle``, which adds to it.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs, with shorter names of fields; the revisions
are those of tensorflow/lite/tools/versioning/op_version.cc, for 16-bit convolutions of
tensorflow/lite/core/kernels/register.cc. Circle:
Samsung/ONE:res/CircleSchema/0.10/circle_schema.fbs.
"""

from __future__ import annotations

# identifier and version by form
FORMS = {"tflite": (b"TFL3", 3), "circle": (b"CIR0", 0)}
ALIGNMENT = 16

# Fields of each table in the order of their slots, as name:type=default.  A type is a letter of
# struct, s a text, the name of a table, [a vector of these], or * the table whose kind the field
# before it tells.
TABLES = {
    "Model": "version:I codes:[OperatorCode] graphs:[SubGraph] description:s buffers:[Buffer] metadata_buffers:[i] "
             "metadata:[Metadata] signatures:[SignatureDef]",
    "Metadata": "name:s buffer:I",
    "SignatureDef": "inputs:[TensorMap] outputs:[TensorMap] key:s tag:s graph:I",
    "TensorMap": "name:s tensor:I",
    "OperatorCode": "old_code:b custom:s version:i=1 code:i",
    "SubGraph": "tensors:[Tensor] inputs:[i] outputs:[i] operators:[Operator] name:s",
    "Tensor": "shape:[i] type:b buffer:I name:s quantization:Quantization variable:? sparsity:* signature:[i]",
    "Quantization": "min:[f] max:[f] scale:[f] zero_point:[q] details_type:B details:* axis:i",
    "Operator": "code:I inputs:[i] outputs:[i] options_type:B options:* custom:[B] custom_format:b mutating:[?] "
                "intermediates:[i]",
    "Buffer": "data:[B] offset:Q size:Q",
    "Conv2DOptions": "padding:b stride_w:i stride_h:i activation:b dilation_w:i=1 dilation_h:i=1",
    "DepthwiseConv2DOptions":
        "padding:b stride_w:i stride_h:i multiplier:i activation:b dilation_w:i=1 dilation_h:i=1",
    "Pool2DOptions": "padding:b stride_w:i stride_h:i kernel_w:i kernel_h:i activation:b",
    "FullyConnectedOptions": "activation:b weights_format:b keep_num_dims:? asymmetric_quantize_inputs:?",
    "AddOptions": "activation:b pot_scale_int16:?=1",
    "MulOptions": "activation:b",
    "ConcatenationOptions": "axis:i activation:b",
    "TransposeConvOptions": "padding:b stride_w:i stride_h:i activation:b",
    "Conv3DOptions": "padding:b stride_d:i stride_w:i stride_h:i activation:b dilation_d:i=1 dilation_w:i=1 "
                     "dilation_h:i=1",
    "SVDFOptions": "rank:i activation:b asymmetric_quantize_inputs:?",
    "RNNOptions": "activation:b asymmetric_quantize_inputs:?",
    "SequenceRNNOptions": "time_major:? activation:b asymmetric_quantize_inputs:?",
    "BidirectionalSequenceRNNOptions": "time_major:? activation:b merge_outputs:? asymmetric_quantize_inputs:?",
    "LSTMOptions": "activation:b cell_clip:f proj_clip:f kernel_type:b asymmetric_quantize_inputs:?",
    "UnidirectionalSequenceLSTMOptions":
        "activation:b cell_clip:f proj_clip:f time_major:? asymmetric_quantize_inputs:? diagonal_recurrent_tensors:?",
    "BidirectionalSequenceLSTMOptions":
        "activation:b cell_clip:f proj_clip:f merge_outputs:? time_major:?=1 asymmetric_quantize_inputs:?",
    "StridedSliceOptions": "begin_mask:i end_mask:i ellipsis_mask:i new_axis_mask:i shrink_axis_mask:i offset:?",
    "IfOptions": "then_graph:i else_graph:i", "WhileOptions": "condition_graph:i body_graph:i",
    "CallOnceOptions": "graph:i",
    "BCQGatherOptions": "input_hidden_size:i axis:i",
    "BCQFullyConnectedOptions": "weights_hidden_size:i activation:b",
    "NormOptions": "epsilon:f activation:b",
    "GRUOptions": "activation:b return_sequences:? time_major:?",
    "CastOptions": "from:b to:b",
    "ReshapeOptions": "new_shape:[i]", "SoftmaxOptions": "beta:f", "ReducerOptions": "keep_dims:?",
    "LeakyReluOptions": "alpha:f", "SqueezeOptions": "squeeze_dims:[i]", "SplitOptions": "num_splits:i",
    "SplitVOptions": "num_splits:i", "PackOptions": "values_count:i axis:i", "UnpackOptions": "num:i axis:i",
    # new_height and new_width are deprecated: the size is a tensor
    "ResizeBilinearOptions": "new_height:i new_width:i align_corners:? half_pixel_centers:?",
    "ResizeNearestNeighborOptions": "align_corners:? half_pixel_centers:?",
    "PadOptions": "", "PadV2Options": "", "DequantizeOptions": "", "NegOptions": "", "BitwiseXorOptions": "",
    "ArgMaxOptions": "output_type:b", "TransposeOptions": "", "MaximumMinimumOptions": "", "SliceOptions": "",
    "ExpandDimsOptions": "", "QuantizeOptions": "", "HardSwishOptions": ""}

# number of the operator, number and kind of its options
OPERATORS = {
    "ADD": (0, 11, "AddOptions"), "AVERAGE_POOL_2D": (1, 5, "Pool2DOptions"), "CONV_2D": (3, 1, "Conv2DOptions"),
    "DEPTHWISE_CONV_2D": (4, 2, "DepthwiseConv2DOptions"), "DEQUANTIZE": (6, 38, "DequantizeOptions"),
    "FULLY_CONNECTED": (9, 8, "FullyConnectedOptions"), "MAX_POOL_2D": (17, 5, "Pool2DOptions"),
    "PAD": (34, 22, "PadOptions"), "CAST": (53, 37, "CastOptions"), "NEG": (59, 42, "NegOptions"),
    "PADV2": (60, 43, "PadV2Options"), "BITWISE_XOR": (160, 125, "BitwiseXorOptions")}
# Those of the kinds of npulab.quant.layers.operation that are not in the two tables beside.
TENSORS = {
    "ARG_MAX": (56, 40, "ArgMaxOptions"), "SOFTMAX": (25, 9, "SoftmaxOptions"),
    "RESHAPE": (22, 17, "ReshapeOptions"), "MEAN": (40, 27, "ReducerOptions"),
    "SQUEEZE": (43, 30, "SqueezeOptions"), "SPLIT": (49, 35, "SplitOptions"), "SPLIT_V": (102, 79, "SplitVOptions"),
    "PACK": (83, 59, "PackOptions"), "UNPACK": (88, 64, "UnpackOptions"), "TRANSPOSE": (39, 26, "TransposeOptions"),
    "MAXIMUM": (55, 39, "MaximumMinimumOptions"), "MINIMUM": (57, 39, "MaximumMinimumOptions"),
    "SLICE": (65, 48, "SliceOptions"), "EXPAND_DIMS": (70, 52, "ExpandDimsOptions"),
    "LEAKY_RELU": (98, 75, "LeakyReluOptions"), "QUANTIZE": (114, 89, "QuantizeOptions"),
    "HARD_SWISH": (117, 91, "HardSwishOptions"), "RESIZE_BILINEAR": (23, 15, "ResizeBilinearOptions"),
    "RESIZE_NEAREST_NEIGHBOR": (97, 74, "ResizeNearestNeighborOptions")}
# Those that are part of no layer, whose activation, masks or graphs are part of a listing; others,
# and options of another number, as old files have some, are listed without options.
LISTED = {
    "CONCATENATION": (2, 10, "ConcatenationOptions"), "L2_NORMALIZATION": (11, 12, "MulOptions"),
    "L2_POOL_2D": (12, 5, "Pool2DOptions"), "LSTM": (16, 14, "LSTMOptions"), "MUL": (18, 21, "MulOptions"),
    "RNN": (24, 7, "RNNOptions"), "SVDF": (27, 6, "SVDFOptions"),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (35, 31, "SequenceRNNOptions"), "SUB": (41, 28, "AddOptions"),
    "DIV": (42, 29, "MulOptions"),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (44, 71, "UnidirectionalSequenceLSTMOptions"),
    "STRIDED_SLICE": (45, 32, "StridedSliceOptions"),
    "BIDIRECTIONAL_SEQUENCE_RNN": (46, 70, "BidirectionalSequenceRNNOptions"),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (52, 69, "BidirectionalSequenceLSTMOptions"),
    "TRANSPOSE_CONV": (67, 49, "TransposeConvOptions"), "IF": (118, 92, "IfOptions"),
    "WHILE": (119, 93, "WhileOptions"), "CALL_ONCE": (129, 103, "CallOnceOptions"),
    "CONV_3D": (132, 106, "Conv3DOptions"), "CONV_3D_TRANSPOSE": (141, 106, "Conv3DOptions"),
    "INSTANCE_NORM": (-2, 254, "NormOptions"), "BCQ_FULLY_CONNECTED": (-3, 253, "BCQFullyConnectedOptions"),
    "BCQ_GATHER": (-4, 252, "BCQGatherOptions"), "GRU": (-5, 251, "GRUOptions"), "RMS_NORM": (-6, 250, "NormOptions")}

# Revision of the operator by the type of its first input; "hybrid" where that is float32 and the
# weights are int8, "hybrid channels" where they have a scale each.  1 where nothing is said.
REVISIONS = {
    "ADD": {"int8": 2, "int16": 3},
    "AVERAGE_POOL_2D": {"int8": 2, "int16": 3},
    "MAX_POOL_2D": {"int8": 2, "int16": 3},
    "CONV_2D": {"int8": 3, "int16": 4, "hybrid": 2, "hybrid channels": 5},
    "DEPTHWISE_CONV_2D": {"uint8": 2, "int8": 3, "int16": 5, "float32": 2, "hybrid": 4, "hybrid channels": 6},
    "FULLY_CONNECTED": {"int8": 4, "int16": 7, "hybrid": 3, "hybrid channels": 12},
    "PAD": {"int8": 2, "int16": 3},
    "PADV2": {"int8": 2, "int16": 3},
    "DEQUANTIZE": {"float16": 3},
    "CAST": {"float32": 5}}

# Operators by number from 0, so that a listing can name those that are not covered.
NAMES = """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP
FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF
TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE
EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR
ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE
RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND
COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE
BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1
UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR
RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE
STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE
STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL
STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER
STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE
STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA
STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE
DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT
STABLEHLO_CASE"""
CUSTOM, GREATER = "CUSTOM", 127  # the number that stands in the older byte for every one that is greater
# circle's own, from -2 downwards; its first files had their numbers as bytes without a sign: 254,
# 253, ...
CIRCLE_NAMES = ("INSTANCE_NORM", "BCQ_FULLY_CONNECTED", "BCQ_GATHER", "GRU", "RMS_NORM", "ROPE", "RUN_MODEL")

# Numbers from 0 again; circle has the last of them in numbers of its own, from -1 downwards.
TYPES = ("float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64",
         "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4", "bfloat16", "int2", "uint4",
         "float8_e4m3fn", "float8_e5m2")
CIRCLE_TYPES = ("uint4", "ggml_q4_0", "ggml_q4_1", "ggml_q8_0", "ggml_q8_1", "mxfp4", "mxint8")
# Bits of 32 elements where numpy has no such type.  Source of the blocks of 32:
# ggerganov/ggml:src/ggml-common.h, OCP Microscaling Formats 1.0 (each has a scale, of 16 bits in
# ggml, of 8 in MX).
BITS = {"string": 0, "resource": 0, "variant": 0, "int2": 64, "int4": 128, "uint4": 128, "bfloat16": 512,
        "float8_e4m3fn": 256, "float8_e5m2": 256, "ggml_q4_0": 144, "ggml_q4_1": 160, "ggml_q8_0": 272,
        "ggml_q8_1": 288, "mxfp4": 136, "mxint8": 264}
PACKED = ("int2", "int4", "uint4")  # codes below 8 bits, one after the other
# an activation's name in the file, and in this package
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
FUSED = (None, "relu", "relu_n1_to_1", "relu6")
PADDINGS = ("same", "valid")
POOLS = {"average": "AVERAGE_POOL_2D", "max": "MAX_POOL_2D", "min": "MAX_POOL_2D"}
