"""The tables beside this file, read once."""

from collections.abc import Mapping
from typing import Any

from npulab.npus.kit import Facts, RegisterMap, read_table

FACTS = Facts.beside(
    __file__, {"NN": "nn.csv", "STATE": "states.csv", "TP": "tp.csv"}, sparse=("STATE",)
)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
maps, EXPECTED = FACTS.maps, FACTS.expected()
PATTERNS = [
    tuple(int(row[name], 0) for name in ("channels", "msb", "low", "high"))
    for row in read_table(HERE / "patterns.csv")
]
USUAL: dict[str, dict[str, int]] = {}  # by block, what every job has
for _row in read_table(HERE / "usual.csv"):
    USUAL.setdefault(_row["block"], {})[_row["field"]] = int(_row["value"], 0)
PRINTED = RegisterMap.read(HERE / "update4.csv")  # NN words by the names that update 4 prints


def expected(facts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The values that fields of a chip's NN job may have."""
    cases = (
        "layer",
        "v8" if facts.get("nn_v8") else "v7",
        *(() if facts.get("native_depthwise") else ("dense",)),
    )
    return {field: allowed for case in cases for field, allowed in EXPECTED[case].items()}


def tensor_bytes(v: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of the input and output that the values of an NN job say."""
    return {
        "input": v["kernel_z_size"] * v["in_image_y_stride"] * v["in_image_x_stride"],
        "output": v["out_image_z_size"] * v["out_image_y_stride"] * v["out_image_x_stride"],
    }
