"""Bugs of trust in the code of a run, and of wrappers and options that the user names."""

from __future__ import annotations

from recollect.config import own_code
from recollect.envs import user_wrappers
from recollect.training import trusted_runs
from tests.envs import test_user_wrappers
from tests.faults import test_trusted_runs
from tests.mutants.mutant import Edit, Mutant


def trusts(name: str, what: str, *edits: Edit) -> Mutant:
    """Code is trusted that the user has not trusted."""
    return Mutant(
        name, test_trusted_runs.test_trust_is_for_exactly_this_code_of_this_run, edits, f"another {what}"
    )


DIGEST = "[FORMAT, str(run), settings, places]"
MATCH = 'data.get("digest") == _digest(run, settings)'

TRUST = [
    trusts("trust is for a path, whatever it holds", "env", (trusted_runs, "is_trusted", MATCH, "True")),
    trusts(
        "the settings are not in the digest",
        "env_kwargs",
        (trusted_runs, "_digest", "settings, places]", "places]"),
    ),
    trusts(
        "the places of the code are not in the digest",
        "place",
        (trusted_runs, "_digest", DIGEST, DIGEST.replace(", places", "")),
    ),
    trusts(
        "the wrappers are not in the digest",
        "wrap",
        (trusted_runs, "required", 'found["wrap"] = wrap', "pass"),
    ),
    trusts(
        "the options of the env are not in the digest",
        "env_kwargs",
        (trusted_runs, "required", 'found["env_kwargs"] = options', "pass"),
    ),
    trusts(
        "the encoder is not in the digest",
        "encoder",
        (trusted_runs, "required", '"encoder", "head")', '"head")'),
    ),
    trusts(
        "the head is not in the digest",
        "head",
        (trusted_runs, "required", '"encoder", "head")', '"encoder")'),
    ),
    trusts(
        "all folders share one file of trust",
        "folder",
        (trusted_runs, "_file", "str(run).encode()", "bytes()"),
        (trusted_runs, "_digest", "str(run), ", ""),
    ),
    Mutant(
        "wrappers are applied from the outermost to the innermost",
        test_user_wrappers.test_wrappers_are_applied_in_order,
        ((user_wrappers, "wrapped", "for wrapper in wrap:", "for wrapper in reversed(wrap):"),),
        "reset raised TypeError",
    ),
    Mutant(
        "options of own code are dropped",
        test_user_wrappers.test_wrappers_are_applied_in_order,
        ((own_code.OwnCode, "__call__", "**self._checked(make)", ""),),
        "assert env.step(",
    ),
]
