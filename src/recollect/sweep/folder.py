"""A sweep and its folder: plan it, run it, go on with it, sum it up."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.base import files
from recollect.base.provenance import usable_cores
from recollect.display.words import path as typed
from recollect.envs.named import is_importing
from recollect.errors import ConfigError, Interrupted, RecollectError, StorageError
from recollect.sweep.board import make_board
from recollect.sweep.member import Member
from recollect.sweep.plan import CONFIG, Plan, Settings, Variant, check, make_plan
from recollect.sweep.results import Result, summarise
from recollect.sweep.work import State, work
from recollect.training import checkpoints
from recollect.training.parsed import Parsed
from recollect.training.run_folder import Run

FORMAT = 1
FILE = "sweep.json"


class Sweep:
    """Runs that differ in some settings, each with the same seeds. ``plan`` makes one, ``open`` reads one."""

    def __init__(self, path: Path, plan: Plan, states: dict[str, dict[str, Any]] | None = None):
        """``states``: of the runs, by their folders."""
        self.path, self._plan = path, plan
        self._states = states or {}
        self._is_env_named = True
        """By the user, and not only by the folder."""
        self._named: frozenset[str] | None = None
        """The settings that the user has named; None: all."""
        self._checked: dict[Variant, Parsed] = {}

    @classmethod
    def plan(
        cls,
        env: str | None,
        settings: Settings = (),
        *,
        seeds: int | Sequence[int] | None = None,
        out: str | Path | None = None,
    ) -> Sweep:
        """A sweep over every combination of the listed values. Nothing is written before ``run``.

        Args:
            env: its name.
            settings: by name, with a list of the values to compare: ``{"core": ["lstm", "gru"],
                "core.hidden": 64, "steps": 100_000}``. Or the words of a command line.
            seeds: how many, from the setting ``seed`` on, or which. None: one, or what ``seed`` lists.
            out: the folder; None: one under runs/, the same for the same sweep. If this sweep is in it
                already, ``run`` goes on with it; if another is, it is refused.
        """
        plan = make_plan(env, settings, seeds)
        path = plan.default_folder if out is None else Path(out)
        if (path / FILE).is_file():
            found = cls._read(path)
            if found._plan != plan:
                raise ConfigError(
                    f"{path} holds another sweep: {_difference(found._plan, plan)}. Choose another folder "
                    f"(--out), or go on with that sweep: {found._command}"
                )
            return found
        others = [p.name for p in path.iterdir() if p.name != "lock"] if path.is_dir() else []
        if others or path.is_file():
            raise ConfigError(f"{path} is not empty and holds no sweep: choose another folder (--out)")
        return cls(path, plan)

    @classmethod
    def open(cls, path: str | Path, *, env: str | None = None, named: Sequence[str] = ()) -> Sweep:
        """The sweep in a folder. Nothing that only the folder names is imported.

        Args:
            path: the folder.
            env: its env once more, several with commas between them. Needed to go on with a sweep whose
                env is your own code (``module:Env``), which the runs import.
            named: settings once more, such as ``--sinks=wandb``. Needed for those that no folder may choose:
                options of an env that is not Recollect's own, a Ray cluster, metrics that are sent away.
        """
        sweep = cls._read(path)
        if env is not None and env != sweep._plan.env:
            raise ConfigError(
                f"{path} is a sweep of the env {sweep._plan.env}, not of {env}: go on with it by "
                f"{sweep._command}"
            )
        sweep._is_env_named, sweep._named = env is not None, frozenset(named)
        return sweep

    @classmethod
    def _read(cls, path: str | Path) -> Sweep:
        file = Path(path) / FILE
        if not file.is_file():
            hint = "; it is a single run: recollect resume goes on with it" if Run.is_run(path) else ""
            raise RecollectError(f"{path} is no sweep: it has no {FILE}{hint}")
        try:
            data = files.read_json(file)
            files.check_format(file, data["format"], FORMAT)
            states = {
                f"{variant['folder']}/{run['folder']}": {"state": run["state"], "error": run["error"]}
                for variant in data["variants"]
                for run in variant["runs"]
            }
            return cls(Path(path), Plan.from_json(data), states)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, RecollectError):
                raise
            raise RecollectError(
                f"{file} is damaged ({files.short(repr(error))}): take another copy of the sweep"
            ) from None

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The combinations."""
        return self._plan.variants

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of every variant."""
        return self._plan.seeds

    @property
    def members(self) -> list[Member]:
        """The runs, variant by variant."""
        return [self._member(variant, seed) for variant in self.variants for seed in self.seeds]

    @property
    def failures(self) -> list[tuple[Member, str]]:
        """The runs that failed the last time, with the end of what they said."""
        found = [(member, self._state(member)) for member in self.members]
        return [(member, state["error"] or "") for member, state in found if state["state"] == "failed"]

    def check(self) -> dict[Variant, Parsed]:
        """Make the agent of every variant that has something left to do, and throw it away.

        Returns what their settings are. Raises ConfigError for what cannot be meant.
        """
        for member in self.members:
            if member.variant not in self._checked and not member.is_over():
                self._refuse_unnamed(member)
                self._checked[member.variant] = check(member.variant, member.flags)
        return self._checked

    def to_do(self, jobs: int | None = None) -> tuple[list[Member], int]:
        """The runs that are not finished, all variants with the first seed first, and how many at a time."""
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs = {jobs}: it must be at least 1")
        parsed, cores = self.check(), usable_cores()
        members = sorted(
            (member for member in self.members if not member.is_over()),
            key=lambda member: self.seeds.index(member.seed),
        )
        uses_gpu = any(found.config.device.startswith("cuda") for found in parsed.values())
        jobs = max(1, min(jobs or (1 if uses_gpu else cores // 2), len(members)))
        threads = max(1, cores // jobs)
        return [
            member if "threads" in parsed[member.variant].given else replace(member, threads=threads)
            for member in members
        ], jobs

    def run(self, jobs: int | None = None, *, progress: bool | str = "auto") -> bool:
        """Start what was not started, resume what was stopped or killed, wait for all.

        Args:
            jobs: runs at a time; None: half as many as there are cores, on a GPU one. The cores are
                shared evenly, unless ``threads`` is among the settings.
            progress: "auto", "live", "plain" or "quiet"; True and False for "auto" and "quiet".

        Returns:
            Whether every run has finished.
        """
        members, jobs = self.to_do(jobs)
        with self._working():
            self._save_configs()
            members = [replace(m, flags=self._member(m.variant, m.seed).flags) for m in members]
            self._states = {_key(member): {"state": "finished", "error": None} for member in self.members}
            self._states |= {_key(member): {"state": "waiting", "error": None} for member in members}
            self._save()
            with make_board(progress, self.path, self.members, members, jobs) as board:

                def told(member: Any, state: State, text: str) -> None:
                    self._states[_key(member)] = {"state": state, "error": text or None}
                    with suppress(StorageError):  # the folders say the same, and the next change tries again
                        self._save()
                    board.told(member, state, text)

                number = work(members, jobs, told=told, tick=board.tick)
            self._save()
        finished = sum(state["state"] == "finished" for state in self._states.values())
        if number:
            raise Interrupted(
                f"stopped: {finished} of {len(self._states)} runs have finished. Go on: {self._command}",
                number,
            )
        return finished == len(self._states)

    def results(self) -> list[Result]:
        """The final evaluations of each variant over its seeds."""
        return [summarise(v, [self._member(v, seed) for seed in self.seeds]) for v in self.variants]

    def report(self, out: str | Path | None = None) -> Path | None:
        """Write the comparison of the runs as one HTML file; None if there is no run yet.

        A damaged run is left out.
        """
        from recollect.reports import write_report

        runs = [member.path for member in self.members if member.is_readable()]
        place = self.path / "report.html" if out is None else Path(out)
        return write_report(runs, place, play=False) if runs else None

    @property
    def _command(self) -> str:
        """Goes on with this sweep; ready to be copied."""
        has_code = any(is_importing(variant.env) for variant in self.variants)
        env = [self._plan.env] if has_code else []
        return shlex.join(["recollect", "sweep", *env, "--resume", typed(self.path), *self.asked()])

    def asked(self) -> list[str]:
        """The settings that no folder may choose: see ``open``."""
        return list(dict.fromkeys(w for v in self.variants for w in self._member(v, self.seeds[0]).named()))

    def _refuse_unnamed(self, member: Member) -> None:
        """Refuse what only the user may choose: code, and what reaches out of this machine."""
        env = member.variant.env
        if is_importing(env) and not self._is_env_named:
            raise ConfigError(
                f"{self.path} names the env {env}, which is code. Only you may say that it is imported: "
                f"name it again, {self._command} (in Python Sweep.open(..., env={self._plan.env!r}))"
            )
        words = [] if self._named is None else [w for w in member.named() if w not in self._named]
        if words:
            raise ConfigError(
                f"{self.path} asks for {shlex.join(words)}. Only you may pass options to an env that is not "
                "Recollect's own, choose a Ray cluster, or send metrics away: if you trust this, repeat it, "
                f"{self._command} (in Python Sweep.open(..., named=[...]))"
            )

    def _member(self, variant: Variant, seed: int) -> Member:
        path = self.path / variant.folder / f"seed-{seed}"
        kept = {f"{CONFIG}{name}": f"{CONFIG}{copy}" for name, copy in self._copies() if copy.is_file()}
        return Member(variant, seed, path, tuple(kept.get(flag, flag) for flag in variant.flags))

    def _copies(self) -> list[tuple[str, Path]]:
        return [
            (name, self.path / "configs" / f"{number}-{Path(name).name}")
            for number, name in enumerate(self._plan.files, start=1)
        ]

    def _state(self, member: Member) -> dict[str, Any]:
        return self._states.get(_key(member), {"state": "waiting", "error": None})

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Hold the sweep's lock."""
        files.refuse_links(self._places())
        with checkpoints.writing(f"the folder {self.path} could not be made"):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / "lock").open("a")
        with handle:
            if not files.lock(handle):
                raise RecollectError(
                    f"another process works on the sweep {self.path}: wait for it, or end it"
                )
            yield

    def _places(self) -> Iterator[Path]:
        """What a sweep writes to, but for what is inside of its runs."""
        yield from (self.path / name for name in (FILE, "lock", "configs"))
        yield from (copy for _, copy in self._copies())
        for member in self.members:
            yield from (member.path.parent, member.path, member.log)

    def _save_configs(self) -> None:
        self._save()  # first, so that the folder is known for what it is
        for name, copy in self._copies():
            if not copy.is_file():
                copy.parent.mkdir(exist_ok=True)
                checkpoints.write_atomically(copy, self._plan.files[name])

    def _save(self) -> None:
        plan = self._plan.to_json()
        for variant, row in zip(self.variants, plan["variants"]):
            members = [self._member(variant, seed) for seed in self.seeds]
            row["runs"] = [{"seed": m.seed, "folder": m.path.name} | self._state(m) for m in members]
        text = json.dumps({"format": FORMAT} | plan, indent=2) + "\n"
        checkpoints.write_atomically(self.path / FILE, text)

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r}, {len(self.variants)} variants, {len(self.seeds)} seeds)"


def _key(member: Member) -> str:
    return f"{member.variant.folder}/{member.path.name}"


def _difference(there: Plan, here: Plan) -> str:
    """In what two plans differ, in words."""
    if there.seeds != here.seeds:
        return f"its seeds are {_list(there.seeds)}, not {_list(here.seeds)}"
    theirs, ours = ([variant.name for variant in plan.variants] for plan in (there, here))
    if theirs != ours:
        return f"its variants are {_list(theirs)}, not {_list(ours)}"
    for one, two in zip(there.variants, here.variants):
        if one != two:
            words = [" ".join([v.env, *v.flags]) for v in (one, two)]
            return f"{one.name} is {words[0]} there, not {words[1]}"
    changed = [name for name in here.files if there.files.get(name) != here.files[name]]
    return f"the file {_list(changed)} has changed since"


def _list(values: Sequence[Any]) -> str:
    shown = [str(value) for value in values[:4]]
    return "; ".join(shown if len(values) <= 4 else [*shown, f"{len(values) - 4} more"])
