"""Sources: each turns the parameters of a layer into a capture, with a target's ``lower`` or with a
compiler."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import numpy as np

from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.dumps import described
from npulab.captures.folders import DESCRIPTION
from npulab.captures.layers import following, made
from npulab.captures.registry import target
from npulab.captures.target import Target
from npulab.captures.unrecognised import undescribed, unread_dumps
from npulab.models import single_op_model
from npulab.support.executors import Workers, ordered
from npulab.support.extras import lacking_in, told
from npulab.support.processes import arguments, execute

OUTCOMES = ("captured", "refused", "failed", "hang")
MODEL, OUT = "{model}", "{out}"
OF_TARGETS = ("dtype", "ratio")  # ``OF_TARGETS`` in a target's ``allowed`` are no parameters.
WORDS = 400  # at most ``WORDS`` characters of a source's message are kept


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a source for one layer.

    ``outcome`` is "captured", or says why there is no capture: "refused" (the layer is not
    supported), "failed" (the source does not work), "hang". ``parameters`` are sizes that follow
    from the layer, or were observed in the capture; ``text`` is the message of the source.
    """

    outcome: str
    capture: Capture | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    text: str = ""


class Source(Protocol):
    """An object that is called with the parameters of a layer and answers with a capture."""

    @property
    def record(self) -> dict[str, Any]:
        """The identity of the source, with its version and options, as values that JSON can
        hold."""
        ...

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        """The answer for a layer with these parameters and with weights drawn from the seed."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A source that needs no compiler: the target's own ``lower``, for layers of type ``dtype``.

    >>> Lowered("vivante", "vipnano-si-imx8mp")({"input_h": 8}).outcome  # too little for a layer
    'refused'
    """

    target: str
    chip: str | None = None
    dtype: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, Any]:
        """The ranges of parameters that the target states as allowed."""
        allowed = target(self.target).allowed
        return {name: values for name, values in allowed.items() if name not in OF_TARGETS}

    @property
    def _dtype(self) -> str:
        """The type of the layers: by default the first that the target states, or uint8."""
        if self.dtype is not None:
            return self.dtype
        return str(target(self.target).allowed.get("dtype", ["uint8"])[0])

    @property
    def record(self) -> dict[str, Any]:
        return {
            "source": "lower",
            "target": self.target,
            "chip": self.chip or "",
            "dtype": self._dtype,
            "options": {name: str(value) for name, value in self.options.items()},
        }

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        try:
            layer, x = made(parameters, seed, self._dtype)
            chip = {}
            if self.chip is not None:
                chip["chip"] = self.chip
            capture = target(self.target).lower(layer, x=x, **chip, **self.options)
        except (ValueError, LookupError) as error:
            return Answer("refused", text=_sentence(error))
        except ImportError as error:
            return Answer("failed", text=told(error))
        return Answer("captured", capture, following(layer) | _observed(capture))


@dataclass(frozen=True)
class Compiler:
    """A source that is a program, which compiles a model of one layer.

    ``command`` is a sequence of arguments, or a text that is split into arguments; no shell is
    involved. ``{model}`` in it is replaced by the path of the ``.tflite`` file, ``{out}`` by the
    path of a new folder. After the run ``read`` is given that folder and returns the capture (by
    default, the capture that a target's importer recognises). ``version`` is a command that prints
    the program's version in its first line.

    The outcome is "hang" if the program has not ended after ``timeout`` seconds (it is then ended
    with its process group), and "refused" if it ends with another status than 0. It is "failed" if
    the program lacks a package, or leaves nothing that can be read.

    Raises ValueError for a command without ``{model}``.
    """

    command: Any
    read: Callable[[Path], Capture] | None = None
    dtype: str = "int8"
    timeout: float = 60.0
    version: Any = None

    def __post_init__(self) -> None:
        words = arguments("command", self.command)
        if not any(MODEL in word for word in words):
            raise ValueError(
                f"command: got {self.command!r}, allowed is one in which {MODEL} stands for the "
                "model's path"
            )
        object.__setattr__(self, "command", words)

    @property
    def record(self) -> dict[str, Any]:
        return {
            "source": "compiler",
            "command": list(self.command),
            "dtype": self.dtype,
            "version": self._version(),
        }

    def _version(self) -> str:
        if self.version is None:
            return ""
        with tempfile.TemporaryDirectory(prefix="npulab-") as folder:
            printed = Path(folder) / "version"
            # the shell only sends the program's output to a file
            shell = "sh", "-c", '"$@" > "$0" 2>&1', str(printed)
            execute("version", (*shell, *arguments("version", self.version)), self.timeout)
            lines = []
            if printed.exists():
                lines = printed.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines:
            return lines[0][:WORDS]
        return ""

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        try:
            layer, x = made(parameters, seed, self.dtype)
            model = single_op_model(layer)
        except (ValueError, LookupError) as error:
            return Answer("refused", text=_sentence(error))
        except ImportError as error:
            return Answer("failed", text=told(error))
        try:
            with tempfile.TemporaryDirectory(
                prefix="npulab-", ignore_cleanup_errors=True
            ) as folder:
                return self._compiled(Path(folder), model, following(layer), x)
        except OSError as error:  # the program cannot be started, or the disk is full
            return Answer("failed", text=_sentence(error))

    def _compiled(
        self, folder: Path, model: bytes, follows: dict[str, float], x: np.ndarray
    ) -> Answer:
        path, out = folder / "layer.tflite", folder / "out"
        out.mkdir()
        path.write_bytes(model)
        words = [word.replace(MODEL, str(path)).replace(OUT, str(out)) for word in self.command]
        end = execute("command", tuple(words), self.timeout)
        if end.status is None:
            return Answer("hang", text=str(end)[:WORDS])
        if end.status:
            # a program that lacks a package has not refused the layer
            missing = lacking_in(end.said)
            if missing:
                return Answer("failed", text=f"the command needs {missing}")
            return Answer("refused", text=str(end)[:WORDS])
        try:
            capture = (self.read or _first)(out)
        except (ValueError, LookupError, OSError) as error:
            return Answer("failed", text=_sentence(error, folder))
        except ImportError as error:
            return Answer("failed", text=told(error))
        buffers = {"input": x.tobytes(), **capture.buffers}
        compiled = replace(capture, buffers=buffers, provenance="compiler")
        return Answer("captured", compiled, follows | _observed(capture))


