"""The side of a runtime that acts, wherever it lives: an env, a copy of the policy, and an actor of both."""

from __future__ import annotations

import copy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.base.types import Tree
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.factory import EnvSpec
from recollect.envs.named import Portable, portable, restored
from recollect.errors import LostError
from recollect.experience.join import ROWS
from recollect.experience.rollout import Finals, Rollout
from recollect.policy.policy import Policy
from recollect.runtimes import limits
from recollect.runtimes.actor_envs import open_actor_env
from recollect.runtimes.collector import actor_stream


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All that an actor elsewhere is made from. Travels by cloudpickle."""

    env: Portable
    policy: Policy
    """On the CPU, where actors of other processes act."""
    config: TrainConfig
    index: int
    """Which actor."""

    @classmethod
    def of(cls, env: EnvSpec, policy: Policy, config: TrainConfig, index: int) -> Blueprint:
        """With a copy of the policy."""
        return cls(portable(env), on_cpu(policy), replace(config, device="cpu"), index)


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of a rollout beside its tensors."""

    ticket: int
    version: int
    sequence: int
    steps: int
    """Valid ones."""
    info: dict[str, float]
    seconds: dict[str, float]
    """``env``, ``act``, ``weights`` (loading them) and ``idle`` (waiting for a ticket)."""
    is_new: bool
    """Whether it opens the life of an actor: new episodes."""
    notes: tuple[str, ...] = ()
    """What went wrong on the way and was mended."""


