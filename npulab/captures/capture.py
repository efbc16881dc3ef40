"""A capture, the record of one run of an NPU, and a set of captures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy import ndarray as Array

from npulab.captures.records import Records, records_of
from npulab.captures.streams import rewritten
from npulab.captures.writes import place_of_write
from npulab.registers.commands import contradiction, opcodes
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field
from npulab.registers.map import RegisterMap, pairs_of
from npulab.registers.values import FieldValues
from npulab.support.late import pd
from npulab.support.refuse import need, need_all, need_whole, refuse_if, shortly

# Texts of capture.json that say where a capture comes from. Each is a field of Capture and of
# captures.sweep.Sweep; dumps, folders, sweeps and listings read the names here.
TEXTS = ("provenance", "source", "tool", "date")
# The field of Capture, and key of capture.json, that says where the output comes from. If that is
# where the words come from, the field is "" and capture.json has no such key.
OUTPUT_TEXT = "output_provenance"
# Where words and outputs come from: the text in capture.json, and whose answer it is. Only
# "simulated" is npulab's own answer.
PROVENANCES = {
    "board": "the NPU itself",
    "vendor driver": "the vendor's driver, without a look at what the NPU did",
    "open driver": "a driver of others, such as Mesa's",
    "compiler": "a vendor's compiler: the words that it writes",
    "RTL simulation": "the hardware's own description, simulated cycle by cycle",
    "vendor simulator": "the vendor's simulator: what the vendor means the NPU to do",
    "foreign simulator": "a simulator that nobody here and not the vendor wrote",
    "simulated": "npulab's simulated device, which proves nothing about the world",
}
FIELD_COLUMNS = ("task", "block", "register", "field", "raw", "value", "bits", "evidence")
ROWS_SHOWN = 60
CHANGED = "changed with npulab"
WORD = 2**WORD_BITS - 1  # the largest 32-bit word: all its bits are set
MOST_OFFSET = 2**64 - 1
# The most levels of ``start``: a job's ``start`` is a job that may have a ``start`` of its own.
# Recorded jobs have at most 2 levels.
MOST_STARTS = 16
A_MAP = "is a RegisterMap, as capture.maps[block]"
# The parameter of a capture that says when its output was recorded, and the parameter's value for
# an output that was recorded before the job ran.
RECORDED, BEFORE_RUN = "output_recorded", "before the job ran"
# The parameter of a capture that lists what its jobs ask the NPU between register writes: polls,
# reads, interrupts. Its rows are in the order of the trace. A row has at least ``task`` (the job's
# number from 0), ``writes`` (how many of the job's writes come before), ``statement`` (what is
# done), ``of`` (the register or interrupt), and ``arguments`` (of the statement).
WAITS = "waits"
# The parameter of a capture with one job that lists the registers that were read. A row has
# ``address`` and ``value`` as texts, and ``writes``: how many of the job's writes come before.
READS = "reads"
# The most levels to which lists and mappings may be nested in the value of a parameter.
MOST_DEEP = 64
# The name of the buffer that holds a recorded command stream.
COMMANDS = "commands"

Writes = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work given to an NPU.

    ``words`` is the parameter block ``(W,) uint32``. If the block is programmed by register writes,
    ``writes`` has a pair (byte offset, value that the register then holds) for each write, in the
    order of the writes, and ``words`` is the state that the writes leave in the registers of the
    block's map. ``start`` is a job whose writes hand this job's parameter block to the NPU; it
    counts as part of the same task.

    ``before`` has a pair (offset, value) for each register that an earlier job set and that may
    still hold that value. ``masks`` has the mask of the changed bits for each write that changes
    only some bits of its register, by the number of the write from 0. ``unit`` names the copy of
    the block that does the work; ``label`` names the work, and jobs of one label are shown
    together.
    """

    block: str
    words: Array
    writes: Writes = ()
    start: Job | None = None
    before: Writes = ()
    masks: Mapping[int, int] = field(default_factory=dict)
    label: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        words = np.asarray(self.words)
        whole = words.ndim == 1 and words.dtype.kind in "iu"
        fits = words.dtype == np.uint32 or (
            whole and not (np.any(words < 0) or np.any(words > WORD))
        )
        if not whole or not fits:
            raise ValueError(
                f"words: got {words.dtype} of shape {words.shape}, allowed are whole numbers from "
                f"0 to 0xffffffff in one row (block {self.block})"
            )
        words = words.astype(np.uint32)
        words.setflags(write=False)
        object.__setattr__(self, "words", words)
        need("Job: start", self.start, (Job, type(None)), "is a Job")
        depth, inner = 0, self.start
        while inner is not None and depth <= MOST_STARTS:
            depth, inner = depth + 1, inner.start
        if depth > MOST_STARTS:
            raise ValueError(
                f"start: got jobs nested more than {MOST_STARTS} deep, allowed is a depth "
                f"of {MOST_STARTS} (block {self.block})"
            )

    @classmethod
    def from_writes(
        cls,
        block: str,
        writes: Iterable[Sequence[int]],
        registers: RegisterMap,
        after: Job | None = None,
    ) -> Job:
        """A job from its register writes. A write (offset, value) sets the whole register; a write
        (offset, value, mask) changes only the bits that are 1 in the mask.

        So (offset, bits, bits) sets bits and (offset, 0, bits) clears bits. A register without a
        write holds the value that the job ``after`` left, or 0. Raises ValueError for an offset of
        more than 64 bits, for a value or mask of more than 32 bits, and for negative numbers.
        """
        need("Job.from_writes: registers", registers, RegisterMap, A_MAP)
        need("Job.from_writes: after", after, (Job, type(None)), "is a Job")
        writes = pairs_of("Job.from_writes: writes", writes)
        before: Writes = ()
        if after:
            before = tuple(after.state.items())
        held, masks = _resolved(writes, dict(before), block)
        done = tuple((int(offset), int(value)) for offset, value in held)
        for offset, value in done:
            if not 0 <= offset <= MOST_OFFSET or not 0 <= value <= WORD:
                raise ValueError(
                    f"writes: got ({offset:#x}, {value:#x}), allowed are values of 0 to "
                    f"{WORD:#x} at offsets of at most 64 bits (block {block})"
                )
        return cls(block, registers.state(before + done), done, before=before, masks=masks)

    @classmethod
    def split(
        cls,
        writes: Iterable[Sequence[int]],
        maps: Mapping[str, RegisterMap] | RegisterMap,
        after: Iterable[Job] = (),
    ) -> tuple[list[Job], list[tuple[int, ...]]]:
        """Return the jobs that writes to addresses make, and the writes to addresses that no block
        has.

        Each copy of a block to which something is written is one job; jobs are in the order of
        their first writes. ``writes`` have the form that ``from_writes`` takes. ``maps`` are
        register maps by block name, or one map of one block. A job has the ``unit`` and the
        ``label`` that the map gives to the copy of the block. A register without a write holds the
        value that the last job in ``after`` left on the same copy of the block; if copies have no
        names, the last job of the block counts.
        """
        if isinstance(maps, RegisterMap):
            maps = {maps.registers[0][0]: maps}
        need_maps("Job.split: maps", maps)
        after = need_all("Job.split: after", after, Job, "are Jobs in a list")
        found: dict[tuple[str, str, str], list[Sequence[int]]] = {}
        rest: list[tuple[int, ...]] = []
        for address, *value in pairs_of("Job.split: writes", writes):
            holders = [name for name, registers in maps.items() if registers.holds(address)]
            if not holders:
                rest.append((address, *value))
                continue
            name = holders[0]
            place = maps[name].place(address)
            found.setdefault((name, *maps[name].labels(place)), []).append((place.offset, *value))
        jobs = []
        for (name, unit, label), own in found.items():
            last = None
            for job in after:
                if job.block == name and unit in ("", job.unit) and label in ("", job.label):
                    last = job
            jobs.append(
                replace(cls.from_writes(name, own, maps[name], last), unit=unit, label=label)
            )
        return jobs, rest

    @property
    def name(self) -> str:
        """The label and the unit, with a comma between them if the job has both; "" if it has
        neither."""
        return ", ".join(filter(None, [self.label, self.unit]))

    @property
    def state(self) -> dict[int, int]:
        """The values that written registers hold after the job, by offset in bytes. Registers that
        only an earlier job wrote (``before``) are included."""
        return dict([*self.before, *self.writes])

    def read_with(self, registers: RegisterMap) -> Job:
        """The same job read with another map: its register writes stay, and its words become the
        state that the writes leave in the registers of that map.
        """
        need("read_with", registers, RegisterMap, A_MAP)
        return replace(self, words=registers.state([*self.before, *self.writes]))

    def with_words(self, words: Any, registers: RegisterMap) -> Job:
        """The same job with other words; if the job has register writes, the writes that set the
        changed words change too.

        Raises ValueError if the number of words is not that of the job.
        """
        need("with_words: registers", registers, RegisterMap, A_MAP)
        changed = replace(self, words=words)
        if changed.words.shape != self.words.shape:
            raise ValueError(
                f"words: got shape {changed.words.shape}, allowed is {self.words.shape} "
                f"(block {self.block})"
            )
        if not self.writes:
            return changed
        values = {}
        for word in np.flatnonzero(changed.words != self.words):
            values[registers.registers[word][1]] = int(changed.words[word])
        return self.with_writes(values, registers)

    def with_writes(self, values: Mapping[int, int], registers: RegisterMap) -> Job:
        """The same job with changed writes, so that registers hold given values (by offset in
        bytes) after the job.

        If a register has writes, the last of them changes. Else the register gets a new write: just
        before the write that starts the register's unit, or at the end if no write starts a unit.
        """
        need("with_writes: values", values, Mapping, "are values by offset")
        need("with_writes: registers", registers, RegisterMap, A_MAP)
        pairs_of("with_writes: values", values.items())
        last = {offset: number for number, (offset, _) in enumerate(self.writes)}
        offsets = [offset for offset, _ in self.writes]
        # the new writes, by the number of the old write in front of which they are put
        new: dict[int, list[tuple[int, int]]] = {}
        for offset, value in values.items():
            if offset not in last:
                place = place_of_write(offset, offsets, registers)
                new.setdefault(place, []).append((offset, value))
        writes, masks = list[tuple[int, int]](), dict[int, int]()
        for number, (offset, old) in enumerate(self.writes):
            writes += new.get(number, [])
            value = old
            if last[offset] == number:
                value = values.get(offset, old)
            # a changed write keeps its mask only if the changed bits all lie inside the mask
            mask = self.masks.get(number)
            if mask is not None and not (value ^ old) & ~mask:
                masks[len(writes)] = mask
            writes.append((offset, value))
        writes += new.get(len(self.writes), [])
        checked = Job.from_writes(self.block, writes, registers).writes
        return replace(self, writes=checked, masks=masks).read_with(registers)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Job)
            and self.block == other.block
            and self.writes == other.writes
            and np.array_equal(self.words, other.words)
            and self.start == other.start
            and (self.before, self.masks) == (other.before, other.masks)
            and (self.label, self.unit) == (other.label, other.unit)
        )

    def __repr__(self) -> str:
        writes = ""
        if self.writes:
            writes = f", {len(self.writes)} writes"
        name = "".join(f", {text}" for text in (self.name, self.start or "") if text)
        return f"Job({self.block}, {len(self.words)} words{writes}{name})"

    def values(self, maps: Mapping[str, RegisterMap]) -> list[tuple[str, Field, int]]:
        """A tuple (block, field, raw value) for every field of the job, and then for every field of
        the job ``start``.

        If the job has register writes, only fields of written registers are included. ``maps`` are
        register maps by block name; raises LookupError if the job's block is not among them.
        """
        need_maps("values", maps)
        if self.block not in maps:
            raise LookupError(
                f"block: got {self.block!r}, maps are known for {', '.join(maps) or 'none'}"
            )
        registers = maps[self.block]
        raw = registers.decode(self.words, raw=True).values()
        state = self.state
        written = {registers.index[offset] for offset in state if offset in registers.index}
        values = []
        for item, number in zip(registers.fields_in(self.words), raw, strict=True):
            if not state or any(piece.word in written for piece in item.pieces):
                values.append((item.block, item, number))
        for offset, value in state.items():
            if offset not in registers.index:
                values.append((self.block, registers.unmapped(self.block, offset), value))
        if self.start:
            values += self.start.values(maps)
        return values


