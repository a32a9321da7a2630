"""An env on the CPU for a policy on a GPU: one transfer each way per step, and nothing waits but for its own.

All that a step says lies in one piece of pinned memory and goes up in one copy; all parts of the action come
down in another. The host waits for that second copy alone, never for the device: with two actors it steps
the env of one while the device chooses what the other does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.shared_memory import Layout
from recollect.base.types import Step, Tree
from recollect.envs.contract import BatchedEnv, Describes, Resumable, Split
from recollect.envs.values import is_like
from recollect.envs.worker import FLAGS
from recollect.errors import ConfigError, EnvError


def on_device(env: BatchedEnv, device: torch.device | str) -> BatchedEnv:
    """``env``, which is on the CPU, with its tensors on ``device``. If that cannot be, ``env`` is closed."""
    if torch.device(device).type == "cpu":
        return env
    try:
        return HostEnv(env, device)
    except BaseException:
        env.close()
        raise


class HostEnv:
    """A BatchedEnv on ``device`` around one on the CPU. Also ``Split`` and ``Telling``; ``Resumable`` where
    the env is.

    A Step and its tensors hold until the next but one. An action whose leaves are not all tensors on
    ``device`` is handed to the env as it is.
    """

    def __init__(self, env: BatchedEnv, device: torch.device | str) -> None:
        if env.device.type != "cpu":
            raise ConfigError(
                f"HostEnv is for an env on the CPU, and this {type(env).__name__} is on {env.device}: "
                "use it without"
            )
        self.env = env
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self.num_envs, self.agents = env.num_envs, env.agents
        self.observation_space: gym.Space = env.observation_space
        self.action_space: gym.Space = env.action_space
        self._split = env if isinstance(env, Split) else None
        self._ups: dict[Any, tuple[_Up, _Up]] = {}
        """Memory for two steps, which take turns, for each kind of ``Step.info``."""
        self._turn = 0
        self._down = _Down(spaces.zeros(env.action_space, env.num_envs * env.agents), self.device)
        self._sent: Callable[[], Tree] | None = None
        """Waits for the action of the step under way, and returns it; None: there is no such step."""
        self._cut: Tensor | None = None
        self._next_up({})  # what is allocated now cannot fail later
        if isinstance(env, Resumable):  # so that this is Resumable just where the env is
            self.snapshot, self.restore = env.snapshot, self._restore

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in the words of the env inside."""
        return self.env.describe_row(obs) if isinstance(self.env, Describes) else None

    def reset(self, seed: int) -> Tree:
        """Start all rows anew, also in the middle of a step. Returns obs [B, ...]."""
        self._sent = None
        return self._seen(self.env.reset(seed))

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]."""
        self.send(action)
        return self.receive()

    @torch.no_grad()
    def send(self, action: Tree) -> None:
        """Let ``action`` come down. The env begins with it in ``receive``.

        An env that steps elsewhere (``Split``) begins at once instead: it is worth waiting here until the
        action is down, since it then works while this process does something else.
        """
        if self._sent is not None:
            raise EnvError("HostEnv.send cannot be called now: call receive() for the step that send() began")
        sent = self._coming(action)
        if self._split is not None:
            self._split.send(sent())
        self._sent = sent

    def receive(self) -> Step:
        """Wait for the action, step the env if it is not at it already, and let the step go up."""
        sent, self._sent = self._sent, None
        if sent is None:
            raise EnvError("HostEnv.receive cannot be called now: call send(action) first")
        return self._handed_out(self.env.step(sent()) if self._split is None else self._split.receive())

    def cut_rows(self) -> Tensor | None:
        """[n] int64 on ``device``: the rows that the last step truncated and did not terminate; None: none.

        They came with the step: to ask for them is no transfer, and waits for nothing.
        """
        return self._cut

    def close(self) -> None:
        """Close the env inside."""
        self._sent = None
        self.env.close()

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        assert isinstance(self.env, Resumable)
        self._sent = None
        return self._seen(self.env.restore({name: leaf.cpu() for name, leaf in snapshot.items()}))

    def _coming(self, action: Tree) -> Callable[[], Tree]:
        """Begin to bring the action down. Returns what waits for it."""
        if not _is_on(action, self.device):
            return lambda: action
        if not is_like(action, self._down.host):  # another dtype or shape: the env says what it thinks of it
            self._down = _Down(action, self.device)
        down = self._down
        self._copy_down(*down.packed(action))
        down.mark()
        return down.arrived

    def _seen(self, obs: Tree) -> Tree:
        """Let observations that come without a step go up."""
        self._cut = None
        up = self._next_up({})
        tree.copy_(up.host["obs"], obs)
        self._copy_up(*up.short)
        up.mark()
        return up.quiet.obs

    def _handed_out(self, step: Step) -> Step:
        """Let a step of the env go up; final observations only where there are any."""
        ended = bool(step.terminated.any() or step.truncated.any())  # on the CPU: looking is free
        up = self._next_up(step.info)
        host = up.host
        tree.copy_(host["obs"], step.obs)
        tree.copy_(host["info"], step.info)
        for name in ("reward", *FLAGS):
            host[name].copy_(getattr(step, name))
        self._cut = None
        if ended:
            tree.copy_(host["final_obs"], step.final_obs)
            rows = (step.truncated & ~step.terminated).nonzero().squeeze(1)
            if len(rows) > 0:
                host["cut"][: len(rows)].copy_(rows)
                self._cut = up.cut[: len(rows)]
        self._copy_up(*(up.long if ended else up.short))
        up.mark()
        return up.ended if ended else up.quiet

    def _next_up(self, info: dict[str, Tensor]) -> _Up:
        """The memory whose turn it is, free to be written into."""
        kind = tuple((name, leaf.dtype, leaf.shape) for name, leaf in info.items())
        if kind not in self._ups:
            shape = self.observation_space, self.num_envs * self.agents, info, self.device
            self._ups[kind] = _Up(*shape), _Up(*shape)
        self._turn = 1 - self._turn
        up = self._ups[kind][self._turn]
        up.wait()
        return up

    def _copy_up(self, there: Tensor, here: Tensor) -> None:
        """The one transfer of a step to the device."""
        there.copy_(here, non_blocking=self.device.type == "cuda")

    def _copy_down(self, here: Tensor, there: Tensor) -> None:
        """The one transfer of an action from the device."""
        here.copy_(there, non_blocking=self.device.type == "cuda")


class _Mark:
    """A place in the work of a device, to be waited for. Elsewhere than on a GPU nothing is late."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        """Here."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Until the device was there; at once if nothing was ever marked."""
        if self._event is not None:
            self._event.synchronize()


