"""What other distributions add to the command line: commands, options, and writers of reports, by entry points."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from session_scheduler.errors import InputError

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler

REPORTS_GROUP: Final = "session_scheduler.reports"
"""Entry points by the option that names the report's file: `html` is a function of the path that returns a Report."""


class Report(Protocol):
    """Writes a command's result to the file for which it was opened."""

    def write(self, command: str, result: Mapping[str, Any], scheduler: Scheduler | None = None) -> None:
        """Write the JSON of a command, and views of the scheduler's cluster if it is given. Raises InputError."""


def loaded(group: str, *, taken: Collection[str] = ()) -> dict[str, Any]:
    """The objects of a group's entry points, by name. Raises InputError, also for a name in `taken`."""
    found: dict[str, Any] = {}
    for entry in metadata.entry_points(group=group):
        offer = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
        if entry.name in taken:
            raise InputError(
                f"command {entry.name} of {offer} has the name of a built-in command; uninstall that package"
            )
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # any exception of the import is the distribution's error
            problem = f"{type(error).__name__}: {error}"
            raise InputError(f"{entry.name} of {offer} cannot be imported: {problem}; fix or reinstall it") from error
    return found


def open_report(html: Path | None) -> Report | None:
    """The report of `--html`, opened before the command reads anything; None without the option. Raises InputError."""
    if html is None:
        return None
    writers = loaded(REPORTS_GROUP)
    if "html" not in writers:
        raise InputError("--html: no installed package writes reports; run pip install 'fluence-scheduler[dashboard]'")
    report: Report = writers["html"](html)
    return report
