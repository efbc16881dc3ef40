"""Weights that a MIL program stores in fewer bits: codes with scales, and indices into tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.npus.ane.training.mil.calls import Call, Results, Rule, Shape

Arrays = dict[str, Any]


def _affine(call: Call) -> Results:
    """``scale * (quantized_data - zero_point)``, scale and zero point one or one for each index of
    an axis."""
    shape = call["quantized_data"].shape
    size = shape[call.axis("axis", len(shape))]
    call.dtype("quantized_data")
    for name in ("scale", "zero_point"):
        call.dtype(name)
        if call[name].shape not in ((), (size,)):
            call.refuse(name, list(call[name].shape), f"[] or [{size}]")
    return [(call.dtype("scale", "f"), shape)]


def _affine_values(call: Call, x: Arrays) -> Any:
    codes, scale, zero = x["quantized_data"], x["scale"], x["zero_point"]
    along = [1] * codes.ndim
    along[call.axis("axis", codes.ndim)] = -1
    scale, zero = (array.reshape(along) if array.ndim else array for array in (scale, zero))
    return scale * (codes.astype(scale.dtype) - zero.astype(scale.dtype))


def _blocks(call: Call, name: str, shape: Shape) -> None:
    """Refuse sizes that do not divide those of a shape."""
    have = call[name].shape[:len(shape)]
    if len(have) < len(shape) or any(part < 1 or size % part for part, size in zip(have, shape, strict=True)):
        call.refuse(name, list(call[name].shape), f"sizes that divide those of {list(shape)}")


def _spread(array: np.ndarray, shape: Shape) -> np.ndarray:
    """Each element of the first axes repeated for the block that it stands for."""
    for axis, size in enumerate(shape):
        array = np.repeat(array, size // array.shape[axis], axis)
    return array


def _blockwise(call: Call) -> Results:
    """``scale * (data - offset)``, scale and offset for blocks of the data, sizes along every
    axis."""
    shape = call["data"].shape
    call.dtype("data")
    for name in ["scale", "offset"] if call.has("offset") else ["scale"]:
        call.dtype(name)
        if len(call[name].shape) != len(shape):
            call.refuse(name, list(call[name].shape), f"the rank of {list(shape)}")
        _blocks(call, name, shape)
    return [(call.dtype("scale", "f"), shape)]


def _blockwise_values(call: Call, x: Arrays) -> Any:
    data, scale = x["data"], x["scale"]
    offset = _spread(x["offset"], data.shape) if "offset" in x else np.zeros((), scale.dtype)
    return _spread(scale, data.shape) * (data.astype(scale.dtype) - offset.astype(scale.dtype))


def _looked_up(call: Call) -> Results:
    """``lut[..., indices, 0]``: tables (blocks of the indices ..., entries, 1) of one number an
    entry."""
    indices, table = call["indices"], call["lut"].shape
    shape = indices.shape
    if call.has("shape") or not indices.dtype.startswith("uint") or len(table) != len(shape) + 2 or table[-1] != 1:
        call.refuse("indices and lut", f"{indices.type} and {call['lut'].type}",
                    "unsigned indices, and tables of two axes more, the last of size 1 (no argument shape)")
    _blocks(call, "lut", shape)
    if table[-2] < 1:
        call.refuse("lut", list(table), "1 entry or more")
    return [(call["lut"].dtype, shape)]


def _looked_up_values(call: Call, x: Arrays) -> Any:
    indices, table = x["indices"], x["lut"][..., 0]
    if indices.size and int(indices.max()) >= table.shape[-1]:
        call.refuse("indices", int(indices.max()), f"0 to {table.shape[-1] - 1}, the entries of the table")
    blocks = np.ogrid[tuple(slice(size) for size in indices.shape)]
    at = tuple(index // (size // part) for index, size, part in zip(blocks, indices.shape, table.shape, strict=False))
    return table[(*at, indices)]


COMPRESSED = {"constexpr_affine_dequantize": Rule(_affine, _affine_values),
              "constexpr_blockwise_shift_scale": Rule(_blockwise, _blockwise_values),
              "constexpr_lut_to_dense": Rule(_looked_up, _looked_up_values)}
