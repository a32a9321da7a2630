"""Audit a trainer that is a single script, here PPO with an LSTM in the style of CleanRL.

    python examples/audit_script.py

The upper half is the script as one finds it; ``trainer`` wraps its three functions.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.distributions import Categorical

from recollect.audit import Trainer, audit_trainer

GAMMA, GAE_LAMBDA = 0.99, 0.95


class Agent(nn.Module):
    """Encoder, LSTM, actor and critic; flat [T * B] inputs, and the state [layers, B, hidden] of torch."""

    def __init__(self, observations: int = 4, actions: int = 3, hidden: int = 16) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(observations, hidden), nn.Tanh())
        self.lstm = nn.LSTM(hidden, hidden)
        self.actor, self.critic = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def get_states(self, x, lstm_state, done):
        """Outputs of the LSTM [T * B, H], reset where ``done``, and its state."""
        batch = lstm_state[0].shape[1]
        hidden = self.network(x).reshape(-1, batch, self.lstm.input_size)
        new_hidden = []
        for h, d in zip(hidden, done.reshape(-1, batch)):
            keep = (1.0 - d).view(1, -1, 1)
            h, lstm_state = self.lstm(h.unsqueeze(0), (keep * lstm_state[0], keep * lstm_state[1]))
            new_hidden.append(h)
        return torch.cat(new_hidden).flatten(0, 1), lstm_state

    def get_action_and_value(self, x, lstm_state, done, action=None):
        """Action, log-probability, entropy, value and state."""
        hidden, lstm_state = self.get_states(x, lstm_state, done)
        probs = Categorical(logits=self.actor(hidden))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden), lstm_state


def compute_gae(rewards, values, dones, next_value, next_done):
    """Advantages and returns [T, B]; ``dones[t]``: the observation of step t opens an episode."""
    advantages, last = torch.zeros_like(rewards), torch.zeros_like(next_value)
    for t in reversed(range(len(rewards))):
        is_last = t == len(rewards) - 1
        going = 1.0 - (next_done if is_last else dones[t + 1])
        following = next_value if is_last else values[t + 1]
        delta = rewards[t] + GAMMA * following * going - values[t]
        advantages[t] = last = delta + GAMMA * GAE_LAMBDA * going * last
    return advantages, advantages + values


def trainer() -> Trainer:
    """The script's functions as the auditor calls them."""
    torch.manual_seed(1)
    agent = Agent()

    def run(obs, state, first, action=None):
        lstm = tuple(leaf.transpose(0, 1).contiguous() for leaf in state)  # rows first -> layers first
        action = action if action is None else action.flatten()
        a, log_prob, _, value, lstm = agent.get_action_and_value(
            obs.flatten(0, -2), lstm, first.flatten().float(), action
        )
        out = {"action": a, "log_prob": log_prob, "value": value}
        return {k: x.view(first.shape) for k, x in out.items()}, tuple(h.transpose(0, 1) for h in lstm)

    def advantages(script):
        ended = (script.terminated | script.truncated).float()
        dones = torch.cat([script.first[:1].float(), ended[:-1]])
        return compute_gae(script.reward, script.value, dones, script.bootstrap, ended[-1])

    def initial_state(rows):
        return tuple(torch.zeros(rows, 1, agent.lstm.hidden_size) for _ in "hc")

    return Trainer(
        name="ppo_lstm.py",
        obs_shape=(4,),
        initial_state=initial_state,
        act=run,
        evaluate=run,
        advantages=advantages,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        parameters=agent.state_dict,
    )


def main(argv: list[str] | None = None) -> None:
    """Print the report. It has one finding: a time limit counts as a termination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=13, help="length of the sequences that are tried")
    result = audit_trainer(trainer, steps=parser.parse_args(argv).steps)
    print(result)
    print("Likely cause:", "; ".join(sorted({check.cause for check in result.failed})))


if __name__ == "__main__":
    main()
