"""Decoding and encoding beside libraries for binary data: a struct of 150 fields in 38
little-endian words."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import pairwise
from operator import attrgetter
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


class Member(NamedTuple):
    """A field of the struct: name, word, lowest bit, bits."""

    name: str
    word: int
    lsb: int
    width: int


class Codec(NamedTuple):
    """A library at work on so many captures: ``decode()`` gives what ``encode(decoded)`` takes;
    ``rows`` of what was decoded are ``(captures, FIELDS)``, ``data`` of what was encoded the
    bytes."""

    captures: int
    decode: Callable[[], Any]
    encode: Callable[[Any], Any]
    rows: Callable[[Any], Any]
    data: Callable[[Any], bytes]


def struct(seed: int = 0) -> list[Member]:
    """150 members of 1 to 32 bits that tile 38 words, cut at random places."""
    random = np.random.RandomState(seed)
    cuts = [{0, WORD_BITS} for _ in range(WORDS)]
    while sum(map(len, cuts)) < FIELDS + WORDS:
        cuts[random.randint(WORDS)].add(random.randint(1, WORD_BITS))
    places = [
        (word, lsb, end - lsb)
        for word, ends in enumerate(cuts)
        for lsb, end in pairwise(sorted(ends))
    ]
    return [Member(f"f{n}", *place) for n, place in enumerate(places)]


def table(rounds: int) -> pd.DataFrame:
    """A row per library: captures decoded and encoded a second, the ratio of npulab's rate to it,
    and the fields and words that came out wrong; a library that is not installed says so.

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
    """Rates in this process: ``rates`` (captures a second by library, the best of all turns),
    ``wrong`` (fields and words that differ from what was put in), ``missing`` (libraries),
    ``limits``."""
    members = struct()
    words = np.random.RandomState(1).randint(0, 2**32, (captures, WORDS), np.uint32)
    want = np.stack([words[:, m.word] >> m.lsb & 2**m.width - 1 for m in members], axis=1)
    codecs, missing = dict[str, Codec](), []
    for library, (module, make) in LIBRARIES.items():
        try:
            codecs[library] = make(members, words, import_module(module))
        except ImportError:
            missing.append(library)
    runs, wrong = dict[str, Callable[[], Any]](), dict[str, int]()
    for library, codec in codecs.items():
        decoded = codec.decode()
        rows = np.asarray(codec.rows(decoded))
        data = np.frombuffer(codec.data(codec.encode(decoded)), np.uint32).reshape(-1, WORDS)
        wrong[library] = int(
            np.count_nonzero(rows != want[: len(rows)])
            + abs(len(rows) - codec.captures)
            + np.count_nonzero(data != words[: len(data)])
            + abs(len(data) - codec.captures)
        )
        runs |= {
            f"decode {library}": codec.decode,
            f"encode {library}": partial(codec.encode, decoded),
        }
    far, near = np.zeros(2**25, np.uint8), np.empty(2**25, np.uint8)
    ms = least({"copy": lambda: np.copyto(near, far), **runs}, rounds)
    rates = {
        library: {
            side: codec.captures / ms[f"{side} {library}"] * 1e3 for side in ("decode", "encode")
        }
        for library, codec in codecs.items()
    }
    # read once and written once: half the bytes are copied
    bound = 2 * far.size / ms["copy"] * 1e3 / (SIZE + WORD_BYTES * FIELDS)
    limits = {
        "copy, GB/s": far.size / ms["copy"] / 1e6,
        "bytes of a capture": SIZE,
        "bytes of its values": WORD_BYTES * FIELDS,
    }
    return {
        "rates": {**rates, COPY: {"decode": bound, "encode": bound}},
        "wrong": wrong,
        "missing": missing,
        "limits": limits,
    }


def _pieces(words: np.ndarray, count: int) -> tuple[int, bytes]:
    """(how many captures of so many at most, their bytes)"""
    some = words[:count]
    return len(some), some.astype("<u4").tobytes()


def _each(count: int, data: bytes) -> Iterator[bytes]:
    return (data[at : at + SIZE] for at in range(0, count * SIZE, SIZE))


# Libraries


