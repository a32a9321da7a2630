"""``Cast``: the player of a league, in which each game has one opponent from the pool, drawn at its start.

On the CPU, the rows of each member are computed as one batch. Where a host read synchronises the device, all
rows go through tiles of fixed size (``tiles.py``), and nothing is read between two rollouts. Draws, memories
and the log are the same. The memories of all rows are one tree, because a row is of one member at a time, and
restarts when that changes.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Tree
from recollect.config.league import LeagueConfig
from recollect.envs.contract import Resumable
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.league.assignment import KEPT, NOBODY, Assignment, Over
from recollect.league.games import Game, GameLog
from recollect.league.matchmaking import Roster
from recollect.league.pool import Pool, check_owner
from recollect.league.tiles import Tiles
from recollect.policy.policy import Policy
from recollect.tasks import random

_ACTIONS = 0x41435453


class Cast:
    """See the module's docstring. Without a roster, as in evaluations, it plays the permanent members: the
    env's scripted players, or without these the first snapshot; and it logs no games."""

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
        self._slots = Assignment(seed, first_slot, env.num_envs, env.device)
        self._calls = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        """[E] the calls of ``act``, all alike: the counter of the random numbers of actions."""
        self._memory: State | None = None
        """The memories of all rows of the env; None until a snapshot has played."""
        self._pool: Pool | None = None
        self._roster: Roster | None = None
        self._is_told = False
        """Whether the roster is one of ``adjust``."""
        self._is_ready = self._has_acted = False
        """Whether the members of the roster are loaded; whether there may be a CUDA graph."""
        self._log: GameLog | None = None
        self._is_restored = False
        self._broken: set[str] = set()
        self._template: Policy | None = None
        self._loaded: OrderedDict[str, Policy] = OrderedDict()
        self._scripted: dict[str, Any] = {}
        self._active: dict[str, tuple[int, Any]] = {}
        """Scripted players that have been in a roster, with their places. Beside tiles each computes all
        rows, also after it has left the roster: without it, the graph would have to be captured again."""
        self._tiles: Tiles | None = None
        self._capacity = config.opponents
        """Members that the tiles have room for. It is part of snapshots: tiles of another size would draw
        other actions."""
        self._restart = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """[E] the memory restarts in the next step, within a game that has lost its opponent."""
        self._parts: list[tuple[str, Tensor, Tensor]] | None = None
        """The members that play, each with its rows and their places; None: to be made."""
        self._order = self._rows = self._slot_of = torch.empty(0)
        self._generator = torch.Generator(env.device)
        self.generators = (self._generator,)

    @property
    def is_capturable(self) -> bool:
        """Whether all players may be in a CUDA graph; snapshots always may."""
        return all(getattr(self._script(name), "is_capturable", True) for name in self.env.opponents)

    def graph_key(self) -> tuple[Any, ...]:
        """As in ``BetweenRollouts``. Tensors only grow, and an old ``Tiles`` differs from all later ones, so
        no key returns."""
        return self._tiles, tuple(self._active), self._slots.key

    def between_rollouts(self, steps: int) -> None:
        """Log the games that are over, and have room for those of the next ``steps`` steps."""
        self._slots.room(steps)
        self._book()
        self._generator.manual_seed(self._action_seed())

    def adjust(self, league: Mapping[str, Any] | None = None) -> None:
        """Draw the opponents of later games from the roster ``league``, and log the games.

        ``league`` may also have an ``owner``: the training that must use the folder (``check_owner``).
        """
        told = dict(league or {})
        owner = told.pop("owner", None)
        if owner is not None and self.folder is not None:
            check_owner(self.folder, owner)
        self._is_told = league is not None
        self._roster = Roster(**told) if self._is_told else None
        if self._is_told and self.folder is not None and self._log is None:
            self._log = GameLog(self.folder, self._first_slot)
            self._continue_log(self._log)
        if self._pool is not None and self._pool.file.exists():
            self._pool.read()
        self._is_ready = False
        if self._has_acted and self._is_told:
            self._prepare()

    def reset(self) -> None:
        """The env was reset: all games are given up."""
        self._slots.forget()
        if not self._is_told:  # an evaluation, which can be repeated
            self._roster, self._is_ready = None, False
            self._slots.game.fill_(-1)
            self._calls.zero_()
        self._generator.manual_seed(self._action_seed())

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions of the opponents' ``rows``; where ``first``, the next game of the slot begins."""
        slots = self._slots
        if rows is not self._rows:
            self._rows, self._parts = rows, None
            self._slot_of = rows.div(self.env.agents, rounding_mode="floor")
            slots.second[self._slot_of] = rows % self.env.agents >= self.env.agents // 2
        if not self._is_ready:
            self._prepare()
        self._has_acted = True
        is_static = devices.synchronises(first)
        fresh = torch.zeros_like(slots.game).index_add_(0, self._slot_of, first.long()) > 0
        if is_static or fresh.any():
            slots.begin(fresh, self.env.games, self.env.won)
            if not is_static:
                self._parts = None
                self._book()
        slots.steps += 1
        self._calls += 1
        # Of all rows of the slot: an absent one must not keep the memory of the opponent before.
        starts = (fresh | self._restart)[self._slot_of]
        self._restart.zero_()
        return self._in_tiles(obs, starts, fresh) if is_static else self._in_parts(obs, starts, fresh)

    # The roster ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Load the members of the roster, and those that play."""
        if self._roster is None:
            self._roster = self._permanent()
        for name in self._roster.members:
            if name not in self._broken:
                self._can_play(name)
        if self._roster.without(self._broken) is None:
            raise RecollectError(
                f"no member of the league in {self.folder} can be loaded "
                f"({', '.join(sorted(self._broken))}): take another copy of it, or start a new run"
            )
        self._slots.set_roster(self._roster, self._broken, self._places)
        self._is_ready, self._parts = True, None
        if devices.synchronises(self._slots.game):
            self._fill_tiles(self._needed() - self._broken)

    def _needed(self) -> set[str]:
        """The names of the members that play or are in the roster."""
        names = self._names()
        playing = {names[place] for place in set(self._slots.member.tolist()) if 0 <= place < len(names)}
        return playing | set(self._roster.members if self._roster else ())

    def _fill_tiles(self, names: set[str]) -> None:
        """Have the members ``names`` in the tiles."""
        found = self._places
        self._active |= {
            name: (found[name], self._script(name)) for name in self.env.opponents if name in names
        }
        places = {found[name]: name for name in names if name not in self.env.opponents}
        if not places:
            return
        self._memories()
        while self._capacity < len(places):  # games of earlier rosters go on
            self._capacity *= 2
        if self._tiles is None or self._tiles.capacity != self._capacity:
            rows = self.env.num_envs * self.env.agents // 2
            self._tiles = Tiles(self._made().actor_only(), self._capacity, rows)
        self._tiles.load({place: self._policy(places[place]) for place in sorted(places)})

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
            needed = {name} | self._needed()
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

    def _in_parts(self, obs: Tree, starts: Tensor, fresh: Tensor) -> Tree:
        """The actions of all rows: one batch for each member."""
        parts = self._parts if self._parts is not None else self._divide(fresh)
        self._generator.manual_seed(self._action_seed())
        actions = [self._play(name, own, tree.index(obs, at), starts[at]) for name, own, at in parts]
        return actions[0] if len(actions) == 1 else tree.index(tree.cat(actions), self._order)

    def _divide(self, fresh: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """The rows of each member."""
        self._slots.acts(self._slots.member, fresh)
        mine, names = self._slots.member[self._slot_of], self._names()
        places = {place: (mine == place).nonzero().flatten() for place in mine.unique().tolist()}
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
        self._remember(rows, after)
        return policy.to_env(acted.action)

    def _in_tiles(self, obs: Tree, starts: Tensor, fresh: Tensor) -> Tree:
        """The actions of all rows, without a host read."""
        rows, member = self._rows, self._slots.member[self._slot_of]
        actions, by = None, member
        if self._tiles is not None:
            memory = tree.index(self._memories(), rows)
            actions, after, by = self._tiles.act(member, obs, memory, starts, self._generator)
            self._remember(rows, after)
        for place, player in self._active.values():
            own = player.act(rows, obs, starts)
            actions = own if actions is None else tree.select(member == place, own, actions)
            by = by.masked_fill(member == place, place)
        self._slots.acts(self._slots.acted.index_copy(0, self._slot_of, by), fresh)
        return actions

    def _remember(self, rows: Tensor, after: State) -> None:
        """The memories of ``rows``."""
        tree.map(lambda leaf, new: leaf.index_copy_(0, rows, new.to(leaf.dtype)), self._memories(), after)

    def _memories(self) -> State:
        if self._memory is None:
            rows = self.env.num_envs * self.env.agents
            self._memory = self._made().actor_only().initial_state(rows)
        return self._memory

    def _action_seed(self) -> int:
        """The seed of the next actions: of a step, and in tiles of a rollout. A host read."""
        key = random.row_keys(self._seed ^ _ACTIONS, torch.tensor([self._first_slot]))
        return int(random.bits(key, self._calls[:1].cpu())) >> 1 & (2**62 - 1)

    # The log ------------------------------------------------------------------------------------------------

    def _book(self) -> None:
        """Log the games that are over, each with the member that played it."""
        over, lost = self._slots.taken()
        if self._log is None or not over:
            return
        if lost:
            warnings.warn(
                f"league: {lost} games are not in the log, because more steps were made than "
                "between_rollouts(steps) was given: call it before every rollout",
                stacklevel=2,
            )
        names = self._names()
        try:
            self._log.add([self._game(game, names) for game in over])
        except StorageError as error:  # a full disk must not end a training that can go on without it
            warnings.warn(f"{error}. The training goes on, and these games are not counted", stacklevel=2)
        else:
            slots = torch.tensor([game.slot for game in over], device=self._calls.device)
            self._slots.logged.index_add_(0, slots, torch.ones_like(slots))

    def _game(self, over: Over, names: list[str]) -> Game:
        return Game(
            slot=self._first_slot + over.slot,
            game=over.game,
            roster=over.roster,
            member=names[over.member],
            side=self.env.sides[0 if over.second else 1],
            outcome=_outcome(over.won, bool(over.second)),
            steps=over.steps,
            swaps=over.swaps,
        )

    def _continue_log(self, log: GameLog) -> None:
        """After a restore, remove the games that came later; else count on from the file."""
        games, slots = log.read(), self._slots
        if self._is_restored:
            left = {self._first_slot + i: logged for i, logged in enumerate(slots.logged.tolist())}

            def is_kept(game: Game) -> bool:
                left[game.slot] = left.get(game.slot, 0) - 1
                return left[game.slot] >= 0

            return log.keep(is_kept)
        for game in games:
            slot = game.slot - self._first_slot
            if 0 <= slot < self.env.num_envs:
                slots.game[slot] = max(game.game, int(slots.game[slot]))
                slots.logged[slot] += 1

    # Snapshots ----------------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        return {"calls": self._calls} | {name: getattr(self._slots, name) for name in KEPT}

    def snapshot(self) -> dict[str, Tensor]:
        """The opponents, their memories, and the counters of random numbers; the pool has the weights."""
        self._book()
        found = {name: tensor.clone() for name, tensor in self._tensors().items()}
        if self._tiles is not None:
            found["capacity"] = torch.full_like(self._calls, self._capacity)
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
        self._capacity = int(snapshot["capacity"][0]) if "capacity" in snapshot else self.config.opponents
        if any(name.startswith("memory") for name in snapshot):
            tree.copy_(self._memories(), tree.from_named(self._memories(), snapshot, "memory"))
        for name in self.env.opponents:
            prefix = f"scripted/{name}/"
            own = {key.removeprefix(prefix): leaf for key, leaf in snapshot.items() if key.startswith(prefix)}
            if own:
                self._script(name).restore(own)
        self._slots.taken()  # games that were played after the snapshot, or before it by another process
        self._is_restored, self._parts, self._log, self._is_ready = True, None, None, False
        self._generator.manual_seed(self._action_seed())
        self._replace_missing()
        if self._has_acted:
            self._prepare()

    def _replace_missing(self) -> None:
        """Games whose opponent is no longer there go on with another one, and do not count."""
        names, slots = self._names(), self._slots
        can_play = {
            place: place < len(names) and self._can_play(names[place])
            for place in set(slots.member.tolist()) - {NOBODY}
        }
        lost = torch.tensor([not can_play.get(place, True) for place in slots.member.tolist()])
        if lost.any():
            self._prepare()
            lost = lost.to(slots.member.device)
            slots.is_void |= lost
            self._restart |= lost
            slots.member.copy_(torch.where(lost, slots.drawn(), slots.member))


def _outcome(won: float, opponent_is_second: bool) -> str:
    """The result of a game for the agent, from ``env.won``."""
    result = won if opponent_is_second else -won
    return "draw" if result == 0 else "win" if result > 0 else "loss"
