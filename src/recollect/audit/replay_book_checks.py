"""The bookkeeping of a replay, against plain lists of the same episodes: windows, content, draws, priorities.

Scripted rollouts fill small replays until new steps have overwritten old ones many times.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recollect.audit.drawn_replay import Recorded
from recollect.audit.gpu_path import without_reads
from recollect.audit.replay_script import Lists, Sizes, drawn, script
from recollect.audit.results import Passed, Problem
from recollect.base import tree
from recollect.errors import RecollectError
from recollect.experience.replay import Replay
from recollect.experience.sum_tree import SumTree

LENGTHS = (7, 1, 13, 2, 5) * 4
"""Steps of the scripted rollouts."""
ODD = (*(1,) * 15, *(3,) * 5, 25, 2)
SCRIPTS = (
    (Sizes(capacity=20), LENGTHS),
    (Sizes(capacity=20, stores_states=False), LENGTHS),
    (Sizes(capacity=20, burn_in=5, stride=3), LENGTHS),
    (Sizes(capacity=9, stride=1), ODD),
    (Sizes(capacity=7, burn_in=0, stride=1), ODD),
    (Sizes(capacity=40, burn_in=1, length=1, n_step=1, stride=4), (8,) * 20),
)
"""Sizes of replays, and the lengths of the rollouts that they get."""
CONTENT = {
    "absent": "slots that are overwritten, not yet written, or of another episode are read as its own",
    "is_step": "a final observation counts as a step, or a step does not",
    "first": "flags are those of another slot",
    "terminated": "flags are those of another slot, or a truncation counts as a termination",
    "obs": "an observation is that of another slot, or a final observation is that after the reset",
    "action": "an action is that of another slot",
    "reward": "a reward is that of another slot",
    "state": "the state is that of another row, of another step, or of the time after the step",
    "age": "the age counts from another step",
    "entries": "the window is named as another one, which would get its priority",
}
"""The parts of a window, and the likely cause if one differs."""

SMALL, EXPONENT = Sizes(capacity=20), 0.7
DRAWS, ENTRIES, BINS = 20_000, 70_000, 50
SIGMAS = 6.0
DAMAGES = {"head": -1000, "ready": 1, "state_head": 1000, "state_position": -1, "weights.1": 1}
"""Parts of a saved replay, and the number that is added to them."""


def _played(rollouts: Recorded) -> Iterator[tuple[Replay, Lists]]:
    """Each replay with its lists, after every rollout."""
    device = rollouts[0].rollout.reward.device
    for sizes, lengths in SCRIPTS:
        replay, lists = sizes.make(device), Lists(sizes)
        for rollout in script(lengths, device):
            stored = sizes.stored(rollout)
            replay.add(stored)
            lists.add(stored)
            yield replay, lists


def replay_windows(rollouts: Recorded) -> str:
    """After every rollout those windows can be drawn, and no others, whose parts are all in memory."""
    count = 0
    for replay, lists in _played(rollouts):
        found, expected = set(drawn(replay)[1]), lists.windows()
        for row, at in sorted(found - expected):
            raise Problem(
                f"the window at step {at} of row {row} can be drawn, but {lists.hindrance(row, at)} "
                f"({lists.sizes}, {len(lists.rows[row])} slots written)",
                "Likely cause: a replay keeps offering a sequence after parts of it were overwritten, or "
                "offers it too early",
                "Fix: offer a sequence while its steps, its burn-in and its state are in memory",
            )
        for row, at in sorted(expected - found):
            raise Problem(
                f"the window at step {at} of row {row} is complete and cannot be drawn ({lists.sizes}, "
                f"{len(lists.rows[row])} slots written)",
                "Likely cause: steps near the start or the end of an episode are never learned from",
                "Fix: offer every sequence whose steps and state are in memory",
            )
        count += len(found)
    return f"{count} windows of {len(SCRIPTS)} scripted replays are those of plain lists"


def replay_contents(rollouts: Recorded) -> str:
    """Windows have the steps of their own episode in order, zeros elsewhere, and their state."""
    count = 0
    for replay, lists in _played(rollouts):
        sample, windows = drawn(replay)
        windows = [one for one in windows if not lists.hindrance(*one)]
        if sample is None or not windows:
            continue
        slots = torch.tensor([row * replay.capacity + at % replay.capacity for row, at in windows])
        sample = replay.read(slots.to(replay.device))
        expected = lists.content(windows)
        for name, cause in CONTENT.items():
            if name == "state" and sample.state is None:
                continue
            truth = expected[name]
            found = getattr(sample, name).cpu()
            found = found.squeeze(-1) if name == "state" else found
            differs = (found != truth) & (truth == truth)  # NaN: any
            if differs.any():
                where = differs.nonzero()[0].tolist()
                row, at = windows[where[-1]]
                raise Problem(
                    f"{name} of the window at step {at} of row {row} is {found[tuple(where)].item():g}, and "
                    f"{truth[tuple(where)].item():g} in plain lists of the steps ({lists.sizes})",
                    f"Likely cause: {cause}",
                    "Fix: write and read all parts of a step by one index, and clear what is not of the "
                    "window's episode",
                )
        count += len(windows)
    return f"{count} windows of {len(SCRIPTS)} scripted replays, all parts equal to plain lists"


def replay_draws(rollouts: Recorded) -> Passed:
    """Windows are drawn as often as their priorities say, and never those of priority 0."""
    device = rollouts[0].rollout.reward.device
    generator = torch.Generator(device).manual_seed(1)
    _check_tree(device, generator)
    replay = SMALL.make(device, EXPONENT)
    try:
        replay.sample(1)
    except RecollectError:
        pass
    else:
        raise Problem(
            "an empty replay returns a sequence",
            "Likely cause: nothing checks that a window can be drawn before the first sample",
            "Fix: raise, and collect a longer warm-up",
        )
    _fill(replay)
    entries = _entries(replay)
    priority = torch.rand(len(entries), generator=generator, device=device) + 0.1
    priority[::3] = 0
    replay.update(entries, priority)
    expected = torch.where(priority > 0, priority.double() ** EXPONENT, 0)
    expected /= expected.sum()
    sample = replay.sample(DRAWS, generator)
    which = (sample.entries.unsqueeze(1) == entries).long().argmax(1)
    off = float((sample.probability / expected[which] - 1).abs().max())
    if not off <= 1e-6:
        raise Problem(
            f"the probability of a drawn window is off by {off:.1e} of priority^{EXPONENT} / sum",
            "Likely cause: the exponent is ignored, a priority of 0 counts as a small one, or the weight is "
            "not divided by the sum",
            "Fix: probability = priority^exponent / sum over all windows",
        )
    worst = _frequencies(which, expected, "windows")
    _check_buffers(replay, generator)
    with without_reads():
        _check_bad_priorities(replay, entries)
    said = f"{DRAWS} draws of {len(entries)} windows, and of a large tree"
    return Passed(f"{said}: to {worst:.1f} standard deviations (tolerance {SIGMAS:g})", worst, SIGMAS)


def _fill(replay: Replay) -> None:
    for rollout in script(LENGTHS, replay.device):
        replay.add(SMALL.stored(rollout))


def _entries(replay: Replay) -> Tensor:
    sample, _ = drawn(replay)
    assert sample is not None
    return sample.entries.clone()


def _frequencies(which: Tensor, expected: Tensor, what: str) -> float:
    """How many standard deviations the counts of draws are off at most; raises if it is too much."""
    count = which.bincount(minlength=len(expected)).double()
    deviation = (len(which) * expected * (1 - expected)).sqrt()
    gap = (count - len(which) * expected).abs()
    sigmas = torch.where(expected > 0, gap / deviation, torch.where(gap > 0, torch.inf, 0))
    worst = int(sigmas.argmax())
    if not float(sigmas[worst]) <= SIGMAS:
        raise Problem(
            f"of {len(which)} draws {int(count[worst])} are of one of the {what}, whose share of the "
            f"priorities is {float(expected[worst]):.2%}",
            "Likely cause: sums in the tree are not updated up to the root, or a weight of 0 is drawn",
            "Fix: after each change recompute all sums above it, and draw where the cumulative weight "
            "reaches the target",
            measured=float(sigmas[worst]),
            tolerance=SIGMAS,
        )
    return float(sigmas[worst])


def _check_tree(device: torch.device, generator: torch.Generator) -> None:
    """A tree of several levels, changed twice; of an entry that is given twice the larger weight counts."""
    levels = SumTree(ENTRIES, device)
    weight = torch.rand(ENTRIES, generator=generator, device=device, dtype=torch.float64)
    index = torch.arange(ENTRIES, device=device)
    levels.set(index, weight)
    weight = weight.masked_fill(index % 2 == 0, 0)
    weight[: ENTRIES // 4] *= 5
    levels.set(torch.cat([index, index]), torch.cat([weight, weight / 2]))
    which = levels.draw(DRAWS, generator)
    size = ENTRIES // BINS
    _frequencies(which // size, weight.view(BINS, size).sum(1) / weight.sum(), f"{BINS} parts of a tree")
    if not (weight[which] > 0).all():
        raise Problem(
            "an entry of weight 0 is drawn",
            "Likely cause: the search stops above the target, not where the cumulative weight reaches it",
            "Fix: draw the first child whose cumulative weight reaches a target above 0",
        )


def _check_buffers(replay: Replay, generator: torch.Generator) -> None:
    one = replay.sample(8, generator)
    kept = tree.clone((one.obs, one.action, one.reward))
    replay.sample(8, generator)
    now = (one.obs, one.action, one.reward)
    if not all(torch.equal(a, b) for a, b in zip(tree.leaves(now), tree.leaves(kept))):
        raise Problem(
            "the next sample overwrites the one before",
            "Likely cause: both use the same memory",
            "Fix: let two buffers take turns",
        )


def _check_bad_priorities(replay: Replay, entries: Tensor) -> None:
    before = replay.tree.weights.clone()
    replay.update(entries[:3], torch.tensor([-1.0, torch.nan, torch.inf], device=replay.device))
    if not torch.equal(replay.tree.weights, before):
        raise Problem(
            "without host reads a priority that is negative, NaN or infinite becomes the weight of a window",
            "Likely cause: nothing checks the priorities where they cannot be read",
            "Fix: let such a window keep its priority",
        )
    replay.update(entries, torch.zeros(len(entries), device=replay.device))
    if replay.sample(8).exists.any():
        raise Problem(
            "without host reads a window of priority 0 is read where all are 0",
            "Likely cause: some entry is always drawn, and its weight is not looked at",
            "Fix: return no steps for an entry of weight 0",
        )


def replay_priorities(rollouts: Recorded) -> str:
    """A window keeps its priority while it is in memory; new ones get the largest; stale ones are ignored."""
    device = rollouts[0].rollout.reward.device
    replay, lists = SMALL.make(device, EXPONENT), Lists(SMALL)
    generator, largest, count = torch.Generator().manual_seed(2), 1.0, 0
    own: dict[tuple[int, int], float] = {}
    every: list[tuple[int, int]] = []
    for rollout in script(LENGTHS, device):
        stored = SMALL.stored(rollout)
        replay.add(stored)
        lists.add(stored)
        windows = lists.windows()
        _check_weights(replay, {one: own.get(one, largest) for one in windows}, own)
        own = {one: own.get(one, largest) for one in windows}
        every += windows - set(every)
        # Half of them are updated, some twice, and some that are long overwritten.
        chosen = [every[int(i)] for i in torch.randint(len(every), (len(every) // 2,), generator=generator)]
        priority = 3 * torch.rand(len(chosen), generator=generator)
        entries = torch.tensor([row + replay.rows * at for row, at in chosen], device=device)
        if not len(entries):
            continue
        replay.update(entries, priority.to(device))
        now: dict[tuple[int, int], float] = {}
        for one, weight in zip(chosen, (priority.double() ** EXPONENT).tolist()):
            if one in windows:
                now[one] = max(weight, now.get(one, 0.0))
        own |= now
        largest = max([largest, *now.values()])
        _check_weights(replay, own, own)
        count += len(chosen)
    return f"{count} priorities of scripted replays: kept, replaced and forgotten with their windows"


def _check_weights(
    replay: Replay, expected: dict[tuple[int, int], float], known: dict[tuple[int, int], float]
) -> None:
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    for one, weight in zip(drawn(replay)[1], replay.tree.weights[slots].tolist()):
        if one in expected and abs(weight - expected[one]) > 1e-6 * expected[one]:
            is_new = one not in known
            raise Problem(
                f"the window at step {one[1]} of row {one[0]}, "
                + ("which is new," if is_new else "whose priority is known,")
                + f" has the weight {weight:.4g} in place of {expected[one]:.4g}",
                "Likely cause: "
                + (
                    "new windows do not get the largest priority so far"
                    if is_new
                    else "a priority is lost when new steps are added, goes to the window that overwrote its "
                    "own, or of two of one window the smaller counts"
                ),
                "Fix: keep weights with their windows, set new ones to the largest, and ignore entries that "
                "are overwritten",
            )


def replay_saved(rollouts: Recorded) -> str:
    """A loaded replay continues bit for bit; a damaged one, or one without final observations, is refused."""
    device = rollouts[0].rollout.reward.device
    replay = SMALL.make(device, EXPONENT)
    _fill(replay)
    entries = _entries(replay)[::2]
    replay.update(entries, torch.linspace(0.1, 2.0, len(entries), device=device))
    saved = tree.clone(replay.state_dict())
    other = SMALL.make(device, EXPONENT)
    other.load_state_dict(saved)
    for rollout in script((5, 9), device, seed=1):
        samples = []
        for one in (replay, other):
            one.add(SMALL.stored(rollout))
            sample = one.sample(64, torch.Generator(device).manual_seed(3))
            samples.append((sample.obs, sample.reward, sample.state, sample.entries, sample.probability))
        if not all(torch.equal(a, b) for a, b in zip(*(tree.leaves(sample) for sample in samples))):
            raise Problem(
                "a saved and loaded replay draws other sequences than the one that went on",
                "Likely cause: a part of it is not saved",
                "Fix: save all tensors: steps, states, positions, priorities and counters",
            )
    for name, by in DAMAGES.items():
        damaged = tree.clone(saved)
        leaf = damaged[name]
        damaged[name] = ~leaf if leaf.dtype == torch.bool else leaf + by
        before = tree.clone(other.state_dict())
        try:
            other.load_state_dict(damaged)
        except RecollectError:
            now = other.state_dict()
            is_same = all(torch.equal(now[key].nan_to_num(), was.nan_to_num()) for key, was in before.items())
            if is_same:
                continue
        raise Problem(
            f"a saved replay whose {name} is damaged is loaded, or half of it",
            "Likely cause: it is applied before it is checked, or not checked",
            "Fix: compare positions, states, windows and sums of priorities with each other first",
        )
    _check_finals(device)
    return f"the next draws are the same bit for bit; {len(DAMAGES)} kinds of damage are refused"


def _check_finals(device: torch.device) -> None:
    replay = SMALL.make(device)
    for rollout in script(LENGTHS, device):
        if rollout.finals is None:
            continue
        rollout.finals = None
        try:
            replay.add(SMALL.stored(rollout))
        except RecollectError:
            return
        raise Problem(
            "a time limit without its final observation is stored",
            "Likely cause: nothing compares the final observations with the flags",
            "Fix: raise: the target of that step would have the value of another observation",
        )
