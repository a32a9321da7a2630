"""A BatchedEnv whose slots are stepped in worker processes, for envs that take their time.

What it gives is bit for bit what one process would give: a slot has its seed from its number, and not from
the worker that it is in. Nobody spins: workers sleep until they are told to step, and the actor until they
are done. With ``send`` and ``receive`` in place of ``step`` it can do something better than sleep.
"""

from __future__ import annotations

import contextlib
import itertools
import os
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
from recollect.envs.values import is_like, step_to, to_batch
from recollect.envs.worker import STACK_SIGNAL, Made, MakeSlots, as_step, give_memory, read_made, serve
from recollect.errors import ConfigError, EnvError, LostError, SpaceError

START_SECONDS = 60.0
"""What a worker may take to start, beside the time that an env may take to answer."""
STACK_SECONDS = 1.0
"""How long a worker that hangs is given to write down where."""
STACK_LINES = 13
"""How much of it is shown: the innermost calls."""


class WorkerEnv:
    """Slots of an env, spread over worker processes as evenly as can be. Also ``Split``; ``Resumable`` where
    its slots are.

    A worker that was killed, or does not answer, costs the episodes: ``receive`` (or ``send``, ``reset``)
    raises LostError, and the next ``reset`` starts it anew. What an env raises comes from ``receive`` as if
    it were in this process. After any of these, or an interruption, ``reset`` is the way on.
    """

    def __init__(
        self,
        make: MakeSlots,
        num_envs: int,
        *,
        workers: int,
        device: torch.device | str = "cpu",
        timeout: float | None = 60.0,
        name: str = "env worker",
    ) -> None:
        """Start the workers, and wait until their slots are made.

        Args:
            make: ``make(first_slot, count)`` returns these slots on the CPU; travels by cloudpickle.
            num_envs: slots of all workers.
            workers: how many.
            device: where the tensors that are handed out live, moved one by one; ``HostEnv`` is faster.
            timeout: seconds after which a worker that does not answer is given up; None: never.
            name: what a worker is called in errors.
        """
        if not 1 <= workers <= num_envs:
            raise ConfigError(f"workers = {workers} for {num_envs} env slots: choose 1 to {num_envs}")
        self.num_envs = num_envs
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self._make, self._timeout, self._name = make, timeout, name
        self._shares = shares(num_envs, workers)
        self._workers: list[_Worker] = []
        self._stop = weakref.finalize(self, _stop, self._workers)
        started, made = self._start(range(workers))
        self._workers += started
        self._made = made[0]
        self.agents: int = self._made.agents
        self.observation_space: gym.Space = self._made.observation_space
        self.action_space: gym.Space = self._made.action_space
        self._rows = num_envs * self.agents
        self._layout = self._made.layout(num_envs)
        try:
            self._segment = Segment.create(
                self._layout.size, f"the observations of {num_envs} env slots", lower="num_envs"
            )
            for worker in started:
                worker.give_memory(self._segment, self._layout)
        except BaseException:
            self._stop()
            raise
        memory = self._layout.view(self._segment)
        self._action: Tree = memory["action"]
        self._steps = [as_step(step) for step in memory["steps"]]
        self._now = 0
        """Which of the two was handed out; the workers write into the other."""
        self._phase: Literal["ready", "stepping", "unknown"] = "unknown"
        """Unknown before a reset, and from the start of a command until all have answered it."""
        if all(one.is_resumable for one in made):  # so that this is Resumable just where the slots are
            self.snapshot, self.restore = self._snapshot, self._restore

    def reset(self, seed: int) -> Tree:
        """Start all rows anew, whatever happened before: workers that are gone, steps under way, errors."""
        self._mend()
        try:
            self._tell_reset(seed)
        except LostError:  # one died just now, too late for the first look
            self._mend()
            self._tell_reset(seed)
        return self._obs()

    def _tell_reset(self, seed: int) -> None:
        for worker in self._workers:
            worker.tell("reset", seed, 1 - self._now)

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]."""
        self.send(action)
        return self.receive()

    def send(self, action: Tree) -> None:
        """Let the workers begin a step."""
        self._expect("ready", "step")
        self._write(action)
        self._phase = "unknown"
        for worker in self._workers:
            worker.tell("step", 1 - self._now)
        self._phase = "stepping"

    def receive(self) -> Step:
        """Wait for that step."""
        self._expect("stepping", "receive")
        self._phase = "unknown"
        infos = self._answers()
        step = self._steps[self._now]
        if any(infos):
            step = replace(step, info=_joined_info(infos))
        return step_to(step, self.device)

    @property
    def pids(self) -> list[int]:
        """The processes of the workers, in the order of their slots."""
        return [worker.child.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers."""
        self._phase = "unknown"
        self._stop()
        self._segment.close()

    def _snapshot(self) -> dict[str, Tensor]:
        self._expect("ready", "snapshot")
        self._phase = "unknown"
        for worker in self._workers:
            worker.tell("snapshot")
        parts = self._answers(is_step=False)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        for name, tensor in snapshot.items():
            if tensor.shape[:1] != (self._rows,):
                raise EnvError(
                    f"restore got {name!r} with shape {tuple(tensor.shape)}, but there are {self._rows} "
                    "rows: was the snapshot taken with another num_envs?"
                )
        self._mend()
        for worker in self._workers:
            rows = slice(worker.slots.start * self.agents, worker.slots.stop * self.agents)
            part = {name: tensor[rows].cpu().clone() for name, tensor in snapshot.items()}
            worker.tell("restore", part, 1 - self._now)
        return self._obs()

    def _obs(self) -> Tree:
        """Wait for observations that come without a step."""
        self._answers()
        obs = self._steps[self._now].obs
        return obs if self.device.type == "cpu" else tree.to(obs, self.device)

    def _expect(self, phase: str, doing: str) -> None:
        """Refuse what is not possible now."""
        if self._phase != phase:
            fix = {
                "unknown": "call reset(seed) first, also after an error",
                "stepping": "call receive() for the step that send() began",
                "ready": "call send(action) first",
            }[self._phase]
            raise EnvError(f"WorkerEnv.{doing} cannot be called now: {fix}")

    def _write(self, action: Tree) -> None:
        """Put ``action`` into the shared memory, checked as one process would check it."""
        if not is_like(action, self._action):
            action = _tensors(to_batch(self.action_space, action, self._rows))
        tree.copy_(self._action, action)

    def _answers(self, *, is_step: bool = True) -> list[Any]:
        """What every worker says to the last command; ``is_step``: a step, or its obs, was written."""
        deadline = _Deadline(self._timeout)
        answers = [worker.answer(deadline) for worker in self._workers]
        self._now, self._phase = 1 - self._now if is_step else self._now, "ready"
        return answers

    def _mend(self) -> None:
        """Take in what is still owed, and start workers anew that are gone or out of step."""
        if not self._stop.alive:
            raise EnvError("the workers of this env were ended by close(): make a new one")
        self._phase = "unknown"
        deadline = _Deadline(self._timeout)
        for worker in self._workers:
            worker.settle(deadline)
        lost = [i for i, worker in enumerate(self._workers) if not worker.is_sound]
        if not lost:
            return
        _stop([self._workers[i] for i in lost], grace=0.0)
        started, _ = self._start(lost, self._made)
        try:
            for worker in started:
                worker.give_memory(self._segment, self._layout)
        except BaseException:
            _stop(started)
            raise
        for i, worker in zip(lost, started):
            self._workers[i] = worker

    def _start(
        self, numbers: Sequence[int], expected: Made | None = None
    ) -> tuple[list[_Worker], list[Made]]:
        """Start these workers side by side. Returns them, and what they made."""
        started: list[_Worker] = []
        try:
            for i in numbers:
                started.append(_Worker(self._make, self._shares[i], f"{self._name} {i}"))
            deadline = _Deadline(START_SECONDS + (self._timeout or 0.0))
            made = [read_made(worker.answer(deadline)) for worker in started]
            for worker, one in zip(started, made):
                _check_same(worker.name, one, expected or made[0])
        except BaseException:
            _stop(started)
            raise
        return started, made


