"""What H13's registers say of a kernel and of the engines' buffers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npulab.npus.ane.coefficients.kernel import ALIGN, ENGINES, Kernel
from npulab.npus.ane.facts import EXPECTED
from npulab.npus.kit.fields import expect

ONLY = {name: only for name, (only,) in EXPECTED["kernel"].items()}
TABLE = 2  # NonlinearMode
Values = Mapping[str, int]


def from_registers(values: Values) -> Kernel:
    """The kernel of a convolution task from its fields, raw, by name (``Common.ConvCfg.Kw``).

    ``NumGroups`` counts groups, of which ``Cin`` and ``Cout`` are the channels of one
    (k1_c64_n256_g4); ``UnicastEn`` with as many inputs as outputs is depthwise; ``Ox`` counts
    output columns at a time (k1x9 of 1024 channels has 2, with ``Sx`` 2 and half as many columns in
    ``OutDim.Wout``). Raises ValueError naming field and value for what no layout is known for, and
    for a field that is missing.
    """
    expect({**ONLY, **values}, EXPECTED["kernel"], "kernel: {name}: got {got}, allowed is "
           "{allowed}; how such coefficients are stored is not known", style="#x")
    groups, outputs, inputs = (_field(values, f"Common.{name}")
                               for name in ("GroupConvCfg.NumGroups", "Cout.Cout", "Cin.Cin"))
    sparse = _field(values, "NE.KernelCfg.SparseFmt")
    if sparse != values.get("KernelDMASrc.MasterConfig.KernelSparseFmt", sparse):
        raise ValueError(f"kernel: NE.KernelCfg.SparseFmt: got {sparse}, allowed is "
                         f"KernelDMASrc.MasterConfig.KernelSparseFmt, which is {1 - sparse}")
    if _field(values, "Common.GroupConvCfg.UnicastEn"):
        if inputs != outputs or groups != 1:
            raise ValueError(f"kernel: Common.GroupConvCfg.UnicastEn: got 1 with {inputs} inputs, {outputs} outputs "
                             f"and {groups} groups, allowed with it is one group of as many inputs as outputs")
        groups, total = inputs, 1
    else:
        total = groups
    return Kernel(outputs * total, inputs * total, _field(values, "Common.ConvCfg.Kh"),
                  _field(values, "Common.ConvCfg.Kw"), groups,
                  (_field(values, "Common.ConvCfg.Sy"), _field(values, "Common.ConvCfg.Sx")),
                  bool(_field(values, "NE.MACCfg.BiasMode")), bool(sparse),
                  bool(_field(values, "Common.Cfg.SmallSourceMode")),
                  2 ** _field(values, "Common.ConvCfg.OCGSize"), values.get("Common.ConvCfg.Ox", 1),
                  values.get("NE.MACCfg.NonlinearMode", 0) == TABLE)


def places_of(values: Values) -> np.ndarray:
    """(E, 2) int64: byte from the kernel base and bytes of the buffer of each engine that is
    switched on.

    Fields are raw, in 64 bytes.  Raises ValueError for an engine that is on behind one that is off.
    """
    on = [i for i in range(ENGINES) if values.get(f"KernelDMASrc.CoeffDMAConfig[{i}].En", 0)]
    if on != list(range(len(on))):
        raise ValueError(f"kernel: KernelDMASrc.CoeffDMAConfig: got engines {on} on, allowed are the first ones")
    return np.array([[ALIGN * int(values.get(f"KernelDMASrc.{name}", 0))
                      for name in (f"CoeffBaseAddr[{i}].Addr", f"CoeffBfrSize[{i}].MemBfrSize")]
                     for i in on], np.int64).reshape(-1, 2)


def _field(values: Values, name: str) -> int:
    if name not in values:
        raise ValueError(f"kernel: {name}: got no value, allowed are the fields of a task with its own kernel")
    return int(values[name])
