"""ANE networks held against the registers of their files: all agree, and a neighbour's do not."""

from __future__ import annotations

from itertools import chain

import pytest
from ane_networks import PAIRS, bare, conv, image, network, recorded, source, transcribed, unit
from conftest import CAPTURES, shared

import npulab
from npulab.captures.target import Claim
from npulab.npus.ane.source.agreement import (
    Agreement,
    agreement,
    claims,
    compare,
    pairings,
    values_of,
)
from npulab.npus.ane.source.network import Network, Output

LARGE = (1600, 2560, 1)  # of the bare task files


@pytest.fixture(scope="module")
def files() -> dict[str, list[dict[str, int]]]:
    return {name: recorded(name) for name in PAIRS}


@pytest.fixture(scope="module")
def networks() -> dict[str, Network]:
    return {name: source(name) for name in PAIRS}


def differing(made: Network, values: list[dict[str, int]]) -> list[str | None]:
    stated = claims(made)
    found = compare(stated, values)
    return [one.field for one in found if not one.agrees] + [None] * (len(stated) - len(found))


def two(*size: int) -> tuple[Network, ...]:
    inputs = image(*size, name="a"), image(*size, name="b")
    return tuple(
        network(
            unit("ScaledElementWise", "l", ["a", "b"], {"Type": kind, "Scale": 15360}),
            inputs=inputs,
        )
        for kind in ("Add", "Mult", "Max")
    )


def test_every_file_agrees_with_its_own_network(
    networks: dict[str, Network], files: dict[str, list[dict[str, int]]]
) -> None:
    found = agreement(networks, files)
    assert (found.count, found.agree, found.differ, found.tested) == (543, 543, 0, 273)
    assert (
        str(found)
        == "543 comparisons in 7 files: 543 agree, 0 differ; 273 test a value that varies between the files"
    )
    assert [len(found.comparisons[name]) for name in networks] == [
        len(claims(made)) for made in networks.values()
    ]
    table = found.table
    assert list(table) == ["file", "task", "what", "field", "expected", "found", "varies"]
    assert (table["expected"] == table["found"]).all()
    assert int(table["varies"].sum()) == 273
    every_task = chain.from_iterable(files.values())
    assert set(table["field"]) <= set().union(*every_task)


def test_files_as_they_are_read_agree(
    networks: dict[str, Network], files: dict[str, list[dict[str, int]]]
) -> None:
    if "ane" not in npulab.targets():
        pytest.skip("no reader of compiled files")
    read = {name: values_of(npulab.load(shared(f"data/ane/hwx/{name}"))) for name in PAIRS}
    assert agreement(networks, read).comparisons == agreement(networks, files).comparisons
    assert agreement(networks, read).tested == 273


def test_values_of_a_capture_are_by_block_register_and_field() -> None:
    capture = npulab.load(CAPTURES / "vivante" / "update4-mesa")
    (values, *_) = values_of(capture)
    assert values["NN.w0.kernel_z_size"] == capture.values["kernel_z_size"]
    assert sum(len(one) for one in values_of(capture)) == len(capture.fields)


def test_a_neighbours_network_is_told_apart(
    networks: dict[str, Network], files: dict[str, list[dict[str, int]]]
) -> None:
    table = pairings(networks, files)
    assert table.shape == (7, 7)
    for name in PAIRS:
        for file in PAIRS:
            same = name == file or {name, file} == {
                "compiled",
                "conv_bias",
            }  # the same but for the weights
            assert (table.loc[name, file] == 0) == same, (name, file)
    assert table.loc["conv_twos", "compiled"] == 7
    swapped = agreement({"conv_twos": networks["conv_twos"]}, {"conv_twos": files["compiled"]})
    assert swapped.differ == 7
    assert "conv_twos: task 0, output channels: Common.Cout.Cout is 2, net.plist says 3" in str(
        swapped
    )


