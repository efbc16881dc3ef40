"""What fields mean: laws that give words from the parameters of layers, proved on the captures, and
what is open.

``find_laws`` makes ``Laws``; ``plan_sweep`` says what to capture first, ``Laws.next_captures`` what
to capture next. ``expressions`` are the laws, ``library`` the shapes that are tried, ``matching``
finds single laws, ``boundaries``, ``pool``, ``predicates`` and ``lists`` find regimes, ``search``
goes round by round, ``claims`` says what is proved. ``check_stated`` and ``check_rows`` hold laws
of somebody else's against captures, ``texts`` reads them.
"""

from npulab.analysis.laws.found import FieldLaw, Laws, find_laws
from npulab.analysis.laws.planning import plan_sweep
from npulab.analysis.laws.stated import Stated, check_rows, check_stated
from npulab.analysis.laws.texts import parse_law

__all__ = ["FieldLaw", "Laws", "Stated", "check_rows", "check_stated", "find_laws", "parse_law", "plan_sweep"]
