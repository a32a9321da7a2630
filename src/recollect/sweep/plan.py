"""The plan of a sweep: its variants and seeds, validated before anything starts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recollect.config import bounds
from recollect.config.flags import Flag, import_named, parse_settings, sweep_variants
from recollect.errors import ConfigError, RecollectError
from recollect.training.parse_config import Parsed, parse_config

Settings = Mapping[str, Any] | Sequence[str]
"""By name, with a list of the values to compare; or command-line flags."""
ENV, CONFIG = "--env=", "--config="
"""The ways to write it."""
SCALAR = str | int | float | bool | None
MOST = 100_000
"""Maximum runs of one sweep."""
LONGEST = 120
"""Maximum characters of a folder's name; file systems allow 255 bytes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of the listed values."""

    label: str
    """Its values, such as "core=lstm,learning_rate=0.0001"; empty if there is one variant."""
    folder: str
    """The label as the name of a folder."""
    env: str
    flags: tuple[str, ...]
    """All settings except env and seed."""

    @property
    def name(self) -> str:
        """The label, or "all runs" if it is empty."""
        return self.label or "all runs"


@dataclass(frozen=True, slots=True)
class Plan:
    """Variants, seeds and config files; equal for the same command and the same files."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    """The same for every variant."""
    files: dict[str, str]
    """The text of each ``--config`` file by its path, since a file may change during the sweep."""

    @property
    def env(self) -> str:
        """The env as on the command line, several separated by commas."""
        return ",".join(dict.fromkeys(variant.env for variant in self.variants))

    @property
    def default_folder(self) -> Path:
        """Under runs/, the same for the same plan."""
        envs = dict.fromkeys(_safe(variant.env.rpartition("/")[2].lower()) for variant in self.variants)
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()
        return Path("runs") / f"sweep-{'-'.join(envs)[:40]}-{digest[:6]}"

    def to_json(self) -> dict[str, Any]:
        """JSON form, for sweep.json."""
        variants = [asdict(variant) for variant in self.variants]
        return {"seeds": list(self.seeds), "files": self.files, "variants": variants}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan in sweep.json, which may come from a stranger: ValueError if it is invalid."""
        variants = tuple(
            Variant(str(v["label"]), str(v["folder"]), str(v["env"]), tuple(map(str, v["flags"])))
            for v in data["variants"]
        )
        for variant in variants:
            _validate(variant)
        seeds, files = tuple(map(int, data["seeds"])), dict(data["files"])
        if len(seeds) * len(variants) > MOST or not all(0 <= seed < 2**63 for seed in seeds):
            raise ValueError("there are too many runs, or invalid seeds")
        if not all(isinstance(text, str) for text in files.values()):
            raise ValueError("files holds values that are not texts")
        return cls(variants, seeds, files)


def make_plan(env: str | None, settings: Settings, seeds: int | Sequence[int] | None = None) -> Plan:
    """Every combination of the listed values, each with every seed.

    Args:
        env: the env's name, several separated by commas. None: a setting or a file names it.
        settings: see ``Settings``.
        seeds: the number of seeds, counted from the setting ``seed``, or a list of seeds. None: the seeds
            that ``seed`` lists.
    """
    flags = _flags(settings) if isinstance(settings, Mapping) else list(settings)
    import_named(flags)
    listed, flags = take(flags, "--seed")
    found = sweep_variants(flags if env is None else [f"{ENV}{env}", *flags])
    names = _folders(label for label, _ in found)
    variants, first_seed = [], None
    for (label, words), folder in zip(found, names):
        own, rest = _env(words)
        with _errors_of(label):
            parsed = parse_config(list(rest), env=own)
        if parsed.env is None:
            raise ConfigError(
                "which env? recollect sweep ENV, or env: in the --config file; see recollect tasks"
            )
        if parsed.config.run is not None:
            raise ConfigError(
                "run: every run of a sweep has its own folder; set the folder of the sweep with --out"
            )
        variants.append(Variant(label, folder, parsed.env, tuple(rest)))
        first_seed = parsed.config.seed if first_seed is None else first_seed
    chosen = _seeds(listed, seeds, first_seed or 0)
    files = {word.removeprefix(CONFIG): "" for _, words in found for word in words if word.startswith(CONFIG)}
    return Plan(tuple(variants), chosen, {name: Path(name).read_text("utf-8-sig") for name in files})


