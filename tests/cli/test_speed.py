"""What ``npulab bench decode`` measures, with few captures: every library reads and writes the
same struct.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import npulab
from npulab.cli import main
from npulab.cli.bench import decoding

ROWS = [
    "npulab",
    "numpy, a line a field",
    "bitstruct, C, tuple",
    "bitstruct, C, dict",
    "bitstruct, Python",
    "ctypes",
    "cantools",
    "construct",
    "construct, compiled",
    "copy of as many bytes",
]


def test_the_struct_tiles_its_words() -> None:
    members = decoding.struct()
    assert len(members) == 150
    assert members != decoding.struct(1)
    bits = [(m.word, bit) for m in members for bit in range(m.lsb, m.lsb + m.width)]
    assert sorted(bits) == [(word, bit) for word in range(38) for bit in range(32)]


@pytest.fixture(scope="module")
def found() -> Any:
    return json.loads(json.dumps(decoding.measure(1, captures=4)))


def test_every_library_gives_the_same(
    found: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoding, "child", lambda what, rounds, environment: found)
    table = npulab.bench("decode", 1)
    there = [name for name in ROWS if name not in found["missing"]]
    assert table.library.tolist() == there + [f"{name}: not installed" for name in found["missing"]]
    assert table.wrong[: len(there) - 1].tolist() == [0] * (len(there) - 1)
    ours = table.set_index("library").loc["npulab"]
    for side in ("decode", "encode"):
        rates = table[f"{side}, captures/s"][: len(there)]
        assert (rates > 0).all()
        assert (
            table[f"{side} ratio"][: len(there)] * rates / ours[f"{side}, captures/s"]
        ).tolist() == pytest.approx([1] * len(there))
    assert main(["bench", "decode"]) == 0
    out = capsys.readouterr().out
    assert "fields and words that came out wrong" in out
    assert "bytes of a capture 152" in out


def test_a_wrong_field_and_a_wrong_word_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> decoding.Codec:
        right = decoding._npulab(*given)
        return right._replace(
            rows=lambda decoded: right.rows(decoded) ^ 1, data=lambda words: b"\0" * words.nbytes
        )

    monkeypatch.setattr(decoding, "LIBRARIES", {"npulab": ("numpy", broken)})
    assert decoding.measure(1, captures=3)["wrong"] == {"npulab": 3 * (150 + 38)}


def test_a_library_that_is_not_installed_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        decoding,
        "LIBRARIES",
        {"npulab": decoding.LIBRARIES["npulab"], "other": ("no_such_module", decoding._cantools)},
    )
    found = decoding.measure(1, captures=2)
    assert found["missing"] == ["other"]
    monkeypatch.setattr(decoding, "child", lambda *_: found)
    assert npulab.bench("decode").library.tolist() == [
        "npulab",
        "copy of as many bytes",
        "other: not installed",
    ]