@dataclass(frozen=True)
class Capture:
    """One recorded run: its jobs, its buffers and their addresses, and the texts that say where the
    record comes from.

    ``buffers`` are bytes by name (``coefficients``, ``input``, ``output``, ...), ``addresses`` are
    the buffers' addresses by the same names, and ``parameters`` are the known parameters of the
    layer by name. ``provenance`` is a key of ``PROVENANCES`` and says where the words come from.
    ``output_provenance`` is "" if the buffer ``output`` comes from the same place; else it is
    another key, for example if a simulator ran a compiler's words. ``maps`` are the register maps
    by block with which the words are read. ``folder`` is the case folder that holds the capture; it
    is None if the capture was changed or not saved.

    Raises ValueError if a job's opcode (``registers.commands``) names another block than the job
    does, and if a job's words are not the state that its register writes leave.
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
    output_provenance: str = ""
    maps: Mapping[str, RegisterMap] = field(default_factory=dict, repr=False, compare=False)
    folder: Path | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        need_all("Capture: jobs", self.jobs, Job, "is a tuple of Jobs")
        for name in ("buffers", "addresses", "parameters"):
            need(f"Capture: {name}", getattr(self, name), Mapping, "are some by name, a dict")
        for name, data in self.buffers.items():
            need(f"Capture: buffer {name}", data, (bytes, bytearray, memoryview), "are bytes")
        need_maps("Capture: maps", self.maps)
        for name, none in ((TEXTS[0], ()), (OUTPUT_TEXT, ("",))):
            text = getattr(self, name)
            if not isinstance(text, str) or text not in (*PROVENANCES, *none):
                raise ValueError(
                    f"capture {self.name}: got {name} {text!r}, allowed is one of "
                    f"{', '.join(PROVENANCES)}"
                )
        self._refuse_contradictions()
        parameters = {
            str(name): _as_json(value, f"capture {self.name}: parameters: {name}")
            for name, value in self.parameters.items()
        }
        object.__setattr__(self, "parameters", parameters)

    def _refuse_contradictions(self) -> None:
        """Raise ValueError for a job whose opcode names another block than its own, and for a job
        whose words are not the state that its register writes leave."""
        several = len(self.maps) > 1 and bool(opcodes(self.maps))
        for task, job in enumerate(self.jobs):
            part: Job | None = job
            while part is not None:
                wrong = ""
                if several:
                    wrong = contradiction(part.block, part.words, self.maps)
                wrong = wrong or _unlike_writes(part, self.maps.get(part.block))
                if wrong:
                    raise ValueError(f"capture {self.name}: task {task}: {wrong}")
                part = part.start

    @property
    def simulated(self) -> bool:
        """True if npulab's own device computed the words or the output."""
        return "simulated" in (self.provenance, self.output_provenance)

    @property
    def changed(self) -> bool:
        """True if npulab changed the capture after it was recorded."""
        return CHANGED in self.tool

    @property
    def before_run(self) -> bool:
        """True if the output was recorded before the job ran: the parameter ``output_recorded``
        says so, and npulab did not change the capture."""
        return self.parameters.get(RECORDED) == BEFORE_RUN and not self.changed

    @property
    def origin(self) -> str:
        """The provenance of the words, then the provenance of the output if that is another, then
        "changed" if npulab changed the capture, with commas between."""
        parts = [self.provenance]
        if self.output_provenance not in ("", self.provenance):
            parts.append(f"output of {self.output_provenance}")
        if self.changed:
            parts.append("changed")
        return ", ".join(parts)

    @property
    def main(self) -> int:
        """The number of the main job, whose words stand for the capture: the first job of the block
        that is the first of ``maps``, or job 0 if there is none. Jobs that move tensors may come
        before the main job."""
        first = next(iter(self.maps), None)
        blocks = [job.block for job in self.jobs]
        if first in blocks:
            return blocks.index(first)
        return 0

    @property
    def words(self) -> Array:
        """The words of the main job's parameter block, ``(W,) uint32``."""
        return self.jobs[self.main].words

    def words_of(self, block: str) -> Array:
        """The words of all jobs of a block, ``(J, W) uint32``: a row for each job. Raises
        LookupError if the capture has no job of the block, ValueError if jobs differ in length.
        """
        return CaptureSet((self,)).words_of(block)

    @property
    def values(self) -> FieldValues:
        """The values of the main job's fields, scaled and named as the map says, not raw.

        The keys are full names ``block.register.field``. A shorter name finds a value too if only
        one field has it; if several fields have it, LookupError names them.
        """
        registers = self.maps[self.jobs[self.main].block]
        return FieldValues(registers, registers.decode(self.words))

    @cached_property
    def records(self) -> dict[str, Records]:
        """The records in the buffers, by the buffer's name. The maps say which buffer holds records
        of which block; other buffers are not included."""
        return records_of(self.buffers, self.maps)

    @property
    def fields(self) -> pd.DataFrame:
        """A table with one row for each field of every job: task (the job's number from 0), block,
        register, field, raw, value, bits, evidence."""
        from npulab.registers.shown import ADDRESSES, Table

        rows, addresses = [], set()
        for task, job in enumerate(self.jobs):
            for block, item, raw in job.values(self.maps):
                names = block, item.register, item.name
                rows.append((task, *names, raw, item.text(raw), item.bits, item.evidence))
                if item.address:
                    addresses.add(names)
        frame = Table(rows, columns=list(FIELD_COLUMNS)).astype({"raw": object, "value": object})
        frame.attrs[ADDRESSES] = frozenset(addresses)
        return frame

    def with_job(self, job: Job, task: int = 0) -> Capture:
        """The same capture with ``job`` in place of the job with the number ``task``; the new
        capture counts as changed.

        If register writes changed, the buffer with the recorded command stream is left out. If
        only words changed, a buffer that holds the words of all jobs is rewritten, so that a device
        that runs the buffer runs the new job. Raises LookupError if the capture has no such task.
        """
        need("with_job", job, Job, "is a Job, as capture.jobs has")
        task = self.task_of(task)
        return self.with_jobs((*self.jobs[:task], job, *self.jobs[task + 1 :]))

    def with_jobs(self, jobs: Iterable[Job]) -> Capture:
        """The same capture with other jobs, also with more or fewer jobs; the new capture counts as
        changed.

        Buffers that hold the jobs are left out or rewritten as in ``with_job``. A buffer that holds
        the jobs' words with gaps between jobs is left out if the number or the lengths of the jobs
        changed.
        """
        jobs = tuple(need_all("with_jobs", jobs, Job, "are Jobs, as capture.jobs has"))
        if _sent(jobs) == _sent(self.jobs):
            return self._changed(jobs=jobs, buffers=rewritten(self.jobs, jobs, self.buffers))
        buffers = {name: data for name, data in self.buffers.items() if name != COMMANDS}
        return self._changed(jobs=jobs, buffers=buffers)

    def with_words(self, words: Any, task: int | None = None) -> Capture:
        """The same capture with other words in one job, by default the main job; the new capture
        counts as changed.

        Raises LookupError if the capture has no such task, and ValueError if the number of words is
        not that of the job.
        """
        task = self.task_of(task)
        job = self.jobs[task]
        return self.with_job(job.with_words(words, self.maps[job.block]), task)

    def with_fields(self, task: int | None = None, **values: Any) -> Capture:
        """The same capture with other values in some fields of one job, by default the main job;
        the new capture counts as changed.

        ``values`` are scaled as the map says, by field name. Raises LookupError for an unknown
        field or task, ValueError for a value that does not fit and for a read-only field.
        """
        task = self.task_of(task)
        registers = self.maps[self.jobs[task].block]
        for name, value in values.items():
            item = registers[name]
            where = f"register {item.register} field {item.name}"
            refuse_if(np.ndim(value), where, shortly(value), "is one value")
        return self.with_words(registers.with_values(self.jobs[task].words, values), task)

    def with_buffers(self, **buffers: bytes | Array) -> Capture:
        """The same capture with other contents in the named buffers; the new capture counts as
        changed.

        A buffer's contents are bytes or an array of one-byte integers; raises TypeError for
        anything else.
        """
        new = {name: _bytes_of(name, data) for name, data in buffers.items()}
        return self._changed(buffers={**self.buffers, **new})

    def with_records(self, buffer: str, index: Any, **values: Any) -> Capture:
        """The same capture with other values in some fields of records in a buffer; the new
        capture counts as changed.

        ``index`` says which records change: the number of one record, or a slice, a list of numbers
        or a mask, as in ``Records.with_fields``. Raises LookupError for a buffer without records
        and for an unknown field or record, ValueError for a value that does not fit and for a
        read-only field.
        """
        if buffer not in self.records:
            raise LookupError(
                f"capture {self.name}: got buffer {buffer!r}, allowed are buffers with records: "
                f"{', '.join(self.records) or 'none'}"
            )
        return self.with_buffers(**{buffer: self.records[buffer].with_fields(index, **values)})

    def task_of(self, task: int | None) -> int:
        """The given task number as an int; for None the number of the main job. Raises LookupError
        if the capture has no such task."""
        if task is None:
            return self.main
        need_whole(f"capture {self.name}: task", task)
        if not 0 <= task < len(self.jobs):
            raise LookupError(
                f"capture {self.name}: got task {task}, it has 0 to {len(self.jobs) - 1}"
            )
        return int(task)

    def _changed(self, **parts: Any) -> Capture:
        if all(getattr(self, name) == value for name, value in parts.items()):
            return self
        tool = self.tool
        if not self.changed:
            tool = ", ".join(filter(None, (tool, CHANGED)))
        return replace(self, **parts, folder=None, tool=tool)

    def __repr__(self) -> str:
        jobs = f"{len(self.jobs)} job"
        if len(self.jobs) > 1:
            jobs += "s"
        buffers = [f"{name} {len(data)} B" for name, data in self.buffers.items()]
        parts = [f"{self.target}/{self.name}", self.chip, self.origin, jobs, *buffers]
        return f"Capture({', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = {
            "chip": self.chip,
            "provenance": self.origin,
            "source": self.source,
            "tool": self.tool,
            "date": self.date,
            "jobs": ", ".join(map(repr, self.jobs)),
        }
        rows |= {f"buffer {name}": f"{len(data)} bytes" for name, data in self.buffers.items()}
        rows |= {f"address {name}": f"{where:#010x}" for name, where in self.addresses.items()}
        body = ""
        for name, value in rows.items():
            if value:
                body += (
                    f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
                    f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
                )
        return f"<b>{html.escape(self.target)}/{html.escape(self.name)}</b><table>{body}</table>"


