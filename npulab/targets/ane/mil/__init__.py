"""Programs in the text form of MIL, as the ANE compiler takes them in memory: written, read, checked, run."""

from npulab.targets.ane.mil.checking import check
from npulab.targets.ane.mil.quirks import Quirk, quirks
from npulab.targets.ane.mil.reading import read
from npulab.targets.ane.mil.running import run
from npulab.targets.ane.mil.values import Compound, File, Function, Group, Operation, Program, Type, Value, build_info
from npulab.targets.ane.mil.writing import write

__all__ = ["Compound", "File", "Function", "Group", "Operation", "Program", "Quirk", "Type", "Value", "build_info",
           "check", "quirks", "read", "run", "write"]
