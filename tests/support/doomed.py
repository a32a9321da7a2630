"""Training in processes of their own, which are killed, stopped or blocked at a moment that a test chooses.

Processes come from a fork server that has everything imported: a hundred of them take seconds.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

import recollect as rc
from recollect.training.run_folder import Run
from tests.support.helpers import ScriptedEnv

TIMEOUT = 120.0
"""Seconds after which a process that should have ended, or a thing that should have happened, is given up."""
SMALL: dict[str, Any] = {
    "rollout": 12,
    "chunk": 4,
    "num_envs": 4,
    "epochs": 1,
    "minibatches": 2,
    "encoder": rc.EncoderConfig(hidden=(8,)),
    "core": rc.LSTMConfig(hidden=8),
    "threads": 1,
    "checkpoint_every": 48,
    "progress": False,
}
"""An iteration is 48 steps and takes 20 ms; a checkpoint follows each."""
UPDATE = 48


def warm_up() -> None:
    """What the first training of a process spends its time on, but for the training: imports."""
    torch.set_num_threads(1)
    with rc.Agent.create("delayed-cue", rc.TrainConfig().override(**without(SMALL, "progress"))):
        pass


def skip_fsync() -> None:
    """It keeps a power cut from taking back what was written. Nothing here cuts the power, and it is slow."""
    os.fsync = lambda _: None


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


# In the test's own process ---------------------------------------------------------------------------------


def start(target: Callable[..., None], *args: Any) -> BaseProcess:
    """Call ``target`` in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.doomed_server"])
    process = context.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    """Wait for its end; the exit code, negative for a signal."""
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("the process did not end")
    return process.exitcode


def wait_for(condition: Callable[[], Any], process: BaseProcess | None = None) -> None:
    """Until it holds; an error if the process, which was to bring it about, ends before."""
    limit = time.monotonic() + TIMEOUT
    while not condition():
        assert process is None or process.is_alive() or condition(), f"it ended with {process.exitcode}"
        assert time.monotonic() < limit, "it has not happened"
        time.sleep(0.005)


@contextmanager
def ends_soon(after: Callable[[], bool] = lambda: True, seconds: float = 30.0) -> Iterator[None]:
    """Once ``after()`` holds, the block ends within ``seconds``; else its wait is interrupted, and it fails.

    As by Ctrl-C, which no handling of errors takes for one; not by SIGALRM, which the timeouts of tests need.
    """
    over, is_late, main = threading.Event(), threading.Event(), threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        while not after():
            if over.wait(0.02):
                return
        if not over.wait(seconds):
            is_late.set()
            signal.pthread_kill(main, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except KeyboardInterrupt:
        if is_late.is_set():
            raise AssertionError(f"it has not ended within {seconds:g} seconds") from None
        raise
    finally:
        over.set()
        watching.join()
        signal.signal(signal.SIGUSR2, before)


def weights(agent: rc.Agent) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items()}


