"""The rule that scales outputs: as gemmlowp does, with the multiplier that was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.quant.rules import DoubleRounding, positive


@dataclass(frozen=True)
class Written(DoubleRounding):
    """Double rounding by a multiplier of 31 bits that scales of float32 need not reach.

    A channel's record holds the multiplier, so the scales of a lifted layer are numbers of float64
    whose ratio is that multiplier. Source: V (``ROUND_MODE_DBL``).
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
