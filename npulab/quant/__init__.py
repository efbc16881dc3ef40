"""Quantization math: rounding rules, requantizing, layers, exact emulation, which rule fits
outputs."""
