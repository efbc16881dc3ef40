"""The view of an exploration: its model without a browser, then its page."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from blank_page import BlankPage
from playwright.sync_api import Browser
from test_explore import RANGES, Toy

from npulab.captures.sources import Answer, Lowered
from npulab.notebook.widgets import ExploreModel, ExploreView
from npulab.notebook.widgets.bits_view import WORD_BITS


class Wrong(Toy):
    """A source whose words are other ones from the 30th layer on, so that a prediction fails."""

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        answer = super().__call__(parameters, seed)
        if answer.capture is None or len(self.asked) < 30:
            return answer
        words = answer.capture.words.copy()
        words[0] ^= 1
        return Answer("captured", answer.capture.with_words(words), answer.parameters)


@pytest.fixture(scope="module")
def done() -> ExploreView:
    view = ExploreView(Wrong(), RANGES, budget=40)
    view.run(wait=True)
    return view


def test_it_says_what_is_known(done: ExploreView) -> None:
    model, shown = done.model, done.shown
    assert (model.state, shown["asked"], shown["budget"], model.allowed) == ("done", 40, 40, ())
    assert [row[0] for row in shown["batches"]] == model.explored.batches["batch"].tolist()
    assert [row[1] for row in shown["batches"]] == model.explored.batches[
        "captures"
    ].cumsum().tolist()
    assert sum(row[3] for row in shown["batches"]) == len(model.explored.surprises) > 0
    last = model.explored.surprises.iloc[-1]
    assert (
        shown["surprise"]
        == f"layer {last.layer}, word {last.word}: predicted {last.predicted}, captured {last.captured}"
    )
    status = model.explored.laws.status
    for word, letters in shown["bits"]:
        assert len(letters) == WORD_BITS
        assert letters.count("L") == (status[word] == "law").sum()
    assert shown["status"]["law"] == (status == "law").sum()
    html = done.model._repr_html_()
    assert "last wrong prediction" in html
    assert "40 of 40 layers, done" in html
    assert repr(done) == f"ExploreView({model.line})"


def test_each_step_is_told() -> None:
    model, seen = ExploreModel(Toy(), RANGES, budget=36), list[dict[str, Any]]()
    assert model.shown["allowed"] == ["run"]
    model.observe(lambda change: seen.append(change.new), "shown")
    model.run(wait=True)
    asked = [one["asked"] for one in seen]
    assert asked == sorted(asked)
    assert any(one["text"].startswith("learning from") for one in seen)
    assert {one["state"] for one in seen} == {"runs", "done"}


def test_it_stops_and_goes_on_from_its_store(tmp_path: Path) -> None:
    toy = Toy()
    model = ExploreModel(toy, RANGES, budget=18, store=tmp_path / "store")
    begun = threading.Event()

    def stop(change: Any) -> None:
        if change.new["asked"] >= 3 and not begun.is_set():
            begun.set()
            model.press("stop")

    model.observe(stop, "shown")
    model.run(wait=True)
    assert (model.state, model.allowed) == ("stopped", ("run",))
    before = len(toy.asked)
    assert before < 18
    model.press("stop")  # nothing runs: nothing happens
    model.run(wait=True)
    assert (model.state, len(toy.asked)) == ("done", 18)
    with pytest.raises(
        ValueError, match="run: got state 'done', allowed is 'ready', or with a store 'stopped' or"
    ):
        model.run()


def test_what_goes_wrong_is_said() -> None:
    class Broken(Toy):
        def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
            raise OSError("the <b>board</b> is gone")

    model = ExploreModel(Broken(), RANGES, budget=24)
    with pytest.raises(OSError, match="is gone"):
        model.run(wait=True)
    assert model.state == "failed"
    assert model.shown["text"] == "OSError: the <b>board</b> is gone"
    assert "<b>board" not in model._repr_html_()
    with pytest.raises(ValueError, match="run: got state 'failed'"):
        model.run()


def test_a_driver_of_ours_is_simulated() -> None:
    assert "simulated" in repr(ExploreView(Lowered("vivante"), budget=2))


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_in_each_theme(chrome: Browser, done: ExploreView, theme: str) -> None:
    with BlankPage(chrome, done, theme) as page:
        assert page.accessibility() == []
        assert page.page.inner_text(".npulab-explore .where") == "40 of 40 layers"
        assert page.page.locator(".npulab-explore .row").count() == len(done.shown["bits"])
        assert (
            page.page.locator(".npulab-explore [data-status=law]").count()
            >= done.shown["status"]["law"]
        )
        assert page.page.locator(".npulab-explore circle.wrong").count() == sum(
            row[3] > 0 for row in done.shown["batches"]
        )
        assert "last wrong prediction: layer" in page.page.inner_text(".npulab-explore .surprise")
        page.page.dispatch_event(
            ".npulab-explore button[data-act=run]", "click"
        )  # over: nothing to run
        assert page.sent == []
        page.push(shown={**done.shown, "state": "runs", "allowed": ["stop"], "asked": 20})
        assert page.page.get_attribute(".npulab-explore .progress", "aria-valuenow") == "20"
        page.page.focus(".npulab-explore button[data-act=stop]")
        page.press("r s Escape")
        assert page.sent == ["stop", "stop"]
        page.page.click(".npulab-explore button[data-act=stop]")
        assert page.sent == ["stop"] * 3
        assert page.errors == []
