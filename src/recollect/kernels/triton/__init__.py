"""Kernels in Triton: a whole unroll in one launch."""
