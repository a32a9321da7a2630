"""Writes src/recollect/config/keywords.py: the keywords of train, load and resume, with their types.

python docs/keywords.py          # rewrite the file
python docs/keywords.py --check  # fail if it is not current

Editors and type checkers read them there. The settings themselves are the fields of the configs.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from recollect.api import CHANGEABLE
from recollect.config.algo_choice import ALGOS
from recollect.config.convert import options
from recollect.config.fields import Field, fields_of
from recollect.config.policy import PolicyConfig
from recollect.config.train import RUNTIMES, TrainConfig, homes

FILE = Path(__file__).resolve().parent.parent / "src" / "recollect" / "config" / "keywords.py"
PATHS = ("run", "init_from")
"""Settings that also take a Path."""
HEAD = '''"""Settings as keywords with types, for editors and type checkers. Written by docs/keywords.py."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, TypedDict

'''


def source() -> str:
    """The text of the file."""
    known = _fields()
    parts = {kind for field in known.values() for kind in _classes(field)}
    imports = sorted(f"from {kind.__module__} import {kind.__name__}" for kind in parts)
    changed = {name: field for name, field in known.items() if name in CHANGEABLE}
    others = {name: field for name, field in known.items() if name not in (*CHANGEABLE, "policy")}
    lines = [
        HEAD + "\n".join(imports),
        *_typed_dict("ChangeableSettings", "TypedDict", "The settings that a saved run may change.", changed),
        *_typed_dict("TrainSettings", "ChangeableSettings", "The settings of ``recollect.train``.", others),
    ]
    return "\n".join(lines) + "\n"


def _fields() -> dict[str, list[Field]]:
    """Every flat name, with its field in each config that has it."""
    found: dict[str, list[Field]] = {name: [] for name in homes()}
    for config in (TrainConfig, PolicyConfig, *ALGOS.values()):
        for field in fields_of(config):
            found[field.name].append(field)
    return found


def _typed_dict(name: str, base: str, doc: str, fields: dict[str, list[Field]]) -> list[str]:
    lines = ["", "", f"class {name}({base}, total=False):", f'    """{doc}"""', ""]
    for key, own in fields.items():
        lines.append(f"    {key}: {_type(key, own)}")
        lines += textwrap.wrap(
            f'"""{own[0].short_doc}"""', 106, initial_indent="    ", subsequent_indent="    "
        )
    return lines


def _classes(fields: list[Field]) -> set[type]:
    kinds = [kind for field in fields if field.name != "policy" for kind in options(field.hint)]
    return {kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)}


def _type(name: str, fields: list[Field]) -> str:
    """The type of a keyword: that of the fields, and what is converted to it."""
    found = dict.fromkeys(_text(kind) for field in fields for kind in options(field.hint))
    if name == "algo":
        found = {_text(Literal[tuple(ALGOS)]): None} | found
    if name == "runtime":
        found = {_text(Literal[tuple(RUNTIMES)]): None}  # an own one goes into a TrainConfig
    if name in PATHS:
        found |= {"PathLike[str]": None}
    ordered = [text for text in found if text != "None"] + [text for text in found if text == "None"]
    return " | ".join(ordered)


def _text(hint: Any) -> str:
    if hint is Any:
        return "Any"
    if hint in (None, types.NoneType):
        return "None"
    if get_origin(hint) is Literal:
        words = ", ".join(f'"{word}"' for word in get_args(hint))
        return f"Literal[{words}]"
    if get_origin(hint) is tuple:
        (kind, _) = get_args(hint)
        return f"tuple[{kind.__name__}, ...] | list[{kind.__name__}]"
    if get_origin(hint) is dict:
        return "dict[str, Any]"
    return hint.__name__


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(source())
    elif FILE.read_text() != source():
        sys.exit("src/recollect/config/keywords.py is not current: run python docs/keywords.py")
