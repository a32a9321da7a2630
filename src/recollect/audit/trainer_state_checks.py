"""Checks of a ``Trainer``'s memory: acting, learning and sequences use the same one."""

from __future__ import annotations

import torch

from recollect.audit.results import Doubt, NotOffered, Passed, Problem
from recollect.audit.trace_checks import need, state_gap
from recollect.audit.tried import SEED, Tried, gaps, seeded, worst_of
from recollect.base import tree
from recollect.base.formatting import tiny


def acting_is_training(tried: Tried) -> Passed:
    """The learner's pass over the acted sequence gives the numbers that acting gave."""
    tried.offered("act", "evaluate", "initial_state")
    tolerance, acted, first = tried.trainer.tolerance, tried.acted, tried.first
    learned = tried.learned(tried.obs, first)
    gap = gaps(learned, acted.outputs)
    largest, _, _ = worst_of(gap)
    shared = ", ".join(name for name in learned if name in acted.outputs)
    if largest <= tolerance:
        return Passed(f"{shared} of {gap.numel()} steps to {tiny(largest)}", largest, tolerance)
    off = gap > tolerance
    t, row = off.nonzero()[0].tolist()
    nexts = torch.cat([first[1:], torch.zeros_like(first[:1])])
    if float(gaps(tried.learned(tried.obs, first, seed=SEED + 1), learned).max()) > tolerance:
        cause = "two calls of the learner differ: dropout or noise is on, or actions are drawn again"
    elif t == 0 and off[0].all():
        cause = "the first step differs already: other weights or inputs, dropout, statistics, or actions"
    elif first[t, row]:
        cause = "a reset is missed, or the initial state differs, in acting or in learning"
    elif first[t - 1, row]:
        cause = "one of the two resets a step late"
    elif nexts[t, row] and not off[:, ~first[1:].any(0)].any():
        cause = "one of the two resets a step early: at the last step of an episode"
    else:
        cause = "the learner's unroll of a sequence differs from repeated single steps"
    raise Problem(
        f"{shared} differ by up to {largest:.1e} (tolerance {tolerance:.0e}) in {int(off.sum())} of "
        f"{off.numel()} steps, first at step {t}, row {row}",
        f"Likely cause: {cause}",
        "Fix: use the same module, state and resets for acting and learning",
        measured=largest,
        tolerance=tolerance,
    )


