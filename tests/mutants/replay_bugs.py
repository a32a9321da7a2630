"""Bugs of replay: windows, priorities, n-step returns, checkpoints."""

from __future__ import annotations

import functools

from recollect.experience import replay_checks, replay_stream, returns
from recollect.experience.replay import Replay
from recollect.experience.sum_tree import SumTree
from tests.experience import (
    test_n_step,
    test_replay,
    test_replay_priorities,
    test_replay_states,
    test_sum_tree,
)
from tests.mutants.mutant import Edit, Mutant

WINDOWS, MISSING = '"the windows"', '"windows are missing"'
CONTENT, EXISTS, STATE, STEPS = (
    '"observations"',
    '"which slots exist"',
    '"the state"',
    '"which slots are steps"',
)


@functools.cache
def case(name: str, stores_states: bool = True) -> functools.partial[None]:
    """Every window of one kind of stream is that of the slow truth."""
    return functools.partial(test_replay.test_every_kind_of_end, name, stores_states)


small = functools.partial(test_replay.test_a_ring_of_hardly_more_than_a_window, 0)
double_sum = functools.partial(
    test_n_step.test_equals_the_double_sum.hypothesis.inner_test, 12, 5, 4, 0, 0.9, ()
)
by_hand = functools.partial(
    test_n_step.test_by_hand, (0, 0, 0, 0), (1, 1, 0, 0), [1 + 2 / 2 + 30 / 4, 2 + 30 / 2]
)
sums = functools.partial(
    test_sum_tree.test_sums_are_those_of_the_children.hypothesis.inner_test, test_sum_tree.SIZES[-1], 0, 3
)
exponent = functools.partial(test_replay_priorities.test_windows_are_drawn_by_their_priorities, 0.5)
zero_weight = functools.partial(
    test_sum_tree.test_an_entry_of_weight_zero_is_never_drawn, test_sum_tree.SIZES[-1]
)
damaged = functools.partial(test_replay_states.test_a_damaged_replay_is_not_loaded, "ready")


def read(old: str, new: str) -> Edit:
    return (Replay, "read", old, new)


def sampleable(old: str, new: str) -> Edit:
    return (Replay, "sampleable", old, new)


def place(old: str, new: str) -> Edit:
    return (replay_stream, "place", old, new)


