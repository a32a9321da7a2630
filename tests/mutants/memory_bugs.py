"""Bugs of the memory: when it is reset, what a chunk starts from, what is valued with it."""

from __future__ import annotations

from recollect.acting.truncation import ImmediateFinalValues
from recollect.base import tree
from recollect.cores.contract import Core
from recollect.kernels.segments import Segments
from recollect.learning import refresh_rollout, sequences
from recollect.policy.policy import Policy
from tests.mutants import proofs
from tests.mutants.edits import (
    ACT,
    DEVIATES,
    DOUBLE_SUM,
    FINAL_VALUES,
    chunks,
    collect,
    gae,
    next_value,
    unroll,
)
from tests.mutants.mutant import Mutant

STORE = "tree.copy_(tree.index(out.states, stored[t]), state)"
NEXT = "obs, first = step.obs, step.first"
STATES = "rollout.state_at(step) for step in steps"
RECORDED = "self.head.record(outputs, action)"
FINAL = "self._final_values.add(t, step, state)"
INSTEAD = 'self._final_values.add(t, __import__("dataclasses").replace(step, final_obs={}), state)'

RESETS = [
    Mutant(
        "the learner resets one step late",
        proofs.master,
        (unroll("tree.cat([first[:1] & False, first[:-1]])"),),
        by=DEVIATES,
        known="suspected in Mava #1006: the done flag in place of first",
    ),
    Mutant(
        "actor and learner both reset one step late",
        proofs.counters,
        (
            collect("self._final_values.begin()", "late = first & False\n    self._final_values.begin()"),
            collect(NEXT, "obs, first, late = step.obs, late, step.first"),
        ),
        by='assert torch.equal(rollout.record["value"][valid], expected[:T][valid])',
    ),
    Mutant(
        "no reset inside chunks",
        proofs.master,
        (unroll("tree.cat([first[:1], first[1:] & False])"),),
        by=DEVIATES,
        known="Metta before #2233, which made it an option",
    ),
    Mutant(
        "no reset at chunk starts",
        proofs.master,
        (unroll("tree.cat([first[:1] & False, first[1:]])"),),
        by=DEVIATES,
    ),
    Mutant(
        "memory is never reset, on either side",
        proofs.counters,
        ((Core, "reset", "return tree.select", "return state  # tree.select"),),
        by='assert torch.equal(rollout.record["value"][valid], expected[:T][valid])',
    ),
    Mutant(
        "one end resets every row",
        proofs.unchanged_rows,
        ((Core, "reset", "leaf.index_fill(0, rows, 0)", "torch.zeros_like(leaf)"),),
        by="assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])",
    ),
    Mutant(
        "reset by multiplication lets NaN through",
        proofs.fresh_episodes,
        (
            (
                tree,
                "select",
                "torch.where(_over(mask, b), a, b)",
                "a * _over(mask, b) + b * ~_over(mask, b)",
            ),
        ),
        by='assert_close(acted.record["value"], torch.where(first, fresh, carried))',
        known="hill-a/stable-baselines: state * (1 - mask)",
    ),
    Mutant(
        "a learned initial state gets no gradient",
        proofs.only_starts,
        ((Segments, "start", "torch.cat((state, initial))", "torch.cat((state, initial.detach()))"),),
        by="assert opening.abs().max() > 1e-4",
    ),
]

STARTS = [
    Mutant(
        "chunks start from zeros",
        proofs.master,
        (chunks("state=states_at(starts)", "state=tree.map(torch.zeros_like, states_at(starts))"),),
        by=DEVIATES,
    ),
    Mutant(
        "chunk states are off by one chunk",
        proofs.starts,
        (chunks(STATES, "rollout.state_at(step) for step in [*steps[1:], steps[-1]]"),),
        by='assert torch.equal(chunks.state["n"].float(), opening)',
    ),
    Mutant(
        "every chunk starts from the state of step 0",
        proofs.master,
        (chunks(STATES, "rollout.state_at(0) for step in steps"),),
        by=DEVIATES,
        known="suspected in allenact #77",
    ),
    Mutant(
        "the output state is stored in place of the input state",
        proofs.counters,
        (collect(STORE, "pass"), collect(ACT, f"{ACT}\n        if t in stored:\n            {STORE}")),
        by='assert torch.equal(rollout.states["last"], left[',
    ),
    Mutant(
        "the state of another row",
        proofs.starts,
        (chunks("leaf.flatten(0, 1), stacked", "leaf.transpose(0, 1).flatten(0, 1), stacked"),),
        by='assert torch.equal(chunks.state["n"].float(), opening)',
    ),
    Mutant(
        "stored states are the live ones, not copies",
        proofs.copies,
        (collect(STORE, "out.states = tree.map(lambda leaf: leaf.unsqueeze(0), state)"),),
        by="assert max(deviation(policy, rollout, chunk)) < 1e-5",
    ),
    Mutant(
        "the live state keeps its graph",
        proofs.no_graph,
        (
            (Policy, "act", "@torch.no_grad()", "@torch.enable_grad()"),
            (Policy, "act", RECORDED, f"{{name: x.detach() for name, x in {RECORDED}.items()}}"),
            collect("tree.copy_(self.state, state)", "self.state = state"),
        ),
        by="assert leaf.grad_fn is None",
        known="the usual cause of memory that grows with steps",
    ),
]

