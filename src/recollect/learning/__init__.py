"""Learning: from a rollout to better weights, whatever the algorithm."""
