"""Coordinated pods, where one uses a device for the others: the names that webhook, scheduler and workload share.

With `coordination: shared`, the pod with index 0 is the *producer*, which holds the device. The others are *consumers*:
they hold no device, and are gated until the producer runs.
"""

from __future__ import annotations

from typing import Final

from fluence_plugins.resources.label_groups import GROUP_LABEL
from fluence_plugins.resources.names import ANNOTATION_PREFIX, ATTRIBUTE_ANNOTATION_PREFIX, BACKEND_ANNOTATION
from session_scheduler.model.objects import Pod

COORDINATION: Final = ANNOTATION_PREFIX + "coordination"
"""On a pod template or a pod: `shared` or `independent`, whether one pod holds the device for all."""
SHARED, INDEPENDENT = "shared", "independent"
OBSERVE_LABEL: Final = ANNOTATION_PREFIX + "observe"
"""On a pod template or a pod: `true` adds the sidecar container to the pod that holds the device."""
ROLE: Final = ANNOTATION_PREFIX + "coordination-role"
"""On a pod of a coordinated group: `producer` or `consumer`. The webhook writes it."""
PRODUCER, CONSUMER = "producer", "consumer"
PRODUCER_SUFFIX: Final = "-producer"
"""Appended to the consumers' group for the producer's group."""
INDEX: Final = "batch.kubernetes.io/job-completion-index"
PRODUCER_INDEX: Final = "0"
GATE: Final = "quantum.braket/ready"
"""The scheduling gate of consumers: the scheduler removes it when the producer runs."""
DEPENDS_KIND: Final = ANNOTATION_PREFIX + "depends-on-kind"
"""On a consumer: what it waits for, `producer-running` or `quantum-submit`."""
DEPENDS_PRODUCER: Final = ANNOTATION_PREFIX + "depends-on-producer"
"""On a consumer: the group of its producer. The webhook writes it."""
DEPENDS_GATE: Final = ANNOTATION_PREFIX + "depends-on-gate"
"""On a consumer: the gate that the scheduler removes. The webhook writes it."""
RUNNING, SUBMITTED = "producer-running", "quantum-submit"
"""Kinds of dependencies: the producer runs; or it runs and has set its annotation `quantum-job-id` to the submitted
job.
"""
KINDS: Final = (RUNNING, SUBMITTED)
JOB_ID: Final = ANNOTATION_PREFIX + "quantum-job-id"
"""On a producer: the identifier of the quantum task that it submitted."""

Group = tuple[str, str, str]
"""Namespace, the producer's group, and the uid of the pods' controller (empty if they have none).

The uid distinguishes Jobs of the same name that exist one after the other.
"""


def role_of(pod: Pod) -> str | None:
    """The role that the webhook gave the pod; None for uncoordinated pods."""
    role = pod.metadata.annotations.get(ROLE)
    return role if role in (PRODUCER, CONSUMER) else None


def waits(pod: Pod) -> bool:
    """Whether the pod is a consumer behind the gate."""
    return (
        role_of(pod) == CONSUMER
        and pod.metadata.deletion_timestamp is None
        and any(gate.name == GATE for gate in pod.spec.scheduling_gates)
    )


def keeps(pod: Pod, annotation: str) -> bool:
    """Whether the annotation comes from the producer, so the consumer keeps it when it is bound."""
    return role_of(pod) == CONSUMER and is_answer(annotation)


def group_of(pod: Pod) -> Group | None:
    """The group of a consumer or producer; None for other pods."""
    role = role_of(pod)
    name = pod.metadata.annotations.get(DEPENDS_PRODUCER) if role == CONSUMER else pod.metadata.labels.get(GROUP_LABEL)
    return (pod.metadata.namespace, name, _owner(pod)) if role and name else None


def is_answer(name: str) -> bool:
    """Whether a producer publishes a result in this annotation: backend, attributes, or the submitted job."""
    return name in (BACKEND_ANNOTATION, JOB_ID) or name.startswith(ATTRIBUTE_ANNOTATION_PREFIX)


def _owner(pod: Pod) -> str:
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
