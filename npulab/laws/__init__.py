"""What fields mean: laws that give words from the parameters of layers, proved on the captures, and what is open.

``find_laws`` makes ``Laws``; ``plan_sweep`` says what to capture first, ``Laws.next_captures`` what to capture next.
``expressions`` are the laws, ``library`` the shapes that are tried, ``matching`` finds single laws, ``boundaries``,
``pool``, ``predicates`` and ``lists`` find regimes, ``search`` goes round by round, ``claims`` says what is proved.
"""

from npulab.laws.found import FieldLaw, Laws, find_laws
from npulab.laws.planning import plan_sweep

__all__ = ["FieldLaw", "Laws", "find_laws", "plan_sweep"]
