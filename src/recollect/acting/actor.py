"""The actor: the acting loop, which owns the live state of its rows."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import SupportsFloat, TypeVar

import torch
from torch import Tensor

from recollect.acting import traced_act
from recollect.acting.traced_act import TracedAct
from recollect.acting.truncation import (
    DeferredFinalValues,
    ImmediateFinalValues,
    steps_without_reads,
    truncated_rows,
    truncation_slots,
)
from recollect.base import devices, spaces, tree
from recollect.base.cuda_graphs import Graphs
from recollect.base.types import State, Tree
from recollect.envs.contract import AsyncStep, BatchedEnv, BetweenRollouts, ReportsTruncation, Resumable
from recollect.errors import ConfigError, StateError
from recollect.experience.rollout import Acting, Rollout
from recollect.policy.head_contract import check_record, named_fields
from recollect.policy.policy import Acted, Policy

T = TypeVar("T")

STACKED = 8
"""Steps whose actions are written to the rollout together, which is faster than one by one. If all were kept
until the rollout ends, they would lie between the temporary tensors of many rows, and the allocator could not
reuse those: up to 0.5 GB for 8,192 rows."""


class Actor:
    """Steps an env with a policy and records rollouts.

    The observation, ``first`` and state carry over between rollouts, so that an episode can span any number
    of rollouts.
    """

    def __init__(
        self,
        env: BatchedEnv,
        policy: Policy,
        *,
        rollout: int,
        state_steps: Sequence[int],
        seed: int,
        sampling_seed: int | None = None,
        index: int = 0,
        buffers: Sequence[Rollout] = (),
        graphs: Graphs | None = None,
        keeps_finals: bool = True,
        record: Sequence[str] | None = None,
        needs_values: bool = True,
        exploration: Tensor | Callable[[int], Tensor] | None = None,
        actors: int = 1,
    ):
        """Reset the env and allocate a rollout, which every ``collect`` overwrites.

        Args:
            env: the rows.
            policy: acts; its weights may change between rollouts, never within one.
            rollout: T, the steps of a rollout.
            state_steps: the steps whose input states are stored for the learner.
            seed: seed of the env, and of the sampling of actions unless ``sampling_seed`` is given.
            sampling_seed: seed of the sampling of actions.
            index: number of this actor.
            buffers: rollouts to fill instead of an allocated one; ``collect`` selects one.
            graphs: captures acting on a GPU; None: no capture.
            keeps_finals: whether to fill ``Rollout.finals``, which synchronises a GPU.
            record: the fields of the head's record that are stored; None: all.
            needs_values: whether to fill ``Rollout.final_value`` and ``Rollout.bootstrap``.
            exploration: [B], given to the head with every step, or a function of the number of rows of all
                actors; None: the head needs none.
            actors: number of actors, of as many rows each.
        """
        self.env, self.policy, self.index = env, policy, index
        self.rows = env.num_envs * env.agents
        self.generator = torch.Generator(env.device)
        self.generator.manual_seed(seed if sampling_seed is None else sampling_seed)
        self.obs: Tree = tree.clone(env.reset(seed))
        self.first = torch.ones(self.rows, dtype=torch.bool, device=env.device)
        self.state: State = policy.initial_state(self.rows)
        self.sequence = 0
        """Index of the next rollout."""
        self.seconds: dict[str, SupportsFloat] = {"env": 0.0, "act": 0.0}
        self.info: dict[str, Tensor] = {}
        """The mean (0-d) of every number in ``Step.info`` over the last rollout, as ``info/NAME``. Of
        several agents, the living count. NaN: there was no value."""
        self.in_env_since: float | None = None
        """Start of the env step in progress, by ``time.monotonic``; None: no step is in progress."""
        if callable(exploration):
            exploration = exploration(self.rows * actors)[self.rows * index :][: self.rows]
        if exploration is not None and exploration.shape != (self.rows,):
            raise ConfigError(
                f"exploration has shape {tuple(exploration.shape)}, and the actor has {self.rows} rows: give "
                "one number for each row"
            )
        self.exploration = None if exploration is None else exploration.to(env.device, copy=True)
        """[B]; the algorithm may change it between rollouts, in place."""
        self.needs_values = needs_values
        names = None if record is None else tuple(record)
        wanted = Acting(tuple(state_steps), keeps_finals, names, needs_values)
        own = buffers or [allocate(policy, self.rows, rollout, wanted, index, env.device)]
        self._is_capturable = steps_without_reads(env)
        is_traced = exploration is None and traced_act.suits(policy, env.device, rollout)
        self._traced = TracedAct(policy, self.generator) if is_traced else None
        self._keeps_finals = keeps_finals or not self._is_capturable
        self._final_values = self._make_final_values(rollout)
        graphs = graphs or Graphs(env.device, is_on=False)
        self._act = self._make_act(graphs)
        self._buffers = [_Buffer(self, one, graphs) for one in own]

    def _make_final_values(self, steps: int) -> ImmediateFinalValues | DeferredFinalValues:
        env, policy = self.env, self.policy if self.needs_values else None
        if self._is_capturable:
            slots = truncation_slots(env, steps)
            return DeferredFinalValues(policy, slots, self.obs, self.state, self.first)
        if isinstance(env, ReportsTruncation):
            return ImmediateFinalValues(policy, lambda step: env.truncated_rows())
        return ImmediateFinalValues(policy, truncated_rows)

    def _make_act(self, graphs: Graphs) -> Callable[[Tree, State, Tensor], tuple[Acted, State]]:
        """``policy.act``, captured on its own if the env cannot be captured with it."""
        policy, generator = self.policy, self.generator  # not self: a reference cycle delays the clean-up
        exploration = self.exploration
        if self._traced is not None:
            return self._traced
        if self._is_capturable or not graphs.is_on:
            return lambda obs, state, first: policy.act(obs, state, first, generator, False, exploration)
        return CapturedAct(policy, self.obs, self.state, self.first, generator, graphs, exploration)

    def close(self) -> None:
        """Free the graphs now: their destruction would invalidate a capture of another actor."""
        self._buffers = []
        del self._act

    def snapshot(self) -> dict[str, Tensor] | None:
        """Copies of all that determines the next rollouts; None if the env is not ``Resumable``."""
        if not isinstance(self.env, Resumable):
            return None
        own = {"rng": self.generator.get_state(), "sequence": torch.tensor(self.sequence)}
        env = {f"env:{name}": leaf for name, leaf in self.env.snapshot().items()}
        live = tree.clone({"first": self.first, "state": self.state})
        if self.exploration is not None:
            own["exploration"] = self.exploration.clone()
        return own | env | dict(tree.named_leaves(live))

    def fits(self, snapshot: dict[str, Tensor]) -> bool:
        """Whether the snapshot is of a single actor, on the same type of device."""
        rng = snapshot.get("rng")
        return rng is not None and rng.shape == self.generator.get_state().shape

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Continue from a snapshot, with the same policy and an env with the same settings."""
        assert isinstance(self.env, Resumable)
        device = self.env.device
        want = tree.spec({"state": self.state}, lead=0)
        found = {name: leaf.to(device) for name, leaf in snapshot.items()}
        given = tree.spec({name: leaf for name, leaf in found.items() if name.startswith("state")}, lead=0)
        if given != want or found["first"].shape != self.first.shape:
            raise StateError(
                f"the saved memories have leaves {given}, this actor's {want}: were they saved with another "
                "core or another num_envs?"
            )
        tree.copy_(self.state, tree.from_named(self.state, found, "state"))
        self.first.copy_(found["first"])
        if self.exploration is not None and "exploration" in found:
            self.exploration.copy_(found["exploration"])
        self.generator.set_state(snapshot["rng"])
        self.sequence = int(snapshot["sequence"])
        env = {name.removeprefix("env:"): leaf for name, leaf in found.items() if name.startswith("env:")}
        tree.copy_(self.obs, self.env.restore(env))

    def collect(self, version: int = 0, buffer: int = 0) -> Rollout:
        """Record T steps. The next call with the same buffer overwrites the rollout."""
        return interleaved([self.collecting(version, buffer)])[0]

    @torch.no_grad()
    def collecting(self, version: int = 0, buffer: int = 0) -> Generator[None, None, Rollout]:
        """``collect`` as a generator, which yields while an ``AsyncStep`` env steps."""
        chosen = self._buffers[buffer]
        out = chosen.rollout
        if isinstance(self.env, BetweenRollouts):
            self.env.between_rollouts(out.steps)
        if self._is_capturable:
            watch = devices.Stopwatch(self.env.device)
            infos = chosen.play_all()
            self.seconds = {"act": watch.stopped()}
        else:
            infos = yield from self._play(out, chosen.views)
        out.finals = self._final_values.finals() if self._keeps_finals else None
        out.version, out.sequence = version, self.sequence
        self.sequence += 1
        self.info = _mean_info(infos)
        return out

    def _play(self, out: Rollout, views: _Views) -> Generator[None, None, list[dict[str, Tensor]]]:
        """Fill a rollout from the live state on. Returns the mean of each info value per step."""
        policy, env = self.policy, self.env
        obs, first, state = self.obs, self.first, self.state
        async_env = env if isinstance(env, AsyncStep) else None
        stored = {step: slot for slot, step in enumerate(out.state_steps)}
        acted_steps: list[Acted] = []
        infos: list[dict[str, Tensor]] = []
        self._final_values.begin()
        if self._traced is not None:
            self._traced.begin()
        env_seconds, started = 0.0, time.monotonic()
        for t in range(out.steps):
            tree.copy_(views.obs[t], obs)
            views.first[t].copy_(first)
            if t in stored:
                tree.copy_(tree.index(out.states, stored[t]), state)
            acted, state = self._act(obs, state, first)
            env_action = policy.to_env(acted.action)
            before = self.in_env_since = time.monotonic()
            if async_env is None:
                step = env.step(env_action)
            else:
                async_env.send(env_action)
                paused = time.monotonic()
                yield
                away = time.monotonic() - paused  # the time of other actors does not count
                step, before, started = async_env.receive(), before + away, started + away
            self.in_env_since = None
            env_seconds += time.monotonic() - before
            acted_steps.append(acted)
            if t == 0:
                check_record(policy.head, acted.record, self.rows)
            if len(acted_steps) == STACKED or t == out.steps - 1:
                _write(out, t + 1, acted_steps)
                acted_steps = []
            views.reward[t].copy_(step.reward)
            views.terminated[t].copy_(step.terminated)
            views.truncated[t].copy_(step.truncated)
            views.valid[t].copy_(step.valid)
            self._final_values.add(t, step, state)
            if step.info:
                infos.append({name: self._mean(value, step.valid) for name, value in step.info.items()})
            obs, first = step.obs, step.first
        tree.copy_(views.obs[out.steps], obs)
        views.first[out.steps].copy_(first)
        if out.bootstrap is not None:
            out.bootstrap.copy_(policy.value(obs, state, first))
        self._final_values.write(out)
        # Copied in place: a step overwrites the env's tensors, and a CUDA graph refers to tensors by address.
        tree.copy_(self.obs, obs)
        self.first.copy_(first)
        tree.copy_(self.state, state)
        self.seconds = {"env": env_seconds, "act": time.monotonic() - started - env_seconds}
        return infos

    def _mean(self, value: Tensor, valid: Tensor) -> Tensor:
        """The mean of an info value, [B] over the living agents or [E] over slots; NaN if it has none.

        A single agent always counts.
        """
        value = value.float()
        if self.env.agents > 1 and len(value) == self.rows:
            value = value.masked_fill(~valid, torch.nan)
        return value.nanmean()


