"""A file that no target recognises is told as what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npulab
from npulab.captures.unrecognised import HEAD, formats

NOISE = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty, allowed is a dump that a target recognises; record it again"),
        (
            b"\x89PNG\r\n\x1a\n" + NOISE,
            "is a PNG picture, no target recognises this file; npulab list --formats",
        ),
        (b"\xff\xd8\xff\xe0" + NOISE, "is a JPEG picture"),
        (b"\x7fELF" + NOISE, "is an ELF program or library"),
        ("voil\u00e0, roses\n".encode() * 3, "is text, no target recognises this file"),
        ("\u00e9".encode() * HEAD, "is text"),
        (b"a" + "\u00e9".encode() * HEAD, "is text"),  # whose last letter is cut where reading ends
        (NOISE, "is 1024 words of 32 bits or other bytes, no target recognises this file"),
        (NOISE, "begin with npulab new NAME --words 1024"),
        (NOISE[:37], "is 37 bytes, no target recognises this file"),
        (b"\x00", "is 1 byte, no target"),
    ],
)
def test_what_it_is_and_the_next_step(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "dump").write_bytes(data)
    with pytest.raises(ValueError, match=r"dump: is") as refusal:
        npulab.load(tmp_path / "dump")
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < len(str(tmp_path)) + 240


def test_raw_words_are_led_to_a_new_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.bin").write_bytes(NOISE[:64])
    with pytest.raises(ValueError, match=r"begin with npulab new NAME --from words.bin$"):
        npulab.load("words.bin")


def test_raw_words_are_led_to_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.bin").write_bytes(NOISE[:64])
    with pytest.raises(ValueError, match=r"npulab import FILE SWEEP --words N, or begin"):
        npulab.load_sweep("all.bin")
    Path("dumps/run00").mkdir(parents=True)
    Path("all.bin").rename("dumps/run00/words.bin")
    line = "npulab import dumps sweep.npz --parameters layers.csv"
    with pytest.raises(ValueError, match=rf"\({line} needs none"):
        npulab.load_sweep("dumps")


def test_formats_are_those_of_the_targets() -> None:
    rows = formats()
    assert {"target": "nvdla", "format": npulab.target("nvdla").importers[0].name} in rows
    assert {row["target"] for row in rows} <= set(npulab.targets())
    read = [
        one
        for name in npulab.targets()
        for of in [npulab.target(name)]
        for one in (*of.importers, *of.documents)
    ]
    assert len(rows) == len(read)
