"""The env probe: the spaces of a run's env, from which its policy is built, and then the collector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from recollect.base.parts import PARTS
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.factory import EnvSpec, is_made
from recollect.envs.group_views import Groups, views_of
from recollect.errors import ConfigError
from recollect.policy import policies
from recollect.policy.policies import Network
from recollect.runtimes.actor_envs import check_remakable, open_env, open_envs
from recollect.runtimes.collector import Collector
from recollect.runtimes.inline_collector import InlineCollector
from recollect.runtimes.process.transport import ProcessTransport
from recollect.runtimes.remote_collector import RemoteCollector

COLLECTOR = [name for name in (*vars(Collector), *Collector.__annotations__) if name[0] != "_"]
"""The attributes of a collector."""


def check_spaces(network: Network, env: BatchedEnv | Groups, *, acts_only: bool = False) -> None:
    """Raise a ConfigError unless the policies are for the groups and spaces of the env.

    ``acts_only``: as in ``Policy.check_spaces``.
    """
    views, own = views_of(env), policies.by_group(network)
    if views.keys() != own.keys():
        raise ConfigError(
            f"the policies are for the groups {', '.join(own) or 'none'}, and the env has "
            f"{', '.join(views) or 'one group'}: were they trained with another setting of policies?"
        )
    for name, policy in own.items():
        view = views[name]
        policy.check_spaces(view.observation_space, view.action_space, acts_only=acts_only)


class EnvProbe:
    """The envs of an inline run; the env of one slot if actors are in other processes."""

    def __init__(self, env: EnvSpec, config: TrainConfig, envs: list[BatchedEnv | Groups]):
        self._env, self._config, self._envs = env, config, envs

    @property
    def one(self) -> BatchedEnv | Groups:
        """An env of the run, for its spaces and agents."""
        return self._envs[0]

    def collector(self, policy: Network) -> Collector:
        """The collector of the run, for this policy or these policies."""
        check_spaces(policy, self.one)
        config = self._config
        if config.runtime == "inline":
            return InlineCollector(self._envs, policy, config)
        make = PARTS["runtime"][config.runtime].load()
        collector = make(self._env, policy, config, config.num_envs * self.one.agents)
        lacks = [name for name in COLLECTOR if not hasattr(collector, name)]
        if lacks:
            raise ConfigError(
                f"the runtime {config.runtime!r} made a {type(collector).__name__}, which lacks "
                f"{', '.join(lacks)}: it must make a recollect.runtimes.collector.Collector"
            )
        return collector


def process_collector(env: EnvSpec, policy: Network, config: TrainConfig, rows: int) -> Collector:
    """The collector of the runtime "processes"."""
    return RemoteCollector(ProcessTransport(policy, config, rows), env, policy, config, rows)


def ray_collector(env: EnvSpec, policy: Network, config: TrainConfig, rows: int) -> Collector:
    """The collector of the runtime "ray"."""
    from recollect.runtimes.ray.transport import RayTransport  # an extra

    return RemoteCollector(RayTransport(policy, config, rows), env, policy, config, rows)


@contextmanager
def env_probe(env: EnvSpec, config: TrainConfig, *, is_new: bool = False) -> Iterator[EnvProbe]:
    """The probe of a run. It closes the envs that no collector uses, and all envs if the body raises."""
    is_inline = config.runtime == "inline"
    if is_inline:
        envs = open_envs(env, config, is_new=is_new)
    else:
        check_remakable(env, config)
        envs = [open_env(env, config, 1, config.env_kwargs)]
    with ExitStack() as opened:
        for batched in () if is_made(env) else envs:
            opened.callback(batched.close)
        yield EnvProbe(env, config, envs)
        if is_inline:
            opened.pop_all()
