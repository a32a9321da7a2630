"""The order of packages: each imports only from those before it, and private names stay in their module.

docs/architecture.md describes the packages; this file enforces their order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

import recollect

SRC = Path(recollect.__file__).parent
ORDER = (
    "errors",
    "base",
    "config",
    "envs",
    "tasks",
    "kernels",
    "cores",
    "policy",
    "experience",
    "acting",
    "learning",
    "algos",
    "league",
    "runtimes",
    "training",
    "display",
    "agent",
    "api",
    "play",
    "export",
    "doctor",
    "audit",
    "reports",
    "sweep",
    "cli",
)
APART = ({"envs", "tasks"}, {"kernels", "cores", "policy"})
"""Two branches: neither imports from the other."""
FOREIGN = {"_actions", "_backward_hooks", "_devices", "_forward_hooks", "_forward_pre_hooks"}
FOREIGN |= {"_option_string_actions"}
# Of the packages that audit.adapters looks into: sb3-contrib, skrl, tianshou, RLlib, Sample Factory.
FOREIGN |= {"_last_obs", "_last_episode_starts", "_last_lstm_states", "_logger", "_preprocess_batch"}
FOREIGN |= {"_rnn_sequence_length", "_rnn_tensors_names", "_rnn_initial_states", "_current_next_observations"}
FOREIGN |= {"_learner", "_learner_connector", "_prepare_batch", "_calculate_losses"}
"""Private attributes of other packages that have no public name."""
MODULES = sorted(SRC.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a module: ``base.tree``; a package has that of its folder."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module of Recollect (without the leading ``recollect.``) and name of everything imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            if node.module == "recollect" or (node.module or "").startswith("recollect."):
                home = (node.module or "").removeprefix("recollect").removeprefix(".")
                for alias in node.names:
                    inner = f"{home}.{alias.name}".removeprefix(".")
                    yield (node.lineno, inner, "") if inner in NAMES else (node.lineno, home, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("recollect."):
                    yield node.lineno, alias.name.removeprefix("recollect."), ""


def at_run_time(tree: ast.Module) -> ast.Module:
    """A module without what only a type checker reads."""
    body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    return ast.Module(body, [])


def out_of_order(source: str, name: str) -> list[str]:
    """The imports of a module that the order of packages does not allow."""
    home = name.split(".")[0]
    if home in ("", "__main__"):  # the public names come from everywhere
        return []
    found = []
    for line, module, _ in imports(ast.parse(source)):
        package = module.split(".")[0]
        is_apart = any(home in one and package in other for one, other in permutations(APART))
        is_later = home != "cli" if package == "" else ORDER.index(package) > ORDER.index(home)
        if is_apart or is_later:
            found.append(f"{name}, line {line}: imports {module or 'recollect'}")
    return found


def private_names(source: str, name: str) -> list[str]:
    """The private names of other modules that a module uses."""
    tree = ast.parse(source)
    found = [
        f"{name}, line {line}: {module}.{imported}"
        for line, module, imported in imports(tree)
        if is_private(imported) or any(is_private(part) for part in module.split("."))
    ]
    own, foreign = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom) and not (
            getattr(node, "module", None) or node.names[0].name
        ).startswith("recollect"):
            foreign |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            is_foreign = isinstance(root, ast.Name) and root.id in foreign
            if not (is_self(node.value) or node.attr in own | FOREIGN or is_foreign):
                found.append(f"{name}, line {node.lineno}: {ast.unparse(node)}")
    return found


def is_private(name: str) -> bool:
    """Whether a name is its module's or class's own."""
    return name.startswith("_") and not name.startswith("__")


def is_self(node: ast.AST) -> bool:
    """Whether an expression is the object or class that a method belongs to."""
    is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_super or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


@pytest.mark.parametrize("check", [out_of_order, private_names])
def test_every_module_keeps_the_rules(check):
    assert [found for path in MODULES for found in check(path.read_text(), name_of(path))] == []


def test_every_package_has_its_place():
    assert {name.split(".")[0] for name in NAMES} - {"", "__main__"} == set(ORDER)


def test_modules_do_not_import_each_other_in_a_circle():
    """Imports for types alone do not count: a training has callbacks, and a callback gets the training."""
    graph = {
        name_of(path): {module for _, module, _ in imports(at_run_time(ast.parse(path.read_text())))}
        for path in MODULES
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, (*way, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("from recollect.training.trainer import Trainer", True),
        ("from recollect.training import trainer", True),
        ("import recollect.policy.policy", True),
        ("from recollect import Agent", True),
        ("def f():\n    from recollect.display import words", True),
        ("from recollect.base import tree\nfrom recollect.errors import ConfigError", False),
    ],
)
def test_the_check_of_the_order_can_fail(source, bad):
    assert bool(out_of_order(source, "envs.checks")) == bad


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("from recollect.base.tree import _zip", True),
        ("from recollect.base import tree\ntree._zip(1)", True),
        ("def f(learner):\n    return learner._cut", True),
        ("import torch\ntorch._C._x()", False),
        ("class A:\n    def __init__(self, other):\n        self._x = other._x", False),
    ],
)
def test_the_check_of_private_names_can_fail(source, bad):
    assert bool(private_names(source, "envs.checks")) == bad
