"""A sweep and its folder: plan, run, resume, summarise."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recollect.base import files
from recollect.base.provenance import usable_cores
from recollect.config.flags import Flag, import_named
from recollect.display.words import path as typed
from recollect.envs.env_names import is_importing
from recollect.errors import ConfigError, Interrupted, RecollectError, StorageError
from recollect.reports.statistics import bootstrap_interval, iqm
from recollect.sweep.member import Member
from recollect.sweep.plan import CONFIG, Plan, Settings, Variant, check, make_plan
from recollect.sweep.progress import make_board
from recollect.sweep.run_processes import State, run_members
from recollect.training.parse_config import Parsed
from recollect.training.run_folder import Run

FORMAT = 1
FILE = "sweep.json"


@dataclass(frozen=True, slots=True)
class Result:
    """The final evaluations of one variant."""

    variant: Variant
    scores: dict[int, float | None]
    """The mean return of the last evaluation by seed; None where the run has not finished."""
    iqm: float | None
    """The interquartile mean over seeds, None without any score."""
    low: float | None
    """The 95% bootstrap interval over seeds, None with less than two."""
    high: float | None
    mode: str = "greedy"
    """The actions of these evaluations: greedy or sampled."""

    @property
    def label(self) -> str:
        """The variant's name."""
        return self.variant.name

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        variant = {"label": self.variant.label, "env": self.variant.env, "flags": list(self.variant.flags)}
        scores = {str(seed): score for seed, score in self.scores.items()}
        numbers = {"iqm": self.iqm, "low": self.low, "high": self.high}
        return {**variant, "mode": self.mode, "scores": scores, **numbers}

    @classmethod
    def of(cls, variant: Variant, members: Sequence[Member]) -> Result:
        """The result of one variant, from its runs."""
        scores = {member.seed: member.score() for member in members}
        known = [score for score in scores.values() if score is not None]
        mode = members[0].mode() if members else "greedy"  # a variant has one
        if len(known) < 2:
            return cls(variant, scores, known[0] if known else None, None, None, mode)
        low, high = bootstrap_interval(known)
        return cls(variant, scores, float(iqm(known)), float(low), float(high), mode)


