"""Bugs of the clipped losses of PPO and IMPALA, and of what is made anew between epochs."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from recollect.algos import impala, ppo
from recollect.learning import actor_critic, refresh_rollout
from recollect.learning.captured_update import CapturedUpdate
from recollect.learning.learner import EagerUpdate, Learner
from tests.algos import test_clipped_loss, test_ppo_update
from tests.learning import test_refresh_rollout
from tests.mutants.mutant import Mutant
from tests.support.helpers import ArenaWorld, TensorWorld

LOSS = {
    algo: functools.partial(test_clipped_loss.test_the_clipped_loss_is_the_papers, algo)
    for algo in test_clipped_loss.LOSSES
}
REWARDS = {
    algo: functools.partial(test_clipped_loss.test_rewards_are_scaled_and_then_clipped_on_both_sides, algo)
    for algo in test_clipped_loss.LOSSES
}
KL, KL_UNREAD = (
    functools.partial(test_clipped_loss.test_the_kl_ends_the_whole_update, is_unread)
    for is_unread in (False, True)
)
ON = "AssertionError: {}"
"""How the comparison of losses names the part that is wrong."""
CLIP = "ratio.clamp(1 - config.clip, 1 + config.clip)"
FRACTION = "clip_fraction"
FIRST = {"ppo": "loss/policy", "impala": FRACTION}
"""What is compared first of what a wrong clip changes."""
TARGETS = 'assert_close(data["advantage"], advantage'


def clips(algo: str, module: ModuleType) -> list[Mutant]:
    """Bugs of the clip, which stands in both losses."""

    def mutant(name: str, old: str, new: str, part: str = "loss/policy") -> Mutant:
        return Mutant(f"{algo}: {name}", LOSS[algo], ((module, "loss", old, new),), by=ON.format(part))

    return [
        mutant("the ratio is clipped above only", CLIP, "ratio.clamp(max=1 + config.clip)", FIRST[algo]),
        mutant("the ratio is clipped below only", CLIP, "ratio.clamp(min=1 - config.clip)", FIRST[algo]),
        mutant("the larger surrogate", "torch.minimum(ratio * advantage", "torch.maximum(ratio * advantage"),
        mutant("the clipped surrogate alone", "ratio * advantage, clipped", "clipped * advantage, clipped"),
        mutant("no clip in the loss", "clipped * advantage)", "ratio * advantage)"),
        mutant("gradient ascent on the loss", "-mean(torch.minimum", "mean(torch.minimum"),
        mutant("too high ratios alone count as clipped", "ratio != clipped", "ratio > clipped", FRACTION),
        mutant("too low ratios alone count as clipped", "ratio != clipped", "ratio < clipped", FRACTION),
        mutant("the KL is the mean log-ratio", "log_ratio.expm1() - log_ratio", "-log_ratio", "kl"),
        mutant("the critic's loss is not halved", "0.5 * mean(", "mean(", "loss/value"),
        mutant("the critic's loss is not weighted", "config.value_coef * value_loss", "value_loss", "total"),
    ]


def value_clip(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, LOSS["ppo"], ((actor_critic, "squared_error", old, new),), by=ON.format("loss/value"))


def rewards(name: str, algo: str, old: str, new: str) -> Mutant:
    return Mutant(name, REWARDS[algo], ((actor_critic, "scaled", old, new),), by=TARGETS)


BOTH = ".clamp(-value_clip, value_clip)"
LIMIT = "reward.clamp(-config.reward_clip, config.reward_clip)"
EARLY = 'stats["kl"] > config.target_kl:\n            return False'
STEP = "learner.optimizer.clipped_step(learner.optimizer.norm(), config.max_grad_norm)"
LEARNED = "learned after the KL was above its target"

CLIPS = [
    *clips("ppo", ppo),
    *clips("impala", impala),
    Mutant(
        "the ratio of PPO is upside down",
        LOSS["ppo"],
        ((ppo, "loss", 'log_prob - data["log_prob"]', 'data["log_prob"] - log_prob'),),
        by=ON.format("loss/policy"),
    ),
    value_clip("values are clipped above only", BOTH, ".clamp(max=value_clip)"),
    value_clip("values are clipped below only", BOTH, ".clamp(min=-value_clip)"),
    value_clip("the smaller error of a clipped value", "torch.maximum(error", "torch.minimum(error"),
    value_clip("values are clipped in real units", f"/ scale){BOTH}", f"){BOTH}"),
    rewards("rewards are clipped above only", "ppo", LIMIT, "reward.clamp(max=config.reward_clip)"),
    rewards("rewards are clipped below only", "ppo", LIMIT, "reward.clamp(min=-config.reward_clip)"),
    rewards("rewards are not scaled", "impala", "reward * config.reward_scale", "reward * 1"),
    rewards("rewards are scaled after the clip, too", "impala", LIMIT, f"{LIMIT} * config.reward_scale"),
    Mutant(
        "the KL ends an epoch only",
        KL,
        ((EagerUpdate, "epoch", EARLY, EARLY.replace("False", "True")),),
        by=LEARNED,
    ),
    Mutant(
        "the update goes on after the KL",
        KL,
        ((Learner, "_epochs", "if not finished:", "if False:"),),
        by=LEARNED,
    ),
    Mutant(
        "the KL ends an update after one more step",
        KL,
        ((EagerUpdate, "epoch", EARLY, EARLY.replace("return", f"{STEP}; return")),),
        by=LEARNED,
    ),
    Mutant(
        "without reads the KL ends an update after one more step",
        KL_UNREAD,
        ((CapturedUpdate, "_step", "skip=self._halted", "skip=before"),),
        by=LEARNED,
    ),
    Mutant(
        "without reads the KL skips one minibatch only",
        KL_UNREAD,
        ((CapturedUpdate, "_step", "ends = before.bool() | ~is_right", "ends = ~is_right"),),
        by=LEARNED,
    ),
]


def every_epoch(algo: str, world: type, is_unread: bool, *asked: str) -> functools.partial[None]:
    case = {"algo": algo, "asked": asked, "world": world, "is_unread": is_unread, "normalise": True}
    return functools.partial(test_refresh_rollout.test_every_epoch_but_the_first_is_refreshed, case)


STATES = every_epoch("ppo", TensorWorld, False, "refresh_states")
ADVANTAGES = every_epoch("ppo", TensorWorld, False, "recompute_advantages")
BOTH_OF_IMPALA = every_epoch("impala", ArenaWorld, False, "refresh_states", "recompute_advantages")
UNREAD = every_epoch("ppo", TensorWorld, True, "refresh_states", "recompute_advantages")
REFRESHED = "close(chunks.state, replayed.state)"
RECOMPUTED = "close(targets[name].double(), wanted[rollout.valid])"
WHEN, ONCE, LAST = "if epoch > 0 and", "if epoch == 1 and", "if epoch == config.epochs - 1 and"
AGAIN = "data = self.refresh(rollout, data)"
RETARGET = "data | again.data"
FRESH = "states=fresh.states"
ROLLED = "states=tree.map(lambda leaf: leaf.roll(1, 1), fresh.states)"
LOG_PROB = '{"log_prob": fresh.record["log_prob"]}'


def states(name: str, *edit: str, by: str = REFRESHED) -> Mutant:
    return Mutant(name, STATES, ((Learner, *edit),), by)


def advantages(name: str, *edit: str, by: str = RECOMPUTED, owner: Any = Learner) -> Mutant:
    return Mutant(name, ADVANTAGES, ((owner, *edit),), by)


EPOCHS = [
    states(
        "states are refreshed before the first epoch, too",
        "_epochs",
        WHEN,
        "if",
        by="assert_equal(chunks.state, recorded.state)",
    ),
    advantages(
        "advantages are recomputed before the first epoch, too",
        "_epochs",
        WHEN,
        "if",
        by="close(uncut(opening.data[name], rollout)[rollout.valid].double(), wanted[rollout.valid])",
    ),
    states("states are refreshed before the second epoch only", "_epochs", WHEN, ONCE),
    states("states are refreshed before the last epoch only", "_epochs", WHEN, LAST),
    states("states are refreshed and not used", "_epochs", f"rollout, {AGAIN}", f"_, {AGAIN}"),
    states("states are refreshed from other rows", "refresh", FRESH, ROLLED),
    states(
        "refreshed states bring new log-probs of acting",
        "refresh",
        FRESH,
        f"{FRESH}, record=rollout.record | {LOG_PROB}",
        by="log-probs of acting",
    ),
    states(
        "advantages are recomputed where states alone are asked for",
        "refresh",
        "if self.config.recompute_advantages:",
        "if True:",
        by="assert torch.equal(target, uncut(opening.data[name], rollout)[rollout.valid]), name",
    ),
    Mutant(
        "states are refreshed from other steps",
        STATES,
        ((refresh_rollout, "_replay", "at[step] for", "at[max(0, step - 7)] for"),),
        by=REFRESHED,
    ),
    advantages("advantages are recomputed before the second epoch only", "_epochs", WHEN, ONCE),
    advantages(
        "recomputed advantages replace the log-probs of acting",
        "refresh",
        RETARGET,
        f"{RETARGET} | {LOG_PROB}",
        by="log-probs of acting",
    ),
    advantages(
        "recomputed advantages replace the values of acting",
        "refresh",
        RETARGET,
        f'{RETARGET} | {{"value": fresh.record["value"]}}',
        by="values of acting",
    ),
    advantages(
        "states are refreshed where advantages alone are asked for",
        "refresh",
        "if self.config.refresh_states:",
        "if True:",
        by="assert_equal(chunks.state, recorded.state)",
    ),
    advantages(
        "advantages are recomputed from recorded values",
        "advantages",
        'value=outputs.record["value"]',
        'value=rollout.record["value"]',
        owner=ppo,
    ),
    advantages(
        "advantages are recomputed with old final values",
        "advantages",
        "outputs.final_value",
        "rollout.final_value",
        owner=ppo,
    ),
    advantages(
        "recomputed advantages are not normalised",
        "targets",
        "if config.normalise_advantages else advantage",
        "if config.normalise_advantages and outputs is None else advantage",
        owner=ppo,
    ),
    Mutant(
        "V-trace takes every epoch for on-policy",
        BOTH_OF_IMPALA,
        ((impala, "advantages", '- rollout.record["log_prob"]', '- outputs.record["log_prob"]'),),
        by=RECOMPUTED,
    ),
    Mutant(
        "without reads a cut is valued with the memory of another row",
        UNREAD,
        ((refresh_rollout, "_replay_in_spans", "1), finals.row)", "1), (finals.row + 1) % rollout.rows)"),),
        by=RECOMPUTED,
    ),
    Mutant(
        "without reads states are those of a step later",
        UNREAD,
        ((refresh_rollout, "_replay_in_spans", "states[step - begin] for", "states[step - begin + 1] for"),),
        by=REFRESHED,
    ),
    Mutant(
        "the first update checks its first minibatch alone",
        test_ppo_update.test_the_first_update_checks_the_whole_rollout,
        (
            (
                Learner,
                "_update",
                "if record is not None and not self.deviation_check.is_checked:",
                "if False:",
            ),
        ),
        by="with pytest.raises(AlignmentError):",
    ),
    Mutant(
        "GAE ends at the end of a chunk",
        test_ppo_update.test_advantages_do_not_depend_on_the_chunks,
        (
            (
                ppo,
                "advantages",
                "truncated=rollout.truncated,",
                "truncated=rollout.truncated | (torch.arange(1, rollout.steps + 1)"
                " % config.chunk_length == 0).unsqueeze(1),",
            ),
        ),
        by="advantages in chunks of",
    ),
]
