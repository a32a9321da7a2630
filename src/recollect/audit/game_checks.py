"""Games against an opponent: their results in evaluations, numbers of the env, and stages of a curriculum."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from recollect.acting.group_actor import make_actor
from recollect.acting.versus_games import Results, play_games
from recollect.agent import Agent
from recollect.algos.catalog import acting
from recollect.audit.opponent_checks import SEED, seen, versus_of
from recollect.audit.results import Passed, Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.state_checks import equal
from recollect.config.curriculum import settings_at
from recollect.envs import checks
from recollect.envs.contract import Adjustable
from recollect.envs.versus import OUTCOMES
from recollect.errors import ConfigError
from recollect.policy.policies import Network, by_group

MOST_STEPS = 100
"""Of an evaluation; games that take longer are not judged."""
STEPS, CHANGE = 24, 8
"""Steps that are played twice, and the one before which settings change."""
TOLERANCE = 1e-5


def games(env: Any, network: Network) -> str:
    """An evaluation counts as many games of each slot as are due, by the log of the env."""
    versus, policy = versus_of(env), next(iter(by_group(network).values()))
    slots = {side: [i for i, own in enumerate(versus.sides) if own == side] for side in versus.sides}
    if len(slots) < 2:
        raise Skip("one slot has one side only")
    each = math.prod(len(own) for own in slots.values())
    rows = versus.num_envs * versus.agents
    with seen(env, "step") as steps:
        try:
            found = play_games(
                policy, env, opponent="", games=2 * each, seed=SEED, max_steps=MOST_STEPS * rows
            )
        except ConfigError:
            raise Skip(f"games take more than {MOST_STEPS} steps") from None
    due = {i: each // len(own) for own in slots.values() for i in own}
    right = _counted([result for _, result in steps], due, versus)
    parts = {
        "results": (found.sides, right[0]),
        "returns": (sorted(found.returns.round(3).tolist()), right[1]),
        "lengths": (sorted(found.lengths.tolist()), right[2]),
        "numbers of the env": ({name: round(x, 4) for name, x in found.info.items()}, right[3]),
    }
    for name, (ours, theirs) in parts.items():
        if ours != theirs:
            raise Problem(
                f"{name} of {2 * each} games are {ours}, and by the log of the env {theirs}",
                "Likely cause: games count that were not due, dead agents count, or a result is that of "
                "another slot or side",
                "Fix: count a fixed number of games of each slot, and steps of the living",
            )
    return f"results, returns and lengths of {2 * each} games are those of the env's log"


def _counted(steps: list[dict[str, Any]], due: dict[int, int], versus: Any) -> tuple[Any, ...]:
    """Results by side, returns, lengths and means of the games that are ``due``, slot by slot."""
    counts: dict[str, dict[str, int]] = {side: dict.fromkeys(OUTCOMES, 0) for side in versus.sides}
    returns, lengths, values = list[float](), list[int](), defaultdict[str, list[float]](list)
    size = versus.agents
    for slot, games in due.items():
        mine, played, length = slice(slot * size, (slot + 1) * size), 0, 0
        total, lived = np.zeros(size), np.zeros(size, bool)
        for step in steps:
            valid = step["valid"][mine].cpu().numpy()
            total += np.where(valid, step["reward"][mine].double().cpu().numpy(), 0)
            lived, length = lived | valid, length + 1
            for name, value in step["info"].items():
                of_rows = len(value) == size * versus.num_envs
                own = value[mine if of_rows else slice(slot, slot + 1)].double().cpu().numpy()
                own = own[valid] if of_rows and size > 1 else own
                values[name] += own[~np.isnan(own)].tolist()
            if step["first"][mine].any():
                outcome = next(name for name in OUTCOMES if step["info"][name][slot] == 1)
                counts[versus.sides[slot]][outcome] += 1
                returns += total[lived].round(3).tolist()
                lengths.append(length)
                played += 1
                total, lived, length = np.zeros(size), np.zeros(size, bool), 0
            if played == games:
                break
    means = {name: round(float(np.mean(x)), 4) for name, x in values.items() if x and name not in OUTCOMES}
    sides = {side: Results(**found) for side, found in counts.items()}
    return sides, sorted(returns), sorted(lengths), means


def infos(setup: Setup, env: Any, network: Network) -> Passed:
    """The numbers of the env in the metrics are means over the living, and leave out what is no number."""
    with seen(env, "step") as steps:
        algo = setup.config.algo
        actor = make_actor(env, network, rollout=algo.rollout, seed=SEED, **acting(algo).keywords())
        actor.collect()
    values = defaultdict[str, list[float]](list)
    for _, step in steps:
        for name, value in step["info"].items():
            x = value.double().cpu()
            if env.agents > 1 and len(x) == env.agents * env.num_envs:
                x = x[step["valid"].cpu()]
            x = x[~x.isnan()]
            values[name] += [float(x.mean())] if len(x) else []
    right = {f"info/{name}": float(np.mean(x)) for name, x in values.items() if x}
    found = {name: float(x) for name, x in actor.info.items() if not math.isnan(float(x))}
    unit = max([1.0, *map(abs, right.values())])
    gaps = {name: abs(found.get(name, math.inf) - right.get(name, 0.0)) / unit for name in right | found}
    wrong = [name for name, gap in gaps.items() if not gap <= TOLERANCE]
    if wrong:
        raise Problem(
            f"{wrong[0]} is {found.get(wrong[0])} in a rollout, and by the log of the env "
            f"{right.get(wrong[0])}",
            "Likely cause: dead agents count, or a missing number counts as zero",
            "Fix: take means over the living, without NaN",
        )
    return Passed(f"{len(right)} numbers of the env", max(gaps.values(), default=0.0), TOLERANCE)


def stages(setup: Setup, env: Any) -> str:
    """Settings of a curriculum are told at their steps, and do not change a game that is played."""
    values = list(setup.config.curriculum.values())
    if len(values) < 2:
        raise Skip("there is no curriculum with several stages")
    _check_running_games(env, values[0], values[-1])
    steps = setup.config.algo.rollout * env.num_envs * env.agents
    config = replace(setup.config, curriculum={0: values[0], 1: values[-1]}, steps=3 * steps)
    with Agent.create(setup.env, config, setup.policy) as agent:
        trainer = agent.need_trainer()
        trainer.begin(config.steps)
        adjust = mock.patch.object(trainer.collector, "adjust", wraps=trainer.collector.adjust)
        with adjust as watched, trainer.working():
            for _ in range(3):
                trainer.iterate()
    told = [call.args[0] for call in watched.call_args_list]
    right = [settings_at(config.curriculum, steps) for steps in (0, 1)]
    right = right[: 1 + (right[0] != right[1])]
    if told != right:
        raise Problem(
            f"the envs are told {told} in three updates, and the curriculum has {right}",
            "Fix: tell the envs when the steps of a stage are reached",
        )
    return f"{len(right)} stages, told at their steps; games that are played keep their settings"


def _check_running_games(env: Any, first: dict[str, Any], later: dict[str, Any]) -> None:
    """Play the same with and without a change of settings: games that began before it are the same."""
    whole = env
    while not isinstance(env, Adjustable):
        env = env.env
    inner, found = getattr(env, "env", env), []
    for settings in (first, later):
        env.adjust(**first)
        obs, rng = whole.reset(SEED), np.random.default_rng(SEED)
        with seen(inner, "step") as steps:
            for t in range(STEPS):
                if t == CHANGE:
                    env.adjust(**settings)
                obs = whole.step(checks.random_action(whole, obs, rng)).obs
        found.append([result for _, result in steps])
    env.adjust(**first)
    size = len(found[0][0]["first"]) // whole.num_envs
    for slot in range(whole.num_envs):
        mine = slice(slot * size, (slot + 1) * size)
        for t in range(STEPS):
            one, other = (steps[t] for steps in found)
            if not all(equal(one[name][mine], other[name][mine]) for name in ("reward", "terminated")):
                raise Problem(
                    f"other settings change the game of slot {slot} that is played, at step {t}",
                    "Likely cause: the env or the player reads its settings at every step",
                    "Fix: read them at the reset of a slot, and keep them until the next",
                )
            if t >= CHANGE - 1 and one["first"][mine].any():
                break
