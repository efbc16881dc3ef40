"""Names that C takes: of letters, digits and underscores, no keyword, none that the headers have,
each once."""

from __future__ import annotations

import re

from npulab.registers.formats.naming import Identifiers

MOST = 60  # characters; C tells names apart by the first 63
KEYWORDS = frozenset(re.findall(r"\w+", """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
alignas alignof asm bool catch class constexpr const_cast decltype delete dynamic_cast explicit export false final
friend mutable namespace new noexcept nullptr operator override private protected public reinterpret_cast
static_assert static_cast template this thread_local throw true try typeid typename typeof using virtual wchar_t
and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq
linux unix i386 NULL EOF errno main words values BIT GENMASK offsetof size_t ptrdiff_t uint ulong ushort uchar
"""))
# stdint.h, and short names of the types that npulab reads
TYPES = re.compile(r"(u?int|u|s|le|be)(_least|_fast)?(\d+|max|ptr)(_t|_max|_min|_c|_width)?|"
                   r"(size|ptrdiff|sig_atomic|wchar|wint)_(max|min|width)|[dq]?word|byte|.*_addr_t", re.IGNORECASE)


def c_name(text: str) -> str:
    """A name of C as like a text as it can be.

    >>> c_name("GL.FLUSH[2]"), c_name("int"), c_name("3d"), c_name("__LINE__")
    ('GL_FLUSH_2', 'int_', 'n3d', 'LINE')
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text[:4 * MOST])[:MOST]
    if name != text or name.startswith("_"):
        name = name.strip("_")
    if not name or name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in KEYWORDS or TYPES.fullmatch(name) else name


def c_names() -> Identifiers:
    """The names of one scope of C as they are given away."""
    return Identifiers(spell=c_name)
