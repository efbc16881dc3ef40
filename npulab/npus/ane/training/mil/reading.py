"""Reading and writing the text of MIL programs.

The parser looks one token ahead; its errors state line and column. Text is written in the form of
maderix/ANE (training/stories_mil.h): inside of functions there are no blanks after commas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from npulab.npus.ane.training.mil.values import (
    DTYPES,
    Attributes,
    Compound,
    File,
    Function,
    Group,
    Operation,
    Program,
    Type,
    Value,
)
from npulab.npus.kit import refuse_if

MOST_TOKENS = 2**19
MOST_TEXT, MOST_ELEMENTS, MOST_DEPTH = 2**23, 2**19, 16
# Brackets with only numbers or bools; one match reads them faster than token by token.
FLAT = re.compile(r"\[([0-9a-fA-FxXpPeEinftrusl.+\-, \t\r\n]*)\]")
# A number and a string of the text have at most this many characters.
MOST_NUMBER, MOST_STRING = 64, 2**16
ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}
ESCAPED = {letter: f"\\{code}" for code, letter in ESCAPES.items()}
# Floats of a magnitude from SMALLEST to below LARGEST are written as decimals, others in
# hexadecimal.
SMALLEST, LARGEST = 1e-8, 1e16
BOOLS = ("true", "false")
CLOSING = {"(": ")", "[": "]", "{": "}"}
VERSION = re.compile("[0-9.]*")
HEXADECIMAL = r"0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:[pP][+-]?\d+)?"
DECIMAL = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
NUMBER = rf"[+-]?(?:{HEXADECIMAL}|{DECIMAL}|inf|nan)"
TOKEN = re.compile(
    rf"(?P<name>(?!inf\b|nan\b)[A-Za-z_][A-Za-z0-9_]*)|(?P<number>{NUMBER}(?![\w.]))|(?P<arrow>->)"
    r'|(?P<mark>[\[\](){}<>=,;?])|(?P<string>"(?:[^"\\\n]++|\\.)*+")',
    re.ASCII,
)
# Possessive quantifiers (++, *+) never backtrack, so long blanks and comments take no memory.
BLANK = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+)*+")


def read(text: str) -> Program:
    """Return the program of a MIL text of any version; ``check`` judges names, types and shapes.

    Elements of a constant may be flat or in nested brackets, floats decimal or hexadecimal;
    comments start with ``//``. Raises ValueError for text that is not MIL and for blocks inside of
    operations. A text has at most 2**23 characters, 2**19 tokens, 2**19 elements of constants, and
    brackets at most 16 deep. The errors state line and column.

    >>> read("program(1.0) { func main<ios16>(tensor<fp16, [1, 2]> x) { } -> (x); }")["main"].inputs
    (('x', Type(dtype='fp16', shape=(1, 2), plain=False)),)
    """
    refuse_if(not isinstance(text, str), "mil", type(text).__name__, "is text")
    refuse_if(len(text) > MOST_TEXT, "mil", f"{len(text)} letters", f"is up to {MOST_TEXT}")
    return _Reader(text).program()


class _Reader:
    """A parser of one text.

    ``at`` is the index of the current token's first character and ``end`` the index after its last.
    ``elements`` counts the elements of constants that were read so far.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at, self.tokens, self.elements = text, 0, 0, 0
        # ``line`` is the line of the character at index ``counted``; counting goes on from there.
        self.line, self.counted = 1, 0
        self.kind, self.token, self.end = "", "", 0
        self.look()

    def look(self) -> None:
        """Skip blanks and comments, then make the token after them the current token."""
        blank = BLANK.match(self.text, self.at)
        # BLANK matches the empty text too, so it always matches.
        assert blank
        self.at = blank.end()
        token = TOKEN.match(self.text, self.at)
        if token:
            self.kind, self.token, self.end = token.lastgroup or "", token.group(), token.end()
        else:
            self.kind = "other"
            if self.at == len(self.text):
                self.kind = "end"
            self.token, self.end = self.text[self.at : self.at + 1], self.at
        self.tokens += 1
        if self.tokens > MOST_TOKENS:
            self.fail(f"more than {MOST_TOKENS} tokens", "a shorter program")

    def step(self) -> str:
        token, self.at = self.token, self.end
        self.look()
        return token

    def following(self) -> str:
        """Return the first character of the token after the current token."""
        blank = BLANK.match(self.text, self.end)
        assert blank
        return self.text[blank.end() : blank.end() + 1]

    def line_here(self) -> int:
        """Return the line of the current token, counted from 1."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.line

    def place(self, at: int) -> str:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return f"line {line}, column {column}"

    def fail(self, got: str, allowed: str, at: int | None = None) -> NoReturn:
        if at is None:
            at = self.at
        raise ValueError(f"mil: {self.place(at)}: got {got}, allowed is {allowed}")

    def refuse(self, allowed: str) -> NoReturn:
        got = repr(self.token[:40])
        if self.kind == "end":
            got = "the end of the text"
        self.fail(got, allowed)

    def made(self, make: Callable[..., Any], at: int, *given: Any, **named: Any) -> Any:
        """Return ``make(*given, **named)``; put line and column of index ``at`` before its
        error."""
        try:
            return make(*given, **named)
        except (ValueError, LookupError) as error:
            raise ValueError(f"mil: {self.place(at)}: {error.args[0]}") from None

    def take(self, *tokens: str) -> None:
        """Step over the given tokens; raise ValueError if the text has others."""
        for token in tokens:
            if self.token != token or self.kind not in ("mark", "arrow", "name"):
                self.refuse(repr(token))
            self.step()

    def has(self, token: str) -> bool:
        """Return True if the current token is a given mark, and step over it."""
        if self.kind != "mark" or self.token != token:
            return False
        self.step()
        return True

    def name(self, what: str) -> str:
        if self.kind != "name":
            self.refuse(what)
        return self.step()

    def many(self, item: Callable[[], Any], close: str, comma: str = ",") -> tuple[Any, ...]:
        """Return the items before a closing mark, with ``comma`` between items; step over the mark.

        ``item`` reads one item. An empty ``comma`` means that nothing separates the items.
        """
        items: list[Any] = []
        while not self.has(close):
            if items and comma and not self.has(comma):
                self.refuse(f"',' or {close!r}")
            items.append(item())
        return tuple(items)

    def block(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        """Return the items between braces; no commas separate them, ``item`` reads one."""
        self.take("{")
        return self.many(item, "}", "")

    # Programs, functions and operations

    def program(self) -> Program:
        start = self.at
        self.take("program", "(")
        version = VERSION.match(self.text, self.at)
        if not version or not version.group():
            self.refuse("a version, as 1.3")
        self.at = version.end()
        self.look()
        self.take(")")
        attributes, functions = self.attributes(), self.block(self.function)
        if self.kind != "end":
            self.refuse("the end of the text")
        return self.made(Program, start, functions, version.group(), attributes)

    def function(self) -> Function:
        start, line = self.at, self.line_here()
        self.take("func")
        name = self.name("the name of a function")
        self.take("<")
        target = self.name("the system that it is compiled for, as ios18")
        self.take(">", "(")
        inputs = self.many(self.input, ")")
        attributes, operations = self.attributes(), self.block(self.operation)
        self.take("->", "(")
        outputs = self.many(lambda: self.name("the name of an output"), ")")
        self.take(";")
        return self.made(
            Function, start, inputs, operations, outputs, name, target, attributes, line
        )

    def input(self) -> tuple[str, Type | Compound]:
        kind = self.type()
        return self.name("the name of an input"), kind

    def operation(self) -> Operation:
        start, line = self.at, self.line_here()
        outputs = []
        if self.following() != "(":
            outputs.append(self.output())
            while self.has(","):
                outputs.append(self.output())
            self.take("=")
        op = self.name("an operation")
        self.take("(")
        arguments = self.many(self.argument, ")")
        attributes = self.attributes()
        if self.token == "{":
            self.refuse("';' (blocks inside of operations are not read)")
        self.take(";")
        return self.made(Operation, start, op, tuple(outputs), arguments, attributes, line)

    def output(self) -> tuple[str, Type]:
        start = self.at
        kind = self.type()
        if not isinstance(kind, Type):
            self.fail(str(kind), "a tensor or a plain type", start)
        return self.name("the name of an output"), kind

    def argument(self) -> tuple[str, Any]:
        return self.pair("an argument", self.operands)

    def operands(self) -> Any:
        """Return an argument's operand, or the tuple of its operands in parentheses."""
        if self.has("("):
            return self.many(self.operand, ")")
        return self.operand()

    def operand(self) -> str | Value:
        """Return the name of a value, or a constant."""
        if self.kind == "name" and not self.is_bool() and self.following() not in ("(", "<"):
            return self.step()
        return self.value()

    def attributes(self) -> Attributes:
        if self.has("["):
            return self.many(lambda: self.pair("an attribute", self.value), "]")
        return ()

    def pair(self, what: str, value: Callable[[], Any]) -> tuple[str, Any]:
        name = self.name(f"the name of {what}")
        self.take("=")
        return name, value()

    # Types and constants

    def type(self, depth: int = 0) -> Type | Compound:
        start = self.at
        self.not_too_deep("types", depth)
        name = self.name("a type")
        if name == "tensor":
            self.take("<")
            dtype = self.name("an element type")
            self.take(",", "[")
            shape = self.many(self.size, "]")
            self.take(">")
            return self.made(Type, start, dtype, shape)
        if name in Compound.KINDS:
            self.take("<")
            return self.made(Compound, start, name, self.many(lambda: self.type(depth + 1), ">"))
        if name not in DTYPES:
            self.fail(
                repr(name[:40]),
                f"a type: tensor, {', '.join(Compound.KINDS)}, {', '.join(DTYPES)}",
                start,
            )
        return Type(name, plain=True)

    def size(self) -> int | None:
        if self.has("?"):
            return None
        if self.kind != "number":
            self.refuse("a number")
        start = self.at
        size = self.scalar()
        if not isinstance(size, int) or not 0 <= size < 2**31:
            self.fail(str(size), "a size, 0 to 2**31 - 1, or ?", start)
        return size

    def value(self) -> Value:
        start = self.at
        if self.kind != "name" or self.is_bool():
            return Value(None, self.literal(0))
        kind = self.type()
        self.take("(")
        if isinstance(kind, Compound):
            return Value(kind, self.many(lambda: self.literal(0), ")"))
        data: Any
        if self.kind == "name" and self.token == "BLOBFILE":
            data = self.file()
        elif self.token == "[" and self.kind == "mark":
            data = self.listed(kind.shape, 0)
        else:
            data = self.literal(0)
        self.take(")")
        return self.made(Value, start, kind, data)

    def file(self) -> File:
        start = self.at
        self.take("BLOBFILE", "(")
        path, plain = self.stated("path", "string")
        self.take(",")
        offset, _ = self.stated("offset", "uint64")
        self.take(")")
        return self.made(File, start, path, offset, plain)

    def stated(self, name: str, dtype: str) -> tuple[Any, bool]:
        """Read ``name = dtype(value)``; return the value, and true if its type is plain.

        ``string("a")`` has a plain type, ``tensor<string, []>("a")`` has not.
        """
        self.take(name, "=")
        at = self.at
        value = self.value()
        kind = value.type
        several = isinstance(value.data, File | tuple)
        if not isinstance(kind, Type) or kind.dtype != dtype or several:
            self.fail(f"{name} of {kind}", dtype, at)
        return value.data, kind.plain

    def listed(self, shape: tuple[int | None, ...], depth: int) -> tuple[Any, ...]:
        """Return a constant's elements in order, read from brackets.

        The brackets are flat, or nested with one level for each axis of ``shape``.
        """
        start = self.at
        flat = FLAT.match(self.text, self.at)
        if flat:
            self.at = flat.end()
            words = flat.group(1).split(",")
            self.count_elements(len(words), start)
            if not flat.group(1).strip():
                words = []
            elements = tuple(self.element(word.strip(), start) for word in words)
            self.look()
            return elements
        self.not_too_deep("brackets", depth)
        self.take("[")
        if self.token == "[" and self.kind == "mark":
            rows = self.many(lambda: self.listed(shape[1:], depth + 1), "]")
            lengths = {len(row) for row in rows}
            if not shape or len(rows) != shape[0] or len(lengths) > 1:
                allowed = f"rows of equal length, as many as the shape says ({list(shape)})"
                self.fail(f"{len(rows)} rows", allowed, start)
            return tuple(chain.from_iterable(rows))
        items = self.many(lambda: self.literal(depth + 1), "]")
        self.count_elements(len(items), start)
        return items

    def not_too_deep(self, what: str, depth: int) -> None:
        if depth > MOST_DEPTH:
            self.fail(f"{what} more than {MOST_DEPTH} deep", "fewer")

    def count_elements(self, count: int, at: int) -> None:
        self.elements += count
        if self.elements > MOST_ELEMENTS:
            self.fail(
                f"more than {MOST_ELEMENTS} elements of constants",
                "a larger constant only in a weight file",
                at,
            )

    def literal(self, depth: int) -> Any:
        self.not_too_deep("brackets", depth)
        if self.kind == "number" or self.is_bool():
            return self.scalar()
        if self.kind == "string":
            return self.string()
        if self.kind == "mark" and self.token in CLOSING:
            bracket = self.step()
            return Group(bracket, self.many(lambda: self.literal(depth + 1), CLOSING[bracket]))
        return self.refuse("a number, a string, true, false or an opening bracket")

    def is_bool(self) -> bool:
        return self.kind == "name" and self.token in BOOLS

    def scalar(self) -> Any:
        value = self.element(self.token, self.at)
        self.step()
        return value

    def element(self, word: str, at: int) -> Any:
        """Return the number or bool that ``word`` spells; ``at`` is its index, for an error."""
        if word in BOOLS:
            return word == "true"
        if len(word) <= MOST_NUMBER and re.fullmatch(NUMBER, word, re.ASCII):
            low = word.lower().lstrip("+-")
            if low.isdigit():
                return int(word)
            try:
                if low.startswith("0x"):
                    if "." in low or "p" in low:
                        return float.fromhex(word)
                    return int(word, 16)
                number = float(word)
                if number != number:
                    return math.nan
                return number
            except OverflowError:
                pass
        return self.fail(repr(word[:40]), f"a number of up to {MOST_NUMBER} letters", at)

    def string(self) -> str:
        start, raw = self.at, self.token[1:-1]
        if len(raw) > MOST_STRING:
            self.fail(f"a string of {len(raw)} letters", f"up to {MOST_STRING}")
        wrong = [letter for letter in re.findall(r"\\(.)", raw) if letter not in ESCAPES]
        if wrong:
            self.fail(repr("\\" + wrong[0]), 'one of the escapes \\\\ \\" \\n \\t \\r', start)
        self.step()
        return re.sub(r"\\(.)", lambda found: ESCAPES[found.group(1)], raw)


