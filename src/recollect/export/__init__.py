"""Export: an agent as a file that runs without Recollect."""
