"""``npulab lab``: JupyterLab on the notebooks and captures."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
START = "0-start.ipynb"
COPY = "npulab-notebooks"
ROOT_OPTIONS = ("--ServerApp.root_dir", "--notebook-dir", "--preferred-dir")


def lab(options: argparse.Namespace, rest: Sequence[str] = ()) -> int:
    arguments = ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    if not any(text.split("=")[0] in ROOT_OPTIONS for text in rest):
        arguments += [f"--ServerApp.root_dir={_home()}", f"--LabApp.default_url=/lab/tree/notebooks/{START}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
    arguments += rest
    if options.json:
        print(json.dumps({"arguments": arguments}), flush=True)
    from jupyterlab.labapp import main as jupyterlab

    return int(jupyterlab(arguments) or 0)


def _home() -> Path:
    """The folder with notebooks and captures: the checkout, or what the wheel holds, copied out
    once."""
    for folder in (PACKAGE.parent, *(folder / COPY for folder in (Path.cwd(), *Path.cwd().parents))):
        if (folder / "notebooks" / START).exists():
            return folder
    copy = Path.cwd() / COPY
    if copy.exists():
        raise FileExistsError(f"{copy}: is there without notebooks/{START}; move it away and npulab lab makes it anew")
    scratch = Path(tempfile.mkdtemp(prefix=".npulab-", dir=Path.cwd()))
    shutil.copytree(PACKAGE / "share", scratch, dirs_exist_ok=True)
    scratch.chmod(0o755)
    scratch.rename(copy)
    print(f"notebooks and captures copied to {copy}", file=sys.stderr)
    return copy


COMMANDS = {"lab": (lambda add: None, lab)}