def chunk_start(tried: Tried) -> Passed:
    """From the memory in the middle of a sequence the learner gives the numbers that acting gave there."""
    tried.offered("act", "evaluate", "initial_state")
    acted, tolerance, largest = tried.acted, tried.trainer.tolerance, 0.0
    cuts = sorted({1, tried.steps // 2, tried.steps - 2})
    depends = 0.0
    for cut in cuts:
        rest = slice(cut, None)
        state = tree.index(acted.states, cut)
        obs, first = tree.index(tried.obs, rest), tried.first[rest]
        action = None if acted.action is None else tree.index(acted.action, rest)
        expected = {name: x[rest] for name, x in acted.outputs.items()}
        found = tried.evaluate(obs, state, first, action)[0]
        gap, t, row = worst_of(gaps(found, expected))
        zeroed = tried.evaluate(obs, tree.map(torch.zeros_like, state), first, action)[0]
        depends = max(depends, float(gaps(zeroed, expected).max()))
        largest = max(largest, gap)
        if not gap <= tolerance:
            ignored = float(gaps(found, zeroed).max()) <= 1e-7
            raise Problem(
                f"a sequence from step {cut} on differs by {gap:.1e} (tolerance {tolerance:.0e}), most at "
                f"its step {t}, row {row}",
                "Likely cause: the given memory is ignored: the sequence starts from zeros"
                if ignored
                else "Likely cause: the memory at the start belongs to another row, or is changed",
                "Fix: unroll each sequence from the memory that its first step was acted with",
                measured=gap,
                tolerance=tolerance,
            )
    found = f"sequences from steps {', '.join(map(str, cuts))} on: to {tiny(largest)}"
    if depends < 10 * tolerance:
        raise Doubt(
            f"{found}; but a forgotten memory would only show as {tiny(depends)}",
            "The outputs hardly depend on the memory: raise the gain of the last layer in the wrapper",
            measured=largest,
            tolerance=tolerance,
        )
    return Passed(f"{found}; a forgotten memory would show as {tiny(depends)}", largest, tolerance)


def step_is_unroll(tried: Tried) -> Passed:
    """The learner's pass over a sequence equals its passes over single steps, one after the other."""
    tried.offered("evaluate", "initial_state")
    tolerance, action = tried.trainer.tolerance, None if tried.trainer.act is None else tried.acted.action
    whole, last = tried.evaluate(tried.obs, tried.initial(), tried.first, action)
    if last is None:
        raise NotOffered("`evaluate` returns no state")
    state, parts = tried.initial(), []
    for t in range(tried.steps):
        now = slice(t, t + 1)
        one = None if action is None else tree.index(action, now)
        found, state = tried.evaluate(tree.index(tried.obs, now), state, tried.first[now], one)
        parts.append(found)
    single = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    gap, t, row = worst_of(gaps(single, whole))
    gap = max(gap, float(state_gap(state, last).max()))
    if not gap <= tolerance:
        raise Problem(
            f"a sequence and its single steps differ by {gap:.1e} (tolerance {tolerance:.0e}), most at step "
            f"{t}, row {row}",
            "Likely cause: the core's unroll differs from its step (resets, the order of gates, padding, a "
            "scan), or depends on the length of the sequence",
            "Fix: compare the core's unroll with repeated steps, alone",
            measured=gap,
            tolerance=tolerance,
        )
    return Passed(f"{tried.steps} steps at once and one by one: to {tiny(gap)}", gap, tolerance)


def initial_state(tried: Tried) -> Passed:
    """The initial state is the same in every row and at every call, also after acting."""
    tried.offered("initial_state")
    assert tried.trainer.initial_state is not None
    one = tried.trainer.initial_state(tried.rows)
    kept = tree.clone(one)
    for path, leaf in tree.named_leaves(one, "state"):
        if leaf.shape[:1] != (tried.rows,):
            raise Problem(
                f"{path} has shape {tuple(leaf.shape)} for {tried.rows} rows",
                "Fix: put the rows first in every leaf of the state (transpose torch's [layers, B, H])",
            )
    if tried.trainer.act is not None:
        with seeded(SEED), torch.no_grad():
            none = torch.zeros(tried.rows, dtype=torch.bool)
            tried.trainer.act(tree.index(tried.obs, 0), one, none)
    again = tried.trainer.initial_state(tried.rows)
    rows = state_gap(again, tree.map(lambda leaf: leaf[:1].expand_as(leaf), again))
    gap = max(float(state_gap(again, kept).max()), float(rows.max()))
    if gap > 0:
        raise Problem(
            f"the initial state differs between calls or rows by {gap:.1e}",
            "Likely cause: a live state is returned in place of a new one, or it is drawn at random",
            "Fix: return a new tensor every time",
            measured=gap,
            tolerance=0.0,
        )
    gap = float(state_gap(one, kept).max())
    if gap > 0:
        raise Doubt(
            f"`act` changes the state that it is given, in place, by {gap:.1e}",
            "A stored state is only right if it is a copy that was made before the step",
            measured=gap,
            tolerance=0.0,
        )
    return Passed("equal in every row and at every call; acting does not change it", 0.0, 0.0)


def weights_unchanged(tried: Tried) -> str:
    """Acting and evaluating change neither weights nor running statistics."""
    tried.offered("parameters")
    assert tried.trainer.parameters is not None
    before = {name: leaf.detach().clone() for name, leaf in tried.trainer.parameters().items()}
    done = []
    if tried.trainer.act is not None and tried.trainer.initial_state is not None:
        tried.play(tried.obs, tried.first)
        done.append("acting")
    if tried.trainer.evaluate is not None and tried.trainer.initial_state is not None:
        tried.learned(tried.obs, tried.first)
        done.append("evaluating")
    if not done:
        raise NotOffered("the trainer offers neither `act` nor `evaluate`")
    after = tried.trainer.parameters()
    moved = [name for name, leaf in before.items() if not torch.equal(leaf, after[name].detach())]
    if moved:
        raise Problem(
            f"{', '.join(moved[:3])} changed by {' or '.join(done)} alone",
            "Likely cause: running statistics move between acting and learning, so that the learner sees "
            "other inputs than the actor",
            "Fix: freeze statistics while a rollout is collected and learned from",
            measured=float(len(moved)),
            tolerance=0.0,
        )
    return f"{len(before)} weights and statistics unchanged by {' and '.join(done)}"


def recorded_states(tried: Tried) -> Passed:
    """Each recorded memory is what acting makes of the one before, and gives the recorded value."""
    tried.offered("act")
    trace = tried.recorded
    need(trace, "obs", "state")
    largest, tolerance, inside = 0.0, tried.trainer.tolerance, trace.is_valid & ~trace.ended
    for t in range(trace.steps):
        state = tree.index(trace.state, t)
        outputs, after = tried.act(tree.index(trace.obs, t), state, trace.first[t])
        if trace.value is not None and "value" in outputs and trace.is_valid[t].any():
            gap = gaps({"value": outputs["value"]}, {"value": trace.value[t]}, 1).masked_fill(
                ~trace.is_valid[t], 0
            )
            if not float(gap.max()) <= tolerance:
                raise Problem(
                    f"the recorded value of step {t}, row {int(gap.argmax())}, is {float(gap.max()):.1e} off "
                    "that of its recorded observation and memory",
                    "Likely cause: memory, observation and value are stored at different steps (one step "
                    "late or early)",
                    "Fix: store what goes into the network together with what comes out",
                    measured=float(gap.max()),
                    tolerance=tolerance,
                )
            largest = max(largest, float(gap.max()))
        gap = state_gap(after, tree.index(trace.state, t + 1)).masked_fill(~inside[t], 0)
        if not float(gap.max()) <= tolerance:
            raise Problem(
                f"the memory recorded for step {t + 1}, row {int(gap.argmax())}, is {float(gap.max()):.1e} "
                f"off what acting makes of that of step {t}",
                "Likely cause: memories are stored one step late or early, reset at the wrong step, or "
                "belong to other rows",
                "Fix: store the memory that goes into the network at each step",
                measured=float(gap.max()),
                tolerance=tolerance,
            )
        largest = max(largest, float(gap.max()))
    return Passed(
        f"{trace.steps} recorded memories follow from each other, to {tiny(largest)}", largest, tolerance
    )
