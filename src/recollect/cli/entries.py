"""The config flags one by one: how each is typed, what it does, and its default.

Cores and algorithms share names of fields and give them defaults of their own; an entry has them all, so that
help never shows one core's default as another's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from recollect.cli.help_texts import WORDS
from recollect.config import field_docs
from recollect.config.field_docs import Field
from recollect.errors import ConfigError, nearest

Owned = tuple[tuple[str, Field], ...]
"""The cores or algorithms that have a field, each with the field as it has it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A flag and what there is to say about it."""

    path: str
    field: Field
    owned: Owned = ()
    """For a field that several cores or algorithms may have."""

    @property
    def flag(self) -> str:
        """As it is typed."""
        name = self.path.replace("_", "-")
        if self.path == "env_kwargs":
            return "--task.NAME VALUE"
        if self.field.is_switch:
            return f"--[no-]{name}"
        return f"--{name} {metavar(self.field)}"

    @property
    def words(self) -> str:
        """What it does, and its choices where the text does not name them."""
        if self.path in WORDS:
            words = {
                "algos": " or ".join(field_docs.ALGOS),
                "cores": ", ".join(field_docs.cores()),
                "policies": ", ".join(field_docs.policies()),
            }
            return WORDS[self.path].format(**words)
        text = self.field.doc.replace("None:", "none:")
        missing = [choice for choice in self.field.choices if choice not in text]
        if missing:
            text = f"{text} One of {', '.join(self.field.choices)}."
        if any(field.doc != self.field.doc for _, field in self.owned):
            text = f"{text} (As {self.owned[0][0]} has it; others: --help NAME.)"
        return text

    @property
    def default(self) -> str:
        """As it is typed, with its owners where they differ; nothing where there is none to show."""
        owners: dict[str, list[str]] = {}
        for name, field in self.owned or (("", self.field),):
            owners.setdefault(self._written(field), []).append(name)
        if len(owners) == 1:
            return next(iter(owners))
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in owners.items())

    def _written(self, field: Field) -> str:
        own = {"run": "", "algo": field_docs.ALGOS[0], "encoder": "auto"}
        if self.path in own:
            return own[self.path]
        plain = field.default.strip("(),{}").replace(", ", ",").replace('"', "").replace("'", "")
        return {"None": "none", "True": "on", "False": "off"}.get(plain, plain)


def entries(chosen: Collection[str] = ()) -> list[Entry]:
    """Every flag once.

    Args:
        chosen: cores and algorithms to leave all others of their kind out.
    """
    run, network = field_docs.config_fields(""), field_docs.config_fields("policy")
    found = [Entry(field.name, field) for field in (*run, *network) if field.name != "head"]
    algos = {name: field_docs.config_fields(name) for name in field_docs.ALGOS}
    found += _shared(_only(algos, chosen), "")
    cores = {name: core.fields for name, core in field_docs.cores().items()}
    largest_first = dict(sorted(_only(cores, chosen).items(), key=lambda item: -len(item[1])))
    found += _shared(largest_first, "core.")
    for section in ("encoder", "head"):
        found += [Entry(f"{section}.{field.name}", field) for field in field_docs.config_fields(section)]
    return found


def chosen_parts(argv: Sequence[str]) -> list[str]:
    """The cores and algorithms that a command line names; a sweep may list several."""
    known = {"--core": tuple(field_docs.cores()), "--algo": field_docs.ALGOS}
    found: list[str] = []
    for word, following in zip(argv, [*argv[1:], ""]):
        flag, equals, value = word.partition("=")
        for name in (value if equals else following).split(",") if flag in known else ():
            if name not in known[flag]:
                raise ConfigError(f"{flag} {name}: there is none of this name{nearest(name, known[flag])}")
            found.append(name)
    return found


def metavar(field: Field) -> str:
    """What stands for a flag's value."""
    if field.is_list:
        return "A,B"
    if field.choices:
        return "NAME"
    words = {
        "int": "N",
        "float": "X",
        "bool": "BOOL",
        "str": "TEXT",
        "Any": "NAME",
        "PolicyConfig": "NAME",
        "AlgoConfig": "NAME",
    }
    for kind, word in words.items():
        if kind in field.kinds:
            return word
    return "VALUE"


def _only(parts: dict[str, list[Field]], chosen: Collection[str]) -> dict[str, list[Field]]:
    return {name: fields for name, fields in parts.items() if name in chosen} or parts


def _shared(parts: dict[str, list[Field]], prefix: str) -> list[Entry]:
    """The fields of all parts, each once; its words and its type are those of the first part that has it."""
    owned: dict[str, list[tuple[str, Field]]] = {}
    for part, fields in parts.items():
        for field in fields:
            owned.setdefault(field.name, []).append((part, field))
    return [Entry(f"{prefix}{name}", found[0][1], tuple(found)) for name, found in owned.items()]
