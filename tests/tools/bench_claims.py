"""What laws claim of layers that they have not seen, and how much of that is wrong, over sources
and splits:

    PYTHONPATH=tests:tests/reference python tests/tools/bench_claims.py [--counts 128 256] [--splits
    4] [--keep FOLDER] [SOURCE ...]

A source is a sweep of the captures, of the shared data, layers drawn and lowered here, or compiled
by Arm's Vela if it is installed (``npulab[compilers]``).  A split takes that many distinct layers
at random; all other layers (at most 500) judge. A row says the cells (bits x captures that vary),
the claimed ones, the wrong of these over all splits and in the worst, and the CPU seconds of a
search; below it, of the claims (a field on a capture) at each probability, how many came true.
``--keep`` is a folder of compiled layers, for the next run.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import descriptor
import numpy as np
import pandas as pd
import rk3576
from claims import claims
from conftest import CAPTURES, shared

import npulab
from npulab.analysis.explore.space import Possible
from npulab.captures.layers import complete_ranges
from npulab.captures.sources import Lowered, answers, reader_of
from npulab.captures.sweep import load_sweep
from npulab.support.executors import threads

Source = tuple[np.ndarray, pd.DataFrame]
LAYERS = 800  # drawn of a source that answers
WORKERS = 2
JUDGES = 500
EDGES = (0.0, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
SIZES = dict.fromkeys(("input_h", "input_w", "input_c", "output_c"), (1, 64))
CONVOLUTIONS = {**SIZES, "kernel": [1, 3, 5], "stride": [1, 2], "same": [0, 1], "relu": [0, 1]}
LARGE = {
    **dict.fromkeys(SIZES, (1, 128)),
    "kernel_h": (1, 7),
    "kernel_w": (1, 7),
    "stride_h": [1, 2],
    "stride_w": [1, 2],
    "same": [0, 1],
    "relu": [0, 1],
    "depthwise": [0, 1],
}
CONNECTED = {
    "op": ["fully_connected"],
    "input_h": (1, 8),
    "input_w": (1, 8),
    "input_c": (1, 64),
    "output_c": (1, 256),
    "relu": [0, 1],
    "input_scale": (0.005, 0.1),
    "weight_scale": (0.002, 0.05),
    "output_scale": (0.02, 0.5),
    "input_zero_point": (-128, 127),
    "output_zero_point": (-128, 127),
}


def of_sweep(path: str) -> Source:
    file = CAPTURES / path
    sweep = load_sweep(file if file.exists() else shared(path))
    return sweep.words, sweep.parameters


def drawn(source: Any, ranges: dict[str, Any]) -> Source:
    """Random layers as a source answers them; those with another number of words than most are
    left out.
    """
    found: list[tuple[np.ndarray, dict[str, float]]] = []
    for seed in range(20):
        asked = [
            row.to_dict() for _, row in Possible(complete_ranges(ranges)).draw(200, seed).iterrows()
        ]
        for number, answer in answers(source, asked, 0, threads(WORKERS)):
            if answer.capture:
                found.append((answer.capture.words, {**asked[number], **answer.parameters}))
        if len(found) >= LAYERS:
            break
    usual = pd.Series([len(words) for words, _ in found]).mode()[0]
    found = [row for row in found if len(row[0]) == usual]
    return np.stack([words for words, _ in found]), pd.DataFrame(
        [layer for _, layer in found]
    ).dropna(axis=1)


def compiled(configuration: str) -> Source:
    command = (
        sys.executable,
        "-m",
        "ethosu.vela",
        "{model}",
        "--output-dir",
        "{out}",
        "--accelerator-config",
        configuration,
    )
    return drawn(npulab.Compiler(command, read=reader_of("ethosu")), LARGE)


def described() -> Source:
    layers = descriptor.decorrelated(LAYERS, 5)
    return descriptor.descriptors(layers), layers


SOURCES: dict[str, Callable[[], Source]] = {
    "vivante-mesa": lambda: of_sweep("data/vivante/sweep_imx8mp.npz"),
    **{
        f"vivante-{name}": lambda name=name: of_sweep(f"vivante/sweep-{name}.npz")  # type: ignore[misc]
        for name in ("layers", "layers-imx8mp", "layers-s905d3", "layers-stm32mp25")
    },
    "heron": lambda: of_sweep("heron/sweep-jobs.npz"),
    "nvdla": lambda: of_sweep("nvdla/sweep-convolutions.npz"),
    "rockchip": lambda: of_sweep("rockchip/sweep-convolutions.npz"),
    "onert": lambda: drawn(Lowered("onert", "neon-aarch64", "int8"), CONNECTED),
    "ane": lambda: drawn(Lowered("ane", None, "float16"), CONVOLUTIONS),
    **{
        name: lambda name=name: compiled(name)  # type: ignore[misc]
        for name in ("ethos-u55-128", "ethos-u55-32", "ethos-u65-256", "ethos-u85-256")
    },
    "vendor-a311d": lambda: of_sweep("data/vivante_vendor/a311d.npz"),
    "rk3576": lambda: rk3576.captured(shared("data/rk3576")),
    "descriptor": described,
}


def kept(name: str, folder: Path | None) -> Source:
    """The source, or what an earlier run kept of it."""
    path = folder and folder / f"{name}.npz"
    if path and path.exists():
        with np.load(path) as stored:
            return stored["words"], pd.DataFrame(stored["parameters"], columns=stored["names"])
    words, layers = SOURCES[name]()
    if path:
        np.savez(
            path, words=words, parameters=layers.to_numpy(float), names=np.array(list(layers), str)
        )
    return words, layers


def told_apart(words: np.ndarray, layers: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's layer, and masks of the bits that the layer does not say: none of
    these counts.
    """
    same = layers.groupby(list(layers), sort=False, dropna=False).ngroup().to_numpy()
    first = np.unique(same, return_index=True)[1]
    return same, np.bitwise_or.reduce(words ^ words[first[same]])