BURN_IN = [
    Mutant(
        "gradient through the burn-in",
        proofs.burn_in,
        ((sequences, "burn_in", "with torch.no_grad():", "with torch.enable_grad():"),),
        by="assert all(not leaf.requires_grad for leaf in tree.leaves(burnt.state))",
    ),
    Mutant(
        "burn-in from the chunk's state",
        proofs.prefixes,
        (chunks("state=states_at(begins)", "state=states_at(starts)"),),
        by='assert torch.equal(prefix.state["n"][prefix.exists].float(), before[0])',
    ),
    Mutant(
        "burn-in for the chunks that open the rollout",
        proofs.burn_in,
        ((sequences, "burn_in", "tree.select(prefix.exists, burnt, batch.state)", "burnt"),),
        by="assert_close(burnt.state[rows], state",
    ),
    Mutant(
        "no reset inside the burn-in",
        proofs.burn_in,
        (
            (
                sequences,
                "burn_in",
                "policy.unroll(prefix.obs, prefix.state, prefix.first)",
                "policy.unroll(prefix.obs, prefix.state, prefix.first & False)",
            ),
        ),
        by="assert_close(burnt.state[rows], state",
    ),
]

BOOTSTRAPS = [
    Mutant(
        "V of the reset observation at a truncation",
        proofs.counters,
        (collect(FINAL, INSTEAD.format("step.obs")),),
        by=FINAL_VALUES,
    ),
    Mutant(
        "V of the observation before the action at a truncation",
        proofs.counters,
        (collect(FINAL, INSTEAD.format("views.obs[t]")),),
        by=FINAL_VALUES,
        known="EmbodiChain #612",
    ),
    Mutant(
        "V(final) with the reset state",
        proofs.counters,
        ((ImmediateFinalValues, "add", "inside = torch.zeros", "inside = torch.ones"),),
        by=FINAL_VALUES,
    ),
    Mutant(
        "V(final) with the state before the step",
        proofs.counters,
        (
            collect(ACT, f"before_step = state\n        {ACT}"),
            collect(FINAL, "self._final_values.add(t, step, before_step)"),
        ),
        by=FINAL_VALUES,
    ),
    Mutant(
        "the rollout ends with a value of zero",
        proofs.counters,
        (collect("policy.value(obs, state, first)", "torch.zeros_like(out.bootstrap)"),),
        by="assert torch.equal(rollout.bootstrap[inside], expected[T][inside])",
    ),
    Mutant(
        "the rollout ends with a forgotten state",
        proofs.counters,
        (collect("policy.value(obs, state, first)", "policy.value(obs, state, first | True)"),),
        by="assert torch.equal(rollout.bootstrap[inside], expected[T][inside])",
    ),
    Mutant(
        "a missing bootstrap is taken for zero",
        proofs.no_bootstrap,
        (next_value("if inside.any():", "if False:"),),
        by="a missing bootstrap went unnoticed",
    ),
    Mutant(
        "truncation as termination",
        proofs.constant_reward,
        (next_value("masked_fill(terminated, 0)", "masked_fill(terminated | truncated, 0)"),),
        by="assert_close(advantage, torch.zeros_like(advantage)",
        known="stable-baselines3 #633, Mava #951, skrl #449",
    ),
    Mutant(
        "termination as truncation",
        proofs.double_sum,
        (next_value("following).masked_fill(terminated, 0)", "following)"),),
        by=DOUBLE_SUM,
    ),
    Mutant(
        "truncated wins where both are true",
        proofs.both_flags,
        (next_value("masked_fill(terminated, 0)", "masked_fill(terminated & ~truncated, 0)"),),
        by="assert returns.squeeze(1).tolist() == expected",
    ),
    Mutant(
        "the value of the next episode at a truncation",
        proofs.double_sum,
        (next_value("torch.where(truncated, final_value, following)", "following"),),
        by=DOUBLE_SUM,
    ),
    Mutant(
        "the lambda-trace is not cut at truncations",
        proofs.double_sum,
        (gae("gae_lambda).masked_fill(ended, 0)", "gae_lambda).masked_fill(terminated, 0)"),),
        by=DOUBLE_SUM,
        known="skrl #449",
    ),
    Mutant(
        "a refresh keeps the old bootstrap",
        proofs.recomputed,
        (
            (
                refresh_rollout,
                "refresh",
                "bootstrap = policy.value(tree.index(rollout.obs, T), end, rollout.first[T])",
                "bootstrap = rollout.bootstrap",
            ),
        ),
        by="close(again[name][rollout.valid].double(), wanted[rollout.valid])",
    ),
    Mutant(
        "a refresh values cut episodes with a reset state",
        proofs.refreshed,
        ((refresh_rollout, "refresh", "inside = torch.zeros", "inside = torch.ones"),),
        by="test_refresh_equals_a_replay_from_scratch: close(",
    ),
]
