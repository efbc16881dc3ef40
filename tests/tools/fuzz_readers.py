"""What npulab reads, each with seeds, the mutators that know its structure, and the call that reads
it.

Seeds are made by npulab itself; where public data lies beside the checkout, small files of it too.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import plistlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fuzz_mutators as m
import numpy as np
from fuzz_mutators import Mutator

import npulab
from npulab.captures import store
from npulab.captures.documents import document
from npulab.captures.journal import Journal, Trial
from npulab.captures.sweep import load_sweep, save_sweep

TESTS = Path(__file__).parents[1]
CAPTURES, SHARED = TESTS.parent / "captures", TESTS.parents[1] / "shared"
NPUS = Path(npulab.__file__).parent / "npus"
Files = dict[str, bytes]
SMALL = 100_000  # bytes of a seed's file


@dataclass(frozen=True)
class Reader:
    """``seeds`` are the files of a folder each; ``by`` says what changes a file, by the end of its
    name, or is a function of the folder's files; ``read`` reads the folder.

    What ``plain`` refuses may be a ValueError of another kind than FormatError: it is no file's
    reader, but reads what one has taken out of a file.  Where a file has ``sums``, what is read is
    what the seed gives, or nothing.
    """

    seeds: Callable[[], Sequence[Files]]
    by: dict[str, Mutator] | Callable[[Random, Files], Files]
    read: Callable[[Path], object]
    plain: bool = False
    sums: bool = False

    def mutant(self, r: Random, seed: Files) -> Files:
        """A seed with one file changed."""
        if callable(self.by):
            return self.by(r, seed)
        known = [(name, by) for name in seed for end, by in self.by.items() if name.endswith(end)]
        name, change = r.choice(known)
        return {**seed, name: change(r, seed[name])}


def of_tests(module: str) -> Any:
    """A test module, for the files that it makes: ``rockchip/test_rockchip_dumps``."""
    folder = str(TESTS / "npus" / Path(module).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(Path(module).name)


def files_of(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def each_of(folder: Path, pattern: str = "*") -> list[Files]:
    """Small files that match, each a seed; none where there is no such folder."""
    return [
        {path.name: path.read_bytes()}
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.stat().st_size < SMALL
    ]


def made(make: Callable[[Path], object]) -> Files:
    """The files that a function makes in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return files_of(Path(folder))


def only(folder: Path) -> Path:
    """The file of a folder that is no enums."""
    return next(path for path in sorted(folder.iterdir()) if path.name != "enums.csv")


# Captures and dumps


def load_cases(folder: Path, path: Callable[[Path], Path] = lambda folder: folder) -> None:
    """Every case of a dump, decoded; what refuses all of them is raised."""
    cases = store.load_all(path(folder))
    for capture in cases:
        len(capture.fields)
        repr(capture)


load_file = partial(load_cases, path=only)


def case_seeds() -> list[Files]:
    return [
        files_of(path.parent)
        for path in sorted(CAPTURES.glob("*/sim-*/capture.json"))
        if sum(one.stat().st_size for one in path.parent.iterdir()) < SMALL
    ][::3]


def change_case(r: Random, seed: Files) -> Files:
    """The description, or a file whose sum is mended."""
    out, said = dict(seed), json.loads(seed["capture.json"])
    if r.random() < 0.6:
        return {**out, "capture.json": m.change_json(r, seed["capture.json"])}
    name = r.choice([*said["sha256"]])
    out[name] = m.change_bytes(r, seed[name])
    said["sha256"][name] = hashlib.sha256(out[name]).hexdigest()
    return {
        **out,
        "capture.json": m.as_json(r, m.change_tree(r, said) if r.random() < 0.3 else said),
    }


def load_case(folder: Path) -> object:
    capture = npulab.load(folder)
    len(capture.fields)
    return capture.jobs, capture.buffers


def check_case(folder: Path) -> None:
    capture = npulab.load(folder)
    npulab.check(capture)
    npulab.explain(capture)


