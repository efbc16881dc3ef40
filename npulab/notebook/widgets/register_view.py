"""The words of one job as rows of bits, and its fields by name, to look at and to change.

``RegisterModel`` holds the state and all the logic and needs no browser; ``RegisterView`` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from traitlets import observe

from npulab.analysis.draft import Draft
from npulab.captures.capture import Capture, Job
from npulab.captures.registry import stated_target
from npulab.notebook.widgets.bits_view import BitsModel, BitsView, Rows, meant, span
from npulab.notebook.widgets.frame import assets
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.support.refuse import need
from npulab.support.text import part_said, plural

ACTS = ("undo", "redo", "type", "filter")


class JobBits(BitsModel):
    """The words of a job of a capture, compared with those of ``other``, a job that sets the same
    registers; codes of evidence have the titles of the target's sources.
    """

    def __init__(self, given: Capture, task: int, other: Job, laws: Any = None, sweep: Any = None):
        self._given, self.task = given, given.task_of(task)
        self._sources: Mapping[str, str] = {}
        with suppress(ValueError, LookupError):  # an unknown target has no sources
            self._sources = stated_target(given.target).sources
        job = given.jobs[self.task]
        rows = Rows.of(job, map_of(given, job))
        super().__init__(rows, words_of(job), words_of(other), laws, sweep)

    @property
    def title(self) -> str:
        return title_of(self._given, self.task)

    @property
    def simulated(self) -> bool:
        return self._given.simulated

    def evidence(self, code: str) -> str:
        title, _, _ = self._sources.get(code, "").partition(" (")
        if title:
            return f"{code}: {title}"
        return code


class RegisterModel(JobBits):
    """The words of one job, flipped bit by bit and compared with a reference.

    The traits are those of ``BitsModel``; ``status`` reports the result of the last message.
    Without a ``reference`` the words are compared with those of the capture as given.

    Raises LookupError for an unknown task or block, ValueError for words that do not fit.

    >>> registers = RegisterMap([dict(block="NN", register="CFG", field="relu", lsb=24, width=1)])
    >>> model = RegisterModel(Capture("a", "demo", "x", (Job("NN", [0]),), maps={"NN": registers}))
    >>> model.flip(0, 24)
    >>> model.changed
    {'relu': (0, 1)}
    >>> model.undo(), model.put("relu", "0x1")
    (True, 'relu 0 → 1')
    >>> model.describe(0, 24)
    'CFG bit 24 · relu CFG[24] · 0x1 = 1, reference 0x0 = 0 · evidence unknown'
    """

    def __init__(
        self,
        capture: Capture,
        reference: Capture | None = None,
        task: int = 0,
        laws: Any = None,
        sweep: Any = None,
    ) -> None:
        need("RegisterView", capture, Capture, "is a Capture, as npulab.load gives")
        need(
            "RegisterView: reference",
            reference,
            (Capture, type(None)),
            "is a Capture, as npulab.load gives",
        )
        compared = reference or capture
        job, other = job_of(capture, task), job_of(compared, task)
        if (other.block, list(dict(other.writes))) != (job.block, list(dict(job.writes))):
            raise ValueError(
                f"reference {compared.name}: got {other!r}, allowed is a job that sets the "
                f"same registers as {job!r}"
            )
        self._alone = reference is None
        self._history: list[tuple[int, ...]] = []
        self._undone: list[tuple[int, ...]] = []
        super().__init__(capture, task, other, laws, sweep)

    @property
    def unchanged(self) -> str:
        if self._alone:
            return "not changed"
        return super().unchanged

    @property
    def capture(self) -> Capture:
        """The capture that was given, with the words as they are now."""
        job = self._given.jobs[self.task]
        if not job.writes:
            return self._given.with_words(self.words, self.task)
        registers = self._given.maps[job.block]
        written = dict(zip(dict(job.writes), self.words, strict=True))
        return self._given.with_job(job.with_writes(written, registers), self.task)

    @property
    def title(self) -> str:
        title = f"{super().title}, {plural(self.count, 'word')}"
        if self.looked_at:
            title += f"; in shades and laws {part_said(self.looked_at)}"
        return title

    @property
    def line(self) -> str:
        bits = f"{self.differing} bits differ"
        if self.differing == 1:
            bits = "1 bit differs"
        return f"{self.marked_title}, {bits}"

    def flip(self, word: int, bit: int) -> None:
        """Invert one bit of the words."""
        word, bit = type(self).cursor.check("bit", self, (word, bit))
        words = list(self.words)
        words[word] ^= 2**bit
        self.words = tuple(words)

    def undo(self) -> bool:
        """Undo the last change of the words; False if there is none."""
        if self._history:
            self.words = self._history[-1]
            return True
        return False

    def redo(self) -> bool:
        """Make the change of the words again that was undone last; False if there is none."""
        if self._undone:
            self.words = self._undone[-1]
            return True
        return False

    def put(self, field: str, value: Any) -> str:
        """Set a field, and return a text that says what changed.

        ``value`` is a value, or a text as people type values: a decimal or hexadecimal number, a
        name of the field's enum, or ``raw`` and the raw number. Raises LookupError for an unknown
        field or name, ValueError for a value that does not fit.
        """
        if field not in self.rows.names:
            near = get_close_matches(field, self.rows.names, 3)
            raise LookupError(
                f"field: got {field!r:.80}, near it are {', '.join(near) or 'no names'}"
            )
        return self._put(self.rows.fields[self.rows.names.index(field)], field, value)

    def _act(self, message: Any) -> str:
        """Act on a message whose ``do`` is one of ``ACTS``. A message ``filter`` has ``text``; a
        message ``type`` has ``text``, the value, and either ``field``, an index, or ``run``, (word,
        lsb, width).
        """
        do = None
        if isinstance(message, Mapping):
            do = message.get("do")
        if do not in ACTS:
            raise ValueError(
                f"message: got {str(message)[:80]}, allowed is one of {', '.join(ACTS)}"
            )
        if do == "filter":
            return super()._act(message)
        if do == "type":
            item = self._asked(message.get("field"), message.get("run"))
            return self._put(item, item.name, str(message.get("text", "")))
        if getattr(self, do)():
            return f"{do}ne"
        return f"nothing to {do}"

    def _asked(self, field: Any, run: Any) -> Field:
        """Return the field that a message is about: the field with the index ``field``, or, if
        ``run`` is given, a field that has this run of bits.
        """
        if run is None:
            if not isinstance(field, int) or not 0 <= field < len(self.rows.fields):
                raise ValueError(
                    f"field: got {field!r:.80}, allowed is 0 to {len(self.rows.fields) - 1}"
                )
            return self.rows.fields[field]
        word, lsb, width = type(self).selection.check("run", self, run) or (0, 0, WORD_BITS)
        register = self.rows.labels[word]
        piece = Piece(self.rows.slots[word], lsb, width, 0)
        return Field("", register, f"{register}{span(lsb, width)}", (piece,))

    def _put(self, item: Field, name: str, value: Any) -> str:
        if isinstance(value, str):
            raw = _typed_raw(item, value)
        else:
            raw = item.raw(value)
        before = self._raw(item)
        self.words = self.rows.with_raw(self.words, item, raw)
        return f"{name} {meant(item, before)} → {meant(item, self._raw(item))}"

    def _raw(self, item: Field) -> int:
        return replace(self.rows, fields=(item,)).raw(self.words)[0]

    def follow(self, draft: Draft) -> None:
        """Read the words with the map of a draft, now and after each of its edits.

        If the map does not fit after an edit, ``summary`` says so and the fields stay as they were.
        Raises as ``Draft.decode`` if the map does not fit now.
        """
        self._reread(draft.decode(self._given))
        draft.observe(self._follow)

    def leave(self, draft: Draft) -> None:
        """Stop following a draft: its later edits no longer change how the words are read."""
        draft.unobserve(self._follow)

    def _follow(self, draft: Draft) -> None:
        try:
            self._reread(draft.decode(self._given))
        except (ValueError, LookupError) as error:
            self.summary = f"the draft does not fit: {error}"

    def _reread(self, given: Capture) -> None:
        job = given.jobs[self.task]
        self._given = given
        self.reread(Rows.of(job, map_of(given, job)))

    @observe("words")
    def _remember(self, change: Any) -> None:
        # setting the words to their state before the last change undoes this change
        if self._history and self._history[-1] == change.new:
            self._undone.append(change.old)
            self._history.pop()
        elif change.old:
            self._history.append(change.old)
            if self._undone and self._undone.pop() != change.new:
                self._undone.clear()


class RegisterView(BitsView):
    """The words of a job of a capture as rows of bits with the names of their fields, next to a
    list of the fields: a click selects, a drag selects a run, Enter types a value, Space flips.

    ``words``, ``reference``, ``cursor`` and ``selection`` are the model's and can be set and
    observed; ``capture``, ``fields`` and ``changed`` follow them. ``undo``, ``redo``, ``put`` and
    everything else are on ``model``. With a ``draft`` the words are read with its map, again after
    each of its edits. With ``laws`` (of ``find_laws``) or a ``sweep`` bits can be coloured by their
    status in the laws and by how often they flip.
    """

    _esm, _css = assets("rows", "bits_view", "register_view")
    draft: Draft | None = None

    def __init__(
        self,
        capture: Capture,
        reference: Capture | None = None,
        task: int = 0,
        draft: Draft | None = None,
        laws: Any = None,
        sweep: Any = None,
    ) -> None:
        if draft is not None:
            capture = draft.decode(capture)
        model = RegisterModel(capture, reference, task, laws, sweep)
        self.draft = draft
        super().__init__(model)
        if draft is not None:
            model.follow(draft)

    def close(self) -> None:
        if self.draft is not None:
            self.model.leave(self.draft)
        super().close()


def title_of(capture: Capture, task: int) -> str:
    """Return the title of a job of a capture: target and case, number, block and name of the job,
    and the number of jobs."""
    job = capture.jobs[task]
    title = f"{capture.target}/{capture.name}, job {task} {job.block}"
    if job.name:
        title += f", {job.name}"
    if len(capture.jobs) > 1:
        title += f", 1 of {len(capture.jobs)} jobs"
    return title


def job_of(capture: Capture, task: int) -> Job:
    need("capture", capture, Capture, "is a Capture, as npulab.load gives")
    return capture.jobs[capture.task_of(task)]


def map_of(capture: Capture, job: Job) -> RegisterMap:
    if job.block not in capture.maps:
        raise LookupError(
            f"block: got {job.block!r}, maps are known for {', '.join(capture.maps) or 'none'}"
        )
    return capture.maps[job.block]


def words_of(job: Job) -> Sequence[int]:
    """Return the words of a job: the words of its parameter block, or the last value of each
    register that the job writes.
    """
    if job.writes:
        return list(dict(job.writes).values())
    return job.words.tolist()


def _typed_raw(item: Field, text: str) -> Any:
    """Return the raw number of a value that is typed as text; raises ValueError for a text that is
    not a value of the field.
    """
    text = text.strip()
    stored = text.startswith("raw ")
    if not stored and text in dict(item.names).values():
        return item.raw(text)
    try:
        number: Any = int(text.removeprefix("raw "), 0)
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            names = ", ".join(name for _, name in item.names[:8])
            if names:
                names = f", or one of {names}"
            raise ValueError(
                f"{item.name}: got {text!r:.80}, allowed is a number such as 12 or 0x0c{names}; "
                "raw 12 is the number as stored"
            ) from None
    if stored:
        return number
    return item.raw(number)
