"""Directives that make parts of the pages from the code: settings, metrics, tasks, the command line.

What they write is Markdown, in definition lists and tables; the pages around them are written by hand.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from contextlib import redirect_stdout
from inspect import formatannotation
from pathlib import Path
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH = 88
"""Of help texts, in characters, whatever the terminal."""


class Generated(SphinxDirective):
    """A directive whose content is Markdown that ``make`` returns for its argument."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Make it and parse it in place. What the code cannot give is a warning at this place."""
        try:
            text = self.make(self.arguments[0] if self.arguments else "")
        except (ImportError, KeyError, ValueError) as error:
            raise self.error(f"{self.name}: {error!r}") from None
        return self.parse_text_to_nodes(text)

    def make(self, argument: str) -> str:
        """The Markdown."""
        raise NotImplementedError


class ConfigFields(Generated):
    """``{config-fields} ppo``: every field of a section, of a core (``core lstm``) or of the run (none)."""

    def make(self, argument: str) -> str:
        """A definition list."""
        from recollect.config.algo import ALGOS
        from recollect.config.cores import CORES
        from recollect.config.fields import fields_of
        from recollect.config.settings import CLASSES

        kind, _, name = argument.partition(" ")
        if kind == "core":
            fields = fields_of(CORES[name])
            return "\n\n".join(_setting(f"core.{f.name}", f, anchor=f"{name}.{f.name}") for f in fields)
        prefix = f"{kind}." if kind in ("encoder", "head") else ""
        if kind == "impala":  # those that PPO does not have, or has otherwise
            ppo = {field.name: field for field in fields_of(ALGOS["ppo"])}
            own = [field for field in fields_of(ALGOS[kind]) if ppo.get(field.name) != field]
            anchors = [f"impala.{f.name}" if f.name in ppo else f.name for f in own]
            return "\n\n".join(_setting(f.name, f, anchor=anchor) for f, anchor in zip(own, anchors))
        hidden = {"policy", "head"}
        shown = [f for f in fields_of((CLASSES | ALGOS)[kind]) if f.name not in hidden]
        return "\n\n".join(_setting(prefix + f.name, f) for f in shown)


def _setting(path: str, field: Any, anchor: str | None = None) -> str:
    """One field: name, type, default, flag, other libraries' names, text."""
    from recollect.cli.help import Entry
    from recollect.config.train import ALIASES

    entry = Entry(path, field)
    others = [name for name, ours in ALIASES.items() if ours == path]
    facts = [f"`{formatannotation(field.hint)}`"]
    is_made = type(field.default).__name__.endswith("Config")
    facts.append("made if not given" if is_made else f"default `{field.default!r}`")
    facts.append(f"flag `{entry.flag}`")
    if others:
        facts.append("elsewhere " + ", ".join(f"`{name}`" for name in others))
    place = "setting-" + re.sub("[._]", "-", anchor or path)
    return f"[`{path}`]{{#{place}}}\n: {'; '.join(facts)}\n\n  {_escape(entry.words)}"


class Aliases(Generated):
    """``{aliases}``: the names of other libraries that are understood, and ours."""

    def make(self, argument: str) -> str:
        """A table."""
        from recollect.config.train import ALIASES

        pairs = ([f"`{theirs}`", f"`{ours}`"] for theirs, ours in ALIASES.items())
        return table(["written", "means"], pairs)


GROUPS = {
    "progress": ("steps", "updates", "episodes", "return", "length"),
    "runtime": ("lag", "lag/", "time/", "queue/", "restarts", "actors/", "actor/", "speed/wait"),
    "honesty": ("deviation/", "staleness"),
    "memory": ("state/",),
    "update": (
        *("loss/", "entropy", "kl", "clip_fraction", "minibatches", "sequences", "passes", "padding"),
        *("recomputed", "grad_", "weights/", "learning_rate"),
    ),
    "correction": ("rho/", "c/"),
    "critic": ("explained_variance", "value_scale"),
    "speed": ("speed/", "compiled_graphs", "encoder_bits", "start_seconds"),
}
"""Beginnings of the names of metrics by the heading that they stand under; the rest is under "rollout"."""


class Metrics(Generated):
    """``{metrics} memory``: the metrics of one group with their healthy ranges."""

    def make(self, argument: str) -> str:
        """A table."""
        from recollect.training.metrics import GLOSSARY

        found = {name: text for name, text in GLOSSARY.items() if metric_group(name) == argument}
        if not found:
            raise self.error(f"there is no group of metrics {argument!r}: {', '.join([*GROUPS, 'rollout'])}")
        if argument in ("progress", "runtime", "speed", "rollout"):
            return table(["metric", "what it is"], ([_code(n), _escape(t)] for n, t in found.items()))
        rows = ([_code(name), _escape(text), _escape(_healthy(name))] for name, text in found.items())
        return table(["metric", "what it is", "healthy, and what helps if it is not"], rows)


