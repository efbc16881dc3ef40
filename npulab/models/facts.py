"""The numbers of the ``.tflite`` format, and of ``.circle``, which adds to it.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs; some fields have shorter names here. The
revisions of operators are those of tensorflow/lite/tools/versioning/op_version.cc, those of 16-bit
convolutions of tensorflow/lite/core/kernels/register.cc. Source of circle:
Samsung/ONE:res/CircleSchema/0.10/circle_schema.fbs.
"""

from __future__ import annotations

from pathlib import Path

from npulab.support.files import read_table

# A key is a form of file, the value its identifier (bytes 4 to 7 of the file) and its version.
FORMS = {"tflite": (b"TFL3", 3), "circle": (b"CIR0", 0)}
ALIGNMENT = 16  # the data of a buffer begins at a multiple of ALIGNMENT bytes
HERE = Path(__file__).parent


# A key is the name of a table, the value its fields in the order of their slots, each as
# name:type=default. A type is a letter of ``struct``, s for a text, the name of a table, or * for a
# table whose kind the field before it states; [x] is a vector of x. The height and the width in
# ResizeBilinearOptions are deprecated: the operator takes the size as a tensor.
TABLES = {row["table"]: row["fields"] for row in read_table(HERE / "tables.csv")}

_OPERATORS = read_table(HERE / "operators.csv")
# NAMES are the operators of the format by number from 0, also those that npulab does not read, so
# that a listing can name them. CIRCLE_NAMES are circle's own operators, with the numbers -2, -3 and
# so on; the first circle files stored these numbers as unsigned bytes: 254, 253 and so on.
NAMES = tuple(row["name"] for row in _OPERATORS if int(row["number"]) >= 0)
CIRCLE_NAMES = tuple(row["name"] for row in _OPERATORS if int(row["number"]) < 0)


def _used(use: str) -> dict[str, tuple[int, int, str]]:
    """The operators whose column ``use`` has this value. A key is an operator's name, the value
    (number of the operator, number of the type of its options, name of the options' table)."""
    return {
        row["name"]: (int(row["number"]), int(row["options"]), row["kind"])
        for row in _OPERATORS
        if row["use"] == use
    }


# OPERATORS are written for layers with a class of their own (such as Conv2D), TENSORS for layers of
# the class Operation. LISTED are part of no layer, but a listing shows their activation, masks or
# graphs. A listing shows no options of any other operator. It also shows no options of an operator
# of TENSORS or LISTED if the file states another type of options for it, as some old files do.
OPERATORS, TENSORS, LISTED = _used("layer"), _used("tensors"), _used("listed")
# The revision of each operator by the type of its first input. In place of a type, "hybrid" stands
# for float32 input with int8 weights of one scale, "hybrid channels" for float32 input with int8
# weights of a scale per channel. A revision that the table does not have is 1.
REVISIONS: dict[str, dict[str, int]] = {}
for _row in _OPERATORS:
    for _text in _row["revisions"].split():
        _type, _, _revision = _text.partition(":")
        REVISIONS.setdefault(_row["name"], {})[_type.replace("-", " ")] = int(_revision)

CUSTOM = "CUSTOM"  # the name of every operator that only the file names, not the format

# The older field for an operator's number is a byte. If the number is larger than GREATER, the
# field holds GREATER, and a newer field holds the number.
GREATER = 127

# TYPES are the types of the format by number from 0. CIRCLE_TYPES are circle's own types, with the
# numbers -1, -2 and so on. BITS has, for each type that numpy does not have, the bits that 32
# elements take, because some types store blocks of 32 elements with a scale: it has 16 bits in ggml
# (ggerganov/ggml:src/ggml-common.h), 8 bits in MX (OCP Microscaling Formats 1.0).
_TYPES = read_table(HERE / "types.csv")
TYPES = tuple(row["name"] for row in _TYPES if row["form"] == "tflite")
CIRCLE_TYPES = tuple(row["name"] for row in _TYPES if row["form"] == "circle")
BITS = {row["name"]: int(row["bits"]) for row in _TYPES if row["bits"]}
PACKED = ("int2", "int4", "uint4")  # types of fewer than 8 bits, stored without gaps

# Activations by number: ACTIVATIONS are the format's names, FUSED npulab's names of the first four.
# npulab has no layer with one of the last two.
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
FUSED = (None, "relu", "relu_n1_to_1", "relu6")
PADDINGS = ("same", "valid")
POOLS = {"average": "AVERAGE_POOL_2D", "max": "MAX_POOL_2D", "min": "MAX_POOL_2D"}