damaged_states = functools.partial(test_replay_states.test_a_damaged_replay_is_not_loaded, "state_head")
REPLAY = [
    Mutant(
        "sequences run on into the next episode",
        case("ends"),
        (read("absent = episode != own", "absent = episode != episode"),),
        by=EXISTS,
    ),
    Mutant(
        "a truncation does not end the episode",
        case("ends"),
        (
            place("~(terminated | truncated)", "~terminated"),
            place("(first | ~is_open[:-1])", "~is_open[:-1]"),
        ),
        by=WINDOWS,
    ),
    Mutant(
        "an empty replay returns its first slot",
        test_replay.test_an_empty_replay_names_the_warm_up,
        ((Replay, "_draw", "if self._may_be_empty:", "if False:"),),
        by="with pytest.raises",
    ),
    *(
        Mutant(
            name, small, (read("absent = episode != own", f"absent = episode != own\n    {more}"),), by=EXISTS
        )
        for name, more in (
            ("windows over the write head", "absent[K:] &= episode[K:] != own - capacity"),
            ("a prefix reads what overwrote it", "absent[:K] &= episode[:K] != own + capacity"),
        )
    ),
    Mutant(
        "the positions in words begin anew in every lap",
        small,
        ((Replay, "_word", "+ position", "+ position % self.capacity"),),
        by=WINDOWS,
    ),
    Mutant(
        "windows over a slot that is not yet written",
        case("long episodes"),
        (sampleable("self.n_step <= head", "self.n_step <= head + 1"),),
        by=WINDOWS,
    ),
    Mutant(
        "windows whose prefix is overwritten",
        case("long episodes", False),
        (sampleable("begin >= head - capacity", "begin >= head - capacity - 1"),),
        by=WINDOWS,
    ),
    Mutant(
        "windows stay when their prefix is overwritten",
        case("long episodes"),
        ((Replay, "_refresh", "back + written + self.burn_in", "back + written"),),
        by=WINDOWS,
    ),
    Mutant(
        "the slots around the end of the ring are off by one",
        case("long episodes"),
        (read("around >= begin + capacity", "around > begin + capacity"),),
        by=CONTENT,
    ),
    Mutant(
        "a prefix reaches into an earlier episode",
        case("ends"),
        (sampleable("whole = position - K >= start", "whole = position - K >= 0"),),
        by=WINDOWS,
    ),
    Mutant(
        "the state after the step",
        case("long episodes"),
        ((Replay, "_add_states", "stored[at] = index", "stored[(at + 1) % rollout.steps] = index"),),
        by=MISSING,
    ),
    *(
        Mutant(
            f"steps early in an episode are never learned from: {name}",
            functools.partial(test_replay.test_every_step_is_learned_from, burn_in, "stored"),
            (sampleable(old, new),),
            by="steps that are never learned from",
        )
        for name, burn_in, old, new in (
            ("those before the first stored state", 2, "opened & ((since == K)", "~opened & ((since == K)"),
            ("those after a first sequence", 2, "(since == K) | ", ""),
            ("those of a long burn-in", 5, " | (since % self.length == 0)", ""),
        )
    ),
    Mutant(
        "windows near a start that is overwritten need no state",
        case("begun inside an episode"),
        (sampleable("can_start |= opened &", "can_start |= near &"),),
        by=WINDOWS,
    ),
    Mutant(
        "the state of the next row",
        case("long episodes"),
        ((Replay, "_add_states", "s.flatten(0, 1)", "s.roll(-1, 1).flatten(0, 1)"),),
        by=STATE,
    ),
    Mutant(
        "the state of the next stored step",
        case("long episodes"),
        (read("index_select(0, index[:count])", "index_select(0, index[:count]).sub_(1).clamp_(min=0)"),),
        by=STATE,
    ),
    Mutant(
        "states that are overwritten",
        test_replay.test_states_are_overwritten_before_their_steps,
        (sampleable("self.state_position[state] == position - K", "self.state_position[state] >= 0"),),
        by=WINDOWS,
    ),
    Mutant(
        "windows stay when their state is overwritten",
        test_replay.test_states_are_overwritten_before_their_steps,
        ((Replay, "_refresh", "if lost is not None:", "if False:"),),
        by=WINDOWS,
    ),
    Mutant(
        "a final observation counts as a step",
        case("ends"),
        (
            (
                Replay,
                "_add_finals",
                "self._clear(slots)",
                "self._clear(slots)\n    self.fields.is_step.index_fill_(0, slots, True)",
            ),
        ),
        by=STEPS,
    ),
    Mutant(
        "the final observation is the reset one",
        test_replay.test_final_observations_are_those_before_the_reset,
        (
            (
                Replay,
                "_add_finals",
                "self.obs, finals.obs)",
                "self.obs, tree.index(rollout.obs, (time + 1, row)))",
            ),
        ),
        by='(last.obs["x"][1] == 7).all()',
    ),
    Mutant(
        "the step before a restart keeps its outcome",
        case("restarted envs"),
        (place("was_abandoned=begins & is_open[:-1]", "was_abandoned=begins & False"),),
        by=WINDOWS,
    ),
    Mutant(
        "truncated steps are terminal",
        test_replay.test_final_observations_are_those_before_the_reset,
        (
            (
                Replay,
                "add",
                "put(fields.terminated, rollout.terminated)",
                "put(fields.terminated, rollout.terminated | rollout.truncated)",
            ),
        ),
        by="assert not last.terminated.any()",
    ),
    Mutant(
        "steps of dead agents and fillers of autoreset are stored",
        case("next-step autoreset"),
        ((Replay, "add", "self.row_ids[here], rollout.valid", "self.row_ids[here], rollout.valid | True"),),
        by=WINDOWS,
    ),
    Mutant(
        "padding has content",
        case("ends"),
        (read("around.masked_fill_(absent, self._zero).view(-1)", "around.view(-1)"),),
        by=CONTENT,
    ),
    Mutant(
        "padding has rewards and flags",
        case("ends"),
        (read("fields.rest.masked_fill_(absent, 0)", "pass"),),
        by=STEPS,
    ),
    Mutant(
        "a state is rebuilt from the middle of an episode",
        case("begun inside an episode", False),
        (sampleable("(whole | opened)", "(whole | near)"),),
        by=WINDOWS,
    ),
    Mutant(
        "windows at the end of an episode are left out",
        case("ends"),
        (sampleable(" | (start != self.open_start[rows])", ""),),
        by=WINDOWS,
    ),
    Mutant(
        "the next sample overwrites the last",
        test_replay.test_a_sample_outlives_one_more,
        ((Replay, "_output", "in range(2)", "in range(1)"),),
        by="assert not torch.equal",
    ),
]

