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

MOST_KINDS = 8  # most values of a field that divides a block's jobs; assumed: memories, operations
MOST_SAMPLED = 2000  # most jobs of a block from which the dividing field is chosen: 50 ms a block
# the least share of the bits of a block's jobs that a division into kinds has to save; assumed
LEAST_SAVED = 0.1
# a dividing field needs more than this share of its bits unknown when the capture is known; assumed
LEAST_OWN = 0.5
MOST_PERIOD = 64  # most jobs of a unit that comes several times in a row
# Columns of a role's sweep
INDEX, COUNT = "place_in_run", "length_of_run"
FIRST, LAST = "first_of_run", "last_of_run"
# block and name of the sweep that counts the jobs of each role
ROLES, PRESENCE = "ROLES", "presence"
# a function that returns the kind of a job, "" if unknown, from its capture and its task
Name = Callable[[Capture, int], str]


@dataclass(frozen=True)
class Role:
    """What a job is in a stream. ``block`` is the block of its jobs, ``captures`` and ``jobs`` are
    the numbers of captures and jobs that have the role, and ``most`` is the largest number of jobs
    of this role in one capture."""

    name: str
    block: str
    captures: int
    jobs: int
    most: int


@dataclass(frozen=True, eq=False)
class Roles:
    """The jobs of captures by role.

    ``names`` are the names of the roles, in the order of the streams. The arrays ``(J,)`` have an
    element for each job of all captures. ``of`` is the number of the job's role in ``names``;
    ``capture`` and ``task`` are the numbers of its capture and of the job in it. ``counts`` is how
    many jobs of this role the capture has, ``index`` the job's place among them, from 0 on.
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
        """A row for each role: role, block, captures, jobs, most."""
        frame = pd.DataFrame(self.roles, columns=list(Role.__dataclass_fields__))
        return frame.rename(columns={"name": "role"})

    def number(self, role: str) -> int:
        """The number of a role; LookupError with the names near it for an unknown one."""
        need("role", role, str, "is the name of a role, as the table has it")
        if role not in self.names:
            raise LookupError(
                f"role: got {role!r}, allowed are {', '.join(self.names)}{near(role, self.names)}"
            )
        return self.names.index(role)

    def name_of(self, capture: int, task: int) -> str:
        """The role of a job, by the number of its capture and its task."""
        found = np.flatnonzero((self.capture == capture) & (self.task == task))
        refuse_if(not len(found), "task", f"capture {capture}, task {task}", "is that of a job")
        return self.names[self.of[found[0]]]

    def of_block(self, block: str) -> list[str]:
        """The roles of a block; LookupError with the blocks for an unknown one."""
        found = [role.name for role in self.roles if role.block == block]
        if not found:
            blocks = dict.fromkeys(role.block for role in self.roles)
            raise LookupError(
                f"block: got {block!r}, allowed are {', '.join(blocks)}{near(block, blocks)}"
            )
        return found

    def chosen(self, role: str | None = None, block: str | None = None) -> str:
        """The role of a name, or the only role of a block; LookupError that lists the roles for an
        unknown name and for a block of several roles."""
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
        """The words of all jobs of a role, with the parameters of their captures; with ``place``
        only the jobs at this place of their run, from 0 on, -1 is the last.

        A capture that has the role several times has a row for each, and the columns
        ``place_in_run`` (from 0 on), ``length_of_run``, ``first_of_run`` and ``last_of_run`` (0 or
        1) say which it is. ``name`` is that of the sweep, by default the role. Raises LookupError
        for an unknown role, and for a place that no run has.
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
        """The columns that say where jobs, given by their numbers, are in their runs."""
        index, counts = self.index[rows], self.counts[rows]
        return {
            INDEX: index,
            COUNT: counts,
            FIRST: (index == 0).astype(np.int64),
            LAST: (index == counts - 1).astype(np.int64),
        }

    def presence(self) -> Sweep:
        """How many jobs of each role each capture has, as the words of a sweep: a field for each
        role, so that laws of it say when a job is there and how often."""
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
    """Find what each job of captures is in its stream.

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


# Kinds


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
    """Return the kind of each job in ``every`` (number of the capture, task): the name or label
    that it was given, else the kind that ``_kinds_of_block`` finds. ``named`` is passed on."""
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
    """Return the kinds of the jobs of a block, words ``(J, W)`` of the captures ``stream (J,)``;
    with ``named`` only a field with names for its values divides them."""
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
    """Return the value of a field as part of a role's name."""
    if item.names:
        return str(item.text(raw))
    return f"{item.name} {item.text(raw)}"


def _dividing(items: Sequence[Field], columns: Sequence[Array], stream: Array) -> int | None:
    """Return the number of the field that divides the jobs of a block into kinds, None if there is
    none.

    The field has 2 to ``MOST_KINDS`` values. A field with names for its values comes first. Among
    fields of one sort, the field that saves the most bits of all other fields is taken; a field
    without names must save at least the share ``LEAST_SAVED``. The bits that it saves count less,
    the more its values depend on the capture: a field that has one value in a capture and another
    in the next describes the layer, not the job. There is no such field if fewer than half of the
    captures have two or more jobs of the block.
    """
    sample = np.linspace(0, len(stream) - 1, min(len(stream), MOST_SAMPLED)).astype(int)
    captures = np.unique(stream[sample], return_inverse=True)[1]
    if 2 * np.count_nonzero(np.bincount(captures) > 1) < captures.max(initial=0) + 1:
        return None  # most captures have one such job, which needs no second name
    codes = []
    whole = []  # the bits of each field in all jobs
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
    """Return the entropy of a field's values ``code (J,)`` in bits: the sum over all jobs, if the
    number of each job's group, ``group (J,)``, is known."""
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


# Runs and columns


def _columns(streams: Sequence[Sequence[str]]) -> tuple[list[str], list[Array]]:
    """Return the kinds of all columns of the merged stream, and for each stream the number of the
    column of each of its jobs."""
    plain: dict[tuple[str, ...], tuple[tuple[str, ...], Array]] = {}
    for stream in streams:
        key = tuple(stream)
        if key not in plain:
            plain[key] = _without_runs(key)
    often = Counter(plain[tuple(stream)][0] for stream in streams)
    # streams shared by most captures come first; columns that rarer streams add go around them
    shapes = sorted(often, key=lambda shape: (-often[shape], -len(shape), shape))
    kinds: list[str] = []  # the kind of each column
    order: list[int] = []  # the columns as they stand in the merged stream
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
    """Return the stream with each repeated unit only once, and for each job of the original stream
    its position in the shortened one. Short units are looked for first. After each length of unit
    that was found, the search starts again with units of one job."""
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
    """Return the new position of each element after every run is shortened to its first unit.

    A run is a unit of ``period`` elements that comes two or more times in a row. All copies of an
    element get the position of the one in the first unit. Returns None if there is no run.
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
