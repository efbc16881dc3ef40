"""Calls by the workers of an executor: order, a stop, an interrupt, workers that end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import work_items

from npulab.support.executors import TRIES, WorkerLost, ordered, processes, threads

SQUARES = [(number, number * number) for number in range(8)]


class ByHand(Executor):
    """An executor whose calls are made when a test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[Future[Any], Any]] = []

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future = Future[Any]()
        self.sent.append((future, lambda: function(*args, **options)))
        return future

    def make(self, number: int) -> None:
        future, call = self.sent[number]
        future.set_running_or_notify_cancel()
        future.set_result(call())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    assert list(ordered(work_items.square_late, range(8), threads(count))) == SQUARES


def test_this_process_threads_and_processes_give_the_same() -> None:
    alone = list(ordered(work_items.square, range(8)))
    with ThreadPoolExecutor(2) as pool:
        assert list(ordered(work_items.square, range(8), pool)) == alone == SQUARES
    with ProcessPoolExecutor(2) as pool:
        assert list(ordered(work_items.square, range(8), pool)) == SQUARES


def test_no_more_than_ahead_are_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npulab.support.executors.AHEAD", 3)
    executor = ByHand()
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(8):
            taken.append(number)
            yield number

    threading.Timer(0.05, lambda: executor.make(0)).start()
    results = ordered(work_items.square, items(), executor)
    assert next(results) == (0, 0)
    assert taken == [0, 1, 2]
    executor.make(1)
    assert next(results) == (1, 1)
    assert taken == [0, 1, 2, 3]


def test_a_stop_yields_what_ended_and_cancels_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npulab.support.executors.AHEAD", 4)
    executor, stop = ByHand(), threading.Event()

    def work() -> None:
        executor.make(2)
        stop.set()

    threading.Timer(0.05, work).start()
    results = ordered(work_items.square, range(8), executor, stop=stop)
    assert list(results) == [(2, 4)]
    assert [future.cancelled() for future, _ in executor.sent] == [True, True, False, True]


def test_a_stop_waits_for_what_runs() -> None:
    stop = threading.Event()
    begun, go_on = threading.Event(), threading.Event()

    def work(number: int) -> int:
        begun.set()
        assert go_on.wait(10)
        return number

    def stopping() -> None:
        assert begun.wait(10)
        stop.set()
        threading.Timer(0.3, go_on.set).start()

    threading.Thread(target=stopping).start()
    assert list(ordered(work, range(8), threads(1), stop=stop)) == [(0, 0)]


def test_a_stop_in_this_process_ends_between_two_calls() -> None:
    stop = threading.Event()
    found = []
    for number, result in ordered(work_items.square, range(8), stop=stop):
        found.append((number, result))
        if number == 1:
            stop.set()
    assert found == SQUARES[:2]


def test_an_interrupt_comes_after_the_results_of_what_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = ByHand()
    real = threading.Event()

    def waiting(futures: Any, timeout: float | None = None) -> Any:
        if not real.is_set():
            real.set()
            executor.make(1)
            raise KeyboardInterrupt
        return None

    monkeypatch.setattr("npulab.support.executors.wait", waiting)
    results = ordered(work_items.square, range(4), executor)
    assert next(results) == (1, 1)
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert [future.cancelled() for future, _ in executor.sent] == [True, False, True, True]


def test_an_error_is_raised_and_cancels_the_rest() -> None:
    found = []
    with pytest.raises(ValueError, match="three: got 3"):
        for _, result in ordered(work_items.fails_at_three, range(8), processes(2)):
            found.append(result)
    assert found == [0, 1, 2]


def test_the_calls_of_a_killed_worker_are_made_again(tmp_path: Path) -> None:
    work = work_items.EndsItsProcess(3, tmp_path / "killed")
    assert list(ordered(work, range(8), processes(2))) == SQUARES
    assert work.mark is not None
    assert work.mark.exists()


def test_a_call_that_ends_every_worker_is_given_up_and_the_others_are_not() -> None:
    work = work_items.EndsItsProcess(3)

    def lost(item: int, reason: str) -> int:
        assert str(TRIES) in reason
        return -item

    found = list(ordered(work, range(8), processes(2), lost=lost))
    assert found == [(number, -3 if number == 3 else square) for number, square in SQUARES]
    with pytest.raises(WorkerLost, match="item 3: its worker ended 3 times"):
        list(ordered(work, range(8), processes(2)))


def test_a_broken_pool_that_cannot_be_made_again_is_said() -> None:
    work = work_items.EndsItsProcess(1)
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(WorkerLost, match=r"give a function that makes an executor"),
    ):
        list(ordered(work, range(3), pool))


def test_what_cannot_be_sent_is_refused_before_anything_runs() -> None:
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(TypeError, match=r"^oracle: got function.*give a function of a module"),
    ):
        next(ordered(lambda number: number, range(3), pool, what="oracle"))
    assert list(ordered(lambda number: number, [5], threads(1))) == [(0, 5)]


@pytest.mark.parametrize("wrong", [3, "two", [1]])
def test_what_is_no_executor_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^executor: got .*allowed is a concurrent.futures"):
        ordered(work_items.square, range(3), wrong)
    with pytest.raises(TypeError, match=r"^executor: got .*allowed is a function that makes"):
        list(ordered(work_items.square, range(3), partial(int, 3)))


def test_no_process_is_too_few() -> None:
    with pytest.raises(ValueError, match="processes: got 0, allowed is at least 1"):
        processes(0)
