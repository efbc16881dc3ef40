"""What a refusal has to look like, for the tests that are written from an issue alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import npulab

PACKAGE = Path(npulab.__file__).parent


def refused(call: Callable[[], Any], *words: str) -> str:
    """The one sentence with which a call is refused: by the package itself, with what it got and
    what is allowed.
    """
    with pytest.raises((ValueError, LookupError, TypeError)) as found:
        call()
    text = str(found.value.args[0])
    assert PACKAGE in Path(found.traceback[-1].path).parents, (
        f"raised by {found.traceback[-1].path}: {text}"
    )
    assert "\n" not in text
    for word in ("got", "allowed", *words):
        assert word in text, text
    return text
