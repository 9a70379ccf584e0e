"""The handler `fluxion`: injects environment variables for the result of a pod's match.

Every container and init container of our schedulers' pods gets `FLUXION_BACKEND`, and one `FLUXION_<KEY>` for each
attribute key of the resources file. Each variable reads an annotation that the scheduler writes when it binds the pod;
without the annotation it is empty. Pods that share GPUs also get `NVIDIA_VISIBLE_DEVICES`. Ephemeral containers are
added through another subresource and stay unchanged.
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
from session_scheduler.model.gpu_shares import GPU_DEVICE, GPU_FRACTION, GPU_MEMORY, VISIBLE_DEVICES

MOST_VARIABLES: Final = 10_000
"""The maximum number of variables in one pod: with more, the pod exceeds etcd's default limit of 1.5 MiB."""


class FluxionHandler:
    """Injects the variables of a resources file, and reloads the file when it changes. Without a file: only the
    backend.
    """

    operations: Collection[str] = frozenset({"CREATE"})  # a pod's environment is immutable

    def __init__(self, settings: HandlerSettings) -> None:
        """Raises InputError if the resources file is unusable."""
        self._scheduler_names = settings.scheduler_names
        self._loaded = Gauge(
            "fluence_webhook_config_last_load_successful",
            "1 if the last load of the resources file succeeded.",
            registry=settings.registry,
        )
        self._file = ResourcesFile.configured(settings.resources)
        self._use(ResourcesConfig() if self._file is None else self._file.load())

    def _use(self, config: ResourcesConfig) -> None:
        self._contract = env_contract(config)
        self._variables = {env: annotation_variable(env, annotation) for env, annotation in self._contract.items()}
        self._loaded.set(1)

    def contract(self) -> str:
        """The variables and their annotations, in one line for the log."""
        pairs = ", ".join(f"{env} <- annotation {annotation}" for env, annotation in self._contract.items())
        return f"environment contract: {pairs}"

    def mutate(
        self,
        pod: Mapping[str, Any],
        request: AdmissionRequest,  # noqa: ARG002
    ) -> Sequence[Operation] | Refusal:
        """Add missing variables. Pods of other schedulers and malformed pods stay unchanged.

        A pod that would become too large is refused if it requests devices; otherwise it stays unchanged.
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
            has_devices = any(True for listed in containers.values() for each in listed for _ in devices_of(each))
            return _too_many(count, len(variables)) if has_devices else []
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
            return {**self._variables, VISIBLE_DEVICES: annotation_variable(VISIBLE_DEVICES, GPU_DEVICE)}
        return self._variables

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Watch the resources file. If it is unusable, the last contract stays in use."""
        if self._file is None:
            return
        async for config in self._file.changes(failed=lambda _: self._loaded.set(0), sleep=sleep):
            before = self._contract
            self._use(config)
            if self._contract != before:
                log.info("%s", self.contract())


def _too_many(containers: int, variables: int) -> Refusal:
    return Refusal(
        f"the pod's {containers} containers would get {variables} environment variables each "
        f"({BACKEND_ENV} and one for each attribute key of the resources file), but a pod can have at most "
        f"{MOST_VARIABLES}; use fewer containers, or fewer attribute keys"
    )
