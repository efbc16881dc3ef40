"""Sources with controls: a known-good layer must give the same words, another layer other words,
before and after each answer of a source of captures."""

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

AGREE = 2  # answers that have to be alike
MOST_ASKED = 9  # most questions about one layer
CAPTURED, REFUSED, HANG = "captured", "refused", "hang"
Layer = Mapping[str, float]


class ControlledSource:
    """A source of captures around another one, whose answers can be trusted; ``explore`` takes it.

    Each layer is asked for until two answers have the same words (addresses apart) and more than
    others; between them ``good`` is asked for, the parameters of a layer that has to give the words
    that it gave first. ``bad`` are those of a layer that has to give other words, or none. If
    ``good`` does not give its words, ``recover()`` makes the source ready again and the layer is
    asked for alone. The answer's text says if it is this layer which poisons the source.

    ``fingerprint`` (see ``npulab.captures.fingerprints``) is compared after each answer. Layers for
    which a condition in ``never`` holds (``input_h > 64``) are refused and not asked for. Raises
    ValueError for a condition without a parameter; an answer raises Unusable, an OSError.
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
        self._words = ""  # the key of the good layer's answer
        self._lock = threading.Lock()  # a source may be called from several threads

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
        """Take the words of the good layer as known, if they are the same twice, and other words
        than the bad layer's."""
        self._see_fingerprint()
        answer = self._voted(self.good, 0)
        if answer.outcome != CAPTURED:
            raise Unusable(f"the source gives no capture of the known-good layer: {answer.text}")
        self._words = _key(answer)
        if self.bad is not None and _key(self._voted(self.bad, 0)) == self._words:
            raise Unusable(
                "the source cannot be trusted: two layers, one known to be good and one to be "
                "other, give the same words"
            )

    def _voted(self, parameters: Layer, seed: int) -> Answer:
        """The answer that a layer gives most often, without controls."""
        answers = [self._ask(parameters, seed) for _ in range(AGREE)]
        while _chosen(answers) is None:
            answers.append(self._ask(parameters, seed))
            self._refuse_unsteady(answers)
        chosen = _chosen(answers)
        assert chosen is not None
        return chosen

    def _agreed(self, parameters: Layer, seed: int) -> Answer:
        """The answer that a layer gives, asked for until answers agree and with the good layer
        between them."""
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
                # from now on each question is asked alone of a source that is ready again
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
        """True if the good layer gives its words, at once or at the second time."""
        first = _key(self._ask(self.good, 0)) == self._words
        return first or _key(self._ask(self.good, 0)) == self._words

    def _restore(self) -> None:
        """Make the source ready until the good layer gives its words; raises Unusable."""
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
    """The first of the answers that are alike and at least two more than all others; None if there
    are none."""
    keys = [_key(answer) for answer in answers]
    if not keys:
        return None
    key, count = Counter(keys).most_common(1)[0]
    if 2 * count - len(keys) < AGREE:
        return None
    return answers[keys.index(key)]


def _key(answer: Answer) -> str:
    """What has to be the same in two answers for one layer: the outcome, and the fields of all jobs
    but addresses."""
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
