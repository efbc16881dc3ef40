"""What each bit moves: sets of bits are flipped, and those that move something are split until
every bit stands alone.

Sets that can only move different outputs share a run, each reading its own.  A run flips bits of
the buffer; an output or a hang comes out, and a journal keeps it.
"""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.analysis.scan.records import Probe
from npulab.analysis.scan.sites import Effect, View, as_set, site_of, view_of
from npulab.captures.journal import Journal, Trial
from npulab.quant.layers import Conv2D
from npulab.support.text import plural

FEW = 16  # bits that all move one output are flipped one by one
Runner = Callable[[bytes, Any], "np.ndarray | None"]


class Runs:
    """Runs of a device, counted; with a journal, runs that it has are not made again."""

    def __init__(
        self, data: bytes, run: Runner, probes: Sequence[Probe], votes: int, journal: Journal | None
    ) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self.name = hashlib.sha256(data).hexdigest()[:16]
        self.run, self.probes, self.votes, self.journal = run, probes, votes, journal
        self.count = self.hangs = 0
        self._first: dict[int, np.ndarray] = {}  # output with each input

    def ask(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        """The output with bits flipped and an input, by most votes and in the middle of what they
        gave."""
        done = [
            output
            for _ in range(self.votes)
            if (output := self._one(flips, index, reason)) is not None
        ]
        if 2 * len(done) <= self.votes:
            return None
        usual = Counter(output.shape for output in done).most_common(1)[0][0]
        same = [output for output in done if output.shape == usual]
        if len(same) == 1:
            return same[0]
        return np.sort(same, axis=0)[(len(same) - 1) // 2]

    def _one(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        names = tuple(_ranges(flips))
        if self.journal is not None and self.count < len(self.journal):
            trial = self.journal[self.count]
            if (trial.subset, trial.more.get("input"), trial.more.get("data")) != (
                names,
                index,
                self.name,
            ):
                raise ValueError(
                    f"journal: got {trial!r} with input {trial.more.get('input')} of data "
                    f"{trial.more.get('data')} as run {self.count}, allowed is what this scan "
                    "asks, "
                    f"{', '.join(names[:3]) or 'nothing changed'} with input {index} of data "
                    f"{self.name}"
                )
            output = _unpacked(trial)
        else:
            start = time.perf_counter()
            output = self._made(flips, index)
            seconds = time.perf_counter() - start
            if self.journal is not None:
                if output is None:
                    outcome = "hang"
                elif np.array_equal(output, self._first.get(index, output)):
                    outcome = "pass"
                else:
                    outcome = "fail"
                self.journal.add(
                    Trial(
                        names,
                        reason,
                        outcome,
                        seconds,
                        more={"input": index, "data": self.name, **_packed(output)},
                    )
                )
        if output is not None:
            self._first.setdefault(index, output)
        self.count += 1
        self.hangs += output is None
        return output

    def _made(self, flips: np.ndarray, index: int) -> np.ndarray | None:
        changed = self.bits.copy()
        changed[flips] ^= 1
        result = self.run(
            np.packbits(changed, bitorder="little").tobytes(), self.probes[index].given
        )
        if result is None:
            return None
        output = np.array(result)
        if output.dtype.kind not in "biuf" or not output.size:
            raise ValueError(
                f"run: got an output of {output.dtype} and shape {output.shape}, allowed are "
                "numbers, "
                "one or more"
            )
        return output


def _ranges(bits: np.ndarray) -> Iterator[str]:
    """Sorted bits as names of runs of them.

    >>> list(_ranges(np.array([3, 4, 5, 9])))
    ['3..5', '9']
    """
    if len(bits):
        for run in np.split(bits, np.flatnonzero(np.diff(bits) > 1) + 1):
            yield f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}"


def _packed(output: np.ndarray | None) -> dict[str, Any]:
    """An output as JSON has it."""
    if output is None:
        return {}
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(output).tobytes())).decode()
    return {"dtype": output.dtype.str, "shape": list(output.shape), "output": packed}


def _unpacked(trial: Trial) -> np.ndarray | None:
    """The output that a trial keeps; raises ValueError where it does not."""
    if trial.outcome == "hang":
        return None
    try:
        raw = zlib.decompress(base64.b64decode(trial.more["output"], validate=True))
        return np.frombuffer(raw, trial.more["dtype"]).reshape(trial.more["shape"])
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(
            f"journal: got a run without its output ({error}), allowed is a journal of a scan"
        ) from None


@dataclass(eq=False)
class Piece:
    """Bits that are flipped together, the outputs that they can move, and those that they moved."""

    bits: np.ndarray
    bound: int
    moved: int = 0
    alike: bool = False  # what it was split from moved the same outputs as both its halves