def vivante_dumps() -> list[Files]:
    printed = of_tests("vivante/test_vivante").printed
    return [
        {"a.txt": printed(npulab.load(CAPTURES / "vivante" / name)).encode()}
        for name in ("sim-1x1", "sim-3x3-sparse")
    ] + [
        {"b.txt": of_tests("vivante/test_command_texts").TEXT.encode()},
        {"c.txt": b"cmd 00000000: 08010e03 00000c23 08010e02 00000701\n" * 3},
    ]


def mesa_folders() -> list[Files]:
    dumps = of_tests("vivante/test_mesa_dumps")
    return [
        made(lambda folder: dumps.dumped(folder, dumps.three()[:2])),
        made(lambda folder: dumps.dumped(folder, dumps.three()[:1], turned=True)),
    ]


def hwx_files() -> list[Files]:
    from npulab.npus.ane.writing import hwx_bytes

    own = [
        {"model.hwx": hwx_bytes(npulab.load(CAPTURES / "ane" / name))}
        for name in ("sim-1x1-relu", "sim-3x3-same", "sim-concat")
    ]
    public = [files_of(folder) for folder in sorted((SHARED / "data/ane/hwx").glob("*"))]
    return own + public + each_of(SHARED / "data/ane/h13_tasks", "*/*.bin")[::4]


def traces() -> list[Files]:
    found = [path.parent for path in sorted((SHARED / "data/nvdla").glob("*/*/*.cfg"))]
    small = [
        folder for folder in found if sum(path.stat().st_size for path in folder.iterdir()) < 40_000
    ]
    return [
        {f"nv_small/{folder.name}/{name}": data for name, data in files_of(folder).items()}
        for folder in small[:6]
    ] or [
        {
            "nv_small/t/t.cfg": b"reg_write(NVDLA_CDMA.S_POINTER_0, 0x0);\nreg_write(NVDLA_CDMA.D_OP_ENABLE_0, 0x1);\n"
        }
    ]


def change_trace(r: Random, seed: Files) -> Files:
    name = r.choice([one for one in seed if one.endswith((".cfg", ".txn"))] * 3 + [*seed])
    out = {**seed, name: m.change_text(r, seed[name])}
    if name.endswith(".dat") and r.random() < 0.3:
        out[f"{name}.gz"] = m.change_bytes(r, gzip.compress(out.pop(name)))
    return out


def register_logs() -> list[Files]:
    logs = of_tests("nvdla/test_nvdla_logs")
    return [{"run.log": logs.text_of(form).encode()} for form in logs.FORMS]


def binary_graphs() -> list[Files]:
    of = of_tests("vivante/nb_files")
    kinds = of.NN, of.SHADER, of.TP, of.NN, of.STREAM, 9
    made = [{"model.nb": of.network(kinds)}, {"model.nb": of.network([of.NN])}]
    return made + each_of(SHARED / "data/vivante_vendor/nb", "*.nb")


def change_graph(r: Random, data: bytes) -> bytes:
    """A graph with other bytes, cut off, or with other numbers in headers and tables."""
    return bytes(of_tests("vivante/nb_files").broken(r, data))


def loadables() -> list[Files]:
    of = of_tests("nvdla/test_nvdla_loadables")
    return [made(lambda folder: of.written(folder, of.WHOLE))]


def rockchip_files() -> list[Files]:
    dumps, listings = (
        of_tests("rockchip/test_rockchip_dumps"),
        of_tests("rockchip/test_rockchip_listings"),
    )
    text = dumps.small()
    return [
        {"gem.txt": text.encode()},
        {"gem.txt.gz": gzip.compress(text.encode())},
        {"a.txt": listings.TEXT.encode()},
        {"a.txt": listings.PRINTED.encode()},
        *each_of(SHARED / "data/rknpu", "*.bin"),
    ]


