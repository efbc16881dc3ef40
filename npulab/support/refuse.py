"""Refusals in one form: the subject, what was got, what is allowed."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from npulab.support.text import one_line

Name = TypeVar("Name")


class FormatError(ValueError):
    """A file or a text is broken: where, what, got, allowed, on one line.

    Control characters are escaped, and quotes from the input are cut to 80 characters.
    """

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


@contextmanager
def refusing(where: object = "") -> Iterator[None]:
    """Turn the refusal of a reader into a FormatError that begins with ``where``, also if input
    breaks the interpreter's own limits."""
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:
        text = str(error)
        if where != "":
            text = named(where, text)
        raise FormatError(text).with_traceback(error.__traceback__) from error.__cause__


def named(where: object, text: str) -> str:
    """A refusal with its place before it, if it does not begin with that already.

    >>> named("c", "chip: got 3"), named("c", "c, line 3: got 4"), named("c", "c/x.bin: got 5")
    ('c: chip: got 3', 'c, line 3: got 4', 'c/x.bin: got 5')
    """
    rest = text.removeprefix(str(where))
    if rest != text and rest[:1] in (":", ",", os.sep, ""):
        return text
    return f"{where}: {text}"


def reason(error: BaseException) -> str:
    """The message of an error, readable for a person.

    >>> reason(OSError(5, "Input/output error", "a.bin")), reason(KeyError("stride"))
    ('a.bin: Input/output error', 'stride')
    """
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(
        error, FileNotFoundError
    ):  # without a name: the system cannot find its own folder
        return "the working folder was removed; go to another one"
    return error.strerror


def positive(name: str, given: Any) -> float:
    """A finite number above 0; raises ValueError naming it for any other value."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name}: got {given!r}, allowed is a positive finite number")
    return number


def one_of(name: str, given: Name, allowed: Collection[str]) -> Name:
    """One of the allowed words; raises LookupError with these for any other value.

    >>> one_of("unit", "NPU", ("NPU", "CPU"))
    'NPU'
    """
    if given not in allowed:
        raise LookupError(f"{name}: got {given!r}, allowed is one of {', '.join(allowed)}")
    return given


def refuse_if(
    wrong: object,
    what: object,
    got: object,
    allowed: str,
    error: Callable[[str], Exception] = ValueError,
) -> None:
    """Raise ``error`` if something is wrong, in one sentence; ``allowed`` begins with is or are.

    >>> refuse_if(7 > 4, "lanes", 7, "is 1 to 4")
    Traceback (most recent call last):
    ValueError: lanes: got 7, allowed is 1 to 4
    """
    if wrong:
        raise error(f"{what}: got {got}, allowed {allowed}")


def shortly(value: Any) -> str:
    """A value in a refusal: its type, and a number or a text itself.

    >>> shortly(5), shortly("a"), shortly([1, 2]), shortly(None)
    ('int 5', "str 'a'", 'list of 2', 'None')
    """
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, int | float | str):
        return f"{kind} {value!r:.60}"
    if isinstance(value, list | tuple | dict | set):
        return f"{kind} of {len(value)}"
    return kind


def need(what: str, given: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Raise TypeError for a value of another type; ``allowed`` says what makes the right value.

    >>> need("check", 5, str, "is a Capture, as npulab.load gives")
    Traceback (most recent call last):
    TypeError: check: got int 5, allowed is a Capture, as npulab.load gives
    """
    if not isinstance(given, kinds):
        raise TypeError(f"{what}: got {shortly(given)}, allowed {allowed}")


def need_path(what: str, given: object) -> None:
    """Raise TypeError for anything but a path."""
    need(what, given, (str, os.PathLike), "is a path, a text or a pathlib.Path")


def need_whole(what: str, given: object, allowed: str = "is a whole number") -> None:
    """Raise TypeError for anything but a whole number, of Python's or of numpy's."""
    if not hasattr(given, "__index__") or getattr(given, "ndim", 0) != 0:
        raise TypeError(f"{what}: got {shortly(given)}, allowed {allowed}")


def need_all(what: str, given: object, kinds: type | tuple[type, ...], allowed: str) -> list[Any]:
    """The members of a sequence, all of some types; raises TypeError for a single text and for
    anything else; ``allowed`` says what makes the right value.

    >>> need_all("features", "nn_v7", str, "are names in a list")
    Traceback (most recent call last):
    TypeError: features: got str 'nn_v7', allowed are names in a list
    """
    if isinstance(given, str | bytes):
        need(what, given, (), allowed)
    need(what, given, Iterable, allowed)
    out = [*given]  # type: ignore[misc]  # need says that it can be gone over
    # there may be many members, but of few types
    odd = {kind for kind in set(map(type, out)) if not issubclass(kind, kinds)}
    if odd:
        need(what, next(member for member in out if type(member) in odd), kinds, allowed)
    return out


LIKE = 0.7  # if the letters of two names agree so far in order, one may be a misspelling


def near(pattern: str, names: Iterable[str], most: int = 4) -> str:
    """The end of a refusal: the names that a misspelt name or glob may mean, nearest first; "" if
    there are none.

    >>> near("kernal*", ["input_w", "kernel_x_size", "kernel_y_size"]), near("kernal*", ["stride"])
    ('; near are kernel_x_size, kernel_y_size', '')
    """
    stem = pattern.strip("*?").lower()
    scores: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(names):
        lowered = name.lower()
        parts = {lowered, lowered[: len(stem)], lowered[-len(stem) :], *lowered.split("_")}
        best = max(difflib.SequenceMatcher(None, stem, part).ratio() for part in parts)
        scores[name] = best, difflib.SequenceMatcher(None, stem, lowered).ratio()
    found = [name for name in scores if scores[name][0] >= LIKE]
    found.sort(key=scores.__getitem__, reverse=True)
    if not found:
        return ""
    verb = "is"
    if len(found) > 1:
        verb = "are"
    return f"; near {verb} {', '.join(found[:most])}"