class _Deadline:
    """A moment that waiting ends at."""

    def __init__(self, seconds: float | None):
        self.seconds, self._ends = seconds, None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds; None: as long as it takes."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


class _Worker:
    """The near end of one worker: its process, and what it owes."""

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
        self._owed = 1  # what it made
        self.is_sound = True
        """Whether it lives, and no message to or from it was cut in the middle."""

    def tell(self, command: str, *arguments: Any) -> None:
        """Send a command, which it will answer."""
        self.is_sound = False
        self.child.send((command, *arguments))
        self._owed += 1
        self.is_sound = True

    def answer(self, deadline: _Deadline) -> Any:
        """Its next answer."""
        self.is_sound = False
        try:
            message = self.child.receive(deadline.left)
        except TimeoutError:
            raise LostError(self._hung(deadline)) from None
        except LostError:
            raise
        except Exception:  # what the env raised is an answer, too
            self._owed, self.is_sound = self._owed - 1, True
            raise
        self._owed, self.is_sound = self._owed - 1, True
        return message

    def give_memory(self, segment: Segment, layout: Layout) -> None:
        """Share memory with it."""
        self.is_sound = False
        try:
            give_memory(self.child.line, segment, layout)
        except (EOFError, OSError):
            raise LostError(f"{self.name} (process {self.child.pid}) died while it started") from None
        self.is_sound = True

    def settle(self, deadline: _Deadline) -> None:
        """Take in what it owes, if it is worth waiting for."""
        while self.is_sound and self._owed:
            with contextlib.suppress(Exception):  # an error of the past; is_sound says if it is lost
                self.answer(deadline)
        self.is_sound = self.is_sound and self.child.is_alive

    def stop(self) -> None:
        """End it."""
        self.child.stop()
        self._stack.close()

    def _hung(self, deadline: _Deadline) -> str:
        """Ask where it is, end it, and say so."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, STACK_SIGNAL)
        text, ends = "", time.monotonic() + STACK_SECONDS
        while "in <module>" not in text and time.monotonic() < ends:  # its last line
            time.sleep(0.01)
            text = os.pread(self._stack.fileno(), 1 << 16, 0).decode(errors="replace")
        self.child.stop(grace=0.0)
        where = "\n".join(text.splitlines()[:STACK_LINES]) or "It did not say where it was"
        return (
            f"{self.name} (process {self.child.pid}) has not answered for {deadline.seconds:g} seconds "
            f"(env_timeout) and was ended. {where}"
        )


def shares(num_envs: int, workers: int) -> list[range]:
    """The slots of each worker, in order; the first ones have one more where it does not come out even."""
    size, extra = divmod(num_envs, workers)
    starts = [i * size + min(i, extra) for i in range(workers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def _stop(workers: Sequence[_Worker], grace: float = 2.0) -> None:
    """End all of them, side by side."""
    stop_all([worker.child for worker in workers], grace)
    for worker in workers:
        worker.stop()


def _check_same(name: str, made: Made, expected: Made) -> None:
    for kind in ("observation_space", "action_space", "agents"):
        own, other = getattr(made, kind), getattr(expected, kind)
        if own != other:
            raise SpaceError(f"{kind} in {name} is {own}, elsewhere {other}: they must be equal")


def _tensors(batch: Any) -> Tree:
    """A tree of arrays as one of tensors."""
    if isinstance(batch, dict):
        return {key: _tensors(part) for key, part in batch.items()}
    return tuple(map(_tensors, batch)) if isinstance(batch, tuple) else torch.from_numpy(batch)


def _joined_info(infos: list[dict[str, Tensor] | None]) -> dict[str, Tensor]:
    """The numbers [B] that all workers report; one that is missing for some rows cannot be handed out."""
    known = [info or {} for info in infos]
    return {
        name: torch.cat([info[name] for info in known])
        for name in known[0]
        if all(name in info for info in known)
    }
