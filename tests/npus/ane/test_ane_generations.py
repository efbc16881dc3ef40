"""ANE generations beside H13: the register tables of H11 and H14 to H18, and their task tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ane_streams import (
    H11_SLOT,
    base_of,
    bases_of,
    make_h14,
    place,
    place_h14,
    record_to,
    states,
    strays,
    words_of_record,
    write_h14,
    written,
)
from conftest import shared
from hypothesis import given, settings, strategies as st
from refusals import refused

import npulab
from npulab.npus.ane import tasks
from npulab.npus.ane.facts import HEADER
from npulab.npus.ane.tasks import (
    H11,
    PREAMBLE,
    Record,
    Task,
    bytes_of,
    first_broken,
    preamble,
    read_h14,
    read_list,
    split,
    words_of,
)
from npulab.registers.map import RegisterMap
from npulab.support.files import read_table

TABLES = Path(npulab.__file__).parent / "npus/ane"
MAPS = {
    name: RegisterMap.read(TABLES / f"{name}.csv", dense=False)
    for name in ("h11", "h14", "h15", "h16", "h17", "h18")
}
STREAMED = ("h14", "h15", "h16", "h17", "h18")
HEADERS = {"h14": 8, "h15": 8, "h16": 9, "h17": 9, "h18": 9}  # words without DTID


def make_h11(header: Sequence[int], listed: Sequence[Record]) -> Task:
    return tasks.make(header, listed, H11)


def place_h11(listed: Sequence[Task]) -> list[Task]:
    return place(listed, H11, H11_SLOT)


def read_h11(text: bytes, words: int | None = None) -> list[Task]:
    return read_list(text, 0, words, "H11 tasks", H11)


write_h11 = tasks.write


def by_block(name: str) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for block, offset, _ in MAPS[name].registers:
        out.setdefault(block, []).append(offset)
    return out


def named_bits(name: str) -> dict[str, int]:
    named = np.bitwise_count(MAPS[name].coverage().named)
    out: dict[str, int] = {}
    for (block, _, _), bits in zip(MAPS[name].registers, named.tolist(), strict=True):
        out[block] = out.get(block, 0) + bits
    return out


def said(registers: RegisterMap, key: str, state: np.ndarray) -> int:
    """The value of a field in its unit; floats and enums as they are stored."""
    item = registers[key]
    raw = int(item.extract(state))
    return raw if item.meaning.kind or item.meaning.enum else item.text(raw)


# Tables

BLOCKS: dict[str, dict[str, tuple[int, int, int]]] = {name: {} for name in MAPS}
for _row in read_table(Path(__file__).with_name("blocks.csv")):
    _counts = int(_row["offset"], 0), int(_row["registers"]), int(_row["bits"])
    BLOCKS[_row["map"]][_row["block"]] = _counts


@pytest.mark.parametrize("name", MAPS)
def test_blocks_have_the_words_and_named_bits_that_the_sources_state(name: str) -> None:
    got = {
        block: (offsets[0], len(offsets), named_bits(name)[block])
        for block, offsets in by_block(name).items()
    }
    assert got == BLOCKS[name]
    assert all(
        offsets == list(range(offsets[0], offsets[-1] + 4, 4))
        for offsets in by_block(name).values()
    )


@pytest.mark.parametrize("name", MAPS)
def test_every_bit_has_a_row_and_every_row_its_evidence(name: str) -> None:
    registers = MAPS[name]
    assert [found for found in registers.lint() if found.kind == "hole"] == []
    assert len(registers.index) == len(registers)  # offsets are unique over the blocks
    assert {item.evidence for item in registers if not item.automatic} <= {
        "FT",
        "JW",
        "AG",
        "guess",
    }
    assert {item.evidence for item in registers if item.automatic} <= {"unknown", "JW"}
    words = np.random.default_rng(1).integers(0, 2**32, (5, len(registers)), np.uint32)
    np.testing.assert_array_equal(
        registers.encode(registers.decode(words, raw=True), raw=True), words
    )
    inside = [offset for _, offset, _ in registers.registers if offset < HEADER]
    assert name == "h11" or max(inside) < 4 * 2**15


def test_h11_tasks_have_the_332_bytes_that_their_disassembler_reads() -> None:
    blocks = {block: len(offsets) for block, offsets in by_block("h11").items()}
    assert (
        4 * (blocks.pop("Header") - 1 + sum(1 + words for words in blocks.values()))
        == 332
        == 4 * H11.size
    )


@pytest.mark.parametrize("name", MAPS)
def test_names_are_those_of_h13_where_the_same_is_meant(name: str) -> None:
    h13 = {(row["section"], row["name"]) for row in read_table(shared("facts/ane_h13_fields.csv"))}
    fields = {text.split(".")[-1] for _, text in h13}
    common = {
        "Win",
        "Hin",
        "Din",
        "Cin",
        "Wout",
        "Hout",
        "Dout",
        "Cout",
        "Kw",
        "Kh",
        "Sx",
        "Sy",
        "Px",
        "Py",
        "Ox",
        "Oy",
        "OCGSize",
        "TileHeight",
        "UnicastEn",
        "UnicastCin",
        "ActiveNE",
        "NID",
    }
    have = {item.name for item in MAPS[name] if item.block == "Common"}
    assert common - have == ({"Din", "Dout"} if name == "h11" else set())
    assert common <= fields
    for block, text in (
        ("NE", "MACCfg.NonlinearMode"),
        ("NE", "KernelCfg.KernelFmt"),
        ("NE", "PostScale.PostScale"),
        ("L2", "SourceBase.Addr"),
        ("L2", "SourceRowStride.Stride"),
        ("L2", "ResultBase.Addr"),
        ("L2", "ConvResultRowStride.Stride"),
        ("TileDMASrc", "DMAConfig.En"),
        ("TileDMASrc", "RowStride.Stride"),
        ("TileDMADst", "RowStride.RowStride"),
        ("Header", "Header[0].TID"),
    ):
        assert (block, text) in h13
        assert MAPS[name][f"{block}.{text}"].block == block


# Records as a compiler writes them: words of JW, H14 to H18

HEADS = {
    0xFFF00640: (0x1900, 12, None),
    0x00020651: (0x1944, 5, None),
    0x000F0657: (0x195C, 31, None),
    0xB26E0000: (0, 9, None),
    0x860F0141: (0x504, 7, None),
    0x804C0540: (0x1500, 4, None),
    0x20808642: (0x1908, 2, 1),
    0x22008444: (0x1110, 2, 4),
    0x22808542: (0x1508, 2, 5),
    0x2300844A: (0x1128, 2, 6),
    0x21808542: (0x1508, 2, 3),
    0x2080067D: (0x19F4, 1, 1),
    0x93418005: (0x14, 7, None),
    0x24009544: (0x5510, 2, 8),
    0x22001340: (0x4D00, 1, 4),
    0xC0301440: (0x5100, 4, None),
    0x2400958E: (0x5638, 2, 8),
}


@pytest.mark.parametrize("head", HEADS, ids=hex)
def test_records_of_a_compiler(head: int) -> None:
    address, count, base = HEADS[head]
    words = [head, *range(count)]
    (record,) = split(words, 0, True, "record")
    assert (record.address, len(record.values), base_of(record)) == (address, count, base)
    assert words_of_record(record) == words


def test_a_mask_names_the_registers_behind_the_first() -> None:
    (record,) = split([0xB26E0000, *range(9)], 0, True, "record")
    assert [address for address, _ in record.writes] == [
        0,
        0xC,
        0x10,
        0x14,
        0x1C,
        0x20,
        0x2C,
        0x38,
        0x3C,
    ]


def convolution() -> Task:
    """A 3x3 convolution, 64 to 64 channels on 8x8 fp16, as the compiler writes it for H14 (JW)."""
    engines = [0x21] * 16
    sizes = [0x1200 * i for i in range(1, 16)] + [0x1200] * 16
    return make_h14(
        [0, 4, 0x2A, 0, 0xFFF868, 0, 0, 0x50001],
        [
            Record(0x1900, (0x102C0, *engines[:11]), mask=0xFFE0),
            Record(0x1944, tuple(engines[11:])),
            Record(0x195C, tuple(sizes)),
            Record(
                0, (0x80008, 64, 64, 0x80008, 2, 0x5042A0C3, 8, 0x244405, 0x100000), mask=0x64DC
            ),
            Record(0x1100, (0xE21, 0xCE, 0x40, 0x200), mask=0x62),
            Record(0x1150, (0x1002031,)),
            Record(0x504, (0x500172, 0x10, 0x430, 0x400, 0x400, 0x50017A, 0x2180), mask=0xC1E),
            Record(0xD04, (0x101C00, 0x3C00), mask=4),
            Record(0x1500, (0x1000E31, 0x40, 0x200, 0x1302031), mask=0x98),
            record_to(0x1908, 0, 0, base=1),
            record_to(0x1110, 0, 0, base=4),
            record_to(0x1508, 0, 0, base=5),
        ],
    )


def test_a_convolution_of_h14() -> None:
    task = convolution()
    heads = [words_of_record(record)[0] for record in task.records]
    assert heads == [
        0xFFF00640,
        0x00020651,
        0x000F0657,
        0xB26E0000,
        0x80310440,
        0x00000454,
        0x860F0141,
        0x80020341,
        0x804C0540,
        0x20808642,
        0x22008444,
        0x22808542,
    ]
    text = write_h14(place_h14([task]))
    assert (task.header[0], len(text), bases_of(task)[0x1110], bases_of(task)[0x150C]) == (
        0x650000,
        4 * 105,
        4,
        5,
    )
    assert read_h14(text) == place_h14([task])
    state = states([task], MAPS["h14"])[0]
    want = {
        "Win": 8,
        "Hin": 8,
        "Cin": 64,
        "Cout": 64,
        "Wout": 8,
        "Kw": 3,
        "Kh": 3,
        "Sx": 1,
        "Px": 1,
        "OCGSize": 2,
        "TileHeight": 8,
        "ActiveNE": 4,
        "NID": 1,
        "SourceChannelStride.Stride": 16,
        "SourceRowStride.Stride": 0x430,
        "ResultBase.Addr": 0x2180,
        "MACCfg.BinaryPoint": 28,
        "MACCfg.OpMode": 0,
        "PostScale.PostScale": 0x3C00,
        "TileDMASrc.RowStride.Stride": 64,
        "TileDMASrc.DMAConfig.DataSetId": 14,
        "DMAConfigExt.CacheHintReuse": 14,
        "DMAConfigExt.CacheHintNoReuse": 12,
        "TileDMADst.PlaneStride.PlaneStride": 0x200,
        "CoeffBaseAddr[15].Addr": 15 * 0x1200,
        "CoeffBfrSize[0].MemBfrSize": 0x1200,
        "CoeffDMAConfig[7].En": 1,
        "MasterEnable": 1,
        "ENE": 5,
        "TaskSize": 101,
        "TDE": 0,
    }
    assert {key: said(MAPS["h14"], key, state) for key in want} == want
    assert strays([task], MAPS["h14"]) == []
    assert {offset for _, offset in strays([task], MAPS["h16"])} >= {0x504, 0x1100}


# One addition, 64 channels of 8x8 fp16, as the compiler writes it for each generation (JW): header,
# first words of the records in order, words by address

ADDITIONS = {
    "h14": (
        "3e0000 2 2a 0 fff868 0 0 1",
        "640 b60e0000 18440 b0308446 87ff0141 240 804c0540 549 22008444 2300844a 22808542",
        "0=80008 c=40 10=40 14=80008 2c=8 30=34 38=33 3c=0 504=1500172 50c=10 510=420 514=400 518=400 51c=2100 520=10 524=420 "
        "528=400 52c=400 530=50017a 534=4200 900=80000 1100=e21 1104=e20 1108=ce 110c=ce 1110=0 1114=0 1118=40 111c=200 1128=0 "
        "112c=0 1130=40 1134=200 1150=1002031 1154=1002031 1500=1000e31 1508=0 150c=0 1510=40 1514=200 1520=1302031 1524=dead "
        "1900=80",
    ),
    "h15": (
        "460000 1 300002a 0 fff868 0 0 9",
        "1540 b60e0000 830c9342 935a 8ffe9041 1140 81009444 83109640 23009344 2400934a 23809442 22001340 22001341 22001440",
        "0=80008 c=40 10=40 14=80008 2c=8 30=34 38=30 3c=0 4104=500172 4108=500172 4110=10 4114=420 4118=400 411c=400 4120=2100 "
        "4124=10 4128=420 412c=400 4130=400 4134=50017a 4138=4200 4500=80000 4d00=21 4d04=21 4d08=ce 4d0c=ce 4d10=0 4d14=0 "
        "4d18=40 4d1c=200 4d28=0 4d2c=0 4d30=40 4d34=200 4d68=1002031 4d6c=1002031 5100=1000031 5108=0 510c=0 5110=40 5114=200 "
        "5138=1302031 5500=80 5900=12 5904=a000a0 5918=0 5928=7f0000 592c=20010701",
    ),
    "h16": (
        "4b0000 1 4000068 0 fff868 0 0 0 9",
        "1540 10001 95418005 830c9342 935a 9041 987f9045 1140 81009444 83109640 23009344 2400934a 23809442 22001340 22001341 "
        "22001440",
        "4=8 8=8 c=40 14=8 18=8 1c=40 34=8 3c=30 44=34 4c=0 4104=500172 4108=500172 4114=10 4118=420 411c=400 4120=400 4124=2100 "
        "4128=10 412c=420 4130=400 4134=400 4148=50017a 414c=4200 4500=80000 4d00=21 4d04=21 4d08=ce 4d0c=ce 4d10=0 4d14=0 "
        "4d18=40 4d1c=200 4d28=0 4d2c=0 4d30=40 4d34=200 4d68=1002031 4d6c=1002031 5100=1000031 5108=0 510c=0 5110=40 5114=200 "
        "5138=1302031 5500=80 5900=12 5904=a000a0 5918=0 5928=7f0000 592c=20010701",
    ),
    "h18": (
        "4e0000 1 4000068 0 fff868 0 0 0 9",
        "1540 10001 95418005 b0c39340 935c 9041 987f9045 1140 c0301440 83109640 23009346 2400934c 23809444 22001344 22001345 "
        "22001442",
        "4=8 8=8 c=40 14=8 18=8 1c=40 34=8 3c=30 44=34 4c=0 4104=500172 4108=500172 4114=10 4118=420 411c=400 4120=400 4124=2100 "
        "4128=10 412c=420 4130=400 4134=400 4148=50017a 414c=4200 4500=80000 4d00=21 4d04=21 4d08=ce 4d0c=ce 4d10=0 4d14=0 "
        "4d18=0 4d1c=0 4d20=40 4d24=200 4d30=0 4d34=0 4d38=40 4d3c=200 4d70=3211 4d74=3211 5100=1000021 5108=0 5110=0 5114=0 "
        "5118=40 511c=200 5140=f0003211 5500=80 5900=12 5904=a000a0 5918=0 5928=7f0000 592c=20010701",
    ),
}
ADDITIONS["h17"] = (
    "4e0000" + ADDITIONS["h16"][0][6:],
    ADDITIONS["h16"][1].replace("2400934a", "2400934a 2400934a"),
    ADDITIONS["h16"][2].replace("5100=1000031", "5100=1000021"),
)


@pytest.mark.parametrize("name", STREAMED)
def test_an_addition_of_every_generation(name: str) -> None:
    header, heads, words = ADDITIONS[name]
    values = {}
    for pair in words.split():
        at, _, value = pair.partition("=")
        values[int(at, 16)] = int(value, 16)
    written_by = []
    for head in heads.split():
        blank = next(split([int(head, 16), *[0] * 64], 0, True, "record"))
        written_by.append(
            blank._replace(values=tuple(values[address] for address, _ in blank.writes))
        )
    task = make_h14([int(word, 16) for word in header.split()], written_by, HEADERS[name])
    assert task.header[0] == int(header.split()[0], 16)  # the size is that of the compiler
    assert dict(task.writes) == values
    registers = MAPS[name]
    assert strays([task], registers) == []
    state = states([task], registers)[0]
    want = {
        "Win": 8,
        "Hin": 8,
        "Cin": 64,
        "Wout": 8,
        "Hout": 8,
        "Cout": 64,
        "TileHeight": 8,
        "PatchWidthLog2": 4,
        "PatchHeightLog2": 3,
        "TaskType": 3,
        "NID": 0,
        "Common.Cfg.ActiveNE": 0,
        "PE.Cfg.OpMode": 0,
        "PE.Cfg.SecSrc": 2,
        "SourceBase.Addr": 0,
        "SourceChannelStride.Stride": 16,
        "SourceRowStride.Stride": 0x420,
        "SourceGroupStride.Stride": 0x400,
        "Src2Base.Addr": 0x2100,
        "Src2ChannelStride.Stride": 16,
        "L2.Src2RowStride.Stride": 0x420,
        "ResultBase.Addr": 0x4200,
        "ResultCfg.ResultType": 2,
        "TileDMASrc.DMAConfig.En": 1,
        "TileDMASrc.RowStride.Stride": 64,
        "TileDMASrc.PlaneStride.PlaneStride": 512,
        "TileDMASrc.Src2RowStride.Stride": 64,
        "Src2PlaneStride.Stride": 512,
        "TileDMADst.DMAConfig.En": 1,
        "TileDMADst.RowStride.RowStride": 64,
        "TileDMADst.PlaneStride.PlaneStride": 512,
        "MasterEnable": 0,
        "ENE": 0,
        "TDE": 0,
        "DTID": 0,
    }
    assert {key: said(registers, key, state) for key in want} == want
    bases = {
        register: bases_of(task)[offset]
        for _, offset, register in registers.registers
        if offset in bases_of(task) and "Lo" in register
    }
    sources = (4, 6, 5) if name == "h14" else (6, 8, 7)
    assert [bases[key] for key in ("BaseAddrLo", "Src2BaseAddrLo")] == [
        sources[2],
        sources[1],
    ]  # the last one is the result's
    named = registers["TileDMASrc.BaseAddrLo.Addr"].pieces[0].word
    assert bases_of(task)[registers.registers[named][1]] == sources[0]


# H13 says the same layer


def h13_map() -> RegisterMap:
    """The H13 fields of the facts, by hardware address."""
    rows = []
    for row in read_table(shared("facts/ane_h13_fields.csv")):
        place = re.search(r"\[hw (0x[0-9a-f]+)]", row["meaning"])
        register, _, field = row["name"].rpartition(".")
        if place and row["section"] == "Common":
            rows.append(
                {
                    "block": "Common",
                    "offset": place[1],
                    "register": register,
                    "field": field,
                    "lsb": row["lsb"],
                    "width": row["width"],
                }
            )
    return RegisterMap(rows, dense=False)


@pytest.mark.parametrize("name", STREAMED)
def test_the_same_layer_as_an_h13_task_decodes_to_the_same_values(name: str) -> None:
    dump = json.loads(
        shared("data/ane/oracle_words/env_conv_k3_c64_n64_s16_st1_g1_bias0.json").read_text()
    )
    h13, registers = h13_map(), MAPS[name]
    fields = {
        item.name: item for item in registers if item.block == "Common" and not item.automatic
    }
    words = h13.state(
        (int(offset, 16), int(value, 16)) for offset, value in dump["registers"].items()
    )
    layer = {}
    for item in h13:
        if item.name in fields and item.name not in ("InFmt", "OutFmt", "Kd"):
            layer[item.name] = int(item.extract(words))
    assert {
        "Win": 16,
        "Hin": 16,
        "Cin": 64,
        "Kw": 3,
        "Kh": 3,
        "Px": 1,
        "Cout": 64,
        "ActiveNE": 4,
    }.items() <= layer.items()
    encoded = registers.encode(
        {f"Common.{fields[key].register}.{key}": value for key, value in layer.items()}
    )
    common = [
        (offset, int(encoded[registers.index[offset]]))
        for block, offset, _ in registers.registers
        if block == "Common"
    ]
    header = [0] * HEADERS[name]
    task = make_h14(header, [Record(0, tuple(value for _, value in common))], HEADERS[name])
    (read,) = read_h14(write_h14(place_h14([task])), HEADERS[name])
    decoded = registers.decode(states([read], registers)[0], raw=True)
    assert {key: decoded[registers.key(fields[key])] for key in layer} == layer


# Round trips

WORD = st.integers(0, 2**32 - 1)


@st.composite
def compact_records(draw: st.DrawFn) -> Record:
    mask = draw(st.none() | st.integers(0, 2**16 - 1))
    count = draw(st.integers(1, 64)) if mask is None else 1 + mask.bit_count()
    reach = count if mask is None else 1 + mask.bit_length()
    address = 4 * draw(st.integers(0, 2**15 - reach))
    return Record(
        address,
        tuple(draw(st.lists(WORD, min_size=count, max_size=count))),
        mask,
        0 if mask is not None else draw(st.integers(0, 2**10 - 1)),
    )


@st.composite
def tasks_h14(draw: st.DrawFn, header_words: int) -> Task:
    header = draw(st.lists(WORD, min_size=header_words, max_size=header_words))
    if header[-1] >> 1 & 1:
        header.append(draw(WORD))
    return make_h14(header, draw(st.lists(compact_records(), max_size=6)), header_words)


@st.composite
def tasks_h11(draw: st.DrawFn) -> Task:
    header = draw(st.lists(WORD, min_size=7, max_size=7))
    if header[4] >> 24 & 1:
        header.append(draw(WORD))
    room, records = 84 - len(header), []
    while room > 1:
        count = draw(st.integers(1, min(64, room - 1)))
        if room - count == 2:  # a word alone cannot be a record
            count += 1 if count < 64 else -1
        records.append(
            Record(
                4 * draw(st.integers(0, 2**24 - count)),
                tuple(draw(st.lists(WORD, min_size=count, max_size=count))),
            )
        )
        room -= 1 + count
    return make_h11(header, records)


@given(st.data())
@settings(max_examples=60)
def test_streams_round_trip(data: st.DataObject) -> None:
    words = data.draw(st.sampled_from([8, 9, 10]))
    tasks = place_h14(
        data.draw(st.lists(tasks_h14(words), max_size=4)),
        data.draw(st.sampled_from([16, 64, 0x1000])),
    )
    first = bytes_of(
        [data.draw(WORD) & ~0x07FF0000, *data.draw(st.lists(WORD, min_size=3, max_size=3))]
    )
    size = (tasks[-1].end if tasks else 16) + 4 * data.draw(st.integers(0, 50))
    text = write_h14(tasks, first=first, size=size)
    assert len(text) == size
    assert read_h14(text, words) == tasks
    assert write_h14(read_h14(text, words), first=preamble(text), size=len(text)) == text
    for task in tasks:
        again = make_h14(task.header, task.records, words)
        assert replace(again, offset=task.offset) == task


@given(st.lists(tasks_h11(), min_size=1, max_size=3))
@settings(max_examples=30)
def test_lists_of_h11_round_trip(tasks: list[Task]) -> None:
    listed = place_h11(tasks)
    text = write_h11(listed)
    assert read_h11(text, len(tasks[0].raw) // 4) == listed
    assert write_h11(read_h11(text, len(tasks[0].raw) // 4)) == text
    assert [task.records for task in listed] == [task.records for task in tasks]
    assert [task.offset for task in listed] == [0x200 * n for n in range(len(tasks))]


def h11_task() -> Task:
    """A task with a record for each block of H11, register i of it i + 1 times its place."""
    blocks = [offsets for block, offsets in by_block("h11").items() if block != "Header"]
    header = [7, 0, 0, 0, 0, 0, 0]
    records = []
    for n, offsets in enumerate(blocks):
        values = range(n + 1, (n + 1) * (len(offsets) + 1), n + 1)
        records.append(Record(0x1000 * n, tuple(values)))
    return make_h11(header, records)


def test_h11_registers_are_found_by_the_place_of_their_record() -> None:
    (task,) = read_h11(write_h11(place_h11([h11_task()])))
    registers = MAPS["h11"]
    state = states([task], registers)[0]
    assert strays([task], registers) == []
    for n, (block, offsets) in enumerate(
        item for item in by_block("h11").items() if item[0] != "Header"
    ):
        assert [int(state[registers.index[offset]]) for offset in offsets] == [
            (n + 1) * (i + 1) for i in range(len(offsets))
        ], block
    assert registers.decode(state)["TID"] == 7


def test_plain_h11_tasks_have_83_words_and_84_with_dtid() -> None:
    plain = h11_task()
    waiting = make_h11([*plain.header[:4], 2**24, *plain.header[5:], 5], plain.records)
    assert (len(plain.raw), len(waiting.raw)) == (332, 336)
    tasks = place_h11([waiting, plain, waiting])
    assert read_h11(write_h11(tasks)) == tasks
    unsized = [replace(task, raw=bytes_of([task.words[0], 0, *task.words[2:]])) for task in tasks]
    assert read_h11(write_h11(unsized)) == unsized
    assert MAPS["h11"].decode(states(tasks, MAPS["h11"]))["DTID"].tolist() == [5, 0, 5]


# What a register holds


@given(st.lists(tasks_h14(8), max_size=4))
@settings(max_examples=30)
def test_states_are_what_all_writes_so_far_leave(tasks: list[Task]) -> None:
    registers = MAPS["h14"]
    got = states(tasks, registers)
    assert got.shape == (len(tasks), len(registers))
    writes: list[tuple[int, int]] = []
    for n, task in enumerate(tasks):
        writes += task.writes
        header = [(HEADER + 4 * i, word) for i, word in enumerate(task.header)]
        np.testing.assert_array_equal(
            got[n], registers.state([(at, value) for at, value in writes if at < HEADER] + header)
        )


def test_a_register_keeps_its_value_until_it_is_written_again() -> None:
    header = [0] * 8
    tasks = [
        make_h14(header, [Record(0, (0x80008,)), Record(0xC, (64,))]),
        make_h14([*header[:7], 2, 9], [Record(0xC, (3,))]),
        make_h14(header, [Record(0xC, (5,)), Record(0xC, (6,))]),
    ]
    values = MAPS["h14"].decode(states(tasks, MAPS["h14"]))
    assert values["Win"].tolist() == [8, 8, 8]
    assert values["Cin"].tolist() == [64, 3, 6]
    assert values["DTID"].tolist() == [0, 9, 0]
    known = {
        register: written(tasks, MAPS["h14"])[:, MAPS["h14"].index[offset]].tolist()
        for _, offset, register in MAPS["h14"].registers
    }
    assert {name for name, of in known.items() if any(of)} == {
        "InDim",
        "Cin",
        *(f"Header[{i}]" for i in range(9)),
    }
    assert known["InDim"] == [True, True, True]
    assert known["Header[8]"] == [False, True, False]
    assert states([], MAPS["h14"]).shape == (0, len(MAPS["h14"]))


# Refusals


def stream(*words: int, at: int = 16, size: int | None = None) -> bytes:
    body = bytes(at - 16) + bytes_of(words)
    return PREAMBLE + body + bytes((size or 0) - 16 - len(body) if size else 0)


def task_words(*records: int, size: int | None = None, control: int = 0) -> list[int]:
    return [
        2**16 * (8 + len(records) if size is None else size),
        0,
        0,
        0,
        0,
        0,
        0,
        control,
        *records,
    ]


BAD = {
    "a section of no whole words": (PREAMBLE + bytes(3), ["19 bytes"]),
    "a task past the end": (
        stream(*task_words(0, 1, size=11)),
        ["task 0 at byte 0x10", "11 words", "10 words"],
    ),
    "a task shorter than its header": (
        stream(*task_words(size=7)[:7]),
        ["task 0 at byte 0x10", "7 words", "8 of its header"],
    ),
    "no room for the DTID": (stream(*task_words(control=2)), ["8 words", "9 of its header"]),
    "a dense record past its task": (
        stream(*task_words(0x8000, 1)),
        ["task 0", "byte 0x30", "2 values", "1 words"],
    ),
    "a sparse record past its task": (
        stream(*task_words(0x80018000, 1, 2)),
        ["byte 0x30", "3 values", "2 words"],
    ),
    "a record without values": (stream(*task_words(0, 1, 0)), ["byte 0x38", "1 values", "0 words"]),
    "a dense record past the registers": (
        stream(*task_words(0xFFFF, 1, 2)),
        ["byte 0x30", "0x20000", "0x1fffc"],
    ),
    "a mask past the registers": (
        stream(*task_words(0xC0000000 + 0x7FF0, 1, 2)),
        ["byte 0x30", "0x20000", "0x1fffc"],
    ),
    "something between tasks": (stream(*task_words(0, 1), 0, 5), ["task 1 at byte 0x3c", "0x5"]),
    "a frame without a size": (
        stream(*task_words(0, 1), 0, 0, 7, 0, 0, 0),
        ["task 1 at byte 0x40", "0x7"],
    ),
    "the second task is broken": (
        stream(*task_words(0, 1), 0, 0, *task_words(0x8000, 1)),
        ["task 1 at byte 0x40", "byte 0x60"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_broken_streams_are_refused(case: str) -> None:
    text, words = BAD[case]
    refused(lambda: read_h14(text), *words)


def h11_text(**header: int) -> bytes:
    """Two H11 tasks; ``header`` are words of the first one that are wrong, by w0, w1, ..."""
    words = words_of(write_h11(place_h11([h11_task(), h11_task()])))
    for name, value in header.items():
        words[int(name[1:])] = value
    return bytes_of(words)


BAD_H11 = {
    "no task": (b"", ["task 0 at byte 0x0", "7 of a header"]),
    "no whole words": (h11_text()[:-1], ["multiple of 4"]),
    "a list that loops": (h11_text(w5=0x14), ["task 0", "0x14", "does not go back"]),
    "a list into its own task": (h11_text(w5=0x148), ["0x148", "from 0x14c"]),
    "a list past the end": (h11_text(w5=0x4000), ["0x4000", "NextPointer"]),
    "a list to no word": (h11_text(w5=0x201), ["0x201"]),
    "something between tasks": (h11_text(w90=1), ["0x14c", "0x200"]),
    "something behind the tasks": (h11_text() + bytes([1, 0, 0, 0]), ["task 1", "after it"]),
    "a size past the end": (h11_text(w1=2**16 * 200), ["task 1 at byte 0x200", "201 words"]),
    "a size below the header": (h11_text(w1=2**16 * 3), ["task 1", "4 words"]),
    "a record to no word": (h11_text(w7=2), ["task 0", "byte 0x1c", "0x2"]),
    "a record past its task": (
        h11_text(w7=63 * 2**26, w72=63 * 2**26),
        ["byte 0x120", "64 values", "10 words"],
    ),
    "a record past the registers": (h11_text(w7=2 * 2**26 + 0x3FFFFFC), ["0x1c", "0x3fffffc"]),
}


@pytest.mark.parametrize("case", BAD_H11)
def test_broken_lists_of_h11_are_refused(case: str) -> None:
    text, words = BAD_H11[case]
    refused(lambda: read_h11(text), *words)


def test_what_cannot_be_written_is_refused() -> None:
    (task,) = place_h14([make_h14([0] * 8, [Record(0, (1,))])])
    refused(lambda: tasks.write([task, task]), "task 1", "0x10", "0x38")
    refused(lambda: tasks.write([replace(task, offset=18)]), "task 0", "0x12")
    for broken, words in (
        (lambda: write_h14([task, task]), "task 1: got the offset 0x10"),
        (lambda: write_h14([replace(task, offset=20)]), "task 0: got the offset 0x14"),
        (lambda: write_h14([task], size=40), "40 bytes.*56"),
        (lambda: write_h14([task], first=bytes(4)), "preamble"),
        (lambda: write_h14([task], first=bytes_of([2**16, 0, 0, 0])), "preamble"),
        (lambda: write_h14([replace(task, raw=task.raw + bytes(8))]), "task 0.*10 words"),
        (lambda: make_h14([0] * 9, []), "9 words.*8"),
        (lambda: make_h14([*[0] * 7, 2], []), "8 words.*9"),
        (lambda: make_h14([0] * 8, [Record(0, (1,) * 64)] * 40), "2608 words.*2047"),
        (lambda: make_h14([0] * 8, [Record(0, (2**32,))]), "4294967296.*0xffffffff"),
    ):
        with pytest.raises(ValueError, match=words):
            broken()
    refused(lambda: make_h14([0] * 8, [Record(2**17, (1,))]), "0x8000")
    refused(lambda: make_h14([0] * 8, [Record(2**17 - 4, (1, 2))]), "0x20000")
    for broken in (
        Record(0, ()),
        Record(0, (1,) * 65),
        Record(2, (1,)),
        Record(0, (1,), mask=1),
        Record(0, (1,), mask=0, selector=1),
    ):
        with pytest.raises(ValueError, match="record at"):
            make_h14([0] * 8, [broken])
    refused(lambda: make_h11([0] * 8, []), "8 words", "7")
    refused(lambda: make_h11([0] * 7, [Record(0, (1, 2), mask=1)]), "H14")
    refused(lambda: read_h14(b"", 0), "header words")


def test_a_section_of_zeros_has_no_task() -> None:
    assert read_h14(bytes(2**26)) == []
    assert read_h14(b"") == read_h14(PREAMBLE) == []


def test_no_more_tasks_than_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tasks.MOST_TASKS == 2**16
    monkeypatch.setattr(tasks, "MOST_TASKS", 100)  # 65,537 tasks take 2 s
    one = bytes_of(task_words(0, 1)) + bytes(8)
    assert len(read_h14(PREAMBLE + one * tasks.MOST_TASKS)) == tasks.MOST_TASKS
    refused(lambda: read_h14(PREAMBLE + one * (tasks.MOST_TASKS + 1)), "100")
    linked: list[int] = []
    for n in range(tasks.MOST_TASKS + 1):
        linked += (0, 6 * 2**16, 0, 0, 0, 28 * (n + 1), 0)
    refused(lambda: read_h11(bytes_of(linked), 7), "100")


def mutated(text: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(text)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(out)))
        kind = rng.integers(4)
        if kind == 0:
            out[at] ^= 2 ** int(rng.integers(8))
        elif kind == 1:
            out[at : at + 4] = rng.bytes(4)
        elif kind == 2:
            del out[at - at % 4 :]
        else:
            out[at:at] = bytes(4 * int(rng.integers(1, 9)))
        out = out or bytearray(4)
    return bytes(out)


def check_mutated(count: int, seed: int) -> int:
    """Mutated streams are read to what writes them again, or refused with what was got and
    where; the refused ones.
    """
    rng = np.random.default_rng(seed)
    compact = write_h14(
        place_h14([convolution(), make_h14([*[0] * 7, 2, 7], [Record(0, (1,))]), convolution()])
    )
    listed = write_h11(place_h11([h11_task()] * 3))
    errors = []
    for n in range(count):
        text = mutated(listed if n % 2 else compact, rng)
        try:
            tasks = read_h11(text) if n % 2 else read_h14(text)
        except ValueError as error:
            errors.append(str(error))
        else:
            for task in tasks:
                assert sum(len(record.values) for record in task.records) == len(task.writes)
            again = (
                write_h11(tasks).ljust(len(text), b"\0")
                if n % 2
                else write_h14(tasks, first=preamble(text), size=len(text))
            )
            assert again == text
    assert [
        text
        for text in errors
        if not re.search(r"(task \d+ at byte 0x|: got \d+ bytes).*allowed", text)
    ] == []
    return len(errors)


def test_mutated_streams_are_read_exactly_or_refused() -> None:
    assert 100 < check_mutated(300, 6) < 300


@pytest.mark.long
def test_many_mutated_streams_are_read_exactly_or_refused() -> None:
    assert check_mutated(10_000, 7) > 3000


def plainly_broken(words: Sequence[int], starts: np.ndarray, ends: np.ndarray) -> int | None:
    for n, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        try:
            list(split(words[:end], start, True, "run"))
        except ValueError:
            return n
    return None


def test_all_runs_at_a_time_are_checked_as_one_by_one() -> None:
    rng = np.random.default_rng(8)
    answers = set()
    for _ in range(200):
        words = rng.integers(0, 2**32, 60, np.uint32)
        words[rng.random(60) < 0.7] &= 0x0001007F  # short dense records
        edges = np.sort(rng.choice(61, 2 * int(rng.integers(0, 6)), replace=False))
        starts, ends = edges[0::2], edges[1::2]
        answers.add(got := first_broken(words, starts, ends))
        assert got == plainly_broken(words.tolist(), starts, ends)
    assert {None, 0, 1} <= answers


def test_put_refuses_what_does_not_fit() -> None:
    refused(lambda: tasks.put(64, tasks.COUNT), "0x40", "20:15")
    assert tasks.cut(tasks.put(63, tasks.COUNT), tasks.COUNT) == 63
