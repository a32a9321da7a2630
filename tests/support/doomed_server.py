"""Imported by the fork server of ``tests.support.doomed``: what is ready here is ready in every process."""

from __future__ import annotations

from tests.support import doomed

doomed.warm_up()
doomed.skip_fsync()
