"""The league of a run while it trains: when a snapshot is made, becomes a member, and who plays next."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from recollect.config.league import LEAGUE, LeagueConfig, league_config
from recollect.envs.versus import two_sides_of
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.league.games import Tally, prune
from recollect.league.matchmaking import RECENT, Roster, Rosters, choose
from recollect.league.pool import Pool, signature
from recollect.training.callbacks import Callback

if TYPE_CHECKING:
    from recollect.training.run_loop import Training


class League(Callback):
    """Freezes snapshots and chooses the opponents, between updates.

    All that it does at an env step is on disk before the checkpoint of that step, and is a function of the
    steps, the games so far and the seed: a resumed run has the same league.
    """

    config: LeagueConfig
    pool: Pool
    roster: Roster | None

    def on_start(self, training: Training) -> None:
        """Open the league of the run, as it was at the step of the checkpoint."""
        if training.run is None:
            raise ConfigError("vs = 'league' keeps its members in the run's folder: give run=... (--run)")
        self.config = league_config(training.config.vs_kwargs)
        if self.config.member is not None:
            raise ConfigError("vs.member is for evaluations: leave it out of a training")
        if (maker := training.agent.network.made_by) is not None:
            raise ConfigError(
                f"vs = 'league' with a policy factory ({maker}): members are made from the settings of the "
                "network; use encoder, core and head (docs/own-policy.md)"
            )
        if self.config.gate is not None and not training.agent.can_make_env:
            raise ConfigError("vs.gate needs a second instance of the env: give its name, or a callable")
        folder = training.run.path / LEAGUE
        if self.config.folder not in (None, str(folder)):
            raise ConfigError(f"vs.folder = {self.config.folder!r}: a training has {folder}; leave it out")
        is_new = not training.run.checkpoints()  # a run that ended before the first may have left a league
        self.pool, self._rosters = Pool(folder, is_new=is_new), Rosters(folder)
        self._open(training)
        self._owner = self.pool.own()
        self.pool.rewind(training.steps)
        kept = self._rosters.rewind(-1 if is_new else training.steps)
        self.roster = kept[-1] if kept else None
        prune(folder, len(kept))
        self._tally = Tally(folder)
        self._update(training)
        self._tell(training)  # also a roster that a resumed run has already

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """After an update: freeze a snapshot, or choose other opponents, if that is due."""
        try:
            self._update(training)
        except StorageError as error:
            training.continue_without_disk(error)

    def _open(self, training: Training) -> None:
        agent: Any = training.agent
        env = agent.make_env(1) if agent.can_make_env else agent.env
        try:
            sided = two_sides_of(env)
            self.pool.create(signature(sided, training.config.env_kwargs), sided.opponents)
        finally:
            if agent.can_make_env:
                env.close()

    def _update(self, training: Training) -> None:
        promoted = self._is_due(training.steps, self._last_steps, self.config.promote_every)
        if promoted:
            self._promote(training)
        for one in self.pool.members:
            if one.state == "candidate":  # or of a run that ended in the games of its gate
                self.pool.set_state(one.name, "member" if self._wins(training) else "retired")
                promoted = True
        before = None if self.roster is None else self.roster.steps
        if promoted or self._is_due(training.steps, before, self.config.refresh_every):
            roster = self._chosen(training)
            self._rosters.add(roster)
            self.roster = roster
            self._tell(training)

    @staticmethod
    def _is_due(steps: int, last: int | None, every: int) -> bool:
        return last is None or steps // every > last // every

    @property
    def _last_steps(self) -> int | None:
        """Env steps of the last snapshot."""
        return next((one.steps for one in reversed(self.pool.members) if one.is_own), None)

    def _promote(self, training: Training) -> None:
        """Freeze a snapshot of the agent; with a gate it has to win to become a member."""
        is_free = self.config.gate is None or self.pool.newest is None
        self.pool.add(training.weights(), training.steps, "member" if is_free else "candidate")

    def _wins(self, training: Training) -> bool:
        """Whether the agent passes the gate: as many games on each side, against the newest member."""
        rival, gate = self.pool.newest, self.config.gate
        if rival is None or gate is None:
            return True
        games = training.agent.against(
            LEAGUE, self.config.gate_games, eval_mode="sampled", vs_kwargs={"member": rival.name}
        ).total
        return games.win + games.draw / 2 >= gate * games.games

    def _chosen(self, training: Training) -> Roster:
        """The next roster, without members that cannot be read."""
        number = 0 if self.roster is None else self.roster.number + 1
        counts = self._tally.counts(since=number - RECENT)
        broken: set[str] = set()
        while True:
            members = [member for member in self.pool.playing if member.name not in broken]
            if not members:
                raise RecollectError(
                    f"no member of {self.pool.folder} can be read: {', '.join(sorted(broken))}; take another "
                    "copy"
                )
            seed, steps = training.config.seed, training.steps
            roster = choose(members, counts, self.config, number=number, steps=steps, seed=seed)
            found = {name: error for name in roster.members if (error := self._failure(name))}
            if not found:
                return roster
            for name, error in found.items():
                training.warn(f"league: {name} does not play: {error}")
            broken |= found.keys()

    def _failure(self, name: str) -> RecollectError | None:
        try:
            self.pool.verify(name)
        except RecollectError as error:
            return error
        return None

    def _tell(self, training: Training) -> None:
        assert self.roster is not None
        training.adjust(league=asdict(self.roster) | {"owner": self._owner})
