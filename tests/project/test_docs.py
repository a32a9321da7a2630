"""The docs build without a warning, need no network, leave nothing out, and their code runs.

A block of code that stands below ``<!-- run -->`` is run here, with tiny budgets; all blocks of a page
share one namespace and one folder, in their order. Shell blocks run line by line in this process.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.cli import COMMANDS, main
from recollect.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(
        path
        for path in sorted(DOCS.rglob("*.md"))
        if not {"_build", "decisions"} & set(path.relative_to(DOCS).parts)
    ),
]
BLOCK = re.compile(r"(<!-- run -->\n)?^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = 2048


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    is_run: bool


def blocks(text: str) -> list[Block]:
    """The Python and shell blocks of a page, in order."""
    return [
        Block(found[2], found[3], text[: found.start(3)].count("\n") + 1, found[1] is not None)
        for found in BLOCK.finditer(text)
    ]


def name(path: Path) -> str:
    """Of a page, for the tests' ids."""
    return path.relative_to(ROOT).as_posix()


# The site ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages, built as `make docs` builds them."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(folder / "trees")]
    built = subprocess.run(
        [*command, str(DOCS), str(folder / "html")], capture_output=True, text=True, timeout=600
    )
    assert built.returncode == 0, built.stderr[-5000:]
    assert built.stderr == ""
    return folder / "html"


def test_the_site_builds_without_warnings(site):
    """Every warning of Sphinx, MyST, autodoc or ours is an error; the drawing is part of its page."""
    page = (site / "how-it-works.html").read_text()
    assert "<svg" in page
    assert "timeline-desc" in page


class Loaded(HTMLParser):
    """What a browser loads by itself for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Scripts, styles, images; not links that somebody has to click."""
        given = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.found.append(given.get("href") or "")


def test_no_page_loads_anything_from_the_network(site):
    for page in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert [address for address in loaded.found if "//" in address] == [], page


def test_every_public_name_has_its_place(site):
    """What ``import recollect`` offers is in the API pages."""
    api = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    assert [public for public in rc.__all__ if f'id="recollect.{public}"' not in api] == []


def test_every_setting_and_its_flag_are_listed(site):
    """S000-26: a field of a config is on the page, with its flag."""
    from recollect.config.algo_choice import ALGOS
    from recollect.config.core_choice import CORES
    from recollect.config.fields import field_names
    from recollect.config.settings import CLASSES
    from recollect.config.train import ALIASES

    page = (site / "config.html").read_text()
    paths = [
        (f"{section}." if section in ("encoder", "head") else "") + name
        for section, kind in (CLASSES | dict(ALGOS)).items()
        for name in field_names(kind)
        if name not in ("policy", "algo")
    ]
    # The fields of a preset are those of the core that it is made from.
    paths += [f"{core}.{name}" for core, kind in CORES.items() for name in field_names(kind)]
    assert len(paths) > 50
    ids = {path: f'id="setting-{re.sub("[._]", "-", path)}"' for path in paths}
    assert [path for path, anchor in ids.items() if anchor not in page] == []
    text = re.sub("<[^>]+>", "", page)
    assert "flag --learning-rate" in text
    assert "elsewhere lr" in text
    assert [theirs for theirs in ALIASES if theirs not in text] == []


def test_every_default_on_the_page_is_the_real_one(site):
    """Of every algorithm and core; a field that IMPALA shares with PPO stands under PPO."""
    from recollect.config.algo_choice import ALGOS
    from recollect.cores import CORES

    page = (site / "config.html").read_text()
    said = {
        found[1]: html.unescape(re.sub("<[^>]+>", "", found[2]))
        for found in re.finditer(r'id="setting-([\w-]+)"(.*?)</dd>', page, re.DOTALL)
    }
    parts = [(f"{name}-", CORES[name]()) for name in CORES] + [("impala-", ALGOS["impala"]())]
    parts += [("", ALGOS["ppo"]()), ("", rc.TrainConfig())]
    compared = 0
    for prefix, config in parts:
        for field in dataclasses.fields(config):
            name = field.name.replace("_", "-")
            text = said.get(prefix + name, said.get(name, "") if prefix == "impala-" else "")
            shown = re.search(r"default (.+?); flag", text)
            if shown is not None:
                compared += 1
                assert ast.literal_eval(shown[1]) == getattr(config, field.name), f"{prefix}{name}"
    assert compared > 140


def test_every_metric_is_listed(site):
    """The glossary, whole, each metric in exactly one group."""
    from recollect.training.metrics import GLOSSARY

    page = (site / "metrics.html").read_text()
    shown = re.findall(r'<td><p><code class="[^"]*"><span class="pre">([^<]+)</span></code></p></td>', page)
    assert sorted(set(shown) & GLOSSARY.keys()) == sorted(GLOSSARY)
    assert len(shown) == len(set(shown))


