"""Recollect on a world of task.py, through Gymnasium; prints one line of JSON.

    python bench/others/recollect_run.py [--world minigrid-memory] [--chunk 16] [--seed 0] [--steps 200000]

The work is that of task.py; all else is the default of ``recollect.train``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import task

import recollect as rc


def main() -> None:
    parser = task.parser(__doc__)
    parser.add_argument("--chunk", type=int, help="steps of BPTT; by default those of the world")
    args = task.parse(parser)
    world: task.World = args.world
    chunk = args.chunk or world.chunk
    chosen = {
        "num_envs": world.num_envs,
        "rollout": world.rollout,
        **({"chunk": chunk} if chunk else {"recurrent_mode": "full"}),
        "epochs": world.epochs,
        "minibatches": world.minibatches,
        "gamma": world.gamma,
        "gae_lambda": world.gae_lambda,
        "learning_rate": world.learning_rate,
        **({} if world.entropy is None else {"entropy": world.entropy}),
        "last_action_reward": world.last_action_reward,
        "encoder": rc.EncoderConfig(hidden=(world.encoder,)),
        "core": rc.LSTMConfig(hidden=world.hidden),
    }
    config = rc.TrainConfig().override(steps=args.steps, seed=args.seed, threads=args.threads, **chosen)
    meter = task.Meter(args)

    def watch(training: Any, metrics: dict[str, float]) -> None:
        is_full = metrics["episodes"] >= world.episodes
        if meter.update(int(metrics["steps"]), mean=metrics["return"] if is_full else None):
            training.stop("it has shown what was asked")

    meter.start()
    rc.train(
        world.make,
        config=config,
        target_episodes=world.episodes,
        progress=False,
        callbacks=[watch],
    )
    parts = {"encoder": asdict(chosen["encoder"]), "core": asdict(chosen["core"])}
    settings = {
        "set": chosen | parts,
        "all": asdict(config.algo),
        "threads": args.threads or "all cores while learning",
    }
    task.report("recollect", args, meter, settings)


if __name__ == "__main__":
    main()
