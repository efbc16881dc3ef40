"""Devices that run a capture: a simulated device, a program, a person.

Each device is an oracle: called with a capture it returns "pass", "fail" or "hang".
"""

from __future__ import annotations

import importlib
import math
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from npulab.captures.capture import CHANGED, PROVENANCES, Capture
from npulab.captures.folders import capture_files, plain_name
from npulab.captures.journal import ANSWERS, OUTCOMES, POISONS, Guessed
from npulab.captures.registry import target
from npulab.captures.target import Hang, Run as Run, place_of
from npulab.support.files import read_bounded, write_folders
from npulab.support.processes import End, NotRun, Program, Stopped, arguments, execute, undisturbed
from npulab.support.refuse import refuse_if

# In a program's arguments, the path of the capture's folder replaces this text.
HERE = "{capture}"
# Exit statuses which say that nothing was run: those of a shell or of ssh for a program that could
# not be started or reached, and the (negative) signals that people send.
NOT_RUN = (126, 127, 255, -signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM)
# The most bytes of an output file; a larger file is not read.
LARGEST = 2**28
# The code of an oracle: a run passes if it writes what the good capture writes on the simulated
# device.
SIMULATED = "npulab.Simulated(npulab.Simulated().run(good).output)"
KEYS = {answer[0]: answer for answer in ANSWERS}
# The reason of a run on two devices that ended alike.
AGREE = "both devices ended alike"
# The ``tool`` of captures whose output the simulated device wrote.
SIMULATED_DEVICE = "npulab simulated device"


@runtime_checkable
class Device(Protocol):
    """An oracle that also returns the run itself (``run``), and judges it (``judge``)."""

    def run(self, capture: Capture) -> Run: ...

    def judge(self, capture: Capture, run: Run) -> str: ...

    def __call__(self, capture: Capture) -> str: ...


@dataclass(frozen=True)
class Simulated:
    """The target's simulated device; a run passes if it writes the bytes ``expected``, by default
    the capture's own output.

    Called with a capture it is an oracle: "pass", "fail" or "hang".
    """

    expected: bytes | None = None
    provenance: ClassVar[str] = "simulated"

    def run(self, capture: Capture) -> Run:
        """Run a capture's words and bytes; a hang is returned as an outcome, never raised."""
        try:
            return Run("done", target(capture.target).simulate(capture))
        except Hang as hang:
            return Run.hung(hang)

    def record(self, capture: Capture) -> Capture:
        """The capture with the output that the simulated device writes, and with "simulated" as its
        provenance.

        Raises ValueError if the device hangs.
        """
        run = self.run(capture)
        if run.output is None:
            raise ValueError(f"capture {capture.name}: the simulated device hangs: {run.reason}")
        return replace(
            capture,
            buffers={**capture.buffers, "output": run.output},
            provenance="simulated",
            tool=SIMULATED_DEVICE,
            date="",
        )

    def judge(self, capture: Capture, run: Run) -> str:
        """ "pass" if the run wrote the expected output, "hang" if it hung, else "fail"."""
        return _judged(capture, run, self.expected)

    def __call__(self, capture: Capture) -> str:
        return self.judge(capture, self.run(capture))


def _judged(capture: Capture, run: Run, expected: bytes | None) -> str:
    """The outcome of a run that has to write ``expected``, by default the capture's own output; a
    hang that a simulated device only guesses is ``Guessed``."""
    if run.outcome == "hang" and run.guessed:
        return Guessed("hang")
    if run.outcome == "hang":
        return "hang"
    if expected is None:
        expected = capture.buffers.get("output")
    if run.outcome == "done" and run.output == expected:
        return "pass"
    return "fail"


class Around:
    """A device around an inner device: it has the provenance and the event ``stop`` of the inner
    device, and can be called as an oracle."""

    device: Any

    @property
    def provenance(self) -> str | None:
        return getattr(self.device, "provenance", None)

    @property
    def stop(self) -> threading.Event | None:
        """The event that stops the inner device; None if it has no such event."""
        return getattr(self.device, "stop", None)

    def run(self, capture: Capture) -> Run:
        raise NotImplementedError

    def judge(self, capture: Capture, run: Run) -> str:
        raise NotImplementedError

    def __call__(self, capture: Capture) -> str:
        return self.judge(capture, self.run(capture))