def differing(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    """The names of what is not bitwise equal."""
    assert one.keys() == two.keys()
    return [name for name in one if not torch.equal(one[name], two[name])]


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics but for those that are times."""
    return [
        {name: value for name, value in row.items() if name != "seconds" and not name.startswith("speed/")}
        for row in Run(path).metrics()
    ]


def leftovers(path: Path) -> list[str]:
    """Hidden files and folders, and checkpoints that are not whole."""
    hidden = [str(p.relative_to(path)) for p in path.rglob(".*")]
    return hidden + [p.name for p in Run(path).checkpoints() if not (p / "agent.json").is_file()]


def edit(folder: Path, *, checksum: bool = True, **changes: Any) -> None:
    """Change agent.json, as an editor would; with ``checksum`` as somebody who knows the format."""
    from recollect.training import checkpoints

    file = folder / "agent.json"
    description = json.loads(file.read_text()) | changes
    if checksum:
        parts = {p.name: checkpoints._sha256(p.read_bytes()) for p in folder.glob("*.safetensors")}
        description["sha256"] = parts
        description["sha256"]["agent.json"] = checkpoints.checksum(description)
    file.write_text(json.dumps(description))


# In the doomed process -------------------------------------------------------------------------------------


def train(path: str, settings: dict[str, Any]) -> None:
    """A run from its beginning."""
    rc.train("delayed-cue", run=path, **settings)


def supervise(path: str, settings: dict[str, Any]) -> None:
    """Train, or go on with what is there, as a script that is started again and again would."""
    if not Run.is_run(path) or not Run(path).checkpoints():
        train(path, settings)
    elif Run(path).status["state"] != "finished":
        rc.resume(path, progress=False)


def die(*_: Any, **__: Any) -> None:
    """As the kernel does when memory is short: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at_change(path: str, settings: dict[str, Any], count: int) -> None:
    """``supervise``, killed just before the ``count``-th change that it makes to the file system.

    A line that was just being appended is left half written.
    """
    left, appended = count, None

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left, appended
        if event == "open":
            flags = args[2] if isinstance(args[2], int) else 0
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or path not in os.fspath(args[0]):
                return
        elif event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            return
        left -= 1
        if left == 0:
            if appended is not None:
                cut_last_line(Path(appended))
            die()
        name = os.fspath(args[0]) if event == "open" else ""
        appended = name if name.endswith(".jsonl") else None

    sys.addaudithook(hook)
    supervise(path, settings)


def cut_last_line(file: Path) -> None:
    """Leave the first half of it."""
    text = file.read_bytes()
    last = text[:-1].rfind(b"\n") + 1
    os.truncate(file, last + (len(text) - last) // 2)


def dies_inside(path: str, settings: dict[str, Any], place: str, updates: int) -> None:
    """Train; after some updates, die the next time that ``place`` is reached. See ``PLACES``."""

    def arm(training: Any, metrics: dict[str, float]) -> None:
        if metrics["updates"] == updates:
            PLACES[place]()

    rc.train("delayed-cue", run=path, callbacks=[arm], **settings)


def dies_in_a_second_leg(path: str, steps: int, updates: int) -> None:
    """Train a finished run for longer, and die after so many updates."""
    rc.resume(
        path, steps=steps, progress=False, callbacks=[lambda t, m: die() if t.updates == updates else None]
    )


def _patched(owner: Any, name: str, before: bool, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    real = getattr(owner, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if before and when(*args, **kwargs):
            die()
        result = real(*args, **kwargs)
        if not before and when(*args, **kwargs):
            die()
        return result

    setattr(owner, name, function)


def _half_of_the_description() -> None:
    real = Path.write_text

    def write_text(self: Path, text: str, *args: Any, **kwargs: Any) -> int:
        if self.name != "agent.json":
            return real(self, text, *args, **kwargs)
        real(self, text[: len(text) // 2], *args, **kwargs)
        die()
        return 0

    Path.write_text = write_text  # pyright: ignore[reportAttributeAccessIssue]


def _places() -> dict[str, Callable[[], None]]:
    import shutil

    from recollect.base import run_files
    from recollect.training import checkpoints

    def is_checkpoint(self: Path, target: Any) -> bool:
        return re.fullmatch(r"\d{12}", Path(target).name) is not None

    def is_in_checkpoint(path: Path) -> bool:
        return path.name in run_files.FILES

    def is_status(_: Any, target: Any) -> bool:
        return Path(target).name == "status.json"

    def is_old(folder: Any, **_: Any) -> bool:
        return re.fullmatch(r"\.?\d{12}(-removed)?", Path(folder).name) is not None

    def is_in_a_tree(_: Any, *, dir_fd: int | None = None) -> bool:
        return dir_fd is not None

    return {
        "before the first file": lambda: _patched(checkpoints, "_fill", True),
        "after the first file": lambda: _patched(checkpoints, "save_file", False),
        "in agent.json": _half_of_the_description,
        "before it is on the disk": lambda: _patched(checkpoints, "sync", True, is_in_checkpoint),
        "before the renaming": lambda: _patched(checkpoints, "_swap", True),
        "just before the renaming": lambda: _patched(Path, "rename", True, is_checkpoint),
        "after the renaming": lambda: _patched(Path, "rename", False, is_checkpoint),
        "before the status": lambda: _patched(os, "replace", True, is_status),
        "after the status": lambda: _patched(os, "replace", False, is_status),
        "before an old one goes": lambda: _patched(shutil, "rmtree", True, is_old),
        "while an old one goes": lambda: _patched(os, "unlink", False, is_in_a_tree),
    }


PLACES = _places()
"""Moments in the saving of a checkpoint."""


class WaitForSignal(rc.Callback):
    """After so many updates, say so with a file and wait for the signal that this calls for."""

    def __init__(self, updates: int, ready: str):
        self.updates, self.ready = updates, Path(ready)

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        if metrics["updates"] == self.updates:
            self.ready.touch()
            wait_for(lambda: training.signal)


def waits_for_signal(path: str, settings: dict[str, Any], updates: int, ready: str, said: str) -> None:
    """Train with ``WaitForSignal``; write what was raised to the file ``said``."""
    # Started under nohup, or in the background, this process has inherited others.
    before = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    for number, handler in before.items():
        signal.signal(number, handler)
    try:
        rc.train("delayed-cue", run=path, callbacks=[WaitForSignal(updates, ready)], **settings)
    except KeyboardInterrupt as error:
        text = {
            "type": type(error).__name__,
            "signal": getattr(error, "signal", None),
            "text": str(error),
            "restored": before == {number: signal.getsignal(number) for number in before},
        }
        Path(said).write_text(json.dumps(text))
        sys.exit(128 + getattr(error, "signal", 0))


class Blocking(ScriptedEnv):
    """Never comes back from a step, after some that went well."""

    def __init__(self, ready: str, steps: int):
        super().__init__()
        self.ready, self.left_to_block = Path(ready), steps

    def step(self, action: Any) -> Any:
        self.left_to_block -= 1
        if self.left_to_block < 0:
            self.ready.touch()
            wait_for(lambda: False)
        return super().step(action)


def blocks(path: str, settings: dict[str, Any], ready: str, steps: int, said: str) -> None:
    """Train in an env that blocks; stderr goes to the file ``said``."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    rc.train(lambda: Blocking(ready, steps), run=path, **settings)


def holds_the_lock(path: str, ready: str) -> None:
    """As a process that trains in the folder."""
    with Run(path).writing():
        Path(ready).touch()
        wait_for(lambda: False)


class Poison(rc.Callback):
    """Puts a NaN into a weight after so many updates: what a diverging update would do."""

    def __init__(self, updates: int):
        self.updates = updates

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        if metrics["updates"] == self.updates:
            with torch.no_grad():
                next(training.agent.policy.parameters()).view(-1)[0] = math.nan
