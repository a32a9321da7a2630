"""Recollect on CartPole without velocities, through Gymnasium; prints one line of JSON.

    python bench/others/recollect_run.py [--chunk 16|32|128] [--seed 0] [--steps 200000]

The work is that of task.py; all else is the default of ``recollect.train``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import task

import recollect as rc


def main() -> None:
    parser = task.parser(__doc__)
    parser.add_argument("--chunk", type=int, choices=(16, 32, 128), default=32, help="steps of BPTT")
    args = parser.parse_args()
    chosen = {
        "num_envs": task.NUM_ENVS,
        "rollout": task.ROLLOUT,
        "chunk": args.chunk,
        "epochs": task.EPOCHS,
        "minibatches": task.MINIBATCHES,
        "gamma": task.GAMMA,
        "gae_lambda": task.GAE_LAMBDA,
        "encoder": rc.EncoderConfig(hidden=(task.HIDDEN,)),
        "core": rc.LSTMConfig(hidden=task.HIDDEN),
    }
    config = rc.TrainConfig().override(steps=args.steps, seed=args.seed, threads=args.threads, **chosen)
    meter = task.Meter(args)

    def watch(training: Any, metrics: dict[str, float]) -> None:
        is_full = metrics["episodes"] >= task.TARGET_EPISODES
        if meter.update(int(metrics["steps"]), mean=metrics["return"] if is_full else None):
            training.stop("it has shown what was asked")

    meter.start()
    rc.train(
        task.position_cartpole,
        config=config,
        target_episodes=task.TARGET_EPISODES,
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
