"""What a target states: rules of its own by name, variants that ``lower`` heeds; slips of its code
say what was asked, file and line."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npulab
from npulab import FullyConnected, Pool2D, QuantParams
from npulab.captures.target import GUESS, Hang, Importer, Run, Target, Unsupported, guarded
from npulab.quant.rules import RULES, SingleRounding, rule

FOLDER = '''
"""A folder of an NPU."""
from dataclasses import dataclass
import numpy as np
from npulab.bits import RegisterMap
from npulab.quant.rules import Rule, shift_right
from npulab.target import Importer, Lifted, Target

@dataclass(frozen=True)
class Coarse(Rule):
    """A product of 31 bits whose lowest bit is lost."""
    def exact(self, accumulators, multiplier, right_shift, zero_point=0):
        product = np.asarray(accumulators, np.int64) * multiplier
        return 2 * shift_right(product, 32 + np.asarray(right_shift), "half-up") + zero_point
    def max_deviation(self, right_shift):
        return 1.0

TENSORS = {1: "input"}
def lift(capture):
    return TENSORS[int(capture.words[0])]
TABLE = RegisterMap([{"block": "JOB", "offset": 0, "register": "A", "field": "a", "lsb": 0, "width": 8}])
TARGET = Target("owl", "an owl", {"owl": {}}, {"JOB": TABLE}, rule="owl:coarse", lift=lift, rules=(Coarse("owl:coarse"),))
'''


@pytest.fixture
def owl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "npulab_targets" / "owl").mkdir(parents=True)
    file = tmp_path / "npulab_targets" / "owl" / "__init__.py"
    file.write_text(FOLDER)
    monkeypatch.chdir(tmp_path)
    return file


def _layer() -> FullyConnected:
    return FullyConnected(
        np.array([[7], [-9]], np.int8), np.array([1, 2]), weight_q=QuantParams(0.25)
    )


def test_a_rule_of_a_folder_is_known_by_name_wherever_one_is_named(owl: Path) -> None:
    x = np.arange(-5, 6, dtype=np.int8)[:, None]
    with pytest.raises(ValueError, match="its code is not run"):
        npulab.emulate(
            _layer(), x, "owl:coarse"
        )  # a file may name a rule too: nobody asked for the target yet
    npulab.target("owl")
    out = npulab.emulate(_layer(), x, "owl:coarse")
    sums = npulab.accumulate(_layer(), x)
    assert np.array_equal(out, 2 * np.floor(sums / 8 + 0.5))
    assert rule("owl:coarse").name == "owl:coarse"
    assert rule("owl:coarse:P").order == "P"
    assert "owl:coarse" not in RULES
    q = {"input_q": QuantParams(1.0), "weight_q": QuantParams(0.25), "output_q": QuantParams(1.0)}
    assert npulab.identify_rounding(sums, out, **q, rules=["owl:coarse", "gemmlowp"]).fits == (
        "owl:coarse",
    )
    owl.write_text(FOLDER.replace("half-up", "floor") + "# changed\n")
    npulab.target("owl")
    assert np.array_equal(npulab.emulate(_layer(), x, "owl:coarse"), 2 * np.floor(sums / 8))
    with pytest.raises(LookupError, match=r"^rule: got 'owl:fine', allowed is one of .*owl:coarse"):
        npulab.emulate(_layer(), x, "owl:fine")


def test_a_rule_is_named_after_its_target() -> None:
    for rules, message in (
        ((SingleRounding("fine"),), r"got 'fine', allowed in target t is a Rule named 't:...'"),
        (("t:fine",), r"got 'str', allowed in target t is a Rule"),
    ):
        with pytest.raises(ValueError, match=r"^target t: rules: " + message):
            Target("t", "", {"c": {}}, {}, rules=rules)  # type: ignore[arg-type]


def test_a_slip_in_a_folder_says_what_was_asked_file_and_line(owl: Path) -> None:
    target = npulab.target("owl")
    capture = npulab.Capture(
        "case",
        "owl",
        "owl",
        (npulab.captures.capture.Job("JOB", np.uint32([0x50400000])),),
        maps=target.tables,
    )
    line = FOLDER.splitlines().index("    return TENSORS[int(capture.words[0])]") + 1
    text = (
        f"target owl: lift of capture case: KeyError: 1346371584, at owl/__init__.py:{line} "
        "(return TENSORS[int(capture.words[0])])"
    )
    with pytest.raises(ValueError, match=r"^target owl: ") as error:
        target.lift(capture)
    assert str(error.value) == text
    result = npulab.check(capture)
    assert result.reason == text
    assert result.verdict == "differs"
    owl.write_text(FOLDER + "TABLE[0][1]\n")
    with pytest.raises(
        ValueError,
        match=r"^target owl: does not load: .*, at owl/__init__.py:\d+ \(TABLE\[0\]\[1\]\)$",
    ):
        npulab.target("owl")
    owl.write_text("TARGET = (\n")
    with pytest.raises(
        ValueError, match=r"^target owl: does not load: SyntaxError: .*, at owl/__init__.py:1 "
    ):
        npulab.target("owl")


def _raises(error: Exception) -> Any:
    def step(_: object) -> Any:
        raise error

    return step


@pytest.mark.parametrize(
    "error",
    [
        ValueError("words: got 3"),
        LookupError("chip: got 3"),
        Unsupported("no tables"),
        OSError("file"),
        ImportError("extra"),
        TypeError("layer: got 3"),
    ],
)
def test_errors_in_words_pass_as_they_are(error: Exception) -> None:
    target = Target("t", "", {"c": {}}, {}, simulate=_raises(error))
    with pytest.raises(type(error), match=f"^{error}$") as raised:
        target.simulate(None)  # type: ignore[arg-type]
    assert raised.value is error


@pytest.mark.parametrize(("states", "text"), [(None, f"it waits, {GUESS}"), (False, "it waits")])
def test_a_hang_is_a_guess_unless_the_target_says_otherwise(states: bool | None, text: str) -> None:
    hang = Hang("it waits")
    hang.guessed = states
    target = Target("t", "", {"c": {}}, {}, simulate=_raises(hang))
    with pytest.raises(Hang, match=f"^{text}$") as raised:
        target.simulate(None)  # type: ignore[arg-type]
    assert raised.value is hang
    hang.guessed = states
    (run,) = target.simulate([npulab.Capture("a", "t", "c", ())])
    assert run == Run("hang", reason=text, guessed=states is None)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda path: struct.unpack("<I", b"abc"),
            r"error: unpack requires .*lambda path: struct",
        ),
        (
            lambda path: int("ten"),
            r"ValueError: invalid literal for int.*'ten', at captures/test_target_statement.py:\d+",
        ),
        (lambda path: [][3], r"IndexError: list index out of range, at"),
        (lambda path: 1 // 0, r"ZeroDivisionError: .*, at"),
        (lambda path: np.zeros(3).reshape(2, 2), r"ValueError: cannot reshape .*, at"),
        (
            _raises(KeyError("0x40")),
            r"KeyError: '0x40', at captures/test_target_statement.py:\d+ \(raise error\)",
        ),
    ],
)
def test_errors_that_nobody_worded_get_their_place(step: Any, message: str) -> None:
    importer = Importer("logs", lambda path: True, step)
    target = Target("t", "", {"c": {}}, {}, importers=(importer,), explain=step)
    with pytest.raises(ValueError, match=rf"^target t: importer 'logs' of here/log.txt: {message}"):
        target.importers[0].read(Path("here/log.txt"))
    with pytest.raises(ValueError, match=rf"^target t: explain of here: {message}"):
        replace(target, title="again").explain("here")  # type: ignore[arg-type]


def test_a_layer_that_lower_has_not_heard_of_is_refused() -> None:
    @dataclass
    class Sent:
        layer: Any

    def lower(layer: Any, chip: str = "c") -> Any:
        return Sent(layer)

    sums = FullyConnected(np.zeros((1, 2), np.int8), np.zeros(1, int), output="sums")
    mean = Pool2D("average", (2, 2), (4, 4, 1), rounding="floor")
    early, late = (
        Target("t", "", {"c": {}}, {}, lower=lower, variants=variants)
        for variants in ((), ("output", "rounding"))
    )
    assert early.lower(_layer()).layer.output == "codes"
    with pytest.raises(ValueError, match=r"^lower for t: output: got 'sums', allowed is 'codes'$"):
        early.lower(sums)
    with pytest.raises(
        ValueError, match=r"^lower for t: rounding: got 'floor', allowed is 'half-away'$"
    ):
        replace(early, title="again").lower(npulab.Network((mean,)))
    assert late.lower(sums, chip="c").layer is sums
    assert late.lower(layer=mean).layer is mean


@pytest.mark.parametrize(
    ("value", "said"),
    [(np.zeros(34, np.uint32), "34 words"), ("x" * 200, "x" * 80 + ": "), (7, "7")],
)
def test_a_slip_of_a_target_names_what_it_was_asked(value: Any, said: str) -> None:
    def explain(one: Any) -> None:
        return one["none"][1] / 0

    for call in (
        lambda: guarded(explain, "mine", "explain")(value),
        lambda: guarded(explain, "mine", "explain")(one=value),
    ):
        with pytest.raises(ValueError, match=rf"^target mine: explain of {said}"):
            call()
