"""What several recorders write alike: captures saved, layers drawn until one is lowered, a sweep of
them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.sweep import Sweep, save_sweep

Row = tuple[np.ndarray, dict[str, float]]
Made = TypeVar("Made")


def recorded(lowered: npulab.Capture, source: str) -> npulab.Capture:
    """A capture with the output of the simulated device."""
    return replace(Simulated().record(lowered), source=source)


def save_all(captures: Iterable[npulab.Capture]) -> None:
    """Save captures in the folder that the command line names."""
    for capture in captures:
        print(npulab.save(capture, Path(sys.argv[1]) / capture.name))


def save_named(sweep: Sweep) -> None:
    """Save a sweep under its name, in the folder that the command line names."""
    print(save_sweep(sweep, Path(sys.argv[1]) / f"{sweep.name}.npz"))


def size(random: np.random.RandomState, low: float, high: float) -> int:
    """A size whose logarithm is drawn between ``low`` and ``high``."""
    return int(2 ** random.uniform(low, high))


def scale(random: np.random.RandomState, low: float, high: float) -> float:
    """A float32 scale whose logarithm is drawn between ``low`` and ``high``."""
    return float(np.float32(2 ** random.uniform(low, high)))


def lowered_layers(
    draw: Callable[[], Made], lower: Callable[[Made], npulab.Capture]
) -> Iterator[tuple[Made, npulab.Capture]]:
    """Yield layers with their captures, without those that cannot be drawn or lowered."""
    while True:
        try:
            drawn = draw()
            capture = lower(drawn)
        except ValueError:
            continue
        yield drawn, capture


def sizes_of(of: npulab.Conv2D) -> dict[str, float]:
    """Width, height and channels of a layer's input and output."""
    out: dict[str, float] = {}
    for name, (height, width, channels) in (("input", of.input_shape), ("output", of.output_shape)):
        out |= {f"{name}_w": width, f"{name}_h": height, f"{name}_c": channels}
    return out


def sweep_of(
    rows: Iterable[Row], name: str, target: str, chip: str, block: str, source: str
) -> Sweep:
    """Rows of words and parameters as a sweep of lowered layers."""
    words, known = zip(*rows, strict=True)
    return Sweep(
        np.stack(words),
        pd.DataFrame(known),
        name,
        target,
        chip,
        block,
        "simulated",
        source,
        "npulab lower",
    )
