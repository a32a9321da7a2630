"""Seconds of training on the GPU until a memory task is solved.

    python bench/gpu_learning.py --candidates --minutes 8
    python bench/gpu_learning.py --tasks delayed-cue-100 --set num_envs=1024 learning_rate=2e-3

A task is solved when a greedy evaluation on 512 fresh episodes reaches its bar, and a second one on 512
others does too. ``--candidates`` tries a table of settings with seed 100 and takes the fastest; seeds 0, 1
and 2, which are what counts, were not looked at by then.

What counts as time: all iterations of training, by the wall clock. Evaluations are left out, and so is what
is compiled and captured at the beginning: none of the first 5 iterations counts for more than the median of
the later ones. ``warm_up_s`` is what they took, ``gross_s`` all but the evaluations. A look is taken every
half second or so (``--every``), which is how exact the times are; it is in ``curve`` as [seconds, steps,
return]. Without ``--candidates`` the first of the table is taken, which is what a search has found.
"""

from __future__ import annotations

import statistics
import time
from ast import literal_eval
from dataclasses import dataclass, field
from typing import Any

import gpu_common as gpu

from recollect.config.core_choice import reaching

WARM, SEARCH_SEED, EPISODES = 5, 100, 512


@dataclass(frozen=True)
class Goal:
    """A task, and when it is solved fast enough."""

    env: str
    bar: float
    """The mean greedy return that solves it; 1 is the most."""
    seconds: float
    """In which it is to be solved."""
    options: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    """What all candidates start from."""
    candidates: tuple[dict[str, Any], ...] = ()


STEADY = {
    "epochs": 4,
    "recurrent_mode": "full",
    "learning_rate_schedule": "constant",
    "entropy_schedule": "constant",
    "gauge_every": 0,
}


def _try(num_envs: int, learning_rate: float, minibatches: int = 4, **others: Any) -> dict[str, Any]:
    return {"num_envs": num_envs, "learning_rate": learning_rate, "minibatches": minibatches} | others


AT_ONCE = {"gamma": 0.5, "gae_lambda": 0.5}
"""An answer is paid at once: credit needs no reach."""
GOALS = {
    "repeat-previous": Goal(
        "repeat-previous",
        0.9,
        10.0,
        {"k": 4},
        STEADY | {"rollout": 64, "entropy": 0.003} | AT_ONCE,
        (
            _try(1024, 2e-3, core="gru"),
            _try(1024, 2e-3),
            _try(512, 2e-3),
            _try(2048, 3e-3, 8),
            _try(1024, 3e-3, 8),
            _try(512, 1e-3, 8),
            _try(4096, 3e-3, 8),
            _try(1024, 1e-3, gamma=0.99, gae_lambda=0.95, entropy=0.01),
        ),
    ),
    "delayed-cue-100": Goal(
        "delayed-cue",
        0.99,
        20.0,
        {"cues": 4, "horizon": 100},
        STEADY | {"rollout": 128, "core": reaching("lstm", 100), "entropy": 0.01},
        (
            _try(4096, 3e-3, 8, rollout=102),
            _try(1024, 1e-3),
            _try(512, 1e-3),
            _try(1024, 2e-3, rollout=102),
            _try(2048, 2e-3, 8),
            _try(512, 2e-3, 8, rollout=102),
            _try(1024, 3e-3, entropy=0.003),
            _try(1024, 1e-3, core=reaching("gru", 100)),
        ),
    ),
}
TINY = {"num_envs": 8, "minibatches": 2, "epochs": 1, "rollout": 8}


class Clock:
    """The seconds of training, with and without what is compiled and captured at the beginning."""

    def __init__(self) -> None:
        self.warm_up: list[float] = []
        self.later: list[float] = []

    def add(self, seconds: list[float]) -> None:
        """Of so many iterations."""
        room = WARM - len(self.warm_up)
        self.warm_up += seconds[:room]
        self.later += seconds[room:]

    @property
    def gross(self) -> float:
        return sum(self.warm_up) + sum(self.later)

    @property
    def net(self) -> float:
        usual = statistics.median(self.later) if self.later else min(self.warm_up, default=0.0)
        return sum(self.later) + sum(min(usual, seconds) for seconds in self.warm_up)


