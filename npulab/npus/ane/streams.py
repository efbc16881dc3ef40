"""Task streams that lie one behind the other in words, without a list: H14 and later.

The header's first word counts the words of the task; tasks lie on 16 bytes behind a preamble of 16
bytes, zeros between them.  Sources: JW (2251 tasks of H14, some hundred of H15 to H18), FT; see the
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npulab.npus.ane.tasks import MOST_TASKS, Task, cut, first_broken, split
from npulab.registers.fields import WORD_BYTES

FRAME = 16  # bytes: tasks of H14 and later lie on them, and so long is the preamble
PREAMBLE = (1).to_bytes(FRAME, "little")
TASK_SIZE, TDE = (16, 11), (1, 1)  # bits (lsb, width) of the first and of the last header word


def read_h14(text: bytes, header_words: int = 8) -> list[Task]:
    """The tasks of a section of H14 and later, in order.

    ``header_words`` is 8 on H14 and H15 and 9 from H16 on (JW); one more follows where the last of
    them has TDE. Raises ValueError, naming task and byte, for sizes and records past the end and
    for what is neither task nor zeros; a frame of 16 bytes at the start that has no size is the
    preamble (see ``preamble``).
    """
    if len(text) % WORD_BYTES:
        raise ValueError(f"task stream: got {len(text)} bytes, allowed is a multiple of {WORD_BYTES}")
    if not 0 < header_words < 2 ** TASK_SIZE[1]:
        raise ValueError(f"task stream: got {header_words} header words, allowed is 1 to {2 ** TASK_SIZE[1] - 1}")
    text = bytes(text)
    words = np.frombuffer(text, "<u4")
    tasks: list[Task] = []
    at = len(preamble(text))
    while (at := next_nonzero(words, at)) < len(text):
        what = f"task stream, task {len(tasks)} at byte {at:#x}"
        size = cut(int(words[at // WORD_BYTES]), TASK_SIZE) if at % FRAME == 0 else 0
        if not size:
            raise ValueError(f"{what}: got {int(words[at // WORD_BYTES]):#x}, allowed is zeros or, on a multiple of "
                             f"{FRAME} bytes, a header with its size")
        if len(tasks) == MOST_TASKS:
            raise ValueError(f"{what}: got one task more, allowed are {MOST_TASKS}")
        raw = text[at:at + WORD_BYTES * size]
        if len(raw) < WORD_BYTES * size:
            raise ValueError(f"{what}: got a size of {size} words, allowed is the {len(raw) // WORD_BYTES} words that "
                             "the section has left")
        tasks.append(Task(at, raw, header_words))
        at += len(raw)
    return whole(tasks, words, header_words)


def whole(tasks: Sequence[Task], words: np.ndarray, header_words: int) -> list[Task]:
    """The tasks of a section's words with their DTID words counted; the same as ``checked`` on
    each."""
    starts = np.array([task.offset for task in tasks], np.int64) // WORD_BYTES
    ends = np.array([task.end for task in tasks], np.int64) // WORD_BYTES
    control = words[np.minimum(starts + header_words, ends) - 1]
    held = header_words + (control >> np.uint32(TDE[0]) & np.uint32(2 ** TDE[1] - 1)).astype(np.int64)
    short = np.flatnonzero(starts + held > ends)[:1].tolist()
    broken = first_broken(words, starts + held, ends)
    for n in sorted([*short, *([] if broken is None else [broken])]):
        checked(tasks[n], header_words, f"task stream, task {n} at byte {tasks[n].offset:#x}")
    return [task if count == header_words else replace(task, header_words=count)
            for task, count in zip(tasks, held.tolist(), strict=True)]


def checked(task: Task, header_words: int, what: str) -> Task:
    """The task of H14 and later with its DTID word counted, if it is whole; raises ValueError where
    it is not."""
    words = task.words
    held = header_words + (len(words) >= header_words and cut(words[header_words - 1], TDE))
    if len(words) < held:
        raise ValueError(f"{what}: got a size of {len(words)} words, allowed is at least the {held} of its header")
    for _ in split(words, held, True, what, task.offset):
        pass
    return replace(task, header_words=held)


def next_nonzero(words: np.ndarray, at: int) -> int:
    """The byte of the first word that is not 0 from byte ``at`` on, or the end of the words."""
    step = 64
    start = at // WORD_BYTES
    while start < len(words):
        some = words[start:start + step] != 0
        if some.any():
            return WORD_BYTES * (start + int(some.argmax()))
        start, step = start + step, min(4 * step, 2 ** 18)
    return WORD_BYTES * len(words)


def preamble(text: bytes) -> bytes:
    """The 16 bytes before the first task of H14 and later, none where a task stands at the start.

    >>> preamble(PREAMBLE + bytes(4)) == PREAMBLE
    True
    """
    first = int.from_bytes(text[:WORD_BYTES], "little")
    return b"" if cut(first, TASK_SIZE) or len(text) < FRAME else bytes(text[:FRAME])
