"""``Versus``: a two-sided env with a player on one side, so that only the other side's rows learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import Step, Tree
from recollect.envs.contract import (
    Adjustable,
    BatchedEnv,
    BetweenRollouts,
    Capturable,
    EnvWrapper,
    Player,
    Resumable,
    TwoSided,
)
from recollect.envs.space_values import is_like
from recollect.errors import ConfigError, EnvError, nearest

SELF = "self"
"""The ``vs`` of a run in which both sides learn, with shared weights."""
OUTCOMES = {"win": 1, "draw": 0, "loss": -1}
"""The names in ``Step.info``, and the results of a game that they stand for."""


class Versus(EnvWrapper):
    """The rows of one side of each slot; a player has those of the other side.

    In slots with an even number the learner has the first side, in the others the second. ``Step.info`` also
    has ``win``, ``draw`` and ``loss``, [E]: 1 if the slot's last game ended so for the learner, else 0; NaN
    before its first game is over.
    """

    def __init__(self, env: Any, player: Player, first_slot: int = 0) -> None:
        """``env``: a ``TwoSided`` BatchedEnv; ``first_slot``: the number of its first slot in the run."""
        captured = [Capturable] if getattr(player, "is_capturable", True) else []
        super().__init__(env, Resumable, *captured)
        self.player: Any = player
        slots = torch.arange(env.num_envs, device=env.device).unsqueeze(1)
        self.agents = half = env.agents // 2
        second = _second(slots, first_slot)
        start, member = slots * env.agents, torch.arange(half, device=env.device)
        self._mine = (start + second * half + member).flatten()
        """[B] the rows of the learner in the env."""
        self._theirs = (start + (1 - second) * half + member).flatten()
        """[B] the rows of the player."""
        self._order = torch.cat([self._mine, self._theirs]).argsort()
        """The place of each row of the env in the rows of the learner and then those of the player."""
        self._sign = 1 - 2 * second.flatten()
        self._action_like = spaces.zeros(env.action_space, env.num_envs * half, env.device)
        self._obs: Tree = None
        """[B, ...] the observation that the player acts on next."""
        self._first = torch.ones(env.num_envs * half, dtype=torch.bool, device=env.device)
        parts = [part for part in (env, player) if isinstance(part, Adjustable)]
        if parts:  # on the instance: ``isinstance(env, Adjustable)`` is exact
            self.adjustable = tuple(dict.fromkeys(name for part in parts for name in part.adjustable))
            self.adjust = lambda **settings: _adjust(parts, settings)

        if isinstance(player, BetweenRollouts):
            self.generators, self.graph_key = player.generators, player.graph_key
            self.between_rollouts = player.between_rollouts

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The names of the learner's agents in a slot, without the name of a side: "blue_0" is "agent_0"."""
        names = getattr(self.env, "agent_names", ())[: self.agents]
        short = [name.removeprefix(self.env.sides[0]).lstrip("_") for name in names]
        return tuple(
            f"agent_{name or i}" if name.isdecimal() or not name else name for i, name in enumerate(short)
        )

    @property
    def sides(self) -> tuple[str, ...]:
        """[E] the side of the learner in each slot."""
        first, second = self.env.sides
        return tuple(first if sign > 0 else second for sign in self._sign.tolist())

    @property
    def rows(self) -> Tensor:
        """[B] int64: the rows of the learner in the env."""
        return self._mine

    @property
    def games(self) -> Tensor:
        """[E] int64: games that each slot has finished."""
        return self.env.games

    @property
    def on_end(self) -> Callable[[], None] | None:
        """Called before ended slots start their next episode, as in ``Task``."""
        return self.env.on_end

    @on_end.setter
    def on_end(self, call: Callable[[], None] | None) -> None:
        self.env.on_end = call

    def outcomes(self) -> dict[str, Tensor]:
        """[E] each: how the last game of each slot ended for the learner, as in ``Step.info``."""
        result, unplayed = self.env.won * self._sign, self.env.games < 1
        return {
            name: (result == outcome).float().masked_fill(unplayed, math.nan)
            for name, outcome in OUTCOMES.items()
        }

    def reset(self, seed: int) -> Tree:
        """Restart all slots. Returns the obs [B, ...] of the learner."""
        obs = self.env.reset(seed)
        if hasattr(self.player, "reset"):
            self.player.reset()
        return self._split(obs, torch.ones_like(self._first))

    def step(self, action: Tree) -> Step:
        """Apply the learner's ``action`` [B, ...] and those of the player."""
        self._check(action, f"{type(self).__name__}.step got")
        theirs = self.player.act(self._theirs, self._obs, self._first)
        self._check(theirs, f"{type(self.player).__name__}.act returned")
        step = self.env.step(tree.index(tree.cat([action, theirs]), self._order))
        obs = self._split(step.obs, step.first[self._theirs])
        rows = len(step.first)
        info = {name: value[self._mine] if len(value) == rows else value for name, value in step.info.items()}
        return Step(
            obs=obs,
            first=step.first[self._mine],
            reward=step.reward[self._mine],
            terminated=step.terminated[self._mine],
            truncated=step.truncated[self._mine],
            final_obs=tree.index(step.final_obs, self._mine),
            valid=step.valid[self._mine],
            info=info | self.outcomes(),
        )

    def _split(self, obs: Tree, first: Tensor) -> Tree:
        """Keep the player's part of ``obs`` and its ``first``; returns the learner's part of ``obs``."""
        theirs = tree.index(obs, self._theirs)
        if self._obs is None:
            self._obs = theirs
        else:
            tree.copy_(self._obs, theirs)  # in place: a CUDA graph refers to tensors by address
        self._first.copy_(first)
        return tree.index(obs, self._mine)

    def _check(self, action: Tree, got: str) -> None:
        if self._obs is None:
            raise EnvError("Versus.step came before reset(seed): call reset first")
        if not is_like(action, self._action_like):
            raise EnvError(
                f"{got} actions that do not fit: expected those of {len(self._first)} rows of one side, "
                f"{self.action_space} each, with the dtypes of that space"
            )

    def _snapshot(self) -> dict[str, Tensor]:
        parts = {"versus": {"first": self._first.clone()}, "env": self.env.snapshot()}
        if isinstance(self.player, Resumable):
            parts["player"] = self.player.snapshot()
        found: dict[str, Tensor] = {}
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                if len(tensor) == len(self._order):  # env workers divide a snapshot by slots
                    found[f"{part}_rows:{name}"] = tensor.unflatten(0, (self.num_envs, -1))
                else:
                    found[f"{part}:{name}"] = tensor
        return found

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        parts: dict[str, dict[str, Tensor]] = {"versus": {}, "env": {}, "player": {}}
        for key, tensor in snapshot.items():
            part, _, name = key.partition(":")
            parts[part.removesuffix("_rows")][name] = (
                tensor.flatten(0, 1) if part.endswith("_rows") else tensor
            )
        obs = self.env.restore(parts["env"])
        if isinstance(self.player, Resumable):
            self.player.restore(parts["player"])
        return self._split(obs, parts["versus"]["first"])