def compiled_models() -> list[Files]:
    """A file made of a template's parts; and small public files, with their models beside."""
    public = [
        {path.name: path.read_bytes(), beside.name: beside.read_bytes()}
        for path in sorted((SHARED / "data/rk3576").glob("*.rknn"))[::6]
        for beside in [path.with_name(path.name.replace("_rk3576.rknn", ".onnx"))]
        if path.stat().st_size < SMALL
    ]
    return public or [of_tests("rockchip/test_rknn_files").files()]


def load_models(folder: Path) -> None:
    """A compiled model and, with or without it, the ``.onnx`` file beside."""
    from npulab.models.onnx_layers import read_onnx

    load_cases(folder)
    for path in folder.glob("*.onnx"):
        read_onnx(path)


def vela_files() -> list[Files]:
    from npulab.models.file import pack
    from npulab.models.graph import Graph, Operator, Tensor

    of = of_tests("ethosu/test_ethosu")
    data = of.payload(of.WORDS)
    tensors = (
        Tensor("stream", (len(data),), "uint8", 1),
        Tensor("weights", (3,), "uint8", 2),
        Tensor("x", (1, 4), "int8"),
        Tensor("y", (1, 4), "int8"),
    )
    graph = Graph(
        tensors, (Operator("CUSTOM(ethos-u)", (0, 1, 2), (3,)),), (b"", data, b"abc"), (2,), (3,)
    )
    return [{"layer.bin": data}, {"layer.tflite": pack(graph)}]


def recorded_folders() -> list[Files]:
    """A folder that the importer of ``npulab new`` reads; the target is vivante's own here."""
    job = {
        "npu": "fuzzed",
        "chip": "c",
        "provenance": "board",
        "source": "s",
        "addresses": {"input": "0x10000000"},
        "parameters": {"kernel_h": 3},
        "big_endian": {"words": 4},
    }
    words = np.arange(34, dtype="<u4").tobytes()
    return [
        {"job.json": json.dumps(job).encode(), "words.bin": words, "input.bin": bytes(64)},
        {
            "job.json": json.dumps(job | {"big_endian": {}}).encode(),
            "writes.txt": b"0x0010 0x1\n0x14 = 0x7 # x\n",
            "input.bin": bytes(8),
        },
    ]


def read_recorded(folder: Path) -> None:
    from npulab.captures.dumps import folder_importer
    from npulab.captures.target import each_read
    from npulab.support.refuse import refusing

    of = npulab.target("vivante")
    importer = folder_importer("fuzzed", {"c": {}}, {"NN": of.registers})
    if importer.recognises(folder):
        with refusing():  # as the store, which calls importers
            cases = (
                each_read(importer.readers(folder)) if importer.readers else importer.read(folder)
            )
            for one in cases.values():
                if isinstance(one, ValueError):
                    raise one


def register_writes(folder: Path) -> None:
    from npulab.npus.template import begin

    begin(only(folder))


# Sweeps, journals, explorations


def sweep_seeds() -> list[Files]:
    def make(folder: Path) -> None:
        save_sweep(load_sweep(CAPTURES / "vivante/sweep-addresses.npz")[:5], folder / "s.npz")

    return [made(make), {"s.npz": (TESTS / "captures/golden/sweep.npz").read_bytes()}]


def word_seeds() -> list[Files]:
    words = np.arange(12, dtype=np.uint32).reshape(4, 3)
    array = io.BytesIO()
    np.save(array, words)
    text = "\n".join(" ".join(f"{word:#x}" for word in row) for row in words)
    table = b"name,input_w,stride\nrun0,8,1\nrun1,16,1\nrun2,9,2\nrun3,7,2\n"
    forms = {".hex": text.encode(), ".npy": array.getvalue(), ".bin": words.tobytes()}
    return [{f"words{end}": data, "layers.csv": table} for end, data in forms.items()]


def read_given_words(folder: Path) -> None:
    repr(npulab.read_words(next(folder.glob("words.*")), 3, folder / "layers.csv"))


