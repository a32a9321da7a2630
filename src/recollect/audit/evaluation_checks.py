"""Evaluations: they reset at ends, act greedily, can be repeated, and leave policy and training untouched."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from recollect.acting.evaluate import Evaluation, evaluate, in_mode
from recollect.audit.recorded_rollouts import EnvLog, EnvRecorder
from recollect.audit.results import Problem, Skip
from recollect.audit.state_checks import equal
from recollect.base import tree
from recollect.base.types import Step, Tree
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups, views_of
from recollect.errors import ConfigError, EvaluationCancelledError
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy

SECONDS = 1.0
"""After which an evaluation is cancelled; what it did until then is checked."""
STEPS = 200
SEED = 5
_NONE = Evaluation(np.zeros(0), np.zeros(0, np.int64))


class _Watched(EnvRecorder):
    """Records also how the network runs at each step."""

    def __init__(self, env: BatchedEnv, network: Network) -> None:
        super().__init__(env)
        self._network, self.modes, self.steps = network, set[tuple[bool, bool]](), 0

    def _logged(self, step: Step, sent: Tree) -> Step:
        self.modes.add((self._network.training, torch.is_grad_enabled()))
        self.steps += 1
        return super()._logged(step, sent)


def evaluations(env: BatchedEnv | Groups, network: Network, *, is_repeatable: bool) -> str:
    """An evaluation's actions equal those of a replay with explicit resets, and its episodes those of the
    env; it changes neither weights nor statistics nor torch's random stream, and a second one is the same."""
    policies = by_group(network)
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    rng = torch.get_rng_state()
    recorders = {name: _Watched(view, network) for name, view in views_of(env).items()}
    watched = Groups({**recorders}, env.members) if isinstance(env, Groups) else recorders[""]
    plays: list[tuple[Evaluation | None, dict[str, EnvLog]]] = []
    for deterministic in (False, False, True, True):
        made = _played(network, watched, deterministic=deterministic)
        plays.append((made, {name: recorder.take() for name, recorder in recorders.items()}))
    moved = [name for name, leaf in network.state_dict().items() if not torch.equal(leaf, before[name])]
    if moved:
        raise Problem(
            f"an evaluation changes {', '.join(moved[:3])}",
            "Likely cause: statistics are updated, or noise is drawn, while evaluating",
            "Fix: evaluate with frozen weights and statistics",
        )
    if [module.training for module in network.modules()] != modes:
        raise Problem(
            "after an evaluation the network is in another mode (train or eval) than before",
            "Likely cause: network.eval() without restoring the mode",
            "Fix: restore it",
        )
    if is_repeatable and not torch.equal(torch.get_rng_state(), rng):
        raise Problem(
            "an evaluation draws from torch's global random stream, which the training may use",
            "Likely cause: actions are sampled without a generator",
            "Fix: give the evaluation a generator of its own",
        )
    if any(recorder.modes - {(False, False)} for recorder in recorders.values()):
        raise Problem(
            "an evaluation runs in train mode, or records graphs of autograd",
            "Likely cause: network.eval() or torch.no_grad() is missing",
            "Fix: evaluate in eval mode, under torch.no_grad()",
        )
    asked: list[bool] = []
    in_mode(lambda deterministic: asked.append(deterministic) or _NONE, "both")
    if asked != [True, False]:
        raise Problem(
            f"an evaluation of both modes plays {asked.count(True)} times with the most likely actions",
            "Fix: play once with them, and once with drawn actions",
        )
    if is_repeatable and not (_alike(*plays[:2]) and _alike(*plays[2:])):
        raise Problem(
            "two evaluations with the same seed differ",
            "Likely cause: the env or the memory is not reset when an evaluation begins, or actions are "
            "drawn without a seed",
            "Fix: reset env and memory first, and seed the actions",
        )
    ends = steps = 0
    made, logs = plays[-1]
    _check_episodes(made, logs, {name: view.agents for name, view in views_of(env).items()})
    for name, log in logs.items():
        found, count = _check_actions(policies[name], log)
        ends, steps = ends + found, steps + count
    if not ends:
        raise Skip(f"no episode ended in {steps} steps of an evaluation")
    steps = sum(recorder.steps for recorder in recorders.values())
    again = "; repeated with the same result" if is_repeatable else ""
    return (
        f"{steps} steps of {len(plays)} evaluations, {ends} ends: greedy or drawn, reset at each end{again}"
    )


def _played(network: Network, env: BatchedEnv | Groups, *, deterministic: bool = True) -> Evaluation | None:
    """An evaluation of a few episodes, not equally many for each row; None if they take too long."""
    started, steps = time.perf_counter(), 0

    def is_late() -> bool:
        nonlocal steps
        steps += 1
        return steps > STEPS or (steps > 20 and time.perf_counter() - started > SECONDS)

    try:
        return evaluate(
            network,
            env,
            episodes=_episodes(env.num_envs * env.agents),
            seed=SEED,
            deterministic=deterministic,
            cancelled=is_late,
        )
    except EvaluationCancelledError:
        return None
    except ConfigError as error:
        raise Skip(str(error)) from None


