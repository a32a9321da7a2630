"""Runs of version 0.1.0 before its modules were moved into packages: they load, and resume bit for bit.

``old_runs/NAME`` is the run as it was stopped, ``old_runs/NAME/resumed`` the tensors that the same version
wrote after 512 more steps.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import recollect as rc
from recollect.base import provenance

pytestmark = pytest.mark.usefixtures("warm_children")

RUNS = Path(__file__).parent / "old_runs"
CAPABILITY = "AVX512"
"""What torch's kernels used on the machine that wrote them."""


def is_the_same_machine(run: Path) -> bool:
    """Bits are those of one CPU model and one build of torch."""
    made = json.loads((run / "run.json").read_text())
    same = made["machine"]["cpu"] == provenance.machine()["cpu"]
    same = same and made["versions"]["torch"] == provenance.versions()["torch"]
    return same and torch.backends.cpu.get_cpu_capability() == CAPABILITY


@pytest.mark.parametrize("name", ["ppo-lstm", "impala-stack", "ppo-mamba"])
def test_an_old_run_resumes(name, tmp_path):
    """Inline, in processes; PPO, IMPALA; normalisers, an auxiliary loss, burn-in, refreshed states."""
    run = tmp_path / name
    shutil.copytree(RUNS / name, run, ignore=shutil.ignore_patterns("resumed"))
    assert len(rc.load(run).evaluate(episodes=4).returns) == 4
    rc.resume(run, steps=512, progress=False)
    checkpoint = max((run / "checkpoints").iterdir())
    exact = is_the_same_machine(RUNS / name)
    for file in sorted((RUNS / name / "resumed").iterdir()):
        want, got = load_file(file), load_file(checkpoint / file.name)
        assert got.keys() == want.keys()
        for key, tensor in want.items():
            if exact:
                assert torch.equal(got[key], tensor), f"{file.name}: {key}"
            elif file.name == "weights.safetensors":
                torch.testing.assert_close(got[key], tensor, rtol=1e-3, atol=1e-4, msg=key)
