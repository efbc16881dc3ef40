"""Names that C accepts: letters, digits and underscores, and neither a keyword of C nor a name of
its standard headers.
"""

from __future__ import annotations

import re

from npulab.registers.formats.naming import Identifiers, keywords

MOST = 60  # most characters of a name; C compares only the first 63
KEYWORDS = keywords("C")
# names of stdint.h, and short names of the types that npulab reads
TYPES = re.compile(
    r"(u?int|u|s|le|be)(_least|_fast)?(\d+|max|ptr)(_t|_max|_min|_c|_width)?|"
    r"(size|ptrdiff|sig_atomic|wchar|wint)_(max|min|width)|[dq]?word|byte|.*_addr_t",
    re.IGNORECASE,
)


def c_name(text: str) -> str:
    """Return a name that C accepts and that differs from a text as little as possible.

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
    """Return a scope of C, which gives each name only once."""
    return Identifiers(spell=c_name)
