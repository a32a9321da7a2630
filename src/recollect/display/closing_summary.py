"""The summary after a run: outcome, results, next commands."""

from __future__ import annotations

import shlex

from recollect.base import formatting
from recollect.display.state import State
from recollect.envs.env_names import is_importing
from recollect.training.trusted_runs import is_trusted

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
        return "failed", reason.removeprefix(ERROR)
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
    folder = shlex.quote(state.run)
    env = state.training.agent.env
    own = f" --env {shlex.quote(env)}" if isinstance(env, str) and is_importing(env) else ""
    if own and (run := state.training.run) is not None and is_trusted(run.path, run.description):
        own = ""
    kind, _ = outcome(reason)
    if reason == "interrupt" or (kind == "failed" and state.checkpoint is not None):
        return [f"recollect resume {folder}{own}", f"recollect report {folder}"]
    return [f"recollect report {folder}"]
