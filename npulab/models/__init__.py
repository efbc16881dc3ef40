"""TensorFlow Lite models: layers written as ``.tflite`` files, files read back as layers, sweeps of
models.

``facts`` has the numbers of the format, ``flat`` its encoding; ``file`` reads and writes the bytes;
``graph`` holds the contents of a file, and ``listing`` shows them as text; ``write`` makes graphs
from layers, ``read`` finds the layers in a graph; ``sweeps`` writes many models for a board,
``memory`` counts the memory that a model needs. ``.circle`` files, which share the layout, are
read and written alike. ``onnx_layers`` reads the convolutions of ``.onnx`` files.

TensorFlow Lite has no minimum pooling and no float16 arithmetic. A minimum is written as the
complement of the maximum of complements. A float16 layer is written as a float32 layer between a
DEQUANTIZE and a CAST, so that its outputs are rounded to float16 once. uint8 weights with a scale
per channel are written for other runtimes: LiteRT does not load them. A layer that LiteRT would
silently run as another layer is refused.
"""

from npulab.models.graph import Graph, Operator, Tensor
from npulab.models.memory import Memory, model_memory
from npulab.models.read import Model, is_model, read_model
from npulab.models.sweeps import Sweep, check_sweep, random_input, random_layer, sweep, write_sweep
from npulab.models.write import single_op_model, write_model

__all__ = [
    "Graph",
    "Memory",
    "Model",
    "Operator",
    "Sweep",
    "Tensor",
    "check_sweep",
    "is_model",
    "model_memory",
    "random_input",
    "random_layer",
    "read_model",
    "single_op_model",
    "sweep",
    "write_model",
    "write_sweep",
]