# Writing the text


def write(program: Program) -> str:
    """Return the text of a program; ``read`` turns it into an equal program.

    Each operation takes one line. Constants inside of functions have no blanks. A float is the
    shortest decimal that is the same float64; below 1e-8 and from 1e16 on it is hexadecimal.

    >>> x = Type("fp16", (1, 4, 1, 32))
    >>> called = ("name", Value(Type("string", plain=True), "a"))
    >>> twice = Operation("add", (("y", x),), (("x", "x"), ("y", "x")), (called,))
    >>> print(write(Program((Function((("x", x),), (twice,), ("y",)),))), end="")
    program(1.3)
    {
        func main<ios18>(tensor<fp16, [1, 4, 1, 32]> x) {
            tensor<fp16, [1,4,1,32]> y = add(x=x,y=x)[name=string("a")];
        } -> (y);
    }
    """
    attributes = ""
    if program.attributes:
        attributes = f"[{_attributes(program.attributes, ' = ', ', ')}]\n"
    functions = "".join(map(_function_text, program.functions))
    return f"program({program.version})\n{attributes}{{\n{functions}}}\n"


def _function_text(function: Function) -> str:
    inputs = ", ".join(f"{kind} {name}" for name, kind in function.inputs)
    attributes = ""
    if function.attributes:
        attributes = f" [{_attributes(function.attributes, ' = ', ', ')}]"
    lines = [f"    func {function.name}<{function.target}>({inputs}){attributes} {{"]
    for operation in function.operations:
        lines.append(f"        {_operation_text(operation)};")
    lines.append(f"    }} -> ({', '.join(function.outputs)});\n")
    return "\n".join(lines)


