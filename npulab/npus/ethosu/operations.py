"""Joins jobs to operations, because a layer may have several jobs, each for some of its output
channels. Also finds the tensors in memory that jobs read and write, and the origin of weights that
were moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from npulab.npus.ethosu.facts import DMA, FACTS, REGISTERS
from npulab.npus.kit import Capture, Unsupported, values_of

# A brick holds BRICK channels of one pixel. The memory region WEIGHTS_REGION holds the coefficient
# buffer as the compiler made it. MOVING are the registers that may differ between jobs of a layer.
BRICK = 16
WEIGHTS_REGION = 0
MOVING = {"BLOCKDEP", "IFM_BASE0", "IFM_DEPTH_M1", "OFM_BASE0", "OFM_DEPTH_M1"}
for _data in ("WEIGHT", "WEIGHT1", "SCALE", "SCALE1"):
    MOVING |= {f"{_data}_BASE", f"{_data}_LENGTH", f"{_data}_REGION"}
COMMANDS = {code: name for name, code in FACTS.enum("command").items()}
BRICKS = FACTS.enum("data_format")["NHCWB16"]
INPUTS = {code: name for name, code in FACTS.enum("ifm_precision").items()}
OUTPUTS = {code: name for name, code in FACTS.enum("ofm_precision").items()}
PRECISIONS = {"IFM": INPUTS, "IFM2": INPUTS, "OFM": OUTPUTS}
DTYPES = {"U8": "uint8", "S8": "int8"}
# POOLS: the kinds of pools by ``OP.mode``. An elementwise operation of ``OP.mode`` ADD adds.
POOLS = {0: "max", 1: "average"}
ADD = 1
Shape3 = tuple[int, int, int]


class Words:
    """The values of a job, by ``REGISTER.field`` or, if the field has the register's name, by
    ``REGISTER``."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values

    def __getitem__(self, name: str) -> int:
        register, _, field = name.partition(".")
        return self.values[f"{REGISTERS}.{register}.{field or register.lower()}"]

    @property
    def command(self) -> str:
        """The name of the operation that the job starts."""
        return COMMANDS[self["OP.command"]]

    def pair(self, name: str) -> tuple[int, int]:
        """Return (height, width) from two registers or fields, each of which holds 1 less. In
        ``name``, ``{}`` stands for HEIGHT or WIDTH, ``{1}`` for y or x."""
        height = self[name.format("HEIGHT", "y")] + 1
        width = self[name.format("WIDTH", "x")] + 1
        return height, width


class Tensor(NamedTuple):
    """An input or output of a job in memory: ``region`` and address (``base``) of its first byte
    and its ``shape`` (H, W, C). ``row`` is the number of bytes from row to row, ``step`` from
    column to column. With ``bricks`` (16 channels of each pixel lie together), ``step`` is the
    number of bytes from 16 channels of a row to its next 16 channels."""

    region: int
    base: int
    shape: Shape3
    dtype: str
    bricks: bool
    row: int
    step: int

    @property
    def end(self) -> int:
        """The address after its last row."""
        return self.base + self.shape[0] * self.row

    def overlaps(self, other: Tensor) -> bool:
        """Return true if this tensor and ``other`` share bytes."""
        return self.region == other.region and self.base < other.end and other.base < self.end

    @property
    def width(self) -> int:
        """The number of columns of a row in memory; a job may read fewer."""
        if self.bricks:
            return self.step // BRICK
        return self.row // self.step

    def channel(self, number: int) -> int:
        """Return the bytes from channel 0 to channel ``number`` of a pixel."""
        if self.bricks:
            return number // BRICK * self.step + number % BRICK
        return number


