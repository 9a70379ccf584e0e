"""SIGUSR1 prints the stacks of a server, even if its event loop is stuck."""

from __future__ import annotations

import signal
import subprocess
import sys

STUCK = """
import asyncio, time
from session_scheduler.sdk.signals import stop_on_signals

def stuck_function():
    print("stuck", flush=True)
    while True:
        time.sleep(3600)

async def main():
    with stop_on_signals():
        stuck_function()

asyncio.run(main())
"""


def test_sigusr1_writes_the_stack_of_a_stuck_loop_and_ends_nothing() -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "stuck\n"
            for _ in range(2):
                process.send_signal(signal.SIGUSR1)
                lines = iter(process.stderr.readline, "")
                assert any("in stuck_function" in line for line in lines)
                assert any("in <module>" in line for line in lines)
        finally:
            process.kill()
