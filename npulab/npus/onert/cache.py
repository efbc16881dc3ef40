"""A model of ruy's cache of packed matrices, which finds them by an address whose memory may have
been freed.

A layer of ONE multiplies by its weights with ruy, which packs them first. The cache keeps the
packed weights and finds them by the address of the weights, not by their contents. ONE frees
weights after they were packed, so that memory holds them only once. Two things can then go wrong.
If the cache does not find packed weights, weights are packed again from freed memory. If other
weights come to the same address, the cache finds the packed weights of the first.

There are two forms of the cache. The cache of 2020 (google/ruy:ruy/dispatch.h and
prepacked_cache.cc) finds weights by kernel function and address; its policies are kNoCache, the
default, and kCacheLHSOnNarrowMul. The present cache (ruy/prepare_packed_matrices.cc,
prepacked_cache.h) finds weights by address, packed layout and zero point; ONE now uses it with
kAlwaysCache for weights (compute/cker: NeonCpuBackendGemm). The model assumes that clocks are
exact: no two entries have the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from npulab.npus.kit import pd, refuse_if

# The most bytes of a cache. ruy/prepacked_cache.h: kDefaultEjectionThresholdBytes, now
# kDefaultMaxBuffersBytes.
LIMIT = 2**28
# The most columns (batches) of a layer whose weights are cached by kCacheLHSOnNarrowMul and by
# ONE's FullyConnectedLayer::prepare.
NARROW = 4
# kCacheIfSignificantSpeedup caches if the batches are at most this many times a kernel's columns.
SEVERAL = 4
POLICIES = {
    "kNoCache": "2020",
    "kCacheLHSOnNarrowMul": "2020",
    "kNeverCache": "present",
    "kCacheIfLargeSpeedup": "present",
    "kCacheIfSignificantSpeedup": "present",
    "kAlwaysCache": "present",
}
# glibc malloc.c: a block with a memory mapping of its own begins two words (of 4 or 8 bytes) after
# the start of a page.
PAGE, HEADERS = 4096, (8, 16)
FAULTS = ("stale hit", "use after free", "segmentation fault", "double free")


@dataclass(frozen=True)
class Layer:
    """A fully connected layer as ruy sees it.

    ``address`` is that of its weights ``(units, depth)``; None if it is unknown, and then these
    weights are never freed. ``columns`` is the number of batches. ``block`` has the rows and
    columns of a block of packed weights, ``other`` is the number of columns of a block of input
    rows. ``kernel`` names the kernel's function.
    """

    name: str
    address: int | None
    depth: int = 0
    units: int = 0
    columns: int = 1
    block: tuple[int, int] = (16, 4)
    other: int = 4
    kernel: str = ""
    zero_point: int = 0
    cacheable: bool = True

    @property
    def packed_shape(self) -> tuple[int, int]:
        """(rows, columns) of the packed weights: whole blocks.

        >>> Layer("a", 0, depth=1000, units=94).packed_shape
        (1008, 96)
        """
        rows, columns = self.block
        return -(-self.depth // rows) * rows, -(-self.units // columns) * columns

    @property
    def packed(self) -> int:
        """The number of bytes of the packed 8-bit weights, with an int32 sum for each packed
        column.

        >>> Layer("a", 0, depth=1000, units=96).packed
        97152
        """
        rows, columns = self.packed_shape
        return rows * columns + 4 * columns


@dataclass(frozen=True)
class Allocate:
    """Data comes to an address. ``mapped`` is true if it has a memory mapping of its own, which no
    longer exists after the data is freed; None if unknown (``likely_mapped`` then decides)."""

    address: int
    data: str
    mapped: bool | None = None


@dataclass(frozen=True)
class Prepare:
    """A layer takes the data at its address as its weights."""

    layer: Layer


@dataclass(frozen=True)
class Run:
    """A layer runs. An input of zeros (``zeros``) gives the bias without a multiplication."""

    name: str
    zeros: bool = False


@dataclass(frozen=True)
class Free:
    """The data at an address is freed."""

    address: int


@dataclass(frozen=True)
class Renew:
    """The program makes another context, whose cache is empty."""


Event = Allocate | Prepare | Run | Free | Renew


class Outcome(NamedTuple):
    """The outcome of an event.

    ``event`` is its number, ``what`` its kind. ``at`` is the data at the address after the event
    ("freed" if there is no data). ``packed`` is the data from which the multiplied weights were
    packed. ``ejected`` are the data whose entries left the cache to make room. ``entries`` and
    ``bytes`` are the size of the cache after the event. ``fault`` is true if the layer's numbers
    are wrong, a free is a second one, or the program ends.
    """

    event: int
    what: str
    layer: str
    address: int | None
    outcome: str
    fault: bool
    at: str
    packed: str
    ejected: tuple[str, ...]
    entries: int
    bytes: int


class _Entry(NamedTuple):
    data: str
    bytes: int


def likely_mapped(address: int) -> bool:
    """Return true if data at an address seems to have a memory mapping of its own, which glibc
    makes for blocks of 128 KiB and more.

    Of the heap's addresses, one in 256 (64-bit programs) or 512 (32-bit) also looks like this.

    >>> likely_mapped(0xb541f008), likely_mapped(0x754a28)
    (True, False)
    """
    return address % PAGE in HEADERS


def caches(policy: str, layer: Layer) -> bool:
    """Return true if the cache keeps a layer's packed weights under ``policy``.

    kCacheIfLargeSpeedup keeps them if the batches are at most as many as the columns of a kernel,
    kCacheIfSignificantSpeedup if they are at most four times as many. Raises ValueError for an
    unknown policy.

    >>> wide = Layer("wide", 0, columns=8)
    >>> [caches(policy, wide) for policy in POLICIES]
    [False, False, False, False, True, True]
    """
    refuse_if(policy not in POLICIES, "policy", f"{policy!r}", f"is {', '.join(POLICIES)}")
    widest = {
        "kCacheLHSOnNarrowMul": NARROW,
        "kCacheIfLargeSpeedup": layer.other,
        "kCacheIfSignificantSpeedup": SEVERAL * layer.other,
        "kAlwaysCache": layer.columns,
    }.get(policy, -1)
    return layer.cacheable and layer.columns <= widest


def key(policy: str, layer: Layer) -> tuple[object, ...]:
    """Return the key by which the cache finds a layer's packed weights: in 2020 kernel and address,
    now address, packed shape, block and zero point.
    """
    if POLICIES[policy] == "2020":
        return layer.kernel, layer.address
    return layer.address, layer.packed_shape, layer.block, layer.zero_point


def replay(
    events: Iterable[Event], policy: str = "kCacheLHSOnNarrowMul", limit: int = LIMIT
) -> list[Outcome]:
    """Return the outcome of each event, up to the first segmentation fault.

    Outcomes of a run are "zeros" (nothing is multiplied), "hit" (the weights were packed before),
    "packed" (packed in this run and kept) and "packed once" (packed and not kept). Faults of a run
    are "stale hit" (the packed weights are of other data that was at the same address), "use after
    free" (packed from freed memory, or from other data that is at the address now) and
    "segmentation fault" (packed from memory that is no longer mapped). A free is "freed" or the
    fault "double free".

    The cache holds at most ``limit`` bytes: the entry that was unused for the longest time leaves
    first, and an entry larger than the limit is kept alone. Raises ValueError with the number of
    the event for an address allocated twice and for a layer that was not prepared or has no data at
    its address. Raises ValueError for an unknown policy and for a limit below 0.

    >>> one, two = Layer("one", 0x1000, 8, 4), Layer("two", 0x1000, 8, 4)
    >>> steps = [Allocate(0x1000, "a"), Prepare(one), Run("one"), Free(0x1000), Run("one")]
    >>> steps += [Allocate(0x1000, "b"), Prepare(two), Run("two")]
    >>> [(step.outcome, step.at, step.packed) for step in replay(steps) if step.what == "run"]
    [('packed', 'a', 'a'), ('hit', 'freed', 'a'), ('stale hit', 'b', 'a')]
    """
    refuse_if(limit < 0, "limit", limit, "are 0 bytes or more")
    machine = _Machine(policy, limit)
    outcomes: list[Outcome] = []
    for number, event in enumerate(events):
        outcome = machine.step(number, event)
        outcomes.append(outcome)
        if outcome.outcome == "segmentation fault":
            break
    return outcomes


def table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a table with a row for each outcome and its fields as columns. The address is a
    hexadecimal text, "" without an address."""
    rows = []
    for step in outcomes:
        row = step._asdict()
        row["address"] = ""
        if step.address is not None:
            row["address"] = f"{step.address:#x}"
        rows.append(row)
    return pd.DataFrame(rows, columns=Outcome._fields)


