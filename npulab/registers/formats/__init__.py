"""Register maps from and to the formats of others, and npulab's own tables."""

from npulab.registers.formats.formats import (
    FORMATS,
    format_of,
    map_files,
    of_blocks,
    of_chip,
    read_map,
    write_map,
)
from npulab.registers.formats.rnndb import read_rnndb
from npulab.registers.formats.rnndb_writing import rnndb_text
from npulab.registers.formats.tables import RegisterTable, read_csv, table_text

__all__ = [
    "FORMATS",
    "RegisterTable",
    "format_of",
    "map_files",
    "of_blocks",
    "of_chip",
    "read_csv",
    "read_map",
    "read_rnndb",
    "rnndb_text",
    "table_text",
    "write_map",
]
