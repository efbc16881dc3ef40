"""The same sweep by several executors: the same rows, the cost of a job, and the speed-up.

    python tests/tools/bench_executors.py --layers 2000 --seconds 0.2

Each layer is a job of so many seconds of CPU. The sweep is asked for in this process, by two
processes, by two of which one is killed, by a Dask cluster of four processes over sockets, and by
one of which one is killed. The overhead is measured with jobs that wait, so that busy cores do not
count: the time of a worker that passes beyond its jobs' own. The speed-up is wall time against
wall time, so it needs two free cores; ``--probe`` runs first two bare processes that compute, which
say how much two cores give on this machine now. On a busy machine the CPU of all processes, less that
of the jobs, is the figure to look at; with ``--sleep`` jobs have none.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
import work_items

from npulab.captures.sources import answers
from npulab.support.clusters import cluster
from npulab.support.executors import Workers, processes

Made = Callable[[], AbstractContextManager[Workers]]


def layers(count: int) -> list[dict[str, float]]:
    random = np.random.default_rng(1)
    names = ("input_h", "input_w", "output_c")
    return [
        dict(zip(names, row, strict=True)) for row in random.integers(1, 41, (count, 3)).tolist()
    ]


def asked(source: Any, rows: list[dict[str, float]], executor: Workers) -> str:
    """The digest of all answers, in order."""
    found = hashlib.sha256()
    numbers = []
    for number, answer in answers(source, rows, 7, executor):
        words = b""
        if answer.capture is not None:
            words = answer.capture.words.tobytes()
        found.update(f"{number} {answer.outcome} {answer.text}".encode() + words)
        numbers.append(number)
    assert numbers == [*range(len(rows))]
    return found.hexdigest()[:12]


@contextmanager
def dask(workers: int, victims: list[int] | None = None) -> Iterator[Executor]:
    """A Dask cluster of processes on sockets, as ``dask scheduler`` and ``dask worker`` make it."""
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            protocol="tcp://",
            dashboard_address=None,
            silence_logs=50,
        ) as made,
        cluster(made.scheduler_address) as executor,
    ):
        if victims is not None:
            victims += [worker.process.process.pid for worker in made.workers.values()]
        yield executor


def kill_later(log: Path, after: int, stop: threading.Event) -> None:
    """Kill the process that answered a layer, once ``after`` layers are answered."""
    while not stop.wait(0.02):
        lines = log.read_text().split() if log.exists() else []
        if len(lines) >= after:
            os.kill(int(lines[-1]), signal.SIGKILL)
            return


def cpu() -> float:
    """Seconds of CPU of this process and of all that it started."""
    used = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            used += sum(process.cpu_times()[:2])
    return used


def measured(name: str, made: Made, arguments: argparse.Namespace, kill: bool = False) -> Any:
    rows = layers(arguments.layers)
    with tempfile.TemporaryDirectory() as folder, made() as executor:
        log = Path(folder) / "log"
        source = work_items.SlowSource(arguments.seconds, arguments.sleep, str(log))
        stop = threading.Event()
        killer = threading.Thread(target=kill_later, args=(log, len(rows) // 4, stop))
        if kill:
            killer.start()
        begun, before = time.monotonic(), cpu()
        digest = asked(source, rows, executor)
        wall, own = time.monotonic() - begun, cpu() - before
        stop.set()
        pids = log.read_text().split()
    print(
        f"{name:28} {digest}  {wall:8.2f} s  {1000 * own / len(rows):6.2f} ms CPU/job  "
        f"{len({*pids})} processes answered, {len(pids) - len(rows)} asked again",
        flush=True,
    )
    return digest, wall


def spun(seconds: float) -> float:
    begun = time.monotonic()
    work_items.busy(seconds)
    return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each job")
    parser.add_argument("--sleep", action="store_true", help="jobs wait, and use no core")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--probe", action="store_true", help="what two cores give now")
    arguments = parser.parse_args()
    print(
        f"{arguments.layers} layers of {1000 * arguments.seconds:g} ms, load {os.getloadavg()[0]:.1f}"
    )
    if arguments.probe:
        one = spun(4)
        with ProcessPoolExecutor(2) as pool:
            begun = time.monotonic()
            list(pool.map(spun, [2, 2]))
            two = time.monotonic() - begun
        print(
            f"two bare processes: 4 s of CPU in {two:.2f} s, one alone in {one:.2f} s: {one / two:.2f}"
        )
    cases: list[tuple[str, Made, int, bool]] = [
        ("this process", lambda: nullcontext(None), 1, False),
        ("two processes", lambda: nullcontext(processes(2)), 2, False),
        ("two processes, one killed", lambda: nullcontext(processes(2)), 2, True),
        ("dask, four workers", lambda: dask(4), 4, False),
        ("dask, four, one killed", lambda: dask(4), 4, True),
    ]
    found = {}
    for name, made, workers, kill in cases:
        if arguments.only in name:
            digest, wall = measured(name, made, arguments, kill)
            found[name] = digest, wall
            own = arguments.layers * arguments.seconds / workers
            if arguments.sleep and not kill:
                over = 1000 * workers * (wall - own) / arguments.layers
                print(f"{'':28} {over:.2f} ms of a worker a job beyond the job itself")
    digests = {digest for digest, _ in found.values()}
    print("the same rows" if len(digests) == 1 else f"OTHER ROWS: {digests}")
    if {"this process", "two processes"} <= {*found}:
        alone, two = found["this process"][1], found["two processes"][1]
        print(f"speed-up of two processes {alone / two:.2f}")


if __name__ == "__main__":
    main()
