"""The cause that is named for a wrong memory at the start of a sequence."""

from __future__ import annotations

import torch

from recollect.audit import TracedRollout, audit_trace

T, B, L = 8, 2, 4


def late_policy_state() -> TracedRollout:
    """The policy's memory is stored after the step, the critic's as it should be; an episode ends there."""
    truncated = torch.zeros(T, B, dtype=torch.bool)
    truncated[L, 1] = True
    first = torch.zeros(T, B, dtype=torch.bool)
    first[L + 1, 1] = True
    after = torch.arange(1.0, T + 2)[:, None, None].expand(T + 1, B, 1)  # before any reset
    live = (after - 1).clone()
    live[L + 1 :, 1] = torch.arange(0.0, T - L)[:, None]  # the reset one
    starts = torch.tensor([0, L * B, 1, L * B + 1])  # t * B + row
    index = starts + B * torch.arange(L)[:, None]
    t, row = starts // B, starts % B
    return TracedRollout(
        first=first,
        terminated=torch.zeros_like(truncated),
        truncated=truncated,
        state={"policy": live, "critic": live},
        chunk_index=index,
        chunk_state={"policy": after[t, row], "critic": live[t, row]},
    )


def test_late_state_of_one_part_named() -> None:
    """Neither the part that is right nor a sequence that an episode ends in hides the cause."""
    check = audit_trace(late_policy_state())["chunk states"]
    assert check.status == "failed"
    assert "late" in " ".join(check.advice)
