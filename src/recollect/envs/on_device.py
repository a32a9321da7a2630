"""An env on the CPU for a policy on a GPU, with one transfer in each direction per step.

All tensors of a step lie in one block of pinned memory and are uploaded in one copy; all parts of the action
are downloaded in another. The host synchronises with that second copy only, never with the whole device: with
two actors it steps the env of one while the device computes the actions of the other.
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
from recollect.envs.contract import FLAGS, Adjustable, AsyncStep, BatchedEnv, EnvWrapper, Resumable
from recollect.envs.space_values import is_like, step_zeros
from recollect.errors import ConfigError, EnvError


def on_device(env: BatchedEnv, device: torch.device | str) -> BatchedEnv:
    """``env``, which is on the CPU, with its tensors on ``device``. ``env`` is closed if that fails."""
    if torch.device(device).type == "cpu":
        return env
    try:
        return HostEnv(env, device)
    except BaseException:
        env.close()
        raise


class HostEnv(EnvWrapper):
    """A BatchedEnv on ``device`` around one on the CPU. Also ``AsyncStep`` and ``ReportsTruncation``, and
    ``Resumable`` if the inner env is.

    The tensors of a Step stay valid for one further step. An action whose leaves are not all tensors on
    ``device`` is passed to the inner env unchanged.
    """

    def __init__(self, env: BatchedEnv, device: torch.device | str) -> None:
        if env.device.type != "cpu":
            raise ConfigError(
                f"HostEnv is for an env on the CPU, and this {type(env).__name__} is on {env.device}: "
                "use it without"
            )
        super().__init__(env, Resumable, Adjustable)
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self._is_async = isinstance(env, AsyncStep)
        self._uploads: dict[Any, tuple[_Upload, _Upload]] = {}
        """Two alternating buffers for each set of keys, dtypes and shapes in ``Step.info``."""
        self._turn = 0
        self._download = _Download(spaces.zeros(env.action_space, env.num_envs * env.agents), self.device)
        self._sent: Callable[[], Tree] | None = None
        """Returns the action of the step in progress once it is downloaded; None: no step is in progress."""
        self._truncated: Tensor | None = None
        self._next_upload({})  # allocate now: a shortage of memory shows at the start

    def reset(self, seed: int) -> Tree:
        """Restart all rows, also while a step is in progress. Returns obs [B, ...]."""
        self._sent = None
        return self._uploaded_obs(self.env.reset(seed))

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]."""
        self.send(action)
        return self.receive()

    @torch.no_grad()
    def send(self, action: Tree) -> None:
        """Start the download of ``action``; ``receive`` steps the env with it.

        An ``AsyncStep`` env starts its step here, after the download: it then works while this process does
        something else.
        """
        if self._sent is not None:
            raise EnvError("HostEnv.send cannot be called now: call receive() for the step that send() began")
        sent = self._downloading(action)
        if self._is_async:
            self.env.send(sent())
        self._sent = sent

    def receive(self) -> Step:
        """Wait for the action, step the env (an ``AsyncStep`` env has started), and start the upload."""
        sent, self._sent = self._sent, None
        if sent is None:
            raise EnvError("HostEnv.receive cannot be called now: call send(action) first")
        return self._uploaded(self.env.receive() if self._is_async else self.env.step(sent()))

    def truncated_rows(self) -> Tensor | None:
        """[n] int64 on ``device``: rows that the last step truncated and did not terminate; None: no row.

        They were uploaded with the step: this call neither transfers nor synchronises.
        """
        return self._truncated

    def close(self) -> None:
        """Close the inner env."""
        self._sent = None
        super().close()

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        self._sent = None
        return self._uploaded_obs(self.env.restore({name: leaf.cpu() for name, leaf in snapshot.items()}))

    def _downloading(self, action: Tree) -> Callable[[], Tree]:
        """Start the download of the action. Returns a function that waits for it and returns it."""
        if not _is_on(action, self.device):
            return lambda: action
        if not is_like(action, self._download.host):  # another dtype or shape: the env validates it
            self._download = _Download(action, self.device)
        download = self._download
        self._copy_down(*download.packed(action))
        download.mark()
        return download.arrived

    def _uploaded_obs(self, obs: Tree) -> Tree:
        """Upload observations that come without a step."""
        self._truncated = None
        upload = self._next_upload({})
        tree.copy_(upload.host["obs"], obs)
        self._copy_up(*upload.short)
        upload.mark()
        return upload.inside.obs

    def _uploaded(self, step: Step) -> Step:
        """Upload a step of the inner env; final observations only if an episode ended."""
        ended = bool(step.terminated.any() or step.truncated.any())  # on the CPU, where reading is free
        upload = self._next_upload(step.info)
        host = upload.host
        tree.copy_(host["obs"], step.obs)
        tree.copy_(host["info"], step.info)
        for name in ("reward", *FLAGS):
            host[name].copy_(getattr(step, name))
        self._truncated = None
        if ended:
            tree.copy_(host["final_obs"], step.final_obs)
            rows = (step.truncated & ~step.terminated).nonzero().squeeze(1)
            if len(rows) > 0:
                host["truncated_rows"][: len(rows)].copy_(rows)
                self._truncated = upload.truncated_rows[: len(rows)]
        self._copy_up(*(upload.long if ended else upload.short))
        upload.mark()
        return upload.ended if ended else upload.inside

    def _next_upload(self, info: dict[str, Tensor]) -> _Upload:
        """The buffer of the next step, once its last upload is complete."""
        kind = tuple((name, leaf.dtype, leaf.shape) for name, leaf in info.items())
        if kind not in self._uploads:
            shape = self.observation_space, self.num_envs * self.agents, info, self.device
            self._uploads[kind] = _Upload(*shape), _Upload(*shape)
        self._turn = 1 - self._turn
        upload = self._uploads[kind][self._turn]
        upload.wait()
        return upload

    def _copy_up(self, there: Tensor, here: Tensor) -> None:
        """The one transfer of a step to the device."""
        there.copy_(here, non_blocking=self.device.type == "cuda")

    def _copy_down(self, here: Tensor, there: Tensor) -> None:
        """The one transfer of an action from the device."""
        here.copy_(there, non_blocking=self.device.type == "cuda")


