"""Reading and checking a compiler's source network, the file ``net.plist``.

The file is a property list, whose top dictionary names the networks. The dictionary of a network
lists the names of its ``Inputs``, ``Units`` and ``Outputs``, has a dictionary for each of these
names, and lists its files of ``Weights``. Keys keep Apple's spelling.
"""

from __future__ import annotations

import os
import plistlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import starmap
from pathlib import Path
from typing import Any

from npulab.npus.ane.source.network import Input, Keys, Network, Output, Unit, repeated
from npulab.npus.ane.structures import STRUCTURES
from npulab.npus.kit import read_bounded, read_table, refuse_if, refusing

MOST_BYTES, MOST_WEIGHTS = 2**24, 2**30
# Between two tags there are at most this many bytes.
MOST_TEXT = 2**20
# A file has at most this many values: an empty dictionary takes 7 bytes in a file, many in memory.
MOST_VALUES = 2**17
DEEPEST = 32
LARGEST = 2**31 - 1
BINARY = b"bplist00"
TRAILER = STRUCTURES["plist trailer"]
# A value of a binary list has its size in its first byte; this size means that the real size
# follows as a value of its own.
SPELLED_SIZE = 0xF
# In a binary list, how many references an entry has in an array (0xA) and a dictionary (0xD).
CONTAINERS = {0xA: 1, 0xD: 2}
KIND_OF = {row["key"]: row["kind"] for row in read_table(Path(__file__).with_name("keys.csv"))}
SHOWN = 8


@dataclass(frozen=True)
class Plist:
    """The contents of a ``net.plist``.

    ``version`` is its ``Version``, ``other`` are other keys of its top dictionary, ``order`` is the
    order of the keys. ``binary`` is true for a binary property list, false for XML.
    """

    networks: tuple[Network, ...]
    version: str | None = "1.0.9"
    other: Keys = field(default_factory=dict)
    order: tuple[str, ...] = field(default=(), compare=False)
    binary: bool = False

    @property
    def network(self) -> Network:
        """The only network of the file; raises ValueError if it has several."""
        refuse_if(len(self.networks) != 1, "net.plist: Networks", len(self.networks), "is one")
        return self.networks[0]


def read_plist(source: bytes | str | os.PathLike[str]) -> Plist:
    """Return the contents of a ``net.plist``, XML or binary, from its bytes or its path.

    Unknown keys are kept. A file has at most 16 MiB, 131072 values, 32 levels, and 1 MiB of text
    between two tags. Raises ValueError, with file and path of keys, for a file past these limits or
    that is no property list or declares entities, for a value of a wrong kind, and for a name or
    index of nothing. Raises FileNotFoundError for a missing file.

    >>> read_plist(b"<plist/>")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    npulab.support.refuse.FormatError: net.plist: got no value, allowed is a dictionary ...
    """
    where, data = "net.plist", source
    if not isinstance(data, bytes):
        where, data = str(source), read_bounded(Path(data), MOST_BYTES)
    with refusing(where):
        return _parsed(data)


