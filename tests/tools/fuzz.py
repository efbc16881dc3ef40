"""Changed files for every reader: ``python tests/tools/fuzz.py [--count N] [--seconds S] [--from N]
[READER ...]``.

A forked process reads one changed file after another; another takes its place where it ends or does
not answer.  Mutant number N of a reader is always the same.  Printed is a table, a line a reader,
and where each finding lies.  What counts as a finding: an error of another kind than a reader may
raise, one of several lines, of more than 1,500 letters or with control characters, a warning of a
library's, more than a second of a processor's time or 256 MiB, the end of the process, and other
content than the file's sum stands for.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

HERE = Path(__file__).parent
if __name__ == "__main__":
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    sys.path[:0] = [
        str(HERE.parents[1]),
        *(
            str(HERE.parent / one)
            for one in (
                "",
                "reference",
                "models",
                "notebook",
                "npus/ane",
                "npus/nvdla",
                "npus/vivante",
                "cli",
            )
        ),
    ]

from fuzz_readers import READERS, Files, Reader  # noqa: E402

import npulab  # noqa: E402
from npulab.support.text import CONTROL, MOST_LETTERS  # noqa: E402

SECONDS, GROWTH, PATIENCE = 1.0, 2**28, 120.0
GOOD = ("read", "refused")


class Outcome(NamedTuple):
    """``kind`` is "read", "refused" or what is wrong; ``text`` says it, ``where`` is the place
    in npulab.
    """

    kind: str
    text: str = ""
    where: str = ""


class TooSlow(BaseException):
    pass


def attempt(reader: Reader, folder: Path) -> tuple[Outcome, object]:
    """What a reader makes of the files in a folder, and what it gives."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            got = reader.read(folder)
        except TooSlow as error:
            return Outcome("slow", "", _where(error)), None
        except MemoryError as error:
            return Outcome("memory", "", _where(error)), None
        except Exception as error:
            return _refusal(reader, error), None
    for one in told:
        if one.category is not UserWarning:
            return Outcome("warning", str(one.message), f"{one.filename}:{one.lineno}"), got
    return Outcome("read"), got


def _refusal(reader: Reader, error: Exception) -> Outcome:
    text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    kinds: tuple[type[Exception], ...] = (
        (npulab.FormatError, ValueError) if reader.plain else (npulab.FormatError,)
    )
    named = isinstance(error, OSError) and (error.errno is None or error.filename is not None)
    known = isinstance(error, kinds) or type(error) is LookupError or named
    wrong = (
        "another error"
        if not known or isinstance(error, UnicodeError)
        else "long"
        if len(text) > MOST_LETTERS
        else "lines"
        if "\n" in text
        else "control"
        if CONTROL.search(text)
        else ""
    )
    if reader.plain and wrong in ("long", "lines", "control"):
        wrong = ""  # who calls it makes a sentence of it
    return (
        Outcome(wrong, f"{type(error).__name__}: {text}", _where(error))
        if wrong
        else Outcome("refused", text)
    )


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        one
        for one in frames
        if f"{os.sep}npulab{os.sep}" in one.filename and "tests" not in Path(one.filename).parts
    ]
    last = own[-1] if own else frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"


class Fuzzer:
    """A reader with its seeds; ``outcome(n)`` is that of mutant n."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.reader = name, READERS[name]
        self.folder = folder / "in"
        self.seeds = self.reader.seeds()
        self.known: dict[int, object] = {}

    def files(self, number: int) -> tuple[int, Files]:
        """The number of the seed of mutant n, and the mutant's files."""
        r = Random(f"{self.name}:{number}")
        seed = r.randrange(len(self.seeds))
        while True:
            try:
                return seed, self.reader.mutant(r, self.seeds[seed])
            except (ValueError, IndexError, KeyError, TypeError, RecursionError):
                continue  # the mutator had nothing to change there

    def place(self, files: Files) -> None:
        """Put files in the folder, and nothing else."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, data in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)

    def outcome(self, number: int) -> Outcome:
        seed, files = self.files(number)
        self.place(files)
        found, got = attempt(self.reader, self.folder)
        if found.kind == "read" and self.reader.sums and got != self.whole(seed):
            return Outcome("other content", "what was read is not what the sum stands for")
        return found

    def whole(self, seed: int) -> object:
        """What a seed gives."""
        if seed not in self.known:
            self.place(self.seeds[seed])
            found, self.known[seed] = attempt(self.reader, self.folder)
            assert found.kind == "read", found
        return self.known[seed]


@contextmanager
def limited() -> Iterator[None]:
    """At most a second of the processor's time and 256 MiB more."""

    def over(*_: Any) -> None:
        raise TooSlow

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with Path("/proc/self/statm").open() as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, over)
    resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _work(fuzzer: Fuzzer, first: int, end: int, until: float, shared: mmap.mmap, log: Path) -> None:
    with log.open("a") as out:
        for number in range(first, end):
            if time.monotonic() > until:
                break
            struct.pack_into("<qd", shared, 0, number, time.monotonic())
            try:
                with limited():
                    found = fuzzer.outcome(number)
            except TooSlow:
                found = Outcome("slow")
            out.write(json.dumps([number, *found]) + "\n")
            out.flush()


