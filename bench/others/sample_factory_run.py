"""Sample Factory's APPO on a world of task.py; prints one line of JSON.

    .venv-sample-factory/bin/python bench/others/sample_factory_run.py [--world NAME] [--variant tuned]

The work is that of task.py: an encoder before an LSTM of 128, gradients through the whole rollout (Sample
Factory's own choice), whole rollouts as minibatches. ``--mode async`` is its normal way:
two workers, an inference and a learner process, collecting while learning; ``sync`` has the same
processes take turns, ``serial`` has everything in one process, which can be faster on two cores. Variants:

default  Sample Factory's defaults: learning rate 1e-4, clip 0.1, returns normalised, and inputs too if they
         are numbers (on CartPole).
tuned    the same with Recollect's learning rate and clip 0.2.

Everything that it writes goes to a temporary folder and is removed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

import task
import torch
from encoders import Symbols
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import EPISODIC, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder, default_make_encoder_func
from sample_factory.train import make_runner

WORKERS = 2


class Watch(AlgoObserver):
    """Tells the meter of updates, and ends the run when it has shown enough."""

    def __init__(self, meter: task.Meter):
        self.meter = meter

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        # The runner's own count of steps comes one message later.
        if self.meter.update(training_iteration_since_resume * self.meter.world.batch):
            runner.cfg.train_for_env_steps = 0


class GridEncoder(Encoder):
    """Recollect's encoder for grids of symbols."""

    def __init__(self, cfg: Any, shape: tuple[int, int, int]):
        super().__init__(cfg)
        (width,) = cfg.encoder_mlp_layers
        self.symbols = Symbols(shape, width)

    def forward(self, obs_dict: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.symbols(obs_dict["obs"])

    def get_out_size(self) -> int:
        return self.symbols.output_size


def make_encoder(cfg: Any, obs_space: Any) -> Encoder:
    shape = obs_space["obs"].shape
    return GridEncoder(cfg, shape) if len(shape) == 3 else default_make_encoder_func(cfg, obs_space)


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None):
    return task.WORLDS[name].make_flat()


def choose(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that are not Sample Factory's defaults."""
    world: task.World = args.world
    workers = 1 if args.mode == "serial" else WORKERS
    chosen = {
        "device": "cpu",
        "serial_mode": args.mode == "serial",
        "async_rl": args.mode == "async",
        "num_workers": workers,
        "num_envs_per_worker": world.num_envs // workers,
        "worker_num_splits": 1 if args.mode == "serial" else 2,
        "rollout": world.rollout,
        "recurrence": world.rollout,
        "batch_size": world.batch // world.minibatches,
        "num_batches_per_epoch": world.minibatches,
        "num_epochs": world.epochs,
        "gamma": world.gamma,
        "gae_lambda": world.gae_lambda,
        "use_rnn": True,
        "rnn_type": "lstm",
        "rnn_size": world.hidden,
        "encoder_mlp_layers": world.encoder,
    }
    if world.entropy is not None:
        chosen["exploration_loss_coeff"] = world.entropy
    if not world.has_numbers:
        chosen |= {"normalize_input": False, "nonlinearity": "tanh"}
    if args.variant == "tuned":
        chosen |= {"learning_rate": world.learning_rate, "ppo_clip_ratio": 0.2}
    return chosen


def main() -> None:
    parser = task.parser(__doc__)
    parser.add_argument("--variant", choices=("default", "tuned"), default="default")
    parser.add_argument("--mode", choices=("async", "sync", "serial"), default="async")
    args = task.parse(parser)
    if args.threads is not None:
        if args.mode != "serial":
            parser.error("--threads is for --mode serial; otherwise each process has one")
        torch.set_num_threads(args.threads)
    chosen = choose(args)
    meter = task.Meter(args)
    register_env(args.world_name, make_env)
    global_model_factory().register_encoder_factory(make_encoder)
    with tempfile.TemporaryDirectory(prefix="sample-factory-") as folder:
        # Checkpoints are put off beyond the run: nobody else writes any.
        own = {"env": args.world_name, "experiment": "compare", "train_dir": folder, "seed": args.seed}
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
