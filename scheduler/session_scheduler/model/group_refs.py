"""Group of a pod, by its spec, its labels or the hook `group_of`. The cache looks it up for each pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from session_scheduler.errors import FluenceError
from session_scheduler.model.groups import GroupRef
from session_scheduler.model.objects import OwnerReference, Pod
from session_scheduler.model.refusals import Refusal

NATIVE_LABEL = "scheduling.k8s.io/pod-group"
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
NATIVE_API = "scheduling.k8s.io"
COSCHEDULING_API = "scheduling.x-k8s.io"

GroupOf = Callable[[Pod, Sequence[OwnerReference]], GroupRef | None]


def group_ref(pod: Pod, group_of_hooks: Sequence[GroupOf], *, coscheduling_served: bool) -> GroupRef:
    """The group of a pod: from its spec, else a label, else the first hook that answers; else the pod is its own."""
    namespace = pod.metadata.namespace
    labels = pod.metadata.labels
    if pod.spec.scheduling_group and pod.spec.scheduling_group.pod_group_name:
        return GroupRef(namespace, pod.spec.scheduling_group.pod_group_name, api_group=NATIVE_API)
    if name := labels.get(NATIVE_LABEL):
        return GroupRef(namespace, name, api_group=NATIVE_API)
    if name := labels.get(COSCHEDULING_LABEL):
        if coscheduling_served:
            return GroupRef(namespace, name, kind=f"PodGroup.{COSCHEDULING_API}", api_group=COSCHEDULING_API)
        return GroupRef(namespace, name, api_group=NATIVE_API)
    for group_of in group_of_hooks:
        try:
            found = group_of(pod, pod.metadata.owner_references)
        except FluenceError as error:
            refusal = Refusal(str(error), getattr(error, "plugin", ""))
            return GroupRef(namespace, pod.metadata.name, kind="Pod", api_group="", refusal=refusal)
        if found is not None:
            return found
    return GroupRef(namespace, pod.metadata.name, kind="Pod", api_group="")
