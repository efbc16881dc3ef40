"""A capture: what was recorded of one run of an NPU; a set of captures."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.bits import Field, RegisterMap

if TYPE_CHECKING:
    import pandas as pd

PROVENANCES = ("board", "vendor driver", "open driver", "RTL simulation", "compiler", "simulated")
FIELD_COLUMNS = ("task", "block", "register", "field", "raw", "value", "bits", "evidence")
ROWS_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work given to an NPU.

    ``words`` is the parameter block ``(W,) uint32``; where the block is programmed by register
    writes, ``writes`` are (offset, value) in order and ``words`` the values they leave, by first
    write.  ``start`` holds the writes that hand a parameter block to the NPU; it counts as part
    of the same task.
    """

    block: str
    words: np.ndarray
    writes: tuple[tuple[int, int], ...] = ()
    start: Job | None = None

    def __post_init__(self) -> None:
        words = np.array(self.words, np.uint32)
        words.setflags(write=False)
        object.__setattr__(self, "words", words)

    @classmethod
    def from_writes(cls, block: str, writes: Sequence[tuple[int, int]]) -> Job:
        """A job of register writes; ``words`` is worked out from them."""
        return cls(block, np.array(list(dict(writes).values()), np.uint32), tuple(writes))

    def with_words(self, words: Any) -> Job:
        """The same job with other words; of register writes, the last one to each offset changes."""
        changed = replace(self, words=words)
        if not self.writes:
            return changed
        state = dict(zip(dict(self.writes), changed.words.tolist(), strict=True))
        last = {offset: n for n, (offset, _) in enumerate(self.writes)}
        writes = tuple((offset, state[offset] if last[offset] == n else value)
                       for n, (offset, value) in enumerate(self.writes))
        return replace(changed, writes=writes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.block == other.block and self.writes == other.writes \
            and np.array_equal(self.words, other.words) and self.start == other.start

    def __repr__(self) -> str:
        writes = f", {len(self.writes)} writes" if self.writes else ""
        return f"Job({self.block}, {len(self.words)} words{writes}{f', {self.start}' if self.start else ''})"

    def values(self, maps: Mapping[str, RegisterMap]) -> Iterator[tuple[str, Field, int]]:
        """(block, field, raw) of every field, those of the writes that start the job last.

        Raises LookupError where no map is known for the block.
        """
        if self.block not in maps:
            raise LookupError(f"block: got {self.block!r}, maps are known for {', '.join(maps) or 'none'}")
        registers = maps[self.block]
        if self.writes:
            yield from _written(registers, dict(self.writes))
        else:
            raw = registers.decode(self.words, raw=True)
            for item in registers:
                yield self.block, item, raw[registers.key(item)]
        if self.start:
            yield from self.start.values(maps)


@dataclass(frozen=True)
class Capture:
    """One recorded run: jobs, buffers, addresses and where it all comes from.

    ``buffers`` are bytes by name (``coefficients``, ``input``, ``output``, ...), ``addresses`` ints by
    the same names, ``parameters`` what is known of the layer.  ``provenance`` is one of
    ``PROVENANCES``; ``maps`` are the register maps, by block, that the words are read with.
    """

    name: str
    target: str
    chip: str
    jobs: tuple[Job, ...]
    buffers: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    addresses: Mapping[str, int] = field(default_factory=dict, repr=False)
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    provenance: str = "board"
    source: str = ""
    tool: str = ""
    date: str = ""
    maps: Mapping[str, RegisterMap] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.provenance not in PROVENANCES:
            raise ValueError(f"capture {self.name}: got provenance {self.provenance!r}, allowed is one of "
                             f"{', '.join(PROVENANCES)}")

    @property
    def simulated(self) -> bool:
        return self.provenance == "simulated"

    @property
    def words(self) -> np.ndarray:
        """``(W,) uint32`` of the first job's parameter block."""
        return self.jobs[0].words

    @property
    def values(self) -> dict[str, Any]:
        """The first job's fields by name, as meant."""
        return self.maps[self.jobs[0].block].decode(self.words)

    @property
    def fields(self) -> pd.DataFrame:
        """One row per field of every job: task, block, register, field, raw, value, bits, evidence."""
        import pandas as pd

        rows = [(task, block, item.register, item.name, raw, item.text(raw), item.bits, item.evidence)
                for task, job in enumerate(self.jobs) for block, item, raw in job.values(self.maps)]
        frame = pd.DataFrame(rows, columns=list(FIELD_COLUMNS))
        return frame.astype({"raw": object, "value": object})

    def with_words(self, words: Any, task: int = 0) -> Capture:
        """The same capture with other words in one job."""
        jobs = list(self.jobs)
        jobs[task] = jobs[task].with_words(words)
        return replace(self, jobs=tuple(jobs))

    def with_fields(self, task: int = 0, **values: Any) -> Capture:
        """The same capture with other values in some fields of one job.

        Raises LookupError for an unknown field, ValueError for a value that does not fit or a register
        that the job does not write.
        """
        job, registers = self.jobs[task], self.maps[self.jobs[task].block]
        state = dict(job.writes)
        wide = _spread(registers, state) if job.writes else job.words.copy()
        for name, value in values.items():
            item = registers[name]
            for piece in item.pieces:
                if job.writes and registers.registers[piece.word][1] not in state:
                    raise ValueError(f"field {name}: its register {registers.registers[piece.word][2]} is not "
                                     f"written by job {task}")
            item.insert(wide, item.raw(value))
        if job.writes:
            index = _index(registers)
            wide = np.array([wide[index[at]] if at in index else was for at, was in state.items()], np.uint32)
        return self.with_words(wide, task)

    def with_buffers(self, **buffers: bytes) -> Capture:
        """The same capture with other bytes in some buffers."""
        return replace(self, buffers={**self.buffers, **buffers})

    def __repr__(self) -> str:
        buffers = ", ".join(f"{name} {len(data)} B" for name, data in self.buffers.items())
        return (f"Capture({self.target}/{self.name}, {self.chip}, {self.provenance}, "
                f"{len(self.jobs)} job{'s' if len(self.jobs) > 1 else ''}{', ' + buffers if buffers else ''})")

    def _repr_html_(self) -> str:
        rows = [("chip", self.chip), ("provenance", self.provenance), ("source", self.source),
                ("tool", self.tool), ("date", self.date), ("jobs", ", ".join(map(repr, self.jobs))),
                *((f"buffer {name}", f"{len(data)} bytes") for name, data in self.buffers.items()),
                *((f"address {name}", f"{where:#010x}") for name, where in self.addresses.items())]
        body = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
                       f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
                       for name, value in rows if value)
        return f"<b>{html.escape(self.target)}/{html.escape(self.name)}</b><table>{body}</table>"