class Operation(NamedTuple):
    """The jobs of a layer: their numbers in the capture (``tasks``) and the values of each."""

    tasks: tuple[int, ...]
    jobs: tuple[Words, ...]

    @property
    def first(self) -> Words:
        """The values of the first job."""
        return self.jobs[0]

    @property
    def weighs(self) -> bool:
        """True if the operation has weights: a convolution, dense or depthwise."""
        return self.first.command in ("conv", "depthwise")

    @property
    def slices(self) -> list[int]:
        """The number of output channels of each job."""
        return [job["OFM_DEPTH_M1"] + 1 for job in self.jobs]

    def tensor(self, side: str) -> Tensor:
        """Return the tensor that all jobs of the operation read (``side`` is IFM or IFM2) or write
        (OFM).

        Raises Unsupported for another type than int8 and uint8.
        """
        v = self.first
        precision = PRECISIONS[side].get(v[f"{side}_PRECISION.precision"], "?")
        if precision not in DTYPES:
            raise Unsupported(
                f"lift for ethosu: got {side}_PRECISION {precision}, allowed are "
                f"{', '.join(DTYPES)} so far"
            )
        sizes = f"{side}_{{}}0_M1"
        channels = sum(self.slices)
        if side == "OFM":
            sizes = "OFM_{}_M1"
        elif v.command != "depthwise":
            channels = v["IFM_DEPTH_M1"] + 1
        bricks = v[f"{side}_PRECISION.format"] == BRICKS
        step = v[f"{side}_STRIDE_X"]
        if bricks:
            step = v[f"{side}_STRIDE_C"]
        return Tensor(
            v[f"{side}_REGION"],
            v[f"{side}_BASE0"],
            (*v.pair(sizes), channels),
            DTYPES[precision],
            bricks,
            v[f"{side}_STRIDE_Y"],
            step,
        )

    def goes_on(self, v: Words) -> bool:
        """Return true if the job of values ``v`` continues this operation: it computes the output
        channels after those of the operation's last job.
        """
        if not self.weighs:
            return False
        for name, value in self.first.values.items():
            if v.values.get(name) != value and name.split(".")[1] not in MOVING:
                return False
        done = sum(self.slices)
        written = v["OFM_BASE0"] - self.first["OFM_BASE0"]
        read = v["IFM_BASE0"] - self.first["IFM_BASE0"]
        next_read = 0
        if v.command == "depthwise":
            next_read = self.tensor("IFM").channel(done)
        return written == self.tensor("OFM").channel(done) and read == next_read


def operations(capture: Capture) -> list[Operation]:
    """Return the operations of a capture's jobs, in order."""
    found: list[Operation] = []
    for task, job in enumerate(capture.jobs):
        if job.block == REGISTERS:
            words = Words(values_of(job, capture.maps))
            tasks: tuple[int, ...] = ()
            jobs: tuple[Words, ...] = ()
            if found and found[-1].goes_on(words):
                tasks, jobs = found.pop()
            found.append(Operation((*tasks, task), (*jobs, words)))
    return found


def origin(
    capture: Capture, task: int, region: int, address: int, size: int
) -> tuple[int, list[int]]:
    """Return the byte of the coefficient buffer at which ``size`` bytes lie that a task reads at
    ``address`` of ``region``, and the numbers of the DMA jobs that moved them there.

    Raises Unsupported for bytes that no DMA job before the task moved there.
    """
    if region == WEIGHTS_REGION:
        return address, []
    for mover in reversed(range(task)):
        job = capture.jobs[mover]
        if job.block != DMA:
            continue
        v = values_of(job, capture.maps)
        start = address - v[f"{DMA}.DMA0_DST.dma0_dst"]
        within = 0 <= start <= v[f"{DMA}.DMA0_LEN.dma0_len"] - size
        internal = v[f"{DMA}.DMA0_DST_REGION.internal"]
        if within and v[f"{DMA}.DMA0_DST_REGION.region"] == region and not internal:
            source = v[f"{DMA}.DMA0_SRC.dma0_src"] + start
            source_region = v[f"{DMA}.DMA0_SRC_REGION.region"]
            place, tasks = origin(capture, mover, source_region, source, size)
            return place, [mover, *tasks]
    raise Unsupported(
        f"task {task}: got {size} bytes of coefficients at {address:#x} of region "
        f"{region}, allowed are bytes that a DMA job before this task moved to this address"
    )
