"""Sessions: the memory of every env is its own, whatever order they are talked to in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import SpaceError, StateError
from recollect.policy.policy import Policy
from recollect.session import Session
from tests.helpers import LastSeen, TensorWorld, make_policy

LENGTH = 6


CORES = {
    "lstm": LSTMConfig(hidden=8, layers=2),
    "gru": GRUConfig(hidden=8, layers=2, learned_initial_state=True),
    "custom": lambda size: LastSeen(size),
}


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


def test_subsets_in_any_order(policy):
    """S002-2, S000-20: async slices, reordered and of changing size, give each row what it gets alone."""
    obs, session = observations(4, 12), Session(policy, 4)
    rng, clock = np.random.default_rng(1), np.zeros(4, int)
    acted: list[list[int]] = [[] for _ in range(4)]
    while clock.min() < LENGTH:
        rows = [row for row in rng.permutation(4)[: rng.integers(1, 5)].tolist() if clock[row] < 12]
        actions = session.act(np.stack([obs[clock[row], row] for row in rows]), rows=rows)
        for row, action in zip(rows, actions):
            acted[row].append(int(action))
            clock[row] += 1
    for row in range(4):
        assert acted[row] == alone(policy, obs[: clock[row], row])


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
    with pytest.raises(StateError, match="of another policy or of another number of envs"):
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
