"""A run that does not fit into memory is refused before it starts, and warned if it hardly fits."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect import cli
from recollect.acting.actor import Actor
from recollect.base import notices, shared_memory
from recollect.base.system_limits import Places, free_memory
from recollect.base.tensor_memory import TensorMemory
from recollect.envs.gym_loop import GymLoop
from recollect.errors import ConfigError
from recollect.learning import deviation_check
from recollect.policy.policies import by_group, rows_of_slots
from recollect.training import memory_check, memory_estimate
from tests.support.agents import AnySpace, small_agent

CASES = [
    ("lstm", {}),
    ("lstm", {"accumulate": 2, "recompute_activations": True}),
    ("gru", {"minibatches": 2}),
    ("none", {}),
    *(pytest.param(core, {}, marks=pytest.mark.slow) for core in ("mlstm", "mamba", "window", "pmm")),
]


def has(monkeypatch: pytest.MonkeyPatch, gigabytes: float) -> None:
    """This machine has so much free memory."""
    monkeypatch.setattr(memory_check, "free_memory", lambda _: int(gigabytes * 1e9))


def never(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("it was called"))


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--num-envs", "100000000"], ["100,000,000 rows", "num_envs", "--memory-limit"]),
        (["--rollout", "1000000000"], ["1,000,000,000 steps", "rollout", "--memory-limit"]),
        (["--core.hidden", "1000000"], ["4,000,267,000,259 weights", "--core.hidden", "--memory-limit"]),
        (["--encoder.hidden", "400000,400000"], ["weights", "--encoder.hidden", "--memory-limit"]),
    ],
)
def test_absurd_sizes_are_refused_at_once(flags, expected, capsys, monkeypatch):
    """No env, network or rollout of that size is made."""
    never(monkeypatch, "recollect.agent.Trainer")
    assert cli.main(["train", "delayed-cue", *flags]) == 2
    error = capsys.readouterr().err
    assert "GB are free on this machine" in error
    assert all(text in error for text in expected), error


def test_envs_are_not_made_for_a_run_that_does_not_fit(monkeypatch):
    has(monkeypatch, 0.2)
    never(monkeypatch, "recollect.agent.env_probe")
    with pytest.raises(ConfigError, match="activations of one minibatch"):
        rc.train("delayed-cue", num_envs=5000, progress=False)


def test_the_update_is_part_of_the_estimate(monkeypatch):
    """The rollout of 8 MB would fit; the activations of a minibatch do not. The remedies are named."""
    has(monkeypatch, 0.2)
    config = rc.TrainConfig().override(num_envs=800)
    with pytest.raises(ConfigError) as refused:
        rc.Agent.create("delayed-cue", config)
    text = str(refused.value)
    remedies = dict(
        re.findall(r"(accumulate=\d+|recompute_activations=True|num_envs=\d+)[^:;]*: ([\d.]+) GB", text)
    )
    assert {name.split("=")[0] for name in remedies} == {"accumulate", "recompute_activations", "num_envs"}
    need = float(re.findall(r"the run about ([\d.]+) GB", text)[0])
    assert all(float(less) < need for less in remedies.values()), text
    limit = re.findall(r"--memory-limit (\d+)", text)[0]
    rc.Agent.create("delayed-cue", config.override(memory_limit=float(limit))).close()
    parts = int(re.findall(r"accumulate=(\d+)", text)[0])
    has(monkeypatch, 0.25)
    rc.Agent.create("delayed-cue", config.override(accumulate=parts)).close()


@pytest.mark.parametrize(("limit", "warned"), [(None, False), (0.35, True), (10.0, False)])
def test_a_tight_run_is_warned(limit, warned, capsys, monkeypatch):
    """Before its first rollout, and only if it is tight."""
    monkeypatch.setattr(Actor, "collect", lambda *_: pytest.fail("too late"))
    monkeypatch.setattr("recollect.training.trainer.Trainer.iterate", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rc.train("delayed-cue", num_envs=800, memory_limit=limit, steps=10**6, progress="plain")
    said = " ".join(capsys.readouterr().err.split())
    assert ("memory is tight" in said) == warned
    assert ("accumulate=" in said) == warned


def test_a_loaded_agent_is_checked_before_its_envs_are_opened(tmp_path, monkeypatch):
    agent = small_agent(steps=16, run=str(tmp_path / "run"))
    agent.close()
    has(monkeypatch, 1e-6)
    never(monkeypatch, "recollect.agent.env_probe")
    with pytest.raises(ConfigError, match="--memory-limit"):
        rc.load(tmp_path / "run").train(16, progress=False)


def test_memory_limit_can_be_changed_by_resume(tmp_path):
    with small_agent(steps=16, run=str(tmp_path / "run"), memory_limit=3.0):
        pass
    with rc.resume(tmp_path / "run", steps=16, memory_limit=5.0, progress=False) as agent:
        assert agent.config.memory_limit == 5


def test_the_limit_of_a_container_counts(tmp_path):
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    group.mkdir()
    places = Places(proc=proc, cgroup=group)
    assert free_memory(places) is None
    (proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    assert free_memory(places) == 8_000_000 * 1024
    (group / "memory.max").write_text("1000000000\n")
    (proc / "self/statm").write_text("5000 1000 500 1 0 100 0\n")
    assert free_memory(places) == 1_000_000_000 - 1000 * 4096


# Groups and learner processes ------------------------------------------------------------------------------

HUNT: dict[str, Any] = {"policies": "independent", "env_kwargs": {"agents": 2}, "num_envs": 4}
REBUILT: dict[str, Any] = {"core": "frames", "states": "rebuilt", "burn_in_steps": 3}
IQN: dict[str, Any] = {"algo": "iqn", "replay_capacity": 10**6, **REBUILT}
PPO: dict[str, Any] = {"num_envs": 1000, "threads": 1}


def checked(limit: float, **settings: Any) -> str:
    """The warning or the refusal of an agent with so many GB; "" if there is neither."""
    config = rc.TrainConfig().override(**HUNT | settings, memory_limit=limit)
    try:
        with rc.Agent.create("treasure-hunt", config) as agent:
            return agent._memory_warning or ""
    except ConfigError as error:
        return f"refused: {error}"


def gigabytes(text: str, *names: str) -> list[float]:
    """The numbers that follow these words."""
    found = [re.findall(rf"{name} ([\d.]+) GB", text)[:1] for name in names]
    assert all(found), text
    return [float(number) for (number,) in found]


def test_the_replays_of_all_groups_count():
    """S004-10: two that fit one by one, and not together; each is named, and the capacity that fits."""
    text = checked(1.2, **IQN)
    whole, replays, one, two = gigabytes(text, "run takes about", "per group take", "agent_0", "agent_1")
    assert text.startswith("refused")
    assert one == two
    assert 2 * one == pytest.approx(replays, rel=0.02)
    assert one < memory_check.TIGHT * 1.2 < memory_check.FULL * 1.2 < replays < whole
    fits = int(re.findall(r"--replay-capacity (\d+)", text)[0])
    assert checked(1.2, **IQN | {"replay_capacity": fits}) == ""
    assert "memory is tight" in checked(1.2, **IQN | {"replay_capacity": int(fits * 1.1)})


@pytest.mark.parametrize("saved", [False, True])
def test_learner_processes_count(saved):
    """S004-10: each needs a process, and for checkpoints a copy of a replay that is saved."""
    more = IQN | {"save_replay": saved}
    before, after = checked(0.3, **more), checked(0.3, **more, learner_processes=True)
    (alone,) = gigabytes(before, "run takes about")
    whole, replays, added = gigabytes(after, "run takes about", "per group take", "learner processes")
    assert added < whole - alone < added + 0.1, "they make optimiser steps at the same time"
    least = 2 * (memory_estimate.PROCESS_BYTES + memory_estimate.WORKING_BYTES) / 1e9
    assert added - least - saved * replays == pytest.approx(0.0, abs=0.03)
    assert ("leave learner_processes off" in before, "leave learner_processes off" in after) == (False, True)
    assert ("save_replay" in after) == saved
    assert checked(1.5 * alone, **more) == ""
    text = checked(1.5 * whole, **more, learner_processes=True)
    assert text == "", text


def test_a_capacity_that_does_not_help_is_not_advised():
    """Where all but the replay is too much."""
    text = checked(0.4, **IQN, learner_processes=True)
    assert "--replay-capacity" not in text
    assert "use fewer env slots" in text


def test_the_copies_of_learner_processes_are_those_allocated(monkeypatch):
    """S004-10: shared memory of the boards, rollouts and saved states, against the estimate."""
    sizes: list[int] = []
    create = shared_memory.Segment.create
    monkeypatch.setattr(
        shared_memory.Segment,
        "create",
        lambda size, *args, **kwargs: (sizes.append(size), create(size, *args, **kwargs))[1],
    )
    settings = HUNT | IQN | {"replay_capacity": 20_000, "save_replay": True, "learner_processes": True}
    with rc.train("treasure-hunt", steps=8 * 16, progress=False, threads=1, **settings) as agent:
        agent._so_far()  # as for a checkpoint
        shared = sum(sizes)
        rows = rows_of_slots(agent.network, 4)
        learners = {name: (policy, rows[name]) for name, policy in by_group(agent.network).items()}
        found = memory_estimate.learner_process_bytes(learners, agent.config)
    found -= 2 * (memory_estimate.PROCESS_BYTES + memory_estimate.WORKING_BYTES)
    private = 4 * sum(memory_estimate.weight_bytes(policy) for policy, _ in learners.values())
    assert shared + private == pytest.approx(found, rel=0.05)


def test_the_updates_of_all_groups_count():
    """S004-10: PPO's groups learn at the same time; with processes each has copies of its own."""
    found = {}
    for agents in (1, 2):
        (found[agents],) = gigabytes(
            checked(0.2, **PPO | {"env_kwargs": {"agents": agents}}), "and the run about"
        )
    working = memory_estimate.WORKING_BYTES / 1e9
    assert found[2] - working == pytest.approx(2 * (found[1] - working), rel=0.03)
    text = checked(0.2, **PPO, learner_processes=True)
    assert "agent_0" in text
    whole, less = gigabytes(text, "and the run about", "learner_processes off:")
    assert less == pytest.approx(found[2], rel=0.01)
    assert whole - less > 2 * memory_estimate.PROCESS_BYTES / 1e9


