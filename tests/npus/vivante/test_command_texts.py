"""Command streams printed as text: etna_viv's tools, and the kernel driver's dump of a hang."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from pace import limit
from refusals import refused

import npulab
from npulab.captures import store
from npulab.npus.vivante import command_texts
from npulab.npus.vivante.commands import commands

TEXT = """\
Then it hangs:
0x40000005, /* LINK (8) PREFETCH=0x5,OP=LINK */
0x70040010, /*   ADDRESS *0x70040010 */
0x08010e03, /* LOAD_STATE (1) Base: 0x0380C Size: 1 Fixp: 0 */
0x00000c23, /*   GL.FLUSH_CACHE := DEPTH=1,COLOR=1 */
0x28000004, /* DRAW_PRIMITIVES (5) */
0x00000001, /*   COMMAND */
0x00000002, /*   START */
0x00000003, /*   COUNT */
0x08020e4f, /* LOAD_STATE (1) Base: 0x0393C Size: 2 Fixp: 0 */
0x00000000, /*   [0393C] GL.OCB_REMAP_START := 0x0 */
0x00000007, /*   [03940] GL.OCB_REMAP_END := 0x7 */
0x00000000, /*   PAD */
0x08010428, /* LOAD_STATE (1) Base: 0x010A0 Size: 1 Fixp: 0 */
0xc0000040, /*   [010A0] PS.NN_INST_ADDR := 0xc0000040 */
"""
WRITES = [(0x380C, 0xC23), (0x393C, 0), (0x3940, 7), (0x10A0, 0xC0000040)]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize("mark", ["", "> ", "+", "    "])
def test_a_printed_stream_is_read(tmp_path: Path, mark: str) -> None:
    text = "".join(f"{mark}{line}\n" for line in TEXT.splitlines())
    capture = npulab.load(written(tmp_path, text))
    assert [*capture.jobs[0].writes] == WRITES
    assert [(row["line"], row["lines"]) for row in capture.parameters["skipped"]] == [
        (1, 3),
        (6, 4),
        (13, 1),
    ]
    assert "missing" not in capture.parameters
    assert (
        npulab.load(store.save(capture, tmp_path / "saved")).jobs[0].writes
        == capture.jobs[0].writes
    )


@pytest.mark.parametrize(
    ("wrong", "right", "text"),
    [
        (
            "0x08010e03, /* LOAD",
            "0x08010e04, /* LOAD",
            "line 4: got 0x08010e04, which is opcode 1 for 1 states from 0x03810",
        ),
        (
            "Size: 2",
            "Size: 3",
            "line 10: got 0x08020e4f, which is opcode 1 for 2 states from 0x0393c, allowed is a LOAD_STATE of 3 states",
        ),
        (
            "0x00000000, /*   [0393C] GL.OCB_REMAP_START := 0x0 */\n",
            "",
            "line 11: got the state at offset 0x03940, allowed is "
            "the next, 0x0393c; a line is missing before it",
        ),
        (
            "0x28000004, /* DRAW_PRIMITIVES (5) */",
            "0x00000009, /* x */",
            "line 6: got 0x00000009 (x), allowed is the first word",
        ),
    ],
)
def test_what_does_not_add_up_is_refused(tmp_path: Path, wrong: str, right: str, text: str) -> None:
    assert wrong in TEXT
    path = written(tmp_path, TEXT.replace(wrong, right, 1))
    refused(lambda: npulab.load(path), str(path), text)


def test_a_stream_that_is_cut_short_says_what_is_missing(tmp_path: Path) -> None:
    head, states = (
        "0x081837e8, /* LOAD_STATE (1) Base: 0x0DFA0 Size: 24 Fixp: 0 */\n",
        "0x00811009, /*   [0DFA0] SH.INST_MEM[2024] := 0x811009 */\n0x00000000, /*   [0DFA4] SH.INST_MEM[2025] := 0x0 */\n",
    )
    capture = npulab.load(written(tmp_path, head + states))
    assert [*capture.jobs[0].writes] == [(0xDFA0, 0x811009), (0xDFA4, 0)]
    assert capture.parameters["missing"] == [{"line": 1, "offset": "0x0dfa8", "states": 22}]
    capture = npulab.load(written(tmp_path, head + states + "...\n" + TEXT))
    assert [*capture.jobs[0].writes] == [(0xDFA0, 0x811009), (0xDFA4, 0), *WRITES]


def test_the_dump_of_a_hang_is_read(tmp_path: Path) -> None:
    words = [
        f"{word:08x}" for word in [*commands(WRITES).tolist(), 0x38000000, 0, 0x40000002, 0x1000]
    ]
    rows = [
        f"[   12.34{at}] cmd {16 * at:08x}: {' '.join(words[4 * at : 4 * at + 4])}"
        for at in range(3)
    ]
    capture = npulab.load(
        written(tmp_path, "etnaviv-gpu 0.npu: recover hung GPU!\n" + "\n".join(rows) + "\n")
    )
    assert [*capture.jobs[0].writes] == WRITES
    assert [(row["line"], row["lines"]) for row in capture.parameters["skipped"]] == [
        (1, 1),
        (4, 1),
    ]


@pytest.mark.parametrize(
    "text", ["", "LOAD_STATE\n", "0x12345678,\n", "cmd 00000000: 40000002 00001000\n"]
)
def test_other_texts_are_no_stream(tmp_path: Path, text: str) -> None:
    assert not command_texts.recognises(written(tmp_path, text))


def test_a_stream_without_a_state_is_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "LOAD_STATE (1) Base: 0x0 Size: 1\n0x40000005, /* LINK (8) */\n0x70040010, /*  ADDRESS */\n",
    )
    refused(lambda: npulab.load(path), str(path), "got 2 words that load no state")


STATES = st.lists(
    st.tuples(st.integers(0, 2**16 - 1).map(lambda word: 4 * word), st.integers(0, 2**32 - 1)),
    min_size=1,
)


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.long)])
def test_any_states_are_read_again(tmp_path: Path, count: int) -> None:
    settings(max_examples=count, deadline=None)(given(st.just(tmp_path), STATES)(read_again))()


def read_again(folder: Path, states: list[tuple[int, int]]) -> None:
    words = commands(states).tolist()
    rows = "".join(
        f"cmd {8 * at:08x}: {words[2 * at]:08x} {words[2 * at + 1]:08x}\n"
        for at in range(len(states))
    )
    assert [*npulab.load(written(folder, rows)).jobs[0].writes] == states


def test_time_is_linear(tmp_path: Path) -> None:
    begin = time.process_time()
    npulab.load(written(tmp_path, TEXT * 1000))
    assert time.process_time() - begin < limit(1.6)
    begin = time.process_time()
    assert not command_texts.recognises(written(tmp_path, "{\n" * 200_000))
    assert time.process_time() - begin < limit(0.4)
