"""The handler `quantum`: splits the pods of a Job into a producer with a device and consumers that use its results.

With the annotation `coordination: shared`, the pod with completion index 0 becomes the producer, in a group of its own.
The others become consumers: gated, without a device, and with annotations that name the producer. The scheduler removes
the gate. `independent`, the default, changes nothing. The patch of a pod depends on that pod alone; the group's size is
set in the Job's template before pods exist.
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from fluence_plugins.env_injection import patches
from fluence_plugins.env_injection.gang import JOB, TEMPLATE, pods_at_once, template_of, wrong_size
from fluence_plugins.env_injection.handlers import PODS, AdmissionRequest, Decision, HandlerSettings, Operation, Refusal
from fluence_plugins.env_injection.sidecar import CONTAINER, OPTION, checked_image, with_sidecar
from fluence_plugins.resources import coordination as words
from fluence_plugins.resources.label_groups import GROUP_LABEL, GROUP_SIZE_ANNOTATION, LARGEST, parsed_size
from fluence_plugins.resources.names import REQUEST_PREFIX
from session_scheduler.errors import shown

ROLE_ENV: Final = "FLUENCE_COORDINATION_ROLE"
JOB_ID_ENV: Final = "FLUENCE_QUANTUM_JOB_ID"
GANG_GROUP_ENV: Final = "FLUENCE_GANG_GROUP"
LONGEST_GROUP: Final = 63 - len(words.PRODUCER_SUFFIX)
"""The maximum number of characters of a group, so that the producer's group fits into a label."""
_DEPLOYMENT: Final = ("apps", "Deployment")
_SHARED: Final = f"{words.COORDINATION}: {words.SHARED}"
_ONE_POD_GROUP: Final = (
    "pods of one PodGroup start together, but consumers start after their producer; remove this field"
)


