"""The GRU in Triton."""
