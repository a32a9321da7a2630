"""What a league teaches: the newest snapshot against every snapshot of the first half of its training.

    python bench/league_learning.py RUN [--games 400] [--device cpu]
    python bench/league_learning.py RUN --minutes 8 --device cuda

The second form trains the league first, in the mech arena, 5 v 5, for so many minutes. Then the newest
snapshot plays each snapshot of the first half, half of the games on each side, both with sampled actions. The
games are kept in the league's log of matches.

The bar: after 8 minutes on a GPU the newest beats each of them, the lower end of the 95% Wilson interval of
its points (a draw is half a win) above one half; otherwise the cycles are named.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import common
import mech_learning

import recollect as rc
from recollect.acting.versus_games import wilson
from recollect.config.league import LEAGUE
from recollect.league.check import check_league
from recollect.league.pool import Pool
from recollect.league.summary import summarise
from recollect.training.opponents import match

STEPS_PER_ENV = 160_000
"""About what 8 minutes on a GPU give; the learning rate and the curriculum are spread over them."""


def train(
    run: str, minutes: float, device: str, num_envs: int, steps: int, promote_every: int, seed: int
) -> dict[str, Any]:
    """Train against a league for so many steps, or minutes if they are over before."""
    started = time.monotonic()
    league = {"promote_every": promote_every, "refresh_every": max(1, promote_every // 5)}
    with rc.train(
        "mech",
        vs=LEAGUE,
        vs_kwargs=league,
        steps=steps,
        max_seconds=60 * minutes,
        device=device,
        seed=seed,
        run=run,
        curriculum=mech_learning.stages(steps),
        **mech_learning.settings(device, "5v5") | {"num_envs": num_envs, "progress": "plain"},
    ) as agent:
        seconds, updates = time.monotonic() - started, len(agent.history.column("return")[0])
        return {
            "minutes": minutes,
            "seconds": round(seconds),
            "num_envs": num_envs,
            "steps": agent.steps,
            "updates": updates,
        } | league


def play(run: str, games: int, device: str) -> dict[str, Any]:
    """The newest snapshot against each of the first half."""
    agent = rc.load(run, device=device)
    pool = Pool(Path(run) / LEAGUE)
    own = [member for member in pool.members if member.is_own]
    newest, half = own[-1], own[: max(1, len(own) // 2)]
    if newest in half:
        raise SystemExit(f"{run} has {len(own)} snapshots: train it for longer")
    rows = []
    for member in half:
        found = match(agent, newest.name, member.name, games)
        total = found.total
        points = total.win + total.draw / 2
        row = {
            "opponent": member.name,
            "steps": member.steps,
            "points": points / total.games,
            "interval": wilson(points, total.games),
            **found.total.to_json(),
            "sides": {side: one.to_json() for side, one in found.sides.items()},
        }
        print(f"{newest.name} against {member.name}: {row['points']:.3f} {row['interval']}", flush=True)
        rows.append(row)
    summary = summarise(pool)
    return {
        "run_steps": agent.steps,
        "snapshots": len(own),
        "newest": newest.name,
        "newest_steps": newest.steps,
        "beats_all_of_the_first_half": all(row["interval"][0] > 0.5 for row in rows),
        "not_beaten": [row["opponent"] for row in rows if row["interval"][0] <= 0.5],
        "cycles": [str(cycle) for cycle in summary.ratings.cycles],
        "against": rows,
        "ratings": summary.ratings.to_json()["ratings"],
        "faults": check_league(Path(run)).faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="the folder of a run; with --minutes a new one")
    parser.add_argument("--minutes", type=float, help="train it first, for so long")
    parser.add_argument("--games", type=int, default=400, help="against each snapshot")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-envs", type=int, help="of the training (default: 4096 on a GPU, else 64)")
    parser.add_argument("--steps", type=int, help=f"at most (default: {STEPS_PER_ENV} for each env)")
    parser.add_argument("--promote-every", type=int, default=10_000_000, help="env steps between snapshots")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="bench/results/league_learning.json")
    args = parser.parse_args()
    trained: dict[str, Any] = {}
    if args.minutes is not None:
        slots = args.num_envs or mech_learning.ENVS[args.device]["5v5"]
        steps = args.steps or STEPS_PER_ENV * slots
        trained = train(args.run, args.minutes, args.device, slots, steps, args.promote_every, args.seed)
        print(trained, flush=True)
    common.write(args.out, "league_learning", trained | play(args.run, args.games, args.device))


if __name__ == "__main__":
    main()
