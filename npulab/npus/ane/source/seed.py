"""tinygrad's notes on the bytes of a task (source S), to be checked with tasks of compiled files.

``seed.csv`` has a row for each line of the notes: byte offset and type in a task of 0x274 bytes,
the register fields at this offset, the line as written (column ``seed``), its law over
``parameters``, and the verdict of compiled files. If the law is wrong, a row of source ``refined``
states a law that holds. ``laws.stated.check_rows(ROWS, captures_of(networks, files))`` checks all
rows.
"""

from __future__ import annotations

from pathlib import Path

from npulab.npus.ane.source.agreement import Files, Networks, Values
from npulab.npus.ane.source.parameters import parameters, tasks_of
from npulab.npus.kit import read_table, refuse_if

Captures = dict[str, tuple[Values, dict[str, int]]]
ROWS = tuple(read_table(Path(__file__).parent / "seed.csv"))


def captures_of(networks: Networks, files: Files) -> Captures:
    """Return for each task its raw values by field, and the parameters of its network.

    ``files`` has the raw values of each task by file name. The key of a task is the file name; if
    the file has several tasks, the key is as ``concat task 1``. Raises ValueError for a network
    without a file, or with another number of tasks than its file.
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
