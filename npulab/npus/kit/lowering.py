"""The common part of every ``lower``: it checks the arguments and makes the capture."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from npulab.captures.capture import Capture, Job
from npulab.npus.kit.facts import Facts
from npulab.support.refuse import refuse_if

ADDRESS_BITS = 32


def features_asked(features: Collection[str], known: Collection[str]) -> None:
    """Raise LookupError if one of ``features`` is not ``known``; the error names the known features
    in their order.
    """
    _all_known("features", features, known)


def placed(
    defaults: Mapping[str, int],
    addresses: Mapping[str, int] | None,
    align: int,
    bits: int = ADDRESS_BITS,
) -> dict[str, int]:
    """Return the addresses of buffers by name: the given ``addresses``, and the ``defaults`` of
    all other buffers.

    Raises LookupError for a name that has no default, ValueError for an address that is not a
    multiple of ``align`` or does not fit into ``bits`` bits.
    """
    where = {**defaults, **(addresses or {})}
    _all_known("addresses", where, sorted(defaults))
    for name, at in where.items():
        refuse_if(
            not isinstance(at, int) or not 0 <= at < 2**bits or at % align,
            "addresses",
            f"{name} {at!r}",
            f"is a multiple of {align} within {bits} bits",
        )
    return where


def _all_known(what: str, names: Collection[str], known: Collection[str]) -> None:
    unknown = sorted({*names} - {*known})
    if unknown:
        raise LookupError(f"{what}: got {unknown[0]!r}, allowed are {', '.join(known)}")


def lowered(
    facts: Facts,
    name: str,
    chip: str,
    jobs: Sequence[Job],
    memory: tuple[Mapping[str, bytes], Mapping[str, int]],
    parameters: Mapping[str, Any],
) -> Capture:
    """Return the capture that ``lower`` returns, with the chip's maps and provenance ``simulated``.

    ``memory`` are the bytes of the buffers and their addresses, by name.
    """
    return Capture(
        name,
        facts.here.name,
        chip,
        tuple(jobs),
        *memory,
        parameters,
        "simulated",
        tool="npulab lower",
        maps=facts.maps(chip),
    )
