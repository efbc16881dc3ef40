"""The memory of a model: what lives when, what the planners need, what is said of copies,
mapping and packing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from random_models import random_case

import npulab
import npulab.models
import npulab.notebook.pictures
from npulab.models import Graph, Memory, Operator, Tensor, model_memory, read_model, single_op_model
from npulab.models.memory import KINDS, PLANNERS, place


def packed(rows: int, columns: int) -> int:
    """Blocks of 16 rows and 4 columns, and an int32 for each column."""
    return -(-rows // 16) * 16 * -(-columns // 4) * 4 + 4 * -(-columns // 4) * 4


@pytest.fixture
def net() -> Graph:
    tensors = (
        Tensor("x", (1, 32, 32, 3), "int8"),
        Tensor("w1", (16, 3, 3, 3), "int8", 1),
        Tensor("a", (1, 16, 16, 16), "int8"),
        Tensor("w2", (32, 1, 1, 16), "int8", 2),
        Tensor("b", (1, 16, 16, 32), "int8"),
        Tensor("c", (1, 16, 16, 32), "int8"),
        Tensor("fc", (10, 8192), "int8", 3),
        Tensor("y", (1, 10), "int8"),
        Tensor("kept", (1, 16, 16, 32), "int8"),
        Tensor("never", (3,), "int8"),
        Tensor("w1 again", (16, 3, 3, 3), "int8", 1),
    )
    operators = (
        Operator("CONV_2D", (0, 1, -1), (2,)),
        Operator("CONV_2D", (2, 3), (4,)),
        Operator("ADD", (4, 8), (5,)),
        Operator("FULLY_CONNECTED", (5, 6), (7,)),
    )
    return Graph(tensors, operators, (b"", bytes(432), bytes(512), bytes(81920)), (0,), (7,))


def by_hand(model: Graph) -> dict[str, list[set[int]]]:
    """Tensors that live at each operator, asked one by one; constants apart."""
    end = max(len(model.operators), 1)
    alive: list[set[int]] = [set() for _ in range(end)]
    constants = {t for t, one in enumerate(model.tensors) if model.buffers[one.buffer]}
    for t in set(range(len(model.tensors))) - constants:
        touched = [
            i for i, one in enumerate(model.operators) if t in one.inputs or t in one.outputs
        ]
        made = any(t in one.outputs for one in model.operators)
        if t in model.inputs or (not made and (touched or t in model.outputs)):
            touched.append(0)
        if t in model.outputs or (t not in model.inputs and not made and touched):
            touched.append(end - 1)
        for i in range(min(touched, default=1), max(touched, default=0) + 1):
            alive[i].add(t)
    return {"alive": alive, "constants": [constants]}


def lowest(spans: Iterable[tuple[int, int]], size: int) -> int:
    """The lowest place for so many bytes between spans, looked for from the start; 0 for no bytes."""
    at = 0
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if not size or at + size <= start:
            break
        at = max(at, end)
    return at


def claims(memory: Memory, planner: str) -> tuple[dict[int, int], int]:
    """Offsets and size by the rules of ONE's planners: claims and releases as the operators
    come.
    """
    table = memory.table[memory.table.offset >= 0]
    size, plans, live, capacity = dict(zip(table.tensor, table.bytes, strict=True)), {}, {}, 0
    beside: dict[int, list[int]] = {}
    for i in range(len(memory.live)):
        for t in table.tensor[table["first"] == i]:
            beside[t] = [*live, *beside.get(t, [])]
            for other in live:
                beside[other].append(t)
            if planner == "bump":
                plans[t], capacity = capacity if size[t] else 0, capacity + size[t]
            elif planner == "first-fit":
                plans[t] = lowest(live.values(), size[t])
            live[t] = (plans.get(t, 0), plans.get(t, 0) + size[t])
        for t in table.tensor[table["last"] == i]:
            del live[t]
    if planner == "wic":
        for t in sorted(beside, key=lambda t: -size[t]):
            placed = [
                (plans[other], plans[other] + size[other]) for other in beside[t] if other in plans
            ]
            plans[t] = lowest(placed, size[t])
    if planner != "bump":
        capacity = max((plans[t] + size[t] for t in plans), default=0)
    return plans, capacity


def check(model: Graph, planner: str, align: int = 1) -> Memory:
    memory = model_memory(model, planner=planner, align=align)
    known = by_hand(model)
    live = [sum(model.tensors[t].memory for t in here) for here in known["alive"]]
    assert memory.live.tolist() == live
    assert memory.peak == max(live)
    assert memory.at == live.index(max(live))
    every = set().union(*known["alive"])
    assert memory.total == sum(model.tensors[t].memory for t in every)
    assert {t for t in range(len(model.tensors)) if memory.offsets[t] >= 0} == every
    assert memory.peak <= memory.total
    assert memory.peak <= memory.planned
    assert planner != "bump" or align > 1 or memory.planned == memory.total
    assert not any(memory.offsets[t] % align for t in every)
    for here in known["alive"]:
        spans = sorted(
            (memory.offsets[t], memory.offsets[t] + model.tensors[t].memory)
            for t in here
            if model.tensors[t].memory
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    if align == 1:
        plans, capacity = claims(memory, planner)
        assert plans == {t: memory.offsets[t] for t in every}
        assert memory.planned == capacity
    return memory


@st.composite
def graphs(draw: Any) -> Graph:
    """Any graph: constants, states, tensors that nobody takes, outputs in the middle, an
    operator that takes one twice.
    """
    count = draw(st.integers(0, 12))
    tensors, operators, made = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        made.append(len(tensors))
        tensors.append(
            Tensor(
                f"t{len(tensors)}", (draw(st.integers(0, 40)),), "int16", draw(st.integers(0, 1))
            )
        )
    for _ in range(count):
        new = [len(tensors) + n for n in range(draw(st.integers(1, 2)))]
        tensors += [Tensor(f"t{n}", (draw(st.integers(0, 40)),), "int16") for n in new]
        operators.append(
            Operator(
                "ADD",
                tuple(draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))),
                tuple(new),
            )
        )
        made += new
    first = [n for n in range(len(tensors)) if not any(n in one.outputs for one in operators)]
    return Graph(
        tuple(tensors),
        tuple(operators),
        (b"", b"1"),
        tuple(draw(st.lists(st.sampled_from(first), max_size=2, unique=True))),
        tuple(draw(st.lists(st.sampled_from(made), max_size=3, unique=True))),
    )


@given(model=graphs(), planner=st.sampled_from(PLANNERS))
def test_plain_reference_and_properties(model: Graph, planner: str) -> None:
    check(model, planner)


@given(model=graphs(), planner=st.sampled_from(PLANNERS), align=st.sampled_from([2, 16, 64]))
def test_places_are_aligned(model: Graph, planner: str, align: int) -> None:
    check(model, planner, align)


@pytest.mark.long
@pytest.mark.parametrize("planner", PLANNERS)
def test_plain_reference_on_longer_models(planner: str) -> None:
    for seed in range(40):
        check(chain(200, seed, 30), planner)


def chain(count: int, seed: int = 0, far: int = 0) -> Graph:
    random = np.random.default_rng(seed)
    tensors = [Tensor(f"t{i}", (int(random.integers(1, 100)), 8), "int8") for i in range(count + 1)]
    operators = [
        Operator("ADD", (i, max(i - int(random.integers(0, far + 1)), 0)), (i + 1,))
        for i in range(count)
    ]
    return Graph(tuple(tensors), tuple(operators), (b"",), (0,), (count,))


def test_a_network(net: Graph) -> None:
    memory = npulab.models.model_memory(net)
    table = memory.table
    assert list(table) == ["tensor", "name", "bytes", "kind", "first", "last", "offset", "packed"]
    assert list(zip(table.name, table.kind, table["first"], table["last"], strict=True)) == [
        ("x", "input", 0, 0),
        ("w1", "constant", 0, 3),
        ("a", "intermediate", 0, 1),
        ("w2", "constant", 0, 3),
        ("b", "intermediate", 1, 2),
        ("c", "intermediate", 2, 3),
        ("fc", "constant", 0, 3),
        ("y", "output", 3, 3),
        ("kept", "state", 0, 3),
        ("never", "unused", -1, -1),
        ("w1 again", "constant", 0, 3),
    ]
    assert set(table.kind) == set(KINDS)
    assert memory.live.tolist() == [
        3072 + 4096 + 8192,
        4096 + 8192 + 8192,
        3 * 8192,
        8192 + 8192 + 10,
    ]
    assert memory.steps.tensors.tolist() == [3, 3, 3, 3]
    assert memory.steps.name.tolist() == ["CONV_2D", "CONV_2D", "ADD", "FULLY_CONNECTED"]
    assert (memory.peak, memory.at, memory.total, memory.planned) == (24576, 2, 31754, 24576)
    assert memory.constants == 432 + 512 + 81920  # the buffer of two tensors once
    assert repr(memory) == (
        "Memory(4 operators, 11 tensors: peak 24.0K at operator 2, ADD, 31.0K in all, planned 24.0K (wic), constants "
        "80.9K)"
    )
    assert model_memory(net, planner="bump").planned == memory.total


def test_what_counters_of_memory_see(net: Graph) -> None:
    memory = model_memory(net, packed)
    assert memory.packed.tolist() == [0] * 6 + [8192 * 12 + 4 * 12] + [0] * 4
    held = memory.held.set_index("way")
    plan, constants, more = 24576, 82864, 98352
    assert held.heap.to_dict() == {
        "constants copied": plan + constants,
        "file mapped": plan,
        "constants copied, weights packed": plan + constants + more,
        "file mapped, weights packed": plan + more,
        "constants copied, weights packed and freed": plan + constants + more - 81920,
    }
    assert held.mapped.tolist() == [0, constants, 0, constants, 0]
    assert (held.pages == held.heap + held.mapped).all()
    assert (held.rss_most == held.pages).all()
    assert (held.rss_least == held.heap).all()
    assert held.saved.tolist() == [0, constants, -more, constants - more, 81920 - more]
    assert model_memory(net).held.way.tolist() == ["constants copied", "file mapped"]


def test_which_weights_are_packed(net: Graph) -> None:
    calls: list[tuple[int, int]] = []

    def asked(rows: int, columns: int) -> int:
        calls.append((rows, columns))
        return 1

    assert model_memory(net, asked).packed.sum() == 1
    assert calls == [(8192, 10)]
    calls.clear()
    both = ("FULLY_CONNECTED", "CONV_2D")
    assert np.flatnonzero(model_memory(net, asked, packs=both).packed).tolist() == [1, 3, 6]
    assert calls == [(27, 16), (16, 32), (8192, 10)]
    # 256 pixels are too wide
    assert model_memory(net, asked, packs=both, widest=255).packed.sum() == 1
    assert model_memory(net, asked, packs=("CONV_2D",), widest=256).packed.sum() == 2


def test_weights_used_twice_are_packed_once(net: Graph) -> None:
    def used(*more: Operator) -> Memory:
        return model_memory(
            Graph(
                (*net.tensors, again), (*net.operators, *more), net.buffers, net.inputs, net.outputs
            ),
            packed,
        )

    again = Tensor("fc again", (10, 8192), "int8", 3)  # another tensor of the same buffer
    for memory in (
        used(),
        used(net.operators[-1]),
        used(Operator("FULLY_CONNECTED", (5, 11), (7,))),
    ):
        assert memory.packed.sum() == 8192 * 12 + 4 * 12
        assert memory.spare == 81920
    # what another operator takes is not freed
    assert used(Operator("ADD", (11, 6), (7,))).spare == 0
    assert used(Operator("ADD", (11, 6), (7,))).held.saved.tolist()[-1] == -(8192 * 12 + 4 * 12)


def test_widest_is_of_batches() -> None:
    """The two operators of an engineer's notes: 4 rows are packed once and kept, 8 are not."""
    for rows, inputs, count in ((4, 1000, 1), (8, 1536, 0)):
        tensors = (
            Tensor("x", (rows, inputs), "float32"),
            Tensor("w", (96, inputs), "uint8", 1),
            Tensor("y", (rows, 96), "float32"),
        )
        model = Graph(
            tensors,
            (Operator("FULLY_CONNECTED", (0, 1, -1), (2,)),),
            (b"", bytes(96 * inputs)),
            (0,),
            (2,),
        )
        memory = model_memory(model, packed, widest=4)
        assert np.count_nonzero(memory.packed) == count
        assert memory.packed.sum() == count * (1008 * 96 + 4 * 96)
        assert memory.peak == 4 * rows * (inputs + 96)


