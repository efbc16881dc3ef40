"""Constants in streams of bytes: real numbers that follow from scales and zero points, found by
place, encoding and formula together.

``find_constants`` (``search``) makes ``Constants`` (``found``). ``encodings`` are the rows of
``encodings.csv``, ``formulas`` the products and sums of the columns that are ``given``. ``places``
reads every offset as a number,
``matching`` holds places against the codes of formulas, ``claims`` chooses what is claimed,
``channels`` says the constants of channels in one line. Builds of one input are compared first
(``npulab.analysis.laws.builds``).
"""

from npulab.analysis.laws.constants.found import Constant, Constants
from npulab.analysis.laws.constants.search import find_constants

__all__ = ["Constant", "Constants", "find_constants"]
