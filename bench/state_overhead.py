"""What the handling of recurrent state costs beside everything else.

    python bench/state_overhead.py [--out bench/results/state_overhead.json]

Shows S004-11: resetting and storing states takes at most 10% of a rollout, cutting and selecting them
at most 20% of an update. The pieces are timed alone, on the tensors of a real run (CartPole without
velocities, 16 envs, LSTM of 128), and set in relation to the whole of that run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import common
import torch
from others.task import position_cartpole

import recollect as rc
from recollect import tree
from recollect.rollout import minibatches
from recollect.runtimes.inline import InlineCrew


def seconds(piece: Callable[[], object], repeat: int = 200) -> float:
    """The median time of one call."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        piece()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    rows: list[dict[str, float]] = []
    agent = rc.train(
        position_cartpole, steps=40 * 2048, threads=1, progress=False, callbacks=[lambda _, m: rows.append(m)]
    )
    trainer = agent._trainer
    assert trainer is not None
    torch.set_num_threads(1)
    assert isinstance(trainer.crew, InlineCrew)
    (actor,) = trainer.crew.actors
    rollout, config = actor.collect(), agent.config.algo
    core, steps = agent.policy.core, 2048
    rollout_seconds = steps * statistics.median(1 / r["speed/env"] + 1 / r["speed/act"] for r in rows[5:])
    update_seconds = steps * statistics.median(1 / r["speed/learn"] for r in rows[5:])

    slot = tree.index(rollout.states, 0)
    with torch.no_grad():
        store = seconds(lambda: tree.copy_(slot, actor.state)) * len(rollout.state_steps)
        reset = seconds(lambda: core.reset(actor.state, rollout.first[0])) * rollout.steps
        check = seconds(lambda: core._check_state(actor.state, actor.rows, "")) * rollout.steps
        starts = seconds(lambda: tree.stack([rollout.state_at(t) for t in range(0, 128, config.chunk)]))
        stacked = tree.map(lambda leaf: leaf.flatten(0, 1), rollout.states)
        which = next(minibatches(64, config.minibatches, torch.Generator()))
        one = seconds(lambda: tree.map(lambda leaf: leaf.index_select(0, which), stacked))
        select = one * config.minibatches * config.epochs
    result = {
        "rollout_share": round((store + reset + check) / rollout_seconds, 4),
        "update_share": round((starts + select) / update_seconds, 4),
        "rollout_ms": {"store": store * 1e3, "reset": reset * 1e3, "check": check * 1e3},
        "update_ms": {"starts": starts * 1e3, "select": select * 1e3},
        "whole_ms": {"rollout": rollout_seconds * 1e3, "update": update_seconds * 1e3},
    }
    shares = (result["rollout_share"], result["update_share"])
    print("state handling: {:.1%} of a rollout, {:.1%} of an update".format(*shares))
    if args.out:
        common.write(args.out, "state_overhead", result)


if __name__ == "__main__":
    main()
