"""Recollect trains reinforcement-learning agents with memory."""
