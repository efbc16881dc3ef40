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


def release(folder: Path, left_out: str = "") -> tuple[Path, Path]:
    """An sdist and a wheel of empty files, without those of which the path ends so."""
    sdist, wheel = folder / "s.tar.gz", folder / "w.whl"
    with tarfile.open(sdist, "w:gz", compresslevel=1) as packed:
        for path in IN_SDIST:
            if not left_out or not path.endswith(left_out):
                packed.addfile(tarfile.TarInfo(f"npulab-1/{path}"))
    with zipfile.ZipFile(wheel, "w") as file:
        for path in IN_WHEEL:
            if not left_out or not path.endswith(left_out):
                file.writestr(path, "")
    return sdist, wheel


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return release(tmp_path_factory.mktemp("whole"))


def test_a_whole_release_is_taken(whole: tuple[Path, Path]) -> None:
    base_install.refuse_missing(*whole)


@pytest.mark.parametrize(
    "path", ["npulab/py.typed", "nn.csv", "register_view.js", "frame.css", "0-start.ipynb"]
)
def test_a_file_that_is_left_out_is_named(
    tmp_path: Path, path: str, whole: tuple[Path, Path]
) -> None:
    (sdist, wheel), (less_sdist, less_wheel) = whole, release(tmp_path, path)
    with pytest.raises(AssertionError, match=rf"s\.tar\.gz: .*{re.escape(path)}"):
        base_install.refuse_missing(less_sdist, wheel)
    with pytest.raises(AssertionError, match=rf"w\.whl: .*{re.escape(path)}"):
        base_install.refuse_missing(sdist, less_wheel)


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "npulab/__init__.py"
    changes = (ROOT / "npulab" / "CHANGES.md").read_text(encoding="utf-8")
    (first, *_) = re.findall(r"^## (\S+)", changes, re.MULTILINE)
    assert first == npulab.__version__
    assert len(changes.splitlines()) <= 80
