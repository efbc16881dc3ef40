"""Tinygrad's notes on the bytes of a task (source S), line by line, and real tasks to check them.

``seed.csv`` has a row for each line of the notes: byte offset and type in a task of 0x274 bytes,
the register fields that lie there, the line as written (column ``seed``), its law over
``parameters``, and the verdict of real files. Rows of source ``refined`` state the law that holds
instead. ``laws.stated.check_rows(ROWS, captures_of(networks, files))`` checks the rows with files.
"""

from __future__ import annotations

from pathlib import Path

from npulab.npus.ane.source.agreement import Files, Networks, Values
from npulab.npus.ane.source.parameters import parameters, tasks_of
from npulab.npus.kit import read_table, refuse_if

Captures = dict[str, tuple[Values, dict[str, int]]]
ROWS = tuple(read_table(Path(__file__).parent / "seed.csv"))


def captures_of(networks: Networks, files: Files) -> Captures:
    """Return each task's raw numbers by field with the parameters of its network, by file name.

    ``files`` are the values of each task in order; tasks of a file that has several are named
    ``concat task 1``. Raises ValueError for a network without a file, or with another number of
    tasks.
    """
    out: Captures = {}
    for name, network in networks.items():
        count = tasks_of(network)
        got = len(files.get(name, ()))
        refuse_if(got != count, name, f"{got} tasks", f"are {count}, as its network says")
        for task, values in enumerate(files[name]):
            called = name
            if count > 1:
                called = f"{name} task {task}"
            out[called] = values, parameters(network, task)
    return out
