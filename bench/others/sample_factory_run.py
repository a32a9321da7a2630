"""Sample Factory's APPO on CartPole without velocities; prints one line of JSON.

    .venv-sample-factory/bin/python bench/others/sample_factory_run.py [--variant default|tuned]

The work is that of task.py: an encoder layer of 128 before an LSTM of 128, gradients through the whole
rollout (Sample Factory's own choice), 4 minibatches of 512 samples. ``--mode async`` is its normal way:
two workers, an inference and a learner process, collecting while learning; ``sync`` has the same
processes take turns, ``serial`` has everything in one process, which can be faster on two cores. Variants:

default  Sample Factory's defaults: learning rate 1e-4, clip 0.1, inputs and returns normalised.
tuned    the same with learning rate 1e-3 and clip 0.2, Recollect's defaults.

Everything that it writes goes to a temporary folder and is removed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

import task
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

ENV = "position_cartpole"
WORKERS = 2


class Watch(AlgoObserver):
    """Tells the meter of updates, and ends the run when it has shown enough."""

    def __init__(self, meter: task.Meter):
        self.meter = meter

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        # The runner's own count of steps comes one message later.
        if self.meter.update(training_iteration_since_resume * task.BATCH):
            runner.cfg.train_for_env_steps = 0


def make_cartpole(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None):
    return task.position_cartpole()


def choose(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that are not Sample Factory's defaults."""
    workers = 1 if args.mode == "serial" else WORKERS
    chosen = {
        "device": "cpu",
        "serial_mode": args.mode == "serial",
        "async_rl": args.mode == "async",
        "num_workers": workers,
        "num_envs_per_worker": task.NUM_ENVS // workers,
        "worker_num_splits": 1 if args.mode == "serial" else 2,
        "rollout": task.ROLLOUT,
        "recurrence": task.ROLLOUT,
        "batch_size": task.BATCH // task.MINIBATCHES,
        "num_batches_per_epoch": task.MINIBATCHES,
        "num_epochs": task.EPOCHS,
        "gamma": task.GAMMA,
        "gae_lambda": task.GAE_LAMBDA,
        "use_rnn": True,
        "rnn_type": "lstm",
        "rnn_size": task.HIDDEN,
        "encoder_mlp_layers": task.HIDDEN,
    }
    if args.variant == "tuned":
        chosen |= {"learning_rate": 1e-3, "ppo_clip_ratio": 0.2}
    return chosen


def main() -> None:
    parser = task.parser(__doc__)
    parser.add_argument("--variant", choices=("default", "tuned"), default="default")
    parser.add_argument("--mode", choices=("async", "sync", "serial"), default="async")
    args = parser.parse_args()
    if args.threads is not None:
        if args.mode != "serial":
            parser.error("--threads is for --mode serial; otherwise each process has one")
        torch.set_num_threads(args.threads)
    chosen = choose(args)
    meter = task.Meter(args)
    register_env(ENV, make_cartpole)
    with tempfile.TemporaryDirectory(prefix="sample-factory-") as folder:
        # Checkpoints are put off beyond the run: nobody else writes any.
        own = {"env": ENV, "experiment": "compare", "train_dir": folder, "seed": args.seed}
        own |= {"save_every_sec": 100_000, "save_best_every_sec": 100_000}
        argv = [f"--{name}={value}" for name, value in (own | chosen).items()]
        cfg = parse_full_cfg(parse_sf_args(argv)[0], argv)
        cfg, runner = make_runner(cfg)
        runner.register_observer(Watch(meter))
        runner.register_episodic_stats_handler(
            lambda runner, message, policy_id: meter.episode(message[EPISODIC]["reward"])
        )
        status = runner.init()
        meter.start()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        sys.exit(f"Sample Factory ended with status {status}: its log above says why")
    names = ("learning_rate", "ppo_clip_ratio", "ppo_clip_value", "exploration_loss_coeff")
    names += ("value_loss_coeff", "max_grad_norm", "normalize_input", "normalize_returns", "value_bootstrap")
    names += ("with_vtrace", "nonlinearity", "shuffle_minibatches", "actor_critic_share_weights")
    settings = {
        "variant": args.variant,
        "mode": args.mode,
        "set": chosen,
        "all": {name: getattr(cfg, name) for name in names},
        "threads": torch.get_num_threads() if args.mode == "serial" else "one in each process",
    }
    task.report("sample-factory", args, meter, settings)


if __name__ == "__main__":
    main()
