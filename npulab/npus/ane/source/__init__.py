"""The input of a compiler: its source network and weights, and the registers that they decide."""
