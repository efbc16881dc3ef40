"""Several views on one page: each looks as it does alone, whichever is shown first."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from anywidget import AnyWidget
from blank_page import PAGE, BlankPage
from conftest import CAPTURES
from playwright.sync_api import Browser
from test_map_editor import made, small
from test_stream_view import capture as jobs
from test_styles import FOLDER
from test_views_browser import drawn, nasty_bytes, nasty_diff, nasty_outputs

import npulab
from npulab.captures.sources import Lowered
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets import (
    BisectView,
    ExploreView,
    LawView,
    MapEditor,
    OperatorsView,
    RegisterView,
    StreamView,
    SweepView,
)

VIVANTE = CAPTURES / "vivante"
# what is computed of the first two elements of each kind: tag and classes
LOOK = """names => { const found = {}, seen = {};
  for (const one of document.querySelectorAll('#root *')) {
    const kind = `${one.tagName} ${one.getAttribute('class')}`;
    seen[kind] = (seen[kind] ?? 0) + 1;
    if (seen[kind] > 2) continue;
    const style = getComputedStyle(one);
    for (const name of names) found[`${kind} ${seen[kind]} ${name}`] = style.getPropertyValue(name);
  }
  return found; }"""
# all that the style sheets set, and the size that follows
STYLED = sorted(
    {
        name
        for path in FOLDER.glob("*.css")
        for name in re.findall(r"(?<![\w-])([a-z-]+):", path.read_text())
    }
    | {"width", "height"}
)
ADD = "css => document.head.append(Object.assign(document.createElement('style'), { textContent: css }))"
HEIGHTS = """name => [...new Set([...document.querySelectorAll(`${name} .item:not([hidden])`)].map(one => getComputedStyle(one).height))]"""
# a place for another view, above which the one that is there stays
NEXT = """() => { document.getElementById('root').id = ''; const next = document.createElement('div');
  next.id = 'root'; document.querySelector('main').append(next); }"""


def sweep() -> SweepView:
    return SweepView(npulab.load_sweep(CAPTURES / "heron" / "sweep-jobs.npz"))


def stream() -> StreamView:
    view = StreamView(jobs())
    view.opened = 4
    return view


def laws() -> LawView:
    sizes = np.arange(1, 25, dtype=np.uint32)
    words = np.stack([sizes - 1, sizes * 5 % 7], axis=1)
    return LawView(npulab.find_laws(Sweep(words, pd.DataFrame({"input_w": sizes}))))


def bisection() -> BisectView:
    good, bad = (npulab.load(VIVANTE / name) for name in ("sim-3x3-same", "sim-other-driver"))
    return BisectView(good, bad)


VIEWS: dict[str, Callable[[], AnyWidget]] = {
    "registers": lambda: RegisterView(npulab.load(VIVANTE / "sim-1x1")),
    "sweep": sweep,
    "map": lambda: MapEditor(made(), small()),
    "laws": laws,
    "bytes": nasty_bytes,
    "outputs": nasty_outputs,
    "differences": nasty_diff,
    "stream": stream,
    "bisection": bisection,
    "operators": lambda: OperatorsView(
        [("conv", npulab.load(VIVANTE / "sim-1x1")), ("softmax", "no unit does it")]
    ),
    "exploration": lambda: ExploreView(
        Lowered("vivante", "vipnano-si-imx8mp"), {"input_h": (8, 16)}
    ),
}


# Keys that do something only while an oracle or a source runs: it is none here.
WAITS = {name: ["Escape"] for name in ("bisection", "exploration")}
# Keeps each view where the test finds it, and says of each of its keys that it was acted on.
KEPT = """
class Kept extends View {
  constructor(...all) {
    super(...all);
    const own = (window.made ??= []).push(this) - 1;
    window.acted ??= [];
    for (const part of [this, ...Object.values(this)]) {
      for (const [table, acts] of Object.entries(part ?? {})) {
        if (!/acts$/i.test(table) || !(acts instanceof Map)) continue;
        for (const [key, act] of acts) acts.set(key, (...given) => { window.acted.push([own, key]); return act(...given); });
      }
    }
    for (const [name, act] of [["save_changes", all[0].save_changes], ["send", all[0].send]]) {
      this.model[name] = (...given) => { window.told.push(own); return act(...given); };
    }
  }
}
export default"""
IDS = """() => { const ids = [...document.querySelectorAll('[id]')].map(one => one.id).filter(id => id);
  return ids.filter((id, at) => ids.indexOf(id) !== at); }"""
# Press each key of all tables at each place of a view that can have the focus.
PRESS = """async own => {
  const view = window.made[own], frame = () => new Promise(done => requestAnimationFrame(done)), keys = new Set(), found = [];
  for (const part of [view, ...Object.values(view)]) {
    for (const [table, acts] of Object.entries(part ?? {})) {
      if (/acts$/i.test(table) && acts instanceof Map) for (const key of acts.keys()) keys.add(key);
    }
  }
  const places = () => [...view.root.querySelectorAll("[tabindex='0'], .tools button")].filter(one => one.offsetParent && one.tagName !== "INPUT");
  const others = window.made.filter((_, at) => at !== own), before = others.map(other => other.root.outerHTML);
  const inside = () => view.root.contains(document.activeElement);
  [window.acted, window.told, window.leaked] = [[], [], []];
  const count = places().length;
  for (let at = 0; at < count; at++) {
    for (const name of keys) {
      const [, held, key] = name.match(/^(Shift\\+|Ctrl\\+)?(.+)$/), place = places()[Math.min(at, places().length - 1)];
      place.focus({ preventScroll: true });
      const shiftKey = held === "Shift+" || /^[A-Z]$/.test(key);
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown",
        { key, shiftKey, ctrlKey: held === "Ctrl+", bubbles: true, cancelable: true }));
      if (!inside()) found.push(`${name} loses the focus to ${document.activeElement.outerHTML.slice(0, 80)}`);
      while (document.activeElement.tagName === "INPUT" && inside()) {
        const input = document.activeElement;
        input.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true, cancelable: true }));
        if (document.activeElement === input) input.blur();
      }
    }
    await frame();
  }
  others.forEach((other, at) => {
    if (other.root.outerHTML !== before[at]) found.push(`view ${window.made.indexOf(other)} changed`);
  });
  const acted = new Set(window.acted.filter(([at]) => at === own).map(([, key]) => key));
  return { keys: keys.size, silent: [...keys].filter(key => !acted.has(key)), found,
    acted: [...new Set(window.acted.map(([at]) => at))], told: [...new Set(window.told)],
    leaked: window.leaked };
}"""


def test_every_key_of_every_view_goes_to_the_view_that_has_the_focus(
    chrome: Browser, views: dict[str, Any]
) -> None:
    """All kinds of views on one page, and one of them twice."""
    shown = [*views.items(), ("registers again", views["registers"])]
    keys = 0
    with BlankPage(chrome, kept(shown[0][1]), size=(1000, 1600)) as page:
        page.page.evaluate(
            "() => document.addEventListener('keydown', event => window.leaked?.push((event.shiftKey ? 'Shift+' : '') + event.key))"
        )
        for _, view in shown[1:]:
            page.page.evaluate(NEXT)
            view = kept(view)
            page.page.evaluate(PAGE, [view._esm, view._css, plain(view)])
        assert page.page.evaluate(IDS) == [], "ids that two elements have"
        assert page.accessibility("main") == []
        for own, (name, _) in enumerate(shown):
            seen = page.page.evaluate(PRESS, own)
            keys += seen["keys"]
            assert seen["found"] == [], name
            assert seen["silent"] == WAITS.get(name, []), f"{name}: keys that do nothing"
            assert seen["acted"] == [own], name
            assert set(seen["told"]) <= {own}, name
            # Escape leaves a view that has nothing to close, stop or let go
            assert set(seen["leaked"]) - {"Shift+ArrowLeft", "Shift+ArrowRight"} <= {"Escape"}, name
        assert page.errors == []
    assert keys > 15 * len(shown)


def test_these_are_all_views(views: dict[str, Any]) -> None:
    scripts = "".join(str(view._esm) for view in views.values())
    for path in FOLDER.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        if text.endswith("export default mount(View);\n"):
            assert text.rpartition("class View")[2][:400] in scripts, path.name


def kept(view: Any) -> Any:
    script, _, end = str(view._esm).rpartition("\nexport default")
    script += KEPT + end.replace("mount(View)", "mount(Kept)")
    return SimpleNamespace(_esm=script, _css=view._css, get_state=view.get_state)


@pytest.fixture(scope="module")
def views() -> dict[str, Any]:
    return {name: drawn(make()) for name, make in VIEWS.items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_looks_the_same_beside_any_other(
    chrome: Browser, views: dict[str, Any], name: str
) -> None:
    with BlankPage(chrome, views[name]) as page:
        page.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        alone = page.page.evaluate(LOOK, STYLED)
        assert len(alone) > 1000
        for other, view in views.items():
            if other != name:
                page.page.evaluate(ADD, view._css)
        assert changed(alone, page.page.evaluate(LOOK, STYLED)) == []
        page.page.evaluate(ADD, views[name]._css)
        assert changed(alone, page.page.evaluate(LOOK, STYLED)) == []


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{what}: {value}, was {before[what]}"
        for what, value in now.items()
        if before[what] != value
    ]


@pytest.mark.parametrize(
    "order", [*permutations(["sweep", "registers"]), *permutations(["sweep", "map"])], ids="-".join
)
def test_lists_keep_their_height_in_either_order(
    chrome: Browser, views: dict[str, Any], order: tuple[str, str]
) -> None:
    first, second = (views[name] for name in order)
    with BlankPage(chrome, first, size=(1000, 1600)) as page:
        page.page.evaluate(NEXT)
        page.page.evaluate(PAGE, [second._esm, second._css, plain(second)])
        heights = {
            name: page.page.evaluate(HEIGHTS, name)
            for name in (".npulab-sweep", ".npulab-registers")
        }
        assert heights[".npulab-sweep"] == ["36px"]  # name and value, and below them the line
        if "registers" in order:
            assert heights[".npulab-registers"] == ["20px"]
        assert page.errors == []


def plain(view: Any) -> dict[str, Any]:
    """The state as the page takes it."""
    return {
        name: value
        for name, value in view.get_state().items()
        if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")
    }
