"""Bugs between processes: in actors, env workers and learners, and in what deals with them."""

from __future__ import annotations

from recollect.base import child_process
from recollect.envs import worker_process
from recollect.envs.worker_process import _Slots
from recollect.experience import rollout
from recollect.experience.rollout import Rollout
from recollect.learning import ranks
from recollect.policy.normalise import ObservationNorm
from recollect.runtimes.actor_server import ActorServer
from recollect.runtimes.learner_group import LearnerGroup
from recollect.runtimes.learner_server import LearnerHost
from recollect.runtimes.process.transport import ProcessActorServer, ProcessChannel
from recollect.runtimes.process.weights import WeightBoard
from recollect.runtimes.remote_collector import RemoteCollector
from recollect.runtimes.tickets import Tickets
from recollect.training.trainer import Trainer
from tests.mutants import process_proofs as proofs
from tests.mutants.learner_process_bugs import LEARNER_PROCESSES
from tests.mutants.mutant import Mutant
from tests.mutants.planted import ChildMutant

LOAD = "self.policy.load_state_dict(self.weights)  # not"
ROWS = "slice(slots.start * agents, slots.stop * agents)"
OTHER_ROWS = "slice(2 - slots.start, 4 - slots.start)"
"""Of two workers with two slots each: those of the other."""

OLD_WEIGHTS = (
    (ActorServer, "collect", "version = load()", f"{LOAD.removesuffix('  # not')}; version = load()"),
    (ActorServer, "collect", LOAD, "pass  # not"),
)

ACTORS = [
    ChildMutant(
        "final observations are written to slot 0",
        proofs.in_async,
        ((ProcessActorServer, "collect", "write_finals(self._slots[slot])", "write_finals(self._slots[0])"),),
        "final_value of actor",
    ),
    ChildMutant(
        "rollouts are recorded into another slot",
        proofs.in_async,
        ((ProcessActorServer, "collect", "load, slot)", "load, slot - 1)"),),
        "assert_replayed",
    ),
    ChildMutant(
        "weights are older than the version named", proofs.in_lockstep, OLD_WEIGHTS, "log_prob of actor"
    ),
    ChildMutant(
        "the version named is older than the weights",
        proofs.in_async,
        (
            (
                ProcessActorServer,
                "collect",
                "return self._board.read(self.server.weights, version=version)",
                "return max(0, -1 + self._board.read(self.server.weights, version=version))",
            ),
        ),
        "log_prob of actor",
    ),
    ChildMutant(
        "weights are loaded once",
        proofs.in_async,
        ((ActorServer, "collect", LOAD, "self.actor or " + LOAD),),
        "log_prob of actor",
    ),
    ChildMutant(
        "weights are torn: every other tensor is that of an older version",
        proofs.in_lockstep,
        ((WeightBoard, "read", "in self._copied.items()", "in list(self._copied.items())[::2]"),),
        "log_prob of actor",
    ),
    ChildMutant(
        "a final observation that is cut short",
        proofs.in_lockstep,
        ((Rollout, "write_finals", "else len(found.time)", "else len(found.time) - 1"),),
        "a final observation for every cut",
    ),
    ChildMutant(
        "rollouts are numbered anew",
        proofs.in_lockstep,
        ((ActorServer, "_ready_actor", "if self.actor is None:", "if True:"),),
        "the next of its actor",
    ),
    Mutant(
        "a slot is given out while it is learned from",
        proofs.in_async,
        (
            (
                RemoteCollector,
                "_collect",
                "self._in_use.extend(batch)",
                "[delivery.release() for delivery in batch]",
            ),
        ),
        "it was overwritten",
    ),
    Mutant(
        "a slot is given out while its rollout waits",
        proofs.in_async,
        (
            (
                ProcessChannel,
                "receive",
                "slot = self._taken.pop(report.ticket)",
                "slot = self._taken.pop(report.ticket); self._free.append(slot)",
            ),
        ),
        "replays.check",
    ),
    Mutant(
        "the rollout of another slot",
        proofs.in_async,
        ((ProcessChannel, "receive", "self._slots[slot]", "self._slots[0]"),),
        "it goes on where the last ended",
    ),
    ChildMutant(
        "the rollout of another actor",
        proofs.in_lockstep,
        ((ProcessActorServer, "__init__", "config.algo), blueprint.index)", "config.algo), 0)"),),
        "the next of its actor",
    ),
    Mutant(
        "final observations of the second actor stand in the rows of the first",
        proofs.run_in_async,
        ((rollout, "_join_finals", "rollout.finals.row + offset", "rollout.finals.row"),),
        "final_value of the rows as one",
    ),
    ChildMutant(
        "an actor that fails keeps it to itself",
        proofs.raised_at_once,
        ((child_process, "describe_raised", "    try:\n", "    time.sleep(10**6)\n    try:\n"),),
        "it has not ended within 10 seconds",
    ),
]

