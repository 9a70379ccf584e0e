"""Runs a command in namespaces of its own, in which a kubelet can do no harm to the machine.

    python -m tests.e2e.inside pytest tests/e2e

The mount, network and process namespaces end with the command, and everything in them. `/var/lib/kubelet`, where
kubelets have the sockets of device plugins, `/run`, `/var/log` and the network are its own; the rest of the disk is the
machine's. So are the cgroups: of these there is one on a machine at a time. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SCRATCH = "FLUENCE_E2E_FOLDER"
"""The variable that names the scratch folder, for what runs inside; so it also says that it does."""
NODE_ADDRESS = "10.244.0.1"
SERVICE_ADDRESS = "10.0.0.1"
"""Of the Service `kubernetes`: an address of this machine itself in there, so that no kube-proxy is needed."""
CGROUP = "fluence-e2e"
"""The cgroup below which the kubelet has its pods: it ends what it does not know there, as on a node of a cluster."""
_CGROUPS = Path("/sys/fs/cgroup")
_LOCK = Path("/run/lock/fluence-e2e")
_OWN = ("/var/lib/kubelet", "/var/lib/cni", "/var/log")
_SYSCTLS = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000, "kernel/keys/root_maxbytes": 25_000_000,
}  # fmt: skip
"""What a kubelet writes for the whole machine: in there, files that hold it already lie over them."""
CORES = 8
"""What the kubelet takes the machine to have: enough for what deploy/ asks for and the examples beside it."""


def main(command: list[str]) -> int:
    """Run the command inside; returns its exit status."""
    if os.geteuid() != 0:
        print("a kubelet needs root: run this as root", file=sys.stderr)
        return 2
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(tempfile.mkdtemp(prefix="fluence-", dir="/tmp"))  # sockets' paths must be short
        try:
            enter = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
            first = [sys.executable, "-m", "tests.e2e.inside", "--first", *command]
            return subprocess.run([*enter, *first], env={**os.environ, SCRATCH: str(folder)}, check=False).returncode
        finally:
            _remove(folder)


def _remove(folder: Path) -> None:
    keep = os.environ.get("FLUENCE_E2E_KEEP")
    if keep:
        shutil.copytree(folder / "logs", keep, dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    for top in _cgroups():
        for at, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(at)


def _cgroups() -> list[Path]:
    """The kubelet's cgroup: one, or one for each controller."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / CGROUP]
    return [controller / CGROUP for controller in _CGROUPS.iterdir() if (controller / "cgroup.procs").exists()]


# ------------------------------------------------------------------ inside


def first(command: list[str]) -> int:
    """The namespaces' first process: prepares them, runs the command, and reaps orphans until it ends."""
    if os.getpid() != 1:
        raise SystemExit("this is for the first process of a namespace")
    for cgroup in _cgroups():
        cgroup.mkdir(exist_ok=True)
    _mount(Path(os.environ[SCRATCH]))
    _connect()
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    while True:
        ended, status = os.wait()
        if ended == child.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


def _mount(folder: Path) -> None:
    _do("mount", "--make-rprivate", "/")
    for path in _OWN:
        Path(path).mkdir(parents=True, exist_ok=True)
        own = folder / "own" / path.strip("/").replace("/", "-")
        own.mkdir(parents=True)
        _do("mount", "--bind", str(own), path)
    _do("mount", "-t", "tmpfs", "run", "/run")
    for name, value in _SYSCTLS.items():
        mask = folder / "own" / name.replace("/", "-")
        mask.write_text(f"{value}\n")
        _do("mount", "--bind", str(mask), f"/proc/sys/{name}")
    _count_cores(folder / "own")
    _do("mount", "--make-rshared", "/")
    (folder / "logs").mkdir()


def _count_cores(own: Path) -> None:
    """Cores that the kernel lists without any detail: a kubelet counts them, and assigns none."""
    for core in range(CORES):
        (own / "cpu" / f"cpu{core}").mkdir(parents=True)
    (own / "node").mkdir()
    for name in ("cpu", "node"):
        _do("mount", "--bind", str(own / name), f"/sys/devices/system/{name}")


def _connect() -> None:
    """A network with one machine, that has the Service's address, too; pods get theirs from the CNI plugin."""
    for words in (
        "link set lo up",
        f"addr add {SERVICE_ADDRESS}/32 dev lo",
        "link add node0 type veth peer name node1",
        "link set node1 up",
        f"addr add {NODE_ADDRESS}/24 dev node0",
        "link set node0 up",
        "route add default dev node0",
    ):
        _do("ip", *words.split())


def _do(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(first(words[1:]) if words[:1] == ["--first"] else main(words))
