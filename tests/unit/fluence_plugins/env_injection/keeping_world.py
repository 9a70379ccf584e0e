"""Replicas that share one Secret and one configuration, in a world whose time a test lets pass."""

import asyncio
import base64
import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from fluence_plugins.env_injection.certificate_reconciler import CertificateReconciler, SecretPlace
from fluence_plugins.env_injection.certificate_secret import material_of
from fluence_plugins.env_injection.certificates import Material, service_names, signers
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.webhook_configuration import Configuration
from session_scheduler.sdk.dynamic_client import AlreadyExists, ClusterError, Conflict, NotFound

START = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = service_names("fluence-webhook", "kube-system")
PLACE = SecretPlace("kube-system", "fluence-webhook-tls")
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fluence-webhook"
OURS = {"service": {"namespace": "kube-system", "name": "fluence-webhook", "path": "/mutate/fluxion"}}
Object = dict[str, Any]


class Api:
    """Secrets and configurations as the API server keeps them; `fails` are raised instead, by verb."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.fails: dict[str, ClusterError] = {}
        self.writes: list[str] = []
        self._version = 0

    def put(self, path: str, found: Object) -> Object:
        self._version += 1
        found = copy.deepcopy(found)
        found["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = found
        return copy.deepcopy(found)

    async def get(self, path: str) -> Object:
        await self._turn("get")
        if path not in self.objects:
            raise NotFound(path)
        return copy.deepcopy(self.objects[path])

    async def create(self, path: str, manifest: Object) -> Object:
        await self._turn("create")
        path = f"{path}/{manifest['metadata']['name']}"
        if path in self.objects:
            raise AlreadyExists(path)
        self.writes.append(path)
        return self.put(path, manifest)

    async def replace(self, path: str, manifest: Object) -> Object:
        await self._turn("replace")
        self._guard(path, manifest)
        self.writes.append(path)
        return self.put(path, manifest)

    async def patch(self, path: str, patch: Object, _kind: str) -> Object:
        await self._turn("patch")
        self._guard(path, patch)
        found = copy.deepcopy(self.objects[path])
        for change in patch["webhooks"]:
            (webhook,) = [each for each in found["webhooks"] if each["name"] == change["name"]]
            webhook["clientConfig"] |= change["clientConfig"]
        self.writes.append(path)
        return self.put(path, found)

    def _guard(self, path: str, written: Object) -> None:
        if path not in self.objects:
            raise NotFound(path)
        if written["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            raise Conflict(path)

    async def _turn(self, verb: str) -> None:
        await asyncio.sleep(0)  # others may come first
        if verb in self.fails:
            raise self.fails[verb]

    # -------------------------------------------------------------- what tests look at

    def material(self) -> Material:
        found = material_of(self.objects[PLACE.path])
        assert found is not None
        return found

    def bundle(self, index: int = 0) -> frozenset[bytes]:
        client = self.objects[CONFIGURATION]["webhooks"][index]["clientConfig"]
        return signers(base64.b64decode(client.get("caBundle", "")))

    def configure(self, *clients: Object) -> None:
        webhooks = [{"name": f"w{at}", "clientConfig": client} for at, client in enumerate(clients or [OURS])]
        self.put(CONFIGURATION, {"metadata": {"name": "fluence-webhook"}, "webhooks": webhooks})


class World:
    """Time, an API server, and replicas."""

    def __init__(self) -> None:
        self.now = START
        self.api = Api()
        self.api.configure()

    def replica(self, names: Iterable[str] = NAMES) -> "Replica":
        return Replica(self, list(names))


class Replica:
    """One keeper and what it serves."""

    def __init__(self, world: World, names: list[str]) -> None:
        self.world = world
        self.served: list[Material] = []
        self.metrics = WebhookMetrics()
        api: Any = world.api
        self.configuration = Configuration(
            api, "fluence-webhook", service="fluence-webhook", namespace="kube-system", hosts=names,
            now=lambda: world.now,
        )  # fmt: skip
        self.keeper = CertificateReconciler(
            api, PLACE, self.configuration, names, serve=self.served.append, metrics=self.metrics, now=lambda: world.now
        )

    @property
    def now(self) -> Material:
        return self.served[-1]

    async def check(self) -> None:
        await self.keeper.check()

    def problems(self) -> dict[str, str]:
        return {check: problem for check, problem in self.keeper.problems().items() if problem is not None}

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"fluence_webhook_{name}", labels)
