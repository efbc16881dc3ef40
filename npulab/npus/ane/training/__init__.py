"""A training step of a transformer layer on the ANE, as maderix/ANE runs it, kernel by kernel: its
results in any float type, the error of each rounding, its numbers of operations and bytes."""

from __future__ import annotations

from npulab.npus.ane.training.accounting import (
    achieved,
    counts,
    operations,
    published,
    roofline_points,
    traffic,
    utilization,
)
from npulab.npus.ane.training.gradients import example, given_to, train
from npulab.npus.ane.training.half_precision import loss_scales, precision, summaries, summary
from npulab.npus.ane.training.kernels import KERNELS, Kernel, Operation, Run, Step, causal_mask, run

__all__ = [
    "KERNELS",
    "Kernel",
    "Operation",
    "Run",
    "Step",
    "achieved",
    "causal_mask",
    "counts",
    "example",
    "given_to",
    "loss_scales",
    "operations",
    "precision",
    "published",
    "roofline_points",
    "run",
    "summaries",
    "summary",
    "traffic",
    "train",
    "utilization",
]
