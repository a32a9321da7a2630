"""Bugs of learners on replay: targets, burn-in, target networks, priorities, exploration, rows of actors."""

from __future__ import annotations

import functools

from recollect.acting.actor import Actor
from recollect.algos import iqn, r2d2
from recollect.config.iqn import IQNConfig
from recollect.config.replay import ReplayConfig
from recollect.experience import returns
from recollect.learning import replay_algorithm, replay_learner
from recollect.learning.constant_batch import ConstantBatch
from recollect.learning.replay_learner import ReplayLearner
from tests.algos import test_iqn, test_r2d2
from tests.config import test_replay_config
from tests.learning import test_replay_learner as tests
from tests.mutants.mutant import Edit, Mutant

rescaled = functools.partial(test_r2d2.test_the_loss_is_that_of_the_steps, True, True, 3)
plain = functools.partial(test_r2d2.test_the_loss_is_that_of_the_steps, True, False, 3)
single = functools.partial(test_r2d2.test_the_loss_is_that_of_the_steps, False, False, 1)
quantiles = functools.partial(test_iqn.test_the_loss_is_that_of_the_steps_and_quantiles, True, 3, 0.2)
copied = functools.partial(tests.test_the_target_is_copied_every_so_many_steps, "r2d2")
ratio = functools.partial(tests.test_the_replay_ratio_is_exact, 0.25, 6, 5)
often = functools.partial(tests.test_the_replay_ratio_is_exact, 4.0, 6, 5)
warm_up = functools.partial(tests.test_the_warm_up_ends_exactly, 65)
resumed = functools.partial(tests.test_a_saved_learner_continues_bit_for_bit, "r2d2", False)
two_actors = functools.partial(tests.test_actors_explore_at_what_is_logged, 2)
own_trunk = functools.partial(test_r2d2.test_a_trunk_without_weights_is_unrolled_once, (6,))
drawn = functools.partial(tests.test_priorities_are_those_of_the_drawn_windows, "r2d2")

ERRORS = "torch.testing.assert_close(loss.error[learned]"
TARGET = "assert same(weights(ours.target)"


def loss(old: str, new: str) -> Edit:
    return (r2d2, "loss", old, new)


def learner(name: str, old: str, new: str) -> Edit:
    return (ReplayLearner, name, old, new)


def windows(old: str, new: str) -> Edit:
    return (replay_algorithm, "windows", old, new)


