"""Bugs of the data and of the loss: which steps, in which order, what they count for."""

from __future__ import annotations

from recollect.algos import ppo
from recollect.base import tree
from recollect.envs.gym_vector import GymVector
from recollect.experience import chunks as splits
from recollect.learning.learner import EagerUpdate
from recollect.policy import encoders, normalise, trunks
from recollect.policy.distributions import TanhGaussian
from recollect.policy.normalise import ObservationNorm, PopArt
from recollect.policy.policy import Policy
from tests.mutants import proofs
from tests.mutants.edits import DEVIATES, UNROLL, chunks, collect
from tests.mutants.mutant import Edit, Mutant
from tests.policy import test_encoders, test_normalise


def stored(action: str) -> Edit:
    """Another action in the rollout than the one that was chosen."""
    return collect("acted_steps.append(acted)", f"acted_steps.append(acted._replace(action={action}))")


LAYOUT = [
    Mutant(
        "chunks by reshape without transpose",
        proofs.partition,
        ((splits, "_cut", "split.transpose(0, 1).reshape(", "split.reshape("),),
        by="assert torch.equal(uncut(cut, rollout), once), name",
    ),
    Mutant(
        "rows permuted between observations and actions",
        proofs.master,
        (stored("acted.action.roll(1, 0)"),),
        by=DEVIATES,
    ),
    Mutant(
        "observations recorded after the env has overwritten them",
        proofs.reused_tensors,
        (
            collect("tree.copy_(views.obs[t], obs)\n", "pass\n"),
            collect(
                "views.reward[t].copy_(step.reward)",
                "views.reward[t].copy_(step.reward); tree.copy_(views.obs[t], obs)",
            ),
        ),
        by=DEVIATES,
    ),
    Mutant(
        "the live observation is the env's own",
        proofs.lent_env,
        (collect("tree.copy_(self.obs, obs)", "self.obs = obs"),),
        by="assert torch.equal(actor.collect().obs[0], last)",
    ),
    Mutant(
        "the remainder of the rollout is dropped",
        proofs.rollout_is_used_up,
        (
            chunks("list(range(0, T, length))", "list(range(0, T - length + 1, length))"),
            (splits, "_cut", "count = -(-T // length)", "count = T // length"),
            (
                splits,
                "_cut",
                "if count * length != T:",
                "leaf = leaf[: count * length]\n    if False:",
            ),
        ),
        by="valid.sum()) == int(rollout.valid.sum())",
    ),
    Mutant(
        "the remainder of the minibatches is dropped",
        proofs.coverage,
        (
            (
                splits,
                "shares",
                "order.tensor_split(parts)",
                "order[: len(order) // parts * parts].view(parts, -1)",
            ),
        ),
        by="assert sorted(torch.cat(pieces).tolist()) == list(range(count))",
    ),
    Mutant(
        "filler steps of next-step autoreset are learned from",
        proofs.fillers,
        ((GymVector, "_finish_next_step", "np.logical_not(filler, out=out.valid)", "out.valid[:] = True"),),
        by='assert (rollout.first[1:] & ~valid).any() == (world == "next_step")',
    ),
    Mutant(
        "padding is valid",
        proofs.rollout_is_used_up,
        (chunks("valid=cut(rollout.valid)", "valid=cut(rollout.valid) | True"),),
        by="valid.sum()) == int(rollout.valid.sum())",
    ),
    Mutant(
        "what dead agents see is not zeroed",
        proofs.dead_agents,
        (chunks("return value if is_clean else tree.zero_where(invalid, value)", "return value"),),
        by="assert all(torch.isfinite(g).all() for g in expected[1])",
    ),
    Mutant(
        "what dead agents see is zeroed by multiplication",
        proofs.dead_agents,
        ((tree, "zero_where", "leaf.masked_fill(_over(mask, leaf), 0)", "leaf * ~_over(mask, leaf)"),),
        by="assert all(torch.isfinite(g).all() for g in expected[1])",
    ),
]

SYMBOLS = [
    Mutant(
        "symbols are scaled by running statistics",
        test_normalise.test_observations_are_normalised_by_leaf,
        ((normalise, "_is_scaled", "spaces.is_symbols, ", ""),),
        by="symbols are names and not amounts",
    ),
    Mutant(
        "the one-hots of the last action are scaled by running statistics",
        test_normalise.test_one_hots_of_the_last_action_pass_as_they_are,
        ((normalise, "_is_scaled", "not space.is_bounded()", "space.is_bounded()"),),
        by='assert list(ObservationNorm(one_hots).scalings) == ["obs/last_reward"]',
    ),
    Mutant(
        "all channels share the vectors of their symbols",
        test_encoders.test_symbols_are_names_and_not_amounts,
        ((encoders._Symbols, "forward", "x.long() + self.channel", "x.long() + 0 * self.channel"),),
        by="assert set(used.nonzero().flatten().tolist()) == seen",
    ),
]

