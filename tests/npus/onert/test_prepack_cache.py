"""ruy's cache of packed matrices: hits, stale hits and faults; the log of ONE's layers read and
replayed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from conftest import shared

from npulab.npus.onert import cache, cache_log
from npulab.npus.onert.cache import (
    NARROW,
    POLICIES,
    Allocate,
    Event,
    Free,
    Layer,
    Prepare,
    Renew,
    Run,
    caches,
    likely_mapped,
    replay,
)
from npulab.npus.onert.cache_log import read_log, readings

KEEPING = [
    "kCacheLHSOnNarrowMul",
    "kCacheIfLargeSpeedup",
    "kCacheIfSignificantSpeedup",
    "kAlwaysCache",
]
HEAP, MAPPED = 0x754A28, 0xB541F008


def at(address: int, data: str, layer: Layer) -> list[Event]:
    """Data comes to an address, and its layer is prepared and runs."""
    return [Allocate(address, data), Prepare(layer), Run(layer.name)]


def told(
    events: list[Event], policy: str = "kCacheLHSOnNarrowMul", **options: Any
) -> list[tuple[str, str, str]]:
    """(outcome, what lies at the address, what was multiplied) of the runs."""
    return [
        (one.outcome, one.at, one.packed)
        for one in replay(events, policy, **options)
        if one.what == "run"
    ]


@pytest.mark.parametrize("policy", KEEPING)
def test_other_weights_at_the_address_of_freed_ones_are_a_fault(policy: str) -> None:
    one, two = Layer("one", HEAP, 1000, 96, 4), Layer("two", HEAP, 1000, 96, 4)
    events = [*at(HEAP, "a", one), Free(HEAP), Run("one"), *at(HEAP, "b", two)]
    assert told(events, policy) == [
        ("packed", "a", "a"),
        ("hit", "freed", "a"),
        ("stale hit", "b", "a"),
    ]
    assert [step.fault for step in replay(events, policy)] == [False] * 7 + [True]
    # an allocation elsewhere is none, and neither is one while nothing is kept of the first
    two = replace(two, address=HEAP + 64)
    elsewhere = [*events[:5], *at(HEAP + 64, "b", two)]
    assert told(elsewhere, policy)[-1] == ("packed", "b", "b")
    assert told([*events[:5], Renew(), *events[5:]], policy)[-1] == ("packed", "b", "b")


@pytest.mark.parametrize("policy", ["kNoCache", "kNeverCache"])
def test_without_a_cache_freed_weights_are_read(policy: str) -> None:
    layer = Layer("one", HEAP, 1000, 96, 4)
    freed = [Free(HEAP), Run("one"), Allocate(HEAP, "b"), Run("one")]
    events = [*at(HEAP, "a", layer), *freed]
    assert told(events, policy) == [
        ("packed once", "a", "a"),
        ("use after free", "freed", "freed"),
        ("use after free", "b", "b"),
    ]
    mapped = [*at(MAPPED, "a", Layer("one", MAPPED)), Free(MAPPED), Run("one"), Run("one")]
    assert told(mapped, policy) == [
        ("packed once", "a", "a"),
        ("segmentation fault", "freed", ""),
    ]  # and nothing after it


def test_a_mapping_is_told_by_its_address_unless_it_is_said() -> None:
    for address, said, gone in (
        (HEAP, None, False),
        (MAPPED, None, True),
        (HEAP, True, True),
        (MAPPED, False, False),
    ):
        events = [
            Allocate(address, "a", said),
            Prepare(Layer("one", address)),
            Free(address),
            Run("one"),
        ]
        assert told(events, "kNoCache")[0][0] == (
            "segmentation fault" if gone else "use after free"
        )
    assert [likely_mapped(n) for n in (0x7F0000001010, 0x7F0000001000, 0x1018)] == [
        True,
        False,
        False,
    ]


def test_what_is_packed_of_freed_memory_stays_wrong() -> None:
    events = [
        Allocate(HEAP, "a"),
        Prepare(Layer("one", HEAP)),
        Free(HEAP),
        Run("one"),
        Run("one"),
        Free(HEAP),
    ]
    assert told(events) == [("use after free", "freed", "freed"), ("stale hit", "freed", "freed")]
    assert [(step.outcome, step.fault) for step in replay(events)][-1] == ("double free", True)


def test_keys_of_both_forms() -> None:
    small, large = Layer("small", HEAP, 100, 8), Layer("large", HEAP, 1000, 96)
    near = Layer("near", HEAP, 99, 7)  # packed as small is
    for first, second, policy, found in (
        (small, large, "kCacheLHSOnNarrowMul", "stale hit"),
        (small, large, "kAlwaysCache", "packed"),
        (small, near, "kAlwaysCache", "stale hit"),
        (small, Layer("z", HEAP, 100, 8, zero_point=1), "kAlwaysCache", "packed"),
        (small, Layer("b", HEAP, 100, 8, block=(4, 8)), "kAlwaysCache", "packed"),
        (small, Layer("k", HEAP, 100, 8, kernel="other"), "kCacheLHSOnNarrowMul", "packed"),
        (small, Layer("k", HEAP, 100, 8, kernel="other"), "kAlwaysCache", "stale hit"),
    ):
        events = [*at(HEAP, "a", first), Free(HEAP), *at(HEAP, "b", second)]
        assert told(events, policy)[-1][0] == found, (second, policy)
    # weights of two layers at one address, as shared ones are: a hit is right
    events = [Allocate(HEAP, "a"), Prepare(small), Prepare(near), Run("small"), Run("near")]
    assert told(events, "kAlwaysCache")[-1] == ("hit", "a", "a")


@pytest.mark.parametrize(
    ("columns", "other", "kept"),
    [
        (1, 4, [False, True, False, True, True, True]),
        (4, 4, [False, True, False, True, True, True]),
        (5, 4, [False, False, False, False, True, True]),
        (4, 2, [False, True, False, False, True, True]),
        (8, 8, [False, False, False, True, True, True]),
        (16, 4, [False, False, False, False, True, True]),
        (17, 4, [False, False, False, False, False, True]),
    ],
)
def test_policies(columns: int, other: int, kept: list[bool]) -> None:
    assert [
        caches(policy, Layer("a", 0, columns=columns, other=other)) for policy in POLICIES
    ] == kept
    assert not any(
        caches(policy, Layer("a", 0, columns=columns, other=other, cacheable=False))
        for policy in POLICIES
    )


def test_packed_bytes_are_whole_blocks() -> None:
    assert Layer("a", 0, 37, 13, block=(16, 4)).packed == 48 * 16 + 4 * 16
    assert Layer("a", 0, 37, 13, block=(16, 2)).packed == 48 * 14 + 4 * 14
    assert Layer("a", 0, 37, 13, block=(4, 8)).packed == 40 * 16 + 4 * 16


def test_the_oldest_goes_first() -> None:
    layers = [Layer(name, at, 16, 4) for at, name in enumerate("abcd", 1)]  # 80 bytes each
    events: list[Event] = [
        step for one in layers for step in (Allocate(one.address or 0, one.name), Prepare(one))
    ]
    events += [Run("a"), Run("b"), Run("c"), Run("a"), Run("d"), Run("a"), Run("b")]
    done = [step for step in replay(events, limit=240) if step.what == "run"]
    outcomes = ["packed"] * 3 + ["hit", "packed", "hit", "packed"]
    assert [step.outcome for step in done] == outcomes
    assert [step.ejected for step in done] == [(), (), (), (), ("b",), (), ("c",)]
    assert [(step.entries, step.bytes) for step in done] == [(1, 80), (2, 160)] + [(3, 240)] * 5
    # one that is larger than all is kept alone
    big = Layer("big", 9, 160, 4)
    done = replay([*at(1, "a", layers[0]), *at(9, "big", big)], limit=100)
    assert (done[-1].ejected, done[-1].entries, done[-1].bytes) == (("a",), 1, 160 * 4 + 16)


def by_hand(events: list[Event], policy: str, limit: int) -> list[tuple[str, str, int, int]]:
    """(outcome, multiplied, entries, bytes) of runs: entries in a list with their times,
    searched as ruy does.
    """
    memory: dict[int, str] = {}
    mapped: dict[int, bool] = {}
    layers: dict[str, tuple[Layer, str]] = {}
    entries: list[dict[str, Any]] = []
    out = []
    for clock, event in enumerate(events):
        if isinstance(event, Allocate):
            memory[event.address] = event.data
            mapped[event.address] = bool(event.mapped)
        elif isinstance(event, Free):
            memory.pop(event.address, None)
        elif isinstance(event, Prepare):
            assert event.layer.address is not None
            layers[event.layer.name] = event.layer, memory[event.layer.address]
        elif isinstance(event, Renew):
            entries = []
        else:
            layer, weights = layers[event.name]
            assert layer.address is not None
            by: list[Any] = [layer.kernel, layer.address]
            if POLICIES[policy] == "present":
                by = [layer.address, layer.packed_shape, layer.block, layer.zero_point]
            widest = {
                "kNoCache": 0,
                "kCacheLHSOnNarrowMul": 4,
                "kNeverCache": 0,
                "kCacheIfLargeSpeedup": layer.other,
                "kCacheIfSignificantSpeedup": 4 * layer.other,
                "kAlwaysCache": 10**9,
            }[policy]
            kept = layer.columns <= widest
            found = [one for one in entries if one["key"] == by] if kept else []
            if event.zeros:
                said, data = "zeros", ""
            elif found:
                found[0]["time"], data = clock, found[0]["data"]
                said = "hit" if data == weights else "stale hit"
            elif layer.address not in memory and mapped[layer.address]:
                said, data = "segmentation fault", ""
            else:
                data = memory.get(layer.address, "freed")
                said = "use after free" if data != weights else "packed" if kept else "packed once"
                rows, columns = layer.packed_shape
                need = rows * columns + 4 * columns
                while kept and entries and sum(one["bytes"] for one in entries) + need > limit:
                    entries.remove(min(entries, key=lambda one: one["time"]))
                entries += [{"key": by, "data": data, "bytes": need, "time": clock}] if kept else []
            out.append((said, data, len(entries), sum(one["bytes"] for one in entries)))
            if said == "segmentation fault":
                return out
    return out


def history(seed: int) -> list[Event]:
    """Events that can follow each other, at a few addresses, so that these come again and again."""
    rng = random.Random(seed)
    events: list[Event] = []
    taken: set[int] = set()
    names: list[str] = []
    for number in range(40):
        kind = rng.choice("aafppprrrrrrz")
        address = rng.choice([8, 16, 24])
        if kind == "a" and address not in taken:
            taken.add(address)
            events.append(Allocate(address, f"data {number}", rng.random() < 0.1))
        elif kind == "f" and address in taken:
            taken.discard(address)
            events.append(Free(address))
        elif kind == "p" and address in taken:
            names.append(f"layer {number}")
            sizes = [rng.choice(some) for some in ([10, 16, 40], [4, 8], [1, 4, 5, 9, 17])]
            kernel = rng.choice("ab")
            events.append(Prepare(Layer(names[-1], address, *sizes, kernel=kernel)))
        elif kind in "rz" and names:
            events.append(Run(rng.choice(names), kind == "z"))
        elif rng.random() < 0.02:
            events.append(Renew())
    return events


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limit", [0, 100, 300, 2**28])
def test_plain_reference(policy: str, limit: int) -> None:
    seen = set()
    for seed in range(40):
        events = history(seed)
        done = [step for step in replay(events, policy, limit) if step.what == "run"]
        runs = [(step.outcome, step.packed, step.entries, step.bytes) for step in done]
        assert runs == by_hand(events, policy, limit), seed
        for step in done:
            faults = ("stale hit", "use after free", "segmentation fault")
            assert step.fault == (step.outcome in faults)
            assert step.bytes <= limit or step.entries == 1
            seen.add(step.outcome)
    assert {"zeros", "use after free"} <= seen
    assert policy in KEEPING or "segmentation fault" in seen
    assert ({"hit", "stale hit", "packed"} <= seen) == (policy in KEEPING)


def runtime_events(
    layers: Sequence[Layer], runs: int = 2, first_zeros: bool = False
) -> list[Event]:
    """What ONE does with layers, in order: all are prepared, each is run, and weights are freed
    after the first run.

    Freed are those of layers with at most 4 columns and a multiple of 4 units
    (FullyConnectedLayer.cc, with USE_RUY_GEMV and EXPERIMENTAL_RUY_FEATURE), when the last that has
    them has run; with ``first_zeros`` the input of the first run is zeros, and they are freed all
    the same, as it was at first.
    """
    shared: Counter[int] = Counter()
    events: list[Event] = []
    for layer in layers:
        if layer.address is not None:
            if layer.address not in shared:
                events.append(Allocate(layer.address, f"weights of {layer.name}"))
            shared[layer.address] += 1
        events.append(Prepare(layer))
    for number in range(runs):
        for layer in layers:
            events.append(Run(layer.name, first_zeros and not number))
            if (
                number == 0
                and layer.address is not None
                and layer.columns <= NARROW
                and layer.units % 4 == 0
            ):
                shared[layer.address] -= 1
                if not shared[layer.address]:
                    events.append(Free(layer.address))
    return events


def test_what_the_runtime_does() -> None:
    layers = [
        Layer("narrow", HEAP, 1000, 96, 4),
        Layer("wide", 0x5000, 1536, 96, 8),
        Layer("odd", 0x6000, 1000, 95, 4),
        Layer("shared", 0x7000, 8, 4),
        Layer("shared too", 0x7000, 8, 4),
        Layer("large", MAPPED, 1536, 96, 2),
    ]
    events = runtime_events(layers)
    assert [step.address for step in events if isinstance(step, Free)] == [HEAP, 0x7000, MAPPED]
    assert events.index(Free(0x7000)) == events.index(Run("shared too")) + 1
    second = told(events)[6:]
    # odd has its weights still, and they are found as well
    assert [step[:2] for step in second] == [
        ("hit", "freed"),
        ("packed once", "weights of wide"),
        ("hit", "weights of odd"),
        ("hit", "freed"),
        ("hit", "freed"),
        ("hit", "freed"),
    ]
    assert [step[0] for step in told(events, "kNoCache")][6:] == [
        "use after free",
        "packed once",
        "packed once",
        "use after free",
        "use after free",
        "segmentation fault",
    ]
    zeros = runtime_events(layers[:1], first_zeros=True)
    assert [step[0] for step in told(zeros)] == ["zeros", "use after free"]
    assert len(runtime_events(layers[:1], runs=5)) == 2 + 5 + 1
    assert len(runtime_events([Layer("elsewhere", None)], 1)) == 2


def test_table() -> None:
    rows = cache.table(replay([*at(HEAP, "a", Layer("one", HEAP)), Renew()]))
    columns = "event what layer address outcome fault at packed ejected entries bytes"
    assert [*rows] == columns.split()
    assert rows.address.tolist() == ["0x754a28"] * 3 + [""]
    assert rows.outcome.tolist() == ["allocated", "prepared", "packed", "emptied"]
    assert cache.table([]).empty


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [Allocate(16, "a"), Allocate(16, "b")],
            "event 1: got 'b' at address 0x10, which holds 'a', allowed is a free address",
        ),
        (
            [Prepare(Layer("one", 16))],
            "event 0: got layer one with weights at address 0x10, which holds no data, allowed is an address with data",
        ),
        ([Run("one")], "event 0: got a run of one, allowed is a layer that was prepared: none was"),
        (
            [Allocate(16, "a"), Prepare(Layer("two", 16)), Run("one")],
            "event 2: got a run of one, allowed is a layer that was prepared: two",
        ),
    ],
)
def test_events_refused(events: list[Event], message: str) -> None:
    with pytest.raises(ValueError) as error:
        replay(events)
    assert str(error.value) == message


def test_policies_and_limits_refused() -> None:
    with pytest.raises(ValueError) as error:
        replay([], "kSometimes")
    assert str(error.value) == (
        "policy: got 'kSometimes', allowed is kNoCache, kCacheLHSOnNarrowMul, kNeverCache, kCacheIfLargeSpeedup, "
        "kCacheIfSignificantSpeedup, kAlwaysCache"
    )
    with pytest.raises(ValueError, match="limit: got -1, allowed are 0 bytes or more"):
        replay([], limit=-1)


# A log in the form of the engineer's notes, written here.


def line(function: str, layer: int, *said: str) -> list[str]:
    start = "virtual " if function == "prepare" else ""
    return [
        f"{start}void onert::backend::cpu::ops::FullyConnectedLayer::{function}() {layer:#x} {one}".rstrip()
        + " "
        for one in ("", *said)
    ]


def prepared(layer: int, weights: int | None) -> list[str]:
    return line(
        "prepare",
        layer,
        "hybrid",
        "batch_size > 4" if weights is None else f"cached:  {weights:#x}",
    )


def ran(layer: int, weights: int | None, end: str = "") -> list[str]:
    """``end``: "freed" and "kept" for what becomes of the reference, "before", "stops"."""
    address = "(nil)" if weights is None else f"{weights:#x}"
    said = [
        f"hybrid cache:  {address}",
        *([] if end == "stops" else [f"hybrid cache:  {address} is done"]),
    ]
    if end in ("freed", "kept"):
        said += [
            "tensor->decrease_ref() will run",
            f"tensor->ref is {int(end == 'kept')}",
            "tensor->decrease_ref() is done",
        ]
    said += (
        ["weight is already freed"]
        if end == "before"
        else ["cached weight is nullptr"]
        if weights is None
        else []
    )
    return line("fullyConnectedHybrid", layer, *said)


def freed_after_run(layer: int, weights: int) -> tuple[list[str], list[str]]:
    return prepared(layer, weights), ran(layer, weights, "freed")


def text(*parts: list[str] | str) -> str:
    return "\n".join(one for part in parts for one in ([part] if isinstance(part, str) else part))


NOISE = [
    "",
    "nnapi function 'ANeuralNetworksExecution_create' is loaded from '/lib'",
    "// FullyConnectedLayer.cc",
    "void FullyConnectedLayer::fullyConnectedHybrid() {",
    "input tensor indices = [1,0,]",
]
SMALL = text(
    NOISE,
    prepared(0x10, None),
    prepared(0x20, HEAP),
    prepared(0x30, MAPPED),
    NOISE,
    ran(0x20, HEAP, "freed"),
    ran(0x30, MAPPED, "freed"),
    ran(0x10, None),
    NOISE,
    ran(0x20, HEAP, "before"),
    ran(0x30, MAPPED, "stops"),
    "",
    "Segmentation fault (core dumped)",
    "after it",
)


def check_log(log: cache_log.Log, layers: list[tuple[str, str, int]], stopped: str) -> None:
    assert [(row.layer, row.weights, row.runs) for row in log.layers.itertuples()] == layers
    assert log.layers.layer[log.layers.stopped].tolist() == [stopped]
    table = readings(log).set_index("reading")
    assert table.agrees.to_dict() == {
        "kept": False,
        "no cache": True,
        "zeros at first": True,
        "another context": True,
    }
    assert table.ends.tolist() == [f"hit of {stopped}"] + [f"segmentation fault of {stopped}"] * 3
    assert table.faults.tolist() == [0, 2, 2, 2]


def test_a_log_is_read_and_replayed() -> None:
    log = read_log(SMALL)
    check_log(log, [("0x10", "", 1), ("0x20", "0x754a28", 2), ("0x30", "0xb541f008", 1)], "0x30")
    assert SMALL.splitlines()[log.fault - 1] == "Segmentation fault (core dumped)"
    lines = SMALL.splitlines()
    for row in log.layers.itertuples():
        assert not row.freed or lines[row.freed - 1].endswith(f"{row.layer} tensor->ref is 0 ")
        assert not row.seen_freed or lines[row.seen_freed - 1].endswith(
            f"{row.layer} weight is already freed "
        )
    assert (log.layers.freed > 0).tolist() == [False, True, True]
    assert (log.layers.seen_freed > 0).tolist() == [False, True, False]
    assert told(log.events(), "kNoCache") == [
        ("packed once", "weights of 0x20", "weights of 0x20"),
        ("packed once", "weights of 0x30", "weights of 0x30"),
        ("packed once", "not told", "not told"),
        ("use after free", "freed", "freed"),
        ("segmentation fault", "freed", ""),
    ]
    assert [step[0] for step in told(log.events())] == [
        "packed",
        "packed",
        "packed once",
        "hit",
        "hit",
    ]


def test_the_log_of_the_notes() -> None:
    notes = shared("seeds/003_78f469e58df80a91.txt").read_text(encoding="utf-8")
    log = read_log(notes)
    check_log(
        log,
        [
            ("0x752e58", "", 1),
            ("0x74c858", "", 1),
            ("0x752570", "0x754a28", 2),
            ("0x753080", "0xb541f008", 1),
        ],
        "0x753080",
    )
    assert [(row.layer, row.freed > 0, row.seen_freed > 0) for row in log.layers.itertuples()] == [
        ("0x752e58", False, False),
        ("0x74c858", False, False),
        ("0x752570", True, True),
        ("0x753080", True, False),
    ]
    lines = notes.splitlines()
    assert lines[log.fault - 1].strip() == "Segmentation fault"
    assert lines[log.layers.seen_freed[2] - 1].strip().endswith("0x752570 weight is already freed")
    # each line of the layers is read, and no other
    assert [one.line for one in log.lines] == [
        number
        for number, one in enumerate(lines, 1)
        if "FullyConnectedLayer::" in one and "onert::" in one
    ]
    assert told(log.events(), "kNoCache")[-2:] == [
        ("use after free", "freed", "freed"),
        ("segmentation fault", "freed", ""),
    ]


def test_a_log_of_two_models_shows_a_stale_hit() -> None:
    log = read_log(text(*freed_after_run(0x20, HEAP), *freed_after_run(0x40, HEAP)))
    assert told(log.events()) == [
        ("packed", "weights of 0x20", "weights of 0x20"),
        ("stale hit", "weights of 0x40", "weights of 0x20"),
    ]
    assert told(log.events(), "kNoCache")[1][0] == "packed once"
    again = read_log(text(*freed_after_run(0x20, HEAP), *freed_after_run(0x20, HEAP + 64)))
    assert [step[0] for step in told(again.events())] == ["packed", "packed"]


def test_a_reference_that_is_left_frees_nothing() -> None:
    log = read_log(
        text(
            prepared(0x20, HEAP),
            prepared(0x30, HEAP),
            ran(0x20, HEAP, "kept"),
            ran(0x30, HEAP, "freed"),
            ran(0x20, HEAP, "before"),
        )
    )
    names = [type(one).__name__ for one in log.events()]
    assert names == ["Allocate", "Prepare", "Prepare", "Run", "Run", "Free", "Run"]
    assert [step[0] for step in told(log.events())] == ["packed", "hit", "hit"]
    assert readings(log).agrees.tolist() == [True, True, True, True]
    assert log.fault == 0


def test_layers_that_only_begin() -> None:
    log = read_log(text(line("prepare", 0x20), line("prepare", 0x30, "hybrid"), ran(0x30, None)))
    assert log.layers.weights.tolist() == ["", ""]
    assert told(log.events()) == [("packed once", "not told", "not told")]
    assert readings(read_log(text(line("prepare", 0x20)))).ends.tolist() == ["nothing runs"] * 4


PREPARED = prepared(0x20, HEAP)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "nothing of it",
            "log: got 1 lines and none of a FullyConnectedLayer, allowed are lines of its prepare() and fullyConnectedHybrid()",
        ),
        (
            "",
            "log: got 0 lines and none of a FullyConnectedLayer, allowed are lines of its prepare() and fullyConnectedHybrid()",
        ),
        (
            text("", PREPARED[0][:-8]),
            "line 2: got 'virtual void onert::backend::cpu::ops::FullyConnectedLayer::prepare', allowed is a line of "
            "FullyConnectedLayer::prepare() or fullyConnectedHybrid() with the address of the layer",
        ),
        (
            text(PREPARED[0], PREPARED[1][:-3]),
            "line 2: got 'hybr' of prepare(), allowed is one of 'hybrid', 'batch_size > 4', 'cached: ADDRESS'",
        ),
        (
            text(PREPARED[:2], PREPARED[2].replace("0x754a28", "0x754z")),
            "line 3: got 'cached:  0x754z' of prepare(), allowed is one of 'hybrid', "
            "'batch_size > 4', 'cached: ADDRESS'",
        ),
        (
            text(PREPARED[:2], PREPARED[2].replace("0x754a28", "(nil)")),
            "line 3: got no address after 'cached', allowed is the address of the weights",
        ),
        (
            text(PREPARED[::2]),
            "line 2: got 'cached' of 0x20 after 'begins', allowed is after 'hybrid'",
        ),
        (
            text(PREPARED[1:]),
            "line 1: got 'hybrid' of 0x20 after 'nothing', allowed is after 'begins'",
        ),
        (
            text(PREPARED, ran(0x30, HEAP)),
            "line 4: got a run of 0x30, allowed is a layer that was prepared",
        ),
        (
            text(PREPARED, ran(0x20, MAPPED)),
            "line 5: got 0xb541f008 as the weights of layer 0x20, allowed is 0x754a28, with which the layer was prepared",
        ),
        (
            text(PREPARED, ran(0x20, None)),
            "line 5: got (nil) as the weights of layer 0x20, allowed is 0x754a28, with which the layer was prepared",
        ),
        (
            text(PREPARED, ran(0x20, HEAP)[::2]),
            "line 5: got 'multiplied' of 0x20 after 'begins', allowed is after 'multiplies'",
        ),
        (
            text(PREPARED, ran(0x20, HEAP, "before")),
            "line 7: got 'freed before' for the weights of layer 0x20, allowed is this line only after a line that frees these weights",
        ),
        (
            text(PREPARED, ran(0x20, HEAP, "freed"), PREPARED, ran(0x20, HEAP, "before")),
            "line 16: got 'freed before' for the weights of layer 0x20, allowed is this line only after a line that frees these weights",
        ),
        (
            text(prepared(0x20, None), ran(0x20, None, "freed")),
            "line 7: got 'drops' of layer 0x20, whose weights are not cached, allowed is this line only for cached weights",
        ),
        (
            text(PREPARED, ran(0x20, HEAP, "freed")[:-1], ran(0x20, HEAP, "freed")[-2]),
            "line 9: got 'references' of 0x20 after 'references', allowed is after 'drops'",
        ),
        (
            text(PREPARED, ran(0x20, HEAP, "freed")[-2].replace("is 0", "is -1")),
            "line 4: got 'tensor->ref is -1' of fullyConnectedHybrid(), allowed is "
            "one of 'hybrid cache: ADDRESS', 'hybrid cache: ADDRESS is done', 'tensor->decrease_ref() will run', 'tensor->ref is COUNT', "
            "'tensor->decrease_ref() is done', 'weight is already freed', 'cached weight is nullptr'",
        ),
        (
            text(PREPARED, "Segmentation fault", ran(0x20, HEAP)),
            "line 5: got a layer's line after the segmentation fault in line 4, allowed is the fault only after all lines of layers",
        ),
    ],
)
def test_broken_logs_are_refused_with_the_line(log: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        read_log(log)
    assert str(error.value) == message


def test_any_cut_or_changed_log_is_read_or_refused() -> None:
    rng = random.Random(3)
    for _ in range(40):
        wrong = rng.randrange(len(SMALL))
        changed = SMALL[:wrong] + chr(rng.randrange(128)) + SMALL[wrong + 1 :]
        for given_text in (SMALL[: rng.randrange(len(SMALL))], changed):
            log = None
            with suppress(ValueError):
                log = read_log(given_text)
            if log:
                for policy in POLICIES:
                    replay(log.events(), policy)
                assert len(log.layers) >= 1
                assert len(readings(log)) == 4
