"""Register maps in the making: drafts, with named edits, undo, and files that change as little as
possible.
"""

from npulab.analysis.draft.edits import EDITS
from npulab.analysis.draft.opening import draft
from npulab.analysis.draft.state import Draft

__all__ = ["EDITS", "Draft", "draft"]
