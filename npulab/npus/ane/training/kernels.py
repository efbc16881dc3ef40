"""The kernels of a training step, a table each: one row per operation, which is also one result
that is rounded.

A row is ``name axes operation operands``.  Axes are the letters of ``Step.size``, ``-`` for a
single number; an operand is a tensor by its axes, or with ``name:axes`` by others that hold the
same elements in the same order (``q:hds``: the channels of ``q`` by head), or a constant.  Tensors
are channel first, ``(channels, positions)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from npulab.npus.ane.training.step import LETTERS, Step

PRODUCTS = ("linear", "matmul")  # of a weight and a tensor; of two tensors
REDUCTIONS = ("sum", "max")
ELEMENTWISE = {"mul": 2, "add": 2, "sub": 2, "div": 2, "exp": 1, "sigmoid": 1, "rsqrt": 1}  # operands of each
OPERATIONS = (*PRODUCTS, *REDUCTIONS, *ELEMENTWISE)
EPSILON = 1e-5
MASKED = -65504.0  # added to scores of positions to come: the lowest float16
CONSTANTS: Mapping[str, Callable[[Step], float]] = {
    "one": lambda step: 1.0, "epsilon": lambda step: EPSILON, "inverse_dim": lambda step: 1 / step.dim,
    "scale": lambda step: 1 / math.sqrt(step.head), "inverse_size": lambda step: 1 / (step.seq * step.dim)}


@dataclass(frozen=True)
class Operand:
    """A tensor and the axes an operation sees it by; a constant has none."""

    name: str
    axes: str


@dataclass(frozen=True)
class Operation:
    """One row of a kernel: ``name`` is its result, of these axes."""

    name: str
    axes: str
    kind: str
    operands: tuple[Operand, ...]

    @property
    def letters(self) -> str:
        """Every axis it runs over: those of the result, then those it sums over."""
        return "".join(dict.fromkeys(self.axes + "".join(operand.axes for operand in self.operands)))

    def flops(self, step: Step) -> int:
        """Floating-point operations: two for each product and sum of a contraction, one for each
        operand of a sum or maximum, one for each result of any other (exp, sigmoid and the
        reciprocal root too).

        >>> KERNELS["forward_ffn"].operation("h1").flops(Step(768, 2048, 512, 12))
        1610612736
        """
        if self.kind in PRODUCTS:
            return 2 * step.count(self.letters)
        return step.count(self.operands[0].axes if self.kind in REDUCTIONS else self.axes)

    def __repr__(self) -> str:
        return f"{self.name}[{self.axes}] = {self.kind} " + " ".join(
            f"{operand.name}[{operand.axes}]" if operand.axes else operand.name for operand in self.operands)


@dataclass(frozen=True)
class Kernel:
    """A table of operations: what goes in, the weights that are built in, what comes out, and the
    taps, results of the way that come out too; ``unit`` is "NPU" or "CPU", ``times`` how often a
    step runs it."""

    name: str
    unit: str
    inputs: Mapping[str, str]
    weights: Mapping[str, str]
    operations: tuple[Operation, ...] = field(repr=False)
    outputs: tuple[str, ...]
    taps: tuple[str, ...] = ()
    times: int = 1

    @classmethod
    def read(cls, name: str, table: str, inputs: str, outputs: str, weights: str = "", taps: str = "",
             unit: str = "NPU", times: int = 1) -> Kernel:
        """A kernel from its table; ``inputs`` and ``weights`` are ``name:axes`` each, outputs and
        taps names.

        Raises ValueError with the row for a table that is not whole.
        """
        given = {**_declared(name, inputs), **_declared(name, weights)}
        axes = dict(given)
        operations = []
        for number, row in enumerate(filter(None, map(str.split, table.splitlines())), 1):
            where = f"kernel {name}, row {number} ({' '.join(row)})"
            if len(row) < 4:
                raise ValueError(f"{where}: got {len(row)} words, allowed is name, axes, operation and operands")
            operands = tuple(_operand(where, word, axes) for word in row[3:])
            operation = Operation(row[0], row[1].replace("-", ""), row[2], operands)
            _refuse(where, operation, axes)
            axes[operation.name] = operation.axes
            operations.append(operation)
        results = {operation.name for operation in operations}
        for out in (*outputs.split(), *taps.split()):
            if out not in results:
                raise ValueError(f"kernel {name}: got output {out!r}, allowed is one of {', '.join(sorted(results))}")
        if unit not in ("NPU", "CPU") or times < 1:
            raise ValueError(f"kernel {name}: got {times} times on unit {unit!r}, allowed is 1 or more on NPU or CPU")
        return cls(name, unit, _declared(name, inputs), _declared(name, weights), tuple(operations),
                   tuple(outputs.split()), tuple(taps.split()), times)

    @property
    def table(self) -> str:
        """The table again, every operand with the axes it is seen by.

        >>> print(KERNELS["residual"].table)
        sum cs add x:cs branch:cs
        """
        def written(one: Operand) -> str:
            return f"{one.name}:{one.axes}" if one.axes else one.name

        return "\n".join(" ".join((row.name, row.axes or "-", row.kind, *map(written, row.operands)))
                         for row in self.operations)

    @property
    def given(self) -> dict[str, str]:
        """Axes of every tensor that has to be given: inputs, then weights."""
        return {**self.inputs, **self.weights}

    def operation(self, name: str) -> Operation:
        """The row of a result; LookupError with the known ones."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise LookupError(f"operation: got {name!r}, kernel {self.name} has "
                          f"{', '.join(operation.name for operation in self.operations)}")

    def axes(self, name: str) -> str:
        """The axes of a tensor that is given or a result."""
        return self.given[name] if name in self.given else self.operation(name).axes


