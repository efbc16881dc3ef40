"""``npulab lab``: JupyterLab on the present folder, or on npulab's notebooks and captures."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from npulab.support.files import HIDDEN, PART

PACKAGE = Path(__file__).parents[1]
START = "0-start.ipynb"
NOTEBOOK = f"notebooks/{START}"
COPY = "npulab-notebooks"
# JupyterLab's settings in this folder turn off its news and load saving.py, which saves views
CONFIG = Path(__file__).with_name("jupyter")
ROOT_OPTIONS = ("--ServerApp.root_dir", "--notebook-dir", "--preferred-dir")


def lab(options: argparse.Namespace, rest: Sequence[str] = ()) -> int:
    arguments = [
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if not any(text.split("=")[0] in ROOT_OPTIONS for text in rest):
        root, notebook = _opened(Path.cwd())
        arguments += [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab{notebook}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
    arguments += rest
    if options.json:
        print(json.dumps({"arguments": arguments}), flush=True)
    folders = [os.environ.get("JUPYTER_CONFIG_PATH", ""), str(CONFIG)]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, folders))
    from jupyterlab.labapp import main as jupyterlab

    return int(jupyterlab(arguments) or 0)


def _opened(here: Path) -> tuple[Path, str]:
    """Return the folder that JupyterLab serves, and the page that it opens.

    If ``here`` is in a checkout, or in a copy of the notebooks, the page is the start notebook. If
    the notebooks lie elsewhere, the page is "". If there are none, the notebooks of the wheel are
    copied into ``here``, and the page is the start notebook of the copy.
    """
    around = [here, *here.parents]
    copies = [folder for folder in around if folder.name == COPY]
    for inside in (PACKAGE.parent, *copies):
        if (inside / NOTEBOOK).exists() and here.is_relative_to(inside):
            return inside, f"/tree/{NOTEBOOK}"
    homes = [*(folder / COPY for folder in around), PACKAGE.parent]
    home = next((folder for folder in homes if (folder / NOTEBOOK).exists()), None)
    if home is None:
        return here, f"/tree/{_copy_out(here).name}/{NOTEBOOK}"
    print(
        f"npulab: opens {here}; its own notebooks are in {home}, npulab lab there opens them",
        file=sys.stderr,
    )
    return here, ""


def _copy_out(here: Path) -> Path:
    """Copy the notebooks and captures of the wheel into a new folder in ``here``, and return that
    folder.
    """
    copy = here / COPY
    if copy.exists() or copy.is_symlink():
        raise FileExistsError(
            f"{copy}: is there without notebooks/{START}; move it away and npulab lab makes it anew"
        )
    scratch = Path(tempfile.mkdtemp(PART, HIDDEN, here))
    try:
        shutil.copytree(PACKAGE / "share", scratch, dirs_exist_ok=True)
        scratch.chmod(0o755)
        scratch.rename(copy)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    print(f"notebooks and captures copied to {copy}", file=sys.stderr)
    return copy


COMMANDS = {"lab": lab}
