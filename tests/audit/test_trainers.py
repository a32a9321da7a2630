"""Audits of other people's trainers: a healthy script passes, and each bug fails the check of its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recollect.audit import Trainer, audit_trainer
from tests.audit.scripts import make

BUGS = {
    "no reset": ("resets in acting", "not reset"),
    "acting: no reset": ("resets in acting", "not reset"),
    "acting: reset one step late": ("resets in acting", "one step late"),
    "learning: no reset": ("resets in learning", "not reset"),
    "learning: reset one step late": ("resets in learning", "one step late"),
    "learning: reset one step early": ("resets in learning", "one step early"),
    "one end resets every row": ("rows reset", "one end resets every row"),
    "rows are reset by a number in place of a mask": ("rows reset", "by a number in place of a mask"),
    "reset to something else": ("rows reset", "something else"),
    "acting: the step changes the given memory": ("initial state", "in place"),
    "rows are mixed": ("row independence", "rows are mixed"),
    "rows of the critic are permuted": ("row independence", "another order of rows"),
    "learning: rows and steps are reshaped without a transpose": ("row independence", "without a transpose"),
    "dropout is on": ("acting is training", "dropout"),
    "running statistics move while acting": ("weights unchanged", "running statistics move"),
    "the memory is not used": ("resets in acting", "not used"),
    "learning: sequences start from zeros": ("chunk start", "starts from zeros"),
    "learning: actions are drawn again": ("acting is training", "actions"),
    "learning: later steps are read": ("resets in learning", "reads later steps"),
    "learning: no gradient at all": ("gradient reach", "no_grad"),
    "learning: the memory is detached in every step": ("gradient reach", "detached between the steps"),
    "the initial state is drawn": ("initial state", "drawn at random"),
    "a live state is the initial one": ("initial state", "a live state"),
    "a time limit is a termination": ("truncation", "counts as a termination"),
    "a time limit has the value of its own step": ("truncation", "the step's own observation"),
    "a time limit has the value of the next episode": ("truncation", "next episode's first observation"),
    "the trace runs over time limits": ("truncation", "the trace runs on"),
    "both at once is a truncation": ("both ends", "terminated and truncated"),
    "a termination is bootstrapped": ("termination", "a termination is bootstrapped"),
    "nothing is bootstrapped at the end": ("rollout end", "nothing is bootstrapped"),
    "the bootstrap is that of another row": ("rollout end", "permuted"),
    "one row runs on into the next": ("rollout end", ""),
    "returns of normalised advantages": ("rollout end", "normalised advantages"),
    "advantage statistics count padding": ("advantage statistics", "padding included"),
    "a single step is divided by its spread": ("advantage statistics", "spread of one number"),
    "padding counts in the loss": ("padding in update", "padding or invalid rows weigh"),
    "the optimiser never steps": ("padding in update", "optimiser"),
    "recorded: the memory is thrown away": ("recorded memory advances", "thrown away"),
    "recorded: memories one step late": ("recorded chunk states", "one step late"),
    "recorded: memories one step early": ("recorded chunk states", "one step early"),
    "recorded: memories of the next row": ("recorded chunk states", "another row"),
    "recorded: memories are zeros": ("recorded chunk states", "zeros in place of"),
    "recorded: memories of the rollout's start": ("recorded chunk states", "rollout's first step"),
    "recorded: sequences without a transpose": ("recorded contiguity", "without a transpose"),
    "recorded: strided sequences": ("recorded contiguity", "strided"),
    "recorded: shuffled steps": ("recorded contiguity", "shuffled"),
    "recorded: the remainder is dropped": ("recorded contiguity", "remainder"),
    "recorded: first is one step late": ("recorded flags", "one step late"),
    "recorded: first is never set": ("recorded flags", "never resets"),
    "recorded: episodes are joined without a reset": ("recorded contiguity", "joined in a sequence"),
    "recorded: time limits have the value of the next episode": ("recorded bootstraps", "next episode"),
    "recorded: nothing is bootstrapped": ("recorded bootstraps", "counts as an end"),
    "recorded: a number is missing": ("recorded finite", "never written"),
}
"""Each bug with the check that must fail, and words of its cause."""


def test_a_healthy_script_passes():
    result = audit_trainer(make)
    assert result.ok, str(result)
    assert {check.status for check in result.checks} == {"ok"}, str(result)


def only_log_probs() -> Trainer:
    """The healthy script, whose ``act`` shows nothing but the action that it draws."""
    trainer = make()
    act = trainer.act
    assert act is not None

    def acts(*given: Any) -> tuple[dict[str, Any], Any]:
        outputs, state = act(*given)
        return {name: outputs[name] for name in ("action", "log_prob")}, state

    return replace(trainer, act=acts)


def test_a_drawn_action_is_no_evidence():
    """It differs in the next call, also in a healthy trainer."""
    result = audit_trainer(only_log_probs)
    assert result.ok, str(result)
    for name in ("row independence", "resets in acting", "rows reset"):
        assert result[name].status == "not checked", str(result)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_fails_the_check_of_its_cause(bug: str):
    name, cause = BUGS[bug]
    check = audit_trainer(lambda: make(bug))[name]
    in_place = bug == "acting: the step changes the given memory"
    assert check.status == ("warning" if in_place else "failed"), "\n".join(check.lines())
    assert cause in " ".join((check.found, *check.advice)), "\n".join(check.lines())