WRITTEN = [
    ("fully_connected", "float32"),
    ("conv", "int8"),
    ("max_pool", "int16"),
    ("add", "float16"),
]


def test_models_that_were_written() -> None:
    for seed in range(8):
        kind = WRITTEN[seed % 4]
        model = read_model(single_op_model(random_case(seed, (kind,))[0]))
        for planner in PLANNERS:
            memory = check(model, planner)
        used = {tensor.buffer for tensor in model.tensors}
        assert memory.constants == sum(len(model.buffers[number]) for number in used)


def test_no_operators() -> None:
    memory = model_memory(
        Graph(
            (Tensor("x", (4,), "int8"), Tensor("c", (2,), "int8", 1)),
            (),
            (b"", b"ab"),
            (0,),
            (0, 1),
        )
    )
    assert (memory.peak, memory.total, memory.planned, memory.constants) == (4, 4, 4, 2)
    assert (
        repr(memory)
        == "Memory(0 operators, 2 tensors: peak 4.0B, 4.0B in all, planned 4.0B (wic), constants 2.0B)"
    )
    empty = model_memory(Graph((), ()))
    assert not any((empty.peak, empty.total, empty.planned, len(empty.table), len(empty.steps)))
    for one in (memory, empty):
        assert npulab.notebook.pictures.memory_picture(one)._repr_png_().startswith(b"\x89PNG")


