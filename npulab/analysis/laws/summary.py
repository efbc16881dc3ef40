"""The laws of a sweep as text and as records: the laws, the open bits, and what to capture next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npulab.analysis.laws.found import Laws
from npulab.captures.sweep import Sweep
from npulab.captures.sweep_store import SweepStore
from npulab.support.answers import Answer, Part, Table
from npulab.support.text import Row, brief, plural, rows_of

if TYPE_CHECKING:
    import pandas as pd

STATUSES = ("law", "rivals", "open", "nuisance", "never exercised", "constant")
RELATED_SHOWN = 3
NEXT = "\nto capture next"
DRAWN = (
    " (each parameter drawn on its own within what was captured: where they depend on one another, "
    "give "
    "--candidates)"
)


@dataclass(frozen=True, eq=False)
class Summary(Answer):
    """The laws of a sweep, its ``open`` bits, and a ``plan``: the layers to capture next.

    ``drawn`` is true if the layers of the plan were drawn at random, and not taken from a table of
    candidates.
    """

    sweep: Sweep | SweepStore
    laws: Laws
    open: pd.DataFrame
    plan: pd.DataFrame | None = None
    drawn: bool = True

    @property
    def statuses(self) -> dict[str, int]:
        """The number of bits of each status."""
        return {name: int((self.laws.status == name).sum()) for name in STATUSES}

    def records(self) -> list[Row]:
        about: Row = {
            "kind": "sweep",
            "sweep": self.sweep.name,
            f"{self.sweep.unit}s": len(self.sweep),
            "captured_for": self.laws.captured_for,
            "simulated": self.sweep.simulated,
            "bits": self.statuses,
        }
        if self.sweep.looked_at:
            about["looked_at"] = self.sweep.looked_at
        rows = [about]
        for field in self.laws.fields:
            rows.append(
                {
                    "kind": "field",
                    "field": field.called,
                    "word": field.word,
                    "lsb": field.lsb,
                    "width": field.width,
                    "steps": [
                        {"when": when, "law": law, "support": n, "probability": p}
                        for (when, law), n, p in zip(
                            field.steps, field.support, field.probability, strict=True
                        )
                    ],
                    "rivals": list(field.rivals),
                    "extrapolated": field.extrapolated,
                }
            )
        rows += [{"kind": "open", **row} for row in rows_of(self.open)]
        if self.plan is None:
            plan = []
        else:
            plan = rows_of(self.plan)
        return rows + [{"kind": "plan", "parameters": row} for row in plan]

    @property
    def parts(self) -> list[Part]:
        fields = []
        for field in self.laws.fields:
            for i, ((when, law), support) in enumerate(
                zip(field.steps, field.support, strict=True)
            ):
                fields.append(
                    {
                        "field": field.called,
                        "word": field.word,
                        "bits": _span(field.lsb, field.width),
                        "when": "else" if i and when == "always" else when,
                        "law": law,
                        "support": support,
                        "rivals": len(field.rivals) if i == 0 else "",
                    }
                )
        counts = self.statuses
        varying = {name: counts[name] for name in ("law", "rivals", "open")}
        simulated = " (simulated)" if self.sweep.simulated else ""
        parts: list[Part] = [
            repr(self.sweep),
            Table(fields, ["field", "word", "bits", "support", "rivals", "when", "law"]),
            "",
            f"{plural(sum(varying.values()), 'varying bit')}{simulated}: "
            + ", ".join(f"{count} {name}" for name, count in varying.items())
            + f"; {counts['nuisance']} nuisance, {counts['never exercised']} never exercised",
        ]
        if self.laws.captured_for:
            parts.append(
                f"captured {self.laws.captured_for}; nothing is proved of layers with other numbers"
            )
        if unproved := rows_of(self.open):
            parts += [
                "\nnot proved for every layer:",
                Table(
                    _runs(unproved, self.laws),
                    ["field", "word", "bits", "reason", "detail", "related"],
                ),
            ]
        if self.plan is not None:
            parts += [
                f"{NEXT}{DRAWN if self.drawn else ''}:",
                Table(brief(rows_of(self.plan)), [*self.plan]),
            ]
        return parts


def _runs(bits: Sequence[Row], laws: Laws) -> list[Row]:
    """The rows of open bits; adjacent bits with one reason and one detail share a row."""
    runs: list[list[Row]] = []
    for bit in bits:
        last = {}
        if runs:
            last = runs[-1][-1]
        if last.get("bit") == bit["bit"] - 1 and all(
            last[name] == bit[name] for name in ("word", "reason", "detail")
        ):
            runs[-1].append(bit)
        else:
            runs.append([bit])
    related = []
    for run in runs:
        texts = [text for bit in run for text in bit["related"].split(", ")]
        related.append(dict.fromkeys(text.split(" ")[0] for text in texts))
    found = []
    for run, names in zip(runs, related, strict=True):
        found.append(
            {
                **run[0],
                "field": laws.naming.called(run[0]["word"], run[0]["bit"], len(run)),
                "bits": _span(run[0]["bit"], len(run)),
                "related": ", ".join([*names][:RELATED_SHOWN]),
            }
        )
    return found


def _span(lsb: int, width: int) -> str:
    if width > 1:
        return f"{lsb + width - 1}:{lsb}"
    return str(lsb)
