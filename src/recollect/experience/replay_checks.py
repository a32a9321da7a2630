"""What a replay validates: its settings, the rollouts it gets, and the state that it is to continue from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.base import tree
from recollect.errors import ConfigError, RecollectError, StateError
from recollect.experience.replay_record import FLAGS
from recollect.experience.rollout import Rollout

if TYPE_CHECKING:
    from recollect.experience.replay import Replay

SETTINGS = (
    "rows",
    "capacity",
    "burn_in",
    "length",
    "n_step",
    "stride",
    "stores_states",
    "priority_exponent",
)
"""What a saved replay must have in common with the one that loads it."""
FORMAT = 2
"""Of a saved replay. The first had no number; its records were separate tensors."""


def check_settings(replay: Replay) -> None:
    """Raise if the sizes of a replay make no sense."""
    least = {"rows": 1, "burn_in": 0, "length": 1, "n_step": 1, "stride": 1, "priority_exponent": 0}
    for name, low in least.items():
        if not getattr(replay, name) >= low:
            raise ConfigError(f"replay: {name}={getattr(replay, name)}, but it must be at least {low}")
    if replay.capacity < replay.window:
        raise ConfigError(
            f"replay: capacity={replay.capacity} slots for each row are too few for one window of burn_in + "
            f"length + n_step = {replay.window}: raise the capacity, use fewer rows or shorter windows"
        )


def check_rollout(replay: Replay, rollout: Rollout, row: int) -> None:
    """Raise if a rollout does not fit, before any of it is written."""
    if row < 0 or row + rollout.rows > replay.rows:
        raise RecollectError(
            f"replay: a rollout for rows {row} to {row + rollout.rows - 1}, and there are rows 0 to "
            f"{replay.rows - 1}: was the replay made for another num_envs?"
        )
    parts = {"obs": (rollout.obs, replay.obs, 2), "action": (rollout.action, replay.action, 2)}
    parts["reward"] = (rollout.reward, replay.fields.reward, 2)
    if rollout.finals is not None:
        parts["final obs"] = (rollout.finals.obs, replay.obs, 1)
    if replay.stores_states:
        parts["state"] = (rollout.states, replay.state, 2)
    for name, (given, own, lead) in parts.items():
        got, wanted = tree.spec(given, lead), tree.spec(own)
        for leaf in got | wanted:
            if got.get(leaf) != wanted.get(leaf):
                raise RecollectError(
                    f"replay: {name}{leaf and '.' + leaf} of the rollout has {_words(got.get(leaf))}, of the "
                    f"replay {_words(wanted.get(leaf))}: they were made for different spaces or cores"
                )
    stored = len(rollout.state_steps)
    if replay.stores_states and stored * replay.stride > rollout.steps:
        raise RecollectError(
            f"replay: the rollout has {stored} states in {rollout.steps} steps, and there is room for one "
            f"every stride={replay.stride} steps: use stride={rollout.steps // stored}"
        )


def check_saved(replay: Replay, saved: Mapping[str, Tensor]) -> None:
    """Raise if ``saved`` is not the state of a replay with the same settings and spaces."""
    own = replay.state_dict()
    found = int(saved["format"]) if "format" in saved else 1
    if found != FORMAT:
        raise StateError(
            f"the saved replay has format {found}, and this version of Recollect reads format {FORMAT}: "
            "resume with the version that saved it, or start a new run"
        )
    if saved.keys() != own.keys():
        raise StateError(
            f"the saved replay lacks {sorted(own.keys() - saved.keys())} and has unknown "
            f"{sorted(saved.keys() - own.keys())}: is it of another version, space or core?"
        )
    for name, leaf in own.items():
        got = (tuple(saved[name].shape), saved[name].dtype)
        if name == "settings" and got == (tuple(leaf.shape), leaf.dtype):
            for setting, before, now in zip(SETTINGS, saved[name].tolist(), leaf.tolist()):
                if before != now:
                    raise StateError(
                        f"the saved replay has {setting}={before:g}, this one {setting}={now:g}: resume with "
                        "the settings of the saved run"
                    )
    for name, leaf in own.items():
        got, wanted = (tuple(saved[name].shape), saved[name].dtype), (tuple(leaf.shape), leaf.dtype)
        if got != wanted:
            raise StateError(
                f"{name} of the saved replay has {_words(got)}, of this one {_words(wanted)}: is it of "
                "another space or core?"
            )


def check_consistent(replay: Replay) -> None:
    """Raise if the parts of a loaded state contradict each other."""
    head, rows, capacity = replay.head, replay.row_ids, replay.capacity
    if (head < 0).any() or (replay.open_start >= head).any() or (replay.state_head < 0).any():
        raise _damaged("the number of written slots")
    slot = torch.arange(capacity, device=head.device).unsqueeze(1)
    position = head - 1 - (head - 1 - slot) % capacity
    is_written, at = position >= 0, rows * capacity + slot
    start = replay.start(replay.fields.word[at], position)
    flags = replay.record.view(torch.uint8)[:, FLAGS:]
    if (is_written & ((start < 0) | (start > position))).any() or (flags > 1).any():
        raise _damaged("the episodes")
    if replay.stores_states:
        _check_states(replay)
    ready = replay.sampleable(rows, position, at) & is_written
    if not torch.equal(ready, replay.ready[at]):
        raise _damaged("the list of windows")
    weights, largest = replay.tree.weights, replay.largest
    if not (weights.isfinite() & (weights >= 0) & (weights <= largest)).all() or not largest.isfinite():
        raise _damaged("the priorities")
    if (weights[~replay.ready] > 0).any() or not replay.tree.sums_agree():
        raise _damaged("the sums of the priorities")


def _check_states(replay: Replay) -> None:
    """Raise if what is stored beside the states contradicts itself."""
    count, last = replay.state_capacity, len(replay.state_position) - 1
    of_rows = replay.state_position[: replay.rows * count].view(-1, count)
    newest = of_rows[replay.row_ids, (replay.state_head - 1) % count]
    slot = replay.state_slot
    if (newest != of_rows.amax(1)).any() or ((slot < 0) | (slot > last)).any():
        raise _damaged("the stored states")


def _damaged(part: str) -> StateError:
    return StateError(
        f"the saved replay is damaged: {part} contradict the rest; resume from an earlier checkpoint"
    )


def _words(spec: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "no such part" if spec is None else f"shape {list(spec[0])} and dtype {spec[1]}"
