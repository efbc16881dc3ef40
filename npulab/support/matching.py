"""A pattern searched in each line of a text: ``python matching.py PATTERN TEXT OUT``.

This is a program of its own, because a pattern can take longer for one line than anybody waits, and
only a process can be ended in the middle of it. It imports nothing of npulab. ``PATTERN`` is a
file with the pattern as JSON. ``OUT`` gets a line of JSON for each line that matches: its number,
and the text of each named group.
"""

import json
import re
import sys
import warnings
from pathlib import Path

MOST_LETTERS = 4096  # the letters of a line that are looked at


def matches(stated: str, text: str, out: str) -> None:
    """Search a pattern in the lines of a text, and write what was found to ``out``."""
    pattern = json.loads(Path(stated).read_text(encoding="ascii"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = re.compile(pattern).search
    # each line is written at once, so that a run that is ended leaves what it had found
    with Path(text).open(encoding="utf-8") as lines, Path(out).open("w", buffering=1) as found:
        for number, line in enumerate(lines, 1):
            match = search(line[:MOST_LETTERS].rstrip("\n"))
            if match:
                found.write(json.dumps([number, match.groupdict()]) + "\n")


if __name__ == "__main__":
    matches(*sys.argv[1:])