def test_files_without_a_network_agree_with_what_they_are() -> None:
    assert not differing(network(conv(64, (1, 1)), inputs=(image(1, 1, 64),)), recorded("gemm64"))
    for name in ("mul_v541", "mul_v9509_compact"):
        add, mul, most = two(1, 1, 64)
        assert not differing(mul, recorded(name))
        assert (
            differing(add, recorded(name)) == differing(most, recorded(name)) == ["PE.Cfg.OpMode"]
        )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("activation/relu", "ReLU"),
        ("activation/relu6", "ReLU6"),
        ("unary/tanh", "Tanh"),
        ("unary/sqrt", "Sqrt"),
        ("unary/sign", "Sign"),
        ("unary/exp2", "Exp2"),
    ],
)
def test_bare_activations_agree_with_a_network_of_their_size(name: str, kind: str) -> None:
    layer = unit("Neuron", params={"Type": kind})
    assert not differing(network(layer, inputs=(image(*LARGE),)), bare(name))
    assert differing(network(layer, inputs=(image(1601, 2560, 1),)), bare(name))[:2] == [
        "Common.InDim.Win",
        "Common.OutDim.Wout",
    ]
    other = unit("Neuron", params={"Type": "Tanh" if kind == "ReLU" else "ReLU"})
    assert "NE.MACCfg.NonlinearMode" in differing(
        network(other, inputs=(image(*LARGE),)), bare(name)
    )


def test_bare_elementwise_tasks_agree_with_a_network_of_their_size() -> None:
    add, _, most = two(*LARGE)
    assert not differing(add, bare("binary/add"))
    assert not differing(most, bare("binary/max"))
    assert differing(add, bare("binary/max")) == ["PE.Cfg.OpMode"]


def test_a_3_by_3_convolution_and_an_addition_of_compiler_9_agree() -> None:
    """Other sizes, a kernel and padding, and coefficients of 16 engines with four channels each."""
    same = {"PadTop": 1, "PadBot": 1, "PadLeft": 1, "PadRight": 1}
    made = network(conv(64, (3, 3), **same), inputs=(image(16, 16, 64),))
    found = compare(claims(made), transcribed("env_conv_k3_c64_n64_s16_st1_g1_bias0"))
    assert not any(not one.agrees for one in found)
    assert sum(one.agrees for one in found) >= 80
    depthwise = compare(claims(made), transcribed("env_conv_k3_c64_n64_s16_st1_g64_bias0"))
    assert {one.field for one in depthwise if not one.agrees} >= {"Common.GroupConvCfg.UnicastEn"}
    add, _, _ = two(8, 8, 64)
    assert not any(
        not one.agrees for one in compare(claims(add), transcribed("binary_add_1x64x8x8"))
    )
    valid = network(conv(64, (3, 3)), inputs=(image(16, 16, 64),))
    wrong = {
        one.field
        for one in compare(claims(valid), transcribed("env_conv_k3_c64_n64_s16_st1_g1_bias0"))
        if not one.agrees
    }
    assert wrong >= {
        "Common.ConvCfg.Px",
        "Common.ConvCfg.Py",
        "Common.OutDim.Wout",
        "Common.OutDim.Hout",
    }


def test_each_number_of_a_network_is_claimed() -> None:
    """A change of the network that its registers would show changes what is claimed."""

    def stated(**change: object) -> set[Claim]:
        keys = {"PadTop": 1, "PadLeft": 1, "Step": [1, 1]} | {
            key: value for key, value in change.items() if key[0].isupper()
        }
        size = change.get("size", (20, 10, 8))
        assert isinstance(size, tuple)
        return set(
            claims(
                network(
                    conv(int(str(change.get("channels", 4))), (3, 3), **keys),
                    inputs=(image(*size),),
                )
            )
        )  # type: ignore[arg-type]

    plain = stated()
    for change, field in [
        ({"PadTop": 2}, "Common.ConvCfg.Py"),
        ({"PadLeft": 2}, "Common.ConvCfg.Px"),
        ({"Step": [2, 1]}, "Common.ConvCfg.Sx"),
        ({"Step": [1, 2]}, "Common.ConvCfg.Sy"),
        ({"size": (21, 10, 8)}, "Common.InDim.Win"),
        ({"size": (20, 11, 8)}, "Common.InDim.Hin"),
        ({"size": (20, 10, 9)}, "Common.Cin.Cin"),
        ({"channels": 5}, "Common.Cout.Cout"),
        ({"channels": 5}, "KernelDMASrc.CoeffDMAConfig[4].En"),
        ({"channels": 5}, "Common.Cfg.ActiveNE"),
        ({"size": (20, 10, 50)}, "KernelDMASrc.CoeffBfrSize[0].MemBfrSize"),
        ({"size": (40, 10, 8)}, "TileDMASrc.RowStride.Stride"),
        ({"size": (20, 20, 8)}, "TileDMASrc.PlaneStride.PlaneStride"),
        ({"channels": 5}, "TileDMADst.DepthStride.DepthStride"),
    ]:
        assert field in {one.field for one in stated(**change) ^ plain}, change


