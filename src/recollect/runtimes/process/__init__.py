"""The processes runtime: actors in OS processes, rollouts in shared memory."""