def metric_group(name: str) -> str:
    """The heading that a metric stands under."""
    for group, beginnings in GROUPS.items():
        for beginning in beginnings:
            if name == beginning or (beginning[-1] in "/_" and name.startswith(beginning)):
                return group
            if group == "update" and name in (f"{beginning}_last", f"{beginning}_coef"):
                return group
    return "rollout"


def _healthy(name: str) -> str:
    """The range that reports judge by, and the advice that they give."""
    from recollect.reports.healthy import GAUGES

    gauge = next((gauge for gauge in GAUGES if gauge.name == name), None)
    if gauge is None:
        return ""
    parts = []
    if gauge.relative:
        parts.append(f"up to {gauge.high:g} of `{gauge.setting}`.")
    elif gauge.high is not None:
        parts.append(f"{gauge.low or 0:g} to {gauge.high:g}.")
    parts += [gauge.words, gauge.above and f"Above: {_lower(gauge.above)}"]
    parts.append(gauge.below and f"Below: {_lower(gauge.below)}")
    return " ".join(part for part in parts if part)


class Tasks(Generated):
    """``{tasks}``: the built-in tasks."""

    def make(self, argument: str) -> str:
        """A table."""
        from recollect.config.fields import field_names, first_paragraph
        from recollect.config.tasks import TASKS

        rows = []
        for name, task in TASKS.items():
            options = ", ".join(f"`{field}`" for field in field_names(task)) or "none"
            words, sizes = _escape(first_paragraph(task)), _escape(task.sizes_text())
            rows.append([f"`{name}`", f"`{task.id}`", words, options, sizes])
        listed = table(["name", "id", "what it is", "options", "sizes"], rows)
        return f"```{{table}}\n:class: dense\n\n{listed}\n```"


class Command(Generated):
    """``{command} train``: the help text of a command (of a topic, ``train names``), as in a terminal."""

    required_arguments = 1
    optional_arguments = 0

    def make(self, argument: str) -> str:
        """A code block."""
        return f"```text\n{command_help(argument)}\n```"


def command_help(line: str) -> str:
    """What ``recollect COMMAND --help TOPIC`` prints; ``line`` is the command and, for train, a topic."""
    from recollect.cli import main

    name, *topics = line.split()
    out = io.StringIO()
    plain = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), redirect_stdout(out):
        code = main([name, "--help", *topics])
    if code != 0:
        raise ValueError(f"recollect {name} --help ended with {code}: {out.getvalue()[-500:]}")
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


class Commands(Generated):
    """``{commands}``: all commands in a line each."""

    def make(self, argument: str) -> str:
        """A table."""
        from recollect.cli import COMMANDS

        rows = ([f"[`{n}`](#recollect-{n})", _escape(words)] for n, words in COMMANDS.items())
        return table(["command", "what it does"], rows)


def inline_drawings(app: Sphinx, doctree: nodes.document) -> None:
    """An SVG becomes part of its page, so that it takes the colours of the theme, light or dark."""
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(".svg"):
            image.replace_self(nodes.raw("", (Path(app.srcdir) / image["uri"]).read_text(), format="html"))


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _code(name: str) -> str:
    return f"`{name}`"


def _escape(text: str) -> str:
    """Text from the code as Markdown text; what stands in backquotes stays code."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for sign in "*_[]<>":
            parts[i] = parts[i].replace(sign, "\\" + sign)
    return "`".join(parts)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


class PlainAttributes:
    """Keeps napoleon from taking "The unit of the loss: the spread" of an attribute for its type and text."""

    def __init__(self, app: Sphinx) -> None:
        self._before: dict[str, list[str]] = {}
        app.connect("autodoc-process-docstring", self.keep, priority=100)
        app.connect("autodoc-process-docstring", self.restore, priority=900)  # napoleon has 500

    def keep(self, app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        """Remember the docstring as it was written."""
        if what in ("attribute", "data", "property"):
            self._before[name] = list(lines)

    def restore(self, app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        """And put it back."""
        lines[:] = self._before.pop(name, lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directives known."""
    directives = {
        "aliases": Aliases,
        "command": Command,
        "commands": Commands,
        "config-fields": ConfigFields,
        "metrics": Metrics,
        "tasks": Tasks,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
    PlainAttributes(app)
    app.connect("doctree-read", inline_drawings, priority=900)  # when the paths of images are known
    return {"parallel_read_safe": True, "parallel_write_safe": True}
