"""The policies of an env with several groups of agents, as one module: their weights travel together."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from recollect.config.policy import PolicyConfig
from recollect.policy.policy import Policy


class Policies(nn.Module):
    """One policy for each group of agents, by the group's name."""

    def __init__(self, policies: Mapping[str, Policy], agents: Mapping[str, tuple[str, ...]]):
        """``agents``: the names of each group's agents."""
        super().__init__()
        self.agents = dict(agents)
        # A name with a slash never clashes with an attribute of a module, such as ``keys``.
        self._parts = nn.ModuleDict({f"group/{name}": policy for name, policy in policies.items()})

    @property
    def by_group(self) -> dict[str, Policy]:
        """The policies by group, in a fixed order."""
        return {name.removeprefix("group/"): policy for name, policy in self._parts.items()}  # pyright: ignore[reportReturnType]

    @property
    def config(self) -> PolicyConfig:
        """The settings, which all groups share."""
        return any_policy(self).config

    @property
    def made_by(self) -> str | None:
        """The factory that made them; see ``Policy.made_by``."""
        return any_policy(self).made_by

    @property
    def has_memory(self) -> bool:
        """Whether a core has a state."""
        return any(policy.has_memory for policy in self.by_group.values())

    @property
    def acts_elsewhere(self) -> bool:
        """Whether copies act on a CPU; see ``Policy.acts_elsewhere``."""
        return any(policy.acts_elsewhere for policy in self.by_group.values())

    @acts_elsewhere.setter
    def acts_elsewhere(self, value: bool) -> None:
        for policy in self.by_group.values():
            policy.acts_elsewhere = value

    def compile_parts(self, backend: str | None = None) -> None:
        """Use torch.compile from now on."""
        for policy in self.by_group.values():
            policy.compile_parts(backend)

    @property
    def compiled_graphs(self) -> int:
        """The number of graphs compiled so far."""
        return sum(policy.compiled_graphs for policy in self.by_group.values())


Network = Policy | Policies
"""The policy of an env with one group of agents, or the policies of several groups."""


def by_group(network: Network) -> dict[str, Policy]:
    """The policies by group; that of an env with one group has the name ""."""
    return network.by_group if isinstance(network, Policies) else {"": network}


def any_policy(network: Network) -> Policy:
    """The policy, or that of the first group: all groups have the same kinds of parts."""
    return next(iter(by_group(network).values()))


def rows_by_group(network: Network, rows: int) -> dict[str, int]:
    """The rows of each group among ``rows`` rows of all groups."""
    agents = rows_of_slots(network, 1)
    return {name: rows * count // sum(agents.values()) for name, count in agents.items()}


def rows_of_slots(network: Network, slots: int) -> dict[str, int]:
    """The rows of each group in so many env slots; one for each slot if there is a single policy."""
    if not isinstance(network, Policies):
        return {"": slots}
    return {name: slots * len(agents) for name, agents in network.agents.items()}
