"""The options ``--jobs`` and ``--cluster`` of commands whose work other processes can do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from npulab.captures.devices import Simulated
from npulab.support.clusters import cluster
from npulab.support.executors import Workers, ordered, processes
from npulab.support.refuse import refuse_if


def has_workers(options: argparse.Namespace) -> bool:
    """True if the options let other processes do the work."""
    return options.jobs > 1 or options.cluster is not None


@contextmanager
def workers_of(options: argparse.Namespace) -> Iterator[Workers]:
    """Return a context that gives the executor which the options ask for, or None if this process
    does the work.
    """
    refuse_if(options.jobs < 1, "--jobs", options.jobs, "is at least 1")
    if options.cluster is None:
        refuse_if(options.resource, "--resource", "no --cluster", "is --cluster ADDRESS with it")
        executor = None
        if options.jobs > 1:
            executor = processes(options.jobs)
        yield executor
        return
    refuse_if(options.jobs > 1, "--jobs", "--cluster too", "is one of the two options")
    with cluster(options.cluster, _resources(options.resource)) as found:
        yield found


def refuse_workers(options: argparse.Namespace, device: object) -> None:
    """Raise ValueError if several processes would ask one device at once. Workers of a cluster that
    have the resource of ``--resource`` are allowed: each has a device of its own.
    """
    if isinstance(device, Simulated) or not has_workers(options) or options.resource is not None:
        return
    name = "--jobs"
    if options.cluster is not None:
        name = "--cluster"
    raise ValueError(
        f"{name}: got a device that only one process can use, allowed is --cluster ADDRESS "
        "with --resource NAME=N, such as npu=1, or neither --jobs nor --cluster"
    )


def _resources(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    name, _, count = text.partition("=")
    try:
        return {name.strip(): float(count)}
    except ValueError:
        raise ValueError(
            f"--resource: got {text!r:.80}, allowed is NAME=NUMBER such as npu=1"
        ) from None


def mapped(executor: Workers) -> Callable[..., Iterator[Any]]:
    """Return a function that is called as ``map(function, items)``; its calls of ``function`` are
    made by the workers, or by this process if ``executor`` is None.
    """

    def run(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        for _, result in ordered(function, items, executor):
            yield result

    return run
