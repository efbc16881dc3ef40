"""Words that no target describes become a sweep: every form gives the same one, and damaged input
ends in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npulab
from npulab.captures.sweep import load_sweep
from npulab.cli.shell import main

WORDS = np.random.default_rng(3).integers(0, 2**32, (12, 5)).astype(np.uint32)
WIDTHS = [[n + 7, n % 3] for n in range(len(WORDS))]
TABLE = "name,input_w,stride\n" + "".join(
    f"run{n},{width},{stride}\n" for n, (width, stride) in enumerate(WIDTHS)
)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, in which the test runs, with the words in every form and a table of the layers."""
    monkeypatch.chdir(tmp_path)
    Path("all.bin").write_bytes(WORDS.tobytes())
    Path("big.bin").write_bytes(WORDS.astype(">u4").tobytes())
    np.save("all.npy", WORDS)
    np.save("flat.npy", WORDS.ravel().astype(np.int64))
    lines = [" ".join(f"{word:x}" for word in row) for row in WORDS]
    Path("all.txt").write_text("# five words\n" + "\n".join(lines))
    Path("flat.hex").write_text("\n".join(f"0x{word:08X}," for word in WORDS.ravel()))
    header = "name,w0,w1,w2,w3,w4\n"
    named = [f"run{n}," + line.replace(" ", ",") for n, line in enumerate(lines)]
    Path("all.csv").write_text(header + "\n".join(named))
    for folder in ("bins", "arrays", "dumps", "wrong"):
        Path(folder).mkdir()
    for n, row in enumerate(WORDS):
        Path(f"bins/run{n}.bin").write_bytes(row.tobytes())
        np.save(f"arrays/run{n}.npy", row)
        inner = Path(f"dumps/run{n}")
        inner.mkdir()
        (inner / "words.bin").write_bytes(row.tobytes())
        (inner / "weights.bin").write_bytes(bytes(3))
    Path("layers.csv").write_text(TABLE)
    return tmp_path


