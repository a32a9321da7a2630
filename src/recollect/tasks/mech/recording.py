"""Games of the mech arena, recorded while they are played, and played again from a replay."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import Step, Tree
from recollect.errors import EnvError
from recollect.tasks.mech import zone
from recollect.tasks.mech.arena import MechArena
from recollect.tasks.mech.replays import EXTRAS, MARK, Replay, parts_of
from recollect.tasks.mech.rules import DECISION

Player = Callable[[Tensor, Tree, Tensor], Tree]
"""The actions [R, ...] of the rows [R] of a side, from their obs and first, as ``MechBot.act``."""
BESIDES = {"root", "episode", "won", "games"}
"""Tensors of a snapshot that are not of the game: earlier games change them."""
Result = dict[str, Any]
"""The fields ``won``, ``score`` and ``ended`` of a replay."""


class Chain:
    """The hashes of a game: each is of the one before, of an action, and of the state that it led to."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.marks: list[str] = []

    def add(self, arena: MechArena, action: Tree | None) -> None:
        """Add the action and the present state, to which it led; at the start of a game there is none."""
        state = sorted(arena.snapshot().items())
        named = [(name, tensor) for name, tensor in state if name not in BESIDES]
        for name, tensor in [*named, *(() if action is None else sorted(tree.named_leaves(action)))]:
            array = tensor.cpu().numpy()
            self._hash.update(f"{name} {array.dtype} {array.shape};".encode())
            self._hash.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        self.marks.append(self.sha256[:MARK])

    @property
    def sha256(self) -> str:
        """The hash of everything added."""
        return self._hash.hexdigest()


class Watch:
    """Calls ``after`` with every action of an arena of one slot, while the state that it led to is there,
    and with None at the start of a game.

    A task starts the next game within the step that ends one, and calls ``on_end`` before. The arena may be
    inside of wrappers, so its own ``reset`` and ``step`` are replaced for as long as the context lasts.
    """

    def __init__(self, arena: MechArena, after: Callable[[Tree | None], None]):
        if arena.num_envs != 1:
            raise EnvError(f"an arena of {arena.num_envs} slots was to be recorded: make one with num_envs=1")
        self._arena, self._after = arena, after
        self.seed: int | None = None
        """The seed of the last reset within the context."""
        self._action: Tree | None = None

    def __enter__(self) -> Watch:
        arena: Any = self._arena
        self._reset, self._step, self._on_end = arena.reset, arena.step, arena.on_end
        arena.reset, arena.step, arena.on_end = self._watched_reset, self._watched_step, self._end
        return self

    def __exit__(self, *_: object) -> None:
        arena: Any = self._arena
        del arena.reset, arena.step  # of the instance: those of the class are back
        arena.on_end = self._on_end

    def _watched_reset(self, seed: int) -> Tree:
        obs = self._reset(seed)
        self.seed = seed
        self._after(None)
        return obs

    def _watched_step(self, action: Tree) -> Step:
        self._action = action
        step = self._step(action)
        if self._action is not None:
            self._report()
        if int(self._arena.age[0]) == 0:
            self._after(None)
        return step

    def _end(self) -> None:
        if self._on_end is not None:
            self._on_end()
        self._report()

    def _report(self) -> None:
        action, self._action = self._action, None
        self._after(action)


class Recorder:
    """Records the games that are played in an arena of one slot, in whatever wrappers it is.

    ``with Recorder(arena) as recorder:``, and in it ``reset(seed)`` and ``step`` of the env around it.
    """

    def __init__(self, arena: MechArena, players: tuple[str, str] = ("blue", "red")):
        self._arena, self._players = arena, players
        self._watch = Watch(arena, self._add)
        self.replays: list[Replay] = []
        """The games that are over."""
        self._seed, self._episode, self._games = 0, 0, 0
        self._actions: list[dict[str, np.ndarray]] = []

    def __enter__(self) -> Recorder:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)

    @property
    def decisions(self) -> int:
        """The number of decisions of the present game."""
        return len(self._actions)

    def cut(self) -> Replay:
        """The present game so far."""
        if not self._actions:
            raise EnvError("nothing is recorded yet: call reset(seed) and step(action) first")
        return self._made()

    def _add(self, action: Tree | None) -> None:
        arena, seed = self._arena, self._watch.seed
        if seed is None:
            raise EnvError("a recording starts with reset(seed): call it within the recorder's context")
        if action is None:
            self._episode = 0 if int(arena.games[0]) == 0 else self._episode + 1
            self._chain, self._actions = Chain(), []
            self._options = dataclasses.asdict(arena.options) | {"team": arena.team}
            self._games, self._seed = int(arena.games[0]), seed
            self._chain.add(arena, None)
            return
        self._chain.add(arena, action)
        self._actions.append(
            {name or "action": leaf.cpu().numpy().copy() for name, leaf in tree.named_leaves(action)}
        )
        if int(arena.games[0]) > self._games:
            self.replays.append(self._made())

    def _made(self) -> Replay:
        return Replay(
            options=self._options,
            seed=self._seed,
            slot=self._arena.first_slot,
            episode=self._episode,
            players=self._players,
            actions={
                name: np.stack([each[name] for each in self._actions])
                for name in parts_of(self._arena.action_space)
            },
            marks=tuple(self._chain.marks),
            sha256=self._chain.sha256,
            **result(self._arena, self._games),
        )


