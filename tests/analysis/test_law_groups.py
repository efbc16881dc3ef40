"""Laws are proved of layers like those captured: not of channels that are no whole groups, if
all captured ones are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from claims import claims

import npulab
from npulab.analysis.laws.found import Laws
from npulab.analysis.laws.groups import captured_for, group_of, groups_in
from npulab.analysis.laws.summary import Summary
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets.law_view import LawModel

LAYERS = 72
FULL = np.arange(1, 129)


def captured(channels: np.ndarray | list[int], **others: np.ndarray) -> pd.DataFrame:
    """Layers of any width, of channels as often as each other."""
    random = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "width": random.integers(4, 100, LAYERS),
            "channels": random.permutation(np.resize(channels, LAYERS)),
            **others,
        }
    )


def padded(layers: pd.DataFrame, whole: int, kept: int = 0) -> np.ndarray:
    """The width, and three more where channels are padded to whole groups; images of 3 channels
    are not.
    """
    plain = (layers.channels % whole == kept) | (layers.channels == 3)
    return np.where(plain, layers.width, layers.width + 3).astype(np.uint32)[:, None]


def of_width(channels: np.ndarray | list[int], **others: np.ndarray) -> Laws:
    layers = captured(channels, **others)
    return npulab.find_laws(layers.width.to_numpy(np.uint32)[:, None], layers)


def claimed(laws: Laws, **asked: object) -> list[bool]:
    layers = pd.DataFrame({"width": 50, **asked})
    return (laws.predict(layers)[1][:, 0] != 0).tolist()


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([8, 16, 24, 40, 64], "c in groups of 8"),
        ([4, 8, 12, 40, 64], "c in groups of 4"),
        ([48, 96, 144], "c in groups of 48"),
        ([1, 3, 5], "c in groups of 2 with 1 left over"),
        ([5, 21, 37, 69], "c in groups of 16 with 5 left over"),
        ([16], "c = 16"),
        ([3, 8, 16, 24, 32, 64, 96, 128], "c in groups of 8 or c = 3"),
        ([3, 4, *range(32, 320, 32)], "c in groups of 32 or c = 3 or 4"),
        ([*range(8, 80, 8), *range(9, 81, 8)], "c in groups of 8 with 0 or 1 left over"),
        ([0, 1], None),
        ([1, 2], None),
        ([1, 2, 4], None),
        ([1, 3, 5, 6], None),
        (range(1, 20), None),
        ([7, 8, 9, 14, 16, 28, 32, 56], None),
    ],
)
def test_the_groups_that_numbers_keep_to(numbers: list[int], text: str | None) -> None:
    group = group_of("c", np.repeat(np.array(numbers), 2))
    assert (str(group) if group else None) == text
    assert group is None or group.has(np.array(numbers)).all()


def test_a_number_captured_once_says_that_there_are_others() -> None:
    numbers = np.repeat(np.arange(8, 200, 8), 2)
    assert str(group_of("c", np.append(numbers, [3, 3]))) == "c in groups of 8 or c = 3"
    assert group_of("c", np.append(numbers, 3)) is None


def test_numbers_drawn_evenly_keep_to_no_groups() -> None:
    random = np.random.default_rng(2)
    drawn = [
        random.integers(1, 2 ** random.integers(3, 11), random.integers(8, 200)) for _ in range(300)
    ]
    sizes = [np.prod(random.integers(1, 30, (3, 100)), 0) for _ in range(100)]
    assert not [values for values in (*drawn, *sizes) if group_of("c", values)]


@pytest.mark.parametrize(
    ("channels", "whole", "kept"),
    [
        (range(8, 136, 8), 8, 0),
        ([16, 32, 64, 128], 16, 0),
        (range(1, 128, 2), 2, 1),
        (range(6, 128, 16), 16, 6),
        ([3, *range(8, 136, 8)], 8, 0),
    ],
)
def test_layers_of_other_channels_are_not_claimed(
    channels: list[int], whole: int, kept: int
) -> None:
    """No law reads the channels, and a unit may do with others what no capture shows."""
    layers = captured(np.array(channels))
    laws = npulab.find_laws(padded(layers, whole, kept), layers)
    asked = pd.DataFrame({"width": 50, "channels": FULL})
    words, mask = laws.predict(asked)
    wrong = ((words ^ padded(asked, whole, kept)) & mask)[:, 0] != 0
    alike = (FULL % whole == kept) & np.isin(FULL % whole, np.array(channels) % whole)
    assert not wrong.any()
    assert mask[alike].all()
    assert not mask[~alike & (FULL != 3)].any()


def test_what_never_varied_is_a_group_of_its_own() -> None:
    with pytest.warns(UserWarning, match="with one value only"):
        laws = of_width(FULL, stride=np.full(LAYERS, 2), scale=np.full(LAYERS, 0.1))
    assert claimed(laws, channels=[40, 40, 40], stride=[2, 1, 2], scale=[0.1, 0.1, 0.2]) == [
        True,
        False,
        False,
    ]
    assert claimed(laws, channels=[40], scale=np.float32([0.1])) == [True]
    assert laws.captured_for == "for stride = 2, scale = 0.1"


def test_layers_of_one_class_are_proved_once_others_are_captured() -> None:
    laws = of_width(range(8, 136, 8))
    assert claimed(laws, channels=[41, 40]) == [False, True]
    more = captured(np.array([33, 41, 57]))
    laws = laws.update(more.width.to_numpy(np.uint32)[:, None], more)
    assert claimed(laws, channels=[41, 40]) == [True, True]


def test_a_layer_of_another_class_is_planned() -> None:
    """A layer whose number is outside of the groups tells more than one inside."""
    laws = of_width(range(8, 136, 8))
    candidates = captured(np.array([8, 16, 24, 32, 40, 48, 56, 64, 43]))
    assert laws.next_captures(1, candidates=candidates).channels.tolist() == [43]


def test_the_words_say_what_was_captured() -> None:
    layers = captured(range(8, 136, 8))
    sweep = Sweep(layers.width.to_numpy(np.uint32)[:, None], layers)
    laws = npulab.find_laws(sweep)
    text = "for channels in groups of 8"
    assert laws.captured_for == text
    assert text in repr(laws)
    assert text in laws._repr_html_()
    assert text in LawModel(laws).summary
    summary = Summary(sweep, laws, laws.open)
    assert f"captured {text}; nothing is proved of layers with other numbers" in str(summary)
    assert summary.records()[0]["captured_for"] == text
    free = of_width(FULL)
    assert free.captured_for == ""
    assert "groups" not in repr(free) + LawModel(free).summary


def test_many_parameters_are_counted() -> None:
    groups = groups_in(pd.DataFrame({"a": [1, 1, 1], **{name: [2, 4, 8] for name in "bcdefg"}}))
    assert captured_for(groups) == (
        "for b in groups of 2, c in groups of 2, d in groups of 2, e in groups of 2, "
        "3 other parameters likewise"
    )


KINDS = ("padded", "remainder", "table", "modes", "xor")


def drawn_truth(kind: str, layers: pd.DataFrame, whole: int, kept: int) -> np.ndarray:
    width, channels = layers.width.to_numpy(), layers.channels.to_numpy()
    first = {
        "padded": padded(layers, whole, kept)[:, 0],
        "remainder": width + 2**8 * (channels % whole),
        "table": width + 2**8 * ((channels % whole) * 37 % 11),
        "xor": (width ^ channels) % 256,
        "modes": np.where(channels % whole == kept, width, -(-width // 2)),
    }
    return np.stack([first[kind], width * 2 + 1], 1).astype(np.uint32)


def lot(searches: int) -> dict[str, tuple[float, float, int]]:
    """(told, came true, claims) of layers drawn as the captured ones, and of other numbers in
    the same ranges.
    """
    random = np.random.default_rng(46)
    told: dict[str, list[np.ndarray]] = {"alike": [], "other": []}
    right: dict[str, list[np.ndarray]] = {"alike": [], "other": []}
    for number in range(searches):
        whole = 2 ** int(random.integers(1, 5))
        step = whole * int(random.choice([1, 2]))
        kept = int(random.integers(0, whole))
        pool = np.arange(kept, 200, step)
        pool = pool[pool > 0]
        sets = {"captured": pool, "alike": pool, "other": np.arange(pool[0], pool[-1] + 1)}
        layers = {
            name: pd.DataFrame(
                {"width": random.integers(4, 100, 64), "channels": random.choice(of, 64)}
            )
            for name, of in sets.items()
        }
        words = {
            name: drawn_truth(KINDS[number % len(KINDS)], frame, whole, kept)
            for name, frame in layers.items()
        }
        laws = npulab.find_laws(words["captured"], layers["captured"])
        for name in told:
            probability, true = claims(laws, words[name], layers[name])
            told[name].append(probability)
            right[name].append(true)
    return {
        name: (
            float(np.concatenate(told[name]).mean()),
            float(np.concatenate(right[name]).mean()),
            len(np.concatenate(right[name])),
        )
        for name in told
    }


@pytest.mark.parametrize("searches", [2, pytest.param(40, marks=pytest.mark.long)])
def test_by_lot_claims_come_true_on_other_numbers(searches: int) -> None:
    for name, (told, true, count) in lot(searches).items():
        assert true >= told, name
        assert count > 10 * searches, name
