"""``recollect doctor``: describes this machine, finds problems, and recommends settings."""

from recollect.base.system_limits import Places
from recollect.doctor.gather import examine
from recollect.doctor.records import Diagnosis

__all__ = ["Diagnosis", "Places", "examine"]
