"""Directives that write parts of the pages from the code: settings, metrics, tasks, the command line.

Each directive is a function from its argument to Markdown. Tables of measurements: bench/tables.py.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from inspect import formatannotation
from pathlib import Path
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from recollect.cli import COMMANDS, main
from recollect.cli.help import Entry
from recollect.config.algo_choice import ALGOS
from recollect.config.core_choice import CORES
from recollect.config.fields import field_names, fields_of, first_paragraph
from recollect.config.settings import CLASSES
from recollect.config.tasks import TASKS
from recollect.config.train import ALIASES
from recollect.tasks.mech import actions, observe, rules
from recollect.training.gauges import GAUGES
from recollect.training.metrics import GLOSSARY

ALIKE = {"impala": "ppo", "r2d2": "ppo", "iqn": "r2d2"}
"""Algorithms, and the one that the page of settings describes before them."""


def config_fields(section: str) -> str:
    """``{config-fields} ppo``: every field of a section, of a core (``core lstm``) or of the run (none)."""
    kind, _, name = section.partition(" ")
    if kind == "core":
        fields = fields_of(CORES[name])
        return "\n\n".join(_setting(f"core.{f.name}", f, f"{name}.{f.name}") for f in fields)
    fields = [field for field in fields_of((CLASSES | dict(ALGOS))[kind]) if field.name != "policy"]
    if kind in ALIKE:  # only fields that the other one does not have, or has with another default
        other = {field.name: field for field in fields_of(ALGOS[ALIKE[kind]])}
        own = [field for field in fields if other.get(field.name) != field]
        return "\n\n".join(
            _setting(f.name, f, f"{kind}.{f.name}" if f.name in other else f.name) for f in own
        )
    prefix = f"{kind}." if kind in ("encoder", "head") else ""
    return "\n\n".join(_setting(prefix + f.name, f, prefix + f.name) for f in fields)


def _setting(path: str, field: Any, anchor: str) -> str:
    """One field: name, type, default, flag, names in other libraries, text."""
    entry = Entry(path, field)
    is_made = type(field.default).__name__.endswith("Config")
    default = "made if not given" if is_made else f"default `{field.default!r}`"
    facts = [f"`{formatannotation(field.hint)}`", default, f"flag `{entry.flag}`"]
    if others := [f"`{name}`" for name, ours in ALIASES.items() if ours == path]:
        facts.append("elsewhere " + ", ".join(others))
    place = "setting-" + re.sub("[._]", "-", anchor)
    return f"[`{path}`]{{#{place}}}\n: {'; '.join(facts)}\n\n  {_escape(entry.words)}"


def aliases(_: str) -> str:
    """``{aliases}``: names from other libraries that are accepted, and ours."""
    rows = ([f"`{theirs}`", f"`{ours}`"] for theirs, ours in ALIASES.items())
    return table(["written", "means"], rows)


GROUPS = {
    "progress": "steps|updates|episodes|return|return_spread|length",
    "runtime": "lag|lag/.*|time/.*|queue/.*|restarts|actors/.*|actor/.*|speed/wait",
    "honesty": "deviation/.*|staleness",
    "memory": "state/.*",
    "update": (
        "loss/.*|(entropy|kl|clip_fraction|minibatches|sequences|passes|padding|recomputed|learning_rate)"
        "(_last|_coef)?|grad_.*|weights/.*"
    ),
    "correction": "rho/.*|c/.*",
    "critic": "explained_variance|value_scale",
    "speed": "speed/.*|compiled_graphs|encoder_bits|start_seconds",
    "rollout": ".*",
}
"""The headings of the page of metrics. A metric stands under the first whose pattern it matches."""


def metrics(group: str) -> str:
    """``{metrics} memory``: the metrics of one group with their healthy ranges."""

    def group_of(name: str) -> str:
        return next(group for group, pattern in GROUPS.items() if re.fullmatch(pattern, name))

    rows = [[f"`{name}`", _escape(text), _escape(_healthy(name))] for name, text in GLOSSARY.items()]
    rows = [row for row in rows if group_of(row[0].strip("`")) == group]
    if group in ("progress", "runtime", "speed", "rollout"):
        return table(["metric", "what it is"], (row[:2] for row in rows))
    return table(["metric", "what it is", "healthy, and what helps if it is not"], rows)


def _healthy(name: str) -> str:
    """The range that reports judge by, and the advice that they give."""
    gauge = next((gauge for gauge in GAUGES if gauge.name == name), None)
    if gauge is None:
        return ""
    parts = [gauge.words]
    if gauge.relative:
        factor = "" if gauge.high == 1 else f"{gauge.high:g} of "
        parts.insert(0, f"up to {factor}`{gauge.setting}`.")
    elif gauge.high is not None:
        parts.insert(0, f"{gauge.low or 0:g} to {gauge.high:g}.")
    for side, advice in (("Above", gauge.above), ("Below", gauge.below)):
        parts.append(advice and f"{side}: {advice[:1].lower()}{advice[1:]}")
    return " ".join(filter(None, parts))


def tasks(_: str) -> str:
    """``{tasks}``: the built-in tasks."""
    rows = []
    for name, task in TASKS.items():
        options = ", ".join(f"`{field}`" for field in field_names(task)) or "none"
        words, sizes = _escape(first_paragraph(task)), _escape(task.sizes_text())
        rows.append([f"`{name}`", f"`{task.id}`", words, options, sizes])
    listed = table(["name", "id", "what it is", "options", "sizes"], rows)
    return f"```{{table}}\n:class: dense\n\n{listed}\n```"


def mech(which: str) -> str:
    """``{mech} weapons``: a table of the mech arena from the code."""
    return table(*MECH_TABLES[which]())


def _classes() -> tuple[list[str], list[list[str]]]:
    head = ["class", "speed, m/s", "turn, rad/s", "hp", "leg hp", "heat cap", "heat loss per s", "jets, m/s²"]
    names = ("speed", "turn", "hp", "leg_hp", "heat_cap", "heat_loss", "jet", "tons", "noise")
    rows = []
    for each in rules.CLASSES:
        mounted: dict[str, list[str]] = {}
        for trigger, weapon in zip(rules.TRIGGERS, each.mounts):
            if weapon:
                mounted.setdefault(rules.TRIGGER_NAMES[trigger], []).append(weapon)
        weapons = "; ".join(f"{trigger}: {' and '.join(own)}" for trigger, own in mounted.items())
        rows.append([each.name, *(f"{getattr(each, name):g}" for name in names), weapons])
    return [*head, "tons", "noise", "weapons"], rows


def _weapons() -> tuple[list[str], list[list[str]]]:
    head = ["weapon", "range, m", "damage", "stability damage", "own heat", "cooldown, s", "arc", "flight"]
    names = ("range", "damage", "stability", "heat", "cooldown", "arc")
    rows = [
        [
            *(each.name, *(f"{getattr(each, name):g}" for name in names)),
            *(
                f"{each.speed:g} m/s" if each.speed else "at once",
                f"{each.target_heat:g}",
                f"{each.splash:g}",
            ),
        ]
        for each in rules.WEAPONS.values()
    ]
    return [*head, "heat on the target", "splash, m"], rows


def _numbered(names: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    return ["number", "what it is"], [[str(i), name] for i, name in enumerate(names)]


MECH_TABLES: dict[str, Callable[[], tuple[list[str], list[list[str]]]]] = {
    "classes": _classes,
    "weapons": _weapons,
    "vector": lambda: (["part", "numbers"], [[name, str(size)] for name, size in observe.SIZES.items()]),
    "own": lambda: _numbered(observe.OWN),
    "contact": lambda: _numbered(observe.CONTACT),
    "action": lambda: (
        ["part", "space", "numbers in a flat action"],
        [[f"`{part}`", f"`{space}`", str(actions.FLAT[part])] for part, space in actions.PARTS.items()],
    ),
    "rewards": lambda: (
        ["option", "default", "for what"],
        [
            [f"`{field.name}`", f"{field.default:g}", _escape(field.doc)]
            for field in fields_of(TASKS["mech"])
            if field.name.endswith(("_reward", "_combat", "_gamma"))
        ],
    ),
}


def command(line: str) -> str:
    """``{command} train``: the help text of a command (of a topic, ``train names``), 88 characters wide."""
    name, *topics = line.split()
    out = io.StringIO()
    plain = {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), redirect_stdout(out):
        code = main([name, "--help", *topics])
    if code != 0:
        raise ValueError(f"recollect {name} --help ended with {code}: {out.getvalue()[-500:]}")
    text = "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())
    return f"```text\n{text}\n```"


def commands(_: str) -> str:
    """``{commands}``: all commands in a line each."""
    rows = ([f"[`{name}`](#recollect-{name})", _escape(text)] for name, text in COMMANDS.items())
    return table(["command", "what it does"], rows)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _escape(text: str) -> str:
    """Text from the code as Markdown; text between backquotes stays code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_\[\]<>])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


