"""What the viewer of the mech arena is given is what the simulation says."""

from __future__ import annotations

import base64
import functools
from typing import Any

import numpy as np
import pytest
import torch

from recollect.tasks.mech import MechArena, actions, observe
from recollect.tasks.mech.frames import frames
from recollect.tasks.mech.recording import play_again, record_game
from recollect.tasks.mech.rules import CONTACTS, SEEN
from tests.support.mech_games import FIELDS, LAST, game, states


def column(name: str) -> np.ndarray:
    """[frames, ...] of a column, as the page decodes it."""
    return decoded(frames_of_the_game()["columns"][name]).reshape(LAST + 1, -1)


def decoded(data: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data["data"]), f"<i{data['bytes']}") / data["scale"]


@functools.cache
def frames_of_the_game() -> dict[str, Any]:
    return frames(game())


def test_columns_are_the_states():
    for name in FIELDS:
        expected = [state[name] for state in states()]
        np.testing.assert_allclose(column(name), expected, atol=0.0051, rtol=0, err_msg=name)
    np.testing.assert_allclose(column("score"), [state["score"] for state in states()], atol=0.00051)


def test_contacts_are_the_mechs_that_are_observed():
    """Each is as far away as its observation says; enemies are of the other side, and seen ones too."""
    contacts, sees = (
        column("contacts").reshape(LAST + 1, 10, CONTACTS).astype(int),
        column("sees").astype(int),
    )
    count = {"friends": 0, "enemies": 0, "seen": 0}

    def compare(arena: MechArena, action: Any) -> None:
        t = int(arena.age[0])
        own, slots = observe.SIZES["own"], len(observe.CONTACT)
        seen = observe.of(arena)["vector"][:, own : own + CONTACTS * slots].view(10, CONTACTS, slots)
        place = np.stack([getattr(arena, axis)[0].flatten().numpy() for axis in "xyz"], 1)
        for row in range(10):
            for slot, other in enumerate(contacts[t, row]):
                is_there, is_enemy, distance = seen[row, slot, [0, 1, 5]].tolist()
                if other >= 0 and arena.alive[0].flatten()[row]:
                    assert is_there
                    assert is_enemy == (row // 5 != other // 5)
                    assert distance * SEEN == pytest.approx(
                        np.linalg.norm(place[row] - place[other]), abs=1e-3
                    )
                    count["enemies" if is_enemy else "friends"] += 1
            for enemy in range(5):
                is_seen = bool(sees[t, row] >> enemy & 1)
                assert is_seen == bool(arena.sees[0, row // 5, row % 5, enemy])
                count["seen"] += is_seen

    play_again(game(), compare)
    assert count["enemies"] > 20, count
    assert count["seen"] > 20, count


def test_aims_are_what_beams_hit():
    """A light has no shots: what it hits in a decision is what it aimed at before."""
    aim, dealt = column("aim").astype(int), np.array([state["dealt"] for state in states()])
    hp = np.array([state["hp"] for state in states()])
    hits = 0
    for t in range(LAST):
        for row in (3, 8):  # the lights
            if dealt[t + 1, row] > dealt[t, row]:
                target = aim[t, row]
                assert target // 5 != row // 5
                assert hp[t + 1, target] < hp[t, target]
                hits += 1
    assert hits > 0


def test_aims_are_those_of_the_action():
    """Of the action that is made next, with the contacts of that moment."""
    arena = MechArena(1, mechs=3, limit=4, maps=1, sensing="full")
    arena.action_space.seed(1)

    def random(rows: torch.Tensor, obs: Any, first: torch.Tensor) -> Any:
        samples = [arena.action_space.sample() for _ in rows]
        return {name: torch.as_tensor(np.stack([each[name] for each in samples])) for name in samples[0]}

    replay = record_game(arena, (random, random), most=12)
    aims = decoded(frames(replay)["columns"]["aim"]).reshape(13, 6)
    different = 0

    def compare(arena: MechArena, action: Any) -> None:
        nonlocal different
        t = int(arena.age[0])
        if t < 12:
            before = arena.snapshot()
            parts = {name: torch.from_numpy(values[t]) for name, values in replay.actions.items()}
            target = actions.decode(arena, parts).target[0]
            arena.restore(before)
            rows = torch.where(target < 0, -1, target + torch.tensor([[3], [0]]))
            assert aims[t].tolist() == rows.flatten().tolist()
            different += int((target > 0).sum())

    play_again(replay, compare)
    assert different > 10


def test_events_are_those_of_the_game():
    events = frames_of_the_game()["events"]
    found, before = states(), None
    for frame, now in enumerate(found):
        here = [event for event in events if event["at"] == frame]
        if before is not None:
            dead = [row for row in range(10) if before["lives"][row] and not now["lives"][row]]
            assert sorted(e["whom"] for e in here if e["kind"] == "kill") == dead
            assert all(
                found[frame]["dealt"][e["who"]] > before["dealt"][e["who"]]
                for e in here
                if e["kind"] == "kill"
            )
            fallen = [
                r for r in range(10) if now["lives"][r] and now["down"][r] > 0 and not before["down"][r] > 0
            ]
            assert sorted(e["who"] for e in here if e["kind"] == "fall") == fallen
            painted = [
                r for r in range(10) if now["lives"][r] and now["painted"][r] > 0 >= before["painted"][r]
            ]
            assert sorted(e["whom"] for e in here if e["kind"] == "paint") == painted
            assert [e["value"] for e in here if e["kind"] == "zone"] == (
                [now["holder"]] if now["holder"] != before["holder"] else []
            )
        before = now
    hits = [event for event in events if event["kind"] == "hit"]
    assert len(hits) > 5
    for row in range(10):
        assert sum(e["amount"] for e in hits if e["who"] == row) == pytest.approx(found[-1]["dealt"][row])


def test_shots_and_smoke_are_those_of_the_simulation():
    data = frames_of_the_game()
    shots: list[int] = []
    smoke: list[int] = []

    def add(arena: MechArena, action: Any) -> None:
        shots.append(int((arena.shot_left > 0).sum()))
        smoke.append(int((arena.smoke_left > 0).sum()))

    play_again(game(), add)
    assert [len(flat) // 6 for flat in data["shots"]] == shots
    assert [len(flat) // 5 for flat in data["smoke"]] == smoke
    assert sum(shots) > 0