def run(
    goal: Goal, settings: dict[str, Any], seed: int, limit: float, args: Any, deadline: gpu.Deadline
) -> dict[str, Any]:
    """Train until it is solved, for at most ``limit`` seconds."""
    device = args.device
    given = goal.settings | settings | (TINY if args.tiny else {}) | {"seed": seed}
    if args.precision:
        given["precision"] = args.precision
    began = time.perf_counter()
    agent = gpu.make(goal.env, device=device, env_kwargs=goal.options, **given)
    clock, looking, curve, solved = Clock(), 0.0, [], None
    notes: list[str] = []
    episodes = 16 if args.tiny else EPISODES
    try:
        trainer = gpu.trainer_of(agent)
        trainer.begin(int(given.get("steps", 10**12)))
        making = time.perf_counter() - began
        with trainer.working():
            clock.add(gpu.iterate(trainer, WARM + 2, device, notes=notes))
            while solved is None and (not curve or clock.net < limit) and not deadline.is_over:
                until = clock.net + args.every
                while clock.net < until:
                    count = (until - clock.net) / statistics.median(clock.later)
                    clock.add(gpu.iterate(trainer, max(1, int(count)), device))
                looked = time.perf_counter()
                seen = 1_000_003 + 2 * len(curve)  # the seeds of evaluations: never the same episodes twice
                mean = agent.evaluate(episodes, seed=seen, eval_mode="greedy", num_envs=episodes).mean
                curve.append([round(clock.net, 3), trainer.steps, round(mean, 4)])
                if mean >= goal.bar:
                    again = agent.evaluate(
                        episodes, seed=seen + 1, eval_mode="greedy", num_envs=episodes
                    ).mean
                    curve[-1].append(round(again, 4))
                    if again >= goal.bar:
                        solved = clock.net
                looking += time.perf_counter() - looked
    finally:
        agent.close()
    seconds = round(clock.net, 3)
    return {
        "seed": seed,
        "settings": {name: value if _is_plain(value) else repr(value) for name, value in given.items()},
        "solved_after_s": None if solved is None else round(solved, 3),
        "is_in_time": solved is not None and solved <= goal.seconds,
        "net_s": seconds,
        "gross_s": round(clock.gross, 3),
        "warm_up_s": round(sum(clock.warm_up), 3),
        "making_s": round(making, 3),
        "evaluating_s": round(looking, 3),
        "steps": curve[-1][1] if curve else 0,
        "updates": len(clock.warm_up) + len(clock.later),
        "steps_per_s": round(curve[-1][1] / max(seconds, 1e-9)) if curve else 0,
        "return": curve[-1][2] if curve else None,
        "best": max((look[2] for look in curve), default=None),
        "notes": notes,
        "curve": curve,
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)


def tried(
    goal: Goal, settings: dict[str, Any], seed: int, limit: float, args: Any, deadline: gpu.Deadline
) -> dict[str, Any]:
    """``run``, with what went wrong as its result."""
    try:
        found = run(goal, settings, seed, limit, args, deadline)
    except Exception as error:
        found = {"seed": seed, "settings": repr(settings), "error": gpu.failed(error)}
        found |= {"solved_after_s": None, "best": None}
    gpu.clear()
    when = found["solved_after_s"]
    how = found.get("error") or ("not solved" if when is None else f"{when:.1f} s")
    print(f"  seed {seed} {settings}: {how}", flush=True)
    if "error" not in found:
        print(
            f"    best {found['best']}, {found['updates']} updates, "
            f"{found['steps_per_s'] / 1e6:.2f} M steps/s, warm-up {found['warm_up_s']} s, "
            f"looking {found['evaluating_s']} s",
            *found["notes"],
            sep="\n    ",
            flush=True,
        )
    return found


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_learning.json")
    parser.add_argument("--tasks", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--candidates", action="store_true", help="search the settings first, with seed 100")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all runs")
    parser.add_argument("--precision", help="of the policy; its default if not given")
    parser.add_argument("--every", type=float, default=0.5, help="seconds of training between two looks")
    parser.add_argument("--limit", type=float, default=2.0, help="a run ends after so many times its bar")
    args = parser.parse_args()
    deadline, book = gpu.Deadline(args.minutes), gpu.Book(args.out, "gpu_learning", args.commit)
    fixed = {name: _value(text) for name, _, text in (pair.partition("=") for pair in args.set)}
    results: dict[str, Any] = {}
    for position, name in enumerate(args.tasks):
        goal = GOALS[name]
        result: dict[str, Any] = {"bar": goal.bar, "in_s": goal.seconds, "search": [], "runs": []}
        results[name] = result
        print(name, flush=True)
        # Every task gets its share of the time, two thirds of which the search may take.
        share = gpu.Deadline(max(0.0, deadline.left) / 60 / (len(args.tasks) - position))
        limit, chosen = (0.2 if args.tiny else args.limit * goal.seconds), dict(goal.candidates[0]) | fixed
        if args.candidates:
            searching = gpu.Deadline(share.left / 60 * 2 / 3)
            fastest = limit
            for candidate in goal.candidates[: 2 if args.tiny else 4 if args.quick else None]:
                if searching.is_over:
                    break
                found = tried(goal, candidate | fixed, SEARCH_SEED, fastest, args, searching)
                result["search"].append(found | {"candidate": {k: repr(v) for k, v in candidate.items()}})
                book.write(results)
                when = found["solved_after_s"]
                if when is not None and when < fastest:
                    fastest, chosen = when, candidate | fixed
        result["chosen"] = {key: repr(value) for key, value in chosen.items()}
        for seed in args.seeds:
            if share.is_over:
                print(f"  no time left for seed {seed}")
                break
            result["runs"].append(tried(goal, chosen, seed, limit, args, share))
            book.write(results)
    show(results)


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def show(results: dict[str, Any]) -> None:
    """The table of the runs that count."""
    rows = []
    for name, result in results.items():
        for run in result["runs"]:
            when = run["solved_after_s"]
            rows.append(
                [
                    f"{name}, seed {run['seed']}",
                    f"{result['bar']:g}",
                    "-" if run["best"] is None else f"{run['best']:.3f}",
                    "not solved" if when is None else f"{when:.2f} s",
                    f"{result['in_s']:g} s",
                    "yes" if run.get("is_in_time") else "NO",
                    f"{run.get('steps', 0):,}",
                    f"{run.get('gross_s', 0):.1f} s",
                ]
            )
    gpu.table(["task", "bar", "best", "solved after", "wanted", "in time", "steps", "gross"], rows)


if __name__ == "__main__":
    main()
