"""What a view shows as JSON, and the view again."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from traitlets import TraitError

from npulab.analysis.check import check
from npulab.captures.capture import Capture
from npulab.captures.sweep import Sweep

if TYPE_CHECKING:
    from npulab.analysis.draft import Draft
    from npulab.notebook.sessions.contents import Contents

# traits that say where a person stands; the others follow from the capture
STATE = (
    "words",
    "reference",
    "element",
    "big_endian",
    "query",
    "unknown",
    "addresses",
    "colour",
    "selected",
    "place",
    "cursor",
    "selection",
    "ends",
    "sort",
    "against",
    "at",
)
CAPTURES = ("capture", "reference", "good", "bad", "a", "b")
DRAFT, COMPARISON, DATA = "draft", "comparison", "data"  # what views are made with beside captures


def state_of(
    view: Any, session: Contents, made: Mapping[str, Any], use_map: Callable[[Draft], None]
) -> dict[str, Any]:
    """Kind, captures and state of a view, of which only what is not as in a new one.

    ``made`` is what it was made with, where it does not say.  ``use_map`` takes the draft of a map
    that it shows. Raises LookupError for a capture that is not attached.
    """
    out: dict[str, Any] = {"kind": type(view).__name__}
    for name in _parameters(_kind(out["kind"])):
        value = made.get(name, _has(view, name))
        if isinstance(value, Capture | Sweep):
            out[name] = session.path_as(value, by_name=True)
        elif name in made:
            out[name] = value
        elif name == DRAFT and value is not None:
            use_map(value)
            out[name] = True
        elif name == COMPARISON and value is not None:
            out[name] = session.path_of(value.target, value.case)
        elif name == DATA:
            out[name] = _holder(view, session)
        elif value is not None and not view.has_trait(name) and _is_plain(value):
            out[name] = _plain(value)
    fresh = restored(out, session)
    for name in STATE:
        if (
            view.has_trait(name)
            and _is_plain(value := getattr(view, name))
            and value != getattr(fresh, name)
        ):
            out[name] = _plain(value)
    fresh.close()
    return out


def restored(state: Mapping[str, Any], session: Contents) -> Any:
    """The view of a state; raises ValueError for one that no view of npulab has, and as
    ``load``."""
    kind = _kind(state.get("kind"))
    given: dict[str, Any] = {}
    for name in _parameters(kind):
        value = state.get(name)
        if value is None:
            continue
        if name == DRAFT:
            given[name] = session.draft
        elif isinstance(value, str) and (value in session.paths or name in CAPTURES):
            if name == COMPARISON:
                given[name] = check(session.load(value))
            else:
                given[name] = session.load(value)
        elif name not in kind.class_traits():
            given[name] = value
    try:
        view = kind(**given)
        nested = state.get("filters", {})
        values = {**(nested if isinstance(nested, Mapping) else {}), **state}
        for name in STATE:
            if name in values and name not in given and view.has_trait(name):
                setattr(view, name, values[name])
    except (TypeError, ValueError, LookupError, AttributeError, TraitError) as error:
        raise ValueError(f"view {state['kind']}: cannot be shown as it stood: {error}") from None
    return view


def _kind(name: Any) -> Any:
    """The class of a view by its name; it is looked up where all of them are."""
    widgets = importlib.import_module("npulab.notebook.widgets")
    names = [one for one in widgets.__all__ if hasattr(getattr(widgets, one), "_esm")]
    if name not in names:
        raise ValueError(f"view: got {name!r:.80}, allowed is one of {', '.join(names)}")
    return getattr(widgets, name)


def _holder(view: Any, session: Contents) -> str:
    """The capture that has the bytes a view shows, in a buffer of the name."""
    model = view.model
    for path, one in session.loaded():
        if isinstance(one, Capture) and bytes(one.buffers.get(model.buffer, b"")) == bytes(
            model.data
        ):
            return path
    raise LookupError(
        f"view: no capture of the session has these bytes as buffer {model.buffer!r:.80}; attach "
        "takes "
        "one in"
    )


def _parameters(kind: Any) -> list[str]:
    return [
        name
        for name, one in inspect.signature(kind).parameters.items()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def _has(view: Any, name: str) -> Any:
    """What a view or its model was made with."""
    model = getattr(view, "model", None)
    for holder in (view, model):
        for one in (name, f"_{name}"):
            if holder is not None and hasattr(holder, one):
                return getattr(holder, one)
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 2**12 and all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value
