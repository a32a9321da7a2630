"""Leagues: a game has one opponent, drawn for it, with weights, a memory and a result of its own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.audit.gpu_path import without_reads
from recollect.audit.opponent_checks import SEED, check_resume, seen, signs, versus_of
from recollect.audit.results import Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.state_checks import equal
from recollect.audit.trace_checks import state_gap
from recollect.base import tree
from recollect.config.league import LEAGUE, LeagueConfig
from recollect.envs import checks
from recollect.envs.contract import Resumable
from recollect.envs.versus import OUTCOMES, Versus
from recollect.league.cast import Cast
from recollect.league.games import Game, faults, read_games
from recollect.league.matchmaking import Roster, luck, slot_keys
from recollect.league.pool import Pool, signature
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy

STEPS, LATER = 30, 12
"""Steps in which the league is played, and after a resume."""
MEMBERS = 3
FIRST_SLOT = 1
"""The number of the env's first slot in the run."""
TOLERANCE = 1e-4
NONE = -2
"""The place of no member."""


def league(setup: Setup, env: Any, network: Network) -> str:
    """Every game is of the opponent that is drawn for it, in its play, its memory and the log."""
    if setup.config.vs != LEAGUE:
        raise Skip("the opponents are no league")
    env, live = versus_of(env).env, next(iter(by_group(network).values()))
    games = 0
    for is_gpu in (False, True):
        with TemporaryDirectory() as folder, without_reads(is_gpu):
            played = Played.new(env, live, Path(folder), is_gpu)
            played.all_parts()
            games += len(played.expected)
    return (
        f"{games} games of {MEMBERS} opponents, each drawn at a reset by its seed, slot and number; weights, "
        "memories and results their own, also on the path of a GPU, with other live weights, another roster, "
        "after resumes and without a member"
    )


def perturbed(live: Policy, number: int) -> Policy:
    """The actor of a copy with other weights."""
    one, generator = copy.deepcopy(live), torch.Generator().manual_seed(SEED + number)
    with torch.no_grad():
        for weight in one.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator).to(weight.device)
    return one.eval().actor_only()


