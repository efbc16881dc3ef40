"""Loadables of NVDLA's compiler: written with the package flatbuffers, listed and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from case_tables import fields
from flat_files import encoded
from test_cli import run  # noqa: F401 - a fixture

from npulab.npus.nvdla import loadables

WHOLE: dict[str, Any] = {
    "version": (0, 7, 0),
    "tasks": [
        {"id": 0, "interface": 1, "instance": -1, "addresses": [0, 1], "waits": [], "signals": [3]}
    ],
    "submits": [{"id": 0, "tasks": [0]}],
    "memories": [
        {
            "id": 0,
            "domain": 0,
            "flags": 3,
            "size": 4096,
            "alignment": 4096,
            "contents": ["tb-0"],
            "offsets": [0],
        },
        fields("id=1 domain=0 flags=5 size=256 bind=0 tensor=0"),
    ],
    "addresses": [
        {"id": 0, "memory": 0, "offset": 64, "size": 4032},
        {"id": 1, "memory": 1, "offset": 0, "size": 256},
    ],
    "events": [fields("id=3 type=0 target=0 value=1 operation=1")],
    "blobs": [
        {
            "name": "tb-0",
            "size": 5,
            "interface": 1,
            "sub_interface": 2,
            "version": (0, 12, 0),
            "data": b"\1\2\3\4\5",
        }
    ],
    "tensors": [
        {
            "name": "data",
            "id": 0,
            "memory": 1,
            "size": 256,
            "type": 4,
            "n": 1,
            "c": 8,
            "h": 4,
            "w": 8,
        }
    ],
}


def written(tmp_path: Path, values: dict[str, Any]) -> Path:
    path = tmp_path / "fast-math.nvdla"
    path.write_bytes(encoded(loadables.SCHEMA, "Loadable", values))
    return path


def test_a_loadable_is_listed(tmp_path: Path, run: Any) -> None:
    path = written(tmp_path, WHOLE)
    status, out, _ = run("show", str(path), "--json")
    rows = [json.loads(line) for line in out]
    assert status == 0
    for table in ("submits", "addresses", "events"):
        found = [
            {name: row[name] for name in wanted}
            for row, wanted in zip(
                [row for row in rows if row["table"] == table], WHOLE[table], strict=True
            )
        ]
        assert found == WHOLE[table]
    task = next(row for row in rows if row["table"] == "tasks")
    assert (task["interface"], task["instance"], task["addresses"], task["signals"]) == (
        "DLA1",
        -1,
        [0, 1],
        [3],
    )
    memory = next(row for row in rows if row["table"] == "memories")
    assert (memory["flags"], memory["size"], memory["contents"], memory["offsets"]) == (
        "alloc set",
        4096,
        ["tb-0"],
        [0],
    )
    blob = next(row for row in rows if row["table"] == "blobs")
    assert (blob["name"], blob["data"], blob["version"]) == ("tb-0", 5, "0.12.0")
    tensor = next(row for row in rows if row["table"] == "tensors")
    assert [tensor[name] for name in ("name", "type", "n", "c", "h", "w")] == [
        "data",
        "int8",
        1,
        8,
        4,
        8,
    ]
    status, out, _ = run("show", str(path))
    assert "NVDLA loadable 0.7.0, 1 task, 1 blob" in out[0]
    assert run("check", str(path))[0] == 0


@pytest.mark.parametrize(
    ("table", "field", "value", "text"),
    [
        ("tasks", "addresses", [0, 7], "got number 7, which is not one of the addresses"),
        ("tasks", "signals", [4], "got number 4, which is not one of the events"),
        ("submits", "tasks", [1], "got number 1, which is not one of the tasks"),
        ("addresses", "memory", 9, "got number 9, which is not one of the memories"),
        ("addresses", "size", 8192, "got 8192 bytes from 64, allowed are the 4096 of memory 0"),
        ("memories", "contents", ["tb-1"], "got content 'tb-1', allowed is the name of a blob"),
        ("blobs", "size", 6, "got 5 bytes, allowed are the 6 that it says"),
    ],
)
def test_numbers_that_do_not_go_together_are_errors(
    tmp_path: Path,
    run: Any,
    table: str,
    field: str,
    value: Any,
    text: str,
) -> None:
    first, *rest = WHOLE[table]
    path = written(tmp_path, {**WHOLE, table: [{**first, field: value}, *rest]})
    status, out, _ = run("check", str(path), "--json")
    assert status == 1
    assert [row["text"] for row in map(json.loads, out[1:]) if row["finding"] == "wrong"] == [text]


@pytest.mark.parametrize("count", [400, pytest.param(1000, marks=pytest.mark.long)])
def test_a_cut_or_changed_loadable_is_refused_or_listed(tmp_path: Path, count: int) -> None:
    path = written(tmp_path, WHOLE)
    data = path.read_bytes()
    random = np.random.RandomState(1)
    changed = [data[:size] for size in range(0, len(data), 7)]
    for _ in range(count):
        other = bytearray(data)
        other[random.randint(len(data))] = random.randint(256)
        changed.append(bytes(other))
    refused = []
    for other in changed:
        path.write_bytes(other)
        try:
            if loadables.recognises(path):
                loadables.list_loadable(path)
        except ValueError as error:
            refused.append(str(error))
    assert all(
        text.startswith(f"{path}: ") and "got" in text and "allowed" in text for text in refused
    )
    assert len(refused) > 100


def test_other_files_are_no_loadable(tmp_path: Path) -> None:
    builder = flatbuffers.Builder(0)
    builder.StartObject(2)
    builder.PrependUint32Slot(0, 3, 0)
    builder.Finish(builder.EndObject())
    for data in (b"", b"\0" * 64, b"\4\0\0\0" * 16, bytes(builder.Output()), b"NVDA" * 16):
        path = tmp_path / "a.bin"
        path.write_bytes(data)
        assert not loadables.recognises(path)
