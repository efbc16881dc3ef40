"""The convolution buffer of a device that runs job after job: what CDMA puts into it, what CSC
reads out of it, and what both leave for the next job.

CDMA and CSC each count lines, kernels and entries by their own registers. If the registers of the
two units disagree, CSC reads entries with wrong data, waits for ever, or leaves entries and
pointers that spoil the next job. The simulation only keeps these counters: no field has a rule of
its own for such cases.

It covers int8 elements, on chips whose entries hold one atom of memory (nv_small). Source:
the RTL of nv_small (CDMA_dc, CDMA_wt, CDMA_status, CSC_sg, CSC_dl, CSC_wl).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Unsupported
from npulab.npus.kit import ceil_div
from npulab.npus.nvdla.convolution import PIXEL, handed_over, image_sums
from npulab.npus.nvdla.facts import Pair
from npulab.npus.nvdla.fetch import (
    DATA,
    DATA_MEMORY,
    PITCHES,
    WEIGHT,
    WEIGHT_MEMORY,
    converted_features,
)
from npulab.npus.nvdla.layouts import Weights
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES
from npulab.npus.nvdla.streams import Part, Stream
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.waiting import MOST_PRODUCTS, MOST_TAPS, few
from npulab.quant.rules import EXACT_FLOAT32

AFTER_RESET = 31, 31  # the banks of data and of weights that CDMA and CSC remember after a reset
# The width of the pointer of CSC's data, and of the count of weight entries.
ENTRY_BITS, HELD_BITS = 15, 17
LARGEST_PRODUCT = 2**14  # the largest product of two int8 numbers
BURST = 8  # atoms of weights that CDMA asks for at a time
MOST_ATOMS = 2**22  # most atoms that CDMA puts into the buffer in a job
Sums = Callable[[int, int], Array]  # (start, stop) gives the accumulators of these outputs
SPARE = 2**22  # elements of the windows that are laid out at a time: 16 MiB in float32


@dataclass
class UnitJob:
    """A job in CDMA or CSC, as the registers of that unit describe it; ``groups`` is the number of
    groups of kernels that are done."""

    unit: ClassVar[str]
    last_kernel: ClassVar[str]  # the register field that holds the number of kernels less 1
    v: Fields
    memory: Memory
    started: bool = False
    groups: int = 0

    def __getitem__(self, name: str) -> int:
        return self.v[f"{self.unit}.{name}"]

    @cached_property
    def banks(self) -> Pair:
        return self["D_BANK.DATA_BANK"], self["D_BANK.WEIGHT_BANK"]

    @cached_property
    def entries(self) -> int:
        """The number of entries that a line counts as, even if its atoms take another number."""
        return self["D_ENTRY_PER_SLICE.ENTRIES"] + 1

    @cached_property
    def lanes(self) -> int:
        return self.v.features["atomic_k"]

    @cached_property
    def all_groups(self) -> int:
        return self[self.last_kernel] // self.lanes + 1

    @property
    def kernels(self) -> int:
        """The number of kernels in the next group."""
        if self.groups < self.all_groups - 1:
            return self.lanes
        return self[self.last_kernel] % self.lanes + 1


@dataclass
class Fetch(UnitJob):
    """A job in CDMA. ``lines`` is the number of lines fetched, ``atoms`` that of atoms of weights
    fetched, ``groups`` that of groups of kernels that CSC was told of."""

    unit = "CDMA"
    last_kernel = "D_WEIGHT_SIZE_1.WEIGHT_KERNEL"
    lines: int = 0
    atoms: int = 0

    @cached_property
    def all_lines(self) -> int:
        if self["D_MISC_CFG.CONV_MODE"]:
            return 0  # neither of CDMA's readers of data handles Winograd mode
        return self["D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1

    @cached_property
    def grain(self) -> int:
        """The number of lines that are fetched together: several for packed features, whose lines
        follow one another in memory."""
        if self["D_DAIN_MAP.LINE_PACKED"] and not self["D_DATAIN_FORMAT.DATAIN_FORMAT"]:
            return self["D_FETCH_GRAIN.GRAINS"] + 1
        return 1

    @property
    def done(self) -> bool:
        return self.lines == self.all_lines and self.groups == self.all_groups

    def needed(self) -> int:
        """Return the number of bytes of weights after which CSC is told of the next group."""
        if self.groups == self.all_groups - 1:
            return self["D_WEIGHT_BYTES.WEIGHT_BYTES"]
        per_kernel = self["D_WEIGHT_SIZE_0.BYTE_PER_KERNEL"] + 1
        return (self.groups + 1) * self.lanes * per_kernel


@dataclass
class Sequence(UnitJob):
    """A job in CSC: ``groups`` is the number of groups of kernels sent to the multipliers."""

    unit = "CSC"
    last_kernel = "D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL"
    windows: dict[int, Windows] = field(default_factory=dict)

    @cached_property
    def image(self) -> bool:
        return self["D_DATAIN_FORMAT.DATAIN_FORMAT"] == PIXEL and not self["D_MISC_CFG.CONV_MODE"]

    @cached_property
    def lines(self) -> int:
        """The number of lines that must be in the buffer before anything is sent."""
        return self["D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT"] + 1

    @cached_property
    def released(self) -> int:
        """The number of lines that the job gives back to CDMA at its end."""
        if self["D_MISC_CFG.SKIP_DATA_RLS"]:
            return 0
        return self["D_RELEASE.RLS_SLICES"] + 1

    @cached_property
    def outputs(self) -> int:
        """The number of output atoms that each group of kernels gives."""
        if self.image:
            return prod(self.v.pair("CSC.D_DATAOUT_SIZE_0.DATAOUT_{}"))
        return self["D_ATOMICS.ATOMICS"] + 1

    @property
    def weights(self) -> Weights:
        """The layout of the next group's weights."""
        height, width = self.v.pair("CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_{}_EXT")
        if self.image:
            width = 1
        channels = self["D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT"] + 1
        return Weights(
            self.kernels, height, width, channels, self.lanes, self.v.features["atomic_c"]
        )


