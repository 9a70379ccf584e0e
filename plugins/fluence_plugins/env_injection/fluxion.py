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
from fluence_plugins.env_injection.patches import (
    LISTS,
    Object,
    annotation_variable,
    are_objects,
    devices_of,
    with_variables,
)
from fluence_plugins.resources.config import ResourcesConfig, env_contract
from fluence_plugins.resources.file import ResourcesFile
from fluence_plugins.resources.names import BACKEND_ENV
from session_scheduler.model.gpu_shares import GPU, GPU_FRACTION, GPU_MEMORY

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
        self._variables = {env: annotation_variable(env, annotation) for env, annotation in self._contract.items()}
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
        containers = {field: spec.get(field) or [] for field in LISTS}
        if not all(are_objects(listed) for listed in containers.values()):
            return []
        variables = self._variables_of(pod)
        count = sum(len(listed) for listed in containers.values())
        if count * len(variables) > MOST_VARIABLES:
            asks = any(True for listed in containers.values() for each in listed for _ in devices_of(each))
            return _too_many(count, len(variables)) if asks else []
        if not all(container.get("env") is None or are_objects(container["env"])
                   for listed in containers.values() for container in listed):  # fmt: skip
            return []
        return [
            operation for field, listed in containers.items() for index, container in enumerate(listed)
            for operation in with_variables(container, f"/spec/{field}/{index}/env", variables)
        ]  # fmt: skip

    def _variables_of(self, pod: Mapping[str, Any]) -> Mapping[str, Object]:
        metadata = pod.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        if isinstance(annotations, dict) and (GPU_FRACTION in annotations or GPU_MEMORY in annotations):
            return {**self._variables, GPUS_ENV: annotation_variable(GPUS_ENV, GPU)}
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
