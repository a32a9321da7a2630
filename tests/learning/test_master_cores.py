"""Master test M for every core, with every kind of action."""

from __future__ import annotations

import pytest

from recollect.config.core_choice import widened
from tests.learning.test_master import check, scripted
from tests.support.core_cases import CASES
from tests.support.helpers import make_policy

HEADS = ("discrete", "squashed", "hybrid")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "none"])
def test_every_core_and_head(name, head):
    """M, S002-6, S002-23, S004-1, S004-14, S004-15: also in later chunks, with ends of every kind."""
    env, squash = scripted(head, "same_step")
    # Of usual width: what is normalised over four numbers may be divided by next to nothing.
    policy = make_policy(env, widened(CASES[name], 16), squash=squash)
    check(env, policy, chunk=7)
    env.close()
