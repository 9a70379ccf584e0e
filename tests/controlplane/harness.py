"""A control plane on loopback: etcd and kube-apiserver, and on request the controllers and kube-scheduler.

    with ControlPlane(folder) as plane:
        plane.request("GET", "/api/v1/nodes")            # as administrator
        plane.kubeconfig(SCHEDULER)                      # a file for clients, as the scheduler's own user

RBAC is on; tokens identify users; clients verify TLS with the API server's own certificate.
"""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import time
from base64 import b64encode
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import yaml

from . import binaries
from .processes import Program, Served, StartError, free_ports

ADMIN = "admin"
SCHEDULER = "fluence"
_NAMES = {SCHEDULER: "system:serviceaccount:kube-system:fluence"}
"""The API server's names of users if they differ: the account of deploy/fluence.yaml, with a token for the tests."""
_USERS = {
    ADMIN: "system:masters",
    SCHEDULER: "system:serviceaccounts,system:serviceaccounts:kube-system",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "outsider": "",
}
GATES = ("GenericWorkload", "GangScheduling", "WorkloadAwarePreemption", "TopologyAwareWorkloadScheduling",
          "WorkloadWithJob", "DRADeviceTaintRules", "DRAWorkloadResourceClaims")  # fmt: skip
# Without kubelets these two controllers would mark nodes as dead and evict their pods.
_CONTROLLERS = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"
_BRISK = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""By default controllers send 20 requests a second: half a minute for removing the taints of 500 new nodes."""
_PATIENCE = 90.0
_STARTS = 3
"""How often a start is tried, because another program may take a free port."""
_KEY = "YQ=="
"""A key of etcd that the API server does not know: "a" in base64."""
DEPLOY = Path(__file__).parents[2] / "deploy"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
"""Kinds of objects with an account's rights."""
OWN_PLANS, POD_STATUS = "fluence-own-plans", "fluence-pod-status"
"""The policies that restrict the scheduler's rights to ConfigMaps and pods/status."""


