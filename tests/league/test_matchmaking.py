"""Who plays, and how often."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from recollect.acting.versus_games import Results
from recollect.config.league import LeagueConfig, league_config
from recollect.errors import ConfigError, RecollectError
from recollect.league.games import Game, GameLog, Tally, count, faults, read_games
from recollect.league.matchmaking import Roster, Rosters, choose, luck, slot_keys
from recollect.league.pool import Member

MEMBERS = [Member("bot"), *(Member(f"s{i}") for i in range(4))]


def chosen(counts: dict[str, Results] | None = None, number: int = 0, **config: object) -> Roster:
    return choose(MEMBERS, counts or {}, league_config(config), number=number, steps=7, seed=1)


def test_uniform() -> None:
    one = chosen(matchmaking="uniform", self_play=0.0)
    assert one.members == ("bot", "s0", "s1", "s2", "s3")
    assert one.shares == pytest.approx([0.2] * 5)
    assert (one.latest, one.steps) == ("s3", 7)


def test_latest() -> None:
    one = chosen(matchmaking="latest")
    assert (one.members, one.shares) == (("s3",), (1.0,))
    alone = choose([Member("bot")], {}, LeagueConfig(matchmaking="latest"), number=0, steps=0, seed=1)
    assert alone.members == ("bot",)


def test_the_share_of_self_play() -> None:
    one = chosen(matchmaking="uniform", self_play=0.5)
    assert dict(zip(one.members, one.shares, strict=True))["s3"] == pytest.approx(0.5 + 0.5 * 0.2)


def test_a_member_from_elsewhere_is_no_past_self() -> None:
    """It is drawn like others; self-play and "latest" are against the newest snapshot of the agent."""
    members = [*MEMBERS, Member("rival", origin="elsewhere")]
    found = choose(members, {}, LeagueConfig(matchmaking="uniform"), number=0, steps=0, seed=1)
    assert found.latest == "s3", "it is no past self"
    assert dict(zip(found.members, found.shares))["rival"] == pytest.approx(0.8 / 6)
    latest = choose(members, {}, LeagueConfig(matchmaking="latest"), number=0, steps=0, seed=1)
    assert latest.members == ("s3",)


def test_pfsp_prefers_those_that_win() -> None:
    """The weight is (1 - p) ** 2, p with half a game won of one more; a draw is half a win."""
    counts = {"s0": Results(win=9), "s1": Results(loss=9), "s2": Results(win=4, draw=1, loss=4)}
    one = chosen(counts, self_play=0.0)
    weights = [0.25, 0.05**2, 0.95**2, 0.25, 0.25]
    assert one.shares == pytest.approx([weight / sum(weights) for weight in weights])


def test_at_most_so_many_opponents() -> None:
    """The newest always; the others come in turn, and the same for the same number."""
    seen = Counter(name for n in range(200) for name in chosen(number=n, opponents=2).members)
    assert seen["s3"] == 200
    assert {seen[name] for name in ("bot", "s0", "s1", "s2")} <= set(range(25, 80))
    assert chosen(number=5, opponents=2) == chosen(number=5, opponents=2)
    rare = {"s0": Results(win=30)}
    assert sum("s0" in chosen(rare, n, opponents=2).members for n in range(200)) < 10


def test_chances_are_uniform_and_of_slot_and_game() -> None:
    slots, games = torch.arange(40).repeat_interleave(50), torch.arange(50).repeat(40)

    def chances(seed: int, slots: torch.Tensor, games: torch.Tensor, attempt: int = 0) -> list[float]:
        return luck(slot_keys(seed, slots), games, attempt).tolist()

    found = torch.tensor(chances(3, slots, games))
    assert len(found.unique()) > 1990
    assert 0.47 < float(found.mean()) < 0.53
    assert chances(3, slots[7:8], games[7:8]) == found[7:8].tolist()
    assert chances(4, slots[:1], games[:1]) != found[:1].tolist()
    assert chances(3, slots[:1], games[:1], attempt=1) != found[:1].tolist()


def test_a_pick_follows_the_shares() -> None:
    one = Roster(0, 0, ("a", "b", "c"), (0.5, 0.0, 0.5), "")
    picks = [one.pick(i / 100) for i in range(100)]
    assert picks == ["a"] * 50 + ["c"] * 50
    assert one.pick(1.0) == "c"
    left = one.without({"a"})
    assert left is not None
    assert left.shares == (0.0, 1.0)
    assert one.without({"a", "b", "c"}) is None


def test_a_pick_on_a_device_is_that_of_the_roster() -> None:
    """S001-4: by the ends as float32, also right at an end, and for shares that are no binary fractions."""
    generator = torch.Generator().manual_seed(0)
    for number in range(200):
        shares = torch.rand(1 + number % 9, generator=generator).double()
        shares[torch.rand(len(shares), generator=generator) < 0.3] = 0.0
        if not shares.sum():
            shares[0] = 1.0
        names = tuple(map(str, range(len(shares))))
        one = Roster(0, 0, names, tuple((shares / shares.sum()).tolist()), "")
        ends = torch.tensor(one.ends())
        steps = 2**24
        near = [round(end * steps) + i for end in one.ends() for i in (-1, 0, 1)]
        chances = torch.tensor([0, steps - 1, *[step for step in near if 0 <= step < steps]]) / steps
        found = (chances.unsqueeze(1) >= ends).sum(1)
        assert [names[i] for i in found] == [one.pick(chance) for chance in chances.tolist()]


def test_rosters_on_disk(tmp_path: Path) -> None:
    rosters = Rosters(tmp_path)
    assert rosters.read() == []
    made = [Roster(n, 10 * n, ("a",), (1.0,), "a") for n in range(3)]
    for one in made:
        rosters.add(one)
    assert rosters.read() == made
    assert rosters.rewind(10) == rosters.read() == made[:2]
    with rosters.file.open("a") as handle:
        handle.write('{"number": 5, "steps": 0, "members": ["a"], "shares": [2.0], "latest": "a"}\n')
    with pytest.raises(RecollectError, match=r"rosters\.jsonl"):
        rosters.read()


def test_a_tally_counts_every_game_once(tmp_path: Path) -> None:
    """In step with the files, also after games were removed from one and while a line is written."""
    logs, tally, number = [GameLog(tmp_path, slot) for slot in (0, 4)], Tally(tmp_path), 0
    for turn in range(6):
        for log in logs:
            made = [
                Game(0, number + i, turn, "ab"[i % 2], "north", ("win", "draw", "loss")[i % 3], 5)
                for i in range(turn + 2)
            ]
            number += len(made)
            log.add(made)
        if turn == 3:
            logs[0].keep(lambda game: game.roster < 2)
            logs[0].add(made[:1])
        since = max(0, turn - 2)
        expected = count(read_games(tmp_path), since)
        with logs[1].file.open("a") as handle:
            handle.write('{"slot": ')
        assert tally.counts(since) == expected, "as all games counted anew"


def test_the_proof_finds_faults() -> None:
    """S001-4: a swap, a game that is booked to another member or twice."""
    fine = Game(slot=1, game=0, roster=0, member="a", side="north", outcome="win", steps=4)
    assert faults([fine], lambda game: "a") == []
    assert "replaced" in faults([Game(1, 0, 0, "a", "north", "win", 4, swaps=1)], lambda game: "a")[0]
    assert "b was drawn" in faults([fine], lambda game: "b")[0]
    assert "after game 0" in faults([fine, fine], lambda game: None)[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"matchmaking": "pfps"}, "pfsp"),
        ({"self_play": 1.5}, "self_play"),
        ({"gate": 0}, "gate"),
        ({"promote_every": 0}, "promote_every"),
        ({"opponents": "many"}, "opponents"),
        ({"promote": 5}, "promote_every"),
    ],
)
def test_settings(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        league_config(settings)


def test_settings_of_a_command_line() -> None:
    found = league_config({"promote_every": "50k", "gate": "none", "self_play": 0.1})
    assert (found.promote_every, found.gate, found.self_play) == (50_000, None, 0.1)
