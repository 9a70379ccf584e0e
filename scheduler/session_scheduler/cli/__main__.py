"""`python -m session_scheduler.cli` is the command `fluence`."""

import sys

from session_scheduler.cli import main

sys.exit(main())
