"""Write the table of the rooms in npulab/README.md from the code: their rows, purposes and imports.

python tests/tools/write_rooms.py                     # the table in npulab/README.md, renewed
python tests/tools/write_rooms.py --files map editor  # the files about "map" and "editor", printed
python tests/tools/write_rooms.py --lines             # the rooms with their lines of code, printed
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

from test_house import PACKAGE, ROWS, arrows

README = PACKAGE / "README.md"
BEGIN = "<!-- the rooms: `python tests/tools/write_rooms.py` writes what is between these comments -->\n"
END = "<!-- end of the rooms -->\n"


def rooms_table() -> str:
    """The rooms in Markdown, from the top row down, each with the folders in it.

    The first paragraph of a package's docstring is its purpose; what only a type checker reads is
    no import.
    """
    below: dict[str, set[str]] = {}
    for _, room, _, imported in arrows():
        below.setdefault(room, set()).add(imported)
    lines = ["| row | room | purpose | imports |", "| --- | --- | --- | --- |"]
    for row, rooms in reversed([*enumerate(ROWS[:-1])]):
        for room in sorted(rooms):
            imports = " ".join(
                name for names in ROWS for name in sorted(names & below.get(room, set()))
            )
            lines.append(f"| {row} | **{room}/** | {purpose(PACKAGE / room)} | {imports or '-'} |")
            lines += [
                f"| | {room}/{folder.name}/ | {purpose(folder)} | |"
                for folder in folders(PACKAGE / room)
            ]
    return "\n".join(lines) + "\n"


def purpose(folder: Path) -> str:
    """The first paragraph of a package's docstring, as one line."""
    return purpose_of_file(folder / "__init__.py")


def purpose_of_file(path: Path) -> str:
    """The first paragraph of a module's docstring, or of the comment at the head of a script, as
    one line.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = text.replace("\n//", "\n").lstrip("/* ")
    return " ".join(text.split("\n\n")[0].split()).removesuffix(".").replace("``", "`")


def files_about(words: list[str]) -> list[str]:
    """Lines "path: purpose" of the Python files and scripts whose line has all words."""
    lines = []
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]):
        name = path.relative_to(PACKAGE).as_posix()
        line = f"{name}: {purpose_of_file(path)}"
        if all(word.lower() in line.lower() for word in words):
            lines.append(line)
    return lines


def folders(room: Path) -> list[Path]:
    """The packages in a room."""
    return sorted(path.parent for path in room.glob("*/__init__.py"))


def stored() -> str:
    """The table as npulab/README.md has it."""
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def lines_of_code(folder: Path) -> int:
    """Lines of Python below a folder that hold code: no blank line, no comment, no docstring."""
    count = 0
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        docs = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        count += sum(
            1
            for number, line in enumerate(text.splitlines(), 1)
            if number not in docs and line.strip() and not line.lstrip().startswith("#")
        )
    return count


def main() -> None:
    if sys.argv[1:] == ["--lines"]:
        for room in sorted(set.union(*ROWS[:-1])):
            for folder in (PACKAGE / room, *folders(PACKAGE / room)):
                print(f"{lines_of_code(folder):6}  {folder.relative_to(PACKAGE)}/")
    elif sys.argv[1:2] == ["--files"]:
        print("\n".join(files_about(sys.argv[2:])))
    else:
        before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        README.write_text(
            before + BEGIN + rooms_table() + END + rest.partition(END)[2], encoding="utf-8"
        )


if __name__ == "__main__":
    main()
