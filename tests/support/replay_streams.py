"""Rollouts with every kind of episode end for tests of the replay, and comparison with the slow truth."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from recollect.base import tree
from recollect.experience.replay import Replay
from recollect.experience.replay_sample import Sample
from recollect.experience.rollout import Finals, Rollout
from tests.reference.replay import Rows

OBS = {"image": torch.zeros(1, 2, 2, dtype=torch.uint8), "x": torch.zeros(1, 3)}
ACTION = torch.zeros(1, dtype=torch.int64)
STATE = (torch.zeros(1, 2), {"n": torch.zeros(1, dtype=torch.int64)})


def obs_of(ids: torch.Tensor) -> Any:
    """Observations that differ in every slot."""
    image = (ids.unsqueeze(-1) * torch.tensor([1, 3, 5, 7]) % 251).to(torch.uint8)
    return {
        "image": image.unflatten(-1, (2, 2)),
        "x": ids.unsqueeze(-1) + torch.tensor([0.0, 0.25, 0.5]),
    }


class Streams:
    """Rows that play episodes; every observation, reward, action and state is a number of its own."""

    def __init__(
        self, rows: int, seed: int, *, ends=0.2, dead=0.1, restarts=0.0, is_next_step=False, starts=True
    ):
        self.rows, self.seed = rows, seed
        self.ends, self.dead, self.restarts, self.is_next_step = ends, dead, restarts, is_next_step
        self.generator = torch.Generator().manual_seed(seed)
        self.status = ["first" if starts else "inside"] * rows
        self.count = 1

    def chance(self, p: float) -> bool:
        return bool(torch.rand((), generator=self.generator) < p)

    def rollout(self, steps: int, state_steps: tuple[int, ...] = ()) -> Rollout:
        """The next steps. All content of invalid steps is NaN, or -1."""
        T, B = steps, self.rows
        flags = {name: torch.zeros(T, B, dtype=torch.bool) for name in ("terminated", "truncated", "valid")}
        first = torch.zeros(T + 1, B, dtype=torch.bool)
        finals = []
        for t in range(T):
            for b in range(B):
                if self.status[b] == "inside" and self.chance(self.restarts):
                    self.status[b] = "first"
                if self.status[b] in ("filler", "dead"):
                    if self.status[b] == "filler" or self.chance(0.5):
                        self.status[b] = "first"
                    continue
                flags["valid"][t, b] = True
                first[t, b] = self.status[b] == "first"
                self.status[b] = "inside"
                if self.chance(self.ends):
                    kind = int(torch.randint(4, (), generator=self.generator))
                    flags["terminated"][t, b] = kind in (0, 1)
                    flags["truncated"][t, b] = kind in (1, 2, 3)
                    after = "dead" if self.chance(self.dead) else "filler" if self.is_next_step else "first"
                    self.status[b] = after
                    if kind in (2, 3):
                        finals.append((t, b))
            first[t + 1] = torch.tensor([status == "first" for status in self.status])
        ids = torch.arange(self.count, self.count + (T + 1) * B).view(T + 1, B)
        final_ids = torch.arange(len(finals)) + self.count + (T + 1) * B
        self.count += (T + 1) * B + len(finals)
        obs, valid = obs_of(ids), flags["valid"]
        bad = ~torch.cat([valid, valid.new_ones(1, B)])
        obs["x"][bad] = torch.nan
        obs["image"][bad] = 255
        at = torch.tensor(state_steps, dtype=torch.int64)
        states = (ids[at].unsqueeze(-1) + torch.tensor([0.0, 0.5]), {"n": ids[at]})
        states[0][~valid[at]] = torch.nan
        where = torch.tensor(finals, dtype=torch.int64).view(-1, 2)
        return Rollout(
            obs=obs,
            first=first,
            action=ids[:T].masked_fill(~valid, -1),
            record={},
            reward=(-ids[:T].float()).masked_fill(~valid, torch.nan),
            **flags,
            state_steps=state_steps,
            states=states,
            finals=Finals(where[:, 0], where[:, 1], obs_of(final_ids)) if finals else None,
        )


def make(rows=2, capacity=20, burn_in=2, length=3, n_step=2, stride=4, **more) -> tuple[Replay, Rows]:
    """A replay and its slow truth."""
    sizes = {
        "rows": rows,
        "capacity": capacity,
        "burn_in": burn_in,
        "length": length,
        "n_step": n_step,
        "stride": stride,
        "stores_states": more.pop("stores_states", True),
    }
    state = STATE if sizes["stores_states"] else None
    replay = Replay(**sizes, obs=OBS, action=ACTION, state=state, **{"device": "cpu"} | more)
    return replay, Rows(**sizes, state_capacity=replay.state_capacity)


def assert_same_windows(replay: Replay, truth: Rows) -> int:
    """Every window that can be drawn, with all its content, and no other. Returns their number."""
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    wanted = truth.windows()
    assert replay.windows == len(slots), "the number of windows"
    if not len(slots):
        assert not wanted, "windows are missing"
        return 0
    found = replay.read(slots)
    keys = [(int(e) % replay.rows, int(e) // replay.rows) for e in found.entries]
    assert set(keys) == set(wanted), "the windows"
    assert (replay.tree.weights[slots] > 0).all()
    for m, key in enumerate(keys):
        _assert_same_window(replay, found, m, wanted[key])
    return len(slots)


def _assert_same_window(replay: Replay, found: Any, m: int, truth: dict[str, Any]) -> None:
    W = replay.window
    obs = {name: torch.zeros(W, *leaf.shape[1:], dtype=leaf.dtype) for name, leaf in OBS.items()}
    action, reward = torch.zeros(W, dtype=torch.int64), torch.zeros(W)
    terminated, exists, is_step = (torch.zeros(W, dtype=torch.bool) for _ in range(3))
    for i, slot in truth["slots"]:
        exists[i] = True
        for name, leaf in slot.obs.items():
            obs[name][i] = leaf
        is_step[i], terminated[i], reward[i] = slot.is_step, slot.terminated, slot.reward
        if slot.is_step:
            action[i] = slot.action
    assert torch.equal(found.exists[:, m], exists), "which slots exist"
    assert torch.equal(found.is_step[:, m], is_step), "which slots are steps"
    assert torch.equal(found.terminated[:, m], terminated), "terminations"
    assert found.first[:, m].nonzero().flatten().tolist() == truth["first"], "the episode's start"
    for name, leaf in obs.items():
        assert torch.equal(found.obs[name][:, m], leaf), "observations"
    assert torch.equal(found.action[:, m], action), "actions"
    assert torch.equal(found.reward[:, m], reward), "rewards"
    assert int(found.age[m]) == truth["age"], "age"
    if replay.stores_states and not found.first[0, m]:
        state = tree.index(STATE, 0) if truth["state"] is None else truth["state"]
        for ours, theirs in zip(tree.leaves(found.state), tree.leaves(state), strict=True):
            assert torch.equal(ours[m], theirs), "the state"


def contents(drawn: Sample) -> list[torch.Tensor]:
    """All tensors of a sample."""
    parts = {field.name: getattr(drawn, field.name) for field in fields(drawn)}
    return tree.leaves({name: () if part is None else part for name, part in parts.items()})


def played(rows=3, rollouts=8, steps=11, ends=0.15, **size) -> tuple[Replay, Rows, Streams]:
    """A replay with some rollouts in it, its slow truth, and the rows that play on."""
    replay, truth = make(rows=rows, **size)
    streams = Streams(rows, 1, ends=ends)
    for _ in range(rollouts):
        rollout = streams.rollout(steps, (0, 4))
        replay.add(rollout)
        truth.add(rollout)
    return replay, truth, streams
