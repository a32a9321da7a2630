"""The checks of ``recollect verify``: one for each classic bug of a recurrent trainer.

``verify`` runs them on the user's own env and config, with the real actor, learner and training loop:

=============  =============================================================================
part           checks
=============  =============================================================================
env            the contract of ``BatchedEnv``; the findings of Gymnasium's own checker
buffer         a rollout holds rollout x num_envs steps, rows stay apart, chunks lose nothing
state          acting, storing, learning and resuming use the same state
training       updates change the weights, metrics are finite, a seed reproduces a training
gradient       it reaches every weight, flows through time inside a chunk, and no further
=============  =============================================================================

For algorithms that replay old steps, such as R2D2, some checks differ (``replay_checks``): the sequences of
the replay are compared with the env's log, padding must weigh nothing, the burn-in must recompute the
recorded values, no gradient may reach it, and the target network must move as configured. Scripted replays
are compared with plain lists of their episodes (``replay_book_checks``); losses, action values and
exploration with their formulas (``replay_loss_checks``, ``q_head_checks``, ``exploration_checks``).

If several groups of agents have a policy each, all but ``env`` are checked for every group.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.audit.results import Check, Verification
    from recollect.audit.run import verify
    from recollect.audit.trace import TracedRollout
    from recollect.audit.trace_checks import audit_trace
    from recollect.audit.trainer import Trainer, of_module
    from recollect.audit.trainer_checks import assert_honest, audit_trainer

_HOMES = {
    "Check": "results",
    "TracedRollout": "trace",
    "Trainer": "trainer",
    "Verification": "results",
    "assert_honest": "trainer_checks",
    "audit_trace": "trace_checks",
    "audit_trainer": "trainer_checks",
    "of_module": "trainer",
    "verify": "run",
}
__all__ = [
    "Check",
    "TracedRollout",
    "Trainer",
    "Verification",
    "assert_honest",
    "audit_trace",
    "audit_trainer",
    "of_module",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
