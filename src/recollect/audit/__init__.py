"""The checks of ``recollect verify``: the classic bugs of a recurrent trainer, looked for one by one.

``verify`` runs them on the user's own env and config, with the real actor, learner and loop:

=============  =============================================================================
part           what is checked
=============  =============================================================================
env            the contract of ``BatchedEnv``; what Gymnasium's own checker says
buffer         a rollout holds rollout x num_envs steps, rows stay apart, chunks lose nothing
state          acted with, stored, learned from and resumed: always the same one
training       updates move the weights, metrics are finite, the same seed gives the same
gradient       it reaches every weight, flows through time inside a chunk, and no further
=============  =============================================================================
"""
