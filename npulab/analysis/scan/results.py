"""What the evidence amounts to: a kind for every bit, a place for every bit of data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npulab.analysis.scan.evidence import Evidence
from npulab.analysis.scan.records import NO_PLACE, NOWHERE, Scan
from npulab.analysis.scan.sites import SEVERAL
from npulab.analysis.scan.weights import Weights

ODD = (
    1 / 10
)  # share of the data bits above which changes by no power of two are not those of control bits


def result(known: Evidence, weights: Weights) -> Scan:
    """What was found."""
    kinds, certain, quiet = known.kinds.copy(), known.certain.copy(), known.quiet
    kinds[quiet] = np.where(known.fragile[quiet], "control", "dead")
    hanging = [
        members for members in dict.fromkeys(known.hanging) if known.fragile[list(members)].any()
    ]
    for members in hanging:
        alone = np.intersect1d(members, quiet)
        kinds[alone] = "control"
    certain[quiet] = False  # of what moved nothing nobody knows what it does elsewhere
    for said, which in (
        ("hang with others and do nothing alone", known.fragile),
        (
            "are among those that move something together and nothing alone",
            known.together & ~known.fragile,
        ),
    ):
        if which[quiet].any():
            known.notes.append(f"{np.count_nonzero(which[quiet])} bits {said}")
    if len(known.runs.probes) < 2 and len(quiet):
        known.notes.append("dead bits were looked at with one input only")
    if all(view.saturated for view in known.views):
        known.notes.append(
            "under every input some outputs are at the end of their type: what moves those alone "
            "looks dead"
        )
    for members in hanging:
        known.notes.append(f"bits {', '.join(map(str, members))} hang together and not alone")
    for members in known.sets:
        known.notes.append(
            f"bits {', '.join(map(str, members))} move something together and nothing alone"
        )
    roles, places = np.full(known.count, "", "U6"), np.tile(np.array(NO_PLACE), (known.count, 1))
    relative = _relative(known, weights)
    sites = {bit: site for bit, site in weights.sites.items() if bit in known.effects}
    for bit, site in sites.items():
        if site.role == "control":
            kinds[bit] = "control"
        else:
            kinds[bit] = "data"
        if site.role == "control":
            continue
        places[bit, 0], places[bit, 5] = site.channel, weights.sign(bit)
        if site.role == "either":
            continue
        roles[bit] = site.role
        if site.role == "weight" and known.layer is not None:
            places[bit, 1:4] = np.unravel_index(
                site.tap, (*known.layer.kernel, known.layer.input_shape[2])
            )
        orders = weights.orders[bit]
        if len(orders) == 1:
            places[bit, 4] = orders[0]
        else:
            places[bit, 4] = relative.get(bit, NOWHERE)
    odd = [bit for bit in sites if roles[bit] and not weights.orders[bit]]
    if len(odd) > ODD * np.count_nonzero(kinds == "data"):
        odd = []
        known.notes.append(
            "data bits change their weight by what is no power of two: is the step right?"
        )
    for other in (*_doubles(places, roles), *odd):
        kinds[other], certain[other], roles[other] = "control", False, ""
        places[other] = NO_PLACE
    kinds[
        _lengths(
            known,
            [bit for bit in sorted(known.effects) if kinds[bit] == "control"],
            [bit for bit in known.effects if kinds[bit] == "data" and roles[bit] != "bias"],
        )
    ] = "length"
    return Scan(
        kinds,
        certain,
        roles,
        places,
        known.runs.count,
        known.runs.hangs,
        float(np.mean([view.saturated for view in known.views])),
        tuple(dict.fromkeys(known.notes)),
        len(known.runs.probes),
        (*known.sets, *hanging),
    )


def _doubles(places: np.ndarray, roles: np.ndarray) -> list[int]:
    """Bits that act as a bit of a weight or bias which another bit is that lies beside the rest of
    it."""
    alike = np.all(places[1:, :4] == places[:-1, :4], axis=1) & (roles[1:] == roles[:-1])
    beside = np.append(alike, False).astype(int) + np.append(False, alike)
    claims: dict[tuple[Any, ...], list[int]] = {}
    for bit in np.flatnonzero(places[:, 4] >= 0):
        claims.setdefault((roles[bit], *places[bit, :5]), []).append(int(bit))
    return [bit for bits in claims.values() for bit in bits if beside[bit] < beside[bits].max()]


def _relative(known: Evidence, weights: Weights) -> dict[int, int]:
    """Orders against the smallest change that any weight, or any bias, shows, where no step is
    known."""
    out: dict[int, int] = {}
    for role in ("weight", "bias"):
        sizes: dict[int, float] = {}
        for bit, effects in known.effects.items():
            for effect in effects if weights.sites[bit].role == role else ():
                view, clear = known.views[effect.view], ~effect.cut
                if view.step is None and clear.any() and SEVERAL not in view.reads[effect.places]:
                    amplitude = 1.0
                    if role == "weight":
                        amplitude = view.amplitude[effect.places][clear]
                    sizes[bit] = max(
                        sizes.get(bit, 0.0), float(np.abs(effect.change[clear] / amplitude).max())
                    )
        least = min(sizes.values(), default=1.0)
        out |= {bit: round(math.log2(size / least)) for bit, size in sizes.items() if size > 0}
    return out


def _lengths(known: Evidence, bits: list[int], weights: list[int]) -> list[int]:
    """The bits that leave the outputs of weights before them and move those behind, in the channels
    they move.

    Where all weights of its channels lie behind a bit, it must follow another that moves these
    channels too.
    """
    # of each output of each view, the first and the last bit that moves it as a weight
    first = [np.full(view.output.size, known.count) for view in known.views]
    last = [np.full(view.output.size, -1) for view in known.views]
    for bit in weights:
        for effect in known.effects[bit]:
            first[effect.view][effect.places] = np.minimum(first[effect.view][effect.places], bit)
            last[effect.view][effect.places] = np.maximum(last[effect.view][effect.places], bit)
    found: dict[int, set[int]] = {}  # the channels that each moves
    for bit in bits:
        effects = known.effects[bit]
        earlier = [(last[effect.view] >= 0) & (last[effect.view] < bit) for effect in effects]
        if any(one[effect.places].any() for one, effect in zip(earlier, effects, strict=True)):
            continue
        channel = [known.views[effect.view].channel for effect in effects]
        moved = [np.unique(of[effect.places]) for of, effect in zip(channel, effects, strict=True)]
        behind = max(
            np.count_nonzero(
                (first[effect.view][effect.places] > bit)
                & (first[effect.view][effect.places] < known.count)
            )
            for effect in effects
        )
        before = any(
            (one & np.isin(of, mine)).any()
            for one, of, mine in zip(earlier, channel, moved, strict=True)
        )
        mine = set(np.concatenate(moved).tolist())
        if behind > 1 and (before or any(mine <= other for other in found.values())):
            found[bit] = mine
    return list(found)