class _Event:
    """A CUDA event; on other devices, where nothing is asynchronous, it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        """Record the event on the current stream."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Synchronise with the event; returns at once if it was never recorded."""
        if self._event is not None:
            self._event.synchronize()


class _Upload(_Event):
    """The buffers of one Step: in pinned memory and on the device."""

    @torch.inference_mode(False)  # tensors made in inference mode cannot be written outside of it
    def __init__(self, space: gym.Space, rows: int, info: dict[str, Tensor], device: torch.device) -> None:
        super().__init__(device)
        always = Layout.of({**step_zeros(space, rows), "info": info})
        # At the end of the memory: the upload of a step in which no episode ends leaves them out.
        at_ends = Layout.of(
            {"final_obs": spaces.zeros(space, rows), "truncated_rows": torch.zeros(rows, dtype=torch.int64)}
        )
        there, here = (_memory(always.size + at_ends.size, device, is_here=on) for on in (False, True))
        self.long = there, here
        """All bytes, on the device and on the host."""
        self.short = there[: always.size], here[: always.size]
        """The bytes that every step has."""
        parts, self.host = (
            {**always.over_tensor(memory), **at_ends.over_tensor(memory[always.size :])}
            for memory in self.long
        )
        self.truncated_rows: Tensor = parts.pop("truncated_rows")
        self.ended = Step(**parts)
        """The step on the device, if an episode ended."""
        self.inside = replace(self.ended, final_obs=self.ended.obs)
        """The step on the device, if no episode ended: ``final_obs`` has no meaning."""


class _Download(_Event):
    """The buffers of one action: in pinned memory, and on the device if it has several leaves."""

    @torch.inference_mode(False)  # tensors made in inference mode cannot be written outside of it
    def __init__(self, like: Tree, device: torch.device) -> None:
        super().__init__(device)
        layout = Layout.of(like)
        self._here = _memory(layout.size, device, is_here=True)
        self.host: Tree = layout.over_tensor(self._here)
        self._is_one = len(tree.leaves(like)) == 1
        if not self._is_one:
            self._there = _memory(layout.size, device, is_here=False)
            self._parts: Tree = layout.over_tensor(self._there)

    def packed(self, action: Tree) -> tuple[Tensor, Tensor]:
        """Target on the host and source on the device of the copy of ``action``."""
        if self._is_one:
            (here,), (there,) = tree.leaves(self.host), tree.leaves(action)
            return here, there.contiguous()
        tree.copy_(self._parts, action)
        return self._here, self._there

    def arrived(self) -> Tree:
        """The action, once it is downloaded; a copy, because the env may keep it."""
        self.wait()
        return tree.clone(self.host)


def _memory(size: int, device: torch.device, *, is_here: bool) -> Tensor:
    """Zeroed bytes [size] on ``device``, or on the host, pinned if ``device`` is a GPU."""
    if is_here:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return torch.zeros(size, dtype=torch.uint8, device=device)


def _is_on(action: Tree, device: torch.device) -> bool:
    """Whether all leaves are tensors on ``device``."""
    try:
        return all(leaf.device == device for leaf in tree.leaves(action))
    except TypeError:  # not a tree of tensors
        return False
