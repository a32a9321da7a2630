"""The auxiliary loss: what is predicted, where it counts, whose weights it moves, and that they are kept."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import recollect as rc
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.base.spaces import sample
from recollect.config.policy import PolicyConfig
from recollect.errors import ConfigError
from recollect.experience.chunks import Chunks
from recollect.learning.auxiliary_loss import KNOWN, TARGET, NextObs
from recollect.learning.learner import Learner
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from tests.support.helpers import GYM_WORLDS, ArenaWorld, ScriptedEnv, TensorWorld, as_rows, keep
from tests.support.ppo_setup import SMALL, learner, same, weights

WORLDS = {
    "tensors": lambda: TensorWorld(4),
    "arena": lambda: ArenaWorld(2),
    **{name: lambda name=name: as_rows([ScriptedEnv] * 3, name) for name in GYM_WORLDS},
}


def predicting(env: Any = None, **settings: Any) -> tuple[Learner, Any]:
    ppo, actor = learner(env, next_obs_coef=0.5, **settings)
    assert ppo.predictor is not None
    return ppo, keep(actor.collect())


@pytest.mark.parametrize("world", WORLDS)
def test_which_steps_predict(world):
    """S001-15: those that are valid and inside an episode, the last of a rollout too; no other."""
    ppo, rollout = predicting(WORLDS[world]())
    found = ppo.predictor.targets(ppo.policy, rollout)
    T, rows = rollout.steps, rollout.rows
    for t in range(T):
        for row in range(rows):
            ended = bool(rollout.terminated[t, row] | rollout.truncated[t, row])
            follows = bool(rollout.valid[t + 1, row]) if t + 1 < T else True
            wanted = bool(rollout.valid[t, row]) and not ended and follows
            assert bool(found[KNOWN][t, row]) == wanted, (t, row)
            expected = rollout.obs[t + 1, row] if wanted else torch.zeros(3)
            torch.testing.assert_close(found[TARGET][t, row], expected, msg=f"{t}, {row}")
    assert found[KNOWN][-1].any()
    assert 0 < int(found[KNOWN].sum()) < T * rows


@pytest.mark.parametrize("poison", [7.0, float("nan")])
def test_no_loss_across_a_reset(poison):
    """S001-15: whatever the observation after an end is, NaN included, loss and gradients stay to the bit."""
    ppo, rollout = predicting()
    ended = rollout.terminated | rollout.truncated
    changed = keep(rollout)
    changed.obs[1:][ended] = poison
    clean, poisoned = (ppo.predictor.targets(ppo.policy, r) for r in (rollout, changed))
    assert torch.equal(clean[TARGET], poisoned[TARGET])
    assert gradient(ppo, rollout, clean) == gradient(ppo, rollout, poisoned)
    inside = keep(rollout)
    inside.obs[1:][~ended] = 7.0
    other = gradient(ppo, rollout, ppo.predictor.targets(ppo.policy, inside))
    assert other != gradient(ppo, rollout, clean), "an observation inside an episode does matter"


def test_nothing_invalid_counts():
    """S001-15: NaN in the rows of dead agents and in padding reaches neither loss nor gradient."""
    ppo, rollout = predicting(ArenaWorld(2))
    assert rollout.obs.isnan().any()
    values = gradient(ppo, rollout, ppo.predictor.targets(ppo.policy, rollout))
    assert np.isfinite(values).all()


def gradient(ppo: Learner, rollout: Any, targets: dict[str, torch.Tensor]) -> list[float]:
    """The loss of the predictor over the whole rollout, and its gradient for every parameter."""
    _, data, _ = ppo.targets(rollout)
    batch = ppo.sequences(rollout, data | targets).whole()
    features: list[torch.Tensor] = []
    ppo.policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first, features)
    error = ppo.predictor.loss(features[0], batch, targets[KNOWN].sum())
    found = torch.autograd.grad(error, ppo._parameters, allow_unused=True)
    return [float(error.detach()), *(float(g.double().abs().sum()) for g in found if g is not None)]


EVERYTHING = spaces.Dict(
    OrderedDict(
        action_mask=spaces.Box(0, 1, (3,), np.int8),
        numbers=spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        count=spaces.Discrete(4, start=-2),
        pair=spaces.MultiDiscrete([2, 3], start=[5, 0]),
        bits=spaces.MultiBinary(3),
        image=spaces.Box(0, 255, (16, 24, 3), np.uint8),
        tokens=spaces.Box(0, np.array([[255, 4, 10]] * 6, np.uint8), (6, 3), np.uint8),
    )
)
ACTIONS = spaces.Tuple(
    (spaces.Discrete(3, start=7), spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiBinary(2))
)


def test_errors_against_a_slow_reference():
    """S001-15: every kind of leaf, row by row in plain Python; an action mask is not predicted."""
    parts = [(key, leaf) for key, leaf in EVERYTHING.spaces.items() if key != "action_mask"]
    observed = spaces.Dict(OrderedDict(parts))
    policy = PolicyConfig(core=SMALL).build(observed, ACTIONS)
    predictor = NextObs(policy, seed=3)
    torch.nn.init.normal_(predictor.last.weight, std=0.3)
    obs = sample(observed, 5, np.random.default_rng(0))
    obs["tokens"][0, :3, 0] = torch.tensor([0x35, 0x35, 0xFF], dtype=torch.uint8)
    columns = torch.cat([leaf.columns(obs[name]) for name, leaf in predictor.leaves.items()], 1)
    rng = np.random.default_rng(1)
    y = torch.from_numpy(rng.standard_normal((5, 12), np.float32))
    action = (torch.tensor([0, 2, 1, 1, 0]), torch.randn(5, 2), torch.ones(5, 2, dtype=torch.int8))
    predicted = predictor(y, action)
    known = torch.tensor([True, False, True, True, True])
    batch = Chunks(
        obs=(),
        first=known[:, None],
        action=tree.map(lambda leaf: leaf.unsqueeze(1), action),
        valid=known[:, None],
        data={TARGET: columns[:, None], KNOWN: known[:, None]},
        state=(),
    )
    loss = predictor.loss(y.unsqueeze(1), batch, torch.tensor(4))
    errors = [reference(predicted[i].tolist(), tree.index(obs, i)) for i in range(5) if known[i]]
    assert float(loss.detach()) == pytest.approx(np.mean(errors), rel=1e-5)
    other = predictor(y, (action[0].flip(0), *action[1:]))
    assert not torch.allclose(other, predicted), "the action matters"
    masked = PolicyConfig(core=SMALL).build(EVERYTHING, spaces.Discrete(3))
    assert NextObs(masked, 0).leaves.keys() == predictor.leaves.keys()


def reference(out: list[float], obs: dict[str, torch.Tensor]) -> float:
    def take(n: int) -> list[float]:
        taken, out[:] = out[:n], out[n:]
        return taken

    def squared(target: list[float]) -> float:
        return float(np.mean([(p - t) ** 2 for p, t in zip(take(len(target)), target)]))

    def chosen(n: int, which: int) -> float:
        logits = take(n)
        return math.log(sum(math.exp(x) for x in logits)) - logits[which]

    def bits(target: list[int]) -> float:
        logits = take(len(target))
        return float(np.mean([math.log1p(math.exp(-x if t else x)) for x, t in zip(logits, target)]))

    numbers = squared([min(10.0, max(-10.0, x)) for x in obs["numbers"].flatten().tolist()])
    count = chosen(4, int(obs["count"]) + 2)
    first, second = obs["pair"].tolist()
    pair = (chosen(2, first - 5) + chosen(3, second)) / 2
    binary = bits(obs["bits"].tolist())
    blocks = obs["image"].float().view(8, 2, 8, 3, 3) / 255
    image = squared(blocks.mean((1, 3)).permute(2, 0, 1).flatten().tolist())
    cells, by_feature = [0] * 121, [[] for _ in range(5)]
    for place, feature, value in obs["tokens"].tolist():
        x, y = place >> 4, place & 15
        if x < 11 and y < 11 and feature < 5:
            cells[11 * y + x] = 1
            by_feature[feature].append(min(value, 10) / 10)
    occupied, seen = bits(cells), bits([int(bool(values)) for values in by_feature])
    means = take(5)
    value = np.mean([(p - np.mean(v)) ** 2 if v else 0.0 for p, v in zip(means, by_feature)])
    assert not out
    return float(np.mean([numbers, count, pair, binary, image, (occupied + seen + value) / 3]))


@pytest.mark.parametrize("batching", ["chunks", "episodes"])
def test_parts_of_a_minibatch_add_up(batching):
    """S001-15, S001-3: divided by its own count over the whole minibatch, however that is cut."""
    found = []
    for accumulate in (1, 3):
        ppo, rollout = predicting(ArenaWorld(2), accumulate=accumulate, minibatches=1, batching=batching)
        _, data, _ = ppo.targets(rollout)
        sequences = ppo.sequences(rollout, data)
        stats = ppo.backward(sequences, torch.arange(sequences.count), 0.01)
        found.append([stats["loss/next_obs"], *(p.grad for p in ppo._parameters)])
        total = sequences.total(torch.arange(sequences.count), KNOWN)
        assert int(total) == int(data[KNOWN].sum())
    for one, three in zip(*found):
        torch.testing.assert_close(one, three, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_its_gradient_teaches_the_memory(recompute):
    """S001-15: with no other loss, encoder and core learn, the heads do not; activations kept or not."""
    off = {"value_coef": 0.0, "entropy": 0.0, "clip": 1e-9, "recompute_activations": recompute}
    ppo, rollout = predicting(**off)
    _, data, _ = ppo.targets(rollout)
    data["advantage"] = torch.zeros_like(data["advantage"])
    sequences = ppo.sequences(rollout, data)
    ppo.backward(sequences, torch.arange(sequences.count), 0.0)
    sizes = {n: 0.0 if p.grad is None else float(p.grad.abs().sum()) for n, p in ppo.named_parameters()}
    assert all(sizes[n] > 0 for n in sizes if n.startswith(("encoder", "core", "next_obs"))), sizes
    assert all(sizes[n] == 0 for n in sizes if n.startswith(("head", "critic")))


def test_the_predictor_is_the_learner_s():
    """S001-15: its weights are trained and clipped, and are no part of what acts."""
    ppo, rollout = predicting(max_grad_norm=1e-3)
    plain, _ = learner()
    assert ppo.policy.state_dict().keys() == plain.policy.state_dict().keys()
    in_groups = [id(p) for group in ppo.optimizer.param_groups for p in group["params"]]
    assert sorted(in_groups) == sorted(id(p) for p in ppo._parameters)
    before = {name: p.detach().clone() for name, p in ppo.named_parameters()}
    metrics = ppo.update(rollout)
    assert metrics["loss/next_obs"] > 0
    assert metrics["grad_clip_rate"] == 1
    squares = sum(float(p.grad.double().square().sum()) for p in ppo._parameters)
    assert math.sqrt(squares) <= 1e-3 * (1 + 1e-5), "theirs counts in the norm"
    assert all(not torch.equal(before[n], p) for n, p in ppo.named_parameters() if n.startswith("next_obs"))


def test_turning_it_on_changes_no_other_random_stream():
    """S001-15: a weight so small that it adds nothing leaves the policy as it is without."""
    runs = []
    for coef in (0.0, 1e-30):
        ppo, actor = learner(next_obs_coef=coef, max_grad_norm=1e9)
        state = torch.get_rng_state()
        make_learner(ppo.policy, ppo.config)
        assert torch.equal(state, torch.get_rng_state())
        for _ in range(2):
            ppo.update(actor.collect())
        runs.append(weights(ppo))
    assert same(*runs)


def test_it_resumes_bit_for_bit():
    """S001-15: the predictor and its moments are in the learner's tensors; without them it begins anew."""
    ppo, actor = learner(next_obs_coef=0.5)
    rollouts = [keep(actor.collect())]
    ppo.update(rollouts[0])
    saved = {name: tensor.clone() for name, tensor in learner_tensors(ppo).items()}
    policy = weights(ppo)
    rollouts.append(keep(actor.collect()))
    ppo.update(rollouts[1])
    after = {name: p.detach().clone() for name, p in ppo.named_parameters()}
    for is_whole in (True, False):
        again, _ = learner(next_obs_coef=0.5)
        again.policy.load_state_dict(policy)
        kept = {name: t for name, t in saved.items() if is_whole or not name.startswith("next_obs.")}
        load_learner(again, Learned(updates=1, optimizer=kept))
        again.update(rollouts[1])
        found = dict(again.named_parameters())
        assert all(torch.equal(after[name], found[name]) for name in after) == is_whole