def _operation_text(operation: Operation) -> str:
    outputs = ", ".join(f"{kind.spelled(',')} {name}" for name, kind in operation.outputs)
    if outputs:
        outputs += " = "
    arguments = ",".join(f"{name}={_argument(argument)}" for name, argument in operation.arguments)
    attributes = ""
    if operation.attributes:
        attributes = f"[{_attributes(operation.attributes, '=', ',')}]"
    return f"{outputs}{operation.op}({arguments}){attributes}"


def _attributes(pairs: Sequence[tuple[str, Value]], equals: str, comma: str) -> str:
    return ", ".join(f"{name}{equals}{_value(value, comma)}" for name, value in pairs)


def _argument(argument: Any) -> str:
    if isinstance(argument, tuple):
        return f"({','.join(map(_argument, argument))})"
    if isinstance(argument, str):
        return argument
    return _value(argument, ",")


def _value(value: Value, comma: str) -> str:
    if value.type is None:
        return _literal(value.data, comma)
    if isinstance(value.data, File):
        return f"{value.type.spelled(comma)}({_file_text(value.data, comma)})"
    if not isinstance(value.type, Type):
        return f"{value.type}({_literals(value.data, ', ')})"
    if isinstance(value.data, tuple):
        data = f"[{_literals(value.data, comma)}]"
    else:
        data = _literal(value.data, comma)
    return f"{value.type.spelled(comma)}({data})"


def _file_text(file: File, comma: str) -> str:
    string = Type("string", plain=file.plain).spelled()
    number = Type("uint64", plain=file.plain).spelled()
    equals = " = "
    if comma == ",":
        equals = "="
    path = f"path{equals}{string}({_literal(file.path, comma)})"
    return f"BLOBFILE({path}, offset{equals}{number}({file.offset}))"


def _literals(items: Sequence[Any], comma: str) -> str:
    return comma.join(_literal(item, comma) for item in items)


def _literal(item: Any, comma: str) -> str:
    if isinstance(item, Group):
        return f"{item.bracket}{_literals(item.items, comma)}{CLOSING[item.bracket]}"
    if isinstance(item, Value):
        return _value(item, comma)
    if isinstance(item, str):
        escaped = "".join(ESCAPED.get(letter, letter) for letter in item)
        return f'"{escaped}"'
    if isinstance(item, bool):
        return str(item).lower()
    if not isinstance(item, float) or not math.isfinite(item):
        return str(item)
    if item and not SMALLEST <= abs(item) < LARGEST:
        return item.hex()
    return np.format_float_positional(item, trim="0")
