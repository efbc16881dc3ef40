"""The dialects of C headers: how drivers and vendors spell registers, fields and their values.

The tables here are the data that ``c_macros`` decides with; a new spelling is a word or a row.

================================================  =================================================
``X_F_MASK`` with ``X_F_SHIFT`` (``KINDS``)       field F of register X: the longest register name
                                                  that the macro begins with
``X_F BIT(3)``, ``GENMASK(7, 4)``, ``(1 << 3)``   the same in one macro, if X is a register
``X_F(x) (((x) & 0xf) << 4)``                     the same, by its values for 1 and for all ones
``X_F_OFFSET 4`` with ``X_F_SIZE 3``              the same, if both are decimal
``X 0x10`` (``REG_X``, ``mmX``, ``X_REG``)        a register, if fields begin with its name or a
                                                  list of offsets has it
``X(i) (0x600 + 4 * (i))``, ``X__LEN``            an array of registers
``X_F_NAME 2``                                    a value of field F, in place or counted from bit
                                                  0
``X 0x0`` with registers ``X_A``, ``X_B``         a group of registers, not a register
================================================  =================================================
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

KINDS = {
    "mask": "MASK Msk mask MSK BMSK SET_MSK FIELD M bm",
    "low": "SHIFT SHFT LSB Pos POS OFFSET shift S bp START",
    "width": "WIDTH BITS width W SIZE LEN bw",
    "high": "MSB END",
    "range": "RANGE",
    "bit": "BIT",
    "clear": "CLR_MSK MASK_INVERSE",
}
TAILS = {tail: kind for kind, tails in KINDS.items() for tail in tails.split()}
LAST_WORDS = {tail.rpartition("_")[2] for tail in TAILS}
# i.MX writes the kind in front of the name
HEAD = re.compile(r"(BM|BP|BW)_(\w+)")
HEADS = {"BM": "mask", "BP": "low", "BW": "width"}
# A tail of a width that many other macros have too: both it and the lowest bit must be decimal.
COUNTS = ("SIZE", "LEN")
# Tails that say nothing without a second macro of the field.
PAIRED = {"FIELD", "OFFSET", "M", "S", "bm", "bp", "START", "END", "MSB", "RANGE"}
PAIRED |= {tail for tail, kind in TAILS.items() if kind in ("width", "clear")}

# How the macro of an offset is marked: the groups of a pattern joined by "_" are the plain name.
SPELLINGS = {
    "prefixed": re.compile(r"(?:REG_|mm(?=[A-Z])|reg(?=[A-Z])|ix(?=[A-Z]))(\w+)"),
    "suffixed": re.compile(r"(\w+?)_{1,2}(?:REG_OFFSET|OFFSET|REG|ADDR|ADDRESS|OFFS|OFST)"),
    "infixed": re.compile(r"(\w+?)_(?:O|REG|ADDR|OFFSET)_(\w+)"),
}
# AMD's and Qualcomm's prefixes, whose offsets may count words
COUNTED = re.compile(r"(?:mm(?=[A-Z])|reg(?=[A-Z])|REG_)(\w+)")
MARKED = re.compile(r"(?:\w*_)?REG_\w+|(?:mm|reg|ix)[A-Z]\w*")
# words in the names of registers and of hardly anything else
NAMED = re.compile(rf"{MARKED.pattern}|\w+_(?:REG|OFFSET)(?:_\w+)?")
# last words of the registers that a wide register consists of
LOW_HIGH = re.compile(r"HI|LO|HIGH|LOW|H|L|MSB|LSB|UPPER|LOWER|\d+")
HALVES = (("_LO", "_HI"), ("_LOW", "_HIGH"), ("_L", "_H"))  # the two words of 64 bits
# what headers say of a register or field besides its bits: its value after reset and the like
ATTRIBUTE = re.compile(
    r"(?:SW_|HW_)?(?:(?:RESET|INIT|RST)_?VAL(?:UE)?|DEFAULT(?:_VAL(?:UE)?)?|(?:RESET|INIT|RST|"
    r"DEFAULT|READ|WRITE|PARITY)_MASK)|WOFFSET|SECURE|DUAL|SCR|WORD_COUNT|RANGE|INIT_ENUM|PARITY_PROTECTION|"
    r"PLATFORM_DEPENDENT|ARRLEN|BASE_IDX|RMSK|(?:REG_)?RESVAL|BITN|_RESET"
)

# bodies
BITS = re.compile(r"\b\w*(?:BIT|MASK|FIELD)\w*\s*\(|<<")
NO_BITS = re.compile(r"\(*\s*_MK_(?:ADDR|ENUM|MASK|SHIFT)_CONST\s*\(")  # NVIDIA's plain numbers
HEX = re.compile(r"\(*\s*0[xX]([0-9a-fA-F]+)[uUlL]*\s*\)*")
SHIFTED = re.compile(r"\(*\s*(0[xX][0-9a-fA-F]{1,16}|\d{1,19})[uUlL]*\s*<<\s*(\d+)\s*\)*")
RANGE = re.compile(r"\(?\s*(\d{1,2})\s*:\s*(\d{1,2})\s*\)?")
CALL = re.compile(r"\(*\s*([A-Za-z_]\w*)\s*\(.*", re.DOTALL)
# i915's choice of an offset by an index
CHOSEN = re.compile(r"\(*\w+\s*\(\s*\(*(\w+)\)*\s*((?:,\s*\w+\s*)+)\)[)\s]*")
OFFSETS = re.compile(
    r"[+,(]\s*0[xX][0-9a-fA-F]+|\b0[xX][0-9a-fA-F]+\s*\+|,\s*\d+\s*\)|^\s*\(?\s*\w+\s*\+\s*\d"
)
# bodies with a parameter: those that put a value into its place, those that take it out, the mask
MADE = re.compile(r"<<|\bFIELD_PREP\w*\s*\(|\bGENMASK\w*\s*\(|\bBIT\w*\s*\(|_MASK\b")
GETS = re.compile(r">>\s*(\d{1,2})\b")
PREPARED = re.compile(r"\bFIELD_(?:PREP|GET|FIT)\w*\s*\(\s*(\w+(?:\([^()]*\))?)\s*,")
INLINE = re.compile(
    r"static\s+inline\s+uint32_t\s+(\w+)\s*\(\s*(u?int32_t|uint|float|enum\s+\w+)\s+(\w+)\s*\)\s*"
    r"\{([^{}]{0,600})\}"
)


def tail_of(name: str) -> tuple[str, str, str] | None:
    """Return the beginning of the name of a field's macro, its underscores and its tail (TAILS).

    None for a name without such a tail.

    >>> tail_of("CFG_EN__SHIFT"), tail_of("CFG_EN_SET_MSK"), tail_of("CFG_EN")
    (('CFG_EN', '__', 'SHIFT'), ('CFG_EN', '_', 'SET_MSK'), None)
    """
    head, _, tail = name.rpartition("_")
    if tail not in LAST_WORDS:
        return None
    outer, _, word = head.rpartition("_")
    if outer and f"{word}_{tail}" in TAILS:
        head, tail = outer, f"{word}_{tail}"
    if not head or tail not in TAILS:
        return None
    if head[1:].endswith("_"):
        return head[:-1], "__", tail
    return head, "_", tail


def plain_names(spelling: str, macros: Collection[str]) -> dict[str, str]:
    """Return, by its plain name, each macro whose name has one of the marks in SPELLINGS.

    >>> plain_names("infixed", ["NPU_O_CFG", "NPU_CFG"])
    {'NPU_CFG': 'NPU_O_CFG'}
    """
    names = {}
    for macro in macros:
        if found := SPELLINGS[spelling].fullmatch(macro):
            names["_".join(found.groups())] = macro
    return names


def first_word(name: str) -> str:
    """The part of a name before its first underscore."""
    return name.partition("_")[0]


class Longest:
    """Finds the longest of some names that a name begins with, cut at an underscore.

    A name in ``hiding`` is never the answer, nor is any shorter name that it begins with.

    >>> names = Longest(["NPU", "NPU_CFG"])
    >>> names.inside("NPU_CFG"), names.at_or_in("NPU_CFG"), names.inside("NPU_CFG_EN"), names.inside("NP")
    ('NPU', 'NPU_CFG', 'NPU_CFG', '')
    """  # noqa: E501

    def __init__(self, names: Collection[str], hiding: Collection[str] = ()) -> None:
        # without hiding names the collection itself, so that names added later are found too
        self._names = {*names, *hiding} if hiding else names
        self._hiding = hiding

    def inside(self, name: str) -> str:
        """The longest of the names that this longer name begins with; blank for none."""
        at = name.rfind("_")
        while at > 0 and name[:at] not in self._names:
            at = name.rfind("_", 0, at)
        found = name[: max(at, 0)]
        if found in self._hiding:
            return ""
        return found

    def at_or_in(self, name: str) -> str:
        """The name itself if it is one of the names, else as ``inside``."""
        if name in self._names and name not in self._hiding:
            return name
        return self.inside(name)

    def all(self, name: str) -> Iterator[str]:
        """Yield every name that this longer name begins with, the longest first."""
        while name := self.inside(name):
            yield name
