"""The ``npulab`` command. Bad input exits 2 with one sentence; ``--json`` prints one object a line.

The options of the commands are the rows of ``options.csv``; the module with the function that runs
a command is loaded only if the command is asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from npulab.cli.options import declare
from npulab.cli.output import REFUSED, tell
from npulab.support.distributions import version_of
from npulab.support.files import read_table
from npulab.support.refuse import near

DESCRIPTION = "Find out how an undocumented NPU works; a file may be - for standard input."
# Standard input with more bytes than this is refused, because it is held in memory.
MOST_PIPED = 2**27
INTERRUPTED = 130  # the exit status of shells for Ctrl-C

# By name of a command: the module with its function, and its help text.
COMMANDS = {
    row["command"]: (row["module"], row["what"])
    for row in read_table(Path(__file__).with_name("commands.csv"))
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; an argument ``-`` stands for a file with the
    standard input.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "-" not in given:
        return _run(given)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        data = sys.stdin.buffer.read(MOST_PIPED + 1)
        piped = Path(folder, "stdin")
        if data.startswith(b"PK"):
            piped = piped.with_suffix(".npz")  # a sweep is recognised by this suffix
        if piped.write_bytes(data) <= MOST_PIPED:
            named = {"-": str(piped)}
            return _run([named.get(argument, argument) for argument in given])
    tell(
        f"-: got more than {MOST_PIPED} bytes, allowed are {MOST_PIPED}; "
        "give a larger input as a file"
    )
    return 2


def _run(given: Sequence[str]) -> int:
    parser = _parser(given)
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        parser.error(
            f"got {given[0]!r}, which is no command{near(given[0], COMMANDS)}; "
            "npulab --help names them"
        )
    options, rest = parser.parse_known_args(given)
    if rest and options.command != "lab":
        parser.error(
            f"got {rest[0]!r}, which {options.command} does not take{near(rest[0], options.takes)}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            # Python hides an ImportWarning by default, but people must know whose code runs
            warnings.filterwarnings("always", r"target \w+ runs code", ImportWarning)
            once = cache(tell)  # prints a warning once, even if several files of a folder give it
            warnings.showwarning = lambda message, *_, **__: once(str(message))
            status = int(options.run(options, *filter(None, [rest])) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader of the output, such as head, has closed it: nothing may be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        tell(f"stopped {error}".strip())
        return INTERRUPTED
    except REFUSED as error:
        tell(error)
        return 2
    except SystemExit as error:  # raised by JupyterLab when it ends, or by a target's code
        if options.command == "lab":
            raise
        tell(f"{options.command}: the code of a target ended the program ({error.code!r})")
        return 2


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that ``given`` begins with, else the parser of all commands.
    In both, only commands that ``given`` names have their options.
    """
    parser = argparse.ArgumentParser("npulab", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"npulab {version_of('npulab')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names: Iterable[str] = COMMANDS
    if given and given[0] in COMMANDS:
        names = given[:1]  # to make the parsers of all other commands would take 6 ms
    for name in names:
        module, text = COMMANDS[name]
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--json", action="store_true", help="one JSON object a line")
        if name in given:
            declare(command.add_argument, name)
            run = import_module(f"npulab.cli.{module}").COMMANDS[name]
            command.set_defaults(run=run, takes=[*command._option_string_actions])
    return parser
