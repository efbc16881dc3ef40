"""The byte view: its model with no browser, its search against a slow one, what a notebook keeps
of it.
"""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES
from hypothesis import given, strategies as st
from map_rows import map_rows
from refusals import refused

import npulab
import npulab.notebook.widgets
from npulab.captures.target import Item
from npulab.layout import find_layout, hwc, kernel_groups, nc1hwc2, planar
from npulab.notebook.widgets import ByteModel, ByteView
from npulab.notebook.widgets.byte_meanings import OfItems, runs_of
from npulab.notebook.widgets.byte_search import ELEMENTS, find
from npulab.notebook.widgets.byte_view import STATUSES, WINDOW
from npulab.registers.map import RegisterMap

CODES = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def capture() -> npulab.Capture:
    return npulab.load(CAPTURES / "vivante/sim-3x3-same")


# ---- search ----


def slow(data: bytes, value: float, element: str, big_endian: bool) -> list[int]:
    """Every offset at which a number stands, read one by one."""
    code = (">" if big_endian else "<") + CODES[element]
    size = struct.calcsize(code)
    wanted = struct.unpack(code, struct.pack(code, value))[0]
    read = [struct.unpack_from(code, data, at)[0] for at in range(len(data) - size + 1)]
    return [
        at
        for at, one in enumerate(read)
        if one == wanted or (math.isnan(wanted) and math.isnan(one))
    ]


@given(
    st.sampled_from(sorted(CODES)),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.integers(1, 90),
    st.integers(2, 6),
)
def test_numbers_are_found_at_every_offset(
    element: str, big_endian: bool, seed: int, size: int, values: int
) -> None:
    draw = np.random.default_rng(seed)
    # few values, so that much matches; the bytes of infinities, of NaN and of both zeros among them
    data = draw.choice(np.array([0, 0x80, 0x7C, 0xFF, 0x7F, 1], np.uint8)[:values], size)
    width = struct.calcsize("<" + CODES[element])
    at = int(draw.integers(0, max(size - width, 0) + 1))
    raw = data[at : at + width].tobytes().ljust(width, b"\0")
    value = struct.unpack((">" if big_endian else "<") + CODES[element], raw)[0]
    assert find(data, str(value), element, big_endian).tolist() == slow(
        data.tobytes(), value, element, big_endian
    )


@given(
    st.binary(min_size=1, max_size=80),
    st.lists(st.sampled_from(["00", "01", "??", "?1", "0?", "ff"]), min_size=1, max_size=20).filter(
        lambda parts: set("".join(parts)) != {"?"}
    ),
)
def test_patterns_are_found_at_every_offset(data: bytes, parts: list[str]) -> None:
    data = bytes(byte % 2 for byte in data)
    fits = [
        all(
            want in ("?", got)
            for want, got in zip("".join(parts), data[at : at + len(parts)].hex(), strict=True)
        )
        for at in range(len(data) - len(parts) + 1)
    ]
    found = find(np.frombuffer(data, np.uint8), " ".join(parts))
    assert found.tolist() == [at for at, good in enumerate(fits) if good]


def test_text_and_zeros_and_nan() -> None:
    data = np.frombuffer(
        "näh — 0.0".encode() + struct.pack("<3f", 0.0, -0.0, math.nan) + b"\0\0\x80\x7f", np.uint8
    )
    assert find(data, "ä", "text").tolist() == [1]
    assert find(data, "0", "f32").tolist() == [12, 13, 14, 15, 16], (
        "+0 and -0, and what stands across them"
    )
    assert find(data, "nan", "f32").tolist() == [20]
    assert find(data, "inf", "f32").tolist() == [24]
    assert find(data, "0x7f80", "u16").tolist() == [26]


