"""Programs that run for a limited time and leave no process behind."""

from __future__ import annotations

import errno
import os
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
Program = str | Sequence[str | os.PathLike[str]]

# Of what a program prints on stderr, the last ``LAST`` bytes are kept, and ``LINES`` lines of them
# are shown. One read takes at most ``READ`` bytes, as many as a pipe usually holds.
LAST = 4096
LINES = 5
READ = 2**16
# A program that prints nothing is looked at every ``POLL`` seconds. A program that is asked to end
# has ``GRACE`` seconds until it is killed.
POLL = 0.05
GRACE = 0.5


class NotRun(OSError):
    """Raised if a program could not be started, or reports that it could not do its work."""


class Stopped(Exception):
    """Raised if somebody stopped the run of a program before it had ended."""


@dataclass(frozen=True)
class End:
    """How a program ended. ``status`` is the exit status, the negative number of the signal that
    ended the program, or None if the time limit of ``seconds`` passed. ``said`` are the last lines
    that the program printed on stderr. ``killed`` is False if the program could not be killed."""

    status: int | None
    seconds: float
    said: str = ""
    killed: bool = True

    def __str__(self) -> str:
        if self.status is None:
            text = f"no end after {self.seconds:g} seconds"
            if not self.killed:
                text += ", and it cannot be killed"
        elif self.status >= 0:
            text = f"status {self.status}"
        else:
            text = f"an end by signal {-self.status}"
        if self.said:
            return f"{text} ({self.said})"
        return text


def arguments(name: str, program: Program, shell: bool = False) -> str | tuple[str, ...]:
    """The arguments of a program: a text is split as a shell splits it; with ``shell`` the text is
    returned whole, because a shell will read it.

    Raises ValueError, which begins with ``name``, for anything but a program and its arguments.

    >>> arguments("program", "ssh board 'a b'")
    ('ssh', 'board', 'a b')
    """
    try:
        found = program
        if isinstance(program, str) and not shell:
            found = shlex.split(program)
        if isinstance(found, str):
            parts = [found]
        else:
            parts = [os.fspath(part) for part in found]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: got {program!r}, allowed is a program and its arguments: {error}"
        ) from None
    texts = all(isinstance(part, str) and "\0" not in part for part in parts)
    if not texts or not parts or not parts[0].strip():
        raise ValueError(f"{name}: got {program!r}, allowed is a program and its arguments")
    if shell and not isinstance(program, str):
        raise ValueError(f"{name}: got {program!r}, allowed with shell=True is one text")
    if shell:
        return parts[0]
    return tuple(parts)


def undisturbed(work: Callable[[threading.Event], Result]) -> Result:
    """Do work in a thread, where an interrupt (Ctrl-C) cannot cut it short, and return its result.

    ``work`` is called with an event, which an interrupt sets, so that the work can end early; the
    interrupt is raised once the work is over.

    >>> undisturbed(lambda over: over.is_set())
    False
    """
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(work, over).result()
        finally:
            over.set()


def _not_started(program: str | tuple[str, ...], error: OSError) -> str:
    """The reason why a program cannot be started, with what to do about it."""
    if isinstance(program, str) or not program:
        return f"got {program!r}, which cannot be started: {error.strerror or error}"
    first, here = program[0], Path(program[0])
    if error.errno == errno.ENOENT and os.sep in first and here.exists():
        return f"{first}: cannot be started: the program behind #! in its first line is missing"
    if error.errno == errno.ENOENT:
        hint = ""
        if os.sep not in first and here.is_file():
            hint = f"; one of this name lies in this folder: ./{first}"
        return f"{first}: there is no such program{hint}"
    if error.errno == errno.EACCES and here.is_file():
        return f"{first}: may not be run; chmod +x {shlex.quote(first)} allows it"
    if error.errno == errno.ENOEXEC:
        return f"{first}: is not a program; a script begins with a line such as #!/bin/sh"
    return f"{first}: cannot be started: {error.strerror or error}"


def execute(
    name: str, program: str | tuple[str, ...], timeout: float, *stops: threading.Event
) -> End:
    """Run a program and return how it ended; a shell runs a ``program`` that is one text.

    The program gets no input, its output is thrown away, and the last lines that it prints on
    stderr are kept. It runs in a process group of its own, which is killed when the program ends,
    when ``timeout`` seconds are over, or when one of the events ``stops`` is set. Raises NotRun,
    which begins with ``name``, if the program cannot be started, and Stopped if one of the events
    was set.

    >>> print(execute("program", ("false",), timeout=10))
    status 1
    """
    _go_on(stops)
    with selectors.DefaultSelector() as ready:
        try:
            process = subprocess.Popen(
                program,
                shell=isinstance(program, str),
                stdin=subprocess.DEVNULL,
                bufsize=0,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # a group of its own lets one signal end the program's children as well
                start_new_session=True,
            )
        except OSError as error:
            raise NotRun(f"{name}: {_not_started(program, error)}") from None
        said, until = bytearray(), time.monotonic() + timeout
        assert process.stderr is not None
        with process.stderr as errors:
            try:
                # a child may keep the pipe open without writing, and a read that waits would miss
                # the time limit
                os.set_blocking(errors.fileno(), False)
                ready.register(errors, selectors.EVENT_READ)
                while process.poll() is None and time.monotonic() < until:
                    _go_on(stops)
                    pause = min(max(until - time.monotonic(), 0), POLL)
                    if not ready.get_map():
                        _wait(process, pause)
                    elif ready.select(pause) and not _listen(errors.fileno(), said):
                        ready.unregister(errors)
                status = process.returncode
            finally:
                killed = _kill(process)
            # two reads empty a usual pipe; reading to its end could last for ever, because a
            # process that left the group may go on writing
            for _ in range(2):
                _listen(errors.fileno(), said)
    return End(status, timeout, _last_lines(said), killed)


def _go_on(stops: tuple[threading.Event, ...]) -> None:
    if any(stop.is_set() for stop in stops):
        raise Stopped("the run of the program was stopped")


def _listen(pipe: int, said: bytearray) -> bool:
    """Read once from a pipe and keep the last bytes in ``said``; False if nothing was read, because
    the pipe has ended or is empty for now.
    """
    try:
        new = os.read(pipe, READ)
    except BlockingIOError:
        return False
    said += new
    del said[:-LAST]
    return bool(new)


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """End a program and all of its process group; True if the program has ended.

    The waits for the end are short, because a program that a driver keeps waiting cannot be ended
    before the driver answers.
    """
    try:
        if process.poll() is None and _sent(process, signal.SIGTERM):
            _wait(process, GRACE)
    finally:
        if _sent(process, signal.SIGKILL):
            _wait(process, GRACE)
            until = time.monotonic() + GRACE
            # signal 0 ends nothing: it only shows whether a process of the group is left
            while _sent(process, 0) and time.monotonic() < until:
                time.sleep(POLL / 50)
    return process.poll() is not None


def _sent(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a program's process group; False if there is no such group."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _last_lines(said: bytearray) -> str:
    """The last five lines of these bytes that are not blank, joined by semicolons; characters that
    cannot be printed are replaced by blanks."""
    lines = []
    for line in said.decode("utf-8", "replace").splitlines():
        plain = re.sub(r".", _blank_if_control, line).strip()
        if plain:
            lines.append(plain)
    return "; ".join(lines[-LINES:])


def _blank_if_control(letter: re.Match[str]) -> str:
    if letter[0].isprintable():
        return letter[0]
    return " "
