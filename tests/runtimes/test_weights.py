"""The weight board: whole versions, whoever is killed, and a training model that does not notice."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.base.child_process import Child, Line
from recollect.base.shared_memory import Layout
from recollect.errors import LostError, WeightsError
from recollect.runtimes.process import weights
from recollect.runtimes.process.weights import BUFFERS, WeightBoard
from tests.support.integrity import encoded, is_mixed

pytestmark = pytest.mark.usefixtures("warm_children")


def board_at(version: int = -1) -> WeightBoard:
    """A board that has had so many publishes."""
    board = WeightBoard.create(encoded(0))
    for number in range(version + 1):
        board.publish(number, encoded(number))
    return board


def attached(board: WeightBoard) -> WeightBoard:
    """What another process would have."""
    return WeightBoard.attach(os.dup(board.fd), board.handle)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


# Versions ------------------------------------------------------------------------------------------------


def test_the_newest_version_is_read_whole():
    """S000-24, S003-11: the number that is returned is that of what was loaded."""
    board = board_at()
    reader, into = attached(board), encoded(-1)
    places = {name: tensor.data_ptr() for name, tensor in into.items()}
    assert (board.version, reader.version) == (-1, -1)
    for version in (0, 1, 2, 3, 7, 7, 1000):
        board.publish(version, encoded(version))
        assert board.version == reader.version == version
        assert reader.read(into) == reader.read(into, version=version) == version
        assert not is_mixed(into, version)
    assert places == {name: tensor.data_ptr() for name, tensor in into.items()}


def test_the_same_version_again_replaces_it():
    board, into = WeightBoard.create({"w": torch.zeros(3)}), {"w": torch.zeros(3)}
    for value in range(5):
        board.publish(0, {"w": torch.full((3,), float(value))})
        assert board.read(into, version=0) == 0
        assert into["w"].tolist() == [value] * 3


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_another_version_is_an_error(wanted):
    """S000-24: a failed load is an error, and loads nothing."""
    into = encoded(-1)
    with pytest.raises(WeightsError, match=rf"version {wanted} .* newest is 2"):
        board_at(2).read(into, version=wanted)
    assert not is_mixed({name: into[name] for name in ("weight", "bias", "scale")}, -1)


def test_nothing_published_is_an_error():
    """S000-24."""
    with pytest.raises(WeightsError, match="no weights are published yet"):
        board_at().read(encoded(-1))


def test_versions_only_grow():
    """S000-24."""
    board = board_at(2)
    for version in (1, -1):
        with pytest.raises(WeightsError, match=f"version {version} cannot be published after version 2"):
            board.publish(version, encoded(version))
    assert board.read(encoded(-1)) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bias": None}, r"missing \['bias'\], unknown \[\]"),
        ({"more": torch.zeros(1)}, r"missing \[\], unknown \['more'\]"),
        ({"bias": torch.zeros(7, 1, dtype=torch.int64)}, r"bias is \(7, 1\) torch.int64"),
        (
            {"bias": torch.zeros(7, 3)},
            r"bias is \(7, 3\) torch.float32, and the board has \(7, 3\) torch.int64",
        ),
    ],
)
def test_other_tensors_are_an_error(change, words):
    """S000-24: nothing is broadcast or cast in silence."""
    board = board_at(1)
    other = {name: tensor for name, tensor in {**encoded(5), **change}.items() if tensor is not None}
    with pytest.raises(WeightsError, match=words):
        board.publish(5, other)
    with pytest.raises(WeightsError, match=words):
        board.read(other)
    assert board.read(encoded(-1)) == 1


def test_a_network_without_weights():
    board = WeightBoard.create({})
    board.publish(4, {})
    assert board.read({}, version=4) == 4


def test_a_closed_board_holds_no_memory():
    gc.collect()  # boards of other tests, which would be closed in between
    open_before = len(os.listdir("/proc/self/fd"))
    board = board_at(3)
    board.read(encoded(-1))
    board.close()
    board.close()
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert board.version == 3
    with pytest.raises(WeightsError, match="cannot read weights: the board is closed"):
        board.read(encoded(-1))


# The training model --------------------------------------------------------------------------------------


def copies(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All that publishing must not change: places, devices, dtypes, values, gradients, optimizer state."""
    found: dict[str, Any] = {}
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        grad = None if tensor.grad is None else tensor.grad.tolist()
        facts = (id(tensor), tensor.data_ptr(), tensor.device, tensor.dtype, tensor.requires_grad)
        found[name] = (*facts, tensor._version, tensor.is_shared(), tensor.tolist(), grad)
    found["bound"] = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    found["state"] = {
        i: {k: v.tolist() for k, v in s.items()} for i, s in optimizer.state_dict()["state"].items()
    }
    return found


