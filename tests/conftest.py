"""What several tests share."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tqdm.auto  # noqa: F401  it draws widgets, if it is first imported after ipykernel
from _pytest.doctest import DoctestModule
from hypothesis import settings

import npulab
import npulab.captures.target

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# the same examples on every run
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

# Each worker, kernel and program would compile npulab anew where an image of a container says that
# nothing is kept.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# what tests trust is recorded apart from what the user does
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="npulab-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Where a package for URIs is installed, jsonschema builds 38 parsers as it is imported: 1.8 s of
# CPU in each worker, lab and program that the tests start. No test reads a URI. Workers have the
# path of the process that starts them.
Path(os.environ["XDG_STATE_HOME"], "rfc3987_syntax.py").write_text(
    "raise ImportError('left out by the tests')\n"
)
sys.path.insert(0, os.environ["XDG_STATE_HOME"])
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (os.environ["XDG_STATE_HOME"], os.environ.get("PYTHONPATH")))
)

# Workers, kernels and programs have a core each: a second thread of numpy's BLAS takes processor
# time there, mostly to wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
CAPTURES = ROOT / "captures"
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def captures() -> npulab.CaptureSet:
    """Every capture of the vivante target."""
    return npulab.load_all(CAPTURES / "vivante")


@pytest.fixture(scope="session")
def vivante() -> npulab.captures.target.Target:
    return npulab.target("vivante")


@pytest.fixture
def dump() -> Path:
    """The text dump that holds both update 4 captures."""
    return shared("seeds/002_a8df49b9735cd1f4.txt")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """Chromium, one for each file: as long as it is there its loop is in the way of asyncio."""
    from blank_page import browser

    with browser() as started:
        yield started


def shared(name: str) -> Path:
    """A file of public captures that lies beside the checkout in CI; skips where it is missing."""
    path = SHARED / name
    if not path.exists():
        if os.environ.get("CI") == "true" and SHARED.exists():
            pytest.fail(f"{name} is missing from {SHARED}")
        pytest.skip(f"public captures are not beside the checkout ({name})")
    return path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: those that wait for a browser, a kernel or a program
    leave theirs free.
    """
    return (
        len(os.sched_getaffinity(0)) + 1
        if hasattr(os, "sched_getaffinity")
        else (os.cpu_count() or 1) + 1
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """The collector of garbage passes over what stays for the whole run: a third of the time that
    tests are collected in, a fifth of that in which they run.
    """
    gc.disable()
    compile_a_share(session.config)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def compile_a_share(config: pytest.Config) -> None:
    """Import a share of the test files, another one in each worker of a whole run.

    pytest compiles a test file where it is first imported. In a new clone each of three workers
    compiled all files: 9 s of CPU each. Now each compiles a third, and finds the others compiled.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    number = int(worker["workerid"].removeprefix("gw"))
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    for path in files[number :: worker["workercount"]]:
        sys.path.append(str(path.parent))
        # an error, and a file that is skipped, is reported where pytest collects the file
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(path.stem)
        sys.path.remove(str(path.parent))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """A module without an example is not searched for doctests.

    The search imports the module and looks at everything in it; each worker would do so for each
    module of the package, of the tests and of the tools.
    """
    collectors = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return collectors
    return [one for one in collectors if not isinstance(one, DoctestModule)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browsers, notebooks and the house first: a worker that starts one of them last keeps the
    others waiting.

    Of the cases of a test marked ``sample(n)`` all but n, drawn by its name, are ``long``.
    """
    items.sort(
        key=lambda item: (
            item.path.suffix != ".ipynb" and not re.search("browser|house", item.path.stem)
        )
    )
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("long"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    for (_, name), group in cases.items():
        (count,) = group[0].get_closest_marker("sample").args
        drawn = random.Random(name).sample(range(len(group)), min(count, len(group)))
        for n in set(range(len(group))) - set(drawn):
            group[n].add_marker(pytest.mark.long)
