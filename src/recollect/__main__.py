"""``python -m recollect``: the command line."""

import sys

from recollect.cli import main

sys.exit(main())
