"""What a run imports until the end of its first update."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy", "torch.onnx")
"""Torch's compiler and the like: together they take longer to import than torch itself."""


@pytest.mark.parametrize(
    "settings",
    [{}, {"core": "gru"}, {"algo": "impala", "threads": 2}],
    ids=str,
)
def test_no_compiler_is_imported(tmp_path: Path, settings: dict):
    """The first update of a run on a CPU does not import torch's compiler.

    Replay learners do: their memory check watches the operations of a step through torch's dispatcher.
    """
    given = {"env": "CartPole-v1", "steps": 4096, "progress": False, "threads": 2} | settings
    code = (
        "import sys\n"
        "import recollect as rc\n"
        f"rc.train(**{given!r})\n"
        f"heavy = [name for name in {COMPILER!r} if name in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
