"""The roles of the macros of a C header: "register", "bits" (a macro of a field), "value", and
others; most macros have no role at first."""

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
    """The role of each macro, the fields and the registers. The steps of ``c_macros`` fill them in,
    the step with the surest evidence first.
    """

    facts: Facts
    pairs: Pairs
    arrays: dict[str, Array]
    candidates: dict[str, int]  # offsets in bytes, by the macro that may be a register
    keys: Keys
    by_words: bool  # true if the file counts offsets in words
    roles: dict[str, str]  # the role of a macro, by its name
    lost: list[Lost]
    fields: dict[str, Bits]  # fields by name; the names of their macros begin with it
    # The registers, by the macro of their offset.
    registers: dict[str, Register] = field(default_factory=dict)
    find: Longest = field(default_factory=lambda: Longest(()))  # finds keys of registers
    # Numbers that are named as registers, but are no multiples of a word: the name without the
    # mark of an offset, by macro.
    odd: dict[str, str] = field(default_factory=dict)
    # registers with a field of which only the shift is known
    reaching: list[Register] = field(default_factory=list)

    def placed(self) -> set[str]:
        """Return the names of the fields whose register is known."""
        names: set[str] = set()
        for register in self.registers.values():
            names.update(bits.name for bits in register.fields)
        return names

    def value(self, name: str) -> int:
        """Return the value of a macro; -1 if it has none."""
        return self.facts.values.get(name, -1)

    def add(self, bits: Bits, register: Register | None, *macros: str) -> None:
        """Add a field, which these macros describe; add it to its register too, if that is
        known."""
        self.fields[bits.name] = bits
        self.roles.update(dict.fromkeys(macros, "bits"))
        if register is not None:
            register.fields.append(bits)
            if bits.bits < 0:
                self.reaching.append(register)

    def register(self, key: str) -> Register:
        """Return the register with this key (``Keys``), or with this macro; it is added if it is
        new.
        """
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
        """Add the macro's number to a field, or to a whole register, as a value with this name."""
        in_place = isinstance(owner, Register) or macro in self.facts.bitwise
        owner.values[name] = NamedNumber(self.value(macro), in_place)
        self.roles[macro] = role

    @property
    def by_macro(self) -> dict[str, str]:
        """The key of a register (``Keys``), by the macro of the register's offset."""
        return {macro: key for key, macro in self.keys.macros.items()}

    @cached_property
    def by_position(self) -> list[tuple[int, str]]:
        """(position, name) of each macro that may be an offset, in the order of the text."""
        ordered = self.facts.ordered.items()
        return [(macro.position, name) for name, macro in ordered if name in self.candidates]

    def place(self, name: str) -> int:
        """Return how many macros before this macro in the text may be offsets. If the macro itself
        may be an offset, this is its index in ``by_position``."""
        return bisect_left(self.by_position, (self.facts.source.macros[name].position, ""))

    @cached_property
    def unexplained(self) -> dict[str, Macro]:
        """The macros that have a body but no role, and that no declaration and no other macro uses.
        A macro that is written as bits counts as used only if the macro of a field uses it; in
        other macros, it may be a field of its own.
        """
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
        """Yield, as losses with their reasons, the macros without a role that the file itself
        defines and that look like a register or field."""
        for name, macro in self.unexplained.items():
            if macro.position >= self.facts.source.own:
                lost = self._unexplained_macro(name, macro)
                if lost is not None:
                    yield lost

    def _unexplained_macro(self, name: str, macro: Macro) -> Lost | None:
        """Return a macro without a role as a loss with its reason; None if nothing in the macro
        looks like a register.
        """
        facts = self.facts
        at_one, value = self.value(f"{name}(1)"), self.value(name)
        if name in facts.plain:
            is_field = name in facts.bitwise and value > 0
        else:
            is_field = at_one > 0 and at_one.bit_count() == 1
        has_offset = OFFSETS.search(macro.body)
        kind, reason = "number", "nothing says to which register or field it belongs"
        if is_field:
            kind, reason = "field", "nothing says to which register it belongs"
        elif name in self.arrays or (name in self.candidates and name in facts.hexadecimal):
            kind, reason = "macro", "nothing says whether it is a register"
        elif name in facts.refused and name in facts.plain and has_offset:
            kind, reason = "macro", facts.refused[name]
        elif max(at_one, value) < 0:
            is_array = has_offset or facts.chosen_offsets(macro)
            if not macro.parameters or not is_array:
                return None
        return Lost(kind, name, macro.position, reason)
