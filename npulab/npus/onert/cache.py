"""The cache of packed matrices of ruy, as a model: what is found by an address whose memory was
freed.

A layer of ONE multiplies by its weights with ruy, which packs them first.  The cache keeps what was
packed and finds it by the address of the weights, not by what lies there.  ONE frees weights once
they were packed, to have them in memory once only.  So what is packed must be found again: what is
not is packed anew from freed memory; and what lies at that address later must not be found.

Two forms of the cache: of 2020 (google/ruy:ruy/dispatch.h and prepacked_cache.cc, policies
kNoCache, the default, and kCacheLHSOnNarrowMul), found by kernel function and address; and the
present one (ruy/prepare_packed_matrices.cc, prepacked_cache.h), found by address, packed layout and
zero point, which ONE now uses with kAlwaysCache for weights (compute/cker: NeonCpuBackendGemm).
Clocks are taken as exact, so that no two entries are of the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from npulab.npus.kit import pd, refuse_if

# ruy/prepacked_cache.h: kDefaultEjectionThresholdBytes, now kDefaultMaxBuffersBytes
LIMIT = 2**28
# columns of the result that kCacheLHSOnNarrowMul takes at most; ONE's FullyConnectedLayer::prepare
# too
NARROW = 4
SEVERAL = 4  # kernels side by side that kCacheIfSignificantSpeedup takes at most
POLICIES = {
    "kNoCache": "2020",
    "kCacheLHSOnNarrowMul": "2020",
    "kNeverCache": "present",
    "kCacheIfLargeSpeedup": "present",
    "kCacheIfSignificantSpeedup": "present",
    "kAlwaysCache": "present",
}
# glibc malloc.c: a block of its own mapping begins a header of two words (of 4 or 8 bytes) behind
# the start of a page
PAGE, HEADERS = 4096, (8, 16)
FAULTS = ("stale hit", "use after free", "segmentation fault", "double free")


@dataclass(frozen=True)
class Layer:
    """A fully connected layer as ruy sees it.

    ``address`` is where its weights ``(units, depth)`` lie, None where it is not told (and nothing
    is ever freed there); ``columns`` those of the other side, batches.  ``block`` are rows and
    columns of the kernel on the side of the weights, ``other`` columns on the other side;
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
        """Rows and columns of the packed weights, whole blocks of both.

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
    """Data comes to an address; ``mapped`` says that it is a mapping of its own, which is gone when
    it is freed."""

    address: int
    data: str
    mapped: bool | None = None


@dataclass(frozen=True)
class Prepare:
    """A layer takes the address of what lies there as its weights."""

    layer: Layer


@dataclass(frozen=True)
class Run:
    """A layer runs; an input of ``zeros`` gives the bias without a multiplication."""

    name: str
    zeros: bool = False


@dataclass(frozen=True)
class Free:
    """What lies at an address is freed."""

    address: int


@dataclass(frozen=True)
class Renew:
    """Another context: its cache is empty."""


Event = Allocate | Prepare | Run | Free | Renew


class Outcome(NamedTuple):
    """What became of an event.

    ``at`` is what lies at the address then ("freed" for nothing any more), ``packed`` what the
    packed weights were made of that were multiplied, ``ejected`` the weights whose entries made
    room, ``entries`` and ``bytes`` what the cache holds afterwards.  ``fault`` says that numbers
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
    """Whether an address looks like a mapping of its own, as glibc makes it for 128 KiB and more.

    One in 256 (64 bits) or 512 (32 bits) addresses of the heap looks like that too.

    >>> likely_mapped(0xb541f008), likely_mapped(0x754a28)
    (True, False)
    """
    return address % PAGE in HEADERS


