"""A view's state as JSON values, and the view made again from its state."""

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

# traits that a person sets; the view computes all other traits from the capture
STATE = (
    "words",
    "reference",
    "element",
    "big_endian",
    "query",
    "unknown",
    "addresses",
    "colour",
    "block",
    "selected",
    "opened",
    "place",
    "cursor",
    "selection",
    "ends",
    "sort",
    "against",
    "at",
)
CAPTURES = ("capture", "reference", "good", "bad", "a", "b")
# these arguments of views are no captures
DRAFT, COMPARISON, DATA = "draft", "comparison", "data"


def state_of(
    view: Any, session: Contents, made: Mapping[str, Any], use_map: Callable[[Draft], None]
) -> dict[str, Any]:
    """Return the state of a view as JSON values: its kind, its captures by path, and the traits
    that a new view has with other values.

    ``made`` has arguments of the view that the view itself does not keep. If the view shows a
    draft, ``use_map`` is called with the draft. Raises LookupError for a capture that is not
    attached.
    """
    out: dict[str, Any] = {"kind": type(view).__name__}
    for name in _parameters(_kind(out["kind"])):
        value = made.get(name, _argument(view, name))
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
            out[name] = _as_json(value)
    fresh = restored(out, session)
    for name in STATE:
        if not view.has_trait(name):
            continue
        value = getattr(view, name)
        if _is_plain(value) and value != getattr(fresh, name):
            out[name] = _as_json(value)
    fresh.close()
    return out


def restored(state: Mapping[str, Any], session: Contents) -> Any:
    """Return a view in the given state, which ``state_of`` returned; raises ValueError for a state
    that no view of npulab can have, and as ``load``.
    """
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
        values = dict(state)
        nested = state.get("filters")
        if isinstance(nested, Mapping):
            values = {**nested, **state}
        for name in STATE:
            if name in values and name not in given and view.has_trait(name):
                setattr(view, name, values[name])
    except (TypeError, ValueError, LookupError, AttributeError, TraitError) as error:
        raise ValueError(
            f"view {state['kind']}: its recorded state cannot be shown: {error}"
        ) from None
    return view


def _kind(name: Any) -> Any:
    """Return the class of views with a name; raises ValueError for another name."""
    widgets = importlib.import_module("npulab.notebook.widgets")
    names = [kind for kind in widgets.__all__ if hasattr(getattr(widgets, kind), "_esm")]
    if name not in names:
        raise ValueError(f"view: got {name!r:.80}, allowed is one of {', '.join(names)}")
    return getattr(widgets, name)


def _holder(view: Any, session: Contents) -> str:
    """Return the path of the capture whose buffer has the bytes that a view shows; raises
    LookupError if no capture has these bytes.
    """
    model = view.model
    data = bytes(model.data)
    for path, held in session.loaded():
        if isinstance(held, Capture) and bytes(held.buffers.get(model.buffer, b"")) == data:
            return path
    raise LookupError(
        f"view: no capture of the session has these bytes as buffer {model.buffer!r:.80}; attach "
        "adds a capture"
    )


def _parameters(kind: Any) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    return [given.name for given in parameters if given.kind is not given.VAR_KEYWORD]


def _argument(view: Any, name: str) -> Any:
    """Return the argument of this name with which a view was made; None if neither the view nor its
    model keeps it.
    """
    for holder in (view, getattr(view, "model", None)):
        for attribute in (name, f"_{name}"):
            if hasattr(holder, attribute):
                return getattr(holder, attribute)
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 2**12 and all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(inner) for name, inner in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(_as_json, value)]
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    return value
