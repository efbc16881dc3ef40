"""Kernel buffers of the Apple Neural Engine (H13): bytes and weights, every form, whole and
broken.
"""

from __future__ import annotations

import csv
import hashlib
import json
import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import ane_by_weight as plain
import numpy as np
import pytest
from ane_writers import decode_constants, encode_constants, matvec
from conftest import shared
from hypothesis import given, settings, strategies as st

from npulab.npus.ane import coefficients
from npulab.npus.ane.coefficients import Kernel
from npulab.npus.ane.coefficients.fast import labels
from npulab.quant.layers import Conv2D

TWO = (2, 2)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint16)


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Bit for bit: NaN and both zeros are told apart."""
    return a is b or (
        a is not None and b is not None and a.shape == b.shape and np.array_equal(bits(a), bits(b))
    )


def tensor(k: Kernel, halves: np.ndarray) -> np.ndarray:
    """Weights of a kernel out of halfwords in the order output, input, row, column."""
    order = (1, 2, 3, 0) if k.depthwise else (0, 2, 3, 1)
    shape = (k.outputs, k.depth, k.kernel_h, k.kernel_w)
    return np.ascontiguousarray(halves.reshape(shape).transpose(order)).view(np.float16)


def content(k: Kernel, seed: int, zeros: float = 0.3) -> tuple[np.ndarray, np.ndarray | None]:
    """Any halfwords, some of them 0; of a sparse kernel never -0."""
    random = np.random.RandomState(seed)
    halves = random.randint(0, 2**16, k.shape).astype(np.uint16)
    halves[random.random_sample(k.shape) < zeros] = 0
    if k.sparse:
        halves[halves == 0x8000] = 1
    bias = (
        random.randint(0, 2**16, k.outputs).astype(np.uint16).view(np.float16) if k.bias else None
    )
    return halves.view(np.float16), bias


# What the compiler made, by the SHA-256 of the constant section: joshuaswarren/mil-hwx-compiler
# records it, with the registers, in research/oracles/h13/<case>.json (commits 17fb843 and later;
# *_tiny in receipts/).  No bytes are kept there or here.  Weights, then biases, are either 1, 2, 3,
# ... or the leading halfwords of a weight file whose header was read as weights: 128 bytes of it,
# then one value.


def counted(k: Kernel) -> tuple[np.ndarray, np.ndarray | None]:
    numbers = np.arange(1, k.outputs * k.depth * k.kernel_h * k.kernel_w + k.outputs + 1).astype(
        np.uint16
    )
    return tensor(k, numbers[: -k.outputs]), numbers[-k.outputs :].view(
        np.float16
    ) if k.bias else None


def file_read_as_weights(k: Kernel, value: int) -> tuple[np.ndarray, np.ndarray | None]:
    count = k.outputs * k.depth * k.kernel_h * k.kernel_w
    head = struct.pack("<II56xIQQ44x", 1, 2, 0xDEADBEEF, 2 * max(count, k.outputs * k.bias), 128)
    halves = np.concatenate(
        [np.frombuffer(head, np.uint16), np.full(max(count, k.outputs), value, np.uint16)]
    )
    return tensor(k, halves[:count]), halves[: k.outputs].copy().view(
        np.float16
    ) if k.bias else None


SECTIONS = {
    "encoder_conv_idx_c4_n8_k1x1_s1_g1_bias0_valid_tiny": (
        Kernel(8, 4, small=True),
        None,
        "fa0d97a8588e0252e2464775631c4705cdfe6c408810eff226e0de37a7e04fff",
    ),
    "env_conv_k1_c768_n768_s1_st1_g1_bias1": (
        Kernel(768, 768, bias=True, small=True),
        0x3800,
        "886a46a240295be61f4bfaa5662e12097460cc4bb91191412a944b192f5f41a1",
    ),
    "encoder_conv_idx_c256_n256_k1x1_s1_g1_bias1_valid_pw375": (
        Kernel(256, 256, bias=True),
        None,
        "66c76aae43a13efcac6806256da29dc120a093408b7bff61e6f8b07e8be44c55",
    ),
    "encoder_conv_idx_c1024_n1024_k9x1_s1_g1024_bias1_same_hmaj": (
        Kernel(1024, 1024, 9, 1, 1024, bias=True),
        None,
        "1641a5be80e72341b00c009e31a07726be2b693a37a40940c95c8937a0ba6ccd",
    ),
    # two output columns at a time
    "encoder_conv_idx_c1024_n1024_k1x9_s1_g1024_bias1_same_wmaj": (
        Kernel(1024, 1024, 1, 9, 1024, (1, 2), bias=True, columns=2),
        None,
        "8ddc1e754471fac715b1ed2663ae47338ee1f1526d0c6a19458fde9fd24b2099",
    ),
    "matmul_m1_k256_n512_ty1": (
        matvec(512, 256),
        0x3800,
        "09c56ca00b10f44fdb3a61543ee46156c2413aabd2df7a3041de36d88876fa6a",
    ),
    "conv_known_k3_c64_n128_s16_st1_g4_bias1_same": (
        Kernel(128, 64, 3, 3, groups=4, bias=True),
        0x3801,
        "906716e611cc48f392eda9ce7798a8609816cbc6d9fcabbdf196a672810ef55a",
    ),
    "encoder_conv_idx_c1_n4_k3x3_s2_g1_bias1_same_tiny": (
        Kernel(4, 1, 3, 3, stride=TWO, bias=True, sparse=True, small=True),
        None,
        "7e6fcd05070661dd3f8054527f8938615fe1bfbf7f1204007f7f7df4f94838cb",
    ),
    "encoder_conv_idx_c1_n256_k3x3_s2_g1_bias1_same_x3000x128": (
        Kernel(256, 1, 3, 3, stride=TWO, bias=True, sparse=True),
        None,
        "b0d091a220da49e13bb2c3ae4671f65a1236b0951397be7ab9dc2b4580077fd4",
    ),
    "encoder_conv_idx_c256_n256_k3x3_s2_g256_bias1_same_x1500x64": (
        Kernel(256, 256, 3, 3, 256, TWO, bias=True, sparse=True),
        None,
        "10f89c21b5d325d80a8e7e7286ea6f4447b99134284d7d3ee369fd6c5430f1c7",
    ),
    "conv_probe_k1_c64_n64_s1_st2_g1_bias1_same": (
        Kernel(64, 64, stride=TWO, bias=True, sparse=True, small=True),
        0x3800,
        "e54e8a8b43e8b8a507e604d0fc3cffaa87b3b3b8a4f74eb6f40fcfefdf67ab14",
    ),
    "conv_probe_k1_c64_n512_s16_st2_g1_bias0_same": (
        Kernel(512, 64, stride=TWO, sparse=True, small=True),
        0x3800,
        "52a6aea46c29ef59afd89006a0d33e30c999ffb90ceff14f06797f246cc24864",
    ),
    "conv_probe_k1_c256_n256_s16_st2_g256_bias0_same": (
        Kernel(256, 256, groups=256, stride=TWO, sparse=True, small=True),
        0x3800,
        "67c85374ea3ba249ae1c49878e33ef61dcb0fee417f77d240e591919a92ca4eb",
    ),
    "conv_known_k1_c64_n256_s16_st2_g4_bias1_same": (
        Kernel(256, 64, groups=4, stride=TWO, bias=True, sparse=True, small=True),
        0x3801,
        "41e7c7878980efee8e9a0496882802a8550b4b147f27ee4a3e8a7a41235d57d0",
    ),
    "conv_known_k3_c64_n64_s16_st2_g1_bias1_same": (
        Kernel(64, 64, 3, 3, stride=TWO, bias=True, sparse=True, small=True),
        0x3801,
        "fc7b27a1273dbdc1e97d92d3c297cbb25becafb45dd280e5469b3220df057883",
    ),
    "conv_probe_k3_c64_n64_s64_st2_g1_bias1_valid": (
        Kernel(64, 64, 3, 3, stride=TWO, bias=True, sparse=True),
        0x3800,
        "4c1355b2df33593cf7125a509a09c16e028f7244b4fb2d9ea500fe0a50dba3f5",
    ),
    "conv_known_k3_c128_n128_s16_st2_g128_bias1_same": (
        Kernel(128, 128, 3, 3, 128, TWO, bias=True, sparse=True, small=True),
        0x3801,
        "ea895c9ede41fa3c235261b99ab006092621cd398d93a05248458a191f3e858e",
    ),
    # a count of more than 16 bits
    "conv_probe_k3_c512_n512_s16_st2_g1_bias0_same": (
        Kernel(512, 512, 3, 3, stride=TWO, sparse=True, small=True),
        0x3800,
        "19386383e125db712c10cc3fe4e0b2c9d9978e361ac3e3f2fa1b13323f79ff3c",
    ),
}


@pytest.mark.parametrize("case", SECTIONS)
def test_sections_of_the_compiler(case: str) -> None:
    k, value, sha256 = SECTIONS[case]
    weights, bias = counted(k) if value is None else file_read_as_weights(k, value)
    section = coefficients.encode(k, weights, bias)
    assert hashlib.sha256(section).hexdigest() == sha256
    found = coefficients.decode(k, section)
    if k.sparse:
        weights = (
            np.where(bits(weights) == 0x8000, 0, bits(weights)).astype(np.uint16).view(np.float16)
        )
    assert same(found[0], weights)
    assert same(found[1], bias)
    assert coefficients.encode(k, *found) == section


def test_section_of_several_tasks() -> None:
    """Four tasks of 512 channels each, the last channels first, at a base of 1 MiB each; weights
    are halves of 1, 2, ...
    (encoder_conv_idx_c1024_n2048_k1x1_s1_g1_bias0_valid_wmaj_u32)."""
    k = Kernel(512, 1024)
    weights = np.arange(1, 2048 * 1024 // 2 + 1, dtype="<u4").view(np.float16).reshape(4, *k.shape)
    section = b"".join(coefficients.encode(k, part) for part in weights[::-1])
    assert (
        hashlib.sha256(section).hexdigest()
        == "f2bd5080f6292ac67cd55bb87cd37fa93a35aade111e5935d495b1edd271609b"
    )
    for task in range(4):
        at = coefficients.engines(k) + np.array([task * 2**20, 0])
        assert same(coefficients.decode(k, section, at)[0], weights[3 - task])


def test_table_before_the_weights_of_each_engine() -> None:
    """chain_pair_mm_gelu_d256_s64: a product of 64 rows and gelu in one task, all weights
    0x3400.
    """
    table = shared("data/ane/h13_tasks/activation/gelu.bin").read_bytes()[640:768]
    k = replace(matvec(256, 256, 64), table=True)
    weights = np.full(k.shape, 0x3400, np.uint16).view(np.float16)
    section = coefficients.encode(k, weights, table=table)
    assert (
        hashlib.sha256(section).hexdigest()
        == "770151d0d90bb1dbc1ef606964435a28e860338f3b57387bf0f37b987fbcedef"
    )
    # CoeffBaseAddr, CoeffBfrSize of the task
    assert coefficients.engines(k).tolist() == [[0x2080 * engine, 0x2080] for engine in range(16)]
    assert coefficients.table_of(k, section) == table
    assert same(coefficients.decode(k, section)[0], weights)
    wrong = bytearray(section)
    wrong[0x2080 * 3 + 127] ^= 1
    with pytest.raises(
        ValueError,
        match=r"engine 3, byte 0 of its buffer: got a table that is not that of engine 0",
    ):
        coefficients.table_of(k, bytes(wrong))
    with pytest.raises(ValueError, match=r"table: got 64 bytes, allowed with this kernel is 128"):
        coefficients.encode(k, weights, table=bytes(64))
    with pytest.raises(ValueError, match=r"table: got 128 bytes, allowed with this kernel is 0"):
        coefficients.encode(replace(k, table=False), weights, table=table)


def test_constants_by_channel() -> None:
    """env_bcast_mul_1x1024x375_blob_1x1024x1."""
    scale = file_read_as_weights(Kernel(1024, 1), 0x3800)[0].ravel()
    section = encode_constants(np.zeros(1024, np.float16), scale)
    assert (
        hashlib.sha256(section).hexdigest()
        == "8e159cbac67a978fbf625392ceb01baf8da55a861fe159268c1b56e30d78f45e"
    )
    bias, found = decode_constants(section)
    assert same(found, scale)
    assert not bias.any()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "got 0 bytes"),
        (bytes(6), "got 6 bytes, allowed are multiples of 4"),
        (bytes(2**19), "got 524288 bytes, .* up to 524284"),
    ],
)
def test_constants_that_are_none(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"channel constants: {said}"):
        decode_constants(data)
    with pytest.raises(
        ValueError, match=r"channel constants: scale: got shape \(3,\) float16, allowed is \(2,\)"
    ):
        encode_constants(np.zeros(2, np.float16), np.zeros(3, np.float16))
    with pytest.raises(
        ValueError, match=r"channel constants: bias: got shape \(2,\) float64, allowed is \(C,\)"
    ):
        encode_constants(np.zeros(2), np.zeros(2, np.float16))


# Constant sections by size, as the same repository prints them (research/oracle-envelope.md);
# weights are 0.5 behind the header of the file, whose zeros a sparse section leaves out.


@pytest.mark.parametrize(
    ("k", "size"),
    [
        (Kernel(64, 64), 8192),
        (Kernel(64, 64, bias=True), 9216),
        (Kernel(64, 64, groups=4), 4096),
        (Kernel(64, 64, stride=TWO, sparse=True, small=True), 11136),
        (Kernel(64, 64, groups=4, stride=TWO, sparse=True, small=True), 7936),
        (Kernel(256, 256, bias=True, small=True), 132096),
        (Kernel(768, 768, bias=True, small=True), 1181696),
        (Kernel(64, 64, 3, 3), 73728),
        (Kernel(64, 64, 3, 3, bias=True), 74752),
        (Kernel(64, 64, 3, 3, groups=4), 20480),
        (Kernel(64, 64, 3, 3, groups=64), 2048),
        (Kernel(64, 64, 3, 3, stride=TWO, sparse=True, small=True), 82816),
        (Kernel(64, 64, 3, 3, groups=4, stride=TWO, sparse=True, small=True), 28544),
        (Kernel(128, 128, 3, 3, stride=TWO, bias=True, sparse=True, small=True), 328576),
    ],
    ids=str,
)
def test_sizes(k: Kernel, size: int) -> None:
    weights, bias = file_read_as_weights(k, 0x3800)
    assert len(coefficients.encode(k, weights, bias)) == size
    found = coefficients.engines(k, weights)
    assert found[:, 1].sum() == size
    assert found[0, 0] == 0
    assert np.array_equal(found[1:, 0], np.cumsum(found[:-1, 1]))


# Files


def field_values(task: dict[str, Any]) -> dict[str, int]:
    return {
        name.removeprefix("aneRegs.").removeprefix("aneTD."): value
        for name, value in task["fields"].items()
    }


@pytest.mark.parametrize(
    ("case", "value", "bias"),
    [("conv_twos", 2, None), ("conv_bias", 3, 1), ("compiled", 0, 1), ("gemm64", 0, None)],
)
def test_files(case: str, value: float, bias: float | None) -> None:
    expected = json.loads(shared(f"data/ane/expected/hwx_{case}.json").read_text())
    file = shared(f"data/ane/hwx/{case}/model.hwx").read_bytes()
    section = next(
        one for one in expected["sections"] if one["sect"] == "__const" and one["offset"]
    )
    data = file[section["offset"] : section["offset"] + section["size"]]
    values = field_values(expected["tasks"][0])
    k, at = coefficients.from_registers(values), coefficients.places_of(values)
    assert at.tolist() == coefficients.engines(k).tolist()
    assert at.tolist() == [
        [one["offset"], one["size"]] for one in expected["tasks"][0]["kernel_buffers"]
    ]
    weights, biases = coefficients.decode(k, data, at)
    assert same(weights, np.full(k.shape, value, np.float16))
    assert same(biases, None if bias is None else np.full(k.outputs, bias, np.float16))
    assert coefficients.encode(k, weights, biases) == data
    assert plain.write_by_weight(k, weights, biases) == data
    assert sum(item.weights for item in coefficients.explain(k, data, at)) == weights.size


def test_transcribed_sizes() -> None:
    rows = list(
        csv.DictReader(shared("data/ane/oracle_words/const_sizes.csv").read_text().splitlines())
    )
    assert len(rows) == 5
    for row in rows:
        value = {name: int(text) for name, text in row.items() if name != "case"}
        k = Kernel(
            value["cout"],
            value["cin"],
            value["kernel"],
            value["kernel"],
            value["groups"],
            (value["stride"],) * 2,
            bool(value["bias"]),
            small=value["spatial"] <= 8,
        )
        assert coefficients.engines(k)[:, 1].sum() == value["constant_section_bytes"], row


# Every form, and the plain way beside the fast one


@st.composite
def kernels(draw: Any) -> Kernel:
    high, wide = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    outputs = groups * draw(
        st.one_of(st.integers(2, 20), st.sampled_from([16, 24, 32, 40, 64, 100, 300, 768]))
    )
    inputs = groups * draw(st.integers(2, 4))
    if draw(st.integers(0, 3)) == 0:
        groups = inputs = outputs
    k = Kernel(
        outputs,
        inputs,
        high,
        wide,
        groups,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        table=draw(st.integers(0, 3)) == 0,
    )
    if not k.sparse and k.usual_lanes == 1 and draw(st.booleans()):
        return replace(k, columns=k.stride[1])
    return replace(
        k, lanes=2 ** draw(st.integers(0, k.usual_lanes.bit_length() - 1)) * draw(st.integers(0, 1))
    )


@settings(max_examples=60)
@given(k=kernels(), seed=st.integers(0, 2**31), zeros=st.sampled_from([0.0, 0.3, 1.0]))
def test_round_trip(k: Kernel, seed: int, zeros: float) -> None:
    check(k, seed, zeros)


@pytest.mark.long
@settings(max_examples=1500)
@given(k=kernels(), seed=st.integers(0, 2**31), zeros=st.sampled_from([0.0, 0.3, 1.0]))
def test_many_round_trips(k: Kernel, seed: int, zeros: float) -> None:
    check(k, seed, zeros)


def check(k: Kernel, seed: int, zeros: float) -> None:
    weights, bias = content(k, seed, zeros)
    table = np.random.RandomState(seed).bytes(128 * k.table)
    data = coefficients.encode(k, weights, bias, table)
    found = coefficients.decode(k, data)
    assert same(found[0], weights)
    assert same(found[1], bias)
    assert coefficients.table_of(k, data) == table
    at = coefficients.engines(k, weights)
    assert at[:, 1].sum() == len(data)
    assert not np.any(at % 64)
    assert k.least_bytes <= len(data)
    assert k.sparse or len(data) - k.least_bytes < 64 * len(at) * k.parts
    assert len(at) == min(16, k.outputs // k.parts)
    section = (
        b"\xaa" * 64 + data[at[1, 0] :] + b"\xbb" * 192 + data[: at[1, 0]] if len(at) > 1 else data
    )
    if len(at) > 1:
        moved = np.stack(
            [
                np.concatenate([[64 + len(data) - at[1, 0] + 192], at[1:, 0] + 64 - at[1, 0]]),
                at[:, 1],
            ],
            1,
        )
        assert same(coefficients.decode(k, section, moved)[0], weights)
    if weights.size < 4000:
        assert plain.write_by_weight(k, weights, bias, table) == data
        assert same(plain.read_by_weight(k, data)[0], weights)
        assert same(plain.read_by_weight(k, data)[1], bias)
        explained(k, data, weights, bias)


def explained(k: Kernel, data: bytes, weights: np.ndarray, bias: np.ndarray | None) -> None:
    """Items cover every bit once, and say of every weight and bias what it is."""
    items = coefficients.explain(k, data)
    ends = [0, *(item.bit + item.bits for item in items)]
    assert [item.bit for item in items] == ends[:-1]
    assert ends[-1] == 8 * len(data)
    assert sum(item.weights for item in items) == weights.size
    told, biases = np.zeros(k.shape, np.uint16), np.zeros(k.outputs, np.uint16)
    at = coefficients.engines(k, weights)
    for item in items:
        assert (
            int.from_bytes(data[item.bit // 8 : (item.bit + item.bits) // 8], "little")
            == item.value
        )
        assert at[item.core, 0] <= item.bit // 8 < at[item.core].sum()
        if item.kind == "weight":
            told[
                (0, item.row, item.column, item.channel)
                if k.depthwise
                else (item.channel, item.row, item.column, item.plane)
            ] = item.value
        elif item.kind == "bias":
            biases[item.channel] = item.value
    assert np.array_equal(told, bits(weights))
    assert bias is None or np.array_equal(biases, bits(bias))
    assert {item.kind for item in items} <= {
        "bias",
        "weight",
        "fill",
        *(["count", "mask"] * k.sparse),
        *(["table"] * k.table),
    }
    assert [item.kind for item in items].count("table") == 64 * len(at) * k.table


def test_items_of_a_section() -> None:
    k = Kernel(2, 1, bias=True)
    data = coefficients.encode(
        k, np.array([3, 4], np.float16).reshape(k.shape), np.array([1, 2], np.float16)
    )
    items = coefficients.explain(
        k, bytes(64) + data[64:] + data[:64], np.array([[128, 64], [64, 64]])
    )
    assert [
        (item.bit, item.bits, item.kind, item.value, item.core, item.channel, item.plane)
        for item in items
    ] == [
        (512, 16, "bias", 0x4000, 1, 1, None),
        (528, 16, "weight", 0x4400, 1, 1, 0),
        (544, 480, "fill", 0, 1, None, None),
        (1024, 16, "bias", 0x3C00, 0, 0, None),
        (1040, 16, "weight", 0x4200, 0, 0, 0),
        (1056, 480, "fill", 0, 0, None, None),
    ]
    assert [type(value) for value in items[1]] == [int, int, str, int, int, int, int, int, int, int]


def test_items_of_a_sparse_plane() -> None:
    k = Kernel(1, 1, 3, 3, stride=TWO, bias=True, sparse=True)
    weights = np.array([1, 0, 2, 0, 0, 0, 0, 3, 0], np.float16).reshape(k.shape)
    items = coefficients.explain(k, coefficients.encode(k, weights, np.ones(1, np.float16)))
    assert [
        (item.bit // 8, item.kind, item.value, item.row, item.column, item.weights)
        for item in items
    ] == [
        (0, "bias", 0x3C00, None, None, 0),
        (2, "count", 10, None, None, 0),
        (5, "mask", 0b0101, None, None, 2),
        (6, "weight", 0x3C00, 0, 0, 1),
        (8, "weight", 0x4000, 0, 2, 1),
        (10, "mask", 0b10000, None, None, 1),
        (11, "weight", 0x4200, 2, 1, 1),
        (13, "mask", 0, None, None, 2),
        (14, "mask", 0, None, None, 1),
        (15, "fill", 0, None, None, 0),
    ]


def bytes_of(k: Kernel) -> np.ndarray:
    """(outputs, inputs) bytes at which the weights of a product lie."""
    numbers = labels(k)
    at = np.flatnonzero(numbers)
    return 2 * at[np.argsort(numbers[at])].reshape(k.outputs, k.inputs)


def test_linear_form() -> None:
    """W[n][k] of a matvec lies at q * (K * g) + k * g + n % g halfwords, q = (p % 16) * (planes
    / 16) + p / 16.
    """
    for outputs, inputs in ((256, 32), (512, 64), (1024, 32), (64, 64)):
        lanes = min(16, outputs // 16)
        k = matvec(outputs, inputs)
        assert k == Kernel(outputs, inputs, lanes=lanes, small=True)
        n, r = np.ogrid[:outputs, :inputs]
        p = n // lanes
        q = p % 16 * (outputs // lanes // 16) + p // 16
        assert np.array_equal(bytes_of(k), 2 * (q * inputs * lanes + r * lanes + n % lanes))


def test_kernel_of_a_layer() -> None:
    def layer(
        side: int, stride: int, size: int = 3, depthwise: bool = False, **more: Any
    ) -> Conv2D:
        shape = (1, size, size, 32) if depthwise else (64, size, size, 32)
        outputs = shape[3] if depthwise else shape[0]
        return Conv2D(
            np.zeros(shape, np.float16),
            more.pop("bias", np.zeros(outputs, np.float16)),
            (side, side, 32),
            (stride, stride),
            "same",
            depthwise=depthwise,
            **more,
        )

    assert coefficients.kernel_of(layer(16, 1)) == Kernel(64, 32, 3, 3)
    assert coefficients.kernel_of(layer(16, 2)) == Kernel(
        64, 32, 3, 3, 1, TWO, sparse=True, small=True
    )
    assert coefficients.kernel_of(layer(18, 2, 1)) == Kernel(64, 32, stride=TWO, sparse=True)
    assert coefficients.kernel_of(layer(16, 2, 2)) == Kernel(64, 32, 2, 2, 1, TWO, small=True)
    assert coefficients.kernel_of(layer(8, 1, depthwise=True)) == Kernel(
        32, 32, 3, 3, 32, small=True
    )
    assert coefficients.kernel_of(layer(8, 1, bias=np.eye(64, dtype=np.float16)[0])).bias
    with pytest.raises(ValueError, match=r"got dilation \(2, 2\), allowed is \(1, 1\)"):
        coefficients.kernel_of(layer(16, 1, dilation=TWO))
    with pytest.raises(ValueError, match="groups: got 4 with 4 inputs and 8 outputs"):
        coefficients.kernel_of(
            Conv2D(np.zeros((1, 1, 1, 8), np.float16), np.zeros(8), (4, 4, 4), depthwise=True)
        )


def test_minus_zero_is_left_out_of_a_sparse_kernel() -> None:
    k = Kernel(2, 1, stride=TWO, sparse=True)
    weights = np.array([-0.0, 1], np.float16).reshape(k.shape)
    assert bits(coefficients.decode(k, coefficients.encode(k, weights))[0]).ravel().tolist() == [
        0,
        0x3C00,
    ]
    dense = Kernel(2, 1)
    assert same(coefficients.decode(dense, coefficients.encode(dense, weights))[0], weights)


# What is refused


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"outputs": 0}, "outputs: got 0, allowed is 1 to 131071"),
        ({"outputs": 2**17, "groups": 2}, "outputs: got 131072, allowed is 1 to 131071"),
        ({"inputs": 2**17}, "inputs: got 131072, allowed is 1 to 131071"),
        ({"kernel_h": 32}, "kernel_h: got 32, allowed is 1 to 31"),
        ({"groups": 5}, "outputs: got 64, allowed are multiples of the 5 groups"),
        ({"groups": 2**13}, "groups: got 8192, allowed is 1 to 8191"),
        ({"stride": (1, 4)}, "stride: got 4, allowed is 1 to 3"),
        ({"stride": (2,)}, r"stride: got \(2,\), allowed is \(h, w\)"),
        ({"lanes": 3}, "lanes: got 3, allowed is a power of two up to 4"),
        ({"lanes": 8}, "lanes: got 8, allowed is a power of two up to 4"),
        (
            {"columns": 2},
            "columns: got 2, allowed is 1, or a divisor of the stride 1 of a kernel of one lane",
        ),
        (
            {"columns": 2, "stride": TWO, "outputs": 8, "sparse": True},
            "columns: got 2, allowed is 1",
        ),
        ({"columns": 4}, "columns: got 4, allowed is 1 to 3"),
        ({"groups": 32, "inputs": 32}, "groups: got 32 with 32 inputs and 64 outputs"),
        ({"outputs": 1.5}, "allowed are whole numbers"),
        (
            {"outputs": 131071, "inputs": 131071},
            "got 34359214082 bytes at least, allowed is 4294967296",
        ),
    ],
)
def test_kernels_that_are_none(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Kernel(**{"outputs": 64, "inputs": 16, **wrong})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NE.KernelCfg.KernelFmt", 0, "NE.KernelCfg.KernelFmt: got 0x0, allowed is 0x2"),
        ("NE.KernelCfg.PalettizedEn", 1, "NE.KernelCfg.PalettizedEn: got 0x1, allowed is 0x0"),
        ("NE.KernelCfg.RuntimeKernel", 1, "NE.KernelCfg.RuntimeKernel: got 0x1"),
        ("NE.MACCfg.OpMode", 4, "NE.MACCfg.OpMode: got 0x4"),
        ("Common.ConvCfg.Ox", 2, "columns: got 2, allowed is 1, or a divisor of the stride 1"),
        ("Common.ConvCfg.Oy", 2, "Common.ConvCfg.Oy: got 0x2, allowed is 0x1"),
        ("Common.ConvCfg3d.raw", 0x2042, "Common.ConvCfg3d.raw: got 0x2042, allowed is 0x2041"),
        (
            "KernelDMASrc.MasterConfig.KernelSparseFmt",
            1,
            "NE.KernelCfg.SparseFmt: got 0, allowed is "
            "KernelDMASrc.MasterConfig.KernelSparseFmt, which is 1",
        ),
        ("Common.GroupConvCfg.UnicastEn", 1, "got 1 with 3 inputs, 2 outputs and 1 groups"),
        ("Common.ConvCfg.Kw", 0, "kernel_w: got 0"),
        ("Common.ConvCfg.OCGSize", 5, "lanes: got 32, allowed is a power of two up to 1"),
        ("Common.Cout.Cout", None, "Common.Cout.Cout: got no value"),
    ],
)
def test_registers_that_say_more_than_is_known(name: str, value: int | None, said: str) -> None:
    values = {
        f"Common.{field}": number
        for field, number in {
            "Cin.Cin": 3,
            "Cout.Cout": 2,
            "ConvCfg.Kw": 1,
            "ConvCfg.Kh": 1,
            "ConvCfg.OCGSize": 0,
            "ConvCfg.Sx": 1,
            "ConvCfg.Sy": 1,
            "GroupConvCfg.NumGroups": 1,
            "GroupConvCfg.UnicastEn": 0,
            "Cfg.SmallSourceMode": 1,
        }.items()
    }
    values |= {"NE.KernelCfg.SparseFmt": 0, "NE.MACCfg.BiasMode": 1, "NE.KernelCfg.KernelFmt": 2}
    assert coefficients.from_registers(values) == Kernel(2, 3, bias=True, small=True, lanes=1)
    values = {one: number for one, number in {**values, name: value}.items() if number is not None}
    with pytest.raises(ValueError) as error:
        coefficients.from_registers(values)
    assert said in str(error.value)


def test_engines_that_are_on() -> None:
    values = {f"KernelDMASrc.CoeffDMAConfig[{i}].En": 1 for i in (0, 2)}
    with pytest.raises(
        ValueError, match=r"CoeffDMAConfig: got engines \[0, 2\], allowed are engines from 0 on"
    ):
        coefficients.places_of(values)
    assert coefficients.places_of({}).shape == (0, 2)


def test_grouped_registers() -> None:
    """Cin and Cout count the channels of one group
    (conv_known_k1_c64_n256_s16_st2_g4_bias1_same: 16, 64, 4).
    """
    values = {
        f"Common.{field}": number
        for field, number in {
            "Cin.Cin": 16,
            "Cout.Cout": 64,
            "ConvCfg.Kw": 1,
            "ConvCfg.Kh": 1,
            "ConvCfg.OCGSize": 2,
            "ConvCfg.Sx": 2,
            "ConvCfg.Sy": 2,
            "GroupConvCfg.NumGroups": 4,
            "GroupConvCfg.UnicastEn": 0,
            "Cfg.SmallSourceMode": 1,
        }.items()
    }
    values |= {"NE.KernelCfg.SparseFmt": 1, "NE.MACCfg.BiasMode": 1}
    k = coefficients.from_registers(values)
    assert k == Kernel(256, 64, groups=4, stride=TWO, bias=True, sparse=True, small=True, lanes=4)
    # CoeffBfrSize of that task
    weights, _ = file_read_as_weights(k, 0x3801)
    assert coefficients.engines(k, weights)[:, 1].tolist() == [0x280] + 15 * [0x300]


@pytest.mark.parametrize(
    ("weights", "bias", "said"),
    [
        (
            np.zeros((2, 1, 1, 3), np.float32),
            np.zeros(2, np.float16),
            r"weights: got shape \(2, 1, 1, 3\) float32",
        ),
        (
            np.zeros((2, 3, 1, 1), np.float16),
            np.zeros(2, np.float16),
            r"allowed is \(2, 1, 1, 3\) float16",
        ),
        (
            np.zeros((2, 1, 1, 3), np.float16),
            None,
            "bias: got none, allowed with this kernel is one",
        ),
        (
            np.zeros((2, 1, 1, 3), np.float16),
            np.zeros(3, np.float16),
            r"bias: got shape \(3,\) float16, allowed is \(2,\)",
        ),
        (np.zeros((2, 1, 1, 3), np.float16), np.zeros(2), r"bias: got shape \(2,\) float64"),
    ],
)
def test_tensors_that_do_not_fit(weights: np.ndarray, bias: np.ndarray | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        coefficients.encode(Kernel(2, 3, bias=True), weights, bias)


def test_a_bias_that_is_too_much() -> None:
    with pytest.raises(ValueError, match="bias: got one, allowed with this kernel is none"):
        coefficients.encode(
            Kernel(1, 1), np.zeros((1, 1, 1, 1), np.float16), np.zeros(1, np.float16)
        )


DENSE = Kernel(24, 5, 3, 3, bias=True)
SPARSE = Kernel(24, 5, 3, 3, stride=TWO, bias=True, sparse=True)
TABLE = np.random.RandomState(9).bytes(128)


def buffer(k: Kernel) -> bytearray:
    return bytearray(coefficients.encode(k, *content(k, 1)))


@pytest.mark.parametrize("k", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_short_and_long_buffers(k: Kernel) -> None:
    whole = bytes(buffer(k))
    for data in (b"", whole[:64], whole[:-64], whole[:-1], whole + bytes(1), whole + bytes(64)):
        with pytest.raises(ValueError, match=rf"coefficients: (got {len(data)} bytes|engine)"):
            coefficients.decode(k, data)


@pytest.mark.parametrize(
    "k", [DENSE, SPARSE, replace(DENSE, table=True), replace(SPARSE, table=True)], ids=str
)
def test_fill_that_is_set(k: Kernel) -> None:
    data = bytearray(coefficients.encode(k, *content(k, 1), table=TABLE[: k.table_bytes]))
    at = coefficients.engines(k, content(k, 1)[0])
    assert len(at) == 16
    data[at[5].sum() - 1] = 0x40
    with pytest.raises(
        ValueError,
        match=f"engine 5, byte {at[5, 1] - 1} of its buffer: got 0x40 in the fill, allowed is 0x00",
    ):
        coefficients.decode(k, bytes(data))


def test_taps_that_are_none() -> None:
    k = Kernel(32, 2, 3, 3, stride=TWO, bias=True)
    data = buffer(k)
    item = next(
        item
        for item in coefficients.explain(k, bytes(data))
        if item.kind == "fill" and item.core == 3
    )
    data[item.bit // 8] = 7
    start = coefficients.engines(k)[3, 0]
    with pytest.raises(
        ValueError,
        match=f"engine 3, byte {item.bit // 8 - start} of its buffer: got 0x0007, "
        "allowed is 0x0000: the halfword of an absent tap is 0",
    ):
        coefficients.decode(k, bytes(data))


def test_copies_that_differ() -> None:
    k = Kernel(16, 16, 1, 3, 16, TWO, bias=True, columns=2)
    data = buffer(k)
    items = [item for item in coefficients.explain(k, bytes(data)) if item.core == 3]
    assert [item.kind for item in items].count("bias") == 2
    again = next(item for item in items if item.kind == "weight" and not item.weights)
    start = coefficients.engines(k)[3, 0]
    for item in (items[1], again):
        wrong = data.copy()
        wrong[item.bit // 8] ^= 1
        for read in (coefficients.decode, coefficients.explain):
            with pytest.raises(
                ValueError, match=r"engine 3, byte .* copies of a weight or bias are equal"
            ):
                read(k, bytes(wrong))
    assert items[1].bit // 8 - start == 2


def test_counts_that_are_wrong() -> None:
    at = coefficients.engines(SPARSE, content(SPARSE, 1)[0])
    whole = buffer(SPARSE)
    count = int.from_bytes(whole[at[2, 0] + 2 : at[2, 0] + 5], "little")
    for wrong, said in (
        (0, "got a count of 0 bytes, allowed is 20 to"),
        (2**24 - 1, "got a count of 16777215 bytes"),
        (count - 1, f"got a count of {count - 1} bytes, allowed is as many as its masks ask for"),
        (count + 2, f"got a count of {count + 2} bytes, allowed is as many as its masks ask for"),
    ):
        data = whole.copy()
        data[at[2, 0] + 2 : at[2, 0] + 5] = wrong.to_bytes(3, "little")
        with pytest.raises(ValueError, match=f"engine 2, byte 2 of its buffer: .*({said})"):
            coefficients.decode(SPARSE, bytes(data))


def test_masks_that_are_wrong() -> None:
    k = Kernel(2, 1, 1, 1, stride=TWO, sparse=True)

    def plane(mask: int, *halves: int) -> bytes:
        body = bytes([mask]) + b"".join(half.to_bytes(2, "little") for half in halves)
        return (len(body).to_bytes(3, "little") + body).ljust(64, b"\0")

    assert coefficients.decode(k, plane(1, 5) + plane(0))[0].view(np.uint16).ravel().tolist() == [
        5,
        0,
    ]
    for wrong, said in (
        (plane(1, 0), "bit 0: got a weight of 0x0000"),
        (plane(1, 0x8000), "bit 0: got a weight of 0x8000"),
        (plane(4, 5), "bit 2: got a bit for an absent tap or lane"),
        (plane(3, 7, 5), "bit 1: got a bit for an absent tap or lane"),
    ):
        with pytest.raises(ValueError, match=f"engine 1, byte 3 of its buffer, {said}"):
            coefficients.decode(k, plane(1, 5) + wrong)


def test_masks_without_weights() -> None:
    """Of a 1x1 kernel with a stride of 2 and 16 lanes two masks in eight are for weights."""
    k = Kernel(256, 3, stride=TWO, sparse=True)
    data = bytearray(coefficients.encode(k, content(k, 5, 1.0)[0]))
    assert data[:64] == bytes([24, *63 * [0]])
    for byte, said in (
        (3 + 2, "byte 5 of its buffer: got a mask without taps"),
        (3 + 23, "byte 26 of its buffer: got a mask without taps"),
    ):
        wrong = data.copy()
        wrong[64 + byte] = 16
        with pytest.raises(ValueError, match=f"engine 1, {said}, allowed is 0"):
            coefficients.decode(k, bytes(wrong))


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (
            [[0, 64]],
            "got 1 engines, engine 1 with no bytes, allowed are 3 engines, engine 1 with 64",
        ),
        (
            [[0, 64], [64, 128], [0, 0]],
            "got 3 engines, engine 1 with 128 bytes, allowed are 3 engines, engine 1 with 64",
        ),
        (
            [[0, 64], [64, 64], [192, 64]],
            "engine 2: got 64 bytes at byte 192, allowed is within the 192 of the section",
        ),
        ([[0, 64], [-64, 64], [0, 64]], "engine 1: got 64 bytes at byte -64"),
        ([[0, 2**32], [0, 64], [0, 64]], "engine 0: got 4294967296 bytes at byte 0"),
        (
            [[0, 192], [0, 64], [0, 64]],
            "got 320 bytes for 3 engines, allowed are the 192 of the section",
        ),
    ],
)
def test_places_that_are_wrong(at: list[list[int]], said: str) -> None:
    for read in (coefficients.decode, coefficients.explain):
        with pytest.raises(ValueError, match=said):
            read(Kernel(3, 3), bytes(192), np.array(at))


def test_places_of_a_sparse_kernel() -> None:
    weights, bias = content(SPARSE, 1)
    data, at = coefficients.encode(SPARSE, weights, bias), coefficients.engines(SPARSE, weights)
    assert same(coefficients.decode(SPARSE, data, at)[0], weights)
    assert coefficients.explain(SPARSE, data, at) == coefficients.explain(SPARSE, data)
    moved = at.copy()
    moved[:2, 1] += [64, -64]
    moved[1, 0] += 64
    for read in (coefficients.decode, coefficients.explain):
        with pytest.raises(
            ValueError,
            match=f"engine 0 with {at[0, 1] + 64} bytes, allowed are 16 engines, engine 0 "
            f"with {at[0, 1]}",
        ):
            read(SPARSE, data, moved)


def test_engines_of_a_sparse_kernel_need_weights() -> None:
    with pytest.raises(ValueError, match="sparse: got no weights"):
        coefficients.engines(SPARSE)


@pytest.mark.parametrize(
    "k",
    [
        Kernel(131071, 16383),
        Kernel(131071, 4096, stride=TWO, sparse=True),
        Kernel(8191 * 16, 8191 * 2, groups=8191),
        Kernel(131071, 131071, 31, 31, groups=131071),
        Kernel(131071, 8, 31, 31, stride=(3, 3), sparse=True),
    ],
    ids=str,
)
def test_huge_kernels_are_refused_at_once(k: Kernel) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match="coefficients: got 4096 bytes"):
        coefficients.decode(k, bytes(4096))
    assert k.sparse or len(coefficients.engines(k)) == 16
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()


@pytest.mark.long
def test_mutated_buffers_are_read_or_refused() -> None:
    random, refused = np.random.RandomState(3), []
    for k in (
        DENSE,
        SPARSE,
        replace(SPARSE, small=True),
        Kernel(40, 40, 3, 3, 40, TWO, sparse=True),
    ):
        whole = coefficients.encode(k, *content(k, 2))
        for _ in range(2500):
            data = bytearray(whole)
            for at in random.randint(0, len(data), random.randint(1, 4)):
                data[at] = random.randint(256)
            try:
                found = coefficients.decode(k, bytes(data))
            except ValueError as error:
                refused.append(str(error))
            else:
                assert coefficients.encode(k, *found) == bytes(data)
    assert all(text.startswith("coefficients: engine ") for text in refused)
    assert len(set(refused)) > 1000
