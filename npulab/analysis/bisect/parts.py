"""A good and a bad capture as parts: the parts that differ, the parts that are changed together,
and mixtures of the two captures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from npulab.analysis.check import (
    JOB,
    ORDER,
    WRITES,
    Difference,
    Key,
    diff_buffers,
    differences,
    explain,
    jobs_edited,
    of_record,
)
from npulab.analysis.records import BUFFER, BYTES, MOST_PARTS, OTHERS, beside
from npulab.captures.aligned import INSERTED, Pair, aligned, edited
from npulab.captures.capture import COMMANDS, Capture, Job
from npulab.captures.streams import streams_of
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap
from npulab.support.late import pd
from npulab.support.text import plural

# Parameters whose names end so (``coefficient_bytes``) are chosen by a driver: captures of one
# layer may differ in them.
OBSERVED = "_bytes"
# An error text names at most this many parameters.
SHOWN = 4
# The buffer of which a target can say what each byte holds.
EXPLAINED = "coefficients"
NOT_BISECTED = ("output", COMMANDS)
# Words of field names that say how memory is laid out. Fields whose names differ only in these
# words are changed together.
GEOMETRY_WORDS = (
    "size stride pitch start end address addr base width height depth length offset low high lo hi "
    "lsb msb lower upper"
)
GEOMETRY = set(GEOMETRY_WORDS.split())
AXES_WORDS = "x y z w h c n xy plus minus row plane line in bytes"
AXES = set(AXES_WORDS.split())


def name_of(key: Key) -> str:
    """Return the name of a field in journals and in the shell: ``0/NN/w3/relu``.

    >>> name_of((0, "NN", "w3", "relu"))
    '0/NN/w3/relu'
    """
    return "/".join(map(str, key))


def parts_of(
    good: Capture, bad: Capture, *, addresses: bool = False, buffers: bool = True
) -> list[Difference]:
    """Return all differences between two captures that a trial can exchange: fields, buffers, and
    whole jobs that only one capture has or that stand elsewhere.

    If the maps describe records in a buffer, and at most ``MOST_PARTS`` of its parts differ, the
    parts are fields of the records, and whole records that are inserted, left out or moved.

    Fields that point into memory are left out unless ``addresses`` is true, because the buffers of
    the good capture lie at its own addresses. Read-only fields and the output are left out, and the
    bytes of a command stream, because its register writes are fields. Raises ValueError for
    captures of different targets, and if no difference is left.
    """
    _refuse_unlike(good, bad)
    pairs = aligned(good.jobs, bad.jobs)
    if all(task is None or other is None for task, other in pairs):
        raise ValueError(
            f"bad {bad.name}: got {_listed(bad.jobs)}, allowed are jobs of which at least one is "
            f"like a job of good {good.name}, which has {_listed(good.jobs)}"
        )
    fixed = set()
    for registers in good.maps.values():
        fixed |= {_key_in_job(item) for item in registers if item.read_only}
    found = []
    for part in differences(good, bad):
        if (addresses or not part.address) and part.key[1:] not in fixed:
            found.append(part)
    if buffers:
        for name in _buffers_that_differ(good, bad):
            found += _parts_of_buffer(name, good, bad, addresses)
    if not found:
        apart = " (addresses are left out)"
        if addresses:
            apart = ""
        raise ValueError(
            f"good {good.name} and bad {bad.name}: got captures that send the same words and "
            f"buffers{apart}, allowed are two that differ; if their outputs differ, npulab check "
            "BAD --explain says where"
        )
    return found


def lone_bytes(good: Capture, bad: Capture) -> dict[str, str]:
    """Return a text for each buffer in which exactly one byte differs, by the buffer's name: ``byte
    120 = 0x12 (good 0x02), weight of channel 0, row 1``.
    """
    texts = {}
    for name, first, count, a, b in diff_buffers(good, bad).itertuples(index=False):
        if count == 1 and a == b:
            byte = f"byte {first} = {bad.buffers[name][first]:#04x}"
            was = f"(good {good.buffers[name][first]:#04x})"
            texts[name] = f"{byte} {was}{_held(bad, name, first)}"
    return texts


def _held(capture: Capture, name: str, byte: int) -> str:
    """Return what a byte of a buffer holds, as text that begins with a comma; "" if unknown."""
    if name != EXPLAINED:
        return ""
    try:
        items = explain(capture, byte).to_dict("records")
    except (ValueError, LookupError):
        return ""
    if not items:
        return ""
    places = []
    for place in ("channel", "plane", "row", "column"):
        if not pd.isna(items[0][place]):
            places.append(f"{place} {items[0][place]}")
    if not places:
        return f", {items[0]['kind']}"
    return f", {items[0]['kind']} of {', '.join(places)}"


def _parts_of_buffer(name: str, good: Capture, bad: Capture, addresses: bool) -> list[Difference]:
    """Return the differences of a buffer: those of its records, if the maps describe records in it
    and not too many differ; else the whole buffer.
    """
    sizes = len(good.buffers.get(name, b"")), len(bad.buffers[name])
    whole = [Difference(0, BUFFER, name, BYTES, *sizes)]
    held = beside(good, bad).get(name)
    if held is None or len(held.parts) > MOST_PARTS:
        return whole
    found = []
    for part in held.parts:
        row = of_record(name, part)
        if (addresses or not row.address) and not (part.field and part.field.read_only):
            found.append(row)
    if held.apart:
        found.append(Difference(0, BUFFER, name, OTHERS, *sizes))
    return found


def _listed(jobs: Sequence[Job]) -> str:
    """Return jobs as text, with the number of jobs of each kind: ``2 jobs LOAD of 4 words``."""
    counts = Counter[str]()
    for job in jobs:
        size = plural(len(job.words), "word")
        if job.writes:
            size = "register writes"
        counts[f"{job.block} of {size}"] += 1
    return ", ".join(f"{plural(count, 'job')} {text}" for text, count in counts.items())


def _key_in_job(item: Field) -> tuple[str, str, str]:
    return item.block, item.register, item.name


def _buffers_that_differ(good: Capture, bad: Capture) -> list[str]:
    """Return the names of the bad capture's buffers that the good capture lacks or holds with other
    bytes, without outputs, and without command streams, whose words are fields.
    """
    streams = set(streams_of(good.jobs, good.buffers)) & set(streams_of(bad.jobs, bad.buffers))
    names = []
    for name, data in bad.buffers.items():
        if name not in streams.union(NOT_BISECTED) and good.buffers.get(name) != data:
            names.append(name)
    return names


def two_layers(good: Capture, bad: Capture) -> str:
    """Return a sentence about captures of different layers, if their parameters or the sizes of
    their inputs say so; else "".
    """
    apart = []
    for name, value in good.parameters.items():
        other = bad.parameters.get(name, value)
        if other != value and not name.endswith(OBSERVED):
            apart.append(f"{name} {value} and {other}")
    sizes = [len(capture.buffers["input"]) for capture in (good, bad) if "input" in capture.buffers]
    if len(set(sizes)) > 1:
        apart.append(f"input {sizes[0]} and {sizes[1]} bytes")
    if not apart:
        return ""
    text = ", ".join(apart[:SHOWN])
    if len(apart) > SHOWN:
        text += f" and {len(apart) - SHOWN} more"
    buffers = [name for name in _buffers_that_differ(good, bad) if name != "input"]
    if buffers:
        text += f"; buffer {', '.join(buffers)} differs, too"
    return (
        f"good {good.name} and bad {bad.name}: got captures of two layers ({text}), allowed are "
        "two of one layer, since fields of two layers differ anyway"
    )


def families(parts: Sequence[Difference]) -> list[list[int]]:
    """Return the parts that are changed together because their names say that they describe one
    thing, as lists of their indices.

    Sizes, strides, starts and ends of one thing (``in_image_x_size``, ``in_image_y_stride``) are
    one unit, and so are low and high halves, also of addresses. Every other field is a unit of its
    own.

    >>> names = ["in_image_x_size", "relu", "in_image_y_stride", "zero_point"]
    >>> families([Difference(0, "NN", "w0", name, 0, 1) for name in names])
    [[0, 2], [1], [3]]
    """
    units: dict[tuple[object, ...], list[int]] = {}
    for index, part in enumerate(parts):
        field = part.field
        where: tuple[str, ...] = ()
        if part.block == BUFFER:
            place, _, name = field.rpartition(" ")  # number of the record, name of the field
            where = part.register, place
            field = name.rpartition(".")[2]
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", field)
        words = [word.lower() for word in words]
        # the first word stays even if it is an axis such as ``x``: it names the thing
        stem = [word for word in words if word not in GEOMETRY | AXES.difference(words[:1])]
        unit: tuple[object, ...] = (index,)
        if part.register == JOB or (part.block == BUFFER and None in (part.a, part.b)):
            pass  # a whole job or record is a unit of its own
        elif part.field in (ORDER, WRITES):
            unit = (part.task, part.block, ORDER)
        elif part.a is None or part.b is None:
            unit = (part.task, part.block, part.register, "not written")
        elif stem and not GEOMETRY.isdisjoint(words):
            unit = (part.task, part.block, *where, *stem)
        units.setdefault(unit, []).append(index)
    return sorted(units.values())


def mix(
    good: Capture,
    bad: Capture,
    keys: Collection[Key],
    pairs: Sequence[Pair] | None = None,
    instead: Mapping[Key, Job] | None = None,
) -> Capture:
    """Return the good capture with some parts changed to their values in the bad one; it is marked
    as changed.

    ``keys`` are (task, block, register, field), as ``parts_of`` has them. A register that only the
    bad job writes is added, in its place, if one of its fields is chosen. A register that only the
    good job writes is dropped if all its fields that differ are chosen. A job that only the bad
    capture has, or that stands elsewhere there, is taken over as a whole; one that only the good
    capture has is left out. ``pairs`` are the jobs side by side, by default as ``aligned`` finds
    them. ``instead`` has, by key, jobs to use in place of inserted or left out jobs. Raises
    LookupError for a field that neither capture has, ValueError for captures of different targets.
    """
    _refuse_unlike(good, bad)
    if pairs is None:
        pairs = aligned(good.jobs, bad.jobs)
    left = set(keys)
    chosen_edits = set()
    mixed: dict[int, Job] = {}
    theirs = list(bad.jobs)
    for edit, row in jobs_edited(good, bad, pairs).items():
        if row.key not in left:
            continue
        left.remove(row.key)
        job = (instead or {}).get(row.key)
        if job is None:
            chosen_edits.add(edit)
        elif edit.kind == INSERTED and edit.b is not None:
            chosen_edits.add(edit)
            theirs[edit.b] = job
        else:
            mixed[edit.a] = job
    for task, other in pairs:
        if task is None or other is None:
            continue
        chosen = {key[1:] for key in left if key[0] == task and key[1] != BUFFER}
        if not chosen:
            continue  # ``edited`` keeps the good job if ``mixed`` has no other for it
        known: Chosen = set()
        changed = _mixed(good.jobs[task], bad.jobs[other], chosen, good, known)
        assert changed is not None
        mixed[task] = changed
        left -= {(task, *key) for key in chosen & known}
    jobs = edited(good.jobs, theirs, pairs, chosen_edits, mixed)
    capture = good
    if jobs != list(good.jobs):
        capture = good.with_jobs(jobs)
    buffers = _mixed_buffers(good, bad, left)
    if left:
        raise LookupError(
            f"field: got {name_of(min(left))}, allowed are the fields of {good.name} and {bad.name}"
        )
    if buffers:
        return capture.with_buffers(**buffers)
    return capture


def _mixed_buffers(good: Capture, bad: Capture, left: set[Key]) -> dict[str, bytes]:
    """Return the buffers after the parts with the keys ``left`` were changed in them; keys of parts
    of buffers are removed from ``left``.
    """
    chosen: dict[str, set[str]] = {}
    for _, block, name, field in left:
        if block == BUFFER and name in bad.buffers:
            chosen.setdefault(name, set()).add(field)
    held = beside(good, bad)
    buffers = {}
    for name, fields in chosen.items():
        known = {BYTES}
        if name in held:
            known |= held[name].names
        if BYTES in fields:
            buffers[name] = bad.buffers[name]
        elif fields & known:
            buffers[name] = held[name].mixed(fields)
        left -= {(0, BUFFER, name, field) for field in fields & known}
    return buffers


def _refuse_unlike(good: Capture, bad: Capture) -> None:
    """Raise ValueError for two captures that cannot be mixed, TypeError for a value that is not a
    capture.
    """
    for side, capture in (("good", good), ("bad", bad)):
        if not isinstance(capture, Capture):
            raise TypeError(
                f"{side}: got {type(capture).__name__}, allowed is Capture, as npulab.load gives"
            )
    for name in ("target", "chip"):
        if getattr(good, name) != getattr(bad, name):
            raise ValueError(
                f"bad {bad.name}: got {name} {getattr(bad, name)}, allowed is "
                f"{getattr(good, name)}, that of good {good.name}"
            )


Chosen = set[tuple[str, str, str]]  # each field as (block, register, field)


def _mixed(
    good: Job | None, bad: Job | None, chosen: Chosen, capture: Capture, known: Chosen
) -> Job | None:
    """Return the good job with the ``chosen`` fields changed to their values in the bad job. The
    key of every field of the two jobs is added to ``known``.
    """
    job = good or bad
    if job is None:
        return None
    registers = capture.maps[job.block]
    start = _mixed(_start_of(good), _start_of(bad), chosen, capture, known)
    if good and bad and not good.state and not bad.state:
        words = good.words.copy()
        for item in registers:
            key = _key_in_job(item)
            known.add(key)
            if key in chosen:
                item.insert(words, item.extract(bad.words))
        return replace(good, words=words, start=start)
    # if the register state before the two jobs differs, it is mixed as if the jobs wrote it
    carried = good is not None and bad is not None and good.before != bad.before
    mine, theirs = _writes_of(good, carried), _writes_of(bad, carried)
    writes = tuple(_mixed_writes(mine, theirs, job.block, registers, chosen, known))
    if not writes and None in (good, bad):
        return None
    if good and writes == good.writes and not carried:
        return replace(good, start=start)
    before = job.before
    if carried:
        before = ()
    return replace(job, writes=writes, before=before, masks={}, start=start).read_with(registers)


def _start_of(job: Job | None) -> Job | None:
    if job is None:
        return None
    return job.start


Writes = Sequence[tuple[int, int]]


def _writes_of(job: Job | None, carried: bool) -> Writes:
    if job is None:
        return ()
    if carried:
        return (*job.before, *job.writes)
    return job.writes


def _mixed_writes(
    good: Writes,
    bad: Writes,
    block: str,
    registers: RegisterMap,
    chosen: Chosen,
    known: Chosen,
) -> list[tuple[int, int]]:
    """Return the (offset, value) writes of a mixed job, in the order of the good job, or of the bad
    job if ``chosen`` names the order. Writes that only the other job has are inserted after the
    write that precedes them there.
    """
    mine, theirs = dict(good), dict(bad)
    state: dict[int, int] = {}
    reorder = False
    for offset in {**mine, **theirs}:
        register = registers.register_at(offset)
        ways = {(block, register, WRITES), (block, "", ORDER)}
        reorder |= not ways.isdisjoint(chosen)
        known |= ways
        before, after = mine.get(offset, 0), theirs.get(offset, 0)
        chosen_bits = set()
        differ = taken = 0
        for item, bits in _fields_at(offset, block, registers):
            known.add(_key_in_job(item))
            differ += bool((before ^ after) & bits)
            if _key_in_job(item) in chosen:
                taken += 1
                chosen_bits.add(bits)
        if offset not in mine and not taken:
            continue
        if offset not in theirs and taken and taken >= differ:
            continue
        bits = sum(chosen_bits)
        state[offset] = before & ~bits | after & bits
    base, other = good, bad
    if reorder:
        base, other = bad, good
    writes = [write for write in base if write[0] in state]
    in_base = dict(base)
    # index in ``writes`` at which the next write of ``other`` is inserted
    at = 0
    # how often ``other`` has written so far, by offset that ``base`` writes too
    seen = Counter[int]()
    for offset, value in other:
        if offset in in_base:
            places = [place for place, write in enumerate(writes, 1) if write[0] == offset]
            if places:
                at = places[min(seen[offset], len(places) - 1)]
            seen[offset] += 1
        elif offset in state:
            writes.insert(at, (offset, value))
            at += 1
    # the last write of each register writes the mixed value
    last = {offset: place for place, (offset, _) in enumerate(writes)}
    for offset, place in last.items():
        writes[place] = (offset, state[offset])
    return writes


def _fields_at(offset: int, block: str, registers: RegisterMap) -> Iterable[tuple[Field, int]]:
    """Yield the fields of the register at an offset, each with the mask of its bits in this
    register.
    """
    if offset not in registers.index:
        yield registers.unmapped(block, offset), 2**32 - 1
        return
    word = registers.index[offset]
    for item in registers:
        bits = 0
        for piece in item.pieces:
            if piece.word == word:
                bits += (2**piece.width - 1) * 2**piece.lsb
        if bits:
            yield item, bits
