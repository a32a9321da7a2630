"""Runtimes: who collects where."""
