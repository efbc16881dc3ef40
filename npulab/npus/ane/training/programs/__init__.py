"""MIL programs for the ANE, with their weight files: single operations, and the kernels of a
training step."""

from npulab.npus.ane.training.programs.bodies import Kernel
from npulab.npus.ane.training.programs.single import convolution, matmul, packed_matmul
from npulab.npus.ane.training.programs.step import KERNELS, Dims, kernel, training_step

__all__ = ["KERNELS", "Dims", "Kernel", "convolution", "kernel", "matmul", "packed_matmul", "training_step"]
