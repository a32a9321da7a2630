"""Worlds as Recollect sees them: rows that are stepped together. ``batched.py`` is the contract."""

from recollect.envs.contract import BatchedEnv, Resumable
from recollect.envs.factory import EnvSpec, GymLoop, GymVector, make_env

__all__ = ["BatchedEnv", "EnvSpec", "GymLoop", "GymVector", "Resumable", "make_env"]
