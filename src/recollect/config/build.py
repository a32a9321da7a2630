"""Build the object that a config describes, without importing its code before that."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def build(code: str, *args: Any) -> Any:
    """Call the class ``code``, such as "recollect.cores.lstm:LSTM", with these arguments."""
    module, _, name = code.partition(":")
    return getattr(import_module(module), name)(*args)