def read_sweep(folder: Path) -> object:
    sweep = load_sweep(only(folder))
    repr(sweep)
    return (
        sweep.words.tobytes(),
        sweep.parameters.to_csv(),
        sweep.target,
        sweep.chip,
        sweep.block,
        sweep.provenance,
        sweep.source,
        sweep.tool,
        sweep.date,
    )


def journal_seeds() -> list[Files]:
    def make(folder: Path) -> None:
        journal = Journal(folder / "j.jsonl", {"good": "a", "bad": "b"})
        for n in range(8):
            journal.add(
                Trial((f"f{n}", "g"), "half", ("pass", "fail", "hang")[n % 3], 0.5, "", {"x": n})
            )
        journal.undo(2)

    return [made(make), {"j.jsonl": (TESTS / "captures/golden/journal.jsonl").read_bytes()}]


def read_journal(folder: Path) -> None:
    journal = Journal.read(only(folder))
    repr(journal)
    repr(journal.trials)


def repair_journal(folder: Path) -> None:
    from npulab.captures.journal import repair

    out = folder.parent / "mended.jsonl"
    out.unlink(missing_ok=True)
    repair(only(folder), out)
    Journal.read(out)


def exploration_seeds() -> list[Files]:
    import zlib

    lines = (TESTS / "captures/golden/exploration/answers.jsonl").read_bytes().splitlines()
    bare = b"\n".join(line.partition(b" ")[2] for line in lines) + b"\n"
    assert all(int(line[:8], 16) == zlib.crc32(line[9:]) for line in lines)
    return [{"answers.jsonl": bare}]


def read_exploration(folder: Path) -> None:
    """The lines with sums that fit them."""
    import zlib

    from npulab.analysis.explore.storing import Store

    path = only(folder)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines))
    repr(Store(folder, {"seed": 1}).answers)


# Sessions and drafts


def session_seeds() -> list[Files]:
    return [files_of(TESTS / "notebook/golden")]


def read_session(folder: Path) -> Any:
    found = npulab.session(folder / "stride.session.json", autosave=False)
    for name in (
        "text",
        "notes",
        "bookmarks",
        "laws",
        "journals",
        "figures",
        "views",
        "conflicts",
        "problems",
    ):
        repr(getattr(found, name))
    return found


def report_session(folder: Path) -> None:
    found = npulab.session(folder / "stride.session.json", autosave=False)
    for name in ("out.html", "out.md"):
        (folder / name).unlink(missing_ok=True)
        found.report(folder / name)
    page = (folder / "out.html").read_text(encoding="utf-8")
    shutil.rmtree(folder / "out-files", ignore_errors=True)
    (folder / "out.md").unlink()
    (folder / "out.html").unlink()
    for wrong in ("<script", "<iframe", "javascript:", " onerror=", 'http-equiv="refresh'):
        assert wrong not in page.lower(), wrong


def show_views(folder: Path) -> None:
    found = npulab.session(folder / "stride.session.json", autosave=False)
    for name in [*found.views]:
        found.show(name)


def merge_two(folder: Path) -> None:
    from npulab.notebook.sessions import merge_sessions

    plain = TESTS / "notebook/golden/stride.session.json"
    merge_sessions(None, plain, folder / "stride.session.json")


def table_seeds() -> list[Files]:
    return [
        {
            name: (NPUS / npu / name).read_bytes(),
            "enums.csv": (NPUS / npu / "enums.csv").read_bytes(),
        }
        for npu, name in (("vivante", "nn.csv"), ("vivante", "tp.csv"), ("rockchip", "tasks.csv"))
    ]


def read_draft(folder: Path) -> None:
    draft = npulab.draft(only(folder))
    repr(draft)
    draft.diff()
    repr(draft.map)


