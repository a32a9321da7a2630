"""Sinks: send the metrics of a run to TensorBoard and Weights & Biases.

::

    rc.train("t-maze", run="runs/maze", sinks=("tensorboard", "wandb"))

All of the first thousand updates are sent, then one per second and the last, to keep files and charts
small. The run folder's ``metrics.jsonl`` has every update.

A sink that cannot start ends the run before training. One that fails later warns once, and the run
continues without it. NaN is not sent.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.config.serialise import config_to_json
from recollect.envs.env_names import display_name
from recollect.errors import ConfigError, nearest
from recollect.training.callbacks import Callback

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training

EVALUATION = {
    "evaluation/mean": "mean return of an evaluation",
    "evaluation/std": "standard deviation of its returns over episodes",
    "evaluation/low": "lower end of the 95% bootstrap interval of the mean",
    "evaluation/high": "upper end of that interval",
    "evaluation/length": "mean length of its episodes, in steps",
    "evaluation/greedy": "mean return with the most likely actions, if measured (`eval_mode`)",
    "evaluation/sampled": "mean return with sampled actions, if measured (`eval_mode`)",
}
"""The values sent for each evaluation, with one line each."""


def make_sinks(names: Sequence[str]) -> list[Callback]:
    """The sinks with these names; ConfigError if a package is missing."""
    sinks: list[Callback] = []
    for name in dict.fromkeys(names):
        if name not in SINKS:
            raise ConfigError(
                f"there is no sink {name!r}{nearest(str(name), SINKS)}: choose {' or '.join(SINKS)}"
            )
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder ``./wandb`` without code has no origin
            raise ConfigError(
                f"sinks has {name!r}, but the package {name} is not installed: "
                f"pip install 'recollect[{name}]'"
            )
        sinks.append(SINKS[name]())
    return sinks


class Sink(Callback):
    """Base class of sinks: limits the rate and handles failures. Subclasses open, write rows and close."""

    label = "sink"

    def __init__(self, *, burst: int = 1000, every: float = 1.0, clock: Callable[[], float] = time.monotonic):
        """Send all of the first ``burst`` updates, then one every ``every`` seconds."""
        self._burst, self._every, self._clock = burst, every, clock
        self._sent, self._last = 0, -math.inf
        self._waiting: dict[str, float] | None = None
        self._is_open = self._has_failed = False

    def on_start(self, training: Training) -> None:
        """Open the sink; an error ends the run before training."""
        self._sent, self._waiting, self._has_failed = 0, None, False
        self.open(training)
        self._is_open = True

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Send the metrics, or keep them in case they are the last."""
        if self._sent < self._burst or self._clock() - self._last >= self._every:
            self._sent, self._last, self._waiting = self._sent + 1, self._clock(), None
            self._attempt(self.write, int(metrics["steps"]), _numbers(metrics))
        else:
            self._waiting = metrics

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """Send the mean and its interval."""
        low, high = evaluation.interval
        numbers = (evaluation.mean, evaluation.std, low, high, float(evaluation.lengths.mean()))
        row = dict(zip(EVALUATION, numbers)) | {f"evaluation/{evaluation.mode}": evaluation.mean}
        if evaluation.sampled is not None:
            row["evaluation/sampled"] = evaluation.sampled.mean
        self._attempt(self.write, int(training.steps), _numbers(row))

    def on_end(self, training: Training, reason: str) -> None:
        """Send the last metrics, and close."""
        if self._waiting is not None:
            self._attempt(self.write, int(self._waiting["steps"]), _numbers(self._waiting))
        self._attempt(self.close, reason, is_last=True)
        self._is_open = False

    def open(self, training: Training) -> None:
        """Open the connection or file."""

    def write(self, steps: int, numbers: dict[str, float]) -> None:
        """Send values measured at env step ``steps``."""

    def close(self, reason: str) -> None:
        """Flush and close."""

    def _attempt(self, action: Callable[..., None], *args: Any, is_last: bool = False) -> None:
        """Call ``action`` and warn once about errors; after one, only the last call, to release resources."""
        if not self._is_open or (self._has_failed and not is_last):
            return
        try:
            action(*args)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                warnings.warn(
                    f"{self.label} failed ({type(error).__name__}: {error}); the run continues without it",
                    RuntimeWarning,
                    stacklevel=2,
                )