def learn(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    module(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def test_publishing_does_not_touch_the_training_model(device):
    """S003-12: identity, device, dtype, values, gradients and optimizer state are as before."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    module = model().to(device)
    optimizer = torch.optim.Adam(module.parameters())
    board = WeightBoard.create(module.state_dict())
    module.train()
    optimizer.zero_grad()
    module(torch.randn(8, 3, device=device)).square().sum().backward()
    optimizer.step()
    before = copies(module, optimizer)
    for version in range(BUFFERS + 1):
        board.publish(version, dict(itertools.chain(module.named_parameters(), module.named_buffers())))
    assert copies(module, optimizer) == before


def test_learning_goes_on_after_publishing():
    """S003-13: the optimizer steps the live parameters, and what is published changes only by publishing."""
    learner, actor = model(), model()
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.1)
    board = WeightBoard.create(learner.state_dict())
    reader = attached(board)
    parameters = list(actor.parameters())
    for version in range(BUFFERS * 2):
        board.publish(version, learner.state_dict())
        published = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
        learn(learner, optimizer)
        assert not any(
            torch.equal(parameter, published[name])
            for name, parameter in learner.named_parameters()
            if name != "0.bias"  # batch norm takes it away: no gradient
        )
        reader.read(actor.state_dict(), version=version)
        assert all(torch.equal(tensor, published[name]) for name, tensor in actor.state_dict().items())
    assert all(a is b and a.requires_grad for a, b in zip(parameters, actor.parameters()))


# Torn reads ----------------------------------------------------------------------------------------------


def while_copying(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Let ``work`` happen once, when half of the newest weights are copied."""
    copyto, left = np.copyto, [work]

    def interrupted(target: np.ndarray, source: np.ndarray) -> None:
        half = len(target) // 2
        copyto(target[:half], source[:half])
        if left:
            left.pop()()
        copyto(target[half:], source[half:])

    monkeypatch.setattr(weights.np, "copyto", interrupted)


@pytest.mark.parametrize(("publishes", "read"), [(0, 4), (1, 4), (2, 4), (3, 7), (4, 8), (6, 10)])
def test_publishes_during_one_read(monkeypatch, publishes, read):
    """S003-11: two publishes during one read leave it alone; more make it begin again; never a mixture."""
    board = board_at(4)
    reader, into = attached(board), encoded(-1)

    def publish() -> None:
        for version in range(5, 5 + publishes):
            board.publish(version, encoded(version))

    while_copying(monkeypatch, publish)
    assert reader.read(into) == read
    assert not is_mixed(into, read)


@pytest.mark.parametrize("publishes", [1, 2, 3])
def test_exactly_one_version_during_publishes(monkeypatch, publishes):
    """S000-24, S003-11: the version that was asked for, whole, or an error."""
    board, into = board_at(0), encoded(-1)

    def publish() -> None:
        for version in range(1, 1 + publishes):
            board.publish(version, encoded(version))

    while_copying(monkeypatch, publish)
    if publishes < BUFFERS:
        assert board.read(into, version=0) == 0
        assert not is_mixed(into, 0)
    else:
        with pytest.raises(WeightsError, match=r"version 0 .* newest is 3"):
            board.read(into, version=0)
        assert (into["weight"] == -1).all()


def test_marks_that_deceive_are_found_by_the_check(monkeypatch):
    """S003-11: a processor that shows the marks of one version with some data of another."""
    board, into = board_at(4), encoded(-1)
    views = board._views[board._newest()]
    for name, place in (("weight", 0), ("weight", -1), ("bias", (3, 1)), ("scale", ()), ("half", 5)):
        true = views[name][place].clone()
        views[name][place] = 1
        with pytest.raises(WeightsError, match=r"no whole weights within 0.01 s \(newest: version 4\)"):
            board.read(into, patience=0.01)
        views[name][place] = true
    assert (into["weight"] == -1).all()
    marks = board._marks(board._newest())
    marks[weights._VERSION] = 3
    with pytest.raises(WeightsError, match="no whole weights"):
        board.read(into, patience=0.01)
    marks[weights._VERSION] = 4
    assert board.read(into) == 4
    monkeypatch.setattr(weights, "_check", lambda words, version: int(marks[weights._CHECK]))
    views["weight"][0] = 1
    assert is_mixed(into, board.read(into))  # without the check it would have gone through


def test_the_check_tells_every_mixture():
    """S003-11: any cut between two versions, also where the same numbers stand in another order."""
    old, new = np.arange(1024, dtype=np.uint64), np.arange(1024, dtype=np.uint64)[::-1].copy()
    whole = {weights._check(old, 0), weights._check(new, 0), weights._check(new, 1)}
    assert len(whole) == 3
    for cut in range(1, 1024):
        assert weights._check(np.concatenate([old[:cut], new[cut:]]), 0) not in whole


# Killed --------------------------------------------------------------------------------------------------


class Deadly(Tensor):
    """A tensor that kills the process that copies it."""

    def detach(self) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().detach()


def die_publishing(line: Line, fd: int, handle: Layout, version: int) -> None:
    """Publish a version, and die when the next is half written."""
    board = WeightBoard.attach(fd, handle)
    board.publish(version, encoded(version))
    following = encoded(version + 1)
    last = list(following)[-1]
    board.publish(version + 1, {**following, last: following[last].as_subclass(Deadly)})


def die_reading(line: Line, fd: int, handle: Layout) -> None:
    """Die with half of the weights copied."""
    board = WeightBoard.attach(fd, handle)

    def deadly(target: np.ndarray, source: np.ndarray) -> None:
        target[: len(target) // 2] = source[: len(target) // 2]
        os.kill(os.getpid(), signal.SIGKILL)

    weights.np.copyto = deadly
    board.read(encoded(-1))


def end(board: WeightBoard, target: Any, *arguments: Any) -> None:
    """Run a child until it is killed."""
    child = Child(target, board.fd, board.handle, *arguments, name="doomed", fds=(board.fd,))
    try:
        with pytest.raises(LostError, match="SIGKILL"):
            child.receive(60.0)
    finally:
        child.stop()


def test_a_writer_killed_in_mid_publish():
    """S003-11: the last whole version stays; a new writer goes on over the half-written one."""
    board, into = board_at(2), encoded(-1)
    end(board, die_publishing, 3)
    half_written = (board._newest() + 1) % BUFFERS
    assert is_mixed(board._views[half_written], 4)
    assert (board._views[half_written]["weight"] == 4).all()
    assert board.read(into, version=3) == 3
    assert not is_mixed(into, 3)
    for version in range(4, 9):
        board.publish(version, encoded(version))
        assert board.read(into, version=version) == version
        assert not is_mixed(into, version)


def test_a_reader_killed_in_mid_read():
    """S003-11: it holds nothing that anybody waits for."""
    board, into = board_at(2), encoded(-1)
    end(board, die_reading)
    for version in range(3, 9):
        board.publish(version, encoded(version))
        assert board.read(into, version=version) == version
        assert not is_mixed(into, version)
