"""Recall duel: two players see the same cues, wait, and then bid on who remembers each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.base.types import Tree
from recollect.config.tasks import RecallDuelOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task

ROUNDS = 3
CHIPS = 5
"""Of each player, for a whole game."""
BIDS = 4
"""Bids are 0 to 3 chips."""
STATE = 4
"""Numbers of an observation beside the cue and the round."""
_SALT = 0x6475656C


class RecallDuel(Task):
    """Two players, north and south, see the same three cues and later duel over them, one after the other.

    A game has ``delay + 6`` steps:

    * t = 0, 1, 2: the cues, each drawn uniformly from ``cues`` kinds. Both players see the same.
    * t = 3 .. delay + 2: blanks.
    * t = delay + 3, + 4, + 5: rounds 0, 1, 2. Both players name the cue of that number and bid at the same
      time. Then the game terminates. All other actions have no effect.

    Each player has 5 chips for the game. A bid is 0 to 3 of them; of a higher bid than chips are left, all
    that are left are bid. Chips that were bid are gone, whatever comes of it. If only one player names the
    cue correctly, that player wins the round; if both do, the higher bid wins; otherwise nobody does. The
    player with more rounds won wins the game; with as many it is a draw.

    The reward is 1/3 for a round won and -1/3 for a round lost.

    Observation, Box [cues + 7] from -1 to 1: the cue one-hot, zero except in the first three steps; the
    number of the cue or round one-hot, zero in blanks; then four numbers: 1 in rounds, else 0; the player's
    own chips / 5; the other's chips / 5; and rounds won more than the other / 3.

    Action, Discrete(4 * cues): 4 * (the cue named) + bid.

    No order of bids is the best against all others: of players who remember everything, bids of 2, 2, 1 beat
    1, 1, 3, which beat 3, 0, 2, which beat 2, 2, 1. The player ``bot`` recalls each cue with the probability
    ``memory``, and guesses otherwise. With ``bids`` = "even" it spreads its chips, 2, 2, 1; with "random" it
    draws each bid from those that it has chips for, and bids all in the last round, as far as a bid goes.
    Against the even bot with ``memory`` = 1, the best return is 1/3 with memory, by bids of 3, 0, 2, which
    win all games; without memory it is (4 / cues - 3) / 3, and at most 1 / cues^2 of the games are won.

    Metrics: ``info/right``, the share of rounds in which a player names the cue; ``info/bid``, the mean bid.
    """

    Options = RecallDuelOptions
    agents = 2
    sides = ("north", "south")
    opponents = ("bot",)

    cue: Tensor
    """[E, ROUNDS] int64."""
    chips: Tensor
    """[E, 2] int64."""
    lead: Tensor
    """[E] int64: rounds that north has won, minus those of south."""
    won: Tensor
    """[E]: result of the slot's last game: 1 north, -1 south, 0 draw or none yet. Survives resets."""
    games: Tensor
    """[E] int64: games that the slot has finished. Survives resets."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.cues, delay = RecallDuelOptions(**options).numbers()
        self.horizon = ROUNDS + delay
        observed = Box(-1.0, 1.0, (self.cues + ROUNDS + STATE,), np.float32)
        super().__init__(num_envs, device, observed, Discrete(self.cues * BIDS), self.horizon + ROUNDS)
        on = self.device
        # By age: the number of the cue or round, and whether it is shown or played.
        number = torch.zeros(self.max_episode_steps + 1, dtype=torch.int64)
        shown, played = torch.zeros_like(number, dtype=torch.bool), torch.zeros_like(number, dtype=torch.bool)
        shown[:ROUNDS], played[self.horizon : -1] = True, True
        number[:ROUNDS] = number[self.horizon : -1] = torch.arange(ROUNDS)
        self._number, self._played = number.to(on), played.to(on)
        self._cue_sights = torch.eye(self.cues, device=on)
        one_hot = torch.eye(ROUNDS)[number] * (shown | played).unsqueeze(1)
        self._time_sights = torch.cat([one_hot, played.unsqueeze(1)], 1).to(on)
        self._is_shown = shown.float().unsqueeze(1).to(on)
        self._sign = torch.tensor([1, -1], device=on)
        self._cue_lanes = torch.arange(ROUNDS, device=on)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Each side has one player, of the same name."""
        return self.sides

    def opponent(self, name: str, **options: Any) -> RecallBot:
        """The scripted player ``name``."""
        if name not in self.opponents:
            raise ConfigError(f"{self.name} has no player {name!r}: it has {', '.join(self.opponents)}")
        return RecallBot(self, **options)

    def next_round(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the next action, [E] each: whether it is played, the number of the round, and its cue."""
        number = self._number.index_select(0, self.age)
        cue = self.cue.gather(1, number.unsqueeze(1)).squeeze(1)
        return self._played.index_select(0, self.age), number, cue

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        cue = random.integers(random.bits(key.unsqueeze(1), self._cue_lanes), self.cues)
        none = torch.zeros_like(key)
        return {
            "cue": cue,
            "chips": torch.full_like(cue[:, :2], CHIPS),
            "lead": none,
            **self._outliving(won=none.float(), games=none),
        }

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.age.sub_(random.ONE)
        played, _, cue = (value.unsqueeze(1) for value in self.next_round())
        self.age.add_(random.ONE)
        action = action.view(-1, 2)
        bid = torch.minimum(action % BIDS, self.chips) * played
        right = (action // BIDS == cue) & played
        strength = torch.where(right, bid, -1)
        gain = (strength - strength.flip(1)).sign()
        self.chips.sub_(bid)
        self.lead.add_(gain[:, 0])
        over = self.age == self._limit
        self.won.copy_(torch.where(over, self.lead.sign().float(), self.won))
        self.games.add_(over)
        self._metrics = {
            name: torch.where(played, value.float(), torch.nan).flatten()
            for name, value in (("right", right), ("bid", bid))
        }
        return gain.flatten().float() / ROUNDS, over

    def _info(self, reward: Tensor) -> dict[str, Tensor]:
        return self._metrics

    def _observe(self) -> Tensor:
        _, _, cue = self.next_round()
        shown = self._cue_sights.index_select(0, cue) * self._is_shown.index_select(0, self.age)
        common = torch.cat([shown, self._time_sights.index_select(0, self.age)], 1)
        lead = self.lead.unsqueeze(1) * self._sign / ROUNDS
        own = torch.stack([self.chips / CHIPS, self.chips.flip(1) / CHIPS, lead], 2)
        return torch.cat([common.unsqueeze(1).expand(-1, 2, -1), own], 2).flatten(0, 1)

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """Such as ``cue 2 of round 0``, ``blank``, or ``round 1: 3 chips against 5, 1 ahead``."""
        cues = len(obs) - ROUNDS - STATE
        cue, number = obs[:cues], obs[cues : cues + ROUNDS]
        played, own, theirs, lead = obs[cues + ROUNDS :]
        if cue.any():
            return f"cue {cue.argmax()} of round {number.argmax()}"
        if not played:
            return "blank"
        ahead = round(float(lead) * ROUNDS)
        words = "level" if ahead == 0 else f"{abs(ahead)} {'ahead' if ahead > 0 else 'behind'}"
        chips = (round(float(each) * CHIPS) for each in (own, theirs))
        return "round {}: {} chips against {}, {}".format(number.argmax(), *chips, words)


class RecallBot:
    """Names a cue with the probability ``memory``, else one at random; spreads its chips, or draws bids."""

    def __init__(self, env: RecallDuel, memory: float = 1.0, bids: str = "even") -> None:
        if not isinstance(memory, int | float) or not 0 <= memory <= 1:
            raise ConfigError(f"bot: memory is {memory!r}; it must be a number from 0 to 1")
        if bids not in ("even", "random"):
            raise ConfigError(f"bot: bids is {bids!r}; choose even or random")
        self.env, self.memory, self.is_even = env, memory, bids == "even"

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions of ``rows`` [R] in the present state of the env."""
        env = self.env
        slot, side = rows // 2, rows % 2
        _, number, cue = (value[slot] for value in env.next_round())
        key = random.ahead(env.key[slot] ^ _SALT, (env.age[slot] * 2 + side) * 3)
        luck, guess, bid = (random.bits(key, i) for i in range(3))
        named = torch.where(random.uniform(luck) < self.memory, cue, random.integers(guess, env.cues))
        left, rounds = env.chips[slot, side], ROUNDS - number
        drawn = random.integers(bid, left.clamp(max=BIDS - 1) + 1)
        spread = (left + rounds - 1) // rounds if self.is_even else torch.where(rounds == 1, left, drawn)
        return named * BIDS + spread.clamp(max=BIDS - 1)
