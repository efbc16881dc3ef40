"""The closed loop: plan layers, ask a source for their captures, learn laws, until the laws are
settled or the budget is used.
"""

from npulab.analysis.explore.loop import Explored, explore

__all__ = ["Explored", "explore"]
