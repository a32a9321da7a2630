"""Register the built-in tasks with Gymnasium and PettingZoo when those are imported: help needs neither."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

MAKE_TASK = "recollect.tasks.catalog:make_task"
"""The function that makes a task by its name or id."""


def load(entry_point: str) -> Any:
    """The object that ``module:name`` stands for; without a name, the module."""
    module, _, name = entry_point.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def register_tasks(ids: dict[str, str]) -> None:
    """Register every task, given as its Gymnasium id by short name; existing entries stay."""
    import gymnasium as gym

    for name, task_id in ids.items():
        if task_id not in gym.registry:
            gym.register(
                task_id,
                entry_point="recollect.tasks.gymnasium_envs:TaskEnv",
                vector_entry_point="recollect.tasks.gymnasium_envs:TaskVectorEnv",
                kwargs={"task": name},
            )


def register_agents(ids: dict[str, str]) -> None:
    """``register_tasks`` for tasks of several agents, with PettingZoo; before 1.26 it has no registry."""
    import pettingzoo

    if not hasattr(pettingzoo, "register"):
        return
    for name, task_id in ids.items():
        if task_id not in pettingzoo.parallel_registry:
            entry_point = "recollect.tasks.pettingzoo_envs:parallel_env"
            pettingzoo.register("parallel", task_id, entry_point, kwargs={"task": name})


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call ``call`` now if ``module`` is imported already, else right after its import."""
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(module, call))


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, call: Callable[[], None]):
        self._module, self._call = module, call

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        """The usual spec, with a loader that makes the call at its end."""
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute, call = spec.loader.exec_module, self._call

            def exec_module(module: ModuleType) -> None:
                execute(module)
                call()

            spec.loader.exec_module = exec_module  # pyright: ignore[reportAttributeAccessIssue]
        return spec
