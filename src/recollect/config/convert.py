"""Convert text and plain values, from flags and files, to the type of a field.

YAML is read by the rules of YAML 1.2: ``1e-4`` is a number, ``010`` is ten, and ``on``, ``no`` and
``2026-11-15`` are text. A bool field accepts ``on`` and ``no`` nevertheless.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from recollect.errors import ConfigError, nearest

TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")
NOTHING = ("none", "null", "~", "")
UNITS = {"k": 10**3, "m": 10**6, "b": 10**9}
"""300k, 1m, 2b."""
_MOST_DIGITS = 30
"""Longer numbers stay floats: Python should not write out 1e999999999."""


class _MismatchError(ValueError):
    """The value does not fit this alternative of a union."""


def convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` converted to ``hint``; ``where`` is the flag, or the file and key, for the error."""
    with contextlib.suppress(ValueError):
        return _any_of(value, hint)
    if (choices := _choices(hint)) and isinstance(value, str):
        raise ConfigError(f"{where} {value}: choose one of {', '.join(choices)}{nearest(value, choices)}")
    raise ConfigError(f"{where} {_shown(value)}: it needs {type_words(hint)}{_example(value, hint)}")


def number(text: str) -> int | float:
    """The number in ``text``: 300_000, 3e5, 300k, -0.5, inf. Raises ValueError for anything else."""
    plain = text.strip().lower().lstrip("+")
    if plain in ("inf", "-inf", ".inf", "-.inf", "nan", ".nan"):
        return float(plain.replace(".", ""))
    unit = UNITS.get(plain[-1:], 1)
    if unit != 1:
        plain = plain[:-1]
    if not re.fullmatch(r"-?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[-+]?\d{1,6})?", plain, re.ASCII):
        raise ValueError(f"{text!r} is no number")
    plain = plain.replace("_", "")
    if "." not in plain and "e" not in plain and len(plain) < _MOST_DIGITS:
        return int(plain) * unit
    if unit == 1:
        return float(plain)
    exact = Decimal(plain) * unit  # 1.005k is 1005, which 1.005 * 1e3 is not
    is_whole = exact.adjusted() < _MOST_DIGITS and exact == exact.to_integral_value()
    return int(exact) if is_whole else float(exact)


def plain_value(text: str) -> Any:
    """The value of ``text`` where no type is known: a YAML scalar, list or mapping on one line, else text."""
    try:
        node = yaml.compose(text, Loader=Loader)
        is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
        if node is None or is_block:
            return text
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ConfigError):
        return text


def _convert_one(value: Any, hint: Any) -> Any:
    kind = get_origin(hint) or hint
    text = value.strip().lower() if isinstance(value, str) else None
    if kind is Literal:
        return _literal(value, get_args(hint))
    if kind in (int, float):
        return _number(value, kind)
    if kind is tuple:
        return _several(value, get_args(hint))
    if kind is type(None) and text in NOTHING:
        return None
    if kind is bool and text in TRUE + FALSE:
        return text in TRUE
    if kind is dict and isinstance(value, Mapping):
        return dict(value)
    if kind is Any or isinstance(value, kind):
        return value
    raise _MismatchError


def _literal(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
        if isinstance(value, str) and not isinstance(choice, str) and value == str(choice):
            return choice
    raise _MismatchError


def _number(value: Any, kind: type) -> int | float:
    value = number(value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _MismatchError
    if kind is float:
        return float(value)
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 10.0**_MOST_DIGITS):
        raise _MismatchError
    return int(value)


def _several(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list, or text with commas, or one value alone."""
    if isinstance(value, str):
        inner = value.strip().removeprefix("(").removesuffix(")").removeprefix("[").removesuffix("]")
        value = [] if inner.lower() in NOTHING else [part.strip() for part in inner.split(",")]
        if len(value) > 1 and value[-1] == "":  # "(64,)"
            value.pop()
    elif not isinstance(value, list | tuple):
        value = [value]
    is_open = len(kinds) == 2 and kinds[1] is Ellipsis
    if kinds and not is_open and len(kinds) != len(value):
        raise _MismatchError
    each = [kinds[0]] * len(value) if is_open else kinds or [Any] * len(value)
    return tuple(_any_of(item, kind) for item, kind in zip(value, each))


def _any_of(value: Any, hint: Any) -> Any:
    for option in sorted(options(hint), key=lambda option: option is str):  # str accepts anything: last
        with contextlib.suppress(ValueError):
            return _convert_one(value, option)
    raise _MismatchError


def options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the one type."""
    is_union = get_origin(hint) is Union or type(hint).__name__ == "UnionType"
    return get_args(hint) if is_union else (hint,)


def _choices(hint: Any) -> list[str]:
    """The words to choose from, if the type is made of words, true, false and none only."""
    found: list[str] = []
    for option in options(hint):
        if get_origin(option) is Literal:
            found += [str(choice) for choice in get_args(option)]
        elif option is bool:
            found += ["true", "false"]
        elif option is type(None):
            found.append("none")
        else:
            return []
    return found


def type_words(hint: Any, *, python: bool = False) -> str:
    """A type in words, as flags and files write values, or as Python does."""
    if len(options(hint)) > 1:
        return " or ".join(type_words(option, python=python) for option in options(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    kind = get_origin(hint) or hint
    if kind is tuple and get_args(hint):
        return f"a list, each {type_words(get_args(hint)[0], python=python)}"
    names = {int: "a whole number", float: "a number", tuple: "a list", Any: "anything"}
    if python:
        names |= {bool: "True or False", str: "a string", type(None): "None"}
    else:
        names |= {bool: "true or false", str: "text", type(None): "none"}
    return names.get(kind, f"a {getattr(kind, '__name__', kind)}")


def _shown(value: Any) -> str:
    return value or "''" if isinstance(value, str) else repr(value)


def _example(value: Any, hint: Any) -> str:
    kinds = options(hint)
    if any((get_origin(kind) or kind) is tuple for kind in kinds):
        return ", such as 128,128"
    if int in kinds:
        return ", such as 300000, 3e5 or 300k"
    if float in kinds:
        return ", such as 0.001 or 1e-3"
    if str in kinds and not isinstance(value, str):
        return ": put it in quotes"
    return ""


# YAML --------------------------------------------------------------------------------------------------


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2; a duplicate key is an error."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As in PyYAML, but a duplicate key is an error."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"line {line}: {key.value} is given twice: keep one of them")
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """300_000, 1e-4, .inf"""
        return number(self.construct_scalar(node))


_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("number", r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?", list("-+.0123456789")),
    ("number", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
)
for _name, _pattern, _first in _SCALARS:
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), _first)
Loader.add_constructor("tag:yaml.org,2002:number", Loader.construct_number)


class Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; quotes text that YAML 1.1 or 1.2 would read as something else."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        key: yaml.SafeDumper.yaml_implicit_resolvers.get(key, [])
        + Loader.yaml_implicit_resolvers.get(key, [])
        for key in {*yaml.SafeDumper.yaml_implicit_resolvers, *Loader.yaml_implicit_resolvers}
    }

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value in full, without anchors."""
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """On one line: double quotes escape line breaks."""
        style = '"' if text.splitlines() not in ([], [text]) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, Dumper.represent_text)


def to_yaml(value: Any) -> str:
    """``value`` on one line. Raises yaml.YAMLError unless it is plain data."""
    text = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf
    )
    return text.removesuffix("\n").removesuffix("\n...")
