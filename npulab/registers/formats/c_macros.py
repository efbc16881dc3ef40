"""Registers from the macros of a C header: the role of each macro is decided over the whole file,
from how names nest and how values behave.

==================================================
====================================================================
``X_F_MASK`` beside ``X_F_SHIFT`` (data: TAILS)    a field, F of register X; the longest name around it is its register
``X_F BIT(3)``, ``GENMASK(7, 4)``, ``(1 << 3)``    the same in one, where X is a register and no field
``X_F(x) (((x) & 0xf) << 4)``                      the same, by what it makes of all ones and of one
``X_F_OFFSET 4`` and ``_SIZE 3``, in decimal       the same; where registers are marked (``X_OFFSET 0x10``), what
                                                   goes on from one and is not is its bits
``X 0x10`` (also ``REG_X``, ``mmX``, ``X_REG``)    a register, if fields nest in its name or a list of offsets has it
``X(i) (0x600 + 4 * (i))``, ``X__LEN``             an array of registers
``X_F_NAME 2``                                     a value of field F, in place or from bit 0
``X 0x0`` around registers X_A, X_B                a group, no register
==================================================
====================================================================

A field with a shift and nothing that says its width reaches to the next one; its evidence is
``guess``. What has no role is named with its line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats.c_text import LITERAL, NAME, Macro, Source

ALL = 2**64 - 1
LARGEST = 2**WORD_BITS  # of offsets
MOST_LENGTH = 2**14  # elements of an array of registers
FEWEST = 3  # of a list
FAR = 2**8  # macros between an offset and the next one
NEAR = 0x40  # bytes between registers of a list
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
HEAD = re.compile(r"(BM|BP|BW)_(\w+)")  # of i.MX, in front of the name
HEADS = {"BM": "mask", "BP": "low", "BW": "width"}
COUNTS = ("SIZE", "LEN")  # which say the width of a field beside a low bit, both in decimal
PAIRED = (
    "FIELD",
    "OFFSET",
    "M",
    "S",
    "bm",
    "bp",
    "START",
    "END",
    "MSB",
    "RANGE",
    *KINDS["width"].split(),
    *KINDS["clear"].split(),
)  # never alone
LAST = {tail.rpartition("_")[2] for tail in TAILS}  # their last words
PREFIX = re.compile(r"(?:REG_|mm(?=[A-Z])|reg(?=[A-Z])|ix(?=[A-Z]))(\w+)")
COUNTED = re.compile(
    r"(?:mm(?=[A-Z])|reg(?=[A-Z])|REG_)(\w+)"
)  # of AMD and Qualcomm, whose offsets may count words
NAMED = re.compile(
    r"(?:\w*_)?REG_\w+|(?:mm|reg|ix)[A-Z]\w*|\w+_(?:REG|OFFSET)(?:_\w+)?"
)  # as registers are
INFIX = re.compile(r"(\w+?)_(?:O|REG|ADDR|OFFSET)_(\w+)")
SUFFIX = re.compile(r"(\w+?)_{1,2}(?:REG_OFFSET|OFFSET|REG|ADDR|ADDRESS|OFFS|OFST)")
MARKED = re.compile(r"(?:\w*_)?REG_\w+|(?:mm|reg|ix)[A-Z]\w*")
LOW_HIGH = re.compile(r"HI|LO|HIGH|LOW|H|L|MSB|LSB|UPPER|LOWER|\d+")
# what headers say of a register or field beside its bits: its value after reset and the like
HALVES = (("_LO", "_HI"), ("_LOW", "_HIGH"), ("_L", "_H"))  # of a register of 64 bits
ATTRIBUTE = re.compile(
    r"(?:SW_|HW_)?(?:(?:RESET|INIT|RST)_?VAL(?:UE)?|DEFAULT(?:_VAL(?:UE)?)?|(?:RESET|INIT|RST|"
    r"DEFAULT|READ|WRITE|PARITY)_MASK)|WOFFSET|SECURE|DUAL|SCR|WORD_COUNT|RANGE|INIT_ENUM|PARITY_PROTECTION|"
    r"PLATFORM_DEPENDENT|ARRLEN|BASE_IDX|RMSK|(?:REG_)?RESVAL|BITN|_RESET"
)
BITS = re.compile(r"\b\w*(?:BIT|MASK|FIELD)\w*\s*\(|<<")
NO_BITS = re.compile(r"\(*\s*_MK_(?:ADDR|ENUM|MASK|SHIFT)_CONST\s*\(")  # which are plain numbers
MADE = re.compile(r"<<|\bFIELD_PREP\w*\s*\(|\bGENMASK\w*\s*\(|\bBIT\w*\s*\(|_MASK\b")
HEX = re.compile(r"\(*\s*0[xX]([0-9a-fA-F]+)[uUlL]*\s*\)*")
NO_BRACKETS = str.maketrans("", "", "() ")
WORD = r"(?:\w+|\(\w+\))"
TERM = rf"(?:\(?{WORD} *\* *{WORD}\)?|{WORD})"
SUM = re.compile(rf"\(*{TERM}(?: *\+ *{TERM})*\)*")  # with no term that brackets change
SHIFTED = re.compile(r"\(*\s*(0[xX][0-9a-fA-F]{1,16}|\d{1,19})[uUlL]*\s*<<\s*(\d+)\s*\)*")
PREPARED = re.compile(
    r"\bFIELD_(?:PREP|GET|FIT)\w*\s*\(\s*(\w+(?:\([^()]*\))?)\s*,"
)  # and its mask
OFFSETS = re.compile(
    r"[+,(]\s*0[xX][0-9a-fA-F]+|\b0[xX][0-9a-fA-F]+\s*\+|,\s*\d+\s*\)|^\s*\(?\s*\w+\s*\+\s*\d"
)
GETS = re.compile(r">>\s*(\d{1,2})\b")  # what takes a field out of a register
CALL = re.compile(r"\(*\s*([A-Za-z_]\w*)\s*\(.*", re.DOTALL)
RANGE = re.compile(r"\(?\s*(\d{1,2})\s*:\s*(\d{1,2})\s*\)?")
# what points to a register, and what the kernel's wrappers of offsets make of it
POINTED = re.compile(
    r"\*?\s*\(\s*(?:(?:const|volatile|__IO|__IM?|__OM?)\s+)*(?:v?u?int(?:8|16|32|64)?(?:_t)?|"
    r"v?u(?:8|16|32|64)|(?:unsigned\s+)?(?:int|long|short|char)|unsigned)"
    r"(?:\s+volatile)?\s*\*\s*\)|\b_MMIO(?=\s*\()"
)
CHOSEN = re.compile(
    r"\(*\w+\s*\(\s*\(*(\w+)\)*\s*((?:,\s*\w+\s*)+)\)[)\s]*"
)  # from an index and offsets
DEPTH = re.compile(r"(?:[ \t]*#[ \t]*define)?[ \t]*")
# its alternatives begin with one letter each, so that a search skips all others
NO_NUMBER = re.compile(r"\"|{|}|;|'|=(?<![=!<>]=)(?!=)|do(?<!\wdo)\b|\.\.\.")
INLINE = re.compile(
    r"static\s+inline\s+uint32_t\s+(\w+)\s*\(\s*(u?int32_t|uint|float|enum\s+\w+)\s+(\w+)\s*\)\s*"
    r"\{([^{}]{0,600})\}"
)


class Longest:
    """The longest of some names that another one begins with, at an underscore.

    >>> names = Longest(["NPU", "NPU_CFG"])
    >>> names.inside("NPU_CFG"), names.at_or_in("NPU_CFG"), names.inside("NPU_CFG_EN"), names.inside("NP")
    ('NPU', 'NPU_CFG', 'NPU_CFG', '')
    """

    def __init__(self, names: Collection[str], hiding: Collection[str] = ()) -> None:
        self._names = {*names, *hiding} if hiding else names
        self._hiding = hiding  # names that hide those they go on from, and are not found

    def inside(self, name: str) -> str:
        """The longest name that this one goes on from; blank for none."""
        names, at = self._names, name.rfind("_") if self._names else 0
        while at > 0 and name[:at] not in names:
            at = name.rfind("_", 0, at)
        found = name[: max(at, 0)]
        if found in self._hiding:
            return ""
        return found

    def at_or_in(self, name: str) -> str:
        """The name itself where it is one, else the longest that it goes on from."""
        if name in self._names and name not in self._hiding:
            return name
        return self.inside(name)

    def all(self, name: str) -> Iterator[str]:
        """Every name that this one goes on from, the longest first."""
        while name := self.inside(name):
            yield name


class Lost(NamedTuple):
    """What is not in the table: its kind (register, field, declaration, macro), name, position and
    the reason."""

    kind: str
    name: str
    position: int
    reason: str


@dataclass(slots=True)
class Bits:
    """A field as macros say it; -1 where they do not."""

    name: str
    position: int
    mask: int = -1
    low: int = -1
    width: int = -1
    high: int = -1
    strict: bool = False  # of envytools, whose values stand in place
    guess: bool = False
    values: dict[str, tuple[int, bool]] = field(
        default_factory=dict
    )  # (value, whether it surely stands in place)

    @property
    def bits(self) -> int:
        """The mask in its register; -1 where nothing says it, over 64 bits where it has no
        place.
        """
        if max(self.low, self.width, self.high) > WORD_BITS * 2:
            return ALL + 1
        if self.mask >= 0:
            if self.low > 0 and self.mask % 2**self.low:
                return self.mask * 2**self.low
            return self.mask
        high = self.high
        if self.width > 0:
            high = self.low + self.width - 1
        if high >= self.low >= 0:
            return 2 ** (high + 1) - 2**self.low
        return -1

    @property
    def lowest(self) -> int:
        """The lowest bit; -1 where nothing says it."""
        if self.bits > 0:
            return (self.bits & -self.bits).bit_length() - 1
        return self.low


@dataclass(slots=True)
class Register:
    """A register: the macro that says its offset, the name it has in the table, what nests in
    it.
    """

    macro: str
    name: str
    offset: int
    position: int
    lengths: tuple[tuple[int, int], ...] = ()  # (elements, bytes between them) of each dimension
    heads: list[str] = field(default_factory=list)  # what the names of its fields begin with
    fields: list[Bits] = field(default_factory=list)
    values: dict[str, tuple[int, bool]] = field(default_factory=dict)  # of the whole word

    def short(self, name: str) -> str:
        """The name of a field without that of its register."""
        cut = max((head for head in self.heads if name.startswith(f"{head}_")), key=len, default="")
        if cut:
            return name[len(cut) :].lstrip("_")
        if name not in self.heads:
            return name
        return self.name

    def has(self, mask: int) -> bool:
        """Whether a field has some of these bits; of -1, which nobody knows, no."""
        return mask > 0 and any(bits.bits & mask for bits in self.fields if bits.bits > 0)

    def reach(self) -> None:
        """Let fields of a shift alone reach to the next one."""
        for bits in [bits for bits in self.fields if bits.mask < 0 <= bits.low and bits.bits < 0]:
            above = [other.lowest for other in self.fields if other.lowest > bits.low]
            bits.width, bits.guess = min(above, default=WORD_BITS) - bits.low, True


def tail_of(name: str) -> tuple[str, str, str] | None:
    """What the name of a part of a field begins with, its underscores and the tail (TAILS); None
    for another name.

    >>> tail_of("CFG_EN__SHIFT"), tail_of("CFG_EN_SET_MSK"), tail_of("CFG_EN")
    (('CFG_EN', '__', 'SHIFT'), ('CFG_EN', '_', 'SET_MSK'), None)
    """
    head, _, tail = name.rpartition("_")
    if tail not in LAST:
        return None
    outer, _, word = head.rpartition("_")
    if outer and f"{word}_{tail}" in TAILS:
        head, tail = outer, f"{word}_{tail}"
    if not head or tail not in TAILS:
        return None
    if head[1:].endswith("_"):
        return head[:-1], "__", tail
    return head, "_", tail


def first_word(name: str) -> str:
    """What stands in front of a name's first underscore."""
    return name.partition("_")[0]


