"""Small ANE networks, and the register values that a prototype decoded of real files."""

from __future__ import annotations

import json
from typing import Any

from conftest import shared

from npulab.npus.ane.source.network import Input, Network, Output, Unit
from npulab.npus.ane.source.plist import read_plist

PAIRS = ["compiled", "concat16", "conv_bias", "conv_twos", "relu16", "sigmoid77", "sum64"]
ENGINES = 16
LEFT_OUT = [
    f"KernelDMASrc.{name}"
    for engine in range(ENGINES)
    for name in (
        f"CoeffDMAConfig[{engine}].En",
        f"CoeffDMAConfig[{engine}].CacheHint",
        f"CoeffBaseAddr[{engine}].Addr",
        f"CoeffBfrSize[{engine}].MemBfrSize",
    )
]


def image(
    width: int = 8, height: int = 6, channels: int = 3, name: str = "image", **more: Any
) -> Input:
    return Input(
        name,
        {
            "InputWidth": width,
            "InputHeight": height,
            "InputChannels": channels,
            "InputType": "Float16",
            **more,
        },
    )


def unit(
    kind: str,
    name: str = "layer",
    bottom: Any = "image",
    params: dict[str, Any] | None = None,
    **more: Any,
) -> Unit:
    return Unit(
        name,
        {
            "Bottom": bottom,
            "Name": name,
            "OutputType": "Float16",
            "Params": params or {},
            "Type": kind,
            **more,
        },
    )


def network(
    *units: Unit, inputs: tuple[Input, ...] = (), weights: tuple[str, ...] = ("net.weights",)
) -> Network:
    return Network(
        "net",
        inputs or (image(),),
        units,
        (Output("out@output", {"Bottom": units[-1].name}),),
        weights,
    )


def conv(
    channels: int = 4,
    kernel: tuple[int, int] = (3, 3),
    name: str = "layer",
    bottom: str = "image",
    **params: Any,
) -> Unit:
    known = {
        "KernelHeight": kernel[0],
        "KernelWidth": kernel[1],
        "KernelIndex": 0,
        "KernelOffset": 0,
        "KernelType": "Float16",
        "Step": [1, 1],
        "Type": "Conv",
    }
    return unit("Conv", name, bottom, known | params, OutputChannels=channels)


def source(name: str) -> Network:
    """The network that a file was compiled from."""
    return read_plist(shared(f"data/ane/hwx/{name}/net.plist")).network


def recorded(name: str) -> list[dict[str, int]]:
    """Raw numbers by field of each task of a file; zeros that the prototype left out are there."""
    tasks = json.loads(shared(f"data/ane/expected/hwx_{name}.json").read_text())["tasks"]
    return [dict.fromkeys(LEFT_OUT, 0) | _values(task) for task in tasks]


def bare(name: str) -> list[dict[str, int]]:
    """As ``recorded``, of a bare task file; there all zeros were left out."""
    tasks = json.loads(shared("data/ane/expected/h13_tasks.json").read_text())[name]["tasks"]
    known = {field for other in PAIRS for values in recorded(other) for field in values}
    return [dict.fromkeys(known, 0) | _values(task) for task in tasks]


def transcribed(name: str) -> list[dict[str, int]]:
    """Raw numbers by field of a task whose words somebody wrote down, for the fields that the
    compiler's printer names.
    """
    task = json.loads(shared(f"data/ane/oracle_words/{name}.json").read_text())
    bases = {
        0x2C: 0x1F800,
        0x128: 0,
        0x16C: 0x13800,
        0x1E0: 0x4800,
        0x22C: 0x8800,
        0x240: 0xC800,
        0x258: 0x17800,
    }
    written = {int(address, 16): int(word, 16) for address, word in task["registers"].items()}
    out = {}
    for field, (byte, bit, width) in json.loads(shared("data/ane/regs/aneregs.json").read_text()):
        place = byte // 4 * 4
        if place < 0x28:
            word = int(task["header_words"][place // 4], 16)
        else:
            start = max(one for one in bases if one <= place)
            if bases[start] + place - start not in written:
                continue
            word = written[bases[start] + place - start]
        out[field] = word // 2 ** (byte % 4 * 8 + bit) % 2**width
    return [_values({"fields": out})]


def _values(task: dict[str, Any]) -> dict[str, int]:
    return {
        field.removeprefix("aneRegs.").replace("aneTD.", "Header."): raw
        for field, raw in task["fields"].items()
    }
