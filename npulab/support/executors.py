"""Many calls of a function by the workers of any executor: results in the order of the items, few
calls on the way at a time, and none lost with a worker."""

from __future__ import annotations

import pickle
import signal
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any, Generic, TypeVar

from npulab.support.refuse import need, refuse_if, shortly

Item = TypeVar("Item")
Result = TypeVar("Result")
# An executor, or a function that makes one: then it can be made again if it broke.
Workers = Executor | Callable[[], Executor] | None

# calls on the way at a time: enough for that many workers, and few to drop when somebody stops
AHEAD = 128
POLL = 0.1  # seconds between two looks at the event that stops
# A call that was on the way each time its worker ended is given up after so many times; the last
# time it was the only one on the way.
TRIES = 3


class WorkerLost(RuntimeError):
    """Raised if a call ended its workers again and again, or if an executor broke that cannot be
    made again."""


def processes(count: int) -> Callable[[], Executor]:
    """A function that makes an executor of ``count`` processes of this machine, and can make it
    again. Ctrl-C does not end these processes: what they run is finished and kept.

    Raises ValueError for a count below 1.

    >>> dict(ordered(abs, [-1, 2], processes(2)))
    {0: 1, 1: 2}
    """
    refuse_if(count < 1, "processes", count, "is at least 1")
    return partial(ProcessPoolExecutor, count, initializer=_ignore_interrupts)


def threads(count: int) -> Callable[[], Executor]:
    """A function that makes an executor of ``count`` threads: for work that waits for programs."""
    return partial(ThreadPoolExecutor, count)


def _ignore_interrupts() -> None:
    # a terminal sends Ctrl-C to every process, and one that ends by it breaks the pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def ordered(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    executor: Workers = None,
    *,
    stop: Event | None = None,
    lost: Callable[[Item, str], Result] | None = None,
    what: str = "function",
) -> Iterator[tuple[int, Result]]:
    """Yield (number, result) of a call for each item, in the order of the items, whatever the
    workers; the numbers count the items from 0.

    ``executor`` is a ``concurrent.futures.Executor``, or a function that makes one; None is this
    process. At most ``AHEAD`` calls are on the way at a time, and items are taken as they are sent.
    The calls that were on the way when an executor broke are sent again, if ``executor`` is a
    function that makes another one. A call that ended its worker three times gives
    ``lost(item, reason)``.

    If ``stop`` is set, or somebody interrupts (Ctrl-C) while this waits, calls that have not begun
    are cancelled and the results of the others are yielded: then numbers may be missing. The
    interrupt is raised after them. An error that a call raises is raised here, and what has not
    begun is cancelled.

    Raises TypeError for what is no executor, and for a function that cannot be sent to other
    processes (the text begins with ``what``); WorkerLost without ``lost``, and for a broken
    executor that cannot be made again.

    >>> list(ordered(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(ordered(abs, [-3, 4], pool))
    [(0, 3), (1, 4)]
    """
    need_executor(executor)
    if executor is None:
        return _here(function, items, stop)
    return _Calls(function, items, executor, stop, lost, what).results()


def need_executor(executor: object) -> None:
    """Raise TypeError unless the value is an executor, a function that makes one, or None."""
    if executor is not None and not isinstance(executor, Executor) and not callable(executor):
        raise TypeError(
            f"executor: got {shortly(executor)}, allowed is a concurrent.futures.Executor, as "
            "ProcessPoolExecutor(2) or Dask's Client(address).get_executor() make, a function that "
            "makes one, or None"
        )


def _here(
    function: Callable[[Item], Result], items: Iterable[Item], stop: Event | None
) -> Iterator[tuple[int, Result]]:
    for number, item in enumerate(items):
        if stop is not None and stop.is_set():
            return
        yield number, function(item)


def sendable(what: str, value: object) -> None:
    """Raise TypeError, which begins with ``what``, for a value that cannot be sent to another
    process.

    >>> sendable("oracle", lambda capture: "pass")
    Traceback (most recent call last):
    TypeError: oracle: got function, which cannot be sent to other processes (Can't pickle \
<function <lambda>...); give a function of a module, and values without lambdas, open files or locks
    """
    try:
        pickle.dumps(value)
    # pickle raises each of these, and what an object's own __getstate__ raises
    except Exception as error:
        inner = value
        while isinstance(inner, partial):
            inner = inner.func
        said = f"{error}".partition(" at 0x")[0]
        raise TypeError(
            f"{what}: got {shortly(inner)}, which cannot be sent to other processes ({said}...); "
            "give a function of a module, and values without lambdas, open files or locks"
        ) from None


