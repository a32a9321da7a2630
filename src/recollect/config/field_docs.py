"""The fields of all configs with their types, defaults and docstrings, read from the source.

Nothing is imported: Python keeps no docstrings of fields, and importing torch for a help text would
take a second and a half.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

CONFIGS = {
    "": ("config/train", "TrainConfig"),
    "ppo": ("config/ppo", "PPOConfig"),
    "impala": ("algos/impala", "ImpalaConfig"),
    "policy": ("policy/policy", "PolicyConfig"),
    "encoder": ("policy/encoders", "EncoderConfig"),
    "head": ("policy/heads", "HeadConfig"),
}
"""Section: module and class of its fields. The cores and tasks come from their catalogs."""
ALGOS = ("ppo", "impala")
"""The sections of algorithms."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field as its source has it."""

    name: str
    type: str
    """The annotation, names of types written out."""
    default: str
    """As written; nothing for what has none, and for parts that are made."""
    doc: str
    """The docstring in one line, without markup."""

    @property
    def choices(self) -> list[str]:
        """The words of a Literal."""
        found = [node for node in ast.walk(ast.parse(self.type, mode="eval")) if _is_literal(node)]
        return [
            str(constant.value)
            for literal in found
            for constant in ast.walk(literal)
            if isinstance(constant, ast.Constant)
        ]

    @property
    def kinds(self) -> set[str]:
        """The names of the types in the annotation."""
        return {node.id for node in ast.walk(ast.parse(self.type, mode="eval")) if isinstance(node, ast.Name)}

    @property
    def is_switch(self) -> bool:
        """Whether the name alone, without a value, is enough."""
        return self.type == "bool"

    @property
    def is_list(self) -> bool:
        """Whether one value is several, with commas."""
        return self.type.startswith("tuple")

    @property
    def short_doc(self) -> str:
        """The first sentence."""
        end = self.doc.find(". ")
        return self.doc if end < 0 else self.doc[: end + 1]


@dataclass(frozen=True, slots=True)
class Part:
    """A core or a task: its name, what it is, and its fields or options."""

    name: str
    doc: str
    fields: list[Field]
    sizes: str = ""
    """What the sizes of a task are, where it has any."""


@functools.cache
def config_fields(section: str) -> list[Field]:
    """The fields of "" (the run), "ppo", "impala", "policy", "encoder" or "head"."""
    module, name = CONFIGS[section]
    return _class_fields(module, _class(module, name))


@functools.cache
def algo_fields() -> list[Field]:
    """The fields of all algorithms, each once, with what the defaults of the first are."""
    found = {field.name: field for algo in reversed(ALGOS) for field in config_fields(algo)}
    order = dict.fromkeys(field.name for algo in ALGOS for field in config_fields(algo))
    return [found[name] for name in order]


@functools.cache
def aliases() -> dict[str, str]:
    """Names of other libraries and ours, as in ``recollect.config.train.ALIASES``."""
    return ast.literal_eval(_assigned("config/train")["ALIASES"])


@functools.cache
def cores() -> dict[str, Part]:
    """The cores by name, as in ``recollect.cores.CORES``."""
    module = "cores/__init__"
    catalog = _assigned(module)["CORES"]
    if not isinstance(catalog, ast.Dict):
        raise TypeError("cores.CORES is no dict literal any more: teach field_docs how to read it")
    found = {}
    for key, value in zip(catalog.keys, catalog.values):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
            home = _imported(module)[value.id]
            node = _class(home, value.id)
            found[str(key.value)] = Part(str(key.value), _doc(node), _class_fields(home, node))
    presets = _assigned(module)["PRESETS"]
    if not isinstance(presets, ast.Dict):
        raise TypeError("cores.PRESETS is no dict literal any more: teach field_docs how to read it")
    kinds = {
        ast.unparse(value): str(ast.literal_eval(key))
        for key, value in zip(catalog.keys, catalog.values)
        if key
    }
    for key, value in zip(presets.keys, presets.values):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call):
            kind = found[kinds[ast.unparse(value.func)]]
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
            fields = [replace(field, default=given.get(field.name, field.default)) for field in kind.fields]
            words = ", ".join(f"{name}={text}" for name, text in given.items())
            found[str(key.value)] = Part(str(key.value), f"A {kind.name} with {words}.", fields)
    return found


@functools.cache
def policies() -> list[str]:
    """The names of policies, as in ``recollect.policy.zoo.POLICIES``."""
    catalog = _assigned("policy/zoo")["POLICIES"]
    if not isinstance(catalog, ast.Dict):
        raise TypeError("zoo.POLICIES is no dict literal any more: teach field_docs how to read it")
    return [str(key.value) for key in catalog.keys if isinstance(key, ast.Constant)]


