"""Roles: what a job is in its stream, the same over captures.

Streams of one driver are alike: the third LOAD does in each capture what it does in the others. The
jobs of a sweep are put beside each other in three steps.

1. *Kinds.* Jobs of one block are of several kinds if a field with few values divides them so that
   the other fields become plainer: a LOAD of inputs and a LOAD of weights.
2. *Runs.* A unit of kinds that comes several times in a row (a layer in stripes) stands once.
3. *Columns.* The streams without repeated units are merged into one stream, in order, by their
   longest common subsequences. A place in the merged stream is a role. A capture has as many jobs
   of a role as its run is long.

A job with a label, or a name that the caller gives, is of the kind of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy import ndarray as Array

from npulab.captures.aligned import cheapest
from npulab.captures.capture import Capture, CaptureSet, Job
from npulab.captures.sweep import Sweep, sweep_of, sweep_of_jobs
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap
from npulab.support.late import pd
from npulab.support.refuse import near, need, need_all, refuse_if
from npulab.support.text import plural

MOST_KINDS = 8  # a field with more than ``MOST_KINDS`` values divides no jobs (assumed)
MOST_SAMPLED = 2000  # ``MOST_SAMPLED`` jobs of a block choose the dividing field, in 50 ms.
# A division into kinds saves more than the share ``LEAST_SAVED`` of the bits of a block's jobs
# (assumed).
LEAST_SAVED = 0.1
# More than the share ``LEAST_OWN`` of a dividing field's bits varies within single captures
# (assumed).
LEAST_OWN = 0.5
MOST_PERIOD = 64  # a unit that comes several times in a row has at most ``MOST_PERIOD`` jobs
# Names of the columns that ``Roles.sweep`` adds to the parameters.
INDEX, COUNT = "place_in_run", "length_of_run"
FIRST, LAST = "first_of_run", "last_of_run"
# The block and the name of the sweep that ``Roles.presence`` returns.
ROLES, PRESENCE = "ROLES", "presence"
# A function that returns the kind of a job, "" if unknown, from its capture and its task.
Name = Callable[[Capture, int], str]


@dataclass(frozen=True)
class Role:
    """What a job is in a stream. ``block`` is the block of the role's jobs, ``captures`` and
    ``jobs`` count the captures and jobs that have the role, and ``most`` is the largest number of
    jobs of this role in one capture."""

    name: str
    block: str
    captures: int
    jobs: int
    most: int


@dataclass(frozen=True, eq=False)
class Roles:
    """The jobs of captures by role.

    ``names`` are the names of the roles, in the order of the streams. The arrays ``(J,)`` have an
    element for each of the J jobs of all captures, numbered from 0: ``of`` is the number of the
    job's role in ``names``, ``capture`` that of its capture, ``task`` that of the job in the
    capture. ``counts`` is how many jobs of this role the capture has, and ``index`` the job's place
    among them, from 0 on.
    """

    captures: CaptureSet
    names: tuple[str, ...]
    of: Array
    capture: Array
    task: Array
    index: Array
    counts: Array

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """A row for each role, in the order of the streams."""
        found = []
        for number, name in enumerate(self.names):
            mine = np.flatnonzero(self.of == number)
            each = np.bincount(self.capture[mine])
            first = self.captures[int(self.capture[mine[0]])].jobs[self.task[mine[0]]]
            held = int(np.count_nonzero(each))
            found.append(Role(name, first.block, held, len(mine), int(each.max())))
        return tuple(found)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each role, with the fields of ``Role`` as columns: role, block, captures,
        jobs, most."""
        frame = pd.DataFrame(self.roles, columns=list(Role.__dataclass_fields__))
        return frame.rename(columns={"name": "role"})

    def number(self, role: str) -> int:
        """The place of a role in ``names``; raises LookupError, which lists the names, for an
        unknown role."""
        need("role", role, str, "is the name of a role, as the table has it")
        if role not in self.names:
            raise LookupError(
                f"role: got {role!r}, allowed are {', '.join(self.names)}{near(role, self.names)}"
            )
        return self.names.index(role)

    def name_of(self, capture: int, task: int) -> str:
        """The name of a job's role, by the number of its capture and its task."""
        found = np.flatnonzero((self.capture == capture) & (self.task == task))
        refuse_if(not len(found), "task", f"capture {capture}, task {task}", "is that of a job")
        return self.names[self.of[found[0]]]

    def of_block(self, block: str) -> list[str]:
        """The names of a block's roles; raises LookupError, which lists the blocks, for an unknown
        block."""
        found = [role.name for role in self.roles if role.block == block]
        if not found:
            blocks = dict.fromkeys(role.block for role in self.roles)
            raise LookupError(
                f"block: got {block!r}, allowed are {', '.join(blocks)}{near(block, blocks)}"
            )
        return found

    def chosen(self, role: str | None = None, block: str | None = None) -> str:
        """``role`` if it is given, or else the only role of ``block``; raises LookupError, which
        lists what is allowed, for an unknown name and for a block of several roles."""
        if role is not None:
            return self.names[self.number(role)]
        need("block", block, str, "is the name of a block")
        found = self.of_block(str(block))
        if len(found) > 1:
            raise LookupError(
                f"block: got {block}, which has the roles {', '.join(found)}, allowed is a block "
                "with one role; role= or --role takes one of them"
            )
        return found[0]

    def sweep(self, role: str, place: int | None = None, name: str | None = None) -> Sweep:
        """The words of all jobs of a role, a row for each, with the parameters of their captures.

        The jobs of a role in one capture are its run. With ``place``, only the jobs at this place
        of their run are taken (from 0 on, -1 is the last). If a run has several jobs, the columns
        ``place_in_run`` (from 0 on), ``length_of_run``, ``first_of_run`` and ``last_of_run`` (0 or
        1) say where each job is. ``name`` is the sweep's name, by default the role. Raises
        LookupError for an unknown role, and for a place that no run has.
        """
        here = self.of == self.number(role)
        most = self.counts[here].max()
        label = role
        if place is not None:
            here &= self.index == np.where(place < 0, self.counts + place, place)
            label = f"{role} at place {place}"
        mine = np.flatnonzero(here)
        if not len(mine):
            first = -most
            raise LookupError(f"place: got {place}, allowed in {role} is {first} to {most - 1}")
        jobs = list(zip(self.capture[mine].tolist(), self.task[mine].tolist(), strict=True))
        if name is None:
            name = role
        found = sweep_of_jobs(self.captures.captures, jobs, label, name)
        if most <= 1:
            return found
        return replace(found, parameters=found.parameters.assign(**self.runs(mine)))

    def runs(self, rows: Array) -> dict[str, Array]:
        """The columns of ``sweep`` that say where jobs are in their runs; ``rows`` are the places
        of the jobs in the arrays of this object."""
        index, counts = self.index[rows], self.counts[rows]
        return {
            INDEX: index,
            COUNT: counts,
            FIRST: (index == 0).astype(np.int64),
            LAST: (index == counts - 1).astype(np.int64),
        }

    def presence(self) -> Sweep:
        """A sweep with a word for each role: how many jobs of this role a capture has. Laws of this
        sweep say when a job occurs and how often."""
        words = np.zeros((len(self.captures), len(self.names)), np.uint32)
        np.add.at(words, (self.capture, self.of), 1)
        rows = []
        for number, name in enumerate(self.names):
            row = {"block": ROLES, "offset": 4 * number, "field": name}
            rows.append({**row, "lsb": 0, "width": 32})
        maps = {ROLES: RegisterMap(rows)}
        counted = []
        for capture, counts in zip(self.captures, words, strict=True):
            counted.append(replace(capture, jobs=(Job(ROLES, counts),), maps=maps))
        return sweep_of(counted, PRESENCE)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        jobs = plural(len(self.of), "job")
        return (
            f"Roles({plural(len(self.captures), 'capture')}, {jobs}, {plural(len(self), 'role')})"
        )

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def roles(captures: Iterable[Capture], name: Name | None = None) -> Roles:
    """Find the role of each job of captures: what the job is in its capture's stream of jobs.

    ``name(capture, task)`` returns the kind of a job, or "" if it knows none; by default, a job's
    label is its kind. The kinds of all jobs without a name or label are found from their words.
    Raises ValueError for captures of several targets or chips, and for no captures.
    """
    found = tuple(need_all("roles", captures, Capture, "are captures, as npulab.load_all gives"))
    refuse_if(not found, "roles", "no captures", "is one or more")
    for what in ("target", "chip"):
        several = {str(getattr(capture, what)) for capture in found}
        listed = ", ".join(sorted(several))
        refuse_if(len(several) > 1, "roles", f"{what}s {listed}", f"is one {what}")
    every = []
    for number, capture in enumerate(found):
        for task in range(len(capture.jobs)):
            every.append((number, task))
    kinds = _kinds(found, every, name)
    streams: list[list[str]] = [[] for _ in found]
    for (number, _), kind in zip(every, kinds, strict=True):
        streams[number].append(kind)
    columns, places = _columns(streams)
    counts = Counter(columns)
    names = []
    seen = Counter[str]()
    for kind in columns:
        seen[kind] += 1
        if counts[kind] == 1:
            names.append(kind)
        else:
            names.append(f"{kind} {seen[kind]}")
    return _roles_of(found, every, names, places)


