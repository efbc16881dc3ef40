"""Register maps that are being made: drafts, with named edits, undo, and files that change as little as they can."""

from npulab.drafts.draft import Draft
from npulab.drafts.edits import EDITS
from npulab.drafts.opening import draft

__all__ = ["EDITS", "Draft", "draft"]
