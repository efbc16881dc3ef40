"""``check`` calls equal only what it compared: outputs cut, extended, of other jobs and
unwritten, on every NPU.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import CAPTURES
from ethosu_streams import by_hand

import npulab
from npulab import Capture, Simulated, check, cli, load, load_all, save, target
from npulab.analysis.check import Comparison
from npulab.analysis.mismatch import model_run
from npulab.captures.target import Lifted, Range
from npulab.quant.layers import Conv2D, Network
from npulab.quant.rules import QuantParams

NPUS = ("ane", "nvdla", "onert", "vivante", "rockchip", "ethosu")
SAMPLE, LOT = 6, 150  # spoiled outputs of each NPU
FEW = 8  # captures of an NPU


def lowered(seed: int) -> Capture:
    """A random layer on the Rockchip NPU, as npulab's device ran it."""
    lot = np.random.RandomState(seed)
    shape = int(lot.randint(4, 9)), int(lot.randint(4, 9)), int(lot.randint(1, 20))
    outputs = int(lot.randint(2, 20))
    layer = Conv2D(
        lot.randint(-128, 128, (outputs, 3, 3, shape[2])).astype(np.int8),
        lot.randint(-2000, 2000, outputs),
        shape,
        (1, 1),
        "same",
        input_q=QuantParams(0.02, 3),
        weight_q=QuantParams(0.01, 0),
        output_q=QuantParams(0.02 * 0.01 * 74 * 74 * (9 * shape[2]) ** 0.5 / 60, -5),
    )
    x = lot.randint(-128, 128, shape).astype(np.int8)
    return Simulated().record(target("rockchip").lower(layer, x=x))


def streamed(seed: int) -> Capture:
    """A layer of Ethos-U from a stream made by hand, with a random input and its output."""
    of, capture = target("ethosu"), by_hand()
    layer = of.lift(capture).layer
    x = np.random.RandomState(seed).randint(-128, 128, layer.input_shape).astype(np.int8)
    output = npulab.emulate(layer, x, of.rule)
    return capture.with_buffers(input=x.tobytes(), output=output.tobytes())


@cache
def whole(npu: str, most: int = FEW) -> list[Capture]:
    """Captures whose output is compared in full, drawn from those of an NPU."""
    made = {"rockchip": lowered, "ethosu": streamed}
    if npu in made:
        return [made[npu](seed) for seed in range(4)]
    every = [*load_all(CAPTURES / npu)]
    drawn = random.Random(npu).sample(every, min(most, len(every)))
    return [capture for capture in drawn if check(capture).verdict == "equal"]


