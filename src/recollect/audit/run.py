"""``verify``: check the buffer, the memory, the training loop and the gradients with an env and a config.

::

    print(rc.verify("CartPole-v1", core="gru"))

The settings are reduced so that it takes seconds; ``notes`` lists the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from recollect.agent import Agent
from recollect.audit import (
    agent_checks,
    buffer_checks,
    env_checks,
    epoch_checks,
    evaluation_checks,
    exploration_checks,
    game_checks,
    gauge_checks,
    gradient_checks,
    head_checks,
    input_checks,
    league_checks,
    league_part_checks,
    loop_checks,
    loss_checks,
    metric_checks,
    opponent_checks,
    optimiser_checks,
    q_head_checks,
    replay_book_checks,
    replay_checks,
    replay_learner_checks,
    replay_loss_checks,
    replay_target_checks,
    resume_checks,
    session_checks,
    state_checks,
    update_checks,
)
from recollect.audit.drawn_replay import Recorded
from recollect.audit.own_trainer import FROZEN, RETURNS, ROWS, STATE
from recollect.audit.recorded_rollouts import network_seconds, record_rollouts
from recollect.audit.results import PARTS, Check, Passed, Verification, checked
from recollect.audit.setup import LEAST_STEPS, MOST_STEPS, Setup, prepare, prepare_run
from recollect.base.row_threads import intra_op_threads
from recollect.config.league import LEAGUE
from recollect.config.policy import PolicyConfig
from recollect.config.replay import ReplayConfig
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.factory import EnvSpec, is_made, is_multi_agent
from recollect.envs.group_views import Groups, views_of
from recollect.policy.policies import Network, by_group
from recollect.training.new_network import PolicyFactory

__all__ = ["Check", "Verification", "audit_run", "verify"]

SECONDS = 1.5
"""Approximate seconds for a rollout; a slow env gets shorter ones."""
ROLLOUT_CHECKS: dict[str, tuple[Callable[[Recorded], str | Passed], ...]] = {
    "buffer": (buffer_checks.size, buffer_checks.rows_apart, buffer_checks.chunks, *ROWS),
    "state": (
        input_checks.inputs,
        state_checks.acting,
        state_checks.stored_states,
        state_checks.learner,
        state_checks.values_at_ends,
        state_checks.broken_states,
        session_checks.session,
        session_checks.conversations,
        *STATE,
    ),
    "returns": (*RETURNS, loss_checks.lagging, loss_checks.losses, loss_checks.predictions),
    "head": (head_checks.densities, head_checks.entropies, head_checks.exploration),
    "training": (
        update_checks.padding,
        update_checks.normalisers,
        update_checks.flat_memory,
        gauge_checks.gauge,
        epoch_checks.epochs,
        metric_checks.metrics,
        optimiser_checks.optimiser,
        *FROZEN,
    ),
    "gradient": (gradient_checks.parameters, gradient_checks.slopes, gradient_checks.through_time),
}
"""The checks of recorded rollouts by part. The name of a check is that of its function, with blanks."""
REPLAY_CHECKS: dict[str, tuple[Callable[[Recorded], str | Passed], ...]] = {
    "buffer": (
        buffer_checks.size,
        replay_checks.sequences,
        replay_checks.rows_apart,
        replay_checks.padding,
        replay_book_checks.replay_windows,
        replay_book_checks.replay_contents,
        replay_book_checks.replay_draws,
        replay_book_checks.replay_priorities,
        replay_book_checks.replay_saved,
        replay_learner_checks.replay_rows,
        *ROWS,
    ),
    "state": (
        input_checks.inputs,
        state_checks.acting,
        state_checks.stored_states,
        replay_checks.learner,
        state_checks.broken_states,
        session_checks.session,
        session_checks.conversations,
        *STATE,
    ),
    "returns": (
        replay_target_checks.targets,
        replay_loss_checks.errors,
        replay_loss_checks.losses,
        replay_target_checks.priorities,
        replay_target_checks.importance,
    ),
    "head": (q_head_checks.action_values, q_head_checks.random_actions, q_head_checks.noise),
    "training": (
        replay_checks.target_network,
        replay_learner_checks.warm_up,
        replay_learner_checks.replay_ratio,
        exploration_checks.exploration,
        exploration_checks.final_observations,
        exploration_checks.noise_drawn,
        replay_learner_checks.staleness,
        replay_learner_checks.replay_resumed,
        update_checks.normalisers,
        update_checks.flat_memory,
        gauge_checks.gauge,
        optimiser_checks.optimiser,
        *FROZEN,
    ),
    "gradient": (replay_checks.parameters, replay_checks.through_time),
}
"""The same for algorithms that replay old steps."""


def verify(
    env: EnvSpec,
    config: TrainConfig | None = None,
    *,
    policy: PolicyFactory | PolicyConfig | None = None,
    watch: Callable[[Check], Any] | None = None,
    preset: bool = True,
    **settings: Any,
) -> Verification:
    """Check for the classic bugs of recurrent training, with this env, config and network.

    Args:
        env: as in ``train``.
        config: settings to start from; ``settings`` override them.
        policy: as in ``train``.
        watch: called with each check when it is finished.
        preset: as in ``train``.
        **settings: as in ``train``.

    Raises ConfigError if such a training cannot start.

    Example:
        >>> verify("delayed-cue", core="gru").ok  # doctest: +SKIP
        True
    """
    return _audit(prepare(env, config, policy, settings, preset), watch)


def audit_run(agent: Agent, *, watch: Callable[[Check], Any] | None = None) -> Verification:
    """``verify`` with the env, settings and weights of a run or a saved agent, and its recorded metrics.

    Args:
        agent: as ``recollect.load`` returns it.
        watch: called with each check when it is finished.

    Example:
        >>> audit_run(rc.load("runs/first")).ok  # doctest: +SKIP
        True
    """
    return _audit(prepare_run(agent), watch, agent)


def _audit(setup: Setup, watch: Callable[[Check], Any] | None, agent: Agent | None = None) -> Verification:
    checks: list[Check] = []

    def report(check: Check) -> Check:
        checks.append(check)
        if watch is not None:
            watch(check)
        return check

    with intra_op_threads(1):  # all tensors are small
        opened = setup.open()
        try:
            network = setup.build(opened)
            for name, view in views_of(opened).items():
                setup.config.algo.check(by_group(network)[name], setup.asked_envs * view.agents)
            setup = _run_checks(setup, opened, network, report)
        finally:
            if not is_made(setup.env):
                opened.close()
    if agent is not None:
        report(checked("training", "run metrics", partial(loop_checks.run_metrics, agent, setup)))
    return Verification(setup.name, checks, setup.notes)


def _run_checks(
    setup: Setup, env: BatchedEnv | Groups, network: Network, report: Callable[[Check], Check]
) -> Setup:
    """Run and report all checks in order. Returns the setup with the sizes that were used."""
    walks: list[env_checks.RandomWalk] = []

    def contract() -> str:
        walks.append(env_checks.random_walk(env))
        return env_checks.contract(env, walks[0])

    kept = report(checked("env", "contract", contract))
    is_users = is_made(setup.env)
    single = checked(
        "env", "gymnasium", lambda: env_checks.gymnasium_checker(setup.single, is_users=is_users)
    )
    if single.status != "skipped":
        report(single)
    if is_multi_agent(setup.env):
        report(checked("env", "agents", lambda: agent_checks.agents(setup)))
    if setup.config.vs is not None and kept.ok:
        report(checked("env", "sides", lambda: opponent_checks.sides(setup, env)))
        report(checked("env", "league", lambda: league_checks.league(setup, env, network)))
        report(checked("env", "games", lambda: game_checks.games(env, network)))
        if setup.config.vs == LEAGUE:
            parts = partial(league_part_checks.league_parts, env, network)
            report(checked("env", "league parts", parts))
    if kept.ok and setup.config.curriculum:
        report(checked("env", "stages", partial(game_checks.stages, setup, env)))
    others = [part for part in PARTS if part != "env"]
    if not kept.ok:
        for part in others:
            report(Check(part, "all", "skipped", "not tried: the env's contract comes first"))
        return setup
    views = views_of(env)
    rows = [env.num_envs * view.agents for view in views.values()]
    setup = setup.sized(min(rows), _most_steps(walks[0].seconds, env, network), max(rows))
    if isinstance(env, Groups):
        drawn = partial(agent_checks.random_numbers, setup, env, network)
        report(checked("env", "random numbers", drawn))
    else:
        report(checked("env", "infos", partial(game_checks.infos, setup, env, network)))
    checks = REPLAY_CHECKS if isinstance(setup.config.algo, ReplayConfig) else ROLLOUT_CHECKS
    rollouts = {name: Recorded() for name in views}

    def record() -> str:
        for found in record_rollouts(setup, env, network):
            for name, rollout in found.items():
                rollouts[name].append(rollout)  # the rollouts before an error are checked, too
        return ""

    recorded = checked("buffer", "rollouts", record)
    if not recorded.ok:
        report(recorded)
    for part in others:
        if part == "state":
            is_repeatable = kept.status == "ok"
            evaluate = partial(evaluation_checks.evaluations, env, network, is_repeatable=is_repeatable)
            report(checked(part, "evaluations", evaluate))
        if part == "training":
            rows = env.num_envs * env.agents
            _check_training(setup, list(views), rows, report, is_repeatable=kept.status == "ok")
        for group, check in product(views, checks.get(part, ())):
            name = check.__name__.replace("_", " ")
            if rollouts[group]:
                report(checked(part, name, partial(check, rollouts[group]), group))
            else:
                report(Check(part, name, "skipped", "no rollout was recorded", group=group))
    return setup


def _most_steps(seconds: float, env: BatchedEnv | Groups, network: Network) -> int:
    """Steps of a rollout that take about ``SECONDS``, with one step of all envs in ``seconds``."""
    try:
        # In a training and the other checks each step goes through the network about ten times.
        seconds += 10 * network_seconds(network, env)
    except Exception:  # the checks will report it
        return LEAST_STEPS
    return max(LEAST_STEPS, min(MOST_STEPS, int(SECONDS / max(seconds, 1e-6))))


def _check_training(
    setup: Setup,
    groups: Sequence[str],
    rows: int,
    report: Callable[[Check], Check],
    *,
    is_repeatable: bool,
) -> None:
    """Train twice; ``rows``: of all groups."""
    trainings: list[dict[str, loop_checks.Trained]] = []

    def train() -> str:
        trainings.append(loop_checks.short_training(setup, rows))
        return ""

    def same_seed(group: str) -> str:
        if is_repeatable and len(trainings) == 1:
            train()
        one, *again = (training[group] for training in trainings)
        return loop_checks.same_seed(one, again[0] if again else None, setup)

    report(checked("training", "versions", partial(loop_checks.versions, setup, rows)))
    report(checked("training", "processes", partial(loop_checks.processes, setup, rows)))
    first = checked("training", "updates", train)
    if not first.ok:
        report(first)
        return
    for group in groups:
        report(
            checked("training", "updates", partial(loop_checks.updates, trainings[0][group], setup), group)
        )
    for group in groups:
        report(checked("training", "same seed", partial(same_seed, group), group))
    if setup.where.get("learner_processes") and is_repeatable:
        apart = partial(loop_checks.learner_processes, trainings[0], setup, rows)
        report(checked("training", "learner processes", apart))
    if setup.config.vs == LEAGUE:
        apart = partial(league_part_checks.league_training, setup, rows)
        report(checked("training", "league training", apart))
    report(checked("training", "flat training", partial(loop_checks.flat_training, setup, rows)))
    report(checked("training", "resumed", partial(resume_checks.resumed, setup, rows)))
    if is_repeatable:
        evaluated = partial(resume_checks.evaluated, trainings[0], setup, rows)
        report(checked("training", "evaluated", evaluated))
