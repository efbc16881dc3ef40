"""Many calls of a function by the workers of any executor: results in the order of the items, and
no call lost if a worker ends.

A call is on the way from when it is sent to the executor until its result is taken; at most
``AHEAD`` calls are on the way at a time.
"""

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
# What a caller gives to run calls: an executor; a function that makes an executor, which is called
# again if the executor breaks; or None.
Workers = Executor | Callable[[], Executor] | None

# Most calls that are on the way at a time: enough to keep 128 workers busy, and few to cancel if
# the work is stopped.
AHEAD = 128
POLL = 0.1  # seconds between two checks whether the event ``stop`` is set

# A call is given up if the executor broke this many times while the call was on the way. Before the
# last of these times ``ordered`` sends the call alone, so that no other call can be the cause.
TRIES = 3


class WorkerLost(RuntimeError):
    """Raised if a call is given up because its worker ended ``TRIES`` times, or if an executor
    broke that cannot be made again."""


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
    # a terminal sends Ctrl-C to every process; a process that ended because of it would break the
    # pool
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
    """Yield (number, result) of a call for each item; the numbers count the items from 0, and the
    results are in the order of the items, whichever worker is first.

    ``executor`` is a ``concurrent.futures.Executor``, or a function that makes one; with None the
    calls are made in this process. At most ``AHEAD`` calls are on the way at a time, and an item is
    taken from ``items`` when its call is sent. If an executor breaks, the calls that were on the
    way are sent again, provided that ``executor`` is a function, which makes another one. If the
    worker of a call ended three times, the result of the call is ``lost(item, reason)``.

    If ``stop`` is set, or somebody interrupts (Ctrl-C) while this waits, calls that have not begun
    are cancelled, and the results of those that have begun are yielded: then numbers may be
    missing. An interrupt is raised after these results. An error that a call raises is raised here,
    and calls that have not begun are cancelled.

    Raises TypeError for an ``executor`` that is none of these, and for a function that cannot be
    sent to other processes (the text begins with ``what``). Raises WorkerLost if a call is given up
    and there is no ``lost``, and if a broken executor cannot be made again.

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
    """Raise TypeError unless the value is an Executor, a function that makes one, or None."""
    if executor is not None and not isinstance(executor, Executor) and not callable(executor):
        raise TypeError(
            f"executor: got {shortly(executor)}, allowed is a concurrent.futures.Executor such as "
            "ProcessPoolExecutor(2) or Dask's Client(address).get_executor(), a function that "
            "returns an Executor, or None"
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
    # pickle raises errors of many types, among them whatever the __getstate__ of an object raises
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
    """Call a function with an item. ``name`` makes the arguments of each call different, because
    Dask would make two calls with equal arguments only once."""
    return function(item)


class Pool(Generic[Item, Result]):
    """A function that workers call, item by item, for a caller that does not know all items
    beforehand.

    ``start`` sends a call. A call whose worker ended is sent again when its result is asked for;
    WorkerLost is raised if its worker ended three times. Raises TypeError as ``ordered``.

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
        """Replace the executor ``broken`` by a new executor, unless another call did so already."""
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
        """Cancel the call if it has not begun; a call that runs is finished, and its result
        dropped.
        """
        self._future.cancel()

    def result(self) -> Result:
        for _ in range(TRIES):
            wait([self._future])
            if not _is_lost(self._future):
                return self._future.result()
            self.pool.again(self._executor)
            self._send()
        raise WorkerLost(
            f"{shortly(self.item)}: its worker ended {TRIES} times; call the function with "
            "this item alone to see why"
        )


def _made(given: Executor | Callable[[], Executor]) -> Executor:
    if isinstance(given, Executor):
        return given
    made = given()
    need("executor", made, Executor, "is a function that makes an Executor")
    return made