class CapturedAct:
    """``policy.act``, captured in a CUDA graph.

    The next call overwrites the returned state, but not the returned ``Acted``.
    """

    def __init__(
        self,
        policy: Policy,
        obs: Tree,
        state: State,
        first: Tensor,
        generator: torch.Generator,
        graphs: Graphs,
        exploration: Tensor | None = None,
    ):
        """``obs``, ``state`` and ``first`` of B rows give the shapes; ``exploration`` [B]: as in ``act``."""
        self._obs, self._state, self._first = tree.clone(obs), tree.clone(state), first.clone()

        def act() -> Acted:
            acted, after = policy.act(self._obs, self._state, self._first, generator, False, exploration)
            tree.copy_(self._state, after)
            return acted

        self._act = graphs.captured(act, "choosing actions", policy, [generator])

    def __call__(self, obs: Tree, state: State, first: Tensor) -> tuple[Acted, State]:
        """obs [B, ...], state, first [B] -> actions and the next state."""
        tree.copy_(self._obs, obs)
        self._first.copy_(first)
        if state is not self._state:
            tree.copy_(self._state, state)
        acted = self._act()
        if self._act.is_graph:
            acted = Acted(*(tree.clone(part) for part in acted))
        return acted, self._state


class _Buffer:
    """A rollout, its views per step, and the captured function that fills it."""

    def __init__(self, actor: Actor, rollout: Rollout, graphs: Graphs):
        self.rollout, self.views = rollout, views = rollout, _Views(rollout)
        acting = weakref.ref(actor)  # a reference cycle would delay the clean-up of actor and env

        def play_all() -> list[dict[str, Tensor]]:
            actor = acting()
            assert actor is not None
            return interleaved([actor._play(rollout, views)])[0]

        env = actor.env
        has_more = isinstance(env, BetweenRollouts)
        generators = [actor.generator, *(env.generators if has_more else ())]
        key = env.graph_key if has_more else None
        self.play_all = graphs.captured(play_all, "acting", actor.policy, generators, key)


