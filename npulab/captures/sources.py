"""Sources: a driver of ours or a compiler that turns the parameters of a layer into a capture."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
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
from npulab.support.extras import lacking_in, told
from npulab.support.processes import arguments, execute

OUTCOMES = ("captured", "refused", "failed", "hang")
MODEL, OUT = "{model}", "{out}"
WORDS = 400  # letters of a source's message that are kept


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a source for a layer.

    ``outcome`` is "captured", or says why there is no capture: "refused" (the layer), "failed" (the
    source), "hang".  ``parameters`` follow from the layer or were observed; ``text`` is the
    source's message.
    """

    outcome: str
    capture: Capture | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    text: str = ""


class Source(Protocol):
    """Something that can be asked for the capture of a layer."""

    @property
    def record(self) -> dict[str, Any]:
        """The identity of the source, with its version and options, as JSON has it."""
        ...

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        """The answer for a layer of these parameters, whose weights come from the seed."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A source that needs no compiler: the target's own ``lower``.

    >>> Lowered("vivante", "vipnano-si-imx8mp")({"input_h": 8}).outcome  # too little for a layer
    'refused'
    """

    target: str
    chip: str | None = None
    dtype: str = "uint8"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        return {
            "source": "lower",
            "target": self.target,
            "chip": self.chip or "",
            "dtype": self.dtype,
            "options": {name: str(value) for name, value in self.options.items()},
        }

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        try:
            layer, x = made(parameters, seed, self.dtype)
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
    """A source that is a program: it compiles the model of one layer.

    ``command`` is a sequence of arguments, or a text that is split into arguments; no shell is
    involved.  ``{model}`` in it is the path of the ``.tflite`` file, ``{out}`` a new folder.
    ``read`` gives the capture in that folder after the run (by default, the capture that a target's
    importer recognises); ``version`` is a command whose first line says the program's version.  A
    program that has not ended after ``timeout`` seconds is ended with its process group: a hang.  A
    program that ends with another status than 0 refuses the layer; a program that leaves nothing
    that can be read, or that lacks a package, has failed.

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
            # the shell only sends the output to a file
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
            missing = lacking_in(end.said)  # a program that cannot start has refused nothing
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
    """A reader of the first capture that a target's importers find in a folder, which is a dump or
    holds dumps; LookupError for an unknown target."""
    known = target(name)

    def read(out: Path) -> Capture:
        errors: list[ValueError] = []
        for path in (out, *sorted(out.rglob("*"))):
            for found in _cases(known, path):
                if isinstance(found, Capture):
                    return found
                errors.append(found)
        if errors:
            raise errors[0]
        raise ValueError(_no_dump(out, name, [importer.name for importer in known.importers]))

    return read


def _cases(known: Target, path: Path) -> list[Capture | ValueError]:
    """The captures that a target's importers, or npulab itself, read from a file or folder; for a
    broken capture the error."""
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
    """The first capture that any target finds in what a program left."""
    errors: list[ValueError] = []
    for path in (out, *sorted(out.rglob("*"))):
        if path == out or path.is_file() or described(path):
            try:
                found = store.load_all(path)
            except ValueError as error:
                if path.is_dir():  # for a file the error only says that no target reads it
                    errors.append(error)
                continue
            if len(found):
                return found[0]
    if errors:
        raise errors[0]
    raise ValueError(_no_dump(out, "a target", []))


def _no_dump(out: Path, reader: str, formats: Sequence[str]) -> str:
    """The sentence that a program left no dump."""
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


def ask_all(
    source: Source, rows: list[Mapping[str, float]], seed: int, workers: int = 1
) -> list[Answer]:
    """The answers for several layers, in their order; a source that is a program runs several at a
    time."""
    if workers == 1:
        return [source(row, seed) for row in rows]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda row: source(row, seed), rows))


def _observed(capture: Capture) -> dict[str, float]:
    """Sizes that a capture shows besides its words: bytes of buffers, and jobs of each block.  A
    recorded stream of commands is words, so its length is left out."""
    observed = {}
    for name, data in capture.buffers.items():
        if name not in ("input", "output", "stream"):
            observed[f"{name}_bytes"] = float(len(data))
    blocks = [job.block for job in capture.jobs]
    for block in capture.maps:
        observed[f"{block.lower()}_jobs"] = float(blocks.count(block))
    return observed


def _sentence(error: BaseException, folder: Path | None = None) -> str:
    """An error on one line, without the name of a temporary folder."""
    text = str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    text = " ".join(text.split())
    if folder is not None:
        text = text.replace(f"{folder}/", "")
    return text[:WORDS]
