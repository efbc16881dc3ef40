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

    # A name in a law costs ``parameter``, ``field`` (another field) or ``given`` (a user's law).
    parameter: float = 4.0
    field: float = 5.0
    given: float = 4.0

    # Stating the place of a run of bits in the words costs ``place``.
    place: float = 5.0
    # If the run does not start at bit 0 of its law, stating its place costs ``middle`` more.
    middle: float = 4.0
    # Each further field in a word costs ``boundary``.
    boundary: float = 4.0
    # Naming a law that another run of bits already has costs ``law_again``.
    law_again: float = 3.0
    # A law that gives bits of several words is cheaper by at most ``shared``.
    shared: float = 8.0

    # Each step of a decision list costs ``step``, besides its condition and law.
    step: float = 1.0
    # A field whose list costs more than ``long_list`` is solved again later, when more fields have
    # laws.
    long_list: float = 35.0
    # Naming a law that an earlier step of the list has costs ``step_again``.
    step_again: float = 2.0
    # A law that is the exclusive or of two or three bits of parameters costs ``parity``.
    parity: float = 30.0

    # A field that ``boundaries`` proposes must save ``boundary_gain`` bits.
    boundary_gain: float = 8.0
    # A decision list must save ``field_gain`` bits, besides its cost.
    field_gain: float = 10.0
    # A law of a single bit must save ``bit_gain`` bits, besides its cost.
    bit_gain: float = 20.0
    # One more run of bits of a known law must save ``piece_gain`` bits, besides its cost.
    piece_gain: float = 8.0
    # A field with less information than ``derived_gain`` bits gets no law over other fields.
    derived_gain: float = 25.0
    # A list that replaces another list must be cheaper by ``simpler`` bits.
    simpler: float = 5.0
    # A near law is wrong on at most a share of ``nearly`` of the captures.
    nearly: float = 0.2

    # A condition may have been selected because a law is right by chance on its captures. It is
    # trusted if the odds of that are at most 2**-(cost of the condition + selection).
    selection: float = 20.0
    # A rival is shown if it costs at most ``likely`` bits more than its law: then it has at least
    # 1/8 of the law's mass.
    likely: float = 3.0
    # A rival is stored if it costs at most ``recorded`` bits more than its law.
    recorded: float = 10.0

    # Suppose that modes are independent, and count the layers that would have a combination of
    # modes that was never captured. Above a share of ``missing``, the modes depend on each other.
    missing: float = 0.2
    # A group of numbers with some single exceptions must save ``group`` bits.
    group: float = 6.0

    # A field may be part of a larger one if its law gives the bits next to the field on at least a
    # share of ``cut`` of the captures.
    cut: float = 0.7

    # A product that costs less than ``summed`` may be an operand of a sum.
    summed: float = 14.0
    # A law that costs less than ``simple`` is always in the pool of a field.
    simple: float = 10.0
    # A law that costs less than ``plain`` may be the law of a single bit.
    plain: float = 9.0
    # A constant that costs at most ``round_limit`` is round enough to be a limit that an engineer
    # chose.
    round_limit: float = 8.0


