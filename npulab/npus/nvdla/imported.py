"""Importers: one trace, the folder of a case, and folders of them as they lie in their
repository."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from npulab.captures.target import each_read
from npulab.npus.kit import Capture, first_bytes, read_bounded
from npulab.npus.nvdla.cfg import provenance_of, read_cfg
from npulab.npus.nvdla.facts import CHIPS, FULL_CHIP, USUAL_CHIP, block_of, maps
from npulab.npus.nvdla.images import GZIPPED
from npulab.npus.nvdla.recorded import block_of_addresses, captured
from npulab.npus.nvdla.txn import addresses_of, read_txn

CFG, TXN, IMAGE = ".cfg", ".txn", ".dat"
DEPTH = 3  # folders below the one that was asked for
PLACES = (
    "",
    "verif/tests/trace_tests",
    "verif/traces/traceplayer",
    "tests/trace_tests",
    "traces/traceplayer",
)
# folders that say which chip the traces below them are of, besides those with the name of a chip
FULL_FOLDERS = ("traceplayer", "nvdlav1")
SIGNS = {
    CFG: (b"reg_write(", b"mem_load(", b"mem_init("),
    TXN: (b"write_reg ", b"load_mem ", b"read_reg ", b"until "),
}
HEAD = 2**16
MOST_TEXT = 2**26


def recognises(path: Path) -> bool:
    """A trace, a folder of a case, or one that has some (up to three folders down, or where
    nvdla/hw has them)."""
    return next(_traces(path), None) is not None


def read(path: Path) -> dict[str, Capture | ValueError]:
    """A capture per trace, or the ValueError of one that is broken, in the order of their names.

    They are named and read as ``readers`` says.
    """
    return each_read(readers(path))


def readers(path: Path) -> dict[str, Callable[[], Capture]]:
    """What reads each trace, by the name of its case, in the order of their names.

    A case is called as its folder (a trace that has others beside it as its file),
    ``<chip>-<case>`` where several are. The chip is told from the names of the folders.  A reader
    raises as ``read_trace``.
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
    """The capture in one trace, by default with the name of its folder and of the chip that its
    folders name.

    Raises ValueError naming file and line for one that is broken.
    """
    chip = chip or chip_of(path)
    if chip not in CHIPS:
        near = difflib.get_close_matches(chip, CHIPS, 1)
        raise LookupError(f"chip: got {chip!r}, allowed are {', '.join(near or CHIPS)}")
    registers = maps(chip)
    try:
        text = read_bounded(path, MOST_TEXT).decode("utf-8", "replace")
        full = path.suffix == TXN
        if full:
            block = block_of_addresses(addresses_of(text), block_of(FULL_CHIP))
        else:
            block = block_of(chip)
        if block != block_of(chip):
            chip = FULL_CHIP
            if block == block_of(USUAL_CHIP):
                chip = USUAL_CHIP
        events = (read_txn if full else read_cfg)(path, text, registers[block])
    except OSError as error:
        raise ValueError(f"{path}: {error.filename}: {error.strerror}") from None
    found = captured(path, name or _case(path), chip, block, events, registers)
    return replace(found, provenance=provenance_of(text))


def chip_of(path: Path) -> str:
    """The chip that the nearest folder of a trace names, the usual one of its kind where none
    does."""
    for folder in path.absolute().parents:
        if folder.name in CHIPS:
            return folder.name
        if folder.name in FULL_FOLDERS:
            return FULL_CHIP
    if path.suffix == TXN:
        return FULL_CHIP
    return USUAL_CHIP


def _case(file: Path) -> str:
    alone = sum(other.suffix in SIGNS for other in file.parent.iterdir()) == 1
    if alone and file.absolute().parent.name:
        return file.absolute().parent.name
    return file.stem


def _traces(path: Path) -> Iterator[Path]:
    """The traces below a folder by name, or the one that was asked for."""
    if not path.is_dir():
        found = [path]
    else:
        patterns = [
            "/".join(filter(None, (place, *["*"] * depth, f"*{kind}")))
            for place in PLACES
            for depth in range(DEPTH)
            for kind in SIGNS
        ]
        found = sorted({file for pattern in patterns for file in path.glob(pattern)})
    return (file for file in found if _is_trace(file))


def _is_trace(file: Path) -> bool:
    """Whether it begins as one, or is where one has to be: beside images, with the name of its
    folder."""
    if file.suffix not in SIGNS or not file.is_file():
        return False
    head = first_bytes(file, HEAD)
    if any(sign in head for sign in SIGNS[file.suffix]):
        return True
    named = file.stem == file.absolute().parent.name or file.suffix == TXN
    return named and any(
        other.name.removesuffix(GZIPPED).endswith(IMAGE) for other in file.parent.iterdir()
    )
