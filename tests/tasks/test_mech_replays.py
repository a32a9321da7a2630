"""Replays of the mech arena: written, read, played again, and refused where they are damaged."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.errors import EnvError, RecollectError, StorageError
from recollect.tasks.mech import MechArena
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.recording import Chain, Recorder, play_again, record_game
from recollect.tasks.mech.replays import Replay, load

SMALL = {"mechs": 2, "limit": 6, "maps": 1}


class Shooter:
    """A bot that shows its heat as a memory."""

    def __init__(self, arena: MechArena, side: int) -> None:
        self._bot, self._arena, self._side = MechBot(arena, knows="all"), arena, side
        self.shown: dict[str, torch.Tensor] = {}

    def __call__(self, rows: torch.Tensor, obs: Any, first: torch.Tensor) -> Any:
        self.shown = {"memory": self._arena.heat[0, self._side]}
        return self._bot.act(rows, obs, first)


@functools.cache
def game(seed: int = 3, **options: Any) -> Replay:
    arena = MechArena(1, **(SMALL | options))
    bot = MechBot(arena)
    return record_game(arena, (Shooter(arena, 0), bot.act), seed=seed, names=("shooter", "bot"))


def same(one: Replay, other: Replay) -> bool:
    for each in dataclasses.fields(Replay):
        a, b = getattr(one, each.name), getattr(other, each.name)
        if isinstance(a, dict) and each.name != "options":
            if a.keys() != b.keys() or not all(np.array_equal(a[k], b[k], equal_nan=True) for k in a):
                return False
            assert all(a[k].dtype == b[k].dtype for k in a)
        elif a != b:
            return False
    return True


@pytest.mark.parametrize("spaces", ["hybrid", "flat"])
def test_a_replay_is_written_read_and_reproduced(tmp_path: Path, spaces: str):
    replay = game(spaces=spaces)
    assert (replay.decisions, replay.ended, replay.episode) == (24, "truncated", 0)
    read = load(replay.save(tmp_path / "new" / "game.json"))
    assert same(read, replay)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["game.json"]  # nothing beside it
    memory = read.extras["memory"]
    assert memory.shape == (24, 4)
    assert np.isfinite(memory[:, :2]).all()
    assert np.isnan(memory[:, 2:]).all()
    play_again(read)


def test_games_within_wrappers_are_recorded_one_after_the_other():
    """Each with its number, of the slot's seed; the arena is as before when the recording is over."""
    arena = MechArena(1, **SMALL)
    arena.first_slot = 5
    calls: list[int] = []
    arena.on_end = lambda: calls.append(int(arena.age[0]))
    bot = MechBot(arena)
    with Recorder(arena, ("a", "b")) as recorder:
        with pytest.raises(EnvError, match="reset"):
            recorder.cut()
        arena.reset(11)
        for _ in range(24 * 2 + 3):
            arena.step(bot.play())
        unfinished = recorder.cut()
    assert calls == [24, 24]
    assert "step" not in vars(arena)
    assert "reset" not in vars(arena)
    first, second = recorder.replays
    assert [(r.slot, r.episode, r.seed, r.players) for r in (first, second)] == [
        (5, 0, 11, ("a", "b")),
        (5, 1, 11, ("a", "b")),
    ]
    assert (unfinished.episode, unfinished.decisions, unfinished.ended) == (2, 3, "cut")
    for replay in (first, second, unfinished):
        play_again(replay)
    assert len({first.sha256, second.sha256, unfinished.sha256}) == 3


def test_only_an_arena_of_one_slot_is_recorded():
    with pytest.raises(EnvError, match="num_envs=1"):
        Recorder(MechArena(2, **SMALL))