def test_ten_thousand_operators() -> None:
    """In time that no quadratic loop of Python takes; how much is measured in bench_memory.py."""
    memory = model_memory(chain(10_000, far=9999))
    assert memory.peak <= memory.planned < memory.total


def test_place_by_hand() -> None:
    blocks = np.array([[4, 8, 4, 8, 0], [0, 0, 1, 2, 0], [0, 1, 2, 2, 9]])
    assert place(*blocks, "bump").tolist() == [0, 4, 12, 16, 0]
    assert place(*blocks, "first-fit").tolist() == [0, 4, 0, 4, 0]
    assert place(*blocks, "wic").tolist() == [8, 0, 8, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"planner": "best"}, "planner: got 'best', allowed is bump, first-fit, wic"),
        ({"align": 0}, "align: got 0, allowed is a whole number from 1"),
        ({"widest": 0}, "widest: got 0, allowed is a whole number from 1"),
        ({"packs": ("ADD",)}, "packs: got 'ADD', allowed is FULLY_CONNECTED, CONV_2D"),
        (
            {"packed": lambda rows, columns: -1},
            "packed: got -1 for 10 columns of 8192 rows (operator 3, FULLY_CONNECTED), allowed is a whole number of bytes, not negative",
        ),
        (
            {"packed": lambda rows, columns: 0.5},
            "packed: got 0.5 for 10 columns of 8192 rows (operator 3, FULLY_CONNECTED), allowed is a whole number of bytes, not negative",
        ),
    ],
)
def test_refused(net: Graph, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        model_memory(net, **options)
    assert str(error.value) == message


def test_tensors_without_end_are_refused() -> None:
    vast = (Tensor("x", (1,), "int8"), Tensor("vast", (2**31 - 1,) * 8, "int8"))
    with pytest.raises(ValueError) as error:
        model_memory(Graph(vast, (Operator("ADD", (0, 0), (1,)),), (b"",), (0,), (1,)))
    assert (
        str(error.value)
        == f"tensor 1, vast: got {(2**31 - 1) ** 8} bytes, allowed for all tensors together are less than 2**62"
    )


def test_picture(net: Graph) -> None:
    memory = model_memory(net, packed)
    one, two = (
        npulab.notebook.pictures.memory_picture(memory),
        npulab.notebook.pictures.memory_picture(memory),
    )
    assert repr(one) == (
        "4 operators, 11 tensors: peak 24.0K at operator 2, ADD, 31.0K in all, planned 24.0K (wic), constants 80.9K, packed "
        "96.0K"
    )
    assert one._repr_png_() == two._repr_png_()
    above, below = one.figure.axes
    bars = {
        tuple(map(float, np.concatenate([path.vertices.min(0), path.vertices.max(0)])))
        for group in above.collections
        for path in group.get_paths()
    }
    table = memory.table[memory.table.offset >= 0]
    assert bars == {
        (row["first"] - 0.5, row.offset, row["last"] + 0.5, row.offset + row.bytes)
        for _, row in table.iterrows()
    }
    assert {group.get_label(): group.get_hatch() for group in above.collections} == {
        "input": "//",
        "output": "\\\\",
        "intermediate": "",
        "state": "..",
    }
    assert {text.get_text() for text in above.texts} == {
        "0",
        "2",
        "4",
        "5",
        "8",
    }  # the output is too thin for a number
    assert [text.get_text() for text in below.texts] == ["peak 24.0K at 2"]
    assert below.patches[0].get_data().values.tolist() == memory.live.tolist()


def test_picture_of_many() -> None:
    picture = npulab.notebook.pictures.memory_picture(model_memory(chain(2000, far=9)))
    assert sum(len(group.get_paths()) for group in picture.figure.axes[0].collections) == 2001
    assert not picture.figure.axes[0].texts
    assert {float(group.get_linewidth()[0]) for group in picture.figure.axes[0].collections} == {0}
    with pytest.raises(
        ValueError, match="memory: got int, allowed is a Memory, as model_memory gives"
    ):
        npulab.notebook.pictures.memory_picture(3)


def test_what_is_no_model() -> None:
    with pytest.raises(ValueError, match=r"model: got str, allowed is a Model of read_model$"):
        npulab.models.model_memory("m.tflite")  # type: ignore[arg-type]