def test_a_loaded_agent_of_groups_is_checked(tmp_path, monkeypatch):
    """S004-10: before its envs are opened, with all its groups."""
    config = rc.TrainConfig().override(**HUNT | IQN)
    with rc.Agent.create("treasure-hunt", config) as agent:
        agent.save(tmp_path)
    has(monkeypatch, 1.2)
    never(monkeypatch, "recollect.agent.env_probe")
    with pytest.raises(ConfigError, match=r"agent_0 .* GB, agent_1 .* GB"):
        rc.load(tmp_path).train(16, progress=False)


# The estimate ----------------------------------------------------------------------------------------------


def test_tensor_memory_counts_what_is_alive():
    known = torch.zeros(1000)
    with TensorMemory() as seen:
        known.add_(1)
        made = torch.zeros(500) + 1
        view = made.view(5, 100)
    assert seen.peak == 4000, "two of 500 floats at once"
    assert seen.live == 2000, "the view is not counted, nor the tensor that was there"
    del made, view
    assert seen.live == 0


@pytest.mark.parametrize(("core", "settings"), CASES)
def test_a_small_trial_predicts_a_larger_update(core, settings):
    """The tensors of a whole update, counted, against the estimate, within a factor of 1.5."""
    mode = "none" if core == "none" else "stored_state"
    config = rc.TrainConfig().override(core=core, recurrent_mode=mode, num_envs=256, epochs=1, **settings)
    with rc.Agent.create("delayed-cue", config) as agent:
        measured = memory_estimate.trial(agent.policy, config.algo, 256)
        found = memory_estimate.estimate({"": (agent.policy, 256)}, config, {"": measured})
        trainer: Any = agent._trainer
        rollout = trainer.collector.collect(0).rollouts[0]
        with TensorMemory() as seen:
            trainer.learner.update(rollout)
    tensors = (found.targets + found.activations) / memory_estimate.RETAINED + found.learner
    assert 1 / 1.5 < tensors / seen.peak < 1.5


