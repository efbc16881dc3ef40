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
    """Costs and margins, in bits."""

    # the cost of a name in a law: of a parameter, of another field, or of a user's law
    parameter: float = 4.0
    field: float = 5.0
    given: float = 4.0
    # the cost of saying where a law lies
    place: float = 5.0  # the place of a run of bits in the words
    middle: float = 4.0  # added if the run does not start at the law's bit 0
    boundary: float = 4.0  # one more field in a word
    law_again: float = 3.0  # naming a law that another run of bits has already
    shared: float = 8.0  # the most that a law is cheaper for giving bits of other words, too
    # decision lists
    step: float = 1.0
    long_list: float = (
        35.0  # a field whose list costs more is solved again when more fields have laws
    )
    step_again: float = 2.0  # naming a law that an earlier step of the list has
    parity: float = 30.0  # naming two or three bits among all bits of the parameters
    # the bits that an explanation must save
    boundary_gain: float = 8.0  # a field between bits that have laws
    field_gain: float = 10.0  # a decision list
    bit_gain: float = 20.0  # a law of a single bit
    piece_gain: float = 8.0  # one more run of bits of a known law
    derived_gain: float = 25.0  # a field must hold so many bits to get a law over other fields
    simpler: float = 5.0  # a list that replaces another list
    nearly: float = 0.2  # a near law is wrong on at most this share of the captures
    # the captures that a condition selects must all follow the law with a chance of less than
    # 2**-(cost of the condition + this), or the condition may select them for being right
    selection: float = 20.0
    likely: float = 3.0  # a rival of at most so much extra cost is shown: an eighth of the mass
    recorded: float = 10.0  # the most extra cost of a rival that is kept: a mass of 2**-10
    # modes depend on each other if, were they independent, more than this share of the layers
    # would have a combination that was never captured
    missing: float = 0.2
    group: float = 6.0  # the bits that a group with some single exceptions must save
    # a field may continue if its law gives the next bits on at least this share of the captures
    cut: float = 0.7
    # laws that cost at most this count as simple
    summed: float = 14.0  # products that may be operands of a sum
    simple: float = 10.0  # laws that a pool always keeps
    plain: float = 9.0  # the law of a single bit
    round_limit: float = 8.0  # a limit that an engineer would choose


@dataclass(frozen=True)
class Budget:
    """Limits on how much is tried, and the least numbers of captures for some decisions."""

    # The search sees so many captures of a sweep; the other captures check the result, and those
    # that disprove a field are added.
    searched: int = 400
    large: int = 1_000  # a sweep of at least so many captures is large
    searched_of_large: int = 256
    proofs: int = 3  # the most searches, each with the captures that disproved the one before
    added: int = 40  # the most captures added for a disproved field
    for_regimes: int = 12  # fewer captures get no decision lists
    # fewer captures cannot pay for laws over other fields, or for laws of four columns
    for_derived: int = 80
    for_tests: int = 150  # fewer captures do not show that a parameter is irrelevant
    key_sample: int = 64  # captures on which columns are compared first
    boundary_sample: int = 48
    in_step: int = 2  # a step of a list decides at least so many captures
    # a part of a law is proved if so many layers contradict the law without it
    part_for_claim: int = 4
    # each step of a list that leaves some captures without a law must decide so many captures
    step_for_part: int = 20
    folds: int = 4  # parts of the captures that are held out in turn
    # the library
    categories: int = 6  # a column of at most so many values is a category
    small: int = 16  # the largest value of a kernel, a stride or a padding
    laws: int = 110_000
    # with 60,000, ceil((w * x * y * z) / 16) was cut off where a user had stated a law
    first_laws: int = 66_000
    library_values: int = 40_000_000  # values of all laws together, 160 MB
    slice: int = 2_500  # candidates computed at once, by rising cost
    pairs: int = 16_000  # shapes of two columns
    grown_pairs: int = 3_000  # shapes of two columns that are joined with a constant
    third_column: int = 500  # shapes of two columns that are joined with a third column
    areas: int = 12_000
    same_column: int = 12  # shapes that are kept for one column of values
    # single laws
    match_block: int = 8_192
    # boundaries
    boundary_laws: int = 25_000
    boundary_likely: int = 4_000
    hole: int = 2
    # the pool of laws for one field
    narrow: tuple[int, ...] = (12_000, 25_000, 50_000)  # laws tried for fields of 1, 2, 3 bits
    # a law must be right on so many captures, and on this share of them
    holds: int = 3
    holds_share: float = 0.02
    library_part: int = 12_000
    pool: int = 8_000
    pools: int = 40  # pools kept in case their place is solved again
    patterns: int = 1_200  # patterns of agreement that lists are made of
    cheap_patterns: int = 150
    constants: int = 24
    held: int = 3  # constants tried as the limit of a law
    bases: int = 3_000  # columns for which one constant is solved
    solved: int = 60  # columns for which ``ceil((x + c) / d)`` is solved
    wide: int = 5  # a field of fewer bits gets no law with several solved constants
    address: int = 10  # a field of fewer bits gets no sum of products
    share_columns: int = 4_000
    share_bases: int = 6
    share_limit: int = 64
    share_alike: int = 6  # laws ``share(x, c)`` kept that are right on the same captures
    scaled_columns: int = 4_000
    scaled_rows: int = 8
    scaled_near: int = 6_000
    # conditions and decision lists
    conditions: int = 16_000
    depth: int = 6  # steps of a list
    beam: int = 3  # lists that are continued in each round
    fan: int = 8  # continuations of one list
    list_block: int = 512
    halves: int = 500  # conditions that are tried as the last one of a list
    usual_laws: int = 4_000
    limit_laws: int = 40_000  # laws on which limits are tried
    limits: int = 30  # limits tried for each value of a field, in each direction
    open_for_derived: int = 48  # with more open bits, no field is searched that reads open bits
    sure_width: int = 4  # a run of so many bits counts wherever it lies
    beside: int = 2  # open bits next to a field that may belong to it
    parity_columns: int = 250
    # laws between words
    lanes: int = 256  # places that may be a checksum
    lane_sample: int = 256  # bits of captures on which checksums are compared first
    lane_runs: int = 64  # runs of words that are told apart by their constants
    wide_run: int = 8  # an address or a random number has so many adjacent open bits
    wide_words: int = 12  # addresses that are compared with each other
    # rivals and plans
    rivals: int = 200  # rivals of a step, or of a law
    twins: int = 4
    at_end: int = 4  # so many captures must share the end of a field's values for a limit there
    pool_for_capture: int = 40  # candidate layers made for each planned capture
    pool_least: int = 400
    tries: int = 60  # draws before the constraints are called impossible
    kinds: int = 64  # combinations of all modes that are worth a capture each


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
    return min(
        4 + 1.2 * (bits - zeros), 4 + math.log2(value)
    )  # the cheaper of two ways: named by its bits without the zeros at its end, or by all its bits


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
