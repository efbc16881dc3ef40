"""A good and a bad capture taken apart: what differs, what belongs together, and any mixture of the
two."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from npulab.analysis.check import ORDER, WRITES, Difference, Key, differences
from npulab.captures.capture import COMMANDS, Capture, Job
from npulab.captures.streams import streams_of
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap

BUFFER, BYTES = "buffer", "(bytes)"  # block and field of a whole buffer
OBSERVED = "_bytes"  # parameters that a driver gives, not the layer: coefficient_bytes
TOLD = 4  # parameters that a refusal names
NOT_BISECTED = ("output", COMMANDS)
# Parts of a field's name that say how memory is laid out: fields that differ in nothing else
# describe one thing.
GEOMETRY = {
    "size",
    "stride",
    "pitch",
    "start",
    "end",
    "address",
    "addr",
    "base",
    "width",
    "height",
    "depth",
    "length",
    "offset",
    "low",
    "high",
    "lo",
    "hi",
    "lsb",
    "msb",
    "lower",
    "upper",
}
AXES = {
    "x",
    "y",
    "z",
    "w",
    "h",
    "c",
    "n",
    "xy",
    "plus",
    "minus",
    "row",
    "plane",
    "line",
    "in",
    "bytes",
}


def name_of(key: Key) -> str:
    """``0/NN/w3/relu``: how a journal and the shell call a field.

    >>> name_of((0, "NN", "w3", "relu"))
    '0/NN/w3/relu'
    """
    return "/".join(map(str, key))


def parts_of(
    good: Capture, bad: Capture, *, addresses: bool = False, buffers: bool = True
) -> list[Difference]:
    """What can be taken from the bad capture: every field that differs, and whole buffers.

    Fields that point into memory keep the good capture's address, since its buffers lie there,
    unless ``addresses``; read-only fields, the output and the bytes of a command stream, whose
    register writes are fields, are no parts. Raises ValueError for captures of different targets or
    with different jobs, and where nothing is left.
    """
    _refuse_unlike(good, bad)
    fixed = {
        (item.block, item.register, item.name)
        for registers in good.maps.values()
        for item in registers
        if item.read_only
    }
    found = [
        part
        for part in differences(good, bad)
        if (addresses or not part.address) and part.key[1:] not in fixed
    ]
    if buffers:
        found += [
            Difference(
                0, BUFFER, name, BYTES, len(good.buffers.get(name, b"")), len(bad.buffers[name])
            )
            for name in _buffers_that_differ(good, bad)
        ]
    if not found:
        if addresses:
            apart = ""
        else:
            apart = " (addresses are left out)"
        raise ValueError(
            f"good {good.name} and bad {bad.name}: got captures that send the same words and "
            "buffers"
            f"{apart}, allowed are two that differ; if their outputs differ, npulab check BAD "
            "--explain "
            "says where"
        )
    return found


def _buffers_that_differ(good: Capture, bad: Capture) -> list[str]:
    """Buffers of the bad capture that are parts: no outputs, and no streams of the jobs, whose
    words are fields.
    """
    left_out = {
        *NOT_BISECTED,
        *set(streams_of(good.jobs, good.buffers)) & set(streams_of(bad.jobs, bad.buffers)),
    }
    return [
        name
        for name, data in bad.buffers.items()
        if name not in left_out and good.buffers.get(name) != data
    ]


def two_layers(good: Capture, bad: Capture) -> str:
    """A sentence about captures of different layers, as their parameters or the sizes of their
    inputs say; "" else.
    """
    told = []
    for name, value in good.parameters.items():
        other = bad.parameters.get(name, value)
        if other != value and not name.endswith(OBSERVED):
            told.append(f"{name} {value} and {other}")
    sizes = [len(capture.buffers["input"]) for capture in (good, bad) if "input" in capture.buffers]
    if len(set(sizes)) > 1:
        told.append(f"input {sizes[0]} and {sizes[1]} bytes")
    if not told:
        return ""
    more = ""
    if len(told) > TOLD:
        more = f" and {len(told) - TOLD} more"
    others = [name for name in _buffers_that_differ(good, bad) if name != "input"]
    buffers = ""
    if others:
        buffers = f"; buffer {', '.join(others)} differs, too"
    return (
        f"good {good.name} and bad {bad.name}: got captures of two layers "
        f"({', '.join(told[:TOLD])}{more}"
        f"{buffers}), allowed are two of one layer, since fields of two layers differ anyway"
    )


def families(parts: Sequence[Difference]) -> list[list[int]]:
    """Indices of the parts that describe one thing and are changed together, by their names.

    Sizes, strides, starts and ends of one thing (``in_image_x_size``, ``in_image_y_stride``) are
    one unit, and so are low and high halves, addresses too; every other field is a unit of its own.

    >>> names = ["in_image_x_size", "relu", "in_image_y_stride", "zero_point"]
    >>> families([Difference(0, "NN", "w0", name, 0, 1) for name in names])
    [[0, 2], [1], [3]]
    """
    units: dict[tuple[object, ...], list[int]] = {}
    for index, part in enumerate(parts):
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part.field)
        lowered = [word.lower() for word in words]
        stem = [
            word for word in lowered if word not in GEOMETRY and word not in AXES - {lowered[0]}
        ]
        if part.field in (ORDER, WRITES):
            units.setdefault((part.task, part.block, ORDER), []).append(index)
        elif part.a is None or part.b is None:
            units.setdefault((part.task, part.block, part.register, "not written"), []).append(
                index
            )
        elif stem and GEOMETRY & set(lowered):
            units.setdefault((part.task, part.block, *stem), []).append(index)
        else:
            units[index,] = [index]
    return sorted(units.values())


def mix(good: Capture, bad: Capture, keys: Collection[Key]) -> Capture:
    """The good capture with some fields as the bad one has them; it counts as changed.

    ``keys`` are (task, block, register, field); a register that only one side writes is written,
    where it stands there, as long as a field of it is taken from, or left to, that side.  Raises
    LookupError for a field that neither has, ValueError for captures of different targets or with
    different jobs.
    """
    _refuse_unlike(good, bad)
    capture, left = good, set(keys)
    for task, (job, bad_job) in enumerate(zip(good.jobs, bad.jobs, strict=True)):
        chosen = {key[1:] for key in left if key[0] == task and key[1] != BUFFER}
        known: set[tuple[str, str, str]] = set()
        mixed = _mixed(job, bad_job, chosen, good, known)
        assert mixed is not None
        if mixed != job:
            capture = capture.with_job(mixed, task)
        left -= {(task, *key) for key in chosen & known}
    buffers = {
        key[2]: bad.buffers[key[2]] for key in left if key[1] == BUFFER and key[2] in bad.buffers
    }
    left -= {key for key in left if key[1] == BUFFER and key[2] in buffers}
    if left:
        raise LookupError(
            f"field: got {name_of(min(left))}, which {good.name} and {bad.name} do not have"
        )
    if buffers:
        return capture.with_buffers(**buffers)
    return capture


def _refuse_unlike(good: Capture, bad: Capture) -> None:
    """Raises TypeError for what is no capture, ValueError for captures that no mixture is made
    of."""
    for side, capture in (("good", good), ("bad", bad)):
        if not isinstance(capture, Capture):
            raise TypeError(
                f"{side}: got {type(capture).__name__}, allowed is Capture, as npulab.load gives"
            )
    for name in ("target", "chip"):
        if getattr(good, name) != getattr(bad, name):
            raise ValueError(
                f"bad {bad.name}: got {name} {getattr(bad, name)}, allowed is "
                f"{getattr(good, name)}, "
                f"that of good {good.name}"
            )
    shapes = [
        [(job.block, None if job.writes else len(job.words)) for job in capture.jobs]
        for capture in (good, bad)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"bad {bad.name}: got jobs {', '.join(map(repr, bad.jobs))}, allowed are those of good "
            f"{good.name}: {', '.join(map(repr, good.jobs))}"
        )


Chosen = set[tuple[str, str, str]]


def _mixed(
    good: Job | None, bad: Job | None, chosen: Chosen, capture: Capture, known: Chosen
) -> Job | None:
    """One job with the ``chosen`` (block, register, field) of the bad one; what it has goes into
    ``known``."""
    job = good or bad
    if job is None:
        return None
    registers = capture.maps[job.block]
    start = _mixed(good.start if good else None, bad.start if bad else None, chosen, capture, known)
    if good and bad and not good.state and not bad.state:
        words = good.words.copy()
        for item in registers:
            key = (item.block, item.register, item.name)
            known.add(key)
            if key in chosen:
                item.insert(words, item.extract(bad.words))
        return replace(good, words=words, start=start)
    carried = good is not None and bad is not None and good.before != bad.before
    # state that differs before the jobs is mixed as if they wrote it
    mine, theirs = (
        () if side is None else side.before * carried + side.writes for side in (good, bad)
    )
    writes = tuple(_mixed_writes(mine, theirs, job.block, registers, chosen, known))
    if not writes and not good:
        return None
    if good and writes == good.writes and not carried:
        return replace(good, start=start)
    before = job.before
    if carried:
        before = ()
    return replace(job, writes=writes, before=before, masks={}, start=start).read_with(registers)


Writes = Sequence[tuple[int, int]]


def _mixed_writes(
    good: Writes,
    bad: Writes,
    block: str,
    registers: RegisterMap,
    chosen: Chosen,
    known: Chosen,
) -> list[tuple[int, int]]:
    mine, theirs = dict(good), dict(bad)
    state: dict[int, int] = {}
    reorder = False
    for offset in {**mine, **theirs}:
        fields = list(_fields_at(offset, block, registers))
        register = registers.register_at(offset)
        ways = {(block, register, WRITES), (block, "", ORDER)}
        known |= {(item.block, item.register, item.name) for item, _ in fields} | ways
        reorder |= bool(ways & chosen)
        chosen_bits = [
            bits for item, bits in fields if (item.block, item.register, item.name) in chosen
        ]
        differ = [
            bits for _, bits in fields if (mine.get(offset, 0) ^ theirs.get(offset, 0)) & bits
        ]
        every = chosen_bits and len(chosen_bits) >= len(differ)
        if (offset not in mine and not chosen_bits) or (offset not in theirs and every):
            continue
        bits = sum(set(chosen_bits))
        state[offset] = mine.get(offset, 0) & ~bits | theirs.get(offset, 0) & bits
    if reorder:
        base, other = bad, good
    else:
        base, other = good, bad
    writes = [write for write in base if write[0] in state]
    at, seen = 0, Counter[int]()  # where the other side is, and how often it wrote what both write
    for offset, value in other:
        if offset in dict(base):
            places = [place for place, (one, _) in enumerate(writes, 1) if one == offset]
            if places:
                at = places[min(seen[offset], len(places) - 1)]
            seen[offset] += 1
        elif offset in state:
            writes.insert(at, (offset, value))
            at += 1
    last = {offset: place for place, (offset, _) in enumerate(writes)}
    return [
        (offset, state[offset] if last[offset] == place else value)
        for place, (offset, value) in enumerate(writes)
    ]


def _fields_at(offset: int, block: str, registers: RegisterMap) -> Iterable[tuple[Field, int]]:
    """The fields of a register, each with its bits there."""
    if offset not in registers.index:
        yield registers.unmapped(block, offset), 2**32 - 1
        return
    for item in registers:
        bits = sum(
            (2**piece.width - 1) * 2**piece.lsb
            for piece in item.pieces
            if piece.word == registers.index[offset]
        )
        if bits:
            yield item, bits
