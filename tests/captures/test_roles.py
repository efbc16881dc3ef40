"""Roles of jobs in streams: what was planted in random streams is found, one job stays plain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, shared

import npulab
from npulab.captures.capture import Capture, Job
from npulab.captures.roles import COUNT, INDEX, roles
from npulab.registers.map import RegisterMap

LOAD = RegisterMap(
    [
        {"block": "LOAD", "offset": 0, "field": "memory", "lsb": 0, "width": 3},
        {"block": "LOAD", "offset": 0, "field": "size", "lsb": 8, "width": 16},
        {"block": "LOAD", "offset": 4, "field": "base", "lsb": 0, "width": 32},
    ]
)
MULTIPLY = RegisterMap(
    [{"block": "MULTIPLY", "offset": 0, "field": "count", "lsb": 0, "width": 16}]
)
MAPS = {"LOAD": LOAD, "MULTIPLY": MULTIPLY}


def load(rng: np.random.Generator, memory: int) -> Job:
    """A LOAD: what it reads decides how large its numbers are."""
    size = int(rng.integers(1, 8)) + 1000 * memory
    return Job("LOAD", LOAD.encode({"memory": memory, "size": size, "base": size * 16}))


def multiply(rng: np.random.Generator) -> Job:
    return Job("MULTIPLY", MULTIPLY.encode({"count": int(rng.integers(1, 50))}))


def capture(name: str, jobs: list[Job], **parameters: int) -> Capture:
    return Capture(name, "demo", "x", tuple(jobs), parameters=parameters, maps=MAPS)


def striped(rng: np.random.Generator, number: int) -> tuple[Capture, list[str]]:
    """A layer in stripes, with a load of biases that only some layers have; and its roles."""
    stripes = 1 + number % 4
    jobs, names = [load(rng, 1)], ["weights"]
    if number % 3 == 0:
        jobs.append(load(rng, 2))
        names.append("biases")
    for _ in range(stripes):
        jobs += [load(rng, 0), multiply(rng)]
        names += ["inputs", "multiply"]
    jobs.append(load(rng, 3))
    names.append("end")
    return capture(f"c{number}", jobs, input_w=8 * stripes, bias=int(number % 3 == 0)), names


def test_stripes_and_optional_jobs_have_their_roles() -> None:
    rng = np.random.default_rng(3)
    made = [striped(rng, number) for number in range(24)]
    found = roles([one for one, _ in made])
    planted = [name for _, names in made for name in names]
    pairs = Counter(zip((found.names[number] for number in found.of), planted, strict=True))
    # one role for each planted name, and one planted name for each role
    assert len(pairs) == len(found) == 5
    assert found.table["role"].tolist() == [
        "LOAD memory 1",
        "LOAD memory 2",
        "LOAD memory 0",
        "MULTIPLY",
        "LOAD memory 3",
    ]
    assert found.table["captures"].tolist() == [24, 8, 24, 24, 24]
    assert found.table["most"].tolist() == [1, 1, 4, 4, 1]
    assert found.name_of(0, 1) == "LOAD memory 2"
    assert repr(found) == f"Roles(24 captures, {len(planted)} jobs, 5 roles)"


def test_the_sweep_of_a_role_has_all_its_jobs() -> None:
    rng = np.random.default_rng(4)
    captures = [striped(rng, number)[0] for number in range(12)]
    found = roles(captures)
    sweep = found.sweep("MULTIPLY")
    assert len(sweep) == sum(1 + number % 4 for number in range(12))
    assert sweep.parameters[COUNT].tolist() == (sweep.parameters["input_w"] // 8).tolist()
    assert sweep.parameters[INDEX].tolist()[:6] == [0, 0, 1, 0, 1, 2]
    words = [job.words for one in captures for job in one.jobs if job.block == "MULTIPLY"]
    assert np.array_equal(sweep.words, np.stack(words))
    assert sweep.registers is MULTIPLY
    # a role that each capture has once gets no columns
    once = found.sweep("LOAD memory 1")
    assert len(once) == 12
    assert INDEX not in once.parameters
    some = found.sweep("LOAD memory 2")
    assert some.parameters["bias"].tolist() == [1] * 4
    last = found.sweep("MULTIPLY", -1)
    assert len(last) == 12
    assert last.parameters["last_of_run"].tolist() == [1] * 12
    assert len(found.sweep("MULTIPLY", 3)) == 3
    with pytest.raises(LookupError, match=r"place: got 4, allowed in MULTIPLY is -4 to 3"):
        found.sweep("MULTIPLY", 4)
    with pytest.raises(LookupError, match=r"role: got 'MULTIPLI', allowed are .*MULTIPLY"):
        found.sweep("MULTIPLI")


def test_presence_says_how_often_each_capture_has_a_role() -> None:
    rng = np.random.default_rng(5)
    found = roles([striped(rng, number)[0] for number in range(12)])
    presence = found.presence()
    assert presence.words[:, 1].tolist() == presence.parameters["bias"].tolist()
    assert (8 * presence.words[:, 3]).tolist() == presence.parameters["input_w"].tolist()
    assert [item.name for item in presence.registers or ()] == list(found.names)


def test_what_a_layer_says_is_no_kind() -> None:
    """A field that is one value in a capture and another in the next says what the layer is."""
    rng = np.random.default_rng(6)
    captures = []
    for number in range(20):
        size = 1000 * (number % 2)
        jobs = [
            Job("LOAD", LOAD.encode({"memory": number % 2, "size": size + place, "base": size}))
            for place in rng.integers(0, 8, 3).tolist()
        ]
        captures.append(capture(f"c{number}", jobs, input_w=number))
    assert roles(captures).names == ("LOAD",)


def test_labels_and_given_names_are_kinds() -> None:
    rng = np.random.default_rng(7)
    captures = [striped(rng, number)[0] for number in range(6)]
    labelled = [
        replace(
            one, jobs=tuple(replace(job, label=f"layer {n % 2}") for n, job in enumerate(one.jobs))
        )
        for one in captures
    ]
    assert set(roles(labelled).names) <= {f"layer {n}{m}" for n in (0, 1) for m in ("", " 1", " 2")}
    named = roles(captures, lambda one, task: "first" if task == 0 else "")
    assert named.names[0] == "first"
    assert named.roles[0].jobs == 6


def test_one_job_a_capture_is_the_plain_case() -> None:
    rng = np.random.default_rng(8)
    captures = [capture(f"c{number}", [multiply(rng)], input_w=number) for number in range(5)]
    found = roles(captures)
    assert found.names == ("MULTIPLY",)
    plain = npulab.captures.sweep.sweep_of(captures)
    assert np.array_equal(found.sweep("MULTIPLY").words, plain.words)
    assert found.sweep("MULTIPLY").parameters.equals(plain.parameters)


def test_captures_of_two_chips_are_refused() -> None:
    rng = np.random.default_rng(9)
    one = capture("a", [multiply(rng)])
    with pytest.raises(ValueError, match="roles: got chips x, y, allowed is one chip"):
        roles([one, replace(one, chip="y")])
    with pytest.raises(ValueError, match="roles: got no captures"):
        roles([])


@pytest.fixture
def vta(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test target of the Versatile Tensor Accelerator."""
    monkeypatch.chdir(ROOT / "tests" / "outsider")
    npulab.target("vta")


