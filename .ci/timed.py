"""`timed.py SECONDS COMMAND…` runs a command and adds a line to the file SECONDS: how long it took, its CPU time, itself.

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
    status = subprocess.run(command).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Path(seconds).open("a") as table:
        table.write(f"{time.monotonic() - began:.0f} {used.ru_utime + used.ru_stime:.0f} {' '.join(command)}\n")
    return status if status >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
