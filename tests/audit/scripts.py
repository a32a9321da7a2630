"""A small recurrent PPO as one script, healthy or with one of the known bugs, and its ``Trainer``.

Everything is written here anew and uses nothing of Recollect: it stands for other people's trainers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from recollect.audit import TracedRollout, Trainer

OBS, ACTIONS, HIDDEN, ROWS, STEPS, CHUNK = 3, 4, 6, 4, 21, 6
GAMMA, GAE_LAMBDA = 0.9, 0.8


class Agent(nn.Module):
    """A GRU cell, an actor and a critic. ``bug`` is one of ``NETWORK_BUGS``, or anything else."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.inputs, self.cell = nn.Linear(OBS, HIDDEN), nn.GRUCell(HIDDEN, HIDDEN)
        self.actor, self.critic = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, 1)
        self.norm = nn.BatchNorm1d(OBS, affine=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.7)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        if self.bug == "running statistics move while acting":
            self.norm.train()
            self.norm(x)
            x = (x - self.norm.running_mean) / self.norm.running_var.sqrt()
        x = self.inputs(x).tanh()
        if self.bug == "rows are mixed":
            x = x + x.mean(0, keepdim=True)
        if self.bug == "dropout is on":
            x = nn.functional.dropout(x, 0.3)
        if self.bug == "the memory is not used":
            h = torch.zeros_like(h)
        return self.cell(x, h)

    def outputs(self, y: Tensor) -> tuple[Tensor, Tensor]:
        value = self.critic(y).squeeze(-1)
        if self.bug == "rows of the critic are permuted":
            value = value.roll(1, -1)
        return self.actor(y), value


def reset(h: Tensor, first: Tensor, bug: str) -> Tensor:
    if bug == "no reset":
        return h
    if bug == "one end resets every row":
        return torch.zeros_like(h) if first.any() else h
    if bug == "rows are reset by a number in place of a mask":
        h = h.clone()
        h[first.long()] = 0  # rows 0 and 1
        return h
    if bug == "reset to something else":
        return torch.where(first.unsqueeze(1), torch.ones_like(h), h)
    return torch.where(first.unsqueeze(1), torch.zeros_like(h), h)