class _Machine:
    """Memory, prepared layers and the cache while events are replayed."""

    def __init__(self, policy: str, limit: int) -> None:
        caches(policy, Layer("", None))  # an unknown policy is refused before anything is done
        self.policy, self.limit = policy, limit
        self.memory: dict[int | None, Allocate] = {}
        # `gone`, by address: the data that was freed last. `layers`, by name: the layer, and the
        # data of its weights when it was prepared.
        self.gone: dict[int | None, Allocate] = {}
        self.layers: dict[str, tuple[Layer, str]] = {}
        # Entries by key; the entry that was unused for the longest time is the first.
        self.cache: dict[tuple[object, ...], _Entry] = {}
        self.held = 0  # the bytes of all entries together

    def step(self, number: int, event: Event) -> Outcome:
        """Change memory, layers and cache by one event, and return its outcome."""
        name = packed = ""
        address = getattr(event, "address", None)
        ejected: tuple[str, ...] = ()
        match event:
            case Renew():
                self.cache, self.held, outcome = {}, 0, "emptied"
            case Allocate(_, data):
                if address in self.memory:
                    raise ValueError(
                        f"event {number}: got {data!r} at address {address:#x}, which holds "
                        f"{self.at(address)!r}, allowed is a free address"
                    )
                self.memory[address], outcome = event, "allocated"
            case Free():
                outcome = "double free"
                if address in self.memory:
                    outcome = "freed"
                    self.gone[address] = self.memory.pop(address)
            case Prepare(layer):
                name, address = layer.name, layer.address
                if address is not None and address not in self.memory:
                    raise ValueError(
                        f"event {number}: got layer {name} with weights at address "
                        f"{address:#x}, which holds no data, allowed is an address with data"
                    )
                self.layers[name], outcome = (layer, self.at(address)), "prepared"
            case Run(name, zeros):
                refuse_if(
                    name not in self.layers,
                    f"event {number}",
                    f"a run of {name}",
                    f"is a layer that was prepared: {', '.join(self.layers) or 'none was'}",
                )
                layer, weights = self.layers[name]
                address, outcome = layer.address, "zeros"
                if not zeros:
                    outcome, packed, ejected = self.run(layer, weights)
        at = ""
        if not isinstance(event, Renew):
            at = self.at(address)
        return Outcome(
            number,
            type(event).__name__.lower(),
            name,
            address,
            outcome,
            outcome in FAULTS,
            at,
            packed,
            ejected,
            len(self.cache),
            self.held,
        )

    def run(self, layer: Layer, weights: str) -> tuple[str, str, tuple[str, ...]]:
        """Run a layer; return (outcome, the data by which the layer multiplies, the ejected data).
        ``weights`` is the data with which the layer was prepared."""
        kept = caches(self.policy, layer)
        found_by = key(self.policy, layer)
        if kept and found_by in self.cache:
            entry = self.cache.pop(found_by)
            self.cache[found_by] = entry  # moves the entry to the end, as used latest
            if entry.data == weights:
                return "hit", entry.data, ()
            return "stale hit", entry.data, ()
        now = self.at(layer.address)
        freed = self.gone.get(layer.address)
        if now == "freed" and freed:
            mapped = freed.mapped
            if mapped is None:
                mapped = likely_mapped(freed.address)
            if mapped:
                return "segmentation fault", "", ()
        outcome = "packed once"
        ejected: tuple[str, ...] = ()
        if kept:
            outcome = "packed"
            ejected = self.keep(found_by, _Entry(now, layer.packed))
        if now != weights:
            outcome = "use after free"
        return outcome, now, ejected

    def keep(self, by: tuple[object, ...], entry: _Entry) -> tuple[str, ...]:
        """Put an entry into the cache under the key ``by``; return the data whose entries were
        ejected to make room."""
        ejected = []
        while self.cache and self.held + entry.bytes > self.limit:
            oldest = self.cache.pop(next(iter(self.cache)))
            self.held -= oldest.bytes
            ejected.append(oldest.data)
        self.cache[by] = entry
        self.held += entry.bytes
        return tuple(ejected)

    def at(self, address: int | None) -> str:
        """Return the data at an address; "freed" if there is none, "not told" for None."""
        if address is None:
            return "not told"
        if address in self.memory:
            return self.memory[address].data
        return "freed"
