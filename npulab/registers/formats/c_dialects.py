"""The dialects of C headers: how drivers and vendors spell registers, fields and their values.

``c_macros`` decides by the tables of this module. A new spelling is one more word or row in a
table. In this table, X is the name of a register and F that of a field:

================================================  =================================================
``X_F_MASK`` with ``X_F_SHIFT`` (``KINDS``)       field F of register X: the longest register name
                                                  that the macro begins with
``X_F BIT(3)``, ``GENMASK(7, 4)``, ``(1 << 3)``   field F of X by one macro, if X is a register
``X_F(x) (((x) & 0xf) << 4)``                     field F of X, from the macro's values for 1 and
                                                  for all ones
``X_F_OFFSET 4`` with ``X_F_SIZE 3``              field F of X, if both numbers are decimal
``X 0x10`` (``REG_X``, ``mmX``, ``X_REG``)        a register, if the names of fields begin with its
                                                  name, or a list of offsets contains it
``X(i) (0x600 + 4 * (i))``, ``X__LEN``            an array of registers
``X_F_NAME 2``                                    a value of field F, with its bits in place or
                                                  counted from bit 0
``X 0x0`` with registers ``X_A``, ``X_B``         a group of registers, not a register
================================================  =================================================
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

# By kind, the last words of the names of macros that describe a field. ``low`` is the field's
# lowest bit, ``high`` its highest bit, ``range`` both, ``clear`` the inverted mask.
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
# i.MX writes a word for the kind in front of the name
HEAD = re.compile(r"(BM|BP|BW)_(\w+)")
HEADS = {"BM": "mask", "BP": "low", "BW": "width"}
# These tails mark a width, but many other macros have them too: they count only if both the width
# and the lowest bit are decimal.
COUNTS = ("SIZE", "LEN")
# A macro with one of these tails describes a field only together with a second macro of the field.
PAIRED = {"FIELD", "OFFSET", "M", "S", "bm", "bp", "START", "END", "MSB", "RANGE"}
PAIRED |= {tail for tail, kind in TAILS.items() if kind in ("width", "clear")}

# The marks in the name of an offset's macro, by spelling. The groups of a pattern, joined by "_",
# are the name without the mark.
SPELLINGS = {
    "prefixed": re.compile(r"(?:REG_|mm(?=[A-Z])|reg(?=[A-Z])|ix(?=[A-Z]))(\w+)"),
    "suffixed": re.compile(r"(\w+?)_{1,2}(?:REG_OFFSET|OFFSET|REG|ADDR|ADDRESS|OFFS|OFST)"),
    "infixed": re.compile(r"(\w+?)_(?:O|REG|ADDR|OFFSET)_(\w+)"),
}
# names with AMD's and Qualcomm's prefixes; their offsets may count words
COUNTED = re.compile(r"(?:mm(?=[A-Z])|reg(?=[A-Z])|REG_)(\w+)")
MARKED = re.compile(r"(?:\w*_)?REG_\w+|(?:mm|reg|ix)[A-Z]\w*")
# names with a word that hardly anything but a register has
NAMED = re.compile(rf"{MARKED.pattern}|\w+_(?:REG|OFFSET)(?:_\w+)?")
# last words of the names of registers that are the parts of one wide register
LOW_HIGH = re.compile(r"HI|LO|HIGH|LOW|H|L|MSB|LSB|UPPER|LOWER|\d+")
# last words of the two halves of a register of 64 bits
HALVES = (("_LO", "_HI"), ("_LOW", "_HIGH"), ("_L", "_H"))
# last words of macros that state other facts of a register or field than its bits, such as its
# value after reset
ATTRIBUTE = re.compile(
    r"(?:SW_|HW_)?(?:(?:RESET|INIT|RST)_?VAL(?:UE)?|DEFAULT(?:_VAL(?:UE)?)?|(?:RESET|INIT|RST|"
    r"DEFAULT|READ|WRITE|PARITY)_MASK)|WOFFSET|SECURE|DUAL|SCR|WORD_COUNT|RANGE|INIT_ENUM|PARITY_PROTECTION|"
    r"PLATFORM_DEPENDENT|ARRLEN|BASE_IDX|RMSK|(?:REG_)?RESVAL|BITN|_RESET"
)

# The patterns below match the bodies of macros. BITS: a body that is written as bits, with a shift
# or a macro such as BIT.
BITS = re.compile(r"\b\w*(?:BIT|MASK|FIELD)\w*\s*\(|<<")
# NVIDIA writes plain numbers with these macros, so a body that begins with one is not bits
NO_BITS = re.compile(r"\(*\s*_MK_(?:ADDR|ENUM|MASK|SHIFT)_CONST\s*\(")
HEX = re.compile(r"\(*\s*0[xX]([0-9a-fA-F]+)[uUlL]*\s*\)*")
SHIFTED = re.compile(r"\(*\s*(0[xX][0-9a-fA-F]{1,16}|\d{1,19})[uUlL]*\s*<<\s*(\d+)\s*\)*")
RANGE = re.compile(r"\(?\s*(\d{1,2})\s*:\s*(\d{1,2})\s*\)?")
CALL = re.compile(r"\(*\s*([A-Za-z_]\w*)\s*\(.*", re.DOTALL)
# bodies that choose one of several offsets by an index, as in i915's headers
CHOSEN = re.compile(r"\(*\w+\s*\(\s*\(*(\w+)\)*\s*((?:,\s*\w+\s*)+)\)[)\s]*")
# bodies that may be an offset, because a number is added to something or is an argument
OFFSETS = re.compile(
    r"[+,(]\s*0[xX][0-9a-fA-F]+|\b0[xX][0-9a-fA-F]+\s*\+|,\s*\d+\s*\)|^\s*\(?\s*\w+\s*\+\s*\d"
)
# Bodies of macros with a parameter. MADE: the macro puts a value into its field. GETS: it takes the
# value out. PREPARED: the first argument is the mask of the field.
MADE = re.compile(r"<<|\bFIELD_PREP\w*\s*\(|\bGENMASK\w*\s*\(|\bBIT\w*\s*\(|_MASK\b")
GETS = re.compile(r">>\s*(\d{1,2})\b")
PREPARED = re.compile(r"\bFIELD_(?:PREP|GET|FIT)\w*\s*\(\s*(\w+(?:\([^()]*\))?)\s*,")
# the functions that envytools writes for each field
INLINE = re.compile(
    r"static\s+inline\s+uint32_t\s+(\w+)\s*\(\s*(u?int32_t|uint|float|enum\s+\w+)\s+(\w+)\s*\)\s*"
    r"\{([^{}]{0,600})\}"
)


def tail_of(name: str) -> tuple[str, str, str] | None:
    """Return three parts of the name of a field's macro: the beginning, the underscores and the
    tail (a key of TAILS); None for a name without a tail.

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
    """Return the macros whose names have the mark of this spelling (a key of SPELLINGS). A key is
    the name without the mark, a value is the macro's name.

    >>> plain_names("infixed", ["NPU_O_CFG", "NPU_CFG"])
    {'NPU_CFG': 'NPU_O_CFG'}
    """
    names = {}
    for macro in macros:
        if found := SPELLINGS[spelling].fullmatch(macro):
            names["_".join(found.groups())] = macro
    return names


