"""The simulated device and every changed rule against layers that are computed element by
element beside the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_tables import fields
from conftest import shared
from nvdla_by_hand import Trace
from test_nvdla_random_traces import (
    BYPASSED,
    PLAIN,
    normalisations,
    random_table,
    stages,
    tables,
    two_bytes,
)

from npulab.captures.capture import Capture
from npulab.npus.nvdla import imported
from npulab.npus.nvdla.facts import FACTS
from npulab.npus.nvdla.rules import MUTATIONS
from npulab.npus.nvdla.simulate import Staying, replay

PAD = ((2, 1), (1, 2))
MULTIPLIES = BYPASSED | {"bypass": False, "alu_bypass": True, "relu_bypass": True}
# a shift although the multiplier is passed by, and an output of most values that come
SHIFTS = MULTIPLIES | {"mul_bypass": True, "mul_shift": 2}
SEEN: dict[str, Any] = PLAIN | {"BS": SHIFTS, "out": (0, 3, 10)}
Made = tuple[Trace, Capture]


def convolutions(made: Trace) -> None:
    for kernels in ((9, 2, 3), (3, 3, 1)):
        made.convolution(
            (5, 5, made.atomic_c + 3), kernels, SEEN, (1, 2), (2, 1), PAD, -77, 3, (1, 1)
        )


def image(made: Trace) -> None:
    made.convolution(
        (4, 6, 4),
        (3, 2, 3),
        SEEN,
        (1, 2),
        truncate=2,
        pixel=fields("format=12 signed=0 offset=17 scale=3 shift=1"),
    )


def points(made: Trace) -> None:
    for _ in range(3):
        by_place = MULTIPLIES | {"mul_shift": 9, "mul_memory": made.in_memory((3, 3, 19), True, 2)}
        by_channel = MULTIPLIES | {
            "mul_shift": 14,
            "mul_convert": (13, 21, 3),
            "table": None,
            "mul_memory": made.in_memory((3, 3, 19), False, 2),
        }
        made.sdp_alone(
            (3, 3, 19), PLAIN | {"BN": by_place, "EW": by_channel, "out": (0, 1, 6)}, (2, 1)
        )
    made.sdp_alone((3, 3, 19), stages(made.random))


def wide(made: Trace) -> None:
    """A product past 32 bits between the stages."""
    by = MULTIPLIES | {"mul": 2**15 - 1, "mul_shift": 0}
    made.sdp_alone((3, 3, 19), PLAIN | {"BS": by, "BN": by, "out": (0, 1, 25)})


def steep(made: Trace) -> None:
    """Entries so far apart that 16 bits of the way between them do not do."""
    table = random_table(made.random, False, 2**15)
    for name, entries in (("le", 64), ("lo", 256)):
        table |= {
            f"{name}_select": 20,
            f"{name}_start": -entries * 2**19,
            f"{name}_end": entries * 2**19,
        }
    look = BYPASSED | {"bypass": False, "alu_bypass": True, "mul_bypass": True, "table": table}
    made.sdp_alone(
        (4, 5, 40),
        PLAIN | {"BS": MULTIPLIES | {"mul": 1001, "mul_shift": 0}, "EW": look, "out": (0, 1, 0)},
    )


def pools(made: Trace) -> None:
    for method, kernel in enumerate(((2, 4), (3, 3), (3, 2))):
        how = {
            "method": method,
            "kernel": kernel,
            "stride": (1, 2),
            "pad": ((1, 1), (1, 0)),
            "gap": (1, 1),
            "sums": [made.random.randrange(-500, 500) for _ in range(7)],
        }
        made.pooling((6, 7, 11), how, (1, 0))
        made.sdp_alone((6, 7, 11), stages(made.random), pool=how)
        made.convolution((6, 7, 11), (3, 1, 1), SEEN, truncate=3, pool=how)


CASES = {
    "nv_small": (convolutions, image, points, wide, tables, pools, normalisations),
    "nv_full": (two_bytes, steep),
}
# which changed rules each case catches at least
CAUGHT = {
    "convolutions": {
        "floor",
        "toward zero",
        "weights as plain K, R, S, C",
        "kernel rows and columns swapped",
        "pad value 0",
        "no shift while the multiplier is bypassed",
    },
    "image": {"floor", "weights as plain K, R, S, C"},
    "points": {"floor", "padding lanes as zero", "floor in tables and EW"},
    "wide": {"no 32-bit saturation"},
    "tables": {
        "floor in tables and EW",
        "half up in tables and EW",
        "priorities of tables ignored",
    },
    "steep": {"16-bit fraction in the SDP's tables"},
    "pools": {"floor", "half up", "half to even", "toward zero"},
    "normalisations": {
        "no 9-bit saturation in CDP",
        "floor in CDP's converters",
        "half up in CDP's converters",
        "floor in tables and EW",
    },
    "two_bytes": {"floor", "weights as plain K, R, S, C", "pad value 0"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """By case: the trace as it was written and computed by hand, and as it was read."""
    out: dict[str, Made] = {}
    for chip, cases in CASES.items():
        for seed, case in enumerate(cases):
            folder: Path = tmp_path_factory.mktemp(case.__name__)
            layers = Trace(chip, shared("facts/nvdla_fields.csv"), seed)
            case(layers)
            write: Any = layers.write if chip == "nv_small" else layers.write_transactions
            write(folder / ("nv_small" if chip == "nv_small" else "nvdlav1"), case.__name__)
            (capture,) = imported.read(folder).values()
            out[case.__name__] = layers, capture
    return out


@pytest.mark.parametrize("case", CAUGHT)
def test_the_device_leaves_what_is_computed_by_hand(made: dict[str, Made], case: str) -> None:
    layers, capture = made[case]
    # the traces use Y, which nv_small lacks
    features = {**FACTS.features(capture.chip), "ew": 1}
    memory, place = Staying(features).executed(capture)
    name = capture.parameters["memory"][0]["memory"]
    for base, size in layers.checks:
        assert memory.read(name, base, size).tobytes() == layers.memory.bytes(base, size)
    assert Staying(features).output(capture) == layers.memory.bytes(place.base, place.size)


@pytest.mark.parametrize("case", CAUGHT)
def test_changed_rules_are_caught(made: dict[str, Made], case: str) -> None:
    """Against the bytes by hand; the rules as they are leave none that differs."""
    differ = {
        rule
        for rule in {"none", *CAUGHT[case]}
        if any(one.differing for one in replay(made[case][1], MUTATIONS[rule]))
    }
    assert differ == CAUGHT[case]


def test_every_changed_rule_is_caught_but_one_that_nothing_tells() -> None:
    """17 bits behind the output converter are limited to 8 or 16 at once, whatever the value."""
    assert {*MUTATIONS} - set().union(*CAUGHT.values()) == {"none", "no 17-bit saturation"}