class Host:
    """Makes the env and the policy, and acts with whatever weights it is given."""

    def __init__(
        self, blueprint: Blueprint, *, life: int = 0, sequence: int = 0, buffers: Sequence[Rollout] = ()
    ):
        """Make the env and get ready.

        Args:
            blueprint: what of.
            life: how often this actor died before.
            sequence: how many rollouts it has brought so far.
            buffers: the rollouts to record into; empty: an own one.
        """
        torch.set_num_threads(1)
        self.blueprint, self._life, self._sequence, self._buffers = blueprint, life, sequence, buffers
        self._again = 0
        self.policy = blueprint.policy
        if blueprint.config.compile:
            self.policy.compile_parts()
        self.weights: dict[str, Tensor] = tree.clone(dict(self.policy.state_dict()))
        """Where new weights are put before ``collect`` gives them to the policy."""
        self.env: BatchedEnv = open_actor_env(restored(blueprint.env), blueprint.config, blueprint.index)
        self.actor: Actor | None = None
        self._resetting_since: float | None = None
        self._idle_since = time.monotonic()

    @property
    def in_env_since(self) -> float | None:
        """Since when a step or a reset of the env has been under way; None: there is none."""
        actor = self.actor  # read once: the watchdog asks from another thread
        return self._resetting_since if actor is None else actor.in_env_since

    def collect(self, ticket: int, load: Callable[[], int], buffer: int = 0) -> tuple[Rollout, Report]:
        """Record a rollout with new weights: ``load`` puts them into ``weights`` and tells their version."""
        idle = time.monotonic() - self._idle_since
        notes: list[str] = []
        for attempt in range(limits.ATTEMPTS):
            started = time.monotonic()
            version = load()
            self.policy.load_state_dict(self.weights)  # with all that it does besides copying
            loaded = time.monotonic() - started
            try:
                is_new = self.actor is None
                actor = self._begun(version)
                rollout = actor.collect(version, buffer)
                break
            except LostError as error:
                if self.actor is not None:
                    self._sequence = self.actor.sequence
                self.actor, self._again = None, self._again + 1
                notes.append(f"actor {self.blueprint.index}: {error}; new episodes were begun")
                if attempt == limits.ATTEMPTS - 1:
                    raise
        else:
            raise AssertionError("unreachable")
        own = {name: float(value) for name, value in actor.seconds.items()}
        seconds = {**own, "weights": loaded, "idle": idle}
        steps = int(rollout.valid.sum())
        self._idle_since = time.monotonic()
        is_new = is_new or bool(notes)
        return rollout, Report(
            ticket, version, rollout.sequence, steps, actor.info, seconds, is_new, tuple(notes)
        )

    def restart_episodes(self) -> None:
        """Begin new episodes with the next rollout."""
        self.actor = None

    def snapshot(self) -> dict[str, Tensor] | None:
        """All that decides the next rollouts, if the env can tell its part."""
        return None if self.actor is None else self.actor.snapshot()

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Go on from a snapshot; False, and new episodes, if it does not fit."""
        self.actor = None
        actor = self._begun(version)
        if not actor.fits(snapshot):
            self.actor = None
            return False
        actor.restore(snapshot)
        return True

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _begun(self, version: int) -> Actor:
        if self.actor is None:
            config, index = self.blueprint.config, self.blueprint.index
            rollout, state_steps = self._sizes()
            self._resetting_since = time.monotonic()
            self.actor = Actor(
                self.env,
                self.policy,
                rollout=rollout,
                state_steps=state_steps,
                seed=actor_stream(config.seed, version, index, self._life, self._again),
                index=index,
                buffers=self._buffers,
            )
            self._resetting_since, self.actor.sequence, self._sequence = None, self._sequence, 0
        return self.actor

    def _sizes(self) -> tuple[int, tuple[int, ...]]:
        algo = self.blueprint.config.algo
        return algo.rollout, algo.state_steps


class Watchdog:
    """Notices that a step of the env does not come back, and says where it hangs."""

    def __init__(self, host: Host, tell: Callable[[str], Any], pulse: Callable[[], Any]):
        """``tell`` gets the text, once; ``pulse`` is called every second while this process lives."""
        config = host.blueprint.config
        # Workers of the env have a limit of their own, and are begun anew without the actor.
        self._limit = None if config.env_workers else config.env_timeout
        self._host, self._tell, self._pulse = host, tell, pulse
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def _watch(self) -> None:
        while True:
            self._pulse()
            since = self._host.in_env_since
            if since is not None and self._limit is not None and time.monotonic() - since > self._limit:
                self._tell(self._describe(time.monotonic() - since))
                return
            time.sleep(0.2 if self._limit is not None and self._limit < 2 else 1.0)

    def _describe(self, seconds: float) -> str:
        frame = sys._current_frames().get(self._watched)
        where = "" if frame is None else "".join(traceback.format_stack(frame)[-6:])
        index, what = self._host.blueprint.index, "reset" if self._host.actor is None else "step"
        return (
            f"a {what} of the env of actor {index} has not come back for {seconds:.0f} seconds "
            f"(env_timeout). It is here:\n{where.rstrip()}"
        )


def on_cpu(policy: Policy) -> Policy:
    """A copy of the policy that shares no memory with it."""
    return copy.deepcopy(policy).to("cpu")


def finals_example(rollout: Rollout) -> Tree:
    """Buffers for the final observations of a rollout's truncations, of a capacity that seldom is too small.

    What does not fit travels beside the shared memory.
    """
    capacity = rollout.rows * max(2, rollout.steps // 16)
    obs = tree.map(lambda leaf: leaf[0, :1], rollout.obs)
    return {
        "time": torch.zeros(capacity, dtype=torch.int64),
        "row": torch.zeros(capacity, dtype=torch.int64),
        "obs": tree.empty(obs, (capacity,)),
    }


def put_finals(buffers: Tree, finals: Finals | None) -> int | Finals:
    """Write final observations into their buffers: how many there are, or themselves if they do not fit."""
    if finals is None:
        return 0
    count = len(finals.time)
    if count > len(buffers["time"]):
        return finals
    buffers["time"][:count] = finals.time
    buffers["row"][:count] = finals.row
    tree.map(lambda to, leaf: to[:count].copy_(leaf), buffers["obs"], finals.obs)
    return count


def get_finals(buffers: Tree, found: int | Finals) -> Finals | None:
    """What ``put_finals`` was given."""
    if isinstance(found, Finals):
        return found
    if found == 0:
        return None
    return Finals(buffers["time"][:found], buffers["row"][:found], tree.index(buffers["obs"], slice(found)))


def tensors_of(rollout: Rollout) -> dict[str, Tree]:
    """The tensors of a rollout by name, but for the finals."""
    return {name: getattr(rollout, name) for name in ROWS}


def rollout_of(tensors: dict[str, Tree], state_steps: tuple[int, ...], actor: int) -> Rollout:
    """The rollout whose tensors these are."""
    return Rollout(**tensors, state_steps=state_steps, actor=actor)