def test_bias_and_activation_behind_a_convolution_are_claimed() -> None:
    bias = unit(
        "GOC",
        "bias",
        "layer",
        {
            "BiasScaleGroupData": {
                "BiasIndex": 0,
                "BiasOffset": 0,
                "BiasCount": 4,
                "BiasType": "Float16",
            }
        },
    )
    relu = unit("Neuron", "act", "bias", {"Type": "ReLU"})
    found = {one.field: one.expected for one in claims(network(conv(), bias, relu))}
    assert (found["NE.MACCfg.BiasMode"], found["NE.MACCfg.NonlinearMode"]) == (1, 1)
    scalars = {
        one.field: one.expected
        for one in claims(network(unit("GOC", params={"BiasScalar": 16354, "ScaleScalar": 20544})))
    }
    assert (scalars["PE.BiasScale.Bias"], scalars["PE.BiasScale.Scale"]) == (16354, 20544)


def test_stated_strides_are_claimed_as_they_are() -> None:
    made = Network(
        "net",
        (image(InputRowStride=128, InputPlaneStride=1024),),
        (unit("Neuron", params={"Type": "ReLU"}),),
        (Output("o", {"Bottom": "layer", "OutputRowStride": 192}),),
    )
    found = {one.field: one.expected for one in claims(made)}
    assert [
        found[f"TileDMASrc.{name}"]
        for name in ("RowStride.Stride", "PlaneStride.PlaneStride", "DepthStride.Stride")
    ] == [2, 16, 48]
    assert [
        found[f"TileDMADst.{name}"]
        for name in ("RowStride.RowStride", "PlaneStride.PlaneStride", "DepthStride.DepthStride")
    ] == [3, 18, 54]


def test_nothing_is_claimed_of_what_nobody_saw() -> None:
    assert claims(network(conv(name="a"), conv(name="b", bottom="a"))) == []
    assert claims(network(conv(), inputs=(image(BatchSize=2),))) == []
    assert claims(network(unit("InputView", params={"Offset": 0, "Size": 2}))) == []
    wide = unit(
        "Broadcast", "wide", "image", {"BroadcastInfo": [{"Dimension": "Width", "Size": 8}]}
    )
    assert (
        claims(
            network(
                wide,
                unit("ScaledElementWise", "l", ["image", "wide"], {"Type": "Add"}),
                inputs=(image(1),),
            )
        )
        == []
    )
    found = {
        one.field
        for one in claims(network(conv(KernelType="UInt8"), inputs=(image(InputType="UInt8"),)))
    }
    assert not found & {"Common.ChCfg.InFmt", "TileDMASrc.Fmt.MemFmt", "NE.KernelCfg.KernelFmt"}
    assert not any("CoeffBfrSize" in one.field for one in claims(network(conv(Step=[2, 2]))))
    assert not any("CoeffDMAConfig" in one.field for one in claims(network(conv(20))))


def test_what_is_missing_is_no_agreement() -> None:
    stated = [
        Claim(0, "width", "Common.InDim.Win", 3),
        Claim(1, "width", "Common.InDim.Win", 3),
        Claim(0, "height", "x", 1),
    ]
    found = compare(stated, [{"Common.InDim.Win": 3}])
    assert [(one.task, one.got, one.agrees) for one in found] == [(0, 3, True), (1, None, False)]
    assert str(found[1]) == "task 1, width: Common.InDim.Win is not there, net.plist says 3"
    assert Agreement({"a": tuple(found)}, frozenset()).count == 2
    with pytest.raises(
        ValueError,
        match="agreement: got 'a' as a network or a file only, allowed are names of both",
    ):
        agreement({}, {"a": []})