def test_a_whole_run_resumes(tmp_path):
    """S001-15: through the files of a run, too, and the saved weights hold nothing of it."""
    settings: dict[str, Any] = {
        "core": SMALL,
        "num_envs": 4,
        "rollout": 8,
        "chunk": 4,
        "threads": 1,
        "next_obs_coef": 0.1,
        "progress": False,
        "env_kwargs": {"horizon": 2},
    }
    whole = rc.train("delayed-cue", steps=128, run=tmp_path / "whole", **settings)
    half = rc.train("delayed-cue", steps=128, run=tmp_path / "half", callbacks=[stop_at(64)], **settings)
    assert half.steps == 64
    resumed = rc.resume(tmp_path / "half", progress=False)
    a, b = whole.policy.state_dict(), resumed.policy.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any("next_obs" in name for name in a)


def stop_at(steps: int):
    def look(training, metrics):
        if metrics["steps"] >= steps:
            training.stop("half")

    return look


def test_what_can_be_predicted_is_learned():
    """S001-15: where a pole will be follows from where it was, and the error falls far below its spread."""
    agent = rc.train(
        "position-cartpole",
        steps=12_000,
        next_obs_coef=1.0,
        core=rc.LSTMConfig(hidden=32),
        encoder=rc.EncoderConfig(hidden=(32,)),
        num_envs=8,
        rollout=64,
        threads=1,
        progress=False,
        preset=False,
    )
    errors = [row["loss/next_obs"] for row in agent.history.rows]
    assert errors[1] > 0.5, "in units of the spread, from the second update on"
    assert errors[-1] < 0.2, errors


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match="next_obs_coef = -1"):
        replace(learner()[0].config, next_obs_coef=-1.0)
