"""The words of one task of H13 from what it does and the habits of a compiler: the rows of
``tasks.csv``, and what these speak of.

Evidence: files of compiler 4.2.1 (conv_twos, conv_bias, gemm64, relu16, sigmoid77, sum64,
concat16), bare tasks of one like 5.4.1 (1600 x 2560), mul of 5.4.1 and 9.509, and words of 9.x that
joshuaswarren/mil-hwx-compiler states under research/oracles/h13.  A rule that fits all of them and
was never tried beyond is called a guess where it stands.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from npulab.captures.capture import Job
from npulab.npus.ane.facts import ENGINES, HEADER, HERE, maps
from npulab.npus.ane.memory import UNIT
from npulab.npus.ane.placement import in_l2, l2, log2_up, patch_height, patch_width, tile_height, work_unit
from npulab.npus.ane.steps import BYPASS, Habits, Step
from npulab.npus.ane.tasks import H13
from npulab.npus.kit.numbers import up
from npulab.npus.kit.rows import numbers_of, read_rows
from npulab.registers.fields import WORD_BYTES

ROWS = read_rows(HERE / "tasks.csv")
RECORDS = ((0x1F800, 62), (0x00000, 16), (0x13800, 28), (0x04800, 18), (0x08800, 4), (0x0C800, 5), (0x17800, 7))
COMPACT = ((0x1F800, 18), (0x1F8C8, 12), *RECORDS[1:])  # without the places of coefficients
SLOT = 0x100
BEHIND_EXACT = 13  # bit of DebugLogEvents that tables of sqrt, rsqrt, inv and log2 leave out


def job_of(step: Step, chip: str, habits: Habits, number: int = 0, count: int = 1, slots: tuple[int, ...] = (0,),
           ) -> Job:
    """The task as register writes; ``number`` of ``count``, ``slots`` the bytes at which the tasks
    of a list begin."""
    registers = maps(chip)["H13"]
    words = registers.encode(values_of(step, habits, number, count, slots), raw=True)
    places = [HEADER + WORD_BYTES * i for i in range(H13.words)]
    places += [address + WORD_BYTES * i for address, many in records_of(step, habits) for i in range(many)]
    return Job.from_writes("H13", [(place, int(words[registers.index[place]])) for place in places], registers)


def records_of(step: Step, habits: Habits) -> tuple[tuple[int, int], ...]:
    """(first register, how many) of each record."""
    return RECORDS if step.engines or not habits.compact else COMPACT


def slots_of(steps: tuple[Step, ...], habits: Habits) -> tuple[int, ...]:
    """The bytes at which the tasks of a list begin, and where the last one's slot ends."""
    out = [0]
    for step in steps:
        out.append(out[-1] + up(WORD_BYTES * words_in(step, habits), SLOT))
    return tuple(out)


def words_in(step: Step, habits: Habits) -> int:
    """Words of the task in its section."""
    return H13.words + sum(1 + many for _, many in records_of(step, habits))


def values_of(step: Step, habits: Habits, number: int, count: int, slots: tuple[int, ...]) -> dict[str, int]:
    """Raw values by field of every group; fields left out are 0."""
    values = {row.field: value for row, value in
              numbers_of(ROWS, subject(step, habits, number, count, slots))}
    values |= kernel_source(step, habits) | dict(step.fields)
    return {name: value for name, value in values.items() if value}


def subject(step: Step, habits: Habits, number: int, count: int, slots: tuple[int, ...]) -> Any:
    """What the rows of ``tasks.csv`` speak of."""
    source, second = step.sources[0], step.sources[1] if len(step.sources) > 1 else None
    whole, groups, last = step.whole or step.result, step.groups, number == count - 1
    preferred, least, most = work_unit(step, habits)
    return SimpleNamespace(
        step=step, habits=habits, l2=l2(step, habits), source=source, second=second, whole=whole,
        number=number, first=not number, follows=number > 0, last=last, linked=not last,
        next_size=words_in(step, habits) - 1, next_pointer=slots[min(number + 1, len(slots) - 1)],
        cycles=cycles(step), debug_events=debug_events(step, number, last),
        neural=not step.planar, bypass=step.engine == BYPASS, bar=step.bars[0],
        second_bar=step.bars[-1], active_code=log2_up(step.active),
        engines_code=log2_up(step.active) + 1, lanes_code=log2_up(step.lanes),
        narrow=step.lanes < 32, inputs=source.channels // groups,
        outputs=step.result.channels // groups, source_group=source.bytes // groups,
        whole_group=whole.bytes // groups, kernel_h=step.kernel[0], kernel_w=step.kernel[1],
        stride_h=step.stride[0], stride_w=step.stride[1], top=step.pads[0], left=step.pads[1],
        tile_height=tile_height(step), patch_width=patch_width(step),
        patch_height=patch_height(step), preferred=preferred, least=least, most=most,
        in_l2=in_l2(step, habits), passes=not in_l2(step, habits),
        kernel_set=not step.planar or habits.planar_kernel,
        filled=not step.planar or habits.planar_fill,
        formatted=not step.planar and (habits.table_format or (step.engines and not step.table)))


def debug_events(step: Step, number: int, last: bool) -> int:
    """The bits of DebugLogEvents."""
    events = (0xFFF800 if last and not number else 0) | 0x68 | 2 * last
    return events - 2 ** BEHIND_EXACT if step.exact else events


def cycles(step: Step) -> int:
    """The estimate of a task's length: bytes moved by 34133 and a third.

    Fits 28 tasks of compilers from 5.x on; 512 channels of one pixel have 4 where this gives 2.
    """
    moved = sum(surface.bytes for surface in (*step.sources, step.result))
    moved += 0 if step.table else sum(size for _, size in step.engines)
    return min(3 * moved // 102400, 2 ** 16 - 1)


def kernel_source(step: Step, habits: Habits) -> dict[str, int]:
    """Where each engine's coefficients lie; one that is off has the length of 64 bytes."""
    if step.planar and not habits.planar_kernel:
        return {}
    out: dict[str, int] = {}
    for i in range(ENGINES):
        offset, size = step.engines[i] if i < len(step.engines) else (0, UNIT)
        out |= {f"KernelDMASrc.CoeffDMAConfig[{i}].En": int(i < len(step.engines)),
                f"KernelDMASrc.CoeffDMAConfig[{i}].CacheHint": 2}
        if records_of(step, habits) is RECORDS:
            out |= {f"KernelDMASrc.CoeffBaseAddr[{i}].Addr": offset // UNIT,
                    f"KernelDMASrc.CoeffBfrSize[{i}].MemBfrSize": size // UNIT}
    return out
