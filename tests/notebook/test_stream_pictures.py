"""The bytes of a coefficient buffer, asked for one by one and drawn."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import CAPTURES
from lowered_layers import A311D, IMX8MP
from matplotlib.colors import to_rgb

import npulab
import npulab.notebook.pictures
from npulab import Conv2D, QuantParams
from npulab.captures.target import Item, Target
from npulab.notebook.pictures import Picture
from npulab.notebook.pictures.stream import COLOURS, NAMES, PANEL, WIDTH


def lowered(
    vivante: Target, chip: str, outputs: int = 6, inputs: int = 3, zeros: float = 0.5
) -> npulab.Capture:
    random = np.random.RandomState(3)
    weights = random.randint(0, 256, (outputs, 3, 3, inputs)).astype(np.uint8)
    weights[random.random_sample(weights.shape) < zeros] = 128
    one = QuantParams(0.02, 128)
    return vivante.lower(
        Conv2D(
            weights, np.arange(outputs), (8, 8, inputs), input_q=one, weight_q=one, output_q=one
        ),
        chip,
    )


def drawn(picture: Picture) -> np.ndarray:
    """Names of what is drawn, panel by panel ``(panels, rows, cells)``, '' past the end."""
    colours = np.array([ax.images[0].get_array() for ax in picture.figure.axes])
    out = np.full(colours.shape[:3], "", dtype="U20")
    for name, colour in COLOURS.items():
        out[(colours == to_rgb(colour)).all(-1)] = name
    return out


def of(item: Item) -> str:
    """What an item is drawn as, by another way than the picture's."""
    kind = item.kind
    if kind == "weight":
        return "run and weight" if item.weights > 1 else kind
    return (
        kind
        if kind
        in (
            "run",
            "bias",
            "offset",
            "symbol",
            "escape",
            "completion",
            "flush",
            "mask",
            "knot",
            "line",
            "fill",
        )
        else "header"
    )


@pytest.mark.parametrize("case", ["update4-vendor", A311D, IMX8MP])
def test_every_bit_has_the_colour_of_its_item(
    captures: npulab.CaptureSet, vivante: Target, case: str
) -> None:
    capture = captures[case] if case == "update4-vendor" else lowered(vivante, case)
    size = len(capture.buffers["coefficients"])
    bits = drawn(npulab.notebook.pictures.stream_map(capture)).reshape(-1)
    items = vivante.explain(capture)
    assert bits[: 8 * size].tolist() == [of(item) for item in items for _ in range(item.bits)]
    assert (bits[8 * size :] == "").all()
    assert 0 <= len(bits) - 8 * size < 8 * WIDTH


def test_picture_says_its_numbers(captures: npulab.CaptureSet) -> None:
    one = npulab.notebook.pictures.stream_map(captures["update4-vendor"])
    assert repr(one) == (
        "update4-vendor: 640 bytes of coefficients, 1 stream; bytes by kind: header 35, weight 16, bias 4, "
        "offset 4, fill 581"
    )
    ax = one.figure.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["header, 0x0", "core 0, 0x40"]
    written = [text.get_text() for text in ax.texts]
    data = captures["update4-vendor"].buffers["coefficients"]
    assert written == [f"{byte:02x}" for byte in data[:32] + data[64:91]]
    assert [text.get_text() for text in one.figure.legends[0].get_texts()] == [
        "header 35",
        "weight 16",
        "bias 4",
        "offset 4",
        "fill 581",
    ]


def test_simulated_is_said_and_cores_begin_where_they_do(vivante: Target) -> None:
    picture = npulab.notebook.pictures.stream_map(lowered(vivante, IMX8MP))
    assert "lowered (simulated): 472 bytes of coefficients, 6 streams; " in repr(picture)
    assert "lowered (simulated): " in picture.figure.get_suptitle()
    labels = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    assert labels == [
        "header, 0x0",
        *(f"core {n}, {64 + 64 * n:#x}" for n in range(6)),
        "biases, 0x1c0",
    ]


