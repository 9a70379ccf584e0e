"""`fluence run` as a separate process that tests start, observe and kill.

scheduler = SchedulerProcess(folder, kubeconfig_for(plane, folder, proxy.url), Settings(resources=text))
scheduler.start()
scheduler.wait_ready()
scheduler.kill()                                   # and start() again: the log continues
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import yaml

from .asking import ask, scraped
from .forked import FluenceProgram
from .harness import SCHEDULER, ControlPlane
from .processes import Program, StartError

_READY = 60.0
SHIFTED_CLOCK: Final = Path(__file__).parent / "faults" / "shifted_clock.py"
"""For `Settings.script`, with a file that contains the wall clock's offset in seconds."""
QUICK_FOLLOW: Final = Path(__file__).parent / "quick_follow.py"
"""For `Settings.script`: the scheduler checks its resources file ten times a second."""
_STARTED = "---- started at"
_SERVING = re.compile(r'"event": "serving /metrics[^}]*"port": (\d+)')
_LOG_LINES = 60
UNTIL_HELPED: Final = {"backoff": {"initialSeconds": 0.2, "maxSeconds": 1, "maxUnschedulableSeconds": 3600}}
"""For `Settings.more`: unschedulable groups are retried only after an event that may help them."""


@dataclass(frozen=True)
class Settings:
    """Settings of a test's scheduler; times in seconds, shorter than in production."""

    resources: str = ""
    """The text of the resources file; empty for none."""
    election: bool = False
    lease_seconds: int = 5
    renew_seconds: float = 3.0
    retry_seconds: float = 0.5
    gang_bind_timeout_seconds: float = 10.0
    reconcile_seconds: float = 5.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the plugin `fluence`."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the configuration."""
    profiles: Sequence[Mapping[str, Any]] = ()
    """Further profiles, after the one with the schedulerName `fluence`."""
    checkout: Path | None = None
    """Another checkout of this project, after `make setup`, whose scheduler to run; None for this one."""
    script: Sequence[Path] = ()
    """A Python script that runs `fluence`, with the script's own arguments; empty for `fluence` itself."""

    def configuration(self, port: int, resources: Path | None) -> dict[str, Any]:
        """Return the content of the configuration file."""
        arguments = ({"resources": str(resources)} if resources else {}) | dict(self.arguments)
        return {
            "apiVersion": "fluence.flux-framework.org/v1alpha1",
            "kind": "SchedulerConfiguration",
            "profiles": [
                {"schedulerName": "fluence", "plugins": [{"name": "fluence", "args": arguments}]}, *self.profiles
            ],
            # retried frequently, even without an event: each attempt must have the same result
            "backoff": {"initialSeconds": 0.2, "maxSeconds": 1, "maxUnschedulableSeconds": 0.5},
            "gangBindTimeoutSeconds": self.gang_bind_timeout_seconds,
            "reconcileSeconds": self.reconcile_seconds,
            "leaderElection": {
                "enabled": self.election, "leaseSeconds": self.lease_seconds,
                "renewSeconds": self.renew_seconds, "retrySeconds": self.retry_seconds,
            },
            "serving": {"host": "127.0.0.1", "port": port} | self._unlimited(),
            **self.more,
        }  # fmt: skip

    def _unlimited(self) -> dict[str, Any]:
        """Tests poll the endpoints; another checkout may not know the field."""
        return {"requestsPerSecond": 10_000} if self.checkout is None else {}


@dataclass(frozen=True)
class Ended:
    """How a scheduler ended after SIGTERM."""

    status: int
    seconds: float