def step_seeds() -> list[Files]:
    draft = npulab.draft(NPUS / "vivante/nn.csv")
    names = [item.name for item in draft.map][:6]
    draft.rename(names[0], "nn1")
    draft.set_note("nn1", "x")
    draft.set_evidence("nn1", "guess")
    draft.retype(names[1], "raw *2")
    draft.remove(names[3])
    return [
        {
            **table_seeds()[0],
            "steps.json": json.dumps([dict(one) for one in draft.unsaved]).encode(),
        }
    ]


def replay_steps(folder: Path) -> None:
    try:
        steps = json.loads((folder / "steps.json").read_bytes())
    except (ValueError, RecursionError):
        raise npulab.FormatError("no JSON") from None
    if isinstance(steps, list) and all(
        isinstance(one, dict) for one in steps
    ):  # as a session's schema has them
        npulab.draft(folder / "nn.csv").replay(steps)


# Register maps


def read_map(folder: Path) -> None:
    table = npulab.read_map(only(folder))
    table.check()
    repr(table)


def map_seeds(to: str, suffix: str, *public: tuple[str, str]) -> list[Files]:
    """A map of ours in a format, and small public files of it."""
    from npulab.registers.formats.tables import RegisterTable

    table = npulab.read_map(NPUS / "vivante/nn.csv")
    rows = [row for row in table.rows if not row.get("feature")][:40]
    small = RegisterTable.of(rows, table.enums)
    own = made(lambda folder: npulab.write_map(small, folder / f"nn{suffix}", to=to))
    return [
        own,
        *(
            seed
            for folder, pattern in public
            for seed in each_of(SHARED / "data/maps" / folder, pattern)
            for data in seed.values()
            if len(data) < 40_000 and b"<import" not in data
        ),
    ]


# Models and containers


def model_seeds() -> list[Files]:
    layer = npulab.Conv2D(
        np.arange(36).reshape(2, 3, 3, 2).astype(np.int8),
        np.array([1, 2]),
        (6, 6, 2),
        padding="same",
        input_q=npulab.QuantParams(0.1, 0),
        weight_q=npulab.QuantParams(0.01, 0),
        output_q=npulab.QuantParams(0.2, 0),
    )
    public = each_of(SHARED / "data/models", "*.tflite")
    return [
        {"conv.tflite": npulab.single_op_model(layer)},
        *(seed for seed in public if len(next(iter(seed.values()))) < 12_000),
    ]


def read_model(folder: Path) -> None:
    from npulab.models.memory import model_memory

    model = npulab.read_model(only(folder))
    repr(model)
    str(model)
    for name in ("layers", "network", "parameters"):
        try:
            getattr(model, name)
        except ValueError:
            continue
    try:
        model_memory(model)
    except ValueError:
        return


def plist_seeds() -> list[Files]:
    seeds = each_of(SHARED / "data/ane/plists", "*.plist") or [
        {"net.plist": plistlib.dumps({"Networks": ["n"], "n": {"Units": []}})}
    ]
    return seeds + [
        {"net.bplist": plistlib.dumps(plistlib.loads(data), fmt=plistlib.FMT_BINARY)}
        for seed in seeds
        for data in seed.values()
    ]


def read_plist(folder: Path) -> None:
    from npulab.npus.ane.source import parameters, plist

    for network in plist.read_plist(only(folder)).networks:
        try:
            parameters.shapes(network)
        except (ValueError, LookupError):
            continue


def espresso_seeds() -> list[Files]:
    from ane_writers import write_espresso

    from npulab.npus.ane.source.espresso import Entry

    own = {
        "model.espresso.weights": write_espresso([Entry(1, bytes(range(64))), Entry(3, bytes(8))])
    }
    return [
        own,
        *(
            {path.name: path.read_bytes()}
            for path in sorted((SHARED / "data/ane/hwx").glob("*/*.weights"))
        ),
    ]


def read_espresso(folder: Path) -> None:
    from npulab.npus.ane.source import espresso

    espresso.read_espresso(only(folder).read_bytes())