@dataclass(frozen=True)
class InProcess(Around):
    """A Python object that runs captures in this process, so that a board or a simulator stays up
    from trial to trial; an oracle.

    ``device.run(capture)`` gets a capture without its output, and returns the bytes that the job
    wrote, or a ``Run``. For a job that never ends, it raises ``Hang``, with the device ready again.
    ``device.reset()``, if there is such a method, makes the device ready after a job spoiled it. A
    run passes if its output is ``expected``, by default the capture's own. Raises ValueError for an
    object without ``run``, and for a ``run`` that returns anything else.
    """

    device: Any
    expected: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        runs = callable(getattr(self.device, "run", None))
        refuse_if(not runs, "device", f"{self.device!r:.80}", "is an object with run(capture)")

    def recover(self) -> None:
        """Call ``reset`` of the Python object, if it has such a method."""
        reset = getattr(self.device, "reset", None)
        if reset is not None:
            reset()

    def run(self, capture: Capture) -> Run:
        """Run a capture; a hang is returned as an outcome, never raised."""
        try:
            given = self.device.run(_without_output(capture))
        except Hang as hang:
            return Run.hung(hang)
        if isinstance(given, Run):
            return given
        refuse_if(
            not isinstance(given, bytes | bytearray | memoryview),
            f"{type(self.device).__name__}.run",
            f"{given!r:.80}",
            "are the output's bytes, or a npulab.captures.devices.Run",
        )
        return Run("done", bytes(given))

    def judge(self, capture: Capture, run: Run) -> str:
        """ "pass" if the run wrote the expected output, "hang" if it hung, else "fail"."""
        return _judged(capture, run, self.expected)


def _named_object(name: str) -> Any:
    """Import the module of ``MODULE:CLASS`` and return what a call of the class returns; modules in
    the working folder are found first.

    Raises ValueError if there is no such module or class, and if its code fails.
    """
    module, _, attribute = name.partition(":")
    refuse_if(not (module and attribute), "device python", name, "is MODULE:CLASS")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = importlib.import_module(module)
        made = getattr(loaded, attribute, None)
        if made is not None:
            return made()
    except ModuleNotFoundError as error:
        raise ValueError(f"device python: got {name!r}: {error}") from None
    except Exception as error:  # a user's class may raise anything
        raise ValueError(
            f"device python: got {name!r}, which fails: {type(error).__name__}: {error}, at "
            f"{place_of(error, here)}"
        ) from None
    raise ValueError(f"device python: got {name!r}: {module!r} has no attribute {attribute!r}")


@dataclass(frozen=True)
class Against(Around):
    """Two devices against each other; an oracle that passes a capture if both end alike: both hang,
    or both write the same bytes.

    A bisection with it names the fields about which the devices disagree.
    """

    device: Device
    other: Device

    def run(self, capture: Capture) -> Run:
        """Run a capture on both devices; return the run of the first device. If the devices differ,
        the run's reason says how each ended."""
        run, other = self.device.run(capture), self.other.run(capture)
        if (run.outcome, run.output) == (other.outcome, other.output):
            return replace(run, reason=AGREE)
        return replace(run, reason=f"{_ending(run)}, the other device {_ending(other)}")

    def judge(self, capture: Capture, run: Run) -> str:
        """ "pass" if both devices ended alike, else "fail"."""
        if run.reason == AGREE:
            return "pass"
        return "fail"


def _ending(run: Run) -> str:
    if run.output is None:
        return f"ends in {run.outcome} ({run.reason})"
    return f"writes {len(run.output)} bytes"


