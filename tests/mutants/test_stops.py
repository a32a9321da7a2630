"""A run with a wrong state stops, however long its sequences are; the error says which side is wrong."""

from __future__ import annotations

import functools

import pytest
import torch

from recollect.base import devices
from recollect.errors import AlignmentError
from recollect.tasks import make_task
from tests.mutants.bugs import STOPPED
from tests.mutants.mutant import Mutant

LENGTHS = [32, 1002]
ACTING, LEARNING = "the record is wrong", "the learner is wrong"
STEP = "the step computes something else, or something random"
SIDES = {
    "observation statistics move between acting and learning": ACTING,
    "recorded values are not moved with the first statistics": ACTING,
    "an unpreserving PopArt": ACTING,
    "chunks start from zeros": LEARNING,
    "chunk states are off by one chunk": LEARNING,
    "every chunk starts from the state of step 0": LEARNING,
    "the state of another row": LEARNING,
    "the output state is stored": ACTING,
    "the learner resets one step late": LEARNING,
    "no reset inside chunks": LEARNING,
    "chunks by reshape without transpose": LEARNING,
    "rows permuted between observations and actions": ACTING,
    "observations recorded too late": ACTING,
    "actions are resampled when evaluated": STEP,
    "burn-in from the chunk's state": LEARNING,
    "burn-in for the chunks that open the rollout": LEARNING,
}
"""Where each bug is: in what acting recorded, in what the learner makes of it, or in the loss alone."""
NEEDS_REUSED_TENSORS = "observations recorded too late"


def sized(length: int) -> dict[str, int]:
    """A rollout of one chunk and a shorter one."""
    return {"rollout": length + 9, "chunk": length}


@functools.cache
def healthy(proof, length: int) -> None:
    proof(**sized(length))


AT_LENGTH = ("chunks start from zeros", "the learner resets one step late", "an unpreserving PopArt")
"""The bugs that every run of the tests looks for over a thousand steps, too."""


@pytest.mark.parametrize(
    ("mutant", "length"),
    [
        pytest.param(
            mutant, length, marks=[pytest.mark.slow] if length > 32 and mutant.name not in AT_LENGTH else []
        )
        for mutant in STOPPED
        for length in LENGTHS
    ],
    ids=lambda value: value.name if isinstance(value, Mutant) else str(value),
)
def test_a_run_with_long_sequences_stops(mutant: Mutant, length, monkeypatch):
    """S000-8, S000-11, S004-1: rounding over a thousand steps hides no wrong state."""
    healthy(mutant.proof, length)
    mutant.apply(monkeypatch)
    with pytest.raises(AlignmentError, match=SIDES[mutant.name]):
        mutant.proof(**sized(length))


@functools.cache
def healthy_on(device: str, proof, length: int) -> None:
    proof(make_task("position-cartpole", 8, device), **sized(length))


def on_device(mutant: Mutant, device: str, length: int, monkeypatch) -> None:
    healthy_on(device, mutant.proof, length)
    mutant.apply(monkeypatch)
    with pytest.raises(AlignmentError, match=SIDES[mutant.name]):
        mutant.proof(make_task("position-cartpole", 8, device), **sized(length))


TASK_BUGS = [mutant for mutant in STOPPED if mutant.name != NEEDS_REUSED_TENSORS]


@pytest.mark.parametrize("mutant", TASK_BUGS, ids=lambda mutant: mutant.name)
def test_a_run_stops_on_the_path_of_a_gpu(mutant: Mutant, monkeypatch):
    """S000-8: where nothing is read before the update is over."""
    monkeypatch.setattr(devices, "synchronises", lambda where: True)
    on_device(mutant, "cpu", 32, monkeypatch)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mutant", TASK_BUGS, ids=lambda mutant: mutant.name)
def test_a_run_stops_on_a_gpu(mutant: Mutant, length, monkeypatch):
    """S000-8: in TF32, by Triton's kernels."""
    on_device(mutant, "cuda", length, monkeypatch)
