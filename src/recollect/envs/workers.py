"""A BatchedEnv or GroupedEnv whose slots step in worker processes, for slow envs.

Results equal those of one process bit for bit: the seed of a slot depends on its number, not on its worker.
Waiting never spins. Between ``send`` and ``receive`` the calling process can work.
"""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.shared_memory import Segment
from recollect.base.types import Step, Tree
from recollect.envs.groups import Group, check_actions
from recollect.envs.space_values import is_like, to_batch, to_tensors
from recollect.envs.worker_handle import Deadline, Worker, stop_workers
from recollect.envs.worker_process import ONE, Made, MakeSlots, Settings
from recollect.errors import ConfigError, EnvError, LostError, SpaceError

START_SECONDS = 60.0
"""Time limit for the start of a worker, in addition to ``timeout``."""


class _Workers:
    """Slots of an env in worker processes: the machinery that ``WorkerEnv`` and ``GroupedWorkerEnv`` share.

    If a worker was killed or does not answer, ``receive`` (or ``send``, ``reset``) raises LostError, and the
    next ``reset`` restarts it. Exceptions of an env are raised by ``receive``. After any error or
    interruption, call ``reset``.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        make: MakeSlots,
        num_envs: int,
        *,
        workers: int,
        timeout: float | None = 60.0,
        name: str = "env worker",
    ) -> None:
        """Start the workers and wait until they have made their slots.

        Args:
            make: ``make(first_slot, count)`` returns these slots on the CPU; sent by cloudpickle.
            num_envs: slots of all workers together.
            workers: number of workers.
            timeout: seconds after which a worker that does not answer is ended; None: never.
            name: of a worker in errors.
        """
        if not 1 <= workers <= num_envs:
            raise ConfigError(f"workers = {workers} for {num_envs} env slots: choose 1 to {num_envs}")
        self.num_envs = num_envs
        self._make, self._timeout, self._name = make, timeout, name
        self._shares = shares(num_envs, workers)
        self._workers: list[Worker] = []
        self._stop = weakref.finalize(self, stop_workers, self._workers)
        self._made: Made | None = None
        made = self._start(range(workers))
        self._groups: dict[str, Group] = made[0].groups
        self._slot_rows = made[0].slot_rows
        memory = self._layout.view(self._segment)
        self._action: dict[str, Tree] = {name: part["action"] for name, part in memory.items()}
        self._steps = [{name: Step(**part["steps"][i]) for name, part in memory.items()} for i in range(2)]
        self._now = 0
        """Index of the step returned last; the workers write into the other."""
        self._phase: Literal["ready", "stepping", "unknown"] = "unknown"
        """Unknown before a reset, and from the start of a command until all workers have answered."""
        if all(one.is_resumable for one in made):  # on the instance: ``isinstance(env, Resumable)`` is exact
            self.snapshot, self.restore = self._snapshot, self._restore
        self._settings: Settings = None
        """Those of the last ``adjust``; a worker that is restarted gets them with its reset."""
        self._changed: Settings = None
        """The same until they are sent."""
        if made[0].adjustable:
            self.adjustable, self.adjust = made[0].adjustable, self._adjust

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in the order of their slots."""
        return [worker.child.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers."""
        self._phase = "unknown"
        self._stop()
        self._segment.close()

    def _reset(self, seed: int) -> dict[str, Tree]:
        self._repair()
        try:
            self._send("reset", seed, 1 - self._now, self._settings)
        except LostError:  # a worker died after the repair
            self._repair()
            self._send("reset", seed, 1 - self._now, self._settings)
        return self._obs()

    def _adjust(self, **settings: Any) -> None:
        self._settings = self._changed = settings

    def _begin(self, action: Mapping[str, Tree]) -> None:
        """Start a step in all workers."""
        self._expect("ready", "step")
        for name in self._action:
            self._write(name, action[name])
        changed, self._changed = self._changed, None
        self._send("step", 1 - self._now, changed)
        self._phase = "stepping"

    def _end(self) -> dict[str, Step]:
        """Wait for the step in progress."""
        self._expect("stepping", "receive")
        self._phase = "unknown"
        infos = self._answers()
        steps = self._steps[self._now]
        if not any(infos):
            return steps
        return {name: replace(step, info=_joined_info(name, infos)) for name, step in steps.items()}

    def _snapshot(self) -> dict[str, Tensor]:
        self._expect("ready", "snapshot")
        self._send("snapshot")
        parts = self._answers(is_step=False)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _restore(self, snapshot: dict[str, Tensor]) -> Any:
        slots, rows = self.num_envs, self.num_envs * self._slot_rows
        for name, tensor in snapshot.items():
            if tensor.shape[:1] not in ((slots,), (rows,)):
                raise EnvError(
                    f"restore got {name!r} with shape {tuple(tensor.shape)}, but there are {rows} "
                    "rows: was the snapshot taken with another num_envs?"
                )
        self._repair()
        for worker in self._workers:
            part = {
                name: tensor.unflatten(0, (slots, -1))[worker.slots.start : worker.slots.stop]
                .flatten(0, 1)
                .cpu()
                .clone()
                for name, tensor in snapshot.items()
            }
            worker.send("restore", part, 1 - self._now, self._settings)
        return self._obs()

    def _send(self, command: str, *arguments: Any) -> None:
        """Send a command to all workers."""
        self._phase = "unknown"
        for worker in self._workers:
            worker.send(command, *arguments)

    def _obs(self) -> dict[str, Tree]:
        """Wait for the observations of a reset or restore."""
        self._answers()
        return {name: step.obs for name, step in self._steps[self._now].items()}

    def _expect(self, phase: str, doing: str) -> None:
        """Raise unless the env is in ``phase``."""
        if self._phase != phase:
            fix = {
                "unknown": "call reset(seed) first, also after an error",
                "stepping": "call receive() for the step that send() began",
                "ready": "call send(action) first",
            }[self._phase]
            raise EnvError(f"{type(self).__name__}.{doing} cannot be called now: {fix}")

    def _write(self, name: str, action: Tree) -> None:
        """Write the actions of a group into the shared memory, validated as in GymLoop."""
        if not is_like(action, self._action[name]):
            group = self._groups[name]
            rows = self.num_envs * len(group.agents)
            action = to_tensors(group.action_space, to_batch(group.action_space, action, rows))
        tree.copy_(self._action[name], action)

    def _answers(self, *, is_step: bool = True) -> list[Any]:
        """The answers of all workers to the last command; ``is_step``: they wrote a step or its obs."""
        deadline = Deadline(self._timeout)
        answers = [worker.answer(deadline) for worker in self._workers]
        self._now, self._phase = 1 - self._now if is_step else self._now, "ready"
        return answers

    def _repair(self) -> None:
        """Read all pending answers, and restart workers that are lost or out of step."""
        if not self._stop.alive:
            raise EnvError("the workers of this env were ended by close(): make a new one")
        self._phase = "unknown"
        deadline = Deadline(self._timeout)
        for worker in self._workers:
            worker.drain(deadline)
        lost = [i for i, worker in enumerate(self._workers) if not worker.is_usable]
        if not lost:
            return
        stop_workers([self._workers[i] for i in lost], grace=0.0)
        self._start(lost)

    def _start(self, numbers: Sequence[int]) -> list[Made]:
        """Start or restart these workers in parallel. Returns the properties of their slots."""
        started: list[Worker] = []
        try:
            for i in numbers:
                started.append(Worker(self._make, self._shares[i], f"{self._name} {i}"))
            deadline = Deadline(START_SECONDS + (self._timeout or 0.0))
            made: list[Made] = [pickle.loads(worker.answer(deadline)) for worker in started]
            for worker, one in zip(started, made):
                _check_same(worker.name, one, self._made or made[0])
            if self._made is None:
                self._made, self._layout = made[0], made[0].layout(self.num_envs)
                content = f"the observations of {self.num_envs} env slots"
                self._segment = Segment.create(self._layout.size, content, lower="num_envs")
            for worker in started:
                worker.give_memory(self._segment, self._layout)
        except BaseException:
            stop_workers(started)
            raise
        for i, worker in zip(numbers, started):
            self._workers[i : i + 1] = [worker]  # appends at the first start
        return made


class WorkerEnv(_Workers):
    """Slots of a BatchedEnv, spread evenly over worker processes. Also ``AsyncStep``, and ``Resumable`` if
    its slots are."""

    @property
    def agents(self) -> int:
        """Agents per slot."""
        return len(self._groups[ONE].agents)

    @property
    def observation_space(self) -> gym.Space:
        """The space of one row."""
        return self._groups[ONE].observation_space

    @property
    def action_space(self) -> gym.Space:
        """The space of one row."""
        return self._groups[ONE].action_space

    def reset(self, seed: int) -> Tree:
        """Restart all rows, also after lost workers, errors, or during a step."""
        return self._reset(seed)[ONE]

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]."""
        self.send(action)
        return self.receive()

    def send(self, action: Tree) -> None:
        """Start a step in all workers."""
        self._begin({ONE: action})

    def receive(self) -> Step:
        """Wait for the step in progress."""
        return self._end()[ONE]

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        return super()._restore(snapshot)[ONE]


class GroupedWorkerEnv(_Workers):
    """Slots of a GroupedEnv, spread evenly over worker processes. Also ``AsyncStep``, and ``Resumable`` if
    its slots are."""

    @property
    def groups(self) -> dict[str, Group]:
        """The groups by name."""
        return self._groups

    def reset(self, seed: int) -> dict[str, Tree]:
        """Restart all slots, also after lost workers, errors, or during a step."""
        return self._reset(seed)

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Apply the actions [B, ...] of each group."""
        self.send(action)
        return self.receive()

    def send(self, action: Mapping[str, Tree]) -> None:
        """Start a step in all workers."""
        check_actions(self._groups, action)
        self._begin(action)

    def receive(self) -> dict[str, Step]:
        """Wait for the step in progress."""
        return self._end()


def shares(num_envs: int, workers: int) -> list[range]:
    """The slots of each worker, in order; the first workers get one more if the division has a remainder."""
    size, extra = divmod(num_envs, workers)
    starts = [i * size + min(i, extra) for i in range(workers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def _check_same(name: str, made: Made, expected: Made) -> None:
    if made.groups.keys() != expected.groups.keys():
        raise SpaceError(
            f"the groups in {name} are {sorted(made.groups)}, elsewhere {sorted(expected.groups)}: they must "
            "be equal"
        )
    for group, own in made.groups.items():
        for kind in ("observation_space", "action_space", "agents"):
            found, other = getattr(own, kind), getattr(expected.groups[group], kind)
            if found != other:
                of = f" of group {group!r}" if group else ""
                raise SpaceError(f"{kind}{of} in {name} is {found}, elsewhere {other}: they must be equal")


def _joined_info(group: str, infos: list[dict[str, dict[str, Tensor]] | None]) -> dict[str, Tensor]:
    """The info values [B] of a group that all workers report; one that is missing in a worker is dropped."""
    known = [(info or {}).get(group, {}) for info in infos]
    return {
        name: torch.cat([info[name] for info in known])
        for name in known[0]
        if all(name in info for info in known)
    }
