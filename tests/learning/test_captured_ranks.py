"""Several learners on the path of a GPU, on the CPU: the statistics of all rows, whoever holds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recollect.base import devices
from recollect.policy.normalise import Moments
from tests.learning.test_ranks import check_same_learning, dead_rows
from tests.support.helpers import ArenaWorld
from tests.support.ranked import groups

CASES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "impala that lags": {"algo": "impala", "lag": 1},
    "dead agents": {"env": ArenaWorld},
    "a rank without experience": {"spoil": dead_rows},
}


@pytest.fixture(autouse=True)
def _waiting(monkeypatch):
    monkeypatch.setattr(devices, "synchronises", lambda where: True)


@pytest.mark.parametrize("case", CASES)
def test_two_learners_learn_what_one_does(case: str):
    """S002-15, S001-20: observation statistics are merged over learners, values scaled by all returns."""
    check_same_learning(2, 4, policy={"normalise_observations": True}, **CASES[case])


def test_moments_merge_by_a_mask_over_ranks():
    """S002-15, S001-20: those of all valid steps; the ranks agree bit for bit; one has no valid step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 6, 3, generator=generator) * 5 + 100
    valid = torch.rand(9, 6, generator=generator) < 0.6
    valid[:, :2] = False
    x[~valid] = torch.nan
    whole, own = Moments((3,)), [Moments((3,)) for _ in range(3)]
    cuts = [slice(0, 2), slice(2, 3), slice(3, 6)]
    with groups(2, 1, 3) as run:
        for _ in range(2):
            whole.merge(x[valid])
            run(lambda g: own[g.rank].merge_where(x[:, cuts[g.rank]], valid[:, cuts[g.rank]], g.each))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(own[0].state_dict()[name], value, rtol=1e-12, atol=1e-9)
        assert all(torch.equal(part.state_dict()[name], own[0].state_dict()[name]) for part in own)
    assert whole.count == 2 * valid.sum()
