"""What the package reads of the ANE, written, and made of what it gives: source networks, weight
files, constants by channel, kernels of products, parts of memory, a whole training step."""

from __future__ import annotations

import plistlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from npulab.captures.capture import Capture
from npulab.npus.ane import memory
from npulab.npus.ane.coefficients import Kernel
from npulab.npus.ane.coefficients.kernel import HALF, MOST_CHANNELS, SMALL_SIDE
from npulab.npus.ane.lifting import raw
from npulab.npus.ane.source.espresso import U64, Entry
from npulab.npus.ane.source.network import Network
from npulab.npus.ane.source.parameters import parameters
from npulab.npus.ane.source.plist import Plist, _check_values
from npulab.npus.ane.training import programs
from npulab.npus.ane.words import HABITS
from npulab.npus.kit.numbers import up
from npulab.support.refuse import refuse_if, refusing

TILE_BYTES = 0x4000  # memory for the DMA is given in these
MANY_ROWS, MOST_STEPS = 128, 2**15  # of a product


def keys_of(network: Network) -> dict[str, Any]:
    """A network as the dictionary of a file."""
    lists = {"Inputs": network.inputs, "Outputs": network.outputs, "Units": network.units}
    found: dict[str, Any] = {key: [one.name for one in parts] for key, parts in lists.items()}
    if network.weights is not None:
        found["Weights"] = list(network.weights)
    found |= {name: dict(part.keys) for name, part in network.parts.items()} | dict(network.other)
    return in_order(found, network.order)


