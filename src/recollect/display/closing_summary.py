"""The summary after a run: outcome, results, next commands."""

from __future__ import annotations

import shlex

from recollect.base import formatting
from recollect.display.state import State
from recollect.envs.env_names import is_importing
from recollect.training import trusted_settings

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
    if state.best is not None and (state.evaluation is None or state.best[1] != state.evaluation.steps):
        lines.append(
            ("best", f"{formatting.number(state.best[0])} at {formatting.count(state.best[1])} steps")
        )
    if state.run is not None:
        lines.append(("run", state.run))
    return lines


def commands(state: State, reason: str) -> list[str]:
    """The next commands, ready to be copied."""
    if state.run is None:
        return []
    report = f"recollect report {shlex.quote(state.run)}"
    kind, _ = outcome(reason)
    if reason in ("interrupt", "time") or (kind == "failed" and state.checkpoint is not None):
        return [_resume_command(state, state.run, is_time_up=reason == "time"), report]
    return [report]


def _resume_command(state: State, run: str, *, is_time_up: bool) -> str:
    """The command that resumes the run, with all that must be named again; in Python if it has no name."""
    training = state.training
    agent, limit = training.agent, training.config.max_seconds
    seconds = None
    if limit is not None and is_time_up:  # as many as this training had
        seconds = max(1, round(limit - (state.elapsed - state.spent)))
    if not isinstance(agent.env, str) or agent.policy.is_custom:
        given = [repr(run), "env=..." if not isinstance(agent.env, str) else f"env={agent.env!r}"]
        given += ["policy=..."] if agent.policy.is_custom else []
        given += [] if seconds is None else [f"max_seconds={seconds}"]
        return f"recollect.resume({', '.join(given)})"
    words = ["--env", agent.env] if is_importing(agent.env) else []
    words += trusted_settings.repeated_flags(agent.env, training.config)
    words += [] if seconds is None else ["--max-seconds", str(seconds)]
    return shlex.join(["recollect", "resume", run, *words])