def weights_files(network: Network, folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the bytes of a network's weight files in a folder, by file name without path.

    A file that the folder does not have is left out."""
    names = {Path(path).name for path in network.weights or ()}
    found = {}
    for file in sorted(Path(folder).iterdir()):
        if file.name in names and file.is_file():
            found[file.name] = read_bounded(file, MOST_WEIGHTS)
    return found


def _parsed(data: bytes) -> Plist:
    if len(data) > MOST_BYTES:
        raise ValueError(f"got {len(data)} bytes or more, allowed are {MOST_BYTES}")
    binary = data.startswith(BINARY)
    if binary:
        _check_binary(data)
        form = plistlib.FMT_BINARY
    else:
        _check_text(data)
        form = plistlib.FMT_XML
    try:
        top = plistlib.loads(data, fmt=form)
    except RecursionError:
        raise ValueError(
            f"got values nested too deep, allowed are up to {DEEPEST} levels"
        ) from None
    # plistlib lets every error of its steps through, so broken bytes may raise any error.
    except Exception as error:
        raise ValueError(
            f"got no property list ({error or type(error).__name__}), allowed is an XML "
            "or binary one without entities"
        ) from None
    if not isinstance(top, dict):
        raise ValueError(f"got {_shown(top)}, allowed is a dictionary with Networks")
    _check_values(top)
    names = _texts(top, "Networks")
    networks = [_network(name, _dictionary(top, name)) for name in names]
    version = top.get("Version")
    other = {key: value for key, value in top.items() if key not in ("Networks", "Version", *names)}
    if "Version" in top and not isinstance(version, str):
        raise ValueError(f"Version: got {_shown(version)}, allowed is a text")
    return Plist(tuple(networks), version, other, tuple(top), binary)


def _check_text(data: bytes) -> None:
    """Raise ValueError for an XML text that would take far more memory than it has bytes.

    Each tag and each line of text becomes an object, so their numbers are limited.
    """
    opened = data.count(b"<") - data.count(b"</") - data.count(b"<key")
    lines = sum(data.count(mark) for mark in b"&\n\r")
    for what, found, most in (
        ("values", opened, MOST_VALUES),
        ("tags", data.count(b"<"), 4 * MOST_VALUES),
        ("lines and entities", lines, 8 * MOST_VALUES),
    ):
        if found > most:
            raise ValueError(f"got {found} {what}, allowed are {most}")
    start = 0
    while start < len(data):
        end = data.find(b"<", start + 1)
        if end < 0:
            end = len(data)
        if end - start > MOST_TEXT:
            raise ValueError(
                f"byte {start:#x}: got {end - start} bytes without a tag, allowed are {MOST_TEXT}"
            )
        start = end


def _check_binary(data: bytes) -> None:
    """Raise ValueError for a binary file that would take far more memory than it has bytes.

    Several values may share bytes, so the numbers of entries and characters are limited.
    """
    if len(data) < len(BINARY) + TRAILER.sizeof():
        raise ValueError(
            f"got {len(data)} bytes, allowed is a header of 8 and a trailer of 32 at least"
        )
    trailer = TRAILER.parse(data[-TRAILER.sizeof() :])
    size, count = trailer.offset_bytes, trailer.objects
    if count > MOST_VALUES or not 1 <= size <= 8 or trailer.table + size * count > len(data):
        raise ValueError(
            f"byte {len(data) - TRAILER.sizeof():#x}: trailer: got {count} values with "
            f"offsets of {size} bytes at {trailer.table}, "
            f"allowed are {MOST_VALUES} values inside the file"
        )
    entries = texts = 0
    for number in range(count):
        place = trailer.table + number * size
        start = int.from_bytes(data[place : place + size], "big")
        kind, length = divmod(int.from_bytes(data[start : start + 1], "big"), 16)
        if length == SPELLED_SIZE and kind >= 4:
            wide = 2 ** (int.from_bytes(data[start + 1 : start + 2], "big") % 4)
            length = int.from_bytes(data[start + 2 : start + 2 + wide], "big")
        entries += CONTAINERS.get(kind, 0) * length
        if kind in (4, 5, 6):
            texts += length
        if entries > 2 * MOST_VALUES or texts > MOST_BYTES // 4:
            raise ValueError(
                f"byte {start:#x}: got {entries} entries and {texts} characters up to "
                f"here, allowed are {2 * MOST_VALUES} and {MOST_BYTES // 4}"
            )


def _check_values(top: Any) -> None:
    """Raise ValueError for too many values, values nested too deep, and keys that are not texts.

    A value that contains itself is refused as nested too deep.
    """
    waiting: list[tuple[Any, int, tuple[Any, ...]]] = [(top, 1, ())]
    seen = 0
    while waiting:
        value, depth, path = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_VALUES:
            at = ".".join(map(str, path[:SHOWN]))
            got = "deeper" if depth > DEEPEST else "more"
            raise ValueError(
                f"{at}: got {got} values, allowed are {DEEPEST} levels and {MOST_VALUES} values"
            )
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if not isinstance(key, str):
                    at = ".".join(map(str, path))
                    raise ValueError(f"{at}: got key {_shown(key)}, allowed are texts")
                waiting.append((inner, depth + 1, (*path, key)))
        elif isinstance(value, list | tuple):
            for number, inner in enumerate(value):
                waiting.append((inner, depth + 1, (*path, number)))


def _network(name: str, keys: Keys) -> Network:
    inputs, units, outputs = [_parts(name, keys, key) for key in ("Inputs", "Units", "Outputs")]
    weights = None
    if "Weights" in keys:
        weights = tuple(_texts(keys, "Weights", f"{name}: "))
    known = {"Inputs", "Units", "Outputs", "Weights", *inputs, *units, *outputs}
    return Network(
        name,
        tuple(starmap(Input, inputs.items())),
        tuple(starmap(Unit, units.items())),
        tuple(starmap(Output, outputs.items())),
        weights,
        {key: value for key, value in keys.items() if key not in known},
        tuple(keys),
    )


def _parts(network: str, keys: Keys, kind: str) -> dict[str, dict[str, Any]]:
    """Return the checked dictionaries of a network's inputs, units or outputs, by name."""
    parts = {}
    for name in _texts(keys, kind, f"{network}: "):
        parts[name] = _dictionary(keys, name, f"{network}: ")
    for name, part in parts.items():
        _check_keys(part, f"{network}.{name}")
    return parts


def _texts(keys: Keys, key: str, where: str = "") -> list[str]:
    found = keys.get(key)
    if not isinstance(found, list) or not _list(found, str):
        raise ValueError(f"{where}{key}: got {_shown(found)}, allowed is a list of texts")
    if key != "Weights":
        twice = repeated(found)
        refuse_if(twice is not None, f"{where}{key}", f"{twice!r} twice", "is once")
    return found


def _dictionary(keys: Keys, name: str, where: str = "") -> dict[str, Any]:
    found = keys.get(name)
    if isinstance(found, dict):
        return found
    raise ValueError(f"{where}{name}: got {_shown(found)}, allowed is a dictionary")


def _check_keys(keys: Keys, where: str) -> None:
    for path, key, value in _walk(keys, where):
        allowed, fits = KINDS.get(KIND_OF.get(key, ""), ("", bool))
        refuse_if(allowed and not fits(value), f"{path}.{key}", _shown(value), f"is {allowed}")


def _walk(keys: Keys, where: str) -> Iterator[tuple[str, str, Any]]:
    for key, value in keys.items():
        yield where, key, value
        if isinstance(value, dict):
            yield from _walk(value, f"{where}.{key}")
        elif key == "BroadcastInfo" and isinstance(value, list):
            for number, inner in enumerate(value):
                if isinstance(inner, dict):
                    yield from _walk(inner, f"{where}.{key}[{number}]")


def _is_whole(value: Any, low: int, high: int = LARGEST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _is_steps(value: Any) -> bool:
    return _list(value, int) and len(value) in (2, 3) and all(_is_whole(n, 1) for n in value)


# Kinds of values: for each, the allowed values in words, and the function that tests a value.
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "size": (f"a whole number of 1 to {LARGEST}", lambda value: _is_whole(value, 1)),
    "place": (f"a whole number of 0 to {LARGEST}", lambda value: _is_whole(value, 0)),
    # the bits of a float16
    "half": (f"a whole number of 0 to {0xFFFF}", lambda value: _is_whole(value, 0, 0xFFFF)),
    "text": ("a text", lambda value: isinstance(value, str)),
    "steps": (f"two whole numbers of 1 to {LARGEST}, for x and y (a third for depth)", _is_steps),
    "names": (
        "a name, or a list of names",
        lambda value: isinstance(value, str) or (bool(value) and _list(value, str)),
    ),
    "dictionary": ("a dictionary", lambda value: isinstance(value, dict)),
    "dictionaries": ("a list of dictionaries", lambda value: _list(value, dict)),
}


def _shown(value: Any) -> str:
    """Return a value for an error; of a list or dictionary only kind and size are shown."""
    if value is None:
        return "no value"
    if isinstance(value, bool | int | float | str | bytes | datetime):
        if not isinstance(value, int) or value.bit_length() < 64:
            return f"{value!r:.60}"
        return "a larger number"
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
