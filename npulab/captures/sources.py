"""Sources: what turns the parameters of a layer into a capture, a driver of ours or a compiler."""

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
WORDS = 400  # letters of what a source says


@dataclass(frozen=True, eq=False)
class Answer:
    """What a source gave for a layer.

    ``outcome`` is "captured" or why there is no capture: "refused" (the layer), "failed" (the
    source), "hang".  ``parameters`` are those that follow or were observed; ``text`` is what the
    source said.
    """

    outcome: str
    capture: Capture | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    text: str = ""


class Source(Protocol):
    """What can be asked for the capture of a layer."""

    @property
    def record(self) -> dict[str, Any]:
        """What says which source it is, with its version and options, as JSON has it."""
        ...

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        """The answer for a layer of these parameters, whose weights come from the seed."""
        ...


@dataclass(frozen=True)
class Lowered:
    """A source that needs no compiler: the target's own ``lower``, as a driver of ours has it.

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
            if self.chip is None:
                chip = {}
            else:
                chip = {"chip": self.chip}
            capture = target(self.target).lower(layer, x=x, **chip, **self.options)
        except (ValueError, LookupError) as error:
            return Answer("refused", text=_sentence(error))
        except ImportError as error:
            return Answer("failed", text=told(error))
        return Answer("captured", capture, following(layer) | _observed(capture))


@dataclass(frozen=True)
class Compiler:
    """A source that is a program: it compiles the model of one layer.

    ``command`` is a sequence of arguments, or a text that is split into such; no shell is involved.
    ``{model}`` in it is the path of the ``.tflite`` file, ``{out}`` a new folder.  ``read`` gives
    the capture of what the program left in that folder (by default, what a target's importer
    recognises); ``version`` is a command whose first line says the program's version.  A program
    that has not ended after ``timeout`` seconds is ended with its process group: a hang.  One that
    ends with another status than 0 refuses the layer; one that leaves nothing that can be read, or
    that lacks a package, has failed.

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
            said = Path(folder) / "version"
            wrapped = (
                "sh",
                "-c",
                '"$@" > "$0" 2>&1',
                str(said),
                *arguments("version", self.version),
            )
            execute("version", wrapped, self.timeout)
            lines = []
            if said.exists():
                lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
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
        words = tuple(
            word.replace(MODEL, str(path)).replace(OUT, str(out)) for word in self.command
        )
        end = execute("command", words, self.timeout)
        if end.status is None:
            return Answer("hang", text=str(end)[:WORDS])
        if end.status:
            missing = lacking_in(end.said)  # a program that is not there has refused nothing
            if missing:
                return Answer("failed", text=f"the command needs {missing}")
            return Answer("refused", text=str(end)[:WORDS])
        try:
            capture = (self.read or _first)(out)
        except (ValueError, LookupError, OSError) as error:
            return Answer("failed", text=_sentence(error, folder))
        except ImportError as error:
            return Answer("failed", text=told(error))
        if "input" in capture.buffers:
            buffers = capture.buffers
        else:
            buffers = {**capture.buffers, "input": x.tobytes()}
        return Answer(
            "captured",
            replace(capture, buffers=buffers, provenance="compiler"),
            follows | _observed(capture),
        )


def reader_of(name: str) -> Callable[[Path], Capture]:
    """What reads the first capture that a target's importers find in a folder, itself a dump or
    with
    files or folders that are; LookupError for an unknown target."""
    of = target(name)

    def read(out: Path) -> Capture:
        errors: list[ValueError] = []
        for path in (out, *sorted(out.rglob("*"))):
            for found in _cases(of, path):
                if isinstance(found, Capture):
                    return found
                errors.append(found)
        raise (
            errors[0]
            if errors
            else ValueError(_unread(out, name, [one.name for one in of.importers]))
        )

    return read


def _cases(of: Target, path: Path) -> list[Capture | ValueError]:
    """The captures that a target's importers, or npulab itself, read from a file or folder; what is
    wrong with one that is broken."""
    if (path / DESCRIPTION).is_file():
        try:
            found = store.read_folder(path)
        except (ValueError, LookupError, OSError) as error:
            return [ValueError(_sentence(error))]
        if found.target == of.name:
            return [found]
        return []
    cases: list[Capture | ValueError] = []
    for importer in of.importers:
        if importer.recognises(path):
            try:
                cases += importer.read(path).values()
            except ValueError as error:
                cases.append(error)
    return cases


def _first(out: Path) -> Capture:
    """The one capture in what a program left."""
    errors: list[ValueError] = []
    for path in (out, *sorted(out.rglob("*"))):
        if path == out or path.is_file() or described(path):
            try:
                found = store.load_all(path)
            except ValueError as error:
                if path.is_dir():  # of a file that no target reads it says that alone
                    errors.append(error)
                continue
            if len(found):
                return found[0]
    raise errors[0] if errors else ValueError(_unread(out, "a target", []))


def _unread(out: Path, reader: str, formats: Sequence[str]) -> str:
    """That nothing of what a program left is a dump."""
    wrong = unread_dumps(out)
    if wrong:
        return wrong
    names = ", ".join(sorted(path.name for path in out.iterdir()))
    known = ""
    if formats:
        known = f" ({', '.join(formats)})"
    return (
        f"{out.name}: got {names or 'nothing'}, allowed is a file or a folder that {reader} "
        f"recognises{known}"
        f"{undescribed(out)}"
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
    """What is seen of a capture beside its words: bytes of buffers, and jobs of each block.  A
    recorded stream of commands is words, so its length is none of these."""
    return {
        f"{name}_bytes": float(len(data))
        for name, data in capture.buffers.items()
        if name not in ("input", "output", "stream")
    } | {
        f"{block.lower()}_jobs": float(sum(job.block == block for job in capture.jobs))
        for block in capture.maps
    }


def _sentence(error: BaseException, folder: Path | None = None) -> str:
    """An error on one line, without the name of the folder that is gone when it is read."""
    text = " ".join(
        str(error.args[0] if isinstance(error, KeyError) and error.args else error).split()
    )
    return (text if folder is None else text.replace(f"{folder}/", ""))[:WORDS]