def constants(macros: Mapping[str, Macro]) -> dict[str, Macro]:
    """The macros that may be numbers; of one that is what a number points to, that number."""
    out = {}
    for name, macro in macros.items():
        if macro.body.isalnum():
            out[name] = macro
        elif macro.body and len(macro.body) < 2**11 and not NO_NUMBER.search(macro.body):
            if "*" in macro.body or "_MMIO" in macro.body:
                there, found = POINTED.subn("", macro.body)
            else:
                there, found = "", 0
            if found:
                out[name] = macro._replace(body=re.sub(r"(^|\()\s*\*", r"\1", there))
            else:
                out[name] = macro
    return out


def plain_values(numbers: Mapping[str, Macro]) -> dict[str, int]:
    """The values that need no compiler: of numbers, and of sums that are ints of what is in front;
    with an index, of the first elements (``name[0]`` to ``name[2]``)."""
    out: dict[str, int] = {}
    for name, (_, parameters, body, *_) in numbers.items():
        index, many = parameters or (), parameters is not None
        if not many and (found := LITERAL.fullmatch(body)):
            out[name] = int(found[1], 0)
        elif (
            len(index) == many
            and ("+" in body or not many)
            and SUM.fullmatch(body)
            and body.count("(") == body.count(")")
        ):
            sums = [0, 0, 0]  # without the index, with it, with its square
            for term in body.translate(NO_BRACKETS).split("+"):
                power, product = 0, 1
                for part in term.split("*"):
                    if part in index:
                        power += 1
                    elif part in out:
                        product *= out[part]
                    elif found := LITERAL.fullmatch(part):
                        product *= int(found[1], 0)
                    else:
                        sums[0] = LARGEST  # nobody knows
                sums[power] += product
            if not sums[2] and sums[0] + 2 * sums[1] < LARGEST // 2:
                if many:
                    out |= {f"{name}[{n}]": sums[0] + n * sums[1] for n in range(3)}
                else:
                    out |= {name: sums[0]}
    return out


