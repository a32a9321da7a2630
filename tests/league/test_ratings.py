"""Ratings: those of players whose strength is known, by the posterior written out, and what they report."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from recollect.errors import ConfigError
from recollect.league.davidson import ELO, PRIOR, fit
from recollect.league.payoff import Counts, Payoff
from recollect.league.ratings import Ratings, rate

SIDE, DELTA = 60.0, -1.0
"""Of the simulated players: Elo points of the first side, and the log weight of a draw."""


def chances(difference: float, delta: float = DELTA) -> list[float]:
    """Davidson's model by its definition: of a win, a draw, a loss at a difference in Elo points."""
    odds = 10 ** (difference / 400)
    weights = [math.sqrt(odds), math.exp(delta), 1 / math.sqrt(odds)]
    return [weight / sum(weights) for weight in weights]


def league(
    strengths: dict[str, float], games: int, seed: int, side: float = SIDE, delta: float = DELTA
) -> Payoff:
    """Every pair plays ``games`` on each side."""
    generator = np.random.default_rng(seed)
    counts = {
        (a, b): Counts(
            *generator.multinomial(games, chances(strengths[a] - strengths[b] + side, delta)).tolist()
        )
        for a in strengths
        for b in strengths
        if a != b
    }
    return Payoff(tuple(strengths), counts)


def some(players: int, seed: int = 0) -> dict[str, float]:
    """The strengths of players, of whom the bot has 0."""
    drawn = np.random.default_rng(seed).normal(0, 250, players - 1).tolist()
    return {"bot": 0.0} | {f"p{i}": strength for i, strength in enumerate(drawn)}


def ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values))


def test_players_of_known_strength_are_put_in_order() -> None:
    """By rank; the side's advantage and the share of draws are found too."""
    for seed in range(3):
        strengths = some(20, seed)
        found = rate(league(strengths, 10, seed), "bot", samples=200)
        values = [found[name].value for name in strengths]
        assert np.corrcoef(ranks(values), ranks([*strengths.values()]))[0, 1] >= 0.95
        assert [row.value for row in found.rows] == sorted(values, reverse=True)
        assert found.side_interval is not None
        assert found.side_interval[0] < SIDE < found.side_interval[1]
        assert found.draw_share == pytest.approx(chances(0.0)[1], abs=0.03)


def test_many_games_give_the_strengths() -> None:
    """Errors shrink with the number of games, here to a point or two, on any side advantage or draws."""
    for side, delta in ((SIDE, DELTA), (-150.0, 0.5), (0.0, -4.0)):
        strengths = some(6)
        found = rate(league(strengths, 200_000, 1, side, delta), "bot", samples=2)
        for name, strength in strengths.items():
            assert found[name].value == pytest.approx(strength, abs=4)
        assert found.side_advantage == pytest.approx(side, abs=2)
        first, second = "p0", "p1"
        want = chances(strengths[first] - strengths[second] + side, delta)
        assert found.expected(first, second) == pytest.approx(want, abs=0.01)
        even = chances(strengths[first] - strengths[second], delta)
        assert found.expected(first, second, sides=False) == pytest.approx(even, abs=0.01)


def coverage(leagues: int, players: int, games: int, samples: int) -> float:
    """The share of 95% intervals that have the truth in them."""
    inside = []
    for seed in range(leagues):
        strengths = some(players, seed)
        found = rate(league(strengths, games, seed), "bot", samples=samples)
        rows = [found[name] for name in strengths if name != "bot"]
        inside += [row.low <= strengths[row.player] <= row.high for row in rows]
    return float(np.mean(inside))


def test_intervals_cover_the_truth() -> None:
    """In 90 to 98% of cases, of 95% intervals."""
    assert 0.90 <= coverage(60, 7, 15, 200) <= 0.98


def test_intervals_of_few_games_cover_the_truth() -> None:
    """Also where a pair has played two games on each side, of which resampling alone knows too little."""
    assert 0.90 <= coverage(100, 6, 2, 200) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("players", "games"), [(4, 40), (6, 2), (8, 15), (16, 8)])
