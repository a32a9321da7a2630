"""PufferLib on CartPole without velocities; prints one line of JSON.

    .venv-pufferlib/bin/python bench/others/pufferlib_run.py [--envs serial|processes] [--threads 2]

The work is that of task.py: a layer of 128 (tanh) before an LSTM of 128, linear heads, segments as long as
Recollect's chunks. PufferLib's trainer, vectorisation and LSTM wrapper are its own, with its defaults except
for the sizes of the work, gamma, lambda, and Adam in place of Muon, which costs more.

serial     all envs in this process.
processes  two worker processes, its default; the policy waits for all envs.

It differs in ways that cost nothing there: its LSTM is never reset at the end of an episode; every segment is
learned from a state of zeros; truncation counts as termination; segments of a minibatch are drawn with
replacement, by priority.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import task
import torch
from torch import nn

_folder = tempfile.TemporaryDirectory()
os.chdir(_folder.name)  # the import leaves a link in the current folder
import pufferlib.emulation  # noqa: E402
import pufferlib.models  # noqa: E402
import pufferlib.pufferl  # noqa: E402
import pufferlib.vector  # noqa: E402


class Network(pufferlib.models.Default):
    """One layer with tanh before the LSTM; by default a GELU."""

    def __init__(self, env: Any, hidden_size: int):
        super().__init__(env, hidden_size)
        self.encoder[1] = nn.Tanh()


class Trainer(pufferlib.pufferl.PuffeRL):
    """Without its dashboard and checkpoints."""

    def print_dashboard(self, *_: Any, **__: Any) -> None:
        pass

    def save_checkpoint(self) -> None:
        pass


def settings_of(world: task.World, steps: int, seed: int) -> dict[str, Any]:
    """Its default.ini with the sizes of the work."""
    return {
        "seed": seed,
        "torch_deterministic": True,
        "cpu_offload": False,
        "device": "cpu",
        "optimizer": "adam",
        "anneal_lr": True,
        "precision": "float32",
        "total_timesteps": steps,
        "learning_rate": world.learning_rate,
        "gamma": world.gamma,
        "gae_lambda": world.gae_lambda,
        "update_epochs": world.epochs,
        "clip_coef": 0.2,
        "vf_coef": 2.0,
        "vf_clip_coef": 0.2,
        "max_grad_norm": 1.5,
        "ent_coef": 0.001,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-8,
        "checkpoint_interval": 10**9,
        "batch_size": world.batch,
        "minibatch_size": world.batch // world.minibatches,
        "max_minibatch_size": world.batch,
        "bptt_horizon": world.chunk or world.rollout,
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": True,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.8,
        "prio_beta0": 0.2,
        "use_rnn": True,
        "env": "position-cartpole",
    }


def main() -> None:
    parser = task.parser(__doc__)
    parser.add_argument("--envs", choices=("serial", "processes"), default="serial")
    args = task.parse(parser)
    world: task.World = args.world
    if args.world_name != task.DEFAULT_WORLD:
        parser.error(f"only --world {task.DEFAULT_WORLD}: the others need encoders of their own")
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    def make(buf: Any = None, seed: int = 0) -> Any:
        env = pufferlib.EpisodeStats(world.make_flat())
        return pufferlib.emulation.GymnasiumPufferEnv(env, buf=buf, seed=seed)

    processes = {"num_workers": 2, "batch_size": world.num_envs}
    backend = pufferlib.vector.Serial if args.envs == "serial" else pufferlib.vector.Multiprocessing
    vector = {} if args.envs == "serial" else processes
    envs = pufferlib.vector.make(make, num_envs=world.num_envs, backend=backend, seed=args.seed, **vector)
    driver = envs.driver_env
    network = Network(driver, world.encoder)
    policy = pufferlib.models.LSTMWrapper(driver, network, world.encoder, world.hidden)
    chosen = settings_of(world, args.steps, args.seed)
    trainer = Trainer(dict(chosen), envs, policy)
    meter = task.Meter(args)
    meter.start()
    is_over = False
    while not is_over:
        stats = trainer.evaluate()
        for episode_return in stats.pop("episode_return", []):
            meter.episode(episode_return)
        trainer.train()
        is_over = meter.update(trainer.global_step)
    trainer.utilization.stop()
    envs.close()
    settings = {"envs": args.envs, "all": chosen, "threads": torch.get_num_threads()}
    task.report("pufferlib", args, meter, settings)


if __name__ == "__main__":
    main()
