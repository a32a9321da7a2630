"""The actor server: an env, a copy of the policy and their actor, in a process other than the learner's.

It is the same in every remote runtime; ``process/transport.py`` and ``ray/server.py`` connect it.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from recollect.acting.group_actor import AnyActor, make_actor
from recollect.algos.catalog import acting
from recollect.base import tree
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.env_names import Portable, restored
from recollect.envs.group_views import Groups
from recollect.errors import LostError
from recollect.experience.group_rollout import AnyRollout
from recollect.policy.policies import Network
from recollect.runtimes import restart_limits
from recollect.runtimes.actor_envs import adjust, open_actor_env
from recollect.runtimes.collector import actor_stream

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The arguments of an actor server, sent by cloudpickle."""

    env: Portable
    policy: Network
    """A copy on the CPU, where remote actors act."""
    config: TrainConfig
    """With the CPU as the device."""
    index: int
    """Index of the actor."""
    restarts: int = 0
    """The number of times that this actor was restarted."""
    sequence: int = 0
    """Index of its next rollout."""
    settings: dict[str, Any] | None = None
    """The present settings of the curriculum; None: there is none."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a rollout was collected."""

    ticket: int
    steps: int
    """The number of valid steps."""
    info: dict[str, float]
    seconds: dict[str, float]
    """``env``, ``act``, ``weights`` (loading them) and ``idle`` (waiting for a ticket)."""
    is_new: bool
    """Whether the rollout starts new episodes in all rows."""
    notes: tuple[str, ...] = ()
    """Errors from which the actor recovered."""


class ActorServer:
    """Opens the env and collects rollouts with the weights that it is given."""

    def __init__(self, blueprint: Blueprint, buffers: Sequence[AnyRollout] = ()):
        """``buffers``: the rollouts to record into; empty: the actor allocates one."""
        torch.set_num_threads(1)
        self.blueprint, self._sequence, self._buffers = blueprint, blueprint.sequence, buffers
        self._resets = 0
        self.policy = blueprint.policy
        if blueprint.config.compile:
            self.policy.compile_parts()
        self.weights: dict[str, Tensor] = tree.clone(dict(self.policy.state_dict()))
        """The target of ``load`` in ``collect``, from which the policy is loaded."""
        self.env: BatchedEnv | Groups = open_actor_env(
            restored(blueprint.env), blueprint.config, blueprint.index
        )
        if blueprint.settings is not None:
            self.adjust(blueprint.settings)
        self.actor: AnyActor | None = None
        self._resetting_since: float | None = None
        self._idle_since = time.monotonic()

    @property
    def in_env_since(self) -> float | None:
        """The time at which the running step or reset of the env began; None: none is running."""
        actor = self.actor  # read once: the watchdog is another thread
        return self._resetting_since if actor is None else actor.in_env_since

    def collect(self, ticket: int, load: Callable[[], int], buffer: int = 0) -> tuple[AnyRollout, Report]:
        """Record a rollout. ``load`` writes new weights to ``self.weights`` and returns their version."""
        idle = time.monotonic() - self._idle_since
        notes: list[str] = []
        while True:
            started = time.monotonic()
            version = load()
            self.policy.load_state_dict(self.weights)  # not a plain copy: policies hook into it
            loaded = time.monotonic() - started
            try:
                is_new = self.actor is None
                actor = self._ready_actor(version)
                rollout = actor.collect(version, buffer)
                break
            except LostError as error:
                if self.actor is not None:
                    self._sequence = self.actor.sequence
                self.actor, self._resets = None, self._resets + 1
                notes.append(f"actor {self.blueprint.index}: {error}; new episodes were started")
                if len(notes) == restart_limits.ATTEMPTS:
                    raise
        own = {name: float(value) for name, value in actor.seconds.items()}
        seconds, steps = own | {"weights": loaded, "idle": idle}, rollout.valid_steps
        info = {name: float(value) for name, value in actor.info.items()}
        self._idle_since = time.monotonic()
        return rollout, Report(ticket, steps, info, seconds, is_new or bool(notes), tuple(notes))

    def adjust(self, settings: dict[str, Any]) -> None:
        """Change the settings of the env, each at the next reset of a slot."""
        adjust(self.env, settings)

    def restart_episodes(self) -> None:
        """Start new episodes with the next rollout."""
        self.actor = None

    def snapshot(self) -> dict[str, Tensor] | None:
        """The state that determines the next rollouts; None if the env has no snapshots."""
        return None if self.actor is None else self.actor.snapshot()

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Resume from a snapshot. If it does not fit, return False and start new episodes."""
        self.actor = None
        actor = self._ready_actor(version)
        if not actor.fits(snapshot):
            self.actor = None
            return False
        actor.restore(snapshot)
        return True

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _ready_actor(self, version: int) -> AnyActor:
        if self.actor is None:
            config, index = self.blueprint.config, self.blueprint.index
            self._resetting_since = time.monotonic()
            actor = make_actor(
                self.env,
                self.policy,
                rollout=config.algo.rollout,
                seed=actor_stream(config.seed, version, index, self.blueprint.restarts, self._resets),
                index=index,
                actors=config.actors,
                buffers=self._buffers,
                **acting(config.algo).keywords(),
            )
            self._resetting_since, actor.sequence, self._sequence = None, self._sequence, 0
            self.actor = actor
        assert self.actor is not None
        return self.actor


class Watchdog:
    """A thread that detects a hanging step of the env and reports where it hangs."""

    def __init__(self, server: ActorServer, report: Callable[[str], Any], beat: Callable[[], Any]):
        """``report`` gets the text, once; ``beat`` is called about every second while this process runs."""
        config = server.blueprint.config
        # Env workers have a limit of their own, and are restarted without the actor.
        self._limit = None if config.env_workers else config.env_timeout
        self._server, self._report, self._beat = server, report, beat
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def _watch(self) -> None:
        while True:
            self._beat()
            since = self._server.in_env_since
            if since is not None and self._limit is not None and time.monotonic() - since > self._limit:
                self._report(self._describe(time.monotonic() - since))
                return
            time.sleep(0.2 if self._limit is not None and self._limit < 2 else 1.0)

    def _describe(self, seconds: float) -> str:
        frame = sys._current_frames().get(self._watched)
        where = "" if frame is None else "".join(traceback.format_stack(frame)[-6:])
        index, what = self._server.blueprint.index, "reset" if self._server.actor is None else "step"
        return (
            f"a {what} of the env of actor {index} has not returned for {seconds:.0f} seconds "
            f"(env_timeout). It hangs here:\n{where.rstrip()}"
        )


def on_cpu(policy: M) -> M:
    """A copy of the policy that shares no memory with it."""
    return copy.deepcopy(policy).to("cpu")
