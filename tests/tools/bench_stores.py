"""Time and memory of a store of many captures: written, asked, decoded, its laws proved.

    python tests/tools/bench_stores.py [--rows N] [--batch N] [--laws]

The captures are those of a sweep of vivante's layers, drawn at random, with one word of random bits,
so that no two are the same. Seconds are of the processor and of the clock; memory is the most that
the process had so far (``ru_maxrss``). ``--laws`` also searches laws on the sweep of 300 layers (80
seconds) and proves them on all captures.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import npulab
from npulab.analysis.laws.whole import prove
from npulab.captures.sweep import load_sweep
from npulab.captures.sweep_store import SweepStore, open_store

LAYERS = Path(__file__).parents[2] / "captures/vivante/sweep-layers-s905d3.npz"
NOISE = 3  # the word of random bits
KILO = 1024  # ru_maxrss is in KiB


def measured(what: str, act: Callable[[], Any]) -> Any:
    """The result of a call; its seconds and the memory so far are printed."""
    clock, cpu = time.perf_counter(), time.process_time()
    found = act()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // KILO
    print(f"{what:28} {cpu:8.3f} s of processor {clock:8.3f} s {memory:6} MB", flush=True)
    return found


def written(path: Path, rows: int, batch: int) -> SweepStore:
    """A store of so many captures; only the time of ``append`` is counted."""
    layers = load_sweep(LAYERS)
    random = np.random.default_rng(0)
    store = open_store(path)
    cpu = 0.0
    for number in range(rows // batch):
        chosen = random.integers(0, len(layers), batch)
        words = layers.words[chosen]
        words[:, NOISE] = random.integers(0, 2**32, batch, dtype=np.uint32)
        some = replace(layers, words=words, parameters=layers.parameters.iloc[chosen])
        start = time.process_time()
        store = store.append(some, f"{number:06}")
        cpu += time.process_time() - start
    print(f"appended in {cpu:.2f} s of processor, {sum(part.bytes for part in store.parts)} bytes")
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=250_000)
    parser.add_argument("--laws", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = measured(
            "write", lambda: written(Path(folder, "s.store"), options.rows, options.batch)
        )
        measured("checksums", store.check)
        for _ in range(3):
            measured("where", lambda: len(store.where("input_w > 8 and stride = 2")))
        measured("decode", lambda: sum(len(columns["stride"]) for columns in store.decode()))
        measured("bits that move", lambda: store.bits)
        measured("counted", lambda: store.counted("kernel_xy_size", "stride"))
        measured("sample of 400", lambda: store.sample(400))
        if options.laws:
            noise = np.zeros(store.head.words, np.uint32)
            noise[NOISE] = 0xFFFFFFFF
            laws = measured(
                "laws of 300", lambda: npulab.find_laws(load_sweep(LAYERS), nuisance=noise)
            )
            print(measured("proof", lambda: prove(laws, store)))


if __name__ == "__main__":
    main()