@dataclass(frozen=True)
class Probed(Around):
    """A device that runs a known-good capture, ``probe``, after every trial, and so says which
    trial spoiled it.

    A trial that passes "poisons" if the probe then hangs, or gives other bytes than its own buffer
    ``output``; with ``before_failures`` so does a trial that fails. After a trial that hung, the
    probe does not count: the device resets itself, as it does after a probe that hung. After a
    probe with other bytes, ``recover`` of the device is called, if it has such a method. Raises
    ValueError for a probe without an output.
    """

    device: Device
    probe: Capture
    before_failures: bool = False

    def __post_init__(self) -> None:
        refuse_if(
            "output" not in self.probe.buffers,
            "probe",
            self.probe.name,
            "is a capture with the output that the device gives",
        )

    def run(self, capture: Capture) -> Run:
        """Run a capture, then the probe; return the capture's run. If the capture spoiled the
        device, ``spoiled`` of the run says how the probe ended."""
        if isinstance(self.device, Simulated):
            run, after = target(capture.target).simulate([capture, self.probe])
        else:
            run = self.device.run(capture)
            if run.outcome == "hang":
                return run
            after = self.device.run(self.probe)
        if run.outcome == "hang" or after.output == self.probe.buffers["output"]:
            return run
        how = "gives other bytes"
        if after.outcome == "hang":
            how = f"hangs ({after.reason})"
        recover = getattr(self.device, "recover", None)
        if recover is not None and after.outcome != "hang":
            recover()
        return replace(run, spoiled=f"the known-good capture {self.probe.name} then {how}")

    def judge(self, capture: Capture, run: Run) -> str:
        """The device's outcome of the run, or "poisons"."""
        outcome = self.device.judge(capture, run)
        if run.spoiled and (outcome == "pass" or self.before_failures):
            return POISONS
        return outcome