def against(env: BatchedEnv, vs: str | None, options: dict[str, Any], first_slot: int = 0) -> BatchedEnv:
    """``env`` as ``TrainConfig.vs`` asks for: with the scripted player of that name on one side.

    An env that has its player already is returned as it is. ``first_slot``: as in ``Versus``.
    """
    if vs is None or isinstance(env, Versus):
        return env
    if not isinstance(env, TwoSided):
        raise ConfigError(
            f"vs = {vs!r} needs a two-sided env (recollect.envs.TwoSided), and {type(env).__name__} is none: "
            "leave vs out"
        )
    if vs == SELF:
        return env
    if vs not in env.opponents:
        raise ConfigError(
            f"vs = {vs!r}{nearest(vs, [SELF, *env.opponents])}: {type(env).__name__} has the players "
            f"{', '.join(env.opponents) or 'none'}; {SELF!r}: all agents learn"
        )
    try:
        player = env.opponent(vs, **options)
    except TypeError as error:
        raise ConfigError(f"vs_kwargs = {options} do not fit the player {vs!r}: {error}") from error
    return Versus(env, player, first_slot)


def find_versus(env: Any) -> Versus | None:
    """The ``Versus`` that ``env`` is, or that it wraps."""
    while isinstance(env, EnvWrapper) and not isinstance(env, Versus):
        env = env.env
    return env if isinstance(env, Versus) else None


def two_sides_of(env: Any) -> Any:
    """The ``TwoSided`` env that ``env`` is, or that is in its ``Versus``."""
    versus = find_versus(env)
    return env if versus is None else versus.env


def _second(slots: Tensor, first_slot: int) -> Tensor:
    """[E, 1] int64: 1 where the learner has the second side, of ``slots`` [E, 1]."""
    return (slots + first_slot) % 2


def _adjust(parts: list[Adjustable], settings: dict[str, Any]) -> None:
    """Each part gets the settings that it has."""
    for part in parts:
        part.adjust(**{name: value for name, value in settings.items() if name in part.adjustable})
