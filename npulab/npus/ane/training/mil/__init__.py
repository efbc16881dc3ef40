"""Programs in the text form of MIL, as the ANE compiler takes them in memory: written, read,
checked, run."""

from npulab.npus.ane.training.mil.checking import check
from npulab.npus.ane.training.mil.known_quirks import Quirk, quirks
from npulab.npus.ane.training.mil.reading import read
from npulab.npus.ane.training.mil.running import run
from npulab.npus.ane.training.mil.values import (
           Compound,
           File,
           Function,
           Group,
           Operation,
           Program,
           Type,
           Value,
           build_info,
)
from npulab.npus.ane.training.mil.writing import write

__all__ = ["Compound", "File", "Function", "Group", "Operation", "Program", "Quirk", "Type", "Value", "build_info",
           "check", "quirks", "read", "run", "write"]
