"""Compiled files written from captures: those of compiler 4.2.1 byte for byte, all others with
what they say.
"""

from dataclasses import replace

import ane_files
import pytest
from conftest import shared

import npulab
from npulab.npus.ane import hwx
from npulab.npus.ane.imported import compiled
from npulab.npus.ane.writing import hwx_bytes

CASES = (
    "compiled",
    "concat16",
    "conv_bias",
    "conv_twos",
    "gemm64",
    "relu16",
    "sigmoid77",
    "sum64",
    "mul_v541",
    "mul_v9509_compact",
)


@pytest.fixture(params=CASES)
def capture(request):
    return npulab.load(shared(f"data/ane/hwx/{request.param}/model.hwx"))


def test_written_files_say_the_same(capture):
    again = compiled(hwx_bytes(capture), capture.name, capture.source)
    assert again.jobs == capture.jobs
    assert (again.addresses, again.parameters["tensors"]) == (
        capture.addresses,
        capture.parameters["tensors"],
    )
    assert again.buffers.get("coefficients") == capture.buffers.get("coefficients")
    found, real = hwx.read(again.buffers["hwx"]), hwx.read(capture.buffers["hwx"])
    assert [one._replace(at=0) for one in found.programs] == [
        one._replace(at=0) for one in real.programs
    ]
    assert (
        ane_files.described(found.symbols)[0]["axes"]
        == ane_files.described(real.symbols)[0]["axes"]
    )
    text = found.section("__TEXT", "__text")
    assert [one.address for one in text.relocations] == [
        one.address for one in real.section("__TEXT", "__text").relocations
    ]


def test_files_of_compiler_4_are_written_byte_for_byte(capture):
    real = hwx.read(capture.buffers["hwx"])
    if real.compiler != "4.2.1":
        pytest.skip("a file of a later compiler, written in the layout of 4.2.1")
    label = next(
        (one.name.split("_ne_")[0] for one in real.symbols if one.name.startswith("K")), ""
    )
    assert hwx_bytes(capture, real.identity, label) == capture.buffers["hwx"]


def test_only_names_of_coefficients_and_identity_differ_by_themselves():
    capture = npulab.load(shared("data/ane/hwx/conv_twos/model.hwx"))
    found, real = hwx.read(hwx_bytes(capture)), hwx.read(capture.buffers["hwx"])
    assert "npulab" in found.identity
    assert found.compiler == ""
    assert replace(found, identity="", symbols=()) == replace(
        real,
        identity="",
        symbols=(),
        sections=(
            replace(real.sections[0], relocations=found.sections[0].relocations),
            *real.sections[1:],
        ),
    )
    assert [one[1:] for one in found.symbols] == [one[1:] for one in real.symbols]
    assert [one.name for one in found.symbols[3:]] == [one.name for one in real.symbols[3:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, parameters={}), "conv_twos: parameters: got no tensors"),
        (lambda c: replace(c, addresses={}), "conv_twos: tensor 'image': got "),
        (
            lambda c: replace(c, addresses={**c.addresses, "image": 0x30000000}),
            "got address 0x30000000, allowed is at least 0x30004000",
        ),
        (
            lambda c: replace(c, addresses={**c.addresses, "image": 0x30004040}),
            "multiples of 0x4000",
        ),
        (
            lambda c: replace(c, addresses={**c.addresses, "coefficients": 0x30000200}),
            "coefficients: got address",
        ),
        (
            lambda c: c.with_fields(**{"Header.Header[8].WBase": 9}),
            r"got Header.Header\[8\].WBase 9, which no tensor",
        ),
        (
            lambda c: c.with_fields(**{"Header.Header[7].NextPointer": 0x300}),
            "got 1 tasks and a last link to 0x300",
        ),
        (lambda c: replace(c, jobs=(c.jobs[0], c.jobs[0])), "task 0: got its next task at 0x0"),
    ],
)
def test_refusals(change, words):
    capture = npulab.load(shared("data/ane/hwx/conv_twos/model.hwx"))
    with pytest.raises(ValueError, match=words):
        hwx_bytes(change(capture))
