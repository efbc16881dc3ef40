"""Seconds for what a byte view does of a buffer of 4 MiB, in one run of pytest-benchmark:

    pytest -o addopts= -s tests/tools/bench_bytes.py

Searches in random bytes, in bytes of few values (much matches) and in zeros (everything does),
beside ``bytes.find`` in a loop where that can be asked; a whole model with a reference; the classes
of a million items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npulab.captures.target import Item
from npulab.notebook.widgets import ByteModel
from npulab.notebook.widgets.byte_meanings import OfItems
from npulab.notebook.widgets.byte_search import find

SIZE = 2**22
DRAW = np.random.default_rng(0)
DATA = {
    "random": DRAW.integers(0, 256, SIZE, dtype=np.uint8),
    "few values": DRAW.integers(0, 2, SIZE, dtype=np.uint8),
    "zeros": np.zeros(SIZE, np.uint8),
}
ASKED = [
    ("00", "bytes"),
    ("01 00 01 01", "bytes"),
    ("00" * 256, "bytes"),
    ("0? " * 31, "bytes"),
    ("1", "u16"),
    ("-1", "i64"),
    ("0", "f16"),
    ("nan", "f16"),
    ("1.5", "f32"),
    ("0", "f32"),
]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(
    ("asked", "element"), ASKED, ids=[f"{asked[:9]} {element}" for asked, element in ASKED]
)
def test_search(benchmark: Any, name: str, asked: str, element: str) -> None:
    found = benchmark.pedantic(find, (DATA[name], asked, element), rounds=3, warmup_rounds=1)
    benchmark.extra_info["matches"] = len(found)


@pytest.mark.parametrize("name", ["random", "few values"])
def test_the_library_in_a_loop(benchmark: Any, name: str) -> None:
    data, wanted = DATA[name].tobytes(), bytes.fromhex("01000101")

    def loop() -> list[int]:
        out, at = [], data.find(wanted)
        while at >= 0:
            out.append(at)
            at = data.find(wanted, at + 1)
        return out

    assert benchmark.pedantic(loop, rounds=3) == find(DATA[name], wanted.hex()).tolist()


def test_a_model_with_a_reference(benchmark: Any) -> None:
    benchmark.pedantic(
        ByteModel, (DATA["random"],), {"reference": np.roll(DATA["random"], 1)}, rounds=3
    )


def test_a_million_items(benchmark: Any) -> None:
    items = [Item(13 * n, 13, "weight" if n % 9 else "bias", n) for n in range(10**6)]
    benchmark.pedantic(lambda: OfItems(items, 13 * 10**6 // 8).classes(), rounds=3)
