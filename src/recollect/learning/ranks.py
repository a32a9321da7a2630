"""Communication between data-parallel learners.

Every learner, a *rank*, holds its own rows of the batch with their states, and a copy of the policy, the
optimiser and the random stream of minibatches. Ranks exchange two things:

* tensors [T, B] of steps are *gathered*, and every rank computes the same formula on all of them. So
  advantages and values are normalised by statistics of the whole batch, with the bits of a single learner;
* gradients, each divided by the valid steps of all ranks, are *summed* in one message, together with the
  statistics of the minibatch. All ranks then make the same optimiser step, and stay equal.

``Alone`` is the single learner of most runs, without any communication.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import reduce
from itertools import accumulate
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage] both documented

from recollect.errors import AlignmentError, ConfigError, LostError, RecollectError
from recollect.experience.rollout import Rollout

Backend = Literal["gloo", "nccl"]

TIMEOUT = 120.0
"""Seconds until a rank gives up on the others. A crash is noticed at once, by closed sockets."""


class GroupError(LostError):
    """The other learners cannot be reached: one was killed, or raised an error of its own."""


class Alone:
    """A single learner, which holds all rows: ``Group`` without communication."""

    rank, size, begin = 0, 1, 0

    def own(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    sum = max = own

    def each(self, tensor: Tensor) -> list[Tensor]:
        """The tensor itself."""
        return [tensor]

    def gather(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors themselves."""
        return tensors


class Group:
    """One of several learners, connected by a process group of their own.

    It is not torch's default group, which stays free for other uses of ``torch.distributed``. Every rank must
    make the same calls in the same order.
    """

    rank: int
    """The index of this learner; learner 0 publishes weights and writes checkpoints."""
    size: int
    """The number of learners."""
    begin: int
    """The index of its first row among those of all ranks."""

    def __init__(
        self,
        store: Store,
        rank: int,
        rows: Sequence[int],
        *,
        host: str = "127.0.0.1",
        backend: Backend = "gloo",
        timeout: float = TIMEOUT,
    ):
        """Join the group; returns when all ranks have joined.

        Args:
            store: by which ranks find each other: ``host_store`` for rank 0, ``join_store`` for the others.
            rank: the index of this learner.
            rows: the number of rows of each rank.
            host: the address of this machine under which the other ranks reach it.
            backend: "nccl" where each rank has a GPU of its own, else "gloo".
            timeout: in seconds, for every operation.
        """
        self.rank, self.size, self.rows = rank, len(rows), tuple(rows)
        self.begin = sum(self.rows[:rank])
        self._device = torch.device("cpu" if backend == "gloo" else f"cuda:{torch.cuda.current_device()}")
        self._timeout = timeout
        connect = _gloo if backend == "gloo" else _nccl
        try:
            group = connect(store, rank, self.size, host, timedelta(seconds=timeout))
        except RuntimeError as error:
            raise GroupError(self._lost(error)) from error
        # The group's threads must end before the interpreter does, or the process crashes.
        self._held: list[Any] = [group, store]
        self._release = weakref.finalize(self, self._held.clear)

    def close(self) -> None:
        """Leave the group: ranks that wait for this one get an error at once."""
        self._release()

    def sum(self, tensor: Tensor) -> Tensor:
        """The element-wise sum over all ranks; the same bits on every rank."""
        total = self._sent(tensor).clone()
        self._do(lambda group: group.allreduce([total]))
        return total.to(tensor.device)

    def max(self, tensor: Tensor) -> Tensor:
        """The element-wise maximum over all ranks; NaN where one has it."""
        return torch.stack(self.each(tensor)).amax(0)

    def each(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, equally shaped, in order of rank."""
        sent = self._sent(tensor)
        found = [torch.empty_like(sent) for _ in self.rows]
        self._do(lambda group: group.allgather([found], [sent]))
        return [part.to(tensor.device, tensor.dtype) for part in found]

    def gather(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """[..., own rows] each, equally shaped -> [..., rows of all ranks] each, in one message."""
        dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])  # holds all of them exactly
        found = self._joined(torch.stack([tensor.to(dtype) for tensor in tensors]), self.rows)
        return tuple(whole.to(tensor.dtype) for whole, tensor in zip(found, tensors))

    def gather_any(self, tensor: Tensor) -> tuple[Tensor, int]:
        """[..., n], any n -> those of all ranks concatenated, and the index of the first own one."""
        counts = [int(count) for count in self.each(torch.tensor(tensor.shape[-1]))]
        return self._joined(tensor, counts), sum(counts[: self.rank])

    def own(self, tensor: Tensor) -> Tensor:
        """[..., rows of all ranks] -> [..., own rows]."""
        return tensor.narrow(-1, self.begin, self.rows[self.rank])

    def _joined(self, tensor: Tensor, counts: Sequence[int]) -> Tensor:
        """[..., n of this rank] -> [..., sum of ``counts``]. Messages are padded to one length."""
        if tensor.shape[-1] != counts[self.rank]:
            raise RecollectError(
                f"learner {self.rank} holds {counts[self.rank]} rows and was given {tensor.shape[-1]}: every "
                "update must bring the rows that the group was made for"
            )
        padded = tensor.new_zeros((*tensor.shape[:-1], max(counts)))
        padded[..., : tensor.shape[-1]] = tensor
        parts = [part[..., :count] for part, count in zip(self.each(padded), counts, strict=True)]
        return torch.cat(parts, -1)

    def _sent(self, tensor: Tensor) -> Tensor:
        """As it is sent: contiguous, on the backend's device, booleans as bytes."""
        tensor = tensor.detach().to(torch.uint8) if tensor.dtype == torch.bool else tensor.detach()
        return tensor.to(self._device).contiguous()

    def _do(self, begin: Callable[[Any], Any]) -> None:
        if not self._held:
            raise GroupError(f"learner {self.rank} has left the group of learners")
        try:
            begin(self._held[0]).wait()
        except RuntimeError as error:
            raise GroupError(self._lost(error)) from error

    def _lost(self, error: RuntimeError) -> str:
        reason = str(error).splitlines()[0]
        return (
            f"learner {self.rank} has lost the other learners ({self.size} in all): one of them has ended, "
            f"or has not answered for {self._timeout:g} seconds ({reason})"
        )


ALONE = Alone()
Ranks = Alone | Group
"""All learners of a batch, as one of them sees them."""


def even_rows(rows: int, learners: int) -> tuple[int, ...]:
    """Number of rows of each learner: ``rows`` split evenly, to within one."""
    if rows < learners:
        raise ConfigError(
            f"learners = {learners}, but a rollout has only {rows} rows, and every learner needs one: lower "
            "learners, or raise num_envs"
        )
    return tuple(rows // learners + (rank < rows % learners) for rank in range(learners))


def shards(rollout: Rollout, rows: tuple[int, ...]) -> list[Rollout]:
    """The rollout split into parts with these numbers of rows, in order, as views."""
    ends = list(accumulate(rows))
    return [rollout.select_rows(end - count, end) for count, end in zip(rows, ends)]


def host_store(host: str = "127.0.0.1", timeout: float = TIMEOUT) -> tuple[TCPStore, int]:
    """The store of rank 0, and the port at ``host`` on which it listens."""
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),  # the store closes it
    )
    return store, port