@dataclass(frozen=True)
class Command:
    """A program that runs a capture, for example over ssh on a board; an oracle.

    ``program`` is a sequence of arguments, or a text that is split into arguments; no shell is
    involved unless ``shell`` asks for one. The capture lies in a temporary folder named
    ``capture``, whose path replaces ``{capture}`` in the arguments, or is added at their end. A
    run is done if the program ends with status 0. It hung if the program has not ended after
    ``timeout`` seconds, or ends with ``hang_status``. The statuses in ``retry_on`` (a signal is
    negative) say that nothing was run; by default they are those of a shell and of ssh, and signals
    that people send. With any other status the run has failed. If a job makes the board reboot,
    ssh ends with 255 too: ``hang_status=255`` calls that a hang.

    A run that is done passes if the program left the ``expected`` bytes (by default the capture's
    own ``output``) in the file named ``output`` in the folder. The folder holds no output before
    the run; ``capture.json`` has the number of expected bytes as the parameter ``output_bytes``. If
    no bytes are expected, or with ``output=None``, the status alone decides.

    After a hang the program ``reset`` runs, then ``cooldown`` seconds pass; a reset that failed is
    tried again before the next run. A run that did not start is tried up to ``retries`` times
    more, ``cooldown`` seconds apart. Setting the event ``stop`` ends every wait, and ends the
    running program with its process group. ``provenance`` says what
    the program is; a ``Recorder`` writes it into its captures.

    Raises ValueError for a parameter that is not allowed. A run raises NotRun (an OSError) if the
    program or the reset could not be run, and Stopped after ``stop``.

    >>> Command("ssh board 'run it' {capture}", timeout=30)
    Command(('ssh', 'board', 'run it', '{capture}'), timeout=30)
    """

    program: Program
    _: KW_ONLY
    timeout: float = 60.0
    expected: bytes | None = field(default=None, repr=False)
    output: str | None = "output.bin"
    reset: Program | None = None
    reset_timeout: float = 60.0
    cooldown: float = 0.0
    retries: int = 0
    retry_on: tuple[int, ...] = NOT_RUN
    hang_status: int | None = 124
    shell: bool = False
    provenance: str | None = None
    stop: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _hung: threading.Event = field(
        default_factory=threading.Event, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "program", arguments("program", self.program, self.shell))
        if self.reset is not None:
            object.__setattr__(self, "reset", arguments("reset", self.reset, self.shell))
        for name in ("timeout", "reset_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}, allowed is more than 0 seconds"
                )
        if not 0 <= self.cooldown < math.inf:
            raise ValueError(f"cooldown: got {self.cooldown}, allowed is 0 seconds or more")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries: got {self.retries!r}, allowed is a whole number, 0 or more")
        if not isinstance(self.expected, bytes | None):
            raise ValueError(f"expected: got {self.expected!r:.80}, allowed is bytes")
        if self.output is not None:
            plain_name(self.output, "output")
        if 0 in (*self.retry_on, self.hang_status):
            raise ValueError(
                "retry_on, hang_status: got 0, which is the status of a run that is done, "
                "allowed is any other status"
            )
        if self.provenance not in (None, *PROVENANCES):
            raise ValueError(
                f"provenance: got {self.provenance!r}, allowed is one of {', '.join(PROVENANCES)}"
            )

    def __repr__(self) -> str:
        parts = [repr(self.program)]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.repr and option.name != "program" and value != option.default:
                parts.append(f"{option.name}={value!r}")
        return f"Command({', '.join(parts)})"

    def run(self, capture: Capture) -> Run:
        """Run a capture; a failure or a hang is returned as an outcome, whose reason has the last
        lines that the program printed."""
        if self.output is not None:
            capture = _for_program(capture, self.expected)
        files = capture_files(capture, target)
        if self.output in files:
            raise ValueError(
                f"output: got {self.output!r}, which the capture holds itself, allowed is another "
                "name"
            )
        if self._hung.is_set():
            self.recover()
        for _ in range(self.retries):
            with suppress(NotRun):
                return self._once(files)
            self._wait()
        return self._once(files)

    def judge(self, capture: Capture, run: Run) -> str:
        """ "pass" if the run is done and left the expected output, "hang" if it hung, else
        "fail"."""
        if run.outcome == "hang":
            return "hang"
        if run.outcome != "done":
            return "fail"
        expected = self.expected
        if self.expected is None:
            expected = capture.buffers.get("output")
        if self.output is None or expected is None or run.output == expected:
            return "pass"
        return "fail"

    def __call__(self, capture: Capture) -> str:
        return self.judge(capture, self.run(capture))

    def _once(self, files: dict[str, bytes]) -> Run:
        end, output, missing = undisturbed(lambda over: self._in_folder(files, over))
        if end.status is None or end.status == self.hang_status:
            return self._hang(end)
        if end.status in self.retry_on:
            raise NotRun(
                f"program: got {end} from {self.program!r}, which says that nothing was run"
            )
        if end.status:
            return Run("failed", output, str(end))
        return Run("done", output, missing)

    def _in_folder(
        self, files: dict[str, bytes], over: threading.Event
    ) -> tuple[End, bytes | None, str]:
        """Run the program in a new folder with these files; return how it ended, and the output
        that it left, or None and the reason."""
        with tempfile.TemporaryDirectory(prefix="npulab-", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch, "capture")
            folder.mkdir()
            # written without a sync to disk: these files need not outlast a crash
            for name, data in files.items():
                (folder / name).write_bytes(data)
            program = _with_folder(self.program, folder)
            end = execute("program", program, self.timeout, self.stop, over)
            return end, *self._output_in(folder)

    def _output_in(self, folder: Path) -> tuple[bytes | None, str]:
        """Return the output that the program left in the folder; if there is none, return None and
        the reason."""
        if self.output is None:
            return None, ""
        path = folder / self.output
        if not path.is_file():  # a read of a named pipe would wait for ever
            return None, f"the program left no file {self.output}"
        if path.stat().st_size > LARGEST:
            return (
                None,
                f"{self.output}: got {path.stat().st_size} bytes, allowed are at most {LARGEST}",
            )
        return read_bounded(path, LARGEST), ""

    def _hang(self, end: End) -> Run:
        self._hung.set()
        try:
            self.recover()
        except (NotRun, Stopped) as error:  # the next run tries the reset again
            return Run("hang", reason=f"{end}; {error}")
        return Run("hang", reason=str(end))

    def recover(self) -> None:
        """Run the program ``reset``, if there is one, and wait for ``cooldown`` seconds; raises
        NotRun if the program fails."""
        if self.reset is not None:
            program: Any = self.reset
            end = undisturbed(
                lambda over: execute("reset", program, self.reset_timeout, self.stop, over)
            )
            if end.status != 0:
                raise NotRun(f"reset: got {end} from {self.reset!r}, allowed is status 0")
        self._wait()
        self._hung.clear()

    def _wait(self) -> None:
        if self.stop.wait(self.cooldown):
            raise Stopped("the run was stopped during its cooldown")


