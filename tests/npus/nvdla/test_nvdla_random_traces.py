"""Traces of random jobs, computed by plain integer code; broken files, maps and commands."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import shared
from nvdla_by_hand import ATOMS, PIXELS, Trace, random_stage

from npulab import cli

BYPASSED = {
    "bypass": True,
    "alu_bypass": False,
    "algo": 2,
    "mul_bypass": False,
    "prelu": 0,
    "relu_bypass": False,
    "alu_shift": 3,
    "mul_shift": 5,
    "alu": 0x1234,
    "mul": -77,
    "alu_memory": None,
    "mul_memory": None,
}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))]
CHIPS = tuple(ATOMS)
LOOKS_UP = ("nv_small", "nv_small_256_full", "nv_medium_1024_full", "nv_large")
PLAIN: dict[str, Any] = {"BS": BYPASSED, "BN": BYPASSED, "EW": BYPASSED, "out": (0, 1, 0)}


def lines(
    capsys: pytest.CaptureFixture[str], *arguments: Any
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, the JSON lines and what was said beside them."""
    status = cli.main([str(a) for a in arguments])
    told = capsys.readouterr()
    return status, [json.loads(line) for line in told.out.splitlines()], told.err


def trace(chip: str, seed: int = 0) -> Trace:
    return Trace(chip, shared("facts/nvdla_fields.csv"), seed)


def stages(rng: random.Random, element: bool = True) -> dict[str, Any]:
    return {
        "BS": random_stage(rng),
        "BN": random_stage(rng),
        "EW": random_stage(rng, True) if element else BYPASSED,
        "out": (rng.randrange(-50, 50), rng.randrange(1, 2**15), rng.randrange(8, 16)),
    }


def equal(
    capsys: pytest.CaptureFixture[str], made: Trace, folder: Path, chip: str, packed: bool = False
) -> None:
    made.write(folder / chip, "case", packed)
    status, told, said = lines(capsys, "check", "--json", folder / chip)
    # a range of 0 or of 0xFF throughout is what memory may hold before a job ran
    ranges = [made.memory.bytes(*check) for check in made.checks]
    unwritten = any(set(stored) in ({0}, {0xFF}) for stored in ranges)
    verdict = "one value" if unwritten else "equal"
    assert [(t["case"], t["verdict"], t["mismatches"], t["compared"]) for t in told] == [
        ("case", verdict, 0, sum(size for _, size in made.checks))
    ], (told, said)
    assert status == 0


def convolutions(made: Trace) -> None:
    """Three in one trace: stride, dilation, padding, gaps, short last groups and blocks."""
    rng = made.random
    for _ in range(3):
        c, k = (
            rng.choice([1, 5, made.atomic_c, made.atomic_c + 3]),
            rng.choice([2, made.atomic_k, made.atomic_k + 1]),
        )
        made.convolution(
            (rng.randrange(3, 6), rng.randrange(3, 6), c),
            (k, rng.randrange(1, 3), rng.randrange(1, 4)),
            stages(rng, False),
            (rng.randrange(1, 3), rng.randrange(1, 3)),
            (rng.randrange(1, 3), rng.randrange(1, 3)),
            ((rng.randrange(1, 3), rng.randrange(2)), (rng.randrange(1, 3), rng.randrange(3))),
            rng.randrange(-128, 128),
            rng.randrange(8),
            (rng.randrange(3), rng.randrange(2)),
        )


def operands(made: Trace) -> None:
    """SDP with operands of every kind."""
    rng = made.random
    for _ in range(4):
        shape = rng.randrange(1, 4), rng.randrange(1, 4), rng.randrange(1, 2 * made.atom + 2)
        how = stages(rng)
        for name in ("BS", "BN", "EW"):
            if rng.random() < 0.6:
                element, size = rng.random() < 0.5, rng.choice([1, 2])
                uses = rng.choice([["mul"], ["alu"]])
                for use in uses:
                    how[name][f"{use}_memory"] = made.in_memory(shape, element, size)
                    if name == "EW" and rng.random() < 0.5:
                        how[name][f"{use}_convert"] = (
                            rng.randrange(-99, 99),
                            rng.randrange(-99, 99),
                            rng.randrange(8),
                        )
        made.sdp_alone(shape, how, (rng.randrange(3), rng.randrange(2)))


