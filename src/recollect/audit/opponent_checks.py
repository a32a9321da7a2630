"""Opponents: they have the other side's rows, stay in their game, and have their own weights and memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.audit.results import Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.state_checks import equal
from recollect.audit.trace_checks import state_gap
from recollect.base import tree
from recollect.config.league import LEAGUE, SNAPSHOT, LeagueConfig
from recollect.envs import checks
from recollect.envs.contract import Resumable
from recollect.envs.versus import OUTCOMES, Versus
from recollect.league.cast import Cast
from recollect.league.pool import Pool, signature
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy

STEPS = 60
MEMBERS = 3
SEED = 13
RESUMES, AGAIN = 4, 8
"""Snapshots, and steps after each."""
PARTS = ("obs", "first", "reward", "terminated", "truncated", "final_obs", "valid")
"""Of a step, all but its info."""
TOLERANCE = 1e-4


def versus_of(env: Any) -> Versus:
    """The env with its player, below other wrappers."""
    while not isinstance(env, Versus):
        env = getattr(env, "env", None)
        if env is None:
            raise Skip("no opponent plays")
    return env


def sides(setup: Setup, env: Any) -> str:
    """Learner and opponent see and move the rows of their own side, at the same step."""
    versus = versus_of(env)
    inner, rng = versus.env, np.random.default_rng(SEED)
    with _seen(inner, "step") as steps, _seen(versus.player, "act") as acts:
        shown = versus.reset(SEED)
        last: tuple[Any, Tensor] | None = None
        mine = versus.rows
        for _ in range(STEPS):
            action = checks.random_action(versus, shown, rng)
            step = versus.step(action)
            (rows, _, first), answer = acts[-1]
            _check_moves(rows, action, answer, steps[-1][0][0])
            if last is not None:
                _check_shown(rows, acts[-1][0][1], first, *last)
            mine = _others(rows, len(steps[-1][1]["first"]))
            for name in PARTS:
                if not equal(getattr(step, name), tree.index(steps[-1][1][name], mine)):
                    raise Problem(
                        f"the learner sees {name} of other rows than those of its side",
                        "Fix: give it the rows that its actions move",
                    )
            _check_results(versus, step.info, _signs(versus, mine))
            last = steps[-1][1]["obs"], steps[-1][1]["first"]
            shown = step.obs
        signs = _signs(versus, mine)
        if versus.num_envs > 1 and not (signs.min() < signs.max()):
            raise Problem(
                f"the learner has the same side in all {versus.num_envs} slots",
                "Fix: give it the other side in every second slot",
            )
        resumes = ""
        if isinstance(versus, Resumable):
            for _ in range(RESUMES):
                shown = _check_resume(versus, shown, rng, acts)
            resumes = "; resumed in the middle of games, too"
    return f"{STEPS} steps: learner and opponent see and move the rows of their own side{resumes}"


def _signs(versus: Versus, mine: Tensor) -> Tensor:
    """[E]: 1 where the learner has the first half of a slot's rows, else -1."""
    size = 2 * versus.agents
    return torch.where(mine[:: versus.agents] % size < versus.agents, 1, -1)


def _check_results(versus: Versus, info: dict[str, Tensor], signs: Tensor) -> None:
    """The results of finished games are those of the learner's side; there are none before."""
    won, is_over = versus.env.won * signs, versus.env.games > 0
    for name, outcome in OUTCOMES.items():
        right = torch.where(is_over, (won == outcome).float(), torch.nan)
        if not equal(info[name], right):
            raise Problem(
                f"{name} of the learner is {info[name].tolist()}, and its games say {right.tolist()}",
                "Likely cause: results are those of the first side, or of games that are not played yet",
                "Fix: turn the result round where the learner has the second side",
            )


