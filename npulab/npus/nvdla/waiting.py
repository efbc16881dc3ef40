"""What a job waits for in vain, unit by unit: sizes that disagree, operands or memory not there.

Each function looks at the registers and at which memory is there, and computes nothing.  All raise
Hang, with the reason, for a job that would never end, and Unsupported for what the simulated
device does not cover.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from npulab.captures.target import Hang, Unsupported
from npulab.npus.nvdla.events import MEMORIES
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.registers import CONVOLUTION

Values = Mapping[str, int]
Chip = Mapping[str, int]
NEEDED = ("CDMA", "CSC", "CMAC_A", "CACC")  # a convolution may do with one half of the multipliers
BYTES = {0: 1, 1: 2}  # of an element, by the raw value of a precision field
MOST = 2 ** 23  # elements of a result, or of one channel
MOST_PRODUCTS, MOST_TAPS, MOST_WINDOWS, MOST_KERNEL = 2 ** 32, 2 ** 18, 2 ** 20, 8
AVERAGE, MAX, MIN = range(3)
EQUAL = 3
USES = {"MUL": (0, 2), "ALU": (1, 2)}  # of what a reader of operands may be for
BOTH = 2
READERS = {"BS": "B", "BN": "N", "EW": "E"}
AXES = ("WIDTH", "HEIGHT", "CHANNEL")

# what the values of fields may be
CONVOLVED = dict.fromkeys((
    "CDMA.D_MISC_CFG.CONV_MODE", "CSC.D_MISC_CFG.CONV_MODE", "CSC.D_BATCH_NUMBER.BATCHES",
    "CDMA.D_WEIGHT_FORMAT.WEIGHT_FORMAT", "CSC.D_WEIGHT_FORMAT.WEIGHT_FORMAT",
    "CSC.D_POST_Y_EXTENSION.Y_EXTENSION",
    "CDMA.D_MISC_CFG.DATA_REUSE", "CDMA.D_MISC_CFG.WEIGHT_REUSE"), (0,))
# the ten orders of four 8-bit channels
FOUR_BYTES = (12, 16, 13, 17, 26, 14, 18, 27, 15, 19)
PIXELS = {"CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT": FOUR_BYTES,
          "CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL": (3,),
          "CDMA.D_PIXEL_OFFSET.PIXEL_X_OFFSET": (0,), "CDMA.D_PIXEL_OFFSET.PIXEL_Y_OFFSET": (0,),
          "CDMA.D_DATAIN_FORMAT.PIXEL_MAPPING": (0,), "CDMA.D_CVT_CFG.CVT_EN": (1,),
          "CDMA.D_MISC_CFG.PROC_PRECISION": (0,)}
NORMALISED = dict.fromkeys((
    "CDP.D_DATA_FORMAT.INPUT_DATA_TYPE", "CDP_RDMA.D_DATA_FORMAT.INPUT_DATA",
    "CDP.D_DST_COMPRESSION_EN.DST_COMPRESSION_EN",
    "CDP_RDMA.D_SRC_COMPRESSION_EN.SRC_COMPRESSION_EN"), (0,))

# what hangs where fields differ, and the fields
NO_DATA = "CSC waits for data that CDMA never gives"
NO_SUMS = "CACC waits for sums that CSC never asks for"
AGREED = (
    (NO_DATA, "CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT", "CSC.D_DATAIN_FORMAT.DATAIN_FORMAT"),
    (NO_DATA, "CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH", "CSC.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT"),
    (NO_SUMS, "CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH", "CACC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH"),
    (NO_DATA, "CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT", "CSC.D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT"),
    (NO_SUMS, "CSC.D_DATAOUT_SIZE_0.DATAOUT_HEIGHT", "CACC.D_DATAOUT_SIZE_0.DATAOUT_HEIGHT"),
    (NO_DATA, "CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL", "CSC.D_DATAIN_SIZE_EXT_1.DATAIN_CHANNEL_EXT"),
    ("the kernels are not as many as the output has channels",
     "CSC.D_DATAOUT_SIZE_1.DATAOUT_CHANNEL",
     "CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL"),
    *(("CSC looks for data elsewhere than CDMA puts them", f"CDMA.{name}", f"CSC.{name}")
      for name in ("D_BANK.DATA_BANK", "D_BANK.WEIGHT_BANK", "D_ENTRY_PER_SLICE.ENTRIES",
       "D_WEIGHT_BYTES.WEIGHT_BYTES")))


def for_units(v: Values, on: set[str]) -> bool:
    """Whether SDP takes accumulators on the fly, of the units that were started."""
    flies = "SDP" in on and bool(v["SDP.D_FEATURE_MODE_CFG.FLYING_MODE"])
    if on & {*CONVOLUTION} - {"CMAC_B"}:
        needs(on, "a convolution", *NEEDED, "SDP")
        if not flies:
            raise Hang("CACC waits for SDP, whose SDP.D_FEATURE_MODE_CFG.FLYING_MODE is 0")
    elif flies:
        raise Hang("SDP waits for CACC, which nobody started")
    return flies


def needs(on: set[str], what: str, *units: str) -> None:
    """Raise Hang if units that others wait for were not started."""
    missing = [unit for unit in units if unit not in on]
    if missing:
        raise Hang(f"{what} waits for {', '.join(missing)}, which nobody started")


def for_convolution(v: Values, chip: Chip, memory: Memory) -> tuple[int, int, int]:
    """The accumulators that CACC gives, (channels, height, width)."""
    _covered(v, CONVOLVED)
    for why, *names in AGREED:
        _same(v, why, names)
    units = [unit for unit in CONVOLUTION if v[f"{unit}.D_OP_ENABLE.OP_EN"]]
    _same(v, "units that compute in different ways wait for one another",
          [f"{unit}.D_MISC_CFG.CONV_MODE" for unit in units])
    size = _element(v, *(f"{unit}.D_MISC_CFG.PROC_PRECISION" for unit in units))
    if v["CDMA.D_MISC_CFG.IN_PRECISION"] != v["CDMA.D_MISC_CFG.PROC_PRECISION"]:
        raise Unsupported(f"CDMA.D_MISC_CFG.IN_PRECISION is {v['CDMA.D_MISC_CFG.IN_PRECISION']}, the simulated "
                           f"device covers that of PROC_PRECISION, {v['CDMA.D_MISC_CFG.PROC_PRECISION']}")
    height, width = (v[f"CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_{name}_EXT"] + 1
                     for name in ("HEIGHT", "WIDTH"))
    depth, count = (v[f"CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_{name}"] + 1
                    for name in ("CHANNEL_EXT", "KERNEL"))
    rows, columns = (v[f"CSC.D_DATAOUT_SIZE_0.DATAOUT_{name}"] + 1 for name in ("HEIGHT", "WIDTH"))
    taps = height * width * depth
    _few(count * rows * columns, "the accumulators")
    _few(taps, "the weights of a kernel", MOST_TAPS)
    _few(taps * count * rows * columns, "the products", MOST_PRODUCTS)
    stated, needed = v["CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES"], count * taps * size
    if stated < needed:
        raise Hang(f"CSC waits for {needed} bytes of weights, CDMA.D_WEIGHT_BYTES gives {stated}")
    _reads(memory, MEMORIES[v["CDMA.D_WEIGHT_RAM_TYPE.WEIGHT_RAM_TYPE"]],
           _address(v, "CDMA.D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW"), needed, "CDMA (weights)")
    shape = _shape(v, "CDMA.D_DATAIN_SIZE_{1}.DATAIN_{0}")
    address = "CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0"
    pitches = ("CDMA.D_LINE_STRIDE.LINE_STRIDE", "CDMA.D_SURF_STRIDE.SURF_STRIDE")
    ram_type, atom = "CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE", chip["memory_atom"]
    if v["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"]:
        if width > 1 or depth % 4:
            raise Hang(f"kernels of an image have {width} columns of {depth} channels, allowed is one of pixels of 4")
        _covered(v, PIXELS)
        _read(memory, Cube(*shape, 4, v[pitches[0]], 0, 1, MEMORIES[v[ram_type]],
                           _address(v, address)),
              "CDMA (pixels)")
    else:
        if depth != shape[2]:
            raise Hang(f"kernels have {depth} channels, the input has {shape[2]}")
        _covered(v, {"CDMA.D_CVT_CFG.CVT_EN": (0,)})
        _read(memory, _cube(v, (address, *pitches), ram_type, shape, atom, size), "CDMA (data)")
    return count, rows, columns


def points_to(v: Values, chip: Chip) -> Cube:
    """Where SDP writes."""
    size = _element(v, "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP.D_DATA_FORMAT.OUT_PRECISION")
    return _side(v, "SDP", "DST", "SDP.D_DST_DMA_CFG.DST_RAM_TYPE",
                 _shape(v, "SDP.D_DATA_CUBE_{0}.{0}"), chip, size)


def for_points(v: Values, chip: Chip, memory: Memory, output: Cube,
               sums: tuple[int, int, int] | None) -> None:
    """SDP behind accumulators (channels, height, width), or from memory if there are none."""
    _covered(v, {f"SDP.D_FEATURE_MODE_CFG.{name}": (0,) for name in ("WINOGRAD", "BATCH_NUMBER")})
    shape = output.height, output.width, output.channels
    _few(int(np.prod(shape)), "the elements of SDP's output")
    if sums is None:
        _element(v, "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION")
        _covered(v, {f"SDP_RDMA.D_FEATURE_MODE_CFG.{name}": (0,)
                     for name in ("WINOGRAD", "BATCH_NUMBER")})
        _points_agree(v)
        source = _side(v, "SDP_RDMA", "SRC", "SDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE", shape, chip,
                       output.itemsize)
        _read(memory, source, "SDP_RDMA (SRC)")
    elif sums != (shape[2], *shape[:2]):
        raise Hang(f"SDP waits for {shape[2]} channels of {shape[0]}x{shape[1]}, CACC gives {sums[0]} of "
                   f"{sums[1]}x{sums[2]}")
    for stage in ("BS", "BN", "EW"):
        if not v[f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS"]:
            for part in ("ALU", "MUL"):
                _operand(v, stage, part, memory, shape, output.lanes)
    if not v["SDP.D_DP_EW_CFG.EW_BYPASS"] and not v["SDP.D_DP_EW_CFG.EW_ALU_BYPASS"] \
            and v["SDP.D_DP_EW_CFG.EW_ALU_ALGO"] == EQUAL:
        raise Unsupported("SDP.D_DP_EW_CFG.EW_ALU_ALGO is 3 (EQL), which writes no output; the simulated device "
                           "covers 0 to 2")


def _operand(v: Values, stage: str, part: str, memory: Memory, shape: tuple[int, int, int],
             lanes: int) -> None:
    """A stage's operand, where it comes from memory."""
    config = f"SDP.D_DP_{stage}_"
    if v[f"{config}CFG.{stage}_{part}_BYPASS"] or not v[f"{config}{part}_CFG.{stage}_{part}_SRC"]:
        return
    reader = f"SDP_RDMA.D_{READERS[stage]}RDMA_CFG.{READERS[stage]}RDMA_"
    use = v[f"{reader}DATA_USE"]
    if v[f"{reader}DISABLE"] or not v["SDP_RDMA.D_OP_ENABLE.OP_EN"] or use not in USES[part]:
        raise Hang(f"{config}{part}_CFG waits for an operand from memory; {reader}DISABLE is "
                   f"{v[f'{reader}DISABLE']}, {reader}DATA_USE is {use}")
    _points_agree(v)
    parts, size = 1 + (use == BOTH), 1 + v[f"{reader}DATA_SIZE"]
    atom, place = lanes * parts * size, f"SDP_RDMA.D_{stage}_{{0}}.{stage}_{{0}}"
    line, surface = v[place.format("LINE_STRIDE")], v[place.format("SURFACE_STRIDE")]
    if not v[f"{reader}DATA_MODE"]:
        shape, line, surface = (1, 1, shape[2]), atom, atom
    channels = -(-shape[2] // lanes) * lanes * parts
    _read(memory, Cube(*shape[:2], channels, atom, line, surface, size,
                       MEMORIES[v[f"{reader}RAM_TYPE"]],
                       _address(v, place.format("BASE_ADDR_LOW"))), f"SDP_RDMA ({stage})")


def pooled_to(v: Values, chip: Chip) -> Cube:
    """Where PDP writes."""
    size = _element(v, "PDP.D_DATA_FORMAT.INPUT_DATA")
    shape = _shape(v, "PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}")
    return _side(v, "PDP", "DST", "PDP.D_DST_RAM_CFG.DST_RAM_TYPE", shape, chip, size)


def for_pooling(v: Values, chip: Chip, memory: Memory, output: Cube, handed: Cube | None) -> None:
    """PDP behind what SDP hands over, which would be a cube like that, or from memory."""
    _covered(v, {"PDP.D_OPERATION_MODE_CFG.POOLING_METHOD": (AVERAGE, MAX, MIN)})
    _same(v, "PDP gives another number of channels than it takes",
          ("PDP.D_DATA_CUBE_IN_CHANNEL.CUBE_IN_CHANNEL",
           "PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL"))
    _few(output.height * output.width * output.channels, "the elements of PDP's output",
         MOST_WINDOWS)
    height, width, channels = shape = _shape(v, "PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    if v["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]:
        for name in AXES:
            _same(v, "PDP waits for data that its reader never gives",
                  (f"PDP.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}",
                   f"PDP_RDMA.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}"))
        source = _side(v, "PDP_RDMA", "SRC", "PDP_RDMA.D_SRC_RAM_CFG.SRC_RAM_TYPE", shape, chip,
                       output.itemsize)
        _read(memory, source, "PDP_RDMA (SRC)")
    elif handed is None or handed.shape != (height, width, output.shape[2]):
        raise Hang(f"PDP waits for {channels} channels of {height}x{width} from SDP, which gives others")
    _windows(v, shape, output)
    writes(memory, output, "PDP (DST)")


def _windows(v: Values, shape: tuple[int, int, int], output: Cube) -> None:
    """The windows, each with an element of the input in it."""
    outside = []
    kernel = [v[f"PDP.D_POOLING_KERNEL_CFG.KERNEL_{name}"] + 1 for name in ("HEIGHT", "WIDTH")]
    if max(kernel) > MOST_KERNEL:
        raise Unsupported(f"PDP.D_POOLING_KERNEL_CFG is {kernel[0]}x{kernel[1]}, the simulated device covers up to "
                           f"{MOST_KERNEL}x{MOST_KERNEL}")
    for size, count, taps, axis, side in zip(shape, (output.height, output.width), kernel,
                                             ("HEIGHT", "WIDTH"),
                                             ("TOP", "LEFT"), strict=False):
        first = np.arange(count) * (v[f"PDP.D_POOLING_KERNEL_CFG.KERNEL_STRIDE_{axis}"] + 1) \
            - v[f"PDP.D_POOLING_PADDING_CFG.PAD_{side}"]
        outside.append(np.minimum(first + taps, size) <= np.maximum(first, 0))
    bad = np.argwhere(outside[0][:, None] | outside[1][None, :])
    if len(bad):
        raise Unsupported(f"PDP: the window of output ({bad[0][0]}, {bad[0][1]}) lies outside the input of "
                           f"{shape[0]}x{shape[1]}, the simulated device covers windows with an element")


def normalised_to(v: Values, chip: Chip) -> Cube:
    """Where CDP writes."""
    size = _element(v, "CDP.D_DATA_FORMAT.INPUT_DATA_TYPE")
    shape = _shape(v, "CDP_RDMA.D_DATA_CUBE_{0}.{0}")
    return _side(v, "CDP", "DST", "CDP.D_DST_DMA_CFG.DST_RAM_TYPE", shape, chip, size)


def for_normalisation(v: Values, chip: Chip, memory: Memory, output: Cube) -> None:
    """CDP from memory to memory."""
    _covered(v, NORMALISED)
    shape = output.height, output.width, output.channels
    _few(int(np.prod(shape)), "the elements of CDP's output")
    _read(memory, _side(v, "CDP_RDMA", "SRC", "CDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE", shape, chip,
                        output.itemsize),
          "CDP_RDMA (SRC)")
    writes(memory, output, "CDP (DST)")


def writes(memory: Memory, cube: Cube, what: str) -> None:
    """Raise Hang if a surface of a result goes past memory that was set aside."""
    _there(memory, cube, f"{what} writes", "past what is set aside")


def _read(memory: Memory, cube: Cube, what: str) -> None:
    _there(memory, cube, f"{what} reads", "where nothing was put")


def _there(memory: Memory, cube: Cube, what: str, otherwise: str) -> None:
    _few(cube.height * cube.width, f"the elements of a channel of {what.rpartition(' ')[0]}")
    size = (cube.height - 1) * cube.row_pitch + cube.width * cube.atom
    for surface in range(cube.surfaces):
        _hold(memory, cube.memory, cube.base + surface * cube.plane_pitch, size, what, otherwise)


def _reads(memory: Memory, name: str, start: int, size: int, what: str) -> None:
    _hold(memory, name, start, size, f"{what} reads", "where nothing was put")


def _hold(memory: Memory, name: str, start: int, size: int, what: str, otherwise: str) -> None:
    if not memory.holds(name, start, size):
        raise Hang(f"{what} {name} {start:#x} to {start + size:#x}, {otherwise}")


def _same(v: Values, why: str, names: Iterable[str]) -> None:
    first, *others = names
    for name in others:
        if v[name] != v[first]:
            raise Hang(f"{name} is {v[name]} and {first} is {v[first]}: {why}")


def _points_agree(v: Values) -> None:
    """Raise Hang if SDP and its reader do not mean the same cube."""
    for name in AXES:
        _same(v, "SDP waits for data that its reader never gives",
              (f"SDP.D_DATA_CUBE_{name}.{name}", f"SDP_RDMA.D_DATA_CUBE_{name}.{name}"))


def _covered(v: Values, fields: Mapping[str, tuple[int, ...]]) -> None:
    for name, values in fields.items():
        if v[name] not in values:
            raise Unsupported(f"{name} is {v[name]}, the simulated device covers {', '.join(map(str, values))}")


def _element(v: Values, *names: str) -> int:
    """Bytes of an element that precision fields agree on; raises Unsupported where they do not."""
    for name in names:
        if v[name] not in BYTES or v[name] != v[names[0]]:
            raise Unsupported(f"{name} is {v[name]}, the simulated device covers 0 and 1, the same as {names[0]}")
    return BYTES[v[names[0]]]


def _few(count: int, what: str, most: int = MOST) -> None:
    if count > most:
        raise Unsupported(f"{what} are {count}, the simulated device covers {most}")


def _shape(v: Values, names: str) -> tuple[int, int, int]:
    """(height, width, channels) of fields with {0} for that, and {1} for 1 of channels, else 0."""
    height, width, channels = (v[names.format(name, int(name == "CHANNEL"))] + 1
                               for name in ("HEIGHT", "WIDTH", "CHANNEL"))
    return height, width, channels


def _address(v: Values, low: str) -> int:
    return v[low] + 2 ** 32 * v[low.replace("_LOW", "_HIGH")]


def _side(v: Values, unit: str, side: str, ram_type: str, shape: tuple[int, int, int], chip: Chip,
          size: int) -> Cube:
    """The cube that a unit's SRC or DST registers place."""
    base, line, surface = (f"{unit}.D_{side}_{part}.{side}_{part}"
                           for part in ("BASE_ADDR_LOW", "LINE_STRIDE", "SURFACE_STRIDE"))
    return _cube(v, (base, line, surface), ram_type, shape, chip["memory_atom"], size)


def _cube(v: Values, names: tuple[str, str, str], ram_type: str, shape: tuple[int, int, int],
          atom: int, size: int,
          ) -> Cube:
    """The cube of an address and two pitches; raises Hang if one is off the atom's alignment."""
    for name in names:
        if v[name] % atom:
            raise Hang(f"{name} is {v[name]:#x}, off its alignment of {atom}")
    return Cube(*shape, atom, v[names[1]], v[names[2]], size, MEMORIES[v[ram_type]],
                _address(v, names[0]))
