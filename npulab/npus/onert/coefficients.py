"""The packed weights of a capture: decoded and encoded again, explained byte by byte."""

from __future__ import annotations

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Item
from npulab.npus.onert.memory import again, layout_of, packed_bytes
from npulab.npus.onert.words import values_of


def recode(capture: Capture) -> bytes:
    """The coefficient buffer with the weights unpacked and packed again, fill and sums made anew.

    Raises ValueError where the words make no packed matrix or the buffer has another size.
    """
    v = values_of(capture)
    data = packed_bytes(capture, v, "lhs")
    return again(layout_of(v, "lhs", capture.chip), data, v, "lhs")


def explain(capture: Capture) -> list[Item]:
    """Every byte of the packed weights in order, then the sum of each column.

    A weight has its output channel and, as ``row``, the input it is multiplied with; its value is
    the code as the model has it.  Raises as ``recode``.
    """
    v = values_of(capture)
    data = packed_bytes(capture, v, "lhs")
    layout = layout_of(v, "lhs", capture.chip)
    codes, places, end = layout.unpack(data), layout.index_map(), layout.parts[0].offset
    at = np.full(end, -1)
    at[places.ravel()] = np.arange(places.size)
    strip, filled = (v[f"lhs_{name}"] * v["lhs_kernel_columns"] for name in ("stride", "rows"))
    items: list[Item] = []
    for byte, element in enumerate(at.tolist()):
        if element >= 0:
            row, channel = divmod(element, v["units"])
            value = int(codes[row, channel])
            items.append(Item(8 * byte, 8, "weight", value, channel=channel, row=row, weights=1))
        elif byte % strip < filled:
            items.append(Item(8 * byte, 8, "fill", data[byte]))
        elif byte % strip == filled:
            items.append(Item(8 * byte, 8 * (strip - filled), "other"))
    sums = np.frombuffer(data, "<i4", offset=end).tolist()
    return items + [Item(8 * (end + 4 * channel), 32, "sum", value, channel=channel)
                    for channel, value in enumerate(sums)]
