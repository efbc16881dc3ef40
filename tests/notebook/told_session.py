"""A session with something of everything, and the same with hostile texts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CAPTURES, ROOT
from hostile_maps import EVIL, NASTY

import npulab
import npulab.notebook.sessions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sim-3x3-same", "sim-3x3-stride2-relu"):
        shutil.copytree(CAPTURES / "vivante" / name, tmp_path / "captures" / name)
    shutil.copy(CAPTURES / "vivante/sweep-layers-s905d3.npz", tmp_path / "sweep.npz")
    for name in ("nn.csv", "enums.csv", "sources.csv"):
        shutil.copy(ROOT / "npulab/npus/vivante" / name, tmp_path)
    return tmp_path


def told(folder: Path) -> npulab.notebook.sessions.Session:
    """An investigation with something of everything."""
    one = npulab.session(folder / "story.json", author="ada")
    one.title = "What is <relu>?"
    a, b = (one.attach(f"captures/{name}") for name in ("sim-3x3-same", "sim-3x3-stride2-relu"))
    one.attach("sweep.npz")
    draft = npulab.draft(folder / "nn.csv", features=["nn_v7"])
    draft.rename("relu", "clamp_below")
    one.use_map(draft)
    one.note("**Clamps** below", field="clamp_below", date="2026-01-02")
    one.note("a register", register="w2")
    one.note("sixteen bytes", capture=a, buffer="coefficients", offset=16, size=16)
    one.note("the capture", capture=b)
    one.note("the story")
    one.bookmark("look here", field="post_shift")
    one.accept("kernel_h", field="kernel_xy_size", sweep="sweep.npz")
    found = npulab.bisect_fields(
        a,
        b,
        lambda trial: "fail" if trial.words[2] & 2**24 else "pass",
        different_layers=True,
        journal=folder / "journal.jsonl",
    )
    one.journal(folder / "journal.jsonl", good=a, bad=b, result=str(found.culprits))
    view = npulab.RegisterView(a)
    view.cursor = (2, 24)
    one.open_view(view, "registers")
    return one


def hostile(folder: Path) -> npulab.notebook.sessions.Session:
    one = told(folder)
    one.title = EVIL
    draft = one.draft
    draft.rename("stride" if "stride" in {*draft.map.fields["field"]} else "post_shift", EVIL)
    draft.set_note("pooling", EVIL)
    draft.retype("brick_mode", names={0: EVIL, 1: NASTY[0]})
    one.use_map(draft)
    capture = replace(
        npulab.load(folder / "captures/sim-3x3-same"), name=EVIL, source=EVIL, tool=EVIL
    )
    npulab.save(capture, folder / "captures" / "evil")
    one.attach("captures/evil")
    for text in NASTY:
        one.note(text, field=EVIL, author=text)
        one.note(
            f"# {text}\n\n- {text}\n\n```\n{text}\n```\n\n| {text} |\n| --- |\n| {text} |\n\n![x](javascript:alert(1)) <javascript:alert(1)>"
        )
        one.bookmark(text, register=text)
    one.journal(folder / "journal.jsonl", result=EVIL)
    return one
