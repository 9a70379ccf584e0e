"""One pod that works on a device for several: the words that webhook, scheduler and workload share.

With `coordination: shared` the pod of index 0 is the *producer*: it holds the device. The others are *consumers*: they
hold none, and are gated until the producer runs.
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
"""Of the producer's group, after the consumers'."""
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
"""Kinds: the producer runs; the producer runs and has said in its annotation `quantum-job-id` what it submitted."""
KINDS: Final = (RUNNING, SUBMITTED)
JOB_ID: Final = ANNOTATION_PREFIX + "quantum-job-id"
"""On a producer: the identifier of the quantum task that it submitted."""

Group = tuple[str, str, str]
"""Namespace, the producer's group, and the uid of the controller that made the pods (empty: people did).

Two Jobs of one name, one after the other, are two.
"""


def role_of(pod: Pod) -> str | None:
    """What the webhook made of the pod; None for pods that are not coordinated."""
    role = pod.metadata.annotations.get(ROLE)
    return role if role in (PRODUCER, CONSUMER) else None


def waits(pod: Pod) -> bool:
    """Whether it is a consumer behind the gate."""
    return (
        role_of(pod) == CONSUMER
        and pod.metadata.deletion_timestamp is None
        and any(gate.name == GATE for gate in pod.spec.scheduling_gates)
    )


def keeps(pod: Pod, annotation: str) -> bool:
    """Whether what is written there is the producer's, and stays when the consumer is bound."""
    return role_of(pod) == CONSUMER and is_answer(annotation)


def group_of(pod: Pod) -> Group | None:
    """Whose consumer, or which producer, it is; None where it is neither."""
    role = role_of(pod)
    name = pod.metadata.annotations.get(DEPENDS_PRODUCER) if role == CONSUMER else pod.metadata.labels.get(GROUP_LABEL)
    return (pod.metadata.namespace, name, _owner(pod)) if role and name else None


def is_answer(name: str) -> bool:
    """Whether the annotation is one by which a producer says what it has: backend, attributes, the job submitted."""
    return name in (BACKEND_ANNOTATION, JOB_ID) or name.startswith(ATTRIBUTE_ANNOTATION_PREFIX)


def _owner(pod: Pod) -> str:
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
