"""The parts that the folder of an NPU defines: its maps, chips and importers, and the functions
that lead from a capture to a layer and back."""

from __future__ import annotations

import dis
import linecache
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.items import Item as Item
from npulab.quant.layers import ACTIVATIONS
from npulab.quant.rules import Rule, state_rules
from npulab.registers.map import RegisterMap
from npulab.support.files import read_table
from npulab.support.refuse import need, refuse_if, shortly
from npulab.support.text import plural

if TYPE_CHECKING:
    from npulab.captures.capture import Capture, Job
    from npulab.captures.tokens import Tokens
    from npulab.quant.layers import Layer

Features = Mapping[str, int]
OWN = f"{Path(__file__).parents[1]}{os.sep}"  # paths of npulab's own code begin with ``OWN``
# Key: a parameter that makes a layer a variant; value: its usual values, which any ``lower`` takes.
VARIANTS = {"output": ("codes",), "rounding": ("half-away",), "activation": ACTIVATIONS}
STEPS = (
    "lift",
    "simulate",
    "recode",
    "explain",
    "writes",
    "outline",
    "claims",
    "replay",
    "split",
    "tensor",
    "extent",
    "covers",
    "rule_of",
    "idle",
)


class Unsupported(ValueError):
    """Raised by a step that cannot work: the target does not cover it yet, or the capture lacks
    data that it needs."""


# The text of a hang for which a simulated device has no evidence ends with GUESS.
SHOWN_BYTES = 16  # the repr of a run shows an output of at most ``SHOWN_BYTES`` bytes whole
GUESS = "which is a guess: no board or RTL confirmed it"


class Hang(Exception):
    """Raised by a device that would never finish a capture; the text says why.

    ``guessed`` is True if only a simulated device says so; the text then ends with ``GUESS``. A
    hang that a target's ``simulate`` raises is guessed, unless the target set ``guessed`` to False,
    as it may for a rule that RTL or a board confirmed.

    >>> hang = Hang("kernel_h is 0")
    >>> hang.guessed = True
    >>> print(hang)
    kernel_h is 0, which is a guess: no board or RTL confirmed it
    """

    guessed: bool | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.guessed:
            return f"{text}, {GUESS}"
        return text


@dataclass(frozen=True)
class Run:
    """The result of one run: ``outcome`` is "done", "failed" or "hang". ``output`` has the bytes
    that the run wrote; it is None if there are none, and ``reason`` then says why. ``spoiled`` says
    how a known-good capture failed after this run, "" if none did. ``guessed`` is True for a hang
    for which a simulated device has no evidence.
    """

    outcome: str
    output: bytes | None = None
    reason: str = ""
    spoiled: str = ""
    guessed: bool = False

    @classmethod
    def hung(cls, hang: Hang) -> Run:
        """The run that a ``Hang`` ended."""
        return cls("hang", reason=str(hang), guessed=bool(hang.guessed))

    def __repr__(self) -> str:
        """The run in one line; a long output is shown by its number of bytes and its CRC-32.

        >>> Run("done", bytes(2000)), Run("hang", reason="no interrupt")
        (Run(done, 2000 bytes, CRC-32 0x02c9f444), Run(hang, reason='no interrupt'))
        """
        parts = [self.outcome]
        if self.output is not None and len(self.output) <= SHOWN_BYTES:
            parts.append(f"output={self.output!r}")
        elif self.output is not None:
            crc = zlib.crc32(self.output)
            parts.append(f"{plural(len(self.output), 'byte')}, CRC-32 {crc:#010x}")
        for name in ("reason", "spoiled"):
            text = getattr(self, name)
            if text:
                parts.append(f"{name}={text!r}")
        if self.guessed:
            parts.append("guessed")
        return f"Run({', '.join(parts)})"


class Lifted(NamedTuple):
    """A layer or a network, with its input and its captured output, both ``(H, W, C)``; a tensor
    that was not recorded is None.

    If the layer takes several tensors, ``x`` is a tuple of them, in the form that ``emulate``
    takes.
    """

    layer: Any
    x: Any
    output: Array | None


class Claim(NamedTuple):
    """A statement of another ``source`` about a field of a capture; ``what`` is the statement in
    the words of the source.

    ``field`` is the name of the field in the job with the number ``task``; ``expected`` is the
    value that the source states and ``got`` the value in the capture, None if it has no such field.
    """

    task: int
    what: str
    field: str
    expected: Any
    got: Any = None
    source: str = ""

    @property
    def agrees(self) -> bool:
        """True if the field has the value that the source states."""
        return bool(self.got == self.expected)

    def __str__(self) -> str:
        got = self.got
        if got is None:
            got = "not there"
        source = self.source or "the source"
        return (
            f"task {self.task}, {self.what}: {self.field} is {got}, {source} says {self.expected}"
        )


