"""``npulab bisect``, ``laws`` and ``repair``: find the fields that break a capture, find the laws
of fields, repair a journal.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from npulab.analysis.bisect import (
    Bisection,
    Trying,
    bisect_fields,
)
from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.controlled import controlled_of
from npulab.captures.devices import (
    Against,
    Manual,
    Probed,
    Recorder,
    Simulated,
    device,
)
from npulab.captures.journal import POISONS, repair
from npulab.captures.roles import PRESENCE, Roles, roles
from npulab.captures.sweep import Sweep, is_sweep, load_captures, load_sweep, sweep_of
from npulab.captures.sweep_store import SweepStore, is_store, open_store
from npulab.cli.devices import (
    asked_device,
    controlled,
    wants_controls,
)
from npulab.cli.output import Done, show, tell, tell_stopped
from npulab.cli.roles import chosen_jobs, tell_part
from npulab.cli.terminal import progress
from npulab.cli.verdicts import IS_VERDICT, refuse_other, write_verdict
from npulab.cli.workers import has_workers, refuse_workers, workers_of
from npulab.registers.formats.tables import table_text
from npulab.registers.table import COLUMNS
from npulab.support.files import replace_file, write_file
from npulab.support.refuse import refusing
from npulab.support.text import plural

if TYPE_CHECKING:
    from npulab.analysis.laws.summary import Summary

MAP_SUFFIX = ".csv"
IMPORTS = b"\nimport npulab\nimport npulab.analysis.bisect\n"


def _bisect(options: argparse.Namespace) -> int:
    good, bad = store.load(options.good), store.load(options.bad)
    oracle = _oracle(options, good, bad)
    refuse_workers(options, oracle)
    if options.verdict:
        refuse_other("verdict", options.verdict, "verdict", IS_VERDICT)
    if options.script:
        refuse_other("script", options.script, "script of bisect", IMPORTS)
    if options.max_hangs < 1:
        raise ValueError(f"--max-hangs: got {options.max_hangs}, allowed is at least 1")
    by_hand = options.device.startswith("manual")
    try:
        with workers_of(options) as executor, progress("trial", hidden=by_hand) as bar:

            def told(session: Bisection) -> None:
                outcome, likely = session.journal[-1].outcome, session.suspects[:1]
                suspect = ""
                if likely:
                    suspect = f", likely {likely[0].text:.60}"
                bar(session.queries, session.queries + session.left, outcome + suspect)

            found = bisect_fields(
                good,
                bad,
                oracle,
                different_layers=options.different_layers,
                journal=options.resume,
                **_settings(options),
                max_hangs=options.max_hangs,
                progress=told,
                asking=_print_trial if by_hand else None,
                executor=executor,
            )
    except (KeyboardInterrupt, EOFError):
        tell_stopped(options.resume, "trial")
        return 1
    show(options, found)
    watched = controlled_of(oracle)
    if watched is not None:
        tell(watched.sentence)
    if options.verdict and watched is not None:
        write_verdict(options, found, watched, _settings(options))
    if options.script:
        replace_file(Path(options.script), found.script(options.good, options.bad).encode())
    return int(not found.found)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``Bisection`` that decide its trials and its answer, as JSON values."""
    units = [unit.split(",") for unit in options.unit or []]
    return {
        "flake_rate": _flake(options.flake),
        "certainty": options.certainty,
        "units": units or None,
        "addresses": options.addresses,
        "symptom": options.symptom,
        "seed": options.seed,
    }


def _oracle(options: argparse.Namespace, good: Capture, bad: Capture) -> Callable[[Capture], str]:
    """Return the function that gives a capture's outcome. It asks the device; if the options ask
    for it, it also asks a second device, runs the good capture after each trial or controls between
    trials, and records the trials.
    """
    more = {}
    if options.by_status:
        more = {"output": None}
    device = asked_device(options, good, **more)
    oracle: Callable[[Capture], str] = device
    if options.against is not None:
        oracle = _against(options, device, good)
    with_controls = wants_controls(options) or options.verdict
    if with_controls:
        for name in ("against", "probe"):
            if getattr(options, name):
                raise ValueError(
                    f"--{name}: got controls too (--verdict needs them), allowed is one of the two"
                )
        oracle = controlled(options, device, good, bad, poisons_first=options.symptom == POISONS)
    elif options.probe or options.symptom == POISONS:
        if isinstance(device, Manual):
            raise ValueError(
                f"--probe: got --device {options.device!r}, allowed is a device that runs "
                "without a person"
            )
        probe = good
        if device.expected is not None:
            probe = good.with_buffers(output=device.expected)
        oracle = Probed(device, probe, options.symptom == POISONS)
    if not options.record:
        return oracle
    about = {}
    if not isinstance(device, Simulated):
        about = {"provenance": options.provenance or "board"}
    return Recorder(oracle, options.record, **about)