class QuantumHandler:
    """Splits the pods of a Job into a producer and its consumers, and adds the sidecar on request."""

    operations: Collection[str] = frozenset({"CREATE"})
    kinds: Collection[tuple[str, str]] = (*PODS, JOB, _DEPLOYMENT)

    def __init__(self, settings: HandlerSettings) -> None:
        """Raises InputError if the sidecar's image is invalid."""
        self._scheduler_names = settings.scheduler_names
        self._image = checked_image(settings.sidecar_image) if settings.sidecar_image else None
        self._as_root = settings.sidecar_as_root

    def contract(self) -> str:
        """What the handler splits, and the sidecar's image, in one line for the log."""
        image = self._image or f"none ({OPTION} is not set)"
        return f"coordination: pods with {_SHARED} become a producer and its consumers; sidecar: {image}"

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Decision | Awaitable[Decision]:
        """Split the pods on request; refuse those that cannot be split, and name the field."""
        return self._decision(pod, request)

    def _decision(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Decision:
        if request.kind != "Pod":
            return self._workload(pod, request.kind)
        spec = patches.spec_of(pod)
        if spec is None or not patches.ours(spec, self._scheduler_names):
            return []
        labels, annotations = patches.texts_of(pod, "labels"), patches.texts_of(pod, "annotations")
        if labels is None or annotations is None:
            return []
        wrong = _wrong(labels, annotations, "metadata")
        if wrong is not None:
            return wrong
        if words.ROLE in annotations:
            return _wrong_role(annotations, spec) or []
        if annotations.get(words.COORDINATION) == words.SHARED:
            return self._member(pod, spec, labels, annotations)
        return self._observed(spec, labels, {})

    async def run(self) -> None:
        """Return at once: the handler watches nothing."""

    # ------------------------------------------------------------------ workloads

    def _workload(self, workload: Mapping[str, Any], kind: str) -> Decision:
        template = template_of(workload, self._scheduler_names)
        labels = patches.texts_of(template, "labels") if template is not None else None
        annotations = patches.texts_of(template, "annotations") if template is not None else None
        if template is None or labels is None or annotations is None:
            return []
        wrong = _wrong(labels, annotations, "spec.template.metadata")
        if wrong is not None or annotations.get(words.COORDINATION) != words.SHARED:
            return wrong or []
        if kind != JOB[1]:
            return Refusal(
                f"{_SHARED}: all pods of a {kind} are equal, so none of them can be the producer; use a Job with "
                "spec.completionMode Indexed"
            )
        spec = workload["spec"]
        refused = _unshareable(workload, spec, labels)
        if refused is not None:
            return refused
        text, size = annotations.get(GROUP_SIZE_ANNOTATION), pods_at_once(spec, kind)
        if text is None:
            return patches.written(template, TEMPLATE, "annotations", {GROUP_SIZE_ANNOTATION: str(size)})
        where = f"spec.template.metadata.annotations[{GROUP_SIZE_ANNOTATION}]"
        wrong = wrong_size(text, where)
        if wrong is None and int(text) > size:
            wrong = Refusal(f"{where} is {text}, but spec.parallelism is {size}; remove the annotation")
        return wrong or []

    # ------------------------------------------------------------------ pods

    def _member(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> Decision:
        kind, owner = patches.controller_of(pod)
        group = labels.get(GROUP_LABEL) or (owner if kind == JOB[1] else "")
        size = parsed_size(annotations.get(GROUP_SIZE_ANNOTATION))
        refused = _no_member(group, size, spec, annotations, of_job=kind == JOB[1])
        if refused is not None or size is None:
            return refused or []
        if size == 1:
            return self._observed(spec, labels, {})
        leave: list[Operation] = (
            [{"op": "remove", "path": "/spec/schedulingGroup"}] if "schedulingGroup" in spec else []
        )
        if annotations[words.INDEX] == words.PRODUCER_INDEX:
            own = self._producer(pod, spec, labels, group)
        else:
            own = self._consumer(pod, spec, annotations, group, size)
        return own if isinstance(own, Refusal) else [*leave, *own]

    def _producer(
        self,
        pod: Mapping[str, Any],
        spec: Mapping[str, Any],
        labels: Mapping[str, str],
        group: str,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> Decision:
        """The operations for a producer; its containers get `variables`, too."""
        sidecar = self._observed(spec, labels, {GANG_GROUP_ENV: group})
        if isinstance(sidecar, Refusal):
            return sidecar
        own = {words.ROLE: words.PRODUCER, GROUP_SIZE_ANNOTATION: "1"}
        role = with_variables(spec, {ROLE_ENV: {"name": ROLE_ENV, "value": words.PRODUCER}, **variables})
        return [*_texts(pod, group + words.PRODUCER_SUFFIX, own), *role, *sidecar]

    def _consumer(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], annotations: Mapping[str, str], group: str, size: int
    ) -> Sequence[Operation]:
        own = {
            words.ROLE: words.CONSUMER,
            GROUP_SIZE_ANNOTATION: str(size - 1),
            words.DEPENDS_KIND: annotations.get(words.DEPENDS_KIND) or words.RUNNING,
            words.DEPENDS_PRODUCER: group + words.PRODUCER_SUFFIX,
            words.DEPENDS_GATE: words.GATE,
        }
        gate = patches.add_all("/spec/schedulingGates", spec.get("schedulingGates"), [{"name": words.GATE}])
        env = {
            ROLE_ENV: {"name": ROLE_ENV, "value": words.CONSUMER},
            JOB_ID_ENV: patches.annotation_variable(JOB_ID_ENV, words.JOB_ID),
        }
        return [*_texts(pod, group, own), *gate, *with_variables(spec, env), *patches.without_devices(spec)]

    def _observed(self, spec: Mapping[str, Any], labels: Mapping[str, str], variables: Mapping[str, str]) -> Decision:
        """The operations that add the sidecar, if the pod requests it."""
        if labels.get(words.OBSERVE_LABEL) != "true":
            return []
        where = f"metadata.labels[{words.OBSERVE_LABEL}]"
        if self._image is None:
            return Refusal(f"{where}: the webhook has no image for {CONTAINER}; set {OPTION}, or remove the label")
        if not patches.requests_device(spec):
            return Refusal(
                f"{where}: the pod requests no {REQUEST_PREFIX}…, so there is nothing to observe; remove the label"
            )
        return self._sidecar(spec, self._image, variables)

    def _sidecar(self, spec: Mapping[str, Any], image: str, variables: Mapping[str, str]) -> list[Operation]:
        return with_sidecar(spec, image, {"FLUENCE_OBSERVE": "true", **variables}, as_root=self._as_root)


def _wrong(labels: Mapping[str, str], annotations: Mapping[str, str], where: str) -> Refusal | None:
    """The refusal of an unknown value; None if all are valid."""
    values = (
        (labels, "labels", words.OBSERVE_LABEL, ("true", "false")),
        (annotations, "annotations", words.COORDINATION, (words.SHARED, words.INDEPENDENT)),
        (annotations, "annotations", words.DEPENDS_KIND, words.KINDS),
        (annotations, "annotations", words.ROLE, (words.PRODUCER, words.CONSUMER)),
    )
    for texts, field, key, known in values:
        if key in texts and texts[key] not in known:
            return Refusal(
                f"{where}.{field}[{key}]: expected one of {', '.join(known)}, got {shown(texts[key])}; "
                "correct or remove it"
            )
    return None


def _wrong_role(annotations: Mapping[str, str], spec: Mapping[str, Any]) -> Refusal | None:
    """The refusal of a pod whose role annotation does not match its gates; None if it matches."""
    gated = any(gate.get("name") == words.GATE for gate in patches.objects_of(spec.get("schedulingGates")))
    consumes = annotations[words.ROLE] == words.CONSUMER
    if annotations.get(words.COORDINATION) == words.SHARED and gated == consumes:
        return None
    return Refusal(
        f"metadata.annotations[{words.ROLE}]: only the webhook sets this annotation; create the pod without it"
    )


def _unshareable(workload: Mapping[str, Any], spec: Mapping[str, Any], labels: Mapping[str, str]) -> Refusal | None:
    """The refusal of a Job whose pods cannot be a producer and its consumers; None if they can."""
    parallelism = spec.get("parallelism", 1)
    inner = spec["template"]["spec"]
    metadata = workload.get("metadata")
    name = labels.get(GROUP_LABEL) or (metadata.get("name") if isinstance(metadata, dict) else None) or ""
    if spec.get("completionMode") != "Indexed":
        why = "spec.completionMode: the producer is the pod with index 0; set Indexed"
    elif spec.get("completions") != parallelism or not isinstance(parallelism, int) or not 1 <= parallelism <= LARGEST:
        why = "spec.completions: all pods must run at the same time; set it equal to spec.parallelism"
    elif "backoffLimitPerIndex" in spec and spec["backoffLimitPerIndex"] is not None:
        why = "spec.backoffLimitPerIndex: the producer could fail while its consumers wait; use backoffLimit"
    elif "schedulingGroup" in inner:
        why = f"spec.template.spec.schedulingGroup: {_ONE_POD_GROUP}"
    elif not patches.requests_device(inner):
        why = f"spec.template.spec.containers: none requests a {REQUEST_PREFIX}…, so there is nothing to share"
    elif isinstance(name, str) and len(name) > LONGEST_GROUP:
        why = (
            f"the group {shown(name)} has more than {LONGEST_GROUP} characters; add the label {GROUP_LABEL} to its pods"
        )
    else:
        return None
    return Refusal(f"{_SHARED}: {why}")


def _no_member(
    group: str, size: int | None, spec: Mapping[str, Any], annotations: Mapping[str, str], *, of_job: bool
) -> Refusal | None:
    """The refusal of a pod that can be neither producer nor consumer; None if it can."""
    index = annotations.get(words.INDEX, "")
    if not (index.isascii() and index.isdigit()):
        why = f"metadata.annotations[{words.INDEX}]: the producer is the pod with index 0; use an Indexed Job"
    elif not group:
        why = f"metadata.labels[{GROUP_LABEL}]: is missing, and no Job owns the pod; add the label"
    elif len(group) > LONGEST_GROUP:
        why = f"the group {shown(group)} has more than {LONGEST_GROUP} characters; shorten the label {GROUP_LABEL}"
    elif size is None:
        why = (
            f"metadata.annotations[{GROUP_SIZE_ANNOTATION}]: expected a number of pods from 1 to {LARGEST}; "
            "set it, or let the webhook process the Job when it is created"
        )
    elif "schedulingGroup" in spec and not of_job:
        why = f"spec.schedulingGroup: {_ONE_POD_GROUP}"
    elif not patches.requests_device(spec):
        why = f"spec.containers: none requests a {REQUEST_PREFIX}…, so there is nothing to share"
    elif not all(patches.are_objects(container.get("env") or []) for _, container in patches.each_container(spec)):
        return Refusal(f"{_SHARED}: spec.containers: env is not a list of variables")
    else:
        return None
    return Refusal(f"{_SHARED}: {why}")


def _texts(pod: Mapping[str, Any], group: str, annotations: Mapping[str, str]) -> list[Operation]:
    return [
        *patches.written(pod, "", "labels", {GROUP_LABEL: group}),
        *patches.written(pod, "", "annotations", annotations),
    ]


def with_variables(spec: Mapping[str, Any], variables: Mapping[str, Any]) -> list[Operation]:
    """The operations that add variables to all containers except the sidecar; the user's own variables stay."""
    return [
        operation for path, container in patches.each_container(spec) if container.get("name") != CONTAINER
        for operation in patches.with_variables(container, f"{path}/env", variables)
    ]  # fmt: skip
