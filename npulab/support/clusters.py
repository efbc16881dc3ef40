"""A Dask cluster, by the address of its scheduler: checked, and as an executor."""

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

SECONDS = 10.0  # within which a scheduler has to answer; one on another continent takes about 1
# A worker may have no npulab at all, so what it runs is no function of npulab: builtins are found
# by name anywhere.
VERSION = "__import__('npulab').__version__"


@contextmanager
def cluster(
    address: str, resources: Mapping[str, float] | None = None, seconds: float = SECONDS
) -> Iterator[Executor]:
    """A context with the executor of the Dask cluster whose scheduler has this address, as
    ``tcp://host:8786``.

    ``resources`` is what each call takes of a worker, by name: ``{"npu": 1}`` sends calls only to
    workers that were started with ``--resources npu=1``, one at a time to each. Raises
    MissingPackage if Dask is not installed; ValueError, one sentence, if no scheduler answers
    within ``seconds``, if no worker has the resources, or if a worker has another npulab.
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
            f"cluster: got {address!r:.80}, where no Dask scheduler answered within {seconds:g} "
            f"seconds ({_said(error)}), allowed is the address that `dask scheduler` prints"
        ) from None
    with client:
        refuse_workers(address, client, resources or {})
        refuse_versions(client.run(eval, VERSION, on_error="return"))
        # calls have names of their own, so Dask need not compare what they are made of
        yield client.get_executor(resources=dict(resources or {}), pure=False)


def _refuse_silence(address: str, seconds: float) -> None:
    """Raise an error if nobody listens at an address; a client of Dask that finds nobody tries
    again, and lasts longer than it was told."""
    addressing = needed("distributed.comm", "a cluster")
    host, port = addressing.get_address_host_port(address)
    with socket.create_connection((host, port), seconds):
        pass


def _within(seconds: float, make: Callable[[], Any]) -> Any:
    """What a function makes; raises TimeoutError if it is not done in time. It then goes on in a
    thread that ends with this process: a client of Dask waits for ever for a program that listens
    and is no scheduler."""
    made = Future[Any]()

    def run() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    Thread(target=run, daemon=True).start()
    return made.result(seconds)


def refuse_workers(address: str, client: Any, resources: Mapping[str, float]) -> None:
    """Raise ValueError if no worker of a cluster has the resources that a call takes."""
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
    """Raise ValueError if a worker's npulab is missing or of another version than this one, by the
    worker's address.

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
    """The first line of an error, short enough for a sentence."""
    lines = reason(error).strip().splitlines()
    return (lines or [type(error).__name__])[0][:100]


@contextmanager
def _quietly() -> Iterator[None]:
    """Dask logs a failed connection with its traceback; one sentence says it."""
    logger = logging.getLogger("distributed")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