WORKERS = [
    ChildMutant(
        "worker slots are swapped in memory",
        proofs.env_workers,
        ((_Slots, "__init__", ROWS, OTHER_ROWS),),
        "obs.a after 0 steps",
    ),
    ChildMutant(
        "worker slots are swapped as they are made",
        proofs.env_workers,
        ((worker_process, "serve", "make(slots.start, len(slots))", "make(2 - slots.start, len(slots))"),),
        "obs.a after 0 steps",
    ),
    ChildMutant(
        "a worker applies the actions of another",
        proofs.env_workers,
        (
            (
                _Slots,
                "__init__",
                'mine["action"], mine["steps"]',
                f'tree.index(memory[name], {OTHER_ROWS})["action"], mine["steps"]',
            ),
        ),
        "reward after",
    ),
    ChildMutant(
        "a worker writes every step to the same memory",
        proofs.env_workers,
        ((_Slots, "step", "self._steps[into]", "self._steps[0]"),),
        "obs.a after",
    ),
    ChildMutant(
        "a worker writes no final observations of truncated episodes",
        proofs.env_workers,
        ((_Slots, "step", "step.terminated.any() or step.truncated.any()", "step.terminated.any()"),),
        "final_obs.a after",
    ),
    ChildMutant(
        "an env worker of an actor writes its final observations to the other memory",
        proofs.workers_of_actors,
        ((_Slots, "step", 'out["final_obs"]', 'self._steps[1 - into][name]["final_obs"]'),),
        "assert differing",
    ),
]

LEARNERS = [
    ChildMutant(
        "a learner does not get the final observations of its rows",
        proofs.learners,
        ((Rollout, "read", "if finals else None", "if False else None"),),
        "assert found[name] == pytest.approx",
    ),
    ChildMutant(
        "a learner starts with weights of its own",
        proofs.learners,
        ((LearnerHost, "load", "state.put(self.learner)", "pass"),),
        "AlignmentError: update 2",
    ),
    ChildMutant(
        "a learner applies its own gradients alone",
        proofs.learners,
        ((ranks, "add_up", "total.view_as(parameter) if count > 0 else None", "parameter.grad"),),
        "do not hold the same weights",
    ),
    Mutant(
        "a learner is given the rows of another",
        proofs.learners,
        ((LearnerGroup, "update", "zip(self._peers, parts[1:])", "zip(self._peers, parts)"),),
        "assert found[name] == pytest.approx",
    ),
    Mutant(
        "the final observations of a shard are those of other rows",
        proofs.learners,
        ((Rollout, "select_rows", "finals.row -= begin", "finals.row = end - 1 - finals.row"),),
        "assert found[name] == pytest.approx",
    ),
]

VERSIONS = [
    Mutant(
        "the lag is logged as none",
        proofs.run_in_async,
        ((Trainer, "iterate", '"lag/max": float(max(lags))', '"lag/max": 0.0'),),
        "the lag that is told",
    ),
    Mutant(
        "past weights are never pruned",
        proofs.remembered,
        ((Trainer, "_remember", "v < updates - self.config.lag_limit", "False"),),
        "assert kept ==",
    ),
    Mutant(
        "past weights are pruned one update too early",
        proofs.remembered,
        ((Trainer, "_remember", "v < updates - self", "v <= updates - self"),),
        "assert kept ==",
    ),
    Mutant(
        "past weights are not copied",
        proofs.remembered,
        ((Trainer, "_remember", "tree.clone(dict(self.policy.state_dict()))", "self.policy.state_dict()"),),
        "assert kept ==",
    ),
    Mutant(
        "a rollout may lag by one update too many",
        proofs.lags,
        ((Trainer, "_lags", "max(lags) > self.config.lag_limit:", "max(lags) > self.config.lag_limit + 1:"),),
        "too old",
    ),
    Mutant(
        "the lag of the first rollout stands for all",
        proofs.lags,
        ((Trainer, "_lags", "max(lags) > self.config.lag_limit:", "lags[0] > self.config.lag_limit:"),),
        "too old",
    ),
    Mutant(
        "a rollout may come from the future",
        proofs.lags,
        ((Trainer, "_lags", "min(lags) < 0 or ", ""),),
        "too new",
    ),
    Mutant(
        "actors run ahead by one update too many",
        proofs.run_ahead,
        ((Tickets, "take", "self.version + 1 + self.max_lag", "self.version + 2 + self.max_lag"),),
        "assert world.held[0] ==",
    ),
]

ON_A_GPU = [
    Mutant(
        "observation statistics are not merged over learners on a GPU",
        proofs.ranks_on_a_gpu,
        (
            (
                ObservationNorm,
                "update",
                "scaling.merge_where(leaf, valid, gather)",
                "scaling.merge_where(leaf, valid)",
            ),
        ),
        "do not hold the same weights",
    ),
]

MUTANTS = [*ACTORS, *WORKERS, *LEARNERS, *LEARNER_PROCESSES, *VERSIONS, *ON_A_GPU]