def test_buffers_without_a_header_have_none() -> None:
    """Sixteen engines of 192 bytes from the first byte on, and an activation table."""
    engines, table = (
        npulab.notebook.pictures.stream_map(npulab.load(CAPTURES / "ane" / name))
        for name in ("sim-3x3-same", "sim-tanh")
    )
    labels = [label.get_text() for label in engines.figure.axes[0].get_yticklabels()]
    assert labels == [f"core {n}, {192 * n:#x}" for n in range(16)]
    assert "16 streams; bytes by kind: weight 2304, bias 64, fill 704" in repr(engines)
    assert [label.get_text() for label in table.figure.axes[0].get_yticklabels()] == ["table, 0x0"]
    assert "bytes by kind: header 12, knot 66, line 8, fill 42" in repr(table)


def test_of_many_rows_each_byte_has_what_most_bits_are_for(vivante: Target) -> None:
    capture = lowered(vivante, A311D, 64, 48, 0)
    size = len(capture.buffers["coefficients"])
    rows = -(-size // WIDTH)
    assert rows > PANEL
    names = drawn(npulab.notebook.pictures.stream_map(capture)).reshape(-1)
    bits = np.repeat(
        [NAMES.index(of(item)) for item in vivante.explain(capture)],
        [item.bits for item in vivante.explain(capture)],
    ).reshape(-1, 8)
    most = [NAMES[np.bincount(byte, minlength=len(NAMES)).argmax()] for byte in bits]
    assert names[:size].tolist() == most
    assert (names[size:] == "").all()
    part = npulab.notebook.pictures.stream_map(capture, 640, 3)
    assert repr(part).endswith("; drawn are bytes 640 to 831")
    assert drawn(part).shape == (1, 3, 8 * WIDTH)
    assert drawn(part)[0, :, ::8].reshape(-1).tolist() == [NAMES[one] for one in bits[640:832, 0]]


def test_what_is_no_row_is_refused(captures: npulab.CaptureSet) -> None:
    for first in (-64, 65, 640):
        with pytest.raises(
            ValueError,
            match=rf"^first: got byte {first}, allowed is a multiple of 64 from 0 to 639$",
        ):
            npulab.notebook.pictures.stream_map(captures["update4-vendor"], first)
    with pytest.raises(ValueError, match=r"^rows: got 0, allowed is 1 or more$"):
        npulab.notebook.pictures.stream_map(captures["update4-vendor"], 0, 0)
    with pytest.raises(TypeError, match="explain: got str, allowed is Capture"):
        npulab.notebook.pictures.stream_map("update4-vendor")


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_one_byte_has_the_items_that_touch_it(vivante: Target, chip: str) -> None:
    capture = lowered(vivante, chip)
    items, table = vivante.explain(capture), npulab.explain(capture)
    assert (8 * table.byte + table.bit).tolist() == [item.bit for item in items]
    columns = table.columns.tolist()
    assert columns[:4] == ["byte", "bit", "bits", "kind"]
    for byte in range(0, len(capture.buffers["coefficients"]), 29):
        touched = [
            n
            for n, item in enumerate(items)
            if byte in range(item.bit // 8, (item.bit + max(item.bits, 1) - 1) // 8 + 1)
        ]
        found = npulab.explain(capture, byte)
        assert (
            found.astype(object).fillna("").to_numpy().tolist()
            == table.iloc[touched].astype(object).fillna("").to_numpy().tolist()
        )
        assert touched


def test_seeds_bytes_one_by_one(captures: npulab.CaptureSet) -> None:
    capture = captures["update4-vendor"]
    said = {
        byte: npulab.explain(capture, byte=byte).iloc[0] for byte in (3, 66, 67, 71, 72, 90, 639)
    }
    assert [one.kind for one in said.values()] == [
        "core size",
        "kernels per core",
        "weight",
        "bias",
        "weight",
        "offset",
        "fill",
    ]
    assert (said[67].value, said[71].value, said[72].value) == (0x2C, 3737, 0x40)
    assert said[72][["core", "channel", "plane", "row", "column"]].tolist() == [0, 0, 0, 0, 1]
    for byte in (-1, 640):
        with pytest.raises(ValueError, match=rf"^byte: got {byte}, allowed is 0 to 639$"):
            npulab.explain(capture, byte)
