"""The laws found so far, shown in a notebook during the search."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from npulab.analysis.laws.naming import Naming
from npulab.analysis.laws.state import Watch
from npulab.support.answers import attended

# Laws are first shown WAIT seconds after the start of a search, then every EVERY seconds.
WAIT = 1.0
EVERY = 0.25

LATEST = 8  # at most LATEST fields are shown, the latest first


def status_html(watch: Watch, text: str, seconds: float, naming: Naming | None = None) -> str:
    """HTML with the bits that are explained so far, the latest laws, and the present step of the
    search.

    With ``naming``, bits have the names of the map.
    """
    state = watch.state
    if state is None:
        return f"<p>looking for laws, {seconds:.0f} s</p>"
    varying = int(state.captures.varies.sum())
    left = int(state.todo.sum())
    latest = [str(solved).rsplit("  [", 1)[0] for solved in state.solved[::-1][:LATEST]]
    if naming is not None:
        latest, text = [*naming.all_said(latest)], naming.said(text)
    return (
        f"<p>looking for laws, {seconds:.0f} s: {len(state.solved)} fields explain "
        f"{varying - left} of {varying} bits that vary; "
        f"interrupting the kernel keeps them<br>{html.escape(text[:120])}</p>"
        f"<pre>{html.escape(chr(10).join(latest))}</pre>"
    )


@contextmanager
def notebook_progress(watch: Watch, naming: Naming | None = None) -> Iterator[None]:
    """Show the laws so far below the cell, in one place, if somebody sits at the notebook.

    The last showing stays. Outside of a notebook, and in a search of less than a second, nothing is
    shown.
    """
    if not attended():
        yield
        return
    import IPython.display

    page: Any = IPython.display
    began = time.monotonic()
    handle: Any = None
    last = began + WAIT - EVERY

    def tell(text: str) -> None:
        nonlocal handle, last
        now = time.monotonic()
        if now - last < EVERY:
            return
        last = now
        shown = page.HTML(status_html(watch, text, now - began, naming))
        if handle is None:
            handle = page.display(shown, display_id=True)
        else:
            handle.update(shown)

    watch.tell = tell
    try:
        yield
    finally:
        if handle is not None and watch.state is not None:
            seconds = time.monotonic() - began
            handle.update(page.HTML(f"<p>{len(watch.state.solved)} fields in {seconds:.0f} s</p>"))
