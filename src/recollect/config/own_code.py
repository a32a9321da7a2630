"""Parts of a run that are the user's own code, by name: ``core="my_module:MyCore"``, with options.

``--core my_module:MyCore --core.hidden 64`` calls ``MyCore(input_size, hidden=64)``. The module is imported
when the part is made, never when settings are read: a folder may hold the name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Literal, get_origin, get_type_hints

from recollect.base.import_code import absolute, import_attribute, is_importing
from recollect.config.convert import convert, options, plain_value
from recollect.errors import ConfigError, nearest

INPUTS = {
    "core": ("input_size",),
    "encoder": ("observation_space",),
    "head": ("action_space", "features"),
    "policy": ("observation_space", "action_space"),
    "wrap": ("env",),
}
"""The kinds of parts, each with the arguments that its class or function gets before its options."""
CONVERTED = (int, float, bool, str, NoneType, tuple, list, dict, Literal)
"""Types of options that values are converted to and checked against; others are passed as they are."""


class OwnCode:
    """A class or function of the user's own, with its keyword arguments. A call imports and calls it.

    No dataclass, since those are configs of built-in parts; everywhere else it is a factory like any other.
    """

    __slots__ = ("name", "options", "part")

    def __init__(self, part: str, name: str, options: dict[str, Any] | None = None):
        """``part``: a key of ``INPUTS``; ``name``: ``module:attribute``, or ``file.py:attribute``."""
        self.part, self.name, self.options = part, name, options or {}

    def __call__(self, *inputs: Any) -> Any:
        """Make the part, such as a core from its input size."""
        make = import_attribute(self.name, self.part, self._wanted)
        return make(*inputs, **self._checked(make))

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, whose current folder may be another one."""
        return OwnCode, (self.part, absolute(self.name), self.options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OwnCode):
            return NotImplemented
        return (self.part, self.name, self.options) == (other.part, other.name, other.options)

    def __hash__(self) -> int:
        return hash((self.part, self.name))

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({more[2:]})" if more else self.name

    def to_json(self) -> Any:
        """The name, or a mapping of name and options."""
        return {"name": self.name, **self.options} if self.options else self.name

    @property
    def _wanted(self) -> str:
        return f"it must be a class or function that takes {' and '.join(INPUTS[self.part])}"

    def _checked(self, make: Callable[..., Any]) -> dict[str, Any]:
        """The options, validated and converted by the signature of ``make``."""
        try:
            signature = inspect.signature(make)
        except (TypeError, ValueError):  # some callables written in C
            return self.options
        inputs = INPUTS[self.part]
        parameters = list(signature.parameters.values())
        rest = parameters[len(inputs) :]
        known = [p.name for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for name in self.options:
            if name not in known and not takes_any:
                raise ConfigError(
                    f"{self._where(name)}: {self.name} has no option {name!r}{nearest(name, known)}; "
                    f"its options are {', '.join(known) or 'none'}"
                )
        types = _types(make)
        values = {
            name: convert(value, types[name], self._where(name)) if _is_plain(types.get(name)) else value
            for name, value in self.options.items()
        }
        try:
            signature.bind(*inputs, **values)
        except TypeError as error:
            raise ConfigError(
                f"{self.part} {self.name}: {error}. It is called with {', '.join(inputs)} and its options "
                f"({self._where('NAME')})"
            ) from None
        return values

    def _where(self, name: str) -> str:
        """An option as it is written."""
        return f"{name} of the wrapper {self.name}" if self.part == "wrap" else f"--{self.part}.{name}"


def as_own_code(part: str, spec: Any) -> Any:
    """``spec`` itself; but ``module:attribute``, alone or as the name of a mapping, becomes an OwnCode."""
    if is_importing(spec):
        return OwnCode(part, spec)
    if isinstance(spec, Mapping) and is_importing(spec.get("name")):
        return OwnCode(part, spec["name"], {key: value for key, value in spec.items() if key != "name"})
    return spec


def as_wrap(given: Any) -> tuple[Any, ...]:
    """Wrappers from a list of names, mappings and callables, or from one of them."""
    specs = given if isinstance(given, list | tuple) else () if given is None else (given,)
    found = tuple(as_own_code("wrap", spec) for spec in specs)
    for spec in found:
        if not callable(spec):
            raise ConfigError(
                f"wrap has {spec!r}: give 'module:Wrapper', a mapping such as {{name: module:Wrapper, "
                "OPTION: VALUE}, or in Python a class or function that takes an env"
            )
    return found


def code_name(spec: Any) -> str | None:
    """The name in the JSON form of a part, if it is code: see ``OwnCode.to_json``."""
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return name if is_importing(name) else None


def code_flags(part: str, spec: Any) -> list[str]:
    """The flags of a part that is code, from its JSON form."""
    if not isinstance(spec, Mapping):
        return [f"--{part}={spec}"]
    if part == "wrap":
        return [f"--wrap={json.dumps(spec)}"]
    own = {name: value for name, value in spec.items() if name != "name"}
    return [f"--{part}={spec['name']}", *option_flags(part, own)]


def option_flags(section: str, values: Mapping[str, Any]) -> list[str]:
    """Options of an env (section "task") or of own code as command-line flags."""
    return [f"--{section}.{name}={_word(value)}" for name, value in values.items()]


def _word(value: Any) -> str:
    """A value in the syntax of such a flag."""
    return value if isinstance(value, str) and plain_value(value) == value else json.dumps(value)


def _types(make: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters, as far as they can be read."""
    try:
        return get_type_hints(make.__init__ if isinstance(make, type) else make)
    except Exception:  # a name in an annotation may be anything
        return {}


def _is_plain(hint: Any) -> bool:
    return hint is not None and all((get_origin(kind) or kind) in CONVERTED for kind in options(hint))