@pytest.mark.parametrize(
    ("asked", "element", "word"),
    [
        ("3", "bytes", "pairs of hex digits"),
        ("??", "bytes", "hex"),
        ("xy", "bytes", "hex"),
        ("00" * 257, "bytes", "257 bytes"),
        ("", "text", "0 bytes"),
        ("256", "u8", "0 to 255"),
        ("-1", "u64", "0 to 18446744073709551615"),
        ("-129", "i8", "-128 to 127"),
        ("1.5", "u8", "whole number"),
        ("9" * 5000, "u64", "whole number"),
        ("70000", "f16", "65504"),
        ("x", "f32", "number"),
        ("1", "u128", "f64"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(asked: str, element: str, word: str) -> None:
    refused(lambda: find(np.zeros(9, np.uint8), asked, element), word)


def test_searching_a_model() -> None:
    model = ByteModel(bytes([0, 7, 0, 7, 0, 0, 9]))
    model.query, model.element = "7", "u8"
    assert (model.found, model.ordinal) == (2, 0)
    model.seek()
    assert (model.cursor, model.ordinal, model.selected) == (1, 1, b"\7")
    model.seek()
    model.seek()
    assert (model.cursor, model.ordinal) == (1, 1), "round the end"
    model.seek(-1)
    assert (model.cursor, model.ordinal) == (3, 2)
    model.element = "u16"
    assert (model.matches.tolist(), model.ordinal) == ([1, 3], 2)
    model.big_endian = True
    assert model.matches.tolist() == [0, 2]
    model.element = "i8"
    model.query = "300"
    assert (model.found, model.note) == (0, "search: got 300, allowed in i8 is -128 to 127")
    model.seek()
    assert (model.cursor, model.note) == (3, "search: got 300, allowed in i8 is -128 to 127")
    model.query = "9"
    assert (model.found, model.note) == (1, "")


# ---- status ----


def slow_status(data: bytes, references: list[bytes]) -> list[str]:
    out = []
    for at, byte in enumerate(data):
        low = high = at
        while low and data[low - 1] == byte:
            low -= 1
        while high + 1 < len(data) and data[high + 1] == byte:
            high += 1
        if any(at >= len(one) or one[at] != byte for one in references):
            out.append("changed")
        elif high - low + 1 >= 16:
            out.append("fill")
        elif byte == 0:
            out.append("zero")
        else:
            out.append(["plain", "unchanged", "constant"][min(len(references), 2)])
    return out


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
def test_status_of_every_byte(runs: list[tuple[int, int]], count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    data = b"".join(bytes([byte]) * size for byte, size in runs)
    references = []
    for _ in range(count):
        other = np.frombuffer(data, np.uint8).copy()
        other[draw.random(len(other)) < 0.1] += 1
        references.append(
            other.tobytes()[: int(draw.integers(1, len(other) + 1))]
            + b"\5" * int(draw.integers(0, 2))
        )
    model = ByteModel(data, reference=references)
    assert [STATUSES[one] for one in model.statuses] == slow_status(data, references)
    assert sum(model.counts.values()) == len(data)


def test_runs() -> None:
    data = np.random.default_rng(1).integers(0, 2, 3000, dtype=np.uint8)
    for length in (2, 3, 5, 8, 16, 4000):
        edges = np.flatnonzero(np.diff(data, prepend=2, append=2))
        sizes = np.diff(edges)
        assert np.array_equal(runs_of(data, length), np.repeat(sizes >= length, sizes))


def test_comparing_with_captures(capture: npulab.Capture) -> None:
    data = bytearray(capture.buffers["coefficients"])
    data[300] ^= 1
    other = capture.with_buffers(coefficients=bytes(data[:-4]))
    model = ByteModel(capture, reference=other)
    assert np.flatnonzero(model.statuses == 0).tolist() == [300, 956, 957, 958, 959]
    assert model.describe(300).endswith(f"changed, reference {data[300]:02x}")
    assert model.describe(959).endswith("changed, reference past the end")
    model.compare(npulab.CaptureSet((other, capture)))
    assert model.describe(300).endswith(
        f"changed, reference {data[300]:02x} or {data[300] ^ 1:02x}"
    )
    assert model.counts["constant"] > 0
    model.compare(None)
    assert "changed" not in model.counts
    assert "changed" not in model.describe(300)


# ---- what bytes mean ----


def test_items_of_a_capture(capture: npulab.Capture) -> None:
    model = ByteModel(capture)
    table = npulab.explain(capture)
    assert (model.buffer, model.colour) == ("coefficients", "kind")
    assert sum(model.kind_counts.values()) == model.size == len(capture.buffers["coefficients"])
    for byte in range(0, model.size, 29):
        rows = npulab.explain(capture, byte)
        names = [one.split(" ")[0] for one in model._meanings(byte, 99)]
        assert names == [kind.split(" ")[0] for kind in rows.kind[rows.bits > 0]]
        bits = {}
        for row in rows.itertuples():
            first = 8 * row.byte + row.bit
            both = min(first + row.bits, 8 * byte + 8) - max(first, 8 * byte)
            bits[row.kind] = bits.get(row.kind, 0) + both
        assert bits[model.kinds[model.kind_of[byte] - 1]] == max(bits.values())
    assert (
        "core 1, channel 3, plane 2, row 1, column 2 = 205 (0xcd), 9 bits from byte 0x103 bit 2"
        in model.describe(260)
    )
    assert "address 0x40000104" in model.describe(260)
    again = ByteModel(capture, items=table)
    assert again._meanings(260, 9) == model._meanings(260, 9)
    assert np.array_equal(again.kind_of, model.kind_of)


def test_what_items_say_is_not_fill_is_none() -> None:
    model = ByteModel(
        bytes([5]) * 48, items=[Item(8 * 16, 8 * 16, "weight"), Item(8 * 40, 8, "fill")]
    )
    assert [STATUSES[one] for one in model.statuses] == ["fill"] * 16 + ["plain"] * 16 + [
        "fill"
    ] * 16


def test_items_with_holes_overlaps_and_many_kinds() -> None:
    items = [
        Item(4, 8, "b"),
        Item(0, 6, "a"),
        Item(40, 0, "nothing"),
        Item(40, 24, NASTY, value=-1),
    ]
    found = OfItems(sorted(items, key=lambda one: one.bit), 9)
    assert found.classes().tolist() == [1, 2, 0, 0, 0, 4, 4, 4, 0]
    model = ByteModel(bytes(9), items=items)
    assert [one.text for one in model.meaning.at(5)] == [
        f"{NASTY} = -1 (-0x1), 24 bits from byte 0x5 bit 0"
    ]
    assert [one.text.split(" ")[0] for one in model.meaning.at(0)] == ["a", "b"]
    many = ByteModel(bytes(40), items=[Item(8 * n, 8, f"k{n}") for n in range(40)])
    assert len(many.kinds) == 31
    assert (many.kinds[-1], many.kind_of.max(), many.kind_counts["other"]) == ("other", 31, 10)


def test_elements_of_a_layout() -> None:
    tensor = np.arange(2 * 3 * 5, dtype=np.int16).reshape(2, 3, 5) + 300
    layout = nc1hwc2(tensor.shape, 4, dtype="int16", fill=0x55AA)
    data = layout.pack(tensor)
    model = ByteModel(data + b"\1", items=layout)
    places = layout.index_map()
    for index in np.ndindex(tensor.shape):
        assert model._meanings(places[index] + 1, 9) == [
            f"element {index} = {tensor[index]}, byte 1 of 2"
        ]
    assert model.kind_counts == {"element": 30, "next element": 30, "fill": len(data) - 60}
    assert set(model.statuses[model.kind_of == 3]) == {1}
    assert (model.kind_of[-1], model.describe(len(data))) == (
        0,
        f"byte {len(data):#x} ({len(data)}) · 01 = 1",
    )
    found = find_layout(tensor, data)
    assert ByteModel(data, items=found)._meanings(0, 9) == ["element (0, 0, 0) = 300, byte 0 of 2"]
    assert (
        ByteModel(hwc((2, 2, 1)).pack(np.zeros((2, 2, 1), np.uint8)), items=hwc((2, 2, 1))).kinds[0]
        == "element"
    )


def test_elements_below_8_bits_and_swapped_words_of_a_layout() -> None:
    codes = np.array([[1, -2, 3]], np.int8)
    packed = hwc((1, 3), dtype="int4")
    model = ByteModel(packed.pack(codes), items=packed)
    assert [text.split(",")[0] for text in model._meanings(0, 9)] == [
        "element = 1 (0x1)",
        "element = -2 (-0x2)",
    ]
    assert model.kind_counts == {"element": 2}
    swapped = hwc((1, 3), dtype="uint16", swap=4)
    model = ByteModel(swapped.pack(np.array([[300, 301, 302]], np.uint16)), items=swapped)
    assert [model._meanings(byte, 9)[0].split(" (")[0] for byte in (0, 2, 6)] == [
        "element = 301",
        "element = 300",
        "element = 302",
    ]


def test_fields_of_a_map() -> None:
    registers = RegisterMap(
        map_rows(
            f"""
            offset,register,field,lsb,width,value,address
            0,CFG,mode,6,4,enum:mode,
            4,SRC,base,0,32,,yes
            8,{NASTY},pad,0,3,signed,
            """
        ),
        enums={"mode": {5: NASTY}},
    )
    words = np.array([5 * 2**6, 0xDEAD0000, 7], "<u4")
    model = ByteModel(words.tobytes() + b"\0\0\0", items=registers)
    assert model._meanings(0, 9)[-1] == f"mode CFG[9:6] 0x5 = {NASTY}, evidence unknown"
    assert model._meanings(4, 9) == ["base SRC[31:0] 0xdead0000, evidence unknown"]
    assert model._meanings(8, 9)[0] == f"pad {NASTY}[2:0] 0x7 = -1, evidence unknown"
    assert model._meanings(13, 9) == []
    assert [model.kinds[kind - 1] for kind in model.kind_of[[0, 4, 7, 9]]] == [
        "without a name",
        "address",
        "address",
        "without a name",
    ]

    split = RegisterMap(
        [
            {
                "offset": 4 * at,
                "register": f"w{at}",
                "field": "wide",
                "lsb": 0,
                "width": 8,
                "at": 8 * at,
            }
            for at in range(2)
        ]
    )
    assert ByteModel(b"\1\0\0\0\2\0\0\0", items=split)._meanings(4, 9) == [
        "wide w0[7:0] w1[7:0] 0x201 = 513, evidence unknown"
    ]
    assert ByteModel(bytes(7), items=split)._meanings(0, 9) == [
        "wide w0[7:0] w1[7:0] goes on past the end, evidence unknown"
    ]
    model.read_as(None)
    assert (model.kinds, model._meanings(4, 9)) == ((), [])


class Draft:
    """What a view asks of a register map that is being made."""

    def __init__(self, name: str) -> None:
        self.rename(name)
        self.observers: list[Any] = []

    def rename(self, name: str) -> None:
        self.map = RegisterMap(
            [{"offset": 0, "register": "CFG", "field": name, "lsb": 0, "width": 32}]
        )

    def observe(self, callback: Any) -> None:
        self.observers.append(callback)

    def unobserve(self, callback: Any) -> None:
        self.observers.remove(callback)


def test_the_words_of_a_draft() -> None:
    draft = Draft("pool")
    view = ByteView(bytes(4), items=draft)
    assert view.about["meanings"] == ["pool CFG[31:0] 0x0 = 0, evidence unknown"]
    view.follow(draft)
    draft.rename("pool_mode")
    for callback in draft.observers:
        callback(draft)
    assert view.about["meanings"] == ["pool_mode CFG[31:0] 0x0 = 0, evidence unknown"]
    view.leave(draft)
    assert draft.observers == []


# ---- places ----


def test_cursor_and_selection() -> None:
    model = ByteModel(bytes(range(64)))
    model.cursor = 9
    assert (model.ends, model.selection) == ((9, 9), (9, 1))
    model.selection = (20, 4)
    assert (model.ends, model.cursor, model.selected) == ((23, 20), 20, bytes([20, 21, 22, 23]))
    model.ends = (3, 8)
    assert (model.selection, model.cursor) == ((3, 6), 8)
    assert model.about["offset"] == 8
    model.pointed = 40
    assert (model.about["offset"], model.cursor) == (40, 8)
    model.pointed = -1
    assert model.about["offset"] == 8
    for name, value in (
        ("cursor", 64),
        ("cursor", -1),
        ("cursor", "a"),
        ("pointed", -2),
        ("selection", (60, 5)),
        ("selection", (1, 0)),
        ("selection", 3),
        ("ends", (0, 64)),
        ("ends", (1,)),
    ):
        refused(lambda name=name, value=value: setattr(model, name, value), name)
    assert (model.selection, model.cursor) == ((3, 6), 8)


@pytest.mark.parametrize(
    ("asked", "place"),
    [("31", 31), ("0x1f", 31), ("+16", 21), ("-4", 1), (" end ", 63), ("@0x80000010", 16)],
)
def test_go(asked: str, place: int) -> None:
    model = ByteModel(
        replace(
            npulab.Capture("a", "demo", "x", ()),
            buffers={"input": bytes(64)},
            addresses={"input": 0x80000000},
        )
    )
    model.cursor = 5
    model.go(asked)
    assert model.cursor == place


@pytest.mark.parametrize("asked", ["", "x", "64", "-9", "@3", "@", "+", "1.5", "9" * 5000, "--1"])
def test_where_nothing_is(asked: str) -> None:
    model = ByteModel(bytes(64))
    model.cursor = 5
    refused(lambda: model.go(asked))
    model.press({"go": asked})
    assert (model.cursor, "got" in model.note) == (5, True)
    model.press({"go": "6"})
    assert (model.cursor, model.note) == (6, "")


def test_values_where_a_byte_is() -> None:
    model = ByteModel(struct.pack("<fI", -1.5, 7))
    assert dict(model.values(0)) == {
        "u8": "0",
        "u16": "0",
        "u32": "3217031168",
        "u64": "33281802240",
        "i8": "0",
        "i16": "0",
        "i32": "-1077936128",
        "i64": "33281802240",
        "f16": "0.0",
        "f32": "-1.5",
        "f64": "1.64433951185e-313",
    }
    model.big_endian = True
    assert dict(model.values(4))["u32"] == str(7 * 2**24)
    assert dict(model.values(7))["u16"] == "past the end"
    assert dict(model.about["values"])["u8"] == "0"


# ---- what is given ----


def test_what_is_no_buffer_is_refused(capture: npulab.Capture) -> None:
    refused(lambda: ByteModel(b""), "0 bytes")
    refused(lambda: ByteModel(np.zeros((2, 2), np.uint8)))
    refused(lambda: ByteModel("text"))
    refused(lambda: ByteModel(np.broadcast_to(np.uint8(0), 2**26 + 1)), "67108864")
    refused(lambda: ByteModel(bytes(4), reference=b""), "reference")
    refused(lambda: ByteModel(bytes(4), items=7), "items")
    refused(lambda: ByteModel(bytes(4), items=hwc((9, 9, 1))), "layout of 81 bytes")
    with pytest.raises(
        LookupError, match=r"got buffer 'weights', it has commands, coefficients, input, output"
    ):
        ByteModel(capture, "weights")
    with pytest.raises(ValueError, match="message: got"):
        ByteModel(bytes(4)).press({"seek": 5})


def test_a_stream_that_cannot_be_explained_is_said(capture: npulab.Capture) -> None:
    broken = capture.with_buffers(coefficients=b"\xff" * 64)
    model = ByteModel(broken)
    assert (model.meaning, model.colour) == (None, "status")
    assert "what they mean is not known" in model.summary
    assert ByteModel(capture, "input").meaning is None


def test_windows_of_a_large_buffer() -> None:
    data = np.arange(WINDOW // 2 + 1, dtype=np.uint32).view(np.uint8)
    view = ByteView(data)
    assert (view.start, len(view.data), view.total) == (0, WINDOW, len(data))
    view.query = "01 00 10 00 02 00 10 00"
    assert view.model.matches.tolist() == [0x400004]
    assert view.marks == b""
    view.seek()
    assert view.start <= 0x400004 < view.start + len(view.data)
    assert view.data == data[view.start : view.start + len(view.data)].tobytes()
    assert np.frombuffer(view.marks, "<u4").tolist() == [0x400004]
    view.go("end")
    assert (view.start + len(view.data), view.cursor) == (len(data), len(data) - 1)
    assert len(view.data) <= WINDOW
    view.go("0")
    assert view.start == 0


# ---- the widget, with no front end ----


def test_view_follows_what_the_page_sends(capture: npulab.Capture) -> None:
    view = ByteView(capture)
    view.set_state({"ends": [5, 30], "pointed": -1})
    assert (view.selection, view.cursor, view.about["offset"]) == ((5, 26), 30, 30)
    view.set_state({"query": "00 00"})
    assert view.found == len(view.model.matches) > 0
    assert np.frombuffer(view.marks, "<u4").tolist() == view.model.matches.tolist()
    view._handle_custom_msg({"seek": 1}, [])
    assert (view.selection[1], view.ordinal) == (
        2,
        1 + int(np.sum(view.model.matches < view.cursor)),
    )
    view._handle_custom_msg({"go": "end"}, [])
    assert view.cursor == view.size - 1
    view.set_state({"element": "u16", "query": "0x100", "big_endian": True, "colour": "status"})
    assert view.found == len(find(view.model.data, "0x100", "u16", True))
    before = view.classes
    view.compare(capture.with_buffers(coefficients=bytes(view.size)))
    assert view.classes != before
    assert dict(view.statuses)["changed"] == view.model.counts["changed"]
    with pytest.raises(
        ValueError, match=r"ends: got cursor 960 of \(0, 960\), allowed is 0 to 959"
    ):
        view.set_state({"ends": [0, 960]})
    state = {
        name: value
        for name, value in view.get_state().items()
        if not name.startswith("_") and name != "layout"
    }
    json.dumps(
        {name: value for name, value in state.items() if name not in ("data", "classes", "marks")}
    )
    assert set(view.elements) == set(ELEMENTS)


def test_repr_and_the_face_without_a_kernel(capture: npulab.Capture) -> None:
    view = ByteView(capture, reference=capture)
    assert (
        repr(view)
        == "ByteView(vivante/sim-3x3-same, coefficients, simulated: 960 bytes; 206 fill, 91 zero, 663 unchanged)"
    )
    data, _ = view._repr_mimebundle_()
    assert "00000040  01  02  00  4a" in data["text/html"]
    assert "… 704 more bytes" in data["text/html"]
    nasty = ByteModel(
        npulab.Capture(NASTY, NASTY, "x", (), {NASTY: NASTY.encode() * 9}),
        items=[Item(0, 8, NASTY)],
    )
    html = nasty._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 3


def test_bytes_alone_have_the_name_that_is_given() -> None:
    assert repr(ByteModel(b"abc", "weights")) == "ByteModel(weights: 3 bytes)"


def test_a_layout_coloured_by_an_axis() -> None:
    layout = kernel_groups((20, 3, 3, 13), 4, 4, align=64)
    data = layout.pack(np.ones((20, 3, 3, 13), np.uint8))
    view = ByteView(data, items=layout)
    assert (view.axes, view.axis) == ([20, 3, 3, 13], -1)
    view.set_state({"axis": 0, "colour": "kind"})
    model = view.model
    assert [name for name, _ in view.kinds][:2] == ["axis 0: 0", "axis 0: 1"]
    assert dict(map(tuple, view.kinds))["axis 0: 7"] == 3 * 3 * 13
    places = layout.index_map()
    for o, y, x, i in ((0, 0, 0, 0), (7, 2, 1, 4), (19, 2, 2, 12)):
        assert model.kinds[model.kind_of[places[o, y, x, i]] - 1] == f"axis 0: {o}"
    assert dict(map(tuple, view.kinds))["fill"] == len(data) - 20 * 9 * 13
    view.axis = 3
    assert model.kinds[model.kind_of[places[7, 2, 1, 4]] - 1] == "axis 3: 4"
    with pytest.raises(ValueError, match="axis: got 4, allowed is -1 to 3"):
        view.model.axis = 4
    view.read_as(None)
    assert (view.axis, view.axes) == (-1, [])
    with pytest.raises(ValueError, match="axis: got 0, allowed is -1 to -1"):
        view.model.axis = 0


def test_many_indices_of_an_axis_share_colours() -> None:
    layout = planar((100, 1, 3))
    model = ByteModel(bytes(layout.size), items=layout)
    model.axis = 0
    assert (len(model.kinds), model.kinds[0], model.kinds[24]) == (
        28,
        "axis 0: 0 to 3",
        "axis 0: 96 to 99",
    )
    assert model.kinds[model.kind_of[layout.index_map()[41, 0, 2]] - 1] == "axis 0: 40 to 43"


def test_bytes_are_written_undone_and_written_again(capture: npulab.Capture) -> None:
    model = ByteModel(capture)
    before, items = model.data.tobytes(), model.meaning.items
    model.query = "ff"
    model.select(0x20, 3)
    model.press({"write": "ff ?1"})
    expected = bytes([0xFF, before[0x21] & 0xF0 | 1])
    assert model.data.tobytes() == before[:0x20] + expected + before[0x22:]
    assert model.selection == (0x20, 2)
    assert set(np.flatnonzero(model.statuses == STATUSES.index("changed"))) <= {0x20, 0x21}, (
        "against what was given"
    )
    assert 0x20 in model.matches
    assert model.capture.buffers["coefficients"] == model.data.tobytes()
    assert capture.buffers["coefficients"] == before
    assert (model.meaning, model.said.partition(":")[0]) == (None, "what they mean is not known"), (
        "it is no stream now"
    )
    model.element, model.big_endian = "u16", True
    model.press({"write": "0x1234"})
    assert model.data[0x20:0x22].tolist() == [0x12, 0x34]
    written = model.data.tobytes()
    for _ in range(2):
        model.press({"undo": 1})
    assert (model.data.tobytes(), model.counts.get("changed", 0)) == (before, 0)
    assert (model.meaning.items, model.said) == (items, "")
    model.press({"undo": 1})
    assert model.note == "nothing to take back"
    for _ in range(2):
        model.press({"redo": 1})
    assert model.data.tobytes() == written
    assert not model.redo()


@pytest.mark.parametrize(
    ("element", "text", "at", "note"),
    [
        ("bytes", "zz", 0, "'zz'"),
        ("u16", "70000", 0, "70000"),
        (
            "u32",
            "1",
            62,
            "write: got '1', allowed is one value of at most 2 "
            "bytes, as many as there are from byte 0x3e",
        ),
        ("f32", "nan", 0, "write: got 'nan'"),
    ],
)
def test_what_cannot_be_written_changes_nothing(
    element: str, text: str, at: int, note: str
) -> None:
    model = ByteModel(bytes(range(64)))
    model.element, model.cursor = element, at
    model.press({"write": text})
    assert note in model.note
    assert (model.data.tobytes(), model.references, model.undo()) == (bytes(range(64)), (), False)


def test_writing_keeps_the_reference_and_the_axis() -> None:
    weights = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    view = ByteView(weights.tobytes(), items=hwc((2, 3, 4)), reference=bytes(24))
    view.axis = 1
    view.model.select(4)
    view._handle_custom_msg({"write": "00"}, [])
    assert (view.axis, len(view.references), view.model.references[0].any()) == (1, 1, False)
    assert "element (0, 1, 0) = 0" in view.about["line"]
    assert bytes(view.data)[4] == 0
    assert view.capture is None


STRUCT_CODES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}


@pytest.mark.parametrize("element", STRUCT_CODES)
def test_a_value_is_found_wherever_it_stands(element: str) -> None:
    draw = random.Random(element)
    data = bytearray(draw.choice(b"\0\1\xff") for _ in range(5000))
    for order in "<>":
        value = struct.unpack(
            order + STRUCT_CODES[element],
            struct.pack(order + STRUCT_CODES[element], 1.5 if element[0] == "f" else 7),
        )[0]
        packed = struct.pack(order + STRUCT_CODES[element], value)
        for at in (0, 333, 334 + len(packed), 5000 - len(packed)):
            data[at : at + len(packed)] = packed
        view = npulab.notebook.widgets.ByteView(bytes(data))
        view.element, view.big_endian, view.query = element, order == ">", str(value)
        want = [at for at in range(len(data)) if data[at : at + len(packed)] == packed]
        assert view.found == len(want) >= 4
        places = []
        for _ in want:
            view.seek(1)
            places.append(view.selection[0])
        assert sorted(places) == want
        view.cursor = 333
        assert dict(view.about["values"])[element] == str(value)
    assert {*view.elements} - {"bytes", "text"} == {*STRUCT_CODES}
