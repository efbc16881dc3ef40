"""Compiles SystemRDL into plain records: a program of its own, so that a file cannot keep the
compiler busy without end.

``python -P rdl_compiling.py SOURCE RESULT SECONDS BYTES MOST`` writes a JSON object:
``registers`` (with their fields, own properties and lines), ``enums``, ``top`` (own properties
of the root), ``told``; or ``error`` and ``line``. It imports nothing of npulab. Source:
SystemRDL 2.0; systemrdl-compiler.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

OWN = "npulab_"  # of the properties of our own
CHIP = "has_"  # of the parameters that stand for a feature, in files of our own
# properties of PeakRDL's, and their types
KEPT = {
    "is_signed": bool,
    "intwidth": int,
    "fracwidth": int,
}
EFFECTS = ("onread", "onwrite")
# of macros, those inside others counted: each use of one that doubles doubles them
MOST_USES = 2**16
MOST_TEXT = 2**21  # characters that macros become, at each level


class TooMuch(Exception):
    """The file has more registers than allowed, or its macros become too long."""

    allowed = ""


def compiled(source: Path, most: int) -> dict[str, Any]:
    """Return the records of a file with at most ``most`` fields and registers."""
    made: dict[str, Any] = {}
    properties: list[str] = []
    for _ in range(len(KEPT) + 1):
        made = _compiled(source, most, properties)
        name = str(made.get("error", "")).partition("Unrecognized property '")[2].rstrip("'")
        if name not in KEPT or name in properties:
            break
        properties.append(name)  # a file may declare it, and need not
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
            compiler.register_udp(
                type(
                    name,
                    (UDPDefinition,),
                    {"name": name, "valid_components": {Field}, "valid_type": KEPT[name]},
                ),
                soft=False,
            )
        compiler.compile_file(str(source))
        tops = [one for one in compiler.root.comp_defs.values() if isinstance(one, Addrmap)]
        out = Records(most)
        chips: list[str | None] = [None]
        if tops:
            chips += [
                name
                for name in tops[-1].parameters_dict
                if name.startswith(CHIP) and f"{OWN}map" in tops[-1].properties
            ]
        for chip in chips:
            # a parameter that is true by default stays so at first: an empty map does not
            # compile
            root = compiler.elaborate(
                parameters={name: name == chip for name in chips if name and chip}
            )
            out.take(root.top, chip)
        for other in tops[:-1]:
            # a map beside the last one, and in no other, is a block of its own
            if f"{OWN}map" not in tops[-1].properties and other.type_name not in out.types:
                out.take(compiler.elaborate(top_def_name=other.type_name).top, None)
        return out.made
    except RDLCompileError as error:
        if errors:
            return errors[0]
        return {"error": str(error)}
    except TooMuch as error:
        return {"error": str(error), "allowed": error.allowed or f"are {most} registers and fields"}
    except (RecursionError, MemoryError):
        return {"error": "what the compiler has no room for", "allowed": "is less"}


def _bound_macros() -> None:
    """Make the compiler's preprocessor stop when macros become too long: it has no bound itself.

    The preprocessor makes a new instance for the text of each use of a macro and for each
    argument, before it looks at the text.
    """
    from systemrdl.preprocessor.verilog_preprocessor import VerilogPreprocessor

    made: Any = VerilogPreprocessor
    # each compilation of a file counts from 0
    plain = getattr(made.__init__, "plain", made.__init__)
    uses = size = 0

    def bounded(self: Any, env: Any, text: str, *given: Any, **named: Any) -> None:
        nonlocal uses, size
        if named.get("src_ref_override") is not None:  # no file
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
    """The contents of the elaborated file, with each field once."""

    def __init__(self, most: int) -> None:
        self.made: dict[str, Any] = {"registers": [], "enums": [], "top": {}, "told": []}
        self._most, self._count = most, 0
        self._enums: dict[Any, int] = {}
        self.types: set[str] = set()  # of the address maps that are in others

    def take(self, top: Any, chip: str | None) -> None:
        if chip is None and not self.made["top"]:
            self.made["top"] = _own(top)
        self._inside(top, top.inst_name, top, "", chip)

    def _inside(self, around: Any, block: str, home: Any, prefix: str, chip: str | None) -> None:
        from systemrdl.node import AddrmapNode, MemNode, RegfileNode, RegNode

        for array in around.children():
            if isinstance(array, MemNode) and not any(
                isinstance(inner, RegNode) for inner in array.children()
            ):
                self.made["told"].append(
                    [
                        f"memory {prefix}{array.inst_name} of {array.size} bytes",
                        _line(array.inst.inst_src_ref),
                    ]
                )
                continue
            if not isinstance(array, AddrmapNode | RegfileNode | RegNode | MemNode):
                continue
            count = math.prod(array.array_dimensions or [1])
            if self._count + count > self._most:
                raise TooMuch(
                    f"{prefix}{array.inst_name} with which there are more than {self._most}"
                )
            for one in array.unrolled() if array.is_array else [array]:
                self._count += 1
                name = one.get_path_segment()
                if isinstance(one, AddrmapNode):
                    self.types.add(one.orig_type_name or "")
                    if home.parent.parent is None:
                        inner = name
                    else:
                        inner = f"{block}.{name}"
                    self._inside(one, inner, one, "", chip)
                elif isinstance(one, RegfileNode | MemNode):
                    self._inside(one, block, home, f"{prefix}{name}.", chip)
                else:
                    self._register(one, block, home, f"{prefix}{name}", chip)

    def _register(self, one: Any, block: str, home: Any, name: str, chip: str | None) -> None:
        fields = [
            self._field(field)
            for field in one.fields()
            if (chip is not None) == (f"{OWN}feature" in field.inst.properties)
        ]
        self._count += len(fields)
        if self._count > self._most:
            raise TooMuch(f"{name} with which there are more than {self._most}")
        if not fields:
            return
        self.made["registers"].append(
            {
                "block": block,
                "offset": one.absolute_address - home.absolute_address,
                "size": 8 * one.size,
                "name": name,
                "home": {
                    "address": home.absolute_address,
                    "desc": home.get_property("desc") or "",
                    "own": _own(home),
                    "top": home.parent.parent is None,
                },
                "title": _title(one),
                "desc": one.get_property("desc") or "",
                "fields": fields,
                "own": _own(one),
                **_line(one.inst.inst_src_ref),
            }
        )

    def _field(self, one: Any) -> dict[str, Any]:
        reset = one.get_property("reset", default=None)
        out = {
            "name": one.inst_name,
            "low": one.low,
            "high": one.high,
            "msb0": one.msb < one.lsb,
            "title": _title(one),
            "desc": one.get_property("desc") or "",
            "sw": one.get_property("sw").name,
            "hw": one.get_property("hw").name,
            "reset": reset if isinstance(reset, int) else None,
            "own": _own(one),
            **_line(one.inst.inst_src_ref),
        }
        out["effects"] = [
            f"{name}={effect.name}"
            for name in EFFECTS
            if (effect := one.get_property(name, default=None)) is not None
        ]
        for name in KEPT:
            if isinstance(value := one.inst.properties.get(name), int):
                out[name] = int(value)
        if (enum := one.get_property("encode", default=None)) is not None:
            if enum not in self._enums:
                self._enums[enum] = len(self.made["enums"])
                self.made["enums"].append(
                    [enum.type_name or "", [[value.name, int(value.value)] for value in enum]]
                )
            out["enum"] = self._enums[enum]
        return out


def _own(node: Any) -> dict[str, Any]:
    return {
        name.removeprefix(OWN): value
        for name, value in node.inst.properties.items()
        if name.startswith(OWN)
    }


def _title(node: Any) -> str:
    return str(node.get_property("name", default=""))


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
        pass  # a system without such limits; the parent process stops waiting after the same time
    Path(result).write_text(json.dumps(compiled(Path(source), int(most))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
