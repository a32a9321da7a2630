"""The viewer of a replay in a real browser: what it shows is what the simulation says."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import pytest

from recollect.cli import main
from recollect.errors import EnvError
from recollect.reports.mech_viewer import write_viewer
from recollect.tasks.mech.frames import frames
from recollect.tasks.mech.replays import load
from tests.support.browser import ARROW_LEFT, ARROW_RIGHT, END, HOME, NEEDED, Browser, wait_for
from tests.support.mech_games import LAST, game, states

pytestmark = NEEDED


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_viewer(game().save(tmp_path_factory.mktemp("game") / "game.json"))


def go(browser: Browser, frame: int) -> None:
    browser.js(
        "const s = document.querySelector('.slider'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))",
        frame,
    )


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").split(" ")[0])


def facts(browser: Browser) -> dict[str, str]:
    names, values = browser.texts(".arena-panel dt"), browser.texts(".arena-panel dd")
    charts = zip(browser.texts(".arena-chart figcaption span"), browser.texts(".arena-chart output"))
    return dict(zip(names, values)) | dict(charts)


def test_the_page_is_alone_and_small(page: Path, browser: Browser):
    """No address of the network in it, a policy that forbids all, and names that are no markup."""
    text = page.read_text()
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert not re.findall(r"(?:src|href)=[\"']?https?:", text)
    assert not [url for url in re.findall(r"https?://[^\s\"'<)]+", text) if "www.w3.org" not in url]
    assert len(text) < 500_000
    browser.open(page)
    assert browser.texts("h1") == ["<b>x against bot"]
    assert browser.js("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("width", [390, 900, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_drawn_at_any_width_in_both_themes(browser: Browser, page: Path, width: int, dark: bool):
    browser.open(page, dark=dark, width=width)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    go(browser, LAST // 2)
    # The map has many colours, and both sides on it.
    colours = browser.js(
        "const c = document.querySelector('.arena-canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; const found = new Map();"
        "for (let i = 0; i < d.length; i += 4) { const k = [d[i], d[i+1], d[i+2]].join();"
        "found.set(k, (found.get(k) ?? 0) + 1); } return Object.fromEntries(found)"
    )
    assert len(colours) > 50
    for name in ("--blue", "--red"):
        colour = browser.js(
            "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()", name
        )
        assert colours.get(",".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5)), 0) > 20, name


def test_every_number_of_the_panel_is_that_of_the_simulation(browser: Browser, page: Path):
    browser.open(page)
    memory = game().extras["memory"]
    for frame, row in ((0, 0), (40, 3), (55, 8), (70, 1), (LAST, 6)):
        go(browser, frame)
        browser.click(f"[data-row='{row}']")
        now, shown = states()[frame], facts(browser)
        for field, name in (("hp", "health"), ("heat", "heat"), ("stability", "stability"), ("legs", "legs")):
            assert number(shown[name]) == pytest.approx(now[field][row], abs=0.006, rel=1e-3), (
                frame,
                row,
                name,
            )
        x, y = shown["place"].split(", ")[:2]
        assert (number(x), number(y)) == pytest.approx((now["x"][row], now["y"][row]), abs=0.01, rel=1e-3)
        assert number(shown["sensors"]) == pytest.approx(now["range"][row], abs=0.05)
        assert number(shown["damage dealt"]) == pytest.approx(now["dealt"][row], rel=1e-3)
        painted = now["painted"][row]
        assert (
            shown["painted"] == "no" if painted <= 0 else number(shown["painted"]) == pytest.approx(painted)
        )
        status = shown["now"]
        assert (status == "destroyed") == (not now["lives"][row])
        if now["lives"][row]:
            assert (status == "shut down") == now["off"][row]
        if frame < LAST:
            assert number(shown["memory norm"]) == pytest.approx(
                float(memory[frame, row]), rel=2e-3, abs=2e-3
            )
        browser.press("body", "\ue00c")  # Escape
        assert browser.js("return document.querySelector('.arena-panel').hidden")


def test_the_board_shows_scores_and_the_living(browser: Browser, page: Path):
    browser.open(page)
    holders = ["The zone is empty", "Blue holds the zone", "Red holds the zone", "The zone is contested"]
    for frame in (0, 45, 60, 80, LAST):
        go(browser, frame)
        now = states()[frame]
        scores = browser.texts(".arena-score strong")
        assert [float(score) for score in scores] == pytest.approx(now["score"], abs=0.006)
        left = [int(text.split(" ")[0]) for text in browser.texts(".arena-score small")]
        assert left == now["alive"]
        assert browser.texts(".arena-zone") == [holders[now["holder"]]]
        assert browser.texts(".arena-time") == [f"0:{frame / 4:05.2f}"]


def test_mechs_are_drawn_where_they_are(browser: Browser, page: Path):
    """A click on the place of a mech selects it: north is up, and blue starts at the bottom left."""
    browser.open(page)
    first = states()[0]
    assert max(first["x"][:5] + first["y"][:5]) < 0 < min(first["x"][5:] + first["y"][5:])
    for frame, row in ((0, 2), (0, 9), (30, 6), (30, 4)):
        go(browser, frame)
        now = states()[frame]
        at = [(now["x"][row] + 50) / 100, (50 - now["y"][row]) / 100]
        browser.mouse(".arena-canvas", *at)
        assert browser.texts(".tip-title")[0].startswith(("blue", "red")[row // 5] + f" {row % 5},")
        browser.mouse(".arena-canvas", *at, "mousePressed", "mouseReleased")
        pressed = browser.js(
            "return [...document.querySelectorAll('[aria-pressed=true]')].map(b => +b.dataset.row)"
        )
        assert pressed == [row]
    browser.mouse(".arena-canvas", 0.02, 0.5, "mousePressed", "mouseReleased")
    assert browser.js("return document.querySelector('.arena-panel').hidden")


def test_events_jump_to_their_time(browser: Browser, page: Path):
    events = frames(game())["events"]
    browser.open(page)
    browser.js(
        "document.querySelectorAll('.arena-log input').forEach(i => i.checked || i.disabled || i.click())"
    )
    assert browser.count(".arena-events li") == len(events)
    place = next(i for i, event in enumerate(events) if event["kind"] == "kill")
    browser.click(f".arena-events li:nth-child({place + 1}) button")
    assert browser.texts(".arena-time") == [f"0:{events[place]['at'] / 4:05.2f}"]
    assert (
        "destroys" in browser.texts(".arena-events [aria-current]")[0]
        or events[place]["at"] == events[place + 1]["at"]
    )


def test_the_keyboard_moves_in_time_and_between_mechs(browser: Browser, page: Path):
    browser.open(page)
    clock = functools.partial(browser.texts, ".arena-time")
    browser.press("body", ARROW_RIGHT * 3)
    assert clock() == ["0:00.75"]
    browser.press(".slider", ARROW_LEFT)  # the slider itself does not move twice
    assert clock() == ["0:00.50"]
    browser.press("body", END)
    assert clock() == [f"0:{LAST / 4:05.2f}"]
    browser.press("body", HOME)
    assert clock() == ["0:00.00"]
    browser.press("body", "n")
    kinds = ("kill", "zone", "fall", "shutdown", "legs", "end")
    first = min(event["at"] for event in frames(game())["events"] if event["kind"] in kinds)
    assert clock() == [f"0:{first / 4:05.2f}"]
    browser.press("body", "p")
    assert clock() == [f"0:{first / 4:05.2f}"]  # there is none before
    browser.press("body", "]]")
    assert browser.texts(".arena-panel h3")[0].startswith("blue 1, medium")
    browser.press("body", "[[")
    assert browser.texts(".arena-panel h3")[0].startswith("red 4, scout")
    pixels = "return document.querySelector('.arena-canvas').toDataURL()"
    whole = browser.js(pixels)
    browser.press("body", "++")
    near = browser.js(pixels)
    assert near != whole
    browser.press("body", "0")
    assert browser.js(pixels) == whole
    browser.press("body", "l")
    assert not browser.js(
        "return [...document.querySelectorAll('.arena-main input[type=checkbox]')][2].checked"
    )


def test_it_plays_steps_and_stops(browser: Browser, page: Path):
    browser.open(page)
    browser.click(".arena-step[aria-label='One decision on']")
    assert browser.texts(".arena-time") == ["0:00.25"]
    browser.js("document.querySelector('input[type=radio][value=\"4\"]').click()")
    go(browser, LAST - 12)
    browser.press("body", " ")
    assert browser.texts(".play") == ["Pause"]
    wait_for(lambda: browser.texts(".play") == ["Play"])
    assert browser.texts(".arena-time") == [f"0:{LAST / 4:05.2f}"]
    # Between two decisions the map moves on smoothly.
    browser.js("document.querySelector('input[type=radio][value=\"0.25\"]').click()")
    go(browser, 10)
    browser.press("body", " ")
    moments = set()
    wait_for(lambda: moments.add(browser.texts(".arena-main .where")[0]) or len(moments) > 4)
    browser.press("body", " ")
    assert any(not text.split(" ")[0].endswith(("00", "25", "50", "75")) for text in moments)


def test_contrast_of_both_sides(browser: Browser, page: Path):
    """Colours of sides stand out from every ground, by 3 to 1, in both themes."""
    for dark in (False, True):
        browser.open(page, dark=dark)
        for ink in ("--blue", "--red", "--paint", "--laser"):
            for ground in ("--ground-low", "--ground-high"):
                assert contrast(browser, ink, ground) >= 3, (dark, ink, ground)
        for ink in ("--blue", "--red"):
            assert contrast(browser, ink, "--bg") >= 4.5, (dark, ink)
            assert contrast(browser, "--on-mech", ink) >= 4.5, (dark, ink)


def contrast(browser: Browser, *names: str) -> float:
    code = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"

    def luminance(name: str) -> float:
        colour = browser.js(code, name)
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted(map(luminance, names), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_replay_that_is_not_reproduced_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = game().save(tmp_path / "game.json")
    text = file.read_text()
    file.write_text(text.replace('"seed": 5', '"seed": 6'))
    assert load(file).seed == 6
    with pytest.raises(EnvError, match="at the start"):
        write_viewer(file)
    assert main(["play", str(file), "--check"]) == 1
    assert "differs at the start" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("*.html"))
    assert math.isfinite(file.stat().st_size)
