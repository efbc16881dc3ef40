"""The outputs that each bit moves: sets of bits are flipped, and a set that moves something is
split until every bit was flipped alone.

Sets that cannot move a common output are flipped in the same run; each set is then judged by its
own outputs. A run flips bits of the buffer and gives an output or a hang; a journal keeps the runs.
"""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.scan.records import Probe
from npulab.analysis.scan.sites import Effect, View, as_set, site_of, view_of
from npulab.captures.journal import Guessed, Journal, Trial
from npulab.quant.layers import Conv2D
from npulab.support.executors import AHEAD, Pool, Started
from npulab.support.text import plural

# If a set of at most this many bits moves exactly one output, it is split into single bits, not
# into halves.
FEW = 16
Runner = Callable[[bytes, Any], "Array | Guessed | None"]
Asked = tuple[bytes, Any]  # a run: the bytes of the buffer, and the input


class Runs:
    """The runs of a device with changed copies of a buffer, and their number. A run that the
    journal holds is not made again.
    """

    def __init__(
        self,
        data: bytes,
        run: Runner,
        probes: Sequence[Probe],
        votes: int,
        journal: Journal | None,
        facts: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self.name = hashlib.sha256(data).hexdigest()[:16]
        self.run, self.probes, self.votes, self.journal = run, probes, votes, journal
        self.facts = facts
        self.count = self.hangs = self.guessed = 0
        # turns the result of a run into the array of outputs
        self.read: Callable[[Any], Array] = np.array
        # the workers that make runs; None without workers
        self.pool: Pool[Asked, Any] | None = None
        # the first output that each input gave, by the index of the input
        self._first: dict[int, Array] = {}
        # runs that workers have begun, by the flipped bits and the index of the input
        self._begun: dict[tuple[bytes, int], deque[Started[Asked, Any]]] = {}

    def begin(self, sets: Iterable[Array], index: int) -> None:
        """Let workers begin the runs that ``ask`` will need next: one run for each of ``sets``,
        with its bits flipped.

        Nothing is begun without workers, or as long as runs come from the journal.
        """
        if self.pool is None or (self.journal is not None and self.count < len(self.journal)):
            return
        for flips in sets:
            begun = self._begun.setdefault((flips.tobytes(), index), deque())
            for _ in range(self.votes):
                begun.append(self.pool.start(self._asked(flips, index)))

    def _asked(self, flips: Array, index: int) -> Asked:
        """The changed copy of the buffer, and the input."""
        changed = self.bits.copy()
        changed[flips] ^= 1
        return np.packbits(changed, bitorder="little").tobytes(), self.probes[index].given

    def _made(self, flips: Array, index: int) -> Any:
        """The result of a run, made here or by a worker."""
        if self.pool is None:
            return self.run(*self._asked(flips, index))
        begun = self._begun.get((flips.tobytes(), index))
        if begun:
            return begun.popleft().result()
        return self.pool.start(self._asked(flips, index)).result()

    def ask(self, flips: Array, index: int, reason: str) -> Array | None:
        """The output with the bits ``flips`` flipped and the input ``index``.

        Of several runs (votes) it is the median, of two middle values the lower one, over the
        outputs of the most common shape. None for a hang: at least half of the runs hung.
        """
        outputs = []
        for _ in range(self.votes):
            output = self._vote(flips, index, reason)
            if output is not None:
                outputs.append(output)
        if 2 * len(outputs) <= self.votes:
            return None
        usual = Counter(output.shape for output in outputs).most_common(1)[0][0]
        same = [output for output in outputs if output.shape == usual]
        if len(same) == 1:
            return same[0]
        return np.sort(same, axis=0)[(len(same) - 1) // 2]

    def _vote(self, flips: Array, index: int, reason: str) -> Array | None:
        """The output of one run, which is taken from the journal if the journal has it; None for a
        hang."""
        names = tuple(_names_of_bits(flips))
        if self.journal is not None and self.count < len(self.journal):
            trial = self.journal[self.count]
            output, guessed = self._kept(trial, names, index), trial.guessed
        else:
            start = time.perf_counter()
            output, guessed = self._run_device(flips, index)
            seconds = time.perf_counter() - start
            if self.journal is not None:
                outcome = self._outcome(output, guessed, index)
                more = {"input": index, "data": self.name, **_as_json(output), **self.facts()}
                self.journal.add(Trial(names, reason, outcome, seconds, more=more))
        if output is not None:
            self._first.setdefault(index, output)
        self.count += 1
        self.hangs += output is None
        self.guessed += guessed
        return output

    def _outcome(self, output: Array | None, guessed: bool, index: int) -> str:
        """The outcome of a run for the journal: "pass" if the output equals the first output of the
        same input.
        """
        if guessed:
            return Guessed("hang")
        if output is None:
            return "hang"
        if np.array_equal(output, self._first.get(index, output)):
            return "pass"
        return "fail"

    def _kept(self, trial: Trial, names: tuple[str, ...], index: int) -> Array | None:
        """The output that the journal has for this run; raises ValueError if the journal has
        another run in this place.
        """
        given, data = trial.more.get("input"), trial.more.get("data")
        if (trial.subset, given, data) != (names, index, self.name):
            asked = ", ".join(names[:3]) or "nothing changed"
            raise ValueError(
                f"journal: belongs to another scan: run {self.count} is {trial!r} with input "
                f"{given} of data {data}, this scan asks {asked} with input {index} of data "
                f"{self.name}"
            )
        return _from_json(trial)

    def _run_device(self, flips: Array, index: int) -> tuple[Array | None, bool]:
        """The output of one run of the device, None for a hang, and True for a hang that is a
        guess."""
        result = self._made(flips, index)
        if result is None or isinstance(result, Guessed):
            return None, result is not None
        output = np.array(self.read(result))
        if output.dtype.kind not in "biuf" or not output.size:
            raise ValueError(
                f"run: got an output of {output.dtype} and shape {output.shape}, allowed are "
                "numbers, one or more"
            )
        return output, False


def _names_of_bits(bits: Array) -> Iterator[str]:
    """Yield names of sorted bit numbers; consecutive numbers are joined to a range.

    >>> list(_names_of_bits(np.array([3, 4, 5, 9])))
    ['3..5', '9']
    """
    if not len(bits):
        return
    for run in np.split(bits, np.flatnonzero(np.diff(bits) > 1) + 1):
        if len(run) > 1:
            yield f"{run[0]}..{run[-1]}"
        else:
            yield str(run[0])


def _as_json(output: Array | None) -> dict[str, Any]:
    """An output as values that JSON can hold; an empty dict for a hang."""
    if output is None:
        return {}
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(output).tobytes())).decode()
    return {"dtype": output.dtype.str, "shape": list(output.shape), "output": packed}


