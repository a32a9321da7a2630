"""Frame stacks: one stacking for actor and learner, and nothing of an earlier episode in it."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import devices, tree
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.cores import CORES, FramesConfig, make_core
from recollect.errors import ConfigError
from recollect.policy.head_contract import Field
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead
from tests.support.helpers import TensorWorld, keep

torch.set_num_threads(1)

ROWS, T = 3, 40


class EpisodeFrames(TensorWorld):
    """Every observation is (row, episode, step), counted from 1: a frame shows where it is from."""

    def reset(self, seed):
        self.step_of = torch.ones(self.num_envs)
        self.number = torch.ones(self.num_envs)
        return super().reset(seed)

    def _noise(self):
        return torch.stack([torch.arange(1.0, self.num_envs + 1), self.number, self.step_of], 1)

    def step(self, action):
        self.step_of += 1
        before = list(self.episode)
        ended = torch.tensor([left == 1 for left in self.left])
        found = super().step(action)
        assert [one > two for one, two in zip(self.episode, before)] == ended.tolist()
        self.number += ended
        self.step_of.masked_fill_(ended, 1)
        self.obs.copy_(torch.where(ended.unsqueeze(1), self._noise(), self.final_obs))
        return found


class Stacks(QHead):
    """The record is the input of the head: the stack that the actor saw."""

    def __init__(self, frames, space, features):
        super().__init__(space, features)
        self.record_spec = {"stack": Field((3 * frames,))}

    def forward(self, y, mask=None):
        return *super().forward(y, mask), y

    def choose(self, outputs, *given, **named):
        return super().choose(outputs[:1], *given, **named)

    def record(self, outputs, action):
        return {"stack": outputs[1].clone()}  # with one frame it is the env's own tensor


def acted(frames: int, rollouts: int = 2):
    """The policy and rollouts of an actor, whose record has the stacks."""
    torch.manual_seed(0)
    env = EpisodeFrames(ROWS, lengths=(1, 13, 4, 10))
    config = PolicyConfig(core=FramesConfig(frames=frames), normalise_observations=False)
    policy = Policy(env.observation_space, env.action_space, config, head=partial(Stacks, frames))
    actor = Actor(env, policy, rollout=T, state_steps=tuple(range(0, T, 8)), seed=0, needs_values=False)
    return policy, [keep(actor.collect()) for _ in range(rollouts)]


@pytest.mark.parametrize("frames", [1, 2, 4, 9])
def test_the_stack_of_the_actor_is_that_of_the_learner(frames):
    """S003-1: bitwise, from the start of a rollout and from every stored state inside it."""
    policy, rollouts = acted(frames)
    for rollout in rollouts:
        for start in range(0, T, 8):
            obs = tree.index(rollout.obs, slice(start, T))
            _, stack, _ = policy.unroll(obs, rollout.state_at(start), rollout.first[start:T])
            assert torch.equal(stack, rollout.record["stack"][start:])


@pytest.mark.parametrize("frames", [2, 4, 9])
def test_a_burn_in_of_reach_steps_rebuilds_the_stack(frames):
    """S003-1: from zeros instead of the stored state, bitwise; one step less is too few."""
    policy, (_, rollout) = acted(frames)
    assert policy.core.reach == frames - 1
    missing = 0
    for start in range(frames - 1, T - 1):
        for burn_in in (frames - 1, frames - 2):
            part = slice(start - burn_in, start + 1)
            zeros = policy.initial_state(ROWS)
            _, stack, _ = policy.unroll(tree.index(rollout.obs, part), zeros, rollout.first[part])
            want = rollout.record["stack"][start]
            # The oldest frame is missing where it is one of the episode.
            needs = (want[:, :3] != 0).any(1) if burn_in < frames - 1 else torch.zeros(ROWS, dtype=torch.bool)
            assert torch.equal((stack[-1] != want).any(1), needs)
            missing += int(needs.sum())
    assert missing


@pytest.mark.parametrize("frames", [2, 4, 9])
@pytest.mark.parametrize("side", ["actor", "learner"])
def test_a_stack_has_frames_of_its_own_episode_alone(frames, side):
    """S003-2: frames carry row, episode and step. A stack has the last n in order, the oldest first, and
    zeros before the episode's first step."""
    policy, rollouts = acted(frames)
    ended = 0
    for rollout in rollouts:
        stacks = rollout.record["stack"]
        if side == "learner":
            _, stacks, _ = policy.unroll(rollout.obs[:T], rollout.state_at(0), rollout.first[:T])
        for stack, obs in zip(stacks.flatten(0, 1), rollout.obs[:T].flatten(0, 1)):
            row, episode, step = obs.tolist()
            steps = range(int(step) - frames + 1, int(step) + 1)
            want = [[row, episode, k] if k >= 1 else [0, 0, 0] for k in steps]
            assert stack.view(frames, 3).tolist() == want
        ended += int(rollout.first[1:].sum())
    assert ended > 3 * ROWS