def reader_of(name: str) -> Callable[[Path], Capture]:
    """A function that reads a folder and returns the first capture that the importers of a target
    find in it.

    The folder is a dump, or holds dumps. Raises LookupError for an unknown target.
    """
    target(name)
    return _Reader(name)


@dataclass(frozen=True)
class _Reader:
    """The function that ``reader_of`` returns; it can be sent to another process, because it holds
    only the target's name."""

    name: str

    def __call__(self, out: Path) -> Capture:
        known = target(self.name)
        errors: list[ValueError] = []
        for path in (out, *sorted(out.rglob("*"))):
            for found in _cases(known, path):
                if isinstance(found, Capture):
                    return found
                errors.append(found)
        if errors:
            raise errors[0]
        formats = [importer.name for importer in known.importers]
        raise ValueError(_no_dump(out, self.name, formats))


def _cases(known: Target, path: Path) -> list[Capture | ValueError]:
    """The captures of a target in a path that is a case folder, or a dump that an importer of the
    target recognises; in place of each broken capture a ValueError."""
    if (path / DESCRIPTION).is_file():
        try:
            found = store.read_folder(path)
        except (ValueError, LookupError, OSError) as error:
            return [ValueError(_sentence(error))]
        if found.target == known.name:
            return [found]
        return []
    cases: list[Capture | ValueError] = []
    for importer in known.importers:
        if importer.recognises(path):
            try:
                cases += importer.read(path).values()
            except ValueError as error:
                cases.append(error)
    return cases


def _first(out: Path) -> Capture:
    """The first capture that any target finds in the folder that a program left; raises ValueError
    if there is none."""
    errors: list[ValueError] = []
    for path in (out, *sorted(out.rglob("*"))):
        if path == out or path.is_file() or described(path):
            try:
                found = store.load_all(path)
            except ValueError as error:
                if path.is_dir():  # a file's error only says that no target reads the file
                    errors.append(error)
                continue
            if len(found):
                return found[0]
    if errors:
        raise errors[0]
    raise ValueError(_no_dump(out, "a target", []))


def _no_dump(out: Path, reader: str, formats: Sequence[str]) -> str:
    """The error text for a folder in which a program left no dump."""
    wrong = unread_dumps(out)
    if wrong:
        return wrong
    names = ", ".join(sorted(path.name for path in out.iterdir()))
    known = ""
    if formats:
        known = f" ({', '.join(formats)})"
    return (
        f"{out.name}: got {names or 'nothing'}, allowed is a file or a folder that {reader} "
        f"recognises{known}{undescribed(out)}"
    )


def answers(
    source: Source,
    rows: Sequence[Mapping[str, float]],
    seed: int,
    executor: Workers = None,
    stop: Event | None = None,
) -> Iterator[tuple[int, Answer]]:
    """Yield (number of the row, answer) for the layers whose parameters are ``rows``, in the order
    of the rows.

    If ``stop`` is set, the answers of rows that have not begun are missing, as ``ordered`` says. A
    layer that ended its worker three times has the outcome "failed". Raises as ``ordered``.

    >>> rows = [{"input_h": 8}, {"input_h": 0}]
    >>> [(number, answer.outcome) for number, answer in answers(Lowered("vivante"), rows, 0)]
    [(0, 'refused'), (1, 'refused')]
    """
    asked = partial(_ask, source, seed)
    return ordered(asked, rows, executor, stop=stop, lost=_lost, what="source")


def _ask(source: Source, seed: int, row: Mapping[str, float]) -> Answer:
    return source(row, seed)


def _lost(row: Mapping[str, float], reason: str) -> Answer:
    """The answer "failed" for a layer that ended each worker that was given it."""
    return Answer("failed", text=reason[:WORDS])


def _observed(capture: Capture) -> dict[str, float]:
    """Sizes that a capture shows besides its words: ``NAME_bytes`` of each buffer, and the number
    of jobs of each block, ``BLOCK_jobs`` (block in small letters). The buffers ``input``,
    ``output`` and ``stream`` are left out."""
    observed = {}
    for name, data in capture.buffers.items():
        if name not in ("input", "output", "stream"):
            observed[f"{name}_bytes"] = float(len(data))
    blocks = [job.block for job in capture.jobs]
    for block in capture.maps:
        observed[f"{block.lower()}_jobs"] = float(blocks.count(block))
    return observed


def _sentence(error: BaseException, folder: Path | None = None) -> str:
    """The text of an error on one line of at most 400 characters, without the path of a temporary
    folder."""
    text = str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    text = " ".join(text.split())
    if folder is not None:
        text = text.replace(f"{folder}/", "")
    return text[:WORDS]
