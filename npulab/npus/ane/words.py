"""The words of one task of H13, computed from its work and the habits of a compiler.

``tasks.csv`` states the value of each field; the values that its rows name (work units, patches,
tiles, places in L2) are computed here. Evidence: files of compiler 4.2.1 (conv_twos, conv_bias,
gemm64, relu16, sigmoid77, sum64, concat16), bare tasks of a compiler like 5.4.1 (1600 x 2560), mul
of 5.4.1 and 9.509, and words of 9.x that joshuaswarren/mil-hwx-compiler states under
research/oracles/h13. A rule is called a guess if it fits these files but no further file tests it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from npulab.npus.ane.coefficients.kernel import Kernel
from npulab.npus.ane.facts import ENGINES, HEADER, HERE, maps
from npulab.npus.ane.memory import HALF, UNIT, Surface
from npulab.npus.ane.tasks import H13
from npulab.npus.kit import WORD_BYTES, Job, ceil_div, read_table, refuse_if, up
from npulab.npus.kit.rows import numbers_of, read_rows

CONVOLUTION, BYPASS, PLANAR = "convolution", "bypass", "planar"


# For each compiler version, its habits as attributes: the differences that ``compilers.csv``
# states.
Habits = SimpleNamespace
HABITS: dict[str, Habits] = {}
for _row in read_table(HERE / "compilers.csv"):
    _habits = HABITS.setdefault(_row["compiler"], Habits())
    setattr(_habits, _row["habit"], int(_row["value"], 0))
USUAL = "4.2.1"
NO_KERNEL = Kernel(1, 1)


@dataclass(frozen=True)
class TaskStep:
    """The work of one task: it computes ``result`` from one or two ``sources``.

    ``engine`` is ``convolution``, ``bypass`` (the neural engine without a convolution) or
    ``planar`` (the planar engine, elementwise). ``bars`` are the numbers of the sources' base
    addresses, ``target`` that of the result's. The result begins ``offset`` bytes after ``target``;
    if it is a part of a larger tensor, ``whole`` has the sizes of that tensor. ``kernel`` is the
    kernel of a convolution, ``pads`` its padding (top, left). ``engines`` has (offset, bytes) of
    each engine's coefficients. ``table`` is true for an activation table without a convolution,
    ``exact`` for tables of sqrt, rsqrt, inv and log2. ``fields`` has raw values of the fields that
    depend on the arithmetic.
    """

    engine: str
    sources: tuple[Surface, ...]
    bars: tuple[int, ...]
    result: Surface
    target: int
    offset: int = 0
    whole: Surface | None = None
    kernel: Kernel = NO_KERNEL
    pads: tuple[int, int] = (0, 0)
    engines: tuple[tuple[int, int], ...] = ()
    unicast: bool = False
    table: bool = False
    exact: bool = False
    fields: Mapping[str, int] = field(default_factory=dict)

    @property
    def planar(self) -> bool:
        return self.engine == PLANAR

    @property
    def active(self) -> int:
        """The number of engines that work: one for each output channel of a group, at most all."""
        return min(ENGINES, self.result.channels // self.kernel.parts)

    @property
    def active_code(self) -> int:
        """log2 of the number of engines that work, rounded up."""
        return log2_up(self.active)

    @property
    def patch_width(self) -> int:
        """log2 of the width of a planar task's patch (the pixels processed at a time), 4 to 9."""
        return min(max(log2_up(self.result.width), 4), 9)

    @property
    def patch_height(self) -> int:
        """log2 of the rows of a planar task's patch.

        A patch has all rows of the tile if their number is a power of two, else one row.
        """
        rows = self.tile_height
        if rows == 2 ** log2_up(rows):
            return log2_up(rows)
        return 0

    @property
    def tile_height(self) -> int:
        """The number of output rows of a tile: all rows, but at most 32 in planar tasks whose
        sources do not fit into L2."""
        rows, source = self.result.height, self.sources[0]
        channel = ceil_div(HALF * min(source.width, 2**self.patch_width), CELL)
        fits = len(self.sources) * rows * (source.channels * channel + 2) < L2_CELLS
        if fits or not self.planar:
            return rows
        return min(rows, 32)

    @property
    def cycles(self) -> int:
        """The compiler's estimate of a task's duration: the bytes moved, divided by 34133 1/3.

        The rule fits 28 tasks of compilers from 5.x on. It fails for one task, of 512 channels of
        one pixel: the compiler wrote 4, the rule gives 2.
        """
        moved = sum(surface.bytes for surface in (*self.sources, self.result))
        if not self.table:
            moved += sum(size for _, size in self.engines)
        return min(3 * moved // 102400, 2**16 - 1)


# Strides and addresses in L2 count cells of this many bytes.
CELL = 16
# L2 has 2 MiB.
L2_CELLS = 2**21 // CELL
LINE, BANKS = UNIT // CELL, 16
# The pixels (high, wide) of a work unit, by the code in the fields ShPref, ShMin and ShMax; the
# last shape is used only in small-source mode.
SHAPES = ((2, 128), (4, 64), (8, 32), (16, 16), (8, 8))
SMALL = len(SHAPES) - 1


def l2(step: TaskStep, habits: Habits) -> Any:
    """Return the places and strides of a task's tensors in L2, in cells of 16 bytes.

    The attributes ``second`` and ``result`` are the places of the second source and the result; the
    first source lies at cell 0. ``channel``, ``row`` and ``depth`` are strides of the sources,
    ``result_channel``, ``result_row`` and ``result_depth`` those of the result. Raises ValueError
    if the tensors need more than the 2 MiB of L2.
    """
    channel, row, depth = l2_strides(step, step.sources[0], habits)
    result_channel, result_row, result_depth = result_strides(step)
    rows = step.sources[0].height
    if step.planar:
        rows = min(step.tile_height, rows)
    sources = row * rows
    second = second_base(sources)
    result = end = sources
    if len(step.sources) > 1:
        result = end = second + sources
    if in_l2(step, habits):
        end = result + result_row * step.result.height
    refuse_if(
        end > L2_CELLS,
        "lower for ane",
        f"{CELL * end} bytes of L2 for one task",
        f"are {CELL * L2_CELLS}; how compilers split a larger one is not known",
    )
    return SimpleNamespace(
        channel=channel,
        row=row,
        depth=depth,
        second=second,
        result=result,
        result_channel=result_channel,
        result_row=result_row,
        result_depth=result_depth,
    )


def work_unit(step: TaskStep, habits: Habits) -> tuple[int, int, int]:
    """Return the codes in ``SHAPES`` for a task's fields ShPref, ShMin and ShMax.

    These are the preferred, least and most shape of a work unit. A convolution of one group has the
    shape of ``fewest_units`` in all three, a ``small`` kernel the shape of small-source mode. The
    order of the codes, and the shapes for rows wider than 64 pixels, are a guess.
    """
    if step.kernel.small:
        return SMALL, SMALL, SMALL
    best = fewest_units(step.result)
    if not step.unicast and step.kernel.parts == 1:
        return best, best, best
    if habits.fixed_shapes:
        return 1, min(1, best), 1
    return 0, 0, best


def fewest_units(result: Surface) -> int:
    """Return the code of the shape that covers a tensor with the fewest work units.

    If several shapes need equally few, the narrowest shape as wide as a row is taken, and if none
    is as wide, the narrowest shape. Small-source mode is left out.

    >>> [fewest_units(Surface(size, size, 1)) for size in (1, 16, 17, 32, 64)]
    [3, 3, 2, 2, 1]
    >>> fewest_units(Surface(1, 77, 1))
    0
    """
    ranks = []
    for code, (high, wide) in enumerate(SHAPES[:SMALL]):
        units = ceil_div(result.height, high) * ceil_div(result.width, wide)
        # Of shapes with equal units and width, that with the larger code is narrower.
        ranks.append((-units, wide >= result.width, code))
    return max(ranks)[-1]


def l2_strides(step: TaskStep, source: Surface, habits: Habits) -> tuple[int, int, int]:
    """Return the strides of channels, rows and depth of a source in L2, in cells of 16 bytes.

    If the source has more channels than there are engines, or the kernel has groups, a gap follows
    each row: 2 cells or the stride of a channel, whichever is larger. Tasks of the neural engine
    with a kernel of stride 1 and one group have one more cell. This is a guess from kernels of
    stride 1, 2 and 4. L2 has one group at a time.
    """
    if step.planar:
        wide = 2**step.patch_width
    else:
        _, least, _ = work_unit(step, habits)
        _, wide = SHAPES[least]
        if step.engine != BYPASS:
            wide = max(wide, source.width)
    channel = ceil_div(HALF * min(source.width, wide), CELL)
    depth = source.channels // step.kernel.parts * channel
    if source.channels <= ENGINES and step.kernel.parts == 1:
        return channel, depth, depth
    one_more = not step.planar and step.kernel.stride == (1, 1) and step.kernel.parts == 1
    return channel, depth + max(2, channel) + one_more, depth


def result_strides(step: TaskStep) -> tuple[int, int, int]:
    """Return the strides of channels, rows and depth of a result in L2, in cells of 16 bytes."""
    channel = ceil_div(HALF * step.result.width, CELL)
    depth = row = step.result.channels * channel
    if step.result.channels > ENGINES:
        row += max(2, channel)
    return channel, row, depth


def second_base(end: int) -> int:
    """Return the cell in L2 at which the second source begins; ``end`` is the end of the first.

    It is the next multiple of 64 bytes, or the multiple after it if the next is on the first of
    L2's 16 banks. This is a guess.

    >>> [second_base(cells) for cells in (66, 528, 2048, 4128, 18816)]
    [68, 528, 2052, 4128, 18820]
    """
    lines = ceil_div(end, LINE)
    return LINE * (lines + (lines % BANKS == 0))


def in_l2(step: TaskStep, habits: Habits) -> bool:
    """Return true if the whole result stays in L2, as early compilers do for small convolutions."""
    return bool(habits.result_in_l2) and step.engine == CONVOLUTION and step.kernel.small


def log2_up(number: int) -> int:
    """Return the least n with 2**n >= number.

    >>> [log2_up(n) for n in (1, 2, 3, 64)]
    [0, 1, 2, 6]
    """
    return (number - 1).bit_length()


ROWS = read_rows(HERE / "tasks.csv")
# The (first register, number of registers) of each record of a task, in the compilers' order.
RECORDS = (
    (0x1F800, 62),
    (0x00000, 16),
    (0x13800, 28),
    (0x04800, 18),
    (0x08800, 4),
    (0x0C800, 5),
    (0x17800, 7),
)
# The same for a task without coefficients: the registers of their places are left out.
COMPACT = ((0x1F800, 18), (0x1F8C8, 12), *RECORDS[1:])
# A task of a list begins at a multiple of this many bytes.
SLOT = 0x100
# The bit of DebugLogEvents that is 0 for tables of sqrt, rsqrt, inv and log2.
NOT_EXACT = 13


def job_of(
    step: TaskStep,
    chip: str,
    habits: Habits,
    number: int = 0,
    count: int = 1,
    slots: tuple[int, ...] = (0,),
) -> Job:
    """Return task ``number`` (from 0) of ``count`` as a job of register writes.

    ``slots`` are the byte offsets of all tasks in their list.
    """
    registers = maps(chip)["H13"]
    words = registers.encode(values_of(step, habits, number, count, slots), raw=True)
    places = [HEADER + WORD_BYTES * i for i in range(H13.words)]
    for address, many in records_of(step, habits):
        places += [address + WORD_BYTES * i for i in range(many)]
    writes = [(place, int(words[registers.index[place]])) for place in places]
    return Job.from_writes("H13", writes, registers)


def records_of(step: TaskStep, habits: Habits) -> tuple[tuple[int, int], ...]:
    """Return the (first register, number of registers) of each record of a task."""
    if step.engines or not habits.compact:
        return RECORDS
    return COMPACT


def slots_of(steps: tuple[TaskStep, ...], habits: Habits) -> tuple[int, ...]:
    """Return the byte offset of each task in a list, and the end of the last task's slot.

    A slot is a multiple of 0x100 bytes.
    """
    out = [0]
    for step in steps:
        out.append(out[-1] + up(WORD_BYTES * words_in(step, habits), SLOT))
    return tuple(out)


def words_in(step: TaskStep, habits: Habits) -> int:
    """Return the number of words of a task: header, then for each record one word and its
    values."""
    return H13.words + sum(1 + many for _, many in records_of(step, habits))


def values_of(
    step: TaskStep, habits: Habits, number: int, count: int, slots: tuple[int, ...]
) -> dict[str, int]:
    """Return the raw values of a task's fields that are not 0, by their full names."""
    of = subject(step, habits, number, count, slots)
    values = {row.field: value for row, value in numbers_of(ROWS, of)}
    values |= kernel_source(step, habits) | dict(step.fields)
    return {name: value for name, value in values.items() if value}


def subject(step: TaskStep, habits: Habits, number: int, count: int, slots: tuple[int, ...]) -> Any:
    """Return the values of a task that rows of ``tasks.csv`` may name, as attributes."""
    source, second = step.sources[0], None
    if len(step.sources) > 1:
        second = step.sources[1]
    whole, last, kernel = step.whole or step.result, number == count - 1, step.kernel
    groups, lanes = kernel.parts, kernel.most_lanes
    preferred, least, most = work_unit(step, habits)
    return SimpleNamespace(
        step=step,
        kernel=kernel,
        habits=habits,
        l2=l2(step, habits),
        source=source,
        second=second,
        whole=whole,
        number=number,
        first=not number,
        follows=number > 0,
        last=last,
        linked=not last,
        next_size=words_in(step, habits) - 1,
        next_pointer=slots[min(number + 1, len(slots) - 1)],
        debug_events=debug_events(step, number, last),
        neural=not step.planar,
        bypass=step.engine == BYPASS,
        bar=step.bars[0],
        second_bar=step.bars[-1],
        engines_code=step.active_code + 1,
        lanes_code=log2_up(lanes),
        narrow=lanes < 32,
        inputs=source.channels // groups,
        outputs=step.result.channels // groups,
        source_group=source.bytes // groups,
        whole_group=whole.bytes // groups,
        stride_h=kernel.stride[0],
        stride_w=kernel.stride[1],
        top=step.pads[0],
        left=step.pads[1],
        preferred=preferred,
        least=least,
        most=most,
        in_l2=in_l2(step, habits),
        passes=not in_l2(step, habits),
        kernel_set=not step.planar or habits.planar_kernel,
        filled=not step.planar or habits.planar_fill,
        formatted=not step.planar and (habits.table_format or (step.engines and not step.table)),
    )


def debug_events(step: TaskStep, number: int, last: bool) -> int:
    """Return the raw value of DebugLogEvents for task ``number``; ``last`` is true for the last."""
    events = 0x68
    if last:
        events += 2
        if number == 0:
            events += 0xFFF800
    if step.exact:
        events -= 2**NOT_EXACT
    return events


def kernel_source(step: TaskStep, habits: Habits) -> dict[str, int]:
    """Return the raw values of the fields that place each engine's coefficients.

    An engine that is off has offset 0 and 64 bytes. Without a place in the task's records, only the
    fields of CoeffDMAConfig are returned.
    """
    if step.planar and not habits.planar_kernel:
        return {}
    out: dict[str, int] = {}
    for i in range(ENGINES):
        offset, size = 0, UNIT
        if i < len(step.engines):
            offset, size = step.engines[i]
        out |= {
            f"KernelDMASrc.CoeffDMAConfig[{i}].En": int(i < len(step.engines)),
            f"KernelDMASrc.CoeffDMAConfig[{i}].CacheHint": 2,
        }
        if records_of(step, habits) is RECORDS:
            out |= {
                f"KernelDMASrc.CoeffBaseAddr[{i}].Addr": offset // UNIT,
                f"KernelDMASrc.CoeffBfrSize[{i}].MemBfrSize": size // UNIT,
            }
    return out
