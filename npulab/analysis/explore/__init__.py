"""The closed loop: plan layers, ask a source for them, learn laws, until nothing is open or the
budget is used."""

from npulab.analysis.explore.loop import Explored, explore

__all__ = ["Explored", "explore"]
