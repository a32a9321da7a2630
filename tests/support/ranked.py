"""Several learners side by side in one process, each in a thread: real groups, sockets and all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from recollect.learning import ranks
from recollect.learning.ranks import Group


@contextmanager
def groups(*rows: int, timeout: float = 60.0) -> Iterator[Callable[[Callable[[Group], Any]], list[Any]]]:
    """Ranks with so many rows each. Yields ``run(fn)``: ``fn(group)`` of every rank at once, in order."""
    store, port = ranks.host_store(timeout=timeout)
    with ThreadPoolExecutor(len(rows)) as pool:

        def join(rank: int) -> Group:
            own = store if rank == 0 else ranks.join_store("127.0.0.1", port, timeout)
            return Group(own, rank, rows, timeout=timeout)

        joined = list(pool.map(join, range(len(rows))))

        def alone(fn: Callable[[Group], Any], group: Group) -> Any:
            torch.set_num_threads(1)
            try:
                return fn(group)
            except BaseException:
                group.close()  # so that nobody waits for it
                raise

        def run(fn: Callable[[Group], Any]) -> list[Any]:
            futures = [pool.submit(alone, fn, group) for group in joined]
            errors = [error for future in futures if (error := future.exception()) is not None]
            if errors:
                raise next((error for error in errors if "has lost" not in str(error)), errors[0])
            return [future.result() for future in futures]

        try:
            yield run
        finally:
            for group in joined:
                group.close()