@dataclass(frozen=True)
class Budget:
    """Limits on how much is tried, and the least numbers of captures for some decisions."""

    # A search sees ``searched`` captures of a sweep, or ``searched_of_large`` if the sweep has at
    # least ``large``. The other captures check the result; those that disprove a field are added.
    searched: int = 400
    large: int = 1_000
    searched_of_large: int = 256
    # There are at most ``proofs`` searches, each with the captures that disproved the one before.
    proofs: int = 3
    # At most ``added`` captures are added to the search for a field that they disprove.
    added: int = 40
    # With fewer captures than ``for_regimes``, no decision lists are sought.
    for_regimes: int = 12
    # With fewer captures than ``for_derived``, laws over other fields and laws of four columns are
    # not sought, because they would cost more than they save.
    for_derived: int = 80
    # Fewer captures than ``for_tests`` do not show that a parameter is irrelevant.
    for_tests: int = 150
    # Columns are first compared on ``key_sample`` captures.
    key_sample: int = 64
    boundary_sample: int = 48
    # A step of a list decides at least ``in_step`` captures.
    in_step: int = 2
    # A part of a law is proved if ``part_for_claim`` layers contradict the law without the part.
    part_for_claim: int = 4
    # If a list leaves some captures without a law, each of its steps must decide at least
    # ``step_for_part`` captures.
    step_for_part: int = 20
    # Captures are divided into ``folds`` parts, which are held out in turn.
    folds: int = 4

    # A column of at most ``categories`` values is a category.
    categories: int = 6
    # Numbers up to ``small`` may be a kernel, a stride or a padding.
    small: int = 16
    laws: int = 110_000
    # The first library has at most ``first_laws`` laws. With 60,000, ceil((w * x * y * z) / 16) was
    # cut off where a user had stated a law
    first_laws: int = 66_000
    # All laws together have at most ``library_values`` values: 160 MB.
    library_values: int = 40_000_000
    # At most ``slice`` candidates for laws are computed at once, by rising cost.
    slice: int = 2_500
    # At most ``pairs`` laws of two columns are made.
    pairs: int = 16_000
    # At most ``grown_pairs`` laws of two columns are joined with a constant.
    grown_pairs: int = 3_000
    # At most ``third_column`` laws of two columns are joined with a third column.
    third_column: int = 500
    areas: int = 12_000
    # A law has at most ``same_column`` rivals that have its values on all captures.
    same_column: int = 12

    match_block: int = 8_192

    boundary_laws: int = 25_000
    boundary_likely: int = 4_000
    hole: int = 2

    # For fields of 1, 2 and 3 bits, only the cheapest laws are tried: as many as ``narrow`` says.
    narrow: tuple[int, ...] = (12_000, 25_000, 50_000)
    # A law for a step of a list must be right on at least ``holds`` captures, and on at least a
    # share of ``holds_share`` of all captures.
    holds: int = 3
    holds_share: float = 0.02
    library_part: int = 12_000
    pool: int = 8_000
    # The pools of at most ``pools`` fields are stored, in case a field is solved again.
    pools: int = 40
    # Lists are made of laws that agree in at most ``patterns`` different ways.
    patterns: int = 1_200
    cheap_patterns: int = 150
    constants: int = 24
    # At most ``held`` constants are tried as the limit of a law.
    held: int = 3
    # One constant is solved for each of at most ``bases`` columns.
    bases: int = 3_000
    # ``ceil((x + c) / d)`` is solved for at most ``solved`` columns.
    solved: int = 60
    # A field of fewer bits than ``wide`` gets no law with several solved constants.
    wide: int = 5
    # A field of fewer bits than ``address`` gets no law that is a sum of products.
    address: int = 10
    share_columns: int = 4_000
    share_bases: int = 6
    share_limit: int = 64
    # At most ``share_alike`` laws ``share(x, c)`` may be right on the same captures.
    share_alike: int = 6
    scaled_columns: int = 4_000
    scaled_rows: int = 8
    scaled_near: int = 6_000

    conditions: int = 16_000
    # A list has at most ``depth`` steps.
    depth: int = 6
    # At most ``beam`` lists are continued in each round.
    beam: int = 3
    # A list is continued in at most ``fan`` ways.
    fan: int = 8
    list_block: int = 512
    # At most ``halves`` conditions are tried as the last one of a list.
    halves: int = 500
    usual_laws: int = 4_000
    # Limits are tried on at most ``limit_laws`` laws.
    limit_laws: int = 40_000
    # At most ``limits`` limits are tried per value of a field and direction.
    limits: int = 30
    # With more open bits than ``open_for_derived``, no law may read open bits.
    open_for_derived: int = 48
    # A law for at least ``sure_width`` adjacent bits is trusted even if bits next to them have no
    # law.
    sure_width: int = 4
    # At most ``beside`` open bits next to a field are tried as part of it.
    beside: int = 2
    parity_columns: int = 250

    # At most ``lanes`` fields of one width are tried as checksums.
    lanes: int = 256
    # Checksums are first compared on ``lane_sample`` bits of captures: 8 captures for a checksum of
    # 32 bits.
    lane_sample: int = 256
    # At most ``lane_runs`` runs of words are tried for each field that may be their checksum.
    lane_runs: int = 64
    # An address or a random number has at least ``wide_run`` adjacent open bits.
    wide_run: int = 8
    # At most ``wide_words`` words are compared with each other to find addresses.
    wide_words: int = 12

    # A step, or a law, has at most ``rivals`` rivals.
    rivals: int = 200
    twins: int = 4
    # A limit is tried if at least ``at_end`` captures have the lowest, or the highest, value of the
    # field.
    at_end: int = 4
    # For each planned capture, ``pool_for_capture`` candidate layers are made.
    pool_for_capture: int = 40
    pool_least: int = 400
    # If none of the layers of ``tries`` draws meets the constraints, the constraints are refused.
    tries: int = 60
    # If all modes together have at most ``kinds`` combinations, each is worth a capture.
    kinds: int = 64


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
