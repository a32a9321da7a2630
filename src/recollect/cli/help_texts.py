"""What the help of the config flags says beside the docstrings of their fields."""

from __future__ import annotations

EXAMPLES = (
    ("recollect train delayed-cue", "a memory task that is built in; recollect tasks lists them"),
    ("recollect train CartPole-v1 --core gru --core.hidden 256", "any Gymnasium env, a GRU of 256 units"),
    ("recollect train t-maze --task.length 100 --steps 1m --seed 1", "options of the task, a longer run"),
    ("recollect train my_module:MyEnv --num-envs 64 --device cuda", "an env of your own, on the GPU"),
    (
        "recollect train my_module:MyEnv --runtime processes --actors 4",
        "actors in processes of their own; recollect doctor --env says what pays",
    ),
    (
        "recollect train --config runs/cue/config.yaml --learning-rate 3e-4",
        "an earlier run, one thing changed",
    ),
)

MOST_USED = {
    "steps": "how long to train, in env steps",
    "num_envs": "envs that are stepped together; more are faster",
    "seed": "the same seed gives the same run",
    "device": "cpu or cuda",
    "runtime": "where actors live: inline, processes or ray",
    "env_workers": "processes that step the envs, for slow ones",
    "run": "folder of the run; a new one under runs/ if not given",
    "eval_every": "env steps between two evaluations while training",
    "target_return": "stop as soon as the mean return reaches this",
    "core": "the memory: {cores}",
    "core.hidden": "size of the memory",
    "encoder.hidden": "widths of the layers before the memory",
    "rollout": "steps of every env between two updates",
    "chunk": "over how many steps gradients flow back in time",
    "recurrent_mode": "full: gradients flow over whole rollouts",
    "learning_rate": "how far an update goes",
    "gamma": "how much the future counts; 0.99 looks 100 steps ahead",
    "entropy": "how much to explore",
}
"""The first flags that people look for, in a few words; their whole story is in their topics."""

WORDS = {
    "run": "The folder that the run is kept in; a new one under runs/ if not given.",
    "core": "What carries over time: {cores}. Its fields follow its name: --core.hidden 256.",
    "encoder": "How observations become features: auto (by the observation space), mlp or conv.",
    "algo": "The algorithm: {algos}.",
    "policy": "A network for token sets by its name, in place of --encoder: {policies}.",
    "env_kwargs": "Options of the task or env, such as --task.horizon 100.",
}
"""For flags that are other than their fields: Python also takes configs and factories."""

ENV = ("num_envs", "last_action_reward", "env_kwargs")
RUNTIME = ("runtime", "actors", "mode", "max_lag", "env_workers", "env_timeout", "learners", "ray_address")
MEMORY = ("core", "recurrent_mode", "chunk", "burn_in_steps", "refresh_states")
CHECKS = ("tolerance", "gauge_every")
"""Settings that have a topic of their own, by that topic."""
