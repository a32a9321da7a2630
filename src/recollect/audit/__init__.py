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
recorded values, no gradient may reach it, and the target network must move as configured.

If several groups of agents have a policy each, all but ``env`` are checked for every group.
"""