def probes(source: Source, numbers: Mapping[str, Macro], known: Container[str]) -> dict[str, str]:
    """The expressions whose values the compiler is asked for, by name of the macro and its
    arguments; what is known is not asked."""
    out: dict[str, str] = {}
    said = {
        tail[0]
        for name, macro in numbers.items()
        if not macro.parameters and (tail := tail_of(name))
    }
    for name, macro in numbers.items():
        if macro.parameters is None:
            if name not in known and RANGE.fullmatch(macro.body) is None:
                if macro.body == source.macros[name].body:
                    out[name] = name
                else:
                    out[name] = macro.body
        elif len(macro.parameters) == 1 and macro.parameters[0]:
            if name not in said and (MADE.search(macro.body) or GETS.search(macro.body)):
                out[f"{name}(~)"], out[f"{name}(1)"] = f"{name}({LARGEST - 1}ull)", f"{name}(1ull)"
                if prepared := PREPARED.search(macro.body):
                    out[f"{name}(mask)"] = prepared[1]
            if "+" in macro.body and f"{name}[0]" not in known:
                out |= {f"{name}[{n}]": f"{name}({n})" for n in range(3)}
        elif len(macro.parameters) == 2 and "+" in macro.body:
            out |= {
                f"{name}[{a},{b}]": f"{name}({a}, {b})" for a, b in ((0, 0), (1, 0), (0, 1), (1, 1))
            }
    return out


