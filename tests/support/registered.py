"""Parts of every kind as a user registers them, in the text of a module; and a place to import it from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recollect.base import parts

TEXT = '''
"""Registers a part of each kind, and leaves a file beside itself when it is imported."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

import recollect as rc
from recollect.algos import ppo
from recollect.config.ppo import PPOConfig
from recollect.policy.heads import ActionHead
from recollect.runtimes.actor_envs import open_envs
from recollect.runtimes.inline_collector import InlineCollector
from recollect.tasks import make_task
from tests.support.own_parts import Average, Flat, World

Path(__file__).with_name("imported").touch()


@dataclass(frozen=True, slots=True)
class AverageConfig(rc.CoreConfig):
    at_least_1 = ("width",)

    width: int = 8
    """Number of averages."""


@rc.register("core", "average", config=AverageConfig)
class Averages(Average):
    """Averages of the input. They fade."""

    def __init__(self, input_size, config):
        super().__init__(input_size, config.width)


@dataclass(frozen=True)
class WideConfig:
    width: int = 4
    """Features of the encoder."""


@rc.register("encoder", "wide", config=WideConfig)
class Wide(nn.Module):
    def __init__(self, space, config):
        super().__init__()
        self.output_size = config.width
        self.linear = nn.Linear(space.shape[0], config.width)

    def forward(self, obs):
        return self.linear(obs)


@dataclass(frozen=True)
class SharpConfig:
    sharpness: float = 1.0
    """Multiplies the logits."""


@rc.register("head", "sharp", config=SharpConfig)
class Sharp(ActionHead):
    def __init__(self, space, features, config):
        super().__init__(space, features)
        self.sharpness = config.sharpness

    def distribution(self, outputs, mask=None):
        return super().distribution(outputs * self.sharpness, mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class CautiousConfig(PPOConfig):
    default_head = "sharp"

    caution: float = 2.0
    """Divides the loss."""


@rc.register("algo", "cautious", config=CautiousConfig)
class Cautious:
    acting, targets = staticmethod(ppo.acting), staticmethod(ppo.targets)

    def loss(self, policy, batch, config, *rest, **more):
        total, stats = ppo.loss(policy, batch, config, *rest, **more)
        return total / config.caution, stats


@dataclass(frozen=True)
class CueOptions:
    wait: int = 5
    """Steps to wait."""


class Level:
    """An object that stands for an env."""

    name = "delayed-cue"


@rc.register("env", "levels", config=CueOptions, accepts=Level)
def levels(source, num_envs, device="cpu", wait=0):
    name = source if isinstance(source, str) else source.name
    return make_task(name, num_envs, device=device, horizon=wait)


@rc.register("env", "single")
def single(source, length=4):
    return Flat(World(length))


@rc.register("runtime", "here")
def here(env, policy, config, rows):
    return InlineCollector(open_envs(env, config), policy, config)
'''
NAME = "my_own_parts"
FILE = f"{NAME}.py"


@contextmanager
def forgetting(*modules: str) -> Iterator[None]:
    """Forget at the end, as in a new process, the parts and modules that were imported meanwhile."""
    kept, imported = parts.own_parts(), dict(parts._imported)
    try:
        yield
    finally:
        for part in parts.own_parts():
            del parts.PARTS[part.kind][part.name]
        for part in kept:
            parts.PARTS[part.kind][part.name] = part
        parts._imported.clear()
        parts._imported.update(imported)
        for name in modules:
            sys.modules.pop(name, None)


@contextmanager
def place(folder: Path) -> Iterator[Path]:
    """In ``folder``, which holds the file; nothing of it is imported."""
    with pytest.MonkeyPatch.context() as patch, forgetting(NAME):
        patch.chdir(folder)
        patch.setattr(sys, "path", [entry for entry in sys.path if entry])
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        (folder / FILE).write_text(TEXT)
        yield folder