LEARNED_FROM_REPLAY = [
    Mutant(
        "targets are fed one step off",
        rescaled,
        (loss("reward=batch.reward", "reward=batch.reward.roll(-1, 0)"),),
        ERRORS,
    ),
    Mutant(
        "truncation counts as termination in targets",
        plain,
        (loss("terminated=batch.terminated", "terminated=batch.terminated | ~batch.is_step.roll(-1, 0)"),),
        ERRORS,
    ),
    Mutant(
        "time limits are bootstrapped although they must not be",
        test_r2d2.test_targets_may_end_at_time_limits,
        (windows("if not config.bootstrap_time_limits:", "if False:"),),
        ERRORS,
    ),
    Mutant(
        "the step before a time limit ends the episode",
        test_r2d2.test_targets_may_end_at_time_limits,
        (
            windows(
                "terminated[:-1] |= is_step[:-1] & ~is_step[1:]",
                "terminated[:-2] |= is_step[1:-1] & ~is_step[2:]",
            ),
        ),
        ERRORS,
    ),
    Mutant(
        "termination is bootstrapped",
        plain,
        (loss("terminated=batch.terminated", "terminated=batch.terminated & False"),),
        ERRORS,
    ),
    Mutant(
        "the discount of a shorter sum is that of n steps",
        plain,
        (
            (
                returns,
                "n_step_parts",
                "masked_fill(stops, gamma**i)",
                "masked_fill(stops, gamma**n)",
            ),
        ),
        ERRORS,
    ),
    Mutant(
        "the target network chooses the next action",
        plain,
        (loss("online=q if config.double else older", "online=older"),),
        ERRORS,
    ),
    Mutant(
        "the learning network values the next action",
        single,
        (loss("target=older)", "target=q)"),),
        ERRORS,
    ),
    Mutant(
        "targets stay rescaled",
        rescaled,
        (loss("value=undo_rescale(best) if config.rescale else best", "value=best"),),
        ERRORS,
    ),
    Mutant(
        "padding is part of the loss",
        rescaled,
        (
            windows("learned = is_step[:length] * weight", "learned = (is_step[:length] | True) * weight"),
            loss(".masked_fill(~batch.learned, 0)", ""),
        ),
        "assert float(loss.total) ==",
    ),
    Mutant(
        "the weight of a sequence is that of another",
        rescaled,
        (windows("is_step[:length] * weight", "is_step[:length] * weight.flip(0)"),),
        "assert float(loss.total) ==",
    ),
    Mutant(
        "importance weights are turned around",
        quantiles,
        ((replay_learner, "importance", "** -exponent", "** exponent"),),
        "assert float(loss.total) ==",
    ),
    Mutant(
        "the gradient flows through the burn-in",
        test_r2d2.test_the_burn_in_has_no_gradient,
        (windows("with torch.no_grad():", "with torch.enable_grad():"),),
        "assert not any(leaf.requires_grad",
    ),
    Mutant(
        "the target network starts from the state of the other",
        rescaled,
        (windows("else after(target)", "else after(policy)"),),
        ERRORS,
    ),
    Mutant(
        "the target network has the trunk of the other",
        own_trunk,
        ((replay_algorithm, "features", "if policy.is_trunk_fixed", "if True"),),
        "assert torch.equal(older, own)",
    ),
    Mutant(
        "the target network always starts from the state of the other",
        own_trunk,
        (windows("state if policy.is_trunk_fixed", "state if True"),),
        "assert same(",
    ),
    Mutant(
        "the burn-in starts from zeros",
        rescaled,
        (windows("if sample.state is None:", "if True:"),),
        ERRORS,
    ),
    Mutant(
        "quantiles of targets and predictions are exchanged",
        quantiles,
        ((iqn, "loss", "fractions=tau,", "fractions=1 - tau,"),),
        "assert float(loss.total) ==",
    ),
    Mutant(
        "the errors of IQN have a sign",
        quantiles,
        ((iqn, "loss", "error.abs()", "error"),),
        ERRORS,
    ),
]

TARGET_NETWORKS = [
    Mutant(
        "the target network is copied twice as often",
        copied,
        (
            learner(
                "_follow", "% (config.target_every or 1) == 0", "% ((config.target_every or 2) // 2) == 0"
            ),
        ),
        TARGET,
    ),
    Mutant(
        "the target network is never copied", copied, (learner("_follow", "if share:", "if False:"),), TARGET
    ),
    Mutant(
        "the target network moves twice in every step",
        tests.test_the_target_follows_softly,
        (
            learner(
                "_follow", "older.lerp_(weight, share)", "older.lerp_(weight, share).lerp_(weight, share)"
            ),
        ),
        TARGET,
    ),
    Mutant(
        "the target network is the network",
        copied,
        (learner("__init__", "copy.deepcopy(policy).requires_grad_(False)", "policy"),),
        TARGET,
    ),
]

