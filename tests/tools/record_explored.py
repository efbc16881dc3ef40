"""Record ``captures/ethosu/explored-u55-128.npz``: layers that Arm's Vela was asked for, by
``npulab.explore``.

    python tests/tools/record_explored.py captures/ethosu

Vela has to be installed (``npulab[compilers]``); another version of it may choose other words.  A
file that is there already is refused.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import npulab
from npulab.captures.sources import reader_of
from npulab.captures.sweep import save_sweep

COMMAND = "{model} --output-dir {out} --accelerator-config ethos-u55-128"
RANGES = {
    **{f"{name}": (1, 64) for name in ("input_h", "input_w", "input_c", "output_c")},
    "kernel_h": (1, 5),
    "kernel_w": (1, 5),
    "stride_h": [1, 2],
    "stride_w": [1, 2],
    "same": [0, 1],
    "relu": [0, 1],
}
BUDGET = 64

if __name__ == "__main__":
    vela = npulab.Compiler(
        (sys.executable, "-m", "ethosu.vela", *COMMAND.split()), read=reader_of("ethosu")
    )
    found = npulab.explore(vela, RANGES, budget=BUDGET)
    print(found, found.outcomes["text"].tolist(), sep="\n")
    print(
        save_sweep(
            replace(
                found.sweep,
                name="explored-u55-128",
                chip="ethos-u55-128",
                source=f"vela {COMMAND}",
                tool=f"ethos-u-vela {version('ethos-u-vela')}",
            ),
            Path(sys.argv[1]) / "explored-u55-128.npz",
        )
    )
