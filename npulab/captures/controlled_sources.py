"""Sources of captures with controls: a known-good layer must give the same words after each
question, and another layer must give other words at the start."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from npulab.captures.capture import Capture
from npulab.captures.controlled import RESTS, Unusable
from npulab.captures.fingerprints import Asked, Fingerprint, hash_of, said_by
from npulab.captures.sources import Answer, Source
from npulab.registers.filters import Test, filter_of
from npulab.support.text import plural

# Equal answers must be at least this many more than all other answers together.
AGREE = 2
# A layer whose answers are not decided after this many questions ends the search.
MOST_ASKED = 9
CAPTURED, REFUSED, HANG = "captured", "refused", "hang"
Layer = Mapping[str, float]


class ControlledSource:
    """A source of captures around another source, with answers that can be trusted; ``explore``
    takes it.

    A layer is asked for until equal answers are at least 2 more than all other answers together;
    two answers are equal if their words are, addresses apart. ``good`` are the parameters of a
    known-good layer, which is asked for after each question and has to give the words that it gave
    at the start. ``bad``, if given, are the parameters of a layer that has to give other words at
    the start. If ``good`` does not give its words, ``recover()`` makes the source ready again, and
    the layer's answers so far do not count. An answer's text says if its layer poisons the source.

    ``fingerprint`` (see ``npulab.captures.fingerprints``) is compared after each answer. Layers for
    which a condition in ``never`` holds (``input_h > 64``) are refused and not asked for. Raises
    ValueError for a condition on an unknown parameter; a call raises Unusable (an OSError) if the
    source cannot be trusted.
    """

    def __init__(
        self,
        source: Source,
        good: Layer,
        bad: Layer | None = None,
        *,
        fingerprint: Asked | None = None,
        recover: Callable[[], object] | None = None,
        never: Iterable[str] = (),
    ) -> None:
        self.source, self.good, self.bad = source, dict(good), bad
        self.never: dict[str, Test] = {text: filter_of(text, {*good}) for text in never}
        self.asked = self.answers = self.recoveries = 0
        self._fingerprint, self._recover = fingerprint, recover
        self._known: Fingerprint | None = None
        # The key of the known-good layer's answer; "" before the first question.
        self._words = ""
        # Several threads may call one source.
        self._lock = threading.Lock()

    @property
    def record(self) -> dict[str, Any]:
        return self.source.record

    @property
    def ranges(self) -> dict[str, Any]:
        """The ranges of parameters that the source allows."""
        return dict(getattr(self.source, "ranges", {}))

    def __call__(self, parameters: Layer, seed: int = 0) -> Answer:
        for condition, test in self.never.items():
            if test({**self.good, **parameters}):
                return Answer(REFUSED, text=f"{condition}, which must not be asked for")
        with self._lock:
            if not self._words:
                self._start()
            answer = self._agreed(parameters, seed)
            self._see_fingerprint()
            self.answers += 1
            return answer

    def _start(self) -> None:
        """Keep the words of the known-good layer; raises Unusable if it gives no capture, or if the
        bad layer gives the same words."""
        self._see_fingerprint()
        answer = self._voted(self.good, 0)
        if answer.outcome != CAPTURED:
            raise Unusable(f"the source gives no capture of the known-good layer: {answer.text}")
        self._words = _key(answer)
        if self.bad is not None and _key(self._voted(self.bad, 0)) == self._words:
            raise Unusable(
                "the source cannot be trusted: the known-good layer and the layer that must give "
                "other words give the same words"
            )

    def _voted(self, parameters: Layer, seed: int) -> Answer:
        """Ask for a layer until an answer is chosen, without the known-good layer in between."""
        answers = [self._ask(parameters, seed) for _ in range(AGREE)]
        while _chosen(answers) is None:
            answers.append(self._ask(parameters, seed))
            self._refuse_unsteady(answers)
        chosen = _chosen(answers)
        assert chosen is not None
        return chosen

    def _agreed(self, parameters: Layer, seed: int) -> Answer:
        """Ask for a layer until an answer is chosen, and for the known-good layer after each
        question."""
        answers: list[Answer] = []
        suspect, poisoned = False, 0
        while True:
            answers.append(self._ask(parameters, seed))
            healthy = self._healthy()
            if not healthy:
                self._restore()
            if suspect:
                poisoned += not healthy
            elif not healthy:
                # from now on the source is ready before each question about this layer
                answers, suspect = [], True
                continue
            chosen = _chosen(answers)
            if chosen is None:
                self._refuse_unsteady(answers)
                continue
            if poisoned >= AGREE:
                text = f"{chosen.text} poisons: the known-good layer then fails".strip()
                return replace(chosen, text=text)
            return chosen

    def _ask(self, parameters: Layer, seed: int) -> Answer:
        self.asked += 1
        return self.source(parameters, seed)

    def _healthy(self) -> bool:
        """True if the known-good layer gives its words, at the first or the second question."""
        first = _key(self._ask(self.good, 0)) == self._words
        return first or _key(self._ask(self.good, 0)) == self._words

    def _restore(self) -> None:
        """Recover the source until the known-good layer gives its words; raises Unusable if it does
        not after ``RESTS`` times."""
        self._see_fingerprint()
        for _ in range(RESTS):
            if self._recover is not None:
                self._recover()
                self.recoveries += 1
            if self._healthy():
                return
        self._see_fingerprint()
        how = f"also after {plural(RESTS, 'restart')}"
        if self._recover is None:
            how = "and there is no way to recover it"
        raise Unusable(
            f"the source is not usable after {plural(self.answers, 'answer')}: the known-good "
            f"layer does not give its words any more, {how}"
        )

    def _refuse_unsteady(self, answers: list[Answer]) -> None:
        if len(answers) >= MOST_ASKED:
            kinds = len({_key(answer) for answer in answers})
            raise Unusable(
                f"the source gives {kinds} different answers to {MOST_ASKED} questions about one "
                "layer"
            )

    def _see_fingerprint(self) -> None:
        if self._fingerprint is None:
            return
        now = Fingerprint(said_by(self._fingerprint, "fingerprint"))
        if self._known is not None and now != self._known:
            raise Unusable(
                f"the source changed: {self._known.changes(now)}; answers after "
                f"answer {self.answers} do not count"
            )
        self._known = now

    def __repr__(self) -> str:
        return (
            f"ControlledSource({self.source!r}: {plural(self.answers, 'answer')} of "
            f"{plural(self.asked, 'question')}, {plural(self.recoveries, 'restart')})"
        )


def _chosen(answers: list[Answer]) -> Answer | None:
    """The first of the most common equal answers; None unless they are at least 2 more than all
    other answers together."""
    keys = [_key(answer) for answer in answers]
    if not keys:
        return None
    key, count = Counter(keys).most_common(1)[0]
    if 2 * count - len(keys) < AGREE:
        return None
    return answers[keys.index(key)]


def _key(answer: Answer) -> str:
    """A text that is the same for equal answers: the outcome if there is no capture, else a sha256
    of the fields of all jobs, addresses left out."""
    if answer.capture is None:
        return answer.outcome
    return hash_of({"jobs": [_values(number, answer.capture) for number in _jobs(answer.capture)]})


def _jobs(capture: Capture) -> range:
    return range(len(capture.jobs))


def _values(number: int, capture: Capture) -> list[Any]:
    values = []
    for block, item, raw in capture.jobs[number].values(capture.maps):
        if not item.address:
            values.append([block, item.register, item.name, int(raw)])
    return values
