"""The tables beside this file, read once."""

from pathlib import Path

from npulab.bits import RegisterMap, read_table
from npulab.target import read_chips, select

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")
USUAL_CHIP = next(iter(CHIPS))
TABLES = {"NN": RegisterMap.read(HERE / "nn.csv"),
          "STATE": RegisterMap.read(HERE / "states.csv", dense=False)}
PATTERNS = [tuple(int(row[name], 0) for name in ("channels", "msb", "low", "high"))
            for row in read_table(HERE / "patterns.csv")]
PRINTED = RegisterMap.read(HERE / "update4.csv")  # NN words by the names that update 4 prints
# NN fields that change the arithmetic or the place of data in a way nothing here covers: they must be 0
UNCOVERED = ("layer_type", "no_z_offset", "prelu", "kernel_data_type", "in_image_data_type", "out_image_data_type",
             "brick_mode", "brick_distance", "in_image_border_mode", "out_image_circular_buf_size",
             "in_image_circular_buf_size", "per_channel_post_mul", "kernel_direct_stream_from_VIP_sram", "depthwise")


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    return select(TABLES, CHIPS[chip])
