"""The numbers of the ``.tflite`` format, and of ``.circle``, which adds to it.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs; some fields have shorter names here. The
revisions of operators are those of tensorflow/lite/tools/versioning/op_version.cc, those of 16-bit
convolutions of tensorflow/lite/core/kernels/register.cc. Source of circle:
Samsung/ONE:res/CircleSchema/0.10/circle_schema.fbs.
"""

from __future__ import annotations

from pathlib import Path

from npulab.support.files import read_table

# identifier (bytes 4 to 7 of a file) and version of each form
FORMS = {"tflite": (b"TFL3", 3), "circle": (b"CIR0", 0)}
ALIGNMENT = 16  # bytes; the data of a buffer begins at a multiple of this
HERE = Path(__file__).parent


# Fields of each table in the order of their slots, as name:type=default. A type is a letter of
# struct, s for a text, the name of a table, or * for a table whose kind the field before it states;
# [x] is a vector of x. The height and width in ResizeBilinearOptions are deprecated: there the
# size is a tensor.
TABLES = {row["table"]: row["fields"] for row in read_table(HERE / "tables.csv")}

_OPERATORS = read_table(HERE / "operators.csv")
# Names of operators by number from 0, so that a listing can also name operators that npulab does
# not read; circle's own operators are numbered from -2 downwards (its first files stored these
# numbers as bytes without a sign: 254, 253, ...).
NAMES = tuple(row["name"] for row in _OPERATORS if int(row["number"]) >= 0)
CIRCLE_NAMES = tuple(row["name"] for row in _OPERATORS if int(row["number"]) < 0)


def _used(use: str) -> dict[str, tuple[int, int, str]]:
    """For each operator whose column ``use`` has this value: (number of the operator, number of the
    type of its options, kind of the options)."""
    return {
        row["name"]: (int(row["number"]), int(row["options"]), row["kind"])
        for row in _OPERATORS
        if row["use"] == use
    }


# OPERATORS are written for the layers with a class of their own (such as Conv2D), TENSORS for the
# layers of the class Operation. LISTED are part of no layer, but a listing shows their activation,
# masks or graphs. An operator in none of the three is listed without options; so is one of TENSORS
# or LISTED if its options have another number than here, as in some old files.
OPERATORS, TENSORS, LISTED = _used("layer"), _used("tensors"), _used("listed")
# Revision of each operator by the type of its first input; "hybrid" stands for float32 input with
# int8 weights, "hybrid channels" if such weights have a scale for each channel. A revision that
# the table does not have is 1.
REVISIONS: dict[str, dict[str, int]] = {}
for _row in _OPERATORS:
    for _text in _row["revisions"].split():
        _type, _, _revision = _text.partition(":")
        REVISIONS.setdefault(_row["name"], {})[_type.replace("-", " ")] = int(_revision)

CUSTOM = "CUSTOM"  # any operator that the format does not define; the file states its name
# the older field for an operator's number is a byte; it holds this number for all larger ones
GREATER = 127

# Types by number from 0; circle's own types are numbered from -1 downwards. BITS has, for each type
# that numpy does not have, the bits that 32 elements take. Some types store blocks of 32 elements
# with a scale: the scale has 16 bits in ggml (ggerganov/ggml:src/ggml-common.h), 8 bits in MX (OCP
# Microscaling Formats 1.0).
_TYPES = read_table(HERE / "types.csv")
TYPES = tuple(row["name"] for row in _TYPES if row["form"] == "tflite")
CIRCLE_TYPES = tuple(row["name"] for row in _TYPES if row["form"] == "circle")
BITS = {row["name"]: int(row["bits"]) for row in _TYPES if row["bits"]}
PACKED = ("int2", "int4", "uint4")  # types of fewer than 8 bits, stored without gaps
# Names of the activations by number: ACTIVATIONS are the names of the format, FUSED those of
# npulab, which has only the first four activations.
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
FUSED = (None, "relu", "relu_n1_to_1", "relu6")
PADDINGS = ("same", "valid")
POOLS = {"average": "AVERAGE_POOL_2D", "max": "MAX_POOL_2D", "min": "MAX_POOL_2D"}