def first_word(name: str) -> str:
    """Return the part of a name before its first underscore."""
    return name.partition("_")[0]


class Longest:
    """Finds the longest of ``names`` with which a given name begins; an underscore must follow.

    If the longest name is in ``hiding``, nothing is found, not even a shorter name.

    >>> names = Longest(["NPU", "NPU_CFG"])
    >>> names.inside("NPU_CFG"), names.at_or_in("NPU_CFG"), names.inside("NPU_CFG_EN"), names.inside("NP")
    ('NPU', 'NPU_CFG', 'NPU_CFG', '')
    """  # noqa: E501

    def __init__(self, names: Collection[str], hiding: Collection[str] = ()) -> None:
        # if ``hiding`` is empty, the caller's collection itself is used, so that names that are
        # added to it later are found too
        self._names = {*names, *hiding} if hiding else names
        self._hiding = hiding

    def inside(self, name: str) -> str:
        """Return the longest of the names with which this longer name begins; blank if there is
        none."""
        end = name.rfind("_")
        while end > 0 and name[:end] not in self._names:
            end = name.rfind("_", 0, end)
        found = name[: max(end, 0)]
        if found in self._hiding:
            return ""
        return found

    def at_or_in(self, name: str) -> str:
        """Return the name itself if it is one of the names, otherwise what ``inside`` returns."""
        if name in self._names and name not in self._hiding:
            return name
        return self.inside(name)

    def all(self, name: str) -> Iterator[str]:
        """Yield all names with which this longer name begins, the longest first."""
        while name := self.inside(name):
            yield name