@dataclass(frozen=True)
class CaptureSet:
    """Captures in order, by number or by name."""

    captures: tuple[Capture, ...]

    @property
    def names(self) -> list[str]:
        return [capture.name for capture in self.captures]

    @property
    def words(self) -> np.ndarray:
        """``(N, W) uint32`` of the first jobs; raises ValueError where they differ in block or length."""
        kinds = {(c.target, c.jobs[0].block, len(c.words)) for c in self.captures}
        if len(kinds) != 1:
            raise ValueError(f"words: got first jobs of {len(kinds)} kinds {sorted(kinds)}, allowed is one")
        return np.stack([capture.words for capture in self.captures])

    def __len__(self) -> int:
        return len(self.captures)

    def __iter__(self) -> Iterator[Capture]:
        return iter(self.captures)

    def __getitem__(self, which: int | str) -> Capture:
        if isinstance(which, str):
            if which not in self.names:
                raise LookupError(f"got case {which!r}, there are {', '.join(self.names) or 'none'}")
            return self.captures[self.names.index(which)]
        return self.captures[which]

    def _ipython_key_completions_(self) -> list[str]:
        return self.names

    def __repr__(self) -> str:
        return f"CaptureSet({len(self)}: {', '.join(self.names)})"

    @property
    def table(self) -> pd.DataFrame:
        """One row per capture: case, target, chip, provenance, jobs, buffers."""
        import pandas as pd

        return pd.DataFrame([(c.name, c.target, c.chip, c.provenance, len(c.jobs), ", ".join(c.buffers))
                             for c in self.captures],
                            columns=["case", "target", "chip", "provenance", "jobs", "buffers"])


def _written(registers: RegisterMap, state: Mapping[int, int]) -> Iterator[tuple[str, Field, int]]:
    """Fields of the registers that were written; one automatic field where the map has no register."""
    block, index = registers.registers[0][0], _index(registers)
    raw = registers.decode(_spread(registers, state), raw=True)
    for offset, value in state.items():
        if offset not in index:
            yield block, Field.whole_word(block, f"{offset:#06x}"), value
        else:
            for item in registers:
                if item.pieces[0].word == index[offset]:
                    yield block, item, raw[registers.key(item)]


def _index(registers: RegisterMap) -> dict[int, int]:
    """The map's word of each offset."""
    return {offset: i for i, (_, offset, _) in enumerate(registers.registers)}


def _spread(registers: RegisterMap, state: Mapping[int, int]) -> np.ndarray:
    """The map's words, as far as they were written."""
    words, index = np.zeros(len(registers), np.uint32), _index(registers)
    for offset, value in state.items():
        if offset in index:
            words[index[offset]] = value
    return words