LOSSES = [
    Mutant(
        "padding counts in the loss",
        proofs.padding,
        ((ppo, "loss", "torch.dot(x.flatten(), weight)", "x.mean()"),),
        by="assert_close(one[0], other[0]",
    ),
    Mutant(
        "advantages are normalised over invalid steps",
        proofs.normalised_advantages,
        ((ppo, "normalise", "count = valid.sum().clamp(min=1)", "count = valid.numel()"),),
        by="assert_close(out[valid].mean(), torch.tensor(0.0))",
    ),
    Mutant(
        "actions are resampled when evaluated",
        proofs.master,
        ((Policy, "evaluate_actions", "dist.log_prob(action)", "dist.log_prob(dist.sample())"),),
        by=DEVIATES,
    ),
    Mutant(
        "the learner does not see the action mask",
        proofs.masked,
        ((Policy, "_heads", "self._distribution(y, obs), self", "self.head(y, None), self"),),
        by=DEVIATES,
    ),
    Mutant(
        "the squashed action is stored",
        proofs.squashed,
        (stored("env_action"),),
        by=DEVIATES,
    ),
    Mutant(
        "the clipped action is stored",
        proofs.clipped,
        (stored("env_action"),),
        by=DEVIATES,
    ),
    Mutant(
        "squashed log-prob without the Jacobian",
        proofs.squashed_density,
        ((TanhGaussian, "log_prob", "alpha=2.0", "alpha=0.0"),),
        by="assert_close(density.sum() * width, torch.tensor(1.0)",
    ),
    Mutant(
        "squashed log-prob from the tanh action",
        proofs.squashed_density,
        (
            (
                TanhGaussian,
                "log_prob",
                "z = (action - self.mean)",
                "action = action.tanh().clamp(-1 + 1e-6, 1 - 1e-6).atanh()\n    z = (action - self.mean)",
            ),
        ),
        by="assert_close(got, torch.tensor([truth])",
        known="the usual inversion with an epsilon",
    ),
    Mutant(
        "squashed entropy with the wrong sign",
        proofs.squashed_density,
        ((TanhGaussian, "entropy", "expected, alpha=2.0", "expected, alpha=-2.0"),),
        by="assert_close(dist.entropy()[0], entropy",
    ),
    Mutant(
        "squashed entropy from one node of each pair",
        proofs.squashed_density,
        ((TanhGaussian, "entropy", "0.5 * of_mean", "of_mean"),),
        by="assert_close(dist.entropy()[0], entropy",
    ),
    Mutant(
        "the entropy bonus with the wrong sign",
        proofs.entropy_rises,
        ((ppo, "loss", "- entropy_coef *", "+ entropy_coef *"),),
        by='assert after["entropy"] > before["entropy"]',
    ),
    Mutant(
        "gradients accumulate over minibatches",
        proofs.own_gradients,
        ((EagerUpdate, "epoch", "learner.optimizer.zero_grad()", "pass"),),
        by="assert_close(parameter.grad, grad)",
    ),
    Mutant(
        "gradients do not flow through time",
        proofs.flow,
        (
            (
                trunks,
                "unroll",
                UNROLL,
                "steps = []\n        for x_t, first_t in zip(x, first):\n"
                "            y, state = core.step(x_t, tree.clone(state), first_t)\n"
                "            steps.append(y)\n        y = tree.stack(steps)",
            ),
        ),
        by="assert torch.equal(reach(policy, rollout, length), expected)",
        known="asked about in sb3-contrib #53",
    ),
    Mutant(
        "values move with their statistics",
        proofs.preserved_values,
        ((PopArt, "update", "head.weight.mul_(ratio)", "pass"),),
        by="assert_close(policy.value(obs, state, first), before",
    ),
    Mutant(
        "observation statistics count fillers",
        proofs.statistics_of_the_living,
        ((ObservationNorm, "update", "leaf[valid]", "leaf.flatten(0, 1)"),),
        by="assert int(moments.count) == int(rollout.valid.sum())",
    ),
]
