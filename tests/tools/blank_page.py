"""A widget's JavaScript in a blank Chromium page, with a stand-in for the notebook's side of it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from anywidget import AnyWidget
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
# JupyterLab's own colours, and none at all: a page outside it, where the fall-backs have to do.
THEMES = {"light": "theme-light-extension", "dark": "theme-dark-extension", "bare": None}

# The model behaves as the notebook's does: `set` tells listeners of a real change at once,
# `save_changes` sends what was set. Its values are frozen, so that a widget that changes one in
# place fails here and not in a notebook, where it would lose the change.
PAGE = """async ([esm, css, state]) => {
  const freeze = value => { if (value && typeof value === 'object') Object.values(value).forEach(freeze);
                            return Object.freeze(value); };
  const listeners = new Map(), values = freeze({...state}), now = {...values};
  let unsaved = {};
  [window.saved, window.sent] = [[], []];
  const tell = name => [...(listeners.get('change:' + name) ?? [])].forEach(act => act());
  const put = (name, value) => { now[name] = freeze(value); tell(name); };
  const model = {
    get: name => now[name],
    set: (name, value) => {
      if (JSON.stringify(now[name]) === JSON.stringify(value)) return;
      unsaved[name] = value; put(name, value);
    },
    save_changes: () => { if (Object.keys(unsaved).length) window.saved.push(unsaved); unsaved = {}; },
    send: content => window.sent.push(content),
    on: (event, act) => listeners.set(event, [...(listeners.get(event) ?? []), act]),
    off: (event, act) => listeners.set(event, (listeners.get(event) ?? []).filter(each => each !== act)),
  };
  window.push = changes => Object.entries(changes).forEach(([name, value]) => put(name, value));
  window.listeners = () => [...listeners.values()].flat().length;
  document.head.append(Object.assign(document.createElement('style'), {textContent: css}));
  const url = URL.createObjectURL(new Blob([esm], {type: 'text/javascript'}));
  const {default: widget} = await import(url);
  const el = document.getElementById('root'), start = performance.now();
  window.cleanup = await widget.render({model, el});
  el.getBoundingClientRect();
  return performance.now() - start;
}"""


def chromium() -> str:
    """Where Chromium is; skips the test where there is none, fails it in CI."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    reason = f"no Chromium: looked for {', '.join(NAMES)} on the path"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium, started; one serves many pages."""
    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield started
        started.close()


def colours(theme: str) -> str:
    """The style rules that give a page JupyterLab's colours."""
    if THEMES[theme] is None:
        return ""
    path = Path(sys.prefix, "share/jupyter/lab/themes/@jupyterlab", THEMES[theme], "index.css")
    return "".join(re.findall(r":root\s*\{[^}]*\}", path.read_text(encoding="utf-8")))


# Pages that a test is done with. Another one, with its process, costs four times what emptying one
# does.
IDLE: WeakKeyDictionary[Browser, list[Page]] = WeakKeyDictionary()


class BlankPage:
    """A widget on a page that holds nothing else.

    ``saved`` is what the page sent, a dict of traits each time, ``sent`` its messages; ``push``
    does what Python does when it sets traits; ``errors`` are the page's; ``render_ms`` is how long
    drawing took.
    """

    def __init__(
        self,
        started: Browser,
        widget: AnyWidget,
        theme: str = "light",
        size: tuple[int, int] = (1000, 900),
    ) -> None:
        self.idle = IDLE.setdefault(started, [])
        self.page = self.idle.pop() if self.idle else started.new_page()
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.errors: list[str] = []
        self.heard = {
            "pageerror": lambda error: self.errors.append(str(error)),
            "console": lambda said: self.errors.append(said.text) if said.type == "error" else None,
        }
        for event, act in self.heard.items():
            self.page.on(event, act)
        self.page.set_content(
            f"<!doctype html><html lang='en'><head><title>widget</title><style>{colours(theme)}"
            "body { background: var(--jp-layout-color0); margin: 8px }</style></head>"
            "<body><main><h1 style='display: none'>widget</h1><div id='root'></div></main></body></html>"
        )
        state = {
            name: value
            for name, value in widget.get_state().items()
            if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")
        }
        self.render_ms = self.page.evaluate(PAGE, [widget._esm, widget._css, state])

    def __enter__(self) -> BlankPage:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure:
            self.page.close()
            return
        for event, act in self.heard.items():
            self.page.remove_listener(event, act)
        self.page.mouse.move(0, 0)  # where nothing is drawn
        self.page.goto("about:blank")
        self.idle.append(self.page)

    @property
    def saved(self) -> list[dict[str, Any]]:
        return self.page.evaluate("window.saved")

    @property
    def sent(self) -> list[Any]:
        return self.page.evaluate("window.sent")

    @property
    def listeners(self) -> int:
        return self.page.evaluate("window.listeners()")

    def push(self, **traits: Any) -> None:
        self.page.evaluate("traits => window.push(traits)", traits)

    def press(self, keys: str) -> None:
        """Press keys one after the other; blanks stand between them."""
        for key in keys.split():
            self.page.keyboard.press(key)

    def cleanup(self) -> None:
        self.page.evaluate("window.cleanup()")

    def accessibility(self, context: str = "#root") -> list[str]:
        """What axe-core finds wrong, a line each."""
        found = Axe().run(self.page, context=context).response["violations"]
        return [
            f"{each['id']}: {each['help']}: {node['html'][:120]}"
            for each in found
            for node in each["nodes"]
        ]
