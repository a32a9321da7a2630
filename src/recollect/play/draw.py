"""Draws one image per step: the observation at the left; memory, value, reward and action at the right."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from recollect.base.formatting import percent, short, signed
from recollect.play.frames import Film
from recollect.play.text import Line, folded, lines_of
from recollect.play.trace import Trace
from recollect.play.words import ONE_OF_N, SUITS, Choice, choices, ending, most_active, seen, who

WIDTH, HEIGHT = 800, 460
MARGIN, GAP = 16, 22
TOP = 46
LEFT_WIDTH = 366
RIGHT = MARGIN + LEFT_WIDTH + GAP
RIGHT_WIDTH = WIDTH - MARGIN - RIGHT
UNITS = 42
"""Units shown in the heatmap."""

PAPER, PANEL, EMPTY, GRID = "#ffffff", "#f4f5f7", "#e6e9ee", "#d9dde3"
INK, MUTED, BAR = "#1c2430", "#77808e", "#a9b4c6"
ACCENT, GOOD, BAD = "#2357c5", "#2c8a4b", "#c8442c"
POSITIVE, MIDDLE, NEGATIVE = (196, 98, 22), (255, 255, 255), (28, 78, 184)

SHADES = 10
"""Shades of each colour in the heatmap."""

Box = tuple[int, int, int, int]
"""Left, top, right, bottom."""


class Painter:
    """Draws the steps of a film, with the same scales for all steps."""

    def __init__(self, film: Film):
        self.film, traces = film, film.traces
        self.order, self.limit = most_active(traces, UNITS)
        self.units = traces[0].units
        self.column = int(np.clip(RIGHT_WIDTH // max(len(trace) for trace in traces), 4, 16))
        self.values = _limits([trace.value for trace in traces])
        self.rewards = _limits([trace.reward for trace in traces])
        self.reach = _reach(traces)
        self.lines = [lines_of(t) if self._seen(e, 0) is None else [] for e, t in enumerate(traces)]
        self.fonts = {size: ImageFont.load_default(size) for size in (12, 13, 15, 22)}

    def picture(self, episode: int, step: int) -> Image.Image:
        """The image of a step; ``step`` = T is the image after the end."""
        trace = self.film.traces[episode]
        image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        view = _View(image, ImageDraw.Draw(image), self.fonts, trace, min(step, len(trace) - 1))
        is_over = step == len(trace)
        self._title(view, episode, is_over)
        box = (MARGIN, TOP, MARGIN + LEFT_WIDTH, HEIGHT - MARGIN)
        shown = self._seen(episode, step)
        if shown is None:
            self._log(view, box, self.lines[episode][: view.step + 1])
        else:
            _paste(view, box, shown)
        self._memory(view, (RIGHT, TOP + 18, WIDTH - MARGIN, TOP + 18 + 168))
        self._value(view, (RIGHT, 256, WIDTH - MARGIN, 300))
        self._reward(view, (RIGHT, 326, WIDTH - MARGIN, 352))
        self._action(view, (RIGHT, 380, WIDTH - MARGIN, HEIGHT - MARGIN))
        return image

    def _title(self, view: _View, episode: int, is_over: bool) -> None:
        trace, count = view.trace, len(self.film.traces)
        name = " · ".join(filter(None, (trace.env or "an env without a name", who(trace))))
        view.fit((MARGIN, 13), name, LEFT_WIDTH + GAP, (15, 13, 12), INK)
        so_far = float(trace.reward[: view.step].sum())
        now = ending(trace) if is_over else f"step {view.step}, return so far {short(so_far)}"
        where = f"episode {episode + 1} of {count} · " if count > 1 else ""
        view.text((WIDTH - MARGIN, 14), where + now, 13, INK if is_over else MUTED, anchor="ra")
        view.draw.line((MARGIN, 37, WIDTH - MARGIN, 37), fill=GRID)

    def _log(self, view: _View, box: Box, lines: list[Line]) -> None:
        """The current observation in large letters, and the steps so far below it."""
        view.draw.rectangle(box, fill=PANEL)
        left, top, right, bottom = box[0] + 14, box[1] + 12, box[2] - 14, box[3] - 12
        view.text((left, top), "sees", 12, MUTED)
        view.fit((left, top + 15), seen(view.trace, view.step), right - left, (22, 15, 13), INK)
        view.draw.line((left, top + 52, right, top + 52), fill=GRID)
        room = (bottom - top - 64) // 21
        for i, line in enumerate(folded(lines)[-room:]):
            y = top + 64 + 21 * i
            if line.count:
                view.text((left + 44, y), f"... {line.count} steps like this", 13, MUTED)
                continue
            ink = INK if line.step == view.step else MUTED
            reward = view.trace.reward[line.step]
            view.text((left + 30, y), str(line.step), 13, MUTED, anchor="ra")
            view.fit((left + 44, y), line.sees, 138, (13,), ink)
            view.fit((left + 192, y), line.does, 62 if line.chance else 100, (13,), ink)
            view.text((left + 292, y), line.chance, 13, ink, anchor="ra")
            if reward:
                view.text((right, y), signed(reward), 13, GOOD if reward > 0 else BAD, anchor="ra")

    def _memory(self, view: _View, box: Box) -> None:
        left, top, right, bottom = box
        which = "" if self.units <= UNITS else f", the {len(self.order)} most active of {self.units} units"
        view.text((left, top - 18), "memory" + which, 12, MUTED)
        if self.units == 0:
            view.draw.rectangle(box, fill=PANEL)
            view.text((left + 12, top + 12), "this policy has no memory", 13, MUTED)
            return
        legend = _colours(np.linspace(-1, 1, 60)[None]).repeat(7, 0)
        view.text((right - 75, top - 18), "-", 12, MUTED, anchor="ra")
        view.image.paste(Image.fromarray(legend), (right - 71, top - 13))
        view.text((right, top - 18), "+", 12, MUTED, anchor="ra")
        view.draw.rectangle(box, fill=EMPTY)
        columns = (right - left) // self.column
        recent = view.trace.memory[max(0, view.step + 1 - columns) : view.step + 1, self.order] / self.limit
        height = min(16, (bottom - top) // len(self.order))
        colours = np.repeat(np.repeat(_colours(recent.T), height, 0), self.column, 1)
        view.image.paste(Image.fromarray(colours), (right - colours.shape[1], top))

    def _value(self, view: _View, box: Box) -> None:
        _strip(view, box, "value", short(view.trace.value[view.step]))
        y = _scale(self.values, box)
        view.draw.line((box[0], y(0), box[2], y(0)), fill=GRID)
        points = [(x + self.column // 2, y(v)) for x, v in self._recent(box, view.trace.value, view.step)]
        if len(points) > 1:
            view.draw.line(points, fill=ACCENT, width=2, joint="curve")
        x, last = points[-1]
        view.draw.ellipse((x - 3, last - 3, x + 3, last + 3), fill=ACCENT)

    def _reward(self, view: _View, box: Box) -> None:
        reward = view.trace.reward[view.step]
        _strip(view, box, "reward", signed(reward))
        y = _scale(self.rewards, box)
        view.draw.line((box[0], y(0), box[2], y(0)), fill=GRID)
        for x, earned in self._recent(box, view.trace.reward, view.step):
            if earned:
                low, high = sorted((y(0), y(earned)))
                colour = GOOD if earned > 0 else BAD
                view.draw.rectangle((x, low, x + max(self.column - 2, 1), max(high, low + 1)), fill=colour)

    def _action(self, view: _View, box: Box) -> None:
        made = choices(view.trace, view.step)
        shown = made[:3]
        more = f", {len(shown)} of its {len(made)} parts" if len(made) > len(shown) else ""
        view.text((box[0], box[1] - 18), "action" + more, 12, MUTED)
        if len(made) == 1 and made[0].kind in ONE_OF_N:
            view.text((box[2], box[1] - 18), str(made[0]), 12, INK, anchor="ra")
        width = (box[2] - box[0] + 12) // max(len(shown), 1)
        for i, choice in enumerate(shown):
            left = box[0] + i * width
            right, bottom = left + width - 12, box[3]
            if choice.part:
                view.fit((left, bottom - 12), choice.part, right - left, (12,), MUTED)
                bottom -= 15
            if choice.kind == "normal":
                _normals(view, (left, box[1], right, bottom), choice, self.reach[i])
            else:
                _bars(view, (left, box[1], right, bottom), choice, self.reach.get(i))

    def _recent(self, box: Box, values: np.ndarray, step: int) -> list[tuple[int, float]]:
        """(left edge of its column, value) for the steps that fit, the current one at the right."""
        columns = (box[2] - box[0]) // self.column
        start = max(0, step + 1 - columns)
        edge = box[2] - self.column
        return [(edge - (step - t) * self.column, float(values[t])) for t in range(start, step + 1)]

    def _seen(self, episode: int, step: int) -> np.ndarray | None:
        """The frame of a step, or the image in its observation; None if there is neither."""
        if self.film.frames is not None:
            return self.film.frames[episode][step].image
        trace = self.film.traces[episode]
        for part in trace.obs[min(step, len(trace) - 1)]:
            if part["kind"] == "image":
                with Image.open(io.BytesIO(base64.b64decode(part["png"]))) as image:
                    return np.asarray(image.convert("RGB"))
        return None


@dataclass(frozen=True, slots=True)
class _View:
    """The image of one step while it is drawn."""

    image: Image.Image
    draw: ImageDraw.ImageDraw
    fonts: dict[int, Any]
    trace: Trace
    step: int

    def text(self, at: tuple[float, float], text: str, size: int, fill: str, anchor: str = "la") -> None:
        self.draw.text(at, _drawable(text), fill=fill, font=self.fonts[size], anchor=anchor)

    def fit(self, at: tuple[float, float], text: str, width: int, sizes: tuple[int, ...], fill: str) -> None:
        """Draw in the largest of ``sizes`` that fits ``width``; truncate if none does."""
        text = _drawable(text.replace("\n", " "))
        size = next((s for s in sizes if self.fonts[s].getlength(text) <= width), sizes[-1])
        while self.fonts[size].getlength(text) > width and len(text) > 1:
            text = text.removesuffix("…")[:-1] + "…"
        self.draw.text(at, text, fill=fill, font=self.fonts[size])


def _drawable(text: str) -> str:
    """The text in characters of the built-in font."""
    for symbol, word in SUITS.items():
        text = text.replace(symbol, word)
    return "".join(c if c.isascii() or c in "·…±" else "?" for c in text)


def _paste(view: _View, box: Box, picture: np.ndarray) -> None:
    """Paste the picture as large as fits into the box; small ones are scaled by whole numbers."""
    left, top, right, bottom = box
    height, width = picture.shape[:2]
    scale = min((right - left) / width, (bottom - top) / height)
    if scale >= 2:
        scale = int(scale)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    how = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS
    view.draw.rectangle(box, fill=PANEL)
    corner = (left + (right - left - size[0]) // 2, top + (bottom - top - size[1]) // 2)
    view.image.paste(Image.fromarray(picture).resize(size, how), corner)


def _strip(view: _View, box: Box, name: str, number: str) -> None:
    view.text((box[0], box[1] - 18), name, 12, MUTED)
    view.text((box[2], box[1] - 18), number, 12, INK, anchor="ra")
    view.draw.rectangle(box, fill=PANEL)


def _bars(view: _View, box: Box, choice: Choice, reach: tuple[float, float] | None) -> None:
    """Probabilities or values as bars, the chosen one in colour, with names if there is room.

    ``reach``: of values, the range of all.
    """
    left, top, right, bottom = box
    count = len(choice.numbers)
    wide = min((right - left) / count, 72)
    named = wide >= 22
    foot = bottom - 16 if named else bottom
    # Among many choices none is likely: scale so that the likeliest fills the height.
    full = 1.0 if count <= 12 else max(np.nan_to_num(choice.numbers).max(), 1e-9)
    low, full = (0.0, full) if reach is None else reach
    head = top + 14 if wide >= 34 else top
    for i, number in enumerate(choice.numbers):
        share = (number - low) / (full - low)
        is_chosen = bool(choice.value[i]) if choice.kind == "bernoulli" else i == choice.index
        x = left + i * wide
        high = foot - max(1, (foot - head) * np.nan_to_num(share))
        pad = 3 if wide >= 10 else 0
        view.draw.rectangle((x, head, x + wide - 1 - pad, foot), fill=PANEL)
        view.draw.rectangle((x, high, x + wide - 1 - pad, foot), fill=ACCENT if is_chosen else BAR)
        middle = x + (wide - pad) / 2
        if wide >= 34:
            label = short(number) if choice.kind == "values" else percent(number)
            view.text((middle, head - 14), label, 12, INK if is_chosen else MUTED, anchor="ma")
        if named:
            label = choice.labels[i] if choice.kind in ONE_OF_N else str(i)
            view.text((middle, foot + 2), label, 12, INK if is_chosen else MUTED, anchor="ma")


def _normals(view: _View, box: Box, choice: Choice, reach: tuple[float, float]) -> None:
    """Every dimension on an axis: mean and standard deviation in grey, the action in colour."""
    left, top, right, bottom = box
    shown = list(zip(choice.numbers, choice.std, choice.value))[:6]
    each = min((bottom - top) / len(shown), 22)
    low, high = reach
    axis_right = right - 46

    def x(value: float) -> float:
        return left + (axis_right - left) * min(max((value - low) / (high - low), 0.0), 1.0)

    for i, (mean, std, value) in enumerate(shown):
        y = top + each * (i + 0.5)
        thick = max(each * 0.3, 2)
        view.draw.rectangle((left, y - thick, axis_right, y + thick), fill=PANEL)
        view.draw.rectangle((x(mean - std), y - thick, x(mean + std), y + thick), fill=BAR)
        view.draw.line((x(0), y - thick, x(0), y + thick), fill=MUTED)
        view.draw.rectangle((x(value) - 2, y - thick, x(value) + 2, y + thick), fill=ACCENT)
        view.text((right, y - 7), short(value), 12, INK, anchor="ra")


def _colours(values: np.ndarray) -> np.ndarray:
    """Numbers in [-1, 1] as colours uint8 [..., 3]: blue, white, orange, as in the report."""
    # Few shades keep a GIF small.
    x = (np.nan_to_num(values).clip(-1, 1)[..., None] * SHADES).round() / SHADES
    strength = np.abs(x) ** 0.8  # makes small activity visible
    end = np.where(x > 0, np.array(POSITIVE), np.array(NEGATIVE))
    return (np.array(MIDDLE) * (1 - strength) + end * strength).round().astype(np.uint8)


def _limits(columns: list[np.ndarray]) -> tuple[float, float]:
    """The range of the numbers, extended to include 0."""
    every = np.nan_to_num(np.concatenate(columns))
    low, high = min(0.0, float(every.min())), max(0.0, float(every.max()))
    return (low, high) if high > low else (0.0, 1.0)


def _scale(limits: tuple[float, float], box: Box) -> Any:
    """A function from a number to its height in the box, with a margin."""
    low, high = limits
    top, bottom = box[1] + 4, box[3] - 4
    return lambda value: bottom - (bottom - top) * (np.nan_to_num(value) - low) / (high - low)


def _reach(traces: list[Trace]) -> dict[int, tuple[float, float]]:
    """The range of each part of the action that is normal, or has values, over all steps."""
    ranges: dict[int, tuple[float, float]] = {}
    for trace in traces:
        for step in range(len(trace)):
            for i, choice in enumerate(choices(trace, step)):
                if choice.kind == "values":
                    known = [x for x in choice.numbers if x == x]
                    ranges[i] = _limits([np.array([*known, *ranges.get(i, ())])])
                if choice.kind == "normal":
                    edges = [m + s * sign for m, s in zip(choice.numbers, choice.std) for sign in (-1, 1)]
                    ranges[i] = _limits([np.array([*edges, *choice.value, *ranges.get(i, ())])])
    return ranges
