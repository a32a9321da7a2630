"""Sessions: the memory of every env is its own, whatever order they are talked to in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recollect.acting.session import Session
from recollect.base import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import SpaceError, StateError
from recollect.policy.policy import Policy
from tests.support.helpers import LastSeen, TensorWorld, make_policy

LENGTH = 6


CORES = {
    "lstm": LSTMConfig(hidden=8, layers=2),
    "gru": GRUConfig(hidden=8, layers=2, learned_initial_state=True),
    "custom": lambda size: LastSeen(size),
}
SCRIPTED = {**CORES, "window": {"name": "window", "hidden": 8, "window": 4}, "none": "none"}


@pytest.fixture(params=CORES)
def policy(request) -> Policy:
    return make_policy(TensorWorld(4), CORES[request.param])


def observations(rows: int, steps: int = LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, rows, 3)).astype(np.float32)


def values(session: Session, row: int) -> torch.Tensor:
    """What decides the future of a row."""
    return torch.cat([leaf[row].flatten() for leaf in tree.leaves(session._state)])


def alone(policy: Policy, obs: np.ndarray, resets: tuple[int, ...] = ()) -> list[int]:
    """The actions of one env, talked to by the policy itself."""
    state, actions = policy.initial_state(1), []
    for t, seen in enumerate(obs):
        first = torch.tensor([t == 0 or t in resets])
        acted, state = policy.act(torch.from_numpy(seen)[None], state, first, deterministic=True)
        actions.append(int(policy.to_env(acted.action)))
    return actions


def test_each_row_remembers_its_own_episode(policy):
    """S002-2, S002-3: rows in one call act as each does alone, resets of one among the others."""
    obs, session = observations(4), Session(policy, 4)
    resets = {1: (3,), 3: (2, 5)}
    acted = []
    for t in range(LENGTH):
        due = [row for row, times in resets.items() if t in times]
        if due:
            session.reset(due)
        acted.append(session.act(obs[t]))
    for row in range(4):
        assert [int(a[row]) for a in acted] == alone(policy, obs[:, row], resets.get(row, ()))


class Apart:
    """What a session has to do, without one: every env has a state of its own and is acted for alone."""

    def __init__(self, policy: Policy, rows: int):
        self.policy = policy
        self.state = [policy.initial_state(1) for _ in range(rows)]
        self.first = [True] * rows

    def act(self, row: int, seen: np.ndarray) -> int:
        first = torch.tensor([self.first[row]])
        acted, self.state[row] = self.policy.act(
            torch.from_numpy(seen)[None], self.state[row], first, deterministic=True
        )
        self.first[row] = False
        return int(self.policy.to_env(acted.action))

    def reset(self, rows: list[int], forget: bool) -> None:
        for row in rows:
            self.first[row] = True
            if forget:
                self.state[row] = self.policy.initial_state(1)

    def compare(self, session: Session) -> None:
        memory = session.get_memory()
        assert memory["first"].tolist() == self.first
        for got, want in zip(tree.leaves(memory["state"]), tree.leaves(tree.cat(self.state)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def said(rows: list[int], how: int) -> Any:
    """Rows as people name them."""
    mask = np.isin(np.arange(4), rows)
    return (rows, np.array(rows), torch.tensor(rows), mask, mask.tolist())[how]


@pytest.mark.parametrize("core", SCRIPTED)
def test_any_conversation_is_that_of_each_env_alone(core):
    """S002-7, S002-2, S000-20: slices in any order and size, resets by number and by mask, before the first
    action and twice, memory that moves to another session, calls that are refused: memory, pending resets
    and actions of every env are those that it has alone."""
    policy = make_policy(TensorWorld(4), SCRIPTED[core], normalise_observations=True)
    policy.obs_norm.update(torch.from_numpy(observations(4)) * 3 + 1, torch.ones(LENGTH, 4, dtype=torch.bool))
    rng, obs = np.random.default_rng(0), observations(4, 80)
    session, apart = Session(policy, 4), Apart(policy, 4)
    kinds = ["act", "act", "act", "reset", "reset_memory", "move", "refuse"]
    for t, kind in enumerate(["reset", "refuse", *rng.choice(kinds, 78)]):
        rows = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        how = int(rng.integers(5))
        if how >= 3:
            rows.sort()  # a mask has no order
        match kind:
            case "act":
                given = None if rows == [0, 1, 2, 3] else said(rows, how)
                actions = session.act(obs[t, rows], rows=given)
                assert [int(a) for a in actions] == [apart.act(row, obs[t, row]) for row in rows]
            case "reset":
                session.reset(said(rows, how))
                apart.reset(rows, forget=False)
            case "reset_memory":
                session.reset_memory(said(rows, how))
                apart.reset(rows, forget=True)
            case "move":
                left, session = session, Session(policy, 4, seed=t)
                session.act(obs[t])
                session.set_memory(left.get_memory())
                left.reset_memory()
            case "refuse":
                with pytest.raises(StateError):
                    session.act(obs[t, [0, 0]], rows=[rows[0], rows[0]])
        apart.compare(session)


def test_acting_for_some_leaves_the_others_alone(policy):
    """S002-7: a reset that is pending for an env stays so until that env acts, whoever acts before it."""
    obs, session = observations(3), Session(policy, 3)
    session.act(obs[0])
    kept = values(session, 2)
    session.reset([1])
    session.act(obs[1, [0]], rows=[0])
    assert session.get_memory()["first"].tolist() == [False, True, False]
    assert torch.equal(values(session, 2), kept)
    after = session.act(obs[2, [1]], rows=[1])
    assert [int(after[0])] == alone(policy, obs[2:3, 1])
    fresh = Session(policy, 1)
    fresh.act(obs[2, [1]])
    torch.testing.assert_close(values(session, 1), values(fresh, 0), rtol=1e-5, atol=1e-6)


def test_permuting_the_rows_permutes_the_actions(policy):
    """S002-2: the place in the batch means nothing."""
    obs, order = observations(4), [2, 0, 3, 1]
    plain, permuted = Session(policy, 4), Session(policy, 4)
    for t in range(LENGTH):
        a, b = plain.act(obs[t]), permuted.act(obs[t][order])
        assert np.array_equal(a[order], b)
    for place, row in enumerate(order):
        torch.testing.assert_close(values(permuted, place), values(plain, row), rtol=1e-5, atol=1e-6)


def test_memory_round_trip(policy):
    """S002-7, S000-20: get and set bring back everything: states, pending resets, the RNG of samples."""
    obs = observations(3, 8)
    session = Session(policy, 3, deterministic=False, seed=4)
    for t in range(3):
        session.act(obs[t])
    session.reset([1])
    memory = session.get_memory()
    on = [session.act(o) for o in obs[3:]]
    other = Session(policy, 3, deterministic=False, seed=99)
    other.set_memory(memory)
    assert all(np.array_equal(a, b) for a, b in zip(on, (other.act(o) for o in obs[3:])))
    session.set_memory(memory)
    assert all(np.array_equal(a, b) for a, b in zip(on, (session.act(o) for o in obs[3:]))), "not shared"


def test_memory_is_a_copy(policy):
    """S002-7, S004-5: what was got does not change with the session, nor the session with it."""
    session = Session(policy, 2)
    memory = session.get_memory()
    before = tree.clone(memory["state"])
    session.act(observations(2)[0])
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(memory["state"])))
    now = values(session, 0)
    tree.map(lambda leaf: leaf.add_(1), session.get_memory()["state"])
    memory = session.get_memory()
    session.set_memory(memory)
    tree.map(lambda leaf: leaf.add_(1), memory["state"])
    assert torch.equal(values(session, 0), now)


def test_reset_memory_forgets_at_once(policy):
    """S002-7: the rows named go back to the initial state, the others keep theirs."""
    session = Session(policy, 3)
    session.act(observations(3)[0])
    kept = values(session, 0)
    session.reset_memory([1, 2])
    initial = torch.cat([leaf[0].flatten() for leaf in tree.leaves(policy.initial_state(1))])
    assert torch.equal(values(session, 1), initial)
    assert torch.equal(values(session, 0), kept)
    assert session._first.tolist() == [False, True, True]
    session.reset_memory()
    assert session._first.all()


def test_wrong_memories_are_refused(policy):
    """S002-7, S000-12: of another number of envs, another policy, or incomplete."""
    session = Session(policy, 3)
    with pytest.raises(StateError, match="of another policy, of another number of envs"):
        session.set_memory(Session(policy, 2).get_memory())
    other = make_policy(TensorWorld(4), "none")
    with pytest.raises(StateError, match="of another policy"):
        session.set_memory(Session(other, 3).get_memory())
    with pytest.raises(StateError, match="lacks first, rng: pass what get_memory returned"):
        session.set_memory({"state": policy.initial_state(3)})
    halved = Session(policy, 3).get_memory()
    halved["state"] = tree.map(lambda leaf: leaf.double(), halved["state"])
    with pytest.raises(StateError, match="float64"):
        session.set_memory(halved)


def test_a_refused_memory_changes_nothing(policy):
    """S002-7: wrong shapes and types raise, whichever part has them, and the session is as before."""
    session = Session(policy, 3)
    session.act(observations(3)[0])
    session.reset([2])
    before = session.get_memory()
    other = Session(policy, 3, seed=1).get_memory()
    rows = tree.map(lambda leaf: leaf[:2], other["state"])
    wrong = {"state": rows, "first": torch.zeros(3), "rng": torch.zeros(16, dtype=torch.uint8)}
    for name, value in [*wrong.items(), ("first", other["first"][:2])]:
        with pytest.raises(StateError, match="of another policy"):
            session.set_memory(other | {name: value})
    for name, leaf in tree.named_leaves(session.get_memory()):
        assert torch.equal(leaf, dict(tree.named_leaves(before))[name]), name


def test_wrong_rows_are_refused(policy):
    """S002-2: unknown, repeated or too few rows raise before any memory moves."""
    session, obs = Session(policy, 3), observations(3)[0]
    before = values(session, 0)
    for rows in ([0, 3], [-1], [1, 1]):
        with pytest.raises(StateError, match="each of 0 to 2 at most once"):
            session.act(obs[: len(rows)], rows=rows)
    with pytest.raises(StateError, match="2 observations for 3 envs: pass one for each, or name the envs"):
        session.act(obs[:2])
    with pytest.raises(SpaceError, match=r"shape \(3, 4\), and its space says \(3, 3\)"):
        session.act(np.zeros((3, 4), np.float32))
    with pytest.raises(StateError, match="at least one env"):
        Session(policy, 0)
    assert torch.equal(values(session, 0), before)


def test_one_env_may_be_talked_to_plainly(policy):
    """S002-10: a single observation in, a single action out; with rows first, rows first out."""
    session, obs = Session(policy, 1), observations(1)
    assert np.shape(session.act(obs[0, 0])) == ()
    assert np.shape(session.act(obs[1])) == (1,)
    assert session.has_memory


def test_acting_leaves_the_policy_and_global_rng_alone(policy):
    """S002-5: a session has its own RNG, and writes nothing into the policy."""
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    rng = torch.random.get_rng_state()
    session = Session(policy, 2, deterministic=False)
    for obs in observations(2):
        session.act(obs)
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())
    assert all(not leaf.requires_grad for leaf in tree.leaves(session._state))


def test_state_dtype_and_device_are_kept(policy):
    """S004-20: through acting, get and set."""
    session = Session(policy, 2)
    spec = tree.spec(session._state)
    session.act(observations(2)[0])
    session.set_memory(session.get_memory())
    assert tree.spec(session._state) == spec == tree.spec(policy.initial_state(2))
    assert {leaf.device for leaf in tree.leaves(session._state)} == {torch.device("cpu")}


def test_a_mask_of_ends_resets_just_those_rows():
    """S002-7: `terminated | truncated` is what people pass; it is no list of row numbers."""
    env = TensorWorld(3)
    session = Session(make_policy(env), 3)
    session.act(np.zeros((3, *env.observation_space.shape), np.float32))
    session.reset(np.array([False, True, False]))
    assert session._first.tolist() == [False, True, False]
    session.reset([False, False, False])
    assert session._first.tolist() == [False, True, False]
    with pytest.raises(StateError, match="a mask of 2 rows for 3 envs"):
        session.reset([True, False])
    with pytest.raises(StateError, match="dtype float64"):
        session.reset([0.5])