def _roles_of(
    captures: tuple[Capture, ...],
    every: Sequence[tuple[int, int]],
    names: Sequence[str],
    places: Sequence[Array],
) -> Roles:
    of = np.concatenate([np.zeros(0, np.int64), *places])
    capture, task = np.array(every, np.int64).reshape(-1, 2).T
    key = capture * len(names) + of
    order = np.argsort(key, kind="stable")
    _, first, count = np.unique(key[order], return_index=True, return_counts=True)
    index = np.empty(len(key), np.int64)
    counts = np.empty(len(key), np.int64)
    index[order] = np.arange(len(key)) - np.repeat(first, count)
    counts[order] = np.repeat(count, count)
    return Roles(CaptureSet(captures), tuple(names), of, capture, task, index, counts)


# Kinds: how a field divides the jobs of a block


def kinds_of(capture: Capture) -> list[str]:
    """Return the kind of each job of one capture: its block, followed by the value of the field
    that divides the jobs of the block, if there is one. Only fields with names for their values are
    considered; labels of jobs are ignored."""
    every = [(0, task) for task in range(len(capture.jobs))]
    return _kinds((capture,), every, lambda capture, task: "", named=True)


def _kinds(
    captures: Sequence[Capture],
    every: Sequence[tuple[int, int]],
    name: Name | None,
    named: bool = False,
) -> list[str]:
    """Return the kind of each job in ``every`` (number of the capture, task): what ``name`` returns
    for the job, or by default its label; if that is "", the kind from ``_kinds_of_block``."""
    kinds: list[str] = []
    blocks: dict[tuple[str, int], list[int]] = {}
    for place, (number, task) in enumerate(every):
        job = captures[number].jobs[task]
        given = job.label
        if name is not None:
            given = name(captures[number], task)
        kinds.append(given)
        if not given:
            blocks.setdefault((job.block, len(job.words)), []).append(place)
    for (block, _), mine in blocks.items():
        stream = np.empty(len(mine), np.int64)
        words = []
        for row, place in enumerate(mine):
            number, task = every[place]
            stream[row] = number
            words.append(captures[number].jobs[task].words)
        registers = captures[stream[0]].maps.get(block)
        found = _kinds_of_block(block, registers, np.stack(words), stream, named)
        for place, text in zip(mine, found, strict=True):
            kinds[place] = text
    return kinds


