"""The words on how each part of an observation is encoded."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from recollect.config.policy import EncoderConfig
from recollect.policy.describe_encoder import MOST_PARTS, describe_encoder
from recollect.policy.encoders import make_encoder
from tests.support.own_parts import Wide

IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "lines"),
    [
        (spaces.Box(-1, 1, (4,)), ["observation 4 float32: 4 numbers"]),
        (spaces.Box(-1, 1, (2, 3)), ["observation 2x3 float32: 6 numbers, flattened"]),
        (spaces.Discrete(5), ["observation Discrete(5): one-hot"]),
        (spaces.MultiBinary(3), ["observation MultiBinary of 3: 3 numbers"]),
        (IMAGE, ["observation 16x16x3 uint8: conv 16 k3, 32 k3"]),
        (
            spaces.Box(0, 255, (7, 7, 3), np.uint8),
            ["observation 7x7x3 uint8: symbols, a learned vector each, conv 16 k3, 32 k3"],
        ),
        (spaces.Box(0, 255, (9, 3), np.uint8), ["observation 9x3 uint8: token network Fast"]),
        (
            spaces.Dict({"action_mask": spaces.MultiBinary(2), "d": spaces.Dict({"e": IMAGE})}),
            [
                "action_mask MultiBinary of 2: masks actions, not encoded",
                "d.e 16x16x3 uint8: conv 16 k3, 32 k3",
            ],
        ),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, ())]),
            ["0 Discrete(2): one-hot", "1 Box() float32: 1 number"],
        ),
    ],
)
def test_every_space_has_words(space, lines):
    assert describe_encoder(make_encoder(None, space), space) == lines


def test_the_words_follow_the_settings():
    assert describe_encoder(make_encoder(EncoderConfig(images="never"), IMAGE), IMAGE) == [
        "observation 16x16x3 uint8: 768 numbers, flattened"
    ]


def test_many_parts_are_counted():
    space = spaces.Dict({f"p{i:02}": spaces.Discrete(2) for i in range(MOST_PARTS + 4)})
    lines = describe_encoder(make_encoder(None, space), space)
    assert len(lines) == MOST_PARTS + 1
    assert lines[-1] == "and 4 more parts"


def test_an_encoder_of_the_users_own():
    space = spaces.Box(-1, 1, (4,))
    assert describe_encoder(Wide(space), space) == ["observation: encoded by Wide"]