def test_intervals_cover_the_truth_in_many_leagues(players: int, games: int) -> None:
    """In 90 to 98% of cases, for few players and many, few games and many."""
    assert 0.90 <= coverage(200, players, games, 400) <= 0.98


def ladder(seed: int, snapshots: int, games: int) -> tuple[dict[str, float], Payoff]:
    """A training: the agent climbs, and plays the bot and its snapshots, more often those that beat it."""
    generator, strengths, level = np.random.default_rng(seed), {"bot": 0.0}, -800.0
    counts: dict[tuple[str, str], Counts] = {}
    for i in range(snapshots):
        agent, step = f"s{i}+", generator.normal(120, 120)
        strengths |= {f"s{i}": level, agent: level + step / 2}
        level += step
        opponents = ["bot", *(f"s{j}" for j in range(i + 1))]
        odds = 10 ** (np.array([strengths[agent] - strengths[one] for one in opponents]) / 400)
        weights = 0.8 * (1 + odds) ** -2.0 / ((1 + odds) ** -2.0).sum()
        weights[-1] += 0.2
        for one, weight in zip(opponents, weights):
            for pair in ((agent, one), (one, agent)):
                number = int(generator.poisson(games * weight / 2))
                share = chances(strengths[pair[0]] - strengths[pair[1]] + SIDE)
                counts[pair] = Counts(*generator.multinomial(number, share).tolist())
    return strengths, Payoff(tuple(strengths), counts)


def of_ladders(leagues: int, snapshots: int, games: int) -> tuple[float, float]:
    """The share of intervals that have the truth in them, and the least rank correlation."""
    inside, orders = [], []
    for seed in range(leagues):
        strengths, payoff = ladder(seed, snapshots, games)
        found = rate(payoff, "bot", samples=200)
        rows = [row for row in found.rows if row.player != "bot" and math.isfinite(row.value)]
        inside += [row.low <= strengths[row.player] <= row.high for row in rows]
        values, truth = [row.value for row in rows], [strengths[row.player] for row in rows]
        orders.append(np.corrcoef(ranks(values), ranks(truth))[0, 1])
    return float(np.mean(inside)), min(orders)


def test_a_training_is_rated_right() -> None:
    """A long ladder, in which weak players have few games: order and intervals."""
    covered, order = of_ladders(8, 30, 300)
    assert 0.90 <= covered <= 0.98, "the share of intervals that cover"
    assert order >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("snapshots", "games"), [(8, 1000), (20, 600), (20, 5000), (30, 300)])
def test_many_trainings_are_rated_right(snapshots: int, games: int) -> None:
    """Coverage from 90 to 98%, and rank correlations of at least 0.95 where there are players to order."""
    covered, order = of_ladders(40, snapshots, games)
    assert 0.90 <= covered <= 0.98
    assert snapshots < 20 or order >= 0.95


def log_posterior(games: np.ndarray, ratings: np.ndarray, side: float, delta: float) -> float:
    """Game by game, from the definition of the model."""
    total = -(((ratings - ratings.mean()) ** 2).sum() + side**2 + delta**2) / (2 * PRIOR**2)
    for i in range(len(ratings)):
        for j in range(len(ratings)):
            p = chances((ratings[i] - ratings[j] + side) * ELO, delta)
            total += sum(count * math.log(share) for count, share in zip(games[:, i, j], p))
    return total


