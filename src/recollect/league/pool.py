"""The members of a league on disk: frozen snapshots of the agent, and the env's scripted players.

==========================  ==========================================================================
file in ``RUN/league``      contents
==========================  ==========================================================================
``league.json``             the env's signature; name, kind, state and checksum of every member
``members/NAME.safetensors``  the weights and statistics of a snapshot, or of an agent from elsewhere
``rosters.jsonl``           the opponents of each stretch of the training (``matchmaking.Roster``)
``games/SLOT.jsonl``        the games of the env slots from SLOT on (``games.py``)
``matches.jsonl``           games between members, outside of the training (``matches.py``)
``owner``                   the random name of the present training, by which actors know the folder
==========================  ==========================================================================

One process writes at a time: the training, or a command that holds the lock of the run. Any number may read.
Weights are written beside their place and renamed before the index names them, so that a reader finds
complete members only. Never pickle.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.base import files
from recollect.base.spaces import space_to_json
from recollect.config.league import ADDED, SNAPSHOT
from recollect.errors import ConfigError, RecollectError

FORMAT = 1
State = Literal["candidate", "member", "retired"]
OWNER = "owner"
MOST_LETTERS = 200
HEADER = 2**24
"""Bytes that a file of weights may have beside the weights themselves."""


@dataclass(frozen=True, slots=True)
class Member:
    """A player of the league."""

    name: str
    state: State = "member"
    steps: int = 0
    """Env steps that a snapshot was trained for."""
    sha256: str = ""
    """Of the weights."""
    origin: str = ""
    """Of an agent that was added from elsewhere: from where."""

    @property
    def is_own(self) -> bool:
        """Whether it is a snapshot of the run's agent."""
        return SNAPSHOT.fullmatch(self.name) is not None

    @property
    def is_snapshot(self) -> bool:
        """Whether it has weights; otherwise the env makes it: it is permanent."""
        return self.is_own or bool(self.origin)


