"""``parallel="auto"``: chosen once before the first update of a new run, then a setting of the run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.learning.learner import Learner
from recollect.training import parallel_choice

SMALL: dict[str, Any] = {
    "env": "recollect/DelayedCue-v0",
    "env_kwargs": {"horizon": 3},
    "steps": 64,
    "num_envs": 4,
    "rollout": 16,
    "chunk": 8,
    "encoder": rc.EncoderConfig(hidden=(8,)),
    "core": rc.LSTMConfig(hidden=8),
    "threads": 2,
    "progress": False,
}


@pytest.fixture(autouse=True)
def no_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_choice, "_choices", {})


def forced(monkeypatch: pytest.MonkeyPatch, choice: str, limit: int = 1) -> list[int]:
    """The measurement as it is, but with this result; returns the number of calls so far, by appending."""
    calls: list[int] = []
    measured = parallel_choice._measured

    def measure(*given: Any) -> str:
        calls.append(1)
        measured(*given)
        return choice

    monkeypatch.setattr(parallel_choice, "_measured", measure)
    monkeypatch.setattr(parallel_choice, "LARGE", limit)
    return calls


def operations_win_on_free_cores_only() -> None:
    decided = parallel_choice.decided
    assert decided([1.0] * 5, [0.8] * 5) == "operations"
    assert decided([1.0] * 5, [0.95] * 5) == "rows", "too small a gain"
    assert decided([1.0] * 5, [0.7, 0.7, 0.7, 0.7, 5.0]) == "rows", "another program uses a core"


def test_operations_win_on_free_cores_only():
    """One slow round is enough to choose rows, which never collapse."""
    operations_win_on_free_cores_only()


@pytest.mark.parametrize("choice", ["rows", "operations"])
def test_the_choice_is_a_setting_of_the_run(choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Measured once, written into the config, kept by a resume in another process."""
    calls = forced(monkeypatch, choice)
    with rc.train(**SMALL, run=tmp_path / "run") as agent:
        assert agent.config.parallel == choice
    assert len(calls) == 1
    again = rc.resume(tmp_path / "run", steps=64, progress=False)
    assert again.config.parallel == choice
    assert len(calls) == 1, "a resume measures nothing"
    again.close()


def used_threads() -> None:
    """The learner runs as chosen, in every update."""
    seen: list[int] = []
    update = Learner.update

    def noting(self: Learner, *given: Any, **named: Any) -> Any:
        seen.append(torch.get_num_threads())
        return update(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_choice, "_choices", {})
        forced(patch, "operations")
        patch.setattr(Learner, "update", noting)
        rc.train(**SMALL).close()
    assert seen == [2], "two intra-op threads, as chosen"


def test_the_choice_is_used():
    """The first update has it already."""
    used_threads()


def test_a_measurement_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Weights, statistics and random streams of a run do not depend on whether it was measured."""
    with rc.train(**SMALL, parallel="rows") as plain:
        wanted = dict(plain.policy.state_dict()) | plain._so_far().optimizer
    forced(monkeypatch, "rows")
    with rc.train(**SMALL) as measured:
        found = dict(measured.policy.state_dict()) | measured._so_far().optimizer
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 1},
        {"mode": "async", "runtime": "processes"},
        {"learners": 2, "num_envs": 4},
        {"algo": "r2d2", "core": "lstm", "encoder": None},
    ],
    ids=str,
)
def test_other_processes_or_one_thread_need_no_measurement(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Where the threads of operations would wait for another process of the run, or gain nothing."""
    calls = forced(monkeypatch, "operations")
    config, _, _ = rc.api.resolve(
        SMALL["env"], {**{k: v for k, v in SMALL.items() if k not in ("env", "progress")}, **settings}
    )
    policy = config.policy.build(*spaces())
    assert parallel_choice.with_parallel(config, {"": (policy, 4)}).parallel == "rows"
    assert not calls


def test_groups_and_small_work_need_no_measurement(monkeypatch: pytest.MonkeyPatch):
    """Updates of groups run side by side already; small work is the same either way."""
    calls = forced(monkeypatch, "operations", limit=10**12)
    with rc.train(**SMALL) as agent:
        assert agent.config.parallel == "rows"
        monkeypatch.setattr(parallel_choice, "LARGE", 1)
        config = agent.config.override(parallel="auto")
        two = {"a": (agent.policy, 4), "b": (agent.policy, 4)}
        assert parallel_choice.with_parallel(config, two).parallel == "rows"
    assert not calls


def test_equal_work_has_one_choice_in_a_process(monkeypatch: pytest.MonkeyPatch):
    """So that two trainings from one seed stay equal bit for bit."""
    calls = forced(monkeypatch, "operations")
    for _ in range(2):
        with rc.train(**SMALL) as agent:
            assert agent.config.parallel == "operations"
    assert len(calls) == 1


def test_the_threads_of_a_measurement_end(monkeypatch: pytest.MonkeyPatch):
    """Nothing is left behind, and the caller's number of threads is as before."""
    forced(monkeypatch, "rows")
    threads, number = threading.active_count(), torch.get_num_threads()
    rc.train(**SMALL).close()
    assert threading.active_count() == threads
    assert torch.get_num_threads() == number


def spaces() -> tuple[Any, Any]:
    env = rc.envs.make_env(SMALL["env"], 1)
    try:
        return env.observation_space, env.action_space
    finally:
        env.close()
