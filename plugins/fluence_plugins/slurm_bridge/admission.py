"""The handler `slurm-bridge`: pods of managed namespaces are placed by Slurm, and only the scheduler marks pods.

Which namespaces are managed the webhook's configuration says, by what it sends; a list in the settings narrows that. A
new pod for the default scheduler becomes the bridge's, and each of the bridge's pods tolerates the taint of the nodes
that Slurm gives away. The marks of a pod (its job, its node and what of it, the finalizer) are what the bridge believes
when it starts again: nobody brings them along, and nobody but the scheduler's accounts changes them later.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from fluence_plugins.env_injection import patches
from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Operation, Refusal
from fluence_plugins.slurm_bridge import names

DEFAULT_SCHEDULER: Final = "default-scheduler"
NODE_USER: Final = "system:node:"
"""Before the user names of kubelets. The pods that these create run already: they show the node's own."""
_LABEL: Final = f"metadata.labels[{names.JOBID_LABEL}]"
_ANNOTATIONS: Final = {
    f"metadata.annotations[{name}]": name
    for name in (names.NODE_ANNOTATION, names.CORES_ANNOTATION, names.GRES_ANNOTATION)
}
_FINALIZER: Final = f"metadata.finalizers[{names.FINALIZER}]"
_Marks = dict[str, str]
"""Of a pod's marks those that are there: the field, and what it says."""


class SlurmBridgeHandler:
    """Makes pods the bridge's, and keeps their marks."""

    operations: Collection[str] = frozenset({"CREATE", "UPDATE"})
    sub_resources: Collection[str] = frozenset({"", "status"})
    """A change of the status can change labels, annotations and finalizers, too."""

    def __init__(self, settings: HandlerSettings) -> None:
        self._scheduler = settings.slurm_scheduler_name
        self._namespaces = settings.managed_namespaces
        self._users = settings.scheduler_users

    def contract(self) -> str:
        """Whose pods become the bridge's, and who may write marks."""
        where = f"of {', '.join(sorted(self._namespaces))}" if self._namespaces else "that are sent"
        who = ", ".join(sorted(self._users)) or "nobody who is known: those of pods that do not run are anybody's"
        return (
            f"slurm-bridge: the default scheduler's pods {where} become {self._scheduler}'s; marks are written by {who}"
        )

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Sequence[Operation] | Refusal:
        """Make a new pod the bridge's; refuse marks that it brings along, and changes of marks."""
        spec = pod.get("spec")
        if not isinstance(spec, dict):
            return []
        if request.operation == "CREATE":
            return [] if request.user.startswith(NODE_USER) else self._created(pod, spec, request.namespace)
        if spec.get("schedulerName") == self._scheduler and request.user not in self._users:
            return self._changed(request.old or {}, pod) or []
        return []

    async def run(self) -> None:
        """Nothing to follow."""

    # ------------------------------------------------------------------ new pods

    def _created(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], namespace: str
    ) -> Sequence[Operation] | Refusal:
        if not self._concerns(spec, namespace):
            return []
        brought = _marks(pod)
        if brought:
            return Refusal(
                f"{', '.join(brought)}: {self._scheduler} marks the pods that Slurm has placed: create the pod without"
            )
        operations: list[Operation] = []
        if spec.get("schedulerName") != self._scheduler:
            operations.append({"op": "add", "path": "/spec/schedulerName", "value": self._scheduler})
        if spec.get("nodeName"):  # it would be on a node of Slurm's without Slurm
            operations.append({"op": "remove", "path": "/spec/nodeName"})
        return [*operations, *self._tolerating(spec)]

    def _concerns(self, spec: Mapping[str, Any], namespace: str) -> bool:
        name = spec.get("schedulerName") or DEFAULT_SCHEDULER
        managed = not self._namespaces or namespace in self._namespaces
        return name == self._scheduler or (name == DEFAULT_SCHEDULER and managed)

    def _tolerating(self, spec: Mapping[str, Any]) -> list[Operation]:
        """The operations after which the pod tolerates the taint, for as long as it runs."""
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
        elif _is_deleted(new) and _FINALIZER not in after:  # it may be that no scheduler runs any more
            changed = [field for field in changed if field != _FINALIZER]
        if not changed:
            return None
        return Refusal(
            f"{', '.join(changed)}: only {self._scheduler} changes the marks of its pods: leave them as they are"
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
    return {field: said for field, said in found.items() if said is not None}


def _is_deleted(pod: Mapping[str, Any]) -> bool:
    metadata = pod.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


def _runs(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") == "Running"
