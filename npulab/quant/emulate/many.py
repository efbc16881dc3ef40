"""Emulation of many layers, by the workers of any executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from threading import Event
from typing import Any

from npulab.quant.emulate import emulate
from npulab.quant.layers import Layer
from npulab.quant.rules import Rule
from npulab.support.executors import Workers, ordered


def emulate_all(
    layers: Iterable[tuple[Layer, Any]],
    rule: str | Rule = "tflite-reference",
    executor: Workers = None,
    *,
    stop: Event | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (number, output) for pairs of a layer and its input, in the order of the pairs, however
    many workers there are. Pairs are numbered from 0.

    A pair is taken from ``layers`` when it is sent to a worker, so that ``layers`` may be a
    generator. Inputs, outputs and errors are those of ``emulate``; ``executor`` and ``stop`` are
    those of ``npulab.support.executors.ordered``.

    >>> import numpy as np
    >>> from npulab.quant.layers import Pool2D
    >>> layer = Pool2D("max", (2, 2), (2, 2, 1), padding="valid", dtype="uint8")
    >>> images = [np.full((2, 2, 1), value, np.uint8) for value in (3, 7)]
    >>> [int(output.item()) for _, output in emulate_all((layer, x) for x in images)]
    [3, 7]
    """
    return ordered(partial(_emulated, rule), layers, executor, stop=stop, what="rule")


def _emulated(rule: str | Rule, pair: tuple[Layer, Any]) -> Any:
    layer, x = pair
    return emulate(layer, x, rule)
