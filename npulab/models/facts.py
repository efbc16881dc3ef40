"""The numbers of the ``.tflite`` format, and of ``.circle``, which adds to it.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs, with shorter names of fields.  The
revisions are those of tensorflow/lite/tools/versioning/op_version.cc; for 16-bit convolutions, of
tensorflow/lite/core/kernels/register.cc.  Circle:
Samsung/ONE:res/CircleSchema/0.10/circle_schema.fbs.
"""

from __future__ import annotations

from pathlib import Path

from npulab.support.files import read_table

# identifier and version of each form
FORMS = {"tflite": (b"TFL3", 3), "circle": (b"CIR0", 0)}
ALIGNMENT = 16  # of a buffer's data, in bytes
HERE = Path(__file__).parent


# Fields of each table in the order of their slots, as name:type=default.  A type is a letter of
# struct, s for a text, the name of a table, [a vector of these], or * for the table whose kind the
# field before it states.  The height and width in ResizeBilinearOptions are deprecated: the size is
# a tensor.
TABLES = {row["table"]: row["fields"] for row in read_table(HERE / "tables.csv")}

_OPERATORS = read_table(HERE / "operators.csv")
# Operators by number from 0, so that a listing can name those that are not covered; circle's own
# operators from -2 downwards (its first files had their numbers as bytes without a sign: 254,
# 253, ...).
NAMES = tuple(row["name"] for row in _OPERATORS if int(row["number"]) >= 0)
CIRCLE_NAMES = tuple(row["name"] for row in _OPERATORS if int(row["number"]) < 0)


def _used(use: str) -> dict[str, tuple[int, int, str]]:
    """For each operator of a use its number, and the number and kind of its options."""
    return {
        row["name"]: (int(row["number"]), int(row["options"]), row["kind"])
        for row in _OPERATORS
        if row["use"] == use
    }


# Operators that layers are written as; the other kinds of npulab.quant.layers.operation; operators
# that are part of no layer, but whose activation, masks or graphs are part of a listing.  An
# operator without a use, or with options of another number (some old files have such), is listed
# without options.
OPERATORS, TENSORS, LISTED = _used("layer"), _used("tensors"), _used("listed")
# Revision of the operator by the type of its first input; "hybrid" if that is float32 and the
# weights are int8, "hybrid channels" if such weights have a scale for each channel.  1 if the table
# has none.
REVISIONS: dict[str, dict[str, int]] = {}
for _row in _OPERATORS:
    for _text in _row["revisions"].split():
        _type, _, _revision = _text.partition(":")
        REVISIONS.setdefault(_row["name"], {})[_type.replace("-", " ")] = int(_revision)

CUSTOM = "CUSTOM"  # the operator that has a name of its own in the file
GREATER = 127  # stands in the older byte of an operator code for every larger number

# Types by number from 0; circle's last types have numbers of their own, from -1 downwards.  Bits
# are those of 32 elements if numpy has no such type; source of the blocks of 32:
# ggerganov/ggml:src/ggml-common.h, OCP Microscaling Formats 1.0 (each has a scale, of 16 bits in
# ggml, of 8 in MX).
_TYPES = read_table(HERE / "types.csv")
TYPES = tuple(row["name"] for row in _TYPES if row["form"] == "tflite")
CIRCLE_TYPES = tuple(row["name"] for row in _TYPES if row["form"] == "circle")
BITS = {row["name"]: int(row["bits"]) for row in _TYPES if row["bits"]}
PACKED = ("int2", "int4", "uint4")  # codes below 8 bits, one after the other
# an activation's name in the file, and in this package
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
FUSED = (None, "relu", "relu_n1_to_1", "relu6")
PADDINGS = ("same", "valid")
POOLS = {"average": "AVERAGE_POOL_2D", "max": "MAX_POOL_2D", "min": "MAX_POOL_2D"}
