"""``npulab lab``: JupyterLab on a folder of one's own, or on npulab's notebooks and captures."""

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
CONFIG = Path(__file__).with_name("jupyter")  # no news, views are saved: saving.py
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
    before = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        [*([before] if before else []), str(CONFIG)]
    )
    from jupyterlab.labapp import main as jupyterlab

    return int(jupyterlab(arguments) or 0)


def _opened(here: Path) -> tuple[Path, str]:
    """The folder that JupyterLab serves and what it opens there: in the checkout or its copy the
    start notebook, in a folder of one's own that folder.

    Without a checkout, what the wheel holds is copied out once and opened.
    """
    for inside in (
        PACKAGE.parent,
        *(folder for folder in (here, *here.parents) if folder.name == COPY),
    ):
        if (inside / NOTEBOOK).exists() and here.is_relative_to(inside):
            return inside, f"/tree/{NOTEBOOK}"
    copied = next(
        (folder / COPY for folder in (here, *here.parents) if (folder / COPY / NOTEBOOK).exists()),
        None,
    )
    home = copied or (PACKAGE.parent if (PACKAGE.parent / NOTEBOOK).exists() else None)
    if home is None:
        return here, f"/tree/{_copy_out(here).name}/{NOTEBOOK}"
    print(
        f"npulab: opens {here}; its own notebooks are in {home}, npulab lab there opens them",
        file=sys.stderr,
    )
    return here, ""


def _copy_out(here: Path) -> Path:
    """The notebooks and captures of the wheel, in a folder of this one."""
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
        shutil.rmtree(scratch, ignore_errors=True)  # made here, a moment ago
        raise
    print(f"notebooks and captures copied to {copy}", file=sys.stderr)
    return copy


COMMANDS = {"lab": (lambda add: None, lab)}
