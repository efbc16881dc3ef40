"""Matrix products of 8-bit codes by AVX512-VNNI (the extra ``npulab[fast]``), exact in int32.

``vpdpbusd`` adds four products of uint8 and int8 to each of 16 int32 sums, without saturation.
Codes are int8: each gets 128 added on the way (its top bit flips), and the bias that the sums
start from takes the 128 off again. The weights lie in panels of 16 columns, packed in the order
in which the instruction reads them. One block of the product, ``tall`` rows by ``wide`` panels:

    for each panel:  sums[every row][panel] = bias of the panel's 16 columns
    for each step:                          # four products deep
        at = min(4 * step, depth - 4)       # the last step reads the last four codes of a row
        for each panel:  weights[panel] = 64 bytes of the packed weights
        for each row:
            codes = four bytes of the row from `at`, their top bits flipped, in every lane
            for each panel:  sums[row][panel] = vpdpbusd(sums[row][panel], codes, weights[panel])
    for each row, panel:  store sums[row][panel], without the lanes past the last column

``_product`` cuts a matrix into such blocks, in plain numba. A block is LLVM IR, because numba
neither emits the instruction nor keeps 24 vectors of sums in registers over a loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate.jit import compiled, numba
from npulab.support.extras import needed

PURPOSE = "compiling matrix products"
ir = needed("llvmlite.ir", PURPOSE)
cgutils = needed("numba.core.cgutils", PURPOSE)
config = needed("numba.core.config", PURPOSE)
registry = needed("numba.core.registry", PURPOSE)
extending = needed("numba.extending", PURPOSE)

# One instruction updates ``LANES`` sums, and adds ``DEEP`` products to each of them.
LANES = 16
DEEP = 4

# The number of rows of a block. A block of 6 rows and 4 panels needs 24 vector registers for sums,
# 4 for weights and 1 for codes. A block of more rows needs more registers for the addresses of the
# rows than the processor has.
TALL = 6
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)
VECTOR = ir.VectorType(INT32, LANES)
VECTOR_BYTES = 4 * LANES
TOP_BITS = ir.Constant(INT32, 0x80808080)


def available() -> bool:
    """True if numba can compile, and the processor has the instruction."""
    features = registry.cpu_target.target_context.codegen().magic_tuple()[-1].split(",")
    return not config.DISABLE_JIT and {"+avx512f", "+avx512vnni"} <= set(features)


class Products:
    """Weights ``(depth, columns)`` int8 and a bias, prepared to be multiplied by codes."""

    def __init__(self, weights: Array, bias: Array | int = 0) -> None:
        self.depth, self.columns = weights.shape
        self.packed = pack(weights)
        self.first = np.zeros(len(self.packed) * LANES, np.int32)
        added = 128 * weights.sum(0, dtype=np.int64)
        self.first[: self.columns] = np.asarray(bias).astype(np.int64) - added

    def __call__(self, codes: Array, out: Array) -> Array:
        """Write ``bias + codes @ weights`` to ``out``, int32.

        ``codes`` are int8 ``(n, depth)``. Raises ValueError if ``codes`` or ``out`` do not fit.
        """
        if codes.dtype != np.int8 or codes.shape[1:] != (self.depth,):
            raise ValueError(
                f"codes: got {codes.dtype} {codes.shape}, allowed is int8 (n, {self.depth})"
            )
        shape = len(codes), self.columns
        gaps = out.size and out.strides[1] != out.itemsize
        if out.dtype != np.int32 or out.shape != shape or gaps:
            raise ValueError(
                f"out: got {out.dtype} {out.shape}, strides {out.strides}, allowed is int32 "
                f"{shape}, the values of a row next to each other"
            )
        if self.depth < DEEP:
            codes = np.pad(codes, ((0, 0), (0, DEEP - self.depth)))
        elif codes.strides[1] != 1:
            codes = np.ascontiguousarray(codes)
        _product(codes, self.packed, self.first, out)
        return out


def pack(weights: Array) -> Array:
    """Return weights ``(depth, columns)`` as ``(panels, steps, 16, 4)``; columns past the last one
    are zeros.

    The last step always reads the last four codes of a row, some of which an earlier step has read
    too. For these codes the weights of the last step are zero.
    """
    depth, columns = weights.shape
    panels = -(-columns // LANES)
    steps = max(1, -(-depth // DEEP))
    whole = 0
    gap = 0
    if depth > DEEP:
        whole = depth - depth % DEEP
        gap = steps * DEEP - depth
    out = np.zeros((steps * DEEP, panels * LANES), np.int8)
    out[:whole, :columns] = weights[:whole]
    out[whole + gap : depth + gap, :columns] = weights[whole:]
    return np.ascontiguousarray(out.reshape(steps, DEEP, panels, LANES).transpose(2, 0, 3, 1))


@compiled
def _product(codes, packed, first, out):  # type: ignore[no-untyped-def]
    """Compute a product in blocks of 6 rows by 4, 2 or 1 panels.

    If the last block of 6 rows would have only 3 to 5, it begins earlier and computes some rows a
    second time. The last 1 or 2 rows, and all rows of a matrix of fewer than 6, are computed one by
    one.
    """
    rows = len(out)
    panels = len(packed)
    panel = 0
    while panel < panels:
        if panels - panel >= 4:
            wide = 4
        elif panels - panel >= 2:
            wide = 2
        else:
            wide = 1
        row = 0
        while row < rows:
            # the sizes are literals, because each pair of rows and panels is compiled to a loop of
            # its own
            if rows >= TALL and rows - row > 2:
                row = min(row, rows - TALL)
                if wide == 4:
                    _block(6, 4, row, panel, codes, packed, first, out)
                elif wide == 2:
                    _block(6, 2, row, panel, codes, packed, first, out)
                else:
                    _block(6, 1, row, panel, codes, packed, first, out)
                row += TALL
            else:
                if wide == 4:
                    _block(1, 4, row, panel, codes, packed, first, out)
                elif wide == 2:
                    _block(1, 2, row, panel, codes, packed, first, out)
                else:
                    _block(1, 1, row, panel, codes, packed, first, out)
                row += 1
        panel += wide


# The function has 9 parameters because an intrinsic of numba takes its caller's arguments one by
# one; a record would have to be unpacked in IR.
def _typed_block(typing, tall, wide, row, panel, codes, packed, first, out):  # type: ignore[no-untyped-def]
    """Return the signature of the intrinsic ``_block``, and the function that emits its code."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = []
        for kind, value in zip(signature.args[4:], args[4:], strict=True):
            arrays.append(context.make_array(kind)(context, builder, value))
        block = _Block(builder, tall.literal_value, wide.literal_value, arrays)
        block.emit(args[2], args[3])
        return context.get_dummy_value()

    return numba.types.void(tall, wide, row, panel, codes, packed, first, out), build


