"""A real node: containerd and a kubelet, for tests that run inside `inside.py`'s namespaces."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from ..controlplane import binaries
from ..controlplane.processes import Program, StartError
from .inside import CGROUP, NODE_ADDRESS

NAME = "n1"
KUBELET_FOLDER = Path("/var/lib/kubelet")
PLUGINS = KUBELET_FOLDER / "device-plugins"
_PAUSE_IMAGE = "registry.local/pause:3.10"
_PATIENCE = 60.0
_UNPACKING = 300.0
"""An image of 330 MB, on a busy machine."""
_PODS = "10.244.77.0/24"
_PROGRAMS = ("containerd", "ctr", "runc", "ip", "unshare", "gcc")


def missing_programs() -> list[str]:
    """What a node needs and this machine lacks."""
    return [name for name in _PROGRAMS if shutil.which(name) is None]


class RealNode:
    """containerd and a kubelet; `folder` holds what they keep. `start` once; the kubelet can be ended and started."""

    def __init__(self, folder: Path, kubeconfig: Path, keys: Path, logs: Path) -> None:
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._keys = keys
        self._logs = logs
        self._socket = folder / "c.sock"
        self._containerd: Program | None = None
        self._kubelet: Program | None = None

    # ------------------------------------------------------------------ life

    def start_containerd(self) -> None:
        """Start containerd; returns once it answers."""
        config = self._folder / "containerd.toml"
        config.write_text(_containerd_config(self._folder))
        network = self._folder / "cni"
        network.mkdir()
        (network / "10-nodes.conflist").write_text(json.dumps(_network(self._folder)))
        self._containerd = Program("containerd", ["containerd", "-c", config], self._logs / "containerd.log")
        self._containerd.wait_until(lambda: self._ctr("version").returncode == 0, _PATIENCE)

    def start_kubelet(self) -> None:
        """Start the kubelet; returns at once."""
        config = self._folder / "kubelet.yaml"
        config.write_text(yaml.safe_dump(_kubelet_config(self._folder)))
        self._kubelet = Program("kubelet", [
            binaries.find("kubelet")["kubelet"], f"--config={config}", f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={NAME}", f"--node-ip={NODE_ADDRESS}", f"--cert-dir={self._keys}", "--v=2",
        ], self._logs / "kubelet.log")  # fmt: skip

    def kill_kubelet(self) -> None:
        """SIGKILL, as a crash: containers run on."""
        assert self._kubelet is not None
        self._kubelet.kill()

    def stop(self) -> None:
        """End both; what they started ends with the namespaces."""
        for program in (self._kubelet, self._containerd):
            if program is not None:
                program.stop()

    # ------------------------------------------------------------------ images

    def load(self, image: Path) -> None:
        """Import an image. Raises StartError."""
        done = self._ctr("-n", "k8s.io", "images", "import", str(image), seconds=_UNPACKING)
        if done.returncode != 0:
            raise StartError(f"{image.name} cannot be imported: {done.stderr}")

    def _ctr(self, *words: str, seconds: float = _PATIENCE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["ctr", "-a", self._socket, *words], check=False, capture_output=True, text=True,
                              timeout=seconds)  # fmt: skip


def pause_program(folder: Path) -> Path:
    """The program that holds a pod's namespaces: it waits for the end, and reaps orphans."""
    source = folder / "pause.c"
    source.write_text(
        "#include <signal.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
        "static void leave(int number) { (void)number; _exit(0); }\n"
        "static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }\n"
        "int main(void) {\n"
        "  signal(SIGTERM, leave); signal(SIGINT, leave); signal(SIGCHLD, reap);\n  for (;;) pause();\n}\n"
    )
    program = folder / "pause"
    subprocess.run(["gcc", "-static", "-Os", "-o", program, source], check=True, timeout=60)
    return program


def _network(folder: Path) -> dict[str, Any]:
    addresses = {
        "type": "host-local", "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": _PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
    }  # fmt: skip
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}


def _containerd_config(folder: Path) -> str:
    return f"""version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{_PAUSE_IMAGE}"
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{shutil.which("runc")}"
        Root = "{folder}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


def _kubelet_config(folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{folder}/c.sock",
        "failCgroupV1": False, "failSwapOn": False, "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True, "cgroupRoot": f"/{CGROUP}",
        "enforceNodeAllocatable": [], "resolvConf": "", "clusterDNS": ["10.0.0.10"], "protectKernelDefaults": False,
        "localStorageCapacityIsolation": False, "makeIPTablesUtilChains": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "0.0.0.0", "port": 10250, "healthzBindAddress": "127.0.0.1", "healthzPort": 10248,
        "podLogsDir": str(folder / "podlogs"), "volumePluginDir": str(folder / "volumes"),
        "imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "1Mi"},
        "nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s", "runtimeRequestTimeout": "1m",
    }  # fmt: skip