class Sweep:
    """Runs of several variants with the same seeds. ``plan`` makes a sweep, ``open`` reads one."""

    def __init__(self, path: Path, plan: Plan, states: dict[str, dict[str, Any]] | None = None):
        """``states``: the state of each run, by its folder."""
        self.path, self._plan = path, plan
        self._states = states or {}
        self._is_env_named = True
        """Whether the user named the env, and not only the folder."""
        self._named: frozenset[str] | None = None
        """The flags that the user repeated; None: all."""
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
            env: the env's name.
            settings: by name, with a list of the values to compare: ``{"core": ["lstm", "gru"],
                "core.hidden": 64, "steps": 100_000}``. Or command-line flags.
            seeds: the number of seeds, counted from the setting ``seed``, or a list of seeds. None: the seeds
                that ``seed`` lists.
            out: the folder; None: one under runs/, the same for the same sweep. If it already holds this
                sweep, ``run`` resumes it; another sweep is an error.
        """
        plan = make_plan(env, settings, seeds)
        path = plan.default_folder if out is None else Path(out)
        if (path / FILE).is_file():
            found = cls._read(path)
            if found._plan != plan:
                raise ConfigError(
                    f"{path} holds another sweep: {_difference(found._plan, plan)}. Choose another folder "
                    f"(--out), or resume that sweep: {found._command}"
                )
            return found
        others = [p.name for p in path.iterdir() if p.name != "lock"] if path.is_dir() else []
        if others or path.is_file():
            raise ConfigError(f"{path} is not empty and holds no sweep: choose another folder (--out)")
        return cls(path, plan)

    @classmethod
    def open(
        cls, path: str | Path, *, env: str | None = None, named: Sequence[str] = (), trust: bool = False
    ) -> Sweep:
        """The sweep in a folder. Nothing that only the folder names is imported.

        Args:
            path: the folder.
            env: the env again, several separated by commas. Required to resume a sweep whose env is code
                (``module:Env``).
            named: flags again, such as ``--sinks=wandb``. Required for ``--import``, options of an env that
                is not built in, wrappers, cores, encoders and policies that are code, a Ray cluster, and
                sinks that send metrics to another machine.
            trust: all code and flags of the folder, as if they were named.
        """
        sweep = cls._read(path)
        if env is not None and env != sweep._plan.env:
            raise ConfigError(
                f"{path} is a sweep of the env {sweep._plan.env}, not of {env}: resume it with "
                f"{sweep._command}"
            )
        sweep._is_env_named = trust or env is not None
        sweep._named = None if trust else frozenset(named)
        import_named([word for member in sweep.members for word in member.flags] if trust else list(named))
        return sweep

    @classmethod
    def _read(cls, path: str | Path) -> Sweep:
        file = Path(path) / FILE
        if not file.is_file():
            hint = "; it is a single run: continue it with recollect resume" if Run.is_run(path) else ""
            raise RecollectError(f"{path} is not a sweep: it has no {FILE}{hint}")
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
        """The combinations of settings."""
        return self._plan.variants

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of every variant."""
        return self._plan.seeds

    @property
    def members(self) -> list[Member]:
        """The runs, variant by variant."""
        return [self._member(variant, seed) for variant in self.variants for seed in self.seeds]

    @property
    def failures(self) -> list[tuple[Member, str]]:
        """The failed runs, with the end of their logs."""
        found = [(member, self._state(member)) for member in self.members]
        return [(member, state["error"] or "") for member, state in found if state["state"] == "failed"]

    def check(self) -> dict[Variant, Parsed]:
        """Validate every unfinished variant by making its agent. Returns their settings.

        Raises ConfigError for invalid settings.
        """
        for member in self.members:
            if member.variant not in self._checked and not member.is_over():
                self._check_named(member)
                self._checked[member.variant] = check(member.variant, member.flags)
        return self._checked

    def to_do(self, jobs: int | None = None) -> tuple[list[Member], int]:
        """The unfinished runs, ordered by seed, and the number to run at a time."""
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
        """Start or resume all unfinished runs and wait for them.

        Args:
            jobs: runs at a time; None: half the number of cores, or one on a GPU. The cores are shared
                evenly, unless ``threads`` is set.
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

                def changed(member: Member, state: State, text: str) -> None:
                    self._states[_key(member)] = {"state": state, "error": text or None}
                    with suppress(StorageError):  # the next change tries again; run folders have it too
                        self._save()
                    board.update(member, state, text)

                number = run_members(members, jobs, on_change=changed, tick=board.tick)
            self._save()
        finished = sum(state["state"] == "finished" for state in self._states.values())
        if number:
            raise Interrupted(
                f"stopped: {finished} of {len(self._states)} runs have finished. Resume: {self._command}",
                number,
            )
        return finished == len(self._states)

    def results(self) -> list[Result]:
        """The final evaluations of each variant over its seeds."""
        return [Result.of(v, [self._member(v, seed) for seed in self.seeds]) for v in self.variants]

    def report(self, out: str | Path | None = None) -> Path | None:
        """Write the comparison of the undamaged runs as one HTML file; None if there are none."""
        from recollect.reports import write_report

        runs = [member.path for member in self.members if member.is_readable()]
        place = self.path / "report.html" if out is None else Path(out)
        return write_report(runs, place, play=False) if runs else None

    @property
    def _command(self) -> str:
        """The command that resumes this sweep, ready to be copied."""
        has_code = any(is_importing(variant.env) for variant in self.variants)
        env = [self._plan.env] if has_code else []
        return shlex.join(["recollect", "sweep", *env, "--resume", typed(self.path), *self.asked()])

    def asked(self) -> list[str]:
        """The flags that the user has to repeat: see ``open``."""
        return list(dict.fromkeys(w for v in self.variants for w in self._member(v, self.seeds[0]).named()))

    def _check_named(self, member: Member) -> None:
        """Raise ConfigError if the user has not repeated code or flags that connect to other machines."""
        env = member.variant.env
        if is_importing(env) and not self._is_env_named:
            raise ConfigError(
                f"{self.path} names the env {env}, which is code. If you trust it, name it again: "
                f"{self._command} (in Python Sweep.open(..., env={self._plan.env!r})), or trust the whole "
                "sweep: --trust (trust=True)"
            )
        imports = [word for word in member.flags if Flag(word.partition("=")[0], None).name == "imports"]
        if self._named is not None and not self._named.issuperset(imports):  # its flags cannot be read before
            raise ConfigError(
                f"{self.path} has {shlex.join(imports)}, which imports code. If you trust it, repeat it (in "
                "Python Sweep.open(..., named=[...])), or trust the whole sweep: --trust (trust=True)"
            )
        words = [] if self._named is None else [w for w in member.named() if w not in self._named]
        if words:
            raise ConfigError(
                f"{self.path} has {shlex.join(words)}, which imports code, passes options to code or "
                f"connects to another machine. If you trust this, repeat it: {self._command} (in Python "
                "Sweep.open(..., named=[...])), or trust the whole sweep: --trust (trust=True)"
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
        with files.writing(f"the folder {self.path} could not be made"):
            self.path.mkdir(parents=True, exist_ok=True)
        in_use = f"another process runs the sweep {self.path}: wait for it, or end it"
        with files.locked(self.path / "lock", in_use):
            yield

    def _places(self) -> Iterator[Path]:
        """The files and folders that a sweep writes, except those inside its runs."""
        yield from (self.path / name for name in (FILE, "lock", "configs"))
        yield from (copy for _, copy in self._copies())
        for member in self.members:
            yield from (member.path.parent, member.path, member.log)

    def _save_configs(self) -> None:
        self._save()  # first, so that the folder is recognised as a sweep
        for name, copy in self._copies():
            if not copy.is_file():
                copy.parent.mkdir(exist_ok=True)
                files.write_atomically(copy, self._plan.files[name])

    def _save(self) -> None:
        plan = self._plan.to_json()
        for variant, row in zip(self.variants, plan["variants"]):
            members = [self._member(variant, seed) for seed in self.seeds]
            row["runs"] = [{"seed": m.seed, "folder": m.path.name} | self._state(m) for m in members]
        text = json.dumps({"format": FORMAT} | plan, indent=2) + "\n"
        files.write_atomically(self.path / FILE, text)

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r}, {len(self.variants)} variants, {len(self.seeds)} seeds)"


def _key(member: Member) -> str:
    return f"{member.variant.folder}/{member.path.name}"


def _difference(there: Plan, here: Plan) -> str:
    """The first difference between two plans, in words."""
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
