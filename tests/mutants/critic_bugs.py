"""Bugs of a critic with a network and keys of its own."""

from __future__ import annotations

from recollect.acting import numpy_conversion
from recollect.acting.session import Session
from recollect.learning import optimiser
from recollect.policy import critic_obs
from recollect.policy.policy import Policy
from tests.mutants.mutant import Mutant
from tests.policy import test_separate_critic as own
from tests.training import test_mappo
from tests.training import test_separate_critic as runs

STATE = 'obs, state["critic"], first)'
ADVANCE = "self._parts._advance(obs, state, first)"
BOTH_ACTORS = 'self._parts._advance(obs, {"actor": state["actor"], "critic": state["actor"]}, first)'

OWN_FEATURES = "self._features(self.trunks[-1].encoder, obs)"
BLANK = "{name: part * (name not in self.config.critic_obs) for name, part in obs.items()}"


def team() -> None:
    test_mappo.assert_explained(test_mappo.trained("independent"))


CRITICS = [
    Mutant(
        "the critics of a team see zeros",
        team,
        ((Policy, "_encode_for_critic", OWN_FEATURES, OWN_FEATURES.replace("obs)", f"{BLANK})")),),
        by="assert min(explained(agent)) > 0.9",
    ),
    Mutant(
        "the critic has the actor's memory",
        own.test_each_network_has_its_own_memory,
        ((Policy, "_through", STATE, 'obs, state["actor"], first)'),),
        by='truth["value"]',
    ),
    Mutant(
        "the critic is not reset at an episode's start",
        own.test_each_network_has_its_own_memory,
        ((Policy, "_through", STATE, 'obs, state["critic"], first & False)'),),
        by='truth["value"]',
    ),
    Mutant(
        "final values are of the actor's memory",
        own.test_each_network_has_its_own_memory,
        ((Policy, "value", ADVANCE, BOTH_ACTORS),),
        by='truth["final_value"][cut]',
    ),
    Mutant(
        "the actor sees the critic's keys",
        own.test_the_actor_does_not_see_the_critics_keys,
        (
            (critic_obs, "actor_space", "if not critic_obs:", "if True:"),
            (critic_obs, "obs_without", "if critic_obs else obs", "if not critic_obs else obs"),
        ),
        by="assert torch.equal(dist.log_probs, again.log_probs)",
    ),
    Mutant(
        "values are learned through the actor's network",
        own.test_no_gradient_crosses,
        ((Policy, "_heads", "self._parts._value(of_critic)", "self._parts._value(y)"),),
        by='{"critic_trunk", "critic"}',
    ),
    Mutant(
        "the critic's network is detached",
        runs.test_verify_passes,
        ((Policy, "_through", "return y, of_critic, ", "return y, of_critic.detach(), "),),
        by="assert result.ok",
    ),
    Mutant(
        "the critic's network has the actor's learning rate",
        runs.test_the_critics_network_has_the_critics_rate,
        ((optimiser, "parameter_groups", "[policy.critic, *policy.trunks[1:]]", "[policy.critic]"),),
        by="assert named[id(weight)]",
    ),
    Mutant(
        "a session needs the critic's keys",
        runs.test_an_agent_acts_without_the_critics_keys,
        ((Session, "__init__", "policy.actor_only()", "policy"),),
        by='alone.act({"seen": seen})',
    ),
    Mutant(
        "a session refuses the critic's keys",
        runs.test_an_agent_acts_without_the_critics_keys,
        ((numpy_conversion, "observations", "obs = obs_without(obs, policy.config.critic_obs)", "pass"),),
        by="beside.act",
    ),
]