def signature(env: Any, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All of a two-sided env that its players depend on, as JSON."""
    return {
        "observation_space": space_to_json(env.observation_space),
        "action_space": space_to_json(env.action_space),
        "sides": list(env.sides),
        "agents": env.agents,
        "env_kwargs": dict(env_kwargs),
    }


class Pool:
    """The members of a league, in the order in which they came: a member's place never changes."""

    def __init__(self, folder: Path, *, is_new: bool = False):
        """``is_new``: whatever is in the folder is left over; ``create`` replaces it."""
        self.folder = folder
        self.members: list[Member] = []
        self.signature: dict[str, Any] | None = None
        """None: there is no league yet."""
        if not is_new:
            self.read()

    @property
    def file(self) -> Path:
        """The index."""
        return self.folder / "league.json"

    def read(self) -> None:
        """Read the index again."""
        files.refuse_links([self.folder, self.folder / "members", self.file])
        if not self.file.exists():
            return
        found = files.read_json(self.file)
        files.check_format(self.file, found.get("format"), FORMAT)
        try:
            members = [Member(**one) for one in found["members"]]
            for place, member in enumerate(members):
                _check(member)
                if member in members[:place] or member.name in {one.name for one in members[:place]}:
                    raise ValueError(f"{member.name} is there twice")
            own = found["signature"]
            if not isinstance(own, dict):
                raise TypeError("signature is no object")
        except (KeyError, TypeError, ValueError) as error:
            raise RecollectError(
                f"{self.file} is damaged ({files.short(error)}): take another copy of the league"
            ) from None
        self.members, self.signature = members, own

    def check(self, signature: Mapping[str, Any]) -> None:
        """Raise ConfigError if the league is that of another env, or of other options."""
        if different := self.difference(signature):
            raise ConfigError(
                f"{self.folder} is a league of another env: {different}. Use the env and options of that "
                "run, or start a new run (--run)"
            )

    def difference(self, signature: Mapping[str, Any]) -> str:
        """The first difference between the env of the league and another one, in words; empty: none."""
        theirs = json.loads(json.dumps(signature, default=str))
        ours = theirs if self.signature is None else self.signature
        for name in theirs:
            if ours.get(name) != theirs[name]:
                mine, other = files.short(ours.get(name)), files.short(theirs[name])
                return f"{name} is {mine} in the league and {other} in the other env"
        return ""

    def own(self) -> str:
        """Give the training of this process a name, in the folder; returns it, for ``check_owner``."""
        name = uuid.uuid4().hex
        files.write_atomically(self.folder / OWNER, name)
        return name

    def create(self, signature: Mapping[str, Any], scripted: Sequence[str]) -> None:
        """Begin the league with the env's scripted players, unless it exists; then check its env."""
        if self.signature is not None:
            return self.check(signature)
        for name in scripted:
            if SNAPSHOT.fullmatch(name):
                raise ConfigError(
                    f"the env has a player {name!r}, which is the name of a snapshot: rename it"
                )
        files.refuse_links([self.folder, self.folder / "members"])
        with files.writing(f"{self.folder} could not be made"):
            (self.folder / "members").mkdir(parents=True, exist_ok=True)
        self.signature = json.loads(json.dumps(signature, default=str))
        self._write([Member(name) for name in scripted])

    def add(self, weights: Mapping[str, Tensor], steps: int, state: State = "member") -> Member:
        """Freeze a copy of ``weights``, those of the agent after ``steps`` env steps."""
        name = f"s{sum(member.is_own for member in self.members)}"
        return self._freeze(Member(name, state, steps), weights)

    def add_other(self, name: str, weights: Mapping[str, Tensor], steps: int, origin: str) -> Member:
        """Freeze the weights of an agent from elsewhere, which was trained for ``steps`` env steps there."""
        if not ADDED.fullmatch(name) or SNAPSHOT.fullmatch(name):
            raise ConfigError(
                f"name = {name!r}: the name of a member from elsewhere has letters, digits, dots, dashes and "
                "underscores, at most 50, and not the form of the run's own snapshots (s0, s1, ...): "
                "choose another one (--name)"
            )
        if any(name == member.name for member in self.members):
            raise ConfigError(f"name = {name!r}: the league has such a member: choose another one (--name)")
        return self._freeze(Member(name, "member", steps, origin=origin), weights)

    def _freeze(self, member: Member, weights: Mapping[str, Tensor]) -> Member:
        own = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
        with files.replacing(self.path(member.name)) as beside:
            save_file(own, beside)
            files.sync(beside)
            member = replace(member, sha256=_sha256(beside))
        self._write([*self.members, member])
        return member

    def set_state(self, name: str, state: State) -> None:
        """Promote or retire a member."""
        self._write([replace(one, state=state) if one.name == name else one for one in self.members])

    def rewind(self, steps: int) -> None:
        """Remove the snapshots of later training, which a resume from a checkpoint at ``steps`` repeats."""
        later = [member for member in self.members if member.is_own and member.steps > steps]
        if later:
            self._write([member for member in self.members if member not in later])
        for member in later:
            with files.writing(f"{self.path(member.name)} could not be removed"):
                self.path(member.name).unlink(missing_ok=True)

    def __getitem__(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members[-20:])
        raise ConfigError(
            f"{self.folder} has no member {files.short(name)!r}: its last are {known or 'none'}"
        )

    @property
    def playing(self) -> list[Member]:
        """The members that may be opponents."""
        return [member for member in self.members if member.state == "member"]

    @property
    def newest(self) -> Member | None:
        """The newest snapshot of the agent that is a member."""
        return next((member for member in reversed(self.playing) if member.is_own), None)

    @property
    def anchor(self) -> Member:
        """The player that ratings are anchored at, which is never retired: a scripted one, or else ``s0``."""
        if not self.members:
            raise ConfigError(
                f"the league in {self.folder} is empty: its run ended before the first snapshot. Train it "
                "(recollect train ENV --vs league)"
            )
        return self.members[0]

    def path(self, name: str) -> Path:
        """The weights of a snapshot."""
        return self.folder / "members" / f"{name}.safetensors"

    def verify(self, name: str) -> None:
        """Raise unless the weights are those that were saved."""
        member, file = self[name], self.path(name)
        if not member.is_snapshot:
            return
        files.refuse_links([file])
        if not file.is_file():
            raise RecollectError(f"{file} is missing")
        if _sha256(file) != member.sha256:
            raise RecollectError(f"{file} is damaged: it differs from what was saved")

    def load(self, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a snapshot of a network with the tensors ``like``; they share no memory with any."""
        if not self[name].is_snapshot:
            raise RecollectError(f"{name} has no weights: it is a player of the env of {self.folder}")
        file, limit = self.path(name), HEADER + sum(t.numel() * t.element_size() for t in like.values())
        if file.is_file() and file.stat().st_size > limit:
            raise RecollectError(f"{file} is damaged: it is larger than the network")
        self.verify(name)
        try:
            found = load_file(file)
        except (SafetensorError, OSError) as error:
            raise RecollectError(f"{file} is damaged: {files.short(error)}") from None
        wrong = [key for key in like.keys() | found.keys() if not _fits(found.get(key), like.get(key))]
        if wrong:
            raise RecollectError(f"{file} is of another network: {', '.join(sorted(wrong)[:4])} differ")
        return found

    def _write(self, members: list[Member]) -> None:
        index = {"format": FORMAT, "signature": self.signature, "members": [asdict(one) for one in members]}
        files.write_atomically(self.file, json.dumps(index, indent=1) + "\n")
        self.members = members


def check_owner(folder: Path, name: str) -> None:
    """Raise unless the folder, as this node has it, is the one that the training ``name`` uses."""
    file = folder / OWNER
    if not file.is_file() or files.read_whole(file) != name.encode():
        raise ConfigError(
            f"{folder} on {platform.node()} is not the folder that the training uses. Actors read snapshots "
            "there and write games: put the run on a file system that all nodes mount at the same path "
            "(--run), or use runtime='processes'"
        )


def _check(member: Member) -> None:
    """Validate a member that was read from a file."""
    texts = (member.name, member.sha256, member.origin)
    if not all(isinstance(text, str) and len(text) <= MOST_LETTERS for text in texts) or not member.name:
        raise TypeError("a member without a name")
    if member.state not in get_args(State):
        raise ValueError(f"{member.name} is {member.state!r}")
    if type(member.steps) is not int or not 0 <= member.steps < 2**63:
        raise TypeError(f"steps of {member.name} are no count")
    if member.origin and (member.is_own or not ADDED.fullmatch(member.name)):
        raise ValueError(f"{member.name} is no name of a member from elsewhere")
    if member.is_snapshot and not re.fullmatch("[0-9a-f]{64}", member.sha256):
        raise ValueError(f"{member.name} has no checksum")


def _fits(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and (one.shape, one.dtype) == (other.shape, other.dtype)


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
