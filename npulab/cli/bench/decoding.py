"""Decoding and encoding compared with libraries for binary data: a struct of 150 fields in 38
little-endian words."""

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

from npulab.cli.bench.turns import child, least
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.support.late import pd

WORDS, FIELDS, CAPTURES = 38, 150, 100_000
SIZE = WORDS * WORD_BYTES
OURS = "npulab"
COPY = "copy of as many bytes"
COPIED = 2**25  # bytes, more than caches hold


class Member(NamedTuple):
    """A field of the struct: name, word, lowest bit, bits."""

    name: str
    word: int
    lsb: int
    width: int


class Codec(NamedTuple):
    """A library at work on so many captures.

    ``encode`` takes the result of ``decode``.  ``rows`` turns that result into numbers
    ``(captures, FIELDS)``, ``data`` the result of ``encode`` into bytes.
    """

    captures: int
    decode: Callable[[], Any]
    encode: Callable[[Any], Any]
    rows: Callable[[Any], Any]
    data: Callable[[Any], bytes]


Make = Callable[[list[Member], np.ndarray, Any], Codec]


def struct(seed: int = 0) -> list[Member]:
    """Return 150 members of 1 to 32 bits that tile 38 words, cut at random places."""
    random = np.random.RandomState(seed)
    cuts = [{0, WORD_BITS} for _ in range(WORDS)]
    while sum(map(len, cuts)) < FIELDS + WORDS:
        cuts[random.randint(WORDS)].add(random.randint(1, WORD_BITS))
    members: list[Member] = []
    for word, ends in enumerate(cuts):
        for lsb, end in pairwise(sorted(ends)):
            members.append(Member(f"f{len(members)}", word, lsb, end - lsb))
    return members


def table(rounds: int) -> pd.DataFrame:
    """Return a row per library: captures decoded and encoded a second, the ratio of npulab's rate
    to it, and how many fields and words came out wrong; a library that is not installed says so.

    ``attrs["limits"]``: rate of a copy, bytes of a capture and of its values.
    """
    found = child("decode", rounds, {})
    ours = found["rates"][OURS]
    rows = []
    for library, rates in found["rates"].items():
        row: dict[str, Any] = {"library": library}
        for side, rate in rates.items():
            row |= {f"{side}, captures/s": rate, f"{side} ratio": ours[side] / rate}
        rows.append({**row, "wrong": found["wrong"].get(library)})
    rows += [{"library": f"{library}: not installed"} for library in found["missing"]]
    frame = pd.DataFrame(rows)
    frame.attrs["limits"] = {"this machine": found["limits"]}
    return frame


def measure(rounds: int, captures: int = CAPTURES) -> dict[str, Any]:
    """Return rates in this process: ``rates`` (captures a second by library, the best of all
    turns), ``wrong`` (fields and words that differ from the captures), ``missing`` (libraries),
    ``limits``."""
    members = struct()
    words = np.random.RandomState(1).randint(0, 2**32, (captures, WORDS), np.uint32)
    codecs, missing = dict[str, Codec](), []
    for library, (module, make) in LIBRARIES.items():
        try:
            codecs[library] = make(members, words, import_module(module))
        except ImportError:
            missing.append(library)
    values = _columns(_members_of(members, words))
    far, near = np.zeros(COPIED, np.uint8), np.empty(COPIED, np.uint8)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: np.copyto(near, far)}
    wrong = {}
    for library, codec in codecs.items():
        decoded = codec.decode()
        runs[f"decode {library}"] = codec.decode
        runs[f"encode {library}"] = partial(codec.encode, decoded)
        data = np.frombuffer(codec.data(codec.encode(decoded)), np.uint32).reshape(-1, WORDS)
        wrong[library] = _differing(codec.rows(decoded), values, codec.captures)
        wrong[library] += _differing(data, words, codec.captures)
    ms = least(runs, rounds)
    rates = {}
    for library, codec in codecs.items():
        thousands = codec.captures * 1e3
        rates[library] = {
            "decode": thousands / ms[f"decode {library}"],
            "encode": thousands / ms[f"encode {library}"],
        }
    # a capture is read once and its values are written once; a copy does both for each byte
    bound = 2 * COPIED / ms["copy"] * 1e3 / (SIZE + WORD_BYTES * FIELDS)
    rates[COPY] = {"decode": bound, "encode": bound}
    limits = {
        "copy, GB/s": COPIED / ms["copy"] / 1e6,
        "bytes of a capture": SIZE,
        "bytes of its values": WORD_BYTES * FIELDS,
    }
    return {"rates": rates, "wrong": wrong, "missing": missing, "limits": limits}


