"""The fields of a config hold what their types say: checked when a config is made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from recollect.config.convert import options
from recollect.errors import ConfigError

_NUMBERS = (int, float, np.integer, np.floating)


def check_fields(config: Any) -> None:
    """Raise unless every field fits its type; turn NumPy's numbers, and 1e6 for 1000000, into Python's."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if isinstance(value, list) and get_origin(hint) is tuple:
            value = tuple(value)
            object.__setattr__(config, field.name, value)
        if not _fits(value, hint):
            raise ConfigError(f"{field.name} = {value!r}: it needs {_words(hint)}")
        plain = _plain(value, hint)
        if plain is not value:
            object.__setattr__(config, field.name, plain)


def _fits(value: Any, hint: Any) -> bool:
    return any(_fits_one(value, option) for option in options(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if hint in (int, float):
        is_number = isinstance(value, _NUMBERS) and not isinstance(value, bool) and math.isfinite(value)
        return is_number and (hint is float or float(value).is_integer())
    return isinstance(value, get_origin(hint) or hint)


def _plain(value: Any, hint: Any) -> Any:
    kinds = options(hint)
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        return value
    if int in kinds and type(value) is not int:
        return int(value)
    if float in kinds and type(value) not in (int, float):
        return float(value)
    return value


def _words(hint: Any) -> str:
    return " or ".join(_words_of_one(option) for option in options(hint))


def _words_of_one(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    kind = get_origin(hint) or hint
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a string"}
    return "None" if kind is type(None) else names.get(kind, f"a {getattr(kind, '__name__', kind)}")