def random_table(rng: random.Random, exponent: bool, steep: int) -> dict[str, Any]:
    """Two tables that cover a part of the inputs; no input is exactly a start."""

    def slope() -> tuple[int, int]:
        return rng.randrange(-300, 300), rng.randrange(-2, 9)

    le_select, lo_select, offset = rng.randrange(-1, 4), rng.randrange(-1, 3), rng.randrange(-2, 4)
    le_start, lo_start = (rng.randrange(-40, 20) * 2 + 1 for _ in range(2))
    return {
        "exponent": exponent,
        "le_offset": offset,
        "le_select": le_select,
        "lo_select": lo_select,
        "le": [rng.randrange(-steep, steep) for _ in range(65)],
        "lo": [rng.randrange(-steep, steep) for _ in range(257)],
        "le_start": le_start,
        "lo_start": lo_start,
        "lo_end": lo_start + int(256 * 2.0**lo_select),
        "le_end": le_start + (2**20 if exponent else int(64 * 2.0**le_select)),
        "le_under": slope(),
        "le_over": slope(),
        "lo_under": slope(),
        "lo_over": slope(),
        "under_first": rng.randrange(2),
        "over_first": rng.randrange(2),
        "both_first": rng.randrange(2),
    }


def tables(made: Trace) -> None:
    rng = made.random
    for i in range(8):
        doubled = BYPASSED | {
            "bypass": False,
            "alu_bypass": True,
            "mul": 2,
            "mul_shift": 0,
            "relu_bypass": True,
        }
        look = BYPASSED | {
            "bypass": False,
            "alu_bypass": True,
            "mul_bypass": True,
            "mul_shift": 0,
            "table": random_table(rng, bool(i % 2), 2**15),
        }
        made.sdp_alone((4, 5, 9), PLAIN | {"BS": doubled, "EW": look, "out": (3, 1, 7)})


def reached(size: int, kernel: int, stride: int, pad: tuple[int, int]) -> tuple[int, int]:
    """The padding that windows reach; what is more shifts the lines of nv_small's PDP, which these
    traces, of plain windows, do not say."""
    before, after = pad
    last = (size + before + after - kernel) // stride
    return before, max(last * stride + kernel - size - before, 0)


def pools(made: Trace) -> None:
    """Alone, and fed by SDP and by a convolution through SDP."""
    rng = made.random
    for i in range(5):
        method = (i + made.seed) % 3
        kernel = rng.randrange(2, 5), rng.randrange(2, 5)
        pad = tuple((rng.randrange(min(k, 3)), rng.randrange(min(k, 3))) for k in kernel)
        stride = rng.randrange(1, 4), rng.randrange(1, 4)
        how = {
            "method": method,
            "kernel": kernel,
            "stride": stride,
            "pad": tuple(map(reached, (6, 7), kernel, stride, pad)),
            "sums": [rng.randrange(-500, 500) for _ in range(7)],
            "gap": (rng.randrange(2), rng.randrange(2)),
        }
        shape = 6, 7, rng.randrange(1, made.atom + 3)
        if i < 3:
            made.pooling(shape, how, (i, 0))
        elif i == 3:
            made.sdp_alone(shape, stages(rng), pool=how)
        else:
            made.convolution(shape, (3, 1, 1), stages(rng, False), truncate=3, pool=how)


def normalisations(made: Trace) -> None:
    rng = made.random
    for i in range(8):
        look = random_table(rng, bool(i % 2), 2**9)
        look |= {"lo_select": rng.randrange(4, 9), "lo_end": look["lo_start"] + 256 * 2**8}
        made.normalization(
            (1, 2, 2 * made.atom),
            {
                "length": i % 4,
                "square_bypass": i == 5,
                "mul_bypass": i in (5, 6),
                "table": look,
                "in": (rng.randrange(-20, 20), rng.randrange(1, 9), rng.randrange(3)),
                "out": (rng.randrange(-99, 99), rng.randrange(1, 30), rng.randrange(5, 9)),
            },
        )


