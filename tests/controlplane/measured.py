"""A program whose processor time and memory can be read while it runs (Linux: /proc)."""

from __future__ import annotations

import os
from pathlib import Path

from .processes import Program, StartError

_TICKS = os.sysconf("SC_CLK_TCK")


class Measured(Program):
    """One running program, and what it uses."""

    @property
    def pid(self) -> int:
        """The process's number."""
        return int(self._handle.pid)

    @property
    def _proc(self) -> Path:
        return Path("/proc") / str(self.pid)

    def cpu_seconds(self) -> float:
        """Processor time since its start, in user and in system mode, of all its threads."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_mib(self) -> float:
        """Its largest resident size so far."""
        return self._status_mib("VmHWM:")

    def resident_mib(self) -> float:
        """Its resident size."""
        return self._status_mib("VmRSS:")

    def _status_mib(self, field: str) -> float:
        """Raises StartError where it has ended: then nothing is said of its memory."""
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
        raise StartError(f"{self.name} has ended:\n{self._tail()}")

    def tail(self) -> str:
        """The last lines that it wrote."""
        return self._tail()
