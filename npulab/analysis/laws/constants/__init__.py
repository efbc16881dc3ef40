"""Constants in streams of bytes: real numbers that follow from scales and zero points, found by
place, encoding and formula together.

``find_constants`` (``search``) makes ``Constants`` (``found``). ``encodings`` are the rows of
``encodings.csv``, ``formulas`` the products and sums of the columns that are ``given``. ``places``
reads the bytes at every offset as a number, ``matching`` compares these numbers with the codes of
formulas, ``claims`` chooses what is claimed, ``channels`` joins the constants of channels to one
line of text. Builds of one input are compared first (``npulab.analysis.laws.builds``).
"""

from npulab.analysis.laws.constants.found import Constant, Constants
from npulab.analysis.laws.constants.search import find_constants

__all__ = ["Constant", "Constants", "find_constants"]