def _call(function: Callable[[Item], Result], item: Item, name: str) -> Result:
    """Call a function; ``name`` tells this call from another one of the same item, which Dask would
    take for the same work."""
    return function(item)


class Pool(Generic[Item, Result]):
    """A function whose calls workers make one by one, for who does not know the items before.

    ``start`` sends a call. A call whose worker ended is sent again when its result is asked for,
    three times in all. Raises as ``ordered``.

    >>> with Pool(abs, threads(2)) as pool:
    ...     first, second = pool.start(-3), pool.start(4)
    ...     second.result(), first.result()
    (4, 3)
    """

    def __init__(
        self, function: Callable[[Item], Result], executor: Workers, what: str = "function"
    ) -> None:
        need_executor(executor)
        self.function, self.given = function, executor
        self.executor = _made(executor or threads(1))
        if isinstance(self.executor, ProcessPoolExecutor):
            sendable(what, function)

    def __enter__(self) -> Pool[Item, Result]:
        return self

    def __exit__(self, *error: object) -> None:
        if self.executor is not self.given:
            self.executor.shutdown(cancel_futures=True)

    def start(self, item: Item) -> Started[Item, Result]:
        return Started(self, item)

    def send(self, item: Item) -> Future[Result]:
        return _sent(self.executor, self.function, item)

    def again(self, broken: Executor) -> None:
        """Make the executor again, unless that was done for another call."""
        if self.executor is broken:
            self.executor = _remade(self.given, broken)


class Started(Generic[Item, Result]):
    """A call of a ``Pool``."""

    def __init__(self, pool: Pool[Item, Result], item: Item) -> None:
        self.pool, self.item = pool, item
        self._send()

    def _send(self) -> None:
        self._executor = self.pool.executor
        self._future = self.pool.send(self.item)

    def cancel(self) -> None:
        """Let the call not begin; one that runs is finished, and its result is dropped."""
        self._future.cancel()

    def result(self) -> Result:
        for _ in range(TRIES):
            wait([self._future])
            if not _is_lost(self._future):
                return self._future.result()
            self.pool.again(self._executor)
            self._send()
        raise WorkerLost(f"{shortly(self.item)}: its worker ended {TRIES} times")


def _made(given: Executor | Callable[[], Executor]) -> Executor:
    if isinstance(given, Executor):
        return given
    made = given()
    need("executor", made, Executor, "is a function that makes an Executor")
    return made


def _remade(given: Workers, broken: Executor) -> Executor:
    """Another executor in the place of a broken one; raises WorkerLost if none can be made."""
    if given is None or isinstance(given, Executor):
        raise WorkerLost(
            f"executor: a worker of {type(broken).__name__} ended, and it takes no more work; what "
            "was done before is kept; give a function that makes an executor, as "
            "functools.partial(ProcessPoolExecutor, 2), and it is made again"
        )
    broken.shutdown(cancel_futures=True)
    return _made(given)


def _sent(executor: Executor, function: Callable[[Item], Result], item: Item) -> Future[Result]:
    """A call on the way; it is broken from the start if the executor is."""
    try:
        return executor.submit(_call, function, item, uuid.uuid4().hex)
    except BrokenExecutor as error:
        broken = Future[Result]()
        broken.set_exception(error)
        return broken


def _is_lost(future: Future[Any]) -> bool:
    """True if the executor broke before a call ended."""
    if future.cancelled():
        return True
    return future.done() and isinstance(future.exception(), BrokenExecutor)


