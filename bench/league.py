"""What a league costs: a training iteration against 1, 2, 4 and 8 opponents, in alternating rounds.

    python bench/league.py [--device cuda] [--worlds recall-duel mech] [--rounds 9] [--out FILE]

All opponents are snapshots of the agent's own architecture, an LSTM of 128 units, and play equally often. The
bar: with 8 opponents an iteration takes at most 1.3 times as long as with one, at 640 rows on the CPU (one
thread, CPU time) and 40,960 on a GPU. ``acting`` and ``update`` are the two parts of an iteration. On a GPU
``is_captured`` says whether acting is a CUDA graph; the league has room for as many members as there are.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_common as gpu
import torch

from recollect.agent import Agent
from recollect.envs.versus import find_versus
from recollect.league.pool import Pool, signature

WORLDS: dict[str, dict[str, Any]] = {
    "recall-duel": {},
    "mech": {"env_kwargs": {"size": "5v5"}},
}
COUNTS = (1, 2, 4, 8)
ROWS = {"cpu": 640, "cuda": 40_960}


class Contender:
    """An agent that trains against so many opponents."""

    def __init__(self, world: str, opponents: int, args: argparse.Namespace, folder: Path):
        self._device = args.device
        agents = 5 if world == "mech" else 1
        rows = args.rows or ROWS[args.device]
        self._agent: Agent = gpu.make(
            world,
            device=args.device,
            num_envs=rows // agents,
            rollout=args.rollout,
            chunk=args.rollout,
            core=gpu.core("lstm", 128),
            vs="league",
            vs_kwargs={"folder": str(folder), "opponents": opponents},
            **WORLDS[world],
        )
        self.trainer = gpu.trainer_of(self._agent)
        versus = find_versus(self.trainer.collector.envs[0])  # pyright: ignore
        assert versus is not None
        self._fill(Pool(folder), versus.env)
        names = [f"s{i}" for i in range(opponents)]
        shares = (1 / opponents,) * opponents
        roster = {"number": 0, "steps": 0, "members": tuple(names), "shares": shares, "latest": "s0"}
        self.trainer.own_settings = {"league": roster}
        self.trainer.begin(10**12)
        self.notes: list[str] = []
        self.seconds: list[dict[str, float]] = []
        with self.trainer.working():
            gpu.iterate(self.trainer, args.warm, args.device, notes=self.notes)

    def _fill(self, pool: Pool, env: Any) -> None:
        """The pool with weights that differ a little from those of the agent."""
        if pool.signature is not None:
            return
        pool.create(signature(env, {}), env.opponents)
        generator = torch.Generator().manual_seed(0)
        weights = {name: tensor.cpu() for name, tensor in self._agent.policy.state_dict().items()}
        for _ in range(max(COUNTS)):
            pool.add(
                {
                    name: tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
                    if tensor.dtype == torch.float32
                    else tensor
                    for name, tensor in weights.items()
                },
                0,
            )

    def measure(self) -> None:
        """One iteration and its parts."""
        found: dict[str, float] = {}

        @contextmanager
        def clocked(name: str) -> Iterator[None]:
            began = self._now()
            yield
            found[name] = self._now() - began

        with self.trainer.working(), gpu.bordered(self.trainer, clocked), clocked("whole"):
            self.trainer.iterate()
        self.seconds.append(found)

    def _now(self) -> float:
        """On the CPU the time that this process has had, which others on the machine do not lengthen."""
        return time.process_time() if self._device == "cpu" else gpu.now(self._device)

    def result(self) -> dict[str, Any]:
        """The median of all rounds."""
        actors = self.trainer.collector.actors  # pyright: ignore
        return {
            **{part: statistics.median(one[part] for one in self.seconds) for part in self.seconds[0]},
            "all": [one["whole"] for one in self.seconds],
            "is_captured": all(b.play_all.is_graph for actor in actors for b in actor._buffers),
            "notes": sorted(set(self.notes)),
        }

    def close(self) -> None:
        self._agent.close()


def measured(world: str, args: argparse.Namespace) -> dict[str, Any]:
    """All numbers of opponents, one after the other in every round."""
    with tempfile.TemporaryDirectory() as folder:
        contenders = {count: Contender(world, count, args, Path(folder)) for count in COUNTS}
        for number in range(args.rounds):
            for contender in (*contenders.values(),)[:: 1 if number % 2 else -1]:
                contender.measure()
        found: dict[str, Any] = {str(count): one.result() for count, one in contenders.items()}
        for contender in contenders.values():
            contender.close()
    one = found["1"]
    for count, result in found.items():
        result["ratio"] = {part: result[part] / one[part] for part in ("acting", "whole")}
        print(world, count, {name: value for name, value in result.items() if name != "all"}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cuda", "cpu"))
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, help="of the agent; of its opponents there are as many")
    parser.add_argument("--rollout", type=int, default=32)
    parser.add_argument("--warm", type=int, default=5, help="iterations before the first round")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    parser.add_argument("--out", type=Path, default=Path("bench/results/league_cast.json"))
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    book = gpu.Book(args.out, "league_cast", args.commit)
    results: dict[str, Any] = book.read() or {}
    for world in args.worlds:
        rows = args.rows or ROWS[args.device]
        results.setdefault(args.device, {})[world] = {
            "rows": rows,
            "rollout": args.rollout,
            "hardware": gpu.context(),
            "opponents": measured(world, args),
        }
        book.write(results)
        gc.collect()
        gpu.clear()


if __name__ == "__main__":
    main()
