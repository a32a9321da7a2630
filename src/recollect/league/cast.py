"""``Cast``: the player of a league, in which each game has one opponent from the pool, drawn at its start.

Rows are computed in one batch for each member. A member's network has its own weights; the memories of all
rows are one tree, because a row is of one member at a time, and restarts when that changes.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.config.league import LeagueConfig
from recollect.envs.contract import Resumable
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.league.games import Game, GameLog
from recollect.league.matchmaking import Roster, chances
from recollect.league.pool import Pool
from recollect.policy.policy import Policy
from recollect.tasks import random

NOBODY = -1
_ACTIONS = 0x41435453
KEPT = ("member", "acted", "game", "finished", "steps", "swaps", "roster_of", "logged", "calls", "is_void")
"""The tensors [E] of a snapshot."""


class Cast:
    """See the module's docstring. Without a roster, as in evaluations, it plays the permanent members: the
    env's scripted players, or without these the first snapshot; and it logs no games."""

    is_capturable = False
    adjustable = ("league",)

    def __init__(
        self,
        env: Any,
        config: LeagueConfig,
        folder: Path | None,
        *,
        make: Callable[[], Policy],
        seed: int = 0,
        first_slot: int = 0,
    ) -> None:
        """For a two-sided env.

        Args:
            env: whose rows it plays.
            config: of the league.
            folder: of its members; None: it has none but the scripted players.
            make: makes the network of all snapshots, whose weights are then replaced.
            seed: of the run.
            first_slot: the number of the env's first slot in the run.
        """
        self.env, self.config, self.folder = env, config, folder
        self._seed, self._first_slot, self._make = seed, first_slot, make
        slots = env.num_envs
        self._slots = torch.arange(slots)
        self._member = torch.full((slots,), NOBODY)
        """[E] the place in the pool of each slot's opponent, also below."""
        self._acted = torch.full((slots,), NOBODY)
        """[E] the opponent that acted last."""
        self._game = torch.full((slots,), -1)
        """[E] the number of each slot's game."""
        self._finished = torch.zeros(slots, dtype=torch.int64)
        """[E] ``env.games`` at the start of the game."""
        self._steps, self._swaps, self._roster_of, self._logged = (
            torch.zeros_like(self._game) for _ in range(4)
        )
        self._calls = torch.zeros_like(self._game)
        """[E] the calls of ``act``, all alike: the counter of the random numbers of actions."""
        self._second = torch.zeros(slots, dtype=torch.bool)
        """[E] whether the opponent has the second side."""
        self._is_void = torch.zeros(slots, dtype=torch.bool)
        """[E] the game has lost its opponent and does not count."""
        self._memory: State | None = None
        """The memories of all rows of the env; None until a snapshot has played."""
        self._pool: Pool | None = None
        self._roster: Roster | None = None
        self._is_told = False
        """Whether the roster is one of ``adjust``."""
        self._log: GameLog | None = None
        self._is_restored = False
        self._broken: set[str] = set()
        self._template: Policy | None = None
        self._loaded: OrderedDict[str, Policy] = OrderedDict()
        self._scripted: dict[str, Any] = {}
        self._restart = torch.zeros(slots, dtype=torch.bool)
        """[E] the memory restarts in the next step, within a game that has lost its opponent."""
        self._parts: list[tuple[str, Tensor, Tensor]] | None = None
        """The members that play, each with its rows and their places; None: to be made."""
        self._order = self._rows = self._slot_of = torch.empty(0)
        self._generator = torch.Generator(env.device)

    def adjust(self, league: Mapping[str, Any] | None = None) -> None:
        """Draw the opponents of later games from the roster ``league``, and log the games."""
        self._is_told = league is not None
        self._roster = None if league is None else Roster(**league)
        if self._is_told and self.folder is not None and self._log is None:
            self._log = GameLog(self.folder, self._first_slot)
            self._continue_log(self._log)
        if self._pool is not None and self._pool.file.exists():
            self._pool.read()

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions of the opponents' ``rows``; where ``first``, the next game of the slot begins."""
        if rows is not self._rows:
            self._rows, self._parts = rows, None
            self._slot_of = rows.div(self.env.agents, rounding_mode="floor").cpu()
            self._second[self._slot_of] = (rows % self.env.agents >= self.env.agents // 2).cpu()
        fresh = torch.zeros_like(self._is_void).index_put_((self._slot_of[first.cpu()],), torch.tensor(True))
        if fresh.any():
            self._begin(fresh)
        parts = self._parts if self._parts is not None else self._divide(fresh)
        self._steps += 1
        self._calls += 1
        self._generator.manual_seed(self._action_seed())
        # Of all rows of the slot: an absent one must not keep the memory of the opponent before.
        starts = (fresh | self._restart)[self._slot_of].to(first.device)
        self._restart.zero_()
        actions = [self._play(name, own, tree.index(obs, at), starts[at]) for name, own, at in parts]
        return actions[0] if len(actions) == 1 else tree.index(tree.cat(actions), self._order)

    # The draw -----------------------------------------------------------------------------------------------

    def _begin(self, fresh: Tensor) -> None:
        """Book the games that are over in the slots ``fresh`` [E], and draw the opponents of the next."""
        self._book(fresh)
        is_reset = bool(fresh.all()) and not self.env.games.any()
        if not self._is_told and (self._roster is None or is_reset):  # an evaluation, which can be repeated
            self._roster = self._permanent()
            self._game.fill_(-1)
            self._calls.zero_()
        starts = fresh.nonzero().flatten()
        self._game[starts] += 1
        for slot, place in zip(starts.tolist(), self._draw(starts)):
            self._member[slot] = place
        self._finished[starts] = self.env.games.cpu()[starts]
        assert self._roster is not None
        for tensor, value in ((self._steps, 0), (self._swaps, 0), (self._roster_of, self._roster.number)):
            tensor[starts] = value
        self._is_void[starts] = False
        self._parts = None

    def _draw(self, slots: Tensor) -> list[int]:
        """The place in the pool of the opponent of the present game of each of ``slots`` [n]."""
        assert self._roster is not None
        found = [NOBODY] * len(slots)
        for attempt in itertools.count():  # each but the last finds members that cannot be loaded
            roster = self._roster.without(self._broken)
            if roster is None:
                raise RecollectError(
                    f"no member of the league in {self.folder} can be loaded "
                    f"({', '.join(sorted(self._broken))}): take another copy of it, or start a new run"
                )
            picks = chances(self._seed, slots + self._first_slot, self._game[slots], attempt)
            for i, chance in enumerate(picks):
                name = roster.pick(chance)
                if found[i] == NOBODY and name not in self._broken and self._can_play(name):
                    found[i] = self._places[name]
            if NOBODY not in found:
                break
        return found

    def _can_play(self, name: str) -> bool:
        """Load the member; a warning if that fails."""
        try:
            if name in self.env.opponents:
                self._script(name)
            else:
                self._policy(name)
        except ConfigError:
            raise
        except RecollectError as error:
            self._broken.add(name)
            warnings.warn(f"league: {name} does not play: {error}", UserWarning, stacklevel=2)
            return False
        return True

    def _permanent(self) -> Roster:
        """The members that evaluations play: equal in the whole run, so that they can be compared."""
        pool = self._open_pool()
        if pool is not None:
            pool.read()
        names = [self.config.member] if self.config.member else list(self.env.opponents)
        if not names:
            names = [member.name for member in pool.playing if member.is_snapshot][:1] if pool else []
        if not names:
            raise ConfigError(
                f"the league is empty: {type(self.env).__name__} has no scripted players, and there is no "
                "snapshot yet. It begins with the training (recollect train ENV --vs league)"
            )
        if pool and pool.signature is not None:
            for name in names:
                pool[name]
        return Roster(0, 0, tuple(names), (1 / len(names),) * len(names), "")

    # Members ------------------------------------------------------------------------------------------------

    @property
    def _places(self) -> dict[str, int]:
        """The place of each member in the pool; without a pool in the env's list of players."""
        pool = self._open_pool()
        names = [member.name for member in pool.members] if pool is not None else []
        return {name: place for place, name in enumerate(names or self.env.opponents)}

    def _open_pool(self) -> Pool | None:
        if self._pool is None and self.folder is not None:
            self._pool = Pool(self.folder)
        return self._pool

    def _names(self) -> list[str]:
        return list(self._places)

    def _script(self, name: str) -> Any:
        if name not in self._scripted:
            self._scripted[name] = self.env.opponent(name)
        return self._scripted[name]

    def _policy(self, name: str) -> Policy:
        """A snapshot with its own weights. In memory are those that play or are in the roster, and of others
        the ones used last."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
            needed = {name, *(self._roster.members if self._roster else ())}
            needed |= {self._names()[place] for place in set(self._member.tolist()) - {NOBODY}}
            idle = [one for one in self._loaded if one not in needed]
            for one in idle[: max(0, len(self._loaded) - self.config.opponents)]:
                del self._loaded[one]
        self._loaded.move_to_end(name)
        return self._loaded[name]

    def _load(self, name: str) -> Policy:
        template, pool = self._made(), self._open_pool()
        if pool is None:
            raise RecollectError("there is no folder of the league")
        policy = copy.deepcopy(template)
        policy.load_state_dict(pool.load(name, template.state_dict()))
        return policy.eval().requires_grad_(False).actor_only()

    def _made(self) -> Policy:
        if self._template is None:
            with torch.random.fork_rng(devices=[]):
                self._template = self._make().to(self.env.device)
            self._template.check_spaces(self.env.observation_space, self.env.action_space)
        return self._template

    # Acting -------------------------------------------------------------------------------------------------

    def _divide(self, fresh: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """The rows of each member; counts the slots in which another one acts within a game."""
        self._swaps += (self._member != self._acted) & ~fresh
        self._acted = self._member.clone()
        mine, device, names = self._member[self._slot_of], self._rows.device, self._names()
        places = {place: (mine == place).nonzero().flatten().to(device) for place in mine.unique().tolist()}
        self._order = torch.cat(list(places.values())).argsort()
        self._parts = [(names[place], self._rows[at], at) for place, at in places.items()]
        return self._parts

    def _play(self, name: str, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions of one member's rows."""
        if name in self.env.opponents:
            return self._script(name).act(rows, obs, first)
        policy = self._policy(name)
        memory = self._memories()
        acted, after = policy.act(obs, tree.index(memory, rows), first, self._generator)
        tree.map(lambda leaf, new: leaf.index_copy_(0, rows, new.to(leaf.dtype)), memory, after)
        return policy.to_env(acted.action)

    def _memories(self) -> State:
        if self._memory is None:
            rows = self.env.num_envs * self.env.agents
            self._memory = self._made().actor_only().initial_state(rows)
        return self._memory

    def _action_seed(self) -> int:
        key = random.row_keys(self._seed ^ _ACTIONS, torch.tensor([self._first_slot]))
        return int(random.bits(key, self._calls[:1])) >> 1 & (2**62 - 1)

    # The log ------------------------------------------------------------------------------------------------

    def _book(self, fresh: Tensor) -> None:
        """Log the games that ended in the slots ``fresh`` [E], each to the member that played it."""
        is_over = fresh & (self._member != NOBODY) & (self.env.games.cpu() == self._finished + 1)
        over = (is_over & ~self._is_void).nonzero().flatten().tolist()
        if self._log is None or not over:
            return
        names, won, second = self._names(), self.env.won.tolist(), self._second.tolist()
        games = [
            Game(
                slot=self._first_slot + slot,
                game=int(self._game[slot]),
                roster=int(self._roster_of[slot]),
                member=names[int(self._member[slot])],
                side=self.env.sides[0 if second[slot] else 1],
                outcome=_outcome(won[slot], second[slot]),
                steps=int(self._steps[slot]),
                swaps=int(self._swaps[slot]),
            )
            for slot in over
        ]
        try:
            self._log.add(games)
        except StorageError as error:  # a full disk must not end a training that can go on without it
            warnings.warn(f"{error}. The training goes on, and these games are not counted", stacklevel=2)
        else:
            self._logged[over] += 1

    def _continue_log(self, log: GameLog) -> None:
        """After a restore, remove the games that came later; else count on from the file."""
        games = log.read()
        if self._is_restored:
            left = dict(zip((self._slots + self._first_slot).tolist(), self._logged.tolist()))

            def is_kept(game: Game) -> bool:
                left[game.slot] = left.get(game.slot, 0) - 1
                return left[game.slot] >= 0

            return log.keep(is_kept)
        for game in games:
            slot = game.slot - self._first_slot
            if 0 <= slot < len(self._slots):
                self._game[slot], self._logged[slot] = (
                    max(game.game, int(self._game[slot])),
                    self._logged[slot] + 1,
                )

    # Snapshots ----------------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"_{name}") for name in KEPT}

    def snapshot(self) -> dict[str, Tensor]:
        """The opponents, their memories, and the counters of random numbers; the pool has the weights."""
        found = {name: tensor.clone() for name, tensor in self._tensors().items()}
        if self._memory is not None:
            found |= {name: leaf.clone() for name, leaf in tree.named_leaves(self._memory, "memory")}
        for name, player in self._scripted.items():
            if isinstance(player, Resumable):
                found |= {f"scripted/{name}/{key}": leaf for key, leaf in player.snapshot().items()}
        return found

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Continue the games of a snapshot, each with its opponent."""
        for name, tensor in self._tensors().items():
            tensor.copy_(snapshot[name])
        if any(name.startswith("memory") for name in snapshot):
            tree.copy_(self._memories(), tree.from_named(self._memories(), snapshot, "memory"))
        for name in self.env.opponents:
            prefix = f"scripted/{name}/"
            own = {key.removeprefix(prefix): leaf for key, leaf in snapshot.items() if key.startswith(prefix)}
            if own:
                self._script(name).restore(own)
        self._is_restored, self._parts, self._log = True, None, None
        self._replace_missing()

    def _replace_missing(self) -> None:
        """Games whose opponent is no longer there go on with another one, and do not count."""
        names = self._names()
        for slot, place in enumerate(self._member.tolist()):
            if place != NOBODY and not (place < len(names) and self._can_play(names[place])):
                self._is_void[slot] = True
        lost = self._is_void.nonzero().flatten()
        if len(lost):
            self._roster = self._roster or self._permanent()
            self._restart |= self._is_void
            self._member[lost] = torch.tensor(self._draw(lost))


def _outcome(won: float, opponent_is_second: bool) -> str:
    """The result of a game for the agent, from ``env.won``."""
    result = won if opponent_is_second else -won
    return "draw" if result == 0 else "win" if result > 0 else "loss"