def _against(options: argparse.Namespace, first: Any, good: Capture) -> Against:
    """Return an oracle that compares two devices: ``first``, and the device of ``--against``.
    Raises ValueError if a person runs one of them, or if the good capture ends differently on them.
    """
    other = device(options.against, good.buffers.get("output"))
    if options.probe or options.symptom == POISONS:
        raise ValueError(
            "--against: got --probe or --symptom poisons too, allowed is --against alone"
        )
    if isinstance(first, Manual) or isinstance(other, Manual):
        raise ValueError(
            f"--against: got {options.against!r} and {options.device!r}, allowed are two devices "
            "that run without a person"
        )
    both = Against(first, other)
    run = both.run(good)
    if both.judge(good, run) != "pass":
        raise ValueError(
            f"{options.good}: the devices disagree about it ({run.reason}), allowed is a capture "
            "that ends alike on both"
        )
    return both


def _print_trial(trial: Trying) -> None:
    print(f"\n{trial}")


def _flake(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--flake: got {text!r}, allowed is a rate from 0 up to 0.5, or auto"
        ) from None


def _laws(options: argparse.Namespace) -> int:
    if options.plan is not None and options.plan < 1:
        raise ValueError(f"--plan: got {options.plan}, allowed is at least 1")
    if options.candidates and options.plan is None:
        raise ValueError(
            f"--candidates: got {options.candidates} but no --plan, allowed is --plan N with it"
        )
    _refuse_map(options.map)
    if options.named and not options.map:
        raise ValueError("--named: got no --map, allowed is --map FILE with it")
    session = None
    if options.session:
        from npulab.cli.sessions import session_of_laws

        session = session_of_laws(options.session, options.sweep, options.map)
    chosen = chosen_jobs(options)
    sweep: Sweep | SweepStore
    if is_store(options.sweep) and not chosen:
        sweep = open_store(options.sweep)
    elif is_sweep(options.sweep) or {"role", "job"} & chosen.keys():
        sweep = load_sweep(options.sweep, options.chip, options.target, **chosen)
    else:
        captures = load_captures(options.sweep, options.chip, options.target)
        several = any(len(capture.jobs) > 1 for capture in captures)
        if several or options.block is not None:
            known = roles(captures)
            names = list(known.names)
            if options.block is not None:
                names = known.of_block(options.block)
            if len(names) > 1:
                return _laws_of_roles(options, known, names)
            chosen = {"role": names[0]}
        with refusing(options.sweep):
            sweep = sweep_of(captures, Path(options.sweep).resolve().stem, **chosen)
    if has_workers(options):
        raise ValueError(
            "--jobs, --cluster: got the words of one role, allowed are captures of several roles, "
            "which processes share; leave the options out: one process searches one role"
        )
    told: dict[str, None] = {}
    with progress("step") as bar:
        found = _laws_of(options, sweep, bar, count(1), told)
    for text in told:
        tell(text)
    if options.map:
        from npulab.analysis.named import named_rows

        rows = found.laws.register_rows(sweep.block)
        if options.named:
            rows = named_rows(found.laws, sweep.block)
        write_file(Path(options.map), table_text(COLUMNS, rows).encode())
    if session is not None:
        from npulab.cli.sessions import keep_laws

        keep_laws(session, options.sweep, found.laws, options.map)
    show(options, found)
    if not chosen:
        tell_part(sweep.looked_at, "PATH")
    return int(found.laws.stopped)


