"""Open a notebook of ``npulab lab`` so that it has no unsaved change, and save it with the views
that it shows, without changes that come only from opening it.

JupyterLab loads this module as an extension of its server. The folder ``jupyter/`` next to the
module makes it do so, and turns on saving the state of widgets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
REFERENCE = re.compile(r"IPY_MODEL_(\w+)")


def before_save(model: Mapping[str, Any], path: str, contents_manager: Any, **_: Any) -> None:
    """Change a notebook in place before it is saved: remove widgets that no output shows, and set
    the language's metadata to what the file has, whatever Python the notebook runs in.
    """
    if model.get("type") != "notebook" or not isinstance(model.get("content"), Mapping):
        return
    keep_shown(model["content"])
    file = Path(contents_manager.root_dir, path)
    try:
        before = json.loads(file.read_text(encoding="utf-8"))["metadata"]["language_info"]
    except (OSError, ValueError, LookupError, TypeError):
        return  # the notebook has no file yet, or its file states no language
    metadata = model["content"]["metadata"]
    if metadata.get("language_info", {}).get("name") == before.get("name"):
        metadata["language_info"] = before


def as_kernel_has_it(notebook: Mapping[str, Any]) -> None:
    """Set the language's metadata of a notebook, in place, to what a Python kernel of this
    environment states. JupyterLab does so when the kernel answers, and then changes nothing.
    """
    from ipykernel.ipkernel import IPythonKernel

    metadata = notebook["metadata"]
    if metadata.get("language_info", {}).get("name") == IPythonKernel.language_info["name"]:
        metadata["language_info"] = dict(IPythonKernel.language_info)


def keep_shown(notebook: Mapping[str, Any]) -> None:
    """Remove from a notebook, in place, the state of widgets that no output shows or refers to."""
    metadata = notebook["metadata"]
    state = metadata.get("widgets", {}).get(STATE, {}).get("state")
    if state is None:
        return
    wanted = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if VIEW in output.get("data", ()):
                wanted.append(output["data"][VIEW].get("model_id"))
    shown: dict[str, Any] = {}
    while wanted:
        name = wanted.pop()
        if name in state and name not in shown:
            shown[name] = state[name]
            wanted += REFERENCE.findall(json.dumps(state[name].get("state", {})))
    if shown:
        metadata["widgets"][STATE]["state"] = {name: state[name] for name in state if name in shown}
    else:
        del metadata["widgets"]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:
    manager = app.contents_manager
    manager.register_pre_save_hook(before_save)
    mark = manager.mark_trusted_cells  # called for each notebook that is opened, and only then

    def opened(notebook: Any, path: str = "") -> None:
        mark(notebook, path)
        as_kernel_has_it(notebook)

    manager.mark_trusted_cells = opened