def _with_folder(program: Any, folder: Path) -> str | tuple[str, ...]:
    """The arguments of a program with the folder's path in place of ``{capture}``; without that
    text, the path is added at the end."""
    if isinstance(program, str):
        path = shlex.quote(str(folder))
        if HERE in program:
            return program.replace(HERE, path)
        return f"{program} {path}"
    if any(HERE in argument for argument in program):
        return tuple(argument.replace(HERE, str(folder)) for argument in program)
    return *program, str(folder)


def _ask(text: str) -> str:
    # ``input`` is looked up at each call: a notebook replaces it while a cell runs
    return input(text)


@dataclass(frozen=True)
class Manual:
    """An oracle: a person who answers in the terminal. ``ask`` and ``say`` are called as ``input``
    and ``print`` are.

    With a ``folder`` each trial's capture is written there, without its output, for the person to
    run. If the input ends (EOFError) or the person presses Ctrl-C, the caller gets that exception.
    """

    ask: Callable[[str], str] = _ask
    say: Callable[[str], object] = print
    folder: str | os.PathLike[str] | None = None
    provenance: ClassVar[str] = "board"

    def __call__(self, capture: Capture) -> str:
        if self.folder is None:
            self.say(f"Run {capture}")
        else:
            self.say(f"Run {_write_trial(_without_output(capture), self.folder)}")
        while True:
            answer = self.ask("p = pass, f = fail, h = hang: ").strip().lower()
            if answer in (*KEYS, *ANSWERS):
                return KEYS[answer[0]]
            self.say(f"answer: got {answer!r}, allowed is p (pass), f (fail) or h (hang)")


@dataclass(frozen=True)
class Recorder:
    """An oracle that saves every trial of another oracle as a capture in ``folder``, named
    ``trial-0000`` and so on; the numbers go on after the trials that the folder already holds.

    The buffer ``output`` is the output of the trial's run; the capture has no such buffer if the
    output is not known. The parameters gain ``outcome``, ``trial_of`` (the capture's name) and
    ``reason``. ``provenance`` must be given if the device states none; raises ValueError if
    there is none, or if it differs from that of the device.
    """

    device: Callable[[Capture], str]
    folder: str | os.PathLike[str]
    provenance: str | None = None

    def __post_init__(self) -> None:
        own = getattr(self.device, "provenance", None)
        stated = self.provenance
        if stated is None:
            stated = own
        if stated not in PROVENANCES or own not in (None, stated):
            allowed = own or f"one of {', '.join(PROVENANCES)}"
            raise ValueError(
                f"provenance: got {stated!r}, allowed is that of the device, {allowed}"
            )
        if Path(self.folder).exists() and not Path(self.folder).is_dir():
            raise ValueError(
                f"folder: got the file {os.fspath(self.folder)!r}, allowed is a folder"
            )
        object.__setattr__(self, "provenance", stated)

    @property
    def stop(self) -> threading.Event | None:
        """The event of the recorded device that stops it; None if the device has no such event."""
        return getattr(self.device, "stop", None)

    def __call__(self, capture: Capture) -> str:
        if isinstance(self.device, Device):
            run = self.device.run(capture)
            outcome = self.device.judge(capture, run)
        else:
            run, outcome = Run(""), self.device(capture)
        if outcome not in OUTCOMES:
            raise ValueError(f"oracle: got {outcome!r}, allowed is one of {', '.join(OUTCOMES)}")
        _write_trial(self._trial(capture, run, outcome), self.folder)
        return outcome

    def _trial(self, capture: Capture, run: Run, outcome: str) -> Capture:
        trial = _without_output(capture)
        buffers = dict(trial.buffers)
        if run.output is not None:
            buffers["output"] = run.output
        # a trial records a run of the changed capture, so the record itself was not changed
        tools = [capture.tool.replace(CHANGED, "set with npulab"), "run as a trial by npulab"]
        date = ""
        if self.provenance != "simulated":
            date = datetime.now(UTC).date().isoformat()
        parameters = {**capture.parameters, "outcome": outcome, "trial_of": capture.name}
        if run.reason or run.spoiled:
            parameters["reason"] = run.reason or run.spoiled
        return replace(
            trial,
            buffers=buffers,
            provenance=str(self.provenance),
            tool=", ".join(filter(None, tools)),
            date=date,
            parameters=parameters,
        )