def _differing(got: Any, want: np.ndarray, captures: int) -> int:
    """Return how many numbers differ, and how many captures are missing."""
    rows = np.asarray(got)
    return int(np.count_nonzero(rows != want[: len(rows)])) + abs(len(rows) - captures)


# Libraries that take many captures at a time


def _npulab(members: list[Member], words: np.ndarray, _: Any) -> Codec:
    rows = []
    for m in members:
        place = {"offset": m.word * WORD_BYTES, "lsb": m.lsb, "width": m.width}
        rows.append({"field": m.name, **place})
    registers = RegisterMap(rows)
    return Codec(
        len(words),
        lambda: registers.decode(words, raw=True),
        lambda decoded: registers.encode(decoded, raw=True),
        _columns,
        np.ndarray.tobytes,
    )


def _by_hand(members: list[Member], words: np.ndarray, _: Any) -> Codec:
    def encode(decoded: Mapping[str, np.ndarray]) -> np.ndarray:
        out = np.zeros((len(words), WORDS), np.uint32)
        for m in members:
            out[:, m.word] |= decoded[m.name] * np.uint32(2**m.lsb)
        return out

    decode = partial(_members_of, members, words)
    return Codec(len(words), decode, encode, _columns, np.ndarray.tobytes)


def _members_of(members: list[Member], words: np.ndarray) -> dict[str, np.ndarray]:
    return {m.name: words[:, m.word] >> m.lsb & 2**m.width - 1 for m in members}


def _columns(decoded: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.stack(list(decoded.values()), axis=1)


# Libraries that take one capture at a time


def _single(
    captures: Sequence[bytes],
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    row: Callable[[Any], Any],
) -> Codec:
    """Return the codec of functions for one capture."""
    return Codec(
        len(captures),
        lambda: list(map(decode, captures)),
        lambda decoded: list(map(encode, decoded)),
        lambda decoded: list(map(row, decoded)),
        b"".join,
    )


def _captures(words: np.ndarray, most: int) -> list[bytes]:
    return [row.tobytes() for row in words[:most].astype("<u4")]


def _ctypes(members: list[Member], words: np.ndarray, _: Any) -> Codec:
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
        return list(map(every, (kind * count).from_buffer_copy(data)))

    return Codec(count, decode, encode, list, bytes)


def _construct(compiled: bool) -> Make:
    def make(members: list[Member], words: np.ndarray, _: Any) -> Codec:
        bits: list[list[Any]] = [[] for _ in range(WORDS)]
        # construct reads from the highest bit
        for m in reversed(members):
            bits[m.word].append(m.name / construct.BitsInteger(m.width))
        parts = []
        for word, fields in enumerate(bits):
            parts.append(f"w{word}" / construct.ByteSwapped(construct.BitStruct(*fields)))
        kind: Any = construct.Struct(*parts)
        if compiled:
            kind = kind.compile()

        def row(decoded: Any) -> list[int]:
            return [decoded[f"w{m.word}"][m.name] for m in members]

        return _single(_captures(words, 100), kind.parse, kind.build, row)

    return make


def _bitstruct(most: int, named: bool) -> Make:
    def make(members: list[Member], words: np.ndarray, module: Any) -> Codec:
        # bitstruct reads from the highest bit; the words are swapped once, which is not measured
        captures = _captures(words.byteswap(), most)
        order = sorted(members, key=lambda m: (m.word, -m.lsb))
        form, names = "".join(f"u{m.width}" for m in order), [m.name for m in order]
        wanted = [m.name for m in members]
        if named:
            codec = module.compile(form, names)
            made = _single(captures, codec.unpack, codec.pack, itemgetter(*wanted))
        else:
            codec = module.compile(form)
            places = map(names.index, wanted)
            made = _single(
                captures, codec.unpack, lambda row: codec.pack(*row), itemgetter(*places)
            )
        return made._replace(data=_swapped)

    return make


def _swapped(encoded: list[bytes]) -> bytes:
    return np.frombuffer(b"".join(encoded), np.uint32).byteswap().tobytes()


def _cantools(members: list[Member], words: np.ndarray, module: Any) -> Codec:
    signals = []
    for m in members:
        first = m.word * WORD_BITS + m.lsb
        signals.append(module.Signal(m.name, first, m.width, "little_endian"))
    message = module.Message(1, "message", SIZE, signals)
    return _single(
        _captures(words, 1000),
        partial(message.decode, decode_choices=False, scaling=False),
        partial(message.encode, scaling=False, strict=False),
        itemgetter(*(m.name for m in members)),
    )


# the module to import, and the function that puts it to work
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
