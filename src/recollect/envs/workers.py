"""A BatchedEnv whose slots step in worker processes, for slow envs.

Results equal those of one process bit for bit: the seed of a slot depends on its number, not on its worker.
Waiting never spins. Between ``send`` and ``receive`` the calling process can work.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.child_process import Child, stop_all
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Step, Tree
from recollect.envs.space_values import is_like, to_batch, to_tensors
from recollect.envs.worker_process import STACK_SIGNAL, Made, MakeSlots, give_memory, serve
from recollect.errors import ConfigError, EnvError, LostError, SpaceError

START_SECONDS = 60.0
"""Time limit for the start of a worker, in addition to ``timeout``."""
STACK_SECONDS = 1.0
"""Time for a hung worker to write its stack."""
STACK_LINES = 13
"""Lines of the stack to show, innermost calls first."""


class WorkerEnv:
    """Slots of an env, spread evenly over worker processes. Also ``AsyncStep``, and ``Resumable`` if its
    slots are.

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
        self._workers: list[_Worker] = []
        self._stop = weakref.finalize(self, _stop, self._workers)
        self._made: Made | None = None
        made = self._start(range(workers))
        self.agents: int = made[0].agents
        self.observation_space: gym.Space = made[0].observation_space
        self.action_space: gym.Space = made[0].action_space
        self._rows = num_envs * self.agents
        memory = self._layout.view(self._segment)
        self._action: Tree = memory["action"]
        self._steps = [Step(**step) for step in memory["steps"]]
        self._now = 0
        """Index of the step returned last; the workers write into the other."""
        self._phase: Literal["ready", "stepping", "unknown"] = "unknown"
        """Unknown before a reset, and from the start of a command until all workers have answered."""
        if all(one.is_resumable for one in made):  # on the instance: ``isinstance(env, Resumable)`` is exact
            self.snapshot, self.restore = self._snapshot, self._restore

    def reset(self, seed: int) -> Tree:
        """Restart all rows, also after lost workers, errors, or during a step."""
        self._repair()
        try:
            self._send("reset", seed, 1 - self._now)
        except LostError:  # a worker died after the repair
            self._repair()
            self._send("reset", seed, 1 - self._now)
        return self._obs()

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]."""
        self.send(action)
        return self.receive()

    def send(self, action: Tree) -> None:
        """Start a step in all workers."""
        self._expect("ready", "step")
        self._write(action)
        self._send("step", 1 - self._now)
        self._phase = "stepping"

    def receive(self) -> Step:
        """Wait for the step in progress."""
        self._expect("stepping", "receive")
        self._phase = "unknown"
        infos = self._answers()
        step = self._steps[self._now]
        return replace(step, info=_joined_info(infos)) if any(infos) else step

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in the order of their slots."""
        return [worker.child.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers."""
        self._phase = "unknown"
        self._stop()
        self._segment.close()

    def _snapshot(self) -> dict[str, Tensor]:
        self._expect("ready", "snapshot")
        self._send("snapshot")
        parts = self._answers(is_step=False)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        for name, tensor in snapshot.items():
            if tensor.shape[:1] != (self._rows,):
                raise EnvError(
                    f"restore got {name!r} with shape {tuple(tensor.shape)}, but there are {self._rows} "
                    "rows: was the snapshot taken with another num_envs?"
                )
        self._repair()
        for worker in self._workers:
            rows = slice(worker.slots.start * self.agents, worker.slots.stop * self.agents)
            part = {name: tensor[rows].cpu().clone() for name, tensor in snapshot.items()}
            worker.send("restore", part, 1 - self._now)
        return self._obs()

    def _send(self, command: str, *arguments: Any) -> None:
        """Send a command to all workers."""
        self._phase = "unknown"
        for worker in self._workers:
            worker.send(command, *arguments)

    def _obs(self) -> Tree:
        """Wait for the observations of a reset or restore."""
        self._answers()
        return self._steps[self._now].obs

    def _expect(self, phase: str, doing: str) -> None:
        """Raise unless the env is in ``phase``."""
        if self._phase != phase:
            fix = {
                "unknown": "call reset(seed) first, also after an error",
                "stepping": "call receive() for the step that send() began",
                "ready": "call send(action) first",
            }[self._phase]
            raise EnvError(f"WorkerEnv.{doing} cannot be called now: {fix}")

    def _write(self, action: Tree) -> None:
        """Write ``action`` into the shared memory, validated as in GymLoop."""
        if not is_like(action, self._action):
            action = to_tensors(self.action_space, to_batch(self.action_space, action, self._rows))
        tree.copy_(self._action, action)

    def _answers(self, *, is_step: bool = True) -> list[Any]:
        """The answers of all workers to the last command; ``is_step``: they wrote a step or its obs."""
        deadline = _Deadline(self._timeout)
        answers = [worker.answer(deadline) for worker in self._workers]
        self._now, self._phase = 1 - self._now if is_step else self._now, "ready"
        return answers

    def _repair(self) -> None:
        """Read all pending answers, and restart workers that are lost or out of step."""
        if not self._stop.alive:
            raise EnvError("the workers of this env were ended by close(): make a new one")
        self._phase = "unknown"
        deadline = _Deadline(self._timeout)
        for worker in self._workers:
            worker.drain(deadline)
        lost = [i for i, worker in enumerate(self._workers) if not worker.is_usable]
        if not lost:
            return
        _stop([self._workers[i] for i in lost], grace=0.0)
        self._start(lost)

    def _start(self, numbers: Sequence[int]) -> list[Made]:
        """Start or restart these workers in parallel. Returns the properties of their slots."""
        started: list[_Worker] = []
        try:
            for i in numbers:
                started.append(_Worker(self._make, self._shares[i], f"{self._name} {i}"))
            deadline = _Deadline(START_SECONDS + (self._timeout or 0.0))
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
            _stop(started)
            raise
        for i, worker in zip(numbers, started):
            self._workers[i : i + 1] = [worker]  # appends at the first start
        return made


class _Deadline:
    """A time limit."""

    def __init__(self, seconds: float | None):
        self.seconds, self._ends = seconds, None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Remaining seconds; None: no limit."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


class _Worker:
    """Handle of one worker: its process, and the number of pending answers."""

    def __init__(self, make: MakeSlots, slots: range, name: str):
        last = slots.stop - 1
        which = f"env slot {last}" if len(slots) == 1 else f"env slots {slots.start} to {last}"
        self.slots, self.name = slots, f"{name} ({which})"
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the worker)
        fd = self._stack.fileno()
        try:
            self.child = Child(serve, make, slots, fd, name=self.name, fds=(fd,))
        except BaseException:
            self._stack.close()
            raise
        self._pending = 1  # its ``Made``
        self.is_usable = True
        """Whether the process is alive and no message was interrupted halfway."""

    def send(self, command: str, *arguments: Any) -> None:
        """Send a command."""
        self.is_usable = False
        self.child.send((command, *arguments))
        self._pending += 1
        self.is_usable = True

    def answer(self, deadline: _Deadline) -> Any:
        """Receive the next answer."""
        self.is_usable = False
        try:
            message = self.child.receive(deadline.left)
        except TimeoutError:
            raise LostError(self._hung(deadline)) from None
        except LostError:
            raise
        except Exception:  # an exception of the env is an answer, too
            self._pending, self.is_usable = self._pending - 1, True
            raise
        self._pending, self.is_usable = self._pending - 1, True
        return message

    def give_memory(self, segment: Segment, layout: Layout) -> None:
        """Send shared memory."""
        self.is_usable = False
        try:
            give_memory(self.child.line, segment, layout)
        except (EOFError, OSError):
            raise LostError(f"{self.name} (process {self.child.pid}) died while it started") from None
        self.is_usable = True

    def drain(self, deadline: _Deadline) -> None:
        """Read and discard all pending answers."""
        while self.is_usable and self._pending:
            with contextlib.suppress(Exception):  # an old error; is_usable is false if the worker is lost
                self.answer(deadline)
        self.is_usable = self.is_usable and self.child.is_alive

    def stop(self) -> None:
        """End the process."""
        self.child.stop()
        self._stack.close()

    def _hung(self, deadline: _Deadline) -> str:
        """End the hung worker. Returns the error message, with the worker's stack."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, STACK_SIGNAL)
        text, ends = "", time.monotonic() + STACK_SECONDS
        while "in <module>" not in text and time.monotonic() < ends:  # the last line of the stack
            time.sleep(0.01)
            text = os.pread(self._stack.fileno(), 1 << 16, 0).decode(errors="replace")
        self.child.stop(grace=0.0)
        where = "\n".join(text.splitlines()[:STACK_LINES]) or "It wrote no stack"
        return (
            f"{self.name} (process {self.child.pid}) has not answered for {deadline.seconds:g} seconds "
            f"(env_timeout) and was ended. {where}"
        )


def shares(num_envs: int, workers: int) -> list[range]:
    """The slots of each worker, in order; the first workers get one more if the division has a remainder."""
    size, extra = divmod(num_envs, workers)
    starts = [i * size + min(i, extra) for i in range(workers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def _stop(workers: Sequence[_Worker], grace: float = 2.0) -> None:
    """End all workers in parallel."""
    stop_all([worker.child for worker in workers], grace)
    for worker in workers:
        worker.stop()


def _check_same(name: str, made: Made, expected: Made) -> None:
    for kind in ("observation_space", "action_space", "agents"):
        own, other = getattr(made, kind), getattr(expected, kind)
        if own != other:
            raise SpaceError(f"{kind} in {name} is {own}, elsewhere {other}: they must be equal")


def _joined_info(infos: list[dict[str, Tensor] | None]) -> dict[str, Tensor]:
    """The info values [B] that all workers report; a value that is missing in one worker is dropped."""
    known = [info or {} for info in infos]
    return {
        name: torch.cat([info[name] for info in known])
        for name in known[0]
        if all(name in info for info in known)
    }
