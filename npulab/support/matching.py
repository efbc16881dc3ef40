"""A pattern searched in each line of a text: ``python matching.py PATTERN TEXT OUT``.

This is a program of its own, because the search of one line can take very long, and only a process
can be ended during a search. It imports nothing of npulab. ``PATTERN`` is a file with the pattern
as a JSON text, ``TEXT`` the file whose lines are searched. The file ``OUT`` gets a line of JSON for
each line that matches: its number, counted from 1, and the text of each named group.
"""

import json
import re
import sys
import warnings
from pathlib import Path

MOST_LETTERS = 4096  # most letters of a line that are searched; the letters after these are ignored


def matches(stated: str, text: str, out: str) -> None:
    """Search the pattern of the file ``stated`` in each line of the file ``text``, and write a line
    of JSON for each match to the file ``out``."""
    pattern = json.loads(Path(stated).read_text(encoding="ascii"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = re.compile(pattern).search
    # each match is written at once, so that matches are kept if the program is ended
    with Path(text).open(encoding="utf-8") as lines, Path(out).open("w", buffering=1) as found:
        for number, line in enumerate(lines, 1):
            match = search(line[:MOST_LETTERS].rstrip("\n"))
            if match:
                found.write(json.dumps([number, match.groupdict()]) + "\n")


if __name__ == "__main__":
    matches(*sys.argv[1:])
