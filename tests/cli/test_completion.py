"""Completion in a real shell: what the Tab key would offer."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_cli import run  # noqa: F401 - a fixture

from npulab.cli import completion, options
from npulab.cli.shell import COMMANDS
from npulab.support.files import read_table


def offered(line: str, folder: Path) -> set[str]:
    """What bash completes the last word of a line to."""
    if not shutil.which("bash"):
        pytest.skip("no bash here")
    words = line.split(" ")
    script = (
        f"{completion.bash(completion.command_words())}\nCOMP_WORDS=({' '.join(word or repr('') for word in words)})\n"
        f"COMP_CWORD={len(words) - 1}\n_npulab\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder
    )
    return {*done.stdout.split()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("npulab sh", {"show"}),
        ("npulab ", {*COMMANDS}),
        ("npulab show --n", {"--nonzero"}),
        ("npulab diff --ex", {"--exit-code"}),
        ("npulab check --ag", {"--against"}),
        ("npulab show --form ", {"earlier", "later"}),
        ("npulab session ", {"new", "note", "show", "merge"}),
        ("npulab session --fi", {"--field"}),
        ("npulab completion f", {"fish"}),
        ("npulab show --zzz", set()),
        ("npulab show cap", set()),
    ],
)  # bash goes on with files
def test_bash_offers(tmp_path: Path, line: str, words: set[str]) -> None:
    assert offered(line, tmp_path) == words


@pytest.mark.parametrize("shell", completion.HOW)
def test_every_shell_accepts_its_script(run: Any, tmp_path: Path, shell: str) -> None:
    status, lines, _ = run("completion", shell)
    assert status == 0
    assert all(any(name in line for line in lines) for name in COMMANDS)
    assert any("nonzero" in line for line in lines)
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    (tmp_path / "script").write_text("\n".join(lines))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_every_option_is_of_a_command_and_its_help_names_no_module() -> None:
    rows = read_table(Path(options.__file__).with_suffix(".csv"))
    named = " ".join(row["commands"] for row in rows).split()
    assert {*named} <= {*COMMANDS}
    for command in {*named}:
        parser = argparse.ArgumentParser()
        options.declare(parser.add_argument, command)
        assert "npulab." not in parser.format_help(), command
