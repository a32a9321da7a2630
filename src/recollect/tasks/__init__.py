"""The worlds that Recollect brings: small tasks that cannot be solved without memory.

Importing this package registers them with Gymnasium.
"""

from recollect.tasks.base import Task
from recollect.tasks.catalog import TASKS, make_task, task_class, task_options
from recollect.tasks.registration import register_tasks

__all__ = ["TASKS", "Task", "make_task", "task_class", "task_options"]

register_tasks()