class TensorBoardSink(Sink):
    """Event files for ``tensorboard --logdir RUN``, over env steps.

    They are in ``RUN/tensorboard``; without a run folder, in a new folder under ``tensorboard/``.
    Hyperparameters, advice and warnings are texts. After a resume, TensorBoard drops values after the
    checkpoint.

    Args:
        folder: another folder for the event files.
    """

    label = "TensorBoard"

    def __init__(self, folder: str | Path | None = None, **options: Any):
        super().__init__(**options)
        self.folder = folder

    def open(self, training: Training) -> None:
        """Open an event file."""
        try:
            proto = import_module("tensorboard.compat.proto.event_pb2")
            self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
            self._text = import_module("torch.utils.tensorboard.summary").text
            make_writer = import_module("torch.utils.tensorboard").FileWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from None
        try:
            self._writer = make_writer(str(self._place(training)), max_queue=100, flush_secs=10)
        except OSError as error:
            raise ConfigError(f"the event file for TensorBoard cannot be written: {error}") from None
        if training.steps > 0:
            # TensorBoard drops later values of an earlier process: training repeats those steps.
            begin = proto.SessionLog(status=proto.SessionLog.START)
            self._writer.add_event(proto.Event(session_log=begin), training.steps + 1)
        described = json.dumps(describe(training), indent=2)
        as_code = re.sub("^", "    ", described, flags=re.MULTILINE)  # in Markdown
        self._say("config", as_code, int(training.steps))

    def write(self, steps: int, numbers: dict[str, float]) -> None:
        """Write all values as one event."""
        value = self._summary.Value
        rows = [value(tag=name, simple_value=number) for name, number in numbers.items() if name != "steps"]
        self._writer.add_summary(self._summary(value=rows), steps)

    def on_advice(self, training: Training, text: str) -> None:
        """Write the advice as a text at its step."""
        self._attempt(self._say, "advice", text, int(training.steps))

    def on_warning(self, training: Training, text: str) -> None:
        """Write the warning as a text at its step."""
        self._attempt(self._say, "warning", text, int(training.steps))

    def close(self, reason: str) -> None:
        """Close the event file."""
        self._writer.close()

    def _say(self, tag: str, words: str, steps: int) -> None:
        self._writer.add_summary(self._text(tag, words), steps)

    def _place(self, training: Training) -> Path:
        if self.folder is not None:
            return Path(self.folder)
        if training.run is not None:
            return Path(training.run.path) / "tensorboard"
        name = re.sub(r"[^\w.-]+", "-", display_name(training.agent.env) or "env")
        return Path("tensorboard") / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"


class WandbSink(Sink):
    """A run in Weights & Biases, online or, with WANDB_MODE=offline, in files for ``wandb sync``.

    The files and the id of the W&B run are in ``RUN/wandb``, so that a resumed run continues the same W&B
    run. The project is WANDB_PROJECT, or "recollect". If the program has called ``wandb.init`` itself, that
    run is used and left open.
    """

    label = "Weights & Biases"
    _run: Any = None
    _is_ours = False

    def open(self, training: Training) -> None:
        """Start the W&B run, or continue it."""
        try:
            wandb = import_module("wandb")
        except ImportError as error:
            raise _missing("wandb", error) from None
        self._is_ours = wandb.run is None
        try:
            self._run = wandb.run or wandb.init(**self._options(training, wandb))
        except Exception as error:
            raise ConfigError(
                f"Weights & Biases did not start ({error}): log in with `wandb login`, or set "
                "WANDB_MODE=offline and upload later with `wandb sync`"
            ) from error
        self._run.config.update(describe(training), allow_val_change=True)
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")

    def write(self, steps: int, numbers: dict[str, float]) -> None:
        """Log one row, over ``steps``."""
        self._run.log(numbers | {"steps": steps})

    def close(self, reason: str) -> None:
        """Finish the W&B run with an exit code, unless the program opened it."""
        run, self._run = self._run, None
        if self._is_ours:
            run.finish(exit_code=exit_code(reason))

    def _options(self, training: Training, wandb: Any) -> dict[str, Any]:
        """Arguments for ``wandb.init``; environment variables take precedence."""
        settings = {"console": "off", "quiet": True}  # a console would capture every redraw of the display
        settings = {name: v for name, v in settings.items() if f"WANDB_{name.upper()}" not in os.environ}
        options: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "recollect"),
            "settings": wandb.Settings(**settings),
        }
        if training.run is None:
            return options
        folder = Path(training.run.path)
        name = os.environ.get("WANDB_NAME", folder.resolve().name)
        return options | {"dir": str(folder), "name": name, "id": _wandb_id(folder), "resume": "allow"}


def exit_code(reason: str) -> int:
    """W&B's exit code: 0 for a run that ended, 255 if it was interrupted, 1 if it failed."""
    return 1 if reason.startswith("error") else 255 if reason == "interrupt" else 0


def describe(training: Training) -> dict[str, Any]:
    """The hyperparameters as plain JSON, with the name of the env."""
    network = training.agent.network
    config = config_to_json(training.config, network.config, made_by=network.made_by)
    return json.loads(json.dumps({"env": display_name(training.agent.env) or "env"} | config, default=str))


SINKS: Mapping[str, Callable[[], Callback]] = {"tensorboard": TensorBoardSink, "wandb": WandbSink}
"""By the names in ``sinks``, which are also the names of the packages and of Recollect's extras."""


def _wandb_id(folder: Path) -> str:
    """The id of the W&B run, kept in the run folder."""
    file = folder / "wandb" / "id.txt"
    try:
        if file.is_file() and (known := file.read_text().strip()):
            return known
        chosen = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(chosen + "\n")
    except OSError as error:
        raise ConfigError(f"the id of the W&B run cannot be stored in {file}: {error}") from None
    return chosen


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if not math.isnan(value)}


def _missing(package: str, error: ImportError) -> ConfigError:
    return ConfigError(f"{package} cannot be imported ({error}): pip install 'recollect[{package}]'")
