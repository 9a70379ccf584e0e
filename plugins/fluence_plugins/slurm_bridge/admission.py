"""The webhook handler `slurm-bridge`: assigns pods to the bridge's scheduler, and protects the fields that the bridge
sets.

The webhook configuration selects the managed namespaces; a list in the handler's settings can narrow them. The handler
sets the scheduler's name on each new pod of the default scheduler. It adds a toleration for the taint of Slurm's nodes
to each of the bridge's pods. The bridge marks its pods with a job label, with annotations for their node and devices,
and with a finalizer, and trusts these marks after a restart. So a new pod must have no marks, and later only the
scheduler's accounts may change them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from fluence_plugins.env_injection import patches
from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Operation, Refusal
from fluence_plugins.slurm_bridge import names

DEFAULT_SCHEDULER: Final = "default-scheduler"
NODE_USER: Final = "system:node:"
"""The prefix of the user names of kubelets. They create mirror pods, which already run on their node; the handler
ignores them.
"""
_LABEL: Final = f"metadata.labels[{names.JOBID_LABEL}]"
_ANNOTATIONS: Final = {
    f"metadata.annotations[{name}]": name
    for name in (names.NODE_ANNOTATION, names.CORES_ANNOTATION, names.GRES_ANNOTATION)
}
_FINALIZER: Final = f"metadata.finalizers[{names.FINALIZER}]"
_Marks = dict[str, str]
"""The marks that a pod has: field and value."""


class SlurmBridgeHandler:
    """Assigns pods to the bridge's scheduler, and protects their marks."""

    operations: Collection[str] = frozenset({"CREATE", "UPDATE"})
    sub_resources: Collection[str] = frozenset({"", "status"})
    """A change of the status can change labels, annotations and finalizers, too."""

    def __init__(self, settings: HandlerSettings) -> None:
        self._scheduler = settings.slurm_scheduler_name
        self._namespaces = settings.managed_namespaces
        self._users = settings.scheduler_users

    def contract(self) -> str:
        """Which pods the handler assigns, and which users may change marks."""
        where = f"in {', '.join(sorted(self._namespaces))}" if self._namespaces else "in all namespaces of the webhook"
        if self._users:
            marks = f"only {', '.join(sorted(self._users))} may change the marks of its pods"
        else:
            marks = "no scheduler users are configured: any user may change the marks of pods that are not running"
        return f"slurm-bridge: assigns pods of {DEFAULT_SCHEDULER} {where} to {self._scheduler}; {marks}"

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Sequence[Operation] | Refusal:
        """Assign a new pod to the bridge; refuse a new pod that has marks, and refuse changes of marks."""
        spec = pod.get("spec")
        if not isinstance(spec, dict):
            return []
        if request.operation == "CREATE":
            return [] if request.user.startswith(NODE_USER) else self._created(pod, spec, request.namespace)
        if spec.get("schedulerName") == self._scheduler and request.user not in self._users:
            return self._changed(request.old or {}, pod) or []
        return []

    async def run(self) -> None:
        """Return at once: the handler watches nothing."""

    # ------------------------------------------------------------------ new pods

    def _created(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], namespace: str
    ) -> Sequence[Operation] | Refusal:
        if not self._concerns(spec, namespace):
            return []
        present = _marks(pod)
        if present:
            return Refusal(
                f"{', '.join(present)}: only {self._scheduler} sets these fields; create the pod without them"
            )
        operations: list[Operation] = []
        if spec.get("schedulerName") != self._scheduler:
            operations.append({"op": "add", "path": "/spec/schedulerName", "value": self._scheduler})
        if spec.get("nodeName"):  # would bypass Slurm
            operations.append({"op": "remove", "path": "/spec/nodeName"})
        return [*operations, *self._add_toleration(spec)]

    def _concerns(self, spec: Mapping[str, Any], namespace: str) -> bool:
        name = spec.get("schedulerName") or DEFAULT_SCHEDULER
        managed = not self._namespaces or namespace in self._namespaces
        return name == self._scheduler or (name == DEFAULT_SCHEDULER and managed)

    def _add_toleration(self, spec: Mapping[str, Any]) -> list[Operation]:
        """The operations that add the taint's toleration, without a time limit, unless the pod has it."""
        wanted = {"key": names.MANAGED_TAINT, "operator": "Equal", "value": self._scheduler, "effect": "NoExecute"}
        present = spec.get("tolerations") or []
        if not patches.are_objects(present) or wanted in ({"operator": "Equal"} | each for each in present):
            return []
        return patches.add_all("/spec/tolerations", present, [wanted])

    # ------------------------------------------------------------------ marks that change

    def _changed(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Refusal | None:
        before, after = _marks(old), _marks(new)
        changed = [field for field in (_LABEL, *_ANNOTATIONS, _FINALIZER) if before.get(field) != after.get(field)]
        if not self._users:
            changed = [field for field in changed if field != _FINALIZER] if _runs(new) else []
        elif _is_deleted(new) and _FINALIZER not in after:  # the scheduler may be uninstalled
            changed = [field for field in changed if field != _FINALIZER]
        if not changed:
            return None
        return Refusal(
            f"{', '.join(changed)}: only {self._scheduler} may change these fields of its pods; leave them unchanged"
        )


def _marks(pod: Mapping[str, Any]) -> _Marks:
    metadata = pod.get("metadata")
    finalizers = metadata.get("finalizers") if isinstance(metadata, dict) else None
    annotations = patches.texts_of(pod, "annotations") or {}
    found = {
        _LABEL: (patches.texts_of(pod, "labels") or {}).get(names.JOBID_LABEL),
        **{field: annotations.get(name) for field, name in _ANNOTATIONS.items()},
        _FINALIZER: names.FINALIZER if isinstance(finalizers, list) and names.FINALIZER in finalizers else None,
    }
    return {field: value for field, value in found.items() if value is not None}


def _is_deleted(pod: Mapping[str, Any]) -> bool:
    metadata = pod.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


def _runs(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") == "Running"