def _npulab(members: list[Member], words: np.ndarray, _: Any) -> Codec:
    registers = RegisterMap(
        [
            {"offset": m.word * WORD_BYTES, "field": m.name, "lsb": m.lsb, "width": m.width}
            for m in members
        ]
    )
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

    return Codec(
        len(words),
        lambda: {m.name: words[:, m.word] >> m.lsb & 2**m.width - 1 for m in members},
        encode,
        _columns,
        np.ndarray.tobytes,
    )


def _columns(decoded: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.stack(list(decoded.values()), axis=1)


def _ctypes(members: list[Member], words: np.ndarray, _: Any) -> Codec:
    count, data = _pieces(words, 5000)
    kind: Any = type(
        "Struct",
        (ctypes.LittleEndianStructure,),
        {"_fields_": [(m.name, ctypes.c_uint32, m.width) for m in members]},
    )
    names, every = [m.name for m in members], attrgetter(*(m.name for m in members))

    def encode(decoded: list[tuple[int, ...]]) -> Any:
        out = (kind * count)()
        for one, values in zip(out, decoded, strict=True):
            for name, value in zip(names, values, strict=True):
                setattr(one, name, value)
        return out

    return Codec(
        count,
        lambda: [every(one) for one in (kind * count).from_buffer_copy(data)],
        encode,
        list,
        bytes,
    )


def _construct(compiled: bool) -> Callable[[list[Member], np.ndarray, Any], Codec]:
    def make(members: list[Member], words: np.ndarray, _: Any) -> Codec:
        count, data = _pieces(words, 100)
        kind: Any = construct.Struct(
            *(
                f"w{word}"
                / construct.ByteSwapped(
                    construct.BitStruct(
                        *(
                            m.name / construct.BitsInteger(m.width)
                            for m in reversed(members)
                            if m.word == word
                        )
                    )
                )
                for word in range(WORDS)
            )
        )
        if compiled:
            kind = kind.compile()
        return Codec(
            count,
            lambda: [kind.parse(one) for one in _each(count, data)],
            lambda decoded: [kind.build(one) for one in decoded],
            lambda decoded: [[one[f"w{m.word}"][m.name] for m in members] for one in decoded],
            b"".join,
        )

    return make


def _bitstruct(most: int, named: bool) -> Callable[[list[Member], np.ndarray, Any], Codec]:
    def make(members: list[Member], words: np.ndarray, module: Any) -> Codec:
        count, data = _pieces(
            words.byteswap(), most
        )  # it reads from the highest bit on; swapped once, not measured
        order = sorted(members, key=lambda m: (m.word, -m.lsb))
        form, names = "".join(f"u{m.width}" for m in order), [m.name for m in order]
        place = [names.index(m.name) for m in members]
        if named:
            codec = module.compile(form, names)
            return Codec(
                count,
                lambda: [codec.unpack(one) for one in _each(count, data)],
                lambda decoded: [codec.pack(one) for one in decoded],
                lambda decoded: [[one[m.name] for m in members] for one in decoded],
                _swapped,
            )
        codec = module.compile(form)
        return Codec(
            count,
            lambda: [codec.unpack(one) for one in _each(count, data)],
            lambda decoded: [codec.pack(*one) for one in decoded],
            lambda decoded: [[one[n] for n in place] for one in decoded],
            _swapped,
        )

    return make


def _swapped(encoded: list[bytes]) -> bytes:
    return np.frombuffer(b"".join(encoded), np.uint32).byteswap().tobytes()


def _cantools(members: list[Member], words: np.ndarray, module: Any) -> Codec:
    count, data = _pieces(words, 1000)
    message = module.Message(
        1,
        "message",
        SIZE,
        [
            module.Signal(m.name, m.word * WORD_BITS + m.lsb, m.width, "little_endian")
            for m in members
        ],
    )
    plain = {"decode_choices": False, "scaling": False}
    return Codec(
        count,
        lambda: [message.decode(one, **plain) for one in _each(count, data)],
        lambda decoded: [message.encode(one, scaling=False, strict=False) for one in decoded],
        lambda decoded: [[one[m.name] for m in members] for one in decoded],
        b"".join,
    )


# what to import, and how it is put to work
LIBRARIES: dict[str, tuple[str, Callable[[list[Member], np.ndarray, Any], Codec]]] = {
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
