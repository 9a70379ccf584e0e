"""A program with measurements of processor time and memory while it runs (Linux: its CPU clock and /proc)."""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from pathlib import Path

from .processes import Program, StartError

_LIBC = ctypes.CDLL(None)


class Measured(Program):
    """A running program and its resource usage."""

    @property
    def _proc(self) -> Path:
        return Path("/proc") / str(self.pid)

    def cpu_seconds(self) -> float:
        """Return the processor time since its start, user and system mode, of all threads. Raises StartError.

        The kernel counts it in nanoseconds; /proc has ticks of 10 ms, 2 % of the cost of a thousand pods.
        """
        clock = ctypes.c_int()
        if _LIBC.clock_getcpuclockid(self.pid, ctypes.byref(clock)) == 0:
            with suppress(OSError):
                return time.clock_gettime(clock.value)
        raise StartError(f"{self.name} has ended:\n{self._tail()}")

    def peak_mib(self) -> float:
        """Its largest resident size so far."""
        return self._status_mib("VmHWM:")

    def resident_mib(self) -> float:
        """Its resident size."""
        return self._status_mib("VmRSS:")

    def _status_mib(self, field: str) -> float:
        """Raise StartError if it has ended, because then its memory is unknown."""
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
        raise StartError(f"{self.name} has ended:\n{self._tail()}")

    def tail(self) -> str:
        """The last lines that it wrote."""
        return self._tail()
