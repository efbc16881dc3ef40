"""Layouts drawn: the places and elements that the picture shows are those of the index map."""

from __future__ import annotations

import numpy as np
import pytest

import npulab
import npulab.notebook.pictures
from npulab.layout import (
    Constant,
    Layout,
    Loop,
    Planes,
    hwc,
    markers,
    nc1hwc2,
    only,
    packed_blocks,
    planar,
)
from npulab.notebook.pictures import Picture

SMALL = nc1hwc2((3, 4, 5), 4, fill=7, offset=8, parts=(Constant(0, b"\1\2\3"),))


def images(picture: Picture) -> list[np.ndarray]:
    return [image.get_array() for ax in picture.figure.axes[:2] for image in ax.images]


def test_places_and_elements_are_those_of_the_index_map() -> None:
    picture = npulab.notebook.pictures.layout_map(SMALL)
    tensor, buffer, parts = images(picture)
    places = SMALL.index_map()
    assert np.array_equal(tensor, places.reshape(12, 5))
    for number, place in enumerate(places.ravel()):
        assert buffer.ravel()[place] == number
    assert np.count_nonzero(~np.ma.getmaskarray(buffer)) == 60
    assert np.flatnonzero(~np.ma.getmaskarray(parts)).tolist() == [0, 1, 2]
    written = [text.get_text() for text in picture.figure.axes[0].texts]
    assert written == [str(place) for place in places.ravel()]


def test_units_of_planes_are_drawn_as_one_more_axis() -> None:
    nibbles = Layout((4, 2), (Loop(1, stride=4), Loop(0, stride=1)), dtype="uint4")
    tensor = images(npulab.notebook.pictures.layout_map(Planes((4,), (nibbles,))))[0]
    assert tensor.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_picture_says_its_number() -> None:
    assert repr(npulab.notebook.pictures.layout_map(SMALL)) == (
        "C1HWC2, C2=4, strides 48 16 4 1: (3, 4, 5) uint8, from byte 8, fill 0x7, 3 constant bytes at byte 0 "
        "(01 02 03), 104 bytes: 60 of 60 elements in the buffer"
    )


def test_what_is_not_in_the_buffer_is_left_out() -> None:
    tensor, buffer, _ = images(
        npulab.notebook.pictures.layout_map(only(planar((3, 4, 2), row_align=8), 2, 0, 1), width=8)
    )
    assert np.array_equal(np.ma.getmaskarray(tensor), np.tile([False, True], (12, 1)))
    assert np.ma.getmaskarray(buffer)[:3].tolist() == [[False] * 4 + [True] * 4] * 3
    assert np.ma.getmaskarray(buffer)[3:].all()


def test_a_found_layout_is_drawn_with_its_sums() -> None:
    layout = packed_blocks((37, 13), 16, 4, dtype="int8", sums=True)
    tensors = markers((37, 13), "int8")
    picture = npulab.notebook.pictures.layout_map(
        npulab.find_layout(tensors, [layout.pack(tensor) for tensor in tensors])
    )
    assert repr(picture).startswith(
        "C1R1C2R2, C2=4, R2=16, strides 192 64 16 1: (37, 13) int8, 16 sums over axis 1 at byte 768"
    )
    *_, parts = images(picture)
    assert np.count_nonzero(~np.ma.getmaskarray(parts)) == 64


def test_elements_below_8_bits_share_a_byte() -> None:
    layout = hwc((1, 4), dtype="int4", swap=4, parts=(Constant(3, b"\1"),))
    tensor, buffer, parts = images(npulab.notebook.pictures.layout_map(layout, width=4))
    assert tensor.tolist() == [[6, 7, 4, 5]]
    assert np.ma.getmaskarray(buffer).tolist() == [[True, True, False, False]]
    assert buffer[0, 2:].tolist() == [3, 1]
    assert np.ma.getmaskarray(parts).tolist() == [[False, True, True, True]]


def test_large_ones_are_drawn_in_part() -> None:
    picture = npulab.notebook.pictures.layout_map(nc1hwc2((50, 60, 70), 16))
    assert repr(picture).endswith(
        ": 210000 of 210000 elements in the buffer, the first 192 rows and columns drawn"
    )
    assert [image.shape for image in images(picture)] == [(192, 70), (192, 128), (192, 128)]


@pytest.mark.parametrize(
    "layout",
    [
        Layout((1,), ()),
        planar((1, 1, 300)),
        nc1hwc2((1, 1, 3), 2, dtype="float16", copies=(8,), size=16),
    ],
)
def test_shapes_that_are_odd(layout: Layout) -> None:
    assert npulab.notebook.pictures.layout_map(layout)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(
        ValueError,
        match=r"^width: got -1, allowed is 1 or more bytes, or 0 to leave it to the picture$",
    ):
        npulab.notebook.pictures.layout_map(layout, -1)
