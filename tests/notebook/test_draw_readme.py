"""The views that `tests/tools/draw_readme.py` draws still exist under the names it uses."""

from __future__ import annotations

import ast
from operator import attrgetter

import pytest
from draw_readme import IMPORTS, VIEWS

import npulab
import npulab.notebook.widgets


@pytest.mark.parametrize("name", VIEWS)
def test_names_of_the_readme_s_pictures_exist(name: str) -> None:
    code, _, _ = VIEWS[name]
    used = set()
    for node in ast.walk(ast.parse(IMPORTS + code)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("npulab."):
            used.add(ast.unparse(node))
    assert any(one.endswith("View") for one in used)
    for one in used:
        attrgetter(one.removeprefix("npulab."))(npulab)
