"""Recorded experience: rollouts, the sequences that learners take from them, and returns."""