def two_bytes(made: Trace) -> None:
    """A convolution, SDP and pooling of two bytes an element."""
    rng = made.random
    made.convolution(
        (4, 5, rng.choice([3, 65])),
        (rng.choice([5, 17]), 2, 2),
        stages(rng, False),
        (1, 2),
        (2, 1),
        ((1, 0), (1, 1)),
        rng.randrange(-(2**15), 2**15),
        12,
        (1, 1),
    )
    made.sdp_alone((2, 3, 19), stages(rng), (1, 0))
    made.pooling(
        (5, 5, 17),
        {
            "method": made.seed % 3,
            "kernel": (3, 2),
            "stride": (1, 2),
            "pad": ((1, 1), (1, 0)),
            "sums": [rng.randrange(-(2**15), 2**15) for _ in range(7)],
        },
    )


BUILDS = {
    convolutions: CHIPS,
    operands: CHIPS,
    tables: LOOKS_UP,
    pools: CHIPS,
    normalisations: LOOKS_UP,
}
ASKED = {CHIPS: ("nv_small_256", "nv_medium_1024_full", "nv_large"), LOOKS_UP: ("nv_small",)}
# Each build on its chips with twelve seeds; chips of ASKED with the first seed in every run.
LOT: list[Any] = []
for _build, _chips in BUILDS.items():
    for _chip, _seed in product(_chips, range(12)):
        _case = pytest.param(_build, _chip, _seed, marks=pytest.mark.long)
        if _seed == 0 and _chip in ASKED[_chips]:
            _case = pytest.param(_build, _chip, _seed)
        LOT.append(_case)


@pytest.mark.parametrize(("build", "chip", "seed"), LOT)
def test_traces_of_random_jobs(
    build: Callable[[Trace], None],
    chip: str,
    seed: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = trace(chip, seed)
    build(made)
    equal(capsys, made, tmp_path, chip, packed=bool(seed))


@pytest.mark.sample(3)
@pytest.mark.parametrize("pixel", PIXELS)
def test_images_of_every_pixel_order(
    pixel: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trace(list(ATOMS)[pixel % 6], pixel)
    rng = made.random
    for signs in (0, 1):
        how = {
            "format": pixel,
            "signed": signs,
            "offset": rng.randrange(-99, 99),
            "scale": rng.randrange(-9, 9) or 5,
            "shift": rng.randrange(5),
        }
        if signs == pixel % 2:
            how["means"] = [rng.randrange(-200, 200) for _ in range(4)]
        made.convolution((4, 6, 4), (3, 2, 3), stages(rng, False), (1, 2), pixel=how, truncate=2)
    equal(capsys, made, tmp_path, list(ATOMS)[pixel % 6])


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_of_int16(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the register file of the full configuration."""
    made = trace("nv_full", seed)
    two_bytes(made)
    made.write_transactions(tmp_path / "nvdlav1", "int16")
    status, told, said = lines(capsys, "check", "--json", tmp_path)
    assert [(t["case"], t["verdict"], t["mismatches"], t["compared"]) for t in told] == [
        ("int16", "equal", 0, sum(size for _, size in made.checks))
    ], (told, said)
    assert status == 0


def test_every_trace_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared("data/nvdla")
    status, told, said = lines(capsys, "check", "--json", folder)
    cases = json.loads((folder / "cases.json").read_text())
    assert status == 0
    assert {one["case"] for one in told} == {name.split("/")[-1] for name in cases}
    # a trace whose golden memory is nothing but 0 tells nothing of a job that never wrote it
    zeros = {"dc_8x8x32_1x1x32x32_int8_0"}
    assert {one["case"] for one in told if one["verdict"] == "one value"} == zeros, said
    assert [one["verdict"] for one in told if one["case"] not in zeros] == ["equal"] * 31, said
    assert {
        (one["target"], one["words"], one["mismatches"], one["provenance"]) for one in told
    } == {("nvdla", "equal", 0, "RTL simulation")}
    golden = {"conv_8x8_fc_int16", "pdp_max_pooling_int16", "sdp_relu_int16"}
    compared = {one["case"]: one["compared"] for one in told}
    assert sorted(compared[name] for name in golden) == [32, 4096, 6272]
    for name, case in cases.items():
        short = name.split("/")[-1]
        if short not in golden:
            assert compared[short] == sum(check["size"] for check in case["checks"]), name
