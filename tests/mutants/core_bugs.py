"""Bugs of cores, of networks for tokens, and of the options of Learner."""

from __future__ import annotations

import functools

from recollect.cores.frames import Frames
from recollect.kernels import linear_scan
from recollect.kernels.cpu import causal_conv, lstm_onednn, selective_scan, window
from recollect.learning.auxiliary_loss import NextObs
from recollect.learning.learner import Learner
from recollect.policy.tokens import latent
from tests.cores import test_cores, test_frames
from tests.mutants import proofs
from tests.mutants.mutant import Mutant

WALLS = [
    Mutant(
        "Mamba's convolution sees across a reset",
        proofs.short_window,
        (
            (
                causal_conv,
                "causal_conv",
                "torch.where(first, steps, -K)",
                "torch.where(first & False, steps, -K)",
            ),
        ),
        by="assert torch.equal(y[6 + since, 0], y_other[6 + since, 0])",
    ),
    Mutant(
        "Mamba's convolution hands on what a reset threw away",
        proofs.poisoned("mamba", 1),
        ((causal_conv, "causal_conv", ".masked_fill(is_empty.unsqueeze(2), 0)", ""),),
        by="assert_close((y, end), core.unroll(x, state, first), 1e-12)",
    ),
    Mutant(
        "a stack has frames of an earlier episode",
        functools.partial(test_frames.test_a_stack_has_frames_of_its_own_episode_alone, 4, "learner"),
        ((Frames, "_unroll", "is_earlier.flatten()", "(is_earlier & False).flatten()"),),
        by="assert stack.view(frames, 3).tolist() == want",
    ),
    Mutant(
        "the selective scan's wall multiplies",
        proofs.poisoned("mamba", 6),
        (
            (
                selective_scan,
                "_carry",
                "into.addcmul_(factor, carried).index_copy_(0, reset, alone)",
                "into.addcmul_(factor.index_fill(0, reset, 0), carried)",
            ),
        ),
        by="assert_close((y, end), core.unroll(x, state, first), 1e-12)",
    ),
    Mutant(
        "the scan's wall multiplies",
        proofs.poisoned_scan,
        (
            (
                linear_scan,
                "steps",
                "before = torch.addcmul(",
                "factor = factor if reset is None else factor.index_fill(0, reset[0], 0)\n"
                "        before = torch.addcmul(",
            ),
            (linear_scan, "steps", "before.index_copy_(0, *reset)", "pass"),
        ),
        by="assert torch.equal(h[wall:, 1], want[wall:, 1])",
    ),
    Mutant(
        "attention looks across a reset",
        proofs.wall("window"),
        ((window, "_forward", "ages > age[rows, steps].unsqueeze(2)", "ages > torch.full((1, 1, 1), W)"),),
        by="assert (dx[:4] == 0).all()",
    ),
]

PADS = [
    Mutant(
        "attention looks at padding",
        proofs.pads,
        ((latent.LatentAttention, "_vectors", "absent.mul_(ABSENT)", "absent.mul_(0)"),),
        by="test_zoo.same(test_zoo.says(policy, more), test_zoo.says(policy, obs))",
    ),
]

OPTIONS = [
    Mutant(
        "a part of a minibatch is divided by its own count",
        proofs.parts,
        ((Learner, "backward", "entropy_coef, count, known)", "entropy_coef, batch.valid.sum(), known)"),),
        by="assert_close(parts[name], grad",
        known="Hugging Face transformers before #34191",
    ),
    Mutant(
        "the next observation is predicted across an episode's end",
        proofs.predicted,
        (
            (
                NextObs,
                "targets",
                "rollout.valid & ~(rollout.terminated | rollout.truncated) & ~rollout.first[1:]",
                "rollout.valid.clone()",
            ),
        ),
        by="assert bool(found[KNOWN][t, row]) == wanted",
    ),
]

FUSED = [
    Mutant(
        "the fused step of many rows returns the memory before it",
        test_cores.many_rows_step_as_few,
        ((lstm_onednn, "step", "return y[0], h[0], c[0]", "return y[0], h[0], state[1][0]"),),
        "torch.testing.assert_close(one, two)",
    ),
    Mutant(
        "the fused step of many rows ignores the memory",
        test_cores.many_rows_step_as_few,
        ((lstm_onednn, "step", "c.unsqueeze(0)", "torch.zeros_like(c).unsqueeze(0)"),),
        "torch.testing.assert_close(few, y[rows])",
    ),
]
