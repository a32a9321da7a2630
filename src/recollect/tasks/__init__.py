"""The worlds that Recollect brings: small tasks that cannot be solved without memory."""

from recollect.tasks.base import Task
from recollect.tasks.catalog import TASKS, make_task, task_class, task_options

__all__ = ["TASKS", "Task", "make_task", "task_class", "task_options"]
