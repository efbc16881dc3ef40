"""Where tensors and weights lie."""

from __future__ import annotations

from npulab.layout import Layout, Loop

ENTRY, BANK = 16, 1024  # places of 4 bits: of a kernel, of the kernels of a channel


def tensor_layout(shape: tuple[int, ...], swap: int = 0, dtype: str = "int8") -> Layout:
    """(H, W, C): channels in fours; ``swap`` turns each word."""
    height, width, channels = shape
    size = 4 if dtype == "int32" else 1
    plane = 4 * size * height * width
    loops = (
        Loop(2, 4, plane),
        Loop(0, 1, 4 * size * width),
        Loop(1, 1, 4 * size),
        Loop(2, 1, size),
    )
    return Layout(shape, loops, dtype=dtype, size=plane * -(-channels // 4), swap=4 * bool(swap))


def weight_layout(outputs: int, kernel: int, inputs: int) -> Layout:
    """(O, K, K, I) of 4 bits: a bank for each input channel, a hole behind every fourth bank."""
    banks = tuple(BANK * (channel + channel // 4) for channel in range(inputs))
    loops = (Loop(3, 1, banks), Loop(0, 1, ENTRY), Loop(1, 1, kernel), Loop(2, 1, 1))
    return Layout(
        (outputs, kernel, kernel, inputs), loops, dtype="int4", size=(banks[-1] + BANK) // 2
    )
