"""What a trace asks the device between its register writes: polls, reads and interrupts, as rows of
``parameters["waits"]`` and back as statements of ``.cfg`` traces.

A row has the ``task`` (number of the job), the number of that job's ``writes`` before it, the
``statement`` of the trace, ``of`` what (a register; the unit and group of an interrupt; "" if the
trace does not say), the ``arguments`` after it as the text has them, and the ``line``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from npulab.npus.kit import Capture, Range
from npulab.npus.nvdla.events import ASKS, Ask, Done, Event, Read, Write
from npulab.npus.nvdla.operations import Operation

# statements that poll until the bits of a mask have a value; their arguments are mask and value
MASKED = ("read_reg", "poll_field_equal")
NOTIFY = "intr_notify"  # the statement that raises an event at an interrupt
ENDLESS = "endless"  # the parameter with the polls that never end
Row = Mapping[str, Any]
Place = tuple[int, int]  # the number of a job, and how many of its writes come before


def wait_rows(
    events: Sequence[Event], found: Sequence[Operation], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return the rows of a trace's polls, reads and waits for interrupts, in the trace's order.

    ``found`` are the operations of ``events``, ``names`` the registers by byte address. A row
    stands after the last write before it; if a check, a wait or a load of memory lies between that
    write and the row, the row stands before the next write.
    """
    placed: list[tuple[int, int, int]] = []
    for task, operation in enumerate(found):
        for number, order in enumerate(operation.orders, operation.inherited):
            placed.append((order, task, number))
    placed.sort()
    ends = _ends(found)
    rows = []
    apart = True  # nothing but reads and polls since the last write is not
    for order, event in enumerate(events):
        if isinstance(event, Ask | Read | Done):
            task, number = _place(placed, order, apart, len(found))
            of = ""
            if isinstance(event, Done):
                task, number = _end(event, ends, found, (task, number))
                if event.group is not None:
                    of = f"{event.unit}_{event.group}"
            else:
                of = names[event.offset]
            rows.append(
                {
                    "task": task,
                    "writes": number,
                    "statement": event.statement,
                    "of": of,
                    "arguments": list(event.arguments),
                    "line": event.line,
                }
            )
        if not isinstance(event, ASKS):
            apart = not isinstance(event, Write)
    return rows


def endless_rows(events: Iterable[Event], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return a row for each poll that never ends, because its value has a bit outside of its mask:
    the ``line``, the ``register``, ``mask`` and ``value`` as texts, and the reason (``why``)."""
    rows = []
    for event in events:
        if not isinstance(event, Ask | Read | Done) or event.statement not in MASKED:
            continue
        register = "the interrupt status"
        if not isinstance(event, Done):
            register = names[event.offset]
        try:
            mask, value = [int(text, 0) for text in event.arguments[-2:]]
        except ValueError:  # not two numbers
            continue
        if value & ~mask:
            rows.append(
                {
                    "line": event.line,
                    "register": register,
                    "mask": hex(mask),
                    "value": hex(value),
                    "why": f"no value under mask {mask:#x} is {value:#x}: it waits for ever",
                }
            )
    return rows


def endless(capture: Capture) -> Iterator[Range]:
    """Yield a range that differs for each poll of a trace that never ends."""
    for row in capture.parameters.get(ENDLESS, ()):
        mask, value = int(row["mask"], 0), int(row["value"], 0)
        name = f"{row['register']} (line {row['line']}), {row['why']}"
        yield Range(name, (mask & value).to_bytes(4, "little"), value.to_bytes(4, "little"))


def _place(placed: Sequence[tuple[int, int, int]], order: int, apart: bool, tasks: int) -> Place:
    """Return the number of the job of an event, and how many of the job's writes come before the
    event.
    """
    after = bisect(placed, (order,))
    if after and not apart:
        _, task, number = placed[after - 1]
        return task, number + 1
    if after < len(placed):
        _, task, number = placed[after]
        return task, number
    return tasks, 0


def _ends(found: Sequence[Operation]) -> dict[tuple[str, int | None], list[int]]:
    """Return for each unit and group the operations that it ends, in order."""
    ends: dict[tuple[str, int | None], list[int]] = {}
    for task, operation in enumerate(found):
        ends.setdefault(operation.end, []).append(task)
    return ends


def _end(
    event: Done,
    ends: Mapping[tuple[str, int | None], list[int]],
    found: Sequence[Operation],
    near: Place,
) -> Place:
    """Return the place after all writes of the operation for whose end the event waits; the place
    ``near`` if the trace does not name the operation.
    """
    waiting = ends.get((event.unit, event.group))
    if not waiting:
        return near
    task = waiting.pop(0)
    operation = found[task]
    return task, len(operation.writes)


def wait_statements(rows: Iterable[Row]) -> dict[Place, list[str]]:
    """Return the statements of a ``.cfg`` trace; a key is (number of a job, number of its writes
    before the statements).
    """
    out: dict[Place, list[str]] = {}
    for row in rows:
        of = f"NVDLA_{row['of']}_0"
        if row["statement"] == NOTIFY:
            of = row["of"]
        arguments = ", ".join([of, *row["arguments"]])
        out.setdefault((row["task"], row["writes"]), []).append(f"{row['statement']}({arguments});")
    return out


def event_names(rows: Iterable[Row], task: int) -> list[str]:
    """Return the events that the interrupts of a job raise."""
    return [
        row["arguments"][0] for row in rows if (row["task"], row["statement"]) == (task, NOTIFY)
    ]