@dataclass(eq=False)
class _Call:
    """A call on the way; ``losses`` is how often its worker ended."""

    number: int
    item: Any
    future: Future[Any] | None = None
    losses: int = 0

    @property
    def alone(self) -> bool:
        """True if the call has to be the only one on the way, so that it is known what ended the
        worker."""
        return self.losses == TRIES - 1

    @property
    def lost(self) -> bool:
        """True if the executor broke before the call ended."""
        assert self.future is not None
        return _is_lost(self.future)

    @property
    def killing(self) -> bool:
        """True if a Dask cluster gave the call up, because workers ended again and again."""
        assert self.future is not None
        # who has a future of Dask has loaded Dask
        killed = getattr(sys.modules.get("distributed"), "KilledWorker", ())
        return not self.future.cancelled() and isinstance(self.future.exception(), killed)


@dataclass(eq=False)
class _Calls:
    """Calls that are sent to an executor."""

    function: Callable[[Any], Any]
    items: Iterable[Any]
    given: Executor | Callable[[], Executor]
    stop: Event | None
    lost: Callable[[Any, str], Any] | None
    what: str
    flight: deque[_Call] = field(default_factory=deque)

    def results(self) -> Iterator[tuple[int, Any]]:
        self.executor = _made(self.given)
        if isinstance(self.executor, ProcessPoolExecutor):
            sendable(self.what, self.function)
        self.rest = enumerate(self.items)
        try:
            yield from self._results()
        finally:
            for call in self.flight:
                self._cancel(call)
            # an executor that was given is the caller's, who may have more work for it
            if self.executor is not self.given:
                self.executor.shutdown(cancel_futures=True)

    def _results(self) -> Iterator[tuple[int, Any]]:
        interrupted = False
        try:
            while self._fill():
                if not self._ended(self.flight[0]):
                    break
                if self.flight[0].lost:
                    self._again()
                    continue
                call = self.flight.popleft()
                yield call.number, self._result(call)
        except KeyboardInterrupt:
            interrupted = True
        yield from self._finished()
        if interrupted:
            raise KeyboardInterrupt

    def _fill(self) -> bool:
        """Send calls until enough are on the way; False if none is left."""
        for call in self.flight:
            if call.future is None:
                if call.alone and call is not self.flight[0]:
                    return True
                self._send(call)
            if call.alone:
                return True
        while len(self.flight) < AHEAD:
            following = next(self.rest, None)
            if following is None:
                break
            call = _Call(*following)
            self._send(call)
            self.flight.append(call)
        return bool(self.flight)

    def _send(self, call: _Call) -> None:
        call.future = _sent(self.executor, self.function, call.item)

    def _ended(self, call: _Call) -> bool:
        """Wait for a call; False if somebody stops."""
        assert call.future is not None
        while not (self.stop is not None and self.stop.is_set()):
            if wait([call.future], POLL).done:
                return True
        return False

    def _result(self, call: _Call) -> Any:
        assert call.future is not None
        if call.killing:
            return self._given_up(call, str(call.future.exception()))
        if call.losses == TRIES:
            return self._given_up(call, f"its worker ended {TRIES} times, at last with it alone")
        return call.future.result()

    def _given_up(self, call: _Call, reason: str) -> Any:
        if self.lost is None:
            raise WorkerLost(f"item {call.number}: {reason}; what was done before it is kept")
        return self.lost(call.item, reason)

    def _again(self) -> None:
        """Make the executor again, and let the calls that were on the way be sent again."""
        # the manager of a broken pool may still be giving its futures their errors
        pending = [call.future for call in self.flight if call.future is not None]
        wait(pending, POLL)
        self.executor = _remade(self.given, self.executor)
        first = self.flight[0]
        first_alone = first.alone
        for call in self.flight:
            if call.future is not None and call.lost:
                call.losses += 1
                call.future = None
        if first_alone:
            # this call ends workers: the others were only beside it
            for call in self.flight:
                call.losses = 0
            first.losses = TRIES
            first.future = Future()
            first.future.set_result(None)

    def _cancel(self, call: _Call) -> None:
        if call.future is not None:
            call.future.cancel()

    def _finished(self) -> Iterator[tuple[int, Any]]:
        """Cancel what has not begun, and yield the results of what has, in order."""
        for call in self.flight:
            self._cancel(call)
        while self.flight:
            call = self.flight.popleft()
            # a wait for a cancelled future would not end
            if call.future is None or call.future.cancelled():
                continue
            wait([call.future])
            if not call.lost:
                yield call.number, self._result(call)
