"""Bugs of action values: their heads, their losses and priorities, and frame stacks."""

from __future__ import annotations

from functools import partial

from recollect.cores.contract import Core
from recollect.cores.frames import Frames
from recollect.learning import value_functions
from recollect.policy.noisy import NoisyLinear
from recollect.policy.q_heads import QHead, QuantileHead
from tests.cores import test_frames as stacks
from tests.learning import test_value_functions as equations
from tests.mutants.mutant import Edit, Mutant
from tests.policy import test_q_heads as heads

UNEQUAL = heads.SPACES["multi-unequal"]

masked = partial(heads.test_values_equal_the_papers_formula, "q", UNEQUAL, {}, True)
quantiles = partial(heads.test_quantiles_equal_the_papers_formula, space=UNEQUAL, base=9)
mean_of_quantiles = partial(heads.test_values_equal_the_papers_formula, "quantiles", UNEQUAL, {}, False)
forbidden = partial(heads.test_a_masked_action_is_never_chosen, "q", heads.SPACES["multi"])
explores = partial(heads.test_a_row_explores_with_the_probability_epsilon_times_its_rate, "q")
quiet = partial(heads.test_evaluations_and_sessions_use_the_mean_weights, "q")
noisy = heads.test_a_noisy_layer_equals_the_papers_formula
inverse = partial(equations.test_the_inverse_undoes_the_rescaling, 1e-3)
priorities = equations.test_padding_has_no_part_in_a_priority
double_q = partial(
    equations.test_double_q_learning_selects_online_and_values_by_the_target, heads.SPACES["discrete"]
)
same = partial(stacks.test_the_stack_of_the_actor_is_that_of_the_learner, 4)

FORMULA = "torch.testing.assert_close(q.flatten(0, 1), want"
QUANTILES = "torch.testing.assert_close(found[b, i], want"
LOSS = "assert loss[i, j].item() == pytest.approx(reference.quantile_huber"
PRIORITY = "assert found.tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0.0])"
OWN_EPISODE = "assert stack.view(frames, 3).tolist() == want"
SAME = 'assert torch.equal(stack, rollout.record["stack"][start:])'


def loss(name: str, targets: int, old: str, new: str) -> Mutant:
    proof = partial(equations.test_the_quantile_loss_of_many_rows, targets)
    return Mutant(name, proof, ((value_functions, "quantile_huber", old, new),), by=LOSS)


def stack(name: str, side: str, *edits: Edit) -> Mutant:
    proof = partial(stacks.test_a_stack_has_frames_of_its_own_episode_alone, 4, side)
    return Mutant(name, proof, edits, by=OWN_EPISODE)


VALUES = [
    Mutant(
        "the value of the state enters once for each component",
        masked,
        ((QHead, "_values", " / len(self.nvec)", ""),),
        by=FORMULA,
    ),
    Mutant(
        "masked choices count in the mean advantage",
        masked,
        ((QHead, "_values", "q.masked_fill(~allowed, 0).sum", "q.sum"),),
        by=FORMULA,
    ),
    Mutant(
        "random actions ignore the mask",
        forbidden,
        ((QHead, "choose", "order.masked_fill(forbidden, -1)", "order"),),
        by="assert allowed.gather(1, choice.unsqueeze(1)).all()",
    ),
    Mutant(
        "all rows explore alike",
        explores,
        ((QHead, "choose", "self.epsilon * exploration", "self.epsilon"),),
        by="assert torch.equal(explored(head, q, 0.0), best)",
    ),
    Mutant(
        "the learner's epsilon is ignored",
        explores,
        ((QHead, "choose", "self.epsilon * exploration", "exploration"),),
        by="assert torch.equal(explored(head, q, 1.0, epsilon=0.0), best)",
    ),
    Mutant(
        "cosines without the constant one",
        quantiles,
        ((QuantileHead, "quantiles", "arange(self.cosines,", "arange(1, self.cosines + 1,"),),
        by=QUANTILES,
        known="Dopamine's IQN",
    ),
    Mutant(
        "fractions at the ends of their intervals",
        mean_of_quantiles,
        ((QuantileHead, "forward", "place + 0.5", "place + 1"),),
        by=FORMULA,
    ),
    Mutant(
        "noise that is not factorised by f",
        noisy,
        ((NoisyLinear, "draw_noise", "e.sign() * e.abs().sqrt()", "e"),),
        by="torch.testing.assert_close(layer.noise_in",
    ),
    Mutant(
        "evaluations with noise",
        quiet,
        ((NoisyLinear, "forward", "self.training and not", "not"),),
        by='assert torch.equal(policy.act(obs, start, first)[0].record["q"], quiet)',
    ),
    Mutant(
        "sessions with noise",
        quiet,
        ((NoisyLinear, "forward", "self.training and not _uses_means.get()", "self.training"),),
        by="assert torch.equal(seen[0].amax(-1), quiet)",
    ),
    Mutant(
        "an inverse without the square",
        inverse,
        ((value_functions, "undo_rescale", "(d * (d + 2))", "d"),),
        by="torch.testing.assert_close(found, REAL, atol=1e-9",
    ),
    loss("the fraction of the target", 4, "(fractions.unsqueeze(-1)", "(fractions.unsqueeze(-2)"),
    loss("the quantile loss averages the wrong axis", 7, ".mean(-1).sum(-1)", ".mean(-2).sum(-1)"),
    loss("the quantile loss has the wrong side", 4, "(delta < 0)", "(delta > 0)"),
    loss("kappa does not divide the quantile loss", 4, "weight * huber / kappa", "2 * weight * huber"),
    Mutant(
        "padding in the priority",
        priorities,
        ((value_functions, "mixed_priority", ".masked_fill(~is_step, 0)", ""),),
        by=PRIORITY,
    ),
    Mutant(
        "padding in the mean of the priority",
        priorities,
        ((value_functions, "mixed_priority", "is_step.sum(0).clamp(min=1)", "len(is_step)"),),
        by=PRIORITY,
    ),
    Mutant(
        "the target network selects the action",
        double_q,
        ((value_functions, "double_q", "head.greedy(online)", "head.greedy(target)"),),
        by="assert found[b].item() == pytest.approx(joint_values(head, target[b])[chosen]",
    ),
    stack(
        "a replayed stack is padded from the earlier episode",
        "learner",
        (Frames, "_unroll", "of_frame < start", "of_frame < -n"),
    ),
    stack(
        "the actor's stack keeps frames of the earlier episode",
        "actor",
        (Core, "step", "self.reset(state, first)", "state"),
    ),
    stack(
        "a replayed stack is padded one frame too far",
        "learner",
        (Frames, "_unroll", "of_frame < start", "of_frame <= start"),
    ),
    stack("the stack lacks the last frame", "actor", (Frames, "_step", "frames[:, 1:]", "frames[:, :-1]")),
    Mutant(
        "the learner stacks in another order",
        same,
        ((Frames, "_unroll", "return frames.flatten(2)", "return frames.flip(2).flatten(2)"),),
        by=SAME,
    ),
    Mutant(
        "the learner starts from another state",
        same,
        ((Frames, "_unroll", "torch.cat((state.", "torch.cat((0 * state."),),
        by=SAME,
    ),
]
