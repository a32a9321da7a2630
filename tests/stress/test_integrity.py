"""Weights and slots in shared memory under stress: short here, the million reads in bench/integrity.py."""

from __future__ import annotations

from functools import partial

import pytest

from recollect.runtimes.process import transport
from tests.mutants.planted import ChildMutant
from tests.support.integrity import Careless, kill_writers, stress_slots, stress_weights

pytestmark = pytest.mark.usefixtures("warm_children")


def test_no_read_is_mixed_while_versions_are_published():
    """S003-11: versions as fast as they can be published, several readers, one of them killed in mid-read."""
    seen, published, killed = stress_weights(6_000, readers=2, versions=101, victims=1)
    assert (seen.mixed, seen.backwards, killed) == (0, 0, 1)
    assert seen.reads >= 6_000
    assert seen.versions > 200, "of both readers"
    assert published > 100


@pytest.mark.slow
@pytest.mark.parametrize(("reads", "size"), [(200_000, 1_500), (4_000, 500_000)])
def test_no_read_is_mixed_at_length(reads, size):
    """S003-11: small and large weights; some copies are torn, all of these are found."""
    seen, _, killed = stress_weights(reads, size=size, victims=3)
    assert (seen.reads, seen.mixed, seen.backwards, killed) == (reads, 0, 0, 3)
    assert seen.again > 0


@pytest.mark.slow
def test_a_reader_that_does_not_look_reads_mixtures():
    """S003-11: the stress finds the bug that it is for."""
    seen, _, _ = stress_weights(4_000, size=500_000, kind=Careless)
    assert seen.mixed > 0


def test_writers_killed_while_they_publish():
    """S003-11: the last whole version can be read, and the next writer goes on from there."""
    for reported, version, is_mixed in kill_writers(2):
        assert version >= reported
        assert not is_mixed


def slots(updates: int) -> None:
    """What actors record into slots that are used over and over arrives whole, new, in order, and once."""
    seen = stress_slots(updates)
    assert seen["rollouts"] == 2 * updates
    found = {name: seen[name] for name in ("torn", "stale", "disordered", "misnamed")}
    assert not any(found.values()), found


def test_slots_are_whole_and_in_order():
    """S003-9, S003-10: by the code of the actors themselves, which send an index after its data."""
    slots(250)


IMPORT = "from recollect.base import tree"
LATE = """
            if method == "collect":
                from recollect.base import tree
                recorded = process.server.actor._buffers[arguments[1]].rollout.tensors()
                time.sleep(0.01)
                tree.copy_(process._slots[arguments[1]]["rollout"], recorded)"""
EARLY = ChildMutant(
    "an index is sent before its data",
    partial(slots, 10),
    (
        (transport.ProcessActorServer, "__init__", "    self._board =", f"    {IMPORT}\n    self._board ="),
        (transport.ProcessActorServer, "__init__", "[read(slot, header)", "[read(tree.clone(slot), header)"),
        (transport, "serve", "(*arguments))", f"(*arguments)){LATE}"),
    ),
    "assert not any(found.values())",
)


def test_an_index_sent_before_its_data_is_found():
    """S003-10: the stress finds the bug that it is for."""
    EARLY.assert_caught()
