"""What every view promises: its line and its HTML are the same on every build, escape what a
stranger wrote, need nothing of the page, and say what is simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_bisect_view as bisect
import test_diff_view as diff
import test_map_editor as maps
import test_output_view as outputs
import test_register_view as registers
import test_stream_view as stream
import test_sweep_view as sweeps
from fake_laws import fake_laws

from npulab.notebook import widgets

NASTY = "<script>alert(1)</script>"
BYTES = np.full((1, 1, 2), 7, np.uint8)
# by name: how a view is made, of the provenance of its captures
VIEWS: dict[str, Callable[[str], Any]] = {
    "RegisterView": lambda given: widgets.RegisterView(
        registers.small(name=NASTY, provenance=given)
    ),
    "BisectView": lambda given: widgets.BisectView(*bisect.pair(name=NASTY, provenance=given)),
    "ByteView": lambda given: widgets.ByteView(
        registers.small(name=NASTY, provenance=given, buffers={"input": b"abc"})
    ),
    "DiffView": lambda given: widgets.DiffView(
        replace(diff.A, name=NASTY), replace(diff.B, provenance=given)
    ),
    "LawView": lambda given: widgets.LawView(fake_laws(simulated=given == "simulated")),
    "MapEditor": lambda given: widgets.MapEditor(
        maps.made(), maps.small(name=NASTY, provenance=given)
    ),
    "OperatorsView": lambda given: widgets.OperatorsView(
        [(NASTY, NASTY), (NASTY, registers.small(provenance=given))], NASTY
    ),
    "OutputView": lambda given: widgets.OutputView(
        outputs.compared(BYTES, BYTES + 1, case=NASTY, simulated=given == "simulated")
    ),
    "StreamView": lambda given: widgets.StreamView(stream.capture(provenance=given)),
    "SweepView": lambda given: widgets.SweepView(sweeps.sweep(provenance=given)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_line_and_face_are_the_same_on_two_builds(name: str) -> None:
    one, two = (VIEWS[name]("simulated") for _ in range(2))
    assert repr(one) == repr(two) == f"{name}({one.model.line})"
    assert repr(one.model) == f"{type(one.model).__name__}({one.model.line})"
    faces = [view._repr_mimebundle_()[0] for view in (one, two)]
    assert faces[0]["text/html"] == faces[1]["text/html"] == one.model._repr_html_()
    assert faces[0]["text/plain"] == repr(one)
    assert "application/vnd.jupyter.widget-view+json" in faces[0]


@pytest.mark.parametrize("name", VIEWS)
def test_a_face_says_what_is_simulated_and_needs_nothing(name: str) -> None:
    for provenance in ("board", "simulated"):
        view = VIEWS[name](provenance)
        face = view._repr_mimebundle_()[0]["text/html"]
        simulated = provenance == "simulated"
        assert view.simulated == simulated
        assert (", simulated" in repr(view)) == simulated
        assert ("<b>simulated</b>" in face) == simulated
        assert not re.search(r"<(script|style|link)|class=|id=", face)