def blob_seeds() -> list[Files]:
    from npulab.npus.ane.training import blobs

    return [
        {
            "weight.bin": blobs.write(
                {
                    "a": np.zeros(3, np.float16),
                    "b": np.ones((2, 2), np.float32),
                    "c": np.arange(5, dtype=np.uint8),
                }
            ).data
        }
    ]


def read_blob(folder: Path) -> None:
    from npulab.npus.ane.training import blobs

    for record in blobs.read(only(folder).read_bytes()).records:
        record.values()


def mil_seeds() -> list[Files]:
    more = """program(1.3)
{
 func main<ios18>(tensor<fp16, [1, 4, 1, 32]> x) {
  int32 s = const()[val=int32(1)];
  fp16 c = const()[val=fp16(0x1.8p0)];
  tensor<fp16, [2, 2]> w = const()[val=tensor<fp16, [2, 2]>(BLOBFILE(path=string("@model_path/w.bin"), offset=uint64(64)))];
  tensor<fp16, [1, 4, 1, 32]> y = mul(x=x, y=c)[name=string("y")];
  tensor<fp16, [1, 8, 1, 32]> z = concat(values=(y, y), axis=int32(1), interleave=bool(false))[name=string("z")];
 } -> (z);
}
"""
    return [
        {"a.mil": of_tests("ane/test_mil_files").TEXT.encode()},
        {"a.mil": more.encode(), "w.bin": next(iter(blob_seeds()[0].values()))},
    ]


BLOB = b"""  tensor<fp16, [2, 2]> w = const()[val=tensor<fp16, [2, 2]>(BLOBFILE(path=string("@model_path/w.bin"), offset=uint64(64)))];\n"""


def show_document(folder: Path) -> None:
    found = document(
        next(path for path in sorted(folder.iterdir()) if path.suffix in (".mil", ".nvdla"))
    )
    if found is not None:
        str(found)


def run_mil(folder: Path) -> None:
    from npulab.npus.ane.training import mil

    program = mil.read((folder / "a.mil").read_bytes().decode("utf-8", "replace"))
    mil.check(program)
    given = {
        name: np.zeros([int(one or 1) for one in kind.shape or ()], np.float16)
        for name, kind in program["main"].inputs
    }
    mil.run(program, given, None)


def vivante_streams() -> list[Files]:
    found = [
        npulab.load(path.parent) for path in sorted((CAPTURES / "vivante").glob("*/capture.json"))
    ]
    return [
        {
            "coefficients.bin": one.buffers["coefficients"],
            "words.bin": one.words.tobytes(),
            "chip": one.chip.encode(),
        }
        for one in found
        if len(one.buffers["coefficients"]) < SMALL
    ]


def read_stream(folder: Path) -> None:
    from dataclasses import replace

    of = next(
        one
        for one in store.load_all(CAPTURES / "vivante")
        if one.chip == (folder / "chip").read_text()
        and one.words.tobytes() == (folder / "words.bin").read_bytes()
    )
    capture = replace(
        of, buffers={**of.buffers, "coefficients": (folder / "coefficients.bin").read_bytes()}
    )
    npulab.explain(capture)
    npulab.target("vivante").lift(capture)


def table_files() -> list[Files]:
    from npulab.npus.ane.tables import functions

    return [{"table.bin": functions.fit(name).encode()} for name in ("tanh", "sigmoid")]


def read_function(folder: Path) -> None:
    from npulab.npus.ane import tables
    from npulab.npus.ane.tables import entries

    table = entries.decode(only(folder).read_bytes())
    repr(table)
    tables.evaluate(table, np.array([0.5, -1, np.inf, np.nan], np.float16))


def cache_logs() -> list[Files]:
    return [{"log.txt": of_tests("onert/test_prepack_cache").SMALL.encode()}]


def read_cache_log(folder: Path) -> None:
    from npulab.npus.onert.cache_log import read_log, readings

    log = read_log(only(folder).read_bytes().decode("utf-8", "replace"))
    readings(log)
    repr(log.layers)


