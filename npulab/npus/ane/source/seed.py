"""What the seed says of a task's bytes, row by row, and real tasks to hold it against.

``seed.csv`` has a row for each line: byte offset and type in a task of 0x274 bytes, the register
fields that lie there, the line as written, its law over ``parameters``, and what real files say of
it.  Rows of source ``refined`` say what holds instead.  ``laws.stated.check_rows(ROWS,
captures_of(networks, files))`` holds them against files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from npulab.npus.ane.source.agreement import Values
from npulab.npus.ane.source.network import Network
from npulab.npus.ane.source.parameters import parameters, tasks_of
from npulab.npus.kit import read_table

ROWS = tuple(read_table(Path(__file__).parent / "seed.csv"))


def captures_of(
    networks: Mapping[str, Network],
    files: Mapping[str, Sequence[Values]],
) -> dict[str, tuple[Values, dict[str, int]]]:
    """Each task's raw numbers by field with the parameters of its network, by the name of the file.

    ``files`` are the values of each task in order; of files with several the tasks are named
    ``concat task 1``. Raises ValueError for a network without a file, and where it has another
    count of tasks.
    """
    out: dict[str, tuple[Values, dict[str, int]]] = {}
    for name, network in networks.items():
        count = tasks_of(network)
        if len(files.get(name, ())) != count:
            raise ValueError(
                f"{name}: got {len(files.get(name, ()))} tasks, allowed are {count}, as its "
                "network says"
            )
        for task, values in enumerate(files[name]):
            out[f"{name} task {task}" if count > 1 else name] = values, parameters(network, task)
    return out
