"""PDP as a stream of lines: RTL captures, and where the stream is not that of plain windows."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from conftest import CAPTURES, shared

import npulab
from npulab.captures.target import Hang, Unsupported
from npulab.npus.nvdla.simulate import mutated, replay, simulate
from npulab.npus.nvdla.units import pdp
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.pool_stream import (
    SIDES,
    Course,
    courses,
    passed_along,
    passed_down,
    plain,
    streamed,
)
from npulab.npus.nvdla.writing import as_trace

LANES = 8
PDP_RTL = "data/nvdla_rtl/captures"
NAMES = {
    "in": "PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}",
    "out": "PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}",
    "kernel": "PDP.D_POOLING_KERNEL_CFG.KERNEL_{0}",
    "stride": "PDP.D_POOLING_KERNEL_CFG.KERNEL_STRIDE_{0}",
    "recip": "PDP.D_RECIP_KERNEL_{0}.RECIP_KERNEL_{0}",
}
CHANNEL = "PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL"
METHOD = "PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"


def job(rows: Course, columns: Course, surfaces: int = 1, **changes: int) -> Fields:
    """Fields of windows that move so, maxima of random elements if nothing else is said."""
    values = {CHANNEL: surfaces * LANES - 1, METHOD: pdp.MAX}
    for course in (rows, columns):
        name = course.name
        values[NAMES["in"].format(name)] = course.size - 1
        values[NAMES["out"].format(name)] = course.out - 1
        values[NAMES["kernel"].format(name)] = course.kernel - 1
        values[NAMES["stride"].format(name)] = course.stride - 1
        values[NAMES["recip"].format(name)] = 2**16 // course.kernel
        for side, pad in zip(SIDES[name], (course.before, course.after), strict=True):
            values[f"PDP.D_POOLING_PADDING_CFG.PAD_{side}"] = pad
    return Fields(values | changes, {"memory_atom": LANES})


def data(fields: Fields, seed: int = 0) -> np.ndarray:
    rows, columns = courses(fields)
    surfaces = fields[CHANNEL] // LANES + 1
    shape = surfaces, rows.size, columns.size, LANES
    return np.random.default_rng(seed).integers(-128, 128, shape)


def windows(fields: Fields, x: np.ndarray) -> np.ndarray:
    """What units/pdp.py makes of it."""
    rows, columns = courses(fields)
    sizes = rows.size, columns.size, x.shape[0] * LANES
    out = rows.out, columns.out, x.shape[0] * LANES
    return pdp.pooled(fields, x, *pdp.axes(fields, sizes, out))


def drawn(draw: random.Random, name: str, most: int) -> Course:
    """Windows of any size, with up to ``most`` elements of padding at the end; often less than a
    kernel of it.
    """
    kernel = draw.randrange(1, 9)
    stride = draw.choice([1, 1, 2, 2, 3, 4, draw.randrange(1, 17)])
    before, after = draw.randrange(kernel), min(draw.randrange(kernel), most)
    if draw.random() < 0.2:
        after = draw.randrange(most + 1)
    size = max(draw.randrange(1, draw.choice([4, 9, 16])), kernel - before - after)
    course = Course(name, size, 1, kernel, stride, before, after)
    return replace(course, out=course.windows)


def drawn_job(draw: random.Random, surfaces: int, most: int = 7) -> Fields:
    """A job with any method, reciprocals and values of the padding."""
    changes = {METHOD: draw.choice([pdp.AVERAGE, pdp.AVERAGE, pdp.MAX, pdp.MIN])}
    for n in range(1, 8):
        pad = draw.choice([0, n * draw.randrange(-9, 9) % 2**19])
        changes[f"PDP.D_POOLING_PADDING_VALUE_{n}_CFG.PAD_VALUE_{n}X"] = pad
    rows, columns = (drawn(draw, name, most) for name in SIDES)
    return job(rows, columns, surfaces, **changes)


def test_captures_of_the_rtl() -> None:
    """One by one byte, among them two of which plain windows differ."""
    counts = {True: 0, False: 0}
    for path in sorted(shared(PDP_RTL).iterdir()):
        if not path.name.endswith(("-pool", "-average")):
            continue
        capture = npulab.load(path)
        fields = Fields.of(capture.jobs[0], npulab.target("nvdla").chips[capture.chip])
        rows, columns = courses(fields)
        shape = -1, rows.size, columns.size, LANES
        x = np.frombuffer(capture.buffers["input"], np.int8).reshape(shape).astype(np.int64)
        y = streamed(fields, x)
        assert y.astype(np.int8).tobytes() == capture.buffers["output"], path.name
        assert np.array_equal(y, windows(fields, x)) or not plain(fields), path.name
        counts[plain(fields)] += 1
    assert sum(counts.values()) >= 14
    assert counts[False] >= 2


def padded(method: int, bottom: int, right: int) -> npulab.Capture:
    """A capture with other padding at the end: windows of 3 x 3 that reach one row and one
    column of it."""
    good = npulab.load(CAPTURES / "nvdla" / "sim-max-pool")
    fields = {
        "POOLING_METHOD": method,
        "RECIP_KERNEL_WIDTH": 7282,
        "RECIP_KERNEL_HEIGHT": 65536,
        "D_POOLING_PADDING_CFG.PAD_BOTTOM": bottom,
        "D_POOLING_PADDING_CFG.PAD_RIGHT": right,
    }
    return good.with_fields(**fields)


@pytest.mark.parametrize("method", [pdp.AVERAGE, pdp.MAX])
def test_a_trace_runs_as_the_device_does(method: int) -> None:
    """With any padding at the end: the same bytes, or both hang."""
    counts = {"same bytes": 0, "other bytes": 0, "hangs": 0}
    fitting = simulate(padded(method, 1, 1))
    for bottom, right in product(range(8), repeat=2):
        capture = padded(method, bottom, right)
        try:
            output = simulate(capture)
        except Hang as hang:
            counts["hangs"] += 1
            with pytest.raises(ValueError, match=re.escape(f"operation 0: {hang}")):
                replay(as_trace(capture))
            continue
        (found,) = replay(as_trace(capture))
        assert found.predicted == output, (bottom, right)
        counts["same bytes" if output == fitting else "other bytes"] += 1
    assert counts["same bytes"] >= 1
    assert min(counts["other bytes"], counts["hangs"]) >= 5, counts


def test_a_changed_rounding_reaches_a_stream() -> None:
    capture = npulab.Simulated().record(padded(pdp.AVERAGE, 1, 3))
    assert not plain(Fields.of(capture.jobs[0], npulab.target("nvdla").chips[capture.chip]))
    stays = mutated(capture)
    assert (stays["none"], stays["floor"], stays["toward zero"]) == (True, False, False)


def test_plain_jobs_are_plain_windows() -> None:
    draw, count = random.Random(0), 0
    while count < 200:
        fields = drawn_job(draw, draw.choice([1, 2, 3]), draw.choice([2, 7]))
        if plain(fields):
            x = data(fields, count)
            assert np.array_equal(streamed(fields, x), windows(fields, x)), courses(fields)
            count += 1


def test_other_jobs_differ_or_hang() -> None:
    draw, counts = random.Random(1), {"plain": 0, "differs": 0, "hangs": 0, "no tap": 0}
    for seed in range(300):
        fields = drawn_job(draw, draw.choice([2, 3, 4]))
        x = data(fields, seed)
        try:
            same = np.array_equal(streamed(fields, x), windows(fields, x))
            result = "plain" if same else "differs"
        except Hang:
            result = "hangs"
        except Unsupported:  # of pdp: a window without an element
            result = "no tap"
        assert plain(fields) == (result == "plain"), courses(fields)
        counts[result] += 1
    assert min(counts.values()) >= 15, counts


# The windows leave one line of the padding; 3 outputs a row.
SURPLUS, COLUMNS = Course("HEIGHT", 4, 2, 3, 2, 0, 2), Course("WIDTH", 3, 3, 3, 1, 1, 1)
# One line and a padding in front of it that is less than a kernel; nothing is flushed.
SHORT = Course("HEIGHT", 1, 2, 7, 2, 3, 6)
# A second window opens with the first line; one output is asked for.
UNASKED = Course("HEIGHT", 3, 1, 4, 3, 3, 0)


def test_surplus_lines_spoil_the_next_surface() -> None:
    fields = job(SURPLUS, COLUMNS)
    x = data(fields)
    assert not plain(fields)
    assert np.array_equal(streamed(fields, x), windows(fields, x))
    fields = job(SURPLUS, COLUMNS, surfaces=2)
    x = data(fields)
    y, wanted = streamed(fields, x), windows(fields, x)
    assert np.array_equal(y[0], wanted[0])
    # The surplus line is that of an older window, and the surface's own follow.
    assert np.array_equal(y[1, 1], wanted[1, 0])
    assert not np.array_equal(y[1, 0], wanted[1, 0])


def test_high_bits_of_a_kernel_count_nothing() -> None:
    fields = job(replace(SURPLUS, after=1), COLUMNS)
    high = Fields({**fields.values, NAMES["kernel"].format("HEIGHT"): 8 + 2}, fields.features)
    x = data(fields)
    assert plain(fields)
    assert not plain(high)
    assert np.array_equal(streamed(high, x), windows(fields, x))


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (
            SURPLUS,
            COLUMNS,
            "PDP: surplus lines fill the pipe before the input is in: PDP.D_POOLING_PADDING_CFG.PAD_BOTTOM is 2, allowed is 1",
        ),
        (
            UNASKED,
            COLUMNS,
            "PDP: surplus lines fill the pipe before the input is in: PDP.D_POOLING_PADDING_CFG.PAD_TOP is 3, allowed are 0 to 2",
        ),
        (
            replace(SURPLUS, after=1, out=1),
            COLUMNS,
            "PDP: surplus lines fill the pipe before the input is in: PDP.D_DATA_CUBE_OUT_HEIGHT.CUBE_OUT_HEIGHT is 0, allowed is 1",
        ),
        (
            SHORT,
            COLUMNS,
            "PDP: the windows give 4 lines, 8 are waited for: PDP.D_POOLING_PADDING_CFG.PAD_BOTTOM is 6, allowed is 5",
        ),
        (
            replace(SURPLUS, after=1),
            replace(COLUMNS, out=4),
            "PDP: the windows give 6 lines, 8 are waited for: PDP.D_DATA_CUBE_OUT_WIDTH.CUBE_OUT_WIDTH is 3, allowed is 2",
        ),
        (
            replace(SHORT, before=0, after=0),
            COLUMNS,
            "PDP: the windows give 4 lines, 8 are waited for: PDP.D_POOLING_KERNEL_CFG.KERNEL_HEIGHT is 6, allowed are 0 to 0",
        ),
    ],
)
def test_hangs_say_why(rows: Course, columns: Course, words: str) -> None:
    fields = job(rows, columns, surfaces=4)
    with pytest.raises(Hang) as told:
        streamed(fields, data(fields))
    assert str(told.value) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"PDP.D_POOLING_PADDING_CFG.PAD_LEFT": 3},
            "PDP.D_POOLING_PADDING_CFG.PAD_LEFT is 3, covered are 0 to 2 as PDP.D_POOLING_KERNEL_CFG.KERNEL_WIDTH says",
        ),
        (
            {"PDP.D_OPERATION_MODE_CFG.SPLIT_NUM": 1},
            "PDP.D_OPERATION_MODE_CFG.SPLIT_NUM is 1, covered is 0",
        ),
        ({"PDP.D_DATA_FORMAT.INPUT_DATA": 1}, "PDP.D_DATA_FORMAT.INPUT_DATA is 1, covered is 0"),
    ],
)
def test_what_no_stream_is_known_of(changes: dict[str, int], words: str) -> None:
    fields = job(SURPLUS, COLUMNS, **changes)
    with pytest.raises(Unsupported) as told:
        streamed(fields, data(fields))
    assert str(told.value) == words


def reached(course: Course, count: int) -> list[tuple[int, int]] | None:
    """First element and end of each window of ``count`` rows, None if one has no element."""
    found = []
    for row, output in product(range(count), range(course.out)):
        first = output * course.stride - course.before
        begin, end = max(first, 0), min(first + course.kernel, course.size)
        if begin >= end:
            return None
        found.append((row * course.size + begin, row * course.size + end))
    return found


def follows(course: Course, count: int = 3) -> None:
    """What ``regular`` says of a course is what windows come along it."""
    if course.name == "WIDTH":
        outputs = passed_along(course, count).outputs
        alike = any(output.alike for output in outputs)
        pairs = [output.window for output in outputs]
        # Rows are not told apart: those behind the last count as well.
        length = len(pairs)
    else:
        steps = passed_down(course, count, count * course.size).steps
        given = [step for step in steps if step.gives]
        alike = any(step.window.stop and step.older.stop for step in given)
        pairs = [max(step.window, step.older) for step in given]
        length = count * course.out
    got = [(window.begin, window.stop) for window in pairs[:length]]
    assert course.regular == (not alike and got == reached(course, count)), course


@pytest.mark.parametrize("name", SIDES)
def test_regular_courses_give_their_windows(name: str) -> None:
    draw = random.Random(2)
    for _ in range(1000):
        follows(drawn(draw, name, 7))


@pytest.mark.long
@pytest.mark.parametrize("name", SIDES)
def test_every_regular_course_gives_its_windows(name: str) -> None:
    for size, kernel, stride, after in product(range(1, 18), range(1, 9), range(1, 17), range(8)):
        for before in range(kernel):
            course = Course(name, size, 1, kernel, stride, before, after)
            if course.windows >= 1:
                follows(replace(course, out=course.windows))
