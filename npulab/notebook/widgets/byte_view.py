"""The bytes of a buffer with the meaning of each, differences from another buffer, and a search for
values.

``ByteModel`` holds the state and all the logic and needs no browser; ``ByteView`` shows it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray
from traitlets import Bool, Bytes, Dict, Enum, Int, List, Unicode, observe, validate

from npulab.captures.capture import Capture, CaptureSet
from npulab.captures.registry import target
from npulab.captures.target import Unsupported
from npulab.layout.stored import bytes_in
from npulab.notebook.widgets.byte_meanings import FILL, Meaning, OfLayout, meaning, runs_of
from npulab.notebook.widgets.byte_search import ELEMENTS, MOST_DIGITS, NUMBERS, find, pattern
from npulab.notebook.widgets.frame import Model, Numbers, View, assets
from npulab.support.text import plural

COEFFICIENTS = "coefficients"
MOST_BYTES = 2**26
WINDOW = 2**22  # the page has at most this many bytes at once, as messages are limited
STEP = 2**12  # a window begins at a multiple of this many bytes
MOST_MARKS = 2**16  # the page marks at most this many matches
RUN = 16  # at least this many equal bytes in a row count as fill
ROW = 16  # the HTML has this many bytes in a row
FACE_ROWS = 16
# the most meanings of a byte in the line about the byte, and in the page's list
MOST_IN_LINE = 4
MOST_LISTED = 24
CHANGED, FILLED, ZERO, CONSTANT, UNCHANGED, PLAIN = range(6)
STATUSES = ("changed", "fill", "zero", "constant", "unchanged", "plain")
COLOURS = ("kind", "status")
STATUS_STEP = 32  # a byte's class is its status times this, plus the number of its kind


class ByteModel(Model):
    """The bytes of a buffer, with a cursor, a selection and a search; it needs no browser.

    ``data`` is bytes, a uint8 array of one axis, or a Capture, whose buffer ``buffer`` is shown (by
    default the coefficients, or else the first buffer). ``items`` give the bytes a meaning: items
    of a stream as ``Target.explain`` returns them, the table of ``npulab.explain``, a layout, or a
    register map or draft for the words; by default the target explains the coefficients of a
    capture; () gives no meaning. The bytes are compared with ``reference``: another capture or
    buffer, or several in a list or CaptureSet. A buffer has 1 byte to 64 MiB.

    These can be set and observed:

    - ``cursor``: a byte; setting it selects this byte;
    - ``selection``: (offset, size); setting it moves the cursor to the first byte;
    - ``ends``: the byte where the selection began, and the cursor;
    - ``pointed``: a byte to describe instead of the byte at the cursor, or -1;
    - ``colour``: "kind" or "status";
    - ``query`` with ``element`` (one of ``ELEMENTS``) and ``big_endian``: a value to search;
    - ``axis``: if the bytes hold a layout, the axis of the tensor along which an element's index is
      its kind, or -1, so that two kinds alternate.

    These follow: ``found`` (number of matches), ``ordinal`` (the number of the match at the cursor,
    from 1; 0 without a match), ``about`` (texts about the byte) and ``note`` (an error in a
    request). ``counts`` and ``kind_counts`` are the numbers of bytes of each status and each kind.

    A byte's status is the first that holds of: "changed" (differs from a reference, or lies after
    the end of a reference), "fill" (by ``items``, or, without a meaning, in a run of 16 or more
    equal bytes), "zero", "constant" (equals several references), "unchanged" (equals a single
    reference), "plain". Raises LookupError for an unknown buffer, ValueError for no bytes or too
    many bytes, and for a place outside the buffer.

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
    colour = Enum(COLOURS, "status")
    query = Unicode()
    element = Enum(ELEMENTS, "bytes")
    big_endian = Bool()
    axis = Int(-1)
    found = Int(read_only=True)
    ordinal = Int(read_only=True)
    about = Dict(read_only=True)
    note = Unicode(read_only=True)
    start = Int(read_only=True)
    turn = Int(read_only=True)

    def __init__(
        self, data: Any, buffer: str | None = None, items: Any = None, reference: Any = None
    ) -> None:
        self._given: Capture | None = None
        self.buffer = buffer or ""
        self.title = self.buffer or "bytes"
        self.address: int | None = None
        self.simulated = False
        if isinstance(data, Capture):
            self._given = data
            self.buffer = _buffer(data, buffer)
            self.title = f"{data.target}/{data.name}, {self.buffer}"
            self.address = data.addresses.get(self.buffer)
            self.simulated = data.simulated
        self.data = _buffer_bytes(data, self.buffer)
        self._fault = ""  # the reason if the query cannot be read
        self.said = ""  # the reason if the target cannot explain the buffer
        is_explained = self._given is not None and self.buffer == COEFFICIENTS
        self._asks = is_explained and items is None
        self.meaning: Meaning | None = None
        self.references: tuple[ndarray, ...] = ()
        self._matches, self._length = np.zeros(0, np.int64), 1
        self._done: list[tuple[int, bytes]] = []
        self._undone: list[tuple[int, bytes]] = []
        super().__init__()
        self._read(items)
        self.compare(reference)
        if self.meaning is not None:
            self.colour = "kind"

    # ---- the state as text ----

    @property
    def size(self) -> int:
        """The number of bytes in the buffer."""
        return len(self.data)

    @property
    def capture(self) -> Capture | None:
        """The capture that was given, with the bytes as they are now; None if bytes were given."""
        return self._given and self._given.with_buffers(**{self.buffer: self.data.tobytes()})

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the kinds of meanings; the number of a kind is its place in this tuple,
        counted from 1.
        """
        if self.meaning is None:
            return ()
        return self.meaning.kinds

    @property
    def summary(self) -> str:
        counts = {**self.counts}
        counts.pop(STATUSES[PLAIN], None)
        statuses = ", ".join(f"{count} {name}" for name, count in counts.items())
        return "; ".join(filter(None, [plural(self.size, "byte"), statuses, self.said]))

    @property
    def matches(self) -> ndarray:
        """All offsets at which the query matches, ascending."""
        return self._matches

    @property
    def length(self) -> int:
        """The number of bytes that the query matches; 1 if there is no query."""
        return self._length

    @property
    def selected(self) -> bytes:
        """The bytes of the selection."""
        first, size = self.selection
        return self.data[first : first + size].tobytes()

    @property
    def window(self) -> slice:
        """The range of bytes that the page has now."""
        return slice(self.start, min(self.start + WINDOW, self.size))

    @property
    def classes(self) -> ndarray:
        """A number for each byte of the window: its status times 32, plus its kind's number."""
        return self.statuses[self.window] * np.uint8(STATUS_STEP) + self.kind_of[self.window]

    def values(self, byte: int) -> list[tuple[str, str]]:
        """Return (element type, value as text) for the number of every type that begins at a byte;
        the byte order is big-endian if ``big_endian`` is set.
        """
        order = "<"
        if self.big_endian:
            order = ">"
        numbers = []
        for name, form in NUMBERS.items():
            kind = np.dtype(order + form)
            raw = self.data[byte : byte + kind.itemsize].tobytes()
            text = "past the end"
            if len(raw) == kind.itemsize:
                text = str(np.frombuffer(raw, kind)[0])
            numbers.append((name, text))
        return numbers

    def describe(self, byte: int) -> str:
        """Return one line about a byte: offset, address, value, meanings, status, and the
        references' values if the byte is changed.
        """
        parts = [f"byte {byte:#x} ({byte})"]
        if self.address is not None:
            parts.append(f"address {self.address + byte:#x}")
        value = int(self.data[byte])
        text = f"{value:02x} = {value}"
        if 0x20 <= value < 0x7F:
            text += f" '{chr(value)}'"
        parts += [text, *self._meanings(byte, MOST_IN_LINE), self._status(byte)]
        return " · ".join(filter(None, parts))

    def _meanings(self, byte: int, most: int) -> list[str]:
        texts = []
        if self.meaning:
            texts = [meant.text for meant in self.meaning.at(byte)]
        if len(texts) <= most:
            return texts
        return [*texts[:most], f"… {len(texts) - most} more"]

    def _status(self, byte: int) -> str:
        status = int(self.statuses[byte])
        if status == CHANGED:
            values: dict[str, None] = {}
            for reference in self.references:
                value = "past the end"
                if byte < len(reference):
                    value = f"{reference[byte]:02x}"
                values[value] = None
            return f"changed, reference {' or '.join([*values][:MOST_IN_LINE])}"
        if status == PLAIN:
            return ""
        if status in (FILLED, ZERO) and self.references:
            return f"{STATUSES[status]}, {STATUSES[self._unchanged]}"
        return STATUSES[status]

    @property
    def _unchanged(self) -> int:
        """The number of the status, in ``STATUSES``, of bytes that equal every reference and are
        neither fill nor zero; "plain" if there is no reference.
        """
        if not self.references:
            return PLAIN
        if len(self.references) == 1:
            return UNCHANGED
        return CONSTANT

    # ---- acts of a person or the page ----

    def compare(self, reference: Any) -> None:
        """Compare the bytes with another buffer or capture, with several buffers or captures, or
        with nothing (None).
        """
        several = [reference]
        if reference is None:
            several = []
        elif isinstance(reference, list | tuple | CaptureSet):
            several = list(reference)
        self.references = tuple(_buffer_bytes(given, self.buffer, "reference") for given in several)
        self.reference = reference
        self._judge()

    def read_as(self, items: Any) -> None:
        """Give the bytes another meaning: ``items`` as the constructor takes them, except that None
        gives no meaning.
        """
        self._asks = False
        self._read(items)
        self._judge()

    def follow(self, draft: Any) -> None:
        """Read the bytes as words of the map of a draft, now and after each of its edits."""
        self.read_as(draft)
        draft.observe(self.read_as)

    def leave(self, draft: Any) -> None:
        """Stop following a draft: its later edits no longer change the meaning of the bytes."""
        draft.unobserve(self.read_as)

    def seek(self, step: int = 1) -> None:
        """Select the next match after the cursor, or with -1 the match before the cursor; after the
        last match comes the first.
        """
        if not self.query:
            self.set_trait("note", "no value to look for")
        elif not len(self._matches):
            self.set_trait("note", self._fault or "nothing matches")
        else:
            number = np.searchsorted(self._matches, self.cursor) - 1
            if step > 0:
                number = np.searchsorted(self._matches, self.cursor, "right")
            self.select(int(self._matches[number % len(self._matches)]), self.length)

    def select(self, offset: int, size: int = 1) -> None:
        """Select ``size`` bytes from an offset, and put the cursor on the first of them."""
        self.selection = (offset, size)
        self.ends = (offset + size - 1, offset)

    def go(self, asked: str) -> None:
        """Move the cursor to an offset (``31``, ``0x1f``), forward or back by bytes (``+16``,
        ``-4``), to an address (``@0x80001f``) or to the ``end``.

        Raises ValueError for any other text and for a place outside of the buffer.
        """
        text = asked.strip()
        if text == "end":
            text = str(self.size - 1)
        if len(asked) > MOST_DIGITS:
            text = ""  # int is slow at a long number, but refuses an empty text at once
        try:
            number = int(text.removeprefix("@").removeprefix("+"), 0)
        except ValueError:
            allowed = "an offset such as 0x1f, +16, -4, end"
            if self.address is not None:
                allowed += " or an address such as @0x80"
            raise ValueError(f"go to: got {asked!r:.60}, allowed is {allowed}") from None
        if text.startswith("@"):
            if self.address is None:
                raise ValueError(
                    f"go to: got {asked!r:.60}, allowed are offsets, as the buffer has no address"
                )
            number -= self.address
        if text[0] in "+-":
            number += self.cursor
        if not 0 <= number < self.size:
            raise ValueError(f"go to: got byte {number}, allowed is 0 to {self.size - 1}")
        self.select(number)

    def write(self, asked: str) -> None:
        """Write a value over the bytes that begin with the first byte of the selection.

        The value is typed as in a search, in the type ``element`` and the byte order that
        ``big_endian`` says; a ``?`` leaves a digit as it is. If there is no reference, the bytes
        before the write become the reference. Raises ValueError for a text that is not such a
        value, and if the value reaches past the end.
        """
        typed = pattern(asked, self.element, self.big_endian)
        first, _ = self.selection
        if typed.above or first + len(typed.value) > self.size:
            raise ValueError(
                f"write: got {asked!r:.60}, allowed is one value of at most {self.size - first} "
                f"bytes, as many as there are from byte {first:#x}"
            )
        value = np.frombuffer(typed.value, np.uint8)
        mask = np.frombuffer(typed.mask, np.uint8)
        old = self.data[first : first + len(value)]
        if not self.references:
            self.compare(self.data)
        new = old & ~mask | value & mask
        self._done.append(self._put_bytes(first, new.tobytes()))
        self._undone.clear()

    def undo(self) -> bool:
        """Undo the last write; False if there is none."""
        return self._back(self._done, self._undone)

    def redo(self) -> bool:
        """Make the write again that was undone last; False if there is none."""
        return self._back(self._undone, self._done)

    def _back(self, from_: list[tuple[int, bytes]], to: list[tuple[int, bytes]]) -> bool:
        if from_:
            to.append(self._put_bytes(*from_.pop()))
            return True
        self.set_trait("note", "nothing to take back")
        return False

    def _put_bytes(self, first: int, value: bytes) -> tuple[int, bytes]:
        """Write bytes at an offset, update everything that depends on the bytes, and return
        (offset, old bytes): the write that undoes this write.
        """
        axis = self.axis
        old = self.data[first : first + len(value)].tobytes()
        self.data = self.data.copy()  # the reference may be this array: it must not change
        self.data[first : first + len(value)] = np.frombuffer(value, np.uint8)
        self._read(self._items)
        self._search(None)
        self._judge()
        self.axis = -1
        if axis < len(self.axes):  # the new meaning may have fewer axes
            self.axis = axis
        self.select(first, len(value))
        return first, old

    def press(self, asked: Any) -> None:
        """Act on a message of the page: ``{"seek": 1}``, ``{"seek": -1}``, ``{"go": "0x1f"}``,
        ``{"write": "3f 80"}``, ``{"undo": 1}`` or ``{"redo": 1}``.

        Errors of an act are reported in ``note``; raises ValueError for any other message.
        """
        match asked:
            case {"seek": 1 | -1 as step}:
                self.seek(step)
            case {"undo": 1} | {"redo": 1}:
                getattr(self, *asked)()
            case {"go": str() as text} | {"write": str() as text}:
                try:
                    getattr(self, *asked)(text)
                except ValueError as error:  # no cell could show an error of a page's message
                    self.set_trait("note", str(error))
            case _:
                raise ValueError(
                    f"message: got {asked!r:.80}, allowed is seek with 1 or -1, go and write with "
                    "a text, undo and redo with 1"
                )

    # ---- what follows from the traits ----

    @property
    def axes(self) -> list[int]:
        """The sizes of the axes of the layout that gives the bytes their meaning; empty if no
        layout does.
        """
        if isinstance(self.meaning, OfLayout):
            return list(self.meaning.layout.shape)
        return []

    @validate("axis")
    def _check_axis(self, proposal: Any) -> int:
        if not -1 <= proposal.value < len(self.axes):
            raise ValueError(
                f"axis: got {proposal.value}, allowed is -1 to {len(self.axes) - 1}, the axes of a "
                "layout"
            )
        return int(proposal.value)

    @observe("axis")
    def _turn(self, _: Any) -> None:
        if isinstance(self.meaning, OfLayout):
            self.meaning = replace(self.meaning, axis=self.axis)
            self.kind_of = self.meaning.classes()
            self._judge()

    def _explained(self, capture: Any) -> Any:
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
            items = self._explained(self.capture)
        self.meaning = None
        self.kind_of = np.zeros(self.size, np.uint8)
        is_empty = items is None or (isinstance(items, Sequence) and not items)
        if not is_empty:
            self.meaning = meaning(items, self.data)
            self.kind_of = self.meaning.classes()
        self.axis = -1

    def _judge(self) -> None:
        """Find the status of every byte, and update everything that depends on the statuses."""
        kinds = self.kinds
        fill = runs_of(self.data, RUN) & (self.kind_of == 0)
        if FILL in kinds:
            fill |= self.kind_of == kinds.index(FILL) + 1
        # each status overwrites the statuses above it
        statuses = np.full(self.size, self._unchanged, np.uint8)
        statuses[self.data == 0] = ZERO
        statuses[fill] = FILLED
        for reference in self.references:
            both = min(len(reference), self.size)
            statuses[:both][reference[:both] != self.data[:both]] = CHANGED
            statuses[both:] = CHANGED
        self.statuses = statuses
        self.counts = _counts(statuses, STATUSES)
        self.kind_counts = _counts(self.kind_of, ("", *kinds))
        self.set_trait("turn", self.turn + 1)
        self._tell(None)

    @observe("cursor")
    def _put(self, _: Any) -> None:
        _, end = self.ends
        if end != self.cursor:
            self.ends = (self.cursor, self.cursor)

    @observe("selection")
    def _span(self, _: Any) -> None:
        if between(self.ends) != self.selection:
            offset, size = self.selection
            self.ends = (offset + size - 1, offset)

    @observe("ends")
    def _move(self, _: Any) -> None:
        self.selection = between(self.ends)
        _, self.cursor = self.ends
        if not self.start <= self.cursor < self.window.stop:
            last = -(-(self.size - WINDOW) // STEP)
            step = max(self.cursor - WINDOW // 2, 0) // STEP
            self.set_trait("start", min(step, last) * STEP)
        self.set_trait("ordinal", self._ordinal())
        self.set_trait("note", "")

    @observe("query", "element", "big_endian")
    def _search(self, _: Any) -> None:
        self._fault = ""
        self._matches, self._length = np.zeros(0, np.int64), 1
        if self.query:
            try:
                self._length = len(pattern(self.query, self.element, self.big_endian).value)
                self._matches = find(self.data, self.query, self.element, self.big_endian)
            except ValueError as error:
                self._fault = str(error)
        self.set_trait("found", len(self._matches))
        self.set_trait("ordinal", self._ordinal())
        self.set_trait("note", self._fault)

    def _ordinal(self) -> int:
        at = int(np.searchsorted(self._matches, self.cursor))
        if at < len(self._matches) and self._matches[at] == self.cursor:
            return at + 1
        return 0

    @observe("cursor", "pointed", "big_endian")
    def _tell(self, _: Any) -> None:
        byte = self.pointed
        if self.pointed < 0:
            byte = self.cursor
        spans = []
        if self.meaning:
            for meant in self.meaning.at(byte)[:MOST_LISTED]:
                spans.append([meant.first, meant.size])
        about = {
            "offset": byte,
            "line": self.describe(byte),
            "values": [*map(list, self.values(byte))],
            "meanings": self._meanings(byte, MOST_LISTED),
            "spans": spans,
        }
        self.set_trait("about", about)

    def _repr_html_(self) -> str:
        rows = [_face_row(self, first) for first in range(0, min(self.size, FACE_ROWS * ROW), ROW)]
        more = self.size - FACE_ROWS * ROW
        if more > 0:
            rows.append(f"… {more} more bytes")
        kinds = ", ".join(f"{name} {count}" for name, count in self.kind_counts.items())
        if kinds:
            rows.append(f"bytes by kind: {kinds}")
        text = html.escape("\n".join(rows))
        return f"{self.heading_html()}<pre>{text}</pre>"


class ByteView(View):
    """The bytes of a buffer: arrows move, / looks for a value, g goes to an offset, Shift selects,
    e writes, u and U undo and redo.

    The arguments are those of ``ByteModel``. ``cursor``, ``selection``, ``colour``, ``query``,
    ``element``, ``big_endian`` and ``axis`` are the model's and can be set and observed; ``about``,
    ``found`` and ``note`` follow them; ``capture`` has the present bytes. Everything else is on
    ``model``.
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

    total = Int()
    start = Int()
    data = Bytes()
    classes = Bytes()
    kinds: List[Any] = List()
    statuses: List[Any] = List()
    axes = List(Int())
    elements = List(Unicode(), list(ELEMENTS))
    marks = Bytes()
    length = Int(1)

    def __init__(
        self, data: Any, buffer: str | None = None, items: Any = None, reference: Any = None
    ) -> None:
        model = ByteModel(data, buffer, items, reference)
        super().__init__(model, total=model.size)
        model.observe(self._show, ["start", "turn"])
        model.observe(self._mark, ["start", "turn", "query", "element", "big_endian"])
        self._show(None)

    def _show(self, _: Any) -> None:
        """Send the bytes of the window, and everything that is shown about the bytes, to the page
        in one message.
        """
        model = self.model
        with self.hold_sync():
            self.start = model.start
            self.data = model.data[model.window].tobytes()
            self.classes = model.classes.tobytes()
            self.axes = model.axes
            self.kinds = [[name, model.kind_counts.get(name, 0)] for name in model.kinds]
            self.statuses = [[name, model.counts.get(name, 0)] for name in STATUSES]
            self.summary = model.summary

    def _mark(self, _: Any) -> None:
        model = self.model
        window = model.window
        ends = window.start - model.length + 1, window.stop
        first, end = np.searchsorted(model.matches, ends)
        marks = model.matches[first:end]
        with self.hold_sync():
            self.marks = marks[:MOST_MARKS].astype("<u4").tobytes()
            self.length = model.length


def _counts(numbers: ndarray, names: Sequence[str]) -> dict[str, int]:
    """Return how many bytes have each name; ``numbers`` has an index of ``names`` for each byte;
    the empty name and unused names are left out.
    """
    counts = np.bincount(numbers, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if name and count}


def between(ends: tuple[int, int]) -> tuple[int, int]:
    """Return the run of bytes (offset, size) that begins at one of two bytes and ends at the other,
    in either order.

    >>> between((7, 4))
    (4, 4)
    """
    return min(ends), max(ends) - min(ends) + 1


def _buffer(capture: Capture, name: str | None) -> str:
    names = list(capture.buffers)
    found = name
    if not found and COEFFICIENTS in names:
        found = COEFFICIENTS
    found = found or next(iter(names), "")
    if found not in capture.buffers:
        raise LookupError(
            f"capture {capture.name}: got buffer {found!r}, it has {', '.join(names) or 'none'}"
        )
    return found


def _buffer_bytes(data: Any, buffer: str, name: str = "data") -> ndarray:
    """Return bytes as ``(n,) uint8``: those of the named buffer if ``data`` is a capture, else
    those of ``data`` itself.

    Raises ValueError for no bytes or too many.
    """
    if isinstance(data, Capture):
        data = data.buffers[_buffer(data, buffer)]
    out = np.ascontiguousarray(bytes_in(data, name))
    if not 1 <= len(out) <= MOST_BYTES:
        raise ValueError(f"{name}: got {len(out)} bytes, allowed is 1 to {MOST_BYTES}")
    return out


def _face_row(model: ByteModel, first: int) -> str:
    cells = []
    text = ""
    row = slice(first, first + ROW)
    for byte, status in zip(model.data[row], model.statuses[row], strict=True):
        mark = " "
        if status == CHANGED:
            mark = "*"
        cells.append(f"{byte:02x}{mark}")
        letter = "."
        if 0x20 <= byte < 0x7F:
            letter = chr(byte)
        text += letter
    return f"{first:08x}  {' '.join(cells):{4 * ROW - 1}}  {text}"
