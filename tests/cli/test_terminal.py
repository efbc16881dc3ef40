"""What people see on a terminal: in its width, in colour, a page at a time; in a pipe nothing of
that.
"""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import CAPTURES
from rich.console import Console

import npulab
from npulab.analysis.checks import Checks
from npulab.captures.listing import Decoded, Wanted
from npulab.cli import terminal
from npulab.support.answers import Table

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MESA = CAPTURES / "vivante" / "update4-mesa"


def drawn(parts: Any, width: int) -> tuple[list[str], str]:
    """Lines without colours, and the text with them, of a terminal that is as wide."""
    file = io.StringIO()
    terminal.print_parts(
        parts,
        Console(
            file=file,
            width=width,
            height=10_000,
            force_terminal=True,
            highlight=False,
            color_system="standard",
        ),
    )
    return ESCAPES.sub("", file.getvalue()).splitlines(), file.getvalue()


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [60, 80, 100, 232])
def test_every_line_fits_and_no_letter_is_lost(width: int) -> None:
    answer = Decoded(npulab.load(MESA))
    lines, _ = drawn(answer.parts, width)
    assert max(map(len, lines)) <= width
    wanted = Counter("".join(row["field"] + row["note"] for row in answer.rows).replace(" ", ""))
    assert wanted <= Counter("".join(lines))


def test_on_a_narrow_terminal_names_stay_whole_and_sentences_go_below_their_row() -> None:
    answer = Decoded(npulab.load(MESA))
    lines, _ = drawn(answer.parts, 80)
    (at,) = [at for at, line in enumerate(lines) if " relu " in line]
    assert lines[at].split() == ["NN", "w2", "relu", "2[24]", "0x0"]
    assert lines[at + 1] == "    evidence K · note clamp below at the output zero point"
    shown = " ".join(lines)
    assert not [
        row["field"]
        for row in answer.rows
        if len(row["field"]) <= terminal.NAME and f" {row['field']} " not in shown
    ]


def test_what_all_rows_share_is_told_once_where_it_is_narrow() -> None:
    rows = [{"task": 0, "field": name * 20, "note": f"some {name} words " * 8} for name in "abc"]
    lines, _ = drawn([Table(rows, ["task", "field", "note"])], 60)
    assert lines[0] == "task 0"
    assert [line for line in lines if line.startswith("a" * 20)]
    wide, _ = drawn([Table(rows, ["task", "field", "note"])], 200)
    assert wide[0].split() == ["task", "field", "note"]


def test_a_verdict_has_its_colour() -> None:
    good = npulab.load(CAPTURES / "vivante" / "sim-1x1")
    checks = Checks([npulab.check(good), npulab.check(good.with_fields(post_shift=8))])
    _, text = drawn(checks.parts, 200)
    assert "\x1b[32mequal" in text
    assert "\x1b[1;31mdiffers" in text
    html = checks._repr_html_()
    cells = re.findall(r"background:(rgba[^']*)'>(\w+)<", html)
    assert {("rgba(46, 160, 67, .25)", "equal"), ("rgba(218, 54, 51, .3)", "differs")} <= set(cells)


def test_what_is_in_html_is_escaped() -> None:
    assert "<b>" not in Table([{"<b>": "<b>"}], ["<b>"])._repr_html_()


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress("capture") as bar:
        bar(1, 2, "x")
    assert capsys.readouterr() == ("", "")


def on_a_terminal(arguments: list[str], columns: int, rows: int, **environment: str) -> str:
    """What a command writes to a terminal of this size."""
    pty = pytest.importorskip("pty")
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    out = b""
    # a size in the environment, as a runner of tests may set one, would count for more than the
    # terminal's
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", "npulab", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm", **environment},
    ) as process:
        os.close(theirs)
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            out += data
    os.close(ours)
    assert process.returncode == 0
    return out.decode()


def test_a_real_terminal_gets_its_width_and_a_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED\ncat\n")
    pager.chmod(0o755)
    text = on_a_terminal(["show", str(MESA), "--nonzero"], 72, 20, PAGER=str(pager))
    lines = ESCAPES.sub("", text).replace("\r", "").splitlines()
    assert "PAGED" in lines
    assert max(map(len, lines)) <= 72
    assert "\x1b[1m" in text
    short = on_a_terminal(
        ["show", str(MESA), "--field", "relu"], 200, 60, PAGER=str(pager), NO_COLOR="1"
    )
    assert "PAGED" not in short
    assert "\x1b[3" not in short


def test_fields_that_are_not_zero() -> None:
    rows = Decoded(npulab.load(MESA), Wanted(nonzero=True)).rows
    assert {row["raw"] for row in rows} > {1}
    assert all(row["raw"] for row in rows)
    assert len(rows) < len(Decoded(npulab.load(MESA)).rows)


def test_addresses_are_in_hexadecimal() -> None:
    text = str(Decoded(npulab.load(MESA), Wanted(field="kernel_address")))
    assert " 0xffff4000 " in text
    assert str(0xFFFF4000) not in text
