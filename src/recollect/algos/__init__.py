"""Algorithms: one file each, which reads like its paper."""
