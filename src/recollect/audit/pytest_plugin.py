"""A pytest plugin: the fixture ``assert_honest``. In ``conftest.py``::

    pytest_plugins = ["recollect.audit.pytest_plugin"]

and in a test::

    def test_the_memory_is_right(assert_honest):
        assert_honest(my_trainer)

It is no entry point: a plugin that pytest loads by itself would import torch into every test run.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recollect.audit.results import Verification
from recollect.audit.trainer import Trainer
from recollect.audit.trainer_checks import assert_honest as check


@pytest.fixture
def assert_honest() -> Callable[[Trainer | Callable[[], Trainer]], Verification]:
    """Fails the test with the report of the audit, if a check of the trainer fails or none could run."""

    def look(trainer: Trainer | Callable[[], Trainer]) -> Verification:
        __tracebackhide__ = True
        try:
            return check(trainer)
        except AssertionError as error:
            pytest.fail(str(error), pytrace=False)

    return look
