"""How the simulated unit reads the words of the vendor's compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npulab.npus.kit import hang_if
from npulab.npus.vivante.facts import Values

MARKS = 0x7800, 0x7804  # the two values of word 31 in jobs of the vendor's compiler


def is_vendors(v: Values) -> bool:
    """True if word 31 says that the vendor's compiler wrote the job."""
    return v["w31_0_32"] in MARKS


def as_meant(v: Values) -> dict[str, Any]:
    """Return the vendor's values with two sizes corrected to those that the unit uses: 1 as the
    width of a kernel of one column, and the number of planes of a native depthwise layer."""
    out = dict(v)
    if v["layer_type"]:
        out["kernel_xy_size"] = 1
    if v["depthwise"]:
        out["kernel_z_size"] = v["out_image_z_size"]
    return out


def refuse_rings(v: Values, sizes: Mapping[str, int]) -> None:
    """Raise Hang for a ring (the memory range of a tensor) that does not hold its whole tensor."""
    for kind, tensor in (("in", "input"), ("out", "output")):
        ring = v[f"{kind}_image_circular_buf_size"]
        hang_if(
            0 < ring < sizes[tensor],
            f"a ring of {ring} bytes is smaller than its {tensor} of {sizes[tensor]}",
        )