_block: Any = extending.intrinsic(prefer_literal=True)(_typed_block)


class _Block:
    """A builder of the code of one block, ``tall`` rows by ``wide`` panels; ``arrays`` are codes,
    packed weights, initial sums and output.

    The methods take and return values of LLVM's IR, except for counts and names, which are plain.
    """

    def __init__(self, builder: Any, tall: int, wide: int, arrays: list[Any]) -> None:
        self.builder = builder
        self.tall = tall
        self.wide = wide
        self.codes, self.packed, self.first, self.out = arrays
        _, self.depth = cgutils.unpack_tuple(builder, self.codes.shape, 2)
        _, self.columns = cgutils.unpack_tuple(builder, self.out.shape, 2)
        _, self.steps, _, _ = cgutils.unpack_tuple(builder, self.packed.shape)

    def emit(self, row: Any, panel: Any) -> None:
        """Emit the whole block, which the pseudo-code at the top of this file describes."""
        panel_pitch = cgutils.unpack_tuple(self.builder, self.packed.strides)[0]
        panel_starts = self._starts(panel, self.wide, panel_pitch)
        # byte offsets of each panel's first column; they hold for the initial sums and for a row of
        # the output, because both are int32
        column_starts = self._starts(panel, self.wide, INT64(VECTOR_BYTES))
        sums = self._loop(row, panel_starts, column_starts)
        self._store(row, column_starts, sums)

    def _loop(self, row: Any, panel_starts: list[Any], column_starts: list[Any]) -> list[list[Any]]:
        """Emit the loop over the depth. Return the sums after the loop: a list for each row, with a
        vector for each panel.

        LLVM keeps a value of a loop in a register if the value is a phi node. A phi node states
        the value before the first turn (from ``entry``) and after each turn (from ``loop``). The
        step and every vector of sums are phi nodes.
        """
        builder = self.builder
        row_pitch, _ = cgutils.unpack_tuple(builder, self.codes.strides, 2)
        row_starts = self._starts(row, self.tall, row_pitch)
        biases = []
        for start in column_starts:
            biases.append(self._load(self.first, start, VECTOR, align=4))
        entry = builder.block
        loop = builder.append_basic_block("loop")
        done = builder.append_basic_block("done")
        builder.branch(loop)

        builder.position_at_end(loop)
        step = builder.phi(INT64)
        before = []
        for _ in row_starts:
            before.append([builder.phi(VECTOR) for _ in biases])
        # the last step reads the last four codes even if the depth is not a multiple of four
        four_of_step = builder.mul(step, INT64(DEEP))
        last_four = builder.sub(self.depth, INT64(DEEP))
        at = self._smaller(four_of_step, last_four)
        step_start = builder.mul(step, INT64(DEEP * LANES))
        weights = []
        for start in panel_starts:
            weights.append(self._load(self.packed, builder.add(start, step_start), VECTOR))
        dot = self._function("llvm.x86.avx512.vpdpbusd.512", VECTOR, [VECTOR, VECTOR, VECTOR])
        after = []
        for start, sums in zip(row_starts, before, strict=True):
            four = self._load(self.codes, builder.add(start, at), INT32)
            # the top bits are flipped before the four codes are copied to every lane, because LLVM
            # 22 hangs if a whole vector is flipped
            codes = self._in_every_lane(builder.xor(four, TOP_BITS))
            added = []
            for phi, bias, panel_weights in zip(sums, biases, weights, strict=True):
                total = builder.call(dot, [phi, codes, panel_weights])
                phi.add_incoming(bias, entry)
                phi.add_incoming(total, loop)
                added.append(total)
            after.append(added)
        following = builder.add(step, INT64(1))
        step.add_incoming(INT64(0), entry)
        step.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, self.steps), loop, done)
        builder.position_at_end(done)
        return after

    def _store(self, row: Any, column_starts: list[Any], sums: list[list[Any]]) -> None:
        """Emit stores of the sums, masked: the last panel may have lanes past the last column."""
        builder = self.builder
        mask = ir.VectorType(ir.IntType(1), LANES)
        store = self._function(
            "llvm.masked.store.v16i32.p0",
            ir.VoidType(),
            [VECTOR, VECTOR.as_pointer(), INT32, mask],
        )
        lanes = ir.Constant(VECTOR, list(range(LANES)))
        row_pitch, _ = cgutils.unpack_tuple(builder, self.out.strides, 2)
        row_starts = self._starts(row, self.tall, row_pitch)
        for panel, column_start in enumerate(column_starts):
            column = builder.udiv(column_start, INT64(4))
            remaining = builder.sub(self.columns, column)
            end = self._in_every_lane(builder.trunc(remaining, INT32))
            inside = builder.icmp_signed("<", lanes, end)
            for start, row_sums in zip(row_starts, sums, strict=True):
                place = self._pointer(self.out, builder.add(start, column_start), VECTOR)
                builder.call(store, [row_sums[panel], place, INT32(4), inside])

    def _starts(self, first: Any, count: int, pitch: Any) -> list[Any]:
        """Return the byte offsets of ``count`` rows or panels, beginning with number ``first``."""
        starts = []
        for number in range(count):
            row_or_panel = self.builder.add(first, INT64(number))
            starts.append(self.builder.mul(row_or_panel, pitch))
        return starts

    def _pointer(self, array: Any, offset: Any, kind: Any) -> Any:
        return cgutils.pointer_add(self.builder, array.data, offset, kind.as_pointer())

    def _load(self, array: Any, offset: Any, kind: Any, align: int = 1) -> Any:
        place = self._pointer(array, offset, kind)
        return self.builder.load(place, align=align)

    def _smaller(self, a: Any, b: Any) -> Any:
        below = self.builder.icmp_signed("<", a, b)
        return self.builder.select(below, a, b)

    def _in_every_lane(self, number: Any) -> Any:
        """Return a vector that holds an int32 16 times."""
        undefined = ir.Constant(VECTOR, ir.Undefined)
        lane = self.builder.insert_element(undefined, number, INT32(0))
        return self.builder.shuffle_vector(lane, lane, ir.Constant(VECTOR, [0] * LANES))

    def _function(self, name: str, result: Any, types: list[Any]) -> Any:
        kind = ir.FunctionType(result, types)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)
