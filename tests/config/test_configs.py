"""The files in configs/: each is read, trains, and is what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from recollect.api import new_agent
from recollect.base import spaces, tree
from recollect.cli import main
from recollect.config.train import TrainConfig
from recollect.cores import GRUConfig
from recollect.experience.rollout import Acting, rollout_size
from recollect.tasks import TASKS
from recollect.training.parse_config import parse_config
from recollect.training.presets import preset
from recollect.training.run_folder import Run
from tests.support.helpers import keep, make_actor

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path.name for path in (ROOT / "configs").iterdir())
TINY = "--num-envs 2 --rollout 8 --chunk 4 --epochs 1 --minibatches 1 --threads 1 --steps 32".split()
FEW = {name: ["--task.mechs", "1"] for name in ("mech.yaml", "mech_league.yaml")}
"""For as many agents as in the other files, one or two."""
SHORTER = "--task.limit 160 --rollout 64 --chunk 16 --num-envs 2 --threads 1".split()
"""The same shape as 8,000, 2,048 and 64: an episode spans rollouts, a rollout spans chunks."""


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    """Where the paths of files in ``env`` start."""
    monkeypatch.chdir(ROOT)


def parsed(name: str, *flags: str):
    found = parse_config(["--config", f"configs/{name}", *flags])
    assert found.notes == []
    return found


# Every file ----------------------------------------------------------------------------------------------


def test_there_is_a_file_for_every_task_and_for_the_usual_shapes():
    tasks = {f"{name.replace('-', '_')}.yaml" for name in TASKS}
    others = {
        "mech_duel.yaml",
        "mech_league.yaml",
        "memory_delayed_cue_recurrent.yaml",
        "long_episode_recurrent.yaml",
        "own_env.toml",
    }
    worlds = {"minigrid_memory", "popgym_cards", "popgym_pendulum", "atari", "mujoco_positions"}
    others |= {"cartpole_gymnasium.yaml", "popgym_repeat_previous.yaml", *(f"{name}.yaml" for name in worlds)}
    assert set(FILES) == tasks | others


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_how_to_use_it(name):
    text = (ROOT / "configs" / name).read_text(encoding="utf-8")
    assert f"recollect train --config configs/{name}" in text


@pytest.mark.parametrize("name", FILES)
def test_a_file_trains(name, tmp_path):
    """S000-26: through the command line, with flags on top that make it small."""
    if name == "mujoco_positions.yaml":
        pytest.importorskip("mujoco")
    quiet = ["--quiet", "--no-eval", "--no-report", "--run", str(tmp_path / "run")]
    assert main(["train", "--config", f"configs/{name}", *TINY, *FEW.get(name, []), *quiet]) == 0
    run = Run(tmp_path / "run")
    assert run.status["state"] == "finished"
    assert run.status["steps"] == 32
    assert run.description["env"] == parsed(name).env


@pytest.mark.parametrize("task", TASKS)
def test_a_tasks_file_is_its_preset(task):
    """The file alone, the name alone and the defaults with the preset on top: three ways to one run."""
    found = parsed(f"{task.replace('-', '_')}.yaml")
    assert (found.env, found.preset) == (task, {}), "the file says it all"
    assert found.config == TrainConfig().override(**preset(task, {}))
    assert found.config == parse_config([], env=task).config


# What they claim -----------------------------------------------------------------------------------------


def test_the_long_cue():
    """Horizon 1000 in 64 envs: what the preset chooses for that core and number of envs, written out."""
    found = parsed("memory_delayed_cue_recurrent.yaml")
    assert (found.env, found.preset) == ("delayed-cue", {})
    flags = "--task.cues 4 --task.horizon 1000 --core mamba_gru --num-envs 64".split()
    assert found.config == parse_config(flags, env="delayed-cue").config


def test_the_long_episodes():
    """Episodes of 8,000 steps, rollouts of 2,048, chunks of 64."""
    found = parsed("long_episode_recurrent.yaml")
    assert found.env == "examples/long_episodes.py:TreeChopping"
    assert found.config.env_kwargs == {"limit": 8000}
    assert (found.config.algo.rollout, found.config.algo.chunk_length) == (2048, 64)
    assert found.config.num_envs <= 8


def test_envs_of_others():
    assert parsed("cartpole_gymnasium.yaml").env == "CartPole-v1"
    assert parsed("popgym_repeat_previous.yaml").env == "popgym:popgym-RepeatPreviousEasy-v0"
    own = parsed("own_env.toml")
    assert own.env == "examples.own_env:Lights"
    assert own.config.policy.core == GRUConfig()


# The stand-in for the long episodes ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def world():
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("tree_chopping", ROOT / "examples" / "long_episodes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_a_gymnasium_env(world):
    check_env(world.TreeChopping(), skip_render_check=True)
    space = world.TreeChopping().observation_space
    assert (space.shape, space.dtype) == ((48, 48, 3), np.uint8)
    assert spaces.is_image(space)


def test_an_episode_is_cut_by_time_only(world):
    env = world.TreeChopping(limit=50)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


def in_front_of(world, kind: int):
    """An env whose agent faces a tree; both kinds have been ordered with the same map."""
    env = world.TreeChopping(order=10**6)
    env.reset(seed=0)
    env.map[env._front()] = kind
    return env


def test_the_order_has_to_be_remembered(world):
    """It is seen for a few steps; from then on both orders look the same, and pay differently."""
    seen, rewards = [], []
    for wanted in (world.OAK, world.BIRCH):
        env = in_front_of(world, world.OAK)
        env.wanted = wanted
        pictures = [env._see()] + [env.step(1 - step % 2)[0] for step in range(world.SHOWN)]
        env.map[env._front()] = world.OAK
        seen.append(pictures)
        rewards.append([env.step(world.CHOP)[1] for _ in range(world.HITS)])
    differ = [not np.array_equal(one, other) for one, other in zip(*seen)]
    assert differ == [True] * world.SHOWN + [False]
    assert rewards == [[0.0, 0.0, 1.0], [0.0, 0.0, -0.5]]


def test_chopping_has_to_be_held(world):
    """A step in between, and the tree stands as before; a felled one grows somewhere else."""
    env = in_front_of(world, world.OAK)
    env.wanted, trees = world.OAK, (env.map == world.OAK).sum()
    chops = [env.step(world.CHOP)[1] for _ in range(world.HITS - 1)]
    blocked = env.step(env.facing)[1]  # towards the tree: the agent stays where it is
    chops += [env.step(world.CHOP)[1] for _ in range(world.HITS)]
    assert (chops, blocked) == ([0.0] * (2 * world.HITS - 2) + [1.0], 0.0)
    assert (env.map == world.OAK).sum() == trees


def acting(found):
    """An untrained agent of a file, and the actor with which it would train."""
    agent = new_agent(found.env, found.config, given=found.given, preset=found.preset)
    ppo = found.config.algo
    env = agent.make_env(found.config.num_envs)
    return agent, make_actor(env, agent.policy, rollout=ppo.rollout, chunk=ppo.chunk_length)


def test_memory_is_carried_over_rollouts():
    """S004-18: episodes over several rollouts equal one long unroll at fixed weights."""
    found = parsed("long_episode_recurrent.yaml", *SHORTER, "--head.gain", "1")
    agent, actor = acting(found)
    policy = agent.policy
    rollouts = [keep(actor.collect()) for _ in range(5)]
    first = torch.cat([r.first[:-1] for r in rollouts])
    assert first[:, 0].nonzero().flatten().tolist() == [0, 160]
    with torch.no_grad():
        obs = torch.cat([r.obs[:-1] for r in rollouts])
        dist, value, state = policy.unroll(obs, policy.initial_state(2), first)
        fresh = policy.unroll(rollouts[1].obs[:-1], policy.initial_state(2), rollouts[1].first[:-1])[1]
    recorded = torch.cat([r.record["value"] for r in rollouts])
    torch.testing.assert_close(value, recorded, atol=1e-5, rtol=0)
    log_prob = dist.log_prob(torch.cat([r.action for r in rollouts]))
    torch.testing.assert_close(
        log_prob, torch.cat([r.record["log_prob"] for r in rollouts]), atol=1e-5, rtol=0
    )
    for end, live in zip(tree.leaves(state), tree.leaves(actor.state)):
        torch.testing.assert_close(end, live, atol=1e-5, rtol=0)
    assert (fresh - rollouts[1].record["value"]).abs().max() > 1e-3, "forgetting would be noticed"


def test_pictures_are_kept_as_bytes():
    """S004-10: uint8 in the rollout, and the size that is told before training is the one that is taken."""
    found = parsed("long_episode_recurrent.yaml", *SHORTER)
    agent, actor = acting(found)
    rollout = actor.collect()
    assert rollout.obs.dtype == torch.uint8
    assert rollout.obs.untyped_storage().nbytes() == 65 * 2 * 48 * 48 * 3
    assert rollout.state_steps == (0, 16, 32, 48)
    full = parsed("long_episode_recurrent.yaml").config
    size = rollout_size(
        agent.policy, full.num_envs, Acting(full.algo.state_steps, True), steps=full.algo.rollout
    )
    assert 57e6 < size.total < 58e6, "as the file says"
