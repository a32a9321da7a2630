"""Repeat previous and repeat first, step by step beside POPGym's own envs."""

from __future__ import annotations

import popgym.envs.repeat_first as popgym_first
import popgym.envs.repeat_previous as popgym_previous
import pytest
import torch

from recollect.tasks import make_task

ORIGINALS = {
    ("repeat-previous", "easy"): popgym_previous.RepeatPreviousEasy,
    ("repeat-previous", "medium"): popgym_previous.RepeatPreviousMedium,
    ("repeat-previous", "hard"): popgym_previous.RepeatPreviousHard,
    ("repeat-first", "easy"): popgym_first.RepeatFirstEasy,
    ("repeat-first", "medium"): popgym_first.RepeatFirstMedium,
    ("repeat-first", "hard"): popgym_first.RepeatFirstHard,
}


def stack_deck(env, suits: list[int]) -> None:
    """Make the env's next reset put ``suits`` in this order on top of its deck."""
    deck = env.deck
    of_suit = {suit: [c for c in range(deck.num_cards) if deck.suits_idx[c] == suit] for suit in range(4)}
    order = torch.tensor([of_suit[suit].pop() for suit in suits]).numpy()  # fails on a suit too many

    def reset(rng=None) -> None:
        type(deck).reset(deck, shuffle=False)
        deck.idx = order[::-1].copy()  # dealt from the end

    deck.reset = reset


@pytest.mark.parametrize(("name", "size"), list(ORIGINALS))
def test_every_step_equals_popgym(name: str, size: str) -> None:
    """S000-1: the end of the deck terminates and does not truncate, as POPGym has it."""
    rows, episodes = 6, 2
    task, original = make_task(name, rows, size=size), ORIGINALS[name, size]()
    assert task.observation_space == original.observation_space
    assert task.action_space == original.action_space
    assert task.max_episode_steps == original.max_episode_length
    obs = task.reset(5).clone()
    generator = torch.Generator().manual_seed(1)
    scored = 0
    for _ in range(episodes):
        seen, steps = [obs], []
        for _ in range(task.max_episode_steps):
            action = torch.randint(0, 4, (rows,), generator=generator)
            step = task.step(action)
            seen.append(step.final_obs.clone())
            steps.append((action, step.reward.clone(), step.terminated.clone(), step.truncated.clone()))
            obs = step.obs.clone()
        assert task.age.tolist() == [0] * rows
        for row in range(rows):
            stack_deck(original, [int(cards[row]) for cards in seen])
            assert original.reset()[0] == seen[0][row]
            for t, (action, reward, terminated, truncated) in enumerate(steps):
                theirs = original.step(int(action[row]))
                assert theirs[0] == seen[t + 1][row]
                assert theirs[1] == pytest.approx(float(reward[row]), abs=1e-6)
                assert theirs[2] == bool(terminated[row])
                assert theirs[3] == bool(truncated[row])
                scored += theirs[1] > 0
    assert scored > 0


def test_decks_are_shuffled_uniformly() -> None:
    """First suits, pairs of neighbours and the last card have the frequencies of a shuffle."""
    rows = 20_000
    task = make_task("repeat-first", rows)
    cards = [task.reset(0).clone()]
    cards += [task.step(cards[0]).final_obs.clone() for _ in range(51)]
    deck = torch.stack(cards)
    assert all((deck == suit).sum(0).eq(13).all() for suit in range(4))
    for position in (0, 1, 25, 51):
        share = deck[position].bincount(minlength=4) / rows
        assert ((share - 0.25).abs() < 5 * (0.1875 / rows) ** 0.5).all()
    for a, b in ((0, 1), (20, 23), (0, 51)):
        same = (deck[a] == deck[b]).float().mean()
        assert abs(same - 12 / 51) < 5 * (0.18 / rows) ** 0.5
