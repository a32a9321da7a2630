"""Episodes as text: one line per step, with repetitive steps folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.text import Text

from recollect.base import formatting
from recollect.play.trace import Trace
from recollect.play.words import choices, chosen, ending, heading, most_active, others, ranking, seen, who

UNITS = 16
"""Units of memory shown per line."""
BLOCKS = "▁▂▃▄▅▆▇█"
FOLD = 5
"""Minimum number of equal steps that are folded; the first and last stay."""
MOST_LINES = 60
"""Maximum lines of an episode; the middle is left out."""


@dataclass(frozen=True, slots=True)
class Line:
    """One step, or a gap that stands for ``count`` steps."""

    step: int
    sees: str = ""
    does: str = ""
    chance: str = ""
    """The probability of the action, if it is one number."""
    key: tuple = ()
    """Equal for steps that may be folded together."""
    count: int = 0
    alike: bool = True
    """Whether the steps of the gap equal the one above it."""


def show(traces: list[Trace], console: Console, *, fold: bool = True) -> None:
    """Print the episodes to ``console``, in colour if it is a terminal."""
    console.print(Text(heading(traces[0]), style="bold"))
    memory = MemoryBar(traces)
    for number, trace in enumerate(traces, 1):
        console.print()
        of = ", ".join(filter(None, (f"Episode {number} of {len(traces)}", who(trace), f"seed {trace.seed}")))
        console.print(Text(of, style="bold"))
        for line in _table(trace, memory, console.width, fold):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        console.print(Text(ending(trace), style="bold"))
        if also := others(trace):
            console.print(Text(also, style="dim"))
    if memory.units:
        console.print()
        console.print(Text(memory.legend(colours=console.color_system is not None), style="dim"))


def lines_of(trace: Trace, *, has_values: bool = False) -> list[Line]:
    """One line per step. ``has_values``: also with the values of the actions that were not taken."""
    made: list[Line] = []
    for step in range(len(trace)):
        sees, does = seen(trace, step), [choice.value for choice in choices(trace, step)]
        word, chance = chosen(trace, step)
        if has_values:
            word = ranking(trace, step) or word
        made.append(Line(step, sees, word, chance, (sees, does, trace.reward[step])))
    return made


def folded(lines: list[Line], least: int = FOLD) -> list[Line]:
    """Replace ``least`` or more equal steps by the first, a gap and the last."""
    kept: list[Line] = []
    for _, group in groupby(lines, key=lambda line: line.key):
        equal = list(group)
        if len(equal) < least:
            kept += equal
        else:
            kept += [equal[0], Line(equal[1].step, count=len(equal) - 2), equal[-1]]
    return kept


def without_middle(lines: list[Line], most: int = MOST_LINES) -> list[Line]:
    """At most ``most`` lines, with a gap for those in the middle."""
    if len(lines) <= most:
        return lines
    head, tail = lines[: most // 2], lines[-(most // 2) :]
    left_out = sum(line.count or 1 for line in lines[len(head) : -len(tail)])
    return [*head, Line(head[-1].step + 1, count=left_out, alike=False), *tail]


class MemoryBar:
    """The most active units as a row of blocks; height is the distance from zero."""

    def __init__(self, traces: list[Trace], count: int = UNITS):
        self.order, self.limit = most_active(traces, count)
        self.units = traces[0].units

    def text(self, trace: Trace, step: int) -> Text:
        """The bar of one step: blue for negative, orange for positive, as in the report."""
        bar = Text()
        for x in np.nan_to_num(trace.memory[step, self.order] / self.limit):
            style = "dim" if abs(x) < 0.05 else "dark_orange" if x > 0 else "bright_blue"
            bar.append(BLOCKS[min(int(abs(x) * len(BLOCKS)), len(BLOCKS) - 1)], style)
        return bar

    def legend(self, *, colours: bool) -> str:
        """The legend of the blocks."""
        shown = len(self.order)
        which = f"{shown} most active of {self.units:,} units" if shown < self.units else "all units"
        signs = ";\norange is positive, blue negative" if colours else ""
        return f"memory: {which} before each step, higher is further from 0{signs}"


def _table(trace: Trace, memory: MemoryBar, width: int, fold: bool) -> Iterable[Text]:
    lines = lines_of(trace, has_values=True)
    if fold:
        lines = without_middle(folded(lines))
    shown = [line for line in lines if not line.count]
    chance = 5 if any(line.chance for line in shown) else 0
    values = [_value(value) for value in trace.value.tolist()]
    rewards = ["·" if reward == 0 else formatting.signed(reward) for reward in trace.reward]
    value, reward = (max(7, *(len(texts[line.step]) for line in shown)) for texts in (values, rewards))
    fixed = 5 + 2 + 2 + chance + 2 + value + 2 + reward + (2 + len(memory.order) if memory.units else 0)
    sees, does = _widths(shown, max(width - fixed, 16))
    header = (
        f"{'step':>5}  {'sees':<{sees}}  {'does':<{does + chance}}  {'value':>{value}}  {'reward':>{reward}}"
    )
    yield Text(header + ("  memory" if memory.units else ""), style="dim")
    for line in lines:
        if line.count:
            why = "like this" if line.alike else "not shown (--all shows them)"
            yield Text(f"{'…':>5}  {line.count} steps {why}", style="dim")
            continue
        gain = trace.reward[line.step]
        text = Text(f"{line.step:>5}  ", style="")
        text.append(f"{_fit(line.sees, sees)}  ")
        text.append(f"{_fit(line.does, does)}{line.chance:>{chance}}  ", "cyan")
        text.append(f"{values[line.step]:>{value}}  ")
        sign = "dim" if gain == 0 else "bold green" if gain > 0 else "bold red"
        text.append(f"{rewards[line.step]:>{reward}}", sign)
        if memory.units:
            text.append("  ").append_text(memory.text(trace, line.step))
        yield text


def _widths(lines: list[Line], room: int) -> tuple[int, int]:
    """Widths of the columns "sees" and "does": as wide as needed, or sharing ``room``."""
    sees = max(4, *(len(line.sees) for line in lines), 0)
    does = max(4, *(len(line.does) for line in lines), 0)
    if sees + does <= room:
        return sees, does
    does = min(does, max(room // 2, room - sees))
    return room - does, does


def _value(value: float) -> str:
    """Two decimals in at most seven characters, else fewer digits."""
    text = f"{value:.2f}"
    return text if len(text) <= 7 else formatting.number(value)


def _fit(text: str, width: int) -> str:
    text = text.replace("\n", " ")
    return f"{text:<{width}}" if len(text) <= width else text[: width - 1] + "…"