@pytest.mark.usefixtures("vta")
def test_streams_of_vta_have_twelve_roles() -> None:
    found = roles(npulab.load_all(shared("data/vta/layers")))
    assert [role.name for role in found.roles if role.most == 1] == [
        "LOAD uop",
        "LOAD wgt",
        "GEMM pop_prev_dep 0",
        "LOAD acc",
        "GEMM pop_prev_dep 1",
        "ALU shr",
        "ALU max",
        "ALU min",
        "STORE",
        "FINISH",
    ]
    assert [role.name for role in found.roles if role.most > 1] == ["LOAD inp", "ALU add"]
    assert len(found.of) == 823


@pytest.mark.usefixtures("vta")
def test_streams_of_another_driver_share_the_roles() -> None:
    """The test driver blocks otherwise: loads and products in loops. What both have is one role."""
    layers = list(npulab.load_all(shared("data/vta/layers")))
    driver = list(npulab.load_all(shared("data/vta/driver")))
    found = roles([*layers, *driver])
    both = {role.name for role in found.roles if role.captures == len(layers) + len(driver)}
    assert both == {"LOAD uop", "LOAD acc", "GEMM pop_prev_dep 1", "STORE", "FINISH"}


@pytest.mark.long
@pytest.mark.usefixtures("vta")
@pytest.mark.filterwarnings("ignore:parameters. got")
def test_laws_of_all_roles_of_vta_claim_nothing_wrong() -> None:
    """Laws from 40 layers, on the other 20."""
    found = roles(npulab.load_all(shared("data/vta/layers")))
    claimed = wrong = cells = 0
    for name in found.names:
        sweep = found.sweep(name)
        if not sweep.bits:
            continue
        layer = found.capture[found.of == found.number(name)]
        learnt = layer % 3 > 0
        laws = npulab.find_laws(sweep[learnt])
        score = laws.score(sweep[~learnt].words, sweep[~learnt].parameters)
        claimed, wrong = claimed + score.claimed, wrong + score.wrong
        cells += score.cells
    assert wrong == 0
    assert claimed > 0.4 * cells
