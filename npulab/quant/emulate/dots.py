"""Matrix products of 8-bit codes by AVX512-VNNI (the extra ``npulab[fast]``), exact in int32.

``vpdpbusd`` adds four products of uint8 and int8 to each of 16 sums, without saturation.  Codes are
int8: 128 is added to each on the way, and taken off again through the sums' first value, the bias.
The loops are plain numba but for ``_sums``, which has LLVM keep a block's sums in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.quant.emulate.jit import compiled, numba
from npulab.support.extras import needed

PURPOSE = "compiling matrix products"
ir = needed("llvmlite.ir", PURPOSE)
cgutils = needed("numba.core.cgutils", PURPOSE)
config = needed("numba.core.config", PURPOSE)
registry = needed("numba.core.registry", PURPOSE)
extending = needed("numba.extending", PURPOSE)

WIDE, DEEP = 16, 4  # sums of one instruction, and products added to each
# rows of a block: 24 registers of sums, 4 of weights, 1 of codes; more rows lack address registers
TALL = 6
WORD, LONG = ir.IntType(32), ir.IntType(64)
SUMS = ir.VectorType(WORD, WIDE)


def available() -> bool:
    """Whether numba compiles for a processor that has the instruction."""
    features = registry.cpu_target.target_context.codegen().magic_tuple()[-1].split(",")
    return not config.DISABLE_JIT and {"+avx512f", "+avx512vnni"} <= set(features)


class Products:
    """Weights ``(depth, columns)`` int8 and a bias made ready to be multiplied by codes."""

    def __init__(self, weights: np.ndarray, bias: np.ndarray | int = 0) -> None:
        self.depth, self.columns = weights.shape
        self.packed = pack(weights)
        self.first = np.zeros(len(self.packed) * WIDE, np.int32)
        self.first[: self.columns] = np.asarray(bias).astype(np.int64) - 128 * weights.sum(
            0, dtype=np.int64
        )

    def __call__(self, codes: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write ``bias + codes @ weights`` to ``out``, int32.

        ``codes`` are int8 ``(n, depth)``, next to each other along the depth.
        """
        if codes.dtype != np.int8 or codes.shape[1:] != (self.depth,):
            raise ValueError(
                f"codes: got {codes.dtype} {codes.shape}, allowed is int8 (n, {self.depth})"
            )
        if (
            out.dtype != np.int32
            or out.shape != (len(codes), self.columns)
            or (out.size and out.strides[1] != out.itemsize)
        ):
            raise ValueError(
                f"out: got {out.dtype} {out.shape}, strides {out.strides}, allowed is int32 "
                f"{(len(codes), self.columns)}, a row's values side by side"
            )
        if self.depth < DEEP:
            codes = np.pad(codes, ((0, 0), (0, DEEP - self.depth)))
        elif codes.strides[1] != 1:
            codes = np.ascontiguousarray(codes)
        _product(codes, self.packed, self.first, out)
        return out