def _laws_of(
    options: argparse.Namespace,
    sweep: Sweep | SweepStore,
    bar: Callable[..., None],
    steps: Iterator[int],
    told: dict[str, None],
) -> Summary:
    """Return the laws of a sweep, with its open bits and the plan that the options ask for; add the
    texts for stderr to ``told``, as keys.
    """
    from npulab.analysis.laws import find_laws
    from npulab.analysis.laws.inputs import candidate_layers, field_bits, named_bits
    from npulab.analysis.laws.summary import Summary

    nuisance = named_bits(options.nuisance, sweep.counts["words"], sweep.registers)
    registers = None
    if options.field:
        registers = sweep.registers
        others = ~field_bits(options.field, registers)
        nuisance = others if nuisance is None else nuisance | others
    layers = None
    if options.candidates:
        layers = candidate_layers(options.candidates, sweep)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = find_laws(
            sweep,
            nuisance=nuisance,
            registers=registers,
            progress=lambda text: bar(next(steps), None, f"{text:.60}"),
        )
        bar(next(steps), None, "what is open")
        unproved, plan = found.open, None
        if options.plan is not None:
            plan = found.next_captures(options.plan, candidates=layers)
    if found.stopped:
        told["stopped; these are the laws found so far, each is proved on every capture"] = None
    for warning in caught:
        if isinstance(warning.message, UserWarning):
            told[str(warning.message)] = None
    return Summary(sweep, found, unproved, plan, drawn=layers is None)


def _laws_of_roles(options: argparse.Namespace, known: Roles, names: list[str]) -> int:
    """Show the laws of several roles, and the laws of how often captures have a role. Roles are
    searched one after another in this process, or each by a worker.
    """
    from npulab.analysis.laws.by_role import Search, laws_of_roles

    for name in ("plan", "nuisance", "map"):
        if getattr(options, name):
            raise ValueError(
                f"--{name}: got {plural(len(names), 'role')} ({', '.join(names)}), allowed is one "
                "role, chosen with --role"
            )
    searched = list(names)
    if options.field:
        searched = _with_fields(options.field, known, names)
    if len(searched) == len(known):
        # which captures have a role is searched only if all roles are searched
        searched.append(PRESENCE)
    stop = Event()
    unit = "role"
    if not has_workers(options):
        unit = "step"
    with workers_of(options) as executor, progress(unit) as bar:
        # only this process moves the bar: at each step of its own search, or at each role that a
        # worker ends
        search: Search = partial(_laws_and_told, options)
        moved: Any = partial(_move_by_role, bar)
        if executor is None:
            search = partial(_laws_and_told, options, bar=bar, steps=count(1), stop=stop)
            moved = None
        found = laws_of_roles(known, searched, executor, search=search, stop=stop, progress=moved)
    for text in dict.fromkeys(chain.from_iterable(one.told for one in found.found)):
        tell(text)
    show(options, found)
    return int(stop.is_set())


def _move_by_role(bar: Callable[..., None], name: str, done: int, every: int) -> None:
    bar(done, every, name)


def _laws_and_told(
    options: argparse.Namespace,
    sweep: Sweep,
    bar: Callable[..., None] | None = None,
    steps: Iterator[int] | None = None,
    stop: Event | None = None,
) -> tuple[Summary, tuple[str, ...]]:
    """Return the laws of a sweep, and the texts for stderr; set ``stop`` if a person stopped the
    search.
    """
    told: dict[str, None] = {}
    found = _laws_of(options, sweep, bar or _no_bar, steps or count(1), told)
    if stop is not None and found.laws.stopped:
        stop.set()
    return found, tuple(told)


def _no_bar(*step: object) -> None:
    """A bar that shows nothing, for workers: they cannot move the bar of another process."""


def _with_fields(globs: list[str], known: Roles, names: list[str]) -> list[str]:
    """Return those roles of ``names`` in which each glob fits a field; raises LookupError if there
    is none."""
    from npulab.analysis.laws.inputs import field_bits

    wanted = []
    errors = []
    for name in names:
        try:
            field_bits(globs, known.sweep(name).registers)
        except LookupError as error:
            errors.append(error)
        else:
            wanted.append(name)
    if not wanted:
        raise errors[0]
    return wanted


def _refuse_map(path: str | None) -> None:
    """Raise an error, before the search, if the map could not be written to the path after it:
    ValueError for another suffix than .csv, FileExistsError for a file that exists.
    """
    if path is not None and Path(path).suffix != MAP_SUFFIX:
        raise ValueError(f"--map: got {path}, allowed is a file {MAP_SUFFIX}")
    if path is not None and Path(path).exists():
        raise FileExistsError(f"{path}: is there already; give another path, or move it away")


def _repair(options: argparse.Namespace) -> None:
    kept, dropped = repair(options.journal, options.into)
    text = f"{options.into}: {plural(len(kept), 'trial')}, dropped: {plural(len(dropped), 'line')}"
    record = {"journal": options.into, "trials": len(kept), "dropped": dropped}
    show(options, Done(record, "\n".join([text, *dropped])))


COMMANDS = {
    "bisect": _bisect,
    "laws": _laws,
    "repair": _repair,
}