def test_without_host_reads_the_frames_are_the_same(monkeypatch):
    """S003-1: on a CPU the frames of earlier episodes are found on the host, elsewhere they are masked."""
    core, generator = make_core(FramesConfig(frames=4), 5), torch.Generator().manual_seed(0)
    x, first = torch.randn(9, ROWS, 5), torch.rand(9, ROWS, generator=generator) < 0.3
    state = torch.randn(ROWS, 3, 5)
    here = core.unroll(x, state, first)
    monkeypatch.setattr(devices, "synchronises", lambda _: True)
    assert all(torch.equal(a, b) for a, b in zip(here, core.unroll(x, state, first), strict=True))


def test_reach_of_the_cores():
    """Only frame stacks and no memory forget everything after a known number of steps."""
    reach = {name: make_core(name, 3).reach for name in CORES}
    assert {name: steps for name, steps in reach.items() if steps is not None} == {"frames": 3, "none": 0}


def test_one_frame_is_no_memory():
    core = make_core(FramesConfig(frames=1), 3)
    x, first = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    assert not core.has_memory
    assert core.initial_state(2) == ()
    assert torch.equal(core.unroll(x, (), first)[0], x)
    assert torch.equal(core.step(x[0], (), first[0])[0], x[0])


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"core\.frames = 0"):
        FramesConfig(frames=0)


# The encoder -----------------------------------------------------------------------------------------------


def made(space, **settings):
    return PolicyConfig(**settings).build(space, gym.spaces.Discrete(2))


@pytest.mark.parametrize("core", ["frames", FramesConfig(frames=3), {"name": "frames", "frames": 3}], ids=str)
@pytest.mark.parametrize("is_normal", [False, True])
def test_observations_are_stacked_as_they_are(core, is_normal):
    """Without hidden layers, and normalised or not as the settings say."""
    space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    policy = made(space, core=core, normalise_observations=is_normal)
    assert not list(policy.encoder.parameters())
    obs = 3 + 2 * torch.randn(50, 5)
    if is_normal:
        policy.obs_norm.update(obs.unsqueeze(1), torch.ones(50, 1, dtype=torch.bool))
    want = policy.obs_norm(obs) if is_normal else obs
    seen = policy._encode(obs)
    assert torch.equal(seen, want)
    assert torch.equal(seen, obs) is not is_normal


def test_another_encoder_is_used():
    space = gym.spaces.Box(-1, 1, (5,), np.float32)
    for encoder in ("auto", EncoderConfig()):
        assert made(space, core="frames", encoder=encoder).core.input_size == 64
    assert made(space, core="lstm").core.input_size == 64
    assert made(space, core="frames", critic="memoryless").critic_trunk.core.input_size == 64
    assert made(space, core="frames", critic="separate").critic_trunk.core.input_size == 5


def test_features_of_images_are_stacked():
    """An image goes through its conv stack first."""
    policy = made(gym.spaces.Box(0, 255, (16, 16, 3), np.uint8), core="frames")
    assert policy.core.input_size == 32 * 8 * 8


def test_ppo_learns_with_frames():
    """Training runs: state, chunks and the deviation check."""
    agent = rc.train("position-cartpole", core="frames", steps=2048, progress=False, run=None)
    assert agent.policy.core.config == FramesConfig()