@pytest.mark.parametrize("kind", ["played", "unbeaten", "no draws", "no games"])
def test_the_fit_is_the_maximum_of_the_posterior(kind: str) -> None:
    """No step from it goes up: the function is concave, so that there is no other maximum."""
    games = league(some(5), 6, 3).matrices(tuple(some(5))).astype(float)
    if kind == "unbeaten":
        games[:2, :, 2], games[1:, 2] = 0, 0
    elif kind == "no draws":
        games[1] = 0
    elif kind == "no games":
        games[:] = 0
    found = fit(games[None], has_side=True)
    ratings, side, delta = found.ratings[0], float(found.side[0]), float(found.delta[0])
    best = log_posterior(games, ratings, side, delta)
    assert np.isfinite(found.stacked).all()
    assert abs(ratings.mean()) < 1e-9
    for size in (1e-3, -1e-3, 0.5, -0.5):
        for i in range(5):
            assert log_posterior(games, ratings + size * (np.arange(5) == i), side, delta) <= best
        assert log_posterior(games, ratings, side + size, delta) <= best
        assert log_posterior(games, ratings, side, delta + size) <= best


def test_without_draws_it_is_elo() -> None:
    """Two players, 3 wins to 1 on either side: odds of 3, 191 points, a little less by the prior."""
    payoff = Payoff(("a", "b"), {("a", "b"): Counts(300, 0, 100), ("b", "a"): Counts(100, 0, 300)})
    found = rate(payoff, "b", samples=2)
    assert found["a"].value == pytest.approx(400 * math.log10(3), abs=0.1)
    assert found.expected("a", "b")[0] == pytest.approx(0.75, abs=1e-3)


def test_draws_count() -> None:
    """They bring players together, and no number of them is lost."""
    without = Payoff(("a", "b"), {("a", "b"): Counts(20, 0, 10), ("b", "a"): Counts(10, 0, 20)})
    drawn = Payoff(("a", "b"), {("a", "b"): Counts(20, 60, 10), ("b", "a"): Counts(10, 60, 20)})
    assert rate(drawn, "b")["a"].games == 180
    assert rate(drawn, "b")["a"].share == pytest.approx(100 / 180)
    # The odds of a win against a loss are the same, and are known better or as well.
    assert rate(drawn, "b").expected("a", "b") == pytest.approx((2 / 9, 6 / 9, 1 / 9), abs=2e-3)
    assert rate(without, "b").expected("a", "b")[1] < 0.01


def test_the_order_of_players_changes_nothing() -> None:
    """Neither ratings nor intervals, in any bit."""
    payoff = league(some(7), 8, 5)
    turned = Payoff(payoff.players[::-1], dict(reversed(payoff.counts.items())))
    assert rate(turned, "bot").to_json() == rate(payoff, "bot").to_json()
    assert rate(turned, "bot").to_json() != rate(payoff, "bot", seed=1).to_json()


def test_swapping_sides_changes_only_the_sign_of_their_advantage() -> None:
    payoff = league(some(6), 30, 2)
    swapped = Payoff(payoff.players, {(b, a): Counts(*n[::-1]) for (a, b), n in payoff.counts.items()})
    one, two = (rate(each, "bot", samples=4000) for each in (payoff, swapped))  # little noise
    for row in one.rows:
        assert two[row.player].value == pytest.approx(row.value, abs=1e-6)
        assert (two[row.player].low, two[row.player].high) == pytest.approx((row.low, row.high), abs=12)
    assert two.side_advantage == pytest.approx(-(one.side_advantage or 0))


def test_the_advantage_of_a_side_is_no_strength() -> None:
    """Equal players, of whom one has the first side in nearly all games, which that side wins."""
    payoff = Payoff(("a", "b"), {("a", "b"): Counts(900, 0, 100), ("b", "a"): Counts(90, 0, 10)})
    found = rate(payoff, "b")
    assert found["a"].low < 0 < found["a"].high
    assert abs(found["a"].value) < 10
    assert found.side_advantage == pytest.approx(400 * math.log10(9), abs=2)
    one_way = rate(Payoff(("a", "b"), {("a", "b"): Counts(900, 0, 100)}), "b")
    assert one_way.side_advantage is None
    assert one_way["a"].value == pytest.approx(382, abs=2)


