"""A real browser without a window, for tests of pages: they draw, react to keys and mouse, raise no error.

The browser is driven over the WebDriver protocol, which is JSON over HTTP, so that it needs no package. A
conftest of tests imports the fixtures, and a module of them has ``pytestmark = NEEDED``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
DRIVER = shutil.which("chromedriver")
NEEDED = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)",
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1280,900"),
)
ARROW_LEFT, ARROW_RIGHT, HOME, END, SPACE = "\ue012", "\ue014", "\ue011", "\ue010", " "
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which the protocol names an element."""


class Browser:
    """One session with chromedriver."""

    def __init__(self, port: int, profile: Path):
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._base = f"http://127.0.0.1:{port}"
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with self._http.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:500]) from None

    def open(self, path: Path, *, dark: bool = False, width: int = 1280) -> None:
        self.devtools("Emulation.setEmulatedMedia", features=[_scheme("dark" if dark else "light")])
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._ask("POST", "/url", {"url": path.resolve().as_uri()})

    def devtools(self, command: str, **params: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def js(self, code: str, *args: Any) -> Any:
        return self._ask("POST", "/execute/sync", {"script": code, "args": list(args)})

    def texts(self, selector: str) -> list[str]:
        return self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )

    def count(self, selector: str) -> int:
        return self.js("return document.querySelectorAll(arguments[0]).length", selector)

    def click(self, selector: str) -> None:
        self.js("document.querySelector(arguments[0]).click()", selector)

    def press(self, selector: str, keys: str) -> None:
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._ask("POST", f"/element/{element}/value", {"text": keys})

    def mouse(self, selector: str, x: float, y: float, *kinds: str) -> None:
        """Mouse events at a place of an element, as shares of its width and height."""
        box = self.js(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]",
            selector,
        )
        # The scroll has its own event, which hides the tooltip: let it pass.
        self.js("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        place = {"x": box[0] + box[2] * x, "y": box[1] + box[3] * y}
        for kind in kinds or ("mouseMoved",):
            held = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
            self.devtools("Input.dispatchMouseEvent", type=kind, **place, **held)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def quit(self) -> None:
        self._ask("DELETE", "")


def _scheme(name: str) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": name}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    log = tmp_path_factory.mktemp("driver") / "log"
    with log.open("w") as file:
        driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=file, stderr=subprocess.STDOUT)
    browser = None
    try:
        port = wait_for(lambda: _port(log.read_text()))
        browser = Browser(port, tmp_path_factory.mktemp("profile"))
        yield browser
    finally:
        if browser is not None:
            browser.quit()
        driver.terminate()
        driver.wait(20)


def _port(log: str) -> int | None:
    started = [line for line in log.splitlines() if "started successfully on port" in line]
    return int(started[0].rstrip(".").split()[-1]) if started else None


def wait_for(found: Callable[[], Any], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"nothing came within {seconds} s")


@pytest.fixture
def browser(session: Browser) -> Iterator[Browser]:
    session.errors()  # of the test before
    yield session
    assert session.errors() == []
