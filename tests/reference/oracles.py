"""Other people's engines, which say what a model's output is."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any

import numpy as np

from npulab.quant.layers import Conv2D
from npulab.quant.rules import QuantParams

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
KERNELS = {
    "reference": "BUILTIN_REF",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "auto": "AUTO",
}


def litert(
    model: bytes, *inputs: np.ndarray, kernels: str = "reference"
) -> tuple[np.ndarray, bool]:
    """Output of a model in LiteRT, and whether a delegate (XNNPACK) did more than its border; one
    thread.

    ``kernels`` are "reference", "builtin" or "auto".  Raises RuntimeError or ValueError where
    LiteRT refuses.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        kind = getattr(OpResolverType, KERNELS[kernels])
        engine = Interpreter(model_content=model, num_threads=1, experimental_op_resolver_type=kind)
        engine.allocate_tensors()
        for place, x in zip(engine.get_input_details(), inputs, strict=True):
            engine.set_tensor(place["index"], x)
        engine.invoke()
        gives: dict[str, set[int]] = {}
        for one in engine._get_ops_details():
            gives.setdefault(one["op_name"], set()).update(one["outputs"].tolist())
    delegated = gives.get("DELEGATE", set()) - gives.get("PAD", set()) - gives.get("PADV2", set())
    return engine.get_tensor(engine.get_output_details()[0]["index"]).copy(), bool(delegated)


def micro(model: bytes, *inputs: np.ndarray) -> np.ndarray:
    """Output of a model in tflite-micro.  Raises RuntimeError where it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tflite_micro.python.tflite_micro import runtime
    engine = runtime.Interpreter.from_bytes(model, arena_size=4 * 2**20)
    for place, x in enumerate(inputs):
        engine.set_input(x, place)
    engine.invoke()
    return engine.get_output(0)


def onnx_conv(layer: Any, x: np.ndarray) -> np.ndarray:
    """Output ``(N, H, W, C)`` of a Conv2D as onnxruntime's QLinearConv has it; no activation."""
    weights = (
        layer.weights.transpose(3, 0, 1, 2)
        if layer.depthwise
        else layer.weights.transpose(0, 3, 1, 2)
    )
    (top, bottom), (left, right) = layer.pads
    out = _onnx(
        "QLinearConv",
        layer,
        x.transpose(0, 3, 1, 2),
        weights,
        layer.bias.astype(np.int32),
        pads=[top, left, bottom, right],
        strides=list(layer.stride),
        dilations=list(layer.dilation),
        group=layer.input_shape[2] if layer.depthwise else 1,
    )
    return out.transpose(0, 2, 3, 1)


def onnx_matmul(layer: Any, x: np.ndarray) -> np.ndarray:
    """Output ``(N, O)`` of a FullyConnected as onnxruntime's QLinearMatMul has it; no bias, no
    activation.
    """
    return _onnx("QLinearMatMul", layer, x, layer.weights.T, None)


@cache
def onnxruntime_engine() -> str:
    """Which of our engines onnxruntime is on this machine, by one pair of products that an int16
    cannot hold.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx import TensorProto, helper, numpy_helper
    weights = np.full((2, 1), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 2))],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    total = int(_run_onnx(graph, np.full((1, 2), 255, np.uint8)).item())
    return {255 * 127 * 2: "onnxruntime", 2**15 - 1: "onnxruntime:avx2"}[total]


@cache
def torch_engine(engine: str) -> str:
    """Which of our engines torch's "fbgemm" or "onednn" is on this machine, by a pair of
    products as above.
    """
    if engine != "fbgemm":
        return f"torch-{engine}"
    one = QuantParams(1.0)
    layer = Conv2D(
        np.full((1, 1, 1, 2), 127, np.int8),
        [0],
        (1, 1, 2),
        dtype="uint8",
        input_q=one,
        weight_q=one,
        output_q=QuantParams(2.0**9),
    )
    total = int(torch_conv(layer, np.full((1, 1, 1, 2), 255, np.uint8), engine).item())
    return {127: "torch-fbgemm", 64: "torch-fbgemm:avx2"}[total]


def torch_conv(layer: Any, x: np.ndarray, engine: str) -> np.ndarray:
    """Output ``(N, H, W, C)`` of a Conv2D of uint8 inputs and int8 weights as torch's engine has
    it; no activation.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

        torch.backends.quantized.engine = engine
        torch.set_num_threads(1)
        weights = np.ascontiguousarray(np.moveaxis(layer.weights, 3, 0 if layer.depthwise else 1))
        weights = torch.from_numpy(weights)
        scales = np.asarray(layer.weight_q.scale, np.float64)
        if scales.ndim:
            weights = torch._make_per_channel_quantized_tensor(
                weights, torch.from_numpy(scales), torch.zeros(len(scales), dtype=torch.int64), 0
            )
        else:
            weights = torch._make_per_tensor_quantized_tensor(weights, float(scales), 0)
        bias = torch.from_numpy((layer.bias * (layer.input_q.scale * scales)).astype(np.float32))
        packed = torch.ops.quantized.conv2d_prepack(
            weights,
            bias,
            list(layer.stride),
            [before for before, _ in layer.pads],
            list(layer.dilation),
            layer.input_shape[2] if layer.depthwise else 1,
        )
        given = torch._make_per_tensor_quantized_tensor(
            torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))),
            layer.input_q.scale,
            layer.input_q.zero_point,
        )
        given = given.contiguous(memory_format=torch.channels_last)
        out = torch.ops.quantized.conv2d(
            given, packed, layer.output_q.scale, layer.output_q.zero_point
        )
    return np.ascontiguousarray(out.int_repr().numpy().transpose(0, 2, 3, 1))


