"""Fit the priors of the families of alternatives, ``npulab/analysis/laws/families.csv``:

    PYTHONPATH=tests:tests/reference:tests/tools python tests/tools/fit_families.py FOLDER
    [--judge] [--plot FILE]

Laws are made from layers at random of the sources in ``FITTED`` (those in ``JUDGED`` judge and are
not fitted), and kept in FOLDER for the next run. A claim is a field on a layer that was not
captured. The odds that it is wrong are the sum of the priors times the masses of the families; the
priors are those of the greatest likelihood, found by repeated division of each wrong claim among
the families that could explain it. A family that no claim has keeps the prior that it has, as
assumed.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench_claims import SOURCES, kept, splits, told_apart

import npulab
from npulab.analysis.laws.findings import fill
from npulab.analysis.laws.posterior import CLAIM, alternatives, families, masses

FITTED = (
    "vivante-layers",
    "vivante-layers-s905d3",
    "nvdla",
    "onert",
    "ethos-u55-128",
    "vendor-a311d",
    "descriptor",
    "ethos-u85-256",
)
LEARNT = {24: 4, 64: 3, 200: 2}  # layers that laws are learnt from, and how many times
MOST_LAYERS = max(LEARNT)
JUDGED = tuple(name for name in SOURCES if name not in FITTED)
STEPS = 300  # of the fit: the likelihood then changes in the sixth digit
# claims that a family is given before any is counted, and how many of them are wrong: 0.02 of 0.4
SEEN, WRONG = 0.4, 0.02
MOST = 1.0  # an alternative is never more probable than the law


class Claims(NamedTuple):
    """Claims on unseen layers: the mass of each family ``(C, families)``, which are wrong, how many
    bits each has, and the cells (bits x layers that vary) of all layers."""

    source: str
    masses: np.ndarray
    wrong: np.ndarray
    bits: np.ndarray
    cells: int


def claims_of(name: str, folder: Path, count: int, runs: int) -> Iterator[Claims]:
    words, layers = kept(name, folder)
    same, own = told_apart(words, layers)
    count = min(count, int(0.8 * (same.max() + 1)))
    for run, (seen, unseen) in enumerate(splits(same, count, runs)):
        path = folder / f"laws-{name}-{count}-{run}.pkl"
        if not path.exists():
            began = time.process_time()
            laws = npulab.find_laws(words[seen], layers.iloc[seen], progress=lambda text: None)
            path.write_bytes(pickle.dumps(laws))
            print(f"# {path.name}: {time.process_time() - began:.1f} s", flush=True)
        laws = pickle.loads(path.read_bytes())
        frame = layers.iloc[unseen].reset_index(drop=True)
        yield _claims(name, laws, words[unseen], frame, own)


def _claims(name: str, laws: npulab.Laws, words: np.ndarray, layers, own: np.ndarray) -> Claims:
    findings, names = laws._findings, list(families())
    every = np.concatenate([laws.words, words])
    varying = np.bitwise_or.reduce(every ^ every[:1], axis=0) & ~laws.nuisance & ~own
    asked = laws._columns(layers)
    values = fill(findings.ready, asked)
    of_field: dict[str, np.ndarray] = {}
    parts = []
    for solved, others in alternatives(findings, asked):
        table = np.zeros((asked.n, len(names)))
        for family, mass in masses(solved, others, asked.n).items():
            table[:, names.index(family)] = mass.max(1)
        for read in solved.reads:
            table += of_field[read]
        table[solved.decide(asked) < 0] = np.inf
        of_field[solved.name] = table
        counted = int(varying[solved.word]) & solved.mask
        if counted:
            wrong = (solved.placed(values[solved.name]) ^ words[:, solved.word]) & counted != 0
            bits = np.full(asked.n, counted.bit_count())
            decided = np.isfinite(table).all(1)
            parts.append((table[decided], wrong[decided], bits[decided]))
    cells = int(np.bitwise_count(varying).sum()) * len(words)
    return Claims(name, *(np.concatenate(rows) for rows in zip(*parts, strict=True)), cells)


def fitted(claims: list[Claims]) -> np.ndarray:
    """The priors of the greatest likelihood, in the order of the table."""
    mass = np.concatenate([one.masses for one in claims])
    wrong = np.concatenate([one.wrong for one in claims])
    prior = np.array([family.prior for family in families().values()])
    known = (mass > 0).any(0)
    start = np.where(known, 0.01, prior)
    for _ in range(STEPS):
        odds = mass @ start + 1e-12
        explained = (mass[wrong] * start / odds[wrong, None]).sum(0)
        asked = (mass / (1 + odds)[:, None]).sum(0)
        start = np.where(known, np.minimum((explained + WRONG) / (asked + SEEN), MOST), prior)
    return start


def judged(claims: Claims, prior: np.ndarray) -> str:
    right = 1 / (1 + claims.masses @ prior)
    sure = right >= CLAIM
    bits, wrong = claims.bits[sure].sum(), (claims.bits * claims.wrong)[sure].sum()
    told = []
    for low, high in ((0.9, 0.95), (0.95, 0.98), (0.98, 0.99), (0.99, 0.995), (0.995, 1.01)):
        here = (right >= low) & (right < high)
        if here.any():
            told.append(f"{low:g}: {1 - claims.wrong[here].mean():.4f} of {here.sum()}")
    return (
        f"{claims.source:24s} claimed {bits / claims.cells:.4f}, wrong {100 * wrong / max(bits, 1):.4f} %; "
        f"came true from {', '.join(told)}"
    )


def drawn(claims: list[Claims], prior: np.ndarray, file: Path) -> None:
    """Draw how many claims came true against the probability told, on scales of odds."""
    from matplotlib import pyplot

    wrong = np.concatenate([one.wrong for one in claims])
    told = np.concatenate([one.masses @ prior for one in claims])
    told = told / (1 + told)
    edges = np.logspace(-5, -0.3, 16)
    middle, share = [], []
    for low, high in itertools.pairwise(edges):
        here = (told >= low) & (told < high)
        if here.sum() >= 100:
            middle.append(told[here].mean())
            share.append(max(wrong[here].mean(), 1e-6))
    axes = pyplot.subplots()[1]
    axes.loglog(edges, edges, label="as told")
    axes.loglog(middle, share, "o", label="unseen layers")
    axes.set(xlabel="told: share of claims that is wrong", ylabel="wrong")
    axes.legend()
    axes.figure.savefig(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judge", action="store_true", help="also the sources that are not fitted")
    parser.add_argument(
        "--plot", type=Path, help="a picture of what came true, of all sources shown"
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    found = [
        one
        for name in FITTED
        for count, runs in LEARNT.items()
        for one in claims_of(name, asked.folder, count, runs)
    ]
    prior = fitted(found)
    mass = np.concatenate([one.masses for one in found])
    for number, (name, family) in enumerate(families().items()):
        print(
            f"{name:12s} {prior[number]:.5f} (was {family.prior:g}), {(mass[:, number] > 0).sum()} claims"
        )
    if asked.judge:
        found = [one for name in JUDGED for one in claims_of(name, asked.folder, MOST_LAYERS, 2)]
    for one in found:
        print(judged(one, prior), flush=True)
    if asked.plot:
        drawn(found, prior, asked.plot)
