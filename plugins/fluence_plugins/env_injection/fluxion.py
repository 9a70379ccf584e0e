"""The handler `fluxion`: downward-API variables for what a pod will be matched with.

`FLUXION_BACKEND` and one `FLUXION_<KEY>` for each attribute key of the resources file, in every container and init
container of every pod for our schedulers. Each reads an annotation that the scheduler writes when it binds the pod;
without that annotation it is empty. Those of a pod that shares GPUs get `NVIDIA_VISIBLE_DEVICES`, too. Ephemeral
containers are added by another subresource, and are left alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from prometheus_client import Gauge

from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Operation, Refusal
from fluence_plugins.env_injection.logs import log
from fluence_plugins.fluence.names import BACKEND_ENV, requested_type
from fluence_plugins.fluence.resources import ResourcesConfig, env_contract
from fluence_plugins.fluence.resources_file import ResourcesFile
from session_scheduler.model.gpu_shares import GPU, GPU_FRACTION, GPU_MEMORY

Object = dict[str, Any]
_LISTS: Final = ("initContainers", "containers")
GPUS_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
"""By this NVIDIA's container runtime knows which GPUs a container is to see."""
MOST_VARIABLES: Final = 10_000
"""In one pod: with more it is larger than what etcd takes by default, 1.5 MiB."""


class FluxionHandler:
    """Injects the variables of a resources file that is followed; without a file there is the backend alone."""

    operations: Collection[str] = frozenset({"CREATE"})  # a pod's environment cannot be changed later

    def __init__(self, settings: HandlerSettings) -> None:
        """Raises InputError where the resources file cannot be used."""
        self._scheduler_names = settings.scheduler_names
        self._loaded = Gauge(
            "fluence_webhook_config_last_load_successful",
            "1 where the resources file was usable when it was last read.",
            registry=settings.registry,
        )
        self._file = ResourcesFile.configured(settings.resources)
        self._use(ResourcesConfig() if self._file is None else self._file.load())

    def _use(self, config: ResourcesConfig) -> None:
        self._contract = env_contract(config)
        self._variables = {env: _variable(env, annotation) for env, annotation in self._contract.items()}
        self._loaded.set(1)

    def contract(self) -> str:
        """Each variable and its annotation."""
        pairs = ", ".join(f"{env} <- annotation {annotation}" for env, annotation in self._contract.items())
        return f"environment contract: {pairs}"

    def mutate(
        self,
        pod: Mapping[str, Any],
        request: AdmissionRequest,  # noqa: ARG002
    ) -> Sequence[Operation] | Refusal:
        """Add what is missing; nothing where the pod is another scheduler's, or malformed.

        One that would be too large to be stored is refused where it asks for devices, and else left as it is.
        """
        spec = pod.get("spec")
        if not isinstance(spec, dict):
            return []
        name = spec.get("schedulerName")
        if not isinstance(name, str) or name not in self._scheduler_names:
            return []
        containers = {field: spec.get(field) or [] for field in _LISTS}
        if not all(_are_objects(listed) for listed in containers.values()):
            return []
        variables = self._variables_of(pod)
        count = sum(len(listed) for listed in containers.values())
        if count * len(variables) > MOST_VARIABLES:
            asks = any(_asks_for_device(container) for listed in containers.values() for container in listed)
            return _too_many(count, len(variables)) if asks else []
        if not all(container.get("env") is None or _are_objects(container["env"])
                   for listed in containers.values() for container in listed):  # fmt: skip
            return []
        return [
            operation for field, listed in containers.items() for index, container in enumerate(listed)
            for operation in _added(container, f"/spec/{field}/{index}/env", variables)
        ]  # fmt: skip

    def _variables_of(self, pod: Mapping[str, Any]) -> Mapping[str, Object]:
        metadata = pod.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        if isinstance(annotations, dict) and (GPU_FRACTION in annotations or GPU_MEMORY in annotations):
            return {**self._variables, GPUS_ENV: _variable(GPUS_ENV, GPU)}
        return self._variables

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Follow the resources file; the contract stays as it was while the file cannot be used."""
        if self._file is None:
            return
        async for config in self._file.changes(failed=lambda _: self._loaded.set(0), sleep=sleep):
            before = self._contract
            self._use(config)
            if self._contract != before:
                log.info("%s", self.contract())


def _too_many(containers: int, variables: int) -> Refusal:
    return Refusal(
        f"its {containers} containers would get {variables} environment variables each "
        f"({BACKEND_ENV} and one for each attribute key of the resources file), {MOST_VARIABLES} at most are added "
        "to a pod: use fewer containers, or have fewer attribute keys"
    )


def _added(container: Object, path: str, variables: Mapping[str, Object]) -> list[Operation]:
    """The operations for one container.

    Ours go before the user's own, which can then say $(FLUXION_BACKEND): only earlier variables are expanded.
    """
    env = container.get("env")
    if env is None:
        return [{"op": "add", "path": path, "value": list(variables.values())}]
    theirs = {name for each in env if isinstance(name := each.get("name"), str)}
    missing = [variable for name, variable in variables.items() if name not in theirs]
    return [{"op": "add", "path": f"{path}/{position}", "value": variable} for position, variable in enumerate(missing)]


def _are_objects(listed: Any) -> bool:
    return isinstance(listed, list) and all(isinstance(each, dict) for each in listed)


def _asks_for_device(container: Object) -> bool:
    resources = container.get("resources")
    lists = [resources.get(field) for field in ("requests", "limits")] if isinstance(resources, dict) else []
    return any(requested_type(name) is not None for listed in lists if isinstance(listed, dict) for name in listed)


def _variable(name: str, annotation: str) -> dict[str, Any]:
    """As the API server would complete it, so that nothing differs when the pod is seen again."""
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": name, "valueFrom": {"fieldRef": field}}
