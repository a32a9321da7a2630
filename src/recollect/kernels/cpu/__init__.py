"""Kernels in PyTorch: whole sequences as one node of the autograd graph."""
