"""Envs as rows that step together. ``contract.py`` is the interface, ``factory.py`` makes one of any env."""

from recollect.envs.contract import BatchedEnv, Resumable
from recollect.envs.factory import EnvSpec, GymLoop, GymVector, PettingZooLoop, make_env, make_grouped_env
from recollect.envs.group_views import group_views
from recollect.envs.groups import Group, GroupedEnv, make_groups

__all__ = [
    "BatchedEnv",
    "EnvSpec",
    "Group",
    "GroupedEnv",
    "GymLoop",
    "GymVector",
    "PettingZooLoop",
    "Resumable",
    "group_views",
    "make_env",
    "make_grouped_env",
    "make_groups",
]
