"""The Ray runtime: actors and learners on a cluster."""
