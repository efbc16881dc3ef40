"""Jobs that are one layer: slices of its output channels; tensors in memory; where weights come
from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from npulab.npus.ethosu.facts import DMA, FACTS, REGISTERS
from npulab.npus.kit import Capture, Unsupported, values_of

BRICK = 16  # channels of a brick
WEIGHTS_REGION = 0  # the region that holds the coefficients as the compiler made them
# what differs between the jobs of a layer
MOVING = {
    "BLOCKDEP",
    "IFM_BASE0",
    "IFM_DEPTH_M1",
    "OFM_BASE0",
    "OFM_DEPTH_M1",
    *(
        f"{what}{core}_{part}"
        for what in ("WEIGHT", "SCALE")
        for core in ("", "1")
        for part in ("BASE", "LENGTH", "REGION")
    ),
}
COMMANDS = {code: name for name, code in FACTS.enum("command").items()}
BRICKS = FACTS.enum("data_format")["NHCWB16"]
PRECISIONS = {
    f"{side}_PRECISION": {code: name for name, code in FACTS.enum(enum).items()}
    for side, enum in (
        ("IFM", "ifm_precision"),
        ("IFM2", "ifm_precision"),
        ("OFM", "ofm_precision"),
    )
}
DTYPES = {"U8": "uint8", "S8": "int8"}
POOLS, ADD = {0: "max", 1: "average"}, 1  # modes of a pool; of an elementwise operation
Shape3 = tuple[int, int, int]


class Words:
    """Values of a job by ``REGISTER.field``; a field that is named as its register, by that."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values

    def __getitem__(self, name: str) -> int:
        register, _, field = name.partition(".")
        return self.values[f"{REGISTERS}.{register}.{field or register.lower()}"]

    @property
    def command(self) -> str:
        """Of the operation that starts."""
        return COMMANDS[self["OP.command"]]

    def pair(self, name: str) -> tuple[int, int]:
        """(height, width) of what two registers or fields say less 1."""
        return self[name.format("HEIGHT", "y")] + 1, self[name.format("WIDTH", "x")] + 1


class Tensor(NamedTuple):
    """A feature map in memory: region and address of its first byte, ``(H, W, C)``, bytes from row
    to row and from column to column (of bricks: from brick to brick)."""

    region: int
    base: int
    shape: Shape3
    dtype: str
    bricks: bool
    row: int
    step: int

    @property
    def end(self) -> int:
        """Where what lies behind its last row begins."""
        return self.base + self.shape[0] * self.row

    @property
    def pitches(self) -> tuple[int, int]:
        """Bytes from row to row and from column to column."""
        return self.row, self.step

    def overlaps(self, other: Tensor) -> bool:
        """Return true if the two share bytes."""
        return self.region == other.region and self.base < other.end and other.base < self.end

    @property
    def width(self) -> int:
        """Columns of a row in memory, which a job need not read to the last."""
        if self.bricks:
            return self.step // BRICK
        return self.row // self.step

    def channel(self, number: int) -> int:
        """How many bytes behind the first channel another one lies."""
        if self.bricks:
            return number // BRICK * self.step + number % BRICK
        return number


class Operation(NamedTuple):
    """A layer's jobs: their tasks, and what the words of each say."""

    tasks: tuple[int, ...]
    jobs: tuple[Words, ...]

    @property
    def first(self) -> Words:
        """What the first job's words say."""
        return self.jobs[0]

    @property
    def weighs(self) -> bool:
        """Whether there are weights."""
        return self.first.command in ("conv", "depthwise")

    @property
    def slices(self) -> list[int]:
        """Output channels of each job."""
        return [job["OFM_DEPTH_M1"] + 1 for job in self.jobs]

    def tensor(self, side: str) -> Tensor:
        """What the jobs read (``IFM``, ``IFM2``) or write (``OFM``) together.

        Raises Unsupported for another type than int8 and uint8.
        """
        v = self.first
        precision = PRECISIONS[f"{side}_PRECISION"].get(v[f"{side}_PRECISION.precision"], "?")
        if precision not in DTYPES:
            raise Unsupported(
                f"lift for ethosu: got {side}_PRECISION {precision}, allowed are "
                f"{', '.join(DTYPES)} so far"
            )
        if side == "OFM":
            shape = (*v.pair("OFM_{}_M1"), sum(self.slices))
        else:
            if v.command == "depthwise":
                deep = sum(self.slices)
            else:
                deep = v["IFM_DEPTH_M1"] + 1
            shape = (*v.pair(f"{side}_{{}}0_M1"), deep)
        bricks = v[f"{side}_PRECISION.format"] == BRICKS
        return Tensor(
            v[f"{side}_REGION"],
            v[f"{side}_BASE0"],
            shape,
            DTYPES[precision],
            bricks,
            v[f"{side}_STRIDE_Y"],
            v[f"{side}_STRIDE_{'C' if bricks else 'X'}"],
        )

    def goes_on(self, v: Words) -> bool:
        """Whether a job computes the channels behind those of the jobs so far."""
        if not self.weighs or any(
            v.values.get(at) != value
            for at, value in self.first.values.items()
            if at.split(".")[1] not in MOVING
        ):
            return False
        done = sum(self.slices)
        moved = [v[f"{side}_BASE0"] - self.first[f"{side}_BASE0"] for side in ("OFM", "IFM")]
        read = 0
        if v.command == "depthwise":
            read = self.tensor("IFM").channel(done)
        return moved == [self.tensor("OFM").channel(done), read]


def operations(capture: Capture) -> list[Operation]:
    """The layers of a capture's jobs, in order."""
    out: list[Operation] = []
    for task, job in enumerate(capture.jobs):
        if job.block == REGISTERS:
            words = Words(values_of(job, capture.maps))
            if out and out[-1].goes_on(words):
                out[-1] = Operation((*out[-1].tasks, task), (*out[-1].jobs, words))
            else:
                out.append(Operation((task,), (words,)))
    return out


def origin(
    capture: Capture, task: int, region: int, address: int, size: int
) -> tuple[int, list[int]]:
    """Where the bytes that a task reads come from: their place among the coefficients, and the
    tasks that moved them.

    Raises Unsupported for bytes that no move before it brought there.
    """
    if region == WEIGHTS_REGION:
        return address, []
    for at in reversed(range(task)):
        if capture.jobs[at].block == DMA:
            v = values_of(capture.jobs[at], capture.maps)
            start = address - v[f"{DMA}.DMA0_DST.dma0_dst"]
            if (
                v[f"{DMA}.DMA0_DST_REGION.region"] == region
                and not v[f"{DMA}.DMA0_DST_REGION.internal"]
                and 0 <= start <= v[f"{DMA}.DMA0_LEN.dma0_len"] - size
            ):
                place, tasks = origin(
                    capture,
                    at,
                    v[f"{DMA}.DMA0_SRC_REGION.region"],
                    v[f"{DMA}.DMA0_SRC.dma0_src"] + start,
                    size,
                )
                return place, [at, *tasks]
    raise Unsupported(
        f"task {task}: got {size} bytes of coefficients at {address:#x} of region "
        f"{region}, allowed is what a DMA job before it moved there"
    )