def interleaved(running: Sequence[Generator[None, None, T]]) -> list[T]:
    """Run several ``collecting`` interleaved and return their results: while one env steps, another acts."""
    done: dict[int, T] = {}
    while len(done) < len(running):
        for i, one in enumerate(running):
            if i in done:
                continue
            try:
                next(one)
            except StopIteration as end:
                done[i] = end.value
    return [done[i] for i in range(len(running))]


def allocate(
    policy: Policy,
    rows: int,
    steps: int,
    acting: Acting,
    actor: int = 0,
    device: torch.device | str = "cpu",
) -> Rollout:
    """An empty rollout for ``steps`` steps of ``rows`` rows, with the parts that an algorithm needs."""
    obs = spaces.zeros(policy.observation_space, 1, device)
    action = spaces.zeros(policy.action_space, 1, device)

    floats = functools.partial(torch.zeros, steps, rows, device=device)
    flags = functools.partial(torch.zeros, dtype=torch.bool, device=device)
    fields = named_fields(policy.head, acting.record).items()
    return Rollout(
        obs=tree.empty(obs, (steps + 1, rows)),
        first=flags(steps + 1, rows),
        action=tree.empty(action, (steps, rows)),
        record={name: floats(*field.shape, dtype=field.dtype) for name, field in fields},
        reward=floats(),
        terminated=flags(steps, rows),
        truncated=flags(steps, rows),
        valid=flags(steps, rows),
        final_value=floats() if acting.needs_values else None,
        bootstrap=torch.zeros(rows, device=device) if acting.needs_values else None,
        state_steps=acting.state_steps,
        states=tree.empty(policy.initial_state(1), (len(acting.state_steps), rows), device),
        actor=actor,
    )