def _check_resume(versus: Any, obs: Any, rng: np.random.Generator, acts: list[tuple[Any, Any]]) -> Any:
    """From a snapshot where a game starts, the same actions lead to the same steps and answers.

    Returns the observation after them.
    """
    for _ in range(STEPS):
        step = versus.step(checks.random_action(versus, obs, rng))
        obs = step.obs
        if step.first.any() and not step.first.all():
            break
    kept = tree.clone(versus.snapshot())
    actions, found = [checks.random_action(versus, obs, rng) for _ in range(AGAIN)], []
    for number in range(2):
        if number:
            versus.restore(kept)
        earlier = len(acts)
        seen = [tree.clone(versus.step(action).obs) for action in actions]
        found.append((seen, acts[earlier:]))
        for action in actions:  # something else happens before the snapshot is restored
            obs = tree.clone(versus.step(action).obs)
    (obs_before, acts_before), (obs_again, acts_again) = found
    same = all(map(equal, obs_before, obs_again))
    same &= all(equal(a[0], b[0]) and equal(a[1], b[1]) for a, b in zip(acts_before, acts_again))
    if not same:
        raise Problem(
            "after a resume the opponent acts otherwise, or is told of other starts of games",
            "Likely cause: its memory or the flags of games that have just started are not restored",
            "Fix: save them with the env",
        )
    return obs


def _check_moves(rows: Tensor, own: Any, theirs: Any, sent: Any) -> None:
    mine = _others(rows, len(tree.leaves(sent)[0]))
    if equal(tree.index(sent, mine), own) and equal(tree.index(sent, rows), theirs):
        return
    raise Problem(
        "the env got the actions of learner and opponent in each other's rows, or changed",
        "Likely cause: the actions of the sides are joined in another order than the rows are split",
        "Fix: join them by the inverse of the split",
    )


def _check_shown(rows: Tensor, obs: Any, first: Tensor, whole: Any, starts: Tensor) -> None:
    if not equal(obs, tree.index(whole, rows)):
        raise Problem(
            "the opponent acts on another observation than that of its rows at this step",
            "Likely cause: the observation of an earlier step, of the final step, or of the learner's rows",
            "Fix: keep the opponent's part of each step's observation",
        )
    if not torch.equal(first, starts[rows]):
        raise Problem(
            "the opponent is not told which of its rows start a game",
            "Likely cause: its `first` is another step's, so that its memory is kept or lost",
            "Fix: pass first of its own rows",
        )


def _others(rows: Tensor, count: int) -> Tensor:
    mask = torch.ones(count, dtype=torch.bool, device=rows.device)
    mask[rows] = False
    return mask.nonzero().flatten()


@contextmanager
def _seen(owner: Any, name: str) -> Iterator[list[tuple[Any, Any]]]:
    """Copies of the arguments and results of a method, while the context lasts."""
    calls: list[tuple[Any, Any]] = []
    method = getattr(owner, name)

    def watched(*args: Any) -> Any:
        kept = tree.clone(tuple(args))
        result = method(*args)
        found = {part: getattr(result, part) for part in PARTS} if name == "step" else result
        calls.append((kept, tree.clone(found)))
        return result

    setattr(owner, name, watched)
    try:
        yield calls
    finally:
        delattr(owner, name)


def league(setup: Setup, env: Any, network: Network) -> str:
    """A game has one opponent from its start to its end, with the weights and memory of its own."""
    if setup.config.vs != LEAGUE:
        raise Skip("the opponents are no league")
    versus = versus_of(env)
    live = next(iter(by_group(network).values()))
    with TemporaryDirectory() as folder:
        members = _members(Path(folder), versus.env, live)
        names = tuple(members)
        cast = Cast(
            versus.env,
            LeagueConfig(),
            Path(folder),
            make=lambda: copy.deepcopy(live),
            seed=SEED,
            first_slot=0,
        )
        shares = (1 / len(names),) * len(names)
        roster = {"steps": 0, "members": names, "shares": shares, "latest": names[0]}
        cast.adjust(league={"number": 0} | roster)
        world = Versus(versus.env, cast)
        games, swaps = _play(world, cast, members, live, roster)
        if isinstance(world, Resumable):
            rng, shown = np.random.default_rng(SEED), world.reset(SEED)
            with _seen(cast, "act") as acts:
                for _ in range(RESUMES):
                    shown = _check_resume(world, shown, rng, acts)
    return (
        f"{games} games of {len(names)} opponents: {swaps} changes of opponent, each at a reset; weights and "
        "memories their own, also after the live weights changed and the roster was replaced"
    )


