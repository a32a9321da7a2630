"""Bugs of registered parts: code that nobody trusts is imported, or other processes lack it."""

from __future__ import annotations

from recollect import api
from recollect.base import parts
from recollect.config import register
from recollect.config.train import TrainConfig
from recollect.training import trusted_runs
from tests.cli import test_registered
from tests.config import test_register
from tests.mutants.mutant import Edit, Mutant


def trusts(name: str, by: str, *edits: Edit) -> Mutant:
    """A module is imported that the user has not trusted."""
    return Mutant(name, test_registered.test_a_folder_imports_nothing_but_what_is_trusted, edits, by)


def lost(name: str, by: str, edit: Edit) -> Mutant:
    """Another process lacks a part."""
    return Mutant(name, test_registered.test_parts_are_carried_to_other_processes, (edit,), by)


OTHERS = '{k: v for k, v in settings.items() if k != "imports"}'
REGISTERED = [
    trusts(
        "the imports of a folder are imported without trust",
        'match="--import=evil"',
        (
            api,
            "_trusting",
            "import_parts(named.imports or ())",
            'import_parts(saved.description["config"]["imports"])',
        ),
    ),
    trusts(
        "the imports are not in the digest",
        'match="--import=evil"',
        (trusted_runs, "_digest", "str(run), settings,", f"str(run), {OTHERS},"),
        (trusted_runs, "_digest", 'settings.get("imports", ())', "()"),
    ),
    trusts(
        "the places of the imports are not in the digest",
        'match=f"--import={FILE}"',
        (trusted_runs, "_digest", 'settings.get("imports", ())', "()"),
    ),
    lost(
        "registered parts stay in their process",
        "inner/3",
        (parts.Carried, "__reduce__", "own_parts()", "[]"),
    ),
    lost(
        "other processes do not import the files",
        "_env_random",
        (parts._Imports, "__reduce__", "list(_imported)", "[]"),
    ),
    Mutant(
        "a registered part replaces another",
        test_register.test_a_name_is_taken_once_and_a_cell_may_run_again,
        ((register, "_check_free", "other.name == part.name and not is_again", "False"),),
        "choose another name",
    ),
    Mutant(
        "another algorithm keeps the head of the one before",
        test_register.test_another_algorithm_may_have_another_head,
        ((TrainConfig, "override", "self.chosen_policy", "self.policy"),),
        "policy.head",
    ),
]
