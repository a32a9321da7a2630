"""The fields of a config class: name, type, default and docstring; and checks of their values.

Flags, files, help and reports are made from this description. Python does not keep the docstring under a
field, so it is read from the source of the config's module.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from recollect.config.convert import options, type_words
from recollect.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a config class."""

    name: str
    hint: Any
    """The type of its values."""
    default: Any
    doc: str
    """The docstring on one line, without markup."""

    @property
    def choices(self) -> list[str]:
        """The words of a Literal."""
        return _choices(self.hint)

    @property
    def is_switch(self) -> bool:
        """Whether the flag needs no value."""
        return self.hint is bool

    @property
    def is_list(self) -> bool:
        """Whether one value is a list, written with commas."""
        return get_origin(self.hint) is tuple

    @property
    def short_doc(self) -> str:
        """The first sentence of the docstring."""
        end = self.doc.find(". ")
        return self.doc if end < 0 else self.doc[: end + 1]


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """The types of the fields of ``kind`` by name."""
    types = get_type_hints(kind)
    return {name: types[name] for name in field_names(kind)}


def fields_of(config: Any) -> list[Field]:
    """The fields of a config class, or of a config, whose values are then the defaults."""
    kind = config if isinstance(config, type) else type(config)
    docs, types = _docs(kind), hints(kind)
    found = []
    for f in dataclasses.fields(kind):
        default = f.default_factory() if f.default is dataclasses.MISSING else f.default  # pyright: ignore
        value = default if config is kind else getattr(config, f.name)
        found.append(Field(f.name, types[f.name], value, docs.get(f.name, "")))
    return found


def field_names(kind: type) -> list[str]:
    """The names of the fields of a dataclass."""
    return [f.name for f in dataclasses.fields(kind)]


def check_names(part: str, kind: type, names: Iterable[str], what: str = "setting") -> None:
    """Raise unless ``kind`` has fields of these names; ``part`` and ``what`` are for the error."""
    known = field_names(kind)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{part} has no {what} {name!r}{nearest(str(name), known)}; its {what}s are "
                f"{', '.join(known) or 'none'}"
            )


def first_paragraph(kind: type) -> str:
    """The first paragraph of the docstring of a class, on one line."""
    return _line(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0])


@functools.cache
def _docs(kind: type) -> dict[str, str]:
    """The docstring under each field, those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        classes = [node for node in _source(base.__module__).body if isinstance(node, ast.ClassDef)]
        body = next((node.body for node in classes if node.name == base.__name__), [])
        for field, doc in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                found[ast.unparse(field.target)] = _line(ast.literal_eval(doc.value))
    return found


@functools.cache
def _source(module: str) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # a frozen app or a notebook: its help is without docstrings
        return ast.Module([], [])


def _line(text: str) -> str:
    return " ".join(text.replace("``", "").split())


# Checks --------------------------------------------------------------------------------------------------


def check_fields(config: Any) -> None:
    """Raise unless every value fits its type; convert NumPy numbers, 1e6 for 1000000, lists for tuples."""
    for name, hint in hints(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, list) and get_origin(hint) is tuple:
            value = tuple(value)
        if not any(_fits(value, option) for option in options(hint)):
            near, needed = nearest(str(value), _choices(hint)), type_words(hint, python=True)
            raise ConfigError(f"{_full(config, name)} = {value!r}{near}: it needs {needed}")
        object.__setattr__(config, name, _plain(value, options(hint)))


def at_least(config: Any, least: float, *names: str) -> None:
    """Raise unless these fields are at least ``least``; None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= least:
            words = f"be at least {least}" if least else "not be negative"
            raise ConfigError(f"{_full(config, name)} = {value}: it must {words}")


def above_zero(config: Any, *names: str) -> None:
    """Raise unless these fields are above 0; None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ConfigError(f"{_full(config, name)} = {value}: it must be above 0")


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def _choices(hint: Any) -> list[str]:
    literals = [option for option in options(hint) if get_origin(option) is Literal]
    return [str(word) for literal in literals for word in get_args(literal)]


def _full(config: Any, name: str) -> str:
    """The name as flags have it."""
    return getattr(config, "section", "") + name


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if hint in (int, float):
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        return is_number and (hint is float or float(value).is_integer())
    return isinstance(value, get_origin(hint) or hint)


def _plain(value: Any, kinds: tuple[Any, ...]) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if int in kinds:
        return int(value)  # pyright: ignore[reportArgumentType] (NumPy registers its numbers as Real)
    return float(value) if float in kinds and not isinstance(value, int) else value
