"""The numbers of the search: what a law costs in bits (``PRIOR``), and how much is tried
(``BUDGET``).

A law is accepted if the bits that it explains exceed the bits that it takes to write it down.
``tests/tools/bench_laws.py`` measures recall and precision under these numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Prior:
    """Costs and margins, in bits; ``nearly``, ``missing`` and ``cut`` are shares."""

    # The cost of a name in a law: of a parameter, of another field, of a user's law.
    parameter: float = 4.0
    field: float = 5.0
    given: float = 4.0

    # The cost of saying where a law lies.
    place: float = 5.0  # The place of a run of bits in the words costs this much.
    middle: float = 4.0  # This is added if the run does not start at the law's bit 0.
    boundary: float = 4.0  # Each further field in a word costs this much.
    law_again: float = 3.0  # Naming a law that another run of bits already has costs this much.
    shared: float = 8.0  # A law that gives bits of several words is at most this much cheaper.

    # The cost of decision lists.
    step: float = 1.0  # Each step costs this much, besides its condition and law.
    # A field whose list costs more than this is solved again after more fields have laws.
    long_list: float = 35.0
    step_again: float = 2.0  # Naming a law that an earlier step of the list has costs this much.
    parity: float = 30.0  # The exclusive or of two or three bits of parameters costs this much.

    # The bits that an explanation must save, besides its cost.
    boundary_gain: float = 8.0  # A field that ``boundaries`` proposes must save this much.
    field_gain: float = 10.0  # A decision list must save this much.
    bit_gain: float = 20.0  # A law of a single bit must save this much.
    piece_gain: float = 8.0  # One more run of bits of a known law must save this much.
    derived_gain: float = 25.0  # A field with less information gets no law over other fields.
    simpler: float = 5.0  # A list that replaces another list must be cheaper by this much.
    nearly: float = 0.2  # A near law is wrong on at most this share of the captures.

    # A condition may have been selected because a law is right by chance on its captures. It is
    # trusted if the odds of that are at most 2**-(cost of the condition + selection).
    selection: float = 20.0
    likely: float = 3.0  # A rival is shown if it costs at most this much more: 1/8 of the mass.
    recorded: float = 10.0  # A rival is stored if it costs at most this much more: 2**-10.

    # Modes depend on each other if, were they independent, more than this share of the layers
    # would have a combination of modes that was never captured.
    missing: float = 0.2
    group: float = 6.0  # A group with some single exceptions must save this much.

    # A field may continue above or below itself if its law gives the bits there on at least this
    # share of the captures.
    cut: float = 0.7

    # Laws, or parts of laws, that cost less than these limits count as simple.
    summed: float = 14.0  # A cheaper product may be an operand of a sum.
    simple: float = 10.0  # A cheaper law is always in the pool of a field.
    plain: float = 9.0  # A cheaper law may be the law of a single bit.
    round_limit: float = 8.0  # A constant that costs no more may be a limit of an engineer.


@dataclass(frozen=True)
class Budget:
    """Limits on how much is tried, and the least numbers of captures for some decisions."""

    # A search sees ``searched`` captures of a sweep, or ``searched_of_large`` if the sweep has at
    # least ``large``. The other captures check the result; those that disprove a field are added.
    searched: int = 400
    large: int = 1_000
    searched_of_large: int = 256
    proofs: int = 3  # At most this many searches, each with captures that disproved the last one.
    added: int = 40  # At most this many captures are added for a disproved field.
    for_regimes: int = 12  # With fewer captures there are no decision lists.
    # Fewer captures cannot pay for laws over other fields, or for laws of four columns.
    for_derived: int = 80
    for_tests: int = 150  # Fewer captures do not show that a parameter is irrelevant.
    key_sample: int = 64  # Columns are first compared on this many captures.
    boundary_sample: int = 48
    in_step: int = 2  # A step of a list decides at least this many captures.
    # A part of a law is proved if this many layers contradict the law without the part.
    part_for_claim: int = 4
    # If a list leaves some captures without a law, each of its steps decides at least this many.
    step_for_part: int = 20
    folds: int = 4  # Captures are divided into this many parts, held out in turn.

    # The library.
    categories: int = 6  # A column of at most this many values is a category.
    small: int = 16  # A kernel, a stride or a padding is at most this large.
    laws: int = 110_000
    # with 60,000, ceil((w * x * y * z) / 16) was cut off where a user had stated a law
    first_laws: int = 66_000
    library_values: int = 40_000_000  # All laws together have at most this many values: 160 MB.
    slice: int = 2_500  # This many candidates are computed at once, by rising cost.
    pairs: int = 16_000  # At most this many laws of two columns are made.
    grown_pairs: int = 3_000  # At most this many of them are joined with a constant.
    third_column: int = 500  # At most this many of them are joined with a third column.
    areas: int = 12_000
    same_column: int = 12  # A law has at most this many rivals with equal values in the library.

    # Single laws.
    match_block: int = 8_192

    # Boundaries.
    boundary_laws: int = 25_000
    boundary_likely: int = 4_000
    hole: int = 2

    # The pool of laws for one field.
    narrow: tuple[int, ...] = (12_000, 25_000, 50_000)  # laws tried for fields of 1, 2, 3 bits
    # A law must be right on ``holds`` captures and on ``holds_share`` of all captures.
    holds: int = 3
    holds_share: float = 0.02
    library_part: int = 12_000
    pool: int = 8_000
    pools: int = 40  # At most this many pools are stored, in case their place is solved again.
    patterns: int = 1_200  # Lists are made of laws that agree in at most this many different ways.
    cheap_patterns: int = 150
    constants: int = 24
    held: int = 3  # At most this many constants are tried as the limit of a law.
    bases: int = 3_000  # One constant is solved for each of at most this many columns.
    solved: int = 60  # ``ceil((x + c) / d)`` is solved for at most this many columns.
    wide: int = 5  # A field of fewer bits gets no law with several solved constants.
    address: int = 10  # A field of fewer bits gets no sum of products.
    share_columns: int = 4_000
    share_bases: int = 6
    share_limit: int = 64
    share_alike: int = 6  # At most this many ``share(x, c)`` that are right on the same captures.
    scaled_columns: int = 4_000
    scaled_rows: int = 8
    scaled_near: int = 6_000

    # Conditions and decision lists.
    conditions: int = 16_000
    depth: int = 6  # A list has at most this many steps.
    beam: int = 3  # At most this many lists are continued in each round.
    fan: int = 8  # A list is continued in at most this many ways.
    list_block: int = 512
    halves: int = 500  # At most this many conditions are tried as the last one of a list.
    usual_laws: int = 4_000
    limit_laws: int = 40_000  # Limits are tried on at most this many laws.
    limits: int = 30  # At most this many limits are tried per value of a field and direction.
    open_for_derived: int = 48  # With more open bits, no law may read fields without a law.
    sure_width: int = 4  # A run of this many bits is trusted wherever it lies.
    beside: int = 2  # At most this many open bits next to a field are tried as part of it.
    parity_columns: int = 250

    # Laws between words.
    lanes: int = 256  # At most this many fields of one width are tried as checksums.
    lane_sample: int = 256  # Checksums are first compared on this many bits, as 8 captures of 32.
    lane_runs: int = 64  # At most this many runs of words are checked for each field.
    wide_run: int = 8  # An address or a random number has at least this many adjacent open bits.
    wide_words: int = 12  # At most this many words are compared with each other as addresses.

    # Rivals and plans.
    rivals: int = 200  # A step, or a law, has at most this many rivals.
    twins: int = 4
    at_end: int = 4  # A limit is tried if this many captures have the field's end value.
    pool_for_capture: int = 40  # This many candidate layers are made for each planned capture.
    pool_least: int = 400
    tries: int = 60  # After this many draws without success the constraints are called impossible.
    kinds: int = 64  # If modes have at most this many combinations, each is worth a capture.


PRIOR, BUDGET = Prior(), Budget()


@cache
def constant_cost(value: int) -> float:
    """The bits that it takes to name a constant; a round one takes fewer."""
    value = abs(int(value))
    if value <= 2:
        return 2
    bits, zeros = value.bit_length(), (value & -value).bit_length() - 1
    if bits == zeros + 1:
        return 3
    if (value + 1).bit_count() == 1 or (value - 1).bit_count() == 1:
        return 4
    if value <= 8:
        return 5
    # a number is named by its bits without the zeros at its end, or by all its bits
    return min(4 + 1.2 * (bits - zeros), 4 + math.log2(value))


@cache
def roundest(low: int, high: int) -> int:
    """The cheapest constant to name from ``low`` to ``high``, both included.

    Of several it is the nearest to 0.
    """
    if low <= 0 <= high:
        return 0
    best = (constant_cost(low), abs(low), low)
    for step in (2**n for n in range(40)):
        first = -(-low // step) * step
        if first - 1 > high:
            break
        for value in (first - 1, first, first + 1, first + step):
            if low <= value <= high:
                best = min(best, (constant_cost(value), abs(value), value))
    return best[2]
