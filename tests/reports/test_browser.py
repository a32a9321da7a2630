"""Reports in a real browser, without a window: they draw, react to keys and mouse, and raise no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.reports import write_report
from tests.support.browser import (
    ARROW_LEFT,
    ARROW_RIGHT,
    END,
    HOME,
    NEEDED,
    SPACE,
    Browser,
    wait_for,
)
from tests.support.report_runs import make_config, make_metrics, make_run, make_trace, with_actors, write

pytestmark = NEEDED


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything."""
    long = make_trace(40, 12, checkpoint_steps=1000, first=[t in (0, 20) for t in range(40)])
    run = make_run(tmp_path_factory.mktemp("runs") / "run", traces=[make_trace(), long])
    points = [
        {"length": n, "mean": 1.0, "low": 0.9, "high": 1.0, "best": 1.0, "memoryless": 0.5}
        for n in (5, 20, 80)
    ]
    about = {"format": 1, "checkpoint_steps": 81920, "option": "horizon", "trained": 20, "episodes": 100}
    write(run / "memory_lengths.json", about | {"points": points})
    return write_report(run, play=False)


SECTIONS = ["learning", "episode", "memory-length", "gauges", "speed", "events", "config"]


@pytest.mark.parametrize("width", [390, 1280, 2200])
@pytest.mark.parametrize("dark", [False, True])
def test_all_sections_are_drawn_at_any_width_in_both_themes(
    browser: Browser, report: Path, width: int, dark: bool
):
    browser.open(report, dark=dark, width=width)
    assert browser.js("return [...document.querySelectorAll('main section')].map(s => s.id)") == SECTIONS
    assert browser.js("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.count("#learning .series.line path.line[d^=M]") == 1
    assert browser.count("#learning .series.points circle.point") == 3
    assert browser.count("#gauges .multiple") >= 9
    assert browser.texts("h1") == ["run"]
    assert "finished" in browser.texts(".badge")[0]


@pytest.mark.parametrize(("mode", "charts"), [("lockstep", 2), ("async", 3)])
def test_actors_elsewhere_have_a_section(browser: Browser, tmp_path: Path, mode: str, charts: int):
    """Where their time went, how fast each is, and how far their weights lag if they may."""
    config = make_config(runtime="processes", mode=mode, actors=2)
    run = make_run(tmp_path / "run", metrics=with_actors(make_metrics()), config=config)
    browser.open(write_report(run, play=False), width=900)
    assert browser.count("#runtime .plot svg") == charts
    (lead,) = browser.texts("#runtime .lead")
    assert lead.startswith(f"2 actors in processes of their own, {mode}. The learner waited for them 13%")
    assert "1 restart after a process died or hung" in lead
    assert [text.split()[-1] for text in browser.texts("#runtime .share + .legend li")] == [
        "50%",
        "25%",
        "5%",
        "20%",
    ]
    assert browser.js("return document.documentElement.scrollWidth") <= 900


def test_text_has_contrast_in_both_themes(browser: Browser, report: Path):
    """At least 4.5 to 1 between text, muted text and every surface that they stand on."""
    for dark in (False, True):
        browser.open(report, dark=dark)
        for ink in ("--ink", "--muted"):
            for ground in ("--bg", "--surface", "--raised"):
                assert _contrast(*_colours(browser, ink, ground)) >= 4.5, (dark, ink, ground)
        tones = [
            (f"--{tone}", f"--{ground}")
            for tone in ("good", "warn", "bad")
            for ground in ("surface", f"{tone}-bg")
        ]
        ribbon = [(f"--c{i}", "--bg") for i in range(6)]
        for ink, ground in [*tones, *ribbon, ("--ink", "--warn-bg"), ("--ink", "--bad-bg")]:
            assert _contrast(*_colours(browser, ink, ground)) >= 4.5, (dark, ink, ground)
        for i in range(8):
            assert _contrast(*_colours(browser, f"--c{i}", "--surface")) >= 3, (dark, i)


def _colours(browser: Browser, *names: str) -> list[list[int]]:
    code = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
    found = [browser.js(code, name) for name in names]
    return [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in found]


def _contrast(one: list[int], other: list[int]) -> float:
    """WCAG's ratio of two sRGB colours."""

    def luminance(colour: list[int]) -> float:
        parts = [c / 255 for c in colour]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_theme_can_be_switched(browser: Browser, report: Path):
    browser.open(report)
    colour = "return getComputedStyle(document.body).backgroundColor"
    picture = "return document.querySelector('.heat').toDataURL()"
    before, heat = browser.js(colour), browser.js(picture)
    browser.click("#theme")
    assert browser.js(colour) != before
    assert browser.js(picture) != heat  # the picture is drawn anew
    assert browser.texts("#theme-text") == ["Light"]


def _where(browser: Browser) -> tuple[str, float]:
    return browser.texts(".where")[0], browser.js(
        "return parseFloat(document.querySelector('.cursor').style.left)"
    )


def test_the_scrubber_obeys_the_keyboard(browser: Browser, report: Path):
    browser.open(report)
    assert _where(browser) == ("step 0 of 21 · an episode starts", pytest.approx(100 * 0.5 / 22, abs=0.01))
    assert browser.texts(".said") == ["cue 1"]
    browser.press(".slider", ARROW_RIGHT * 3)
    assert _where(browser) == ("step 3 of 21", pytest.approx(100 * 3.5 / 22, abs=0.01))
    assert browser.texts(".said") == ["blank"]
    browser.press(".slider", ARROW_LEFT)
    assert _where(browser)[0] == "step 2 of 21"
    browser.press(".slider", END)
    assert _where(browser)[0] == "step 21 of 21 · the episode terminates"
    assert browser.texts(".pairs dd")[1:3] == ["1", "1"]  # the reward, the return so far
    spoken = browser.js("return document.querySelector('.slider').getAttribute('aria-valuetext')")
    assert spoken.startswith("step 21 of 21: query, action cue 1, value")
    browser.press(".slider", HOME)
    assert _where(browser)[0].startswith("step 0 ")


def test_space_plays_to_the_end_and_stops(browser: Browser, report: Path):
    browser.open(report)
    browser.press(".slider", END + ARROW_LEFT * 2)
    browser.press(".slider", SPACE)
    assert browser.texts(".play") == ["Pause"]
    wait_for(lambda: _where(browser)[0].startswith("step 21 "))
    assert browser.texts(".play") == ["Play"]


def test_the_mouse_moves_the_cursor_and_shows_numbers(browser: Browser, report: Path):
    browser.open(report)
    browser.mouse(".heat", 10.5 / 22, 0.5, "mousePressed", "mouseReleased")
    assert _where(browser)[0] == "step 10 of 21"
    thumb = browser.js(
        "const s = document.querySelector('.slider').getBoundingClientRect();"
        "const h = document.querySelector('.heat').getBoundingClientRect();"
        "return [s.left + 9 + (s.width - 18) * 10 / 21, h.left + h.width * 10.5 / 22]"
    )
    assert thumb[0] == pytest.approx(thumb[1], abs=1)  # the thumb stands above its column
    browser.mouse(".heat", 2.5 / 22, 0.01)
    assert browser.texts(".tip-title") == ["step 2"]
    assert browser.texts(".tip-row span")[0][0] in "hc"


def test_episodes_parts_and_orders_can_be_chosen(browser: Browser, report: Path):
    browser.open(report)
    assert "8 units × 22 steps" in browser.texts(".caption")[-1]
    browser.click("input[value='h']")
    assert "4 units × 22 steps" in browser.texts(".caption")[-1]
    pixels = "return document.querySelector('.heat').toDataURL()"
    lively = browser.js(pixels)
    browser.click("input[value='number']")
    assert browser.js(pixels) != lively
    browser.js(
        "const menu = document.querySelector('.scrubber select'); menu.value = '1';"
        "menu.dispatchEvent(new Event('change'))"
    )
    assert _where(browser)[0].startswith("step 0 of 39")
    assert browser.count(".starts i") == 1  # an episode starts in the middle


def test_every_agent_of_an_episode_can_be_chosen(browser: Browser, tmp_path: Path):
    """At the same moment of the episode; another episode shows the same agent, if it is there."""
    who = {
        "ann": {"agent": "ann", "group": "archers", "start": 0, "return": 3.0},
        "bob": {"agent": "bob", "group": "bob", "start": 4, "return": 5.0},
    }
    traces = [make_trace(22, episode=0, **who["ann"]), make_trace(10, 12, episode=0, **who["bob"])]
    traces += [make_trace(9, 12, episode=1, **who["bob"])]
    browser.open(write_report(make_run(tmp_path / "run", traces=traces), play=False))
    episodes, agents = "label.select:nth-of-type(1) option", "label.select:nth-of-type(2) option"
    assert browser.texts(f".scrubber {episodes}") == [
        "1: return 4 on average, 22 steps, trained 81.92k",
        "2: return 5 on average, 13 steps, trained 81.92k",
    ]
    assert browser.texts(f".scrubber {agents}") == [
        "ann (archers): return 3, 22 steps",
        "bob: return 5, 10 steps",
    ]
    browser.press(".slider", ARROW_RIGHT * 6)
    assert _where(browser)[0] == "step 6 of 21"
    _choose(browser, 1, 1)
    assert _where(browser)[0] == "step 2 of 9 (6 of the episode)"
    assert "12 units × 10 steps" in browser.texts(".caption")[-1]
    _choose(browser, 1, 0)
    assert _where(browser)[0] == "step 6 of 21"
    _choose(browser, 1, 1)
    _choose(browser, 0, 1)
    assert browser.texts(f".scrubber {agents}") == ["bob: return 5, 9 steps"]
    assert _where(browser)[0].startswith("step 0 of 8 (4 of the episode)")
    _choose(browser, 0, 0)
    assert _where(browser)[0].startswith("step 0 of 9 (4 of the episode)"), "bob still"
    browser.open(tmp_path / "run" / "report.html", width=390)
    assert browser.js("return document.documentElement.scrollWidth") <= 390


def _choose(browser: Browser, menu: int, option: int) -> None:
    browser.js(
        "const menu = document.querySelectorAll('.scrubber .controls select')[arguments[0]];"
        "menu.value = String(arguments[1]); menu.dispatchEvent(new Event('change'))",
        menu,
        option,
    )


def test_the_x_axis_switches_between_steps_and_time(browser: Browser, report: Path):
    browser.open(report)
    path = "return document.querySelector('#learning .series.line path.line').getAttribute('d')"
    assert browser.texts("#learning .axis-text") == ["env steps"]
    steps = browser.js(path)
    browser.click("#learning input[value='seconds']")
    assert browser.texts("#learning .axis-text") == ["time of training"]
    assert browser.js(path) != steps
    assert "1:00" in browser.texts("#learning .axes text")
    assert "1:00" in browser.texts("#gauges .axes text")


def test_hovering_shows_values(browser: Browser, report: Path):
    browser.open(report)
    browser.mouse("#learning .chart", 0.5, 0.5)
    assert "steps" in browser.texts(".tip-title")[0]
    assert len(browser.texts(".tip-row")) == 2
    before = browser.texts("#gauges output")
    browser.mouse("#gauges .multiple .chart", 0.3, 0.5)
    after = browser.texts("#gauges output")
    assert sum(a != b for a, b in zip(before, after)) >= 2  # the crosshair is shared


def test_the_config_can_be_searched(browser: Browser, report: Path):
    browser.open(report)
    assert browser.texts("#config tbody th code") == ["env_kwargs.horizon"]
    browser.press("#config-search", "gae_la")
    assert browser.texts("#config tbody th code") == ["gae_lambda"]
    browser.press("#config-search", "zzz")
    assert browser.texts("#config tbody td") == ["No setting fits."]


def test_a_comparison(browser: Browser, tmp_path: Path):
    runs = [
        make_run(
            tmp_path / f"{core}-{seed}",
            config=make_config(seed=seed, core=core),
            evaluations=[0.5, 0.6 + seed / 9],
        )
        for core in ("lstm", "gru")
        for seed in (0, 1, 2)
    ]
    path = write_report(runs, tmp_path / "comparison.html")
    for width in (390, 1280):
        browser.open(path, width=width)
        assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.texts("h1") == ["6 runs in 2 groups"]
    assert browser.texts("#results tbody th") == ["core=lstm", "core=gru"]
    assert browser.count("#learning .band[d^=M]") == 2
    assert browser.count("#runs tbody tr") == 6
    browser.mouse("#learning .chart", 0.5, 0.5)
    assert [text.split(" ")[0] for text in browser.texts(".tip-row span")] == ["core=lstm", "core=gru"]
    browser.click("#learning .legend input")
    assert browser.count("#learning .band[d^=M]") == 1
    browser.click("#learning input[value='evaluations']")
    assert browser.texts("#differences tbody td") == ["lstm", "gru"]


def test_reports_of_almost_nothing(browser: Browser, tmp_path: Path):
    nothing = make_run(
        tmp_path / "nothing", env=None, metrics=[], evaluations=[], state="failed", reason="error: <b>x"
    )
    one = make_run(tmp_path / "one", metrics=make_metrics(1), evaluations=[0.5], state="running")
    odd = make_run(tmp_path / "odd", traces=[make_trace(2, 0, leaves=[], memory=[[], []], words=None)])
    for run in (nothing, one, odd):
        browser.open(write_report(run, play=False))
        assert not [text for text in browser.texts(".note") if "could not be drawn" in text]
    browser.open(nothing / "report.html")
    assert browser.texts(".badge span") == ["<b>x"]
    assert any("no episode has ended" in text for text in browser.texts("#learning .note"))
    browser.open(odd / "report.html")
    assert "This policy has no memory." in browser.texts(".caption")
    browser.open(write_report([nothing, one, odd], tmp_path / "all.html"))
    assert browser.count("#runs tbody tr") == 3
