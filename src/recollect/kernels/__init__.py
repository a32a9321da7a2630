"""Whole sequences at once: pure functions on packed rows, each one node of the autograd graph."""
