"""The handler `gang`: the pods of a Job or of a Deployment that name a group by label start together.

The template gets the group's size, the annotation `group-size`, from how many pods its controller makes at once: so the
pods have it, and the scheduler makes a gang of them. Nobody needs a PodGroup, and no PodGroup is touched.
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
    """Writes the size of a group by label into the template of who makes its pods."""

    operations: Collection[str] = frozenset({"CREATE", "UPDATE"})
    kinds: Collection[tuple[str, str]] = (JOB, DEPLOYMENT)

    def __init__(self, settings: HandlerSettings) -> None:
        self._scheduler_names = settings.scheduler_names

    def contract(self) -> str:
        """Where the size comes from."""
        return (
            f"gangs: Jobs and Deployments whose pods have the label {GROUP_LABEL} get the annotation "
            f"{GROUP_SIZE_ANNOTATION}"
        )

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Sequence[Operation] | Refusal:
        """Add the size where the label is and no size; refuse one that is none, or that cannot be known."""
        if request.kind == JOB[1] and request.operation != "CREATE":
            return []  # a Job's template cannot be changed
        template = template_of(pod, self._scheduler_names)
        labels = patches.texts_of(template, "labels") if template is not None else None
        annotations = patches.texts_of(template, "annotations") if template is not None else None
        if template is None or not labels or annotations is None or not labels.get(GROUP_LABEL):
            return []
        said = annotations.get(GROUP_SIZE_ANNOTATION)
        if said is not None:
            return wrong_size(said, _WHERE) or []
        size = pods_at_once(pod["spec"], request.kind)
        if not 1 <= size <= LARGEST:
            field = "parallelism" if request.kind == JOB[1] else "replicas"
            return Refusal(
                f"its pods are of group {labels[GROUP_LABEL]!r}, and spec.{field} does not tell how many of them start "
                f"together: give {_WHERE}"
            )
        return patches.written(template, TEMPLATE, "annotations", {GROUP_SIZE_ANNOTATION: str(size)})

    async def run(self) -> None:
        """Nothing to follow."""


def template_of(workload: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any] | None:
    """The template of the workload's pods; None where they are another scheduler's, or it is malformed."""
    spec = workload.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    inner = patches.spec_of(template) if isinstance(template, dict) else None
    return template if inner is not None and patches.ours(inner, names) else None


def pods_at_once(spec: Mapping[str, Any], kind: str) -> int:
    """How many pods a Job or a Deployment runs at the same time; 0 where it says none, or nothing that is a number."""
    if kind != JOB[1]:
        return _count(spec, "replicas", 1)
    parallelism = _count(spec, "parallelism", 1)
    return min(parallelism, _count(spec, "completions", parallelism))


def wrong_size(text: str, where: str) -> Refusal | None:
    """The refusal of what is no size of a group."""
    if parsed_size(text) is not None:
        return None
    return Refusal(f"{where}: {shown(text)} is not a number of pods from 1 to {LARGEST}: correct or remove it")


def _count(spec: Mapping[str, Any], field: str, default: int) -> int:
    found = spec.get(field, default)
    if found is None:
        return default
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