def caches(policy: str, layer: Layer) -> bool:
    """Whether a policy keeps the packed weights of a layer.

    kCacheIfLargeSpeedup does where the other side is no wider than a kernel,
    kCacheIfSignificantSpeedup than four. Raises ValueError for an unknown policy.

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
    """What packed weights are found by: of 2020 not their shape, now that of the packed ones."""
    if POLICIES[policy] == "2020":
        return layer.kernel, layer.address
    return layer.address, layer.packed_shape, layer.block, layer.zero_point


def replay(
    events: Iterable[Event], policy: str = "kCacheLHSOnNarrowMul", limit: int = LIMIT
) -> list[Outcome]:
    """What becomes of events, one outcome each, up to the first segmentation fault.

    Of a run: "zeros" (nothing is multiplied), "hit" (packed before), "packed" (now, and kept),
    "packed once" (now, and not kept), and the faults "stale hit" (what is found was packed from
    other weights at that address), "use after free" (packed from freed memory, or from what came
    there since), "segmentation fault" (packed from memory that is mapped no more).  Of a free:
    "freed", or the fault "double free".  The cache holds ``limit`` bytes: the entry that was not
    used for longest goes first, and one that is larger than all is kept alone. Raises ValueError
    naming the event for what cannot be: an address given twice, a layer that was not prepared or
    takes nothing as its weights; for an unknown policy, and a limit below 0.

    >>> one, two = Layer("one", 0x1000, 8, 4), Layer("two", 0x1000, 8, 4)
    >>> steps = [Allocate(0x1000, "a"), Prepare(one), Run("one"), Free(0x1000), Run("one"), Allocate(0x1000, "b"),
    ...          Prepare(two), Run("two")]
    >>> [(step.outcome, step.at, step.packed) for step in replay(steps) if step.what == "run"]
    [('packed', 'a', 'a'), ('hit', 'freed', 'a'), ('stale hit', 'b', 'a')]
    """
    refuse_if(limit < 0, "limit", limit, "are 0 bytes or more")
    machine = _Machine(policy, limit)
    out: list[Outcome] = []
    for number, event in enumerate(events):
        out.append(machine.step(number, event))
        if out[-1].outcome == "segmentation fault":
            break
    return out


def table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """One row per outcome, its parts as columns, the address in hexadecimal ("" for none)."""
    rows = [
        {**step._asdict(), "address": "" if step.address is None else f"{step.address:#x}"}
        for step in outcomes
    ]
    return pd.DataFrame(rows, columns=Outcome._fields)


class _Machine:
    """Memory, prepared layers and the cache while events are replayed."""

    def __init__(self, policy: str, limit: int) -> None:
        caches(policy, Layer("", None))  # an unknown policy is refused before anything is done
        self.policy, self.limit = policy, limit
        self.memory: dict[int | None, Allocate] = {}
        self.gone: dict[int | None, Allocate] = {}  # freed last at an address
        self.layers: dict[str, tuple[Layer, str]] = {}  # with what its weights are
        self.cache: dict[tuple[object, ...], _Entry] = {}  # the oldest use first
        self.held = 0  # bytes of all entries

    def step(self, number: int, event: Event) -> Outcome:
        """What becomes of one event."""
        name, packed, address = "", "", getattr(event, "address", None)
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
                if address in self.memory:
                    outcome = "freed"
                else:
                    outcome = "double free"
                if address in self.memory:
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
        if isinstance(event, Renew):
            at = ""
        else:
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
        """(outcome, what the layer multiplies by, what was ejected); ``weights`` is what it was
        prepared with."""
        kept, by = caches(self.policy, layer), key(self.policy, layer)
        if kept and by in self.cache:
            entry = self.cache[by] = self.cache.pop(by)  # its use is the latest now
            return "hit" if entry.data == weights else "stale hit", entry.data, ()
        now, freed = self.at(layer.address), self.gone.get(layer.address)
        if now == "freed" and freed:
            mapped = freed.mapped
            if freed.mapped is None:
                mapped = likely_mapped(freed.address)
            if mapped:
                return "segmentation fault", "", ()
        ejected = self.keep(by, _Entry(now, layer.packed)) if kept else ()
        if kept:
            outcome = "packed"
        else:
            outcome = "packed once"
        return outcome if now == weights else "use after free", now, ejected

    def keep(self, by: tuple[object, ...], entry: _Entry) -> tuple[str, ...]:
        """Put an entry into the cache; what went for it."""
        ejected = []
        while self.cache and self.held + entry.bytes > self.limit:
            oldest = self.cache.pop(next(iter(self.cache)))
            self.held -= oldest.bytes
            ejected.append(oldest.data)
        self.cache[by] = entry
        self.held += entry.bytes
        return tuple(ejected)

    def at(self, address: int | None) -> str:
        """What lies at an address."""
        if address is None:
            return "not told"
        if address in self.memory:
            return self.memory[address].data
        return "freed"
