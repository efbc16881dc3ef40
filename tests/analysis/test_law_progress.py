"""A search that is interrupted keeps what it has; a reader sees it as it goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from npulab.analysis.laws import Laws, find_laws
from npulab.analysis.laws.shown import notebook_progress, status_html
from npulab.analysis.laws.state import Watch

ROWS = 40
RNG = np.random.default_rng(5)
LAYERS = pd.DataFrame({"width": RNG.integers(8, 500, ROWS), "height": RNG.integers(8, 500, ROWS)})
WORDS = np.stack([LAYERS["width"] * 2 + 1, LAYERS["height"], RNG.integers(0, 64, ROWS)], 1).astype(
    np.uint32
)


def stopped_after(fields: int, words: np.ndarray, layers: pd.DataFrame) -> Laws:
    """The laws of a search that is interrupted when it has so many fields."""
    seen: list[str] = []

    def progress(text: str) -> None:
        seen.extend([text] * (" = " in text))
        if len(seen) == fields:
            raise KeyboardInterrupt

    return find_laws(words, layers, progress=progress)


def test_an_interrupted_search_keeps_what_it_has() -> None:
    whole, laws = find_laws(WORDS, LAYERS), stopped_after(1, WORDS, LAYERS)
    assert (laws.stopped, whole.stopped) == (True, False)
    assert len(laws.fields) == 1 < len(whole.fields)
    (field,) = laws.fields
    assert field.text in {other.text for other in whole.fields}
    assert ", stopped before the end" in repr(laws)
    assert "stopped" not in repr(whole)
    assert np.array_equal(
        field.values(LAYERS), (WORDS[:, field.word] >> field.lsb) % 2**field.width
    )
    predicted, mask = laws.predict(LAYERS)
    assert np.array_equal(predicted & mask, WORDS & mask)
    assert (laws.status == "open").sum() > (whole.status == "open").sum()


def test_an_interrupt_before_the_first_law_is_one() -> None:
    def progress(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_laws(WORDS[:, 2:], LAYERS, progress=progress)


def test_what_other_captures_disprove_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample shows a width that always is the height's; the other captures know better."""
    import npulab.analysis.laws.found as found

    layers = LAYERS.assign(height=np.where(np.arange(ROWS) < 30, LAYERS["width"], LAYERS["height"]))
    words = np.stack([layers["width"], layers["height"]], 1).astype(np.uint32)
    monkeypatch.setattr(found, "_sample", lambda words, table: np.arange(30))
    laws = stopped_after(2, words, layers)
    for field in laws.fields:
        assert np.array_equal(
            field.values(layers), (words[:, field.word] >> field.lsb) % 2**field.width
        )
    assert len(laws.fields) == 1


def test_the_laws_so_far_are_told() -> None:
    watch = Watch(lambda text: None)
    assert "3 s" in status_html(watch, "", 3.2)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(status_html(watch, text, 3.2))

    watch.tell = tell
    from npulab.analysis.laws import found

    table = found.checked_parameters(LAYERS, ROWS)
    names = found.Names(list(table.integers), list(table.reals))
    ignore, starts = np.zeros(3, np.uint32), found.field_starts(None, 3)
    found._Sweep(WORDS, table, {}, names, ignore, starts, watch).search(None)
    assert any("1 fields explain" in text and "bits that vary" in text for text in told)
    assert "= width" in told[-1]
    assert "&lt;" in status_html(watch, "<b>", 0)


def test_outside_of_a_notebook_nothing_is_shown() -> None:
    watch = Watch(print)
    with notebook_progress(watch):
        assert watch.tell is print


def test_a_person_at_a_notebook_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    import npulab.analysis.laws.shown as shown

    seen: list[Any] = []

    class Handle:
        def update(self, html: Any) -> None:
            seen.append(html.data)

    def display(html: Any, display_id: bool) -> Handle:
        seen.append(html.data)
        return Handle()

    class Kernel:
        _allow_stdin = True

    class Shell:
        kernel = Kernel()

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(shown, "WAIT", 0.0)
    monkeypatch.setattr(shown, "EVERY", 0.0)
    laws = find_laws(WORDS[:, :2], LAYERS)
    assert any("interrupting the kernel keeps them" in text and "= width" in text for text in seen)
    assert seen[-1].startswith(f"<p>{len(laws.fields)} fields in ")
    Kernel._allow_stdin = False
    seen.clear()
    find_laws(WORDS[:, :1], LAYERS)
    assert seen == [], "a notebook that nobody sits at stores the same on every run"


def test_tables_show_whole_formulas_to_the_left() -> None:
    long = "(width + height) * (width + height) // 64 + (width + height) * 3"
    laws = find_laws(
        (LAYERS["width"].to_numpy()[:, None]).astype(np.uint32),
        LAYERS,
        laws={long: lambda frame: frame["width"]},
    )
    table = laws.table.assign(law=long)
    assert long in repr(table[["word", "law"]])
    assert f"<td style='text-align:left'>{long}</td>" in table[["word", "law"]]._repr_html_()
    assert "<td>0</td>" in table._repr_html_(), "numbers stay right"


def test_earlier_laws_are_kept_where_more_captures_prove_them() -> None:
    random = np.random.default_rng(4)
    frame = pd.DataFrame(
        {name: random.integers(4, 200, 70) for name in ("width", "height")}
    ).assign(mode=random.integers(0, 2, 70), late=np.arange(70) // 35)
    value = np.where(frame["mode"] == 1, frame["width"] - 1, 2 * frame["height"])
    other = np.where(frame["late"], random.integers(4, 200, 70), frame["height"])
    words = np.stack([value, other], 1).astype(np.uint32)
    said: list[str] = []
    first = find_laws(words[:35], frame.iloc[:35].drop(columns="late"))
    more = find_laws(words, frame.drop(columns="late"), earlier=first, progress=said.append)
    assert "height" in [field.text for field in first.fields if field.word == 1]
    kept = {field.text for field in first.fields if field.word == 0}
    assert kept == {field.text for field in more.fields if field.word == 0}
    assert [sum(field.support) for field in more.fields if field.word == 0] == [70]
    assert not [field for field in more.fields if field.word == 1]  # later captures disprove it
    assert any("w0_0_9" in line for line in said[:1])
    # laws of other parameters say nothing
    few = frame.iloc[:40]
    assert find_laws(words[:40], few, earlier=first).score(words[:40], few).wrong == 0


def test_what_was_open_stays_open_until_captures_have_doubled() -> None:
    random = np.random.default_rng(9)
    frame = pd.DataFrame({name: random.integers(4, 200, 40) for name in ("width", "height")})
    words = np.stack([frame["width"], random.integers(0, 256, 40)], 1).astype(np.uint32)
    first = find_laws(words[:20], frame.iloc[:20])

    def solved(last: int) -> set[int]:
        return {
            field.word for field in find_laws(words[:last], frame.iloc[:last], earlier=first).fields
        }

    assert solved(20) == {0}
    both = frame["width"] + frame["height"]
    words[:, 1] = both & 0xFF  # the noise becomes a law
    assert solved(39) == {0}
    assert solved(40) == {0, 1}
    words[:, 1] = both
    assert solved(39) == {0, 1}, "a bit beside the open ones moves for the first time"
