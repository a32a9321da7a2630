"""The same experience twice: with the steps of dead agents, masked by ``valid``, and without them.

Agents die at different times, appear late, come back in a new episode, or are dead throughout. Their lives
also fit together, without a gap, into fewer rows of the same length: those are the *living*. A life is moved
by whole chunks only, so that the learner truncates its gradients at the same steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from recollect.acting.actor import allocate
from recollect.base import spaces, tree
from recollect.base.types import State, Tree
from recollect.experience.rollout import Acting, Finals, Rollout
from recollect.policy.policy import Policy

T, CHUNK, BURN_IN = 12, 4, 2
ROWS, LIVING = 9, 4
"""Rows with the dead, three slots of three agents; rows without them."""


class Life(NamedTuple):
    """The steps from ``begin`` up to ``end`` of row ``home`` of the living."""

    home: int
    begin: int
    end: int
    how: str
    """How it ends: "terminated", "truncated", "both", or "" if the rollout ends first."""
    row: int
    """The row with the dead in which it stands, ``later`` steps later."""
    later: int = 0
    is_carried: bool = False
    """Whether it began in the rollout before."""


LIVES = (
    Life(0, 0, 3, "terminated", row=0, is_carried=True),  # dies, and
    Life(0, 7, T, "truncated", row=0),  # is back in the next episode, up to the last step
    Life(0, 3, 7, "truncated", row=1, later=CHUNK),  # appears late and ends before the rollout does
    Life(1, 0, 5, "both", row=3, later=CHUNK),  # the same, from the first step of a chunk
    Life(1, 5, T, "terminated", row=4),  # appears late and dies in the last step
    Life(2, 0, T, "", row=5, is_carried=True),  # is alive throughout
    Life(3, 0, 7, "truncated", row=6, later=CHUNK),
    Life(3, 7, T, "", row=7),  # appears late and lives on
)
"""Rows 2 and 8 are dead throughout."""
HOMES = [0, 0, 0, 1, 1, 2, 3, 3, 0]
"""The row of the living that holds the lives of each row; any for a row without one."""


def double(value: Tree) -> Tree:
    """Floating leaves in float64."""
    return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, value)


@torch.no_grad()
def live(policy: Policy, acting: Acting, seed: int) -> tuple[Rollout, list[State]]:
    """A rollout of the living alone, and the raw input state of each of its steps."""
    generator = torch.Generator().manual_seed(seed)
    out = allocate(policy, LIVING, T, acting)
    parts = {name: double(value) for name, value in out.tensors().items()}
    out = replace(out, **parts)
    out.valid.fill_(True)
    for life in LIVES:
        out.first[life.begin, life.home] = not life.is_carried
        out.terminated[life.end - 1, life.home] = life.how in ("terminated", "both")
        out.truncated[life.end - 1, life.home] = life.how in ("truncated", "both")
    out.first[T] = out.terminated[-1] | out.truncated[-1]
    state = tree.map(lambda leaf: _noise(leaf, generator), double(policy.initial_state(LIVING)))
    states: list[State] = []
    obs: Tree = None
    finals: list[tuple[int, Tensor, Tree]] = []
    for t in range(T):
        obs = _observe(policy, generator)
        states.append(tree.clone(state))
        tree.copy_(tree.index(out.obs, t), obs)
        acted, state = policy.act(obs, state, out.first[t], generator)
        tree.copy_(tree.index(out.action, t), acted.action)
        for name, field in out.record.items():
            field[t] = acted.record[name]
        rows = (out.truncated[t] & ~out.terminated[t]).nonzero().flatten()
        if len(rows):
            final = _observe(policy, generator)
            value = policy.value(final, state, torch.zeros(LIVING, dtype=torch.bool))
            assert out.final_value is not None
            out.final_value[t, rows] = value[rows]
            finals.append((t, rows, tree.index(final, rows)))
    out.reward.copy_(torch.randn(T, LIVING, generator=generator) + 1)
    tree.copy_(tree.index(out.obs, T), _observe(policy, generator))
    assert out.bootstrap is not None
    out.bootstrap.copy_(policy.value(tree.index(out.obs, T), state, out.first[T]))
    for place, step in enumerate(out.state_steps):
        tree.copy_(tree.index(out.states, place), states[step])
    times = torch.cat([torch.full_like(rows, t) for t, rows, _ in finals])
    out.finals = Finals(times, torch.cat([rows for _, rows, _ in finals]), tree.cat([o for *_, o in finals]))
    return out, [*states, state]


def with_the_dead(alive: Rollout, states: list[State], garbage: float = torch.nan) -> Rollout:
    """The same lives in the rows of all agents. All else is ``garbage``, and masks forbid everything."""
    shapes = {name: _filled(value, dim, garbage) for name, (value, dim) in _row_tensors(alive).items()}
    out = replace(alive, **shapes)
    for name in ("first", "terminated", "truncated", "valid"):
        getattr(out, name).fill_(False)
    out.first[0] = True  # an actor's first rollout begins so, whether or not an agent is there
    for life in LIVES:
        _place(out, alive, life)
        for place, step in enumerate(out.state_steps):
            if life.begin + life.later < step <= life.end + life.later or (step == 0 and life.is_carried):
                source = tree.index(states[step - life.later], life.home)
                tree.copy_(tree.index(out.states, (place, life.row)), source)
    assert alive.finals is not None
    out.finals = _moved(alive.finals)
    return out


def _place(out: Rollout, alive: Rollout, life: Life) -> None:
    """Copy the steps of a life, and what follows the last step of a rollout that it outlives."""
    old, new = slice(life.begin, life.end), slice(life.begin + life.later, life.end + life.later)
    for name, (value, dim) in _row_tensors(alive).items():
        if dim and name != "states":
            source = tree.index(value, (old, life.home))
            tree.copy_(tree.index(getattr(out, name), (new, life.row)), source)
    if not life.how:
        assert out.bootstrap is not None
        assert alive.bootstrap is not None
        out.bootstrap[life.row] = alive.bootstrap[life.home]
        tree.copy_(tree.index(out.obs, (T, life.row)), tree.index(alive.obs, (T, life.home)))


def _moved(finals: Finals) -> Finals:
    """The finals in the rows of all agents, in order of time."""
    time, row = finals.time.clone(), finals.row.clone()
    for i, key in enumerate(zip(finals.time.tolist(), finals.row.tolist())):
        (life,) = [life for life in LIVES if (life.end - 1, life.home) == key]
        time[i], row[i] = key[0] + life.later, life.row
    order = time.argsort(stable=True)
    return Finals(time[order], row[order], tree.index(finals.obs, order))


def by_life(value: Tensor, is_living: bool) -> Tensor:
    """[N, ...]: the steps of all lives, of a tensor [T, B, ...] of the living or of all agents."""
    if is_living:
        return torch.cat([value[life.begin : life.end, life.home] for life in LIVES])
    return torch.cat([value[life.begin + life.later : life.end + life.later, life.row] for life in LIVES])


def _row_tensors(rollout: Rollout) -> dict[str, tuple[Tree, int]]:
    """The tensors of a rollout and the dimension that counts their rows."""
    return {name: (value, 0 if name == "bootstrap" else 1) for name, value in rollout.tensors().items()}


def _filled(value: Tree, dim: int, garbage: float) -> Tree:
    def wide(leaf: Tensor) -> Tensor:
        shape = (*leaf.shape[:dim], ROWS, *leaf.shape[dim + 1 :])
        return leaf.new_full(shape, garbage) if leaf.is_floating_point() else leaf.new_zeros(shape)

    return tree.map(wide, value)


def _noise(leaf: Tensor, generator: torch.Generator) -> Tensor:
    """Noise in place of a floating leaf; a count stays."""
    if not leaf.is_floating_point():
        return leaf
    return torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)


def _observe(policy: Policy, generator: torch.Generator) -> Tree:
    """Noise; masks allow the first action and some others."""

    def leaf(zeros: Tensor) -> Tensor:
        if zeros.is_floating_point():
            return _noise(zeros.double(), generator)
        mask = torch.randint(0, 2, zeros.shape, generator=generator).to(zeros.dtype)
        mask[:, 0] = 1
        return mask

    return tree.map(leaf, spaces.zeros(policy.observation_space, LIVING))