class _Up(_Mark):
    """The memory of one Step: pinned, and on the device."""

    @torch.inference_mode(False)  # what is made in that mode cannot be written outside of it
    def __init__(self, space: gym.Space, rows: int, info: dict[str, Tensor], device: torch.device) -> None:
        super().__init__(device)
        always = Layout.of(
            {
                "obs": spaces.zeros(space, rows),
                "info": info,
                "reward": torch.zeros(rows),
                **{name: torch.zeros(rows, dtype=torch.bool) for name in FLAGS},
            }
        )
        # At the end of the memory, so that they can be left out.
        at_ends = Layout.of(
            {"final_obs": spaces.zeros(space, rows), "cut": torch.zeros(rows, dtype=torch.int64)}
        )
        there, here = (_memory(always.size + at_ends.size, device, is_here=on) for on in (False, True))
        self.long = there, here
        """On the device and here: all bytes."""
        self.short = there[: always.size], here[: always.size]
        """Those that every step has."""
        parts, self.host = (
            {**_laid(always.leaves, memory), **_laid(at_ends.leaves, memory[always.size :])}
            for memory in self.long
        )
        self.cut: Tensor = parts.pop("cut")
        self.ended = Step(**parts)
        self.quiet = replace(self.ended, final_obs=self.ended.obs)
        """Where nothing ended, final_obs may be anything."""


class _Down(_Mark):
    """The memory of one action: pinned, and on the device if it has several leaves."""

    @torch.inference_mode(False)  # what is made in that mode cannot be written outside of it
    def __init__(self, like: Tree, device: torch.device) -> None:
        super().__init__(device)
        layout = Layout.of(like)
        self._here = _memory(layout.size, device, is_here=True)
        self.host: Tree = _laid(layout.leaves, self._here)
        self._is_one = len(tree.leaves(like)) == 1
        if not self._is_one:
            self._there = _memory(layout.size, device, is_here=False)
            self._parts: Tree = _laid(layout.leaves, self._there)

    def packed(self, action: Tree) -> tuple[Tensor, Tensor]:
        """Here and on the device: what is to be copied, with ``action`` in it."""
        if self._is_one:
            (here,), (there,) = tree.leaves(self.host), tree.leaves(action)
            return here, there.contiguous()
        tree.copy_(self._parts, action)
        return self._here, self._there

    def arrived(self) -> Tree:
        """The action, once it is here; a copy, since the env may keep it and the next one comes soon."""
        self.wait()
        return tree.clone(self.host)


def _memory(size: int, device: torch.device, *, is_here: bool) -> Tensor:
    """Zeroed bytes [size] on ``device``, or here, where a GPU can read and write them by itself."""
    if is_here:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return torch.zeros(size, dtype=torch.uint8, device=device)


def _laid(part: Tree, memory: Tensor) -> Tree:
    """The tensors of a ``Layout`` as views of ``memory``, bytes on any device."""
    if isinstance(part, dict):
        return {key: _laid(value, memory) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_laid(value, memory) for value in part)
    size = torch.Size(part.shape).numel() * part.dtype.itemsize
    return memory[part.offset : part.offset + size].view(part.dtype).view(part.shape)


def _is_on(action: Tree, device: torch.device) -> bool:
    """Whether all leaves are tensors on ``device``."""
    if isinstance(action, dict):
        return all(_is_on(part, device) for part in action.values())
    if isinstance(action, tuple):
        return all(_is_on(part, device) for part in action)
    return isinstance(action, Tensor) and action.device == device
