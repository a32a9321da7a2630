"""What has to be there before there is a policy: the spaces, and then the crew for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium as gym

from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.factory import EnvSpec, is_made
from recollect.policy.policy import Policy
from recollect.runtimes.actor_envs import check_remakable, open_env, open_envs
from recollect.runtimes.collector import Crew
from recollect.runtimes.inline import InlineCrew


class Stage:
    """The envs of a run, or, where they live in other processes, one slot of them that was looked at."""

    def __init__(self, env: EnvSpec, config: TrainConfig, envs: list[BatchedEnv], probe: BatchedEnv):
        self._env, self._config, self._envs, self._probe = env, config, envs, probe
        self.observation_space: gym.Space = probe.observation_space
        self.action_space: gym.Space = probe.action_space

    def crew(self, policy: Policy) -> Crew:
        """Who collects for this policy."""
        policy.check_spaces(self._probe.observation_space, self._probe.action_space)
        config = self._config
        if config.runtime == "inline":
            return InlineCrew(self._envs, policy, config)
        if config.runtime == "processes":
            from recollect.runtimes.process.collector import ProcessCrew

            return ProcessCrew(self._env, policy, config, agents=self._probe.agents)
        from recollect.runtimes.ray.collector import RayCrew  # an extra: it says what to install

        return RayCrew(self._env, policy, config, agents=self._probe.agents)


@contextmanager
def staged(env: EnvSpec, config: TrainConfig, *, is_new: bool = False) -> Iterator[Stage]:
    """The stage of a run. What was opened for it is closed again if something fails in here."""
    if config.runtime != "inline":
        check_remakable(env, config)
        probe = open_env(env, config, 1, config.env_kwargs)
        try:
            yield Stage(env, config, [], probe)
        finally:
            probe.close()
        return
    envs = open_envs(env, config, is_new=is_new)
    try:
        yield Stage(env, config, envs, envs[0])
    except BaseException:
        if not is_made(env):
            for batched in envs:
                batched.close()
        raise