def test_each_group_of_rows_has_gradients_of_the_core():
    """Two threads compute one gradient each; ``TensorMemory`` counts a single thread only."""
    found = []
    for threads in (1, 2):
        config = rc.TrainConfig().override(num_envs=64, threads=threads)
        with rc.Agent.create("delayed-cue", config) as agent:
            nothing = memory_estimate.StepBytes(0, 0, 0)
            learners = {"": (agent.policy, 64)}
            found.append(memory_estimate.estimate(learners, config, {"": nothing}).learner)
            core = memory_estimate.weight_bytes(agent.policy.core)
    assert found[1] - found[0] >= core


def test_the_trial_changes_nothing():
    config = rc.TrainConfig().override(num_envs=8, rollout=16, chunk=8)
    with rc.Agent.create("delayed-cue", config) as agent:
        before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
        stream = torch.random.get_rng_state()
        memory_estimate.trial(agent.policy, config.algo, 8)
        assert torch.equal(stream, torch.random.get_rng_state())
        assert all(parameter.grad is None for parameter in agent.policy.parameters())
        after = agent.policy.state_dict()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_the_first_check_takes_no_more_than_a_minibatch(monkeypatch):
    """The rollout that is checked before the very first step is unrolled in the parts of an epoch."""
    sizes: list[int] = []
    burn_in = deviation_check.burn_in
    monkeypatch.setattr(
        deviation_check,
        "burn_in",
        lambda policy, batch: (sizes.append(batch.count), burn_in(policy, batch))[1],
    )
    small_agent(num_envs=8, rollout=16, chunk=8, minibatches=2, accumulate=2, steps=128).close()
    assert sizes == [4] * 4, "16 chunks in 2 minibatches of 2 parts"