def _from_json(trial: Trial) -> Array | None:
    """The output that a trial of the journal keeps, None for a hang; raises ValueError if it keeps
    none."""
    if trial.outcome == "hang":
        return None
    try:
        raw = zlib.decompress(base64.b64decode(trial.more["output"], validate=True))
        return np.frombuffer(raw, trial.more["dtype"]).reshape(trial.more["shape"])
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(
            f"journal: got a run without its output ({error}), allowed is a run with it, as a "
            "scan keeps runs"
        ) from None


@dataclass(eq=False)
class Piece:
    """Bits that are flipped at once. ``bound`` are the outputs that these bits can move, ``moved``
    those that they moved; bit i of either int stands for output i.
    """

    bits: Array
    bound: int
    moved: int = 0
    # True if the piece that was halved and both its halves, this piece among them, moved the same
    # outputs
    alike: bool = False


class Evidence:
    """All that is known of each bit of a buffer, and the runs that find out more.

    ``kinds`` has the kind of each bit; "" stands for a bit without a kind yet. ``effects`` has for
    each bit the effects of flipping it alone, one for each view under which it moved an output.
    ``unmoved`` has for each bit the numbers of the views under which it moved nothing alone.
    """

    def __init__(
        self, runs: Runs, layer: Conv2D | None, progress: Callable[[int, int], object] | None
    ) -> None:
        self.runs, self.layer, self.progress = runs, layer, progress
        self.bits, self.count = runs.bits, len(runs.bits)
        self.kinds = np.full(self.count, "", "U7")
        self.certain = np.ones(self.count, bool)
        # bits that moved an output if flipped together with other bits, but not alone
        self.together = np.zeros(self.count, bool)
        # bits that hung the device if flipped together with other bits, but not alone
        self.fragile = np.zeros(self.count, bool)
        # sets of bits that move an output if flipped together, but not alone
        self.sets: list[tuple[int, ...]] = []
        # sets of bits that hang the device if flipped together, but not alone
        self.hanging: list[tuple[int, ...]] = []
        # (number of a view, bits) of each set that moved something although none of its parts did
        self.joint: list[tuple[int, Array]] = []
        self.views: list[View] = []
        self.effects: dict[int, list[Effect]] = {}
        self.unmoved: dict[int, set[int]] = {}
        # bits with effects that ``Weights.place`` has not used yet
        self.news: set[int] = set()
        self.notes: list[str] = []

    # ---- runs ----

    def ask(self, bits: Array, number: int, reason: str) -> Array | None:
        """The output under the view ``number`` if ``bits`` are flipped, too; None for a hang."""
        view = self.views[number]
        return self._asked(np.setxor1d(bits, view.base), view.index, reason)

    def _asked(self, flips: Array, index: int, reason: str) -> Array | None:
        output = self.runs.ask(flips, index, reason)
        if self.progress is not None:
            self.progress(self.count - len(self.quiet), self.count)
        return output

    def look(self, index: int, base: Array | None = None) -> int:
        """Add a view: the buffer with the bits ``base`` flipped, run twice with the input
        ``index``. Return the number of the view.

        Raises ValueError if a run hangs, or if the second run gives another output.
        """
        if base is None:
            base = np.zeros(0, np.int64)
        output = self._asked(base, index, "the buffer as it is")
        if output is None:
            raise ValueError(
                f"data: got a buffer that hangs as it is with input {index}, allowed is a buffer "
                "that runs"
            )
        view = view_of(index, self.runs.probes[index], self.layer, base, output)
        self.views.append(view)
        self.repeat(view)
        return len(self.views) - 1

    def repeat(self, view: View) -> None:
        """Run a view again; raise ValueError if the run hangs or its output is not that of the
        view.
        """
        again = self._asked(view.base, view.index, "does it repeat itself")
        how = "a hang"
        if again is not None:
            changed = np.count_nonzero(view.moved(again))
            if not changed:
                return
            how = f"{changed} of {view.output.size} outputs changed"
        raise ValueError(
            f"run: got {how} when the same buffer ran again with input {view.index}, allowed is a "
            "device that gives the same output again (votes=3 or more takes the middle of several "
            "runs)"
        )

    @property
    def quiet(self) -> Array:
        """The numbers of the bits that may be flipped and have not moved anything yet."""
        seen = np.zeros(self.count, bool)
        seen[list(self.effects)] = True
        return np.flatnonzero((self.kinds == "") & ~seen)

    # ---- records ----

    def hung(self, bit: int) -> None:
        self.kinds[bit] = "hang"
        self.effects.pop(bit, None)

    def note(self, number: int, piece: Piece, output: Array) -> None:
        """Record the outputs that a piece moved among those that it can move (``bound``); for a
        single bit, also by how much.
        """
        view = self.views[number]
        piece.moved = as_set(view.moved(output)) & piece.bound
        bit = int(piece.bits[0])
        if len(piece.bits) > 1:
            # Flipped at once, the bits of a bias can cancel to a change of one step, which the bits
            # of a weight may hide in some outputs. So a piece that moves more than half of the
            # outputs of a channel is assumed to move all of them.
            for outputs in view.channels:
                if 2 * (piece.moved & outputs).bit_count() > outputs.bit_count():
                    piece.moved |= outputs
        elif piece.moved:
            self.effects.setdefault(bit, []).append(view.effect(number, piece.moved, output))
            self.news.add(bit)
        else:
            self.unmoved.setdefault(bit, set()).add(number)
            self.news |= {bit} & self.effects.keys()

    def forget(self, number: int, piece: Piece) -> None:
        """Remove what is recorded of each single bit of a piece under a view."""
        for bit in piece.bits.tolist():
            self.news.add(bit)
            kept = [effect for effect in self.effects.pop(bit, ()) if effect.view != number]
            if kept:
                self.effects[bit] = kept

    # ---- splitting ----

    def refine(self, number: int, pieces: Iterable[Piece]) -> None:
        """Split pieces that moved something, until every bit that moves something was flipped
        alone.

        If a piece moves something and none of its parts does, its bits are marked in ``together``.
        """
        level = [piece for piece in pieces if piece.moved and len(piece.bits) > 1]
        apart: list[tuple[Piece, list[Piece]]] = []
        while level:
            pairs: list[tuple[Piece, Piece, Piece]] = []
            for piece in level:
                one_output = piece.moved.bit_count() == 1 and len(piece.bits) <= FEW
                if piece.alike or len(piece.bits) == 2 or one_output:
                    singles = [Piece(np.array([bit]), piece.moved) for bit in piece.bits]
                    apart.append((piece, singles))
                else:
                    low, high = _halves(piece.bits)
                    pairs.append((piece, Piece(low, piece.moved), Piece(high, piece.moved)))
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
        # All bits of a bias move the same outputs, those of its channel, so each bit needs a run of
        # its own. Bits of biases are measured last: then their runs can flip all other single bits,
        # too.
        self.measure(number, list(chain.from_iterable(singles for _, singles in apart)))
        for piece, singles in apart:
            self.joined(number, piece, singles)

    def joined(self, number: int, piece: Piece, parts: Iterable[Piece]) -> None:
        """Record that a piece moved something only as a whole, if none of its parts moved
        anything."""
        if any(part.moved for part in parts):
            return
        self.together[piece.bits] = True
        self.joint.append((number, piece.bits))

    def measure(self, number: int, pieces: Sequence[Piece]) -> list[Piece]:
        """Find the outputs that each piece moves. Pieces that cannot move a common output are
        flipped in one run. Return the halves of pieces that hung.
        """
        return self._measure_packs(number, _packs(pieces))

    def _measure_packs(self, number: int, packs: Iterable[list[Piece]]) -> list[Piece]:
        full = [pack for pack in packs if pack]
        parts = []
        # the first run of a pack flips the whole pack, whatever other packs show
        for first in range(0, len(full), AHEAD):
            part = full[first : first + AHEAD]
            self._begin(number, part)
            for pack in part:
                parts += self._measure_pack(number, pack)
        return parts

    def _begin(self, number: int, packs: Iterable[list[Piece]]) -> None:
        """Let workers begin the runs of the packs that are measured next."""
        view = self.views[number]
        flips = [np.setxor1d(_bits_of(pack), view.base) for pack in packs]
        self.runs.begin(flips, view.index)

    def _measure_pack(self, number: int, pack: list[Piece]) -> list[Piece]:
        """Find the outputs that each piece of a pack moves. One run is enough if no piece disturbs
        another. Return the halves of pieces that hung.
        """
        bits = _bits_of(pack)
        longest = max(len(piece.bits) for piece in pack)
        output = self.ask(bits, number, f"{plural(len(pack), 'piece')} of up to {longest} bits")
        if output is None and len(pack) == 1:
            if len(pack[0].bits) == 1:
                self.hung(int(pack[0].bits[0]))
                return []
            halves = [Piece(part, pack[0].bound) for part in _halves(pack[0].bits)]
            return halves + self._measure_packs(number, [[half] for half in halves])
        strays = 0
        if output is not None:
            bound = sum(piece.bound for piece in pack)  # a union, as no two share an output
            strays = as_set(self.views[number].moved(output)) & ~bound
        if output is None or (strays and len(pack) > 1):
            middle = len(pack) // 2
            return self._measure_packs(number, [pack[:middle], pack[middle:]])
        for piece in pack:
            piece.bound |= strays
            self.note(number, piece, output)
        # A control bit may move other outputs alone than together with further bits, so it gets a
        # run of its own.
        loud = [piece for piece in pack if self._loud(number, piece)]
        if len(pack) == 1 or not loud:
            return []
        for piece in pack:
            self.forget(number, piece)
        rest = [piece for piece in pack if piece not in loud]
        return self._measure_packs(number, [*([piece] for piece in loud), rest])

    def _loud(self, number: int, piece: Piece) -> bool:
        """True if a piece is a single bit that moved, under a view, outputs that no single weight
        or bias moves."""
        if len(piece.bits) > 1:
            return False
        for effect in self.effects.get(int(piece.bits[0]), ()):
            if effect.view == number and site_of(self.views[number], effect).role == "control":
                return True
        return False


def _bits_of(pack: Iterable[Piece]) -> Array:
    """The sorted numbers of all bits of a pack."""
    return np.sort(np.concatenate([piece.bits for piece in pack]))


def _packs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in packs, so that no output can be moved by two pieces of a pack: each piece,
    widest first, goes to the first pack with which it has no output in common.
    """
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


def _halves(bits: Array) -> tuple[Array, Array]:
    """Split sorted bit numbers near their middle. The cut is where the numbers on both sides are
    divided by the highest power of two.
    """
    quarter = len(bits) // 4
    least, end = max(1, quarter), len(bits) - quarter + 1
    if len(bits) == 2:
        least, end = 1, 2

    def alignment(cut: int) -> tuple[int, int]:
        """The rank of a cut: first the highest bit in which the numbers on its two sides differ,
        then its nearness to the middle.
        """
        after = bits[min(cut, len(bits) - 1)]
        return int(bits[cut - 1] ^ after).bit_length(), -abs(2 * cut - len(bits))

    cut = max(range(least, end), key=alignment)
    return bits[:cut], bits[cut:]
