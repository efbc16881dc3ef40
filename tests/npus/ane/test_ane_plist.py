"""ANE networks: net.plist and weights read, checked and written, and their numbers."""

from __future__ import annotations

import plistlib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ane_networks import conv, image, network, unit
from ane_writers import keys_of, parameters_table, write_espresso, write_plist
from conftest import shared

from npulab.npus.ane.source.espresso import Entry, read_espresso, source_weights
from npulab.npus.ane.source.network import Network, Output
from npulab.npus.ane.source.parameters import chain_of, parameters, shapes
from npulab.npus.ane.source.plist import MOST_BYTES, Plist, read_plist, weights_files

PLISTS = [
    "hwx/compiled/net",
    "hwx/concat16/net",
    "hwx/conv_bias/net",
    "hwx/conv_twos/net",
    "hwx/relu16/net",
    "hwx/sigmoid77/net",
    "hwx/sum64/net",
    "plists/broadcast",
    "plists/convuint8",
    "plists/inputview",
    "plists/scaled",
    "plists/simple_convneuron",
    "plists/simple_goc",
    "plists/simple_quadconv",
]
BY_APPLE = {
    "hwx/compiled/net",
    "hwx/conv_bias/net",
    "hwx/sum64/net",
    "plists/broadcast",
    "plists/inputview",
    "plists/scaled",
}


def plist(**change: Any) -> bytes:
    """A small network's file with some keys of the network changed; None takes one out."""
    keys = keys_of(network(conv()))
    for key, value in change.items():
        keys[key] = value
    return plistlib.dumps(
        {
            "Networks": ["net"],
            "net": {key: value for key, value in keys.items() if value is not None},
        }
    )


# Files


@pytest.mark.parametrize("name", PLISTS)
def test_every_network_reads_and_writes_back(name: str) -> None:
    path = shared(f"data/ane/{name}.plist")
    found = read_plist(path)
    written = write_plist(found)
    again = read_plist(written)
    assert again == found
    assert write_plist(again) == written
    assert plistlib.loads(written) == plistlib.loads(path.read_bytes())
    assert (written == path.read_bytes()) == (
        name in BY_APPLE
    )  # the others were written by hand, with comments
    binary = replace(found, binary=True)
    assert read_plist(write_plist(binary)) == binary
    assert (
        found.network.parts.keys() | {"Inputs", "Outputs", "Units"} <= keys_of(found.network).keys()
    )


def test_keys_nobody_knows_are_kept() -> None:
    data = plistlib.dumps(
        {
            "Extra": [1, {"a": b"x"}],
            "Networks": ["net"],
            "Version": "1.0.7",
            "net": {**keys_of(network(conv())), "Aside": 3, "image": {**image().keys, "New": True}},
        },
        sort_keys=False,
    )
    found = read_plist(data)
    assert (found.version, found.other, found.network.other) == (
        "1.0.7",
        {"Extra": [1, {"a": b"x"}]},
        {"Aside": 3},
    )
    assert found.network.inputs[0].keys["New"] is True
    assert write_plist(found) == data
    assert list(plistlib.loads(write_plist(found))["net"]) == list(plistlib.loads(data)["net"])


