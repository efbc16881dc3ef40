"""The tables next to this file, read once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npulab.captures.target import Features
from npulab.npus.kit import Facts, RegisterMap, read_table

Values = Mapping[str, Any]  # a job's values (not raw) by field name
Size = tuple[int, int]  # (rows, columns)
Shape = tuple[int, int, int]

# An instruction of a .nb file has more words than the map of its block, NN or TP. These further
# words have maps of their own, by block.
REST = {"NN": "NN_REST", "TP": "TP_REST"}
SHADER, OTHER = "SH", "OP"
_FILES: dict[str, str | RegisterMap] = {
    "NN": "nn.csv",
    "STATE": "states.csv",
    "TP": "tp.csv",
}
_REST = RegisterMap.read(Path(__file__).with_name("rest.csv"))
for _block in (*REST.values(), SHADER, OTHER):
    _FILES[_block] = _REST.of_block(_block)

FACTS = Facts.beside(__file__, _FILES, sparse=("STATE",))
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
maps, EXPECTED = FACTS.maps, FACTS.expected()
# Kernel patterns of partial caching: (least channels, most significant bit, low half, high half).
PATTERNS = []
for _row in read_table(HERE / "patterns.csv"):
    PATTERNS.append([int(_row[name], 0) for name in ("channels", "msb", "low", "high")])
# The values that every job of a block has. Key: the block, then the field.
USUAL: dict[str, dict[str, int]] = {}
for _row in read_table(HERE / "usual.csv"):
    USUAL.setdefault(_row["block"], {})[_row["field"]] = int(_row["value"], 0)
# The map of the NN words, with the field names that the dump of the blog's "update 4" prints.
PRINTED = RegisterMap.read(HERE / "update4.csv")


def expected(facts: Features, vendor: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the values that each field of a chip's NN job may have. With ``vendor`` the values
    that only the vendor's compiler writes are included. The fields of rings (a tensor's memory
    range) are left out, because their values follow from the tensors."""
    out = dict(EXPECTED["layer"])
    if vendor:
        out |= EXPECTED["vendor"]
        del out["in_image_circular_buf_size"], out["out_image_circular_buf_size"]
    if facts.get("nn_v8"):
        out |= EXPECTED["v8"]
    else:
        out |= EXPECTED["v7"]
    if not facts.get("native_depthwise"):
        out |= EXPECTED["dense"]
    return out


def tensor_bytes(v: Values) -> dict[str, int]:
    """Return the bytes that ``input`` and ``output`` take in memory, from an NN job's values."""
    return {
        "input": v["kernel_z_size"] * v["in_image_y_stride"] * v["in_image_x_stride"],
        "output": v["out_image_z_size"] * v["out_image_y_stride"] * v["out_image_x_stride"],
    }