def pack(weights: np.ndarray) -> np.ndarray:
    """Weights ``(depth, columns)`` as ``(panels, steps, 16, 4)``, zero past the columns.

    The last step takes the last four of the depth again, so its weights are zero for those before
    it.
    """
    depth, columns = weights.shape
    panels, steps = -(-columns // WIDE), max(1, -(-depth // DEEP))
    whole = 0
    if depth > DEEP:
        whole = depth - depth % DEEP
    gap = 0
    if whole:
        gap = steps * DEEP - depth
    out = np.zeros((steps * DEEP, panels * WIDE), np.int8)
    out[:whole, :columns] = weights[:whole]
    out[whole + gap : depth + gap, :columns] = weights[whole:]
    return np.ascontiguousarray(out.reshape(steps, DEEP, panels, WIDE).transpose(2, 0, 3, 1))


@compiled
def _product(codes, packed, first, out):  # type: ignore[no-untyped-def]
    """Blocks of 6 rows and 4, 2 or 1 panels; what is left of the rows is done again with rows
    before it."""
    rows, panels = len(out), len(packed)
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


def _sums(typing, tall, wide, row, panel, codes, packed, first, out):  # type: ignore[no-untyped-def]
    """Sums of ``tall`` rows and ``wide`` panels, over the whole depth."""
    rows, panels = range(tall.literal_value), range(wide.literal_value)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def whole(number: int) -> Any:
            return ir.Constant(LONG, number)

        def at(base: Any, offset: Any, kind: Any) -> Any:
            return cgutils.pointer_add(builder, base, offset, kind.as_pointer())

        def offsets(start: Any, count: range, by: Any) -> list[Any]:
            return [builder.mul(builder.add(start, whole(i)), by) for i in count]

        def everywhere(value: Any) -> Any:
            lane = builder.insert_element(
                ir.Constant(SUMS, ir.Undefined), value, ir.Constant(WORD, 0)
            )
            return builder.shuffle_vector(lane, lane, ir.Constant(SUMS, [0] * WIDE))

        def function(name: str, result: Any, *types: Any) -> Any:
            return cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(result, types), name
            )

        x, w, b, y = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[4:], args[4:], strict=True)
        )
        (_, depth), (down, _) = (
            cgutils.unpack_tuple(builder, one, 2) for one in (x.shape, x.strides)
        )
        (_, columns), (beneath, _) = (
            cgutils.unpack_tuple(builder, one, 2) for one in (y.shape, y.strides)
        )
        steps, across = (
            cgutils.unpack_tuple(builder, w.shape)[1],
            cgutils.unpack_tuple(builder, w.strides)[0],
        )
        starts, ends = (offsets(args[2], rows, by) for by in (down, beneath))
        inside, places = (offsets(args[3], panels, by) for by in (across, whole(4 * WIDE)))
        begin = [builder.load(at(b.data, one, SUMS), align=4) for one in places]
        dot = function("llvm.x86.avx512.vpdpbusd.512", SUMS, SUMS, SUMS, SUMS)

        before, along, done = builder.block, *map(builder.append_basic_block, ("along", "done"))
        builder.branch(along)
        builder.position_at_end(along)
        step, sums = builder.phi(LONG), [[builder.phi(SUMS) for _ in panels] for _ in rows]
        four, last = builder.mul(step, whole(DEEP)), builder.sub(depth, whole(DEEP))
        four = builder.select(builder.icmp_signed("<", four, last), four, last)
        panes = [builder.add(one, builder.mul(step, whole(DEEP * WIDE))) for one in inside]
        weights = [builder.load(at(w.data, one, SUMS), align=1) for one in panes]
        after = builder.add(step, whole(1))
        step.add_incoming(whole(0), before)
        step.add_incoming(after, along)
        made = []
        for start, line in zip(starts, sums, strict=True):
            read = builder.load(at(x.data, builder.add(start, four), WORD), align=1)
            # as a number: over the same on vectors LLVM 22 does not come to an end
            moved = everywhere(builder.xor(read, ir.Constant(WORD, 0x80808080)))
            made.append(
                [builder.call(dot, [one, moved, by]) for one, by in zip(line, weights, strict=True)]
            )
            for one, value, result in zip(line, begin, made[-1], strict=True):
                one.add_incoming(value, before)
                one.add_incoming(result, along)
        builder.cbranch(builder.icmp_signed("<", after, steps), along, done)

        builder.position_at_end(done)
        mask = ir.VectorType(ir.IntType(1), WIDE)
        store = function(
            "llvm.masked.store.v16i32.p0", ir.VoidType(), SUMS, SUMS.as_pointer(), WORD, mask
        )
        for j, place in enumerate(places):
            left = everywhere(
                builder.trunc(builder.sub(columns, builder.udiv(place, whole(4))), WORD)
            )
            there = builder.icmp_signed("<", ir.Constant(SUMS, list(range(WIDE))), left)
            for end, line in zip(ends, made, strict=True):
                here = at(y.data, builder.add(end, place), SUMS)
                builder.call(store, [line[j], here, ir.Constant(WORD, 4), there])
        return context.get_dummy_value()

    return numba.types.void(tall, wide, row, panel, codes, packed, first, out), build


_block: Any = extending.intrinsic(prefer_literal=True)(_sums)
