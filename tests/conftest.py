"""What several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

import npulab
import npulab.captures.target

# the same examples on every run
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

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


def shared(name: str) -> Path:
    """A file of public captures that lies beside the checkout in CI; skips where it is missing."""
    path = SHARED / name
    if not path.exists():
        if os.environ.get("CI") == "true" and SHARED.exists():
            pytest.fail(f"{name} is missing from {SHARED}")
        pytest.skip(f"public captures are not beside the checkout ({name})")
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browsers and notebooks first: a worker that starts one of them last keeps the others waiting."""
    items.sort(key=lambda item: not ("browser" in item.path.stem or item.path.suffix == ".ipynb"))