@dataclass(frozen=True)
class Range:
    """A range of memory that a recorded run checked.

    ``predicted`` are the bytes that the target's arithmetic writes to the range, ``captured`` the
    bytes that the run wrote; ``crc`` is the CRC-32 of ``captured`` if only that was recorded.
    Raises ValueError for a member of another type.
    """

    name: str
    predicted: bytes
    captured: bytes | None = None
    crc: int | None = None

    def __post_init__(self) -> None:
        refuse_if(not isinstance(self.name, str), "Range: name", shortly(self.name), "is a text")
        where, allowed = f"Range {self.name!r:.60}", "are bytes, as array.tobytes() gives them"
        wrong = not isinstance(self.predicted, bytes)
        refuse_if(wrong, f"{where}: predicted", shortly(self.predicted), allowed)
        wrong = not isinstance(self.captured, bytes | None)
        refuse_if(wrong, f"{where}: captured", shortly(self.captured), allowed)
        known = self.crc is None or (isinstance(self.crc, int) and 0 <= self.crc < 2**32)
        allowed = "is a CRC-32, 0 to 0xffffffff, or None"
        refuse_if(not known, f"{where}: crc", shortly(self.crc), allowed)

    @property
    def differing(self) -> Sequence[int]:
        """The offsets of the bytes that differ between ``predicted`` and ``captured``, or that only
        one has; if only the CRC-32 was recorded and it differs, all offsets."""
        if self.captured is None:
            if self.crc is None or zlib.crc32(self.predicted) == self.crc:
                return range(0)
            return range(len(self.predicted))
        if self.predicted == self.captured:
            return range(0)
        a, b = self._both()
        places = np.flatnonzero(a != b)
        return [*places.tolist(), *range(len(a), max(len(self.predicted), len(self.captured)))]

    @property
    def largest(self) -> int:
        """The largest difference between a predicted and a captured byte; 0 if only a CRC-32 was
        recorded."""
        a, b = self._both()
        return int((np.maximum(a, b) - np.minimum(a, b)).max(initial=0))

    def _both(self) -> tuple[Array, Array]:
        """The predicted and the captured bytes, ``(n,) uint8`` each; the longer is cut to the
        length of the shorter.
        """
        captured = self.captured or b""
        both = min(len(self.predicted), len(captured))
        predicted = np.frombuffer(self.predicted, np.uint8, both)
        return predicted, np.frombuffer(captured, np.uint8, both)

    def __str__(self) -> str:
        wrong = self.differing
        if not wrong:
            return f"{self.name}: {len(self.predicted)} bytes are equal"
        if self.captured is None:
            return (
                f"{self.name}: CRC-32 of {len(self.predicted)} bytes is "
                f"{zlib.crc32(self.predicted):#010x}, the run had {self.crc:#010x}"
            )
        return (
            f"{self.name}: {len(wrong)} of {len(self.captured)} bytes differ, the first at "
            f"{wrong[0]:#x}"
        )


# key: a step that answers with a sequence; value: the type of the sequence's members
MEMBERS = {"replay": Range, "claims": Claim}


@dataclass(frozen=True)
class Importer:
    """A foreign dump format: ``recognises(path)`` is True for a dump of this format, ``read(path)``
    gives the captures in it by case.

    ``read`` raises ValueError with file and line for a broken dump; if the cases of the dump are
    independent, a broken case has its ValueError in place of a capture, and other cases are read.
    ``readers(path)``, for dumps of independent cases, gives for each case a function that reads it,
    so that a case is read only when it is needed, perhaps in another process.
    """

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Mapping[str, Capture] | Mapping[str, Capture | ValueError]]
    readers: Callable[[Path], Mapping[str, Callable[[], Capture]]] | None = None


def each_read(readers: Mapping[str, Callable[[], Capture]]) -> dict[str, Capture | ValueError]:
    """The captures that the readers return, by name; a case whose reader raises ValueError has that
    error in its place."""
    cases: dict[str, Capture | ValueError] = {}
    for name, read in readers.items():
        try:
            cases[name] = read()
        except ValueError as error:
            cases[name] = error
    return cases


@dataclass(frozen=True)
class DocumentFormat:
    """A format of files that are not captures: ``recognises(path)`` is True for such a file,
    ``read(path)`` gives a ``documents.Document`` and raises ValueError for a broken file."""

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Any]