def _declared(kernel: str, text: str) -> dict[str, str]:
    out = {}
    for word in text.split():
        name, _, axes = word.partition(":")
        if not name or not axes or set(axes) - set(LETTERS):
            raise ValueError(f"kernel {kernel}: got tensor {word!r}, allowed is name:axes with axes of {LETTERS}")
        out[name] = axes
    return out


def _operand(where: str, word: str, known: Mapping[str, str]) -> Operand:
    name, _, axes = word.partition(":")
    if name in CONSTANTS and not axes:
        return Operand(name, "")
    if name not in known:
        raise ValueError(f"{where}: got operand {name!r}, allowed is one of {', '.join((*known, *CONSTANTS))}")
    if axes and _plain(axes) != _plain(known[name]):
        raise ValueError(f"{where}: got {word}, allowed are axes of the same elements as {name}:{known[name]}")
    return Operand(name, axes or known[name])


def _plain(axes: str) -> str:
    """Axes that hold the same elements are the same here: heads as channels, one letter for each
    size."""
    return axes.replace("hd", "c").replace("e", "c").replace("t", "s")


def _refuse(where: str, operation: Operation, known: Mapping[str, str]) -> None:
    if operation.kind not in OPERATIONS:
        raise ValueError(f"{where}: got operation {operation.kind!r}, allowed is one of {', '.join(OPERATIONS)}")
    wanted = 2 if operation.kind in PRODUCTS else ELEMENTWISE.get(operation.kind, 1)
    if len(operation.operands) != wanted:
        raise ValueError(f"{where}: got {len(operation.operands)} operands, allowed with {operation.kind} is {wanted}")
    for axes in (operation.axes, *(operand.axes for operand in operation.operands)):
        if set(axes) - set(LETTERS) or len(set(axes)) != len(axes):
            raise ValueError(f"{where}: got axes {axes!r}, allowed are different ones of {LETTERS}")
    if operation.name in known or operation.name in CONSTANTS:
        raise ValueError(f"{where}: got {operation.name!r} again, allowed is a new name")
    seen = [set(operand.axes) for operand in operation.operands]
    over, out = set().union(*seen), set(operation.axes)
    kept = "".join(letter for letter in operation.operands[0].axes if letter in out)
    whole = seen[0] ^ seen[1] <= out <= over if operation.kind in PRODUCTS else \
        operation.axes == kept if operation.kind in REDUCTIONS else over == out
    if not whole:
        raise ValueError(f"{where}: got result axes {operation.axes or '-'} of operands with "
                         f"{' and '.join(operand.axes or '-' for operand in operation.operands)}")


NORM = """
    squares     cs   mul      x x
    square_sum  s    sum      squares
    mean        s    mul      square_sum inverse_dim
    biased      s    add      mean epsilon
    rrms        s    rsqrt    biased
"""
NORMED = NORM + """
    xr          cs   mul      x rrms
    xn          cs   mul      xr rms
"""
SOFTMAX = """
    scores      hst  matmul   q:hds k:hdt
    scaled      hst  mul      scores scale
    masked      hst  add      scaled mask
    largest     hs   max      masked
    shifted     hst  sub      masked largest
    exponents   hst  exp      shifted
    total       hs   sum      exponents
    probs       hst  div      exponents total
"""

FORWARD_ATTENTION = Kernel.read(
    "forward_attention", NORMED + """
    q           cs   linear   wq:ce xn:es
    k           cs   linear   wk:ce xn:es
    v           cs   linear   wv:ce xn:es
    """ + SOFTMAX + """
    attended    hds  matmul   probs v:hdt
    out         cs   linear   wo:ce attended:es
    """, inputs="x:cs", weights="rms:c wq:ce wk:ce wv:ce wo:ce mask:st", outputs="out", taps="q k v attended xn")

