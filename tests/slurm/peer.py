"""A Slurm of a test's own: slurmctld and slurmrestd on free ports of the loopback interface, with nothing before them.

Neither slurmd nor munge nor a database is there: external nodes and jobs need none. Several may run beside each other.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..controlplane.processes import Program, Served, free_ports
from .programs import NODES, installed

API = "v0.0.44"
VERSIONS = ("v0.0.42", "v0.0.43", API)
PARTITION = "slurm-bridge"
"""Of the nodes with this feature."""
OTHER_PARTITION = "debug"
"""Likewise."""
CPUS, MEMORY_MIB, GPUS = 8, 32_000, 2
"""Of the nodes that `add_nodes` makes, by default."""
_DAY = 86_400
_START = 30.0
_CONFIGURATION = """\
ClusterName={name}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/slurm
CredType=auth/slurm
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
SlurmUser=slurm
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldDebug=verbose
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
MCSPlugin=mcs/label
MCSParameters=ondemand,ondemandselect
MinJobAge=600
MaxNodeCount=128
NodeSet=kubernetes Feature=slurm-bridge
PartitionName={partition} Nodes=kubernetes Default=YES MaxTime=INFINITE DefaultTime=INFINITE State=UP
NodeSet=others Feature={other}
PartitionName={other} Nodes=others MaxTime=INFINITE DefaultTime=INFINITE State=UP
"""


class SlurmPeer(Served):
    """slurmctld and slurmrestd with a state of their own, which is gone with them."""

    def __init__(self, logs: Path, *, versions: Sequence[str] = VERSIONS) -> None:
        self._chroot = installed()
        self.logs = logs
        self._versions = tuple(versions)
        self._inside = f"/srv/peer-{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = self._chroot / self._inside[1:]
        self._ports = free_ports(2)
        self.url = f"http://127.0.0.1:{self._ports[1]}"
        self.token_file = logs / "slurm.token"
        self._jwt_key = secrets.token_bytes(32)
        self._controller: Program | None = None
        self._rest: Program | None = None

    # ---------------------------------------------------------------- the programs

    def start(self) -> None:
        """Begin with an empty state, and return once it serves."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self._write_files()
        self.write_token()
        self.start_controller()
        self.start_rest()

    def stop(self) -> None:
        """End both, and take all away but the logs."""
        self.stop_rest()
        self.stop_controller()
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def start_controller(self) -> None:
        """Start slurmctld with the state that there is; where slurmrestd runs, return once it serves.

        All have one socket for the making of their tokens, which each takes from the one before: not two at once.
        """
        with (self._chroot.parent / "starting").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            program = self._program("slurmctld", "slurm", [], "-D", "-f", f"{self._inside}/slurm.conf")
            self._controller = program
            program.wait_until(self._listens, _START)
        if self._rest is not None:
            self.wait_ready()

    def _listens(self) -> bool:
        """Whether slurmctld has come so far that it takes connections."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._ports[0]), timeout=1):
            return True
        return False

    def stop_controller(self) -> None:
        """End slurmctld: it writes its state before."""
        program, self._controller = self._controller, None
        if program is not None:
            program.stop()

    def wait_saved(self, *texts: str) -> None:
        """Return once slurmctld has written down nodes or jobs with these texts, which it does every few seconds."""
        assert self._controller is not None
        self._controller.wait_until(lambda: all(text.encode() in self._saved() for text in texts), _START)

    def _saved(self) -> bytes:
        with suppress(FileNotFoundError):  # slurmctld replaces them in several steps
            return b"".join((self._folder / "state" / name).read_bytes() for name in ("node_state", "job_state"))
        return b""

    def kill_controller(self) -> None:
        """SIGKILL: what it has not written yet is lost, that is some seconds."""
        program, self._controller = self._controller, None
        if program is not None:
            program.kill()

    def restart_controller(self) -> None:
        """End slurmctld and start it again."""
        self.stop_controller()
        self.start_controller()

    def start_rest(self) -> None:
        """Start slurmrestd; return once both serve."""
        environment = [f"SLURM_CONF={self._inside}/slurm.conf", "SLURM_JWT=daemon"]
        plugins = ("-a", "rest_auth/jwt", "-s", "slurmctld", "-d", ",".join(self._versions))
        address = self.url.removeprefix("http://")
        self._rest = self._program("slurmrestd", "nobody", environment, *plugins, address)  # codespell:ignore nobody
        if self._controller is not None:
            self.wait_ready()

    def stop_rest(self) -> None:
        """End slurmrestd."""
        program, self._rest = self._rest, None
        if program is not None:
            program.stop()

    @contextmanager
    def without_rest(self) -> Iterator[None]:
        """No REST server answers in the meantime."""
        self.stop_rest()
        try:
            yield
        finally:
            self.start_rest()

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """slurmrestd answers in the meantime, and says that slurmctld does not."""
        self.stop_controller()
        try:
            yield
        finally:
            self.start_controller()

    def wait_ready(self, seconds: float = _START) -> None:
        """Return once a request is served by both."""
        for program in (self._controller, self._rest):
            if program is not None:
                program.wait_until(self._serves, seconds)

    def _serves(self) -> bool:
        try:
            status, answer = self.call("GET", "ping/")
        except OSError:
            return False
        return status == 200 and any(ping["responding"] for ping in answer["pings"])

    def _program(self, name: str, user: str, environment: Sequence[str], *arguments: str) -> Program:
        # The user's group is that of the same name, but nobody's. What the kernel is to do at our death it forgets
        # when a process changes its user: that is said again, after it.
        group = "nogroup" if user == "nobody" else user  # codespell:ignore nobody
        become = ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--pdeathsig=KILL")
        command: list[str | Path] = [
            "chroot",
            self._chroot,
            "/usr/bin/env",
            "-i",
            "PATH=/usr/sbin:/usr/bin",
            *environment,
            *become,
        ]
        return Program(name, [*command, f"/usr/sbin/{name}", *arguments], self.logs / f"{name}.log")

    def _write_files(self) -> None:
        values = {
            "name": "fluence-test",
            "port": self._ports[0],
            "folder": self._inside,
            "partition": PARTITION,
            "other": OTHER_PARTITION,
        }
        self._folder.mkdir(parents=True)
        (self._folder / "state").mkdir()
        (self._folder / "slurm.conf").write_text(_CONFIGURATION.format(**values))
        (self._folder / "slurm.key").write_bytes(secrets.token_bytes(256))
        (self._folder / "jwt.key").write_bytes(self._jwt_key)
        user, group = self._owner()
        hosts = " ".join(("127.0.0.1 localhost", socket.gethostname(), *NODES))
        replaced(self._chroot / "etc" / "hosts", f"{hosts}\n")
        run = self._chroot / "run" / "slurmctld"  # every slurmctld empties it: what is put there is used by none
        run.mkdir(exist_ok=True)
        os.chown(run, user, group)
        for path in (self._folder, *self._folder.iterdir()):
            os.chown(path, user, group)
            if path.suffix == ".key":
                path.chmod(0o600)

    def _owner(self) -> tuple[int, int]:
        """The numbers of the user slurm, as they are in the chroot."""
        for line in (self._chroot / "etc" / "passwd").read_text().splitlines():
            name, _, user, group, *_ = line.split(":")
            if name == "slurm":
                return int(user), int(group)
        raise AssertionError("the packages of Slurm make a user slurm")

    # ---------------------------------------------------------------- tokens

    def token(self, lifespan: float = _DAY, user: str = "root") -> str:
        """A token as `scontrol token` makes them; with a negative lifespan, one that has expired."""
        now = int(time.time())
        claims = {"exp": int(now + lifespan), "iat": min(now, int(now + lifespan) - 1), "sun": user}
        signed = b".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
        return b".".join((signed, _base64(hmac.digest(self._jwt_key, signed, hashlib.sha256)))).decode()

    def write_token(self, lifespan: float = _DAY, user: str = "root") -> Path:
        """Put a new token where the old one is, at one stroke."""
        replaced(self.token_file, self.token(lifespan, user) + "\n", mode=0o600)
        return self.token_file

    # ---------------------------------------------------------------- from Slurm's own side

    def call(
        self, method: str, path: str, body: object = None, *, version: str = API, token: str | None = None
    ) -> tuple[int, Any]:
        """One request as anybody may make it; the status, and the answer where it is JSON, else its text."""
        request = urllib.request.Request(
            f"{self.url}/slurm/{version}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "X-SLURM-USER-TOKEN": self.token() if token is None else token,
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                status, text = refused.code, refused.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def add_nodes(
        self,
        *names: str,
        cpus: int = CPUS,
        memory_mib: int = MEMORY_MIB,
        gpus: int = GPUS,
        gpu_type: str = "",
        partitions: Sequence[str] = (PARTITION,),
    ) -> None:
        """Make external nodes in the partitions."""
        files = "".join(f",file=gpu-{index}" for index in range(gpus))
        typed, type_ = (f":{gpu_type}", f",type={gpu_type}") if gpu_type else ("", "")
        gres = f" Gres=gpu{typed}:{gpus} GresConf=count={gpus},name=gpu{type_}{files}" if gpus else ""
        for name in names:
            conf = (
                f"NodeName={name} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 CPUs={cpus} RealMemory={memory_mib} "
                f"State=External Feature={','.join(partitions)}{gres}"
            )
            status, answer = self.call("POST", "new/node", {"node_conf": conf})
            assert status == 200, answer

    def submit(self, name: str = "direct", **fields: object) -> int:
        """A job of somebody's who has nothing to do with Kubernetes; its number."""
        job = {
            "name": name,
            "flags": ["EXTERNAL_JOB"],
            "current_working_directory": "/tmp",
            "partition": PARTITION,
            "minimum_nodes": 1,
            "user_id": "0",
            "group_id": "0",
            **fields,
        }
        status, answer = self.call("POST", "job/submit", {"job": job})
        assert answer.get("job_id"), (status, answer)
        return int(answer["job_id"])

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, as Slurm lists them."""
        status, answer = self.call("GET", "jobs/")
        assert status == 200, answer
        return list(answer["jobs"])

    def cancel(self, job_id: int) -> None:
        """End a job from Slurm's side."""
        status, answer = self.call("DELETE", f"job/{job_id}")
        assert status == 200, answer

    def clear(self, seconds: float = 30.0) -> None:
        """End all jobs and take all nodes away: the next test finds it as new, but for jobs that have ended."""
        deadline = time.monotonic() + seconds
        for job in self.jobs():
            self.cancel(job["job_id"])
        while names := [node["name"] for node in self.call("GET", "nodes/")[1]["nodes"]]:
            answers = [self.call("DELETE", f"node/{name}") for name in names]
            assert time.monotonic() < deadline, answers
            if any(status != 200 for status, _ in answers):
                time.sleep(0.1)

    def report(self) -> str:
        """The last lines of both logs."""
        parts = []
        for log in sorted(self.logs.glob("slurm*.log")):
            lines = log.read_text(errors="replace").splitlines()[-40:]
            parts.append("\n".join((f"--- {log.name}", *lines)))
        return "\n".join(parts)


def replaced(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file at one stroke: others read it meanwhile."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
