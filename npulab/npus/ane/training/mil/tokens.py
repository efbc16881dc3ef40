"""Tokens of MIL text, one at a time, each with its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

MOST_TOKENS = 2 ** 19
NUMBER = r"[+-]?(?:0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:[pP][+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|nan)"
TOKEN = re.compile(rf'(?P<name>(?!inf\b|nan\b)[A-Za-z_][A-Za-z0-9_]*)|(?P<number>{NUMBER}(?![\w.]))|(?P<arrow>->)'
                   r'|(?P<mark>[\[\](){}<>=,;?])|(?P<string>"(?:[^"\\\n]++|\\.)*+")', re.ASCII)
BLANK = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+)*+")  # possessive: nothing is kept to go back to


class Tokens:
    """A place in a text, and the token that starts there."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.tokens = text, 0, 0
        self.line, self.counted = 1, 0
        self.kind, self.token, self.end = "", "", 0
        self.look()

    def look(self) -> None:
        """Find the token at the place."""
        blank = BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at
        token = TOKEN.match(self.text, self.at)
        if token:
            self.kind, self.token, self.end = token.lastgroup or "", token.group(), token.end()
        else:
            self.kind = "end" if self.at == len(self.text) else "other"
            self.token, self.end = self.text[self.at:self.at + 1], self.at
        self.tokens += 1
        if self.tokens > MOST_TOKENS:
            self.fail(f"more than {MOST_TOKENS} tokens", "a shorter program")

    def step(self) -> str:
        token, self.at = self.token, self.end
        self.look()
        return token

    def following(self) -> str:
        """The letter that the next token starts with."""
        blank = BLANK.match(self.text, self.end)
        at = blank.end() if blank else self.end
        return self.text[at:at + 1]

    def here(self) -> int:
        """The line of the token."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.line

    def place(self, at: int) -> str:
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return f"line {line}, column {column}"

    def fail(self, got: str, allowed: str, at: int | None = None) -> NoReturn:
        place = self.place(self.at if at is None else at)
        raise ValueError(f"mil: {place}: got {got}, allowed is {allowed}")

    def refuse(self, allowed: str) -> NoReturn:
        self.fail("the end of the text" if self.kind == "end" else repr(self.token[:40]), allowed)

    def made(self, make: Callable[..., Any], at: int, *given: Any, **named: Any) -> Any:
        """A value made at a place, whose own refusal gets line and column."""
        try:
            return make(*given, **named)
        except (ValueError, LookupError) as error:
            raise ValueError(f"mil: {self.place(at)}: {error.args[0]}") from None

    def take(self, *tokens: str) -> None:
        """Step over tokens that must follow."""
        for token in tokens:
            if self.token != token or self.kind not in ("mark", "arrow", "name"):
                self.refuse(repr(token))
            self.step()

    def has(self, token: str) -> bool:
        """Step over a mark that may be there."""
        return self.kind == "mark" and self.token == token and bool(self.step())

    def name(self, what: str) -> str:
        if self.kind != "name":
            self.refuse(what)
        return self.step()

    def many(self, item: Callable[[], Any], close: str) -> tuple[Any, ...]:
        """Items with commas up to a closing mark, which is stepped over."""
        items: list[Any] = []
        while not self.has(close):
            if items and not self.has(","):
                self.refuse(f"',' or {close!r}")
            items.append(item())
        return tuple(items)

    def block(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        """Items in braces."""
        self.take("{")
        items = []
        while not self.has("}"):
            items.append(item())
        return tuple(items)
