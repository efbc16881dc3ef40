"""The words of one task of H13, from its work and the habits of a compiler.

The rows of ``tasks.csv`` name work units, patches and tiles, and places in L2, which are computed
here. Evidence: files of compiler 4.2.1 (conv_twos, conv_bias, gemm64, relu16, sigmoid77, sum64,
concat16), bare tasks of a compiler like 5.4.1 (1600 x 2560), mul of 5.4.1 and 9.509, and words of
9.x that joshuaswarren/mil-hwx-compiler states under research/oracles/h13. A rule that fits all of
these, and that no other file tests, is called a guess.
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


# the differences between versions of the compiler, by the names of ``compilers.csv``
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
    ``planar`` (elementwise). ``bars`` are the base addresses of the sources, ``target`` that of the
    result. The result begins ``offset`` bytes after ``target``, and may be a part of the tensor
    ``whole``. ``kernel`` is that of a convolution, ``pads`` the padding above and to the left.
    ``engines`` has (offset, bytes) of each coefficient buffer. ``fields`` has raw values of the
    fields that depend on the arithmetic.
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
    exact: bool = False  # a table that DebugLogEvents distinguishes
    fields: Mapping[str, int] = field(default_factory=dict)

    @property
    def planar(self) -> bool:
        return self.engine == PLANAR

    @property
    def active(self) -> int:
        """The number of engines that work: one for each channel of a group, at most all."""
        return min(ENGINES, self.result.channels // self.kernel.parts)

    @property
    def active_code(self) -> int:
        """log2 of the engines that work."""
        return log2_up(self.active)

    @property
    def patch_width(self) -> int:
        """log2 of the width of a planar task's patch, 16 to 512 pixels."""
        return min(max(log2_up(self.result.width), 4), 9)

    @property
    def patch_height(self) -> int:
        """log2 of the rows of a planar task's patch: the rows of its tile if they are a power of
        two, else one row.
        """
        rows = self.tile_height
        if rows == 2 ** log2_up(rows):
            return log2_up(rows)
        return 0

    @property
    def tile_height(self) -> int:
        """Rows of output of a tile: all rows; 32 in planar tasks whose sources do not fit into
        L2."""
        rows, source = self.result.height, self.sources[0]
        channel = ceil_div(HALF * min(source.width, 2**self.patch_width), CELL)
        fits = len(self.sources) * rows * (source.channels * channel + 2) < L2_CELLS
        if fits or not self.planar:
            return rows
        return min(rows, 32)

    @property
    def cycles(self) -> int:
        """The compiler's estimate of a task's length: bytes moved, divided by 34133 1/3.

        Fits 28 tasks of compilers 5.x and later; 512 channels of one pixel have 4, this gives 2.
        """
        moved = sum(surface.bytes for surface in (*self.sources, self.result))
        if not self.table:
            moved += sum(size for _, size in self.engines)
        return min(3 * moved // 102400, 2**16 - 1)


CELL = 16  # strides in L2 count units of this many bytes
L2_CELLS = 2**21 // CELL  # L2 has 2 MiB
LINE, BANKS = UNIT // CELL, 16
# Pixels (high, wide) of a work unit, by the code in ShPref, ShMin and ShMax; the last shape is used
# in small-source mode only.
SHAPES = ((2, 128), (4, 64), (8, 32), (16, 16), (8, 8))
SMALL = len(SHAPES) - 1


def l2(step: TaskStep, habits: Habits) -> Any:
    """Return the places of the second source and the result of a task in L2, and the strides of all
    tensors, in cells of 16 bytes; the first source lies at cell 0.

    Raises ValueError if the tensors need more than the 2 MiB of L2.
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
    """Return the codes of the preferred, least and most shape of a work unit, as in ``SHAPES``.

    A convolution of one group has the shape of ``fewest_units`` three times, or, if its kernel is
    ``small``, the shape of small-source mode. The order of the codes, and the shapes for rows wider
    than 64 pixels, are a guess.
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
    """Return the code of the shape that covers a tensor with the fewest units.

    Of several such shapes it is the narrowest that holds a whole row, or else the narrowest.

    >>> [fewest_units(Surface(size, size, 1)) for size in (1, 16, 17, 32, 64)]
    [3, 3, 2, 2, 1]
    >>> fewest_units(Surface(1, 77, 1))
    0
    """
    ranks = []
    for code, (high, wide) in enumerate(SHAPES[:SMALL]):
        units = ceil_div(result.height, high) * ceil_div(result.width, wide)
        # a larger code is a narrower shape
        ranks.append((-units, wide >= result.width, code))
    return max(ranks)[-1]


def l2_strides(step: TaskStep, source: Surface, habits: Habits) -> tuple[int, int, int]:
    """Return the strides of channels, rows and depth of a source in L2, in cells of 16 bytes.

    If the source has more channels than engines, or the kernel has groups, a gap follows each row:
    2 cells or the stride of a channel, whichever is larger. A task that is not planar, with stride
    1 and one group, has one more cell. This is a guess from strides of 1, 2 and 4. L2 holds one
    group at a time.
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
    """Return the cell in L2 at which the second source begins, after the first: a multiple of 64
    bytes that is not on bank 0 of 16 (a guess).

    >>> [second_base(cells) for cells in (66, 528, 2048, 4128, 18816)]
    [68, 528, 2052, 4128, 18820]
    """
    lines = ceil_div(end, LINE)
    return LINE * (lines + (lines % BANKS == 0))


def in_l2(step: TaskStep, habits: Habits) -> bool:
    """True if the whole result lies in L2: small convolutions of early compilers."""
    return bool(habits.result_in_l2) and step.engine == CONVOLUTION and step.kernel.small


def log2_up(number: int) -> int:
    """Return the least n with 2**n >= number.

    >>> [log2_up(n) for n in (1, 2, 3, 64)]
    [0, 1, 2, 6]
    """
    return (number - 1).bit_length()


ROWS = read_rows(HERE / "tasks.csv")
# (First register, number of registers) of each record, in the order in which compilers write them.
RECORDS = (
    (0x1F800, 62),
    (0x00000, 16),
    (0x13800, 28),
    (0x04800, 18),
    (0x08800, 4),
    (0x0C800, 5),
    (0x17800, 7),
)
# The records of a task that states no places of coefficients.
COMPACT = ((0x1F800, 18), (0x1F8C8, 12), *RECORDS[1:])
SLOT = 0x100
NOT_EXACT = 13  # bit of DebugLogEvents that tables of sqrt, rsqrt, inv and log2 leave out


def job_of(
    step: TaskStep,
    chip: str,
    habits: Habits,
    number: int = 0,
    count: int = 1,
    slots: tuple[int, ...] = (0,),
) -> Job:
    """Return task ``number`` of ``count`` as register writes; ``slots`` are the bytes at which the
    tasks of a list begin."""
    registers = maps(chip)["H13"]
    words = registers.encode(values_of(step, habits, number, count, slots), raw=True)
    places = [HEADER + WORD_BYTES * i for i in range(H13.words)]
    for address, many in records_of(step, habits):
        places += [address + WORD_BYTES * i for i in range(many)]
    writes = [(place, int(words[registers.index[place]])) for place in places]
    return Job.from_writes("H13", writes, registers)


def records_of(step: TaskStep, habits: Habits) -> tuple[tuple[int, int], ...]:
    """Return first register and number of registers of each record."""
    if step.engines or not habits.compact:
        return RECORDS
    return COMPACT


def slots_of(steps: tuple[TaskStep, ...], habits: Habits) -> tuple[int, ...]:
    """Return the bytes at which the tasks of a list begin, and the end of the last task's slot."""
    out = [0]
    for step in steps:
        out.append(out[-1] + up(WORD_BYTES * words_in(step, habits), SLOT))
    return tuple(out)


def words_in(step: TaskStep, habits: Habits) -> int:
    """Return the number of words of a task: header, and each record with its first word."""
    return H13.words + sum(1 + many for _, many in records_of(step, habits))


def values_of(
    step: TaskStep, habits: Habits, number: int, count: int, slots: tuple[int, ...]
) -> dict[str, int]:
    """Return the raw values of a task by field; a field that no row sets is 0."""
    of = subject(step, habits, number, count, slots)
    values = {row.field: value for row, value in numbers_of(ROWS, of)}
    values |= kernel_source(step, habits) | dict(step.fields)
    return {name: value for name, value in values.items() if value}


def subject(step: TaskStep, habits: Habits, number: int, count: int, slots: tuple[int, ...]) -> Any:
    """Return the values to which rows of ``tasks.csv`` may refer, for a task."""
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
    """Return the bits of DebugLogEvents."""
    events = 0x68
    if last:
        events += 2
        if number == 0:
            events += 0xFFF800
    if step.exact:
        events -= 2**NOT_EXACT
    return events


def kernel_source(step: TaskStep, habits: Habits) -> dict[str, int]:
    """Return the fields that place each engine's coefficients; an engine that is off has the length
    of 64 bytes."""
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