@dataclass
class Played:
    """A league that is played, and its games as the env has them."""

    env: Any
    live: Policy
    folder: Path
    is_gpu: bool
    members: dict[str, Policy]
    cast: Cast
    world: Any
    rosters: list[Roster]
    states: Any
    """Of all rows, computed apart."""
    game: Tensor
    """[E] the number of each slot's game, and below its steps."""
    steps: Tensor
    member: Tensor | None = None
    """[E] the place in the pool of each slot's opponent."""
    expected: list[Game] = field(default_factory=list)
    """The games that are over."""
    pending: list[Game] = field(default_factory=list)
    """Those of the last step, which are booked when the next begin."""
    gone: str = ""
    """A member that cannot be loaded."""
    lost: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.bool))
    """[E] or [1] games that do not count, and below whose memories restart."""
    restarts: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.bool))

    @classmethod
    def new(cls, env: Any, live: Policy, folder: Path, is_gpu: bool) -> Played:
        """In a new folder."""
        pool, members = Pool(folder), {}
        pool.create(signature(env, {}), env.opponents)
        for number in range(MEMBERS):
            one = perturbed(live, number)
            members[pool.add(one.state_dict(), number).name] = one
        cast = _cast(env, live, folder)
        names = tuple(members)
        rosters = [
            Roster(number, 0, order, (1 / MEMBERS,) * MEMBERS, names[0])
            for number, order in enumerate((names, names[::-1]))
        ]
        none = torch.zeros(env.num_envs, dtype=torch.int64)
        state = live.actor_only().initial_state(env.num_envs * env.agents)
        made = cls(env, live, folder, is_gpu, members, cast, None, rosters, state, none - 1, none.clone())
        made.enter(cast)
        return made

    def enter(self, cast: Cast) -> None:
        """Let ``cast`` play."""
        self.cast, self.world = cast, Versus(self.env, cast, FIRST_SLOT)

    def restart(self, seed: int) -> Any:
        """Reset the env in the middle of games, which do not count."""
        self.pending, self.member = [], None
        return self.world.reset(seed)

    def tell(self, number: int) -> None:
        """The roster of later games."""
        self.cast.adjust(league=asdict(self.rosters[number]))

    def all_parts(self) -> None:
        """Play, and look at everything."""
        self.tell(0)
        obs, rng = self.restart(SEED), np.random.default_rng(SEED)
        kept = tree.clone(dict(self.live.state_dict()))

        def changes(t: int) -> None:
            if t == STEPS // 3:  # the learner learns: its opponents must not
                with torch.no_grad():
                    for weight in self.live.parameters():
                        weight += 1.0
            if t == STEPS // 2:
                self.tell(1)

        try:
            self.play(obs, rng, STEPS, changes)
        finally:
            self.live.load_state_dict(kept)
        self.start_by_one_row()
        obs = self.restart(SEED + 1)
        obs = self.play(obs, rng, LATER)
        self.check_log()
        cast, game = self.cast, self.game.clone()
        self.evaluate()
        self.enter(cast)
        self.game = game
        obs = self.play(self.restart(SEED), rng, LATER)
        if isinstance(self.world, Resumable):
            self.resume(obs, rng)

    @property
    def slots(self) -> Tensor:
        """[E] their numbers in the run."""
        return torch.arange(FIRST_SLOT, FIRST_SLOT + self.env.num_envs)

    def play(
        self, obs: Any, rng: np.random.Generator, steps: int, before: Callable[[int], None] = lambda _: None
    ) -> Any:
        """Steps with random actions of the learner. Returns the observation after them."""
        if self.is_gpu:
            self.world.between_rollouts(steps)
        with seen(self.cast, "act") as acts:
            for t in range(steps):
                before(t)
                games = self.env.games.clone()
                obs = self.world.step(checks.random_action(self.world, obs, rng)).obs
                self.look(*acts[-1][0])
                self.book((self.env.games > games).cpu())
        return obs

    def look(self, rows: Tensor, obs: Any, first: Tensor) -> None:
        """Opponents and memories after the step ``act(rows, obs, first)``."""
        slots = rows.div(self.env.agents, rounding_mode="floor").cpu()
        fresh = torch.zeros(self.env.num_envs, dtype=torch.bool)
        fresh[slots[first.cpu()]] = True
        now = self.cast.snapshot()
        member = now["member"].cpu()
        if self.member is not None and ((member != self.member) & ~fresh).any():
            slot = int(((member != self.member) & ~fresh).nonzero()[0])
            raise Problem(
                f"the opponent of slot {slot} changes in the middle of a game",
                "Likely cause: opponents are drawn at every step, for all slots at once, or with a "
                "new roster",
                "Fix: draw the opponent of a slot at its reset",
            )
        self.member = member
        self.game += fresh
        self.steps = torch.where(fresh, 1, self.steps + 1)
        lost, self.lost = self.lost.expand(len(fresh)), self.lost & ~fresh
        self.expected += [one for one in self.pending if not lost[one.slot - FIRST_SLOT]]
        self.pending = []
        self.check_memories(now, rows, obs, (fresh | self.restarts)[slots])
        self.restarts = self.restarts & False

    @torch.no_grad()
    def check_memories(self, now: dict[str, Tensor], rows: Tensor, obs: Any, fresh: Tensor) -> None:
        """The memories of all rows by a computation apart, with the weights of each member."""
        assert self.member is not None
        names = self.names()
        memory = {name: leaf for name, leaf in now.items() if name.startswith("memory")}
        of_row = self.member[rows.div(self.env.agents, rounding_mode="floor").cpu()]
        for place in set(of_row.tolist()):
            if (policy := self.members.get(names[place])) is None or not memory:
                continue
            at = (of_row == place).nonzero().flatten().to(rows.device)
            before, starts = tree.index(self.states, rows[at]), fresh.to(rows.device)[at]
            *_, after = policy.step(tree.index(obs, at), before, starts)
            tree.map(lambda x, new, at=at: x.index_copy_(0, rows[at], new), self.states, after)
            theirs = tree.index(tree.from_named(self.states, memory, "memory"), rows[at])
            gap = float(state_gap(theirs, after).max())
            if not gap <= TOLERANCE:
                raise Problem(
                    f"the memory of the opponent {names[place]} is {gap:.1e} off that of its own weights and "
                    "game",
                    "Likely cause: its memory is kept over a change of opponents, its weights are those of "
                    "another member, or it shares tensors with the live network",
                    "Fix: restart the memory of all rows of a slot with each game, and give every member "
                    "weights of its own",
                    measured=gap,
                    tolerance=TOLERANCE,
                )

    def names(self) -> list[str]:
        """Of all members, by place."""
        return [member.name for member in Pool(self.folder).members]

    def book(self, over: Tensor) -> None:
        """The games that ended in the slots ``over``."""
        assert self.member is not None
        won = self.env.won * signs(self.world, self.world.rows)
        for slot in over.nonzero().flatten().tolist():
            outcome = next(name for name, result in OUTCOMES.items() if result == won[slot])
            member, steps = self.names()[int(self.member[slot])], int(self.steps[slot])
            side = self.world.sides[slot]
            self.pending.append(
                Game(FIRST_SLOT + slot, int(self.game[slot]), 0, member, side, outcome, steps)
            )

    def logged(self) -> list[Game]:
        """The games of the log; all rosters give the same chances."""
        self.cast.snapshot()
        return list(read_games(self.folder))

    def check_log(self) -> None:
        """The log has the games that were played."""
        self.cast.between_rollouts(1)
        found = self.logged()

        def key(game: Game) -> tuple[Any, ...]:
            return game.slot, game.game, game.member, game.side, game.outcome, game.steps

        wrong = sorted(set(map(key, found)) ^ set(map(key, self.expected)))
        if wrong or len(found) != len(self.expected):
            raise Problem(
                f"the log has {len(found)} games, and {len(self.expected)} were played; first, "
                f"slot, game, opponent, side, outcome, steps = {wrong[0] if wrong else ''}",
                "Likely cause: a result is booked to another slot, member or side, or a game counts that "
                "was given up, lost its opponent, or came after a checkpoint",
                "Fix: book a game when it ends, to the opponent that played it, from the agent's side",
            )

        def drawn(game: Game) -> str | None:
            (chance,) = _luck(torch.tensor([game.slot]), torch.tensor([game.game]))
            name = self.rosters[game.roster].pick(chance)
            return None if name == self.gone else name

        if others := faults(found, drawn):
            raise Problem(
                others[0],
                "Likely cause: the draw of an opponent depends on the slots or processes beside it",
                "Fix: draw by the seed, the slot's number in the run and its game",
            )

    def start_by_one_row(self) -> None:
        """Games start although all agents of a slot but one are absent, and none was over before."""
        rng = np.random.default_rng(SEED)
        with seen(self.cast, "act") as acts:
            self.world.step(checks.random_action(self.world, self.restart(SEED), rng))
            self.look(*acts[-1][0])
            rows, obs, _ = acts[-1][0]
            first = rows % self.world.agents == 0
            self.cast.act(rows, obs, first)
            self.look(rows, obs, first)

    def resume(self, obs: Any, rng: np.random.Generator) -> None:
        """Games go on after a resume, and the log with them; a game without its opponent does not count."""
        assert self.member is not None
        kept, names = tree.clone(self.world.snapshot()), self.names()
        ours = tree.clone((self.game, self.steps, self.member, self.states))
        pending, count, first = list(self.pending), len(self.expected), int(self.member[0])
        self.play(obs, rng, LATER)
        for gone in (NONE, first):
            if gone != NONE:
                if names[gone] not in self.members:
                    break
                Pool(self.folder).path(names[gone]).unlink()
                self.gone = names[gone]
                self.enter(_cast(self.env, self.live, self.folder))
            self.game, self.steps, self.member, self.states = tree.clone(ours)
            self.pending, self.expected[count:] = list(pending), []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a member is gone
                obs = self.world.restore(kept)
                self.tell(1)
                self.lost = self.member == gone
                if gone == NONE:
                    self.check_log()
                else:
                    self.restarts, self.member = self.lost.clone(), None
                obs = self.play(obs, rng, LATER)
                self.check_log()
        with seen(self.cast, "act") as acts:
            check_resume(self.world, obs, rng, acts)

    def evaluate(self) -> None:
        """An evaluation is the same again, and draws an opponent for each game."""
        self.enter(_cast(self.env, self.live, self.folder))
        names = self.env.opponents or self.names()[:1]
        roster, found = Roster(0, 0, tuple(names), (1 / len(names),) * len(names), ""), []
        for _ in range(2):
            obs, rng = self.restart(SEED), np.random.default_rng(SEED)
            self.game.fill_(-1)
            with seen(self.cast, "act") as acts:
                for _ in range(LATER):
                    obs = self.world.step(checks.random_action(self.world, obs, rng)).obs
                    self.look(*acts[-1][0])
                    playing = [self.names()[place] for place in self.cast.snapshot()["member"]]
                    right = [roster.pick(chance) for chance in _luck(self.slots, self.game)]
                    if playing != right:
                        raise Problem(
                            f"an evaluation against the league plays {playing}, and {right} are drawn",
                            "Likely cause: opponents are drawn once, or on from the evaluation before",
                            "Fix: draw by slot and game, from 0 on with every reset of the env",
                        )
            found.append([answer for _, answer in acts])
        if not all(map(equal, *found)):
            raise Problem(
                "opponents of an evaluation act otherwise when it is repeated",
                "Fix: restart their random numbers at the reset of the env",
            )


def _luck(slots: Tensor, games: Tensor) -> list[float]:
    return luck(slot_keys(SEED, slots), games).tolist()


def _cast(env: Any, live: Policy, folder: Path) -> Cast:
    make = lambda: copy.deepcopy(live)  # noqa: E731
    return Cast(env, LeagueConfig(opponents=MEMBERS), folder, make=make, seed=SEED, first_slot=FIRST_SLOT)
