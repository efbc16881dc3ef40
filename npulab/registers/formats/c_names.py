"""Names that C takes: of letters, digits and underscores, no keyword, none that the headers have,
each once."""

from __future__ import annotations

import re

from npulab.registers.formats.naming import Identifiers, keywords

MOST = 60  # characters; C tells names apart by the first 63
KEYWORDS = keywords("C")
# stdint.h, and short names of the types that npulab reads
TYPES = re.compile(
    r"(u?int|u|s|le|be)(_least|_fast)?(\d+|max|ptr)(_t|_max|_min|_c|_width)?|"
    r"(size|ptrdiff|sig_atomic|wchar|wint)_(max|min|width)|[dq]?word|byte|.*_addr_t",
    re.IGNORECASE,
)


def c_name(text: str) -> str:
    """A name of C as like a text as it can be.

    >>> c_name("GL.FLUSH[2]"), c_name("int"), c_name("3d"), c_name("__LINE__")
    ('GL_FLUSH_2', 'int_', 'n3d', 'LINE')
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text[: 4 * MOST])[:MOST]
    if name != text or name.startswith("_"):
        name = name.strip("_")
    if not name or name[0].isdigit():
        name = f"n{name}"
    if name in KEYWORDS or TYPES.fullmatch(name):
        return f"{name}_"
    return name


def c_names() -> Identifiers:
    """The names of one scope of C as they are given away."""
    return Identifiers(spell=c_name)
