"""``npulab map``, ``new`` and ``trust``: convert register maps, make the folder of a new NPU, trust
its code.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from shlex import quote

from npulab.captures.registry import LOCAL, trust
from npulab.cli.output import Done, show
from npulab.npus.template import WORDS, Reading, jobs_in, new_target
from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats import FORMATS, of_blocks, of_chip, read_map, write_map
from npulab.registers.stated import against, statements
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

# What a record states about each part of a C header that a register map cannot hold.
LOST = ("kind", "name", "where", "why")
WORDS_SUFFIX = ".bin"  # suffix of a file with the words of one or several jobs

# Suffixes of the files that ``npulab map`` writes; its help text shows them.
SUFFIXES = dict.fromkeys(map(attrgetter("suffix"), FORMATS.values()))


def _map(options: argparse.Namespace) -> int:
    one = (options.dest is None) != (options.against is None)
    refuse_if(not one, "map", "OUT and --against, or neither", "is one of both")
    table = read_map(options.path, options.define, options.include)
    reading = table.reading
    if options.block is not None:
        table = of_blocks(table, options.block)
    if options.feature is not None:
        table = of_chip(table, options.feature)
    if options.against is not None:
        stated = against(table.rows, statements(options.against))
        show(options, stated)
        return int(stated.differ > 0)
    written = write_map(table, options.dest, options.to)
    counts = ", ".join(plural(count, name[:-1]) for name, count in table.counts.items())
    record = {"in": options.path, "out": list(map(str, written)), **table.counts}
    if reading is not None:
        counts = f"{counts}; {reading}"
        record |= {
            "lines": reading.lines,
            "explained": reading.explained,
            "unexplained": reading.unexplained,
            "lost": [dict(zip(LOST, lost, strict=True)) for lost in reading.lost],
        }
    show(options, Done(record, f"{Path(options.dest)}: {counts}"))
    return 0


def _new(options: argparse.Namespace) -> None:
    dest = options.dest and Path(options.dest)
    source = getattr(options, "from")  # options.from would be a syntax error
    written = new_target(
        options.name,
        dest,
        options.words,
        source,
        Reading(options.define, options.include, _opcodes(options.opcode), options.pattern),
    )
    folder = written[0].parent
    page = f"{folder / 'README.md'} says which file holds what, and the commands to try"
    following = [f"next: {page}"]
    if source is None:
        words = WORDS if options.words is None else options.words
        following = _next(options.name, folder, words)
    elif Path(source).suffix == WORDS_SUFFIX:
        words, jobs = jobs_in(Path(source), options.words)
        following = [*_next(options.name, folder, words, Path(source), jobs), page]
    if options.pattern is not None:
        pattern = f"--pattern {quote(options.pattern)} --target {options.name}"
        log = quote(source)
        following.append(f"  npulab import {log} captures/{options.name} {pattern}")
    names = ", ".join(path.name for path in written)
    record = {"target": options.name, "files": list(map(str, written))}
    show(options, Done(record, "\n".join([f"{folder}: {names}", *following])))


def _opcodes(texts: Sequence[str]) -> dict[str, str]:
    """Read texts ``NAME=ALTERNATIVE``, and return the alternatives by name of the opcode; raises
    ValueError for a text in another form.
    """
    out = {}
    for text in texts:
        name, equals, alternative = text.partition("=")
        wrong = not (name and equals and alternative)
        refuse_if(wrong, "--opcode", f"{text!r:.80}", "is NAME=ALTERNATIVE")
        out[name] = alternative
    return out


def _next(
    name: str, folder: Path, words: int, source: Path = Path("words.bin"), jobs: int = 1
) -> list[str]:
    """Return lines that say what to do next, as commands with paths from the working folder."""
    here, size = Path.cwd(), WORD_BYTES * words
    away = []
    where = quote(str(source))
    if folder.parent.name == LOCAL and folder.parents[1] != here:
        away = [f"  cd {quote(str(folder.parents[1]))}"]
        where = quote(str(source.resolve()))
    table = folder / "registers.csv"
    if table.is_relative_to(here):
        table = table.relative_to(here)
    copied = f"cp {where} first/words.bin"
    of = f"a job in {source}"
    if jobs > 1:
        copied = f"head -c {size} {where} > first/words.bin"
        of = f"the first of {jobs} jobs in {source}"
    return [
        f"next, with the {words} words of {of} ({size} bytes, little-endian):",
        *away,
        f'  mkdir first && {copied} && echo \'{{"npu": "{name}"}}\' > first/job.json',
        "  npulab show first",
        f"  npulab import first captures/{name}",
        f"then write a row of {table} for each thing you find out, and show it again; "
        "its tests run with pytest, of npulab[test]",
    ]


def _trust(options: argparse.Namespace) -> None:
    for folder in options.folders:
        record = str(trust(Path(folder)))
        text = f"{folder}: is trusted, as {record} says"
        show(options, Done({"trusted": folder, "record": record}, text))


COMMANDS = {
    "map": _map,
    "new": _new,
    "trust": _trust,
}
