"""Evaluations: they reset at ends, act greedily, can be repeated, and leave policy and training untouched."""

from __future__ import annotations

import time

import torch

from recollect.acting.evaluate import evaluate
from recollect.audit.recorded_rollouts import EnvRecorder
from recollect.audit.results import Problem, Skip
from recollect.base import tree
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups, views_of
from recollect.errors import ConfigError, EvaluationCancelledError
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy

SECONDS = 1.0
"""After which an evaluation is cancelled; what it did until then is checked."""
STEPS = 200
SEED = 5


def evaluations(env: BatchedEnv | Groups, network: Network, *, is_repeatable: bool) -> str:
    """An evaluation's actions equal those of a replay with explicit resets; it changes neither weights nor
    statistics nor torch's random stream, and a second one is the same."""
    policies = by_group(network)
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    rng = torch.get_rng_state()
    recorders = {name: EnvRecorder(view) for name, view in views_of(env).items()}
    watched = Groups({**recorders}, env.members) if isinstance(env, Groups) else recorders[""]
    returns = [_played(network, watched, count) for count in (0, 0)]
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
    if is_repeatable and returns[0] != returns[1]:
        raise Problem(
            "two evaluations with the same seed differ",
            "Likely cause: the env or the memory is not reset when an evaluation begins, or actions are "
            "drawn without a seed",
            "Fix: reset env and memory first, and seed the actions",
        )
    ends = steps = 0
    for name, recorder in recorders.items():
        found, count = _check_actions(policies[name], recorder)
        ends, steps = ends + found, steps + count
    if not ends:
        raise Skip(f"no episode ended in {steps} steps of an evaluation")
    again = "; repeated with the same result" if is_repeatable else ""
    return f"{steps} steps over {ends} ends: greedy, reset at each end{again}"


def _played(network: Network, env: BatchedEnv | Groups, steps: int) -> list[float] | None:
    """The returns of a few episodes; None if they take too long."""
    started = time.perf_counter()

    def is_late() -> bool:
        nonlocal steps
        steps += 1
        return steps > STEPS or (steps > 20 and time.perf_counter() - started > SECONDS)

    rows = env.num_envs * env.agents
    try:
        return evaluate(network, env, episodes=2 * rows, seed=SEED, cancelled=is_late).returns.tolist()
    except EvaluationCancelledError:
        return None
    except ConfigError as error:
        raise Skip(str(error)) from None


@torch.no_grad()
def _check_actions(policy: Policy, recorder: EnvRecorder) -> tuple[int, int]:
    """The number of ends and steps of the last evaluation, whose actions equal those of a replay."""
    log, actor = recorder.take(), policy.actor_only()
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
