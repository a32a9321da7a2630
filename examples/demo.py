"""The demo: an agent learns to remember, beside a twin that cannot.

A cue is shown at the first step of an episode, then nothing for a while, then a question: which cue
was it? One agent has an LSTM and trains until it has solved the task; its twin has no memory and
trains for as long. Run it with ``make demo``; it takes less than a minute on two cores.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import recollect as rc
from recollect.envs.gym import make_env
from recollect.report import plot_run, trace

CUES, HORIZON = 4, 40
TASK = {"cues": CUES, "horizon": HORIZON}


def main() -> None:
    """Train both, evaluate both, show and plot what was learned."""
    console = Console()
    console.print(f"[bold]Delayed cue[/]: one of {CUES} cues, {HORIZON} blank steps, then: which was it?\n")
    console.print("1. an agent with an LSTM, until it answers 99 of 100 right")
    agent = rc.train("delayed-cue", core="lstm", steps=1_000_000, target_return=0.99, seed=0, env_kwargs=TASK)
    console.print("2. its twin without memory, for as many steps")
    twin = rc.train(
        "delayed-cue", core="none", recurrent_mode="none", steps=agent.steps, seed=0, env_kwargs=TASK
    )

    table = Table("agent", "env steps", "right answers of 200", "95% interval", title="\nWhat was learned")
    for name, trained in (("with memory", agent), ("without", twin)):
        result = trained.evaluate(episodes=200)
        low, high = result.interval
        table.add_row(name, f"{trained.steps:,}", f"{result.mean:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)

    session = agent.session(num_envs=1)
    world = make_env("delayed-cue", 1, env_kwargs=TASK)
    obs = world.reset(seed=7)
    cue = int(obs[0, :CUES].argmax())
    for _ in range(HORIZON + 2):
        answer = session.act(obs.numpy())
        obs = world.step(torch.as_tensor(answer)).obs
    console.print(f"One episode: it saw cue {cue}, waited {HORIZON} steps and answered {int(answer[0])}.")

    path = plot_run(
        "runs/demo/report.png",
        {"with memory": agent.history, "without": twin.history},
        trace(agent.policy, make_env("delayed-cue", 1, env_kwargs=TASK), seed=7),
        title=f"Delayed cue, {CUES} cues, {HORIZON} blank steps",
        levels={"chance": 1 / CUES},
    )
    agent.save("runs/demo/agent")
    console.print(f"The picture is in [bold]{path}[/], the agent in [bold]runs/demo/agent[/] (rc.load).")


if __name__ == "__main__":
    main()