def _onnx(
    op: str,
    layer: Any,
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    **attributes: Any,
) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx import TensorProto, helper, numpy_helper

    of_x, of_w = x.dtype, weights.dtype
    scale = np.asarray(layer.weight_q.scale, np.float32)
    values = {
        "x_scale": np.float32(layer.input_q.scale),
        "x_zero": np.asarray(layer.input_q.zero_point, of_x),
        "w": np.ascontiguousarray(weights),
        "w_scale": scale,
        "w_zero": np.full(scale.shape, layer.weight_q.zero_point, of_w),
        "y_scale": np.float32(layer.output_q.scale),
        "y_zero": np.asarray(layer.output_q.zero_point, of_x),
    }
    if bias is not None:
        values["bias"] = bias
    code = TensorProto.INT8 if of_x == np.int8 else TensorProto.UINT8
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *values], ["y"], **attributes)],
        op,
        [helper.make_tensor_value_info("x", code, x.shape)],
        [helper.make_tensor_value_info("y", code, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return _run_onnx(graph, x)


def onnx_add(layer: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The output of an Add as onnxruntime's QLinearAdd has it; no activation."""
    values: dict[str, np.ndarray] = {"b": b}
    for name, q in (("a", layer.input_q), ("b", layer.other_q), ("c", layer.output_q)):
        values[f"{name}_scale"] = np.asarray(q.scale, np.float32)
        values[f"{name}_zero"] = np.asarray(q.zero_point, a.dtype)
    names = ["x", "a_scale", "a_zero", "b", "b_scale", "b_zero", "c_scale", "c_zero"]
    return _run_onnx(_graph("QLinearAdd", a, names, values, a.dtype, domain="com.microsoft"), a)


def onnx_sums(layer: Any, x: np.ndarray) -> np.ndarray:
    """The accumulators ``(N, O)`` of a FullyConnected as onnxruntime's MatMulInteger has them; no
    bias.
    """
    values = {
        "w": np.ascontiguousarray(layer.weights.T),
        "x_zero": np.asarray(layer.input_q.zero_point, x.dtype),
        "w_zero": layer.weight_q.zeros.astype(layer.weights.dtype),
    }
    graph = _graph("MatMulInteger", x, ["x", *values], values, np.dtype(np.int32))
    return _run_onnx(graph, x)


def _graph(
    op: str,
    x: np.ndarray,
    names: list[str],
    values: dict[str, np.ndarray],
    kind: np.dtype,
    **attributes: Any,
) -> Any:
    """An operator of one input ``x`` and constants, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx import helper, numpy_helper

    of_x, of_y = (helper.np_dtype_to_tensor_dtype(one) for one in (x.dtype, kind))
    return helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        op,
        [helper.make_tensor_value_info("x", of_x, x.shape)],
        [helper.make_tensor_value_info("y", of_y, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )


def _run_onnx(graph: Any, x: np.ndarray) -> np.ndarray:
    """The output of an ONNX graph of one input ``x``, computed by one thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnxruntime
        from onnx import helper
    domains = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": np.ascontiguousarray(x)})[0]