class Evidence:
    """What is known of each bit of a buffer, and the runs that tell more.

    ``kinds`` are "" where a bit may be flipped; ``effects`` and ``unmoved`` are what a bit by
    itself did under views, by the numbers of these.
    """

    def __init__(
        self, runs: Runs, layer: Conv2D | None, progress: Callable[[int, int], object] | None
    ) -> None:
        self.runs, self.layer, self.progress = runs, layer, progress
        self.bits, self.count = runs.bits, len(runs.bits)
        self.kinds = np.full(self.count, "", "U7")
        self.certain = np.ones(self.count, bool)
        self.together = np.zeros(self.count, bool)  # moved something with others, nothing alone
        self.fragile = np.zeros(self.count, bool)  # hung with others, not alone
        self.sets: list[tuple[int, ...]] = []  # bits that move something together and nothing alone
        self.hanging: list[tuple[int, ...]] = []  # bits that hang together and not alone
        self.joint: list[
            tuple[int, np.ndarray]
        ] = []  # by view, bits that moved something and no part of them did
        self.views: list[View] = []
        self.effects: dict[int, list[Effect]] = {}
        self.unmoved: dict[int, set[int]] = {}
        self.news: set[int] = set()  # bits with effects that nobody looked at yet
        self.notes: list[str] = []

    # Runs

    def ask(self, bits: np.ndarray, number: int, reason: str) -> np.ndarray | None:
        """The output of a view with some bits flipped; None for a hang."""
        view = self.views[number]
        return self._asked(np.setxor1d(bits, view.base), view.index, reason)

    def _asked(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        output = self.runs.ask(flips, index, reason)
        if self.progress is not None:
            self.progress(self.count - len(self.quiet), self.count)
        return output

    def look(self, index: int, base: np.ndarray | None = None) -> int:
        """The number of a new view of the buffer, with some bits flipped for good, through an
        input; asked twice.

        Raises ValueError where it hangs or does not repeat itself.
        """
        if base is None:
            base = np.zeros(0, np.int64)
        output = self._asked(base, index, "the buffer as it is")
        if output is None:
            raise ValueError(
                f"data: got a buffer that hangs as it is with input {index}, allowed is one that "
                "runs"
            )
        view = view_of(index, self.runs.probes[index], self.layer, base, output)
        self.views.append(view)
        self.repeat(view)
        return len(self.views) - 1

    def repeat(self, view: View) -> None:
        """Raises ValueError where the same buffer gives something else."""
        again = self._asked(view.base, view.index, "does it repeat itself")
        if again is None or view.moved(again).any():
            if again is None:
                how = "a hang"
            else:
                how = f"{view.moved(again).sum()} of {view.output.size} outputs changed"
            raise ValueError(
                f"run: got {how} where the same buffer ran again with input {view.index}, allowed "
                "is a "
                "device that repeats itself (votes=3 or more takes the middle of several runs)"
            )

    @property
    def quiet(self) -> np.ndarray:
        """Bits that may be flipped and have not moved anything yet."""
        seen = np.zeros(self.count, bool)
        seen[list(self.effects)] = True
        return np.flatnonzero((self.kinds == "") & ~seen)

    # What was seen

    def hung(self, bit: int) -> None:
        self.kinds[bit] = "hang"
        self.effects.pop(bit, None)

    def note(self, number: int, piece: Piece, output: np.ndarray) -> None:
        """Write down what a piece moved within its bound; of one bit also by how much."""
        view = self.views[number]
        piece.moved = as_set(view.moved(output)) & piece.bound
        bit = int(piece.bits[0])
        if len(piece.bits) > 1:
            # the bits of a bias can cancel to a single step that a weight hides: such a piece may
            # move its channel
            piece.moved |= sum(
                one
                for one in view.channels
                if 2 * (piece.moved & one).bit_count() > one.bit_count()
            )
        elif piece.moved:
            self.effects.setdefault(bit, []).append(view.effect(number, piece.moved, output))
            self.news.add(bit)
        else:
            self.unmoved.setdefault(bit, set()).add(number)
            self.news |= {bit} & self.effects.keys()

    def forget(self, number: int, piece: Piece) -> None:
        """Drop what the bits of a piece did by themselves in a view."""
        for bit in piece.bits.tolist():
            self.news.add(bit)
            left = [effect for effect in self.effects.pop(bit, ()) if effect.view != number]
            if left:
                self.effects[bit] = left

    # Splitting

    def refine(self, number: int, pieces: Iterable[Piece]) -> None:
        """Split pieces that moved something until every bit that moves something was flipped by
        itself.

        Bits that move something and whose parts move nothing are ``together``.
        """
        level = [piece for piece in pieces if piece.moved and len(piece.bits) > 1]
        apart: list[tuple[Piece, list[Piece]]] = []
        while level:
            pairs: list[tuple[Piece, Piece, Piece]] = []
            for piece in level:
                if (
                    piece.alike
                    or len(piece.bits) == 2
                    or (piece.moved.bit_count() == 1 and len(piece.bits) <= FEW)
                ):
                    apart.append(
                        (
                            piece,
                            [
                                Piece(piece.bits[i : i + 1], piece.moved)
                                for i in range(len(piece.bits))
                            ],
                        )
                    )
                else:
                    first, second = (Piece(part, piece.moved) for part in _halves(piece.bits))
                    pairs.append((piece, first, second))
            level = self.measure(number, [first for _, first, _ in pairs])
            for piece, first, second in pairs:
                if first.moved == 0 and len(second.bits) > 1:
                    second.moved = piece.moved
            level += self.measure(number, [second for _, _, second in pairs if not second.moved])
            for piece, first, second in pairs:
                first.alike = second.alike = first.moved == second.moved == piece.moved
                level += [half for half in (first, second) if half.moved]
                self.joined(number, piece, [first, second])
            level = [piece for piece in level if piece.moved and len(piece.bits) > 1]
        # bits of one bias share all outputs of their channel: waiting for each other saves the
        # others' runs
        self.measure(number, [single for _, singles in apart for single in singles])
        for piece, singles in apart:
            self.joined(number, piece, singles)

    def joined(self, number: int, piece: Piece, parts: Iterable[Piece]) -> None:
        """Write down that a piece moved something, where none of its parts did."""
        if any(part.moved for part in parts):
            return
        self.together[piece.bits] = True
        self.joint.append((number, piece.bits))

    def measure(self, number: int, pieces: Sequence[Piece]) -> list[Piece]:
        """Find what each piece moves; pieces with bounds apart share a run.  Gives parts of pieces
        that hung."""
        return [part for pack in _packs(pieces) for part in self._pack(number, pack)]

    def _pack(self, number: int, pack: list[Piece]) -> list[Piece]:
        output = self.ask(
            np.sort(np.concatenate([piece.bits for piece in pack])),
            number,
            f"{plural(len(pack), 'piece')} of up to {max(len(piece.bits) for piece in pack)} bits",
        )
        if output is None and len(pack) == 1:
            if len(pack[0].bits) == 1:
                self.hung(int(pack[0].bits[0]))
                return []
            halves = [Piece(part, pack[0].bound) for part in _halves(pack[0].bits)]
            return halves + self._apart(number, [[half] for half in halves])
        view = self.views[number]
        bound = sum(piece.bound for piece in pack)  # no two share an output
        if output is None:
            strays = 0
        else:
            strays = as_set(view.moved(output)) & ~bound
        if output is None or (strays and len(pack) > 1):
            middle = len(pack) // 2
            return self._apart(number, [pack[:middle], pack[middle:]])
        for piece in pack:
            piece.bound |= strays
            self.note(number, piece, output)
        # a control bit may move by itself what it did not together with others: it must not share a
        # run
        loud = [piece for piece in pack if self._loud(number, piece)]
        if len(pack) == 1 or not loud:
            return []
        for piece in pack:
            self.forget(number, piece)
        return self._apart(
            number, [*([piece] for piece in loud), [piece for piece in pack if piece not in loud]]
        )

    def _apart(self, number: int, packs: Iterable[list[Piece]]) -> list[Piece]:
        return [part for pack in packs if pack for part in self._pack(number, pack)]

    def _loud(self, number: int, piece: Piece) -> bool:
        """Whether a piece is one bit that did in a view what no weight or bias does."""
        return len(piece.bits) == 1 and any(
            effect.view == number and site_of(self.views[number], effect).role == "control"
            for effect in self.effects.get(int(piece.bits[0]), ())
        )


def _packs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces in as few packs as come out when each goes, widest first, to the first where nothing
    shares an output."""
    packs: list[list[Piece]] = []
    used: list[int] = []
    for piece in sorted(pieces, key=lambda piece: -piece.bound.bit_count()):
        for number, bound in enumerate(used):
            if not bound & piece.bound:
                packs[number].append(piece)
                used[number] |= piece.bound
                break
        else:
            packs.append([piece])
            used.append(piece.bound)
    return packs


def _halves(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted bits in two, at the boundary in their middle half that most powers of two divide."""
    quarter = len(bits) // 4
    inside = range(max(1, quarter), len(bits) - quarter + 1 if len(bits) > 2 else 2)
    # the highest bit in which two numbers differ: a multiple of so high a power of two lies between
    # them
    cut = max(
        inside,
        key=lambda i: (
            (int(bits[i - 1]) ^ int(bits[min(i, len(bits) - 1)])).bit_length(),
            -abs(2 * i - len(bits)),
        ),
    )
    return bits[:cut], bits[cut:]
