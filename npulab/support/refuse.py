"""Error texts in one form: the subject, what was got, what is allowed."""

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
    """Raised for a broken file or text; its text says where, what, got and allowed, on one line.

    Control characters are escaped, and long quotes from the input are cut, as ``one_line`` does.
    """

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


@contextmanager
def refusing(where: object = "") -> Iterator[None]:
    """A context that turns the errors of a reader into FormatErrors; their text begins with
    ``where``, unless that is "".

    These errors are ValueError, OverflowError (which input can cause by its size) and
    RecursionError (which it can cause by its depth).
    """
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:
        text = str(error)
        if where != "":
            text = named(where, text)
        raise FormatError(text).with_traceback(error.__traceback__) from error.__cause__


def named(where: object, text: str) -> str:
    """The text of an error with its place ``where`` in front, unless it begins with that place
    already.

    >>> named("c", "chip: got 3"), named("c", "c, line 3: got 4"), named("c", "c/x.bin: got 5")
    ('c: chip: got 3', 'c, line 3: got 4', 'c/x.bin: got 5')
    """
    rest = text.removeprefix(str(where))
    if rest != text and rest[:1] in (":", ",", os.sep, ""):
        return text
    return f"{where}: {text}"


def reason(error: BaseException) -> str:
    """The text of an error in a form that a person can read.

    >>> reason(OSError(5, "Input/output error", "a.bin")), reason(KeyError("stride"))
    ('a.bin: Input/output error', 'stride')
    """
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    # an error without a file name: the working folder itself does not exist
    if isinstance(error, FileNotFoundError):
        return "the working folder was removed; go to another one"
    return error.strerror


def positive(name: str, given: Any) -> float:
    """The value as a float, if it is finite and above 0; raises ValueError, which begins with
    ``name``, for any other value."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name}: got {given!r}, allowed is a positive finite number")
    return number


def one_of(name: str, given: Name, allowed: Collection[str]) -> Name:
    """The value, if it is one of the allowed words; raises LookupError that lists these for any
    other value.

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
    """Raise ``error`` with a sentence of what, got and allowed, if ``wrong`` is true; ``allowed``
    begins with "is" or "are".

    >>> refuse_if(7 > 4, "lanes", 7, "is 1 to 4")
    Traceback (most recent call last):
    ValueError: lanes: got 7, allowed is 1 to 4
    """
    if wrong:
        raise error(f"{what}: got {got}, allowed {allowed}")


def shortly(value: Any) -> str:
    """A short text for a value in an error: its type, followed by the value of a number or a text,
    or by the length of a collection.

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
    """Raise TypeError unless a value is of one of the types ``kinds``; ``allowed`` says how to get
    the right value, and begins with "is" or "are".

    >>> need("check", 5, str, "is a Capture, as npulab.load gives")
    Traceback (most recent call last):
    TypeError: check: got int 5, allowed is a Capture, as npulab.load gives
    """
    if not isinstance(given, kinds):
        raise TypeError(f"{what}: got {shortly(given)}, allowed {allowed}")


def need_path(what: str, given: object) -> None:
    """Raise TypeError unless the value is a path: a text or a pathlib.Path."""
    need(what, given, (str, os.PathLike), "is a path, a text or a pathlib.Path")


def need_whole(what: str, given: object, allowed: str = "is a whole number") -> None:
    """Raise TypeError unless the value is a whole number of Python or numpy."""
    if not hasattr(given, "__index__") or getattr(given, "ndim", 0) != 0:
        raise TypeError(f"{what}: got {shortly(given)}, allowed {allowed}")


def need_all(what: str, given: object, kinds: type | tuple[type, ...], allowed: str) -> list[Any]:
    """The members of a sequence as a list, if all are of the types ``kinds``.

    Raises TypeError for a member of another type, for a single text, and for a value that is not
    iterable; ``allowed`` is the end of the error text, as in ``need``.

    >>> need_all("features", "nn_v7", str, "are names in a list")
    Traceback (most recent call last):
    TypeError: features: got str 'nn_v7', allowed are names in a list
    """
    if isinstance(given, str | bytes):
        need(what, given, (), allowed)
    need(what, given, Iterable, allowed)
    out = [*given]  # type: ignore[misc]
    # each type is checked once, because a sequence of many members has few types
    odd = {kind for kind in set(map(type, out)) if not issubclass(kind, kinds)}
    if odd:
        need(what, next(member for member in out if type(member) in odd), kinds, allowed)
    return out


# If two names have at least this ratio (of difflib, 0 to 1), one may be a misspelling of the other.
LIKE = 0.7


def near(pattern: str, names: Iterable[str], most: int = 4) -> str:
    """The end of an error text about ``pattern``, a misspelt name or glob: at most ``most`` of the
    known names that may be meant, the nearest first; "" if no name is near.

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
