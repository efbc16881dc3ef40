"""Libraries that are loaded at their first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from npulab.support.late import Late


def test_pandas_is_loaded_at_its_first_use() -> None:
    code = (
        "import sys; from npulab.support.late import pd; before = 'pandas' in sys.modules; "
        "print(before, len(pd.DataFrame({'a': [1, 2]})), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "2", "True"]


def test_names_that_a_library_lacks_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'math' has no attribute 'nonsense'"):
        _ = Late("math").nonsense