@pytest.mark.parametrize("part", ["move", "fire", "message"])
@pytest.mark.parametrize("decision", [0, 7, 23])
def test_one_changed_byte_of_an_action_is_found_where_it_is(part: str, decision: int):
    replay = game()
    changed = {name: values.copy() for name, values in replay.actions.items()}
    changed[part][decision].view(np.uint8).reshape(-1)[-2] ^= 1  # also of a mech that does nothing with it
    with pytest.raises(EnvError, match=rf"from decision {decision + 1} of 24 on \({(decision + 1) / 4:g} s"):
        play_again(dataclasses.replace(replay, actions=changed))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "at the start"),
        ({"slot": 1}, "at the start"),
        ({"episode": 1}, "at the start"),
        ({"options": {**SMALL, "map_seed": 9}}, "at the start"),
        ({"options": {**SMALL, "team": 1}}, "at the start"),
        ({"options": {**SMALL, "sensing": "full"}}, "at the start"),
        ({"options": {**SMALL, "contact_sort": False}}, "differs from decision"),
        ({"won": 1}, "it ends with"),
        ({"ended": "cut"}, "it ends with"),
        ({"score": (9.0, 0.0)}, "it ends with"),
        ({"sha256": "0" * 64}, "it ends with"),
    ],
)
def test_another_start_or_result_is_not_reproduced(change: dict[str, Any], words: str):
    with pytest.raises(EnvError, match=words):
        play_again(dataclasses.replace(game(), **change))


def bomb(size: int) -> str:
    """Zeros, compressed a thousandfold."""
    return base64.b64encode(zlib.compress(bytes(size), 9)).decode()


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        *above, last = path
        for name in above:
            data = data[name]
        data[last] = value

    return change


SIZE = "has not the 1,536 bytes"
DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another kind of file": (lambda data: data.pop("format"), "no replay of the mech arena"),
    "a newer version": (put("version", value=2), "update Recollect"),
    "a version of another type": (put("version", value="1" * 10_000), "update Recollect"),
    "an unknown option": (put("options", "lasers", value=3), "has no option 'lasers'"),
    "an option out of bounds": (put("options", "mechs", value=10**9), "mechs is 1000000000"),
    "an option of another type": (put("options", "comms", value=[1]), "option comms"),
    "an option that is no number": (put("options", "zone_reward", value=float("nan")), "zone_reward is nan"),
    "an endless number": (put("options", "kill_reward", value=10**400), "kill_reward is 1000"),
    "a word that no option has": (put("options", "sensing", value="all"), "sensing"),
    "a team that is too large": (put("options", "team", value=3), "team is 3"),
    "no options": (lambda data: data.pop("options"), "options is missing"),
    "options that are a list": (put("options", value=[]), "options is no mapping"),
    "no decisions": (put("decisions", value=0), "decisions is 0"),
    "too many decisions": (put("decisions", value=25), "from 1 to 24"),
    "one decision too few": (put("decisions", value=23), "marks"),
    "decisions that are true": (put("decisions", value=True), "decisions is True"),
    "a seed that is text": (put("seed", value="3"), "seed is '3'"),
    "a large seed": (put("seed", value=2**63), "seed is"),
    "a negative slot": (put("slot", value=-1), "slot is -1"),
    "an episode that takes years": (put("episode", value=10**9), "episode is 1000000000"),
    "no hash": (lambda data: data.pop("sha256"), "sha256 is missing"),
    "a short hash": (put("sha256", value="abc"), "64 hexadecimal"),
    "no marks": (lambda data: data.pop("marks"), "marks is missing"),
    "marks that are not digits": (put("marks", value="z" * 200), "marks"),
    "another end": (put("ended", value="won"), "ended is 'won'"),
    "an end that is a list": (put("ended", value=["cut"]), "ended"),
    "another winner": (put("won", value=2), "won is 2"),
    "one player": (put("players", value=["bot"]), "two names"),
    "a long name": (put("players", value=["a", "b" * 10**6]), "two names"),
    "a score without end": (put("score", value=[1, float("inf")]), "score"),
    "no actions": (lambda data: data.pop("actions"), "actions is missing"),
    "a missing part": (lambda data: data["actions"].pop("fire"), "actions has the parts"),
    "a part too many": (put("actions", "jump", value=""), "actions has the parts"),
    "actions that are numbers": (put("actions", "fire", value=[0, 1]), "actions.fire is no text"),
    "text that is not base64": (put("actions", "fire", value="%%%"), "actions.fire"),
    "letters that are not ASCII": (put("actions", "fire", value="é" * 8), "actions.fire"),
    "not compressed": (put("actions", "fire", value=base64.b64encode(b"x" * 99).decode()), "actions.fire"),
    "a truncated part": (lambda data: data["actions"].update(move=data["actions"]["move"][:400]), SIZE),
    "a part that is too short": (put("actions", "move", value=bomb(24 * 4 * 16 - 1)), SIZE),
    "a part that unpacks to a lot": (put("actions", "move", value=bomb(2**26)), SIZE),
    "more behind a part": (
        put("actions", "move", value=base64.b64encode(zlib.compress(bytes(1536)) + b"more").decode()),
        SIZE,
    ),
    "unknown extras": (put("extras", "__class__", value=""), "extras has"),
    "extras of another size": (put("extras", "memory", value=bomb(8)), "extras.memory"),
    "no extras": (lambda data: data.pop("extras"), "extras is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_and_hostile_files_are_refused(tmp_path: Path, name: str):
    """With the name of the file and the fix."""
    change, words = DAMAGES[name]
    file = game().save(tmp_path / "game.json")
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    with pytest.raises(RecollectError) as error:
        load(file)
    assert words in str(error.value)
    assert str(file) in str(error.value)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "damaged"),
        (b"[1]", "damaged"),
        (b"\x00\xff\xfe", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"format": "recollect mech replay", "version": 1', "damaged"),
    ],
)
def test_files_that_are_no_json_are_refused(tmp_path: Path, text: bytes, words: str):
    file = tmp_path / "game.json"
    file.write_bytes(text)
    with pytest.raises(RecollectError, match=words):
        load(file)


