"""What a compiled file is made of: the compiler's network, its weights, and what they say of the
registers."""