def join_store(host: str, port: int, timeout: float = TIMEOUT) -> TCPStore:
    """The store of rank 0, for another rank."""
    return TCPStore(host, port, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def check_equal(ranks: Ranks, tensors: Iterable[Tensor], update: int) -> None:
    """Raise if the ranks do not hold the same weights and statistics, bit for bit."""
    if ranks.size == 1:
        return
    bits = torch.stack([_bits(tensor.detach()) for tensor in tensors]).sum()
    found = [int(one) for one in ranks.each(bits)]
    if len(set(found)) > 1:
        raise AlignmentError(
            f"update {update}: the learners do not hold the same weights any more (checksums {found}), "
            "though they added up the same gradients: are these different processors or builds of torch, or "
            "does something change the weights of one of them?"
        )


def add_up(
    ranks: Ranks, parameters: Sequence[nn.Parameter], numbers: dict[str, Tensor], largest: str
) -> dict[str, Tensor]:
    """Sum the gradients of all ranks in place, and the ``numbers`` of their minibatch, in one message.

    Numbers whose names begin with ``largest`` are reduced by their maximum. A parameter without a gradient
    on any rank stays without one.
    """
    if ranks.size == 1:
        return numbers
    summed = {name: value for name, value in numbers.items() if not name.startswith(largest)}
    others = {name: value for name, value in numbers.items() if name.startswith(largest)}
    has_grad = [p.grad is not None for p in parameters]
    dtype = parameters[0].dtype
    # For maxima each rank has a column of its own, and zeros in those of the others.
    columns = torch.zeros(len(others), ranks.size, dtype=dtype, device=parameters[0].device)
    for row, value in zip(columns, others.values()):
        row[ranks.rank] = value
    parts = [
        *(torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters),
        torch.tensor(has_grad, dtype=dtype, device=columns.device),
        *(value.detach().reshape(1).to(dtype) for value in summed.values()),
        columns.flatten(),
    ]
    totals = ranks.sum(torch.cat(parts)).split([len(part) for part in parts])
    gradients, (counts, *found, highest) = totals[: len(parameters)], totals[len(parameters) :]
    for parameter, total, count in zip(parameters, gradients, counts.tolist()):
        parameter.grad = total.view_as(parameter) if count > 0 else None
    highest = highest.view_as(columns).amax(1)
    return dict(zip(summed, (value.squeeze(0) for value in found))) | dict(zip(others, highest))


def _bits(tensor: Tensor) -> Tensor:
    """The sum of its bits as integers: exact in any order of summation."""
    whole = torch.uint8 if tensor.element_size() == 1 else torch.int16
    return tensor.flatten().view(whole).sum(dtype=torch.int64)


def _gloo(store: Store, rank: int, size: int, host: str, timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue] missing stub
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]  # else any interface is taken
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, host: str, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