def splits(of: np.ndarray, count: int, runs: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of ``count`` distinct layers, and of at most ``JUDGES`` others; ``of`` is the number
    of each row's layer.
    """
    random = np.random.default_rng(25)
    for _ in range(runs):
        order = random.permutation(of.max() + 1)
        yield (
            np.flatnonzero(np.isin(of, order[:count])),
            np.flatnonzero(np.isin(of, order[count : count + JUDGES])),
        )


def by_probability(laws: Any, words: np.ndarray, layers: pd.DataFrame) -> np.ndarray:
    """Claims and wrong claims at each probability, ``(len(EDGES) - 1, 2)``."""
    told, right = claims(laws, words, layers)
    out = np.zeros((len(EDGES) - 1, 2), int)
    np.add.at(out, np.digitize(told, EDGES) - 1, np.stack([np.ones(len(told), int), ~right], 1))
    return out


def bench(name: str, words: np.ndarray, layers: pd.DataFrame, count: int, runs: int) -> None:
    total, worst, seconds = np.zeros(3, int), (0.0, 0, 0), []
    counts = np.zeros((len(EDGES) - 1, 2), int)
    same, own = told_apart(words, layers)
    for seen, unseen in splits(same, count, runs):
        if len(unseen) < 5:
            return
        began = time.process_time()
        laws = npulab.find_laws(words[seen], layers.iloc[seen], progress=lambda text: None)
        seconds.append(time.process_time() - began)
        frame = layers.iloc[unseen].reset_index(drop=True)
        bits = laws.score(words[unseen], frame).by_bit
        bits = bits[(own[bits.word] >> bits.bit.to_numpy().astype(np.uint32)) % 2 == 0]
        cells, claimed, wrong = (
            int(bits[column].sum()) for column in ("cells", "claimed", "wrong")
        )
        total += cells, claimed, wrong
        worst = max(worst, (wrong / max(claimed, 1), wrong, claimed))
        counts += by_probability(laws, words[unseen], frame)
    print(
        f"{name:24s} {count:4d} layers, {len(seconds)} splits: claimed {100 * total[1] / total[0]:.1f} %, wrong "
        f"{total[2]} of {total[1]} = {100 * total[2] / max(total[1], 1):.3f} %, worst {100 * worst[0]:.3f} % "
        f"({worst[1]} of {worst[2]}), {np.mean(seconds):.1f} s",
        flush=True,
    )
    shown = [
        f"{low:g} to {high:g}: {made - wrong} of {made} ({(made - wrong) / made:.4f})"
        for low, high, (made, wrong) in zip(EDGES[:-1], EDGES[1:], counts.tolist(), strict=True)
        if made
    ]
    print("    claims that came true at", "; ".join(shown), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help=f"of {', '.join(SOURCES)}; all if none is given",
    )
    parser.add_argument(
        "--counts", nargs="+", type=int, default=[128, 256], help="distinct layers to learn from"
    )
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # a parameter that never varies
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    for chosen in asked.sources or SOURCES:
        source = kept(chosen, asked.keep)
        for number in asked.counts:
            bench(chosen, *source, number, asked.splits)