def in_order(keys: Mapping[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    first = [key for key in dict.fromkeys(order) if key in keys]
    return {key: keys[key] for key in (*first, *sorted(keys.keys() - set(first)))}


def write_plist(plist: Plist | Network) -> bytes:
    """The bytes of a file: XML as Apple's tools write it, or binary where the plist says so.

    Keys are in the order that was read; others follow sorted.  Raises ValueError for a value that
    no file can hold.
    """
    if isinstance(plist, Network):
        plist = Plist((plist,))
    top: dict[str, Any] = {"Networks": [one.name for one in plist.networks]}
    if plist.version is not None:
        top["Version"] = plist.version
    top |= {one.name: keys_of(one) for one in plist.networks} | dict(plist.other)
    with refusing("net.plist"):
        _check_values(top)
    form = plistlib.FMT_BINARY if plist.binary else plistlib.FMT_XML
    try:
        return plistlib.dumps(in_order(top, plist.order), fmt=form, sort_keys=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"net.plist: cannot be written: {error}") from None


def write_espresso(entries: Iterable[Entry]) -> bytes:
    """The bytes of a ``model.espresso.weights``; raises ValueError for a number that is no u64 or
    there twice."""
    listed = list(entries)
    if len({one.id for one in listed}) != len(listed) or not all(
        0 <= one.id < 2**64 for one in listed
    ):
        raise ValueError(
            f"entries: got numbers {[one.id for one in listed][:8]}, allowed are different ones of u64"
        )
    pairs = [(entry.id, len(entry.data)) for entry in listed]
    head = np.array([len(listed), *chain.from_iterable(pairs)], U64)
    return b"".join([head.tobytes(), *(bytes(entry.data) for entry in listed)])


# Constants by channel of a planar task: two rows of a tensor in the constant section, which the
# task reads as its second source: no engines, no fill (joshuaswarren/mil-hwx-compiler:
# env_bcast_mul_1x1024x375_blob_1x1024x1 and 64 to 3072 channels).


def encode_constants(bias: np.ndarray, scale: np.ndarray) -> bytes:
    """The section of (C,) float16 biases and scales: C of the ones, then C of the others.

    An addition has scales of 1, a multiplication biases of 0.  Raises ValueError for another shape
    or type.

    >>> encode_constants(np.zeros(2, np.float16), np.full(2, 0.5, np.float16)).hex(" ", 2)
    '0000 0000 0038 0038'
    """
    for name, array in (("bias", bias), ("scale", scale)):
        if (
            array.dtype != np.float16
            or array.ndim != 1
            or array.shape != bias.shape
            or not 1 <= len(array) <= MOST_CHANNELS
        ):
            raise ValueError(
                f"channel constants: {name}: got shape {array.shape} {array.dtype}, allowed is "
                f"{bias.shape if name == 'scale' else '(C,)'} float16"
            )
    return np.concatenate([bias, scale]).astype("<f2").tobytes()


def decode_constants(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """(C,) float16 biases and scales; the inverse of ``encode_constants``; ValueError for another
    size."""
    if not data or len(data) % (2 * HALF) or len(data) > 2 * HALF * MOST_CHANNELS:
        raise ValueError(
            f"channel constants: got {len(data)} bytes, allowed are multiples of {2 * HALF} up to "
            f"{2 * HALF * MOST_CHANNELS}"
        )
    halves = np.frombuffer(data, "<f2")
    return halves[: len(halves) // 2].copy(), halves[len(halves) // 2 :].copy()


def matvec(outputs: int, inputs: int, rows: int = 1, bias: bool = False) -> Kernel:
    """The kernel of a product of (rows, inputs) with (outputs, inputs) constant weights, in one
    task.

    It has at most 16 lanes, and past 128 rows at most 32768 / inputs
    (joshuaswarren/mil-hwx-compiler, research/h13-td-fields.md: 502 of 505 probes; where between 129
    and 144 rows that begins is not known).

    >>> matvec(512, 256).lanes, matvec(2048, 4096, 256).lanes
    (16, 8)
    """
    few = Kernel(outputs, inputs, bias=bias)
    most = (
        few.usual_lanes if rows <= MANY_ROWS else min(few.usual_lanes, MOST_STEPS // max(inputs, 1))
    )
    return Kernel(
        outputs,
        inputs,
        bias=bias,
        small=rows <= SMALL_SIDE,
        lanes=2 ** (max(most, 1).bit_length() - 1),
    )


def compiler_of(capture: Capture) -> str:
    """Whose habits the last task has, a name in ``steps.HABITS``: by its events and the stride
    between batches."""
    v = raw(capture, len(capture.jobs) - 1)
    if v["Header.Header[2].LogEvents"] == HABITS["9.x"].events:
        return "9.x"
    return "5.4.1" if v["TileDMADst.GroupStride.GroupStride"] else "4.2.1"


def parameters_table(networks: Mapping[str, Network]) -> pd.DataFrame:
    """One row of whole numbers for each file, by its name, as ``npulab.find_laws`` takes them; 0
    where a number does not apply."""
    rows = {name: parameters(network) for name, network in networks.items()}
    return pd.DataFrame.from_dict(rows, orient="index").fillna(0).astype("int64")


def unpack_columns(data: bytes, channels: int, columns: int, rows: bool = True) -> np.ndarray:
    """The array ``(C, S) float16`` of an IOSurface; ``rows`` as in ``pack``.

    Bytes past the tensor are not looked at: a surface may be allocated larger.  Raises ValueError
    for fewer.
    """
    refuse_if(
        channels < 1 or columns < 1,
        "shape",
        f"{channels} channels, {columns} columns",
        "is 1 or more",
    )
    surface = memory.Surface(1, columns, channels, memory.UNIT if rows else 1)
    return np.ascontiguousarray(memory.unpack(data, surface, "surface")[0].T)


def training_step(
    dims: programs.Dims, weights: programs.Weights | None = None, file: str = ""
) -> dict[str, programs.Kernel]:
    """The six kernels by name; arguments as for ``kernel``."""
    return {name: programs.kernel(name, dims, weights, file) for name in programs.KERNELS}


class Strides(NamedTuple):
    """Bytes from a row, plane (channel), depth slice or batch to the next, and of the whole
    tensor."""

    row: int
    plane: int
    depth: int
    batch: int
    size: int


def strides(shape: Sequence[int], itemsize: int = 2) -> Strides:
    """Strides of a tensor (N, C, H, W) or (N, C, D, H, W), elements of ``itemsize`` bytes.

    A row is rounded up to 64 bytes; a plane has H rows, a depth slice C planes, a batch D depth
    slices.  The batch stride was never seen with more than one.  Raises ValueError for another rank
    or sizes below 1.

    >>> strides((1, 3, 1, 77))
    Strides(row=192, plane=192, depth=576, batch=576, size=576)
    """
    if len(shape) not in (4, 5) or min(shape) < 1 or itemsize < 1:
        raise ValueError(
            f"shape: got {tuple(shape)} of {itemsize} bytes, allowed is (N, C, H, W) or (N, C, D, H, W) "
            "of 1 or more"
        )
    n, c, h, w = shape[0], shape[1], shape[-2], shape[-1]
    row = up(w * itemsize, memory.UNIT)
    depth = row * h * c
    batch = depth * (shape[2] if len(shape) == 5 else 1)
    return Strides(row, row * h, depth, batch, batch * n)


def allocated(strides: Strides) -> int:
    """The size of a tensor in whole tiles of 0x4000 bytes."""
    return -(-strides.size // TILE_BYTES) * TILE_BYTES
