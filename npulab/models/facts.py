"""The numbers of the ``.tflite`` format.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs, with shorter names of fields; the revisions are those of
tensorflow/lite/tools/versioning/op_version.cc, for 16-bit convolutions of tensorflow/lite/core/kernels/register.cc.
"""

from __future__ import annotations

IDENTIFIER, VERSION, ALIGNMENT = b"TFL3", 3, 16

# Fields of each table in the order of their slots, as name:type=default.  A type is a letter of struct, s a
# text, the name of a table, [a vector of these], or * the table whose kind the field before it tells.
TABLES = {
    "Model": "version:I codes:[OperatorCode] graphs:[SubGraph] description:s buffers:[Buffer]",
    "OperatorCode": "old_code:b custom:s version:i=1 code:i",
    "SubGraph": "tensors:[Tensor] inputs:[i] outputs:[i] operators:[Operator] name:s",
    "Tensor": "shape:[i] type:b buffer:I name:s quantization:Quantization",
    "Quantization": "min:[f] max:[f] scale:[f] zero_point:[q] details_type:B details:* axis:i",
    "Operator": "code:I inputs:[i] outputs:[i] options_type:B options:*",
    "Buffer": "data:[B] offset:Q size:Q",
    "Conv2DOptions": "padding:b stride_w:i stride_h:i activation:b dilation_w:i=1 dilation_h:i=1",
    "DepthwiseConv2DOptions":
        "padding:b stride_w:i stride_h:i multiplier:i activation:b dilation_w:i=1 dilation_h:i=1",
    "Pool2DOptions": "padding:b stride_w:i stride_h:i kernel_w:i kernel_h:i activation:b",
    "FullyConnectedOptions": "activation:b weights_format:b keep_num_dims:? asymmetric_quantize_inputs:?",
    "AddOptions": "activation:b pot_scale_int16:?=1",
    "CastOptions": "from:b to:b",
    "PadOptions": "", "PadV2Options": "", "DequantizeOptions": "", "NegOptions": "", "BitwiseXorOptions": ""}

# number of the operator, number and kind of its options
OPERATORS = {
    "ADD": (0, 11, "AddOptions"), "AVERAGE_POOL_2D": (1, 5, "Pool2DOptions"), "CONV_2D": (3, 1, "Conv2DOptions"),
    "DEPTHWISE_CONV_2D": (4, 2, "DepthwiseConv2DOptions"), "DEQUANTIZE": (6, 38, "DequantizeOptions"),
    "FULLY_CONNECTED": (9, 8, "FullyConnectedOptions"), "MAX_POOL_2D": (17, 5, "Pool2DOptions"),
    "PAD": (34, 22, "PadOptions"), "CAST": (53, 37, "CastOptions"), "NEG": (59, 42, "NegOptions"),
    "PADV2": (60, 43, "PadV2Options"), "BITWISE_XOR": (160, 125, "BitwiseXorOptions")}

# Revision of the operator by the type of its first input; "hybrid" where that is float32 and the weights are
# int8, "hybrid channels" where they have a scale each.  1 where nothing is said.
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

# Operators by number, so that a listing can name those that are not covered.
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
COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE"""

# Numbers from 0 again; an activation's name in this package beside the file's.
TYPES = ("float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64",
         "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4", "bfloat16")
# bits of an element where numpy has no such type
BITS = {"string": 0, "resource": 0, "variant": 0, "int4": 4, "bfloat16": 16}
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
FUSED = (None, "relu", "relu_n1_to_1", "relu6")
PADDINGS = ("same", "valid")
POOLS = {"average": "AVERAGE_POOL_2D", "max": "MAX_POOL_2D", "min": "MAX_POOL_2D"}
