"""Imports traces: a file, the folder of a case, or folders of cases as in their repository."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from npulab.captures.target import each_read
from npulab.npus.kit import Capture, first_bytes, read_bounded
from npulab.npus.nvdla.cfg import provenance_of, read_cfg
from npulab.npus.nvdla.facts import CHIPS, FULL_CHIP, USUAL_CHIP, USUAL_CHIPS, block_of, maps
from npulab.npus.nvdla.recorded import block_of_addresses, captured
from npulab.npus.nvdla.txn import addresses_of, read_txn

CFG, TXN = ".cfg", ".txn"
IMAGES = (".dat", ".dat.gz")
DEPTH = 3  # levels of folders that are searched, the given folder included
PLACES = (
    "",
    "verif/tests/trace_tests",
    "verif/traces/traceplayer",
    "tests/trace_tests",
    "traces/traceplayer",
)
# Traces below these folders are of the full chip; folders with the name of a chip say it too.
FULL_FOLDERS = ("traceplayer", "nvdlav1")
SIGNS = {
    CFG: (b"reg_write(", b"mem_load(", b"mem_init("),
    TXN: (b"write_reg ", b"load_mem ", b"read_reg ", b"until "),
}
HEAD = 2**16
MOST_TEXT = 2**26


def recognises(path: Path) -> bool:
    """True for a trace, the folder of a case, or a folder of cases (in up to three levels, or in
    the folders of nvdla/hw)."""
    return next(_traces(path), None) is not None


def read(path: Path) -> dict[str, Capture | ValueError]:
    """Return, by the name of its case, a capture for each trace, or the ValueError if the trace is
    broken. Names are in ascending order.

    They are named and read as ``readers`` says.
    """
    return each_read(readers(path))


def readers(path: Path) -> dict[str, Callable[[], Capture]]:
    """Return the reader of each trace, by the name of its case, in the order of their names.

    A case has the name of its folder, or of its file if other traces lie in the same folder. If
    several cases would have the same name, they are named ``<chip>-<case>`` or, if they are of one
    chip too, by their whole path below ``path``. The names of the folders tell the chip. A reader
    raises the errors of ``read_trace``.
    """
    traces = [(file, _case(file), chip_of(file)) for file in _traces(path)]
    cases = Counter(case for _, case, _ in traces)
    chips = Counter((case, chip) for _, case, chip in traces)
    out: dict[str, Callable[[], Capture]] = {}
    for file, case, chip in traces:
        if cases[case] == 1:
            name = case
        elif chips[case, chip] == 1:
            name = f"{chip}-{case}"
        else:
            name = "-".join(file.relative_to(path).with_suffix("").parts)
        out[name] = partial(read_trace, file, name, chip)
    return out


def read_trace(path: Path, name: str = "", chip: str = "") -> Capture:
    """Return the capture in a trace, by default named as its folder and of the chip that its
    folders name.

    Raises ValueError naming file and line if it is broken.
    """
    chip = chip or chip_of(path)
    if chip not in CHIPS:
        near = difflib.get_close_matches(chip, CHIPS, 1)
        raise LookupError(f"chip: got {chip!r}, allowed are {', '.join(near or CHIPS)}")
    registers = maps(chip)
    try:
        text = read_bounded(path, MOST_TEXT).decode("utf-8", "replace")
        block = block_of(chip)
        if path.suffix == TXN:
            block = block_of_addresses(addresses_of(text))
            if block != block_of(chip):
                chip = USUAL_CHIPS[block]
            events = read_txn(path, text, registers[block])
        else:
            events = read_cfg(path, text, registers[block])
    except OSError as error:
        raise ValueError(f"{path}: {error.filename}: {error.strerror}") from None
    found = captured(path, name or _case(path), chip, block, events, registers)
    return replace(found, provenance=provenance_of(text))


def chip_of(path: Path) -> str:
    """Return the chip that the nearest folder of a trace names, else the usual chip of its kind."""
    for folder in path.absolute().parents:
        if folder.name in CHIPS:
            return folder.name
        if folder.name in FULL_FOLDERS:
            return FULL_CHIP
    if path.suffix == TXN:
        return FULL_CHIP
    return USUAL_CHIP


def _case(file: Path) -> str:
    folder = file.absolute().parent.name
    if folder and sum(other.suffix in SIGNS for other in file.parent.iterdir()) == 1:
        return folder
    return file.stem


def _traces(path: Path) -> Iterator[Path]:
    """Return the traces below a folder by name, or the given trace."""
    found = {path}
    if path.is_dir():
        found = set()
        for place, depth, kind in product(PLACES, range(DEPTH), SIGNS):
            found.update((path / place).glob("*/" * depth + f"*{kind}"))
    return filter(_is_trace, sorted(found))


def _is_trace(file: Path) -> bool:
    """True if a file begins as a trace, or if it has the name of its folder and images lie next to
    it.
    """
    if file.suffix not in SIGNS or not file.is_file():
        return False
    head = first_bytes(file, HEAD)
    if any(sign in head for sign in SIGNS[file.suffix]):
        return True
    if file.stem != file.absolute().parent.name and file.suffix != TXN:
        return False
    return any(other.name.endswith(IMAGES) for other in file.parent.iterdir())
