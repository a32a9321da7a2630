"""One run of a sweep: its folder, its progress, and the next command."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recollect.base import files
from recollect.base.formatting import number
from recollect.config.flags import parse_repeated
from recollect.config.serialise import config_to_json
from recollect.envs.env_names import is_importing
from recollect.errors import RecollectError
from recollect.sweep.plan import Variant, take
from recollect.training import trusted_runs, trusted_settings
from recollect.training.evaluation_rows import mode_of
from recollect.training.parse_config import Parsed, parse_config
from recollect.training.run_folder import Run

Left = Literal["train", "resume", "evaluate", "nothing"]
"""The next action for a run."""
EVALUATE = "import sys; from recollect.sweep.member import evaluate; evaluate(*sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run; None for values that are not known yet."""

    steps: int = 0
    end: int | None = None
    seconds: float = 0.0
    mean_return: float | None = None
    evaluation: float | None = None
    """The mean return of the last evaluation."""
    mode: str = "greedy"
    """The actions of that evaluation: greedy or sampled."""

    @property
    def evaluated(self) -> str:
        """The last evaluation and its actions, such as "greedy eval 0.93"."""
        if self.evaluation is None:
            return f"eval {number(None)}"
        return f"{self.mode} eval {number(self.evaluation)}"

    @property
    def fraction(self) -> float:
        """Progress of the training, in [0, 1]."""
        return min(1.0, self.steps / self.end) if self.end else 0.0

    @property
    def left(self) -> float | None:
        """Estimated seconds to the end, at the speed so far."""
        return self.seconds * (1 / self.fraction - 1) if self.fraction > 0 else None


@dataclass(frozen=True, slots=True)
class Member:
    """One variant with one seed."""

    variant: Variant
    seed: int
    path: Path
    """The run's folder."""
    flags: tuple[str, ...]
    """The variant's flags, with the sweep's copies of config files."""
    threads: int | None = None
    """CPU threads, unless the user set them."""

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.variant.name} seed {self.seed}"

    @property
    def log(self) -> Path:
        """The output of its processes."""
        return self.path.with_name(f"{self.path.name}.log")

    def left(self) -> Left:
        """The next action, from the run's folder. Raises RecollectError if the folder is damaged."""
        run = self._run()
        if run is None or not run.checkpoints():
            return "train"
        status = run.status
        # A run stopped by its own settings, such as max_seconds, is complete.
        has_stopped_itself = status["state"] == "stopped" and status["reason"] != "interrupt"
        if status["state"] != "finished" and not has_stopped_itself:
            return "resume"
        return "nothing" if self._final().get("steps") == status["steps"] else "evaluate"

    def is_over(self) -> bool:
        """Whether nothing is left to do. A damaged run is not over: it fails when it is started."""
        try:
            return self.left() == "nothing"
        except (RecollectError, OSError):
            return False

    def is_readable(self) -> bool:
        """Whether its folder holds an undamaged run."""
        try:
            return self._run() is not None
        except (RecollectError, OSError):
            return False

    def score(self) -> float | None:
        """The mean return of its final evaluation; None if there is none."""
        return self._final().get("mean") if self.is_over() else None

    def mode(self) -> str:
        """The actions of its last evaluation: greedy or sampled."""
        last = files.last_row(self.path / "evaluations.jsonl")
        return mode_of(last if isinstance(last, dict) else {})

    def progress(self) -> Progress:
        """Its progress, from the last lines of its files."""
        status = _numbers(_read(self.path / "status.json"))
        metrics = _numbers(files.last_row(self.path / "metrics.jsonl"))
        return Progress(
            steps=int(metrics.get("steps") or status.get("steps") or 0),
            end=status.get("end"),
            seconds=float(metrics.get("seconds") or 0.0),
            mean_return=metrics.get("return"),
            evaluation=self._final().get("mean"),
            mode=self.mode(),
        )

    # For run_processes.py

    def is_busy(self) -> bool:
        """Whether another process still trains in its folder."""
        run = self._run()
        return run is not None and run.is_active

    def command(self) -> list[str] | None:
        """The command to run next; None: nothing is left to do."""
        threads = [] if self.threads is None else [f"--threads={self.threads}"]
        env = [f"--env={self.variant.env}"] if is_importing(self.variant.env) else []
        quiet = ["--quiet", "--no-report"]
        match self.left():
            case "train":
                own = [f"--seed={self.seed}", *threads, f"--run={self.path}"]
                return [*_recollect("train"), self.variant.env, *self.flags, *own, *quiet]
            case "resume":
                return [*_recollect("resume"), str(self.path), *env, *self.named(), *threads, *quiet]
            case "evaluate":
                return [sys.executable, "-c", EVALUATE, str(self.path), *env, *self.code()]
            case "nothing":
                return None

    def named(self) -> list[str]:
        """The flags of ``resume`` that must be repeated because a run's folder cannot set them."""
        return [*self.code(), *trusted_settings.outward_flags(self._parsed().config)]

    def code(self) -> list[str]:
        """The flags that name code other than the env, and pass options to code."""
        parsed = self._parsed()
        maker = None if parsed.policy is None else parsed.policy.name
        config = config_to_json(parsed.config, parsed.config.policy, made_by=maker)
        settings = trusted_runs.required({"env": self.variant.env, "config": config})
        return trusted_runs.flags({name: value for name, value in settings.items() if name != "env"})

    def _parsed(self) -> Parsed:
        return parse_config(list(self.flags), env=self.variant.env)

    def _run(self) -> Run | None:
        """The run in its folder, if there is one."""
        if not Run.is_run(self.path):
            return None
        try:
            return Run(self.path)
        except RecollectError as error:
            raise RecollectError(f"{error}, or remove {self.path} to restart this run") from None

    def _final(self) -> dict[str, Any]:
        return _numbers(files.last_row(self.path / "evaluations.jsonl"))


def evaluate(path: str, *flags: str) -> None:
    """Make the final evaluation of a run that ended without one; ``flags`` name its code again."""
    from recollect.api import load

    env, rest = take(list(flags), "--env")
    with load(path, env=env, checkpoint="last", **parse_repeated(rest, env=env)) as agent:
        Run(path).add_evaluation(agent.steps, agent.evaluate(agent.config.eval_episodes))


def _read(file: Path) -> Any:
    try:
        return files.read_json(file)
    except RecollectError:
        return {}


def _numbers(found: Any) -> dict[str, Any]:
    """The entries that are numbers; anything else in a damaged file is ignored."""
    items = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in items if files.is_number(value)}


def _recollect(command: str) -> list[str]:
    return [sys.executable, "-m", "recollect", command]
