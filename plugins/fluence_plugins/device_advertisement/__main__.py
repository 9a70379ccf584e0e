"""The process of the command `fluence device-plugin`. Its argument contains the options as JSON.

Exit statuses and errors are those of the other commands.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from typing import Final

from fluence_plugins.device_advertisement.logs import log_to_stderr
from fluence_plugins.device_advertisement.run import Settings, run
from session_scheduler.errors import FluenceError
from session_scheduler.sdk.commands import LogFormat, LogLevel

BAD_INPUT: Final = 2
INTERNAL_ERROR: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143


def main() -> int:
    """Run until SIGTERM. Returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # a container's first process ignores it by default
    options = json.loads(sys.argv[1])
    log_to_stderr(LogLevel(options.pop("log_level")), LogFormat(options.pop("log_format")))
    try:
        asyncio.run(run(Settings(**options)))
    except FluenceError as error:
        for message in error.messages:
            print("fluence:", "".join(each if each.isprintable() else " " for each in message), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:
        logging.getLogger(__name__).exception("internal error; please report it")
        return INTERNAL_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
