"""Foundations without knowledge of envs or learning: types, trees of tensors, devices, files, processes."""
