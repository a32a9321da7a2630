"""Training: the trainer, the loop around it, and everything that a run keeps."""