def _not_yet(what: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise Unsupported(f"this target does not {what} yet")

    return refuse


def _in_order(capture: Capture, name: str, like: Array) -> Array:
    """The bytes of a buffer as an array of the type and shape of ``like``, last axis fastest;
    raises ValueError unless the buffer has as many bytes as ``like``.
    """
    data = capture.buffers[name]
    if len(data) != like.nbytes:
        raise ValueError(
            f"capture {capture.name}: buffer {name!r}: got {len(data)} bytes, allowed "
            f"are {like.nbytes}, of {like.dtype} {like.shape}"
        )
    return np.frombuffer(data, like.dtype).reshape(like.shape)


def _every_task(capture: Capture) -> range:
    """The numbers (tasks) of all jobs of a capture."""
    return range(len(capture.jobs))


@dataclass(frozen=True)
class Target:
    """One NPU family, as far as it is understood: steps left out raise ``Unsupported``.

    ``chips`` maps a chip to its features (name to number), the first chip being the usual one;
    ``tables`` are the register maps by block, the first map that of the parameter block; ``rule``
    is the rounding rule that outputs usually follow, ``rule_of`` gives the rule of a capture. The
    steps are:

    - ``lift`` gives a ``Lifted``, ``lower`` a capture, ``simulate`` the output bytes from words and
      bytes alone, ``recode`` the coefficient buffer decoded and encoded again, ``explain`` an
      ``Item`` for every run of bits of that buffer, ``writes`` the register writes in the words of
      a command stream;
    - ``outline`` gives the parameters, by name, of a capture's layer that its words alone state, or
      those that the words would state of a given layer;
    - ``claims`` gives a ``Claim`` for every field that another source than the capture speaks of;
    - ``replay`` gives a ``Range`` for every range of memory that a recorded run of several units
      checked;
    - ``split`` gives a capture for each layer of a capture with several layers;
    - ``extent`` gives the bytes of the buffer ``output`` that the words of a lifted capture write,
      with the fill between and after elements (left out: found by lifting other bytes);
    - ``covers`` gives the tasks that ``lift`` makes its layer of (left out: all);
    - ``stays_up`` gives, for a chip, a function like ``simulate`` of one device that stays up: each
      capture meets what the captures before it left (left out: each runs after a reset);
    - ``idle`` gives, for a capture and the number of a job, a job that passes the same tokens
      (waits, signals) on the same unit and does nothing else, None if the NPU has no such job. A
      bisection puts it in place of a culprit, to tell what the job does from its tokens.

    ``simulate`` of a list of captures runs them one after another on one device and gives a ``Run``
    for each: a hang is then an outcome, and not raised. A hang counts as guessed unless the target
    set ``guessed`` to False (see ``Hang``).

    ``rules`` are the target's own rounding rules, named ``<target>:...``; they are known wherever a
    rule is named. ``variants`` are those of ``VARIANTS`` that ``lower`` supports: a layer with
    another variant is refused before ``lower`` is called. ``tokens`` says which fields of jobs make
    units wait for each other. ``allowed`` says which layers the NPU runs, if not all: a list of
    values or (low, high) by the names that ``explore`` has for ranges, by ``dtype``, and by
    ``ratio`` (of scales). An error that a function of the target does not raise as a sentence
    becomes a ValueError with step, file and line.
    """

    name: str
    title: str
    chips: Mapping[str, Features]
    tables: Mapping[str, RegisterMap]
    rule: str = "tflite-reference"
    lift: Callable[[Capture], Lifted] = field(
        default_factory=lambda: _not_yet("lift captures to layers")
    )
    lower: Callable[..., Capture] = field(
        default_factory=lambda: _not_yet("lower layers to captures")
    )
    simulate: Callable[..., Any] = field(default_factory=lambda: _not_yet("simulate captures"))
    recode: Callable[[Capture], bytes] = field(
        default_factory=lambda: _not_yet("decode coefficients")
    )
    explain: Callable[[Capture], list[Item]] = field(
        default_factory=lambda: _not_yet("explain coefficients")
    )
    writes: Callable[[Array], Sequence[tuple[int, int]]] = field(
        default_factory=lambda: _not_yet("read command streams")
    )
    outline: Callable[[Capture | Layer], Mapping[str, Any]] = field(
        default_factory=lambda: lambda _: {}
    )
    claims: Callable[[Capture], Sequence[Claim]] = field(default_factory=lambda: lambda _: ())
    replay: Callable[[Capture], Sequence[Range]] = field(default_factory=lambda: lambda _: ())
    split: Callable[[Capture], Sequence[Capture]] = field(
        default_factory=lambda: lambda capture: (capture,)
    )
    tensor: Callable[[Capture, str, Array], Array] = field(default_factory=lambda: _in_order)
    extent: Callable[[Capture, Lifted], range] | None = None
    covers: Callable[[Capture], Collection[int]] = field(default_factory=lambda: _every_task)
    rule_of: Callable[[Capture], str] | None = None
    importers: tuple[Importer, ...] = ()
    documents: tuple[DocumentFormat, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    variants: tuple[str, ...] = ()
    stays_up: Callable[[str], Callable[[Capture], bytes]] | None = None
    tokens: Tokens | None = None
    idle: Callable[[Capture, int], Job | None] | None = None
    allowed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            state_rules(self.name, self.rules)
        except (ValueError, LookupError) as error:
            raise type(error)(f"target {self.name}: {error}") from None
        for step in STEPS:
            if getattr(self, step) is not None:
                object.__setattr__(self, step, guarded(getattr(self, step), self.name, step))
        several = _several(self.simulate, self.stays_up)
        object.__setattr__(self, "simulate", several)
        for step, kind in MEMBERS.items():
            object.__setattr__(self, step, _only(getattr(self, step), kind, self.name, step))
        lower = _plain_only(guarded(self.lower, self.name, "lower"), self.name, self.variants)
        object.__setattr__(self, "lower", lower)
        importers = []
        for importer in self.importers:
            where = f"importer {importer.name!r}"
            recognises = guarded(importer.recognises, self.name, where)
            read = guarded(importer.read, self.name, where)
            importers.append(replace(importer, recognises=recognises, read=read))
        object.__setattr__(self, "importers", tuple(importers))

    @property
    def registers(self) -> RegisterMap:
        """The register map of the parameter block (the first block) for the first chip."""
        return next(iter(self.maps(next(iter(self.chips))).values()))

    def maps(self, chip: str) -> dict[str, RegisterMap]:
        """The register maps by block, for a chip; raises LookupError with the known chips."""
        return select(self.tables, self.features(chip))

    def features(self, chip: str) -> Features:
        """The features of a chip; raises LookupError with the known chips."""
        need("chip", chip, str, f"is one of {', '.join(self.chips)}")
        if chip not in self.chips:
            raise LookupError(
                f"chip: got {chip!r}, target {self.name} knows {', '.join(self.chips)}"
            )
        return self.chips[chip]

    def __repr__(self) -> str:
        return f"Target({self.name}: {self.title}; {', '.join(self.chips)})"


def guarded(function: Callable[..., Any], name: str, step: str) -> Callable[..., Any]:
    """A function that calls a step of a target; an unexpected error becomes a ValueError with the
    name of the step, its argument, and the file and line.

    An error that a ``raise`` statement of npulab or of the target's folder makes passes unchanged,
    and so do errors of files, imports and memory.
    """
    function = getattr(function, "_guarded", function)
    folder = str(Path(getattr(function, "__code__", place_of.__code__).co_filename).parent)

    @wraps(function)
    def step_of(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except (Unsupported, Hang, OSError, ImportError, MemoryError):
            raise
        except Exception as error:
            if _in_words(error, folder):
                raise
            asked = next(iter((*values, *named.values())), None)
            subject = _subject(asked)
            raise ValueError(
                f"target {name}: {step} of {subject}: {type(error).__name__}: {error}, at "
                f"{place_of(error, folder)}"
            ) from error

    step_of._guarded = function  # type: ignore[attr-defined]
    return step_of


def place_of(error: BaseException, folder: str) -> str:
    """The place of an error as text: file, line number and line of the innermost call in a file of
    ``folder``, or in any file if the error passed through no file of ``folder``."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    inside = [place for place in frames if place[0].startswith(f"{folder}{os.sep}")]
    if not frames:
        return ""
    file, line = (inside or frames)[-1]
    linecache.checkcache(file)
    text = linecache.getline(file, line).strip()
    if text:
        text = f" ({text})"
    return f"{Path(file).parent.name}/{Path(file).name}:{line}{text}"


def _in_words(error: BaseException, folder: str) -> bool:
    """True if an error has a text and comes from a ``raise`` statement in npulab's code or in that
    of ``folder``."""
    frame = None
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace, trace.tb_next
    if frame is None or isinstance(error, KeyError | AssertionError) or not str(error):
        return False
    code = frame.tb_frame.f_code
    return (
        code.co_filename.startswith((OWN, f"{folder}{os.sep}"))
        and code.co_code[frame.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    )


def _subject(value: Any) -> str:
    """A short name for the argument of a step, for an error text."""
    if isinstance(value, Array):
        return f"{value.size} words"
    if hasattr(value, "jobs"):
        return f"capture {value.name}"
    return f"{value!s:.80}"


def _several(
    simulate: Callable[[Capture], bytes],
    stays_up: Callable[[str], Callable[[Capture], bytes]] | None,
) -> Callable[..., Any]:
    """A function that simulates one capture, or a list of captures on one device.

    Raises ValueError for captures of several chips.
    """

    @wraps(simulate)
    def run(captures: Any) -> bytes | tuple[Run, ...]:
        if not isinstance(captures, list | tuple):
            return _simulated(simulate, captures)
        chips = sorted({capture.chip for capture in captures})
        if len(chips) > 1:
            raise ValueError(f"simulate: got captures of {chips}, allowed is one chip")
        step = simulate
        if stays_up and chips:
            step = stays_up(chips[0])
        runs = []
        for capture in captures:
            runs.append(_outcome(step, capture))
        return tuple(runs)

    return run


def _outcome(step: Callable[[Capture], bytes], capture: Capture) -> Run:
    try:
        return Run("done", _simulated(step, capture))
    except Hang as hang:
        return Run.hung(hang)


def _simulated(step: Callable[[Capture], bytes], capture: Capture) -> bytes:
    """The output of a simulated device; a hang is ``guessed`` unless the target set it to False."""
    try:
        return step(capture)
    except Hang as hang:
        if hang.guessed is None:
            hang.guessed = True
        raise


def _only(
    function: Callable[[Capture], Any], kind: type, name: str, step: str
) -> Callable[[Capture], Sequence[Any]]:
    """A function that calls a step and returns the members of its answer as a tuple; it raises
    ValueError if one is not of ``kind``."""

    @wraps(function)
    def checked(capture: Capture) -> Sequence[Any]:
        given = function(capture)
        if isinstance(given, kind) or not isinstance(given, Iterable):
            raise ValueError(
                f"target {name}: {step}: got {shortly(given)}, allowed is a tuple of "
                f"npulab.target.{kind.__name__}"
            )
        found = tuple(given)
        for number, member in enumerate(found):
            if not isinstance(member, kind):
                raise ValueError(
                    f"target {name}: {step}: got {shortly(member)} as member {number}, allowed is "
                    f"npulab.target.{kind.__name__}"
                )
        return found

    return checked


def _plain_only(
    lower: Callable[..., Capture], name: str, known: Sequence[str]
) -> Callable[..., Capture]:
    """A function that calls ``lower``, but raises ValueError for a layer with several weight zero
    points, or with a parameter of ``VARIANTS`` that is not in ``known`` and not usual."""

    @wraps(lower)
    def checked(layer: Any, *values: Any, **named: Any) -> Capture:
        parts = getattr(layer, "layers", (layer,))
        if len(parts) == 1:
            layer = parts[0]
        for part in parts:
            several = getattr(getattr(part, "weight_q", None), "zero_points", ())
            if several:
                raise ValueError(
                    f"lower for {name}: weight_q: got {len(several)} zero points, allowed is one"
                )
            for parameter, usual in VARIANTS.items():
                value = getattr(part, parameter, usual[0])
                if isinstance(value, str) and value not in usual and parameter not in known:
                    raise ValueError(
                        f"lower for {name}: {parameter}: got {value!r}, allowed is "
                        f"{' or '.join(map(repr, usual))}"
                    )
        return lower(layer, *values, **named)

    return checked


def select(tables: Mapping[str, RegisterMap], features: Features) -> dict[str, RegisterMap]:
    """The register maps by block for a chip with these ``features``: with the registers that it
    has, and with fields at the places that follow from the features' numbers."""
    on = [name for name, value in features.items() if value]
    return {block: table.select(on, features) for block, table in tables.items()}


def read_chips(path: Path) -> dict[str, dict[str, int]]:
    """Read a table with the columns chip, feature, value, evidence and note; return each value by
    chip and feature."""
    out: dict[str, dict[str, int]] = {}
    for row in read_table(path):
        out.setdefault(row["chip"], {})[row["feature"]] = int(row["value"], 0)
    return out


def read_sources(path: Path) -> dict[str, str]:
    """Read a table with the columns code, title and where; return "title (where)" by code."""
    return {row["code"]: f"{row['title']} ({row['where']})" for row in read_table(path)}
