"""Sweeps: every combination of some settings, with several seeds, each as a run of its own.

    sweep = Sweep.plan("delayed-cue", {"core": ["lstm", "gru"], "steps": 100_000}, seeds=3, out="runs/cores")
    sweep.run(jobs=2)                    # a second call, or Sweep.open("runs/cores").run(), resumes
    for result in sweep.results():
        print(result.label, result.iqm, result.low, result.high)
    sweep.report()                       # runs/cores/report.html

=========================  =====================================================================
in the folder              contents
=========================  =====================================================================
``sweep.json``             variants with their flags, seeds, the state of each run
``configs/``               copies of the ``--config`` files, which the runs read
``core=lstm/seed-0/``      the run of a variant and a seed
``core=lstm/seed-0.log``   output of that run, such as its error
``report.html``            the comparison
``lock``                   held while a process runs the sweep
=========================  =====================================================================

Each run is a process: ``recollect train``, or ``recollect resume`` if it was stopped. The first Ctrl-C (or
SIGTERM, or a closed terminal) is passed on to the runs once, and they save; a second Ctrl-C kills them. If
the sweep itself is killed, its runs save and end on Linux, and train to their end elsewhere. The next start
waits a minute for such runs and then resumes them; one that still trains, or whose folder is damaged, counts
as failed until the next start.

Nothing that only a folder names is imported: to resume a sweep whose env is code, name the env again,
``Sweep.open(path, env="module:Env")``.
"""

from recollect.sweep.member import Member
from recollect.sweep.sweep_folder import Result, Sweep

__all__ = ["Member", "Result", "Sweep"]
