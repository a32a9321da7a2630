"""Runtimes: collectors inline, in processes and on a Ray cluster; data-parallel learners."""
