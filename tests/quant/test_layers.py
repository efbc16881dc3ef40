"""Layers as values: names that they had earlier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npulab.quant.layers import Conv2D


def test_driver_quirks_by_their_earlier_name() -> None:
    weights, bias = np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, int)
    with pytest.warns(DeprecationWarning, match=r"^habits is now driver_quirks$"):
        layer = Conv2D(weights, bias, (1, 1, 1), habits=frozenset({"a"}))
    assert layer.driver_quirks == {"a"}
    with pytest.warns(DeprecationWarning, match=r"^habits is now driver_quirks$"):
        assert layer.habits == {"a"}
    with pytest.warns(DeprecationWarning, match=r"^habits is now driver_quirks$"):
        layer = replace(layer, habits=frozenset({"b"}))
    assert layer.driver_quirks == {"b"}
    assert replace(layer, stride=(2, 2)).driver_quirks == {"b"}