def _kinds_of_block(
    block: str,
    registers: RegisterMap | None,
    words: Array,
    stream: Array,
    named: bool = False,
) -> list[str]:
    """Return the kind of each job of a block from its ``words (J, W)`` and the number of its
    capture, ``stream (J,)``; with ``named``, only a field with names for its values can divide the
    jobs."""
    if registers is None:
        return [block] * len(words)
    items = []
    columns = []
    for item, column in zip(registers, registers.decode(words, raw=True).values(), strict=True):
        if named and not item.names:
            continue
        if not item.address and column.min() != column.max():
            items.append(item)
            columns.append(column)
    chosen = _dividing(items, columns, stream)
    if chosen is None:
        return [block] * len(words)
    texts: dict[int, str] = {}
    kinds = []
    for raw in columns[chosen].tolist():
        if raw not in texts:
            text = _text(items[chosen], raw)
            texts[raw] = f"{block} {text}"
        kinds.append(texts[raw])
    return kinds


def _text(item: Field, raw: int) -> str:
    """Return a field's value as part of a role's name: its name, else the field and the number."""
    if item.names:
        return str(item.text(raw))
    return f"{item.name} {item.text(raw)}"


def _dividing(items: Sequence[Field], columns: Sequence[Array], stream: Array) -> int | None:
    """Return the place in ``items`` of the field that divides the jobs of a block into kinds, None
    if no field does.

    The field has 2 to ``MOST_KINDS`` values, and fields with names for their values come first.
    A field saves bits if all other fields vary less among jobs with one value of it. Of several
    fields, the field that saves the largest share of these bits is taken; a field without names
    must save more than ``LEAST_SAVED``. Before that, the share is multiplied by the share of the
    field's own bits that varies within single captures. A field that varies there by at
    most ``LEAST_OWN`` is skipped: with one value in a capture and another in the next, it describes
    the layer, not the job. No field divides if fewer than half of the captures have two or more
    jobs of the block.
    """
    sample = np.linspace(0, len(stream) - 1, min(len(stream), MOST_SAMPLED)).astype(int)
    captures = np.unique(stream[sample], return_inverse=True)[1]
    if 2 * np.count_nonzero(np.bincount(captures) > 1) < captures.max(initial=0) + 1:
        return None  # most captures have one job of the block, which needs no further name
    codes = []
    whole = []  # for each field, the number of bits that its values take in all jobs
    for column in columns:
        _, code = np.unique(column[sample], return_inverse=True)
        codes.append(code)
        whole.append(_bits(code, np.zeros_like(code)))
    best, most = None, (False, LEAST_SAVED)
    for number, code in enumerate(codes):
        if not 2 <= code.max(initial=0) + 1 <= MOST_KINDS:
            continue
        unknown = 1 - _known_from(code, captures)
        if unknown <= LEAST_OWN:
            continue
        before = sum(whole) - whole[number]
        after = -_bits(code, code)
        for other in codes:
            after += _bits(other, code)
        saved = unknown * (1 - after / max(before, 1.0))
        named = bool(items[number].names)
        if (named, saved) > most or (named and not most[0]):
            best, most = number, (named, saved)
    return best


