"""A training without an agent: what displays see of one, told by hand."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from recollect.acting.evaluate import Evaluation
from recollect.base import formatting
from recollect.config.train import TrainConfig
from recollect.display.panel import View
from recollect.display.state import State
from recollect.policy.heads import ActionHead
from recollect.training.callbacks import Callback
from recollect.training.metrics import History

ADVICE = (
    "the gradient was clipped in [every] minibatch of 100 updates: lower learning_rate, or raise the limit"
)


class LSTM:
    """Stands for a core: only its name is shown."""


class Clock:
    """A time that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_training(*, run: str | None = "runs/cue-7", end: int = 100_000, **settings: Any) -> Any:
    config = TrainConfig().override(**settings)
    policy = SimpleNamespace(core=LSTM(), head=ActionHead, made_by=None)
    return SimpleNamespace(
        agent=SimpleNamespace(env="delayed-cue", policy=policy, network=policy),
        config=config,
        start=0,
        end=end,
        steps=0,
        seconds=0.0,
        signal=0,
        history=History(),
        opening="12,345 weights; effective horizon 100 steps",
        run=None if run is None else SimpleNamespace(path=Path(run), status={"best": None}, description={}),
    )


def metrics_at(training: Any, steps: int, **more: float) -> dict[str, float]:
    """A row of metrics; the training is moved there."""
    training.steps, training.seconds = steps, steps / 1000
    row = {
        "steps": float(steps),
        "episodes": float(steps // 12),
        "return": steps / training.end,
        "length": 12.0,
        "loss/policy": -0.0123,
        "loss/value": 0.0456,
        "entropy": 0.321,
        "kl": 0.0071,
        "clip_fraction": 0.07,
        "explained_variance": 0.83,
        "deviation/log_prob": 2e-7,
        "deviation/value": 3e-6,
        "value/max": 1.0,
        "value/min": 0.0,
        "staleness": 0.08,
        "lag": 0.0,
        "speed/total": 16_000.0,
        "speed/env": 64_000.0,
        "speed/act": 32_000.0,
        "speed/learn": 64_000.0,
    } | more
    training.history.add(row)
    return row


def evaluation_of(mean: float) -> Evaluation:
    returns = np.where(np.arange(100) < 100 * mean, 1.0, 0.0)
    return Evaluation(returns, np.full(100, 12))


INTERVAL = " to ".join(formatting.number(end) for end in evaluation_of(0.6).interval)


def make_state(training: Any = None, *, until: int = 50_000) -> tuple[State, Clock]:
    clock = Clock()
    training = training or make_training(eval_every=20_000)
    state = State(training, clock)
    for steps in range(2_000, until + 1, 2_000):
        clock.now += 0.125
        state.iterated(metrics_at(training, steps))
        state.mark()
    return state, clock


def drawn(
    state: State, width: int = 80, height: int = 30, encoding: str = "utf-8", **kwargs: Any
) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, color_system=None, force_terminal=True)
    console.print(View(state, **kwargs))
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


def terminal(width: int = 80, height: int = 30) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, height=height, force_terminal=True, color_system=None), out


def play(display: Callback, training: Any, *, reason: str = "steps", clock: Clock | None = None) -> None:
    """A whole small run, as the training loop tells it."""
    display.on_start(training)
    for i, steps in enumerate(range(10_000, 100_001, 10_000)):
        if clock is not None:
            clock.now += 2.0
        if i == 3:
            display.on_advice(training, ADVICE)
        display.on_iteration(training, metrics_at(training, steps))
        if i == 5:
            display.on_evaluation(training, evaluation_of(0.6))
            display.on_checkpoint(training, Path("runs/cue-7/checkpoints/000000060000"))
    display.on_end(training, reason)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True