def _episodes(rows: int) -> int:
    return 2 * rows + 1


def _alike(
    a: tuple[Evaluation | None, dict[str, EnvLog]], b: tuple[Evaluation | None, dict[str, EnvLog]]
) -> bool:
    """Whether two evaluations have the same actions, step by step, and so the same episodes.

    Those that took too long may have been cancelled at different steps.
    """
    for name, log in a[1].items():
        steps = min(len(log.reward), len(b[1][name].reward))
        first, second = (tree.index(one.action, slice(steps)) for one in (log, b[1][name]))
        if not equal(first, second):
            return False
    return a[0] is None or b[0] is None or np.array_equal(a[0].returns, b[0].returns)


def _check_episodes(made: Evaluation | None, logs: dict[str, EnvLog], agents: dict[str, int]) -> None:
    """The episodes are the first of each row, counted over the log row by row."""
    slots = next(iter(logs.values())).reward.shape[1] // next(iter(agents.values()))
    total = _episodes(slots * sum(agents.values()))
    found: list[tuple[float, int]] = []
    done_at = 0
    for slot in range(slots):
        rows = [
            _Row(log, slot * agents[name] + k, total // log.reward.shape[1])
            for name, log in logs.items()
            for k in range(agents[name])
        ]
        for row in rows:
            row.quota += row.index < total % row.log.reward.shape[1]
        for t in range(len(next(iter(logs.values())).reward)):
            lives = [row.step(t, found) for row in rows]
            if any(row.has_ended(t) for row in rows) and not any(lives):
                for row in rows:  # an agent that was absent from the whole episode plays one less
                    row.played += not row.has_lived
                    row.has_lived = False
            done_at = max(done_at, 0 if all(row.played >= row.quota for row in rows) else t + 2)
    steps = len(next(iter(logs.values())).reward)
    if made is None and done_at < steps:
        raise Problem(
            f"an evaluation goes on after {done_at} steps, when every row has played its episodes",
            "Likely cause: it waits for a row whose agent is absent from the episode",
            "Fix: count the episodes of its slot as played by it",
        )
    if made is not None and sorted(found) != sorted(zip(made.returns.tolist(), made.lengths.tolist())):
        raise Problem(
            f"an evaluation of {len(made.returns)} episodes has other returns or lengths than the first "
            f"{len(found)} of each row by the log of the env",
            "Likely cause: the episodes that end first are counted, which favours short ones; or fillers, "
            "dead or absent agents count",
            "Fix: let each row play a fixed number, and count valid steps only",
        )


@dataclass
class _Row:
    """A row of a log, gone through step by step."""

    log: EnvLog
    index: int
    quota: int
    total: float = 0.0
    length: int = 0
    played: int = 0
    has_lived: bool = False

    def has_ended(self, t: int) -> bool:
        return bool(self.log.ended[t, self.index])

    def step(self, t: int, found: list[tuple[float, int]]) -> bool:
        """Whether its agent lives on after step t; a finished episode is added to ``found``."""
        if not self.log.valid[t, self.index]:
            return False
        self.has_lived = True
        self.total, self.length = self.total + float(self.log.reward[t, self.index]), self.length + 1
        if not self.has_ended(t):
            return True
        if self.played < self.quota:
            found.append((self.total, self.length))
        self.played, self.total, self.length = self.played + 1, 0.0, 0
        return False


@torch.no_grad()
def _check_actions(policy: Policy, log: EnvLog) -> tuple[int, int]:
    """The number of ends and steps of an evaluation, whose actions equal those of a replay."""
    actor = policy.actor_only()
    rows = log.reward.shape[1]
    fresh = actor.initial_state(rows)
    state, never = tree.clone(fresh), torch.zeros(rows, dtype=torch.bool, device=log.first.device)
    was_training = actor.training
    actor.eval()
    try:
        for t in range(len(log.reward)):
            state = tree.select(log.first[t], fresh, state)
            *outputs, state = actor.step(tree.index(log.obs, t), state, never)
            action = actor.to_env(actor.head.choose(outputs, None, True))
            for ours, sent in zip(tree.leaves(action), tree.leaves(tree.index(log.action, t))):
                same = (
                    torch.isclose(ours.double(), sent.double(), rtol=1e-4, atol=1e-4).reshape(rows, -1).all(1)
                )
                if not (same | ~log.valid[t]).all():
                    row = int((~same & log.valid[t]).nonzero()[0])
                    raise Problem(
                        f"the greedy action of step {t}, row {row}, is not the one of a replay with resets",
                        f"Likely cause: {_cause(log.first, t, row)}",
                        "Fix: act greedily, pass the state on, and let `first` alone reset it",
                    )
    finally:
        actor.train(was_training)
    return int(log.ended[:-1].sum()), len(log.reward)


def _cause(first: torch.Tensor, t: int, row: int) -> str:
    if first[1 : t + 1, row].any():
        return "the memory is not reset where an episode of the evaluation begins"
    return "the evaluation samples, explores, or throws the memory away between steps"