def test_built_networks_are_written() -> None:
    made = network(conv(PadTop=1), unit("Neuron", "act", "layer", {"Type": "ReLU"}))
    found = read_plist(write_plist(made))
    assert found == Plist((made,))
    assert found.network.units[0].params["PadTop"] == 1
    with pytest.raises(
        ValueError, match=r"net\.plist: cannot be written: unsupported type: <class 'complex'>"
    ):
        write_plist(network(conv(Odd=1j)))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "net.plist: got no property list"),
        (b"nonsense", "net.plist: got no property list"),
        (
            b"<plist><integer>1</integer></plist>",
            "net.plist: got 1, allowed is a dictionary with Networks",
        ),
        (
            b"<plist><array/></plist>",
            "net.plist: got list of 0, allowed is a dictionary with Networks",
        ),
        (
            b"<plist><dict><key>Networks</key><array><integer>1</integer></array></dict></plist>",
            "net.plist: Networks: got list of 1, allowed is a list of texts",
        ),
        (
            b"<plist><dict><key>Networks</key><array><string>n</string></array></dict></plist>",
            "net.plist: n: got no value, allowed is a dictionary",
        ),
        (
            b"<plist><dict><key>Networks</key><date>x</date></dict></plist>",
            "net.plist: got no property list",
        ),
        (
            b'<!DOCTYPE plist [<!ENTITY a "b">]><plist><string>&a;</string></plist>',
            "net.plist: got no property list (XML entity declarations are not supported in plist files), allowed is an XML or binary one without entities",
        ),
        (
            b'<!DOCTYPE plist [<!ENTITY % a SYSTEM "file:///etc/hosts"> %a;]><plist/>',
            "net.plist: got no property list (XML entity declarations",
        ),
        (
            plist(Inputs=["image", "image"]),
            "net.plist: net: Inputs: got 'image' twice, allowed is once",
        ),
        (plist(Units=None), "net.plist: net: Units: got no value, allowed is a list of texts"),
        (plist(image=None), "net.plist: net: image: got no value, allowed is a dictionary"),
        (
            plist(image={**image().keys, "InputWidth": 0}),
            "net.plist: net.image.InputWidth: got 0, allowed is a whole number of 1 to 2147483647",
        ),
        (
            plist(image={**image().keys, "InputHeight": True}),
            "net.plist: net.image.InputHeight: got True, allowed is a whole number",
        ),
        (
            plist(image={**image().keys, "InputRowStride": -64}),
            "net.plist: net.image.InputRowStride: got -64, allowed is a whole number of 0",
        ),
        (
            plist(image={**image().keys, "InputType": 2}),
            "net.plist: net.image.InputType: got 2, allowed is a text",
        ),
        (
            plist(layer={**conv().keys, "Bottom": "picture"}),
            "net.plist: net.layer.Bottom: got 'picture', allowed is an input or a unit: image, layer",
        ),
        (
            plist(layer={**conv().keys, "Bottom": []}),
            "net.plist: net.layer.Bottom: got list of 0, allowed is a name, or a list of names",
        ),
        (
            plist(layer={**conv().keys, "Bottom": "layer"}),
            "net.plist: net.layer.Bottom: got units that wait for one another (layer), allowed are units that follow from the inputs",
        ),
        (
            plist(layer={"Bottom": "image"}),
            "net.plist: net.layer.Type: got no value, allowed is a name",
        ),
        (
            plist(layer=conv(KernelIndex=1).keys),
            "net.plist: net.layer.KernelIndex: got 1, allowed is one of 1 Weights",
        ),
        (
            plist(layer=conv(BiasScaleGroupData={"BiasIndex": 9}).keys),
            "net.plist: net.layer.BiasIndex: got 9, allowed is one of 1 Weights",
        ),
        (
            plist(layer=conv(KernelOffset=-1).keys),
            "net.plist: net.layer.Params.KernelOffset: got -1, allowed is a whole number of 0",
        ),
        (
            plist(layer=conv(Step=[1]).keys),
            "net.plist: net.layer.Params.Step: got list of 1, allowed is two whole numbers",
        ),
        (
            plist(layer=conv(BiasScalar=65536).keys),
            "net.plist: net.layer.Params.BiasScalar: got 65536, allowed is a whole number of 0 to 65535",
        ),
        (
            plist(
                layer=unit(
                    "Broadcast", params={"BroadcastInfo": [{"Dimension": "Width", "Size": 0}]}
                ).keys
            ),
            "net.plist: net.layer.Params.BroadcastInfo[0].Size: got 0, allowed is a whole number of 1",
        ),
        (
            plist(**{"out@output": {"Bottom": ["image", "layer"]}}),
            "net.plist: net.out@output.Bottom: got 2 names, allowed is one",
        ),
        (
            plist(Outputs=["image"]),
            "net.plist: net: image: got the name more than once in Inputs, Units and Outputs",
        ),
        (
            b"bplist00",
            "net.plist: got 8 bytes, allowed is a header of 8 and a trailer of 32 at least",
        ),
    ],
)
def test_broken_networks_are_told(data: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_plist(data)
    assert str(caught.value).startswith(said)


def test_a_file_is_named_in_its_error(tmp_path: Path) -> None:
    (tmp_path / "a.plist").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"a\.plist: got no property list"):
        read_plist(tmp_path / "a.plist")
    with pytest.raises(FileNotFoundError):
        read_plist(tmp_path / "b.plist")