def _remade(given: Workers, broken: Executor) -> Executor:
    """Make a new executor with the function ``given`` in place of the executor ``broken``; raises
    WorkerLost if ``given`` is no function."""
    if given is None or isinstance(given, Executor):
        raise WorkerLost(
            f"executor: a worker of {type(broken).__name__} ended, and it takes no more work; what "
            "was done before is kept; give a function that makes an executor, as "
            "functools.partial(ProcessPoolExecutor, 2), and it is made again"
        )
    broken.shutdown(cancel_futures=True)
    return _made(given)


def _sent(executor: Executor, function: Callable[[Item], Result], item: Item) -> Future[Result]:
    """Send a call of the function with an item to the executor, and return its future; if the
    executor is broken, the future holds the BrokenExecutor error."""
    try:
        return executor.submit(_call, function, item, uuid.uuid4().hex)
    except BrokenExecutor as error:
        broken = Future[Result]()
        broken.set_exception(error)
        return broken


def _is_lost(future: Future[Any]) -> bool:
    """True if a call has no result because the executor broke or the call was cancelled."""
    if future.cancelled():
        return True
    return future.done() and isinstance(future.exception(), BrokenExecutor)


@dataclass(eq=False)
class _Call:
    """The call with item ``number``, counted from 0. ``future`` is None while the call is not sent;
    ``losses`` counts how often the executor broke while the call was on the way."""

    number: int
    item: Any
    future: Future[Any] | None = None
    losses: int = 0

    @property
    def alone(self) -> bool:
        """True if the call has to be the only call on the way: if a worker then ends again, this
        call is the cause."""
        return self.losses == TRIES - 1

    @property
    def lost(self) -> bool:
        """True if the call has no result because the executor broke or the call was cancelled."""
        assert self.future is not None
        return _is_lost(self.future)

    @property
    def killing(self) -> bool:
        """True if a Dask cluster gave the call up because its workers ended again and again."""
        assert self.future is not None
        # Dask need not be imported: a future of Dask exists only if Dask is loaded
        killed = getattr(sys.modules.get("distributed"), "KilledWorker", ())
        return not self.future.cancelled() and isinstance(self.future.exception(), killed)


@dataclass(eq=False)
class _Calls:
    """The calls of one ``ordered``. ``flight`` has the calls on the way, in the order of their
    items."""

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
            # an executor that the caller gave stays open, because the caller may use it further
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
        """Send calls in the order of their items until ``AHEAD`` are on the way. A call that has to
        be ``alone`` is sent when it is the first, and no call is sent after it. Return False if no
        call is on the way and no item remains."""
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
        """Wait until a call ends; False if ``stop`` is set before the call ends."""
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
            return self._given_up(
                call, f"its worker ended {TRIES} times, at last with no other call on the way"
            )
        return call.future.result()

    def _given_up(self, call: _Call, reason: str) -> Any:
        if self.lost is None:
            raise WorkerLost(f"item {call.number}: {reason}; results of earlier items are kept")
        return self.lost(call.item, reason)

    def _again(self) -> None:
        """Make a new executor, and set ``future`` of each lost call to None, so that the call is
        sent again; the first call is given up if it was alone on the way."""
        # a broken executor puts its error into one future after another: wait for all, but not long
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
            # the first call broke the executor, so earlier losses of the other calls do not count
            for call in self.flight:
                call.losses = 0
            first.losses = TRIES
            first.future = Future()
            first.future.set_result(None)

    def _cancel(self, call: _Call) -> None:
        if call.future is not None:
            call.future.cancel()

    def _finished(self) -> Iterator[tuple[int, Any]]:
        """Cancel the calls that have not begun; yield (number, result) of the other calls in the
        order of their items."""
        for call in self.flight:
            self._cancel(call)
        while self.flight:
            call = self.flight.popleft()
            # wait would never return for a cancelled future
            if call.future is None or call.future.cancelled():
                continue
            wait([call.future])
            if not call.lost:
                yield call.number, self._result(call)
