"""Progress displays: ``make_display`` chooses one of five.

=========  =======================================================
mode       output
=========  =======================================================
live       a panel in the terminal, redrawn in place
plain      a line after the first update and every five seconds, for logs and pipes
notebook   a bar in the output of a cell (Jupyter, Colab)
json       one JSON object per line on stdout for each event
quiet      nothing
=========  =======================================================

All but json write to stderr. A display whose output fails stops, and the run continues.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, get_args

from rich.console import Console

from recollect.base import json_output, notices
from recollect.display.base import Display, can_redraw, standard_error
from recollect.display.lines import JsonLines, Lines
from recollect.display.live import LivePanel
from recollect.display.notebook import Notebook, is_notebook
from recollect.errors import ConfigError, nearest
from recollect.training.callbacks import Callback

__all__ = ["Display", "Mode", "make_display", "showing_notices"]

Mode = Literal["auto", "live", "plain", "quiet", "json", "notebook"]
"""Values of ``mode`` and ``progress``, besides True for "auto" and False for "quiet"."""


def make_display(mode: str | bool = "auto", console: Console | None = None) -> Callback:
    """The callback that displays a run.

    Args:
        mode: "auto" or True: fits the terminal or notebook; "quiet" or False: nothing; or a name.
        console: replaces stderr (stdout for "json").
    """
    if isinstance(mode, bool):
        mode = "auto" if mode else "quiet"
    if mode not in get_args(Mode):
        hint = nearest(str(mode), get_args(Mode))
        raise ConfigError(f"progress = {mode!r}{hint}: choose {', '.join(get_args(Mode))}, True or False")
    if mode == "auto":
        redraws = can_redraw(console or standard_error())
        mode = "notebook" if is_notebook() else "live" if redraws else "plain"
    if mode == "notebook" and "IPython" not in sys.modules:
        mode = "plain"
    match mode:
        case "live":
            return LivePanel(console)
        case "notebook":
            return Notebook()
        case "json":
            return JsonLines(None if console is None else console.file)
        case "quiet":
            return Callback()
        case _:
            return Lines(console)


@contextmanager
def showing_notices(mode: str | bool) -> Iterator[None]:
    """Show notices of slow work before the display opens, in the same mode: lines, JSON or nothing."""

    def show(text: str) -> None:
        with suppress(OSError, ValueError):  # a closed output ends no run
            if mode == "json":
                line = json.dumps({"event": "notice", "text": text})
                print(line, file=json_output.results(), flush=True)
            else:
                print(text, file=sys.stderr, flush=True)

    if mode is False or mode == "quiet":
        yield
        return
    with notices.heard_by(show):
        yield