def _known_from(code: Array, captures: Array) -> float:
    """Return how far a job's capture tells the value of a field in it, as a share from 0 to 1.

    ``code (J,)`` are the values as numbers, ``captures (J,)`` the numbers of the captures. The
    share is 0 if all captures have the same mixture of values, and 1 if each has a single value.
    Captures with one job are ignored.
    """
    several = np.bincount(captures)[captures] > 1
    code, captures = code[several], captures[several]
    whole = _entropy(code, np.zeros(len(code), np.int64))
    if not whole:
        return 1.0
    return 1 - _entropy(code, captures) / whole


def _entropy(code: Array, group: Array) -> float:
    """Return the entropy in bits, summed over all jobs, of a field's values ``code (J,)`` within
    the groups that ``group (J,)`` numbers."""
    width = int(code.max(initial=0)) + 1
    table = np.bincount(group * width + code, minlength=width * (int(group.max(initial=0)) + 1))
    table = table.reshape(-1, width)
    jobs = np.maximum(table.sum(1), 1)
    return float(-(table * np.log2(np.maximum(table, 1) / jobs[:, None])).sum())


def _bits(code: Array, group: Array) -> float:
    """Return how many bits it takes to write down a field's values ``code (J,)``, if the number of
    each job's group, ``group (J,)``, is known.

    This is the entropy of the values and the price of a table of values for each group. A table
    costs ``0.5 * log2(jobs of the group)`` bits for each different value after the first.
    """
    width = int(code.max(initial=0)) + 1
    pairs = np.unique(group * width + code)
    jobs = np.bincount(group)
    values = np.bincount(pairs // width) - 1
    tables = 0.5 * (values * np.log2(np.maximum(jobs, 1))).sum()
    return _entropy(code, group) + float(tables)


# Runs and columns: how the streams become one merged stream


def _columns(streams: Sequence[Sequence[str]]) -> tuple[list[str], list[Array]]:
    """Return the kinds of all columns of the merged stream, and for each stream the number of the
    column of each of its jobs."""
    plain: dict[tuple[str, ...], tuple[tuple[str, ...], Array]] = {}
    for stream in streams:
        key = tuple(stream)
        if key not in plain:
            plain[key] = _without_runs(key)
    often = Counter(plain[tuple(stream)][0] for stream in streams)
    # the streams that most captures share are merged first, so their columns set the order
    shapes = sorted(often, key=lambda shape: (-often[shape], -len(shape), shape))
    kinds: list[str] = []  # the kind of each column, in the order in which columns are made
    order: list[int] = []  # the numbers of the columns, in the order of the merged stream
    held: dict[tuple[str, ...], list[int]] = {}
    for shape in shapes:
        held[shape] = _merge(shape, kinds, order)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    places = []
    for stream in streams:
        shape, at = plain[tuple(stream)]
        places.append(rank[np.array(held[shape], np.int64)[at]])
    return [kinds[column] for column in order], places


def _without_runs(stream: tuple[str, ...]) -> tuple[tuple[str, ...], Array]:
    """Return the stream with each repeated unit only once, and for each job of the given stream its
    position in the shortened stream. Short units are looked for first. When runs are found, they
    are shortened, and the search starts again with units of one job."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(stream))}
    codes = np.array([numbers[kind] for kind in stream], np.int64)
    at = np.arange(len(codes))
    period = 1
    while 2 * period <= min(len(codes), 2 * MOST_PERIOD):
        keep = _of_runs(codes, period)
        if keep is None:
            period += 1
            continue
        at = keep[at]
        codes = codes[np.unique(keep, return_index=True)[1]]
        period = 1
    kinds = list(numbers)
    return tuple(kinds[code] for code in codes.tolist()), at


def _of_runs(codes: Array, period: int) -> Array | None:
    """Return the new position of each element of ``codes`` after every run is shortened to its
    first unit.

    A run is a unit of ``period`` elements that comes two or more times in a row. All copies of an
    element get the position of the element in the first unit. Returns None if there is no run.
    """
    same = codes[period:] == codes[:-period]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    keep = np.arange(len(codes))
    shift = 0
    found = False
    done = 0
    for start, stop in edges.reshape(-1, 2).tolist():
        repeats = (stop - start) // period  # copies of the unit after the first one
        keep[done:start] -= shift
        done = start
        if not repeats:
            continue
        found = True
        first, end = start, start + (repeats + 1) * period
        inside = np.arange(end - first) % period
        keep[first:end] = first - shift + inside
        shift += repeats * period
        done = end
    keep[done:] -= shift
    if found:
        return keep
    return None


def _merge(shape: Sequence[str], kinds: list[str], order: list[int]) -> list[int]:
    """Put the stream ``shape`` into the merged stream and return the column of each element.

    ``kinds`` has the kind of each column, and ``order`` the columns as they stand in the merged
    stream. Both are changed: elements that the merged stream lacks become new columns.
    """
    mine = np.array([kinds[column] for column in order], dtype=object)
    changes = np.where(mine[:, None] == np.array(shape, dtype=object)[None], 0, 4).astype(np.int64)
    ones = np.ones(len(order), np.int64), np.ones(len(shape), np.int64)
    columns: list[int] = []
    merged: list[int] = []
    for old, new in cheapest(changes, *ones):
        if old is not None:
            merged.append(order[old])
            if new is not None:
                columns.append(order[old])
        elif new is not None:
            kinds.append(shape[new])
            merged.append(len(kinds) - 1)
            columns.append(len(kinds) - 1)
    order[:] = merged
    return columns