def read_by_pattern(folder: Path) -> None:
    from npulab.captures.logs import read_log
    from npulab.captures.writes import rows_of_writes

    found = read_log(only(folder), of_tests("../captures/test_logs").PATTERN)
    rows_of_writes(found.writes, "JOB", found.read)
    json.dumps(found.reads)


def read_stated(folder: Path) -> None:
    from npulab.registers.stated import against, statements

    row = {"offset": 0x5048, "register": "DMA", "field": "NOTCH", "lsb": 19, "width": 13}
    str(against([row], statements(only(folder))))


def stated_logs() -> list[Files]:
    of = of_tests("../registers/test_stated")
    return [{"a.log": "".join(of.LINE.format(*place, 0x1FFF) for place in of.PLACES).encode()}]


# Texts that a table or a person writes

MEANINGS = m.words_of(*m.pieces("MEANINGS"), most=8)
LAWS = m.words_of(*m.pieces("LAWS"))
NOTES = m.words_of(*m.pieces("NOTES"), most=40)


def read_meaning(folder: Path) -> None:
    from npulab.registers.meaning import Meaning

    meaning = Meaning.parse(only(folder).read_text(encoding="utf-8"))
    assert Meaning.parse(str(meaning)) == meaning


def read_law(folder: Path) -> None:
    from npulab.analysis.laws.texts import parse_steps

    parse_steps(only(folder).read_text(encoding="utf-8"))