class _Views:
    """The views of a rollout per step, made once: indexing a tensor costs more than the copy."""

    def __init__(self, rollout: Rollout):
        self.obs = _unbind(rollout.obs)
        self.first = rollout.first.unbind()
        self.reward = rollout.reward.unbind()
        self.terminated = rollout.terminated.unbind()
        self.truncated = rollout.truncated.unbind()
        self.valid = rollout.valid.unbind()


def _write(out: Rollout, end: int, acted_steps: list[Acted]) -> None:
    """Write the actions and the records of the steps before ``end``."""
    span = slice(end - len(acted_steps), end)
    actions = [acted.action for acted in acted_steps]
    tree.map(lambda leaf, *steps: torch.stack(steps, out=leaf[span]), out.action, *actions)
    for name, record in out.record.items():
        torch.stack([acted.record[name] for acted in acted_steps], out=record[span])


def _unbind(value: Tree) -> list[Tree]:
    """A tree of [T, ...] as a list of T trees."""
    if isinstance(value, dict):
        parts = {key: _unbind(sub) for key, sub in value.items()}
        return [dict(zip(parts, step)) for step in zip(*parts.values())]
    if isinstance(value, tuple):
        return list(zip(*(_unbind(sub) for sub in value)))
    return list(value.unbind())


def _mean_info(infos: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = {name for info in infos for name in info}
    return {
        f"info/{name}": torch.stack([info[name] for info in infos if name in info]).nanmean()
        for name in sorted(names)
    }
