"""Reports: a command's result as one HTML file, for `--html` of `simulate`, `explain` and `status`.

The core's commands find `HtmlReport` by the entry-point group `session_scheduler.reports`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from fluence_lab.view import View
from session_scheduler.errors import InputError
from session_scheduler.observation.observer import Observer
from session_scheduler.observation.values import Observed
from session_scheduler.sdk.extras import require

__all__ = ["HtmlReport", "views_of"]


class HtmlReport:
    """One HTML file for a command's result."""

    def __init__(self, path: Path) -> None:
        """Raises InputError if a package is missing, or the file cannot be in its directory."""
        require("--html", "bokeh", requirement="fluence-scheduler[dashboard]")
        if not os.path.isdir(path.parent):  # unlike Path.is_dir, it never raises
            raise InputError(f"--html {path}: {path.parent} is not a directory; create it, or name another file")
        if os.path.isdir(path):
            raise InputError(f"--html {path}: is a directory; name a file")
        self._path = path

    def write(self, command: str, result: Mapping[str, Any], scheduler: Any = None) -> None:
        """Write the result of a command ("simulate", "explain" or "status"), also as JSON for download.

        A regular file is complete or does not change. `scheduler` is a scheduler that `Observer` accepts; the report
        then also shows its cluster. Raises InputError.
        """
        from fluence_lab.render import page

        data = base64.b64encode(msgspec.json.format(msgspec.json.encode(result), indent=2)).decode()
        observed = None if scheduler is None else Observer(scheduler, f"fluence {command}").observe()
        views = views_of(command, result, observed)
        text = page(views, f"fluence {command}", f"data:application/json;base64,{data}")
        try:
            _write(self._path, text)
        except OSError as error:
            remedy = "name another file"
            raise InputError(f"--html {self._path}: cannot be written ({error.strerror}); {remedy}") from error


def _write(path: Path, text: str) -> None:
    """Replace a regular file, also the target of a link, at once. Write into a device or pipe: it must stay one."""
    if os.path.exists(path) and not os.path.isfile(path):
        path.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def views_of(command: str, result: Mapping[str, Any], observed: Observed | None = None) -> list[View]:
    """The views of a result, and of the cluster, in the order in which a report shows them."""
    from fluence_lab.views.explained import explained
    from fluence_lab.views.gangs import gangs
    from fluence_lab.views.nodes import nodes
    from fluence_lab.views.overview import overview
    from fluence_lab.views.queues import queues
    from fluence_lab.views.simulated import simulated
    from fluence_lab.views.status import status

    if command == "explain":
        found = [explained(result)]
    elif command == "simulate":
        found = [simulated(result), *([explained(result["explain"])] if result.get("explain") else [])]
    else:
        found = [status(result), queues(result["queues"])]
    if observed is not None:
        found = [overview(observed), *found, nodes(observed), gangs(observed)]
    return found
