"""The summary after a run: outcome, results, next commands."""

from __future__ import annotations

import shlex

from recollect.base import formatting
from recollect.config.serialise import CUSTOM
from recollect.display.state import State
from recollect.training import trusted_runs, trusted_settings

REASONS = {
    "steps": ("finished", "all steps done"),
    "target": ("finished", "target return reached"),
    "time": ("stopped", "time limit reached (max_seconds)"),
    "interrupt": ("stopped", "interrupted"),
}
CALLBACK, ERROR = "callback: ", "error: "


def outcome(reason: str) -> tuple[str, str]:
    """ "finished", "stopped" or "failed", and the reason in words."""
    if reason.startswith(ERROR):
        return "failed", "the error is below"  # the exception, which the caller prints
    if reason.startswith(CALLBACK):
        return "stopped", reason.removeprefix(CALLBACK)
    return REASONS.get(reason, ("stopped", reason))


def summary(state: State, reason: str) -> list[tuple[str, str]]:
    """Lines of (name, text); the first is the outcome."""
    training, metrics = state.training, state.metrics
    seconds = float(training.seconds)
    made = state.steps - state.first_step
    pace = f", {formatting.count(made / state.spent)} a second" if made and state.spent > 0 else ""
    lines = [
        outcome(reason),
        ("steps", f"{formatting.count(state.steps)} in {formatting.duration(seconds)}{pace}"),
    ]
    if "return" in metrics:
        window = training.config.target_episodes
        over = f"mean of the last {min(window, int(metrics.get('episodes', window))):,} episodes"
        lines.append(("return", f"{formatting.number(metrics['return'])}, {over}"))
    if state.evaluation is not None:
        lines.append(("evaluation", str(state.evaluation)))
        if state.evaluation.difference is not None:
            lines.append(("note", state.evaluation.difference))
    if state.best is not None and (state.evaluation is None or state.best[1] != state.evaluation.steps):
        mean, steps, mode = state.best
        lines.append(("best", f"{mode} {formatting.number(mean)} at {formatting.count(steps)} steps"))
    if state.run is not None:
        lines.append(("run", state.run))
    return lines


def commands(state: State, reason: str) -> list[str]:
    """The next commands, ready to be copied."""
    if state.run is None:
        return []
    report = ["recollect", "report", state.run]
    kind, _ = outcome(reason)
    if reason not in ("interrupt", "time") and (kind != "failed" or state.checkpoint is None):
        return [shlex.join(report)]
    # An interrupted run has recorded no episodes: the report plays some.
    report += _code(state) if reason != "time" else []
    return [_resume_command(state, state.run, is_time_up=reason == "time"), shlex.join(report)]


def _code(state: State) -> list[str]:
    """The flags that name the run's own code again, unless the user trusts it."""
    run = state.training.run
    if run is None or trusted_runs.is_trusted(run.path, run.description):
        return []
    return trusted_runs.flags(trusted_runs.required(run.description))


def _resume_command(state: State, folder: str, *, is_time_up: bool) -> str:
    """The command that resumes the run, with all that must be named again; in Python if it has no name."""
    training = state.training
    agent, limit = training.agent, training.config.max_seconds
    seconds = None
    if limit is not None and is_time_up:  # as many as this training had
        seconds = max(1, round(limit - (state.elapsed - state.spent)))
    has_policy = agent.network.made_by == CUSTOM
    if not isinstance(agent.env, str) or has_policy:
        given = [repr(folder), "env=..." if not isinstance(agent.env, str) else f"env={agent.env!r}"]
        given += ["policy=..."] if has_policy else []
        given += [] if seconds is None else [f"max_seconds={seconds}"]
        return f"recollect.resume({', '.join(given)})"
    words = [*_code(state), *trusted_settings.outward_flags(training.config)]
    words += [] if seconds is None else ["--max-seconds", str(seconds)]
    return shlex.join(["recollect", "resume", folder, *words])
