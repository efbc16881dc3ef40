"""What lies beside a compiled file is kept with its capture, and ``npulab check`` holds it
against the registers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import shared

import npulab

WITH_NETWORK = ("compiled", "concat16", "conv_bias", "conv_twos", "relu16", "sigmoid77", "sum64")


def test_every_network_agrees_with_its_file() -> None:
    captures = npulab.load_all(shared("data/ane/hwx"))
    found = {capture.name: npulab.check(capture) for capture in captures}
    assert {name: one.verdict for name, one in found.items() if one.claims} == dict.fromkeys(
        WITH_NETWORK, "claims agree"
    )
    assert all(
        len(found[name].claims) >= 60 and not found[name].claims_wrong for name in WITH_NETWORK
    )
    both = [f"{what} of probs_tmp_0 that are equal" for what in ("weights", "biases")]
    for name, said in (
        ("conv_twos", ["weights of my_layer that are equal"]),
        ("conv_bias", both),
        ("compiled", both),
    ):
        claims = found[name].claims
        assert [claim.what for claim in claims if claim.field == "coefficients"] == said


def test_network_and_weights_are_kept_when_the_capture_is_saved(tmp_path: Path) -> None:
    capture = npulab.load(shared("data/ane/hwx/conv_bias"))
    assert {
        "net.plist",
        "model.espresso.weights",
        "net.additional.weights",
    } <= capture.buffers.keys()
    assert (capture.parameters["InputChannels"], capture.parameters["OutputChannels"]) == (3, 2)
    npulab.save(capture, tmp_path / "saved")
    again = npulab.check(npulab.load(tmp_path / "saved"))
    assert (again.verdict, len(again.claims)) == ("claims agree", len(npulab.check(capture).claims))


@pytest.mark.parametrize("other", ["conv_twos", "relu16", "concat16"])
def test_the_network_of_a_neighbour_is_told_apart(tmp_path: Path, other: str) -> None:
    shutil.copy(shared("data/ane/hwx/conv_bias/model.hwx"), tmp_path)
    for file in shared(f"data/ane/hwx/{other}").iterdir():
        if file.name != "model.hwx":
            shutil.copy(file, tmp_path)
    found = npulab.check(npulab.load(tmp_path))
    assert found.verdict == "differs"
    assert found.claims_wrong
    assert "statements of net.plist" in found.reason


def test_other_weights_are_told_apart(tmp_path: Path) -> None:
    for file in shared("data/ane/hwx/conv_twos").iterdir():
        shutil.copy(file, tmp_path)
    weights = bytearray((tmp_path / "twos.weights").read_bytes())
    weights[3] ^= 1
    (tmp_path / "twos.weights").write_bytes(weights)
    found = npulab.check(npulab.load(tmp_path))
    assert [str(claim) for claim in found.claims if not claim.agrees] == [
        "task 0, weights of my_layer that are equal: coefficients is 8, the weights of its folder says 9"
    ]
    assert found.verdict == "differs"


def test_a_broken_network_names_its_file(tmp_path: Path) -> None:
    shutil.copy(shared("data/ane/hwx/conv_twos/model.hwx"), tmp_path)
    (tmp_path / "net.plist").write_bytes(b"<plist><dict><key>a</key></dict></plist>")
    with pytest.raises(ValueError, match=r"net\.plist"):
        npulab.load(tmp_path)
