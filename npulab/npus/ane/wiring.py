"""How tasks hang together: whose result lies where, in memory by base address and offset, or in
L2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.captures.target import Unsupported
from npulab.npus.ane.memory import Surface
from npulab.quant.layers import Concat, Elementwise, Layer, Network


class Place(NamedTuple):
    """A tensor in memory: base address by number, byte behind it, its sizes."""

    bar: int
    offset: int
    surface: Surface


@dataclass
class Wiring:
    """Layers as they are found, in order; a node is a layer's number or, below 0, an input of the
    network."""

    inputs: tuple[int, ...]
    layers: list[Layer] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    memory: dict[int, list[tuple[Place, int]]] = field(default_factory=dict)
    shapes: dict[int, Surface] = field(default_factory=dict)

    def add(self, layer: Layer, sources: tuple[int, ...]) -> int:
        self.layers.append(layer)
        self.sources.append(sources)
        return len(self.layers) - 1


def resolve(wired: Wiring, place: Place | None, in_l2: int | None, task: int, surface: Surface) -> int:
    """The node whose value a source is."""
    if place is None:
        if in_l2 is None or wired.shapes.get(in_l2, surface) != surface:
            raise Unsupported(f"task {task}: L2.SourceCfg.SourceType: got a source in L2, no task before left one of "
                               f"{shape_of(surface)} there")
        return in_l2
    if place.bar in wired.memory:
        return whole(wired, place.bar, None, place)[0]
    node = -1 - wired.inputs.index(place.bar)
    if place.offset or wired.shapes.setdefault(node, place.surface) != place.surface:
        raise Unsupported(f"task {task}: TileDMASrc.BaseAddr: got {shape_of(place.surface)} from byte "
                           f"{place.offset:#x} of an input, covered are whole tensors")
    return node


def write(wired: Wiring, place: Place, node: int, task: int) -> None:
    """Note where a task puts a result; Unsupported where another one's lies, or an input."""
    parts = wired.memory.setdefault(place.bar, [])
    for other, _ in parts:
        if place.offset < other.offset + other.surface.bytes and other.offset < place.offset + place.surface.bytes:
            raise Unsupported(f"task {task}: TileDMADst.BaseAddr: got bytes {place.offset:#x} to "
                               f"{place.offset + place.surface.bytes:#x}, which another task wrote before")
    if place.bar in wired.inputs:
        raise Unsupported(f"task {task}: Header.Header[8].WBase: got {place.bar}, an input")
    parts.append((place, node))


def whole(wired: Wiring, bar: int, last: int | None, wanted: Place) -> tuple[int, Surface]:
    """The node and the sizes of what tasks wrote at a base address: one result, or several one
    behind another.

    With ``last`` all that was written counts, else what ``wanted`` names.
    """
    parts = sorted(wired.memory[bar], key=lambda one: one[0].offset)
    end = wanted.offset + wanted.surface.bytes
    chosen = [one for one in parts if last is not None or wanted.offset <= one[0].offset < end]
    places = [place for place, _ in chosen]
    total = Surface(wanted.surface.height, wanted.surface.width, sum(one.surface.channels for one in places))
    begin = 0 if last is not None else wanted.offset
    joined = all(place.surface[:2] == total[:2] for place in places) and \
        [place.offset for place in places] == [begin + total.plane * sum(one.surface.channels for one in places[:i])
                                               for i in range(len(places))]
    if not chosen or not joined or (last is None and total != wanted.surface):
        got = ", ".join(f"{shape_of(one.surface)} at {one.offset:#x}" for one in places)
        raise Unsupported(f"base address {bar}: got {got or 'nothing'} written, covered are parts of "
                           f"{shape_of(wanted.surface)} one behind another from {begin:#x} on")
    if len(chosen) == 1:
        return chosen[0][1], total
    joint = Concat(tuple(shape_of(one.surface) for one in places), 2)
    return wired.add(joint, tuple(node for _, node in chosen)), total


def network(wired: Wiring, node: int) -> Layer | Network:
    """The layer, or layers, whose result a node is."""
    if node != len(wired.layers) - 1:
        raise Unsupported(f"tasks: got a result that is not that of the last of {len(wired.layers)} layers")
    if len(wired.layers) == 1 and wired.sources[0] == tuple(-1 - i for i in range(len(wired.inputs))):
        return wired.layers[0]
    (layer, *more), (sources, *_) = wired.layers, wired.sources
    if not more and sources == (-2, -1) and isinstance(layer, Elementwise) and layer.kind != "subtract" \
            and layer.prescale == 1:
        return layer
    return Network(tuple(wired.layers), tuple(wired.sources))


def shape_of(surface: Surface) -> tuple[int, int, int]:
    """(H, W, C)."""
    return surface.height, surface.width, surface.channels