def result(arena: MechArena, games: int) -> Result:
    """How a game stands after a decision; ``games``: the number of those that were over before it."""
    blue, red = arena.score[0].tolist()
    if int(arena.games[0]) == games:
        return {"won": 0, "score": (blue, red), "ended": "cut"}
    ended = "terminated" if bool(zone.is_over(arena)[0]) else "truncated"
    return {"won": int(arena.won[0]), "score": (blue, red), "ended": ended}


def record_game(
    arena: MechArena,
    players: tuple[Player, Player],
    *,
    seed: int = 0,
    names: tuple[str, str] = ("blue", "red"),
    most: int | None = None,
) -> Replay:
    """Play a game of ``players``, of blue and of red, and record it; at most ``most`` decisions.

    A player with an attribute ``shown``, {name in ``EXTRAS``: [R] tensor}, has these numbers in the replay.
    """
    rows = torch.arange(arena.agents, device=arena.device).view(2, -1)
    columns: dict[str, list[np.ndarray]] = {}
    with Recorder(arena, names) as recorder:
        obs = arena.reset(seed)
        first = torch.ones(arena.agents, dtype=torch.bool, device=arena.device)
        while not recorder.replays and (most is None or recorder.decisions < most):
            acted = [player(own, tree.index(obs, own), first[own]) for player, own in zip(players, rows)]
            for name, values in _shown(players, len(rows[0])).items():
                columns.setdefault(name, []).append(values)
            step = arena.step(tree.cat(acted))
            obs, first = step.obs, step.first
        replay = recorder.replays[0] if recorder.replays else recorder.cut()
    extras = {name: np.stack(values).astype(np.float32) for name, values in columns.items()}
    return dataclasses.replace(replay, extras=extras)


def _shown(players: tuple[Player, Player], size: int) -> dict[str, np.ndarray]:
    """[R] of both sides: the numbers that the players show of a decision; NaN where one shows nothing."""
    shown = [getattr(player, "shown", {}) for player in players]
    none = np.full(size, np.nan, np.float32)
    return {
        name: np.concatenate([each[name].cpu().numpy() if name in each else none for each in shown])
        for name in EXTRAS
        if any(name in each for each in shown)
    }


def play_again(replay: Replay, after: Callable[[MechArena, Tree | None], None] | None = None) -> None:
    """Play the game of a replay through the same states. EnvError with the first decision that differs.

    ``after``: called at the start, and after each decision with its action, while the arena has the state
    that it led to.
    """
    arena = MechArena(1, **replay.options)
    arena.first_slot = replay.slot
    arena.reset(replay.seed)
    for _ in range(replay.episode):
        arena.reset_slots(torch.ones(1, dtype=torch.bool))
    chain, results = Chain(), []

    def seen(action: Tree | None) -> None:
        if action is None and chain.marks:
            return  # the next game
        chain.add(arena, action)
        now = len(chain.marks) - 1
        if chain.marks[now] != replay.marks[now]:
            where = f"from decision {now} of {replay.decisions} on" if now else "at the start"
            raise EnvError(
                f"the game is not reproduced: it differs {where} ({now * DECISION:g} s). Was the replay "
                "changed, or recorded with a Recollect of other rules?"
            )
        results.append(result(arena, 0))
        if after is not None:
            after(arena, action)

    seen(None)
    names = list(replay.actions)
    with Watch(arena, seen):
        for decision in range(replay.decisions):
            values = [torch.from_numpy(part[decision]) for part in replay.actions.values()]
            arena.step(values[0] if names == ["action"] else dict(zip(names, values)))
    told = {name: getattr(replay, name) for name in results[-1]}
    if chain.sha256 != replay.sha256 or told != results[-1]:
        raise EnvError(
            f"the game is not reproduced: it ends with {results[-1]}, hash {chain.sha256}; the replay says "
            f"{told}, hash {replay.sha256}"
        )
