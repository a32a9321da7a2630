"""Training: the trainer, the loop around it, and the run folder."""