def _members(folder: Path, env: Any, live: Policy) -> dict[str, Policy]:
    """Snapshots with different weights, in a pool, each as a network apart."""
    pool = Pool(folder)
    pool.create(signature(env, {}), env.opponents)
    generator, found = torch.Generator().manual_seed(SEED), {}
    for number in range(MEMBERS):
        one = copy.deepcopy(live)
        with torch.no_grad():
            for weight in one.parameters():
                weight += 0.3 * torch.randn(weight.shape, generator=generator).to(weight.device)
        member = pool.add(one.state_dict(), number)
        found[member.name] = one.eval().actor_only()
    return found


def _play(
    world: Versus, cast: Cast, members: dict[str, Policy], live: Policy, roster: dict[str, Any]
) -> tuple[int, int]:
    rng, names = np.random.default_rng(SEED), [member.name for member in Pool(cast.folder).members]  # pyright: ignore[reportArgumentType]
    obs = world.reset(SEED)
    before: Tensor | None = None
    states: Any = None
    games = swaps = 0
    kept = {name: leaf.clone() for name, leaf in live.state_dict().items()}
    with _seen(cast, "act") as acts:
        for t in range(STEPS):
            if t == STEPS // 3:  # the learner learns: its opponents must not
                with torch.no_grad():
                    for weight in live.parameters():
                        weight += 1.0
            if t == STEPS // 2:
                cast.adjust(league=roster | {"number": 1, "members": roster["members"][::-1]})
            obs = world.step(checks.random_action(world, obs, rng)).obs
            (rows, seen, first), _ = acts[-1]
            now = cast.snapshot()
            slots = rows.div(cast.env.agents, rounding_mode="floor").cpu()
            fresh = torch.zeros(cast.env.num_envs, dtype=torch.bool).index_put_(
                (slots[first.cpu()],), torch.tensor(True)
            )
            if before is not None:
                changed = now["member"] != before
                if (changed & ~fresh).any():
                    raise Problem(
                        f"at step {t} the opponent of slot {int((changed & ~fresh).nonzero()[0])} changes in "
                        "the middle of a game",
                        "Likely cause: opponents are drawn at every step, for all slots at once, or with "
                        "a new roster",
                        "Fix: draw the opponent of a slot at its reset",
                    )
                swaps += int(changed.sum())
            games += int(fresh.sum())
            before = now["member"].clone()
            states = _check_memories(t, cast, now, rows, seen, fresh[slots], members, names, states)
    with torch.no_grad():
        for name, leaf in live.state_dict().items():
            leaf.copy_(kept[name])
    return games, swaps


@torch.no_grad()
def _check_memories(
    t: int,
    cast: Cast,
    now: dict[str, Tensor],
    rows: Tensor,
    obs: Any,
    fresh: Tensor,
    members: dict[str, Policy],
    names: list[str],
    states: Any,
) -> Any:
    """The memories of all rows after a step by a computation apart, row by row."""
    any_policy = next(iter(members.values()))
    if states is None:
        states = any_policy.initial_state(cast.env.num_envs * cast.env.agents)
    agents = cast.env.agents
    memory = {name: leaf for name, leaf in now.items() if name.startswith("memory")}
    for i, row in enumerate(rows.tolist()):
        slot = row // agents
        name = names[int(now["member"][slot])]
        if not SNAPSHOT.fullmatch(name):
            continue
        policy = members[name]
        state = policy.initial_state(1) if fresh[i] else tree.map(lambda x, r=row: x[r : r + 1], states)
        one = tree.map(lambda x, i=i: x[i : i + 1], obs)
        *_, after = policy.step(one, state, torch.zeros(1, dtype=torch.bool))
        tree.map(lambda x, new, r=row: x[r : r + 1].copy_(new), states, after)
        if not memory:
            continue
        theirs = tree.from_named(states, memory, "memory")
        gap = float(state_gap(tree.map(lambda x, r=row: x[r : r + 1], theirs), after).max())
        if not gap <= TOLERANCE:
            raise Problem(
                f"at step {t} the memory of the opponent {name} in row {row} is {gap:.1e} off that of its "
                "own weights and game",
                "Likely cause: its memory is kept over a change of opponents, its weights are those of "
                "another member, or it shares tensors with the live network",
                "Fix: restart the memory with each game, and give every member weights of its own",
                measured=gap,
                tolerance=TOLERANCE,
            )
    return states
