"""Which numbers of an update have half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.impala import ImpalaConfig
from recollect.config.ppo import PPOConfig
from recollect.experience.rollout import Rollout
from recollect.learning.sequences import burn_in
from recollect.policy.policy import Policy
from tests.support.captured import BURN_IN, CHUNK, T

STEPS: dict[str, Any] = {"rollout": T, "chunk": CHUNK, "recurrent_mode": "burn_in", "burn_in_steps": BURN_IN}
CONFIGS = {
    "ppo": PPOConfig(**STEPS, value_clip=0.2, reward_clip=1.0),
    "impala": ImpalaConfig(**STEPS),
    "clipped impala": ImpalaConfig(**STEPS, clip=0.2),
}
HALF = (torch.bfloat16, torch.float16)


class Halves(TorchDispatchMode):
    """Notes the operations that make numbers of half precision where none should.

    They may inside of an encoder, and on a GPU inside of a core too.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        self.found: list[str] = []
        self.inside: list[str] = []
        """The operations that were left out."""
        self._is_inside = False
        self._policy, self._patch = policy, pytest.MonkeyPatch()

    def __enter__(self) -> Halves:
        is_cpu = self._policy.critic.weight.device.type == "cpu"
        for name in ("_encode",) if is_cpu else ("unroll", "unroll_with_states", "value"):
            self._patch.setattr(self._policy, name, self._skipped(getattr(self._policy, name)))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._patch.undo()
        super().__exit__(*error)

    def _skipped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self._is_inside = True
            try:
                return method(*args)
            finally:
                self._is_inside = False

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # pyright: ignore
        made = func(*args, **(kwargs or {}))
        several = made if isinstance(made, tuple | list) else (made,)
        if any(isinstance(x, torch.Tensor) and x.dtype in HALF for x in several):
            (self.inside if self._is_inside else self.found).append(str(func))
        return made


def assert_single(policy: Policy, rollout: Rollout, algo: str) -> None:
    """Log-probs, values, ratios, advantages, returns and losses are float32 from the first operation on."""
    learner = make_learner(policy, CONFIGS[algo])
    with Halves(policy) as halves:
        prepared, data, _ = learner.targets(rollout, 1)
        batch = burn_in(policy, learner.sequences(prepared, data).whole())
        evaluated = policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first)
        total, stats = learner.algorithm.loss(policy, batch, learner.config, 0.01, batch.valid.sum())
    assert halves.inside, "the encoder computes in half precision"
    assert halves.found == []
    assert {"advantage", "return", "value", "log_prob"} <= batch.data.keys()
    found = tree.named_leaves({"data": batch.data, "evaluated": evaluated, "total": total, "stats": stats})
    assert {name: leaf.dtype for name, leaf in found if leaf.dtype != torch.float32} == {}
