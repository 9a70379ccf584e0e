"""The handler `gang`: makes the pods of a Job or Deployment with a group label start together.

It sets the annotation `group-size` in the pod template to the number of pods that the controller runs at once. The
scheduler makes a gang of these pods. Users need no PodGroup, and the handler changes none.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from fluence_plugins.env_injection import patches
from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Operation, Refusal
from fluence_plugins.resources.label_groups import GROUP_LABEL, GROUP_SIZE_ANNOTATION, LARGEST, parsed_size
from session_scheduler.errors import shown

JOB, DEPLOYMENT = ("batch", "Job"), ("apps", "Deployment")
TEMPLATE: Final = "/spec/template"
_WHERE: Final = f"spec.template.metadata.annotations[{GROUP_SIZE_ANNOTATION}]"


class GangHandler:
    """Sets the size of a group by label in the pod template of a workload."""

    operations: Collection[str] = frozenset({"CREATE", "UPDATE"})
    kinds: Collection[tuple[str, str]] = (JOB, DEPLOYMENT)

    def __init__(self, settings: HandlerSettings) -> None:
        self._scheduler_names = settings.scheduler_names

    def contract(self) -> str:
        """What the handler sets, in one line for the log."""
        return (
            f"gangs: Jobs and Deployments whose pods have the label {GROUP_LABEL} get the annotation "
            f"{GROUP_SIZE_ANNOTATION}"
        )

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Sequence[Operation] | Refusal:
        """Add the size if the template has a group label and no size; reject an invalid size, or
        one that is unknown.
        """
        if request.kind == JOB[1] and request.operation != "CREATE":
            return []  # a Job's template is immutable
        template = template_of(pod, self._scheduler_names)
        labels = patches.texts_of(template, "labels") if template is not None else None
        annotations = patches.texts_of(template, "annotations") if template is not None else None
        if template is None or not labels or annotations is None or not labels.get(GROUP_LABEL):
            return []
        text = annotations.get(GROUP_SIZE_ANNOTATION)
        if text is not None:
            return wrong_size(text, _WHERE) or []
        size = pods_at_once(pod["spec"], request.kind)
        if not 1 <= size <= LARGEST:
            field = "parallelism" if request.kind == JOB[1] else "replicas"
            return Refusal(
                f"its pods are in group {labels[GROUP_LABEL]!r}, but spec.{field} does not show how many of them start "
                f"together; set {_WHERE}"
            )
        return patches.written(template, TEMPLATE, "annotations", {GROUP_SIZE_ANNOTATION: str(size)})

    async def run(self) -> None:
        """Return at once: the handler watches nothing."""


def template_of(workload: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any] | None:
    """The workload's pod template; None if it is another scheduler's, or malformed."""
    spec = workload.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    inner = patches.spec_of(template) if isinstance(template, dict) else None
    return template if inner is not None and patches.ours(inner, names) else None


def pods_at_once(spec: Mapping[str, Any], kind: str) -> int:
    """How many pods a Job or Deployment runs at once; 0 if its fields are invalid or 0."""
    if kind != JOB[1]:
        return _count(spec, "replicas", 1)
    parallelism = _count(spec, "parallelism", 1)
    return min(parallelism, _count(spec, "completions", parallelism))


def wrong_size(text: str, where: str) -> Refusal | None:
    """The refusal of an invalid group size; None if it is valid."""
    if parsed_size(text) is not None:
        return None
    return Refusal(f"{where}: expected a number of pods from 1 to {LARGEST}, got {shown(text)}; correct or remove it")


def _count(spec: Mapping[str, Any], field: str, default: int) -> int:
    found = spec.get(field, default)
    if found is None:
        return default
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
