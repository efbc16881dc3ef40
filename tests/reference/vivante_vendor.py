"""The plain coefficient buffer of VeriSilicon's compiler, written weight by weight from the laws of
the target's page: what the arrays of the package are compared with. It shares nothing with it.
"""

from __future__ import annotations

import numpy as np
from bit_strings import pack_bits


def shares(channels: int, cores: int, superblocks: int) -> list[list[range]]:
    """The places of the kernels of each core, superblock by superblock."""
    used = min(cores, channels)
    share = -(-channels // used)
    full = -(-share // superblocks)
    out: list[list[range]] = [[] for _ in range(used)]
    place = 0
    for number in range(superblocks):
        rest = channels - place
        for core in range(used):
            count = full
            if number == superblocks - 1:
                count = rest // used + (core < rest % used)
            if count:
                out[core].append(range(place, place + count))
            place += count
    return out


def write(
    weights: np.ndarray,
    bias: np.ndarray,
    offsets: np.ndarray,
    cores: int,
    superblocks: int,
    zero: int,
    zrl: tuple[int, ...],
) -> bytes:
    """The buffer of kernels in the order of the stream, ``weights`` ``(kernels, planes, rows,
    columns)``."""
    sizes, body = [0] * cores, b""
    for core, blocks in enumerate(shares(len(weights), cores, superblocks)):
        stream = pack_bits(items(weights, bias, offsets, blocks, zero, zrl[core]))
        stream += bytes(-len(stream) % 64)
        sizes[core] = len(stream)
        body += stream
    head = np.array(sizes, "<u4").tobytes()
    return head + bytes(-len(head) % 64) + body


def items(
    weights: np.ndarray,
    bias: np.ndarray,
    offsets: np.ndarray,
    blocks: list[range],
    zero: int,
    zrl: int,
) -> list[tuple[int, int]]:
    """(value, width) of the bits of a core's stream."""
    # (weight, the words behind it, a run may begin here but hold no second one, a run ends here)
    steps: list[tuple[int, list[int], bool, bool]] = []
    for block in blocks:
        planes = weights.shape[1]
        for plane in range(planes):
            for kernel in block:
                cells = weights[kernel, plane].reshape(-1).tolist()
                for n, weight in enumerate(cells):
                    words = []
                    if plane == n == 0:
                        words.append(int(bias[kernel]) % 2**32)
                    last = plane == planes - 1 and n == len(cells) - 1
                    if last:
                        words.append(int(offsets[kernel]))
                    start = n == 0 and (plane == 0 or kernel == block[0])
                    steps.append((weight, words, start, last))
    out = [(zrl, 8), (sum(map(len, blocks)), 16)]
    run, starts, words = 0, 0, []
    for n, (weight, behind, start, last) in enumerate(steps):
        starts += start
        words += [(word, 32) for word in behind]
        follows = n + 1 < len(steps) and steps[n + 1][2]
        if weight == zero and not last and run < 2**zrl - 1 and not (starts and follows):
            run += 1
            continue
        if zrl:
            out.append((run, zrl))
        out += [(weight, 8), *words]
        run, starts, words = 0, 0, []
    return out