class Directive(SphinxDirective):
    """Parses the Markdown that the function of its name returns. An error there is a warning on the page."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Make the text and parse it in place."""
        try:
            text = globals()[self.name.replace("-", "_")]("".join(self.arguments))
        except (ImportError, KeyError, ValueError) as error:
            raise self.error(f"{self.name}: {error!r}") from None
        return self.parse_text_to_nodes(text)


def inline_drawings(app: Sphinx, doctree: nodes.document) -> None:
    """An SVG becomes part of its page, so that it takes the colours of the theme, light or dark."""
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(".svg"):
            image.replace_self(nodes.raw("", (Path(app.srcdir) / image["uri"]).read_text(), format="html"))


class PlainAttributes:
    """Keeps napoleon from reading "The unit of the loss: the spread" of an attribute as its type and text."""

    def __init__(self, app: Sphinx) -> None:
        self._written: dict[str, list[str]] = {}
        app.connect("autodoc-process-docstring", self.keep, priority=100)
        app.connect("autodoc-process-docstring", self.restore, priority=900)  # napoleon has 500

    def keep(self, app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        """Store the docstring of an attribute as it was written."""
        if what in ("attribute", "data", "property"):
            self._written[name] = list(lines)

    def restore(self, app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        """Put it back after napoleon."""
        lines[:] = self._written.pop(name, lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    for name in ("aliases", "command", "commands", "config-fields", "mech", "metrics", "tasks"):
        app.add_directive(name, Directive)
    PlainAttributes(app)
    app.connect("doctree-read", inline_drawings, priority=900)  # when the paths of images are known
    return {"parallel_read_safe": True, "parallel_write_safe": True}
