"""What the tests of the Ray runtime share: small runs, envs that fail, and the processes of a program."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

import recollect as rc
from recollect.base import tree
from recollect.experience.rollout import Rollout
from recollect.runtimes.env_probe import env_probe
from recollect.runtimes.remote_collector import RemoteCollector
from tests.support import resumed
from tests.support.doomed import SMALL, UPDATE, differing, wait_for, weights, without
from tests.support.process_runs import parents, run_ahead, say
from tests.support.two_sides import TwoSides
from tests.training import test_league

TINY = without(SMALL, "progress", "checkpoint_every")


def trained(env: Any, updates: int, **settings: Any) -> dict[str, torch.Tensor]:
    """The weights after so many updates."""
    settings = SMALL | {"steps": updates * UPDATE} | settings
    with rc.train(env, **settings) as agent:
        return weights(agent)


def league(folder: Path) -> None:
    """A league on Ray, and one that is resumed there, are that of one process."""
    settings = test_league.SMALL | {"actors": 2}
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("inline", "ray"):
            with rc.train(TwoSides, steps=300, run=name, runtime=name, **settings) as agent:
                found[name] = weights(agent), test_league.folders(Path(name))
        rc.train(TwoSides, steps=300, run="resumed", callbacks=[resumed.Stop(150)], **settings).close()
        with rc.resume("resumed", env=TwoSides, runtime="ray", progress=False) as agent:
            found["resumed"] = weights(agent), test_league.folders(Path("resumed"))
    expected, texts = found["inline"]
    assert len(list((folder / "inline" / "league" / "games").iterdir())) == 2
    for name in ("ray", "resumed"):
        assert differing(expected, found[name][0]) == [], "weights"
        assert found[name][1] == texts, "members, rosters and games"


class RayTurns:
    """Collects with Ray actors and publishes, without a learner; the weights say their version."""

    def __init__(self, env: Any, **settings: Any):
        self.config = rc.TrainConfig().override(
            **TINY | {"runtime": "ray", "normalise_value": False} | settings
        )
        with env_probe(env, self.config) as probe:
            policy = self.config.policy.build(probe.one.observation_space, probe.one.action_space)
            collector = probe.collector(policy)
        assert isinstance(collector, RemoteCollector)
        self.collector, self.policy, self.notes = collector, policy, []
        self.rollouts: list[list[Rollout]] = []
        self._say(0)

    def __enter__(self) -> RayTurns:
        return self

    def __exit__(self, *_: object) -> None:
        self.collector.close()

    @property
    def pids(self) -> list[int]:
        return self.collector.pids

    def turn(self) -> dict[str, float]:
        """Collect, check that nobody writes to what was brought, and publish the next version.

        In the first turn, learning takes so long that actors run ahead in any case.
        """
        version = len(self.rollouts)
        batch = self.collector.collect(version)
        if version == 0:
            run_ahead(self.collector)
        kept = [tree.clone(tensors(rollout)) for rollout in batch.rollouts]
        Rollout.join(batch.rollouts, is_mixed=True)
        for rollout, before in zip(batch.rollouts, kept):
            tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), tensors(rollout), before)
            # The critic says its own version, whatever it sees.
            assert rollout.record["value"].unique().tolist() == [rollout.version]
        self.rollouts.append(batch.rollouts)
        self.notes.extend(batch.notes)
        self._say(version + 1)
        self.collector.publish(version + 1)
        return batch.metrics

    def _say(self, version: int) -> None:
        say(self.policy, version)


def tensors(rollout: Rollout) -> dict[str, Any]:
    return {name: getattr(rollout, name) for name in ("obs", "action", "record", "reward", "states")}


# Envs that fail ------------------------------------------------------------------------------------------


class Failing(CartPoleEnv):
    """Does something else once in a step; ``marker`` is the file that says that it was done."""

    def __init__(self, how: str, marker: str = "", steps: int = 30):
        super().__init__()
        self.how, self.marker, self.left = how, Path(marker), steps

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0 and not (self.marker.name and self.marker.exists()):
            if self.marker.name:
                self.marker.touch()
            if self.how == "hang":
                wait_for(lambda: False)
            elif self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.how == "nan":
                return super().step(action)[0] * float("nan"), 0.0, False, False, {}
            else:
                raise KeyError("the rotor is gone")
        return super().step(action)


def failing(how: str, marker: Path | str = "", steps: int = 30) -> Any:
    """A function that makes one."""
    return lambda: TimeLimit(Failing(how, str(marker), steps), 20)


# Processes -----------------------------------------------------------------------------------------------


def listening(pids: set[int]) -> set[str]:
    """The addresses at which they wait for somebody, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                inodes.add(os.readlink(fd))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in inodes:
                found.add(parts[1].split(":")[0])
    return found


def wait_until_gone(pids: set[int]) -> None:
    """Until none of them is there."""
    wait_for(lambda: time.sleep(0.05) or not pids & parents().keys())
