"""Envs as rows that step together. ``contract.py`` is the interface, ``factory.py`` makes one of any env."""

from recollect.envs.contract import BatchedEnv, Resumable
from recollect.envs.factory import EnvSpec, GymLoop, GymVector, make_env

__all__ = ["BatchedEnv", "EnvSpec", "GymLoop", "GymVector", "Resumable", "make_env"]
