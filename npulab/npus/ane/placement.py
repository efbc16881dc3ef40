"""Work units, patches and tiles of a task of H13, and where its sources and result lie in L2."""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.ane.facts import ENGINES
from npulab.npus.ane.memory import HALF, UNIT, Surface
from npulab.npus.ane.steps import BYPASS, CONVOLUTION, Habits, Step
from npulab.npus.kit.numbers import ceil_div
from npulab.support.refuse import refuse_if

CELL = 16  # bytes of a stride in L2
L2_CELLS = 2 ** 21 // CELL  # 2 MiB
LINE, BANKS = UNIT // CELL, 16
# pixels (high, wide) of a work unit by the code of ShPref, ShMin and ShMax; the last one in
# small-source mode only
SHAPES = ((2, 128), (4, 64), (8, 32), (16, 16), (8, 8))
SMALL = len(SHAPES) - 1


class L2(NamedTuple):
    """Where sources and result of a task lie in L2, and their strides, in 16 bytes."""

    channel: int
    row: int
    depth: int
    second: int
    result: int
    result_channel: int
    result_row: int
    result_depth: int


def l2(step: Step, habits: Habits) -> L2:
    """Where sources and result lie in L2; ValueError if they take more than it has."""
    channel, row, depth = l2_strides(step, step.sources[0], habits)
    sources = row * l2_rows(step)
    second = second_base(sources)
    result = second + sources if len(step.sources) > 1 else sources
    strides = result_strides(step)
    end = result + strides[1] * step.result.height * in_l2(step, habits)
    refuse_if(end > L2_CELLS, "lower for ane", f"{CELL * end} bytes of L2 for one task",
              f"are {CELL * L2_CELLS}; how compilers split a larger one is not known")
    return L2(channel, row, depth, second, result, *strides)


def work_unit(step: Step, habits: Habits) -> tuple[int, int, int]:
    """Codes of the preferred, least and most shape of a work unit.

    A convolution has the shape that takes fewest units, where some take as many the narrowest that
    holds a row.  The order of the codes, and wider rows than 64, are a guess.
    """
    best = SMALL if step.small else fewest_units(step.result)
    if step.small or not (step.unicast or step.groups > 1):
        return best, best, best
    if habits.fixed_shapes:
        return 1, min(1, best), 1
    return 0, 0, best


def fewest_units(result: Surface) -> int:
    """The code of the shape that takes fewest units of a tensor.

    >>> [fewest_units(Surface(size, size, 1)) for size in (1, 16, 17, 32, 64)], fewest_units(Surface(1, 77, 1))
    ([3, 3, 2, 2, 1], 0)
    """
    taken = [ceil_div(result.height, high) * ceil_div(result.width, wide) for high, wide in SHAPES[:SMALL]]
    codes = [code for code, many in enumerate(taken) if many == min(taken)]
    return max((code for code in codes if SHAPES[code][1] >= result.width), default=codes[-1])


def l2_strides(step: Step, source: Surface, habits: Habits) -> tuple[int, int, int]:
    """Strides of channels, rows and depth of a source: rows of more channels than engines are set
    apart.

    By 2 cells or a channel's stride, in a neural task of stride 1 by one cell more: a guess from
    strides of 1, 2 and 4. Of groups one lies there at a time.
    """
    wide = 2 ** patch_width(step) if step.planar else \
        max(SHAPES[work_unit(step, habits)[1]][1], 0 if step.engine == BYPASS else source.width)
    channel = ceil_div(HALF * min(source.width, wide), CELL)
    depth = source.channels // step.groups * channel
    if source.channels <= ENGINES and step.groups == 1:
        return channel, depth, depth
    more = not step.planar and step.stride == (1, 1) and step.groups == 1
    return channel, depth + max(2, channel) + more, depth


def result_strides(step: Step) -> tuple[int, int, int]:
    """Strides of channels, rows and depth of a result in L2."""
    channel = ceil_div(HALF * step.result.width, CELL)
    depth = step.result.channels * channel
    return channel, depth + (max(2, channel) if step.result.channels > ENGINES else 0), depth


def second_base(end: int) -> int:
    """Where the second source lies behind the first: at 64 bytes, not on the first one's bank of 16
    (a guess).

    >>> [second_base(cells) for cells in (66, 528, 2048, 4128, 18816)]
    [68, 528, 2052, 4128, 18820]
    """
    lines = ceil_div(end, LINE)
    return LINE * (lines + (lines % BANKS == 0))


def in_l2(step: Step, habits: Habits) -> bool:
    """Whether the result lies in L2 as a whole: small convolutions of early compilers."""
    return bool(habits.result_in_l2) and step.engine == CONVOLUTION and step.small


def patch_width(step: Step) -> int:
    """log2 of the width of a planar task's patch, 16 to 512 pixels."""
    return min(max(log2_up(step.result.width), 4), 9)


def patch_height(step: Step) -> int:
    """log2 of the rows of a planar task's patch: those of the tile where they are a power of two,
    else one row."""
    rows = tile_height(step)
    return log2_up(rows) if rows == 2 ** log2_up(rows) else 0


def l2_rows(step: Step) -> int:
    """Rows of a source in L2."""
    return min(tile_height(step), step.sources[0].height) if step.planar else step.sources[0].height


def tile_height(step: Step) -> int:
    """Rows of output of a tile: all of them; 32 in planar tasks whose sources do not fit into
    L2."""
    rows = step.result.height
    if not step.planar:
        return rows
    channel = ceil_div(HALF * min(step.sources[0].width, 2 ** patch_width(step)), CELL)
    fits = len(step.sources) * rows * (step.sources[0].channels * channel + 2) < L2_CELLS
    return rows if fits else min(rows, 32)


def log2_up(number: int) -> int:
    """The least n with 2**n >= number.

    >>> [log2_up(n) for n in (1, 2, 3, 64)]
    [0, 1, 2, 6]
    """
    return (number - 1).bit_length()
