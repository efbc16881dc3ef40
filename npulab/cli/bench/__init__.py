"""Benchmarks: npulab's times next to those of other libraries, from one run, in one thread, on this
machine.

    python -m npulab.cli.bench emulate 12   # 12 turns in this process, prints JSON

``npulab bench`` runs this command in a new process, and for ``emulate`` in one for each setting.
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

    ``emulate`` measures emulation against TensorFlow Lite on all 28 layers of MobileNetV1-224. A
    row per setting of OpenBLAS (its own choice of kernels, or its AVX-512 kernels) and rounding
    rule has npulab's milliseconds, these divided by the milliseconds of each engine in the same
    run, and how many outputs differ from those of the engine that the rule is named after.

    ``decode`` measures a struct of 150 fields in 38 words against libraries for binary data. A row
    per library has how many captures it decodes and encodes in a second, npulab's rate divided by
    the library's rate in the same run, and how many fields and words came out wrong.

    ``attrs["limits"]`` of the table holds, by setting, the rates of this machine that limit the
    measured rates. Raises LookupError for an unknown benchmark.
    """
    need("bench", what, str, f"is one of {', '.join(BENCHES)}")
    return BENCHES[one_of("bench", what, BENCHES)].table(rounds)
