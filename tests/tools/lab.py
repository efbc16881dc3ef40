"""``npulab lab`` on the project's notebooks and a browser that drives it, apart from the user's
own Jupyter.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from playwright.sync_api import Browser, Page

ROOT, PROGRAMS = Path(__file__).parents[2], Path(sys.executable).parent
FOLDERS = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)
# no writing of notebooks behind our back, every cell in the page
SETTINGS = {
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none", "scrollPastEnd": False},
}
SIZE = {"width": 1400, "height": 900}  # of a page
MOST_HEIGHT = 16_000  # that Chromium draws
START_SECONDS, RUN_MS = (
    120,
    120_000,
)  # a machine that many share is ten times slower than a free one
# The last two are JupyterLab's own. It sometimes takes its splash screen away twice. It asks a
# kernel for a subshell for each kind of comm, waits for no answer, and reports those that a freed
# kernel leaves open: `turn_to` frees the kernel of the notebook before, and the report may come
# after the next one was opened (seen on a busy machine of two cores).
HARMLESS = (
    "favicon",
    "ResizeObserver loop",
    "net::ERR_ABORTED",
    "Failed to execute 'removeChild' on 'Node'",
    "Canceled future for create_subshell_request",
)

# anywidget gives a model two seconds, of the clock, and then logs an error, even if the model comes
# later
PATIENT = "(few => { AbortSignal.timeout = ms => few(Math.max(ms, 60_000)); })(AbortSignal.timeout.bind(AbortSignal))"
READY = """async path => {
  const panel = window.jupyterapp?.shell.currentWidget;
  if (panel?.context?.path !== path) return false;
  await panel.context.ready; await panel.sessionContext.ready;
  return panel.sessionContext.session?.kernel?.status === 'idle';
}"""
OPEN = """path => window.jupyterapp.commands.execute('docmanager:open', {path, factory: 'Notebook'}).then(done => !!done)"""
DISCARD = """() => { const panel = window.jupyterapp.shell.currentWidget;
  if (panel?.context?.path) { panel.context.model.dirty = false; panel.dispose(); } }"""
RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells').then(done => !!done)"
# What the kernel sent for everything before has come when an empty request is answered; a view that
# sends its changes one by one, each after the answer to the last, needs more than one. Then what is
# seen has to stay as it is, with every view drawn.
SETTLED = """async ([rounds, patience]) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel, until = performance.now() + patience;
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const outputs = () => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output')];
  const waits = one => one.innerText.includes('Loading widget...') ||
    [...one.querySelectorAll('.jupyter-widgets')].some(view => !view.childElementCount);
  for (let before = null, same = 0; same < rounds;) {
    await kernel.requestExecute({code: '', silent: true, store_history: false}).done;
    await frame(); await frame();
    const all = outputs(), now = all.some(waits) ? null : all.map(one => one.innerHTML).join();
    same = now !== null && now === before ? same + 1 : 0;
    before = now;
    if (performance.now() > until) return false;
  }
  return true;
}"""
ROUNDS = 3
CELLS = "() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells"
TEXTS = (
    "() => [...document.querySelectorAll('.jp-OutputArea-output')].map(output => output.innerText)"
)
ASK = """async code => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  let text = '';
  const future = kernel.requestExecute({code, store_history: false});
  future.onIOPub = message => { text += message.content.text ?? message.content.evalue ?? ''; };
  await future.done;
  return text;
}"""
GROWN = """() => { const panel = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer');
  return panel ? Math.ceil(panel.scrollHeight - panel.clientHeight) : 0; }"""


class Lab:
    """A running ``npulab lab``; ``url`` and ``token`` reach it, ``root`` is the folder it serves.

    It is that of the environment with these ``programs``, started in the folder ``here``.
    """

    def __init__(
        self, scratch: Path, *arguments: str, programs: Path = PROGRAMS, here: Path = ROOT
    ) -> None:
        self.token = secrets.token_hex(8)
        settings = scratch / "settings"
        settings.mkdir()
        (settings / "overrides.json").write_text(json.dumps(SETTINGS))
        environment = {
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        }
        environment |= {name: str(scratch / name.lower()) for name in FOLDERS}
        self.log = (scratch / "lab.log").open("wb")
        self.process = subprocess.Popen(
            [
                programs / "npulab",
                "lab",
                "--no-browser",
                "--ip=127.0.0.1",
                "--port=0",
                f"--IdentityProvider.token={self.token}",
                "--LabApp.expose_app_in_browser=True",
                f"--LabApp.app_settings_dir={settings}",
                *arguments,
            ],
            cwd=here,
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        info = self._info(scratch)
        self.url, self.root = info["url"], Path(info["root_dir"])

    def _info(self, scratch: Path) -> dict[str, Any]:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            for path in (scratch / "jupyter_runtime_dir").glob("jpserver-*.json"):
                try:
                    info = json.loads(path.read_text())
                    self._ask(info["url"], "api/status")
                except (ValueError, OSError):
                    continue
                return info
            time.sleep(0.05)
        self.close()
        raise RuntimeError(
            "npulab lab did not start:\n"
            + (scratch / "lab.log").read_text(errors="replace")[-3000:]
        )

    def _ask(self, url: str, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(
            url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def free_kernels(self) -> None:
        for session in self._ask(self.url, "api/sessions"):
            self._ask(self.url, "api/sessions/" + session["id"], "DELETE")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()


class Opened:
    """A page of the lab, with a notebook open if it has a ``name``.

    ``problems`` collects what went wrong: console errors, dialogs, requests that left the machine.
    """

    def __init__(self, lab: Lab, browser: Browser, name: str = "", scale: float = 1) -> None:
        self.lab = lab
        self.context = browser.new_context(viewport=SIZE, device_scale_factor=scale)
        self.context.add_init_script(PATIENT)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(RUN_MS)
        self.problems: list[str] = []
        self.page.on(
            "console", lambda said: self._note(said.text) if said.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self._note(f"{error}\n{error.stack}"))
        self.page.on("request", lambda request: self._outside(request.url))
        workspace = secrets.token_hex(4)
        self.page.goto(
            f"{lab.url}lab/workspaces/{workspace}{f'/tree/{name}' if name else ''}?reset&token={lab.token}",
            wait_until="domcontentloaded",
        )
        self.page.wait_for_function("() => window.jupyterapp?.shell")
        if name:
            self._wait_for(name)
        else:
            self.page.evaluate("() => window.jupyterapp.restored.then(() => true)")

    def _wait_for(self, name: str) -> None:
        until = time.monotonic() + RUN_MS / 1000
        while not self.page.evaluate(READY, name):
            assert time.monotonic() < until, f"{name} did not open"
            self.page.wait_for_timeout(50)
        self.problems += [dialog.inner_text() for dialog in self.page.locator(".jp-Dialog").all()]

    def reload(self, name: str) -> None:
        """The page anew, with the notebook that it shows."""
        self.page.reload(wait_until="domcontentloaded")
        self.page.wait_for_function("() => window.jupyterapp?.shell")
        self._wait_for(name)

    def turn_to(self, name: str) -> None:
        """Another notebook in the same page, with a kernel of its own; what the one before holds
        is not saved.
        """
        self.page.mouse.move(0, 0)  # a view tells what the pointer rests on
        self.page.evaluate(DISCARD)
        self.lab.free_kernels()
        self.problems.clear()
        assert self.page.evaluate(OPEN, name)
        self._wait_for(name)

    def __enter__(self) -> Opened:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lab.free_kernels()
        self.context.close()

    def _note(self, text: str) -> None:
        if not any(harmless in text for harmless in HARMLESS):
            self.problems.append(text[:2000])

    def _outside(self, url: str) -> None:
        if url.startswith("http") and not url.startswith(self.lab.url):
            self.problems.append(f"asked for {url[:120]}")

    def run_all(self) -> list[dict[str, Any]]:
        """Run every cell; the cells as they are then."""
        assert self.page.evaluate(RUN_ALL)
        self.settle()
        return self.page.evaluate(CELLS)

    def settle(self) -> None:
        """Wait until the kernel has nothing to do and the page shows what it said."""
        assert self.page.evaluate(SETTLED, [ROUNDS, RUN_MS]), "the page does not come to rest"

    def save(self) -> None:
        """Save as Ctrl+S does, again if the page changed meanwhile."""
        until = time.monotonic() + RUN_MS / 1000
        while True:
            self.page.evaluate(
                "() => window.jupyterapp.commands.execute('docmanager:save').then(() => true)"
            )
            if not self.page.evaluate(
                "() => window.jupyterapp.shell.currentWidget.context.model.dirty"
            ):
                return
            assert time.monotonic() < until, "the notebook stays unsaved"

    def ask(self, code: str) -> str:
        """What the notebook's kernel prints for a line of Python."""
        return str(self.page.evaluate(ASK, code)).strip()

    def texts(self) -> list[str]:
        """The text of every output."""
        return self.page.evaluate(TEXTS)

    def theme(self, name: str) -> None:
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme}).then(() => true)",
            name,
        )
        self.page.wait_for_function(
            "theme => document.body.dataset.jpThemeName === theme", arg=name
        )
        self.settle()

    def stretch(self) -> None:
        """Make the page as high as its notebook, so that all of it is in sight."""
        self.page.set_viewport_size(SIZE)
        self.page.wait_for_timeout(200)
        more = self.page.evaluate(GROWN)
        self.page.set_viewport_size({**SIZE, "height": min(SIZE["height"] + more + 8, MOST_HEIGHT)})
        self.page.wait_for_timeout(300)

    def picture(self, path: Path) -> None:
        """The whole notebook as a PNG."""
        self.stretch()
        self.page.screenshot(path=path)
