"""The bytes of a buffer to look at: what each means, what is not as in another buffer, where a
value stands.

``ByteModel`` holds the state and all the logic and needs no browser; ``ByteView`` shows it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import traitlets

from npulab.captures.capture import Capture, CaptureSet
from npulab.captures.registry import target
from npulab.captures.target import Unsupported
from npulab.layout.stored import bytes_in
from npulab.notebook.widgets.byte_meanings import FILL, Meaning, OfLayout, meaning, runs_of
from npulab.notebook.widgets.byte_search import ELEMENTS, MOST_DIGITS, NUMBERS, find, pattern
from npulab.notebook.widgets.frame import Model, Numbers, View, assets

COEFFICIENTS = "coefficients"
MOST_BYTES = 2**26
WINDOW = 2**22  # bytes that a view has at once
STEP = 2**12  # bytes that windows begin at multiples of
MOST_MARKS = 2**16  # matches that a view marks
RUN = 16  # equal bytes in a row that are taken for fill
ROW = 16  # bytes
FACE_ROWS = 16
MOST_SAID = 4  # meanings of a byte in a line
MOST_SHOWN = 24  # and in a list
CHANGED, FILLED, ZERO, CONSTANT, UNCHANGED, PLAIN = range(6)
STATUSES = ("changed", "fill", "zero", "constant", "unchanged", "plain")
COLOURS = ("kind", "status")
STATUS_STEP = 32  # a class is the status times this plus the kind


class ByteModel(Model):
    """The bytes of a buffer, with a cursor, a selection and a search; it needs no browser.

    ``data`` is bytes, uint8 of one axis, or a Capture, of which ``buffer`` names one (left out: the
    coefficients, else the first).  ``items`` say what bytes mean: items of a stream as
    ``Target.explain`` gives them, the table of ``npulab.explain``, a layout, a register map or
    draft over the words; left out, the target is asked about the coefficients of a capture, and ()
    is nothing.  ``reference`` is what the bytes are compared with: the same of another capture, or
    several in a list or CaptureSet.  1 byte to 64 MiB.

    Can be set and observed: ``cursor`` (byte; setting it selects that one), ``selection`` (offset,
    size; setting it puts the cursor on the first), ``ends`` (the byte that a selection began with,
    the cursor), ``pointed`` (a byte that is looked at instead, -1 none), ``colour`` ("kind" or
    "status"), ``query`` with ``element`` (one of ``ELEMENTS``) and ``big_endian``, and ``axis``
    (where the bytes hold a layout: the axis of the tensor whose index gives an element its kind, -1
    none). Follow them: ``found`` (how many match), ``ordinal`` (which of them the cursor is on,
    from 1; 0 none), ``about`` (what the byte is, as texts) and ``note`` (what is wrong with what
    was asked). ``counts`` and ``kind_counts`` are how many bytes have each status and each kind.

    A byte is "changed" where it is not as in every reference or past one's end, "fill" where that
    is what items say or, where they say nothing, in a run of 16 or more equal bytes, "zero",
    "constant" where several references are the same there, "unchanged" where the one is, else
    "plain"; the first that holds. Raises LookupError for a buffer that is not there, ValueError for
    no bytes or too many and for a place outside.

    >>> model = ByteModel(bytes(range(64)), reference=bytes(range(63)))
    >>> model.query = "0a 0b"
    >>> model.seek()
    >>> model.selection, model.counts["changed"]
    ((10, 2), 1)
    """

    cursor = Numbers("byte", 0, lambda owner, _: [(0, owner.size)])
    selection = Numbers(
        "(offset, size)",
        (0, 1),
        lambda owner, offset, _: ((0, owner.size), (1, owner.size - offset + 1)),
    )
    ends = Numbers("(anchor, cursor)", (0, 0), lambda owner, *_: 2 * [(0, owner.size)])
    pointed = Numbers("byte", -1, lambda owner, _: [(-1, owner.size)])
    colour = traitlets.Enum(COLOURS, "status")
    query = traitlets.Unicode()
    element = traitlets.Enum(ELEMENTS, "bytes")
    big_endian = traitlets.Bool()
    axis = traitlets.Int(-1)
    found = traitlets.Int(read_only=True)
    ordinal = traitlets.Int(read_only=True)
    about = traitlets.Dict(read_only=True)
    note = traitlets.Unicode(read_only=True)
    start = traitlets.Int(read_only=True)
    turn = traitlets.Int(read_only=True)

    def __init__(
        self, data: Any, buffer: str | None = None, items: Any = None, reference: Any = None
    ) -> None:
        capture = self._given = data if isinstance(data, Capture) else None
        if capture:
            self.buffer = _buffer(capture, buffer)
        else:
            self.buffer = buffer or ""
        self.data = _bytes(data, self.buffer)
        if capture:
            self.address = capture.addresses.get(self.buffer)
        else:
            self.address = None
        self.simulated = capture is not None and capture.simulated
        if capture:
            self.title = f"{capture.target}/{capture.name}, {self.buffer}"
        else:
            self.title = self.buffer or "bytes"
        self.said = ""  # why the target does not say what the bytes mean
        self._asks = items is None and capture is not None and self.buffer == COEFFICIENTS
        self.meaning: Meaning | None = None
        self.references: tuple[np.ndarray, ...] = ()
        self._matches, self._length = np.zeros(0, np.int64), 1
        self._done: list[tuple[int, bytes]] = []
        self._undone: list[tuple[int, bytes]] = []
        super().__init__()
        self._read(items)
        self.compare(reference)
        if self.meaning is not None:
            self.colour = "kind"

    # ---- what it says ----

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return len(self.data)

    @property
    def capture(self) -> Capture | None:
        """The capture as given, with the bytes as they are now."""
        return self._given and self._given.with_buffers(**{self.buffer: self.data.tobytes()})

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the bytes can mean; a byte's kind counts from 1."""
        if self.meaning is None:
            return ()
        return self.meaning.kinds

    @property
    def summary(self) -> str:
        said = ", ".join(
            f"{count} {name}" for name, count in self.counts.items() if name != STATUSES[PLAIN]
        )
        return "; ".join(
            filter(None, [f"{self.size} byte{'s' * (self.size != 1)}", said, self.said])
        )

    @property
    def matches(self) -> np.ndarray:
        """Every offset at which the query stands, ascending."""
        return self._matches

    @property
    def length(self) -> int:
        """Bytes of what is looked for, 1 where nothing is."""
        return self._length

    @property
    def selected(self) -> bytes:
        """The bytes of the selection."""
        first, size = self.selection
        return self.data[first : first + size].tobytes()

    @property
    def window(self) -> slice:
        """The bytes that a view has now."""
        return slice(self.start, min(self.start + WINDOW, self.size))

    @property
    def classes(self) -> np.ndarray:
        """Status and kind of each byte of the window: the status times 32 plus the kind."""
        return self.statuses[self.window] * np.uint8(STATUS_STEP) + self.kind_of[self.window]

    def values(self, byte: int) -> list[tuple[str, str]]:
        """(element type, value) of what stands at a byte, in the byte order that is set; cut off at
        the end."""
        out = []
        if self.big_endian:
            order = ">"
        else:
            order = "<"
        for name, kind in NUMBERS.items():
            raw = self.data[byte : byte + int(kind[1])].tobytes()
            out.append(
                (
                    name,
                    str(np.frombuffer(raw, order + kind)[0])
                    if len(raw) == int(kind[1])
                    else "past the end",
                )
            )
        return out

    def describe(self, byte: int) -> str:
        """A byte in one line: offset, address, value, what it means, status, and what it is in the
        reference."""
        value = int(self.data[byte])
        shown = ""
        if 0x20 <= value < 0x7F:
            shown = f" '{chr(value)}'"
        parts = [
            f"byte {byte:#x} ({byte})",
            "" if self.address is None else f"address {self.address + byte:#x}",
            f"{value:02x} = {value}{shown}",
            *self._meanings(byte, MOST_SAID),
            self._status(byte),
        ]
        return " · ".join(filter(None, parts))

    def _meanings(self, byte: int, most: int) -> list[str]:
        texts = []
        if self.meaning:
            texts = [one.text for one in self.meaning.at(byte)]
        if len(texts) <= most:
            return texts
        return [*texts[:most], f"… {len(texts) - most} more"]

    def _status(self, byte: int) -> str:
        status = int(self.statuses[byte])
        others = [
            f"{one[byte]:02x}" if byte < len(one) else "past the end" for one in self.references
        ]
        told = dict.fromkeys(others)
        if status == CHANGED:
            return f"changed, reference {' or '.join(list(told)[:MOST_SAID])}"
        same = ""
        if others and status in (FILLED, ZERO):
            same = STATUSES[CONSTANT if len(others) > 1 else UNCHANGED]
        return ", ".join(filter(None, ["" if status == PLAIN else STATUSES[status], same]))

    # ---- what it does ----

    def compare(self, reference: Any) -> None:
        """Compare with another buffer or capture, with several, or with nothing (None)."""
        one = not isinstance(reference, list | tuple | CaptureSet)
        if reference is None:
            several = []
        elif one:
            several = [reference]
        else:
            several = list(reference)
        self.references = tuple(_bytes(one, self.buffer, "reference") for one in several)
        self.reference = reference
        self._judge()

    def read_as(self, items: Any) -> None:
        """Take the bytes to mean something else: as ``items`` of the constructor, None for
        nothing."""
        self._asks = False
        self._read(items)
        self._judge()

    def follow(self, draft: Any) -> None:
        """Read the bytes as the words of a draft, now and after each of its edits."""
        self.read_as(draft)
        draft.observe(self.read_as)

    def leave(self, draft: Any) -> None:
        """Follow a draft no more."""
        draft.unobserve(self.read_as)

    def seek(self, step: int = 1) -> None:
        """Select the next match behind the cursor, or with -1 the one before it, round the ends."""
        if not len(self._matches):
            self.set_trait("note", "nothing matches" if self.query else "no value to look for")
            return
        here = int(np.searchsorted(self._matches, self.cursor, "right" if step > 0 else "left"))
        at = int(self._matches[(here if step > 0 else here - 1) % len(self._matches)])
        self.select(at, self.length)

    def select(self, offset: int, size: int = 1) -> None:
        """Select bytes and go to the first."""
        self.selection = (offset, size)
        self.ends = (offset + size - 1, offset)

    def go(self, asked: str) -> None:
        """Go to an offset (``31``, ``0x1f``), so many bytes on or back (``+16``, ``-4``), an
        address (``@0x80001f``) or the ``end``.

        Raises ValueError for anything else and for a place outside.
        """
        text = ""
        if len(asked) <= MOST_DIGITS:
            text = asked.strip()
        try:
            if text != "end":
                number = int(text.removeprefix("@").removeprefix("+") or "none", 0)
            else:
                number = self.size - 1
        except ValueError:
            raise ValueError(
                f"go to: got {asked!r:.60}, allowed is an offset such as 0x1f, +16, -4, end"
                f"{' or an address such as @0x80' * (self.address is not None)}"
            ) from None
        if text.startswith("@"):
            if self.address is None:
                raise ValueError(
                    f"go to: got {asked!r:.60}, allowed are offsets where no address is known"
                )
            number -= self.address
        if text[0] in "+-":
            number += self.cursor
        if not 0 <= number < self.size:
            raise ValueError(f"go to: got byte {number}, allowed is 0 to {self.size - 1}")
        self.select(number)

    def write(self, asked: str) -> None:
        """Write what is typed (as a search has it, of the type and byte order that are set) from
        the first byte of the selection on; a ``?`` leaves a digit as it is.

        Where nothing is compared with, that is the bytes as given from then on.  Raises ValueError
        for what is no such value and where it goes past the end.
        """
        typed, first = pattern(asked, self.element, self.big_endian), self.selection[0]
        if typed.above or first + len(typed.value) > self.size:
            raise ValueError(
                f"write: got {asked!r:.60}, allowed is one value of at most "
                f"{self.size - first} bytes, which are there from byte {first:#x} on"
            )
        value, kept = (np.frombuffer(part, np.uint8) for part in (typed.value, typed.mask))
        old = self.data[first : first + len(value)]
        if not self.references:
            self.compare(self.data)
        self._done.append(self._put_bytes(first, (old & ~kept | value & kept).tobytes()))
        self._undone.clear()

    def undo(self) -> bool:
        """Take the last write back; False where there was none."""
        return self._back(self._done, self._undone)

    def redo(self) -> bool:
        """Write again what was undone last; False where there was none."""
        return self._back(self._undone, self._done)

    def _back(self, from_: list[tuple[int, bytes]], to: list[tuple[int, bytes]]) -> bool:
        if from_:
            to.append(self._put_bytes(*from_.pop()))
            return True
        self.set_trait("note", "nothing to take back")
        return False

    def _put_bytes(self, first: int, value: bytes) -> tuple[int, bytes]:
        """Put bytes there, say anew what follows from them, and give those that were there."""
        here, axis = slice(first, first + len(value)), self.axis
        old = self.data[here].tobytes()
        self.data = self.data.copy()  # the old one may be what is compared with
        self.data[here] = np.frombuffer(value, np.uint8)
        self._read(self._items)
        self._search(None)
        self._judge()
        if axis < len(self.axes):
            self.axis = axis
        else:
            self.axis = -1
        self.select(first, len(value))
        return first, old

    def press(self, asked: Any) -> None:
        """Do what was pressed in a view: ``{"seek": 1}``, ``{"seek": -1}``, ``{"go": "0x1f"}``,
        ``{"write": "3f 80"}``, ``{"undo": 1}`` or ``{"redo": 1}``.

        What is wrong with it is said in ``note``; raises ValueError for another message.
        """
        match asked:
            case {"seek": 1 | -1 as step}:
                self.seek(step)
            case {"undo": 1} | {"redo": 1}:
                getattr(self, *asked)()
            case {"go": str() as text} | {"write": str() as text}:
                try:
                    (self.go if "go" in asked else self.write)(text)
                except ValueError as error:  # nobody would see it: a message has no cell to fail
                    self.set_trait("note", str(error))
            case _:
                raise ValueError(
                    f"message: got {asked!r:.80}, allowed is seek with 1 or -1, go and write with "
                    "a "
                    "text, undo and redo with 1"
                )

    # ---- what follows ----

    @property
    def axes(self) -> list[int]:
        """Sizes of the axes of the layout that the bytes hold; none where they hold none."""
        if isinstance(self.meaning, OfLayout):
            return list(self.meaning.layout.shape)
        return []

    @traitlets.validate("axis")
    def _check_axis(self, proposal: Any) -> int:
        if not -1 <= proposal.value < len(self.axes):
            raise ValueError(
                f"axis: got {proposal.value}, allowed is -1 to {len(self.axes) - 1}, the axes of a "
                "layout"
            )
        return int(proposal.value)

    @traitlets.observe("axis")
    def _turn(self, _: Any) -> None:
        if isinstance(self.meaning, OfLayout):
            self.meaning = replace(self.meaning, axis=self.axis)
            self.kind_of = self.meaning.classes()
            self._judge()

    def _asked(self, capture: Any) -> Any:
        try:
            return target(capture.target).explain(capture)
        except Unsupported:
            return None
        except (ValueError, LookupError) as error:
            self.said = f"what they mean is not known: {error}"
            return None

    def _read(self, items: Any) -> None:
        self._items = items
        if self._asks:
            self.said = ""
            items = self._asked(self.capture)
        nothing = items is None or (isinstance(items, Sequence) and not items)
        if nothing:
            self.meaning = None
        else:
            self.meaning = meaning(items, self.data)
        if self.meaning is None:
            self.kind_of = np.zeros(self.size, np.uint8)
        else:
            self.kind_of = self.meaning.classes()
        self.axis = -1

    def _judge(self) -> None:
        """The status of every byte, and what follows from it."""
        kinds = self.kinds
        fill = runs_of(self.data, RUN) & (self.kind_of == 0)
        if FILL in kinds:
            fill |= self.kind_of == kinds.index(FILL) + 1
        out = np.full(
            self.size,
            PLAIN if not self.references else CONSTANT if len(self.references) > 1 else UNCHANGED,
            np.uint8,
        )
        out[self.data == 0] = ZERO
        out[fill] = FILLED
        for one in self.references:
            both = min(len(one), self.size)
            out[:both][one[:both] != self.data[:both]] = CHANGED
            out[both:] = CHANGED
        self.statuses = out
        self.counts = _counted(out, STATUSES)
        self.kind_counts = _counted(self.kind_of, ("", *kinds))
        self.set_trait("turn", self.turn + 1)
        self._tell(None)

    @traitlets.observe("cursor")
    def _put(self, _: Any) -> None:
        if self.ends[1] != self.cursor:
            self.ends = (self.cursor, self.cursor)

    @traitlets.observe("selection")
    def _span(self, _: Any) -> None:
        if between(self.ends) != self.selection:
            self.ends = (sum(self.selection) - 1, self.selection[0])

    @traitlets.observe("ends")
    def _move(self, _: Any) -> None:
        self.selection = between(self.ends)
        self.cursor = self.ends[1]
        if not self.start <= self.cursor < self.window.stop:
            most = -(-(self.size - WINDOW) // STEP) * STEP
            self.set_trait("start", min(max(self.cursor - WINDOW // 2, 0) // STEP * STEP, most))
        self.set_trait("ordinal", self._ordinal())
        self.set_trait("note", "")

    @traitlets.observe("query", "element", "big_endian")
    def _search(self, _: Any) -> None:
        note, self._matches, self._length = "", np.zeros(0, np.int64), 1
        if self.query:
            try:
                self._length = len(pattern(self.query, self.element, self.big_endian).value)
                self._matches = find(self.data, self.query, self.element, self.big_endian)
            except ValueError as error:
                note = str(error)
        self.set_trait("found", len(self._matches))
        self.set_trait("ordinal", self._ordinal())
        self.set_trait("note", note)

    def _ordinal(self) -> int:
        at = int(np.searchsorted(self._matches, self.cursor))
        if at < len(self._matches) and self._matches[at] == self.cursor:
            return at + 1
        return 0

    @traitlets.observe("cursor", "pointed", "big_endian")
    def _tell(self, _: Any) -> None:
        byte = self.pointed
        if self.pointed < 0:
            byte = self.cursor
        spans = []
        if self.meaning:
            spans = [one[1:] for one in self.meaning.at(byte)[:MOST_SHOWN]]
        self.set_trait(
            "about",
            {
                "offset": byte,
                "line": self.describe(byte),
                "values": [list(one) for one in self.values(byte)],
                "meanings": self._meanings(byte, MOST_SHOWN),
                "spans": [list(one) for one in spans],
            },
        )

    def _repr_html_(self) -> str:
        rows = [_face_row(self, first) for first in range(0, min(self.size, FACE_ROWS * ROW), ROW)]
        left = self.size - FACE_ROWS * ROW
        if left > 0:
            rows += [f"… {left} more bytes"]
        if kinds := ", ".join(f"{name} {count}" for name, count in self.kind_counts.items()):
            rows.append(f"bytes by kind: {kinds}")
        return f"{self.heading_html()}<pre>{html.escape(chr(10).join(rows))}</pre>"


class ByteView(View):
    """The bytes of a buffer: arrows move, / looks for a value, g goes to an offset, Shift selects,
    e writes, u and U undo and redo.

    The arguments are those of ``ByteModel``.  ``cursor``, ``selection``, ``colour``, ``query``,
    ``element``, ``big_endian`` and ``axis`` are the model's and can be set and observed; ``about``,
    ``found`` and ``note`` follow them; ``capture`` has the bytes as they are now. Everything else
    is on ``model``.
    """

    _esm, _css = assets("rows", "byte_view")
    _linked = (
        "cursor",
        "selection",
        "ends",
        "pointed",
        "colour",
        "query",
        "element",
        "big_endian",
        "axis",
    )
    _kept = ("cursor", "selection")
    _of, _followed = ByteModel, ("found", "ordinal", "about", "note")

    total = traitlets.Int().tag(sync=True)
    start = traitlets.Int().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    classes = traitlets.Bytes().tag(sync=True)
    kinds: traitlets.List[Any] = traitlets.List().tag(sync=True)
    statuses: traitlets.List[Any] = traitlets.List().tag(sync=True)
    axes = traitlets.List(traitlets.Int()).tag(sync=True)
    elements = traitlets.List(traitlets.Unicode(), list(ELEMENTS)).tag(sync=True)
    marks = traitlets.Bytes().tag(sync=True)
    length = traitlets.Int(1).tag(sync=True)

    def __init__(
        self, data: Any, buffer: str | None = None, items: Any = None, reference: Any = None
    ) -> None:
        model = ByteModel(data, buffer, items, reference)
        super().__init__(model, total=model.size)
        model.observe(self._show, ["start", "turn"])
        model.observe(self._mark, ["start", "turn", "query", "element", "big_endian"])
        self._show(None)

    def _show(self, _: Any) -> None:
        """The bytes that are looked at, in one message with what is known of them."""
        model = self.model
        with self.hold_sync():
            self.start, self.data = model.start, model.data[model.window].tobytes()
            self.classes = model.classes.tobytes()
            self.axes = model.axes
            self.kinds = [[name, model.kind_counts.get(name, 0)] for name in model.kinds]
            self.statuses = [[name, model.counts.get(name, 0)] for name in STATUSES]
            self.summary = model.summary

    def _mark(self, _: Any) -> None:
        model = self.model
        window, matches = model.window, model.matches
        first, end = np.searchsorted(matches, [window.start - model.length + 1, window.stop])
        with self.hold_sync():
            self.marks = matches[first : min(end, first + MOST_MARKS)].astype("<u4").tobytes()
            self.length = model.length


def _counted(numbers: np.ndarray, names: Sequence[str]) -> dict[str, int]:
    """How many bytes have each name that one has; a blank one is not counted."""
    counts = np.bincount(numbers, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if name and count}


def between(ends: tuple[int, int]) -> tuple[int, int]:
    """The run of bytes from one end to the other: (offset, size).

    >>> between((7, 4))
    (4, 4)
    """
    return min(ends), abs(ends[1] - ends[0]) + 1


def _buffer(capture: Capture, name: str | None) -> str:
    names = list(capture.buffers)
    found = name or (COEFFICIENTS if COEFFICIENTS in names else names[0] if names else "")
    if found not in capture.buffers:
        raise LookupError(
            f"capture {capture.name}: got buffer {found!r}, it has {', '.join(names) or 'none'}"
        )
    return found


def _bytes(data: Any, buffer: str, name: str = "data") -> np.ndarray:
    """The bytes ``(n,) uint8`` of a capture's buffer or of what they are given as."""
    if isinstance(data, Capture):
        data = data.buffers[_buffer(data, buffer)]
    out = np.ascontiguousarray(bytes_in(data, name))
    if not 1 <= len(out) <= MOST_BYTES:
        raise ValueError(f"{name}: got {len(out)} bytes, allowed is 1 to {MOST_BYTES}")
    return out


def _face_row(model: ByteModel, first: int) -> str:
    row = model.data[first : first + ROW]
    shown = " ".join(
        f"{byte:02x}{'*' if status == CHANGED else ' '}"
        for byte, status in zip(row, model.statuses[first : first + ROW], strict=True)
    )
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{first:08x}  {shown:{4 * ROW - 1}}  {text}"
