"""Every setting of a run: its description, its checks, and the ways to write it down."""
