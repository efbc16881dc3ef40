"""The meaning of fields: laws that give words from the parameters of layers, and the bits without a
law.

``find_laws`` makes ``Laws``. ``plan_sweep`` says which layers to capture first,
``Laws.next_captures`` which to capture next. Of several laws that agree with the captures, the
search takes the one with the shortest description; ``prior`` has the costs in bits, and how much is
tried.

``expressions`` are the laws, ``operators`` what they are made of; ``library`` makes the candidates
from the rows of ``grammar.csv``. ``matching`` and ``singles`` find laws that hold on all captures.
``boundaries``, ``pool``, ``predicates``, ``lists`` and ``regimes`` find laws that hold on some
captures only, ``between`` finds laws that read other words. ``search`` goes round by round from one
``state`` to the next, ``exceptional`` sets wrongly labelled captures apart.

``posterior`` says what else the captures leave possible and sums its mass, from which claims,
probabilities, doubts and plans follow. ``check_stated`` and ``check_rows`` compare laws that
somebody stated with captures, ``texts`` reads laws from text. ``find_constants`` (package
``constants``) finds real numbers in streams of bytes, ``compare_builds`` (``builds``) what differs
between builds of one input.
"""

from npulab.analysis.laws.builds import compare_builds
from npulab.analysis.laws.constants import find_constants
from npulab.analysis.laws.found import FieldLaw, Laws, find_laws
from npulab.analysis.laws.planning import plan_sweep
from npulab.analysis.laws.stated import Stated, check_rows, check_stated
from npulab.analysis.laws.texts import parse_law

__all__ = [
    "FieldLaw",
    "Laws",
    "Stated",
    "check_rows",
    "check_stated",
    "compare_builds",
    "find_constants",
    "find_laws",
    "parse_law",
    "plan_sweep",
]
