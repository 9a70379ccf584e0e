"""The plugin's arguments in the scheduler's configuration, with defaults from the environment."""

from __future__ import annotations

import os
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from fluence_plugins.fluence.graph.accounting import GPU_RESOURCES, Accounting, CpuAccounting
from fluence_plugins.fluence.graph.engine import DEFAULT_CHUNK_MIB, Engine, EngineName
from fluence_plugins.fluence.graph.topology import TopologyLevel, distinct
from fluence_plugins.resources import names
from fluence_plugins.resources.config import ResourcesConfig, load_resources
from fluence_plugins.resources.file import ResourcesFile
from session_scheduler import PluginArguments
from session_scheduler.config.parsing import wrong_value
from session_scheduler.errors import shown
from session_scheduler.model.quantity import QuantityError, parse_quantity

MATCH_POLICY_ENV = "FLUENCE_MATCH_POLICY"
DEFAULT_POLICY = "first"
LIBRARY_ENV = "FLUXION_REAPI_LIB"
_MIB = 1 << 20
_LARGEST_CHUNK_MIB = 1 << 30


def _gpu_resource(name: str) -> str:
    if names.is_extended_resource(name) and names.requested_type(name) is None:
        return name
    what = f"expected the full name of an extended resource outside {names.REQUEST_PREFIX[:-1]}, such as nvidia.com/gpu"
    raise wrong_value(f"{shown(name)} is not a valid GPU resource: {what}")


def _named_once(found: tuple[str, ...]) -> tuple[str, ...]:
    for place, name in enumerate(found):
        if name in found[:place]:
            raise wrong_value(f"{name!r} is named twice; keep one", at=(place,))
    return found


GpuResources = Annotated[
    tuple[Annotated[str, AfterValidator(_gpu_resource)], ...], Field(max_length=16), AfterValidator(_named_once)
]


class FluenceArguments(PluginArguments):
    """`args` of the plugin `fluence`.

    resources: path of resources.yaml, which must exist (default: the path in FLUENCE_RESOURCES, which may not exist
    yet; without either there are no virtual resources). resourcesText: the content of such a file, in place of one.
    matchPolicy: a match policy of Fluxion (default: FLUENCE_MATCH_POLICY, else first). matchBudget: the maximum number
    of matches for a group beyond the first order of its classes, which is always completed; also of attribute values
    for a pod whose devices disagree. requireInjectedEnv: whether a live cluster's pod that requests devices without the
    webhook's environment is refused. makePodGroups: whether a live cluster's groups by label get PodGroups.
    goCompatible: whether they get PodGroups as in the Go version: with the names of the groups, and for consumers, too;
    pods that name such a PodGroup and pods with only the label are one group. cpuAccounting: whether pods take whole
    cores, at least one, or the millicores that they request as in Kubernetes; with `auto` pods of groups and pods that
    request gpus or devices take whole cores. gpuResources: the extended resources that are gpus; the first has the type
    `gpu`, each other one its own type. engine: the engine of the matches, the embedded one or Fluxion's own library.
    library: the path of that library (default: FLUXION_REAPI_LIB, else the loader's search). memoryChunk: with the
    library, the unit in which memory is allocated. topology: the levels between cluster and nodes, outermost first,
    each a type and a label of the nodes.
    """

    resources: str | None = None
    resources_text: str | None = None
    match_policy: str | None = None
    match_budget: Annotated[int, Field(ge=1)] = 64
    require_injected_env: bool = False
    make_pod_groups: bool = False
    go_compatible: bool = False
    cpu_accounting: CpuAccounting = "auto"
    gpu_resources: GpuResources = GPU_RESOURCES
    topology: Annotated[tuple[TopologyLevel, ...], AfterValidator(distinct)] = ()
    engine: EngineName = "embedded"
    library: Annotated[str, Field(min_length=1)] | None = None
    memory_chunk: str | int | None = None

    @model_validator(mode="after")
    def _fits_the_engine(self) -> Self:
        """Refuses arguments that the chosen engine does not support."""
        if self.engine == "embedded":
            for field, value in (("library", self.library), ("memoryChunk", self.memory_chunk)):
                if value is not None:
                    problem = "has no effect with `engine: embedded`; remove it, or choose `engine: reapi`"
                    raise wrong_value(problem, at=(field,))
        elif self.cpu_accounting == "millicores":
            problem = "is not supported with `engine: reapi`, which has no divisible vertices; use cores"
            raise wrong_value(problem, at=("cpuAccounting",))
        _ = self._chunk_mib
        return self

    @property
    def _chunk_mib(self) -> int:
        if self.memory_chunk is None:
            return DEFAULT_CHUNK_MIB
        try:
            size = parse_quantity(self.memory_chunk)
        except QuantityError as error:
            raise wrong_value(str(error), at=("memoryChunk",)) from None
        if size % _MIB or not _MIB <= size <= _LARGEST_CHUNK_MIB * _MIB:
            raise wrong_value(
                f"expected 1Mi to 1Pi in whole MiB, got {self.memory_chunk}; use 1Gi", at=("memoryChunk",)
            )
        return size // _MIB

    def matching(self) -> Engine:
        """The chosen engine."""
        return Engine() if self.engine == "embedded" else Engine("reapi", self.library, self._chunk_mib)

    def load(self) -> ResourcesConfig:
        """The resource trees. Raises ResourcesError or DocumentError, naming the file."""
        text, source = self._text()
        return load_resources(text, source)

    def _text(self) -> tuple[str, str]:
        """The description of the trees, and its source. Raises ResourcesError."""
        if self.resources_text is not None and not self.resources:
            return self.resources_text, "resourcesText"
        file = self.file()
        return (file.read(), file.path) if file is not None else ("", "")

    def file(self) -> ResourcesFile | None:
        """The file that describes the trees; None if there is none."""
        if self.resources_text is not None and not self.resources:
            return None
        return ResourcesFile.configured(self.resources)

    def saved(self) -> dict[str, Any]:
        """The arguments that have the same effect without a file and an environment. Raises ResourcesError."""
        saved = {"resources": None, "resourcesText": self._text()[0], "matchPolicy": self.policy}
        return saved if self.engine == "embedded" else saved | {"library": self.library or os.environ.get(LIBRARY_ENV)}

    @property
    def accounting(self) -> Accounting:
        """The accounting of hosts and pods."""
        cpu = "cores" if self.auto_is_cores else self.cpu_accounting
        return Accounting(cpu, self.gpu_resources, self.matching().chunk_mib)

    @property
    def auto_is_cores(self) -> bool:
        """Whether `cpuAccounting: auto` means `cores`: the library has no divisible vertices."""
        return self.cpu_accounting == "auto" and self.matching().name == "reapi"

    @property
    def policy(self) -> str:
        """The match policy in effect."""
        return self.match_policy or os.environ.get(MATCH_POLICY_ENV) or DEFAULT_POLICY