def spoiled(capture: Capture, others: list[Capture], lot: random.Random) -> tuple[str, Capture]:
    """The capture with an output that is not the one its jobs gave, or with more jobs."""
    data = capture.buffers["output"]
    kind = lot.choice(
        (
            "cut",
            "empty",
            "longer",
            "longer by 0",
            "other",
            "unwritten",
            "filled",
            "one more job",
            "one more output",
        )
    )
    more: dict[str, bytes] = {}
    jobs = capture.jobs
    if kind == "cut":
        data = data[: -lot.choice((1, 2, len(data) // 2, lot.randrange(1, len(data))))]
    elif kind == "empty":
        data = b""
    elif kind == "longer":
        data += lot.randbytes(lot.choice((1, 64, 1000, len(data))))
    elif kind == "longer by 0":
        data += bytes(lot.choice((1, 65, 1001)))
    elif kind == "other":
        data = lot.choice(
            [one.buffers["output"] for one in others if one.buffers["output"] != data]
        )
    elif kind == "unwritten":
        data = bytes(len(data))
    elif kind == "filled":
        data = bytes([lot.randrange(256)]) * len(data)
    elif kind == "one more output":
        more[lot.choice(("output1", "output:7"))] = lot.randbytes(40)
    else:
        jobs = (*jobs, *lot.choice(others).jobs)
        data = lot.randbytes(len(data))
    return kind, replace(capture, jobs=jobs, buffers={**capture.buffers, "output": data, **more})


def told(kind: str, found: Comparison) -> None:
    """What a spoiled output is called, and that the counts are there."""
    assert found.verdict != "equal", (kind, found)
    assert found.reason or found.mismatches, (kind, found)
    if kind in ("cut", "empty"):
        assert (found.verdict, found.ok) == ("differs", False), (kind, found)
    if found.verdict == "partly compared":
        assert found.left
        assert not found.complete
    if not found.compared:
        assert " of " in found.reason, (kind, found)


def check_spoiled(npu: str, count: int, most: int) -> None:
    captures, lot = whole(npu, most), random.Random(npu)
    for _ in range(count):
        kind, capture = spoiled(lot.choice(captures), captures, lot)
        told(kind, check(capture))


@pytest.mark.sample(3)
@pytest.mark.parametrize("npu", NPUS)
def test_no_spoiled_output_is_equal(npu: str) -> None:
    check_spoiled(npu, SAMPLE, FEW)


@pytest.mark.long
@pytest.mark.parametrize("npu", NPUS)
def test_no_spoiled_output_of_many_is_equal(npu: str) -> None:
    check_spoiled(npu, LOT, 1000)


@pytest.mark.parametrize("npu", ["vivante", "nvdla", "rockchip"])
def test_a_constant_prediction_shows_nothing_of_memory_that_was_not_written(npu: str) -> None:
    of = target(npu)
    seen = next(one for one in whole(npu) if isinstance(of.lift(one).layer, Conv2D))
    layer, x, _ = of.lift(seen)
    layer = replace(layer, bias=np.full_like(layer.bias, -(2**24)), activation="relu")
    constant = of.lower(layer, chip=seen.chip, x=x)
    ran = Simulated().record(constant)
    same = check(constant.with_buffers(output=ran.buffers["output"]))
    assert (same.verdict, same.mismatches, same.ok) == ("one value", 0, True), same
    assert same.compared == np.prod(layer.output_shape)
    assert "as in memory that no job wrote" in same.reason
    assert check(ran).verdict == "equal"  # npulab's device wrote it


def test_a_nan_that_memory_holds_is_one_value() -> None:
    """Bytes of 0xff are a NaN of fp16, and so is what the NPU makes of a NaN."""
    capture = load(CAPTURES / "ane/sim-1x1-relu")
    rows = np.full(len(capture.buffers["input"]) // 2, np.nan, np.float16)
    size = len(capture.buffers["output"])
    changed = replace(
        capture.with_buffers(input=rows.tobytes(), output=b"\xff" * size),
        provenance="board",
        tool="x",
    )
    found = check(changed)
    assert (found.verdict, found.mismatches, found.compared) == ("one value", 0, 1152), found
    other = check(changed.with_buffers(output=np.full(size // 2, np.nan, np.float16).tobytes()))
    assert other.verdict == "equal", other  # 0x7e00 over and over is no memory that nobody wrote


@pytest.mark.parametrize(
    ("bias", "verdict"), [(-1200, "one value"), (0, "one value"), (1200, "equal"), (30000, "equal")]
)
def test_what_is_one_value_is_decided_on_the_bytes_of_the_buffer(bias: int, verdict: str) -> None:
    """Codes of uint8 that memory holds less 128: 128 is 0 there, the zero point counts as well,
    255 is 0x7f.
    """
    codes = np.full((16, 1, 1, 16), 120, np.uint8)
    layer = Conv2D(
        codes,
        np.full(16, bias),
        (4, 4, 16),
        input_q=QuantParams(0.02, 128),
        weight_q=QuantParams(0.01, 120),
        output_q=QuantParams(0.02, 140),
    )
    x = np.random.RandomState(1).randint(0, 256, (4, 4, 16)).astype(np.uint8)
    lowered_ = target("rockchip").lower(layer, x=x)
    output = Simulated().record(lowered_).buffers["output"]
    found = check(
        replace(lowered_, buffers={**lowered_.buffers, "output": output}, provenance="board")
    )
    assert (found.verdict, found.mismatches, found.compared) == (verdict, 0, 256), (
        found,
        output[:4],
    )


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_one_unwritten_range_among_written_ones_is_said(
    monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    memory = bytes([byte]) * 16
    ranges = [Range("first", b"abcd", b"abcd"), Range("second", memory, crc=zlib.crc32(memory))]
    capture = replace(load(CAPTURES / "vivante/sim-1x1"), provenance="board")
    made = replace(target("vivante"), replay=lambda _: ranges)
    monkeypatch.setattr("npulab.analysis.check.target", lambda _: made)
    found = check(capture)
    assert found.verdict == "one value"
    assert "second: every byte is the same, as in memory that no job wrote" in found.reason
    assert "first" not in found.reason


@pytest.mark.sample(3)
@pytest.mark.parametrize("npu", NPUS)
def test_an_output_that_was_never_written_is_not_right(
    npu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for capture in whole(npu):
        of = target(npu)
        layer, _, output = of.lift(capture)
        zero = 0 if layer.output_q is None else layer.output_q.zero_point
        size = len(capture.buffers["output"])
        filled = []
        for byte in (0, zero % 256, (zero - 128) % 256):
            one = capture.with_buffers(output=bytes([byte]) * size)
            if np.all(of.lift(one).output == zero):
                filled.append(one)
        if not filled or np.all(output == zero):
            continue
        idle = filled[0]
        found = check(idle)
        assert (found.verdict, found.ok, found.mismatches > 0) == ("not executed", False, True), (
            found
        )
    save(replace(idle, name="idle"), tmp_path / "idle")
    assert cli.main(["check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 capture, 1 differs (1 not executed)"


def test_an_output_that_was_recorded_before_the_run_is_as_it_should_be(tmp_path: Path) -> None:
    capture = load(CAPTURES / "vivante/update4-mesa")
    found = check(capture)
    assert (found.verdict, found.ok, found.before_run) == ("not executed", True, True)
    changed = capture.with_buffers(output=capture.buffers["output"] + bytes(8))
    assert not check(changed).ok
    save(replace(capture, parameters={}), tmp_path / "ran")
    assert cli.main(["check", str(tmp_path)]) == 1
    assert cli.main(["check", str(CAPTURES / "vivante/update4-mesa")]) == 0


@pytest.mark.parametrize(("npu", "most"), [("ane", 3), ("nvdla", 3), ("rockchip", 1)])
def test_fill_that_holds_something_is_said_and_not_compared(npu: str, most: int) -> None:
    """Bytes whose change lifting does not notice lie between the elements."""
    of, lot, said = target(npu), random.Random(npu), 0
    for capture in whole(npu)[:most]:
        assert check(capture).fill == 0
        data, output = bytearray(capture.buffers["output"]), of.lift(capture).output
        fill = [
            at
            for at in lot.sample(range(len(data)), 24)
            if np.array_equal(
                output,
                of.lift(
                    capture.with_buffers(
                        output=bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
                    )
                ).output,
            )
        ]
        if not fill:
            continue
        for at in fill:
            data[at] = lot.randrange(256)
        found = check(capture.with_buffers(output=bytes(data)))
        said += 1
        assert (found.verdict, found.ok, found.mismatches) == ("equal", True, 0), found
        assert found.fill == len(data) - output.nbytes
        assert found.records()[0]["fill"] == found.fill
        assert (
            f"{found.fill} of {len(data)} bytes hold no value of the output (fill): not compared"
            in found.reason
        )
    assert said


@pytest.mark.sample(4)
@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize(
    "name",
    ["output:x", "output:", "output:last layer", "output:-1", "output:07", "output2", "output_3"],
)
def test_another_buffer_of_outputs_is_said_whatever_its_name(npu: str, name: str) -> None:
    capture = next(
        one for one in whole(npu) if not isinstance(target(npu).lift(one).layer, Network)
    )
    found = check(
        replace(capture, buffers={**capture.buffers, name: random.Random(name).randbytes(40)})
    )
    assert (found.verdict, found.ok, found.complete) == ("partly compared", True, False)
    assert f"buffer {name!r} was not compared" in found.reason


@pytest.mark.sample(3)
@pytest.mark.parametrize("npu", NPUS)
def test_a_recorded_buffer_that_is_cut_differs_in_words(npu: str) -> None:
    """Of inputs and coefficients: what fails is in the verdict and in the reason, and was
    recorded.
    """
    for capture in whole(npu)[-3:]:
        for name, data in capture.buffers.items():
            # a compiler was asked for these weights and biases; its job holds them as coefficients
            asked = capture.provenance == "compiler" and name in ("weights", "bias")
            if asked or name in ("output", "commands"):
                continue
            for rest in (data[: len(data) // 2], b"", data[:-1]):
                found = check(capture.with_buffers(**{name: rest}))
                assert (found.verdict == "differs") != found.ok, (name, len(rest), found)
                assert "recorded" not in found.reason or "than were recorded" in found.reason
                if len(rest) < len(data) - 1:
                    assert (found.verdict, bool(found.reason)) == ("differs", True), (
                        name,
                        len(rest),
                        found,
                    )


def test_of_what_is_cut_the_bytes_are_said() -> None:
    add = load(CAPTURES / "nvdla/sim-add")
    for name, data in (("input", bytes(319)), ("input", b""), ("other", bytes(160))):
        found = check(add.with_buffers(**{name: data}))
        assert (found.verdict, found.ok) == ("differs", False)
        assert (
            f"buffer {name!r}: got {len(data)} bytes, allowed by its words are 320" in found.reason
        )
    tanh = load(CAPTURES / "ane/sim-tanh").with_buffers(coefficients=b"")
    assert "got 0 bytes of coefficients, allowed by its words are 128" in check(tanh).reason


def test_words_that_do_not_encode_again_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = load(CAPTURES / "vivante/sim-1x1")
    made = replace(target("vivante"), recode=lambda one: one.buffers["coefficients"] + b"x")
    monkeypatch.setattr("npulab.analysis.check.target", lambda _: made)
    found = check(capture)
    assert (found.verdict, found.ok, found.mismatches, found.compared) == (
        "differs",
        False,
        0,
        3456,
    )
    assert found.reason == "coefficients encode to other bytes than were recorded"


def test_the_rest_of_a_page_is_no_output_and_junk_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = load(CAPTURES / "vivante/sim-3x3-same")
    output = capture.buffers["output"]
    paged = capture.with_buffers(output=output.ljust(4096, b"\x5a"))
    assert (check(paged).verdict, check(paged).reason) == ("equal", "")
    for more in (b"\x5a" * (8192 - len(output)), bytes(range(256)) * 11 + bytes(80)):
        found = check(capture.with_buffers(output=output + more))
        assert (found.verdict, found.ok, found.compared, found.outputs) == (
            "partly compared",
            True,
            1200,
            1200,
        )
        assert (
            found.reason
            == f"{len(more)} of {1200 + len(more)} bytes of buffer 'output' belong to no output that the jobs say"
        )
    save(
        replace(capture.with_buffers(output=output + bytes(1000)), name="longer"),
        tmp_path / "longer",
    )
    save(replace(capture.with_buffers(output=output[:-1]), name="cut"), tmp_path / "cut")
    assert cli.main(["check", str(tmp_path / "longer")]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "1 capture, 0 differ, 1 with nothing or not all compared (1 partly compared)"
    )
    assert cli.main(["check", str(tmp_path)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("2 captures, 1 differs, 2 with nothing or not all compared")


def test_where_recorded_outputs_were_not_compared_at_all_the_status_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (load(CAPTURES / "vivante" / name) for name in ("sim-3x3-same", "sim-1x1"))
    two = replace(
        first,
        jobs=(*first.jobs, *second.jobs),
        buffers={**first.buffers, "output": random.Random(0).randbytes(1200)},
    )
    save(two, tmp_path / "two")
    assert cli.main(["check", str(tmp_path / "two"), "--json"]) == 3
    out = capsys.readouterr().out
    assert '"nothing to compare"' in out
    assert "0 of 1200 bytes of outputs were compared" in out
    save(second, tmp_path / "whole")
    assert (
        cli.main(["check", str(tmp_path)]) == 0
    )  # an output was compared, the last line counts the other
    assert "2 captures, 0 differ, 1 with nothing or not all compared" in capsys.readouterr().out


def test_coefficients_that_were_not_read_do_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Capture) -> None:
        raise ValueError("task 0: field opcode: got 4, allowed is 2")

    made = replace(target("vivante"), lift=refuses, recode=refuses)
    monkeypatch.setattr("npulab.analysis.check.target", lambda _: made)
    found = check(load(CAPTURES / "vivante/sim-1x1"))
    assert (found.verdict, found.ok, found.records()[0]["coefficients"]) == (
        "differs",
        False,
        "not read",
    )
    assert (
        found.reason
        == "task 0: field opcode: got 4, allowed is 2; 0 of 3456 bytes of outputs were compared"
    )


def test_where_a_target_does_not_say_how_long_its_output_is_lifting_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of 10 bytes in 16: what is behind the last row is fill, what is longer is not."""
    real = target("vivante")
    capture = load(CAPTURES / "vivante/sim-1x1")
    layer, x, output = real.lift(capture)
    rows = output.reshape(-1, 12)[:96]
    padded = np.pad(rows, ((0, 0), (0, 4)), constant_values=0x33).tobytes()

    def lift(one: Capture) -> Lifted:
        lifted = np.frombuffer(one.buffers["output"][: 16 * 96], np.uint8).reshape(96, 16)[:, :12]
        return Lifted(layer, x, np.resize(lifted, (1, 96, 12)) ^ 0x80)

    made = replace(real, lift=lift, extent=None)
    monkeypatch.setattr("npulab.analysis.check.target", lambda _: made)
    monkeypatch.setattr("npulab.analysis.check.emulate", lambda *_: rows.reshape(1, 96, 12) ^ 0x80)
    assert check(capture.with_buffers(output=padded)).verdict == "equal"
    found = check(capture.with_buffers(output=padded + bytes(200)))
    assert (found.verdict, found.compared) == ("partly compared", 1152)


def test_a_job_beside_the_simulated_device_says_how_many_bytes_were_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job of a run that no layer is lifted from: cut or longer than what the device gives."""
    first, second = (load(CAPTURES / "vivante" / name) for name in ("sim-3x3-same", "sim-1x1"))
    output = first.buffers["output"]
    made = replace(target("vivante"), simulate=lambda _: output)
    monkeypatch.setattr("npulab.analysis.mismatch.model_run.target", lambda _: made)
    two = replace(first, jobs=(*first.jobs, *second.jobs))
    assert model_run._checked(two).verdict == "equal"
    for data in (output[:-1], output[:40], output + bytes(7)):
        found = model_run._checked(two.with_buffers(output=data))
        both, most = sorted((len(data), len(output)))
        assert (found.verdict, found.compared, found.complete) == ("partly compared", both, False)
        assert found.reason == f"{both} of {most} bytes of buffer 'output' were compared"


def streamed_by(npu: str) -> list[Capture]:
    """Captures with a recorded command stream."""
    made = [lowered(seed) for seed in range(2)] if npu == "rockchip" else load_all(CAPTURES / npu)
    return [capture for capture in made if "commands" in capture.buffers]


@pytest.mark.parametrize("npu", ["vivante", "rockchip"])
def test_a_command_stream_that_is_not_that_of_the_jobs_differs(npu: str) -> None:
    lot = random.Random(npu)
    captures = streamed_by(npu)[:2]
    for capture in captures:
        assert "commands" not in check(capture).reason
        stream = capture.buffers["commands"]
        others = [one.buffers["commands"] for one in captures if one.buffers["commands"] != stream]
        place = 8 * lot.randrange(1, len(stream) // 8 - 2)
        wrong = [
            lot.randbytes(len(stream)),
            b"",
            stream[:-1],
            stream[:place],
            stream[place:],
            bytes(len(stream)),
            *others[:1],
        ]
        for data in wrong:
            found = check(capture.with_buffers(commands=data))
            if stream.startswith(data) and not any(stream[len(data) :]) and len(data) % 8 == 0:
                continue  # what is cut is fill
            assert (found.verdict, found.ok) == ("differs", False), (capture.name, len(data), found)
            assert "buffer 'commands': " in found.reason
        for filled in (stream + bytes(16), bytes(8) + stream):
            assert "commands" not in check(capture.with_buffers(commands=filled)).reason


def test_tasks_that_a_stream_has_nothing_of_are_said() -> None:
    """A layer in several tasks whose stream ends behind a whole one."""
    layer = Conv2D(
        np.full((16, 3, 3, 64), 3, np.int8), np.zeros(16, np.int32), (300, 40, 64), padding="same"
    )
    capture = target("rockchip").lower(layer)
    assert len(capture.jobs) > 1
    assert check(capture).reason.startswith("no input")
    first = 8 * (len(capture.jobs[0].writes) + len(capture.jobs[0].start.writes))
    stream = capture.buffers["commands"]
    ends = [
        end
        for end in range(first, first + 64, 8)
        if "nothing of task 1" in check(capture.with_buffers(commands=stream[:end])).reason
    ]
    assert ends
    found = check(capture.with_buffers(commands=stream[8:]))
    assert found.verdict == "differs"


def test_the_byte_is_said_from_which_on_a_stream_is_another() -> None:
    capture = load(CAPTURES / "vivante/sim-1x1")
    stream = bytearray(capture.buffers["commands"])
    stream[28] ^= 4  # the value of the third write; two writes and a gap lie before it
    found = check(capture.with_buffers(commands=bytes(stream)))
    assert (
        found.reason
        == "buffer 'commands': from byte 0x10 on, the stream does not hold the writes of task 0"
    )
    one = lowered(0)
    data = bytearray(one.buffers["commands"])
    data[8 * 5 + 2] ^= 1  # the value of the sixth command
    assert (
        "from byte 0x28 on, the stream does not hold the writes of task 0"
        in check(one.with_buffers(commands=bytes(data))).reason
    )


@pytest.mark.parametrize("npu", ["ane", "nvdla", "rockchip"])
def test_words_that_are_not_what_the_writes_leave_are_refused(npu: str) -> None:
    capture = lowered(0) if npu == "rockchip" else whole(npu)[0]
    (job, *more) = capture.jobs
    cleared = replace(job, writes=tuple((offset, 0) for offset, _ in job.writes), masks={})
    words = job.words.copy()
    words[-1] ^= 1
    for wrong in (cleared, replace(job, words=words), replace(job, writes=job.writes[:1])):
        with pytest.raises(
            ValueError, match=r"task 0: words: got 0x[0-9a-f]+ at offset 0x.* register writes leave"
        ):
            replace(capture, jobs=(wrong, *more))
    if job.start is not None and job.start.writes:
        inner = replace(job.start, words=job.start.words ^ 1)
        with pytest.raises(ValueError, match=r"task 0: words: .* register writes leave"):
            replace(capture, jobs=(replace(job, start=inner), *more))
    assert (
        replace(capture, jobs=(replace(cleared, words=np.zeros_like(words)), *more)).jobs[0].writes
    )


def test_claims_alone_make_nothing_equal() -> None:
    """Of a capture without an output nothing of one was compared, with one task or with several."""
    said = 0
    for capture in load_all(CAPTURES / "ane"):
        bare = replace(
            capture,
            buffers={name: data for name, data in capture.buffers.items() if name != "output"},
        )
        for one in (bare, replace(bare, jobs=(*bare.jobs, *bare.jobs[:1]))):
            found = check(one)
            if found.claims and not found.claims_wrong:
                said += 1
                assert (found.verdict, found.ok, found.compared, found.complete) == (
                    "claims agree",
                    True,
                    0,
                    False,
                )
            assert found.verdict != "equal"
    assert said >= 4
