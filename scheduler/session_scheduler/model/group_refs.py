"""The group that a pod belongs to, as its spec, its labels or a plugin say. The cache asks for each pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from session_scheduler.errors import FluenceError
from session_scheduler.model.groups import GroupRef
from session_scheduler.model.objects import OwnerReference, Pod
from session_scheduler.model.refusals import Refusal

NATIVE_LABEL = "scheduling.k8s.io/pod-group"
"""On a pod: the name of its PodGroup of the native API."""
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
"""On a pod: the name of its PodGroup of the coscheduling API."""
NATIVE_API = "scheduling.k8s.io"
COSCHEDULING_API = "scheduling.x-k8s.io"

GroupOf = Callable[[Pod, Sequence[OwnerReference]], GroupRef | None]


def group_ref(pod: Pod, ask_in_turn: Sequence[GroupOf], *, coscheduling_served: bool) -> GroupRef:
    """The group of a pod: by its spec, by label, by a plugin, or the pod alone."""
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
    for ask in ask_in_turn:
        try:
            found = ask(pod, pod.metadata.owner_references)
        except FluenceError as error:
            refusal = Refusal(str(error), getattr(error, "plugin", ""))
            return GroupRef(namespace, pod.metadata.name, kind="Pod", api_group="", refusal=refusal)
        if found is not None:
            return found
    return GroupRef(namespace, pod.metadata.name, kind="Pod", api_group="")