def make(bug: str = "") -> Trainer:
    """The trainer, with a bug."""
    torch.manual_seed(3)
    agent = Agent(bug)
    acting_bug = bug.removeprefix("acting: ")
    learning_bug = bug.removeprefix("learning: ")
    acting_bug = acting_bug if bug.startswith("acting: ") or ":" not in bug else ""
    learning_bug = learning_bug if bug.startswith("learning: ") or ":" not in bug else ""
    late: dict[str, Tensor] = {}

    def act(obs: Tensor, h: Tensor, first: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        given = h
        if acting_bug == "reset one step late":  # by the flag of the step before
            previous = h[:, -1] > 0.5
            h = reset(h[:, :-1], previous, "")
        else:
            h = reset(h, first, acting_bug)
        after = agent.step(obs, h)
        if bug == "acting: the step changes the given memory":
            given.copy_(after)
        if bug == "a live state is the initial one":
            late["h"].copy_(after)
        logits, value = agent.outputs(after)
        action = Categorical(logits=logits).sample()
        if acting_bug == "reset one step late":
            after = torch.cat([after, first.unsqueeze(1).float()], 1)
        return {
            "action": action,
            "log_prob": Categorical(logits=logits).log_prob(action),
            "value": value,
        }, after

    def unroll(obs: Tensor, h: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        ys = []
        for t, x in enumerate(obs):
            flag = first[t]
            if learning_bug == "reset one step late":
                flag = first[t - 1] if t else torch.zeros_like(flag)
            if learning_bug == "reset one step early":
                flag = first[t + 1] if t + 1 < len(first) else torch.zeros_like(flag)
            h = reset(h, flag, learning_bug)
            if learning_bug == "the memory is detached in every step":
                h = h.detach()
            h = agent.step(x, h)
            ys.append(h)
        y = torch.stack(ys)
        if learning_bug == "later steps are read":
            y = y + y.flip(0)
        if learning_bug == "rows and steps are reshaped without a transpose":
            y = y.transpose(0, 1).reshape(y.shape)
        return y, h

    def evaluate(obs: Tensor, h: Tensor, first: Tensor, action: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        if h.shape[1] > HIDDEN:
            h = h[:, :HIDDEN]
        if learning_bug == "sequences start from zeros":
            h = torch.zeros_like(h)
        y, after = unroll(obs, h, first)
        logits, value = agent.outputs(y)
        if learning_bug == "actions are drawn again":
            action = Categorical(logits=logits).sample()
        if learning_bug == "no gradient at all":
            logits, value = logits.detach(), value.detach()
        return {"log_prob": Categorical(logits=logits).log_prob(action), "value": value}, after

    def initial_state(rows: int) -> Tensor:
        if bug == "the initial state is drawn":
            return torch.randn(rows, HIDDEN)
        if bug == "a live state is the initial one":
            return late.setdefault("h", torch.zeros(rows, HIDDEN))
        return torch.zeros(rows, HIDDEN + (acting_bug == "reset one step late"))

    trainer = Trainer(
        "script",
        obs_shape=(OBS,),
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        advantages=lambda script: advantages(script, bug),
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        normalise=lambda advantage, valid: normalised(advantage, valid, bug),
        update=lambda script: update(agent, unroll, script, bug),
        parameters=agent.state_dict,
    )
    return replace(trainer, record=lambda: record(trainer, bug))


def advantages(script: TracedRollout, bug: str = "") -> tuple[Tensor, Tensor]:
    reward, value, final, last = script.reward, script.value, script.final_value, script.bootstrap
    assert reward is not None
    assert value is not None
    assert final is not None
    assert last is not None
    terminated, truncated = script.terminated, script.truncated
    if bug == "both at once is a truncation":
        terminated = terminated & ~truncated
    if bug == "a termination is bootstrapped":
        terminated = torch.zeros_like(terminated)
    if bug == "nothing is bootstrapped at the end":
        last = torch.zeros_like(last)
    if bug == "the bootstrap is that of another row":
        last = last.roll(1)
    ended = script.terminated | truncated
    following = torch.cat([value[1:], last[None]])
    if bug == "one row runs on into the next":
        following = torch.cat([value.T.flatten()[1:], last[-1:]]).view(value.shape[::-1]).T
    cut = {
        "a time limit is a termination": torch.zeros_like(value),
        "a time limit has the value of its own step": value,
        "a time limit has the value of the next episode": following,
    }.get(bug, final)
    future = torch.where(terminated, 0.0, torch.where(truncated, cut, following))
    delta = reward + GAMMA * future - value
    advantage, after = torch.zeros_like(delta), torch.zeros_like(last)
    for t in reversed(range(len(delta))):
        goes_on = ~ended[t] | (bug == "the trace runs over time limits" and truncated[t])
        after = delta[t] + GAMMA * GAE_LAMBDA * goes_on * after
        advantage[t] = after
    returns = advantage + value
    if bug == "returns of normalised advantages":
        returns = (advantage - advantage.mean()) / advantage.std() + value
    return advantage, returns


def normalised(advantage: Tensor, valid: Tensor, bug: str = "") -> Tensor:
    if bug == "advantage statistics count padding":
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    own = advantage[valid]
    if bug == "a single step is divided by its spread":
        return (advantage - own.mean()) / own.std()
    return (advantage - own.mean()) / (own.std(correction=0) + 1e-8)


def update(agent: Agent, unroll: Callable[..., Any], script: TracedRollout, bug: str = "") -> None:
    assert script.valid is not None
    optimiser = torch.optim.SGD(agent.parameters(), lr=0.1)
    valid = torch.ones_like(script.valid) if bug == "padding counts in the loss" else script.valid
    y, _ = unroll(script.obs, script.state[0][:, :HIDDEN], script.first)
    logits, value = agent.outputs(y)
    ratio = (Categorical(logits=logits).log_prob(script.action) - script.log_prob).exp()
    advantage = normalised(script.advantage, valid)
    loss = -(ratio * advantage) + 0.5 * (value - script.returns).square()
    optimiser.zero_grad()
    (loss.masked_fill(~valid, 0).sum() / valid.sum()).backward()
    if bug != "the optimiser never steps":
        optimiser.step()


def record(trainer: Trainer, bug: str = "") -> TracedRollout:
    """A rollout on an env of random numbers, with sequences of 6 steps."""
    assert trainer.act is not None
    assert trainer.evaluate is not None
    assert trainer.initial_state is not None
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(STEPS + 1, ROWS, OBS, generator=generator)
    terminated = torch.rand(STEPS, ROWS, generator=generator) < 0.1
    truncated = (torch.rand(STEPS, ROWS, generator=generator) < 0.1) & ~terminated
    terminated[4, 0] = truncated[9, 1] = True
    terminated[-1, 0] = truncated[-1, 0] = False
    terminated[9, 1] = False
    ended = terminated | truncated
    first = torch.cat([torch.ones(1, ROWS, dtype=torch.bool), ended])
    first[0, 2:] = False  # two rows are inside an episode when the rollout begins
    state, states, outs, finals = trainer.initial_state(ROWS), [], [], []
    state[2:, :HIDDEN] = torch.randn(2, HIDDEN, generator=generator)
    for t in range(STEPS):
        states.append(state)
        with torch.no_grad():
            out, state = trainer.act(obs[t], state.clone(), first[t])
            none = torch.zeros(ROWS, dtype=torch.bool)
            finals.append(trainer.act(torch.randn(ROWS, OBS, generator=generator), state.clone(), none)[0])
        if bug == "recorded: the memory is thrown away":
            state = trainer.initial_state(ROWS)
        outs.append(out)
    states.append(state)
    bootstrap = trainer.act(obs[STEPS], state, first[STEPS])[0]["value"].detach()
    value, log_prob, action = (torch.stack([o[k] for o in outs]) for k in ("value", "log_prob", "action"))
    final_value = torch.stack([one["value"] for one in finals]).masked_fill(~truncated, 0)
    if bug == "recorded: time limits have the value of the next episode":
        final_value = torch.where(truncated, torch.cat([value[1:], bootstrap[None]]), final_value)
    if bug == "recorded: nothing is bootstrapped":
        bootstrap = torch.zeros_like(bootstrap)
    whole, index, state_at = torch.stack(states), [], []
    for start in range(0, STEPS, CHUNK):
        for row in range(ROWS):
            steps = [t * ROWS + row if t < STEPS else -1 for t in range(start, start + CHUNK)]
            shift = {"recorded: memories one step late": 1, "recorded: memories one step early": -1}.get(
                bug, 0
            )
            at = min(max(start + shift, 0), STEPS)
            other = (row + (bug == "recorded: memories of the next row")) % ROWS
            index.append(steps)
            state_at.append(whole[at, other])
    chunk_index, chunk_state = torch.tensor(index).T.clone(), torch.stack(state_at)
    if bug == "recorded: memories are zeros":
        chunk_state = torch.zeros_like(chunk_state)
    if bug == "recorded: memories of the rollout's start":
        chunk_state = whole[0].repeat(len(index) // ROWS, 1)
    if bug == "recorded: sequences without a transpose":
        chunk_index = torch.arange(STEPS * ROWS)[: STEPS * ROWS // CHUNK * CHUNK].view(-1, CHUNK).T
        chunk_state = chunk_state[: chunk_index.shape[1]]
    if bug == "recorded: strided sequences":
        chunk_index = torch.arange(0, STEPS * ROWS, 2 * ROWS).unsqueeze(1)
        chunk_state = whole[0][:1]
    if bug == "recorded: shuffled steps":
        chunk_index = chunk_index[torch.randperm(CHUNK, generator=generator)]
    if bug == "recorded: the remainder is dropped":
        chunk_index, chunk_state = chunk_index[:, :-ROWS], chunk_state[:-ROWS]
    flags = first[:-1].clone()
    recorded_first = flags.clone()
    if bug == "recorded: first is one step late":
        recorded_first = torch.cat([flags[:1], flags[:-1]])
        recorded_first[1] = False
    if bug == "recorded: first is never set":
        recorded_first[1:] = False
    position = chunk_index.clamp(min=0)
    own_first = flags.flatten()[position]
    if bug == "recorded: episodes are joined without a reset":
        own_first = torch.zeros_like(own_first)
        own_first[0] = flags.flatten()[position[0]]
    with torch.no_grad():
        made, _ = trainer.evaluate(
            obs[:-1].flatten(0, 1)[position], chunk_state, own_first, action.flatten()[position]
        )
    again = {name: torch.zeros(STEPS * ROWS) for name in made}
    used = chunk_index >= 0
    for name, x in made.items():
        again[name][chunk_index[used]] = x[used]
    trace = TracedRollout(
        first=recorded_first,
        terminated=terminated,
        truncated=truncated,
        obs=obs[:-1],
        action=action,
        reward=torch.randn(STEPS, ROWS, generator=generator),
        log_prob=log_prob,
        value=value,
        final_value=final_value,
        bootstrap=bootstrap,
        state=whole,
        learner_log_prob=again["log_prob"].view(STEPS, ROWS),
        learner_value=again["value"].view(STEPS, ROWS),
        chunk_index=chunk_index,
        chunk_state=chunk_state,
        chunk_first=own_first,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
    )
    advantage, returns = advantages(trace, bug)
    if bug == "recorded: a number is missing":
        advantage[3, 2] = torch.nan
    return trace.but(advantage=advantage, returns=returns)