FORMS = {
    "all.bin": ["--words", "5"],
    "big.bin": ["--words", "5", "--big-endian"],
    "all.npy": [],
    "flat.npy": ["--words", "5"],
    "all.txt": [],
    "flat.hex": ["--words", "5"],
    "all.csv": [],
    "bins": [],
    "arrays": ["--words", "5"],
    "dumps": [],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_sweep(
    form: str, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", form, "sweep.npz", *FORMS[form], "--parameters", "layers.csv"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert told.out.startswith("sweep.npz: Sweep(sweep: 12 captures of 5 words, ")
    assert not told.err
    sweep = load_sweep("sweep.npz")
    assert sweep.words.tolist() == WORDS.tolist()
    assert sweep.parameters.to_numpy().tolist() == WIDTHS
    assert [*sweep.parameters] == ["input_w", "stride"]
    assert (sweep.target, sweep.registers) == ("", None)


def test_python_gives_what_the_shell_gives(at: Path) -> None:
    main(["import", "all.bin", "sweep.npz", "--words", "5", "--parameters", "layers.csv"])
    sweep = npulab.read_words("all.bin", words=5, parameters="layers.csv")
    assert sweep.words.tolist() == load_sweep("sweep.npz").words.tolist()
    assert sweep.parameters.equals(load_sweep("sweep.npz").parameters)
    own = npulab.read_words("all.bin", words=5, parameters=sweep.parameters)
    assert own.parameters.equals(sweep.parameters)


@pytest.mark.parametrize("form", ["all.csv", "bins", "arrays", "dumps"])
def test_rows_are_joined_by_name(form: str, at: Path) -> None:
    head, *lines = TABLE.splitlines()
    Path("layers.csv").write_text("\n".join([head, *reversed(lines)]))
    sweep = npulab.read_words(form, parameters="layers.csv")
    assert sweep.words.tolist() == WORDS.tolist()
    assert sweep.parameters.to_numpy().tolist() == WIDTHS


def test_captures_of_a_folder_are_in_the_order_of_their_numbers(at: Path) -> None:
    """run2 stands before run10, so that a table without names has their order."""
    Path("layers.csv").write_text("\n".join(line.partition(",")[2] for line in TABLE.split()))
    sweep = npulab.read_words("bins", parameters="layers.csv")
    assert sweep.words.tolist() == WORDS.tolist()
    assert sweep.parameters.to_numpy().tolist() == WIDTHS


def test_a_table_has_npulabs_names_of_parameters(at: Path) -> None:
    Path("layers.csv").write_text(TABLE.replace("input_w", "input_channels"))
    sweep = npulab.read_words("all.bin", 5, "layers.csv")
    assert [*sweep.parameters] == ["input_c", "stride"]


@pytest.mark.parametrize("bits", range(8, 65, 8))
@pytest.mark.parametrize("order", ["little", "big"])
def test_words_of_8_to_64_bits(bits: int, order: str, at: Path) -> None:
    """A word of at most 32 bits is one of the sweep, a wider one two, the low one first."""
    rows = [[2**bits - 1, 1], [2 ** (bits - 1), 3], [0x5A, 0]]
    data = b""
    for word in (word for row in rows for word in row):
        data += word.to_bytes(bits // 8, order)  # type: ignore[arg-type]
    Path("wide.bin").write_bytes(data)
    Path("wide.txt").write_text("\n".join(f"{a:x} {b:x}" for a, b in rows))
    np.save("wide.npy", np.array(rows, np.uint64))
    np.save("columns.npy", np.array(rows, ">u8", order="F"))
    Path("named.csv").write_text("name,a,b\n" + "\n".join(f"r,{a:x},{b:x}" for a, b in rows[:1]))
    expected = rows
    if bits > 32:
        expected = [[a % 2**32, a // 2**32, b, 0] for a, b in rows]
    big = order == "big"
    found = npulab.read_words("wide.bin", 2, bits=bits, big_endian=big)
    assert found.words.tolist() == expected
    for other in ("wide.txt", "wide.npy", "columns.npy"):
        assert npulab.read_words(other, bits=bits).words.tolist() == expected
    assert npulab.read_words("named.csv", bits=bits).words.tolist() == expected[:1]


def test_a_sweep_needs_no_parameters_and_no_target_to_be_looked_at(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["import", "all.bin", "bare.npz", "--words", "5"])
    assert main(["show", "bare.npz"]) == 0
    assert "12 captures of 5 words" in capsys.readouterr().out
    sweep = npulab.read_words("all.bin", 5, "layers.csv")
    assert len(npulab.correlate(sweep))


def _table(*changes: tuple[str, str]) -> Callable[[], object]:
    text = TABLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return lambda: Path("layers.csv").write_text(text)


def _bytes(name: str, data: bytes) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(data)


def _npy(name: str, values: object) -> Callable[[], object]:
    return lambda: np.save(name, np.asarray(values))


# what is damaged: how, the arguments of the import, and the sentence
DAMAGED: dict[str, tuple[Callable[[], object] | None, str, str]] = {
    "no file": (None, "al.bin --words 5", "al.bin: there is no such file or folder; near is all.b"),
    "empty file": (_bytes("all.bin", b""), "all.bin --words 5", "all.bin: got no words, allowed"),
    "odd size": (
        _bytes("all.bin", WORDS.tobytes()[:-1]),
        "all.bin --words 5",
        "all.bin: got 239 bytes, allowed is a multiple of 20, 5 words of 32 bits",
    ),
    "another width": (
        None,
        "all.bin --words 5 --bits 64",
        "layers.csv: got 12 rows, allowed is one for each of the 6 captures of all.bin",
    ),
    "a word missing": (
        _bytes("all.bin", WORDS.tobytes()[:-4]),
        "all.bin --words 5",
        "all.bin: got 236 bytes, allowed is a multiple of 20",
    ),
    "no number of words": (None, "all.bin", "all.bin: got no number of words of a capture, allow"),
    "no words": (None, "all.bin --words 0", "words: got 0, allowed are 1 to "),
    "bits": (None, "all.bin --words 5 --bits 12", "bits: got 12, allowed are 8 to 64, in steps of"),
    "bits 0": (None, "all.bin --words 5 --bits 0", "bits: got 0, allowed are 8 to 64, in steps of"),
    "order of a text": (
        None,
        "all.txt --big-endian",
        "all.txt: got big-endian, allowed is big-endian for a file of bytes",
    ),
    "beyond the width, text": (
        None,
        "all.txt --bits 16",
        "all.txt, line 2: got {first:x}, allowed are words of 16 bits; --bits takes up to 64",
    ),
    "beyond the width, array": (
        _npy("all.npy", [[1, 2**40]]),
        "all.npy",
        "all.npy: got 0x10000000000, allowed are words of 32 bits; --bits takes up to 64",
    ),
    "negative": (_npy("all.npy", [[-1, 2]]), "all.npy", "all.npy: got -0x1, allowed are words of"),
    "fractions": (_npy("all.npy", [[0.5]]), "all.npy", "all.npy: got float64 of shape (1, 1), all"),
    "three axes": (_npy("all.npy", [[[1]]]), "all.npy", "all.npy: got int64 of shape (1, 1, 1), a"),
    "no array": (_bytes("all.npy", b"PK"), "all.npy", "all.npy: got no npy array ("),
    "torn array": (_bytes("all.npy", b"\x93NUMPY\x01\x00v\x00{"), "all.npy", "all.npy: got no npy"),
    "no word": (
        _bytes("all.txt", b"12 34\n12 3g\n"),
        "all.txt",
        "all.txt, line 2: got '3g', allowed are words in base 16, of at most 16 digits",
    ),
    "no word behind a line of names": (
        _bytes("all.csv", b"name,w0\nrun0,no\nrun1,5\n"),
        "all.csv",
        "all.csv, line 2: got 'no', allowed are words in base 16",
    ),
    "rows of a text": (
        _bytes("all.txt", b"12 34\n12\n"),
        "all.txt",
        "all.txt, line 2: got 1 word, allowed are 2, as in the first capture",
    ),
    "words of a text": (
        None,
        "flat.hex --words 7",
        "flat.hex: got 60 words, allowed are 7 words for each capture",
    ),
    "words of an array": (
        None,
        "all.npy --words 6",
        "all.npy: got 12 rows of 5 words, allowed are 6 words for each capture",
    ),
    "empty text": (_bytes("all.txt", b"# none\n\n"), "all.txt", "all.txt: got no words, allowed"),
    "no text": (
        _bytes("all.txt", b"\xff\xfe1"),
        "all.txt",
        "all.txt: got byte 0xff at byte 0, all",
    ),
    "a name twice": (
        _bytes("all.csv", b"name,w0\na,1\na,2\n"),
        "all.csv",
        "all.csv: got capture 'a' 2 times, allowed is each once",
    ),
    "a sweep": (_bytes("a.npz", b"PK"), "a.npz", "a.npz: got a sweep, allowed are words; npulab s"),
    "empty folder": (
        None,
        "wrong",
        "wrong: got no file .bin or .npy, allowed is one for each capt",
    ),
    "a short file": (
        _bytes("bins/run7.bin", bytes(16)),
        "bins",
        "bins/run7.bin: got 4 words, allowed are 5 words as in run0.bin",
    ),
    "a file of two": (
        _bytes("bins/run7.bin", bytes(40)),
        "bins --words 5",
        "bins/run7.bin: got 2 captures of 5 words, allowed is one in each file of a folder",
    ),
    "an odd file": (
        _bytes("bins/run7.bin", bytes(19)),
        "bins",
        "bins/run7.bin: got 19 bytes, allowed is a multiple of 4, 1 word of 32 bits",
    ),
    "two of a name": (
        _bytes("bins/run7.npy", b""),
        "bins",
        "bins: got two files run7, allowed is one file for each capture",
    ),
    "no table": (
        lambda: Path("layers.csv").unlink(),
        "all.bin --words 5",
        "layers.csv: there is no such file",
    ),
    "empty table": (
        _bytes("layers.csv", b""),
        "all.bin --words 5",
        "layers.csv: got no line, allowed is a line of names, then one for each capture",
    ),
    "table of bytes": (
        _bytes("layers.csv", b"\x00\xff"),
        "all.bin --words 5",
        "layers.csv: got byte 0xff at byte 1, allowed is UTF-8",
    ),
    "a row missing": (
        _table(("run11,18,2\n", "")),
        "all.bin --words 5",
        "layers.csv: got 11 rows, allowed is one for each of the 12 captures of all.bin",
    ),
    "a row more": (
        _table(("run11,18,2\n", "run11,18,2\nrun12,19,0\n")),
        "all.bin --words 5",
        "layers.csv: got 13 rows, allowed is one for each of the 12 captures of all.bin",
    ),
    "a capture missing": (
        _table(("run11,18,2\n", "")),
        "bins",
        "layers.csv: names: got no row of capture 'run11', allowed is one for each of the 12 capt",
    ),
    "a capture more": (
        _table(("run11,18,2\n", "run11,18,2\nrun12,19,0\n")),
        "bins",
        "layers.csv: names: got a row of 'run12', allowed are the 12 captures; near are run1",
    ),
    "a row twice": (
        _table(("run11,", "run10,")),
        "bins",
        "layers.csv, line 13: got 'run10' as in line 12, allowed is each name once",
    ),
    "a cell missing": (
        _table(("run3,10,0", "run3,10")),
        "all.bin --words 5",
        "layers.csv, line 5: got 2 cells, allowed are 3, one for each column",
    ),
    "an empty cell": (
        _table(("run3,10,0", "run3,,0")),
        "all.bin --words 5",
        "layers.csv, line 5: got input_w '', allowed are numbers; a column of the captures' names",
    ),
    "a text": (
        _table(("run3,10,0", "run3,same,0")),
        "all.bin --words 5",
        "layers.csv, line 5: got input_w 'same', allowed are numbers",
    ),
    "no number": (
        _table(("run3,10,0", "run3,nan,0")),
        "all.bin --words 5",
        "layers.csv, line 5: got input_w 'nan', allowed are numbers",
    ),
    "a column twice": (
        _table(("stride", "input_w")),
        "all.bin --words 5",
        "layers.csv: got column 'input_w' twice, allowed is each once",
    ),
    "a column without a name": (
        _table(("stride", "")),
        "all.bin --words 5",
        "layers.csv: got column 3 without a name, allowed is a name for each",
    ),
    "names alone": (
        _bytes("layers.csv", b"name\nrun0\n"),
        "all.bin --words 5",
        "layers.csv: got no column of a parameter, allowed is at least one of them",
    ),
    "an open quote": (
        _table(("run3,10,0", 'run3,"10,0')),
        "all.bin --words 5",
        "layers.csv, line ",
    ),
    "a large number": (
        _table(("run3,10,0", f"run3,{2**70},0")),
        "all.bin --words 5",
        "parameters: got input_w 1180591620717411303424 in row 3, allowed are finite numbers",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_input_ends_in_one_sentence(
    what: str, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, arguments, sentence = DAMAGED[what]
    if damage is not None:
        damage()
    command = ["import", *arguments.split(), "--parameters", "layers.csv"]
    command.insert(2, "sweep.npz")
    assert main(command) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert told.err.removeprefix("npulab: ").startswith(sentence.format(first=WORDS[0, 0]))
    assert not Path("sweep.npz").exists()


@pytest.mark.parametrize("option", ["--name a", "--role a", "--block a", "--job 1"])
def test_options_of_captures_are_refused_for_words(
    option: str, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "all.bin", "sweep.npz", "--words", "5", *option.split()]) == 2
    name = option.partition(" ")[0]
    assert f"{name}: got words, allowed is a dump" in capsys.readouterr().err


def test_words_become_a_sweep_and_nothing_else(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "all.bin", "folder", "--words", "5"]) == 2
    assert "folder: got no suffix, allowed is a file .npz" in capsys.readouterr().err
    assert main(["import", "all.bin", "sweep.npz", "--words", "5"]) == 0
    assert main(["import", "all.bin", "sweep.npz", "--words", "5"]) == 2
    assert "sweep.npz: is there already" in capsys.readouterr().err
