"""The panel of the live display: progress, score, speed, losses and gauges."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from recollect.base import formatting
from recollect.config.replay import ReplayConfig
from recollect.display import words
from recollect.display.state import Score, State

WIDEST = 100
"""Maximum columns of the panel."""
LABEL = 12
"""Columns of the row labels."""
NARROW = 60
"""Columns below which the panel has no border."""
TALL = 20
"""Lines of a terminal that the whole panel with its notices fits into."""
ACTORS = 4
"""Lines more with actors in other processes."""

SHADES = ("cyan", "blue", "magenta", "bright_black")
"""Colours of the parts of the actors' time; waiting is grey."""


class View:
    """A Rich renderable of a state that adapts to the terminal's size."""

    def __init__(self, state: State, *, is_final: bool = False):
        self.state, self.is_final = state, is_final

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        glyphs = words.ASCII if options.ascii_only else words.UNICODE
        tall = TALL if self.state.remote_actors() is None else TALL + ACTORS
        is_short = console.height < tall and not self.is_final
        if width < NARROW or is_short:
            yield Group(*Rows(self.state, width, glyphs, is_short=True).few())
        else:
            rows = Rows(self.state, width - 4, glyphs)  # a border and a blank on either side
            body = Group(*rows.all(), *([] if self.is_final else rows.footer()))
            yield Panel(body, box=box.ROUNDED, border_style="bright_black", width=width)
        for text in () if self.is_final else self.state.notices:
            line = words.shortened(text.replace("\n", " "), width - 4, glyphs.cut)
            yield Text.assemble((f" {glyphs.bad} ", "bold yellow"), (line, "yellow"), no_wrap=True)


