"""Bugs of ratings and of the cycles in a payoff."""

from __future__ import annotations

from recollect.league import cycles, davidson, payoff, ratings
from recollect.league.payoff import Payoff
from recollect.league.ratings import Ratings
from tests.league import test_cycles, test_payoff, test_ratings
from tests.mutants.mutant import Mutant

RATINGS = [
    Mutant(
        "wins and losses of a game are exchanged",
        test_payoff.test_games_are_counted_for_the_first_player,
        ((Payoff, "of_games", "1 - int(result)", "1 + int(result)"),),
        by="assert dict(payoff().counts)",
    ),
    Mutant(
        "wins and losses are exchanged in the likelihood",
        test_ratings.test_players_of_known_strength_are_put_in_order,
        ((davidson, "_derivatives", "games[:, 0] - games[:, 2]", "games[:, 2] - games[:, 0]"),),
        by=">= 0.95",
    ),
    Mutant(
        "wins and losses are exchanged before the fit",
        test_ratings.test_players_of_known_strength_are_put_in_order,
        ((ratings, "rate", "games = payoff.matrices(names)", "games = payoff.matrices(names)[::-1]"),),
        by=">= 0.95",
    ),
    Mutant(
        "the rows of the matrix are the second players",
        test_payoff.test_games_are_counted_for_the_first_player,
        ((Payoff, "matrices", "index[first], index[second]", "index[second], index[first]"),),
        by="wins.tolist()",
    ),
    Mutant(
        "draws are dropped",
        test_ratings.test_many_games_give_the_strengths,
        ((davidson, "_derivatives", "total = games.sum(1)", "total = games[:, 0] + games[:, 2]"),),
        by="== pytest.approx(",
    ),
    Mutant(
        "draws are no games of a player",
        test_ratings.test_draws_count,
        ((ratings, "rate", "total = won + won.T + draws", "total = won + won.T"),),
        by='assert rate(drawn, "b")["a"].games == 180',
    ),
    Mutant(
        "intervals are those of 50%",
        test_ratings.test_intervals_cover_the_truth,
        (
            (
                ratings,
                "_interval",
                "shift - Z), normal.cdf(shift + Z)",
                "shift - Z / 3), normal.cdf(shift + Z / 3)",
            ),
        ),
        by="assert 0.9",
    ),
    Mutant(
        "intervals are corrected away from the truth",
        test_ratings.test_a_training_is_rated_right,
        ((ratings, "_interval", "shift = 2 *", "shift = -2 *"),),
        by="the share of intervals that cover",
    ),
    Mutant(
        "the prior draws the ends of a long ladder together",
        test_ratings.test_a_training_is_rated_right,
        (
            (davidson, "_derivatives", "-x / PRIOR**2", "-16 * x / PRIOR**2"),
            (davidson, "_derivatives", "+= 1 / PRIOR**2", "+= 16 / PRIOR**2"),
        ),
        by="the share of intervals that cover",
    ),
    Mutant(
        "intervals are those of players and not of differences to the anchor",
        test_ratings.test_intervals_cover_the_truth,
        ((ratings, "rate", "(drawn.ratings - drawn.ratings[:, at : at + 1])", "drawn.ratings"),),
        by="assert 0.9",
    ),
    Mutant(
        "the anchor is not at 0",
        test_ratings.test_the_anchor_is_0_and_moves_all,
        ((ratings, "rate", "best.ratings[0] - best.ratings[0, at]", "best.ratings[0]"),),
        by='one["bot"].value',
    ),
    Mutant(
        "the bootstrap resamples pairs, not games",
        test_ratings.test_more_games_give_narrower_intervals,
        (
            (
                ratings,
                "_bootstrap",
                "drawn = generator.multinomial(total, shares, size=(count, *total.shape))",
                "drawn = np.moveaxis(games, 0, -1) * generator.poisson(1, (count, *total.shape, 1))",
            ),
        ),
        by="== pytest.approx(10, rel=0.2)",
    ),
    Mutant(
        "pairs that played once have the same result in every sample",
        test_ratings.test_intervals_of_few_games_cover_the_truth,
        (
            (
                ratings,
                "_bootstrap",
                "games + MODEL_GAMES * probabilities(theta, best.delta[0])",
                "games + 1e-9",
            ),
            (ratings, "_bootstrap", "(total + MODEL_GAMES)", "(total + 3e-9)"),
        ),
        by="assert 0.9",
    ),
    Mutant(
        "the bootstrap resamples once",
        test_ratings.test_intervals_cover_the_truth,
        (
            (ratings, "_bootstrap", "size=(count, *total.shape)", "size=(1, *total.shape)"),
            (ratings, "_bootstrap", "drawn, -1, 1)", "drawn.repeat(count, 0), -1, 1)"),
        ),
        by="assert 0.9",
    ),
    Mutant(
        "draws of the bootstrap belong to places in the list of players",
        test_ratings.test_the_order_of_players_changes_nothing,
        ((ratings, "rate", "tuple(sorted(payoff.players))", "payoff.players"),),
        by="to_json() == rate(payoff",
    ),
    Mutant(
        "the first side has no advantage",
        test_ratings.test_the_advantage_of_a_side_is_no_strength,
        (
            (
                ratings,
                "rate",
                "best = fit(games[None].astype(float), has_side)",
                "best = fit(1.0 * games[None], False)",
            ),
        ),
        by='found["a"].low < 0',
    ),
    Mutant(
        "the advantage is taken from pairs that played on one side only",
        test_ratings.test_the_advantage_of_a_side_is_no_strength,
        ((ratings, "rate", "((off > 0) & (off.T > 0)).any()", "off.any()"),),
        by="one_way.side_advantage",
    ),
    Mutant(
        "the side counts for the second player",
        test_ratings.test_many_games_give_the_strengths,
        ((Ratings, "expected", ".value + advantage", ".value - advantage"),),
        by="found.expected(first, second)",
    ),
    Mutant(
        "the prior is nearly missing",
        test_ratings.test_a_player_who_won_all_is_finite_and_marked,
        (
            (davidson, "_derivatives", "gradient = -x / PRIOR**2", "gradient = -x / PRIOR**2 / 1e5"),
            (davidson, "_derivatives", "+= 1 / PRIOR**2", "+= 1e-5 / PRIOR**2"),
        ),
        by="< 2000",
    ),
    Mutant(
        "an unbeaten player is not marked",
        test_ratings.test_a_player_who_won_all_is_finite_and_marked,
        ((ratings, "rate", "held[i, at] and held[at, i]", "held[i, at] or held[at, i]"),),
        by="assert not best.is_bounded",
    ),
    Mutant(
        "players without games against the anchor's group are rated",
        test_ratings.test_groups_without_games_between_them_are_reported,
        ((ratings, "rate", "if linked[i, at] else", "if at >= 0 else"),),
        by="math.isnan(found[name].value)",
    ),
    Mutant(
        "each pair is tested alone for a cycle",
        test_cycles.test_a_pair_must_be_clear_of_even,
        ((cycles, "beats", "(2 * max(1, pairs))", "2"),),
        by="assert",
    ),
    Mutant(
        "more wins than losses are enough for a cycle",
        lambda: test_cycles.test_equal_players_have_no_cycles(0),
        ((cycles, "beats", "z)[0] > 0.5", "z)[1] > 0.5"),),
        by="== []",
    ),
    Mutant(
        "a cycle is found once for each of its links",
        test_cycles.test_the_clearest_of_the_shortest_comes_first,
        ((cycles, "find_cycles", "way = way[least:] + way[:least]", "pass"),),
        by="assert [cycle.players for cycle in found]",
    ),
    Mutant(
        "negative counts are accepted",
        lambda: test_payoff.test_damaged_input_is_named("fewer games than none"),
        ((payoff, "_checked", "or min(each) < 0", ""),),
        by="DID NOT RAISE",
    ),
]
