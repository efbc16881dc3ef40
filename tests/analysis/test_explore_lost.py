"""Layers that give no capture say why; ranges that no layer has are refused before the first
one.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import npulab
from npulab.analysis.explore import explore
from npulab.analysis.explore.loop import reasons_of
from npulab.captures.layers import complete_ranges
from npulab.captures.sources import Answer, Compiler, reader_of
from npulab.captures.target import Claim, Range, Target
from npulab.cli import main
from npulab.npus.template import new_target

LAYER = {
    "input_h": 6,
    "input_w": 6,
    "input_c": 2,
    "output_c": 3,
    "kernel_h": 1,
    "kernel_w": 1,
    "stride_h": 1,
    "stride_w": 1,
    "input_scale": 0.02,
    "weight_scale": 0.01,
    "output_scale": 0.05,
}
# what a program leaves: a folder with words and a description
LEAVES = """import json, pathlib, sys
out = pathlib.Path(sys.argv[2], sys.argv[3])
out.mkdir(parents=True, exist_ok=True)
(out / "words.bin").write_bytes(bytes(range(64)))
(out / "job.json").write_text(sys.argv[4])
"""


@dataclass
class Moody:
    """It refuses, fails and hangs, each with several texts."""

    record: ClassVar[dict[str, str]] = {"source": "moody"}

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        size = int(parameters["input_h"] * parameters["input_w"])
        if size % 5 == 0:
            return Answer("failed", text="<b>broken</b>")
        if size % 11 == 0:
            return Answer("hang")
        if size % 2:
            return Answer("refused", text=f"got {size} pixels, allowed are 7")
        return Answer("refused", text="output_c is odd")


def test_the_most_frequent_reasons_are_told_with_counts() -> None:
    found = explore(Moody(), {"input_h": (1, 40), "input_w": (1, 40)}, budget=24)
    counted = found.outcomes.groupby(
        found.outcomes["text"].str.replace(r"\d+", "#", regex=True) + found.outcomes["outcome"]
    ).size()
    assert [reason.layers for reason in found.reasons] == sorted(counted, reverse=True)[:3]
    assert len(found.reasons) == 3
    told = repr(found)
    assert all(f"{reason.layers} layer" in told and reason.text in told for reason in found.reasons)
    assert "<b>" not in found._repr_html_()


def test_texts_that_differ_in_numbers_are_one_reason() -> None:
    reasons = reasons_of(
        [("refused", f"got {n} rows at {n:#x}, allowed are {n / 7}") for n in range(5)]
        + [("hang", "")] * 2
    )
    assert [(one.layers, one.outcome, one.text) for one in reasons] == [
        (5, "refused", "got 0 rows at 0x0, allowed are 0.0"),
        (2, "hang", ""),
    ]
    assert reasons_of([]) == ()


def test_the_shell_says_why_no_layer_was_captured(capsys: pytest.CaptureFixture[str]) -> None:
    """A type that the NPU does not have, as where --dtype is forgotten."""
    arguments = ["explore", "--source", "lower:nvdla", "--dtype", "uint8", "--budget", "4"]
    main(arguments)
    out = capsys.readouterr().out
    assert "4 layers refused: " in out
    assert "got " in out
    main([*arguments, "--json"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (reason,) = [record for record in records if record["kind"] == "reason"]
    assert (reason["layers"], reason["outcome"]) == (4, "refused")
    assert reason["text"] in out


@pytest.mark.parametrize("where", [".", "dump", "several/first", "a/b/c"])
@pytest.mark.parametrize("read", [True, False])
def test_folders_are_read_as_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, read: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    new_target("mine")
    command = [sys.executable, "-c", LEAVES, "{model}", "{out}", where, '{"npu": "mine"}']
    answer = Compiler(command, reader_of("mine") if read else None)(LAYER)
    assert answer.outcome == "captured", answer.text
    assert answer.capture is not None
    assert (answer.capture.target, answer.capture.words.view(np.uint8).tolist()) == (
        "mine",
        [*range(64)],
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('{"npu": "mine"', "job.json, line 1, column 15: is not JSON"),
        ('{"npu": "mime"}', "npu: got 'mime', allowed is one of"),
        (
            '{"npu": "mine", "chip": "mine9"}',
            "chip: got 'mine9', allowed is one of mine; near is mine",
        ),
    ],
)
@pytest.mark.parametrize("read", [True, False])
def test_a_broken_dump_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: str, read: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    new_target("mine")
    answer = Compiler(
        [sys.executable, "-c", LEAVES, "{model}", "{out}", "dump", said],
        reader_of("mine") if read else None,
    )(LAYER)
    assert answer.outcome == "failed"
    assert words in answer.text
    assert "npulab-" not in answer.text  # the folder is gone when it is read


def test_a_capture_of_its_own_is_read_with_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new_target("mine")
    new_target("other")
    Path("dump").mkdir()
    Path("dump/words.bin").write_bytes(bytes(64))
    Path("dump/job.json").write_text('{"npu": "mine"}')
    npulab.save(npulab.load("dump"), "out/case")
    assert reader_of("mine")(Path("out")).name == "case"
    with pytest.raises(
        ValueError, match="out: got case, allowed is a file or a folder that other recognises"
    ):
        reader_of("other")(Path("out"))


# ranges => the refusal, a regular expression
WRONG_RANGES = r"""
{'input_h': 3} => ranges: input_h: got int 3, allowed is \(low, high\) or a list of values; one value is \[3\]
{'kernel': 3} => ranges: kernel: got int 3
{'kernel': None} => kernel: got None
{'kernel': '3'} => kernel: got str '3'
{'input_w': []} => input_w: got no value
{'input_w': ()} => input_w: got no value
{'input_w': (64, 1)} => input_w: got low 64 above high 1, allowed is \(low, high\)
{'input_w': (1, 2, 3)} => input_w: got tuple of 3
{'input_w': [1, [2, 3]]} => input_w: got list of 2 as value 1
{'input_w': [1, '2']} => input_w: got str '2' as value 1
{'input_w': [1, None]} => got None as value 1
{'input_w': (1, (2, 3))} => got tuple of 2 as value 1
{'input_w': [1.5]} => input_w: got 1.5 as value 0, allowed are whole numbers
{'input_w': [0]} => input_w: got 0 as value 0, allowed are whole numbers from 1
{'input_w': [1e999]} => got float inf as value 0
{'input_w': [True]} => got bool True as value 0
{'relu': [2]} => relu: got 2 as value 0, allowed is 1 or 0
{'input_scale': [0.0]} => allowed are positive numbers
{'kernal': [3]} => got 'kernal', allowed is one of .*; near are kernel
{'kernel': [3], 'kernel_h': [1]} => got kernel and kernel_h, allowed is one of them
{'op': 'cnv'} => ranges: got op 'cnv', allowed is one of conv.*; near is conv
{'op': 2} => op: got int 2
{'op': [9]} => got op 9
{'op': []} => op: got no value
{'op': [['conv']]} => got op
[1, 2] => ranges: got list of 2
"""


@pytest.mark.parametrize("case", WRONG_RANGES.strip().split("\n"))
def test_a_range_with_a_wrong_member_is_refused_in_a_sentence(case: str) -> None:
    expression, words = case.split(" => ")
    ranges = ast.literal_eval(expression)
    for call in (lambda: complete_ranges(ranges), lambda: explore(Moody(), ranges, budget=4)):
        with pytest.raises(ValueError, match=words) as told:
            call()
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["input_h", "kernel"])
def test_ranges_that_layers_have_are_taken(name: str) -> None:
    for allowed in (
        (1, 5),
        [1, 5],
        range(1, 5),
        {1, 5},
        np.arange(1, 5),
        (np.int64(1), np.int64(5)),
        [3.0],
    ):
        assert complete_ranges({name: allowed})[name] is allowed
    assert complete_ranges({"relu": [True, False], "op": "add"})["op"] == [4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"input_h": {"low": 1, "hihg": 9}}',
            "input_h: got 'hihg', allowed are low and high; near is high",
        ),
        ('{"input_h": {"low": 1}}', "input_h: got no high, allowed are both low and high"),
        ('{"input_h": {}}', "no low and no high"),
        ('{"input_h": {"high": 1, "low": 9}}', "got low 9 above high 1"),
        ('{"input_h": 3}', "input_h: got int 3"),
        ('{"input_h": [[1]]}', "got list of 1 as value 0"),
        ("[1]", "got list of 1, allowed is an object"),
        ('{"input_h": [1, 2}', "line 1, column 18: is not JSON"),
    ],
)
def test_a_file_of_ranges_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = tmp_path / "ranges.json"
    file.write_text(text)
    assert (
        main(["explore", "--source", "lower:vivante", "--ranges", str(file), "--budget", "2"]) == 2
    )
    told = capsys.readouterr().err
    assert str(file) in told
    assert words in told


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("lower:vivant", "got 'vivant', allowed is one of .*near is vivante"),
        ("lower:vivante:imx9", "chip: got 'imx9', target vivante knows"),
        ("COMPILER {model} {out}", "source: got COMPILER, allowed is a program that can be run"),
    ],
)
def test_a_source_that_is_not_there_is_refused_before_the_first_layer(
    capsys: pytest.CaptureFixture[str], source: str, words: str
) -> None:
    import re

    assert main(["explore", "--source", source, "--budget", "2"]) == 2
    assert re.search(words, capsys.readouterr().err)


# members of a Range => the refusal
WRONG_MEMORY = r"""
(5, b'', b'') => Range: name: got int 5, allowed is a text
('a', 5) => Range 'a': predicted: got int 5, allowed are bytes
('a', [1, 2]) => predicted: got list of 2
('a', None) => predicted: got None
('a', b'', 'x') => captured: got str 'x'
('a', b'', None, 'x') => crc: got str 'x'
('a', b'', None, 4294967296) => crc: got int 4294967296
"""


@pytest.mark.parametrize("case", WRONG_MEMORY.strip().split("\n"))
def test_memory_with_a_wrong_member_is_refused_in_a_sentence(case: str) -> None:
    members, words = case.split(" => ")
    with pytest.raises(ValueError, match=words):
        Range(*ast.literal_eval(members))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (5, r"target t: replay: got int 5, allowed is a tuple of npulab.target.Range"),
        (Range("a", b""), "replay: got Range"),
        ([Range("a", b""), ("b", b"")], "replay: got tuple of 2 as member 1"),
        (None, "replay: got None"),
        ([[Range("a", b"")]], "got list of 1 as member 0"),
    ],
)
def test_a_replay_of_something_else_is_refused_in_a_sentence(given: Any, words: str) -> None:
    of = npulab.target("vivante")
    mine = Target("t", "t", of.chips, of.tables, replay=lambda capture: given)
    with pytest.raises(ValueError, match=words):
        mine.replay(None)  # type: ignore[arg-type]
    claims = Target(
        "t", "t", of.chips, of.tables, claims=lambda capture: [Claim(0, "a", "b", 1), 3]
    )  # type: ignore[list-item]
    with pytest.raises(
        ValueError, match=r"target t: claims: got int 3 as member 1, allowed is npulab.target.Claim"
    ):
        claims.claims(None)  # type: ignore[arg-type]
