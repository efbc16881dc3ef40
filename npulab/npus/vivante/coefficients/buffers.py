"""The geometry of a coefficient buffer, its content, and the order of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import BitReader
from npulab.npus.kit import Item, ceil_div, up

# Plain format: COUNT_BITS has the field that counts a core's kernels, ZRL_BITS the field for the
# zero-run width; the largest width is also ZRL_BITS.
COUNT_BITS = 16
ZRL_BITS = 8
SYMBOLS = 8
# The code of a byte in the Huffman format has CODE_BITS. The header and each stream are filled up
# to a multiple of ALIGN bytes. The sizes of streams begin at byte FIRST_SIZE of the Huffman header;
# each has SIZE_BYTES.
CODE_BITS = 3
ALIGN = 64
FIRST_SIZE, SIZE_BYTES = 28, 4
BIAS_BYTES = 4
# Limits by which Mesa 25.0.7 chooses the order of weights (etnaviv_ml_nn_v7.c). `Geometry.order`,
# `group` and `cells` use them.
PLANES_PER_GROUP = 6  # planes of one kernel that follow each other in the order "six"
SEVERAL_OUTPUTS = 8
HEAD_COLUMNS = 3  # of each pair of rows of a wide kernel, this many columns come first
WIDE_INPUT = 64
# A block of the Huffman format has BLOCK weights of one kernel (etnaviv_ml_nn_v8.c). A dialect is
# the name of the driver whose choices the encoder copies.
BLOCK = 9
MESA, VENDOR = "mesa", "vendor"
DIALECTS = (MESA, VENDOR)


class Event(NamedTuple):
    """One element of a core's stream; ``kind`` says what it is.

    ``weight`` is the weight at (``plane``, ``row``, ``column``) of the kernel of ``channel``, and
    ``completion`` a weight of 0 that fills up a block. ``bias`` and ``offset`` (the output offset)
    are 32-bit words of the kernel of ``channel``. ``flush`` takes no bits: a zero run ends there.
    The module ``huffman`` has further kinds: ``kernels per core``, and a ``flush`` with codes.
    """

    kind: str
    channel: int | None = 0
    plane: int = 0
    row: int = 0
    column: int = 0


class Superblock(NamedTuple):
    """Kernels that a core works on at a time, which lie together in its stream: ``kernels`` is
    their number, ``first`` the channel of the first kernel, ``step`` the distance from one kernel's
    channel to the next."""

    first: int
    kernels: int
    step: int = 1

    @property
    def channels(self) -> Array:
        return self.first + self.step * np.arange(self.kernels)


@dataclass(frozen=True)
class Geometry:
    """The sizes that fix the order of a coefficient buffer, as the NN words state them: those of
    the lowered layer.

    ``huffman`` is True for the Huffman format (V8), False for the plain format (V7).
    ``depthwise``: each kernel reads one plane. The plain format stores depthwise kernels dense;
    there, ``depthwise`` only changes the order of cells in wide kernels of one plane.
    ``plane_bytes`` are the bytes of an output plane, 0 if not known. ``dialect`` names the driver
    whose choices the encoder copies. In the plain format it also decides the order of weights and
    the number of kernels of each core. Raises ValueError for a size below 1, for more kernels per
    core than the buffer can state, for so many superblocks that the last is empty, and for an
    unknown dialect.
    """

    cores: int
    channels: int
    planes: int
    kernel_h: int
    kernel_w: int
    superblocks: int
    zero_point: int
    plane_bytes: int = 0
    input_w: int = 0
    depthwise: bool = False
    huffman: bool = False
    dialect: str = MESA

    def __post_init__(self) -> None:
        for name in ("cores", "channels", "planes", "kernel_h", "kernel_w", "superblocks"):
            size = getattr(self, name)
            if size < 1:
                raise ValueError(f"coefficients: {name}: got {size}, allowed is at least 1")
        if self.dialect not in DIALECTS:
            raise ValueError(
                f"coefficients: dialect: got {self.dialect!r}, allowed is {' or '.join(DIALECTS)}"
            )
        if self.per_core >= 2**COUNT_BITS:
            raise ValueError(
                f"coefficients: channels: got {self.channels} on {self.cores} cores, allowed are "
                f"at most {2**COUNT_BITS - 1} for each core"
            )
        if self.full * (self.superblocks - 1) >= self.per_core:
            raise ValueError(
                f"coefficients: superblocks: got {self.superblocks}, allowed are so few that the "
                f"{self.per_core} kernels of a core leave none of them empty"
            )

    @property
    def vendor(self) -> bool:
        """True for plain streams as the vendor's compiler writes them."""
        return self.dialect == VENDOR and not self.huffman

    @property
    def used(self) -> int:
        return min(self.channels, self.cores)

    @property
    def per_core(self) -> int:
        """The most kernels of a core. In Mesa's plain format each used core has this many."""
        return ceil_div(self.channels, self.used)

    @property
    def full(self) -> int:
        """Kernels of a core in each superblock except the last."""
        return ceil_div(self.per_core, self.superblocks)

    @property
    def slots(self) -> int:
        """The number of kernels in the buffer: one for each channel and, in Mesa's plain format,
        kernels that fill up the last cores' shares."""
        if self.huffman or self.vendor:
            return self.channels
        return self.used * self.per_core

    @property
    def header_bytes(self) -> int:
        """The number of bytes before the streams. They hold the fields of the Huffman format, a
        stream size for each core, and fill."""
        first = 0
        if self.huffman:
            first = FIRST_SIZE
        return up(first + SIZE_BYTES * self.cores, ALIGN)

    @property
    def depth(self) -> int:
        """The number of planes that the buffer holds of each kernel."""
        if self.huffman and self.depthwise:
            return 1
        return self.planes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(slots, planes, rows, columns) of the stored weights."""
        return self.slots, self.depth, self.kernel_h, self.kernel_w

    @property
    def kernel_size(self) -> int:
        return self.depth * self.kernel_h * self.kernel_w

    @property
    def order(self) -> str:
        """The name of the order of the weights. Mesa's plain format has ``six``, ``inter`` or
        ``seq`` (Mesa's own names), the vendor's plain format ``planes``, the Huffman format
        ``blocks``."""
        if self.huffman:
            return "blocks"
        if self.vendor:
            return "planes"
        if self.kernel_h == self.kernel_w == 1 and self.channels > SEVERAL_OUTPUTS:
            return "six"
        if self.planes > 1:
            return "inter"
        return "seq"

    @property
    def group(self) -> int:
        """How many planes of one kernel follow each other in the plain format, before the next
        kernel begins."""
        if self.order == "six":
            return PLANES_PER_GROUP
        return 1

    @property
    def block(self) -> int:
        """How many weights of one kernel follow each other in the Huffman format, before the next
        kernel begins. The last block of a kernel is filled up to this number; a depthwise kernel
        has a single block.
        """
        if self.depthwise:
            return up(self.kernel_size, BLOCK)
        return BLOCK

    def cells(self) -> list[tuple[int, int]]:
        """Return the (row, column) of each weight of a kernel's plane, in the stream's order."""
        rows, columns = range(self.kernel_h), range(self.kernel_w)
        plain = self.order == "seq" and self.input_w <= WIDE_INPUT and not self.depthwise
        if self.kernel_w <= HEAD_COLUMNS or plain or self.huffman or self.vendor:
            return [*product(rows, columns)]
        cells: list[tuple[int, int]] = []
        for top in rows[::2]:
            pair = rows[top : top + 2]
            cells += product(pair, columns[:HEAD_COLUMNS])
            cells += product(pair, columns[HEAD_COLUMNS:])
        return cells

    def kernels(self, core: int) -> int:
        """Return the number of kernels in one core's stream."""
        return sum(block.kernels for block in self.blocks(core))

    def blocks(self, core: int) -> list[Superblock]:
        """Return the superblocks of one core that have kernels."""
        out, used, full = [], self.used, self.full
        # The kernels that the full superblocks do not hold are in the last superblock. The cores
        # share them; if there is a remainder, each of the first cores has one kernel more.
        share, more = divmod(self.slots - used * full * (self.superblocks - 1), used)
        for number in range(self.superblocks):
            base, count = used * full * number, full
            first = base + core * full
            if number == self.superblocks - 1:
                count = share + (core < more)
                first = base + core * share + min(core, more)
            if self.huffman and self.depthwise:
                out += self._scattered(base + used - core - 1, count)
            else:
                out.append(Superblock(first, count))
        return [block for block in out if block.kernels > 0]

    def _scattered(self, first: int, count: int) -> list[Superblock]:
        """Return one core's ``count`` depthwise kernels from channel ``first`` on, as superblocks.

        Channels come in groups of one channel for each core: the last core takes the first channel
        of a group. If the last group has fewer channels, the first cores take one each.
        """
        used, rest = self.used, self.channels % self.used
        inside = min(count, max(ceil_div(self.channels - rest - first, used), 0))
        out = [Superblock(first, inside, used)]
        if inside < count:
            out.append(Superblock(first + inside * used - (used - rest), 1))
        return out

    def events(self, core: int) -> Iterator[Event]:
        """Yield the elements of one core's stream, in the order of the stream."""
        if self.huffman:
            return self._blocks(core)
        return self._planes(core)

    def _planes(self, core: int) -> Iterator[Event]:
        cells, blocks = self.cells(), self.blocks(core)
        for number, block in enumerate(blocks):
            for start in range(0, self.planes, self.group):
                planes = range(start, min(start + self.group, self.planes))
                for channel in block.channels.tolist():
                    for n, (plane, cell) in enumerate(product(planes, cells)):
                        yield Event("weight", channel, plane, *cell)
                        if start == 0 and n == 0:
                            yield Event("bias", channel)
                    if planes[-1] == self.planes - 1:
                        yield Event("offset", channel)
                if number == self.superblocks - 1 and self.order == "inter":
                    yield Event("flush")
        yield Event("flush")

    def _blocks(self, core: int) -> Iterator[Event]:
        for block in self.blocks(core):
            for start in range(0, self.kernel_size, self.block):
                for channel in block.channels.tolist():
                    for n in range(start, start + self.block):
                        if n < self.kernel_size:
                            plane, cell = divmod(n, self.kernel_h * self.kernel_w)
                            yield Event("weight", channel, plane, *divmod(cell, self.kernel_w))
                        else:
                            yield Event("completion", channel)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A coefficient buffer's content; kernels are in the order of their output channels.

    Both formats: ``weights`` are ``(slots, planes, kernel_h, kernel_w) uint8``, ``bias`` is
    ``(slots,) int32`` as stored. ``size`` is the number of bytes of the buffer; an encoder writes
    more bytes if the content needs them.

    Plain format (V7): ``offsets`` ``(slots,) uint32`` are the output offsets in bytes, and ``zrl``
    has the zero-run width of each used core. Slots past the last channel fill up a core's share.
    The vendor may reorder the kernels: ``channels`` are then the output channels in the order of
    the streams. ``channels`` is empty for kernels in order, and after decoding if the offsets are
    not those of whole planes.

    Huffman format (V8): ``symbols`` has the bit length of each of the 8 symbols. ``weights`` have
    one plane if the layer is depthwise. ``runs`` are the header's bytes for zero runs (the size
    of their table, then the table), empty without zero runs. ``items`` has for each core the way
    in which each byte of its stream is written: 0 by the bit length of its value, 1 as it is,
    2 + n by entry n of the table. One more element follows: 1 if the free bits of the flush are
    set, else 0. If ``items`` is empty, the encoder chooses the ways.
    """

    weights: Array
    bias: Array
    offsets: Array
    zrl: tuple[int, ...] = ()
    size: int = 0
    symbols: tuple[int, ...] = ()
    runs: bytes = b""
    items: tuple[bytes, ...] = ()
    channels: tuple[int, ...] = ()


def channels_of(offsets: Array, geometry: Geometry) -> tuple[int, ...]:
    """Return the output channel of each kernel of the vendor's streams, found by the kernel's
    output offset.

    Returns () unless each plane of the output begins at exactly one of the offsets.
    """
    if not geometry.plane_bytes:
        return ()
    channels, rest = np.divmod(offsets, geometry.plane_bytes)
    if rest.any() or not np.array_equal(np.sort(channels), np.arange(geometry.channels)):
        return ()
    return tuple(channels.tolist())


def refuse_size(buffer: bytes, geometry: Geometry, most: float = 2.0**ZRL_BITS) -> None:
    """Raise ValueError if the geometry has more than ``most`` weights for each byte of the buffer.

    Called before an array of the weights is made. The default of ``most`` is the length of the
    longest zero run of the plain format.
    """
    g = geometry
    if g.slots * g.kernel_size > most * len(buffer):
        raise ValueError(
            f"coefficients: got {g.slots} kernels of {g.depth} planes of "
            f"{g.kernel_h}x{g.kernel_w}, allowed are as many as {len(buffer)} bytes can hold"
        )


def refuse_content(content: Coefficients, geometry: Geometry) -> None:
    """Raise ValueError for an array of another shape than the geometry's, for a plain content
    without a zero-run width for each used core, or for wrong ``channels``."""
    c, g = content, geometry
    if c.weights.shape != g.shape or c.weights.dtype != np.uint8:
        raise ValueError(
            f"coefficients: weights: got {c.weights.shape} {c.weights.dtype}, allowed is {g.shape} "
            "uint8"
        )
    by_slot = {"bias": c.bias}
    if not g.huffman:
        by_slot["offsets"] = c.offsets
    for name, values in by_slot.items():
        if values.shape != (g.slots,):
            raise ValueError(
                f"coefficients: {name}: got {values.shape} {values.dtype}, allowed is {(g.slots,)}"
            )
    if not g.huffman and (len(c.zrl) != g.used or not all(0 <= zrl <= ZRL_BITS for zrl in c.zrl)):
        raise ValueError(
            f"coefficients: zrl: got {c.zrl}, allowed is 0 to {ZRL_BITS} for each of {g.used} cores"
        )
    if c.channels and (not g.vendor or sorted(c.channels) != list(range(g.channels))):
        raise ValueError(
            f"coefficients: channels: got {c.channels}, allowed is each of {g.channels} channels "
            "once in plain streams of the dialect 'vendor', and none in others"
        )


def words_of(data: bytes) -> Array:
    """Return the bytes as 32-bit words, filled up with zeros. One more word of zeros follows,
    because compiled loops read past the last bit."""
    return np.frombuffer(data + bytes(-len(data) % 4 + 4), "<u4").astype(np.uint32)


def place(bit: int) -> str:
    """Return the place of a bit as a text: "byte 3 bit 7" for bit 31."""
    return f"byte {bit // 8} bit {bit % 8}"


def fill(buffer: bytes, start: int, stop: int, core: int | None = None) -> Iterator[Item]:
    """Yield the bits from bit ``start`` up to bit ``stop`` as one item of kind ``fill``; nothing if
    there are no bits. Raises ValueError for a bit that is 1."""
    if stop > start:
        value = BitReader(buffer, start, stop).read(stop - start)
        if value:
            first = start + (value & -value).bit_length() - 1
            raise ValueError(
                f"coefficients: got a bit that is set at {place(first)}, in the fill "
                f"from {place(start)} to byte {stop // 8}, allowed is 0"
            )
        yield Item(start, stop - start, "fill", value, core)


def walk_streams(
    buffer: bytes,
    geometry: Geometry,
    sizes: Sequence[int],
    stream: Callable[[BitReader, Geometry, int], Iterator[Item]],
) -> Iterator[Item]:
    """Yield the items after the header: each core's stream and its fill, then the biases of the
    Huffman format, and the fill at the end. ``sizes`` has the number of bits of each core's stream;
    ``stream`` yields the items of a single stream.

    Raises ValueError with core, byte and bit if a stream does not end where its size says, and
    with byte and bit for fill that is not 0.
    """
    # The size of a plain stream includes its fill, the size of a Huffman stream does not.
    most_left, biases = 8 * ALIGN - 1, 0
    if geometry.huffman:
        most_left, biases = 0, geometry.channels
    start = 8 * geometry.header_bytes
    for core, size in enumerate(sizes):
        end = start + size
        reader = BitReader(buffer, start, end)
        try:
            yield from stream(reader, geometry, core)
        except EOFError:
            raise ValueError(
                f"coefficients: the stream of core {core} from {place(start)} runs "
                f"past its end at {place(end)}"
            ) from None
        if end - reader.position > most_left:
            raise ValueError(
                f"coefficients: the stream of core {core} ends at {place(reader.position)}, "
                f"allowed is {place(end)}, as its size in the header says"
            )
        start += up(size, 8 * ALIGN)
        yield from fill(buffer, reader.position, start, core)
    for channel in range(biases):
        bias = BitReader(buffer, start).read(8 * BIAS_BYTES)
        yield Item(start, 8 * BIAS_BYTES, "bias", bias, None, channel)
        start += 8 * BIAS_BYTES
    yield from fill(buffer, start, 8 * len(buffer))
