"""Helpers for the folder of every NPU (tables, values by name, memory by address, lowering), and
the names of lower rooms that such a folder uses, to import from one place.
"""

from npulab.captures.capture import COMMANDS, PROVENANCES, WAITS, Capture, Job
from npulab.captures.target import Hang, Importer, Item, Lifted, Range, Unsupported
from npulab.npus.kit.facts import Facts
from npulab.npus.kit.fields import (
    DEVICE,
    Raw,
    agree,
    expect,
    hang_if,
    known,
    names_of,
    offsets_of,
    only_job,
    values_of,
)
from npulab.npus.kit.layers import as_1x1, behind, of_type, padding_names
from npulab.npus.kit.lowering import features_asked, lowered, placed
from npulab.npus.kit.memory import Memory, address_of, buffer_of, bytes_at, tensor_at
from npulab.npus.kit.numbers import SIGNED, as_codes, ceil_div, half, up, wrapped
from npulab.npus.kit.rows import numbers_of, read_rows
from npulab.npus.kit.texts import LOOK, Line, head_of, lines_of, plain_text, skipped
from npulab.registers.fields import WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.support.files import first_bytes, read_bounded, read_table
from npulab.support.late import pd
from npulab.support.refuse import one_of, refuse_if, refusing

__all__ = [
    "COMMANDS",
    "DEVICE",
    "LOOK",
    "PROVENANCES",
    "SIGNED",
    "WAITS",
    "WORD_BYTES",
    "Capture",
    "Facts",
    "Hang",
    "Importer",
    "Item",
    "Job",
    "Lifted",
    "Line",
    "Memory",
    "Range",
    "Raw",
    "RegisterMap",
    "Unsupported",
    "address_of",
    "agree",
    "as_1x1",
    "as_codes",
    "behind",
    "buffer_of",
    "bytes_at",
    "ceil_div",
    "expect",
    "features_asked",
    "first_bytes",
    "half",
    "hang_if",
    "head_of",
    "known",
    "lines_of",
    "lowered",
    "names_of",
    "numbers_of",
    "of_type",
    "offsets_of",
    "one_of",
    "only_job",
    "padding_names",
    "pd",
    "placed",
    "plain_text",
    "read_bounded",
    "read_rows",
    "read_table",
    "refuse_if",
    "refusing",
    "skipped",
    "tensor_at",
    "up",
    "values_of",
    "wrapped",
]
