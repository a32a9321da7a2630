"""``verify``: do the buffer, the memory, the training loop and the gradients work, with this env and config?

::

    print(rc.verify("CartPole-v1", core="gru"))

Everything is small, so that it takes seconds; what was made smaller is in ``notes``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from recollect.agent import PolicyFactory
from recollect.audit import buffer_checks, env_checks, gradient_checks, loop_checks, state_checks
from recollect.audit.recorded_rollouts import Scene, Trial, network_seconds
from recollect.audit.results import Check, Verification, checked
from recollect.audit.setup import LEAST_STEPS, MOST_STEPS, Subject, prepare
from recollect.base.row_threads import intra_op_threads
from recollect.config.policy import PolicyConfig
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.factory import EnvSpec, is_made
from recollect.policy.policy import Policy

__all__ = ["Check", "Verification", "verify"]

SECONDS = 1.5
"""Approximate seconds for a rollout; a slow env gets shorter ones."""


def verify(
    env: EnvSpec,
    config: TrainConfig | None = None,
    *,
    policy: PolicyFactory | PolicyConfig | None = None,
    watch: Callable[[Check], Any] | None = None,
    preset: bool = True,
    **settings: Any,
) -> Verification:
    """Look for the classic bugs of recurrent training, with this env, config and network.

    Args:
        env: as in ``train``.
        config: settings to start from; ``settings`` go on top.
        policy: as in ``train``.
        watch: called with each check as it is finished.
        preset: as in ``train``.
        **settings: as in ``train``.

    Raises ConfigError if such a training could not even begin.

    Example:
        >>> verify("delayed-cue", core="gru").ok  # doctest: +SKIP
        True
    """
    subject = prepare(env, config, policy, settings, preset)
    found: list[Check] = []
    run = _Run(subject)
    for check in run.checks():
        found.append(check)
        if watch is not None:
            watch(check)
    return Verification(subject.name, found, run.subject.notes)


class _Run:
    """One verification under way."""

    def __init__(self, subject: Subject):
        self.subject = subject

    def checks(self) -> Iterator[Check]:
        """All checks in order, each as soon as it is finished."""
        with intra_op_threads(1):  # everything is small
            env = self.subject.open()
            try:
                policy = self.subject.build(env)
                self.subject.config.algo.check(policy, self.subject.asked_envs * env.agents)
                yield from self._checks(env, policy)
            finally:
                if not is_made(self.subject.env):
                    env.close()

    def _checks(self, env: BatchedEnv, policy: Policy) -> Iterator[Check]:
        sight = functools.cache(lambda: env_checks.first_sight(env))
        contract = checked(env_checks.PART, "contract", lambda: env_checks.contract(env, sight))
        yield contract
        check = checked(
            env_checks.PART,
            "gymnasium",
            lambda: env_checks.gymnasium_checker(self.subject.single, is_users=is_made(self.subject.env)),
        )
        if check.status != "skipped":
            yield check
        if not contract.ok:
            yield from _not_tried()
            return
        rows = env.num_envs * env.agents
        self.subject = self.subject.sized(rows, _most_steps(sight().seconds, env, policy))
        through = list(_look_at_rollouts(self.subject, env, policy))
        yield from (check for check in through if check.part != gradient_checks.PART)
        yield from self._train(rows, is_repeatable=contract.status == "ok")
        yield from (check for check in through if check.part == gradient_checks.PART)

    def _train(self, rows: int, *, is_repeatable: bool) -> Iterator[Check]:
        trained: list[loop_checks.Trained] = []

        def first() -> str:
            trained.append(loop_checks.short_training(self.subject, rows))
            return loop_checks.updates(trained[0], self.subject)

        yield checked(loop_checks.PART, "updates", first)
        if trained:
            yield checked(
                loop_checks.PART,
                "same seed",
                lambda: loop_checks.same_seed(trained[0], self.subject, rows, is_repeatable=is_repeatable),
            )


def _most_steps(seconds: float, env: BatchedEnv, policy: Policy) -> int:
    """Steps of a rollout that take about ``SECONDS``, with one step of all envs in ``seconds``."""
    try:
        # In a training and the other checks each step goes through the network about ten times.
        seconds += 10 * network_seconds(policy, env)
    except Exception:  # the checks will say what is wrong with it
        return LEAST_STEPS
    return max(LEAST_STEPS, min(MOST_STEPS, int(SECONDS / max(seconds, 1e-6))))


def _look_at_rollouts(subject: Subject, env: BatchedEnv, policy: Policy) -> Iterator[Check]:
    """The checks that read rollouts one after another; all of them read the same ones."""
    probes: list[tuple[str, Any]] = [
        (buffer_checks.PART, buffer_checks.Size()),
        (buffer_checks.PART, buffer_checks.RowsApart()),
        (buffer_checks.PART, buffer_checks.Partition()),
        (state_checks.PART, state_checks.Acting()),
        (state_checks.PART, state_checks.Stored()),
        (state_checks.PART, state_checks.Learner()),
        (state_checks.PART, state_checks.Ends()),
        (state_checks.PART, state_checks.Resumed()),
        (gradient_checks.PART, gradient_checks.Parameters()),
        (gradient_checks.PART, gradient_checks.ThroughTime()),
    ]
    settled = {probe.name: Check(part, probe.name, "skipped", "no rollout") for part, probe in probes}

    def look(part: str, probe: Any, scene: Scene) -> None:
        settled[probe.name] = checked(part, probe.name, lambda: probe.look(scene) or "")

    def all_rollouts() -> str:
        for count, scene in enumerate(Trial(subject, env, policy).scenes()):
            for part, probe in probes:
                if count == 0 or settled[probe.name].status == "ok":
                    look(part, probe, scene)
        return ""

    collected = checked(buffer_checks.PART, "rollouts", all_rollouts)
    if not collected.ok:
        yield collected
    for part, probe in probes:
        seen = settled[probe.name]
        yield checked(part, probe.name, probe.result) if seen.status == "ok" else seen


def _not_tried() -> Iterator[Check]:
    for part in (buffer_checks.PART, state_checks.PART, loop_checks.PART, gradient_checks.PART):
        yield Check(part, "all", "skipped", "not tried: the env's contract comes first")
