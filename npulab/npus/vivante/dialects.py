"""Who wrote an NN job: Mesa or VeriSilicon's own compiler.

The arithmetic of their jobs is the same. Their words differ in some fields that do not change it
(marks). On V7 their coefficient streams differ too: read in the wrong dialect, a stream gives wrong
weights. A ring is the memory range that a tensor's addresses wrap around in.
"""

from __future__ import annotations

from collections import ChainMap
from typing import Any, cast

from npulab.captures.target import Features
from npulab.npus.kit import expect, up
from npulab.npus.vivante.coefficients import MESA, VENDOR
from npulab.npus.vivante.facts import Values, tensor_bytes

# Word 31 has VENDOR_MARK, plus POOLED_MARK if the unit pools; a ring is a multiple of RING_BYTES.
# Source: 395 jobs of A311D and 395 of i.MX8MP by the vendor's compiler of 2025 (V).
MARK = "w31_0_32"
VENDOR_MARK, POOLED_MARK = 0x7800, 4
RING_BYTES = {"nn_v7": 128, "nn_v8": 256}
SRAM_START = 0x800  # the address where Mesa's kernel cache begins; the vendor's begins later
KINDS = "in", "out"


def dialects_of(values: Values) -> tuple[str, ...]:
    """Return the dialects in which the coefficients of an NN job may be, the likeliest first.

    The result is one dialect if the words have all marks of one writer and none of the other,
    else the two dialects. The vendor's marks are the sizes of two rings and its value of word 31;
    Mesa writes 0 in all three. Mesa's mark is a kernel cache that begins at the start of the SRAM.
    """
    rings = [bool(values[f"{kind}_image_circular_buf_size"]) for kind in KINDS]
    mark = values[MARK]
    if all(rings) and mark == mark_of(bool(values["pooling"])):
        return (VENDOR,)
    if not any(rings) and not mark and values["kernel_cache_start_address"] == SRAM_START:
        return (MESA,)
    if any(rings) or mark:
        return VENDOR, MESA
    return MESA, VENDOR


def mark_of(pooled: bool) -> int:
    """Return the vendor's value of word 31; ``pooled`` is True if the unit pools."""
    if pooled:
        return VENDOR_MARK + POOLED_MARK
    return VENDOR_MARK


def normal(values: Values, facts: Features) -> Values:
    """Return the values with two sizes corrected to those that the unit uses: 1 as the width of a
    kernel of one column, and the number of planes of a native depthwise layer. The vendor writes
    other numbers in these two fields.
    """
    changes: dict[str, Any] = {}
    if values["layer_type"]:
        changes["kernel_xy_size"] = 1
    if facts.get("native_depthwise") and values["depthwise"] and values["kernel_z_size"] == 1:
        changes["kernel_z_size"] = values["out_image_z_size"]
    return ChainMap(changes, cast("dict[str, Any]", values))


def ring_unit(facts: Features) -> int:
    """Return the unit of the vendor's ring sizes, in bytes: each size is a multiple of it."""
    if facts.get("nn_v8"):
        return RING_BYTES["nn_v8"]
    return RING_BYTES["nn_v7"]


def refuse_marks(values: Values, facts: Features, text: str) -> None:
    """Raise ValueError for vendor's marks that would change the arithmetic or the place of data: a
    ring of another size or end than its tensor needs, a kernel marked as one column that has
    several, an offset that differs from its sign bit. ``text`` is the error's text, with the fields
    ``name``, ``got`` and ``allowed``.

    The end of a ring may be 0, as in words whose tensors have no addresses yet."""
    sizes = tensor_bytes(normal(values, facts))
    for kind, tensor in zip(KINDS, ("input", "output"), strict=True):
        field = f"{kind}_image_circular_buf_size"
        ring, whole = values[field], up(sizes[tensor], ring_unit(facts))
        # The input's ring may be larger: another job may split the image, or keep a quarter of it.
        if ring and (ring < whole or (kind == "out" and ring != whole)):
            raise ValueError(text.format(name=field, got=ring, allowed=f"0 or {whole}"))
        if ring:
            end = values[f"{kind}_image_address"] + ring
            expect(values, {f"{kind}_image_circular_buf_end_addr_plus_1": (0, end)}, text)
    if values["layer_type"]:
        expect(values, {"kernel_xy_size": (values["kernel_y_size"],)}, text)
    if not facts.get("nn_v8"):
        for axis in "xy":
            negative = int(values[f"in_image_{axis}_offset"] < 0)
            expect(values, {f"in_image_{axis}_offset_sign": (negative,)}, text)
