"""Shared memory: really shared, really there, and really gone."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.base import tree
from recollect.base.child_process import Child, Line
from recollect.base.shared_memory import ALIGNMENT, Layout, Segment
from recollect.doctor import Places
from recollect.errors import ResourceError

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 2 + 1).view(shape).to(dtype)


leaves = st.builds(filled, st.lists(st.integers(0, 5), max_size=3).map(tuple), st.sampled_from(DTYPES))
trees = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["obs", "state", "0"]), parts),
    ),
    max_leaves=8,
)


class Pair(NamedTuple):
    hidden: torch.Tensor
    cell: torch.Tensor


def everything() -> dict:
    """A tensor of each dtype, a scalar, an empty one, and structure."""
    return {
        "many": tuple(filled((3, 2), dtype) for dtype in DTYPES),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "state": Pair(torch.ones(2, 3), torch.zeros(2, 3)),
        "none": (),
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Layouts -------------------------------------------------------------------------------------------------


@given(value=trees, slots=st.integers(1, 3))
def test_any_tree_lies_in_memory_and_comes_back(value, slots):
    """S003-9: every dtype and shape; leaves are aligned and apart; slots one after another do not touch."""
    layout = pickle.loads(pickle.dumps(Layout.of(value)))
    memory = Segment.create(slots * layout.size, "the test")
    views = [layout.view(memory, i * layout.size) for i in range(slots)]
    for i in reversed(range(slots)):
        tree.copy_(views[i], value)
    for view in views:
        assert tree.spec(view, lead=0) == tree.spec(value, lead=0)
        for seen, meant in zip(tree.leaves(view), tree.leaves(value)):
            assert torch.equal(seen, meant)
            assert seen.data_ptr() % ALIGNMENT == 0
    memory.close()


def test_a_layout_is_of_shapes_alone():
    meta = Layout.of({"x": torch.empty(3, 4, device="meta"), "y": torch.empty(2).expand(5, 2)})
    assert meta == Layout.of({"x": torch.ones(3, 4), "y": torch.ones(5, 2)})
    assert meta != Layout.of({"x": torch.ones(3, 4), "y": torch.ones(5, 3)})


def test_a_layout_must_fit_its_memory():
    layout = Layout.of(torch.zeros(100))
    memory = Segment.create(layout.size, "the test")
    for offset in (ALIGNMENT, 4):
        with pytest.raises(ValueError, match="disagree on the layout"):
            layout.view(memory, offset)
    with pytest.raises(TypeError, match="this is a list"):
        Layout.of([torch.zeros(1)])
    memory.close()


# Segments ------------------------------------------------------------------------------------------------


def double_all(line: Line, fd: int, size: int, layout: Layout) -> None:
    """A child that doubles what it finds, and says so."""
    memory = Segment.attach(fd, size)
    seen = layout.view(memory)
    tree.copy_(seen, tree.map(lambda leaf: leaf if leaf.dtype == torch.bool else leaf * 2, seen))
    line.send(os.get_inheritable(fd))
    line.recv()


def test_a_child_writes_and_the_parent_reads():
    """S003-9: attached, never recreated: the parent sees in its own tensors what the child wrote, and none
    of it has a name."""
    value = everything()
    layout = Layout.of(value)
    memory = Segment.create(layout.size, "the test")
    view = layout.view(memory)
    tree.copy_(view, value)
    child = Child(double_all, memory.fd, memory.size, layout, name="doubler", fds=(memory.fd,))
    try:
        assert child.receive(60.0) is False
        if hasattr(os, "memfd_create"):
            assert os.readlink(f"/proc/self/fd/{memory.fd}").startswith("/memfd:")
    finally:
        child.stop()
    for seen, meant in zip(tree.leaves(view), tree.leaves(value)):
        assert torch.equal(seen, meant if meant.dtype == torch.bool else meant * 2)
    memory.close()


def test_only_children_that_are_given_it_have_it():
    memory = Segment.create(4096, "the test")
    assert not os.get_inheritable(memory.fd)
    code = f"import os; os.fstat({memory.fd})"
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, close_fds=False, check=False)
    assert b"Bad file descriptor" in without.stderr
    assert subprocess.run([sys.executable, "-c", code], pass_fds=(memory.fd,), check=True)
    memory.close()


def test_tensors_outlive_the_segment():
    """S003-9: closing cannot pull the memory from under a tensor; without tensors nothing remains."""
    open_before = descriptors()
    memory = Segment.create(Layout.of(torch.zeros(1000)).size, "the test")
    view = Layout.of(torch.zeros(1000)).view(memory)
    view.fill_(3)
    memory.close()
    memory.close()
    assert view.sum() == 3000
    with pytest.raises(ValueError, match="closed"):
        _ = memory.buffer
    assert descriptors() == open_before + 1  # the map's own
    del view
    assert descriptors() == open_before


def test_a_forgotten_segment_is_closed():
    open_before = descriptors()
    Segment.create(4096, "the test")
    assert descriptors() == open_before


def test_memory_is_reserved_and_zeroed():
    """A hole would be found only by the write that dies of it."""
    memory = Segment.create(1 << 20, "the test")
    assert os.fstat(memory.fd).st_blocks * 512 >= 1 << 20
    assert not any(memory.buffer[:])
    memory.close()


def test_attaching_something_else_is_an_error():
    memory = Segment.create(64, "the test")
    with pytest.raises(ResourceError, match=r"has 64 bytes, and 128 are expected"):
        Segment.attach(memory.fd, 128)
    memory.close()
    with pytest.raises(ResourceError, match="is not open here"):
        Segment.attach(memory.fd, 64)


# Shortage ------------------------------------------------------------------------------------------------


def places(folder: Path, *, available: int, limit: int | None = None) -> Places:
    """A machine with so many bytes free, and a container's limit."""
    (folder / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available // 1024} kB\n")
    (folder / "memory.max").write_text("max" if limit is None else str(limit))
    return Places(proc=folder, cgroup=folder)


@pytest.mark.parametrize(("available", "limit"), [(1 << 20, None), (1 << 30, 1 << 20)])
def test_too_little_memory_is_an_error_at_the_start(tmp_path, available, limit):
    """Before the kernel has to end somebody; the error names what, how much, and what to lower."""
    machine = places(tmp_path, available=available, limit=limit)
    with pytest.raises(ResourceError) as caught:
        Segment.create((1 << 20) + 1, "the rollouts of 8 actors", places=machine)
    for words in ("the rollouts of 8 actors", "1048577 bytes", "0.000977 GiB are free", "num_envs, rollout"):
        assert words in str(caught.value)
    Segment.create(1 << 20, "the rollouts", places=machine).close()


def test_more_than_the_machine_has():
    with pytest.raises(ResourceError, match="lower the number of rows"):
        Segment.create(1 << 60, "everything", lower="the number of rows")


@pytest.mark.parametrize("call", ["memfd_create", "posix_fallocate"])
def test_a_system_that_refuses(monkeypatch, call):
    """A refusal of the system is the same error, and nothing stays open."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    open_before = descriptors()
    with pytest.raises(ResourceError, match=r"the slots: .* No space left on device: lower num_envs"):
        Segment.create(4096, "the slots")
    assert descriptors() == open_before


def test_without_memfd_a_file_without_a_name(monkeypatch, tmp_path):
    """Where the system has neither call: an unlinked temporary file, written through."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    memory = Segment.create((1 << 20) + 5, "the test")
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(memory.fd).st_size == (1 << 20) + 5
    other = Segment.attach(os.dup(memory.fd), memory.size)
    memory.buffer[:4] = b"here"
    assert other.buffer[:4] == b"here"
    memory.close()
    other.close()
