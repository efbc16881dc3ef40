"""A model of ruy's cache of packed matrices, which finds them by an address whose memory may have
been freed.

A layer of ONE multiplies by its weights with ruy, which packs them first. The cache keeps the
packed weights and finds them by the address of the weights, not by their contents. ONE frees
weights after they were packed, so that memory holds them only once. Two things then go wrong:
packed weights that the cache does not find are packed again from freed memory, and other weights
that come to the address find the packed weights of the first.

There are two forms of the cache. That of 2020 (google/ruy:ruy/dispatch.h and prepacked_cache.cc,
policies kNoCache, the default, and kCacheLHSOnNarrowMul) finds by kernel function and address. The
present one (ruy/prepare_packed_matrices.cc, prepacked_cache.h) finds by address, packed layout and
zero point; ONE now uses it with kAlwaysCache for weights (compute/cker: NeonCpuBackendGemm).
Clocks are assumed exact: no two entries have the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from npulab.npus.kit import pd, refuse_if

# ruy/prepacked_cache.h: kDefaultEjectionThresholdBytes, now kDefaultMaxBuffersBytes
LIMIT = 2**28
# kCacheLHSOnNarrowMul, and ONE's FullyConnectedLayer::prepare, take results of at most this many
# columns.
NARROW = 4
SEVERAL = 4  # kCacheIfSignificantSpeedup takes at most this many kernels next to each other
POLICIES = {
    "kNoCache": "2020",
    "kCacheLHSOnNarrowMul": "2020",
    "kNeverCache": "present",
    "kCacheIfLargeSpeedup": "present",
    "kCacheIfSignificantSpeedup": "present",
    "kAlwaysCache": "present",
}
# glibc malloc.c: a block with a mapping of its own begins two words (of 4 or 8 bytes) after the
# start of a page.
PAGE, HEADERS = 4096, (8, 16)
FAULTS = ("stale hit", "use after free", "segmentation fault", "double free")


@dataclass(frozen=True)
class Layer:
    """A fully connected layer as ruy sees it.

    ``address`` is that of its weights ``(units, depth)``, None if it is unknown (and nothing is
    ever freed there); ``columns`` are the columns of the other side, the batches. ``block`` is rows
    and columns of the kernel on the side of the weights, ``other`` its columns on the other side;
    ``kernel`` names the kernel's function.
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
        """Rows and columns of the packed weights, a multiple of the block's.

        >>> Layer("a", 0, depth=1000, units=94).packed_shape
        (1008, 96)
        """
        rows, columns = self.block
        return -(-self.depth // rows) * rows, -(-self.units // columns) * columns

    @property
    def packed(self) -> int:
        """Bytes of the packed 8-bit weights and an int32 for each packed column.

        >>> Layer("a", 0, depth=1000, units=96).packed
        97152
        """
        rows, columns = self.packed_shape
        return rows * columns + 4 * columns


@dataclass(frozen=True)
class Allocate:
    """Data comes to an address; ``mapped`` is true if it is a mapping of its own, which no longer
    exists after it is freed."""

    address: int
    data: str
    mapped: bool | None = None


@dataclass(frozen=True)
class Prepare:
    """A layer takes the data at an address as its weights."""

    layer: Layer


@dataclass(frozen=True)
class Run:
    """A layer runs; an input of ``zeros`` gives the bias without a multiplication."""

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

    ``at`` is the data at the address then ("freed" if there is none any more), ``packed`` the data
    of which the multiplied weights were packed, ``ejected`` the weights whose entries made room,
    ``entries`` and ``bytes`` the contents of the cache afterwards. ``fault`` is true if numbers
    are wrong or the program ends.
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
    """Return true if an address looks like a mapping of its own, as glibc makes it for 128 KiB and
    more.

    One in 256 (64 bits) or 512 (32 bits) addresses of the heap looks like that too.

    >>> likely_mapped(0xb541f008), likely_mapped(0x754a28)
    (True, False)
    """
    return address % PAGE in HEADERS


def caches(policy: str, layer: Layer) -> bool:
    """Return true if a policy keeps the packed weights of a layer.

    kCacheIfLargeSpeedup keeps them if the other side is at most as wide as a kernel,
    kCacheIfSignificantSpeedup if it is at most as wide as four. Raises ValueError for an unknown
    policy.

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
    """Return the key by which the cache finds packed weights; the key of 2020 does not have the
    shape.
    """
    if POLICIES[policy] == "2020":
        return layer.kernel, layer.address
    return layer.address, layer.packed_shape, layer.block, layer.zero_point


def replay(
    events: Iterable[Event], policy: str = "kCacheLHSOnNarrowMul", limit: int = LIMIT
) -> list[Outcome]:
    """Return the outcomes of events, one each, up to the first segmentation fault.

    A run ends as "zeros" (nothing is multiplied), "hit" (packed before), "packed" (now, and kept),
    "packed once" (now, and not kept), or with a fault: "stale hit" (the packed weights are of other
    data that was at that address), "use after free" (packed from freed memory, or from data that
    came there since), "segmentation fault" (packed from memory that is no longer mapped). A free
    ends as "freed", or with the fault "double free". The cache holds ``limit`` bytes: the entry
    that was not used for longest goes first; an entry larger than the limit is kept alone. Raises
    ValueError with the event for an address allocated twice and for a layer that was not prepared
    or has nothing at its address, ValueError for an unknown policy and for a limit below 0.

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
    """Return one row per outcome, its fields as columns, the address in hexadecimal ("" for
    none)."""
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
        self.gone: dict[int | None, Allocate] = {}  # the data that was freed last, by its address
        # Each layer with the data of its weights, by the layer's name.
        self.layers: dict[str, tuple[Layer, str]] = {}
        # Entries by key, from the longest unused on.
        self.cache: dict[tuple[object, ...], _Entry] = {}
        self.held = 0  # bytes of all entries

    def step(self, number: int, event: Event) -> Outcome:
        """Return the outcome of one event."""
        name = packed = ""
        address = getattr(event, "address", None)
        ejected: tuple[str, ...] = ()
        match event:
            case Renew():
                self.cache, self.held, outcome = {}, 0, "emptied"
            case Allocate(_, data):
                if address in self.memory:
                    raise ValueError(
                        f"event {number}: got {data!r} at {address:#x}, where "
                        f"{self.at(address)!r} lies, allowed is a free address"
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
                        f"event {number}: got layer {name} with weights at "
                        f"{address:#x}, allowed is an address that holds some"
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
        """Return (outcome, the data by which the layer multiplies, the ejected data); ``weights``
        is the data with which it was prepared."""
        kept = caches(self.policy, layer)
        found_by = key(self.policy, layer)
        if kept and found_by in self.cache:
            entry = self.cache.pop(found_by)
            self.cache[found_by] = entry  # puts the entry last, as the one that was used latest
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
        """Put an entry into the cache; return the data that was ejected for it."""
        ejected = []
        while self.cache and self.held + entry.bytes > self.limit:
            oldest = self.cache.pop(next(iter(self.cache)))
            self.held -= oldest.bytes
            ejected.append(oldest.data)
        self.cache[by] = entry
        self.held += entry.bytes
        return tuple(ejected)

    def at(self, address: int | None) -> str:
        """Return the data at an address."""
        if address is None:
            return "not told"
        if address in self.memory:
            return self.memory[address].data
        return "freed"
