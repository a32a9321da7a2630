"""Settings that suit a built-in task better than the defaults: by how far its memory must reach, and its own.

The defaults cut rollouts into chunks of 32 steps. Gradients do not cross a chunk's start, so whatever
must be kept for longer is kept by luck, and lost again as the weights drift. docs/tuning.md has the
experiments; bench/presets.py measures what every preset reaches.
"""

from __future__ import annotations

from typing import Any

from recollect.config.algo import algo_fields, algo_name, named_algo
from recollect.config.cores.specs import known, reaching
from recollect.config.learner import LearnerConfig
from recollect.tasks import TASKS, make_task

LONG = 100
"""From this many steps on, forget gates that start open for that long are worth it."""
LONG_STEPS = 1_000_000
"""Env steps where memory must reach beyond a chunk, and further than at the task's default size."""
_ANSWERS = {"learning_rate": 4e-3, "gamma": 0.5, "gae_lambda": 0.5, "entropy": 0.003, "epochs": 8}
OWN: dict[str, dict[str, Any]] = {
    # Solved after 20k steps; the rest of the run lets it settle.
    "delayed-cue": {"steps": 100_000},
    # An answer is paid at once and changes nothing that comes: credit needs no reach. With the defaults both
    # stayed for long where one symbol or pair of three is kept; faster learning and less noise lead on.
    "copy": {"steps": 300_000, **_ANSWERS},
    "associative-recall": {"steps": 300_000, **_ANSWERS},
    "repeat-previous": {"steps": 300_000},
    "repeat-first": {"steps": 300_000},
    # Going on is all that pays until the junction is reached, where it never does. With an entropy of
    # 0.01 one seed of length 50 went straight on for ever before it had turned once.
    "t-maze": {"steps": 150_000, "entropy": 0.03},
    "position-cartpole": {"steps": 150_000},
    # Every step is paid for, so that credit may be short; there is nothing to discover, so that noise
    # only costs; wider batches and more passes make half the steps enough.
    "position-pendulum": {
        "steps": 500_000,
        "num_envs": 32,
        "epochs": 8,
        "gamma": 0.95,
        "entropy": 0.0,
    },
    # Food comes every few steps once a bush is known: credit may be short and learning fast. With twice the
    # rows, and so half the updates, one seed earned 8 instead of 14 after 150k steps.
    "forage": {"steps": 1_000_000, "learning_rate": 2e-3, "gamma": 0.97, "entropy": 0.005},
}
"""What each task has for itself: env steps that are enough at its default size, and what else it needs."""

_AT_ONCE = {"learning_rate": 2e-3, "gamma": 0.5, "gae_lambda": 0.5, "entropy": 0.003, "minibatches": 8}
FAR: dict[str, tuple[int, dict[str, Any]]] = {
    # One answer in a thousand steps. Only the last action counts, so credit is kept short. Advantages are
    # normalised over all steps, of which the answers are a thousandth and so 30 times as large as usual:
    # an entropy bonus of 0.1 is to them what 0.003 is elsewhere. The gates of an LSTM see its own output,
    # and over a thousand steps that feedback is most of the gradient; mLSTM's do not.
    "delayed-cue": (
        500,
        {
            "core": "mlstm",
            "steps": 15_000_000,
            "num_envs": 128,
            "minibatches": 8,
            "gamma": 0.9,
            "gae_lambda": 0.8,
            "entropy": 0.1,
        },
    ),
    # The card of 31 steps ago: a memory that turns and fades has a place for every step.
    "repeat-previous": (31, {"core": "lru", "steps": LONG_STEPS, "num_envs": 64, **_AT_ONCE}),
    "repeat-first": (400, {"core": "mingru", "steps": 3_000_000, "num_envs": 64, **_AT_ONCE}),
}
"""From which horizon on a task has further settings for PPO, with rollouts of whole episodes, and which."""

LONG_ROLLOUT = 128
"""Steps of a rollout of IMPALA where memory must reach beyond a chunk."""
PACE = ("learning_rate", "epochs")
"""What was found for PPO's many careful steps on each rollout, and does not carry over to IMPALA's few."""


def preset(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What suits the built-in task ``name`` beside the user's ``settings``, which it never contradicts.

    ``core="lstm"`` names a kind, not its gates: those are chosen here too, for every core whose config
    has ``reaching``. Any other env has no preset.
    """
    if name not in TASKS and name not in {task.id for task in TASKS.values()}:
        return {}
    task = make_task(name, 1, **settings.get("env_kwargs", {}))
    horizon = task.horizon
    found = dict(OWN.get(task.name, {}))
    is_ppo = algo_name(named_algo(settings.get("algo", "ppo"))) == "ppo"
    far_from, far = FAR.get(task.name, (0, {}))
    is_far = bool(far) and is_ppo and horizon >= far_from
    if not is_ppo:
        found = {key: value for key, value in found.items() if key not in PACE}
    if horizon >= LearnerConfig().chunk or is_far:
        # Chunks of whole rollouts; twice the rows keep the minibatches wide.
        if not settings.keys() & {"chunk", "burn_in_steps"}:
            found["recurrent_mode"] = "full"
        found["num_envs"] = 32
        if not is_ppo:  # whose rollouts are long enough
            found["rollout"] = LONG_ROLLOUT
        if horizon > make_task(name, 1).horizon:
            found["steps"] = LONG_STEPS
    if is_far:
        found |= far | {"rollout": task.max_episode_steps}
    usual = found.pop("core", "lstm")
    found = {key: value for key, value in found.items() if not _is_set(key, settings)}
    core = settings.get("core", usual)
    if (horizon >= LONG or is_far) and isinstance(core, str) and "policy" not in settings and core in known:
        reached = reaching(core, horizon)
        if reached != settings.get("core", "lstm"):
            found["core"] = reached
    return found


def _is_set(name: str, settings: dict[str, Any]) -> bool:
    """Whether the user decided this, by its name or with the whole config of an algorithm."""
    is_whole = not isinstance(settings.get("algo", "ppo"), str)
    return name in settings or (name in algo_fields() and is_whole)
