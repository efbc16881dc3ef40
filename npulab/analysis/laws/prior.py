"""The numbers of the search: what a law costs (``PRIOR``, in bits), and how much is tried
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

    # names in a law
    parameter: float = 4.0
    field: float = 5.0
    given: float = 4.0  # a law of the user's
    # where a law lies
    place: float = 5.0  # where a run of bits lies in the words
    middle: float = 4.0  # that the run starts inside its law
    boundary: float = 4.0  # one more field in a word
    law_again: float = 3.0  # a law that another run has
    shared: float = 8.0  # at most so much less for a law that explains bits of other words, too
    # decision lists
    step: float = 1.0
    long_list: float = 35.0  # a list of more is looked for again when more fields are known
    step_again: float = 2.0  # a law that an earlier step has
    parity: float = 30.0  # naming two or three of all bits of the parameters
    # gains that are needed
    boundary_gain: float = 8.0  # a field between other bits
    field_gain: float = 10.0  # a decision list
    bit_gain: float = 20.0  # a single bit
    piece_gain: float = 8.0  # one more piece of a law
    derived_gain: float = 25.0  # least information of a field for laws over other fields
    simpler: float = 5.0  # a list that replaces others
    nearly: float = 0.2  # share of the captures that what is nearly a law is wrong on
    selection: float = 20.0  # a condition beyond which a law is not right
    # alternatives that are kept
    likely: float = 3.0  # extra cost at which an alternative is considered as likely as the law
    likely_few: float = 4.0  # the same for few captures
    # gains that a claim needs
    claim: float = 12.0
    claim_limit: float = 28.0  # one limit between two constants
    claim_list: float = 40.0  # other lists
    missing: float = (
        0.2  # share of the layers whose modes were not captured together, of modes that go together
    )
    group: float = 6.0  # groups that the captured numbers keep to, but for some numbers
    cut: float = 0.7  # share of the captures on which the bits beside a field go on with its law
    # laws that count as simple
    summed: float = 14.0  # products that are added
    simple: float = 10.0  # laws that stay in a pool, however many others explain more
    plain: float = 9.0  # a single bit counts only with a law of less
    round_limit: float = 8.0  # a limit that somebody would set


@dataclass(frozen=True)
class Budget:
    """Limits on how much is tried, and counts of captures that a decision needs."""

    # captures
    searched: int = (
        400  # of the sweep; the others prove what was found, or are added if they disprove it
    )
    large: int = 1_000  # sweeps of which fewer are searched
    searched_of_large: int = 256
    proofs: int = 3
    added: int = 40  # captures that disprove a field and are added
    many: int = 100  # captures from which on ``Prior.likely`` holds
    for_regimes: int = 12  # captures below which no regimes are looked for
    for_derived: int = (
        80  # captures that pay for laws over other fields, and for laws of four columns
    )
    for_tests: int = 150  # captures from which on a test shows that a parameter does not matter
    key_sample: int = 64  # captures that columns are compared on first
    boundary_sample: int = 48
    in_step: int = 2  # captures that a step decides at least
    step_for_claim: int = 6  # captures that a step needs for a claim
    rare_step: int = (
        60  # captures of which a step with fewer than that holds for at most one in ten
    )
    part_for_claim: int = 4  # layers that are wrong without a part of a law
    step_for_part: int = 20  # captures of a step of a list that leaves captures without a law
    step_for_plan: int = 20  # captures below which a step is worth another capture
    folds: int = 4
    # the library
    categories: int = 6  # values that a column may have to count as a category
    small: int = 16  # a kernel, a stride, a padding have at most this value
    laws: int = 110_000
    first_laws: int = 60_000
    library_values: int = 40_000_000  # of all laws together: 160 MB
    block_values: int = 250_000  # values made at once
    slice: int = 2_500  # candidates made at once, by rising cost
    pairs: int = 16_000  # shapes of two columns
    grown_pairs: int = 3_000  # of these, those that a constant is joined to
    third_column: int = 500  # of these, those that a third column is joined to
    areas: int = 12_000
    factors: int = 14  # columns that products are made of
    same_column: int = 12  # shapes kept that give one column
    # single laws
    match_block: int = 8_192
    # boundaries
    boundary_laws: int = 25_000
    boundary_likely: int = 4_000
    hole: int = 2
    # pools of laws for one field
    narrow: tuple[int, ...] = (12_000, 25_000, 50_000)  # laws for fields of 1, 2, 3 bits
    holds: int = 3  # captures, and their share, that a law holds on
    holds_share: float = 0.02
    library_part: int = 12_000
    pool: int = 8_000
    pools: int = 40  # kept for when their place is tried again
    patterns: int = 1_200  # patterns of agreement that lists are made of
    cheap_patterns: int = 150
    constants: int = 24
    held: int = 3  # constants that laws are limited to
    bases: int = 3_000  # columns that one constant is solved for
    solved: int = 60  # columns that ``ceil((x + c) / d)`` is solved for
    wide: int = 5  # bits from which on a field pays for laws of several constants
    address: int = 10  # bits from which on a field may be a sum of products
    share_columns: int = 4_000
    share_bases: int = 6
    share_limit: int = 64
    share_alike: int = 6  # shares kept that hold on the same captures
    scaled_columns: int = 4_000
    scaled_rows: int = 8
    scaled_near: int = 6_000
    # conditions and decision lists
    conditions: int = 16_000
    depth: int = 6
    beam: int = 3
    fan: int = 8
    list_block: int = 512
    halves: int = 500  # conditions whose larger side has a law, looked at for the other side
    usual_laws: int = 4_000
    limit_laws: int = 40_000  # laws that limits are looked for on
    limits: int = 30  # limits for each value of a field and direction
    open_for_derived: int = 48  # open bits above which no field follows from open ones
    sure_width: int = 4  # bits of a run that counts wherever it lies
    beside: int = 2  # open bits beside a field that may belong to it
    parity_columns: int = 250
    # rivals and plans
    rivals: int = 200  # of a step, or of a law
    twins: int = 4
    at_end: int = 4  # captures that share the end of a field's values
    doubts: int = 40  # of a field, in a plan
    pool_for_capture: int = 40  # candidates made for each capture asked for
    pool_least: int = 400
    tries: int = 60  # draws before constraints are called impossible
    kinds: int = 64  # combinations of all modes that are worth a capture each


PRIOR, BUDGET = Prior(), Budget()


@cache
def constant_cost(value: int) -> float:
    """The bits that it takes to name a constant: fewer if it is rounder."""
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
    return min(4 + 1.2 * (bits - zeros), 4 + math.log2(value))  # by its odd part, or as it is


@cache
def roundest(low: int, high: int) -> int:
    """The constant of ``low`` to ``high`` (included) that is cheapest to name.

    Of equally cheap constants it is the nearest to 0.
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