def test_every_command_is_shown_as_it_is(site):
    """The page of the command line holds the help texts."""
    page = re.sub("<[^>]+>", "", (site / "cli.html").read_text())
    for command in COMMANDS:
        assert f"recollect {command}" in page
    assert "--print-config" in page


# The code ------------------------------------------------------------------------------------------------


def test_marked_blocks_are_found():
    """The mark stands directly above its fence; other languages are left alone."""
    text = "a\n\n<!-- run -->\n```python\nx = 1\n```\n\n```sh\nls\n```\n\n```text\nno\n```\n"
    first, second = blocks(text)
    assert first == Block("python", "x = 1\n", 5, True)
    assert (second.language, second.code, second.is_run) == ("sh", "ls\n", False)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_all_code_of_a_page_is_python_and_all_commands_exist(page):
    """Also of blocks that are not run."""
    for block in blocks(page.read_text()):
        if block.language == "python":
            compile(block.code, f"{page.name}:{block.line}", "exec")
        for words in commands(block):
            assert words[0] in COMMANDS, f"{page.name}:{block.line}: recollect {words[0]}"


def test_code_that_does_not_work_is_found(tiny):
    """The runner does run: a wrong name, a wrong setting and a wrong flag fail."""
    with pytest.raises(NameError):
        run([Block("python", "missing\n", 1, True)])
    with pytest.raises(ConfigError):
        run([Block("python", "import recollect as rc\nrc.train('t-maze', learning_speed=1)\n", 1, True)])
    with pytest.raises(AssertionError):
        run([Block("sh", "recollect train t-maze --learning-speed 1\n", 1, True)])


RUNNABLE = [page for page in PAGES if any(block.is_run for block in blocks(page.read_text()))]


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_the_code_of_a_page_runs(page, tiny):
    """Every marked block, in order, with few steps."""
    run([block for block in blocks(page.read_text()) if block.is_run])


def run(marked: list[Block]) -> None:
    """Run blocks one after another, in one namespace and the current folder."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in marked:
        if block.language == "python":
            exec(compile(block.code, f"line {block.line}", "exec", dont_inherit=True), namespace)
        for words in commands(block):
            assert main(shortened(words)) == 0, f"line {block.line}: recollect {shlex.join(words)}"


def commands(block: Block) -> list[list[str]]:
    """What follows ``recollect`` in each line of a shell block, comments left out."""
    if block.language != "sh":
        return []
    lines = [shlex.split(line, comments=True) for line in block.code.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["recollect"]]


def shortened(words: list[str]) -> list[str]:
    """The same command with a tiny budget."""
    words = list(words)
    for flag, value in {"--steps": str(STEPS), "--eval-every": str(STEPS), "--episodes": "4"}.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    if words[0] in ("train", "resume"):
        words += ["--quiet", "--no-report"]
    if words[0] == "train":
        words += ["--eval-episodes", "4"]
    return words


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Few steps and episodes whatever the code asks for, in an empty folder, beside the examples."""
    train, resume, more, evaluate = rc.train, rc.resume, rc.Agent.train, rc.Agent.evaluate

    def few(settings: dict[str, Any]) -> dict[str, Any]:
        if settings.get("eval_every"):
            settings = settings | {"eval_every": STEPS, "eval_episodes": 4}
        return settings | {"progress": False} | ({"steps": STEPS} if "steps" in settings else {})

    monkeypatch.setattr(rc, "train", lambda env, **given: train(env, **few({"steps": 0} | given)))
    monkeypatch.setattr(rc, "resume", lambda path, **given: resume(path, **few(given)))
    monkeypatch.setattr(rc.Agent, "train", lambda self, steps=None, **kw: more(self, steps and STEPS, **kw))
    monkeypatch.setattr(rc.Agent, "evaluate", lambda self, episodes=4, **kw: evaluate(self, 4, **kw))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)


def test_there_is_one_way_to_have_no_memory():
    """``core="none"``; a second setting beside it would look necessary."""
    second = re.compile(r"""recurrent[_-]mode["']?\s*(=|:|\s)\s*["']?none\b""")
    files = [*PAGES, *(ROOT / "examples").glob("*.py"), *(ROOT / "configs").iterdir()]
    text = {path: path.read_text().replace("`recurrent_mode = 'none', but LSTM", "") for path in files}
    assert [path.name for path in files if second.search(text[path])] == []
    assert second.search('rc.train(env, core="none", recurrent_mode="none")')
    assert second.search("--core none --recurrent-mode none")
