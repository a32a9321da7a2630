"""The demo: an agent learns to remember; its twin without memory cannot.

The first step of an episode shows a cue. After some blank steps the agent must answer which cue it was.
One agent has an LSTM and trains until it has solved the task; its twin has no memory and trains for the
same number of steps. Run it with ``make demo``; it takes about a minute on two cores.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import recollect as rc
from recollect.reports import write_report

CUES, HORIZON = 4, 40
TASK = {"cues": CUES, "horizon": HORIZON}
FOLDER = Path("runs/demo")


def main() -> None:
    """Train both, evaluate both, show what was learned and write the reports."""
    console = Console()
    shutil.rmtree(FOLDER, ignore_errors=True)  # from the last demo
    console.print(f"[bold]Delayed cue[/]: one of {CUES} cues, {HORIZON} blank steps, then: which was it?\n")
    console.print("1. an agent with an LSTM, until it answers 99 of 100 right")
    # "auto" would choose by the load of the machine, and so give other numbers when it is busy.
    settings = {"env_kwargs": TASK, "seed": 0, "parallel": "rows", "eval_every": 50_000}
    agent = rc.train(
        "delayed-cue",
        core="lstm",
        steps=1_000_000,
        target_return=0.99,
        run=f"{FOLDER}/with-memory",
        **settings,
    )
    console.print("\n2. its twin without memory, for as many steps")
    twin = rc.train(
        "delayed-cue",
        core="none",
        steps=agent.steps,
        run=f"{FOLDER}/without",
        **settings,
    )

    table = Table("agent", "env steps", "right of 200", "95% interval", title="\nWhat was learned")
    for name, trained in (("with memory", agent), ("without", twin)):
        result = trained.evaluate(episodes=200)
        low, high = result.interval
        table.add_row(name, f"{trained.steps:,}", f"{result.mean:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)
    cue, answer = play(agent)
    console.print(f"One episode: it saw cue {cue}, waited {HORIZON} steps and answered {answer}.\n")

    report = write_report(FOLDER / "with-memory")
    both = write_report([FOLDER / "with-memory", FOLDER / "without"], FOLDER / "comparison.html")
    console.print("Open in a browser:")
    console.print(f"  [bold]{report}[/]  how it learned, and its memory step by step")
    console.print(f"  [bold]{both}[/]  both beside each other")
    console.print(f"See it play: [bold]recollect play {FOLDER}/with-memory[/] (in .venv/bin)")


def play(agent: rc.Agent) -> tuple[int, int]:
    """The cue and the answer of one episode, played in a session, which keeps the memory."""
    session = agent.session(num_envs=1)
    world = agent.make_env(1)
    obs = world.reset(seed=7)
    cue = int(obs[0, :CUES].argmax())
    for _ in range(HORIZON + 2):
        answer = session.act(obs.numpy())
        obs = world.step(torch.as_tensor(answer)).obs
    return cue, int(answer[0])


if __name__ == "__main__":
    main()
