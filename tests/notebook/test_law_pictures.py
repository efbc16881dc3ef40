"""Pictures of sweeps and laws: the sentence has the number, the marks are where they belong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_laws import ROWS, fake_laws
from matplotlib.colors import to_rgb

from npulab.analysis.correlate import correlate, flips
from npulab.notebook.pictures import Picture, correlation_map, flip_map, law_map, law_scatter
from npulab.notebook.pictures.laws import STATUSES

LAWS = fake_laws()


def image(picture: Picture) -> np.ndarray:
    return np.asarray(picture.figure.axes[0].images[0].get_array())


def legend(picture: Picture) -> list[str]:
    return [text.get_text() for one in picture.figure.legends for text in one.get_texts()]


def test_flip_map_has_bit_31_on_the_left() -> None:
    picture = flip_map(LAWS.words)
    assert np.array_equal(image(picture), flips(LAWS.words)[:, ::-1])
    word, bit = divmod(int(flips(LAWS.words).argmax()), 32)
    varying = np.count_nonzero(flips(LAWS.words))
    assert repr(picture).startswith(
        f"60 captures as they come: {varying} of 160 bits flip, most often word {word} bit {bit}, "
    )
    other = flip_map(LAWS.words, LAWS.parameters, "relu")
    assert repr(other).startswith("60 captures sorted by relu")
    assert image(other)[2, 31] == 1 / (ROWS - 1)
    assert "(simulated)" in repr(
        flip_map(SimpleNamespace(words=LAWS.words, parameters=LAWS.parameters, simulated=True))
    )
    assert (
        repr(flip_map(np.zeros((2, 1), np.uint32)))
        == "2 captures as they come: 0 of 32 bits flip, none flips"
    )


def test_law_map_has_a_colour_and_a_mark_for_each_status() -> None:
    picture = law_map(LAWS)
    assert (
        repr(picture)
        == "5 words: 7 law, 8 constant, 1 rivals, 4 open, 138 never exercised, 2 nuisance of 160 bits"
    )
    for name, (colour, _, _) in STATUSES.items():
        assert (image(picture)[:, ::-1][LAWS.status == name] == to_rgb(colour)).all()
    assert (
        len({mark for _, mark, _ in STATUSES.values()})
        == len({colour for colour, _, _ in STATUSES.values()})
        == 6
    )
    marks = {
        (31 - int(x), int(y))
        for points in picture.figure.axes[0].collections[:-1]
        for x, y in points.get_offsets()
    }
    assert marks == {(bit, word) for word, bit in np.argwhere(LAWS.status != "law").tolist()}
    assert legend(picture) == [
        "law",
        "= constant",
        "/ rivals",
        "? open",
        "· never exercised",
        "× nuisance",
    ]
    assert "(simulated)" in repr(law_map(fake_laws(simulated=True)))


def test_correlation_map_has_fields_by_place() -> None:
    table = correlate(LAWS.words, LAWS.parameters, laws=LAWS)
    picture = correlation_map(table)
    axes = picture.figure.axes[0]
    fields = [label.get_text() for label in axes.get_yticklabels()]
    assert fields == ["w0_3_7", "w1_4_4", "w2_0_1"], "w1_30_2 and w3_8_8 go with nothing"
    names = [label.get_text() for label in axes.get_xticklabels()]
    for row in table[table["field"].isin(fields)].itertuples():
        assert (
            image(picture)[fields.index(row.field), names.index(row.parameter)]
            == row.mutual_information
        )
    dots = {(fields[int(y)], names[int(x)]) for x, y in axes.collections[0].get_offsets()}
    assert dots == {("w0_3_7", "stride"), ("w0_3_7", "input_w"), ("w2_0_1", "relu")}
    assert repr(picture).startswith(
        "3 of 5 fields, 4 parameters: 3 law hits; most bits of mutual information: "
    )
    mine = fake_laws(simulated=True)
    assert "4 parameters (simulated): " in repr(
        correlation_map(correlate(mine.words, mine.parameters, laws=mine))
    )
    assert "most Spearman's rho" in repr(correlation_map(table, "spearman"))
    with pytest.raises(
        ValueError, match="by: got 'law', allowed is one of mutual_information, pearson, spearman"
    ):
        correlation_map(table, "law")
    with pytest.raises(ValueError, match="table: got no rows"):
        correlation_map(table[:0])


def test_correlation_map_says_what_it_leaves_out() -> None:
    words = np.arange(4, dtype=np.uint32)[:, None] % 2 * np.full((1, 70), 1, np.uint32)
    assert repr(correlation_map(correlate(words, {"a": range(4)}))).startswith(
        "64 of 70 fields, 1 parameters"
    )


def test_law_scatter_gives_each_step_a_mark() -> None:
    picture = law_scatter(LAWS, 0)
    assert (
        repr(picture) == "w0_3_7 against input_w: 60 captures, 60 as the law has them, in 2 steps"
    )
    halves = int((LAWS.parameters["stride"] == 2).sum())
    assert legend(picture) == [
        f"ceil(input_w / 2)   when stride == 2  ({halves})",
        f"input_w   else  ({ROWS - halves})",
    ]
    points = [line for line in picture.figure.axes[0].lines if line.get_marker() in ("o", "s")]
    assert [len(line.get_xdata()) for line in points] == [halves, ROWS - halves]
    x, y = points[1].get_data()
    assert np.array_equal(x, y)


def test_law_scatter_marks_captures_that_are_otherwise() -> None:
    LAWS.words[5, 0] ^= 8
    try:
        picture = law_scatter(LAWS, "w0_3_7", "relu")
    finally:
        LAWS.words[5, 0] ^= 8
    assert repr(picture) == "w0_3_7 against relu: 60 captures, 59 as the law has them, in 2 steps"
    assert legend(picture)[2:] == ["captured, not as the law has it (1)", "what the law has there"]


@pytest.mark.parametrize("field", ["w1_4_4", (1, 4, 4)])
def test_law_scatter_of_bits_without_a_law(field: Any) -> None:
    assert (
        repr(law_scatter(LAWS, field)) == "w1_4_4 against input_w: 60 captures, 16 values, no law"
    )
    assert repr(law_scatter(LAWS, LAWS.fields[1])).startswith(
        "w2_0_1 against relu: 60 captures, 60 as the law"
    )


@pytest.mark.parametrize("field", [3, -1, "w9_0_1", "w0_30_4", "relu", (1, 2), None])
def test_law_scatter_refuses_what_is_no_field(field: Any) -> None:
    with pytest.raises(
        LookupError, match=r"field: got .*, allowed is one of the 3 fields of the laws"
    ):
        law_scatter(LAWS, field)
    with pytest.raises(LookupError, match="parameter: got 'depth', known are input_w, stride"):
        law_scatter(LAWS, 0, "depth")