def run(
    name: str, first: int, count: int, seconds: float, folder: Path
) -> list[tuple[int, Outcome]]:
    """The outcomes of mutants of a reader, in forked processes."""
    fuzzer, log = Fuzzer(name, folder), folder / "log.jsonl"
    for seed in range(len(fuzzer.seeds)):  # caches of facts are filled before a mutant is measured
        fuzzer.place(fuzzer.seeds[seed])
        attempt(fuzzer.reader, fuzzer.folder)
        if fuzzer.reader.sums:
            fuzzer.whole(seed)
    until, shared = time.monotonic() + seconds, mmap.mmap(-1, 16)
    at = first
    log.touch()
    while at < first + count and time.monotonic() < until:
        struct.pack_into("<qd", shared, 0, at, time.monotonic())
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _work(fuzzer, at, first + count, until, shared, log)
                status = 0
            finally:
                os._exit(status)
        ended, before = 0, (at, 0.0)
        while not ended:
            ended, status = os.waitpid(child, os.WNOHANG)
            number, since = struct.unpack_from("<qd", shared, 0)
            # what is the same twice was not read while it was written
            if not ended and (number, since) == before and time.monotonic() - since > PATIENCE:
                os.kill(child, signal.SIGKILL)
            before = number, since
            time.sleep(0.05)
        if status == 0:
            break
        with log.open("a") as out:
            out.write(json.dumps([number, "end of the process", f"status {status}", ""]) + "\n")
        at = number + 1
    return [
        (number, Outcome(*rest)) for number, *rest in map(json.loads, log.read_text().splitlines())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each reader, at most")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the files of findings")
    parser.add_argument("readers", nargs="*")
    given = parser.parse_args()
    total: Counter[str] = Counter()
    print(
        "| reader | mutants | read | refused | findings |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    home = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for name in [
        one for one in READERS if not given.readers or any(part in one for part in given.readers)
    ]:
        with tempfile.TemporaryDirectory(prefix="npulab-fuzz-", dir=home) as folder:
            os.chdir(folder)
            outcomes = run(name, given.first, given.count, given.seconds, Path(folder))
            counts = Counter(found.kind for _, found in outcomes)
            wrong = [(number, found) for number, found in outcomes if found.kind not in GOOD]
            told = ", ".join(
                f"{kind} {count}" for kind, count in counts.items() if kind not in GOOD
            )
            print(
                f"| {name} | {len(outcomes)} | {counts['read']} | {counts['refused']} | {told} |",
                flush=True,
            )
            seen = set()
            for number, found in wrong:
                if (found.kind, found.where) not in seen:
                    seen.add((found.kind, found.where))
                    print(
                        f"  {name}:{number} {found.kind} at {found.where}: {found.text[:200]!r}",
                        flush=True,
                    )
                    if given.keep:
                        for file, data in Fuzzer(name, Path(folder)).files(number)[1].items():
                            path = given.keep / f"{name}-{number}" / file
                            path.parent.mkdir(parents=True, exist_ok=True)
                            path.write_bytes(data)
            total.update(counts)
            os.chdir("/")
    print(
        f"| all | {total.total()} | {total['read']} | {total['refused']} | {total.total() - total['read'] - total['refused']} |"
    )
    return int(total.total() != total["read"] + total["refused"])


if __name__ == "__main__":
    sys.exit(main())