class ControlPlane(Served):
    """A running control plane; `folder` (empty, its own) holds its data, keys and logs."""

    ADDRESS = "127.0.0.1"
    """The address for clients."""
    PORT = 0
    """The API server's port; 0 for any free one."""
    USERS: ClassVar[dict[str, str]] = {}
    """Further users, each with its groups."""
    CONTROLLERS = _CONTROLLERS

    def __init__(
        self,
        folder: Path,
        *,
        controllers: bool = False,
        kube_scheduler: bool = False,
        gates: Sequence[str] = GATES,
    ) -> None:
        """`gates`: the enabled feature gates, in all programs."""
        self._folder = folder
        self._features = [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []
        self._users = _USERS | self.USERS
        self._controllers = controllers
        self._kube_scheduler = kube_scheduler
        wanted = {"etcd", "kube-apiserver"}
        wanted |= {"kube-controller-manager"} if controllers else set()
        wanted |= {"kube-scheduler"} if kube_scheduler else set()
        self._binaries = binaries.find(*sorted(wanted))
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        self._programs: dict[str, Program] = {}
        self._port = self._etcd_port = self._peer_port = 0
        self._tls: ssl.SSLContext | None = None
        self._names = 0

    # ------------------------------------------------------------------ life

    def stop(self) -> None:
        """Stop all programs, clients before servers."""
        running = list(reversed(self._programs.values()))
        for program in running:
            if program.name != "etcd":  # the API server needs it for its shutdown
                program.terminate()
        for program in running:
            program.stop()
        self._programs.clear()

    def start(self) -> None:
        """Start the programs on free ports, with an empty cluster."""
        users = "".join(
            f'{token},{_NAMES.get(user, user)},{user},"{self._users[user]}"\n' for user, token in self._tokens.items()
        )
        (self._folder / "tokens.csv").write_text(users)
        for attempt in range(1, _STARTS + 1):
            self._port, self._etcd_port, self._peer_port = free_ports(3)
            self._port = self.PORT or self._port
            try:
                self.start_etcd()
                self._age()
                self.start_api_server()
                break
            except StartError:
                self.stop()
                if attempt == _STARTS:
                    raise
        self._prepare()
        if self._controllers:
            self._start_controllers()
        if self._kube_scheduler:
            self._run("kube-scheduler", f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}",
                      "--leader-elect=false", "--secure-port=0", *self._features)  # fmt: skip

    def _prepare(self) -> None:
        """Create the initial objects: the scheduler's rights from deploy/, and the policies beside them."""
        for manifest in yaml.safe_load_all((DEPLOY / "fluence.yaml").read_text()):
            if manifest["kind"] in RIGHTS or manifest["metadata"]["name"] in (OWN_PLANS, POD_STATUS):
                self.create(manifest)  # the tests run the scheduler themselves

    def start_etcd(self) -> None:
        """Start etcd with the existing data."""
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd", f"--data-dir={self._folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=error",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        ).wait_until(self._etcd_is_ready, _PATIENCE)  # fmt: skip

    def start_api_server(self) -> None:
        """Start the API server; a restart uses the same port and keys."""
        keys = self._folder / "keys"
        key = keys / "apiserver.key"  # the API server creates it, and also signs tokens of service accounts with it
        self._run(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", f"--secure-port={self._port}",
            "--endpoint-reconciler-type=none", f"--cert-dir={keys}", "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true,resource.k8s.io/v1beta2=true",
            *self._features, *self._reached(),
        ).wait_until(self._api_is_ready, _PATIENCE)  # fmt: skip

    def _reached(self) -> list[str]:
        """The API server's address and authentication."""
        return ["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--authorization-mode=RBAC"]

    def kill(self, name: str) -> None:
        """Kill one program with SIGKILL; "kube-apiserver" and "etcd" can be started again."""
        self._programs.pop(name).kill()

    def _start_controllers(self) -> None:
        keys = self._folder / "keys"
        self._run("kube-controller-manager", f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
                  "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials",
                  f"--service-account-private-key-file={keys / 'apiserver.key'}",
                  f"--root-ca-file={self.ca_file}", self.CONTROLLERS, *_BRISK, *self._features)  # fmt: skip

    def _run(self, name: str, *arguments: str) -> Program:
        program = Program(name, [self._binaries[name], *arguments], self._folder / f"{name}.log")
        self._programs[name] = program
        return program

    def _etcd_is_ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self._etcd("GET", "/health")[0] == http.HTTPStatus.OK
        return False

    def _api_is_ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.ca_file.exists() and self.request("GET", "/readyz")[0] == http.HTTPStatus.OK
        return False

    # ------------------------------------------------------------------ etcd

    def _age(self) -> None:
        """Write to etcd before the API server starts, so that its watch caches begin later than resourceVersion 1."""
        for _ in range(10):
            self._etcd("POST", "/v3/kv/put", {"key": _KEY, "value": _KEY})

    def compact(self) -> None:
        """Compact etcd's history, as the API server does every five minutes."""
        revision = self._etcd("POST", "/v3/kv/range", {"key": _KEY})[1]["header"]["revision"]
        self._etcd("POST", "/v3/kv/compaction", {"revision": revision, "physical": True})

    def restore(self, plural: str, manifest: dict[str, Any]) -> None:
        """Write an object directly to etcd, with the manifest's uid, status and deletionTimestamp."""
        plural = {"nodes": "minions"}.get(plural, plural)
        metadata = manifest["metadata"]
        key = "/".join(part for part in ("/registry", plural, metadata.get("namespace"), metadata["name"]) if part)
        pair = {"key": key, "value": json.dumps(manifest)}
        status, answer = self._etcd("POST", "/v3/kv/put", {name: b64encode(text.encode()).decode()
                                                           for name, text in pair.items()})  # fmt: skip
        if status != http.HTTPStatus.OK:
            raise StartError(f"writing {key}: {status}: {answer}")

    def _etcd(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=10)
        return _exchange(connection, method, path, body, {})

    # ------------------------------------------------------------------ the API

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self.ADDRESS}:{self._port}"

    @property
    def port(self) -> int:
        """The API server's port."""
        return self._port

    @property
    def ca_file(self) -> Path:
        """The CA certificates of the API server."""
        return self._folder / "keys" / "apiserver.crt"

    def token(self, user: str = ADMIN) -> str:
        """The bearer token of one of the users."""
        return self._tokens[user]

    def kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig file for one of the users."""
        path = self._folder / f"{user.rpartition(':')[2]}.kubeconfig"
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.server,
                                                      "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document))
        return path

    def request(self, method: str, path: str, body: object = None, *, user: str = ADMIN) -> tuple[int, Any]:
        """Send one request; return its status and its response, decoded if it is JSON."""
        headers = {"Authorization": f"Bearer {self._tokens[user]}"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        return _exchange(self._connection(), method, path, body, headers)

    def versions(self, path: str, name: str, since: str) -> Generator[dict[str, Any]]:
        """Each version of an object after a resourceVersion, as it is written; ends after 20 s. Close it."""
        query = f"watch=1&fieldSelector=metadata.name%3D{name}&resourceVersion={since}&timeoutSeconds=20"
        connection = self._connection()
        try:
            connection.request("GET", f"{path}?{query}", headers={"Authorization": f"Bearer {self._tokens[ADMIN]}"})
            answer = connection.getresponse()
            while line := answer.readline():
                yield json.loads(line)["object"]
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPSConnection:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self.ca_file)
            self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the API server's own CA has no key identifier
        return http.client.HTTPSConnection(self.ADDRESS, self._port, timeout=30, context=self._tls)

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object as administrator; unknown fields are an error."""
        group = manifest["apiVersion"]
        plural = _plural(manifest["kind"].lower())
        namespace = manifest["metadata"].get("namespace")
        path = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        path += f"/namespaces/{namespace}/{plural}" if namespace else f"/{plural}"
        path += "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        status, answer = self.request("POST", path, manifest)
        if status != http.HTTPStatus.CREATED:
            raise StartError(f"creating {manifest['kind']} {manifest['metadata']['name']}: {status}: {answer}")
        created: dict[str, Any] = answer
        return created

    def new_namespace(self, name: str = "") -> str:
        """Create a namespace in which pods can be created, with this name or a generated one."""
        self._names += 1
        name = name or f"test-{self._names}"
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        if not self._controllers:  # pods need the account that a controller would create
            self.create(account)
        return name

    def new_node(self, name: str, **resources: str) -> None:
        """Create a ready node, as a kubelet and the node controller would."""
        self.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"} | resources
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        path = f"/api/v1/nodes/{name}"
        self.request("PATCH", path, {"spec": {"taints": None}})  # admission marks new nodes as not ready
        self.request("PATCH", f"{path}/status",
                     {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}})  # fmt: skip

    def wait_for(self, path: str, accepted: Any, seconds: float = 30.0) -> Any:
        """Poll GET path until `accepted(response)`; return the response. Raises TimeoutError with the last one."""
        deadline = time.monotonic() + seconds
        while True:
            _, answer = self.request("GET", path)
            if accepted(answer):
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"GET {path} after {seconds:.0f} s: {answer}")
            time.sleep(0.05)


def _plural(kind: str) -> str:
    if kind.endswith("y"):
        return kind[:-1] + "ies"
    return kind + ("es" if kind.endswith("s") else "s")


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: object, headers: dict[str, str]
) -> tuple[int, Any]:
    text = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, text, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(content) if is_json else content.decode(errors="replace")