class Rows:
    """The rows of the panel, ``width`` columns wide; ``is_short``: texts that do not fit are dropped."""

    def __init__(self, state: State, width: int, glyphs: words.Glyphs, *, is_short: bool = False):
        self.state, self.width, self.glyphs, self.is_short = state, width, glyphs, is_short
        self._has_labels = width >= 48
        self._indent = LABEL if self._has_labels else 8

    def all(self) -> Iterator[RenderableType]:
        """All rows, in groups."""
        yield from self.head()
        yield Text()
        yield from self.score()
        yield from self.speed()
        yield from self.actors()
        yield Text()
        yield from self.losses()
        yield from self.honesty()

    def few(self) -> Iterator[RenderableType]:
        """The most important rows, for small terminals."""
        yield from self.head()
        yield from self.score()
        yield from self.honesty()

    def head(self) -> Iterator[RenderableType]:
        """Env, core, run folder and progress."""
        state, dot = self.state, self.glyphs.dot
        name = Text.assemble((state.env, "bold cyan"), (f" {dot} ", "bright_black"), state.core)
        room = max(16, self.width - name.cell_len - 2)
        yield from self._spread(name, Text(words.tail(state.run or "", room, self.glyphs.cut), "dim"))
        grid = Table.grid(expand=False)
        grid.add_column(width=self.width - 6)
        grid.add_column(width=6, justify="right")
        bar = ProgressBar(total=1.0, completed=state.fraction, complete_style="cyan", finished_style="green")
        grid.add_row(bar, Text(formatting.share(int(state.fraction * 100) / 100), "bold"))
        yield grid
        done = f"{formatting.count(state.steps)} of {formatting.count(state.training.end)}"
        times, is_over = [], state.fraction >= 1
        if self._has_labels or is_over:
            times.append(f"{formatting.duration(state.elapsed)} elapsed")
        if not is_over:
            times.append(f"{formatting.duration(state.left())} left")
        unit = " steps" if self._has_labels else ""
        yield from self._spread(Text(done + unit), Text(f" {dot} ".join(times)))

    def score(self) -> Iterator[RenderableType]:
        """Return with its curve and trend, and the last evaluation."""
        state, metrics, dot = self.state, self.state.metrics, self.glyphs.dot
        body = Text.assemble((f"{formatting.number(metrics.get('return')):<8}", "bold"))
        side = Text(f"{formatting.count(metrics.get('episodes', 0))} episodes", "dim")
        if "length" in metrics:
            side.append(f" {dot} length {formatting.number(metrics['length'])}")
        curve = state.returns()
        if (moved := words.trend(curve)) is not None:
            delta, way = moved
            arrow = (self.glyphs.flat, self.glyphs.up, self.glyphs.down)[way]
            body.append(f"{arrow} {formatting.change(delta):<8}", ("dim", "green", "yellow")[way])
        alone = self.width - self._indent - body.cell_len
        beside = alone - side.cell_len - 3
        room = min(40, beside if beside >= 8 else alone)  # too narrow: the side text goes below
        body.append(words.sparkline(curve, max(0, room), self.glyphs.blocks), "cyan")
        yield from self._row("return", body, side)
        name = "evaluation" if self._has_labels else "eval"
        best = Text()
        if state.best is not None:
            best = Text(
                f"best {formatting.number(state.best[0])} at {formatting.count(state.best[1])}", "dim"
            )
        last, every = state.evaluation, state.training.config.eval_every
        if last is not None:
            yield from self._row(name, self._score(last), best)
        elif every:
            yield from self._row(name, Text(f"every {formatting.count(every)} steps", "dim"), best)
        has_two = state.training.config.eval_mode == "both" and (last is not None or every)
        if has_two and not self.is_short:  # also before the first evaluation: the panel keeps its size
            sampled = None if last is None else last.sampled
            yield from self._row("", Text() if sampled is None else self._score(sampled))

    def _score(self, score: Score) -> Text:
        """The mean of an evaluation, its interval, and which actions it measures."""
        interval = f", 95% {score.interval}" if self._has_labels else f" {score.interval}"
        body = Text.assemble((f"{formatting.number(score.mean):<8}", "bold"), score.mode)
        return body.append(interval, "dim")

    def speed(self) -> Iterator[RenderableType]:
        """Steps per second, and the shares of env, acting and learning."""
        state = self.state
        parts = [f"{name} {formatting.share(value)}" for name, value in state.shares().items()]
        side = Text(f" {self.glyphs.dot} ".join(parts), "dim")
        yield from self._row("speed", Text(f"{formatting.count(state.speed('total'))} steps/s"), side)

    def actors(self) -> Iterator[RenderableType]:
        """Speed, time shares and queue of actors in other processes."""
        actors = self.state.remote_actors()
        if actors is None:
            return
        dot, shades = f" {self.glyphs.dot} ", self.glyphs.shades
        yield Text()
        yield from self._row("actors", Text(actors.place), Text(f"{actors.range} steps/s each", "dim"))
        parts = zip(shades, SHADES, actors.shares.items())
        legend = Text("  ").join(
            Text.assemble((shade, style), f" {name} ", formatting.share(share), style="dim")
            for shade, style, (name, share) in parts
        )
        room = min(30, self.width - self._indent - legend.cell_len - 3)
        drawn = Text(words.bar(actors.shares, room, shades) if room >= 6 else "")
        for shade, style in zip(shades, SHADES):
            drawn.highlight_words([shade], style)
        yield from self._row("their time", drawn, legend)
        side = Text(dot.join(actors.trouble()), "yellow")
        yield from self._row("queue", Text(dot.join(actors.queue())), side)

    def losses(self) -> Iterator[RenderableType]:
        """Losses and statistics of the update."""
        get = self.state.metrics.get
        if isinstance(self.state.training.config.algo, ReplayConfig):
            yield from self._cells(
                "losses",
                ("q", formatting.number(get("loss/q"))),
                ("error", formatting.number(get("td_error"))),
                ("target", formatting.number(get("q/target"))),
            )
            yield from self._cells(
                "update",
                ("epsilon", formatting.number(get("epsilon"))),
                ("replay", formatting.count(int(get("replay/steps", 0)))),
                ("clipped", formatting.share(get("grad_clip_rate"))),
            )
            return
        yield from self._cells(
            "losses",
            ("policy", formatting.number(get("loss/policy"))),
            ("value", formatting.number(get("loss/value"))),
            ("explained", formatting.share(get("explained_variance"))),
        )
        yield from self._cells(
            "update",
            ("entropy", formatting.number(get("entropy"))),
            ("kl", formatting.number(get("kl"))),
            ("clipped", formatting.share(get("clip_fraction"))),
        )

    def honesty(self) -> Iterator[RenderableType]:
        """All honesty gauges: whether the learner reproduces what the actor did."""
        room = self.width - self._indent
        lines = [Text()]
        for gauge in self.state.gauges():
            mark = {True: self.glyphs.good, False: self.glyphs.bad, None: " "}[gauge.is_good]
            style = {True: "green", False: "bold yellow", None: "dim"}[gauge.is_good]
            is_bad = gauge.is_good is False
            text = Text.assemble((f"{mark} ", style), (f"{gauge.name} ", "yellow" if is_bad else "dim"))
            text.append(gauge.text, "yellow" if is_bad else "")
            if len(lines[-1]) and lines[-1].cell_len + 3 + text.cell_len > room:
                lines.append(Text())
            lines[-1].append("   " if len(lines[-1]) else "").append_text(text)
        for label, body in zip(["honesty"] + [""] * len(lines), lines):
            yield from self._row(label, body)

    def footer(self) -> Iterator[RenderableType]:
        """How to stop, and the last checkpoint."""
        state = self.state
        yield Text()
        hint = Text("Ctrl-C saves and stops" if state.run else "Ctrl-C stops", "dim")
        if state.training.signal:
            hint = Text("stopping after this update; Ctrl-C again ends at once", "yellow")
        saved = "" if state.checkpoint is None else f"checkpoint at {formatting.count(state.checkpoint)}"
        yield from self._spread(hint, Text(saved, "dim"))

    def _cells(self, label: str, *cells: tuple[str, str]) -> Iterator[RenderableType]:
        """Named numbers, aligned with those of neighbouring rows."""
        body = Text()
        size = (self.width - LABEL) // len(cells)
        for name, text in cells:
            cell = Text.assemble((f"{name} ", "dim"), text)
            cell.pad_right(max(2, size - cell.cell_len))
            body.append_text(cell)
        body.rstrip()
        yield from self._row(label, body)

    def _row(self, label: str, body: Text, side: Text | None = None) -> Iterator[RenderableType]:
        name = Text(f"{label[: self._indent - 1]:<{self._indent}}", "cyan")
        yield from self._spread(Text.assemble(name, body), side or Text(), " " * self._indent)

    def _spread(self, left: Text, right: Text, indent: str = "") -> Iterator[Text]:
        """Two texts at both edges; without room, below each other, or in short rows the first alone."""
        gap = self.width - left.cell_len - right.cell_len
        if not len(right) or gap >= 2:
            yield self._fitted(Text.assemble(left, " " * (gap if len(right) else 0), right))
            return
        yield self._fitted(left)
        if not self.is_short:
            yield self._fitted(Text.assemble(indent, right))

    def _fitted(self, text: Text) -> Text:
        """The text on one line, truncated: a wrapped line would shift the others."""
        text.no_wrap, text.overflow = True, "crop"
        if text.cell_len > self.width:
            text.truncate(max(0, self.width - len(self.glyphs.cut)))
            text.append(self.glyphs.cut, "dim")
        return text
