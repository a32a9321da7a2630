"""One game of the mech arena is mastered against the scripted player."""

from __future__ import annotations

import pytest

import recollect as rc


@pytest.mark.slow
def test_one_game_is_mastered() -> None:
    """S001-27: one map, zone and start, on both sides: more than 90% of the games against the bot are won.

    The settings are those of configs/mech_duel.yaml, with fewer steps.
    """
    agent = rc.train(
        "mech",
        env_kwargs={"size": "duel", "game_seed": 1, "shaping_gamma": 0.995},
        vs="bot",
        curriculum={500_000: {"win_reward": 10.0}},
        steps=4_000_000,
        num_envs=256,
        encoder={"hidden": (128,)},
        rollout=32,
        learning_rate=7e-4,
        gamma=0.995,
        entropy=0.004,
        seed=1,
        preset=False,
        progress=False,
        eval_every=0,
        threads=1,
    )
    games = agent.against("bot", 100, eval_mode="greedy")
    assert games.total.share("win") > 0.9, str(games)
