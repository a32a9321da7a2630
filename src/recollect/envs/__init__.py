"""Envs as rows that step together. ``contract.py`` is the interface, ``factory.py`` makes one of any env."""

from recollect.envs.contract import Adjustable, BatchedEnv, Player, Resumable, TwoSided
from recollect.envs.factory import EnvSpec, GymLoop, GymVector, PettingZooLoop, make_env, make_grouped_env
from recollect.envs.group_views import group_views
from recollect.envs.groups import Group, GroupedEnv, make_groups
from recollect.envs.versus import Versus

__all__ = [
    "Adjustable",
    "BatchedEnv",
    "EnvSpec",
    "Group",
    "GroupedEnv",
    "GymLoop",
    "GymVector",
    "PettingZooLoop",
    "Player",
    "Resumable",
    "TwoSided",
    "Versus",
    "group_views",
    "make_env",
    "make_grouped_env",
    "make_groups",
]
