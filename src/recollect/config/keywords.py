"""Settings as keywords with types, for editors and type checkers. Written by docs/keywords.py."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, TypedDict

from recollect.config.algo_shared import AlgoConfig


class ChangeableSettings(TypedDict, total=False):
    """The settings that a saved run may change."""

    runtime: Literal["inline", "processes", "ray"]
    """Where actors run: in this process ("inline"), in "processes" of their own, or on a Ray cluster
    ("ray")."""
    env_workers: int
    """Processes per actor that step its env slots, for slow envs; 0: the actor steps them itself."""
    env_timeout: float | None
    """Seconds without an answer after which an env in another process counts as lost and its actor is
    restarted; None: never, once the actor has started."""
    learner_processes: bool
    """Whether the learner of each group of agents has a process of its own on this machine, so that
    groups learn in parallel."""
    ray_address: str | None
    """Address of the Ray cluster: "auto", or host:port."""
    eval_every: int
    """Env steps between two evaluations; 0: none while training."""
    eval_episodes: int
    """Episodes of each evaluation."""
    eval_mode: Literal["greedy", "sampled", "both"]
    """Actions in evaluations: the most likely ones ("greedy"), drawn as in training ("sampled"), or first
    one and then the other ("both"), each for eval_episodes."""
    checkpoint_every: int | None
    """Env steps between two checkpoints; None: the first after 10 seconds, then about one a minute."""
    keep_checkpoints: int
    """Number of latest checkpoints to keep."""
    max_seconds: float | None
    """Stop after this many seconds of training."""
    sinks: tuple[str, ...] | list[str]
    """Where else metrics are logged: "tensorboard", "wandb"."""
    threads: int | None
    """CPU threads for learning (acting uses one); None: all cores available to this process."""
    memory_limit: float | None
    """Memory in GB that the run may take, by an estimate before it starts; None: as much as is free on
    this machine, or on the GPU."""


class TrainSettings(ChangeableSettings, total=False):
    """The settings of ``recollect.train``."""

    steps: int
    """Env steps to train for, over all rows; only valid ones count."""
    num_envs: int
    """Env slots that are stepped together."""
    actors: int
    """Groups that the env slots are split into, each with its own random streams."""
    mode: Literal["lockstep", "async"]
    """Whether actors wait for new weights before every rollout ("lockstep") or run ahead with older ones
    ("async")."""
    max_lag: int | None
    """With "async", actors use weights at most this many updates old."""
    policies: Any
    """Which agents of an env share a policy: "shared" (all), "independent" (none), or a mapping of groups
    to agents, such as {"archers": "archer_*", "knights": ["knight_0", "knight_1"]}."""
    vs: str | None
    """In a two-sided env, the player of the side that does not learn: the name of a scripted one, such as
    "bot"; in every second env slot the learner has the other side."""
    vs_kwargs: dict[str, Any]
    """Options of that player; those of "league": recollect train --help league."""
    curriculum: Any
    """Settings of the env or the player of vs that change, by the env steps from which on they hold, such
    as {0: {"team": 1}, 500_000: {"team": 3}}."""
    learners: int
    """Data-parallel learners: each holds a share of the rows, and all make the same optimiser step."""
    seed: int
    """Random seed of the weights, the envs and the sampling."""
    device: str
    """Device of the policy: "cpu" or "cuda"."""
    target_return: float | None
    """Stop once the mean return of the last target_episodes episodes reaches this."""
    target_episodes: int
    """Number of episodes that target_return averages over; no stop before that many."""
    last_action_reward: bool
    """Add the last action and reward to the observation."""
    env_kwargs: dict[str, Any]
    """Options of the env or task, such as horizon."""
    wrap: tuple[Any, ...] | list[Any]
    """Wrappers of every env, the innermost first: "module:Wrapper", or with options a mapping such as
    {name: gymnasium.wrappers:TimeLimit, max_episode_steps: 100}."""
    imports: tuple[str, ...] | list[str]
    """Modules or files that register parts of your own (recollect.register)."""
    drop_obs: tuple[str, ...] | list[str]
    """Parts of a Dict or Tuple observation to leave out, such as "mission"; of nested ones
    "outer.inner"."""
    run: str | PathLike[str] | None
    """Folder of the run: config, metrics, checkpoints."""
    init_from: str | PathLike[str] | None
    """Start from the weights and statistics of this run or saved agent, with a new optimiser."""
    parallel: Literal["auto", "rows", "operations"]
    """How those threads divide the work: by groups of rows (as many as pay: docs/tuning.md), or within
    every single operation, which can be faster on free cores, and is very slow as soon as another program
    uses one."""
    compile: bool
    """Compile encoder, acting step and critic with torch.compile, which takes a minute or two at the
    start and a C++ compiler."""
    graphs: bool
    """On a GPU, launch acting and every optimiser step as one CUDA graph, captured at the start."""
    algo: Literal["ppo", "impala", "r2d2", "iqn"] | AlgoConfig
    """The algorithm: "ppo", "impala", "r2d2" or "iqn", the config of one, or the name of your own
    (register)."""
    encoder: Any
    """How observations become features: a name, a config, a mapping such as {"hidden": [128]}; None: by
    the observation space, and with the core frames without hidden layers."""
    core: Any
    """The memory: "lstm", "gru", "none", a core config, your own "module:Class", or a factory."""
    head: Any
    """How the memory's output becomes actions; None: as the algorithm needs, of PPO and IMPALA
    "actor_critic"."""
    critic: Literal["shared", "separate", "memoryless"]
    """The network of the critic: "shared" is the actor's; "separate" is an encoder and a core of its own,
    with the settings of the actor's; "memoryless" is an encoder of its own without a core, for a critic
    that sees all that matters (critic_obs)."""
    critic_obs: tuple[str, ...] | list[str]
    """Keys of a Dict observation that only the critic sees, such as the observations of the whole
    team."""
    normalise_observations: bool
    """Normalise Box observations by running statistics, except for images, grids of symbols and
    tokens."""
    normalise_last_action: bool
    """Normalise the last action (last_action_reward) even if it consists of one-hots."""
    normalise_value: bool
    """PopArt: the critic predicts returns normalised by their running mean and standard deviation."""
    value_decay: float
    """Decay of PopArt's return statistics per update."""
    precision: Literal["auto", "fp32", "tf32", "bf16"]
    """Numerical precision of acting and learning: "fp32", "tf32" (products on a GPU are rounded to TF32)
    or "bf16" (the encoder, and on a GPU the products of LSTM and GRU, in bfloat16)."""
    rollout: int
    """T: steps that every row records between two updates."""
    learning_rate: float
    """Learning rate (step size of the optimiser) of the encoder and the core, and of heads without one of
    their own."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"]
    """Schedule of all learning rates over the run: constant, linear or cosine."""
    learning_rate_end: float
    """Final learning rates, as a fraction of the initial ones."""
    learning_rate_warmup: float
    """Fraction of the run over which learning rates rise from 0."""
    gamma: float
    """Discount factor; 1 / (1 - gamma) is the effective horizon in steps."""
    max_grad_norm: float
    """Gradients are clipped to this norm."""
    reward_scale: float
    """Factor of the rewards before learning; unnecessary with PopArt."""
    reward_clip: float | None
    """If set, scaled rewards are clipped to +- this."""
    tolerance: float | None
    """If recomputed log-probs or values deviate by more from the recorded ones, the rows that deviate
    most are replayed in float64, and the run stops unless rounding explains it."""
    gauge_every: int
    """Updates between two measurements of the staleness of stored states; 0: never."""
    chunk: int
    """L: steps of truncated backpropagation through time; at most the rollout."""
    epochs: int
    """Passes over each rollout."""
    minibatches: int
    """Optimiser steps in each pass."""
    accumulate: int
    """Parts that each minibatch is split into; their gradients are added up before the one optimiser
    step: the same update in less memory."""
    batching: Literal["chunks", "episodes"]
    """The sequences of minibatches: chunks of rows, or whole "episodes", as far as the rollout holds
    them; then gradients flow through all steps of an episode, and chunk has no effect."""
    recurrent_mode: Literal["none", "stored_state", "burn_in", "full"]
    """Initial memory of a chunk: the state stored while acting; a state replayed over the burn_in_steps
    before it ("burn_in"); or the state at the rollout's start, with whole rollouts as chunks ("full")."""
    burn_in_steps: int
    """K: with "burn_in", steps replayed without gradient before each chunk; at most the chunk."""
    actor_learning_rate: float | None
    """Learning rate of the action head; None: learning_rate."""
    critic_learning_rate: float | None
    """Learning rate of the value head; None: learning_rate."""
    gae_lambda: float
    """Lambda of generalised advantage estimation: 0 for one-step, 1 for Monte Carlo advantages."""
    value_coef: float
    """Coefficient of the value loss."""
    entropy: float
    """Coefficient of the entropy bonus."""
    entropy_schedule: Literal["constant", "linear", "cosine"]
    """Schedule of the entropy coefficient over the run: constant, linear or cosine."""
    entropy_warmup: float
    """Fraction of the run over which the entropy coefficient rises from 0."""
    entropy_end: float
    """Final entropy coefficient, as a fraction of the initial one."""
    weight_clip: float | None
    """If set, every weight is clipped to +- this times the initialisation bound of its layer."""
    l2_init: float
    """Coefficient of the squared distance from the initial weights of this training, in the loss."""
    next_obs_coef: float
    """Coefficient of an auxiliary loss: predict the next observation from the memory and the action."""
    target_kl: float | None
    """If set, an update ends at the first minibatch whose KL divergence from the acting policy exceeds
    it."""
    normalise_advantages: bool
    """Normalise advantages to mean 0 and standard deviation 1, over all valid steps of the batch."""
    refresh_states: bool
    """Recompute the stored states under the new weights before every epoch but the first."""
    recompute_advantages: bool
    """Recompute values and advantages under the new weights before every epoch but the first."""
    recompute_activations: bool
    """Recompute activations in the backward pass (gradient checkpointing): slower, in less memory."""
    clip: float | None
    """Clip range: how far a probability ratio may move in an update before its gradient stops."""
    value_clip: float | None
    """If set, clip range of the value, in units of the returns' standard deviation."""
    rho_clip: float
    """Upper bound of the importance weight of a step, the ratio of its probability now and when
    acting."""
    c_clip: float
    """Upper bound of the importance weight that V-trace passes back in time; at most rho_clip."""
    n_step: int
    """Steps of rewards in a target, before the target network's value; fewer at the end of an episode."""
    bootstrap_time_limits: bool
    """Whether targets at a time limit continue with the value of the final observation; else they end
    there, as at a termination."""
    stride: int | None
    """Steps between the starts of two sequences of an episode; None: chunk."""
    states: Literal["stored", "rebuilt"]
    """Initial memory of a sequence: the state stored while acting, or rebuilt from zeros by the burn-in
    ("rebuilt"), which is exact for the core frames with a burn-in of its frames - 1, and for none."""
    batch: int
    """Sequences in an optimiser step."""
    replay_capacity: int
    """Steps that the replay holds, over all rows; the oldest are overwritten."""
    replay_warmup: int
    """Steps that are collected before the first optimiser step."""
    replay_ratio: float
    """Steps learned from for each step collected; every optimiser step counts as batch * chunk steps."""
    save_replay: bool
    """Store the replay in checkpoints, so that a resumed run continues bit for bit; else it is
    refilled."""
    double: bool
    """The next action is chosen by the learning network and valued by the target network (double
    Q-learning); else the target network does both."""
    target_every: int | None
    """Optimiser steps between two copies of the weights to the target network; None: target_rate."""
    target_rate: float | None
    """If set, the target network moves by this share towards the weights after every optimiser step."""
    priority_exponent: float
    """Sequences are drawn in proportion to their priority, the error of their steps, to this power; 0:
    uniformly."""
    priority_eta: float
    """A sequence's priority is eta * the largest + (1 - eta) * the mean of its steps' absolute errors."""
    importance_exponent: float
    """Losses are weighted by 1 / probability to this power, in proportion to the largest weight; 1
    corrects fully for the priorities, 0 (as in R2D2) not at all."""
    epsilon: float
    """Probability of a random action at the start of the run, of the row that explores most."""
    epsilon_end: float
    """The same after epsilon_decay, until the end."""
    epsilon_decay: float
    """Fraction of the run over which epsilon falls, linearly."""
    epsilon_ladder: float
    """Row i of N explores with epsilon * epsilon_end^(epsilon_ladder * i / (N - 1)): the first row most,
    the last hardly ever."""
    rescale: bool
    """Learn values as h(Q) = sign(Q) (sqrt(|Q| + 1) - 1) + 0.001 Q, for returns of any size."""
    quantiles: int
    """Fractions drawn for each learned step, at which the return's distribution is predicted."""
    target_quantiles: int
    """Fractions drawn for each target."""
    kappa: float
    """Error from which the quantile Huber loss is linear."""
