"""Benchmark of decoding and encoding, npulab next to libraries for binary data: a struct of 150
fields in 38 little-endian words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import construct
import numpy as np
from numpy import ndarray as Array

from npulab.cli.bench.turns import child, least
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.support.late import pd

WORDS, FIELDS, CAPTURES = 38, 150, 100_000
SIZE = WORDS * WORD_BYTES
OURS = "npulab"
COPY = "copy of as many bytes"
COPIED = 2**25  # a measured copy copies this many bytes, more than caches hold


class Member(NamedTuple):
    """A field of the struct: name, number of its word, lowest bit in that word, count of bits."""

    name: str
    word: int
    lsb: int
    width: int


class Codec(NamedTuple):
    """Functions with which a library decodes and encodes ``captures`` captures.

    ``encode`` takes the result of ``decode``. ``rows`` turns that result into numbers ``(captures,
    FIELDS)``, ``data`` turns the result of ``encode`` into bytes.
    """

    captures: int
    decode: Callable[[], Any]
    encode: Callable[[Any], Any]
    rows: Callable[[Any], Any]
    data: Callable[[Any], bytes]


Make = Callable[[list[Member], Array, Any], Codec]


def struct(seed: int = 0) -> list[Member]:
    """Return the struct: 150 members of 1 to 32 bits that fill 38 words, cut at random places."""
    random = np.random.RandomState(seed)
    cuts = [{0, WORD_BITS} for _ in range(WORDS)]
    while sum(map(len, cuts)) < FIELDS + WORDS:
        word = random.randint(WORDS)
        cut = random.randint(1, WORD_BITS)
        cuts[word].add(cut)
    members: list[Member] = []
    for word, ends in enumerate(cuts):
        for lsb, end in pairwise(sorted(ends)):
            name = f"f{len(members)}"
            members.append(Member(name, word, lsb, end - lsb))
    return members


def table(rounds: int) -> pd.DataFrame:
    """Return a row per library: how many captures it decodes and encodes in a second, npulab's
    rates divided by the library's, and how many fields and words came out wrong. The row of a
    library that is not installed says so and has no numbers.

    ``attrs["limits"]`` has the rate of a copy (GB/s), and the bytes of a capture and of its values.
    """
    found = child("decode", rounds, {})
    ours = found["rates"][OURS]
    rows = []
    for library, rates in found["rates"].items():
        row: dict[str, Any] = {"library": library}
        for side, rate in rates.items():
            row[f"{side}, captures/s"] = rate
            row[f"{side} ratio"] = ours[side] / rate
        row["wrong"] = found["wrong"].get(library)
        rows.append(row)
    for library in found["missing"]:
        rows.append({"library": f"{library}: not installed"})
    frame = pd.DataFrame(rows)
    frame.attrs["limits"] = {"this machine": found["limits"]}
    return frame


def measure(rounds: int, captures: int = CAPTURES) -> dict[str, Any]:
    """Measure in this process, and return ``rates`` (by library: captures a second, in the best of
    all turns), ``wrong`` (by library: how many fields and words differ from the captures),
    ``missing`` (the libraries that are not installed) and ``limits`` (as in ``table``)."""
    members = struct()
    random = np.random.RandomState(1)
    words = random.randint(0, 2**32, (captures, WORDS), np.uint32)
    codecs, missing = _codecs(members, words)
    values = _columns(_members_of(members, words))
    copied = np.zeros(COPIED, np.uint8)
    copy = np.empty(COPIED, np.uint8)
    runs: dict[str, Callable[[], Any]] = {"copy": partial(np.copyto, copy, copied)}
    wrong = {}
    for library, codec in codecs.items():
        # a library encodes what it decoded itself, because each has a form of its own
        decoded = codec.decode()
        encoded = codec.encode(decoded)
        runs[f"decode {library}"] = codec.decode
        runs[f"encode {library}"] = partial(codec.encode, decoded)
        data = np.frombuffer(codec.data(encoded), np.uint32)
        wrong_values = _differing(codec.rows(decoded), values, codec.captures)
        wrong_words = _differing(data.reshape(-1, WORDS), words, codec.captures)
        wrong[library] = wrong_values + wrong_words
    ms = least(runs, rounds)
    rates = {}
    for library, codec in codecs.items():
        thousands = codec.captures * 1e3
        decode = thousands / ms[f"decode {library}"]
        encode = thousands / ms[f"encode {library}"]
        rates[library] = {"decode": decode, "encode": encode}
    # decoding moves a capture and its values through memory once; a copy moves each byte twice, by
    # a read and a write
    bytes_of_values = WORD_BYTES * FIELDS
    copied_per_ms = COPIED / ms["copy"]
    bound = 2 * copied_per_ms * 1e3 / (SIZE + bytes_of_values)
    rates[COPY] = {"decode": bound, "encode": bound}
    limits = {
        "copy, GB/s": copied_per_ms / 1e6,
        "bytes of a capture": SIZE,
        "bytes of its values": bytes_of_values,
    }
    return {"rates": rates, "wrong": wrong, "missing": missing, "limits": limits}


def _codecs(members: list[Member], words: Array) -> tuple[dict[str, Codec], list[str]]:
    """Return the codecs of installed libraries by name, and the names of missing libraries."""
    codecs: dict[str, Codec] = {}
    missing = []
    for library, (module, make) in LIBRARIES.items():
        try:
            codecs[library] = make(members, words, import_module(module))
        except ImportError:
            missing.append(library)
    return codecs, missing


def _differing(got: Any, want: Array, captures: int) -> int:
    """Return how many numbers of ``got`` differ from ``want``, plus by how many captures ``got``
    has fewer or more than ``captures``."""
    rows = np.asarray(got)
    wanted = want[: len(rows)]
    differing = int(np.count_nonzero(rows != wanted))
    missing = abs(len(rows) - captures)
    return differing + missing


# Libraries that take many captures at a time


def _npulab(members: list[Member], words: Array, _: Any) -> Codec:
    rows = []
    for m in members:
        offset = m.word * WORD_BYTES
        rows.append({"offset": offset, "field": m.name, "lsb": m.lsb, "width": m.width})
    registers = RegisterMap(rows)
    decode = partial(registers.decode, words, raw=True)
    encode = partial(registers.encode, raw=True)
    return Codec(len(words), decode, encode, _columns, Array.tobytes)


def _by_hand(members: list[Member], words: Array, _: Any) -> Codec:
    def encode(decoded: Mapping[str, Array]) -> Array:
        out = np.zeros((len(words), WORDS), np.uint32)
        for m in members:
            factor = np.uint32(2**m.lsb)
            out[:, m.word] |= decoded[m.name] * factor
        return out

    decode = partial(_members_of, members, words)
    return Codec(len(words), decode, encode, _columns, Array.tobytes)


def _members_of(members: list[Member], words: Array) -> dict[str, Array]:
    found = {}
    for m in members:
        mask = 2**m.width - 1
        found[m.name] = words[:, m.word] >> m.lsb & mask
    return found


def _columns(decoded: Mapping[str, Array]) -> Array:
    columns = list(decoded.values())
    return np.stack(columns, axis=1)


# Libraries that take one capture at a time


def _single(
    captures: Sequence[bytes],
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    row: Callable[[Any], Any],
) -> Codec:
    """Return the codec of a library whose functions take one capture at a time."""
    # a slow library is measured on fewer captures, because its rate is captures a second
    return Codec(
        len(captures),
        lambda: list(map(decode, captures)),
        lambda decoded: list(map(encode, decoded)),
        lambda decoded: list(map(row, decoded)),
        b"".join,
    )


def _captures(words: Array, most: int) -> list[bytes]:
    rows = words[:most].astype("<u4")
    return [row.tobytes() for row in rows]


def _ctypes(members: list[Member], words: Array, _: Any) -> Codec:
    data = words[:5000].astype("<u4").tobytes()
    names = [m.name for m in members]
    fields = [(m.name, ctypes.c_uint32, m.width) for m in members]
    kind: Any = type("Struct", (ctypes.LittleEndianStructure,), {"_fields_": fields})
    count = len(data) // SIZE
    every = attrgetter(*names)

    def encode(decoded: list[tuple[int, ...]]) -> Any:
        out = (kind * count)()
        for struct, values in zip(out, decoded, strict=True):
            for name, value in zip(names, values, strict=True):
                setattr(struct, name, value)
        return out

    def decode() -> list[Any]:
        structs = (kind * count).from_buffer_copy(data)
        return list(map(every, structs))

    return Codec(count, decode, encode, list, bytes)


def _construct(compiled: bool) -> Make:
    def make(members: list[Member], words: Array, _: Any) -> Codec:
        bits: list[list[Any]] = [[] for _ in range(WORDS)]
        # construct takes the fields of a word from its highest bit down
        for m in reversed(members):
            field = m.name / construct.BitsInteger(m.width)
            bits[m.word].append(field)
        parts = []
        for word, fields in enumerate(bits):
            swapped = construct.ByteSwapped(construct.BitStruct(*fields))
            parts.append(f"w{word}" / swapped)
        kind: Any = construct.Struct(*parts)
        if compiled:
            kind = kind.compile()

        def row(decoded: Any) -> list[int]:
            return [decoded[f"w{m.word}"][m.name] for m in members]

        captures = _captures(words, 100)
        return _single(captures, kind.parse, kind.build, row)

    return make


def _bitstruct(most: int, named: bool) -> Make:
    def make(members: list[Member], words: Array, module: Any) -> Codec:
        # bitstruct begins at the highest bit, so the words are byte-swapped, outside of the
        # measured time
        captures = _captures(words.byteswap(), most)
        order = sorted(members, key=lambda m: (m.word, -m.lsb))
        form = "".join(f"u{m.width}" for m in order)
        names = [m.name for m in order]
        wanted = [m.name for m in members]
        if named:
            codec = module.compile(form, names)
            row: Any = itemgetter(*wanted)
            made = _single(captures, codec.unpack, codec.pack, row)
        else:
            codec = module.compile(form)
            row = itemgetter(*map(names.index, wanted))
            made = _single(captures, codec.unpack, lambda values: codec.pack(*values), row)
        return made._replace(data=_swapped)

    return make


def _swapped(encoded: list[bytes]) -> bytes:
    words = np.frombuffer(b"".join(encoded), np.uint32)
    return words.byteswap().tobytes()


def _cantools(members: list[Member], words: Array, module: Any) -> Codec:
    signals = []
    for m in members:
        first = m.word * WORD_BITS + m.lsb
        signal = module.Signal(m.name, first, m.width, "little_endian")
        signals.append(signal)
    message = module.Message(1, "message", SIZE, signals)
    decode = partial(message.decode, decode_choices=False, scaling=False)
    encode = partial(message.encode, scaling=False, strict=False)
    row = itemgetter(*(m.name for m in members))
    captures = _captures(words, 1000)
    return _single(captures, decode, encode, row)


# By name of a library: the module to import, and the function that makes the library's Codec.
LIBRARIES: dict[str, tuple[str, Make]] = {
    OURS: ("numpy", _npulab),
    "numpy, a line a field": ("numpy", _by_hand),
    "bitstruct, C, tuple": ("bitstruct.c", _bitstruct(5000, named=False)),
    "bitstruct, C, dict": ("bitstruct.c", _bitstruct(5000, named=True)),
    "bitstruct, Python": ("bitstruct", _bitstruct(1000, named=False)),
    "ctypes": ("ctypes", _ctypes),
    "cantools": ("cantools.database.can", _cantools),
    "construct": ("construct", _construct(compiled=False)),
    "construct, compiled": ("construct", _construct(compiled=True)),
}