def _unlike_writes(job: Job, registers: RegisterMap | None) -> str:
    """A sentence on the first word of a job that differs from the state that the job's register
    writes leave.

    The text is "" if no word differs. It is also "" if nothing can be compared: the job has no
    writes, its map is not known, or the map has another number of words than the job.
    """
    if not job.writes or registers is None or len(registers) != len(job.words):
        return ""
    state = registers.state([*job.before, *job.writes])
    wrong = np.flatnonzero(state != job.words)
    if not len(wrong):
        return ""
    first = int(wrong[0])
    block, offset = registers.registers[first][:2]
    return (
        f"words: got {int(job.words[first]):#x} at offset {offset:#x} of block {block}, allowed is "
        f"{int(state[first]):#x}, which the job's register writes leave; Job.from_writes gives "
        "words from writes"
    )


@dataclass(frozen=True)
class CaptureSet:
    """Captures in a fixed order. ``captures[key]`` takes a number, a slice, or a capture's name
    (``target/name`` if captures of two targets have one name).
    """

    captures: tuple[Capture, ...]

    def __post_init__(self) -> None:
        allowed = "is a tuple of Captures, as npulab.load gives"
        need("CaptureSet", self.captures, (list, tuple), allowed)
        for capture in self.captures:
            need("CaptureSet", capture, Capture, "is a Capture, as npulab.load gives")

    @property
    def names(self) -> list[str]:
        return [capture.name for capture in self.captures]

    @property
    def words(self) -> Array:
        """The words of the main job of each capture, ``(N, W) uint32``; raises ValueError if the
        main jobs differ in target, block or length.
        """
        kinds = {(c.target, c.jobs[c.main].block, len(c.words)) for c in self.captures}
        if len(kinds) != 1:
            raise ValueError(
                f"words: got main jobs of {len(kinds)} kinds (target, block, number of words) "
                f"{sorted(kinds)}, allowed is one kind"
            )
        return np.stack([capture.words for capture in self.captures])

    def words_of(self, block: str) -> Array:
        """The words of every job of a block, ``(J, W) uint32``: the jobs of the first capture, then
        the jobs of the next capture, and so on.

        Raises LookupError if no capture has a job of the block, ValueError if the jobs differ in
        length.
        """
        need("words_of", block, str, "is the name of a block")
        jobs = [job for capture in self.captures for job in capture.jobs]
        own = [job.words for job in jobs if job.block == block]
        if not own:
            raise LookupError(
                f"block: got {block!r}, the jobs are of "
                f"{', '.join(dict.fromkeys(job.block for job in jobs)) or 'none'}"
            )
        if len({len(words) for words in own}) > 1:
            raise ValueError(
                f"block {block}: got jobs of {sorted(set(map(len, own)))} words, allowed is "
                "one length"
            )
        return np.stack(own)

    def __len__(self) -> int:
        return len(self.captures)

    def __iter__(self) -> Iterator[Capture]:
        return iter(self.captures)

    @overload
    def __getitem__(self, which: int | str) -> Capture: ...

    @overload
    def __getitem__(self, which: slice) -> CaptureSet: ...

    def __getitem__(self, which: int | str | slice) -> Capture | CaptureSet:
        if isinstance(which, slice):
            return CaptureSet(self.captures[which])
        if not isinstance(which, str):
            need_whole("captures", which, "is a number, a name or a slice")
            if not -len(self) <= which < len(self):
                raise IndexError(f"captures: got {which}, allowed is 0 to {len(self) - 1}")
            return self.captures[which]
        found = {}
        for number, capture in enumerate(self.captures):
            name = f"{capture.target}/{capture.name}"
            if which in (capture.name, name):
                found[number] = name
        if len(found) != 1:
            names = [*found.values()] or self.names
            raise LookupError(
                f"captures: got case {which!r}, there are {', '.join(names) or 'none'}"
            )
        return self.captures[next(iter(found))]

    def _ipython_key_completions_(self) -> list[str]:
        return self.names

    def __repr__(self) -> str:
        return f"CaptureSet({len(self)}: {', '.join(self.names)})"

    @property
    def table(self) -> pd.DataFrame:
        """A table with one row for each capture: case, target, chip, provenance, jobs (their
        number), buffers (their names)."""
        from npulab.registers.shown import Table

        return Table(
            [
                (c.name, c.target, c.chip, c.origin, len(c.jobs), ", ".join(c.buffers))
                for c in self.captures
            ],
            columns=["case", "target", "chip", "provenance", "jobs", "buffers"],
        )