FORWARD_FFN = Kernel.read(
    "forward_ffn", NORMED + """
    h1          fs   linear   w1:fc xn
    h3          fs   linear   w3:fc xn
    sigma       fs   sigmoid  h1
    silu        fs   mul      h1 sigma
    gate        fs   mul      silu h3
    out         cs   linear   w2:cf gate
    """, inputs="x:cs", weights="rms:c w1:fc w2:cf w3:fc", outputs="out", taps="h1 h3 gate xn")

FFN_BACKWARD = Kernel.read(
    "ffn_backward", """
    dgate       fs   linear   w2:cf dy
    sigma       fs   sigmoid  h1
    complement  fs   sub      one sigma
    bend        fs   mul      h1 complement
    bracket     fs   add      one bend
    slope       fs   mul      sigma bracket
    dsilu       fs   mul      dgate h3
    dh1         fs   mul      dsilu slope
    silu        fs   mul      h1 sigma
    dh3         fs   mul      dgate silu
    dx1         cs   linear   w1:fc dh1
    dx3         cs   linear   w3:fc dh3
    dxn         cs   add      dx1 dx3
    """, inputs="dy:cs h1:fs h3:fs", weights="w1:fc w2:cf w3:fc", outputs="dxn dh1 dh3")

SDPA_BACKWARD_1 = Kernel.read(
    "sdpa_backward_1", """
    dattended   es   linear   wo:ce dy
    """ + SOFTMAX + """
    dv          hdt  matmul   probs dattended:hds
    dp          hst  matmul   dattended:hds v:hdt
    """, inputs="q:cs k:cs v:cs dy:cs", weights="wo:ce mask:st", outputs="dv probs dp")

SDPA_BACKWARD_2 = Kernel.read(
    "sdpa_backward_2", """
    weighted    hst  mul      probs dp
    average     hs   sum      weighted
    centred     hst  sub      dp average
    dscaled     hst  mul      probs centred
    dscores     hst  mul      dscaled scale
    dq          hds  matmul   dscores k:hdt
    dk          hdt  matmul   dscores q:hds
    """, inputs="probs:hst dp:hst q:cs k:cs", outputs="dq dk")

QKV_BACKWARD = Kernel.read(
    "qkv_backward", """
    dxq         es   linear   wq:ce dq
    dxk         es   linear   wk:ce dk
    dxv         es   linear   wv:ce dv
    dxqk        es   add      dxq dxk
    dxn         es   add      dxqk dxv
    """, inputs="dq:cs dk:cs dv:cs", weights="wq:ce wk:ce wv:ce", outputs="dxn")

WEIGHT_GRADIENTS = Kernel.read(
    "weight_gradients", """
    dw2         cf   matmul   dy gate
    dw1         fc   matmul   dh1 xn2
    dw3         fc   matmul   dh3 xn2
    dwo         ce   matmul   dx2 attended:es
    dwq         ce   matmul   dq xn1:es
    dwk         ce   matmul   dk xn1:es
    dwv         ce   matmul   dv xn1:es
    """, inputs="dy:cs gate:fs dh1:fs dh3:fs xn2:cs dx2:cs attended:cs dq:cs dk:cs dv:cs xn1:cs",
    outputs="dw1 dw2 dw3 dwq dwk dwv dwo", unit="CPU")

RMS_BACKWARD = Kernel.read(
    "rms_backward", NORM + """
    weighted    cs   mul      dxn rms
    along       cs   mul      weighted x
    dot         s    sum      along
    rrms2       s    mul      rrms rrms
    factor      s    mul      rrms2 inverse_dim
    correction  s    mul      dot factor
    parallel    cs   mul      x correction
    across      cs   sub      weighted parallel
    dx          cs   mul      across rrms
    xr          cs   mul      x rrms
    terms       cs   mul      dxn xr
    drms        c    sum      terms
    """, inputs="dxn:cs x:cs", weights="rms:c", outputs="dx drms", unit="CPU", times=2)

LOSS = Kernel.read(
    "loss", """
    difference  cs   sub      y target
    squares     cs   mul      difference difference
    total       -    sum      squares
    loss        -    mul      total inverse_size
    doubled     cs   add      difference difference
    dy          cs   mul      doubled inverse_size
    """, inputs="y:cs target:cs", outputs="loss dy", unit="CPU")

RESIDUAL = Kernel.read("residual", "sum cs add x branch", inputs="x:cs branch:cs", outputs="sum", unit="CPU", times=4)

KERNELS = {kernel.name: kernel for kernel in
           (FORWARD_ATTENTION, FORWARD_FFN, FFN_BACKWARD, SDPA_BACKWARD_1, SDPA_BACKWARD_2, QKV_BACKWARD,
            LOSS, WEIGHT_GRADIENTS, RMS_BACKWARD, RESIDUAL)}


def kernel_of(kernel: str | Kernel) -> Kernel:
    """The kernel of a name, or the one given; LookupError with the known names."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in KERNELS:
        raise LookupError(f"kernel: got {kernel!r}, allowed is one of {', '.join(KERNELS)}")
    return KERNELS[kernel]