def binary(objects: list[bytes], references: int = 1) -> bytes:
    """A binary property list of these values, the first on top."""
    data, places = b"bplist00", []
    for one in objects:
        places.append(len(data))
        data += one
    table = len(data)
    data += b"".join(place.to_bytes(4, "big") for place in places)
    return (
        data
        + bytes(6)
        + bytes([4, references])
        + b"".join(n.to_bytes(8, "big") for n in (len(objects), 0, table))
    )


def sized(kind: int, count: int) -> bytes:
    return bytes([kind + 15, 0x12]) + count.to_bytes(4, "big")


BOMBS: dict[str, Callable[[], bytes]] = {
    "long": lambda: b"<plist>" + b" " * MOST_BYTES,
    "deep": lambda: b"<plist>" + b"<array>" * 30_000 + b"</array>" * 30_000 + b"</plist>",
    "many": lambda: b"<plist><array>" + b"<dict/>" * 500_000 + b"</array></plist>",
    "keys of keys": lambda: b"<plist><dict>" + b"<key>a</key><key>" * 60_000 + b"</dict></plist>",
    "lines": lambda: b"<plist><string>" + b"\n" * 15_000_000 + b"</string></plist>",
    "text": lambda: b"<plist><string>" + "\U0001f600".encode() * 4_000_000 + b"</string></plist>",
    "entities": lambda: b"<plist><string>" + b"&lt;" * 4_000_000 + b"</string></plist>",
    "objects": lambda: b"bplist00" + bytes(6) + bytes([8, 8]) + b"\xff" * 8 + bytes(16),
    "shared array": lambda: binary(
        [b"\xa2\x01\x02"] + [sized(0xA0, 500_000)] * 100 + [b"\x00" * 500_000]
    ),
    "shared text": lambda: binary(
        [b"\xa2\x01\x02"] + [sized(0x50, 900_000)] * 100 + [b"a" * 900_000]
    ),
    "doubled": lambda: binary([bytes([0xAA] + [n + 1] * 10) for n in range(30)] + [b"\x09"]),
    "itself": lambda: binary([b"\xa1\x00"]),
    "nested": lambda: binary(
        [b"\xa1" + (n + 1).to_bytes(2, "big") for n in range(5000)] + [b"\x09"], 2
    ),
    "keys": lambda: binary([b"\xd1\x01\x01", b"\x09"]),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_within_64_mib(name: str) -> None:
    data = BOMBS[name]()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^net\.plist: .*(allowed|no property list)"):
            read_plist(data)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_a_long_chain_written_backwards_is_read() -> None:
    names = [f"u{n}" for n in range(3000)]
    units = tuple(
        unit("Neuron", name, bottom, {"Type": "ReLU"})
        for name, bottom in zip(names, ["image", *names], strict=False)
    )
    made = Network("net", (image(),), units[::-1], (Output("o", {"Bottom": names[-1]}),))
    found = read_plist(write_plist(made)).network
    assert found == made
    assert len(chain_of(found).fused) == 2999
    assert shapes(found)["o"].width == 8


def flips(count: int) -> None:
    random = np.random.RandomState(7)
    for data in (plist(), write_plist(Plist((network(conv()),), binary=True))):
        for _ in range(count):
            broken = bytearray(data)
            for _ in range(random.randint(1, 4)):
                broken[random.randint(len(broken))] = random.randint(256)
            told = ""
            try:
                read_plist(
                    bytes(
                        broken[: random.randint(1, len(broken) + 1) if random.randint(2) else None]
                    )
                )
            except ValueError as error:
                told = str(error)
            assert told[:11] in ("", "net.plist: ")


def test_broken_bytes_read_or_are_told() -> None:
    flips(150)


@pytest.mark.long
def test_broken_bytes_read_or_are_told_long() -> None:
    flips(5000)


# Weights


def test_weights_files_read_and_write_back() -> None:
    data = shared("data/ane/hwx/conv_bias/model.espresso.weights").read_bytes()
    entries = read_espresso(data)
    assert [(one.id, len(one.data)) for one in entries] == [(0, 56), (1, 32), (2, 32), (3, 24)]
    assert np.frombuffer(entries[3].data, "<f4").tolist() == [3.0] * 6
    assert write_espresso(entries) == data
    assert read_espresso(write_espresso([])) == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "w: byte 0x0: count: got 0 bytes, allowed are 8"),
        (
            (2**63).to_bytes(8, "little"),
            "w: byte 0x0: count: got 9223372036854775808, allowed are 65536 at most",
        ),
        (
            (2).to_bytes(8, "little") + bytes(16),
            "w: byte 0x0: count: got 2, allowed are 65536 at most, and pairs of 16 bytes inside the file's 24",
        ),
        (
            write_espresso([Entry(1, b"abc")])[:-1],
            "w: byte 0x10: size: got 3 bytes at 0x18, allowed are the 2 that are left",
        ),
        (
            write_espresso([Entry(1, b"abc")]) + b"?",
            "w: byte 0x1b: got 1 bytes after the last payload, allowed is none",
        ),
        (
            write_espresso([Entry(1, b""), Entry(2, b"")])
            .replace(b"\x02", b"\x01")
            .replace(b"\x01", b"\x02", 1),
            "w: byte 0x18: id: got 1 twice, allowed is once",
        ),
    ],
)
def test_broken_weights_files_are_told(data: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_espresso(data, "w")
    assert str(caught.value).startswith(said)
    with pytest.raises(ValueError, match="different ones of u64"):
        write_espresso([Entry(1, b""), Entry(1, b"")])


def test_source_weights_of_the_files() -> None:
    for name, outputs, value, bias in (
        ("compiled", 2, 0.0, [1.0, 1.0]),
        ("conv_bias", 2, 3.0, [1.0, 1.0]),
        ("conv_twos", 3, 2.0, None),
    ):
        folder = shared(f"data/ane/hwx/{name}")
        found = read_plist(folder / "net.plist").network
        ((unit_name, source),) = source_weights(found, weights_files(found, folder)).items()
        assert unit_name == chain_of(found).main.name
        assert source.weights.shape == (outputs, 1, 1, 3)
        assert source.weights.dtype == np.float16
        assert set(source.weights.ravel().tolist()) == {value}
        assert (None if source.bias is None else source.bias.tolist()) == bias


def test_source_weights_are_ohwi_and_rounded() -> None:
    values = np.random.RandomState(3).randn(4, 3, 3, 2).astype(np.float32)
    values[0, 0, 0] = 1e6, 1 + 2.0**-11  # past float16; a tie
    data = b"\xff" * 12 + values.tobytes()
    made = network(
        conv(4, (3, 2), KernelType="Float32", KernelOffset=12),
        unit(
            "GOC",
            "bias",
            "layer",
            {
                "BiasScaleGroupData": {
                    "BiasCount": 4,
                    "BiasIndex": 1,
                    "BiasOffset": 2,
                    "BiasType": "Float16",
                }
            },
        ),
        weights=("/private/elsewhere/net.weights", "net.additional.weights"),
    )
    files = {
        "net.weights": data,
        "net.additional.weights": bytes(2) + np.arange(4, dtype="<f2").tobytes(),
    }
    source = source_weights(made, files)["layer"]
    assert source.weights.shape == (4, 3, 2, 3)
    plain = np.empty((4, 3, 2, 3), np.float16)
    for o, i, y, x in np.ndindex(4, 3, 3, 2):
        plain[o, y, x, i] = np.float16(values[o, i, y, x]) if values[o, i, y, x] < 65520 else np.inf
    assert np.array_equal(source.weights, plain)
    assert source.weights[0, 0, 0, 0] == np.inf
    assert source.weights[0, 0, 1, 0] == 1
    assert source.bias is not None
    assert source.bias.tolist() == [0, 1, 2, 3]
    with pytest.raises(
        ValueError,
        match=r"layer\.KernelIndex: got no file 'net\.weights', allowed are the files of Weights \(none was given\)",
    ):
        source_weights(made, {})
    with pytest.raises(
        ValueError,
        match=r"layer\.KernelOffset: got 288 bytes at 0xc, allowed is up to byte 0x12b, the end of net\.weights",
    ):
        source_weights(made, {**files, "net.weights": data[:-1]})
    with pytest.raises(
        ValueError,
        match=r"bias\.BiasOffset: got 8 bytes at 0x2, allowed is up to byte 0x9, the end of net\.additional",
    ):
        source_weights(made, {**files, "net.additional.weights": bytes(9)})


# Parameters


def test_shapes_follow_the_units() -> None:
    made = network(
        conv(8, (3, 3), "a", PadTop=1, PadBot=1, PadLeft=1, PadRight=1, Step=[2, 1]),
        unit("Concat", "b", ["a", "a"]),
        unit("InputView", "c", "b", {"Dimension": "Channel", "Offset": 2, "Size": 5}),
        unit("Broadcast", "d", "c", {"BroadcastInfo": [{"Dimension": "Depth", "Size": 2}]}),
    )
    found = shapes(made)
    assert [
        (found[name].width, found[name].height, found[name].channels, found[name].depth)
        for name in "abcd"
    ] == [(4, 6, 8, 1), (4, 6, 16, 1), (4, 6, 5, 1), (4, 6, 5, 2)]
    with pytest.raises(
        ValueError,
        match=r"a\.KernelWidth: got a kernel of 9 x 3, allowed is one inside the padded image of 8 x 6",
    ):
        shapes(network(conv(8, (3, 9), "a")))
    with pytest.raises(ValueError, match=r"a\.Dimension: got 'Side', allowed is one of Width"):
        shapes(network(unit("Concat", "a", ["image", "image"], {"Dimension": "Side"})))


def test_parameters_are_the_seeds_numbers() -> None:
    found = parameters(
        network(conv(40, (3, 2), PadTop=1, PadLeft=2, Step=[1, 2]), inputs=(image(100, 6, 3),))
    )
    assert {
        name: found[name]
        for name in (
            "InputWidth",
            "InputHeight",
            "InputChannels",
            "OutputChannels",
            "KernelHeight",
            "KernelWidth",
            "PadTop",
            "PadLeft",
            "StepX",
            "StepY",
            "OutputWidth",
            "OutputHeight",
            "InputRowStride",
            "InputPlaneStride",
            "InputDepthStride",
            "OutputRowStride",
            "InputType",
        )
    } == {
        "InputWidth": 100,
        "InputHeight": 6,
        "InputChannels": 3,
        "OutputChannels": 40,
        "KernelHeight": 3,
        "KernelWidth": 2,
        "PadTop": 1,
        "PadLeft": 2,
        "StepX": 1,
        "StepY": 2,
        "OutputWidth": 101,
        "OutputHeight": 3,
        "InputRowStride": 256,
        "InputPlaneStride": 1536,
        "InputDepthStride": 4608,
        "OutputRowStride": 256,
        "InputType": 2,
    }
    assert "BiasScalar" not in found
    assert "EngineBytes" not in found  # steps of 2 have another form
    assert all(isinstance(value, int) for value in found.values())


def test_parameters_of_the_files() -> None:
    read = {name: read_plist(shared(f"data/ane/{name}.plist")).network for name in PLISTS}
    table = parameters_table(read)
    assert len(table) == 14
    assert set(table.dtypes.astype(str)) == {"int64"}
    assert table.loc["plists/simple_goc", ["BiasScalar", "ScaleScalar"]].tolist() == [16354, 20544]
    assert table.loc["hwx/sum64/net", ["ScaleScalar", "Sources", "Unit"]].tolist() == [15360, 2, 7]
    assert table.loc[
        "hwx/sigmoid77/net", ["InputRowStride", "Neuron", "Nonlinear", "UsedEngines"]
    ].tolist() == [192, 2, 2, 1]
    assert table.loc[
        "plists/broadcast", ["BatchSize", "HasBatch", "OutputDepthStride", "OutputBatchStride"]
    ].tolist() == [7, 1, 448, 64]
    second = parameters(read["hwx/concat16/net"], 1)
    assert (
        second["Task"],
        second["Tasks"],
        second["OutputChannels"],
        second["OutputDepthStride"],
    ) == (1, 2, 16, 2048)
    with pytest.raises(ValueError, match="task: got 2, allowed is 0 to 1"):
        parameters(read["hwx/concat16/net"], 2)