def _sent(jobs: Iterable[Job]) -> list[tuple[Writes, Job | None]]:
    """The writes and the ``start`` of each job that has at least one of them: the parts of jobs
    that a recorded command stream holds."""
    return [(job.writes, job.start) for job in jobs if job.writes or job.start]


def is_records(value: Any) -> bool:
    """True if a parameter's value is a list that is not empty and holds only mappings, such as a
    list of tensors' descriptions."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, Mapping) for x in value)


def need_maps(what: str, given: object) -> None:
    """Raise TypeError if ``given`` is not a mapping from block names to RegisterMaps; ``what``
    names the value in the error."""
    need(what, given, Mapping, "are RegisterMaps by block, as npulab.target(name).maps(chip) gives")
    for registers in given.values():  # type: ignore[attr-defined]  # it is a mapping
        need(what, registers, RegisterMap, A_MAP)


def _bytes_of(name: str, data: object) -> bytes:
    """A buffer's contents as bytes, from bytes or from an array of one-byte integers; raises
    TypeError for anything else."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, Array) and data.dtype.kind in "iu" and data.itemsize == 1:
        return data.tobytes()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    got = shortly(data)
    if isinstance(data, Array):
        got = f"an array of {data.dtype}"
    raise TypeError(f"buffer {name}: got {got}, allowed are bytes, or an array of uint8 or int8")