@dataclass
class Roles:
    """What each macro of a source is; decided step by step, from the surest evidence on."""

    source: Source
    numbers: Mapping[str, Macro]  # its macros that may be numbers
    values: dict[str, int]
    refused: Mapping[str, str]
    spoken: Set[str] = frozenset()  # words of the declarations
    members: Set[str] = frozenset()  # of structs, named as the macros of their fields begin
    roles: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Bits] = field(default_factory=dict)  # by what its macros begin with
    registers: dict[str, Register] = field(
        default_factory=dict
    )  # by the macro that says the offset
    lost: list[Lost] = field(default_factory=list)
    reaching: list[Register] = field(default_factory=list)  # with a field of a shift alone

    def __post_init__(self) -> None:
        self.ordered = dict(sorted(self.source.macros.items(), key=lambda one: one[1].position))
        self.plain = {
            name: macro for name, macro in self.numbers.items() if macro.parameters is None
        }
        bits = {
            body
            for body in {macro.body for macro in self.plain.values()}
            if BITS.search(body) and not NO_BITS.match(body)
        }
        self.bitwise = {
            name for name, macro in self.plain.items() if macro.body in bits
        }  # by how they are written
        self.hexadecimal = {name for name, macro in self.plain.items() if HEX.fullmatch(macro.body)}
        for name in self.bitwise:
            if -LARGEST // 2 <= self.values.get(name, 0) < 0:
                self.values[name] += LARGEST  # 1 << 31 is an int
        self.used = {
            *self.spoken,
            *NAME.findall(
                " ".join(
                    body
                    for name in self.numbers
                    if not LITERAL.fullmatch(body := self.source.macros[name].body)
                )
            ),
        }

    def decide(self) -> None:
        """Give each macro its role."""
        self._paired()
        self.arrays = self._arrays()
        self.candidates = self._candidates()
        self._place()
        for step in (
            self._without_value,
            self._one_macro,
            self._weak,
            self._setters,
            self._others,
            self._behind,
            self._named_values,
            partial(self._weak, whole=True),
            self._attributes,
        ):
            step()
            while self.reaching:
                self.reaching.pop().reach()

    @cached_property
    def unexplained(self) -> dict[str, Macro]:
        """The macros that have no role, are not empty and serve no others; bits serve what has a
        role
        only."""
        return {
            name: macro
            for name, macro in self.source.macros.items()
            if not (
                name in self.roles
                or not macro.body
                or macro.body in self.roles
                or name in self._serving[name in self.bitwise and self.values.get(name, 0) > 0]
            )
        }

    @cached_property
    def _serving(self) -> tuple[set[str], set[str]]:
        """Words that declarations and macros are made of, and those that fields are: not those of a
        sum
        of bits, of which each is one by itself."""
        bodies = {
            name: macro.body
            for name, macro in self.numbers.items()
            if "|" not in macro.body and not macro.body.isalnum() and name not in self.refused
        }
        fields = (
            body
            for name, body in bodies.items()
            if self.roles.get(name) in ("bits", "setter", "helper")
        )
        return {*self.spoken, *NAME.findall(" ".join(bodies.values()))}, {
            *NAME.findall(" ".join(fields))
        }

    def rest(self) -> Iterator[Lost]:
        """The macros without a role: bits, numbers that may be offsets, what is no number by what
        it
        calls, and every other number."""
        for name, macro in self.unexplained.items():
            if macro.position < self.source.own:
                continue
            one, value = self.values.get(f"{name}(1)", -1), self.values.get(name, -1)
            kind, reason = "number", "nothing says what it is of"
            if (
                (name in self.bitwise and value > 0)
                if name in self.plain
                else one > 0 and one.bit_count() == 1
            ):
                kind, reason = "field", "nothing says which register it is of"
            elif name in self.arrays or (name in self.candidates and name in self.hexadecimal):
                kind, reason = "macro", "nothing says whether it is a register"
            elif name in self.refused and name in self.plain and OFFSETS.search(macro.body):
                kind, reason = "macro", self.refused[name]
            elif max(one, value) < 0 and not (
                macro.parameters and (OFFSETS.search(macro.body) or self._chosen(macro))
            ):
                continue
            yield Lost(kind, name, macro.position, reason)

    def add(self, bits: Bits, register: Register | None, *macros: str) -> None:
        """A field that some macros say, of a register where that is known."""
        self.fields[bits.name] = bits
        for macro in macros:
            self.roles[macro] = "bits"
        if register is not None:
            register.fields.append(bits)
            if bits.bits < 0:
                self.reaching += [register]

    # fields by a pair of macros

    def _paired(self) -> None:
        groups: dict[tuple[str, str], dict[str, str]] = {}
        for name, macro in self.plain.items():
            match, found = tail_of(name), RANGE.fullmatch(macro.body) if ":" in macro.body else None
            if (
                found
                and int(found[2]) <= int(found[1]) < 64
                and not (match and match[2] == "RANGE")
            ):
                self.add(
                    Bits(name, macro.position, low=int(found[2]), high=int(found[1])), None, name
                )
            elif name[0] == "B" and (head := HEAD.fullmatch(name)):
                groups.setdefault((head[2], "_"), {}).setdefault(HEADS[head[1]], name)
            elif (
                match
                and (match[2] not in COUNTS or macro.body.isdecimal())
                and not (name in self.bitwise and TAILS[match[2]] in ("low", "high", "bit"))
            ):
                groups.setdefault((match[0].lstrip("_"), match[1]), {}).setdefault(
                    TAILS[match[2]], name
                )
        self.doubled = any(
            sep == "__" and {"mask", "low"} <= kinds.keys() for (_, sep), kinds in groups.items()
        )
        for base in [base for base, sep in groups if sep == "__" and (base, "_") in groups]:
            if {*groups[base, "__"]} == {"low"} and {*groups[base, "_"]} == {"mask"}:  # AMD's pairs
                groups[base, "_"] |= groups.pop((base, "__"))
        self.weak: dict[str, dict[str, str]] = {}
        self.parted = {base for base, _ in groups}
        self._masks = [
            kinds["mask"] for (_, sep), kinds in groups.items() if "mask" in kinds and sep == "_"
        ]
        every = Longest({base for base, _ in groups})
        headed = {outer for base, _ in groups for outer in every.all(base)}
        for (base, sep), kinds in groups.items():
            if base in headed and kinds.get("low", "").endswith("OFFSET") and "mask" not in kinds:
                self.roles.update(
                    {kinds[kind]: "attribute" for kind in ("width",) if kind in kinds}
                )
                continue  # of a register, and its size
            low = kinds.get("low", "")
            if (low.endswith("OFFSET") and low in self.hexadecimal and not every.inside(base)) or (
                low.endswith("START") and "high" not in kinds
            ):
                del kinds[
                    "low"
                ]  # of a register whose mask says which bits it has; a value beside a mask
            if not kinds:
                continue
            bits = self._pair(base, kinds)
            if bits is not None:
                bits.strict = sep == "__"
                self.add(bits, None, *kinds.values())
                if self.values.get(f"{base}_V", -1) == bits.bits // 2**bits.lowest:
                    self.roles[f"{base}_V"] = "attribute"  # Espressif's mask at bit 0
            elif sep == "__" and "mask" in kinds and self.values.get(kinds["mask"], -1) > 0:
                name = kinds["mask"]
                self.add(
                    Bits(base, self.plain[name].position, self.values[name], strict=True),
                    None,
                    name,
                )
            elif not (self.doubled and sep == "_"):
                alone = {
                    kind: name
                    for kind, name in kinds.items()
                    if name.rpartition("_")[2] not in PAIRED or name.endswith(("_M", "_BITS"))
                }
                if alone:
                    self.weak[base] = alone

    def _pair(self, base: str, kinds: Mapping[str, str]) -> Bits | None:
        """A field of two macros that agree; None where they say no field."""
        value = {kind: self.values.get(name, -1) for kind, name in kinds.items() if kind != "range"}
        position = min(self.plain[name].position for name in kinds.values())
        mask, low, width, high = (value.get(kind, -1) for kind in ("mask", "low", "width", "high"))
        if "high" in kinds or width > WORD_BITS:  # the RP2040's BITS are a mask
            mask, width = max(mask, width), -1
        if (
            kinds.get("width", "").endswith(COUNTS)
            and "low" in kinds
            and not self.plain[kinds["low"]].body.isdecimal()
        ):
            return None
        bits = Bits(base, position, mask, low, width, high)
        if (
            "range" in kinds
            and (found := RANGE.fullmatch(self.plain[kinds["range"]].body))
            and bits.mask < 0
        ):
            bits.low, bits.high = int(found[2]), int(found[1])
        if not 0 <= bits.low < 64:
            return None
        if bits.mask > 0:
            lowest = (bits.mask & -bits.mask).bit_length() - 1
            if lowest in (0, bits.low) and bits.bits <= ALL:
                return bits
            return None
        if 0 < bits.width <= 64 - bits.low or bits.low <= bits.high < 64:
            return bits
        return None

    # registers

    def _arrays(self) -> dict[str, tuple[int, tuple[tuple[int, int], ...]]]:
        """(offset, (elements, stride) of each dimension) of macros that give an offset for indices;
        0 elements where nothing says how many."""
        out: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {}
        lengths, sizes = (
            {
                name.removesuffix(tail): self.values[name]
                for name in self.plain
                if name.endswith(tail) and name in self.values
            }
            for tail in ("__LEN", "__ESIZE")
        )
        for name in self.plain:
            if name.endswith("_ARRLEN") and f"{name.removesuffix('_ARRLEN')}_BASE" in self.plain:
                self.roles[name] = "length"
                self.lost.append(
                    Lost(
                        "array",
                        name,
                        self.plain[name].position,
                        "nothing says the bytes between its elements, so only the first is read",
                    )
                )
        single = {
            name.removesuffix("__SIZE_1"): self.values[name]
            for name in self.plain
            if name.endswith("__SIZE_1") and name in self.values
        }
        self.roles.update({f"{base}__SIZE_1": "length" for base in single})
        for base in (*lengths, *sizes):
            self.roles[f"{base}__LEN"] = self.roles[f"{base}__ESIZE"] = "length"
        nest, made = Longest(sizes), Longest(self.source.macros)
        headed = {made.inside(name) for name in (*self.fields, *self.bitwise)}
        for name, macro in self.source.macros.items():
            if macro.parameters is None:
                continue
            if chosen := self._chosen(macro):
                first, strides = (
                    chosen[0],
                    [chosen[1] - chosen[0] if len(chosen) > 1 else WORD_BYTES],
                )
                linear = all(b - a == strides[0] for a, b in pairwise(chosen))
            elif len(macro.parameters) == 1 and f"{name}[0]" in self.values:
                first, *more = (self.values.get(f"{name}[{n}]", -1) for n in range(3))
                strides = [more[0] - first]
                linear = more[1] - more[0] == strides[0]
            elif f"{name}[0,0]" in self.values:
                first, a, b, both = (
                    self.values.get(f"{name}[{at}]", -1) for at in ("0,0", "1,0", "0,1", "1,1")
                )
                strides, linear = [a - first, b - first], both - a == b - first
            else:
                continue
            if not any(strides):
                strides = []  # the base alone, which it does not look at
            if (
                not linear
                or first < 0
                or first % WORD_BYTES
                or first >= LARGEST
                or any(stride < WORD_BYTES or stride % WORD_BYTES for stride in strides)
            ):
                continue
            if name in self.used and name not in sizes and name not in headed:  # a helper of others
                self.roles[name] = "helper"
                continue
            known = [*reversed(list(nest.all(name)) + ([name] if name in sizes else []))]
            counts = []
            for stride in strides:
                of = next((one for one in known if sizes[one] == stride and one in lengths), "")
                counts.append(
                    (
                        lengths[of] if of else single.get(name, len(chosen) * (len(chosen) > 1)),
                        stride,
                    )
                )
            out[name] = first, tuple(counts)
        return out

    def _chosen(self, macro: Macro) -> list[int]:
        """The offsets that an index chooses from, as i915 has them; blank for another macro."""
        found = None
        if "," in macro.body and not MADE.search(macro.body):
            found = CHOSEN.fullmatch(macro.body)
        words = []
        if found and macro.parameters == (found[1],):
            words = re.findall(r"\w+", found[2])
        out = [
            int(word, 16) if HEX.fullmatch(word) else self.values.get(word, -1) for word in words
        ]
        if min(out, default=-1) >= 0 and (len(out) > 1 or words[0][0] == "_"):
            return out
        return []

    def _candidates(self) -> dict[str, int]:
        """Macros that may be the offset of a register, and it."""
        out: dict[str, int] = {}
        inside = Longest(self.fields)
        counted = {
            name: found[1]
            for name in self.plain
            if name in self.values
            and not name.endswith("_BASE_IDX")
            and (found := COUNTED.fullmatch(name))
        }
        odd = {name: base for name, base in counted.items() if self.values[name] % WORD_BYTES}
        wide = Longest({*odd.values()})
        self.by_words = any(not name.startswith("REG_") for name in odd) or any(
            bits.bits >= LARGEST // 2**16 and wide.inside(base)
            for base, bits in self.fields.items()
        )
        for name, macro in self.source.macros.items():
            if name in self.arrays:
                out[name] = self.arrays[name][0]
            elif (outer := inside.inside(name)) and ATTRIBUTE.fullmatch(name, len(outer) + 1):
                self.roles.setdefault(name, "attribute")
            elif (
                name in self.plain
                and name not in self.roles
                and name not in self.bitwise
                and not HEAD.fullmatch(name)
                and not self._packs(macro.body)
                and not ("|" in macro.body and self.bitwise & {*NAME.findall(macro.body)})
            ):
                value = self.values.get(name, -1)
                if self.by_words and name in counted:
                    value *= WORD_BYTES
                else:
                    value *= 1
                if (
                    0 <= value < LARGEST
                    and value % WORD_BYTES == 0
                    and not NAME.fullmatch(macro.body)
                ):
                    out[name] = value
        for name in self._flags(out):
            del out[name]
        return out

    def _flags(self, offsets: Mapping[str, int]) -> list[str]:
        """Of numbers that may be offsets those that are single bits among single bits of one
        register: some of them are no multiples of a word."""
        nest = Longest(offsets)
        beside: dict[str, list[int]] = {}
        for name in self.plain:
            if (
                name not in self.roles
                and self.values.get(name, 0) > 0
                and (outer := nest.inside(name))
            ):
                beside.setdefault(outer, []).append(self.values[name])
        flags = {
            outer
            for outer, numbers in beside.items()
            if len({*numbers}) == len(numbers) > FEWEST
            and all(number.bit_count() == 1 for number in numbers)
            and any(number % WORD_BYTES for number in numbers)
        }
        return [
            name
            for name in offsets
            if flags and nest.inside(name) in flags and name not in self.arrays
        ]

    def _packs(self, body: str) -> bool:
        """Whether a body is the call of a macro that packs several numbers into one."""
        called = None
        if call := CALL.fullmatch(body):
            called = self.source.macros.get(call[1])
        return (
            called is not None
            and len(called.parameters or ()) > 1
            and ("<<" in called.body or (called.body != body and self._packs(called.body)))
        )

    def _keys(self) -> dict[str, str]:
        """The names that fields of registers begin with, and the macro that says the offset: which
        prefix or suffix the file's registers have is decided by what more fields nest in."""
        exact = {name: name for name in self.candidates}
        said = [name for name in self.candidates if name not in self.members]
        prefixed, suffixed = (
            {found[1]: name for name in said if (found := form.fullmatch(name))}
            for form in (PREFIX, SUFFIX)
        )
        infixed = {
            f"{found[1]}_{found[2]}": name for name in said if (found := INFIX.fullmatch(name))
        }
        alone = [name for name in self.plain if name not in self.roles and name in self.bitwise]
        wanted = [*self.fields, *self.weak, *alone]
        # of one register only, and hardly any others begin so
        ends, units = (
            Counter(name.partition("_")[2] for name in said),
            Counter(map(first_word, said)),
        )
        shorter = {
            end: name
            for name in said
            if ends[end := name.partition("_")[2]] == 1
            and units[end] < 2 * FEWEST
            and name not in self.used
        }
        votes = Counter[str]()
        kinds = {
            "exact": exact,
            "prefixed": prefixed,
            "suffixed": suffixed,
            "infixed": infixed,
            "shorter": shorter,
        }
        finders = {kind: Longest(names) for kind, names in kinds.items() if names}
        heads = {*exact, *prefixed, *suffixed, *infixed, *shorter}
        begins = Counter(base if base in heads else base.rpartition("_")[0] for base in wanted)
        for base, count in begins.items():
            lengths = {kind: len(finder.at_or_in(base)) for kind, finder in finders.items()}
            most = max(lengths.values(), default=0)
            votes.update({kind: count for kind, length in lengths.items() if 0 < length == most})
        marked = [name for name in self.candidates if PREFIX.fullmatch(name)]
        self.prefixed = bool(marked) and (
            votes["prefixed"] > votes["exact"]
            or not wanted
            or (len(marked) > 1 and not votes["exact"])
        )
        self.suffixed = False
        if self.prefixed:
            return prefixed
        best = max(("suffixed", "infixed", "shorter"), key=votes.__getitem__)
        self.suffixed = votes[best] > votes["exact"]
        if self.suffixed and best != "shorter":
            inside, sure = Longest(kinds[best]), {*kinds[best].values(), *self.arrays}
            for name in [name for name in exact if name not in sure and inside.at_or_in(name)]:
                del (
                    self.candidates[name],
                    exact[name],
                )  # what goes on from a register that is marked is none
        if self.suffixed:
            return {**kinds[best], **exact}
        halves = {
            name.removesuffix(low): name
            for low, high in HALVES
            for name in self.candidates
            if name.endswith(low)
            and self.candidates.get(name.removesuffix(low) + high)
            == self.candidates[name] + WORD_BYTES
        }
        return {**halves, **exact}

    def _place(self) -> None:
        """Give the fields that a pair of macros says their registers."""
        self.keys = self._keys()
        own = {
            base
            for base, bits in self.fields.items()
            if self.values.get(self.keys.get(base, "")) == bits.bits
        }
        inside = Longest(self.keys).inside
        for base in own - {inside(base) for base in self.fields.keys() - own if len(own) < FEWEST}:
            self.roles[self.keys.pop(base)] = "attribute"  # a field's mask by its own name
        # registers at no multiple of a word: what goes on from them is of no other register
        form = SUFFIX
        if self.prefixed:
            form = PREFIX
        self.odd = {
            name: found[1] if (found := form.fullmatch(name)) else name
            for name in self.plain
            if name not in self.roles
            and name not in self.bitwise
            and name not in self.parted
            and self.values.get(name, 0) % WORD_BYTES
            and (NAMED.fullmatch(name) or name in self.hexadecimal)
        }
        self.find = Longest(
            self.keys, {*self.odd, *self.odd.values()} - self.keys.keys() - self.fields.keys()
        )
        for base, bits in [*self.fields.items()]:
            key, outer = self.find.at_or_in(base), self.find.inside(base)
            if (
                key == base
                and outer
                and self.candidates[self.keys[outer]] == self.candidates[self.keys[key]]
            ):
                self.roles[self.keys[key]] = "attribute"  # a field that has its register's offset
                key = outer
            if key:
                self.add(bits, self.register(key))

    def register(self, key: str) -> Register:
        """The register that fields beginning so are of, made where there is none yet."""
        macro = self.keys.get(key, key)
        if macro not in self.registers:
            offset, lengths = self.arrays.get(macro, (self.candidates[macro], ()))
            name = macro
            if macro not in self.keys or key == self.keys.get(macro) or self.prefixed:
                name = key
            self.registers[macro] = Register(
                macro, name, offset, self.source.macros[macro].position, lengths
            )
            self.roles[macro] = "register"
        register = self.registers[macro]
        if key not in register.heads:
            register.heads.append(key)
            if self.suffixed and register.name == macro and key != macro:
                register.name = key
        return register

    def _without_value(self) -> None:
        """Macros that are bits by how they are written, and have no value: lost, their register is
        not."""
        for name, reason in self.refused.items():
            macro = self.source.macros.get(name)
            if macro is None or macro.parameters is not None or name not in self.bitwise:
                continue
            if key := self.find.inside(name):
                self.register(key)
            self.roles[name] = "bits"
            self.lost.append(Lost("field", name, macro.position, reason))

    # fields by one macro

    def _one_macro(self) -> None:
        """Fields that one macro says: BIT, GENMASK, a shifted number."""
        names = [
            name
            for name in self.plain
            if name not in self.roles and name in self.bitwise and name in self.values
        ]
        bases = {}
        for name in names:
            base, sep, tail = tail_of(name) or (name, "", "")
            mask = TAILS.get(tail) == "mask" and not (self.doubled and sep == "_")
            if mask:
                bases[name] = base
            else:
                bases[name] = name
        shifted = {
            name: (found[1], self.find.at_or_in(name), found[2])
            for name in names
            if (found := SHIFTED.fullmatch(self.plain[name].body))
        }
        among: dict[
            tuple[str, str], set[str]
        ] = {}  # numbers that are shifted as far in one register
        for digits, *place in shifted.values():
            among.setdefault((place[0], place[1]), set()).add(digits)
        for name, (digits, *place) in shifted.items():
            number = int(digits, 0)
            if bases[name] == name and (
                not number or number & number + 1 or len(among[place[0], place[1]]) > 1
            ):
                del bases[name]  # one value of several
        masks = {base: self.values[name] for name, base in bases.items()}
        masks |= {base: bits.bits for base, bits in self.fields.items()}
        singles = Longest(masks)
        for name, base in sorted(
            bases.items(), key=lambda one: one[0] == one[1]
        ):  # masks first, of a field's bits all
            value, key = self.values[name], self.find.at_or_in(base)
            if not 0 < value <= ALL or base in self.fields:
                if base in self.fields and value == self.fields[base].bits:
                    self.roles |= {name: "bits"}
                else:
                    self.roles |= {}
                continue
            outer, one_run = singles.inside(base), single(value)
            part = base != name and outer in self.fields and not value & ~masks[outer]
            if (
                len(outer) > len(key)
                and (outer in self.fields or one_run)
                and fits(value, masks[outer])
                and not part
            ):
                continue  # a value of that field
            if key and one_run:
                self.add(
                    Bits(base, self.plain[name].position, value),
                    self.register(key),
                    name,
                    *self.weak.pop(base, {}).values(),
                )

    def _weak(self, whole: bool = False) -> None:
        """Fields of a mask alone or a shift alone, where their register is sure and has the bits
        free; those named as their register is, in the end."""
        # whether masks of this file are written as BIT and GENMASK
        self.written = (
            5 * sum(name in self.bitwise for name in self._masks) > 4 * len(self._masks) > 0
        )
        for base, kinds in self.weak.items():
            key = self.find.at_or_in(base)
            if (
                base in self.fields
                or any(name in self.roles for name in kinds.values())
                or (base == key) != whole
            ):
                continue
            value = {kind: self.values.get(name, -1) for kind, name in kinds.items()}
            name = next(iter(kinds.values()))
            outer = max(Longest(self.fields).inside(name), self.find.inside(name), key=len)
            if (
                outer
                and ATTRIBUTE.fullmatch(name, len(outer) + 1)
                and not self._own_bits(name, outer)
            ):
                self.roles[name] = "attribute"
                continue
            bits = Bits(
                base,
                self.plain[name].position,
                value.get("mask", -1),
                value.get("low", value.get("bit", -1)),
                1 if "bit" in kinds else -1,
            )
            if name.endswith(("_M", "_BITS")) and not self.suffixed:
                continue
            if "mask" not in kinds and (bits.low > 31 or bits.low < 0 or name in self.hexadecimal):
                continue
            if (
                "mask" in kinds
                and kinds["mask"] in self.hexadecimal
                and kinds["mask"] in self.candidates
                and (not key or self.written)
            ):
                continue  # a register whose name ends so
            if not key:
                if bits.mask > 0:
                    self.add(bits, None, *kinds.values())
                continue
            if "mask" in kinds and (
                bits.mask <= 0 or bits.mask >= LARGEST or not single(bits.mask)
            ):
                continue
            register = self.register(key)
            if not register.has(bits.bits):
                self.add(bits, register, *kinds.values())
            elif whole:
                self.roles.update(dict.fromkeys(kinds.values(), "attribute"))

    def _own_bits(self, name: str, outer: str) -> bool:
        """Whether a mask says bits of a register that no field has, so one named RESET, and not
        which of its bits a reset sets."""
        mask = self.values.get(name, 0)
        return (
            outer in self.keys
            and name.endswith("_MASK")
            and 0 < mask < LARGEST - 1
            and single(mask)
            and not self.register(outer).has(mask)
        )

    def _in_front(self, name: str) -> Iterator[str]:
        """The offsets in front of a macro in the file, the last one first."""
        at = bisect_left(self._by_position, (self.source.macros[name].position, ""))
        return (self._by_position[n][1] for n in range(at - 1, -1, -1))

    @cached_property
    def _by_position(self) -> list[tuple[int, str]]:
        return [
            (macro.position, name)
            for name, macro in self.ordered.items()
            if name in self.candidates
        ]

    def _setters(self) -> None:
        """Fields that a macro of one parameter says."""
        inside = Longest(self.fields)
        for name, macro in self.source.macros.items():
            if macro.parameters is None or name in self.roles:
                continue
            key = self.find.at_or_in(name)
            bits, outer = self._made(name), inside.at_or_in(name.removeprefix("BF_"))
            if outer and not (bits and bits.bits & ~self.fields[outer].bits):
                self.roles[name] = "setter"
            elif key and name not in self.candidates and bits:
                self.roles[name] = "setter"
                register = self.register(key)
                if bits.bits < LARGEST and not register.has(bits.bits):
                    self.add(bits, register, name)

    def _made(self, name: str) -> Bits | None:
        """The bits that one macro says: by itself, or by what it makes of all ones and of one."""
        macro = self.source.macros[name]
        one, every = self.values.get(f"{name}(1)", -1), self.values.get(f"{name}(~)", -1)
        if single(mask := self.values.get(f"{name}(mask)", 0)):
            return Bits(name, macro.position, mask)
        if name in self.plain:
            one_run = name in self.bitwise and single(self.values.get(name, 0))
            if one_run:
                return Bits(name, macro.position, self.values[name])
            return None
        if (got := GETS.search(macro.body)) and every > 0 == every & every + 1:
            return Bits(name, macro.position, low=int(got[1]), width=every.bit_length())
        if one <= 0 or one.bit_count() != 1 or one >= LARGEST or every <= 0:
            return None
        low = one.bit_length() - 1
        whole = every == (LARGEST - 1) * 2**low  # nothing cuts the value
        return Bits(name, macro.position, -1 if whole else every & LARGEST - 1, low)

    def _behind(self) -> None:
        """Bits behind a register in the file that begin with its first word and nest in none: those
        that stand deeper than it and, where no field nests in any and most have some behind them,
        all. Their place is a guess."""
        nested = any(register.fields for register in self.registers.values())
        found: list[tuple[str, Bits, bool]] = []
        if nested:
            loose = {}
        else:
            loose = {bits.position: bits for bits in self.fields.values()}
        inside, by_macro = Longest(self.fields), {macro: key for key, macro in self.keys.items()}
        heads = {
            macro
            for macro in by_macro.keys() - self.members
            if self.roles.get(macro) == "register"
            or (not nested and NAMED.fullmatch(macro) and not self._made(macro))
        }
        key, least, seen = "", 0, set[str]()
        for name, macro in self.ordered.items():
            line = DEPTH.match(self.source.text, macro.position)
            depth = 0
            if line:
                depth = line.end() - macro.position
            free = not (
                name in self.roles
                or name in self.candidates
                or self.find.inside(name)
                or inside.inside(name)
            )
            bits = loose.get(macro.position) or (self._made(name) if free else None)
            if name in heads or (depth <= least and name in self.odd):
                key, least = by_macro.get(name) or self.odd[name], depth
                seen.add(key)
            elif (
                key
                and bits
                and (depth > least or not nested)
                and first_word(bits.name) == first_word(key)
            ):
                found.append((key, bits, depth > least))
            elif nested and depth <= least:
                key = ""
        most = 2 * len({key for key, *_ in found}) > len(seen)
        for key, bits, deeper in found:
            if key in self.keys and (deeper or most) and not self.register(key).has(bits.bits):
                bits.guess = True
                self.add(bits, self.register(key), bits.name)

    # registers without fields, groups, values

    def _others(self) -> None:
        """Registers in whose names no field nests: the rest of the offsets, judged as lists."""
        by_macro = {macro: key for key, macro in self.keys.items()}
        for name in self.candidates:
            key = self.find.inside(name)
            if self.keys.get(key) in self.registers and ATTRIBUTE.fullmatch(name, len(key) + 1):
                self.roles.setdefault(name, "attribute")
        rest = [name for name in self.candidates if name not in self.roles and name in by_macro]
        owner = Longest({*self.fields, *by_macro.values()})
        groups = self._groups(rest, by_macro, owner)
        self.roles.update(dict.fromkeys(groups, "group"))
        children: dict[str, list[str]] = {}
        lone: list[str] = []
        loose = {*rest} - groups
        for name in (name for name in self.ordered if name in loose):
            within = [
                one
                for one in owner.all(by_macro[name])
                if one in self.fields or self.keys[one] not in groups
            ]
            around = next(
                (one for one in within if one in self.fields or self.keys[one] in self.registers),
                "",
            )
            if name in self.arrays or not within:
                lone.append(name)
            elif around not in self.fields:  # else a value
                children.setdefault(around or within[0], []).append(name)
        self._lists(lone, children, by_macro)

    def _groups(self, rest: Sequence[str], by_macro: Mapping[str, str], owner: Longest) -> set[str]:
        """Offsets that only head a list of registers: several registers nest in the name, and it is
        where the first lies or 0."""
        inner: dict[str, list[int]] = {}
        for register in self.registers.values():
            for outer in owner.all(register.heads[0]):
                inner.setdefault(outer, []).append(register.offset)
                if self.keys.get(outer) not in self.arrays:
                    break  # a striped group is a group of what is around it
        for name in rest:  # of those without fields, numbers that are no single bit
            if (outer := owner.inside(by_macro[name])) and self.candidates[name].bit_count() > 1:
                inner.setdefault(outer, []).append(self.candidates[name])
        striped = {owner.inside(by_macro.get(name, name)) for name in self.arrays}
        out = {name for name in rest if name in self.arrays and by_macro[name] in striped}
        for name in out:
            inner.setdefault(owner.inside(by_macro[name]), []).append(self.candidates[name])
        for name in rest:
            kids = inner.get(by_macro[name], [])
            value = self.candidates[name]
            several = len(kids) > 1 and (value == 0 or (value % 0x100 == 0 and value <= min(kids)))
            if kids and name not in self.arrays and (value in kids or several):
                out.add(name)
        heads = {self.candidates[name] for name in out} & {
            register.offset for register in self.registers.values()
        }
        return out | {name for name in rest if len(out) > 1 and self.candidates[name] in heads}

    def _lists(
        self, lone: list[str], children: Mapping[str, list[str]], by_macro: Mapping[str, str]
    ) -> None:
        """Registers that lists of offsets name."""
        every = [*lone, *(name for names in children.values() for name in names)]
        hexadecimal = {
            name
            for name in every
            if name in self.hexadecimal
            or name not in self.plain
            or not LITERAL.fullmatch(self.plain[name].body)
        }
        marked = {name for name in hexadecimal if MARKED.fullmatch(name)}
        if len(marked) >= FEWEST and 5 * len(marked) >= 3 * len(hexadecimal):
            hexadecimal = marked
        words = {first_word(register.macro) for register in self.registers.values()}
        named = [name for name in hexadecimal if NAMED.fullmatch(name)]
        if len(named) >= FEWEST and 5 * len(named) >= 3 * len(hexadecimal):
            self.marks = {*named}
        else:
            self.marks = set[str]()
        top = 2 * max((register.offset for register in self.registers.values()), default=0) + 0x1000
        numbers = self._numbers(hexadecimal)
        for name in self.marks & {*lone}:
            self.register(by_macro[name])
        for name in lone if self.registers else ():
            counted = name in self.arrays and all(count for count, _ in self.arrays[name][1])
            if counted or (
                name in hexadecimal
                and (first_word(name) in words or self.prefixed)
                and name not in self.listed
                and (name not in self.used or name in self.arrays)
                and self.candidates[name] <= top
            ):
                self.register(by_macro[name])
        chosen = self._runs(numbers, hexadecimal & {*lone} if self.registers else hexadecimal)
        for name in lone:
            if name in chosen:
                self.register(by_macro[name])
        finder = Longest({*self.fields, *by_macro.values()})
        direct: dict[str, list[str]] = {}  # plain numbers without a role, by what they go on from
        for name in self.plain if children else ():
            if name in self.values and name not in self.roles:
                direct.setdefault(finder.inside(name), []).append(name)
        for outer, names in children.items():
            self._children(outer, names, hexadecimal, by_macro, direct.get(outer, []))

    def _numbers(self, names: Set[str]) -> dict[str, int]:
        """Registers and numbers without a role, in the order of the file; ``listed`` gets those
        that
        are no offsets: 0, 1, 2 of one name, and 4 between 3 and 5."""
        numbers = [
            name
            for name, macro in self.ordered.items()
            if name in names
            or name in self.registers
            or (name in self.hexadecimal and name not in self.roles)
        ]
        out = {name: self.candidates.get(name, self.values.get(name, 0)) for name in numbers}
        self.listed: set[str] = set()
        for a, b in pairwise(numbers):
            if (out[a] % WORD_BYTES or out[b] % WORD_BYTES) and a.rpartition("_")[
                0
            ] == b.rpartition("_")[0]:
                self.listed |= {a, b} - self.registers.keys()
        return out

    def _runs(self, offset: Mapping[str, int], names: Set[str]) -> set[str]:
        """Of numbers those that stand in lists of offsets: they rise in the order of the file, are
        multiples of a word and not all single bits; registers that are sure help, and without any
        the lists have to be what the file is about."""
        runs: list[list[str]] = []
        for name in offset:
            if name in self.listed or (name in self.used and name not in self.registers):
                runs.append([])
            elif runs and runs[-1] and offset[runs[-1][-1]] < offset[name]:
                runs[-1].append(name)
            else:
                runs.append([name])
        if self.registers:
            words = {first_word(name) for name in self.registers}
            out = set()
            for run in runs:
                sure = [n for n, name in enumerate(run) if name in self.registers]
                for n, name in enumerate(run) if sure else ():
                    if (n < sure[-1] and first_word(name) in words) or any(
                        abs(offset[name] - offset[other]) <= NEAR
                        and first_word(other) == first_word(name)
                        for other in (*run[max(0, n - 1) : n], *run[n + 1 : n + 2])
                    ):
                        out.add(name)
            return out & names
        good = [
            run
            for run in runs
            if len(run) > 1
            and not all(
                (offset[name].bit_count() <= 1 and not MARKED.fullmatch(name))
                or TAILS.get(name.rpartition("_")[2]) == "mask"
                for name in run
            )
        ]
        words = {first_word(name) for run in good for name in run}
        good += [run for run in runs if len(run) == 1 and first_word(run[0]) in words]
        out = {name for run in good for name in run}
        if 2 * len(out) >= len(offset):
            return out & names
        return set()

    def _children(
        self,
        outer: str,
        names: Sequence[str],
        hexadecimal: set[str],
        by_macro: Mapping[str, str],
        direct: Sequence[str],
    ) -> None:
        """Decide numbers whose names go on from a register's: further registers, its bits, its
        values."""
        macro = self.keys[outer]
        here = self.candidates[macro]
        position = self.source.macros[macro].position
        ordered = self._by_position
        at = bisect_left(ordered, (position, ""))
        behind = [
            self.candidates[name]
            for _, name in ordered[at : at + len(names) + FAR]
            if name != macro and not name.startswith(f"{macro}_") and self.candidates[name] > here
        ][:1]
        if behind:
            end = behind[0]
        else:
            end = here + 0x40 * WORD_BYTES
        numbers = [name for name in names if name in hexadecimal]
        if self.marks.issuperset((macro, *numbers)):
            for name in (macro, *numbers):
                self.register(by_macro.get(name, name))
            return
        values = [self.candidates[name] for name in numbers]
        others = [self.values[name] for name in direct if name not in numbers]
        single = all(value.bit_count() == 1 for value in (*values, *others))
        rising = (
            all(here < value < end for value in values)
            and all(a < b for a, b in pairwise(values))
            and not others
        )
        sure = all(LOW_HIGH.fullmatch(name.rpartition("_")[2]) for name in numbers)
        if numbers and (
            (rising and (sure or not single))
            or (not single and not others and all(self._follows(name) for name in numbers))
        ):
            for name in (macro, *numbers):
                if self.roles.get(name) != "register":
                    self.register(by_macro.get(name, name))

    def _follows(self, name: str) -> bool:
        """Whether one of the offsets in front of a number in the file lies right before it."""
        return any(
            0 < self.candidates[name] - self.candidates[other] <= 2 * WORD_BYTES
            for other in islice(self._in_front(name), 4)
        )

    def _named_values(self) -> None:
        """Give the named numbers to the fields, or to the registers without fields, that they are
        of; bits that a number in hexadecimal says become fields."""
        heads = {
            key: self.registers[macro]
            for key, macro in self.keys.items()
            if macro in self.registers
        }
        heads |= {head: register for register in self.registers.values() for head in register.heads}
        of = Longest({**self.fields, **heads})
        by_register: dict[str, list[str]] = {}
        placed = {bits.name for register in self.registers.values() for bits in register.fields}
        later = {
            name for base, kinds in self.weak.items() if base in heads for name in kinds.values()
        }
        for name in self.plain:
            if (
                name in self.roles
                or self.values.get(name, -1) < 0
                or name in later
                or self._packs(self.plain[name].body)
            ):
                continue
            if not (outer := of.inside(name)):
                continue
            tail, value, field = name[len(outer) + 1 :], self.values[name], self.fields.get(outer)
            if ATTRIBUTE.fullmatch(tail) or (name.endswith("_Val") and name[:-4] in self.plain):
                self.roles[name] = "attribute"
            elif field is None:
                by_register.setdefault(outer, []).append(name)
            elif (
                value.bit_count() == 1
                and value & ~field.bits
                and (field.strict or not fits(value, field.bits))
                and (key := self.find.inside(outer)) in heads
            ):
                by_register.setdefault(key, []).append(name)
            elif name not in self.bitwise or (
                fits(value, field.bits)
                and (
                    outer in placed
                    or value.bit_count() != 1
                    or not (outer in self.weak or value & ~field.bits)
                )
            ):
                field.values[tail] = value, name in self.bitwise
                if outer in placed:
                    self.roles[name] = "value"
                else:
                    self.roles[name] = "constant"
        for outer, names in by_register.items():
            register = heads[outer]
            hexadecimal = [
                name
                for name in names
                if name not in self.used and (name in self.hexadecimal or name in self.bitwise)
            ]
            values = [self.values[name] for name in hexadecimal]
            flags = len(hexadecimal) == len(names) or register.fields
            if (
                flags
                and values
                and all(value.bit_count() == 1 and value < LARGEST for value in values)
                and len({*values}) == len(values)
            ):
                for name, value in zip(hexadecimal, values, strict=True):
                    if outer in self.keys:
                        register = self.register(outer)
                    if not register.has(value):
                        self.add(Bits(name, self.plain[name].position, value), register, name)
            for name in names:
                if name not in self.roles and not register.fields:
                    self.roles[name] = "value"
                    register.values[name[len(outer) + 1 :]] = self.values[name], True

    def _attributes(self) -> None:
        """What is said of a register or field beside its bits, of those that nothing else was
        found for."""
        heads = {head for one in self.registers.values() for head in one.heads}
        known = Longest({*self.fields, *self.registers, *heads})
        for name in self.plain:
            if (
                name not in self.roles
                and (outer := known.inside(name))
                and (
                    ATTRIBUTE.fullmatch(tail := name[len(outer) :].lstrip("_"))
                    or (tail in ("RESET", "SIZE") and name not in self.candidates)
                )
            ):
                self.roles[name] = "attribute"


def single(mask: int) -> bool:
    """Whether the ones of a mask are one run.

    >>> single(0xf0), single(0xf0f), single(0)
    (True, False, False)
    """
    return 0 < mask <= ALL and not mask & mask + (mask & -mask)


def fits(value: int, mask: int) -> bool:
    """Whether a number can be a value of the field with a mask: in its place or from bit 0."""
    return mask <= 0 or not value & ~mask or value <= mask // (mask & -mask)


def runs_of(mask: int) -> list[tuple[int, int]]:
    """(lsb, width) of each run of ones of a mask.

    >>> runs_of(0xf0f)
    [(0, 4), (8, 4)]
    """
    out, lsb = [], 0
    while 0 < mask <= ALL:
        low = (mask & -mask).bit_length() - 1
        mask //= 2**low
        lsb += low
        width = (~mask & mask + 1).bit_length() - 1
        out.append((lsb, width))
        mask //= 2**width
        lsb += width
    return out
