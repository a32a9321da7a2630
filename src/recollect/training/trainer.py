"""The trainer: collect, update, publish. Runtimes differ only in the collector."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from recollect.algos.catalog import make_learner
from recollect.base import devices, row_threads, tree, triton_support
from recollect.base.seeds import stream
from recollect.config.curriculum import settings_at
from recollect.config.train import TrainConfig
from recollect.errors import AlignmentError
from recollect.experience.group_rollout import AnyRollout, by_group, join
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from recollect.learning.learner_state import Learned, TrainerState, learner_tensors, load_learner
from recollect.policy import policies
from recollect.policy.policies import Network, rows_by_group
from recollect.runtimes.collector import Collector
from recollect.runtimes.learner_group import LearnerGroup
from recollect.runtimes.learner_server import LearnerState, learner_threads
from recollect.runtimes.process.learner_process import LearnerProcess, naming, update_at_once
from recollect.training.episodes import Episodes
from recollect.training.group_metrics import GroupEpisodes, merged


@dataclass(frozen=True, slots=True)
class Iteration:
    """The results of one iteration: a batch collected and learned from."""

    metrics: dict[str, float]
    """By glossary name."""
    episodes: Episodes
    """The episodes that ended."""
    warnings: list[str] = field(default_factory=list)
    """Warnings for the user, such as restarts of actors."""


class Trainer:
    """Collects and learns, one iteration at a time, from env step ``start`` to ``end``.

    Schedules run over this interval, a *leg*: ``begin`` starts a new one, a resumed run continues its own.
    """

    def __init__(self, collector: Collector, policy: Network, config: TrainConfig):
        self.collector, self.policy, self.config = collector, policy, config
        groups, rows = policies.by_group(policy), rows_by_group(policy, collector.rows)
        for name, one in groups.items():
            config.algo.check(one, rows[name])
        policy.acts_elsewhere = config.runtime != "inline"
        if config.compile:
            policy.compile_parts()
        graphs = config.graphs and not config.compile
        seeds = {
            name: stream(config.seed, 2, *([number] if name else [])) for number, name in enumerate(groups)
        }
        self.learners = {
            name: make_learner(one, config.algo, rows=rows[name], seed=seeds[name], graphs=graphs)
            for name, one in groups.items()
        }
        """By group; that of an env with one group has the name ""."""
        self._updaters = {
            name: LearnerGroup(
                learner, config, rows[name], name=name, make=collector.make_peer, host=collector.host
            )
            for name, learner in self.learners.items()
            if config.learners > 1
        }
        """The data-parallel learners by group; empty if each group has a single learner."""
        self._processes = {
            name: LearnerProcess(learner, config, name=name, rows=rows, seed=seeds[name])
            for name, learner in self.learners.items()
            if config.learner_processes
        }
        """The learner processes by group; empty if the learners are in this process."""
        self.threads = learner_threads(config)
        self.episodes = GroupEpisodes(rows, config.target_episodes)
        self.steps = self.start = self.end = 0
        lacks = triton_support.why_not(self.learner.device)
        self._notes = [] if lacks is None else [lacks]
        self._joined: AnyRollout | None = None
        self._past: dict[int, dict[str, torch.Tensor]] = {}
        self.own_settings: dict[str, Any] = {}
        """Settings of the envs beside those of the curriculum; the envs get them before the next rollout."""
        self._settings: dict[str, Any] | None = None
        """The settings that the envs have; None: not known."""
        self.is_exact = True
        """Whether the last ``restore`` continues bit for bit; otherwise new episodes start."""

    @property
    def learner(self) -> Learner:
        """The learner of the first group."""
        return next(iter(self.learners.values()))

    def begin(self, steps: int) -> None:
        """Start a leg of ``steps`` more env steps."""
        self.start, self.end = self.steps, self.steps + steps
        for process in self._processes.values():
            process.follow()

    @property
    def is_at_end(self) -> bool:
        """Whether the leg is complete."""
        return self.steps >= self.end

    @property
    def is_solved(self) -> bool:
        """Whether the mean return of the last episodes has reached ``target_return``."""
        target, recent = self.config.target_return, self.episodes.recent
        if target is None or len(recent) < self.config.target_episodes * len(self.learners):
            return False
        return sum(r for r, _ in recent) / len(recent) >= target

    @contextmanager
    def working(self) -> Iterator[None]:
        """Set up the threads for ``iterate``, which must be called inside this context."""
        by_rows = 1 if self.config.parallel == "operations" else self.threads
        with row_threads.threads(by_rows), row_threads.intra_op_threads(1):
            yield

    def iterate(self) -> Iteration:
        """Collect one batch and learn from it."""
        started = time.perf_counter()
        self._ready_processes()
        updates = self.learner.updates
        self._remember()
        self._adjust()
        batch = self.collector.collect(updates)
        rollouts = batch.rollouts
        whole = join(rollouts, is_mixed=self.config.mode == "async", into=self._joined)
        self._joined = whole if len(rollouts) > 1 else None
        learning = devices.Stopwatch(self.learner.device)
        progress = (self.steps - self.start) / max(1, self.end - self.start)
        lags = self._lags(rollouts)
        with row_threads.intra_op_threads(self.threads if self.config.parallel == "operations" else 1):
            checked = self._check_late(rollouts)
            learned = self._learn(by_group(whole), progress, max(lags))
            metrics = merged({name: found | checked.get(name, {}) for name, found in learned.items()})
        self.collector.publish(self.learner.updates)
        learning.stopped()
        episodes = self.episodes.add(*rollouts, restarted=batch.restarted)
        count = episodes.steps
        self.steps += count
        seconds = {name: float(value) for name, value in batch.seconds.items()}
        seconds |= {"learn": float(learning), "total": time.perf_counter() - started}
        metrics |= {"steps": float(self.steps), "updates": float(self.learner.updates)}
        metrics |= {"lag": sum(lags) / len(lags), "lag/max": float(max(lags))}
        numbers = {name: float(value) for name, value in batch.info.items()}
        info = {name: number for name, number in numbers.items() if not math.isnan(number)}
        metrics |= self.episodes.metrics() | info | batch.metrics
        if self.config.compile:
            metrics["compiled_graphs"] = float(self.policy.compiled_graphs)
        metrics |= {f"speed/{name}": count / max(value, 1e-9) for name, value in seconds.items()}
        if self.learner.graphs.is_on:
            started = sum(learner.graphs.seconds for learner in self.learners.values())
            metrics["start_seconds"] = metrics.get("start_seconds", 0.0) + started
        warnings = [*self._notes, *batch.notes]
        self._notes.clear()
        for learner in self.learners.values():
            check = learner.deviation_check
            warnings += [*learner.graphs.taken_notes(), *check.notes]
            check.notes.clear()
        return Iteration(metrics, episodes, warnings)

    def _adjust(self) -> None:
        """Change to the stage of the curriculum that the steps have reached, and to ``own_settings``."""
        if self.config.curriculum or self.own_settings:
            settings = settings_at(self.config.curriculum, self.steps) | self.own_settings
            if settings != self._settings:
                self.collector.adjust(settings)
                self._settings = settings

    def _ready_processes(self) -> None:
        """Start the learner processes, if they do not run: in parallel with the actors."""
        for process in self._processes.values():
            process.start()
        for process in self._processes.values():
            process.settle()  # after an update whose end was not waited for

    def _learn(self, parts: dict[str, Rollout], progress: float, lag: int) -> dict[str, dict[str, float]]:
        """One update of each group by its part; returns the metrics by group."""
        if self._processes:
            return update_at_once(self._processes, parts, progress, lag)
        if self._updaters:
            return self._learn_all_or_none(parts, progress, lag)
        updates = [partial(self._update, name, part, progress, lag) for name, part in parts.items()]
        if not self.config.learns_at_once:
            return dict(zip(parts, [update() for update in updates]))
        rows = [part.rows for part in parts.values()]
        return dict(zip(parts, row_threads.at_once(updates, rows)))

    def _learn_all_or_none(
        self, parts: dict[str, Rollout], progress: float, lag: int
    ) -> dict[str, dict[str, float]]:
        """``_learn`` by several learners. If one is lost, all groups return to their state before it."""
        found: dict[str, dict[str, float]] = {}
        before = {name: LearnerState.of(self.learners[name]) for name in parts if len(parts) > 1}
        try:
            for name, part in parts.items():
                found[name] = self._update(name, part, progress, lag)
        except BaseException:
            for name in found:
                before[name].put(self.learners[name])
            self._forget()
            raise
        return found

    def _update(self, group: str, part: Rollout, progress: float, lag: int) -> dict[str, float]:
        """One update of a group; an error names it."""
        updater = self._updaters[group] if self._updaters else self.learners[group]
        with naming(group):
            return updater.update(part, progress, lag=lag)

    def _forget(self) -> None:
        """Send the state of every first learner to the others before the next update."""
        for updater in self._updaters.values():
            updater.forget()

    def _lags(self, rollouts: Sequence[AnyRollout]) -> list[int]:
        """The age of each rollout's weights, in updates."""
        lags = [self.learner.updates - rollout.version for rollout in rollouts]
        if min(lags) < 0 or max(lags) > self.config.lag_limit:
            raise AlignmentError(
                f"update {self.learner.updates} got rollouts with a lag of {min(lags)} to {max(lags)} "
                f"updates, and at most {self.config.lag_limit} is allowed: actors and learner disagree on "
                "versions"
            )
        return lags

    def _check_late(self, rollouts: Sequence[AnyRollout]) -> dict[str, dict[str, float]]:
        """Every ``gauge_every`` updates, check the rollout with the largest lag against its own weights.

        Returns the deviations by group.
        """
        every, updates = self.config.algo.gauge_every, self.learner.updates
        oldest = min(rollouts, key=lambda rollout: rollout.version)
        is_due = every > 0 and (updates % every == 0 or updates <= 2)
        if oldest.version == updates or not is_due or oldest.version not in self._past:
            return {}
        acted = copy.deepcopy(self.policy)
        acted.load_state_dict(self._past[oldest.version])
        own = policies.by_group(acted)
        return {
            name: self.learners[name].deviation_check.check_late(part, own[name], updates)
            for name, part in by_group(oldest).items()
        }

    def _remember(self) -> None:
        """Store the weights of every version that rollouts may still come from (async mode)."""
        if self.config.mode == "lockstep":
            return
        updates = self.learner.updates
        self._past[updates] = tree.clone(dict(self.policy.state_dict()))
        for version in [v for v in self._past if v < updates - self.config.lag_limit]:
            del self._past[version]

    def restart_episodes(self) -> None:
        """Start new episodes at the next iteration, for example because the env was used elsewhere."""
        self.collector.restart_episodes()

    def learned(self, *, live: bool) -> Learned:
        """The state of training; ``live``: with core states and env state, for an exact resume."""
        tensors = {  # first: learner processes finish their updates
            f"{group}/{name}" if group else name: tensor
            for group in self.learners
            for name, tensor in self._learner_tensors(group).items()
        }
        return Learned(
            steps=self.steps,
            updates=self.learner.updates,
            optimizer=tensors,
            trainer=self._state() if live else None,
        )

    def _learner_tensors(self, group: str) -> dict[str, torch.Tensor]:
        if self._processes:
            return self._processes[group].tensors()
        return learner_tensors(self.learners[group])

    def restore(self, learned: Learned) -> None:
        """Restore the state of training and set ``is_exact``."""
        for group, learner in self.learners.items():
            prefix = f"{group}/" if group else ""
            own = {
                name.removeprefix(prefix): t
                for name, t in learned.optimizer.items()
                if name.startswith(prefix)
            }
            if self._processes:
                self._processes[group].load(replace(learned, optimizer=own))
            else:
                load_learner(learner, replace(learned, optimizer=own))
        for process in self._processes.values():
            process.settle()
        self._forget()
        self.steps = self.start = self.end = learned.steps
        self.restart_episodes()
        self.is_exact = learned.steps == 0
        saved = learned.trainer
        if saved is None:
            return
        self.start, self.end = saved.numbers["start"], saved.numbers["end"]
        episodes, actor = (
            {name.removeprefix(group): t for name, t in saved.tensors.items() if name.startswith(group)}
            for group in ("episodes/", "actor/")
        )
        self.episodes.restore({name: tensor.numpy() for name, tensor in episodes.items()})
        # It does not fit if the env is a foreign one, or a generator of another kind of device.
        is_known = bool(actor) and self.collector.is_exact
        self.is_exact = is_known and self.collector.restore(actor, learned.updates) and self._is_complete

    @property
    def _is_complete(self) -> bool:
        """Whether the last ``restore`` found all that the learners need."""
        return all(learner.is_complete for learner in self.learners.values())

    @property
    def how_restored(self) -> str:
        """How training continues after ``restore``, in words."""
        if self.is_exact:
            return "bit for bit"
        if not self._is_complete:
            return "with an empty replay, which is filled again: save_replay was off"
        if not self.collector.is_exact:
            return "in new episodes: an async run cannot resume mid-episode"
        return "in new episodes: this env has no snapshots, or the run was saved in the middle of an update"

    def dismiss(self) -> None:
        """Stop the processes of learners, if any; the next iteration would start new ones."""
        for updater in self._updaters.values():
            updater.close()
        for process in self._processes.values():
            process.dismiss()

    def close(self) -> None:
        """Close envs and stop actors and learner processes."""
        for updater in [*self._updaters.values(), *self._processes.values()]:
            updater.close()
        for learner in self.learners.values():
            learner.forget_graphs()
        self.collector.close()

    def _state(self) -> TrainerState:
        live = self.collector.snapshot() if self.collector.is_exact else None
        episodes = {name: torch.from_numpy(value) for name, value in self.episodes.snapshot().items()}
        tensors = {f"episodes/{name}": tensor for name, tensor in episodes.items()}
        tensors |= {f"actor/{name}": tensor for name, tensor in (live or {}).items()}
        return TrainerState({"start": self.start, "end": self.end}, tensors)
