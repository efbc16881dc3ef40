"""What a release is: one version, and an sdist and a wheel that lack no file of the package.

``.ci/run`` builds both and tries the wheel in an empty environment (``tests/tools/base_install.py``).
"""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import base_install
import pytest
from conftest import ROOT

import npulab

SHARE = base_install.files_of("notebooks", "captures")
IN_SDIST = base_install.files_of("npulab") | SHARE | base_install.ALONE
IN_WHEEL = base_install.files_of("npulab") | {f"npulab/share/{path}" for path in SHARE}


# files of several kinds
LEFT_OUT = ("npulab/py.typed", "nn.csv", "register_view.js", "frame.css", "0-start.ipynb")


def release(folder: Path, left_out: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """An sdist and a wheel of empty files, without those of which the path ends so."""
    sdist, wheel = folder / "s.tar.gz", folder / "w.whl"
    with tarfile.open(sdist, "w:gz", compresslevel=1) as packed:
        for path in IN_SDIST:
            if not path.endswith(left_out):
                packed.addfile(tarfile.TarInfo(f"npulab-1/{path}"))
    with zipfile.ZipFile(wheel, "w") as file:
        for path in IN_WHEEL:
            if not path.endswith(left_out):
                file.writestr(path, "")
    return sdist, wheel


def test_files_that_are_left_out_are_named(tmp_path: Path) -> None:
    (tmp_path / "less").mkdir()
    (sdist, wheel), (less_sdist, less_wheel) = (
        release(tmp_path),
        release(tmp_path / "less", LEFT_OUT),
    )
    base_install.refuse_missing(sdist, wheel)
    for pair, name in (((less_sdist, wheel), "s.tar.gz"), ((sdist, less_wheel), "w.whl")):
        with pytest.raises(AssertionError, match=f"^{name}: ") as told:
            base_install.refuse_missing(*pair)
        for path in LEFT_OUT:
            assert f"{path}'" in str(told.value)


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "npulab/__init__.py"
    changes = (ROOT / "npulab" / "CHANGES.md").read_text(encoding="utf-8")
    (first, *_) = re.findall(r"^## (\S+)", changes, re.MULTILINE)
    assert first == npulab.__version__
    assert len(changes.splitlines()) <= 80
