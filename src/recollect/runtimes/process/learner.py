"""A learner besides the first in a process on this machine. Its rows are in shared memory."""

from __future__ import annotations

from pathlib import Path

from recollect.base.child_process import Child, Line
from recollect.base.shared_memory import Layout, Segment
from recollect.experience.rollout import Rollout
from recollect.runtimes.learner_server import LearnerBlueprint, LearnerHost, LearnerState


class ProcessPeer:
    """Another learner, as the process of the first one sees it. See ``learner_group.Peer``."""

    def __init__(self, blueprint: LearnerBlueprint, example: Rollout):
        """Start it; ``example``: a rollout of its rows."""
        layout = Layout.of(example.slot())
        self._segment = Segment.create(layout.size, f"the rows of {blueprint.name}")
        self._slot = layout.view(self._segment)
        run = blueprint.config.run
        self._child = Child(
            serve,
            blueprint,
            layout,
            self._segment.fd,
            name=blueprint.name,
            fds=(self._segment.fd,),
            log=None if run is None else Path(run) / "logs" / f"{blueprint.name.replace(' ', '-')}.log",
        )

    def load(self, state: LearnerState) -> None:
        """Give it the state of the first learner."""
        self._child.send(("load", state))

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Start an update on its rows of a batch, which may change after the reply."""
        self._child.send(("update", rollout.write(self._slot), progress, lag))

    def done(self, timeout: float) -> None:
        """Wait for its reply; a LostError, ChildError or TimeoutError if there is none."""
        self._child.receive(timeout)

    def stop(self) -> None:
        """End its process."""
        self._child.stop()
        self._segment.close()


def serve(line: Line, blueprint: LearnerBlueprint, layout: Layout, fd: int) -> None:
    """Answer requests until the parent closes the socket."""
    slot = layout.view(Segment.attach(fd, layout.size))
    host = LearnerHost(blueprint)
    try:
        line.send("ready")
        host.connect()
        line.send("connected")
        while True:
            kind, *rest = line.recv()
            if kind == "load":
                host.load(*rest)
            else:
                header, progress, lag = rest
                host.update(Rollout.read(slot, header), progress, lag)
            line.send(kind)
    finally:
        host.close()