def wrap(entry: Any, size: int) -> Any:
    """Return the number of an entry, or of several, wrapped at the end of a part of the buffer with
    ``size`` entries. As in the hardware, it wraps once: ``size`` is subtracted at most once."""
    return entry - size * (entry >= size)


@dataclass
class Buffer:
    """The buffer, its counters, and the jobs that CDMA and CSC have not finished.

    ``data`` has the content of all entries, ``(N, bytes) uint8``. CDMA writes data from entry
    ``write`` on and weights from ``weight_write`` on; CSC reads from ``read`` and ``weight_read``
    on. The following are numbers: ``slices`` of lines that CSC may read, ``valid`` of their
    entries, ``kernels`` of kernels that CSC was told of, ``held`` of entries of weights that CSC
    has not given back. ``late`` is (lines, entries of each line) that CSC gives back when its next
    job starts. ``banks`` has the banks that the last jobs of CDMA and CSC use. If ``keeps`` is
    False, entries are only counted: they have no content, so no sums can be computed.
    """

    features: dict[str, int]
    keeps: bool = True
    data: Array = field(init=False)
    fetches: deque[Fetch] = field(default_factory=deque)
    sequences: deque[Sequence] = field(default_factory=deque)
    sums: Stream = field(default_factory=Stream)
    banks: tuple[Pair, Pair] = (AFTER_RESET, AFTER_RESET)
    write: int = 0
    read: int = 0
    slices: int = 0
    valid: int = 0
    weight_write: int = 0
    weight_read: int = 0
    kernels: int = 0
    held: int = 0
    late: Pair = (0, 0)

    def __post_init__(self) -> None:
        size = self.features["cbuf_banks"] * self.depth
        self.data = np.zeros((size, self.features["cbuf_entry"]), np.uint8)

    @property
    def depth(self) -> int:
        """The number of entries in a bank."""
        return self.features["cbuf_entries"]

    def add(self, v: Fields, memory: Memory) -> None:
        """Give a job to CDMA and CSC, and let all jobs go on as far as they can."""
        self.fetches.append(Fetch(v, memory))
        self.sequences.append(Sequence(v, memory))
        while self._start() or self._lines() or self._weights() or self._group():
            pass

    def _start(self) -> bool:
        """Start the next jobs of CDMA and CSC; True if one was started.

        A unit that is given other banks than before first empties its part of the buffer, for
        which it waits for the other unit to do the same.
        """
        fetch = next(iter(self.fetches), None)
        sequence = next(iter(self.sequences), None)
        if fetch and fetch.done and len(self.fetches) > 1:
            self.fetches.popleft()
            return True
        ready = []
        changes = []
        for unit, job in enumerate((fetch, sequence)):
            change = (False, False)
            if job and not job.started:
                ready.append(unit)
                data, weights = (a != b for a, b in zip(self.banks[unit], job.banks, strict=True))
                change = data, data or weights
            changes.append(change)
        started = [unit for unit in ready if not any(changes[unit])]
        if len(ready) == 2 and changes[0] == changes[1] and any(changes[0]):
            started = ready
            self._empty(*changes[0])
        if 0 in started and fetch:
            fetch.started = True
            self.banks = fetch.banks, self.banks[1]
        if 1 in started and sequence:
            sequence.started = True
            self._give_back_late(sequence)
        return bool(started)

    def _empty(self, data: bool, weights: bool) -> None:
        if data:
            self.write = self.read = self.slices = self.valid = 0
            self.late = 0, 0
        if weights:
            self.weight_write = self.weight_read = self.kernels = self.held = 0

    def _give_back_late(self, sequence: Sequence) -> None:
        lines, entries = self.late
        if lines and not sequence["D_MISC_CFG.DATA_REUSE"]:
            self._give_back(lines, entries, (sequence.banks[0] + 1) * self.depth)
        self.late = 0, 0

    def _give_back(self, lines: int, entries: int, size: int) -> None:
        self.slices -= lines
        self.valid -= lines * entries
        self.read = wrap((self.read + lines * entries) % 2**ENTRY_BITS, size)

    def _lines(self) -> bool:
        """Fetch the lines of CDMA's job for which the buffer has room; True if any were fetched."""
        fetch = next(iter(self.fetches), None)
        if fetch is None or not fetch.started or fetch.lines == fetch.all_lines:
            return False
        if not fetch.v.has_memory(DATA_MEMORY):
            return False
        size = (fetch.banks[0] + 1) * self.depth
        room = (size - self.valid) // fetch.entries
        lines = fetch.all_lines - fetch.lines
        if room < lines:
            lines = room // fetch.grain * fetch.grain
        if lines <= 0:
            return False
        starts = []
        for placed in range(0, lines, fetch.grain):
            starts.append(self.write)
            count = min(fetch.grain, lines - placed)
            self.write = wrap(self.write + count * fetch.entries, size)
        if self.keeps and not fetch["D_DATAIN_FORMAT.DATAIN_FORMAT"]:
            self._put_lines(fetch, np.array(starts), lines, size)
        fetch.lines += lines
        self.slices += lines
        self.valid += lines * fetch.entries
        return True

    def _put_lines(self, fetch: Fetch, starts: Array, lines: int, size: int) -> None:
        """Put the next lines of features into the buffer; groups of ``grain`` lines begin at the
        entries ``starts``.

        In a group the order is surface, line, column. If two atoms go to one entry, the later one
        stays.
        """
        atom = fetch.v.features["memory_atom"]
        width = fetch["D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1
        surfaces = fetch["D_DATAIN_SIZE_1.DATAIN_CHANNEL"] // atom + 1
        if surfaces * fetch.all_lines * width > MOST_ATOMS:
            raise Unsupported(
                f"CDMA fetches {surfaces} surfaces of {fetch.all_lines} x {width}, covered are "
                f"{MOST_ATOMS} atoms"
            )
        base, line, plane = fetch.v.whole_atoms(DATA, *PITCHES)
        if (width, fetch.all_lines) == (1, 1) and fetch["D_DAIN_MAP.SURF_PACKED"]:
            plane = atom
        group, surface, row, column = np.ogrid[: len(starts), :surfaces, : fetch.grain, :width]
        number = fetch.lines + group * fetch.grain
        shape = len(starts), surfaces, fetch.grain, width
        exists = np.broadcast_to(number + row < fetch.lines + lines, shape)
        addresses = base + number * line + surface * plane
        addresses = (addresses + (row * width + column) * atom)[exists]
        entries = starts[group] + row * fetch.entries + surface * width + column
        entries = entries[exists]
        atoms = fetch.memory.atoms(fetch.v.memory_of(DATA_MEMORY), addresses.reshape(-1), atom)
        atoms = converted_features(fetch.v, atoms.view(np.int8), 1, RULES).view(np.uint8)
        self.data[wrap(entries, size) % len(self.data)] = atoms

    def _weights(self) -> bool:
        """Fetch weights of CDMA's job up to the next group, and tell CSC of it; True if any were
        fetched."""
        fetch = next(iter(self.fetches), None)
        if fetch is None or not fetch.started or fetch.groups == fetch.all_groups:
            return False
        if not fetch.v.has_memory(WEIGHT_MEMORY):
            return False
        atom = fetch.v.features["memory_atom"]
        banks = fetch.banks
        size = (banks[1] + 1) * self.depth
        needed = fetch.needed()
        last = min(ceil_div(needed, atom), fetch["D_WEIGHT_BYTES.WEIGHT_BYTES"] // atom)
        count = 0
        if (self.held + BURST) % 2**HELD_BITS <= size:
            room = (size - self.held) // BURST * BURST
            count = max(min(last - fetch.atoms, room), 0)
        if count:
            if self.keeps:
                (start,) = fetch.v.whole_atoms(WEIGHT)
                addresses = start + atom * np.arange(fetch.atoms, fetch.atoms + count)
                name = fetch.v.memory_of(WEIGHT_MEMORY)
                places = (self.weight_write + np.arange(count)) % size
                entries = places + (banks[0] + 1) * self.depth
                self.data[entries % len(self.data)] = fetch.memory.atoms(name, addresses, atom)
            self.weight_write = (self.weight_write + count) % size
            self.held += count
            fetch.atoms += count
        told = fetch.atoms * atom >= needed
        if told:
            self.kernels += fetch.kernels
            fetch.groups += 1
        return bool(count) or told

    def _group(self) -> bool:
        """Send the next group of kernels of CSC's job to the multipliers; True if it was sent."""
        sequence = next(iter(self.sequences), None)
        if sequence is None or not sequence.started:
            return False
        if self.slices < sequence.lines or self.kernels < sequence.kernels:
            return False
        last = sequence.groups == sequence.all_groups - 1
        stored = self._read_weights(sequence)
        self.sums.add(self._sums(sequence, stored, last))
        self.kernels -= sequence.kernels
        sequence.groups += 1
        if last:
            self._end(sequence)
        return True

    def _read_weights(self, sequence: Sequence) -> bytes:
        """Return the bytes of the next group's weights, and give their entries back."""
        layout = sequence.weights
        terms = prod(layout.shape[1:])
        few(terms, "the weights of a kernel", MOST_TAPS)
        few(terms * layout.kernels * sequence.outputs, "the products", MOST_PRODUCTS)
        banks = sequence.banks
        size = (banks[1] + 1) * self.depth
        count = ceil_div(layout.used, self.data.shape[1])
        data = b""
        if self.keeps:
            places = (self.weight_read + np.arange(count)) % size
            data = self.data[(places + (banks[0] + 1) * self.depth) % len(self.data)].tobytes()
        self.weight_read = (self.weight_read + count) % size
        self.held -= count
        return data

    def _end(self, sequence: Sequence) -> None:
        size = (sequence.banks[0] + 1) * self.depth
        self._give_back(sequence.released, sequence.entries, size)
        self.late = sequence.lines - sequence.released, sequence.entries
        self.banks = self.banks[0], sequence.banks
        self.sequences.popleft()

    def _windows(self, sequence: Sequence) -> Windows:
        """Return the windows of a job's next group. If an earlier group began in the same column,
        its windows are used again."""
        columns = sequence["D_DATAOUT_SIZE_0.DATAOUT_WIDTH"] + 1
        shift = sequence.groups * sequence.outputs % columns
        if shift not in sequence.windows:
            layout = sequence.weights
            kernel = layout.height, layout.width
            blocks = ceil_div(layout.channels, layout.block)
            data = self.data.copy()
            sequence.windows[shift] = Windows(sequence, data, self.read, shift, kernel, blocks)
        return sequence.windows[shift]

    def waits(self) -> str:
        """Return what CSC's oldest job waits for, as a sentence; "" if all jobs are done."""
        if not self.sequences:
            return ""
        sequence = self.sequences[0]
        fetch = self.fetches[0]
        if not (sequence.started and fetch.started):
            return (
                f"CDMA and CSC are given banks {fetch.banks} and {sequence.banks} after "
                f"{self.banks[0]} and {self.banks[1]}: each waits for the other to empty the buffer"
            )
        for ram_type in (DATA_MEMORY, WEIGHT_MEMORY):
            if not fetch.v.has_memory(ram_type):
                return f"{ram_type} is 0, a memory that the chip does not have"
        if self.slices < sequence.lines:
            return f"CSC waits for {sequence.lines} lines, CDMA gives {self.slices}"
        told = f"CSC waits for {sequence.kernels} kernels, CDMA tells of {self.kernels}"
        stated = fetch["D_WEIGHT_BYTES.WEIGHT_BYTES"]
        if stated % fetch.v.features["memory_atom"]:
            told += f": CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES is {stated}, not whole atoms"
        return told

    def _sums(self, sequence: Sequence, stored: bytes, last: bool) -> Part:
        """Return the accumulators that a group of kernels gives, atom after atom; they are computed
        when SDP takes them."""
        layout = sequence.weights
        read: Sums | None = None
        if self.keeps and sequence.image:
            read = _image_reader(sequence, layout, stored)
        elif self.keeps:
            read = self._windows(sequence).add(layout, stored)

        def values(start: int, stop: int) -> Array:
            assert read is not None, "nothing may be computed of a buffer that only counts"
            out = np.zeros((stop - start, layout.group), np.int64)
            out[:, : layout.kernels] = read(start, stop)
            return out

        return Part(sequence.outputs, values, last)


@dataclass(frozen=True)
class Windows:
    """The elements that CSC reads for the outputs of a group of kernels, from a buffer as it was.

    ``read`` is the entry of the first line. Columns of outputs are counted on from group to group
    of a job, so a group may begin in a column other than 0: ``shift``. Rows are counted from 0 in
    each group.
    """

    sequence: Sequence
    data: Array
    read: int
    shift: int
    kernel: Pair
    blocks: int
    groups: list[tuple[Weights, bytes]] = field(default_factory=list)
    _made: dict[tuple[int, int], Array] = field(default_factory=dict)

    @property
    def terms(self) -> int:
        """The number of products in a sum."""
        return prod(self.kernel) * self.blocks * self.data.shape[1]

    def add(self, layout: Weights, stored: bytes) -> Sums:
        """Take a group's weights; return the function of (start, stop) to the accumulators of these
        outputs ``(outputs, kernels)``."""
        first = sum(other.kernels for other, _ in self.groups)
        self.groups.append((layout, stored))
        return partial(self._sums, slice(first, first + layout.kernels))

    def _sums(self, kernels: slice, start: int, stop: int) -> Array:
        parts = []
        at = start
        while at < stop:
            number, first = divmod(at, self.step)
            last = min(self.step, first + stop - at)
            parts.append(self._block(number)[first:last, kernels])
            at += last - first
        return np.concatenate(parts)

    @property
    def step(self) -> int:
        """The number of outputs whose elements are laid out at a time."""
        return max(1, SPARE // self.terms)

    def _block(self, number: int) -> Array:
        """Return the accumulators of the outputs from ``number * step`` on, for the kernels of all
        groups: they are multiplied together."""
        key = number, len(self.groups)
        if key not in self._made:
            kind: Any = np.float64
            if self.terms * LARGEST_PRODUCT <= EXACT_FLOAT32:
                kind = np.float32
            stop = min((number + 1) * self.step, self.sequence.outputs)
            elements = self.elements(number * self.step, stop).astype(kind)
            truncate = self.sequence.v["CACC.D_CLIP_CFG.CLIP_TRUNCATE"]
            sums = elements @ self._factors(kind)
            if truncate or self.terms * LARGEST_PRODUCT >= 2**31:
                self._made[key] = handed_over(sums, truncate)
            else:
                self._made[key] = sums.astype(np.int32)  # too short to saturate
        return self._made[key]

    def _factors(self, kind: Any) -> Array:
        """Return the weights of all groups ``(terms, kernels)``; lanes past the channels are 0.

        A group is stored block by block of channels, in the order row, column, kernel, channel.
        """
        lanes = self.data.shape[1]
        taps = prod(self.kernel)
        found = []
        for layout, stored in self.groups:
            codes = np.frombuffer(stored, np.int8, layout.used)
            whole, rest = divmod(layout.channels, lanes)
            factors = np.zeros((self.blocks, taps, lanes, layout.kernels), kind)
            full = whole * taps * layout.kernels * lanes
            blocks = codes[:full].reshape(whole, taps, layout.kernels, lanes)
            factors[:whole] = blocks.transpose(0, 1, 3, 2)
            if rest:
                short = codes[full:].reshape(taps, layout.kernels, rest)
                factors[whole, :, :rest] = short.transpose(0, 2, 1)
            found.append(factors.reshape(self.terms, layout.kernels))
        return np.concatenate(found, 1)

    def elements(self, start: int, stop: int) -> Array:
        """Return the int8 elements that the taps of outputs ``start`` to ``stop`` read: a row for
        each output, its columns in the order (block, row, column, lane)."""
        job = self.sequence
        columns = job["D_DATAOUT_SIZE_0.DATAOUT_WIDTH"] + 1
        row, column = np.divmod(np.arange(start, stop) + self.shift, columns)
        step_y, step_x = job.v.pair("CSC.D_CONV_STRIDE_EXT.CONV_{}_STRIDE_EXT", ("Y", "X"))
        rate_y, rate_x = job.v.pair("CSC.D_DILATION_EXT.{}_DILATION_EXT", ("Y", "X"))
        down = row * step_y - job["D_ZERO_PADDING.PAD_TOP"]
        over = column * step_x - job["D_ZERO_PADDING.PAD_LEFT"]
        y = (down[:, None] + rate_y * np.arange(self.kernel[0]))[:, None, :, None]
        x = (over[:, None] + rate_x * np.arange(self.kernel[1]))[:, None, None, :]
        width = job["D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT"] + 1
        block = np.arange(self.blocks)[None, :, None, None]
        size = (job.banks[0] + 1) * job.v.features["cbuf_entries"]
        entry = wrap(self.read + block * width + y * job.entries + x, size) % len(self.data)
        outside = (x < 0) | (y < 0) | (x >= width) | (y >= job.lines)
        read = np.take(self.data, entry, axis=0)
        read[np.broadcast_to(outside, entry.shape)] = job["D_ZERO_PADDING_VALUE.PAD_VALUE"] % 256
        return read.view(np.int8).reshape(stop - start, -1)


def _image_reader(sequence: Sequence, layout: Weights, stored: bytes) -> Sums:
    """Return the function of (start, stop) to the sums of an image's outputs.

    It is not known where CDMA puts pixels into the buffer. So an image is read from memory, if the
    job is an image for CDMA too; else the sums are 0.
    """

    @cache
    def whole() -> Array:
        if not sequence.v["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"]:
            return np.zeros((sequence.outputs, layout.kernels), np.int64)
        return image_sums(sequence.v, sequence.memory, layout.unpack(stored))

    return lambda start, stop: whole()[start:stop]
