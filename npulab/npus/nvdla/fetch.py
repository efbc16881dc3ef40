"""CDMA's reads for a convolution: features, images and weights, from registers and memory.

Registers are raw values by full name, ``CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH``; a name that is missing
is 0, as after reset. Pixels of every format become channels of int8 or int16;
``pixels.csv`` says where the channels of a pixel lie. Source: nvdla/hw cmod/cdma; the traces of
nvdla/hw agree for features and for the ten orders of four 8-bit channels (evidence T).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Hang, Unsupported, read_table, wrapped
from npulab.npus.nvdla.facts import MEMORIES, Pair
from npulab.npus.nvdla.layouts import TYPES, Cube, Weights
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules, saturated, shifted
from npulab.npus.nvdla.units.fields import Fields

WORD = 16  # bits of a word: packed channels are moved up to its top
CONVERTED_BITS = 17  # a converted value is saturated to this many bits, then to the element's
BLOCK = 2**14  # elements that are converted at a time: temporaries stay small next to the tensors
# Most bytes of features or of an image: their rows may overlap, so that memory does not bound them.
MOST_BYTES = 2**25
DATA, DATA_UV = (f"CDMA.D_DAIN_ADDR_LOW_{plane}.DATAIN_ADDR_LOW_{plane}" for plane in (0, 1))
FEATURES, DATA_MEMORY = "CDMA.D_DATAIN_SIZE_{1}.DATAIN_{0}", "CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE"
WEIGHT = "CDMA.D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW"
WEIGHT_MEMORY = "CDMA.D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE"
PITCHES = "CDMA.D_LINE_STRIDE.LINE_STRIDE", "CDMA.D_SURF_STRIDE.SURF_STRIDE"
KERNELS, DEPTH = (f"CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_{name}" for name in ("KERNEL", "CHANNEL_EXT"))
MEANS = (
    "CDMA.D_MEAN_GLOBAL_0.MEAN_RY",
    "CDMA.D_MEAN_GLOBAL_0.MEAN_GU",
    "CDMA.D_MEAN_GLOBAL_1.MEAN_BV",
    "CDMA.D_MEAN_GLOBAL_1.MEAN_AX",
)


@dataclass(frozen=True)
class Format:
    """A pixel format. ``element`` is the size of an element in bytes, ``pixel`` the size of a pixel
    in the first plane, ``pixel_uv`` that in the second plane, 0 without one.

    ``channels`` has (first, width) for each channel, in the order of the convolution. If ``width``
    is 0, the channel is element number ``first`` of the pixel; elements of the second plane are
    numbered after those of the first. Else the pixel is one word, and the channel is ``width`` bits
    of it from bit ``first`` on; they become the highest bits of a 16-bit value.
    """

    raw: int
    name: str
    element: int
    pixel: int
    pixel_uv: int
    channels: tuple[Pair, ...]
    evidence: str = ""

    def unpack(self, rows: Array, *more: Array) -> Array:
        """Return channels ``(height, width, channels)``, uint8 or uint16, of rows of whole pixels
        ``(height, bytes) uint8``, one for each plane of the format."""
        width = rows.shape[1] // self.pixel
        if any(bits for _, bits in self.channels):
            words = np.ascontiguousarray(rows).view("<u4")
            out = np.empty((len(rows), width, len(self.channels)), np.uint16)
            for channel, (first, bits) in enumerate(self.channels):
                out[:, :, channel] = (words >> np.uint32(first)) % 2**bits * 2 ** (WORD - bits)
            return out
        elements = []
        for plane in (rows, *more):
            stored = np.ascontiguousarray(plane).view(f"<u{self.element}")
            elements.append(stored.reshape(len(rows), width, -1))
        return np.concatenate(elements, 2)[:, :, [first for first, _ in self.channels]]


def _channel(text: str) -> Pair:
    """Return (first, width) of a channel of ``pixels.csv``: "2", or "10+5"."""
    found = re.fullmatch(r"(\d+)(?:\+(\d+))?", text)
    assert found is not None, text
    return int(found[1]), int(found[2] or 0)


FORMATS = {
    int(row["raw"]): Format(
        int(row["raw"]),
        row["format"],
        int(row["element"]),
        int(row["pixel"]),
        int(row["pixel_uv"] or 0),
        tuple(map(_channel, row["channels"].split())),
        row["evidence"],
    )
    for row in read_table(Path(__file__).with_name("pixels.csv"))
}


def converted(
    values: Array,
    offsets: Sequence[int] | int,
    scale: int,
    truncate: int,
    bits: int,
    rules: Rules = RULES,
) -> Array:
    """Return ``(value - offset) * scale / 2**truncate`` rounded half away from zero, of ``bits`` (8
    or 16): int8 or int16.

    ``values`` are whole numbers ``(..., C)`` of at most 17 bits. ``offsets`` has one signed 16-bit
    number, or one for each channel. ``scale`` is a signed 16-bit number, ``truncate`` is 0 to 63.
    The result is saturated to 17 bits, then to ``bits``.

    >>> converted(np.array([3, 5, 255]), 0, 1, 1, 8)
    array([  2,   3, 127], dtype=int8)
    """
    moved = (values.astype(np.int64) - np.asarray(offsets, np.int64)) * scale
    short = saturated(shifted(moved, truncate, rules.rounding), CONVERTED_BITS)
    return saturated(short, bits).astype(TYPES[bits // 8])


def cube_of(fields: Fields) -> Cube:
    """Return the cube of the features."""
    shape = fields.shape(FEATURES)
    atom = fields.features["memory_atom"]
    line, plane = fields[PITCHES[0]], fields[PITCHES[1]]
    packed = fields["CDMA.D_DAIN_MAP.LINE_PACKED"] and fields["CDMA.D_DAIN_MAP.SURF_PACKED"]
    if shape[:2] == (1, 1) and packed:
        # Surfaces of a single pixel are then read as one run; the stride has no effect.
        plane = atom
    return Cube(
        *shape,
        atom,
        line,
        plane,
        fields.precision("CDMA.D_MISC_CFG.IN_PRECISION"),
        MEMORIES[fields[DATA_MEMORY]],
        fields.address(DATA),
    )


def stored_weights(fields: Fields, itemsize: int = 1, image: bool = False) -> Weights:
    """Return the layout of the weights; for an image, all elements that a row of the kernel reads
    count as channels.

    Raises Unsupported for rows of an image that are extended in a way that no source states.
    """
    features = fields.features
    extended = 0
    if image:
        extended = fields["CSC.D_POST_Y_EXTENSION.Y_EXTENSION"]
    group = features["atomic_k"]
    if itemsize == 2:
        group = features.get("atomic_k_int16", group)
    try:
        return Weights(
            fields.size(KERNELS),
            *fields.pair("CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_{}_EXT"),
            fields.size(DEPTH),
            group,
            features["atomic_c"],
            itemsize,
            2**extended,
        )
    except ValueError as error:
        raise Unsupported(f"CSC.D_POST_Y_EXTENSION.Y_EXTENSION: got {extended}; {error}") from None


def weights_of(fields: Fields, itemsize: int, image: bool = False) -> Weights:
    """Return the layout of the weights. Raises Hang if their number of channels is not that of the
    features, and if they take more bytes than CDMA reads.
    """
    out = stored_weights(fields, itemsize, image)
    if image and out.width != 1:
        raise Hang(
            f"CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT is {out.width - 1}, allowed for an image is "
            "0: its kernels take the elements of a row as channels"
        )
    if not image:
        fields.agree("kernels of features")
    stated = fields["CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES"]
    if stated < out.used:
        raise Hang(
            f"CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES are {stated} bytes, weights {out.shape} take "
            f"{out.used}: the convolution waits for the rest"
        )
    return out


def read_features(fields: Fields, memory: Memory, itemsize: int, rules: Rules) -> Array:
    """Return the features ``(height, width, channels)`` of ``itemsize`` bytes, converted if the job
    asks for it.

    Raises Unsupported for more than 32 MiB; Hang if CDMA and CSC disagree about their size.
    """
    fields.agree("features")
    cube = cube_of(fields)
    _refuse_large("CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL", "features", cube.filled)
    x = cube.tensor(cube.read(memory))[:, :, : cube.channels]
    return converted_features(fields, x, itemsize, rules)


def converted_features(fields: Fields, x: Array, itemsize: int, rules: Rules) -> Array:
    """Return features of ``itemsize`` bytes, in any shape, converted if the job asks for it."""
    offsets = [wrapped(fields["CDMA.D_CVT_OFFSET.CVT_OFFSET"], 16)]
    return _converted(fields, x, offsets, itemsize, rules)


def read_image(fields: Fields, memory: Memory, itemsize: int, rules: Rules) -> Array:
    """Return the image ``(height, width, channels)`` of ``itemsize`` bytes, converted, with the
    padding to its left and right.

    Raises Unsupported for more than 32 MiB and for formats that are not covered, Hang if the
    registers state another count of channels than the format has.
    """
    form = format_of(fields)
    height, width, channels = fields.shape(FEATURES)
    if channels != len(form.channels):
        raise Hang(
            f"CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL is {channels - 1}, allowed for {form.name} is "
            f"{len(form.channels) - 1}"
        )
    _refuse_large(
        "CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH", "pixels", height * width * (form.pixel + form.pixel_uv)
    )
    offsets = [wrapped(fields["CDMA.D_CVT_OFFSET.CVT_OFFSET"], 16)]
    if fields["CDMA.D_MEAN_FORMAT.MEAN_FORMAT"]:
        offsets = [wrapped(fields[name], 16) for name in MEANS[:channels]]
    as_signed = (
        fields["CDMA.D_DATAIN_FORMAT.PIXEL_SIGN_OVERRIDE"] or not fields["CDMA.D_CVT_CFG.CVT_EN"]
    )
    left = fields["CDMA.D_ZERO_PADDING.PAD_LEFT"]
    right = fields["CDMA.D_ZERO_PADDING.PAD_RIGHT"]
    fill = 0
    if rules.pad_value:
        fill = wrapped(fields["CDMA.D_ZERO_PADDING_VALUE.PAD_VALUE"], 8 * itemsize)
    out = np.full((height, left + width + right, channels), fill, TYPES[itemsize])
    for top, bottom in _blocks(height, width * channels):
        x = _pixels(fields, memory, form, (top, bottom), width)
        if as_signed:
            x = x.view(TYPES[form.element])
        out[top:bottom, left : left + width] = _converted(fields, x, offsets, itemsize, rules)
    return out


def weights_at(fields: Fields) -> tuple[str, int]:
    """Return (memory, address) of the weights."""
    return fields.memory_of(WEIGHT_MEMORY), fields.address(WEIGHT)


def read_weights(fields: Fields, memory: Memory, stored: Weights, rules: Rules) -> Array:
    """Return the weights ``(kernels, height, width, channels)``, int8 or int16."""
    data = memory.read(*weights_at(fields), stored.used)
    if rules.weight_order == "plain":
        return np.frombuffer(data, np.uint8).view(TYPES[stored.itemsize]).reshape(stored.shape)
    if rules.transposed and stored.lines == 1:
        swapped = replace(stored, height=stored.width, width=stored.height)
        return swapped.unpack(data).transpose(0, 2, 1, 3)
    return stored.unpack(data)


def format_of(fields: Fields) -> Format:
    """Return the pixel format; Unsupported for a format that is not covered."""
    fields.expect("run image")
    raw = fields["CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT"]
    form = FORMATS.get(raw)
    if form is None or not form.channels:
        what = ", which no source names"
        if form is not None:
            what = f" ({form.name}, floating point)"
        raise Unsupported(
            f"CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT: got {raw}{what}, covered are formats of "
            "whole numbers"
        )
    if fields.precision("CDMA.D_MISC_CFG.IN_PRECISION") != form.element:
        raise Unsupported(
            f"CDMA.D_MISC_CFG.IN_PRECISION: got {fields['CDMA.D_MISC_CFG.IN_PRECISION']}, allowed "
            f"for {form.name} is {form.element - 1}"
        )
    return form


def _pixels(fields: Fields, memory: Memory, form: Format, rows: Pair, width: int) -> Array:
    """Return some rows of an image as they are stored."""
    skipped = fields["CDMA.D_PIXEL_OFFSET.PIXEL_X_OFFSET"]
    atom = fields.features["memory_atom"]
    planes = [(DATA, PITCHES[0], form.pixel, skipped * form.pixel)]
    if form.pixel_uv:
        # The address of the second plane is the address of the atom that holds its first pixel.
        pitch_uv = "CDMA.D_LINE_UV_STRIDE.UV_LINE_STRIDE"
        start_uv = skipped * form.pixel_uv % atom
        planes.append((DATA_UV, pitch_uv, form.pixel_uv, start_uv))
    name = MEMORIES[fields[DATA_MEMORY]]
    read = []
    for address, stride, size, start in planes:
        first = fields.address(address) + start
        pitch = fields[stride]
        stored = [memory.read(name, first + row * pitch, width * size) for row in range(*rows)]
        read.append(np.frombuffer(b"".join(stored), np.uint8).reshape(-1, width * size))
    return form.unpack(*read)


def _converted(
    fields: Fields, x: Array, offsets: Sequence[int], itemsize: int, rules: Rules
) -> Array:
    """Return elements in the type in which they are multiplied."""
    if not fields["CDMA.D_CVT_CFG.CVT_EN"]:
        if x.itemsize != itemsize:
            raise Unsupported(
                f"CDMA.D_CVT_CFG.CVT_EN: got 0 with elements of {x.itemsize} bytes to be processed "
                f"as {itemsize}, allowed is 1"
            )
        return x
    scale = wrapped(fields["CDMA.D_CVT_SCALE.CVT_SCALE"], 16)
    truncate = fields["CDMA.D_CVT_CFG.CVT_TRUNCATE"]
    out = np.empty(x.shape, TYPES[itemsize])
    for top, bottom in _blocks(len(x), x[0].size):
        out[top:bottom] = converted(x[top:bottom], offsets, scale, truncate, 8 * itemsize, rules)
    return out


def _blocks(rows: int, row: int) -> Iterator[Pair]:
    """Yield (first, end) of the rows of ``row`` elements that are converted at a time."""
    step = max(1, BLOCK // row)
    for top in range(0, rows, step):
        yield top, min(top + step, rows)


def _refuse_large(name: str, what: str, size: int) -> None:
    if size > MOST_BYTES:
        raise Unsupported(
            f"{name}: got {size} bytes of {what}, allowed to be simulated are {MOST_BYTES}"
        )
