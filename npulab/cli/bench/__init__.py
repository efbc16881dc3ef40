"""Benchmarks: npulab's times next to those of other libraries, from one run, in one thread, on this
machine.

    python -m npulab.cli.bench emulate 12   # 12 turns in this process, JSON

``npulab bench`` runs that in a process of its own.
"""

from __future__ import annotations

from npulab.cli.bench import decoding, emulation
from npulab.cli.bench.emulation import KERNELS, mobilenet
from npulab.support.late import pd
from npulab.support.refuse import need, one_of

__all__ = ["BENCHES", "KERNELS", "ROUNDS", "bench", "mobilenet"]

BENCHES = {"emulate": emulation, "decode": decoding}
ROUNDS = 12


def bench(what: str = "emulate", rounds: int = ROUNDS) -> pd.DataFrame:
    """Return a table of measured times and ratios; takes about half a minute.

    ``emulate``: emulation against TensorFlow Lite, all 28 layers of MobileNetV1-224; a row per
    setting and rule: ms, these ms divided by each engine's in the same run, and how many outputs
    differ from the engine of that rule. ``decode``: a struct of 150 fields in 38 words against
    libraries for binary data; a row per library: captures a second decoded and encoded, npulab's
    rate divided by the library's in the same run, and fields that came out wrong.
    ``attrs["limits"]`` holds, by setting, the rates of this machine that limit the measured ones.
    Raises LookupError for an unknown benchmark.
    """
    need("bench", what, str, f"is one of {', '.join(BENCHES)}")
    return BENCHES[one_of("bench", what, BENCHES)].table(rounds)
