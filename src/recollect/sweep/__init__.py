"""Sweeps: every combination of some settings, with several seeds, as runs beside each other.

    sweep = Sweep.plan("delayed-cue", {"core": ["lstm", "gru"], "steps": 100_000}, seeds=3, out="runs/cores")
    sweep.run(jobs=2)                    # again, or Sweep.open("runs/cores").run(): goes on
    for result in sweep.results():
        print(result.label, result.iqm, result.low, result.high)
    sweep.report()                       # runs/cores/report.html

=========================  =====================================================================
in the folder              what
=========================  =====================================================================
``sweep.json``             variants with their flags, seeds, how far each run is
``configs/``               copies of the ``--config`` files, which the runs read
``core=lstm/seed-0/``      a run: variant and seed
``core=lstm/seed-0.log``   what that run had to say, such as its error
``report.html``            the comparison
``lock``                   held while a process works on the sweep
=========================  =====================================================================

Each run is a process of its own. The first Ctrl-C (or SIGTERM, or a closed terminal) is passed on to
them once, and they save; a second Ctrl-C kills them. If the sweep itself is killed, the system tells its
runs on Linux, and they save and end; elsewhere they train to their end. The next start of the sweep waits
a minute for such runs, and goes on from where they are; one that still trains counts as failed until the
start after that. So does a run whose folder is damaged. Neither stops the others.

Nothing that only a folder names is imported: an env that is code has to be named again to go on with a
sweep, ``Sweep.open(path, env="module:Env")``.

This package stands above the command line, not below it: its runs are ``recollect train`` and
``recollect resume``, so that it reads their flags with ``recollect.config.flags``.
"""

from recollect.sweep.folder import Sweep
from recollect.sweep.member import Member
from recollect.sweep.results import Result

__all__ = ["Member", "Result", "Sweep"]