def check(variant: Variant, flags: Sequence[str]) -> Parsed:
    """Validate a variant by making its agent.

    ``flags``: the variant's flags, with the paths of config files to read.
    """
    from recollect.api import new_agent
    from recollect.training.new_network import check_device
    from recollect.training.sinks import make_sinks

    with _errors_of(variant.label):
        parsed = parse_config(list(flags), env=variant.env)
        config = parsed.config
        make_sinks(config.sinks)
        check_device(config.device)
        if config.device.startswith("cuda"):
            config = replace(config, device="cpu")  # leaves the GPU's memory to the runs
        try:
            new_agent(variant.env, config, parsed.policy, given=parsed.given, preset=parsed.preset).close()
        except RecollectError:
            raise
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError if a network is too large
            raise ConfigError(f"the agent cannot be made: {error}") from error
    return parsed


@contextmanager
def _errors_of(label: str) -> Iterator[None]:
    """Name the variant in its errors."""
    try:
        yield
    except RecollectError as error:
        if not label:
            raise
        raise ConfigError(f"{label}: {error}") from error


def _validate(variant: Variant) -> None:
    """Reject paths outside the sweep's folder, and flags that would set another env."""
    if variant.folder in ("", "..") or Path(variant.folder).name != variant.folder:
        raise ValueError(f"{variant.folder!r} is not the name of a folder")
    is_name = variant.env.isprintable() and len(variant.env) <= bounds.MOST_LETTERS
    if variant.env.startswith("-") or not is_name:
        raise ValueError(f"{variant.env!r} is not the name of an env")
    for word in variant.flags:
        name = Flag(word.partition("=")[0], None).name
        if not word.startswith("--") or name in ("", "env"):
            raise ValueError(f"{word!r} is no setting of a variant")


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings from Python as the flags of a sweep's command line."""
    words = []
    for name, given in settings.items():
        values = given if isinstance(given, list) else [given]
        if not values:
            raise ConfigError(f"{name} = []: list at least one value")
        separator = ";" if any(isinstance(value, tuple) for value in values) else ","
        words.append(f"--{name.replace('_', '-')}={separator.join(_word(name, value) for value in values)}")
    return words


def _word(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_word(name, part) for part in value)
    if not isinstance(value, SCALAR):
        raise ConfigError(
            f"{name} holds a {type(value).__name__}: each run is a process and gets its settings by name, "
            'such as {"core": "lstm", "core.hidden": 64}; a list holds values to compare, a tuple is one '
            "value of several parts"
        )
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def take(flags: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of the flag ``name``, and the other flags."""
    values, rest, words = [], [], iter(flags)
    for word in words:
        written, equals, value = word.partition("=")
        if written != name:
            rest.append(word)
        else:
            values.append(value if equals else next(words, ""))
    if len(values) > 1:
        raise ConfigError(f"{name} is given twice: list the values, {name} {','.join(values)}")
    return (values[0] if values else None), rest


def _env(words: list[str]) -> tuple[str | None, list[str]]:
    named = list(dict.fromkeys(word.partition("=")[2] for word in words if word.startswith(ENV)))
    if len(named) > 1:
        raise ConfigError(f"the env is {named[0]}, and --env says {named[1]}: keep one of them")
    return (named[0] if named else None), [word for word in words if not word.startswith(ENV)]


def _seeds(listed: str | None, given: int | Sequence[int] | None, first: int) -> tuple[int, ...]:
    words = [] if listed is None else listed.split(",")
    parts = [parse_settings([f"--seed={word}"])["seed"] for word in words]
    if len(parts) > 1 and given is not None:
        raise ConfigError(f"seed lists {listed}, and seeds says {given}: keep one of them")
    if isinstance(given, Sequence):
        parts = list(given)
    elif given is not None or len(parts) < 2:
        count = 1 if given is None else given
        first = parts[0] if parts else first
        parts = list(range(first, first + count))
    if not parts or len(set(parts)) < len(parts) or min(parts) < 0:
        raise ConfigError(f"seeds: {listed or given}: give at least one seed, without duplicates, from 0 up")
    return tuple(parts)


def _folders(labels: Iterable[str]) -> list[str]:
    """Folder names, distinct also on case-insensitive file systems."""
    names: list[str] = []
    for label in labels:
        stem = name = _safe(label)[:LONGEST] or "runs"
        count = 1
        while name.lower() in (other.lower() for other in names):
            count += 1
            name = f"{stem}-{count}"
        names.append(name)
    return names


def _safe(text: str) -> str:
    """The text without characters that are special to a file system or a shell."""
    return re.sub(r"[^\w.,=+-]+", "-", text).strip(".-")