def word_writes(writes: Iterable[tuple[int, int]], bits: int) -> list[tuple[int, int, int]]:
    """Turn writes of ``bits`` bits (8, 16, 64, ...) into writes (offset, value, mask) of 32-bit
    words, as ``Job.from_writes`` and ``Job.split`` take them.

    The given writes are (byte offset, value), little-endian; an offset need not be a multiple of 4.
    Raises ValueError for a value that is negative or needs more than ``bits`` bits.

    >>> [tuple(map(hex, write)) for write in word_writes([(0x1002, 0xABCD)], 16)]
    [('0x1000', '0xabcd0000', '0xffff0000')]
    """
    out = []
    for offset, value in writes:
        if not 0 <= value < 2**bits:
            raise ValueError(
                f"writes: got ({offset:#x}, {value:#x}), allowed are values of {bits} bits"
            )
        unit = 2 ** (8 * (offset % WORD_BYTES))
        start, rest, mask = offset - offset % WORD_BYTES, value * unit, (2**bits - 1) * unit
        while mask:
            out.append((start, rest & WORD, mask & WORD))
            start, rest, mask = start + WORD_BYTES, rest // (WORD + 1), mask // (WORD + 1)
    return out


def _resolved(
    writes: Iterable[Sequence[int]],
    state: dict[int, int],
    block: str,
) -> tuple[list[Sequence[int]], dict[int, int]]:
    """Return a pair (offset, value that the register then holds) for each write, and the masks of
    the writes that change only some bits of a register, by the number of the write from 0.

    ``state`` has the value of each register before the writes, by offset, and is changed to the
    values after the writes.
    """
    out, masks = list[Sequence[int]](), dict[int, int]()
    for number, (offset, value, *mask) in enumerate(writes):
        if any(not 0 <= bits <= WORD for bits in mask):
            raise ValueError(
                f"writes: got mask {mask[0]:#x} at offset {offset:#x}, allowed are masks from 0 to "
                f"{WORD:#x} (block {block})"
            )
        if mask and mask[0] != WORD:
            masks[number] = bits = int(mask[0])
            value = state.get(offset, 0) & ~bits | value & bits
        state[offset] = value
        out.append((offset, value))
    return out, masks


def _as_json(value: Any, where: str, depth: int = 1) -> Any:
    """A value as it would come back from JSON: arrays and tuples are lists, keys are texts. Raises
    ValueError for lists and mappings that are nested more than 64 deep.
    """
    if isinstance(value, np.generic | Array):
        value = value.tolist()
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > MOST_DEEP:
        raise ValueError(
            f"{where:.120}: got lists or mappings nested more than {MOST_DEEP} deep, allowed "
            f"is a depth of {MOST_DEEP}"
        )
    if isinstance(value, Mapping):
        return {str(name): _as_json(inner, where, depth + 1) for name, inner in value.items()}
    return [_as_json(inner, where, depth + 1) for inner in value]