@functools.cache
def tasks() -> dict[str, Part]:
    """The built-in tasks by name, as in ``recollect.tasks.TASKS``."""
    module = "tasks/catalog"
    listed = [node.id for node in ast.walk(_assigned(module)["TASKS"]) if isinstance(node, ast.Name)]
    found = {}
    for name in listed:
        home = _imported(module).get(name)
        if home is None or name == "Task":
            continue
        node = _class(home, name)
        values = {target: value for target, value, _ in _assignments(node.body) if value is not None}
        short = str(ast.literal_eval(values["name"]))
        sizes = _assigned(home).get("SIZES")
        text = "" if sizes is None else _sizes(ast.literal_eval(sizes), _assigned_doc(home, "SIZES"))
        found[short] = Part(short, _doc(_tree(home)), _options(home, node), text)
    return found


def _sizes(sizes: dict[str, object], doc: str) -> str:
    shown = "; ".join(
        f"{name} {', '.join(map(str, size)) if isinstance(size, tuple) else size}"
        for name, size in sizes.items()
    )
    return f"{shown} ({doc[:1].lower()}{doc[1:].rstrip('.')})"


def _options(module: str, node: ast.ClassDef) -> list[Field]:
    """The keyword-only arguments of a task."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name == "__init__":
            args, defaults = child.args.kwonlyargs, child.args.kw_defaults
            return [_field(module, arg.arg, arg.annotation, value, "") for arg, value in zip(args, defaults)]
    return []


def _class_fields(module: str, node: ast.ClassDef) -> list[Field]:
    """Those of its bases first, as a dataclass has them; a field that is written anew keeps its place."""
    found: dict[str, Field] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in _imported(module):
            home = _imported(module)[base.id]
            found |= {field.name: field for field in _class_fields(home, _class(home, base.id))}
    for target, value, statement in _assignments(node.body):
        if isinstance(statement, ast.AnnAssign):
            after = node.body[node.body.index(statement) + 1 :]
            found[target] = _field(module, target, statement.annotation, value, _string(after[:1]))
    return list(found.values())


def _field(module: str, name: str, hint: ast.expr | None, value: ast.expr | None, doc: str) -> Field:
    default = "" if value is None else ast.get_source_segment(_source(module), value) or ""
    if isinstance(value, ast.Call):  # field(default=..., default_factory=...)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        empty = {"dict": "{}", "list": "[]", "tuple": "()"}
        default = given.get("default") or empty.get(given.get("default_factory", ""), "")
    return Field(name, "Any" if hint is None else _type(module, hint), default, _line(doc))


def _type(module: str, hint: ast.expr) -> str:
    """The annotation as text; a name that stands for a Literal is written out."""

    class WriteOut(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return _alias(module, node.id) or node

    return ast.unparse(WriteOut().visit(ast.parse(ast.unparse(hint), mode="eval")))


def _alias(module: str, name: str) -> ast.expr | None:
    value = _assigned(module).get(name)
    if value is not None:
        return value if _is_literal(value) else None
    home = _imported(module).get(name)
    return None if home is None else _alias(home, name)


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"


# The source ----------------------------------------------------------------------------------------------


@functools.cache
def _source(module: str) -> str:
    return (Path(__file__).parents[1] / f"{module}.py").read_text(encoding="utf-8")


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


def _class(module: str, name: str) -> ast.ClassDef:
    return next(n for n in _tree(module).body if isinstance(n, ast.ClassDef) and n.name == name)


@functools.cache
def _assigned(module: str) -> dict[str, ast.expr]:
    return {target: value for target, value, _ in _assignments(_tree(module).body) if value is not None}


def _assigned_doc(module: str, name: str) -> str:
    body = _tree(module).body
    at = next(
        i for target, _, statement in _assignments(body) for i in [body.index(statement)] if target == name
    )
    return _line(_string(body[at + 1 : at + 2]))


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None, ast.stmt]]:
    """Name, value and statement of every plain assignment."""
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value, statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value, statement


@functools.cache
def _imported(module: str) -> dict[str, str]:
    """Where the names come from that a module imports from Recollect."""
    return {
        name.asname or name.name: statement.module.removeprefix("recollect.").replace(".", "/")
        for statement in _tree(module).body
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("recollect.")
        for name in statement.names
        if statement.module is not None
    }


def _doc(node: ast.ClassDef | ast.Module) -> str:
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    return _line(text.split("\n\n")[0])


def _string(statements: list[ast.stmt]) -> str:
    """The text, if the first statement is nothing but a string."""
    if statements and isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
        return str(statements[0].value.value)
    return ""


def _line(text: str) -> str:
    return " ".join(text.replace("``", "").split())