# Short runs and many envs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "warned"), [(511, True), (512, False)])
def test_a_run_shorter_than_a_rollout_is_told(steps, warned, tmp_path, capsys):
    flags = ["--num-envs", "16", "--rollout", "32", "--steps", str(steps), "--run", str(tmp_path / "run")]
    assert cli.main(["train", "delayed-cue", *flags, "--plain", "--no-eval", "--no-report"]) == 0
    said = capsys.readouterr().err
    assert ("one rollout, 32 steps x 16 rows = 512 steps, is more than the 511" in said) == warned


class CountsLooks(AnySpace):
    """Counts how often the envs are looked at."""

    looks = 0

    @property
    def unwrapped(self) -> gym.Env:
        CountsLooks.looks += 1
        return self


def test_making_envs_is_linear():
    seen = []
    for count in (50, 100):
        CountsLooks.looks = 0
        GymLoop([CountsLooks] * count).close()
        seen.append(CountsLooks.looks)
    assert seen[1] <= 2 * seen[0]


@pytest.mark.parametrize("progress", ["plain", "json", "quiet"])
def test_making_many_envs_is_told(progress, monkeypatch, capfd):
    monkeypatch.setattr(notices, "PATIENCE", 0.0)
    monkeypatch.setattr(notices, "EVERY", 0.0)
    with rc.train(AnySpace, num_envs=3, rollout=8, chunk=8, minibatches=1, steps=24, progress=progress):
        pass
    out, err = capfd.readouterr()
    assert ("making 3 envs: 2 made" in err) == (progress == "plain")
    assert ('{"event": "notice", "text": "making 3 envs: 2 made"}' in out) == (progress == "json")


def test_few_envs_are_made_without_a_word(capfd):
    with rc.train(AnySpace, num_envs=3, rollout=8, chunk=8, minibatches=1, steps=24, progress="plain"):
        pass
    assert "making" not in capfd.readouterr().err
