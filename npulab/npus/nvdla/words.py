"""Register programs: values as meant, by full name, to the writes that a driver makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from npulab.captures.capture import Job
from npulab.npus.kit.fields import offsets_of
from npulab.registers.fields import WORD_BYTES, Field
from npulab.registers.map import RegisterMap

# units are started from the last one of a chain to the first, so that each one waits for its input
STARTED = ("PDP", "PDP_RDMA", "SDP", "SDP_RDMA", "CACC", "CMAC_B", "CMAC_A", "CSC", "CDMA")
POINTER, ENABLE = "S_POINTER", "D_OP_ENABLE"
Values = Mapping[str, int]


def program(values: Values, block: str, registers: RegisterMap) -> Job:
    """The job of these values, by ``UNIT.REGISTER.FIELD``, in register group 0: for each unit the
    pointer to the group, its registers by offset, and in the end what starts the units.

    A field that is not given is 0 where another of its register is; a register without any is not
    written. Raises ValueError, with register and field, for a value that does not fit; LookupError
    for an unknown field.
    """
    fields = {f"{item.block}.{item.register}.{item.name}": item for item in registers if not item.automatic}
    words = np.zeros(len(registers), np.uint32)
    at, offsets = offsets_of(registers), {word: offset for offset, word in registers.index.items()}
    written = set()
    for name, value in values.items():
        if name not in fields:
            raise LookupError(f"field: got {name!r}, which block {block} does not have")
        item: Field = fields[name]
        item.insert(words, item.raw(value))
        written.add(offsets[item.pieces[0].word])
    units = [unit for unit in STARTED if any(name.startswith(f"{unit}.") for name in values)]
    starts = {unit: at[f"{unit}.{ENABLE}"] for unit in units}
    writes = [(at[f"{unit}.{POINTER}"], 0) for unit in units]
    writes += [(offset, int(words[registers.index[offset]])) for offset in sorted(written)]
    return Job.from_writes(block, [*writes, *((offset, 1) for offset in starts.values())], registers)


def spread(names: str, values: Iterable[int]) -> dict[str, int]:
    """Fields of one register, ``UNIT.REGISTER.A B C``, with a value each.

    >>> spread("CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH DATAOUT_HEIGHT", (7, 3))
    {'CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH': 7, 'CSC.D_DATAOUT_SIZE_0.DATAOUT_HEIGHT': 3}
    """
    register, _, fields = names.rpartition(".")
    return {f"{register}.{field}": int(value) for field, value in zip(fields.split(), values, strict=True)}


def halves(where: int) -> tuple[int, int]:
    """(low, high) of an address in its two registers."""
    high, low = divmod(where, 2 ** (8 * WORD_BYTES))
    return low, high
