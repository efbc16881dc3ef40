"""The rule that scales outputs: gemmlowp's rounding by the multiplier that the compiler wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.quant.rules import DoubleRounding, positive


@dataclass(frozen=True)
class Written(DoubleRounding):
    """Double rounding by a multiplier of 31 bits, made from scales of float64.

    A channel's record holds any multiplier, also multipliers that no float32 scales give. So the
    scales of a lifted layer are float64 numbers whose ratio gives the record's multiplier. Source:
    V (``ROUND_MODE_DBL``).
    """

    def multiplier(
        self,
        input_scale: Any,
        weight_scale: Any,
        output_scale: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        ratio = input_scale * np.asarray(weight_scale, np.float64) / output_scale
        positive("ratio of scales", ratio, ratio)
        return self.of_ratio(ratio)


RULE = Written("ethosu:double-rounding")