def kubeconfig_for(plane: ControlPlane, folder: Path, url: str | None = None, user: str = SCHEDULER) -> Path:
    """Write a kubeconfig of the scheduler's own user; `url` is the address of a proxy."""
    document = yaml.safe_load(plane.kubeconfig(user).read_text())
    if url is not None:
        document["clusters"][0]["cluster"] = {"server": url}
    path = folder / f"{user.rpartition(':')[2]}-{'api-server' if url is None else url.rpartition(':')[2]}.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def fluence_of(checkout: Path) -> Path:
    """Return the command `fluence` of a checkout. Raises StartError if `make setup` did not run there."""
    program = checkout.absolute() / ".venv" / "bin" / "fluence"
    if not os.access(program, os.X_OK):
        raise StartError(f"{program} does not exist: run `make setup` in {checkout}")
    return program


class SchedulerProcess:
    """One replica; it can be started again after its end, as a Deployment would."""

    COMMAND: ClassVar[str] = "run"
    """The subcommand of `fluence`."""

    def __init__(self, folder: Path, kubeconfig: Path, settings: Settings | None = None,
                 name: str = "scheduler") -> None:  # fmt: skip
        self.name = name
        self.log = folder / f"{name}.log"
        self.settings = settings or Settings()
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._program: Program | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start it without waiting; it chooses a free port itself."""
        resources = None
        if self.settings.resources:
            resources = self._folder / f"{self.name}-resources.yaml"
            resources.write_text(self.settings.resources)
        config = self._folder / f"{self.name}.yaml"
        config.write_text(yaml.safe_dump(self.settings.configuration(0, resources)))
        with self.log.open("a") as log:
            log.write(f"{_STARTED} {time.strftime('%H:%M:%S')}\n")
        arguments: list[str | Path] = [self.COMMAND, "--config", config, "--kubeconfig", self._kubeconfig]
        if self.settings.checkout is not None:
            self._program = Program(self.name, [fluence_of(self.settings.checkout), *arguments], self.log)
        elif self.settings.script:
            self._program = Program(self.name, [sys.executable, *self.settings.script, *arguments], self.log)
        else:
            self._program = FluenceProgram(self.name, arguments, self.log)

    @property
    def status(self) -> int | None:
        """Return the exit status, minus the signal's number after a signal; None before its end."""
        return None if self._program is None else self._program.status

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._program is not None and self._program.status is None

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        if self._program is not None:
            self._program.kill()

    def terminate(self, seconds: float = 20.0) -> Ended:
        """Send SIGTERM, like a kubelet; return how it ended. Raises TimeoutError if it does not."""
        assert self._program is not None
        began = time.monotonic()
        self._program.terminate()
        while (status := self._program.status) is None:
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"{self.name} runs {seconds:g} s after SIGTERM\n{self.tail()}")
            time.sleep(0.02)
        return Ended(status, time.monotonic() - began)

    def pause(self) -> None:
        """Send SIGSTOP; its connections stay open."""
        assert self._program is not None
        self._program.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        assert self._program is not None
        self._program.signal(signal.SIGCONT)

    # ------------------------------------------------------------------ endpoints and logs

    def wait_ready(self, seconds: float = _READY) -> None:
        """Wait until /readyz is OK: synced, recovered, and leading or standing by. Raises StartError."""
        assert self._program is not None
        self._program.wait_until(self.is_ready, seconds)

    def is_ready(self) -> bool:
        """Whether /readyz is OK now."""
        with suppress(OSError, http.client.HTTPException):
            return self.get("/readyz")[0] == HTTPStatus.OK
        return False

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        """Request one of its endpoints; return status and text. Raises ConnectionError before it serves."""
        said = _SERVING.search(self.log.read_text(errors="replace").rpartition(_STARTED)[2])
        if said is None:
            raise ConnectionError(f"{self.name} does not say where it serves")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return ask("127.0.0.1", int(said.group(1)), path, headers=headers)

    def metrics(self) -> dict[str, float]:
        """Return /metrics as {"name{label="value"}": number}."""
        status, text = self.get("/metrics")
        if status != HTTPStatus.OK:
            raise StartError(f"{self.name}: /metrics: {status}: {text}")
        return scraped(text)

    def tail(self, lines: int = _LOG_LINES) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
