"""Adapters: the abilities of other packages' recurrent trainers, for ``audit_trainer``.

One module for each package, imported only when it is asked for; no package is a dependency of Recollect.
Each has an ``example`` that makes a small trainer of the package, and wrappers for the user's own::

    recollect audit --policy recollect.audit.adapters.sb3:example

=================  ==============  ====================================
module             package         wraps
=================  ==============  ====================================
``sb3``            sb3-contrib     ``RecurrentPPO``
``skrl_rnn``       skrl            ``PPO_RNN``
``torchrl_gae``    TorchRL         LSTM and GRU modules, ``GAE``
``rsl``            rsl-rl-lib      ``PPO`` with ``RNNModel``
``tianshou_ppo``   tianshou        ``PPO`` with a recurrent actor
``rllib``          ray[rllib]      PPO with ``use_lstm``
``samplefactory``  sample-factory  APPO with ``use_rnn``
=================  ==============  ====================================

Any ``torch.nn.Module`` with ``(x, state) -> (y, state)`` needs no adapter: see ``trainer.of_module``.
"""
