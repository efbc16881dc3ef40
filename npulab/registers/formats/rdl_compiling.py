"""Compiles SystemRDL into plain records. This module runs as a program of its own, so that its time
and memory can be limited: a file may keep the compiler busy without end.

``python -P rdl_compiling.py SOURCE RESULT SECONDS BYTES MOST`` writes a JSON object to the file
RESULT. It has ``registers`` (with their fields, npulab's properties and lines), ``enums``, ``top``
(npulab's properties of the root) and ``lost``; or ``error``, with ``path`` and ``line`` or with
``allowed``. BYTES bounds the memory, MOST the registers and fields. The program imports nothing of
npulab. Source: SystemRDL 2.0; systemrdl-compiler.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

OWN = "npulab_"  # the names of npulab's properties begin with this text
# In files that npulab wrote, the name of a parameter that stands for a feature begins with it.
CHIP = "has_"
# properties that PeakRDL defines, and their types
KEPT = {
    "is_signed": bool,
    "intwidth": int,
    "fracwidth": int,
}
EFFECTS = ("onread", "onwrite")
# The most uses of macros in a file, with the uses inside other macros: a chain of n macros, each
# of which uses the next macro twice, has 2**n uses.
MOST_USES = 2**16
MOST_TEXT = 2**21  # the most characters of all uses of macros in a file, together


class TooMuch(Exception):
    """Raised for a file with too many registers and fields, or with macros that become too long."""

    allowed = ""


def compiled(source: Path, most: int) -> dict[str, Any]:
    """Return the records of a file with at most ``most`` registers and fields. If the compiler
    refuses a property of ``KEPT`` that the file does not declare, it is declared, and the file is
    compiled again."""
    made: dict[str, Any] = {}
    properties: list[str] = []
    for _ in range(len(KEPT) + 1):
        made = _compiled(source, most, properties)
        name = str(made.get("error", "")).partition("Unrecognized property '")[2].rstrip("'")
        if name not in KEPT or name in properties:
            break
        properties.append(name)
    return made


def _compiled(source: Path, most: int, properties: list[str]) -> dict[str, Any]:
    from systemrdl.compiler import RDLCompiler
    from systemrdl.component import Addrmap, Field
    from systemrdl.messages import MessagePrinter, RDLCompileError, Severity
    from systemrdl.udp import UDPDefinition

    errors: list[dict[str, Any]] = []

    class Printer(MessagePrinter):
        def print_message(self, severity: Any, text: str, src_ref: Any) -> None:
            if severity >= Severity.ERROR and (src_ref is not None or not errors):
                errors.append({"error": text, **_line(src_ref)})

    _bound_macros()
    compiler = RDLCompiler(message_printer=Printer())
    try:
        for name in properties:
            known = {"name": name, "valid_components": {Field}, "valid_type": KEPT[name]}
            compiler.register_udp(type(name, (UDPDefinition,), known), soft=False)
        compiler.compile_file(str(source))
        tops = [top for top in compiler.root.comp_defs.values() if isinstance(top, Addrmap)]
        is_own = bool(tops) and f"{OWN}map" in tops[-1].properties
        chips = []
        if is_own:
            chips = [name for name in tops[-1].parameters_dict if name.startswith(CHIP)]
        out = Records(most)
        # first with the defaults of the parameters, one of which may be true: an empty map does not
        # compile
        out.take(compiler.elaborate().top, None)
        for chip in chips:
            has: Any = {name: name == chip for name in chips}
            out.take(compiler.elaborate(parameters=has).top, chip)
        for other in tops[:-1]:
            # a map that is neither the last map nor inside another map is a block of its own
            if not is_own and other.type_name not in out.types:
                out.take(compiler.elaborate(top_def_name=other.type_name).top, None)
        return out.made
    except RDLCompileError as error:
        if errors:
            return errors[0]
        return {"error": str(error)}
    except TooMuch as error:
        return {"error": str(error), "allowed": error.allowed or f"are {most} registers and fields"}
    except (RecursionError, MemoryError):
        got = "a description that is too large, or nested too deep, for the compiler"
        return {"error": got, "allowed": "is a smaller one"}


def _bound_macros() -> None:
    """Make the compiler's preprocessor stop if macros become too long; it has no bound itself.

    The preprocessor makes a new instance for each use of a macro and for each argument, before it
    looks at their text. So the instances, and the characters of their texts, are counted in its
    ``__init__``.
    """
    from systemrdl.preprocessor.verilog_preprocessor import VerilogPreprocessor

    made: Any = VerilogPreprocessor
    # each compilation of a file counts from 0
    plain = getattr(made.__init__, "plain", made.__init__)
    uses = size = 0

    def bounded(self: Any, env: Any, text: str, *given: Any, **named: Any) -> None:
        nonlocal uses, size
        if named.get("src_ref_override") is not None:  # not the text of a file
            uses += 1
            size += len(text)
        if uses > MOST_USES or size > MOST_TEXT:
            error = TooMuch("macros that grow too far")
            error.allowed = (
                f"are {MOST_USES} uses, those inside macros too, and {MOST_TEXT} characters made "
                "of them"
            )
            raise error
        plain(self, env, text, *given, **named)

    bounded.plain = plain  # type: ignore[attr-defined]
    made.__init__ = bounded


class Records:
    """The records of an elaborated file; each field is taken once."""

    def __init__(self, most: int) -> None:
        self.made: dict[str, Any] = {"registers": [], "enums": [], "top": {}, "lost": []}
        self._most, self._count = most, 0
        self._enums: dict[Any, int] = {}
        self.types: set[str] = set()  # the types of maps inside other maps

    def take(self, top: Any, chip: str | None) -> None:
        """Add the registers of an address map. If ``chip``, the name of a feature's parameter, is
        given, they have only the fields that depend on a feature; otherwise, only the others."""
        if chip is None and not self.made["top"]:
            self.made["top"] = _own(top)
        self._inside(top, top.inst_name, top, "", chip)

    def _inside(self, around: Any, block: str, home: Any, prefix: str, chip: str | None) -> None:
        from systemrdl.node import AddrmapNode, MemNode, RegfileNode, RegNode

        for array in around.children():
            inner = array.children()
            if isinstance(array, MemNode) and not any(isinstance(node, RegNode) for node in inner):
                lost = f"memory {prefix}{array.inst_name} of {array.size} bytes"
                self.made["lost"].append([lost, _line(array.inst.inst_src_ref)])
                continue
            if not isinstance(array, AddrmapNode | RegfileNode | RegNode | MemNode):
                continue
            count = math.prod(array.array_dimensions or [1])
            self._refuse(count, f"{prefix}{array.inst_name}")
            elements: Any = [array]
            if array.is_array:
                elements = array.unrolled()
            for element in elements:
                self._count += 1
                name = element.get_path_segment()
                if isinstance(element, AddrmapNode):
                    self.types.add(element.orig_type_name or "")
                    full = name
                    if home.parent.parent is not None:
                        full = f"{block}.{name}"
                    self._inside(element, full, element, "", chip)
                elif isinstance(element, RegfileNode | MemNode):
                    self._inside(element, block, home, f"{prefix}{name}.", chip)
                else:
                    self._register(element, block, home, f"{prefix}{name}", chip)

    def _refuse(self, count: int, name: str) -> None:
        """Raise TooMuch if ``count`` more registers and fields would be too many."""
        if self._count + count > self._most:
            raise TooMuch(
                f"{name}, with which the number of registers and fields is above {self._most}"
            )

    def _register(self, register: Any, block: str, home: Any, name: str, chip: str | None) -> None:
        fields = []
        for field in register.fields():
            if (f"{OWN}feature" in field.inst.properties) == (chip is not None):
                fields.append(self._field(field))
        self._refuse(len(fields), name)
        self._count += len(fields)
        if not fields:
            return
        around = {
            "address": home.absolute_address,
            "desc": _text(home, "desc"),
            "own": _own(home),
            "top": home.parent.parent is None,
        }
        self.made["registers"].append(
            {
                "block": block,
                "offset": register.absolute_address - home.absolute_address,
                "size": 8 * register.size,
                "name": name,
                "home": around,
                "fields": fields,
                **_said(register),
            }
        )

    def _field(self, field: Any) -> dict[str, Any]:
        reset = field.get_property("reset", default=None)
        if not isinstance(reset, int):
            reset = None
        effects = []
        for name in EFFECTS:
            effect = field.get_property(name, default=None)
            if effect is not None:
                effects.append(f"{name}={effect.name}")
        out = {
            "name": field.inst_name,
            "low": field.low,
            "high": field.high,
            "msb0": field.msb < field.lsb,
            "sw": field.get_property("sw").name,
            "hw": field.get_property("hw").name,
            "reset": reset,
            "effects": effects,
            **_said(field),
        }
        for name in KEPT:
            value = field.inst.properties.get(name)
            if isinstance(value, int):
                out[name] = int(value)
        enum = field.get_property("encode", default=None)
        if enum is not None:
            if enum not in self._enums:
                self._enums[enum] = len(self.made["enums"])
                values = [[value.name, int(value.value)] for value in enum]
                self.made["enums"].append([enum.type_name or "", values])
            out["enum"] = self._enums[enum]
        return out


def _said(node: Any) -> dict[str, Any]:
    """Return the texts and npulab's properties of a register or field, and its file and line."""
    texts = {"title": _text(node, "name"), "desc": _text(node, "desc")}
    return {**texts, "own": _own(node), **_line(node.inst.inst_src_ref)}


def _own(node: Any) -> dict[str, Any]:
    own = {}
    for name, value in node.inst.properties.items():
        if name.startswith(OWN):
            own[name.removeprefix(OWN)] = value
    return own


def _text(node: Any, name: str) -> str:
    return str(node.get_property(name, default="") or "")


def _line(reference: Any) -> dict[str, Any]:
    try:
        return {"path": str(reference.path), "line": int(reference.line)}
    except (AttributeError, NotImplementedError, OSError, ValueError, TypeError):
        return {}


def main(source: str, result: str, seconds: str, size: str, most: str) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
        resource.setrlimit(resource.RLIMIT_AS, (int(size), int(size)))
    except (ImportError, ValueError, OSError):
        pass  # a system without such limits: the parent process ends this one after the same time
    Path(result).write_text(json.dumps(compiled(Path(source), int(most))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
