"""How a run looks while it trains: ``make_display`` chooses one of five.

=========  =======================================================================================
mode       what
=========  =======================================================================================
live       a panel in the terminal, redrawn in its place
plain      a line every five seconds, for logs and pipes
notebook   a bar in the output of a cell (Jupyter, Colab)
json       an object a line on stdout for each event, for other programs
quiet      nothing
=========  =======================================================================================

All but json write to stderr. A display never breaks a run: if its output fails, it falls silent.
"""

from __future__ import annotations

import sys
from typing import Literal, get_args

from rich.console import Console

from recollect.display.base import Display, Quiet, standard_error
from recollect.display.lines import JsonLines, Lines
from recollect.display.live import LivePanel
from recollect.display.notebook import Notebook, is_notebook
from recollect.errors import ConfigError, nearest
from recollect.training.callbacks import Callback

__all__ = ["Display", "Mode", "make_display"]

Mode = Literal["auto", "live", "plain", "quiet", "json", "notebook"]
"""What ``mode`` and ``progress`` take, beside True for "auto" and False for "quiet"."""


def make_display(mode: str | bool = "auto", console: Console | None = None) -> Callback:
    """The callback that shows a run.

    Args:
        mode: "auto" or True: what suits the place; "quiet" or False: nothing; or one by its name.
        console: where to write, in place of stderr (of stdout for "json").
    """
    if isinstance(mode, bool):
        mode = "auto" if mode else "quiet"
    if mode not in get_args(Mode):
        hint = nearest(str(mode), get_args(Mode))
        raise ConfigError(f"progress = {mode!r}{hint}: choose {', '.join(get_args(Mode))}, True or False")
    if mode == "auto":
        mode = _suitable(console or standard_error())
    if mode == "notebook" and "IPython" not in sys.modules:
        mode = "plain"  # nobody could show it
    match mode:
        case "live":
            return LivePanel(console)
        case "notebook":
            return Notebook()
        case "json":
            return JsonLines(None if console is None else console.file)
        case "quiet":
            return Quiet()
        case _:
            return Lines(console)


def _suitable(console: Console) -> Mode:
    """A panel only where it can be redrawn. Colours forced into a file, as CI does, make it no terminal."""
    if is_notebook():
        return "notebook"
    can_redraw = console.is_terminal and console.is_interactive and not console.is_dumb_terminal
    return "live" if can_redraw and console.file.isatty() else "plain"
