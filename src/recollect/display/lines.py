"""Displays that print lines: text for logs, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from recollect.base import files, formatting, json_output
from recollect.display import closing_summary, words
from recollect.display.base import Display, standard_error
from recollect.display.state import Clock, State


class Lines(Display):
    """A line after the first update, then every five seconds; others for evaluations, checkpoints, advice."""

    every = 5.0

    def __init__(self, console: Console | None = None, clock: Clock = time.monotonic):
        super().__init__(clock)
        self.console = console or standard_error()
        self._is_printed = True

    def start(self) -> None:
        """Print env, core, run and the opening."""
        state = self.state
        self.drawn_at = -math.inf  # the first update has a line at once
        self._print(", ".join(filter(None, (state.env, state.core, state.run))))
        if opening := state.training.opening:
            self._print(opening)

    def iterated(self) -> None:
        """Print a line every few seconds."""
        self._is_printed = False
        super().iterated()

    def evaluated(self) -> None:
        """Print the evaluation."""
        self._print(f"{_at(self.state)}  evaluation {self.state.evaluation}")

    def advised(self, text: str) -> None:
        """Print the advice."""
        self._print(f"{_at(self.state)}  advice: {text}")

    def warned(self, text: str) -> None:
        """Print the warning."""
        self._print(f"{_at(self.state)}  warning: {text}")

    def saved(self, path: Path) -> None:
        """Print the path."""
        self._print(f"{_at(self.state)}  checkpoint {words.path(path)}")

    def ended(self, reason: str) -> None:
        """Print the last metrics and the summary."""
        if not self._is_printed:
            self.draw()
        (kind, why), *rest = closing_summary.summary(self.state, reason)
        self._print(f"{kind}: {why}")
        for name, text in rest:
            self._print(f"  {name:<12}{text}")
        for command in closing_summary.commands(self.state, reason):
            self._print(f"  {command}")

    def draw(self) -> None:
        """Print the metrics."""
        super().draw()
        self._is_printed = True
        self._print(line(self.state))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True, emoji=False)


def line(state: State) -> str:
    """The state of a run in one line with columns of constant width."""
    metrics = state.metrics
    deviations = [deviation for deviation in state.deviations().values() if deviation is not None]
    columns = [
        f"{_at(state)} {formatting.share(int(state.fraction * 100) / 100):>4}",
        f"return {formatting.number(metrics.get('return')):>7}",
        f"{formatting.count(metrics.get('speed/total')):>8}/s",
        f"left {formatting.duration(state.left()):>8}",
        f"deviation {formatting.tiny(max(deviations, default=None))}",
    ]
    if (actors := state.remote_actors()) is not None:
        columns += [
            f"actors {actors.range}/s",
            f"lag {formatting.number(metrics.get('lag'))}",
            f"wait {formatting.share(actors.waits)}",
            *actors.trouble(),
        ]
    return "  ".join(columns)


def _at(state: State) -> str:
    return f"{formatting.count(state.steps):>11}"


class JsonLines(Display):
    """One JSON object per line on stdout for each event, flushed at once. NaN and Inf are null."""

    def __init__(self, file: IO[str] | None = None, clock: Clock = time.monotonic):
        super().__init__(clock)
        self._file = file

    def start(self) -> None:
        """Write ``start``, with env, core and run."""
        state = self.state
        training = state.training
        self._write(
            "start",
            env=state.env,
            core=state.core,
            run=None if training.run is None else str(training.run.path),
            **{name: getattr(training, name) for name in ("start", "end", "opening")},
            **{name: getattr(training.config, name) for name in ("runtime", "mode", "actors")},
        )

    def iterated(self) -> None:
        """Write ``iteration``, with all metrics."""
        self._write("iteration", **self.state.metrics | {"seconds": float(self.state.training.seconds)})

    def evaluated(self) -> None:
        """Write ``evaluation``, with mode, mean and interval."""
        score = self.state.evaluation
        assert score is not None
        self._write("evaluation", steps=score.steps, **score.to_json())

    def advised(self, text: str) -> None:
        """Write ``advice``, with its text."""
        self._write("advice", steps=self.state.steps, text=text)

    def warned(self, text: str) -> None:
        """Write ``warning``, with its text."""
        self._write("warning", steps=self.state.steps, text=text)

    def saved(self, path: Path) -> None:
        """Write ``checkpoint``, with its path."""
        self._write("checkpoint", steps=self.state.steps, path=str(path))

    def ended(self, reason: str) -> None:
        """Write ``end``, with the reason."""
        state = self.state
        self._write("end", reason=reason, steps=state.steps, seconds=float(state.training.seconds))

    def abandon(self, error: BaseException) -> None:
        """Redirect a closed stdout to /dev/null: its buffer would fail again when Python exits."""
        if self._file is None and isinstance(error, BrokenPipeError):
            stdout, nowhere = json_output.results().fileno(), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stdout)
            os.close(nowhere)

    def _write(self, event: str, **fields: Any) -> None:
        file = self._file or json_output.results()
        file.write(json.dumps({"event": event} | files.finite(fields), allow_nan=False) + "\n")
        file.flush()
