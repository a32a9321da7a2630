"""Matches on a GPU, of a league that was trained on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recollect as rc
from recollect.training.opponents import match

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_match_on_a_gpu(tmp_path: Path) -> None:
    """All games at once, half of them on each side, and those of the CPU within chance."""
    run, league = str(tmp_path / "run"), {"promote_every": 4000, "refresh_every": 2000}
    rc.train("recall-duel", steps=20_000, vs="league", vs_kwargs=league, run=run, progress=False).close()
    here = match(rc.load(run, device="cpu"), "s3", "bot", 400).total
    found = match(rc.load(run, device="cuda"), "s3", "bot", 400)
    assert {one.games for one in found.sides.values()} == {200}
    assert abs(found.total.share("win") - here.share("win")) < 0.15
    assert abs(found.total.share("draw") - here.share("draw")) < 0.15
