"""Texts of the help of config flags beside the docstrings of their fields."""

from __future__ import annotations

EXAMPLES = (
    ("recollect train delayed-cue", "a built-in memory task; recollect tasks lists them"),
    ("recollect train CartPole-v1 --core gru --core.hidden 256", "any Gymnasium env, a GRU of 256 units"),
    ("recollect train t-maze --task.length 100 --steps 1m --seed 1", "options of the task, a longer run"),
    ("recollect train my_module:MyEnv --core my_module:MyCore --device cuda", "your own env and memory"),
    (
        "recollect train my_module:MyEnv --runtime processes --actors 4",
        "actors in processes of their own; recollect doctor --env measures what is fastest",
    ),
    ("recollect train --config runs/cue/config.yaml --learning-rate 3e-4", "an earlier run with one change"),
)
MOST_USED = {
    "steps": "env steps to train for",
    "num_envs": "envs that are stepped together; more are faster",
    "seed": "random seed; the same seed gives the same run",
    "device": "cpu or cuda",
    "runtime": "where actors run: inline, processes or ray",
    "env_workers": "processes that step the envs, for slow ones",
    "run": "folder of the run; a new one under runs/ if not given",
    "eval_every": "env steps between two evaluations while training",
    "target_return": "stop once the mean return reaches this",
    "core": "the memory: {cores}",
    "core.hidden": "size of the memory",
    "encoder.hidden": "widths of the layers before the memory",
    "rollout": "steps of every env between two updates",
    "chunk": "steps of truncated backpropagation through time",
    "recurrent_mode": "full: backpropagation through whole rollouts",
    "learning_rate": "learning rate, the step size of the optimiser",
    "gamma": "discount factor; 0.99 looks 100 steps ahead",
    "entropy": "coefficient of the entropy bonus",
}
"""The flags on the first page, in a few words."""
WORDS = {
    "run": "Folder of the run; a new one under runs/ if not given.",
    "core": "The memory: {cores}; or your own, module:Class. Its fields follow its name: --core.hidden 256.",
    "encoder": "How observations become features: auto (by the observation space), mlp or conv; or your own, "
    "module:Class, with its own options in place of those below.",
    "head": "How the memory's output becomes actions: {heads}; or your own, "
    "module:Class, with its own options in place of those below. none: as the algorithm needs.",
    "algo": "The algorithm: {algos}; or your own, which --import registers.",
    "imports": "A module or file that registers parts of your own (recollect.register), such as my_parts or "
    "path/to/my_parts.py. May be given several times.",
    "runtime": "Where actors run: inline (in this process), processes (of their own) or ray (a cluster).",
    "policy": "A network for token sets by its name, in place of --encoder: {policies}. Or a function of "
    "your own that makes the whole network, module:factory.",
    "wrap": "Wrappers of every env, the innermost first: module:Wrapper, or with options a mapping in "
    "quotes, '{{name: gymnasium.wrappers:TimeLimit, max_episode_steps: 100}}'. May be given several times.",
    "env_kwargs": "Options of the task or env, such as --task.horizon 100.",
    "vs_kwargs": "Options of the player of --vs, such as --vs.lethality 0.5. Those of --vs league: "
    "--help league.",
    "curriculum": "Settings of the env or the player of --vs that change, by the env steps from which on "
    "they hold: '{{0: {{team: 1}}, 500k: {{team: 3}}}}'. Each slot changes at its next reset. Evaluations "
    "have those of the last stage.",
}
"""Help of flags that differ from their fields, for which Python also takes configs and factories."""
DEFAULTS = {"run": "", "imports": "none", "policy": "", "algo": "ppo", "encoder": "auto"}
"""Defaults of such flags."""
TOPICS = {
    "run": "steps, seed, evaluations, checkpoints, when to stop",
    "env": "the env, how many of it, its options",
    "runtime": "where actors, envs and learners run: processes, Ray",
    "network": "encoder, head, normalisation",
    "memory": "the core ({cores}) and how it is trained",
    "algo": "the algorithm, {algos}, and how it learns",
    "schedules": "coefficients that change over the run",
    "checks": "checks during the run",
    "names": "config files, and names of other libraries",
    "all": "everything",
}
"""The topics of ``--help TOPIC``."""
MEMBERS = {
    "env": (
        *("num_envs", "last_action_reward", "env_kwargs", "wrap", "drop_obs", "imports"),
        *("vs", "vs_kwargs", "curriculum"),
    ),
    "runtime": (
        *("runtime", "actors", "mode", "max_lag", "env_workers", "env_timeout", "learners"),
        *("learner_processes", "ray_address"),
    ),
    "memory": ("core", "recurrent_mode", "chunk", "burn_in_steps", "refresh_states"),
    "checks": ("tolerance", "gauge_every"),
    "network": ("policy", "critic", "critic_obs"),
    "algo": ("algo",),
}
"""Settings whose topic does not follow from their name or section."""
NOTES = {
    "memory": "One core with its own help and defaults: --help lstm",
    "algo": "One algorithm with its own help and defaults: --help ppo, --help impala",
    "env": "The options of a task: recollect train --help TASK",
}
"""The last line of a topic."""
FILES = (
    "TOML or YAML with the same names; flags override it. Of several files later ones win. Every run "
    "writes its own config.yaml."
)