PRIORITIES = [
    Mutant(
        "a priority of zero counts as a small one",
        test_replay_priorities.test_windows_of_priority_zero_are_never_drawn,
        ((Replay, "update", "priority = priority.double()", "priority = priority.double().clamp(min=1e-3)"),),
        by="== set(every[priority > 0]",
    ),
    Mutant(
        "entries of weight zero are drawn",
        zero_weight,
        (
            (
                SumTree,
                "draw",
                "sums.index_select(0, node)",
                "sums.index_select(0, node) + 1e-3 * torch.arange(1, BRANCHES + 1)",
            ),
        ),
        by="tree.weights[drawn] > 0",
    ),
    Mutant(
        "a window that cannot be drawn is read",
        test_replay_priorities.test_without_host_reads_bad_priorities_change_nothing,
        (read("own = own.masked_fill(weight <= 0, -UNWRITTEN)", "pass"),),
        by="assert not drawn.exists.any()",
    ),
    Mutant(
        "without host reads NaN becomes a priority",
        test_replay_priorities.test_without_host_reads_bad_priorities_change_nothing,
        (
            (
                Replay,
                "update",
                "self._slots(row, position, self.head[row], ~bad)",
                "self._slots(row, position, self.head[row], bad | True)",
            ),
        ),
        by="assert weights(replay) == before",
    ),
    Mutant(
        "sums are not updated up to the root",
        sums,
        ((SumTree, "set", "torch.cumsum(children, 0, out=root)", "pass"),),
        by='"the sums of the root"',
    ),
    Mutant(
        "totals of nodes are not updated",
        sums,
        ((SumTree, "set", "totals.index_copy_(0, index, cumulative[:, -1])", "pass"),),
        by='"the totals of the nodes"',
    ),
    Mutant(
        "of two weights of an entry the last counts",
        test_replay_priorities.test_of_a_window_drawn_twice_the_larger_priority_counts,
        (
            (
                SumTree,
                "set",
                'children.scatter_reduce_(0, index, weight.to(children.dtype), "amax")',
                "children[index] = weight.to(children.dtype)",
            ),
        ),
        by="weights(replay)[one] == 3",
    ),
    Mutant(
        "stale priorities go to the windows that overwrote theirs",
        test_replay_priorities.test_priorities_of_overwritten_windows_are_ignored,
        (
            (
                Replay,
                "update",
                "self._slots(row, position, self.head[row], ~bad)",
                "row * self.capacity + position % self.capacity",
            ),
        ),
        by="assert weights(replay) == before",
    ),
    Mutant(
        "new windows get a priority of 1",
        test_replay_priorities.test_new_windows_get_the_largest_priority_so_far,
        ((Replay, "_refresh", "[slots], self.largest)", "[slots], torch.ones_like(self.largest))"),),
        by="pytest.approx",
    ),
    Mutant(
        "every rollout forgets the priorities of the latest windows",
        test_replay_priorities.test_new_windows_get_the_largest_priority_so_far,
        ((Replay, "_refresh", "torch.where(was_ready,", "torch.where(was_ready & False,"),),
        by="pytest.approx",
    ),
    Mutant(
        "the exponent of priorities is ignored",
        exponent,
        ((Replay, "update", "priority**self.priority_exponent", "priority**1"),),
        by="torch.testing.assert_close(drawn.probability",
    ),
    Mutant(
        "a probability is not divided by the total",
        exponent,
        (read("weight / self.tree.total", "weight"),),
        by="torch.testing.assert_close(drawn.probability",
    ),
]

N_STEP = [
    Mutant(
        "n-step sums run across a termination",
        double_sum,
        ((returns, "n_step_parts", "is_running = continues & ~terminated[here]", "is_running = continues"),),
        by="torch.testing.assert_close(ours, truth",
    ),
    Mutant(
        "n-step sums run across a truncation",
        double_sum,
        (
            (
                returns,
                "n_step_parts",
                "continues = is_running & is_step[here] if",
                "continues = is_running if",
            ),
        ),
        by="torch.testing.assert_close(ours, truth",
    ),
    Mutant(
        "the power of gamma is n where the sum is shorter",
        by_hand,
        (
            (
                returns,
                "n_step_parts",
                "masked_fill(stops, gamma**i)",
                "masked_fill(stops, gamma**n)",
            ),
        ),
        by="assert target.squeeze(1).tolist() == expected",
    ),
]

SAVED = [
    Mutant(
        "a damaged replay is applied before it is checked",
        damaged,
        (
            (
                Replay,
                "load_state_dict",
                "check_consistent(other)",
                "tree.copy_(own, other._tensors())\n    check_consistent(other)",
            ),
        ),
        by="assert_unchanged",
    ),
    Mutant(
        "a damaged replay is loaded",
        damaged,
        ((replay_checks, "check_consistent", "if not torch.equal(ready, replay.ready[at]):", "if False:"),),
        by="with pytest.raises",
    ),
    Mutant(
        "a replay with states of another time is loaded",
        damaged_states,
        ((replay_checks, "_check_states", "(newest != of_rows.amax(1)).any() or ", ""),),
        by="with pytest.raises",
    ),
    Mutant(
        "a replay of another format is not told from one of another space",
        test_replay_states.test_a_replay_of_the_first_format_is_not_loaded,
        ((replay_checks, "check_saved", "if found != FORMAT:", "if False:"),),
        by="with pytest.raises",
    ),
    Mutant(
        "a truncation without its final observation is stored",
        test_replay_states.test_a_truncation_without_its_final_observation,
        ((Replay, "_check_finals", "if missing.any():", "if False:"),),
        by="with pytest.raises",
    ),
]
