"""``recollect doctor``: what this machine offers, what is in the way, and what Recollect would choose."""

from recollect.base.limits import Places
from recollect.doctor.gather import examine
from recollect.doctor.records import Diagnosis

__all__ = ["Diagnosis", "Places", "examine"]