def test_a_truncated_file_is_refused(tmp_path: Path):
    file = game().save(tmp_path / "game.json")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RecollectError, match="damaged"):
        load(file)


def test_older_files_lack_newer_options(tmp_path: Path):
    """Their value is the default, as it was when the option did not exist."""
    file = game().save(tmp_path / "game.json")
    data = json.loads(file.read_text())
    del data["options"]["win_reward"]
    file.write_text(json.dumps(data))
    play_again(load(file))


def test_a_replay_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    file = game().save(tmp_path / "game.json")
    before = file.read_bytes()
    (tmp_path / "folder").mkdir()
    with pytest.raises((StorageError, RecollectError)):
        game(seed=4).save(tmp_path / "folder")
    link = tmp_path / "link.json"
    link.symlink_to(file)
    with pytest.raises(RecollectError, match="link"):
        game(seed=4).save(link)
    assert file.read_bytes() == before


def test_the_hash_covers_every_tensor_of_the_game():
    """A state that differs in one number of any field has another hash; earlier games do not count."""
    arena = MechArena(1, **SMALL)
    arena.reset(3)
    healthy = arena.snapshot()
    for name, tensor in healthy.items():
        changed = tensor.clone()
        leaf = changed.view(-1)[-1:]
        leaf.copy_(~leaf if leaf.dtype == torch.bool else 1 - leaf)
        one, other = Chain(), Chain()
        one.add(arena, None)
        if name in vars(arena):
            vars(arena)[name].copy_(changed)
        other.add(arena, None)
        assert (one.sha256 == other.sha256) == (name in ("root", "episode", "won", "games")), name
        arena.restore(healthy)


def test_an_action_without_effect_is_found_where_it_was_changed():
    """A mech that is cold vents in vain; the action is another one all the same."""
    replay = game()
    changed = {name: values.copy() for name, values in replay.actions.items()}
    changed["fire"][0, :, -1] ^= 1
    with pytest.raises(EnvError, match="from decision 1 of 24"):
        play_again(dataclasses.replace(replay, actions=changed))


def test_a_game_is_reproduced():
    play_again(game())


def test_the_last_state_is_that_of_the_game():
    """It is not yet that of the next game, which has begun when the step returns."""
    ages: list[int] = []
    play_again(game(), lambda arena, action: ages.append(int(arena.age[0])))
    assert ages == list(range(25))
