"""Bits that hang, alone or with others, found with few hangs."""

from __future__ import annotations

import math

import numpy as np

from npulab.analysis.scan.evidence import Evidence, Piece

LEAST_GROUP, GROUPS = 64, 16  # bits of a group of flips, and how many groups of one kind a buffer has


def find_hangs(known: Evidence, hang_cost: float, most_hangs: float) -> list[Piece]:
    """Groups of bits that run, from one bit up to a share of the buffer; bits that hang are found
    one by one.

    Ones and zeros are flipped in groups of their own: all flips of a run then push a weight the
    same way, so that they cannot cancel.  A group doubles where the one before it ran; after a bit
    that hangs the next is one bit again, since hanging bits come in runs.
    """
    share = _prefix_share(hang_cost)
    widest = widest_group(known.count)
    groups: list[Piece] = []
    for value in (1, 0):
        left = np.flatnonzero(known.bits == value)
        span = 1
        while len(left):
            if known.runs.hangs >= most_hangs:
                known.kinds[left], known.certain[left] = "unknown", False
                break
            end = max(1, int(np.searchsorted(left, (left[0] // span + 1) * span)))
            if _together(known, groups, left[:end]):
                left, span = left[end:], min(2 * span, widest)
            else:
                left, span = _first_hanging(known, groups, left[:end], left[end:], share, most_hangs), 1
    return groups


def widest_group(count: int) -> int:
    """The most bits of a group, of as many as a buffer has."""
    return max(LEAST_GROUP, 2 ** math.ceil(math.log2(max(count / GROUPS, 1))))


def _prefix_share(hang_cost: float) -> float:
    """The share of bits that hang together to try next, so that a run and what its hang costs tell
    most."""
    share = np.linspace(0.02, 0.5, 97)
    told = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return float(share[np.argmin((1 + share * hang_cost) / told)])


def _together(known: Evidence, groups: list[Piece], bits: np.ndarray) -> bool:
    """Whether bits run together; if so they are a group."""
    output = known.ask(bits, 0, "a group")
    if output is None:
        if len(bits) == 1:
            known.hung(int(bits[0]))
        return False
    groups.append(Piece(bits, known.views[0].everything))
    known.note(0, groups[-1], output)
    return True


def _first_hanging(known: Evidence, groups: list[Piece], bad: np.ndarray, rest: np.ndarray, share: float,
                   most_hangs: float) -> np.ndarray:
    """Find the first bit that hangs of those that hang together; gives the bits behind it."""
    behind, measured = [rest], True
    while len(bad) > 1 and known.runs.hangs < most_hangs:
        cut = min(max(1, round(share * len(bad))), len(bad) - 1)
        measured = not _together(known, groups, bad[:cut])
        if measured:
            behind.append(bad[cut:])
        bad = bad[:cut] if measured else bad[cut:]
    if len(bad) > 1 or (not measured and known.runs.hangs >= most_hangs):
        known.kinds[bad], known.certain[bad] = "hang", False
    elif not measured:
        _together(known, groups, bad)
    return np.concatenate(behind[::-1])


def set_apart(known: Evidence, number: int, bits: np.ndarray) -> None:
    """Of bits that hang together and not alone make one that takes part ``fragile``: it stays out
    of later runs."""
    first = _shortest(known, number, bits, bits[:0])
    one, before = bits[first - 1], bits[:first - 1]
    second = _shortest(known, number, before, bits[first - 1:first])
    # it is the one that hangs with still others, or else the other
    if second and known.ask(np.sort(np.append(np.delete(before, second - 1), one)), number, "which hang") is not None:
        one = before[second - 1]
    known.together[one] = known.fragile[one] = True


def _shortest(known: Evidence, number: int, bits: np.ndarray, beside: np.ndarray) -> int:
    """How many bits from the first on hang together with others; all do."""
    least, most = 0, len(bits)
    while most - least > 1:
        middle = (least + most) // 2
        if known.ask(np.sort(np.concatenate([bits[:middle], beside])), number, "which hang together") is None:
            most = middle
        else:
            least = middle
    return most
