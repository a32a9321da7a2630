"""The notebook display (Jupyter, Colab): a progress bar updated in place."""

from __future__ import annotations

import html
import importlib
import sys
from typing import Any

from recollect.base import formatting
from recollect.display import closing_summary, words
from recollect.display.base import Display
from recollect.display.lines import line
from recollect.display.state import RemoteActors, State


def is_notebook() -> bool:
    """Whether this runs in a notebook's kernel, which has IPython imported already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    kinds = type(shell).__mro__
    return any(k.__name__ == "ZMQInteractiveShell" or k.__module__.startswith("google.colab") for k in kinds)


class Notebook(Display):
    """HTML in the cell's output; front ends without HTML show one line of text."""

    every = 0.5
    _handle: Any
    _reason: str | None

    def start(self) -> None:
        """Show the empty bar."""
        self._handle, self._reason = None, None
        self.draw()

    def ended(self, reason: str) -> None:
        """Update for the last time, with the summary."""
        self._reason = reason
        self.draw()

    def draw(self) -> None:
        """Update the cell's output."""
        super().draw()
        bundle = {"text/html": page(self.state, self._reason), "text/plain": line(self.state)}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def page(state: State, reason: str | None = None) -> str:
    """The state, and after the end the summary, as HTML that fits light and dark backgrounds."""
    metrics, dot = state.metrics, " · "
    place = f"{formatting.count(state.steps)} of {formatting.count(state.training.end)} steps"
    clock = f"{formatting.duration(state.elapsed)} elapsed"
    if reason is None:
        clock += f"{dot}{formatting.duration(state.left())} left"
    facts = [f"return <b>{formatting.number(metrics.get('return'))}</b>"]
    if curve := words.sparkline(state.returns(), 16):
        facts.append(curve)
    if (score := state.evaluation) is not None:
        shown = [score] if score.sampled is None else [score, score.sampled]
        facts += [f"{s.mode} evaluation {formatting.number(s.mean)} ({s.interval})" for s in shown]
    facts.append(f"{formatting.count(state.speed('total'))} steps/s")
    actors = state.remote_actors()
    marks = {True: "✓", False: "⚠", None: ""}
    gauges = [f"{marks[gauge.is_good]} {gauge.name} {gauge.text}" for gauge in state.gauges()]
    rows = [
        f"<b>{html.escape(state.env)}</b>{dot}{html.escape(state.core)}",
        f'<progress value="{state.fraction:.4f}" max="1" style="width: 100%"></progress>',
        f"{place}{dot}{clock}",
        dot.join(facts),
        f"honesty: {dot.join(gauges)}",
        *([] if actors is None else [f"actors: {dot.join(_facts(actors))}"]),
        *(f"⚠ {html.escape(text)}" for text in state.notices),
    ]
    if reason is not None:
        (kind, why), *rest = closing_summary.summary(state, reason)
        rows.append(f"<b>{kind}</b>: {html.escape(why)}")
        rows += [f"{name}: {html.escape(text)}" for name, text in rest]
        rows += [
            f"<code>{html.escape(command)}</code>" for command in closing_summary.commands(state, reason)
        ]
    else:
        rows.append(f"<i>interrupt the kernel to {'save and stop' if state.run else 'stop'}</i>")
    body = "".join(f"<div>{row}</div>" for row in rows)
    return f'<div style="max-width: 46em; line-height: 1.6">{body}</div>'


def _facts(actors: RemoteActors) -> list[str]:
    """The state of actors in other processes."""
    shares = ", ".join(f"{name} {formatting.share(share)}" for name, share in actors.shares.items())
    waits = [] if actors.waits is None else [f"the learner waits {formatting.share(actors.waits)}"]
    queue = ", ".join(actors.queue())
    return [actors.place, f"{actors.range} steps/s each", f"time: {shares}", queue, *waits, *actors.trouble()]
