"""The scan that follows from all evidence: a kind for every bit, and a place for every data bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.scan.evidence import Evidence
from npulab.analysis.scan.records import CHANNEL, NO_PLACE, NOWHERE, ORDER, ROW, SIGN, Scan
from npulab.analysis.scan.sites import SEVERAL, Effect, View
from npulab.analysis.scan.weights import Weights
from npulab.captures.target import GUESS
from npulab.support.text import plural

# If more than this share of the data bits changes a weight by an amount that is no power of two,
# the output step that was given is probably wrong.
ODD = 1 / 10


def result(known: Evidence, weights: Weights) -> Scan:
    """Return the scan that follows from the evidence."""
    hanging = []
    for members in dict.fromkeys(known.hanging):
        if known.fragile[list(members)].any():
            hanging.append(members)
    kinds, certain, quiet = known.kinds.copy(), known.certain.copy(), known.quiet
    kinds[quiet] = np.where(known.fragile[quiet], "control", "dead")
    for members in hanging:
        kinds[np.intersect1d(members, quiet)] = "control"
    certain[quiet] = False  # a bit that moved nothing here may move something in another buffer
    known.notes += _notes(known, hanging)
    for bit in known.effects.keys() & weights.sites.keys():
        kinds[bit] = "data"
        if weights.sites[bit].role == "control":
            kinds[bit] = "control"
    roles, places = _places_of_bits(known, weights)
    odd = [bit for bit in known.effects if roles[bit] and not weights.orders[bit]]
    data = np.count_nonzero(kinds == "data")
    if len(odd) > ODD * data:
        odd = []
        known.notes.append(
            "data bits change a weight by amounts that are no powers of two: is the step right?"
        )
    odd += _doubles(places, roles)
    kinds[odd] = "control"
    certain[odd] = False
    roles[odd] = ""
    places[odd] = NO_PLACE
    lengths = _lengths(known, kinds, roles)
    kinds[lengths] = "length"
    saturated = np.mean([view.saturated for view in known.views])
    runs = known.runs
    return Scan(
        kinds,
        certain,
        roles,
        places,
        runs.count,
        runs.hangs,
        float(saturated),
        tuple(dict.fromkeys(known.notes)),
        len(runs.probes),
        (*known.sets, *hanging),
        runs.guessed,
    )


def _notes(known: Evidence, hanging: Sequence[tuple[int, ...]]) -> list[str]:
    """Return sentences on what the runs could not show of bits that moved nothing alone."""
    notes = []
    if known.runs.guessed:
        notes.append(f"{plural(known.runs.guessed, 'run')} hung on the simulated device, {GUESS}")
    quiet = known.quiet
    fragile = known.fragile[quiet]
    count = np.count_nonzero(fragile)
    if count:
        notes.append(f"{count} bits hang with others and do nothing alone")
    count = np.count_nonzero(known.together[quiet] & ~fragile)
    if count:
        notes.append(f"{count} bits are among those that move something together and nothing alone")
    if len(known.runs.probes) < 2 and len(quiet):
        notes.append("dead bits were looked at with one input only")
    if all(view.saturated for view in known.views):
        notes.append(
            "under every input some outputs are at the end of their type: a bit that moves "
            "only these outputs looks dead"
        )
    for members in hanging:
        notes.append(f"bits {', '.join(map(str, members))} hang the device together and not alone")
    for members in known.sets:
        bits = ", ".join(map(str, members))
        notes.append(f"bits {bits} move something together and nothing alone")
    return notes


def _places_of_bits(known: Evidence, weights: Weights) -> tuple[Array, Array]:
    """Return roles ``(N,)`` and places ``(N, 6)`` of all bits, as ``Scan`` has them."""
    roles = np.full(known.count, "", "U6")
    places = np.tile(np.array(NO_PLACE), (known.count, 1))
    relative = _relative(known, weights)
    for bit in known.effects.keys() & weights.sites.keys():
        site = weights.sites[bit]
        if site.role == "control":
            continue
        place = places[bit]
        place[CHANNEL] = site.channel
        place[SIGN] = weights.sign(bit)
        if site.role == "either":
            continue
        roles[bit] = site.role
        if site.role == "weight" and known.layer is not None:
            taps = *known.layer.kernel, known.layer.input_shape[2]
            place[ROW:ORDER] = np.unravel_index(site.tap, taps)
        orders = weights.orders[bit]
        place[ORDER] = relative.get(bit, NOWHERE)
        if len(orders) == 1:
            place[ORDER] = orders[0]
    return roles, places


def _relative(known: Evidence, weights: Weights) -> dict[int, int]:
    """Return the order of each bit that only moved outputs whose step is not known, by bit. The
    smallest change by a bit of any weight has order 0, and so has the smallest one by a bit of any
    bias.
    """
    orders: dict[int, int] = {}
    for role in ("weight", "bias"):
        sizes: dict[int, float] = {}
        for bit, effects in known.effects.items():
            if weights.sites[bit].role != role:
                continue
            largest = 0.0
            for effect in effects:
                view = known.views[effect.view]
                if view.step is None and SEVERAL not in view.reads[effect.places]:
                    largest = max(largest, _largest_change(view, effect, role))
            if largest:
                sizes[bit] = largest
        least = min(sizes.values(), default=1.0)
        for bit, size in sizes.items():
            orders[bit] = round(math.log2(size / least))
    return orders


def _largest_change(view: View, effect: Effect, role: str) -> float:
    """Return the largest change, in output steps, of an output that is not at the end of its type.
    For a weight the change is divided by the input that the weight is multiplied with.
    """
    kept = ~effect.cut
    change = np.abs(effect.change[kept])
    if role == "weight":
        amplitude = view.amplitude[effect.places][kept]
        change = change / np.abs(amplitude)
    return float(np.max(change, initial=0.0))


def _doubles(places: Array, roles: Array) -> list[int]:
    """Return the bits that have the place and order of another bit, and lie apart from the other
    bits of their weight or bias.
    """
    same_place = np.all(places[1:, :ORDER] == places[:-1, :ORDER], axis=1)
    alike = same_place & (roles[1:] == roles[:-1])
    neighbours = np.zeros(len(roles), int)
    neighbours[:-1] += alike
    neighbours[1:] += alike
    claims: dict[tuple[Any, ...], list[int]] = {}
    for bit in np.flatnonzero(places[:, ORDER] >= 0).tolist():
        claim = (roles[bit], *places[bit, : ORDER + 1])
        claims.setdefault(claim, []).append(bit)
    doubles: list[int] = []
    for bits in claims.values():
        most = neighbours[bits].max()
        doubles += [bit for bit in bits if neighbours[bit] < most]
    return doubles


def _lengths(known: Evidence, kinds: Array, roles: Array) -> list[int]:
    """The control bits of kind ``length``: they move outputs of weights that lie after them in the
    stream, and none of a weight before them.

    A control bit that lies before all weights of its channels is ``length`` only if an earlier
    ``length`` bit moves these channels too.
    """
    # for each output of each view, the first and the last bit that moves it as a weight
    first = [np.full(view.output.size, known.count) for view in known.views]
    last = [np.full(view.output.size, -1) for view in known.views]
    for bit, effects in known.effects.items():
        if kinds[bit] != "data" or roles[bit] == "bias":
            continue
        for view, _, places, *_ in effects:
            first[view][places] = np.minimum(first[view][places], bit)
            last[view][places] = np.maximum(last[view][places], bit)
    found: dict[int, set[int]] = {}  # for each length bit: the channels that it moves
    for bit in sorted(known.effects):
        if kinds[bit] != "control":
            continue
        mine: set[int] = set()
        after, follows, moves_earlier = 0, False, False
        for view, _, places, *_ in known.effects[bit]:
            channel = known.views[view].channel
            earlier = (last[view] >= 0) & (last[view] < bit)
            later = (first[view] > bit) & (first[view] < known.count)
            moved = np.unique(channel[places])
            mine |= set(moved.tolist())
            moves_earlier |= bool(earlier[places].any())
            follows |= bool((earlier & np.isin(channel, moved)).any())
            after = max(after, int(np.count_nonzero(later[places])))
        if moves_earlier or after < 2:
            continue
        if follows or any(mine <= channels for channels in found.values()):
            found[bit] = mine
    return list(found)