def test_the_anchor_is_0_and_moves_all() -> None:
    payoff = league(some(5), 10, 4)
    one, two = rate(payoff, "bot"), rate(payoff, "p1")
    assert (one["bot"].value, one["bot"].low, one["bot"].high) == (0.0, 0.0, 0.0)
    for row in one.rows:
        assert two[row.player].value == pytest.approx(row.value - one["p1"].value)


def test_more_games_give_narrower_intervals() -> None:
    """The width falls with the root of the number of games: these are resampled, not pairs."""
    counts = {pair: Counts(*(100 * n for n in each)) for pair, each in league(some(5), 20, 0).counts.items()}
    few, many = rate(league(some(5), 20, 0), "bot"), rate(Payoff(tuple(some(5)), counts), "bot")
    for a, b in zip(few.rows, many.rows):
        if a.player != "bot":
            assert (a.high - a.low) / (b.high - b.low) == pytest.approx(10, rel=0.2)


def test_a_player_who_won_all_is_finite_and_marked() -> None:
    payoff = league({"bot": 0.0, "p": 20.0}, 20, 0)
    found = rate(
        Payoff(("bot", "p", "x"), {**payoff.counts, ("x", "bot"): Counts(9), ("p", "x"): Counts(0, 0, 9)}),
        "bot",
    )
    best = found.rows[0]
    assert best.player == "x"
    assert best.share == 1
    assert not best.is_bounded
    assert 300 < best.value < 2000
    assert found["p"].is_bounded
    assert "x    +" in str(found)
    assert " *" in str(found)
    assert "prior" in str(found)


def test_groups_without_games_between_them_are_reported() -> None:
    payoff = Payoff(
        ("bot", "a", "c", "d", "alone"), {("bot", "a"): Counts(5, 1, 4), ("d", "c"): Counts(3, 0, 3)}
    )
    found = rate(payoff, "bot")
    assert found.components == (("a", "bot"), ("c", "d"), ("alone",))
    assert math.isfinite(found["a"].value)
    assert all(math.isnan(found[name].value) for name in ("c", "d", "alone"))
    assert math.isnan(found.expected("bot", "c")[0])
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [row["rating"] for row in written["ratings"]][2:] == [None] * 3
    assert "a, bot; c, d; alone" in str(found)


def test_cycles_are_reported() -> None:
    """Rock, paper, scissors are equal on average, and no rating shows who wins."""
    names = ("rock", "paper", "scissors")
    beaten = {(b, a): Counts(40, 5, 10) for a, b in pairwise([*names, names[0]])}
    found = rate(Payoff(names, beaten), "rock")
    assert [row.value for row in found.rows] == pytest.approx([0, 0, 0], abs=1e-6)
    assert found.cycles[0].players == ("paper", "rock", "scissors")
    assert "paper (80%) > rock (80%) > scissors (80%) > paper" in str(found)


def test_a_table_by_hand() -> None:
    even = {("a", "b"): Counts(5000, 0, 5000), ("b", "a"): Counts(5000, 0, 5000)}
    text = str(rate(Payoff(("a", "b"), even), "b"))
    assert text.splitlines()[0] == "Elo ratings, b = 0 (95% bootstrap intervals):"
    assert text.splitlines()[1].split() == ["Elo", "95%", "interval", "score", "games"]
    assert "50.0%  20,000" in text
    assert len(text.splitlines()) == 5


def test_wrong_arguments_are_named() -> None:
    payoff = league(some(3), 2, 0)
    with pytest.raises(ConfigError, match=r"anchor 'bott'.*did you mean 'bot'"):
        rate(payoff, "bott")
    with pytest.raises(ConfigError, match="samples is 1"):
        rate(payoff, "bot", samples=1)
    with pytest.raises(ConfigError, match="no player 'p9'"):
        rate(payoff, "bot", samples=2)["p9"]


def test_the_only_player_is_the_anchor() -> None:
    found: Ratings = rate(Payoff(("bot",)), "bot")
    assert [(row.player, row.value, row.games) for row in found.rows] == [("bot", 0.0, 0)]
