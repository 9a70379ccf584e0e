"""Times a step: `timed.py SECONDS COMMAND…` runs a command and adds its time and CPU time to the file SECONDS.

The exit status is the command's.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """Run the command; the CPU time is that of all processes that it started and waited for."""
    seconds, *command = sys.argv[1:]
    print("==", *command, flush=True)
    began = time.monotonic()
    status = subprocess.run(command, check=False).returncode  # noqa: S603  # a step of .ci/run
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Path(seconds).open("a") as table:
        table.write(f"{time.monotonic() - began:.0f} {used.ru_utime + used.ru_stime:.0f} {' '.join(command)}\n")
    return status if status >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
