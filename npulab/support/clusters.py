"""A Dask cluster as an executor, found by the address of its scheduler and checked."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

from npulab.support.extras import needed
from npulab.support.refuse import reason, refuse_if
from npulab.support.text import plural

# Most seconds to wait for the answer of a scheduler. A scheduler on another continent answers in
# about 1 second.
SECONDS = 10.0
# A Python text that gives the version of a worker's npulab. The worker evaluates it with the
# builtin ``eval``, because a worker without npulab cannot receive a function of npulab.
VERSION = "__import__('npulab').__version__"


@contextmanager
def cluster(
    address: str, resources: Mapping[str, float] | None = None, seconds: float = SECONDS
) -> Iterator[Executor]:
    """A context with the executor of the Dask cluster whose scheduler has this address, such as
    ``tcp://host:8786``.

    ``resources`` is how much of a worker's resources each call takes, by name: ``{"npu": 1}`` sends
    calls only to workers that were started with ``--resources npu=1``, and one at a time to each.
    Raises MissingPackage if Dask is not installed; ValueError, one sentence, if no scheduler
    answers within ``seconds``, if there is no worker, or no worker with the resources, or if a
    worker has no npulab or another version.
    """
    distributed = needed("distributed", "a cluster")
    try:
        _refuse_silence(address, seconds)
        with _quietly():
            client = _within(
                seconds, lambda: distributed.Client(address, timeout=seconds, set_as_default=False)
            )
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"cluster: got address {address!r:.80}, where no Dask scheduler answered within "
            f"{seconds:g} seconds ({_said(error)}); give the address that `dask scheduler` prints"
        ) from None
    with client:
        refuse_workers(address, client, resources or {})
        refuse_versions(client.run(eval, VERSION, on_error="return"))
        # ``pure=False``: Dask need not look for calls with equal arguments, because ``executors``
        # gives each call a name of its own
        yield client.get_executor(resources=dict(resources or {}), pure=False)


def _refuse_silence(address: str, seconds: float) -> None:
    """Raise an error if no program listens at an address. A Dask client is made only after this
    check, because it would try to connect for longer than its time limit."""
    addressing = needed("distributed.comm", "a cluster")
    host, port = addressing.get_address_host_port(address)
    with socket.create_connection((host, port), seconds):
        pass


def _within(seconds: float, make: Callable[[], Any]) -> Any:
    """Call ``make`` in a thread and return its result; raises TimeoutError if the call takes longer
    than ``seconds``. The thread then runs on, at most until this process ends.

    A Dask client needs this limit, because it waits for ever if the program at the address is no
    scheduler."""
    made = Future[Any]()

    def run() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    Thread(target=run, daemon=True).start()
    return made.result(seconds)


def refuse_workers(address: str, client: Any, resources: Mapping[str, float]) -> None:
    """Raise ValueError if a cluster has no worker, or none with the resources that a call takes."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    refuse_if(not workers, f"cluster {address}", "no worker", "is one that has workers")
    able = 0
    for worker in workers.values():
        has = worker["resources"]
        able += all(has.get(name, 0) >= count for name, count in resources.items())
    if not able:
        stated = " ".join(f"{name}={count:g}" for name, count in resources.items())
        raise ValueError(
            f"cluster {address}: got {plural(len(workers), 'worker')}, none with {stated}; start "
            f"one with dask worker {address} --nthreads 1 --resources {stated!r}"
        )


def refuse_versions(versions: Mapping[str, Any]) -> None:
    """Raise ValueError if the npulab of a worker is missing or of another version than this one.

    ``versions`` has, by the address of a worker, its version as text, or the error that the worker
    raised when it was asked.

    >>> refuse_versions({"tcp://10.0.0.7:4021": "0.1.0"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: worker tcp://10.0.0.7:4021: got npulab 0.1.0, allowed is ..., as here, ...
    """
    here = eval(VERSION)
    for worker, version in versions.items():
        got = f"npulab {version}"
        if isinstance(version, BaseException):
            got = f"no npulab ({_said(version)})"
        refuse_if(
            version != here,
            f"worker {worker}",
            got,
            f"is {here}, as here, so that all compute the same",
        )


def _said(error: BaseException) -> str:
    """The first line of an error's text, at most 100 characters; the error's type if the text is
    empty."""
    lines = reason(error).strip().splitlines()
    return (lines or [type(error).__name__])[0][:100]


@contextmanager
def _quietly() -> Iterator[None]:
    """A context in which Dask logs nothing: its log has a traceback for a failed connection, which
    ``cluster`` reports in one sentence."""
    logger = logging.getLogger("distributed")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
