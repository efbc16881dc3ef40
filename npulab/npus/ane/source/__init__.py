"""The input of a compiler: its network and weights, and what they state of the registers."""
