"""Planted bugs in recorded episodes of several agents, and in their films."""

from __future__ import annotations

from recollect.acting.recording import _Player, _Slot
from recollect.play import frames
from tests.acting import test_absent_agents
from tests.mutants.mutant import Mutant
from tests.play import test_several_agents


def by_hand() -> None:
    test_several_agents.test_every_agent_is_recorded_as_its_policy_acts(True)


def by_hand_sampled() -> None:
    test_several_agents.test_every_agent_is_recorded_as_its_policy_acts(False)


def films() -> None:
    test_several_agents.test_frames_stand_at_the_steps_of_an_agent("independent")


RECORDINGS = [
    Mutant(
        "every agent is recorded with the memory of the first",
        by_hand,
        ((_Player, "act", "state, first, life.row)", "state, first, 0)"),),
        by="assert np.array_equal(trace.memory[t % 4], memory[name][row].numpy())",
    ),
    Mutant(
        "every agent is recorded with the numbers of the first",
        by_hand,
        ((_Player, "take", "_number(self._record, value, row)", "_number(self._record, value, 0)"),),
        by="assert trace.value[t % 4] == acted[name]",
    ),
    Mutant(
        "every agent is recorded with the action of the first",
        by_hand_sampled,
        ((_Player, "take", "self._action, row)", "self._action, 0)"),),
        by="assert trace.action[t % 4] == acted[name]",
    ),
    Mutant(
        "the groups of a recording draw the same random numbers",
        by_hand_sampled,
        ((_Slot, "__init__", "stream(seed, number) if group else seed", "seed"),),
        by="== acted[name]",
    ),
    Mutant(
        "an agent that appears later is recorded from the start of the episode",
        test_absent_agents.test_recording,
        ((_Player, "take", "life.start if life.is_alive else now", "0"),),
        by="assert [(one.agent, one.episode, one.start, len(one)) for one in found]",
    ),
    Mutant(
        "an episode is over with its first agent",
        test_absent_agents.test_recording,
        ((_Slot, "is_over", "any(life.is_alive for life in self._lives) or not any(", "not any("),),
        by="assert [(one.agent, one.episode, one.start, len(one)) for one in found]",
    ),
    Mutant(
        "the film of an agent begins with the episode",
        films,
        ((frames, "record_film", "[trace.start : trace.start + len(trace) + 1]", "[: len(trace) + 1]"),),
        by="assert shown ==",
    ),
    Mutant(
        "a reset without a step is an episode of the film",
        films,
        ((frames, "_begin", "reels.pop()", "pass"),),
        by="assert shown ==",
    ),
]
