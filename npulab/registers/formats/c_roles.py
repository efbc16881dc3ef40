"""The roles of the macros of a C header: fields, registers, values, or nothing yet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from npulab.registers.formats.c_dialects import OFFSETS, Longest
from npulab.registers.formats.c_fields import Bits, Lost, NamedNumber, Register
from npulab.registers.formats.c_numbers import Facts
from npulab.registers.formats.c_offsets import Array, Keys
from npulab.registers.formats.c_pairs import Pairs
from npulab.registers.formats.c_text import NAME, Macro


@dataclass
class Roles:
    """The role of each macro, the fields and the registers; the surest evidence fills it first."""

    facts: Facts
    pairs: Pairs
    arrays: dict[str, Array]
    candidates: dict[str, int]  # offsets of macros that may be registers
    keys: Keys
    by_words: bool
    roles: dict[str, str]
    lost: list[Lost]
    fields: dict[str, Bits]  # by the beginning of their macros' names
    registers: dict[str, Register] = field(default_factory=dict)  # by the macro of the offset
    find: Longest = field(default_factory=lambda: Longest(()))  # among keys.macros
    # numbers that are no offset but named as registers are, by macro: the plain name
    odd: dict[str, str] = field(default_factory=dict)
    reaching: list[Register] = field(default_factory=list)  # registers that got a shift alone

    def placed(self) -> set[str]:
        """The fields whose register is known."""
        names: set[str] = set()
        for register in self.registers.values():
            names.update(bits.name for bits in register.fields)
        return names

    def value(self, name: str) -> int:
        """The value of a macro; -1 if it has none."""
        return self.facts.values.get(name, -1)

    def add(self, bits: Bits, register: Register | None, *macros: str) -> None:
        """Add a field that some macros say, to its register if that is known."""
        self.fields[bits.name] = bits
        self.roles.update(dict.fromkeys(macros, "bits"))
        if register is not None:
            register.fields.append(bits)
            if bits.bits < 0:
                self.reaching.append(register)

    def register(self, key: str) -> Register:
        """Return the register whose fields begin with a name; a new one if there is none yet."""
        macros = self.keys.macros
        macro = macros.get(key, key)
        if macro not in self.registers:
            offset, lengths = self.arrays.get(macro, (self.candidates[macro], ()))
            name = macro
            if macro not in macros or self.keys.spelling == "prefixed":
                name = key
            position = self.facts.source.macros[macro].position
            self.registers[macro] = Register(macro, name, offset, position, lengths)
            self.roles[macro] = "register"
        register = self.registers[macro]
        if key not in register.heads:
            register.heads.append(key)
            if self.keys.marked and register.name == macro and key != macro:
                register.name = key
        return register

    def add_value(self, owner: Bits | Register, name: str, macro: str, role: str) -> None:
        """Add a named value of a field or of a whole register."""
        in_place = isinstance(owner, Register) or macro in self.facts.bitwise
        owner.values[name] = NamedNumber(self.value(macro), in_place)
        self.roles[macro] = role

    @property
    def by_macro(self) -> dict[str, str]:
        """The beginning of the fields' names, by the macro of the offset."""
        return {macro: key for key, macro in self.keys.macros.items()}

    @cached_property
    def by_position(self) -> list[tuple[int, str]]:
        """(position, name) of the offsets in the order of the text."""
        ordered = self.facts.ordered.items()
        return [(macro.position, name) for name, macro in ordered if name in self.candidates]

    def place(self, name: str) -> int:
        """The number of offsets before a macro in the text."""
        return bisect_left(self.by_position, (self.facts.source.macros[name].position, ""))

    @cached_property
    def unexplained(self) -> dict[str, Macro]:
        """The macros that have no role, are not empty and are not used by others; use of a bit
        counts only in a field, as each term of an OR of bits is a field itself."""
        facts = self.facts
        words, field_words = set(facts.spoken), set[str]()
        for name, macro in facts.numbers.items():
            if "|" not in macro.body and not macro.body.isalnum() and name not in facts.refused:
                used = NAME.findall(macro.body)
                words.update(used)
                if self.roles.get(name) in ("bits", "setter", "helper"):
                    field_words.update(used)
        out = {}
        for name, macro in facts.source.macros.items():
            serving = words
            if name in facts.bitwise and self.value(name) > 0:
                serving = field_words
            known = name in self.roles or macro.body in self.roles or name in serving
            if macro.body and not known:
                out[name] = macro
        return out

    def rest(self) -> Iterator[Lost]:
        """Yield the macros of the file itself that have no role, with the reason."""
        for name, macro in self.unexplained.items():
            if macro.position >= self.facts.source.own:
                lost = self._unexplained_macro(name, macro)
                if lost is not None:
                    yield lost

    def _unexplained_macro(self, name: str, macro: Macro) -> Lost | None:
        """The loss of a macro without a role; None for one that is not about registers."""
        facts = self.facts
        at_one, value = self.value(f"{name}(1)"), self.value(name)
        if name in facts.plain:
            is_field = name in facts.bitwise and value > 0
        else:
            is_field = at_one > 0 and at_one.bit_count() == 1
        has_offset = OFFSETS.search(macro.body)
        kind, reason = "number", "nothing says what it is of"
        if is_field:
            kind, reason = "field", "nothing says which register it is of"
        elif name in self.arrays or (name in self.candidates and name in facts.hexadecimal):
            kind, reason = "macro", "nothing says whether it is a register"
        elif name in facts.refused and name in facts.plain and has_offset:
            kind, reason = "macro", facts.refused[name]
        elif max(at_one, value) < 0:
            is_array = has_offset or facts.chosen_offsets(macro)
            if not macro.parameters or not is_array:
                return None
        return Lost(kind, name, macro.position, reason)
