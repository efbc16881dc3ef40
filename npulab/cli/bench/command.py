"""``npulab bench``: the measured ratios as a table, with what its columns mean."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from npulab.cli import bench
from npulab.cli.output import Add, show
from npulab.support.answers import Answer, Part, Table
from npulab.support.late import pd
from npulab.support.text import Row, known, rows_of

LEGENDS = {
    "emulate": """
ms: all 28 layers of MobileNetV1-224 in one thread, the least time of each; of ENGINE: these ms divided by that
engine's in the same run, below 1 is faster; wrong: outputs that differ from the engine that the rule is named after
(of gemmlowp, from npulab.emulate).  Rows named tflite reference, tflite builtin or xnnpack are the engines themselves.
""",
    "decode": """
captures/s: a struct of 150 fields in 38 words, 100,000 captures (fewer for libraries that take one at a time) in one
thread, the best of all turns; ratio: npulab's captures/s divided by this row's in the same run, above 1 npulab is
faster; wrong: fields and words that came out wrong.  The row of a copy is what memory allows: a capture and its values.
""",
}


@dataclass(frozen=True, eq=False)
class Measured(Answer):
    """A table that ``npulab.bench`` gives of ``what``."""

    what: str
    table: pd.DataFrame

    @property
    def rows(self) -> list[Row]:
        return [
            {name: int(value) if name == "wrong" else value for name, value in known(row).items()}
            for row in rows_of(self.table)
        ]

    def records(self) -> list[Row]:
        return [
            *self.rows,
            *(
                {"setting": setting, **limits}
                for setting, limits in self.table.attrs["limits"].items()
            ),
        ]

    @property
    def parts(self) -> list[Part]:
        shown = [
            {
                name: _short(row[name]) if isinstance(row.get(name), float) else row.get(name, "")
                for name in self.table.columns
            }
            for row in self.rows
        ]
        limits = [
            f"{setting}: " + ", ".join(f"{name} {value:.3g}" for name, value in limits.items())
            for setting, limits in self.table.attrs["limits"].items()
        ]
        return [Table(shown, [*self.table.columns]), LEGENDS[self.what], *limits]


def _short(number: float) -> str:
    if number < 1000:
        return f"{number:.3g}"
    return f"{float(f'{number:.3g}'):,.0f}"


def _options(add: Add) -> None:
    add(
        "what",
        nargs="?",
        default="emulate",
        metavar="WHAT",
        help="emulate (beside TensorFlow Lite), decode (beside bitstruct and others)",
    )
    add(
        "--rounds", type=int, default=None, metavar="N", help="turns of which the least time counts"
    )


def _bench(options: argparse.Namespace) -> None:
    if options.rounds is not None and options.rounds < 1:
        raise ValueError(f"--rounds: got {options.rounds}, allowed is at least 1")
    show(options, Measured(options.what, bench.bench(options.what, options.rounds or bench.ROUNDS)))


COMMANDS = {"bench": (_options, _bench)}
