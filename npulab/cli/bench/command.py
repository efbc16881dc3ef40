"""``npulab bench``: the measured times and ratios as a table, and the meaning of its columns."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from npulab.cli import bench
from npulab.cli.output import show
from npulab.support.answers import Answer, Part, Table
from npulab.support.late import pd
from npulab.support.text import Row, known, rows_of

LEGENDS = {
    "emulate": """
ms: all 28 layers of MobileNetV1-224 in one thread, the least time of each; of ENGINE: these ms
divided by that engine's in the same run, below 1 is faster; wrong: outputs that differ from the
engine that the rule is named after (of gemmlowp, from npulab.emulate). Rows named tflite
reference, tflite builtin or xnnpack are the engines themselves.
""",
    "decode": """
captures/s: a struct of 150 fields in 38 words, 100,000 captures (fewer for libraries that take
one at a time) in one thread, the best of all turns; ratio: npulab's captures/s divided by this
row's in the same run, above 1 npulab is faster; wrong: fields and words that came out wrong. The
row of a copy is what memory allows: a capture and its values.
""",
}


@dataclass(frozen=True, eq=False)
class Measured(Answer):
    """The answer of ``npulab bench``: the table that ``npulab.bench`` returns for ``what``."""

    what: str
    table: pd.DataFrame

    @property
    def rows(self) -> list[Row]:
        rows = list(map(known, rows_of(self.table)))
        for row in rows:
            if "wrong" in row:
                row["wrong"] = int(row["wrong"])
        return rows

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """Rates of this machine that limit the measured rates, by setting and by name with unit."""
        limits: dict[str, dict[str, float]] = self.table.attrs["limits"]
        return limits

    def records(self) -> list[Row]:
        limits = [{"setting": setting, **rates} for setting, rates in self.limits.items()]
        return [*self.rows, *limits]

    @property
    def parts(self) -> list[Part]:
        shown = []
        for row in self.rows:
            shown.append({name: _shortly(row.get(name, "")) for name in self.table.columns})
        lines = []
        for setting, rates in self.limits.items():
            listed = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
            lines.append(f"{setting}: {listed}")
        return [Table(shown, [*self.table.columns]), LEGENDS[self.what], *lines]


def _shortly(value: Any) -> Any:
    """Return a float as text with three significant digits; any other value as it is."""
    if not isinstance(value, float):
        return value
    if value < 1000:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def _bench(options: argparse.Namespace) -> None:
    if options.rounds is not None and options.rounds < 1:
        raise ValueError(f"--rounds: got {options.rounds}, allowed is at least 1")
    table = bench.bench(options.what, options.rounds or bench.ROUNDS)
    show(options, Measured(options.what, table))


COMMANDS = {"bench": _bench}