PACES = [
    Mutant(
        "owed steps are lost",
        ratio,
        (learner("_learn", "self._owed += config", "self._owed = config"),),
        "assert len(made)",
    ),
    Mutant(
        "one optimiser step in every update",
        often,
        (learner("_learn", "while self._owed >=", "if self._owed >="),),
        "assert len(made)",
    ),
    Mutant(
        "owed steps are not saved",
        resumed,
        (learner("load_more", 'self._owed = float(own["owed"])', "pass"),),
        "assert one.keys() == two.keys()",
    ),
    Mutant(
        "the target network is not saved",
        resumed,
        (learner("load_more", "value.copy_(own[name])", "pass"),),
        "assert",
    ),
    Mutant(
        "the replay is not saved",
        resumed,
        (learner("more_tensors", "if self.config.save_replay:", "if False:"),),
        "assert other.is_complete",
    ),
    Mutant(
        "a learner without its replay says nothing",
        tests.test_a_learner_without_its_replay_says_so,
        (learner("load_more", "self.is_complete = bool(replay) and", "self.is_complete = True or"),),
        "assert not other.is_complete",
    ),
    Mutant(
        "iqn takes a head without quantiles",
        test_replay_config.test_the_head_fits,
        ((IQNConfig, "check", 'not hasattr(policy.head, "quantiles")', "False"),),
        "with pytest.raises",
    ),
    Mutant(
        "learning starts without a warm-up",
        warm_up,
        (learner("_learn", "int(self.replay.seen.sum()) < config.replay_warmup or ", ""),),
        "assert counts[-1] ==",
    ),
    Mutant(
        "the warm-up counts the steps in memory",
        tests.test_a_warm_up_of_the_whole_capacity_ends,
        (learner("_learn", "int(self.replay.seen.sum())", "self.replay.steps"),),
        "assert ours.gradient_steps > 0",
    ),
    Mutant(
        "staleness compares sequences at a distance that no states have",
        functools.partial(tests.test_staleness_is_measured_at_every_stride, 10, 4),
        (learner("_update", "config.state_distance", "self.replay.stride"),),
        "assert 0.01 < stale < 10",
    ),
    Mutant(
        "priorities go to other sequences",
        drawn,
        (
            learner(
                "step", "self.replay.update(sample.entries,", "self.replay.update(sample.entries.flip(0),"
            ),
        ),
        "assert",
    ),
    Mutant(
        "padding counts in priorities",
        drawn,
        (learner("step", "is_step=learned, eta", "is_step=learned | True, eta"),),
        "assert float(after[slot])",
    ),
]

EXPLORATION = [
    Mutant(
        "rows of the second actor explore like those of the first",
        two_actors,
        ((Actor, "__init__", "[self.rows * index :][: self.rows]", "[: self.rows]"),),
        "assert (differs - expected)",
    ),
    Mutant(
        "every actor has a ladder of its own",
        two_actors,
        ((Actor, "__init__", "exploration(self.rows * actors)", "exploration(self.rows).repeat(actors)"),),
        "assert (differs - expected)",
    ),
    Mutant(
        "epsilon stays as it is",
        tests.test_the_metric_is_the_epsilon_of_the_actors,
        (learner("_update", "self.head.epsilon.fill_(epsilon(config, progress))", "pass"),),
        "assert float(ours.head.epsilon) ==",
    ),
    Mutant(
        "the logged epsilon is the next one",
        tests.test_the_metric_is_the_epsilon_of_the_actors,
        (learner("_update", "float(self.head.epsilon), ", "epsilon(config, progress), "),),
        '["epsilon"] == used',
    ),
    Mutant(
        "epsilon falls below its floor",
        tests.test_epsilon_falls_along_its_schedule,
        (
            (
                replay_learner,
                "epsilon",
                "min(1.0, progress / config.epsilon_decay)",
                "progress / config.epsilon_decay",
            ),
        ),
        "assert found ==",
    ),
    Mutant(
        "the ladder is upside down",
        tests.test_rows_explore_as_the_paper_says,
        (
            (
                ReplayConfig,
                "exploration",
                "self.epsilon_ladder * row /",
                "self.epsilon_ladder * (rows - 1 - row) /",
            ),
        ),
        "assert found ==",
    ),
    Mutant(
        "noise is drawn once",
        tests.test_noise_is_drawn_for_every_rollout_and_every_step,
        (learner("_update", "self.head.draw_noise(self.generator)", "pass"),),
        "assert",
    ),
    Mutant(
        "the target network keeps its noise",
        tests.test_noise_is_drawn_for_every_rollout_and_every_step,
        (learner("step", "cast(QHead, self.target.head).draw_noise(generator)", "pass"),),
        "assert len(set(learned))",
    ),
    Mutant(
        "rollouts of actors that run ahead go to the rows of others",
        tests.test_rollouts_of_actors_that_run_ahead_go_to_their_own_rows,
        ((replay_learner, "add", "row=actor * rows", "row=number * rows"),),
        "assert torch.equal(found[name]",
    ),
    Mutant(
        "constant rewards are reported again and again",
        tests.test_constant_observations_and_rewards_are_reported_once,
        ((ConstantBatch, "notes", "self._reported |= new.keys()", "pass"),),
        "assert len(said) == 1",
    ),
    Mutant(
        "constant rewards are not noticed",
        tests.test_constant_observations_and_rewards_are_reported_once,
        ((ConstantBatch, "find", '| {"reward": sample.reward}', ""),),
        "assert len(said) == 1",
    ),
]
