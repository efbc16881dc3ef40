"""Packages that may be missing: the table of them is pyproject's."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import CAPTURES, ROOT

from npulab import cli
from npulab.support.extras import (
    PACKAGES,
    MissingPackage,
    installed,
    lacking,
    lacking_in,
    needed,
    told,
)
from npulab.support.files import read_table

ROWS = read_table(PACKAGES)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VIVANTE = CAPTURES / "vivante"
EXTRAS = ("maps", "fast", "compilers", "onnx", "farm")


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=\[]", one)[0] for one in requirements}


def test_the_table_is_that_of_the_project() -> None:
    assert {row["package"] for row in ROWS if not row["extra"]} == named(PROJECT["dependencies"])
    for extra in EXTRAS:
        assert {row["package"] for row in ROWS if row["extra"] == extra} == named(
            PROJECT["optional-dependencies"][extra]
        )
    assert {*PROJECT["optional-dependencies"]} == {*EXTRAS, "test"}


def test_what_is_there_is_given() -> None:
    assert needed("os.path", "this").join("a", "b") == str(Path("a", "b"))
    assert installed("json")
    assert not installed("no_such_module")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "clang.cindex",
            "reading needs libclang, which is not installed: pip install 'npulab[maps]'",
        ),
        (
            "systemrdl",
            "reading needs systemrdl-compiler, which is not installed: pip install 'npulab[maps]'",
        ),
        (
            "numba.core.config",
            "reading needs numba, which is not installed: pip install 'npulab[fast]'",
        ),
        (
            "ethosu.vela",
            "reading needs ethos-u-vela, which is not installed: pip install 'npulab[compilers]'",
        ),
        (
            "flatbuffers",
            "reading needs flatbuffers, which is not installed: pip install flatbuffers",
        ),
        (
            "no_such_module",
            "reading needs no_such_module, which is not installed, and which no install of npulab brings",
        ),
    ],
)
def test_what_is_missing_is_one_sentence(
    module: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    with pytest.raises(MissingPackage) as caught:
        needed(module, "reading")
    assert str(caught.value) == said
    assert isinstance(caught.value, ImportError)
    assert not isinstance(caught.value, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (
            ImportError("Numba needs NumPy 2.2 or less"),
            "cannot be loaded (Numba needs NumPy 2.2 or less)",
        ),
        (OSError("libLLVM.so: no such file"), "cannot be loaded (libLLVM.so: no such file)"),
        (
            ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite"),
            "cannot be loaded (No module named 'llvmlite')",
        ),
        (ModuleNotFoundError("No module named 'numba'", name="numba"), "is not installed"),
    ],
)
def test_a_package_that_is_broken_is_told_apart(error: Exception, state: str) -> None:
    assert lacking("numba", error) == f"numba, which {state}: pip install 'npulab[fast]'"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("/usr/bin/python: No module named ethosu", "ethos-u-vela"),
        (
            "status 1 (Error while finding module specification for 'ethosu.vela' (ModuleNotFoundError: No module named 'ethosu'))",
            "ethos-u-vela",
        ),
        ("ModuleNotFoundError: No module named 'lxml.etree'; 'lxml' is not a package", "lxml"),
        ("Error: unsupported operator ADD", ""),
        ("", ""),
    ],
)
def test_what_a_program_lacks_is_read_from_its_last_words(text: str, named: str) -> None:
    assert lacking_in(text).partition(",")[0] == named


def test_other_errors_of_imports_keep_their_words() -> None:
    assert (
        told(ImportError("cannot import name 'x'\nfrom 'y'")) == "cannot import name 'x' from 'y'"
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("jupyterlab", ["lab"]),
        ("pandas", ["diff", f"{VIVANTE}/update4-vendor", f"{VIVANTE}/update4-mesa"]),
    ],
)
def test_a_command_of_a_broken_install_is_one_sentence(
    module: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # another test of this process may have imported parts of it
    for name in [module, *(one for one in sys.modules if one.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(arguments) == 2
    assert (
        capsys.readouterr().err
        == f"npulab: this needs {module}, which is not installed: pip install {module}\n"
    )
