"""Counts of games: made from games, written, read, and refused where they are damaged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from recollect.errors import ConfigError
from recollect.league.payoff import Counts, Payoff

GAMES = [("bot", "a", 1), ("bot", "a", -1), ("bot", "a", -1), ("a", "bot", 0), ("b", "b", 1)]


def payoff() -> Payoff:
    return Payoff.of_games(("bot", "a", "b"), GAMES)


def test_games_are_counted_for_the_first_player() -> None:
    assert dict(payoff().counts) == {("bot", "a"): (1, 0, 2), ("a", "bot"): (0, 1, 0), ("b", "b"): (1, 0, 0)}
    wins, draws, losses = payoff().matrices(("a", "b", "bot"))
    assert wins.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert draws.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert losses.tolist() == [[0, 0, 0], [0, 0, 0], [2, 0, 0]]


def test_json_and_back() -> None:
    text = json.dumps(payoff().to_json())
    assert Payoff.from_json(json.loads(text)) == payoff()


def test_counts_of_numpy_are_plain_numbers() -> None:
    made = Payoff(("a", "b"), {("a", "b"): Counts(*np.array([1, 2, 3]))})
    assert json.dumps(made.to_json()["pairs"][0]["draws"]) == "2"


def pair(**changes: Any) -> dict[str, Any]:
    return {"first": "a", "second": "b", "wins": 1, "draws": 0, "losses": 2} | changes


DAMAGED = {
    "no object": ([], "players.*pairs"),
    "a key is missing": ({"players": ["a"]}, "players.*pairs"),
    "players are no list": ({"players": "ab", "pairs": []}, "must be lists"),
    "no players": ({"players": [], "pairs": []}, "players is"),
    "a player without a name": ({"players": ["a", ""], "pairs": []}, "players is"),
    "a name that is no text": ({"players": ["a", 1], "pairs": []}, "players is"),
    "a name twice": ({"players": ["a", "b", "a"], "pairs": []}, "'a' is there twice"),
    "a pair that is no object": ({"players": ["a"], "pairs": [3]}, "pair 0 must be an object with first"),
    "a pair without wins": ({"players": ["a"], "pairs": [{"first": "a"}]}, "pair 0.*wins"),
    "a pair with more": ({"players": ["a", "b"], "pairs": [pair(ties=1)]}, "pair 0 must be an object"),
    "a list as a name": ({"players": ["a", "b"], "pairs": [pair(first=["a"])]}, "pair 0 has the players"),
    "an unknown player": ({"players": ["a", "b"], "pairs": [pair(second="c")]}, "'c'.*not in players"),
    "a pair twice": ({"players": ["a", "b"], "pairs": [pair(), pair()]}, "'a'.*'b' are there twice"),
    "fewer games than none": (
        {"players": ["a", "b"], "pairs": [pair(draws=-1)]},
        "'a'.*whole numbers from 0",
    ),
    "half a game": ({"players": ["a", "b"], "pairs": [pair(wins=0.5)]}, "whole numbers"),
    "a truth for a number": ({"players": ["a", "b"], "pairs": [pair(wins=True)]}, "whole numbers"),
    "too many games": ({"players": ["a", "b"], "pairs": [pair(wins=10**12)]}, "at most"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_input_is_named(case: str) -> None:
    data, words = DAMAGED[case]
    with pytest.raises(ConfigError, match=words):
        Payoff.from_json(data)


def test_a_result_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="result 2: use 1, 0 or -1"):
        Payoff.of_games(("a", "b"), [("a", "b", 2)])
