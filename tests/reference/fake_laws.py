"""A stand-in for what find_laws gives, with every status, made by hand from a small sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

ROWS, WORDS = 60, 5


@dataclass(frozen=True)
class FakeField:
    word: int
    lsb: int
    width: int
    steps: tuple[tuple[str, str], ...]
    support: tuple[int, ...]
    step: Any  # of a DataFrame, the number of the step
    value: Any
    open: bool = False

    @property
    def name(self) -> str:
        return f"w{self.word}_{self.lsb}_{self.width}"

    @property
    def text(self) -> str:
        return "; ".join(f"when {when} then {law}" if when else law for when, law in self.steps)

    def which(self, parameters: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.step(parameters))

    def values(self, parameters: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.value(parameters), np.int64)

    def rival_values(self, parameters: pd.DataFrame) -> dict[str, np.ndarray]:
        return {}


@dataclass(frozen=True)
class FakeLaws:
    words: np.ndarray
    parameters: pd.DataFrame
    table: pd.DataFrame
    fields: tuple[FakeField, ...]
    open: pd.DataFrame
    status: np.ndarray
    simulated: bool = False


def fake_laws(simulated: bool = False, words: int = WORDS) -> FakeLaws:
    """Word 0: output width (two steps), padding below it; word 1: an open run and nuisance; word
    2: rivals.
    """
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "input_w": rng.integers(4, 60, ROWS),
            "stride": rng.choice([1, 2], ROWS),
            "relu": rng.integers(0, 2, ROWS),
            "scale": rng.uniform(0.01, 1, ROWS),
        }
    )

    def out_w(given: pd.DataFrame) -> np.ndarray:
        return np.where(given["stride"] == 2, -(-given["input_w"] // 2), given["input_w"])

    fields = (
        FakeField(
            0,
            3,
            7,
            (("stride == 2", "ceil(input_w / 2)"), ("", "input_w")),
            (28, 32),
            lambda given: np.where(given["stride"] == 2, 0, 1),
            out_w,
        ),
        FakeField(
            2,
            0,
            1,
            (("", "relu"),),
            (60,),
            lambda given: np.zeros(len(given), int),
            lambda given: given["relu"],
        ),
        FakeField(
            3,
            8,
            8,
            (("", "5"),),
            (60,),
            lambda given: np.zeros(len(given), int),
            lambda given: np.full(len(given), 5),
        ),
    )
    data = np.zeros((ROWS, words), np.uint32)
    data[:, 0] = out_w(frame) * 8
    data[:, 1] = (rng.integers(0, 8, ROWS) + 8 * (frame["input_w"] > 30)) * 16 + rng.integers(
        0, 4, ROWS
    ) * 2**30
    data[:, 2] = frame["relu"]
    data[:, 3] = 5 * 2**8
    status = np.full((words, 32), "never exercised", "<U15")
    status[0, 3:10], status[1, 4:8], status[1, 30:], status[2, 0], status[3, 8:16] = (
        "law",
        "open",
        "nuisance",
        "rivals",
        "constant",
    )
    table = pd.DataFrame(
        [
            {
                "word": 0,
                "lsb": 3,
                "width": 7,
                "when": "stride == 2",
                "law": "ceil(input_w / 2)",
                "support": 28,
                "field": 0,
                "rivals": "",
                "extrapolated": False,
                "bits": 20.0,
            },
            {
                "word": 0,
                "lsb": 3,
                "width": 7,
                "when": "",
                "law": "input_w",
                "support": 32,
                "field": 0,
                "rivals": "",
                "extrapolated": False,
                "bits": 8.0,
            },
            {
                "word": 2,
                "lsb": 0,
                "width": 1,
                "when": "",
                "law": "relu",
                "support": 60,
                "field": 1,
                "rivals": "relu ^ (stride > 2)",
                "extrapolated": False,
                "bits": 8.0,
            },
            {
                "word": 3,
                "lsb": 8,
                "width": 8,
                "when": "",
                "law": "5",
                "support": 60,
                "field": 2,
                "rivals": "",
                "extrapolated": False,
                "bits": 4.0,
            },
        ]
    )
    left = pd.DataFrame(
        [
            {
                "word": 1,
                "bit": bit,
                "reason": "threshold" if bit == 7 else "no law",
                "detail": "between input_w 30 and 33" if bit == 7 else "",
                "related": "",
                "capture": {"input_w": 31, "stride": 1} if bit == 7 else None,
            }
            for bit in range(4, 8)
        ]
    )
    return FakeLaws(data, frame, table, fields, left, status, simulated)