def device(
    text: str, expected: bytes | None = None, **options: Any
) -> Simulated | Command | InProcess | Manual:
    """The device that a text names: ``simulated``, ``command:PROGRAM ARGUMENTS``,
    ``python:MODULE:CLASS`` (imported and made once), ``manual`` or ``manual:FOLDER``.

    ``options`` are those of ``Command``; other devices ignore them. Raises ValueError for any
    other text.

    >>> device("command:ssh board run", timeout=5).program
    ('ssh', 'board', 'run')
    """
    kind, colon, rest = text.partition(":")
    if kind == "simulated" and not colon:
        return Simulated(expected)
    if kind == "command" and colon:
        return Command(rest, expected=expected, **options)
    if kind == "python" and colon:
        return InProcess(_named_object(rest), expected)
    if kind == "manual" and bool(colon) == bool(rest):
        return Manual(folder=rest or None)
    raise ValueError(
        f"device: got {text!r}, allowed is simulated, command:PROGRAM ARGUMENTS, "
        "python:MODULE:CLASS, manual or manual:FOLDER"
    )


def as_code(oracle: Any, good: Capture) -> str:
    """The code that makes an oracle, for a script in which ``good`` is the passing capture.

    If the oracle cannot be written as code, the code is ``npulab.Manual()``, which asks a person.

    >>> as_code(Simulated(), Capture("a", "demo", "x", ()))
    'npulab.Simulated()'
    """
    if isinstance(oracle, Recorder) or hasattr(oracle, "controls"):
        return as_code(oracle.device, good)  # the code of a ``Controlled`` leaves out its controls
    own = good.buffers.get("output")
    if isinstance(oracle, Probed) and oracle.probe.buffers["output"] == own:
        code = as_code(oracle.device, good)
        return f"npulab.captures.devices.Probed({code}, good, {oracle.before_failures})"
    if isinstance(oracle, Simulated):
        if oracle.expected in (None, own):
            return "npulab.Simulated()"
        return SIMULATED
    if isinstance(oracle, Command) and oracle.expected in (None, own):
        return f"npulab.{oracle!r}"
    if oracle is None:
        return "npulab.Manual()"
    name = getattr(oracle, "__name__", type(oracle).__name__)
    if not name.isidentifier():
        name = "a function"
    return f"npulab.Manual()  # asks a person; it was {name}"


def _without_output(capture: Capture) -> Capture:
    """The capture as a device gets it: without its buffer ``output``, which comes from another
    run."""
    buffers = dict(capture.buffers)
    buffers.pop("output", None)
    return replace(capture, buffers=buffers)


def _for_program(capture: Capture, expected: bytes | None) -> Capture:
    """The capture as a program gets it: without its output, but with the number of bytes that are
    expected, as the parameter ``output_bytes``."""
    if expected is None:
        expected = capture.buffers.get("output")
    trial = _without_output(capture)
    if expected is None:
        return trial
    return replace(trial, parameters={**trial.parameters, "output_bytes": len(expected)})


def _write_trial(trial: Capture, folder: str | os.PathLike[str]) -> Path:
    """Write a capture to the folder of the next trial, and return that folder's path."""
    return write_folders({_next_trial(Path(folder)): capture_files(trial, target)})[0]


def _next_trial(folder: Path) -> Path:
    """The path of the next trial in a folder: ``trial-`` and the first number after those in
    use."""
    numbers = [int(path.name[6:]) for path in folder.glob("trial-*") if path.name[6:].isdecimal()]
    return folder / f"trial-{max(numbers, default=-1) + 1:04d}"