def read_note(folder: Path) -> None:
    from html.parser import HTMLParser

    from npulab.notebook.sessions.markdown import read_markdown, to_html, to_markdown

    class Page(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in (
                "script",
                "iframe",
                "object",
                "embed",
                "base",
                "form",
                "svg",
                "link",
                "meta",
            ), tag
            assert not any(
                name.startswith("on") or (value or "").strip().lower().startswith("javascript:")
                for name, value in attrs
            ), attrs

    blocks = read_markdown(only(folder).read_text(encoding="utf-8"))
    Page().feed(to_html(blocks))
    to_markdown(blocks)


TEXT: dict[str, Mutator] = {"": m.change_text}
BYTES: dict[str, Mutator] = {"": m.change_bytes}
NOTHING: list[Files] = [{"text": b"x"}]
READERS: dict[str, Reader] = {
    "capture": Reader(case_seeds, change_case, load_case),
    "capture, a file changed": Reader(case_seeds, {".bin": m.flip_bits}, load_case, sums=True),
    "capture, checked and explained": Reader(case_seeds, change_case, check_case, plain=True),
    "sweep": Reader(sweep_seeds, {"": m.change_npz}, read_sweep),
    "sweep, one or two bits flipped": Reader(
        lambda: sweep_seeds()[:1], {"": m.flip_bits}, read_sweep, sums=True
    ),
    "words, and a table of layers": Reader(
        word_seeds,
        {
            ".hex": m.change_text,
            ".npy": m.change_bytes,
            ".bin": m.change_bytes,
            ".csv": m.change_table,
        },
        read_given_words,
    ),
    "journal": Reader(journal_seeds, {"": m.change_json_line}, read_journal),
    "journal, repaired": Reader(journal_seeds, {"": m.change_json_line}, repair_journal),
    "exploration": Reader(exploration_seeds, {"": m.change_json_line}, read_exploration),
    "session": Reader(session_seeds, {"session.json": m.change_json}, read_session),
    "session, reported": Reader(session_seeds, {"session.json": m.change_json}, report_session),
    "session, its views": Reader(
        session_seeds, {"session.json": m.change_json}, show_views, plain=True
    ),
    "session, merged": Reader(session_seeds, {"session.json": m.change_json}, merge_two),
    "note": Reader(lambda: NOTHING, {"": NOTES}, read_note),
    "draft": Reader(table_seeds, {"": m.change_table}, read_draft),
    "draft, its steps": Reader(step_seeds, {"steps.json": m.change_json}, replay_steps, plain=True),
    "map: table": Reader(table_seeds, {"": m.change_table}, read_map),
    "map: rnndb": Reader(
        partial(map_seeds, "", ".xml", ("rnndb", "**/*.xml")), {".xml": m.change_xml}, read_map
    ),
    "map: SVD": Reader(
        partial(map_seeds, "", ".svd", ("svd", "*.svd")), {".svd": m.change_xml}, read_map
    ),
    "map: SystemRDL": Reader(partial(map_seeds, "", ".rdl"), {".rdl": m.change_text}, read_map),
    "map: C macros": Reader(
        partial(map_seeds, "macros", ".h", ("headers", "*.h")), {".h": m.change_text}, read_map
    ),
    "map: C structs": Reader(partial(map_seeds, "struct", ".h"), {".h": m.change_text}, read_map),
    "value of a field": Reader(lambda: NOTHING, {"": MEANINGS}, read_meaning),
    "law": Reader(lambda: NOTHING, {"": LAWS}, read_law, plain=True),
    "text dumps of vivante": Reader(vivante_dumps, TEXT, load_file),
    "Mesa's folder": Reader(mesa_folders, BYTES, load_cases),
    "vivante's coefficients": Reader(
        vivante_streams, {"coefficients.bin": m.change_bytes}, read_stream, plain=True
    ),
    "network binary graphs": Reader(binary_graphs, {".nb": change_graph}, load_cases),
    "hwx": Reader(
        hwx_files,
        {
            ".hwx": m.change_head,
            ".bin": m.change_bytes,
            ".plist": m.change_xml,
            ".weights": m.change_bytes,
        },
        load_cases,
    ),
    "plist": Reader(plist_seeds, {".plist": m.change_xml, ".bplist": m.change_bytes}, read_plist),
    "espresso weights": Reader(espresso_seeds, BYTES, read_espresso),
    "MIL weights": Reader(blob_seeds, BYTES, read_blob, plain=True),
    "MIL": Reader(mil_seeds, {".mil": m.change_text, ".bin": m.change_bytes}, show_document),
    "MIL, run": Reader(
        lambda: [{"a.mil": mil_seeds()[1]["a.mil"].replace(BLOB, b"")}],
        {".mil": m.change_text},
        run_mil,
        plain=True,
    ),
    "ANE's function tables": Reader(table_files, BYTES, read_function, plain=True),
    "NVDLA's traces": Reader(traces, change_trace, load_cases),
    "NVDLA's logs": Reader(register_logs, TEXT, load_file),
    "NVDLA's loadables": Reader(loadables, BYTES, show_document),
    "compiled models": Reader(
        compiled_models, {".rknn": m.change_bytes, ".onnx": m.change_bytes}, load_models
    ),
    "Rockchip's dumps": Reader(
        rockchip_files,
        {".txt": m.change_text, ".gz": m.change_bytes, ".bin": m.change_bytes},
        load_file,
    ),
    "Vela's output": Reader(vela_files, BYTES, load_file),
    "log, by a pattern": Reader(
        lambda: [{"a.log": of_tests("../captures/test_logs").EDGETPU.encode()}],
        TEXT,
        read_by_pattern,
    ),
    "compiler's log, against a map": Reader(stated_logs, TEXT, read_stated),
    "ONE's log": Reader(cache_logs, TEXT, read_cache_log, plain=True),
    "recorder's folder": Reader(
        recorded_folders,
        {"job.json": m.change_json, ".bin": m.change_bytes, ".txt": m.change_text},
        read_recorded,
    ),
    "register writes": Reader(
        lambda: [{"w.txt": b"0x0010 0x1\n0x14 = 0x7 # x\nwrite 0x20 <- 0x5 mask 0xff\n"}],
        TEXT,
        register_writes,
    ),
    "model": Reader(model_seeds, BYTES, read_model),
}
