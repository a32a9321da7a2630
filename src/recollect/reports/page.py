"""Renders the data and assets into one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from recollect.base.files import finite

SCRIPTS = (
    *("base.js", "scales.js", "chart.js", "header.js", "curves.js", "times.js"),
    *("episode_view.js", "heatmap.js", "episode.js", "tables.js", "compare.js", "league.js", "main.js"),
)
"""In order of dependency."""
STYLES = ("style.css", "controls.css", "charts.css", "episode.css", "tables.css", "league.css", "narrow.css")


def render(
    data: dict[str, Any],
    title: str,
    scripts: tuple[str, ...] = SCRIPTS,
    styles: tuple[str, ...] = STYLES,
) -> str:
    """The HTML page, with these assets in order of dependency.

    Its content security policy allows only this script, this style and inline images: a report opens no
    connection, and a hostile name cannot execute code.
    """
    script, style = _script(scripts), _style(styles)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "TITLE": html.escape(title),
        "POLICY": html.escape(policy),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": to_script_json(data),
    }
    # A single pass: inserted text is not searched for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def to_script_json(data: Any) -> str:
    """JSON that is safe inside a script element: no ``<`` can end the element or open a comment."""
    text = json.dumps(finite(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    # A lone surrogate, from a file name that is not UTF-8, cannot be encoded.
    return text.encode("utf-8", "replace").decode("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _script(names: tuple[str, ...]) -> str:
    bodies = "\n".join(_asset(name) for name in names)
    return f'"use strict";\n(() => {{\n{bodies}\n}})();'


@cache
def _style(names: tuple[str, ...]) -> str:
    return "\n".join(_asset(name) for name in names)


@cache
def _asset(name: str) -> str:
    return resources.files("recollect.reports").joinpath("assets", name).read_text(encoding="utf-8")
