"""One pod that works on a device for several: the words that webhook, scheduler and workload share, and what follows.

With `coordination: shared` the pod of index 0 is the *producer*: it holds the device. The others are *consumers*: they
hold none, and are gated until the producer runs. What there is to do is decided here from pods alone, without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fluence_plugins.resources.label_groups import GROUP_LABEL
from fluence_plugins.resources.names import ANNOTATION_PREFIX, ATTRIBUTE_ANNOTATION_PREFIX, BACKEND_ANNOTATION
from session_scheduler.model.objects import Pod

COORDINATION: Final = ANNOTATION_PREFIX + "coordination"
SHARED, INDEPENDENT = "shared", "independent"
OBSERVE_LABEL: Final = ANNOTATION_PREFIX + "observe"
ROLE: Final = ANNOTATION_PREFIX + "coordination-role"
PRODUCER, CONSUMER = "producer", "consumer"
PRODUCER_SUFFIX: Final = "-producer"
"""Of the producer's group, after the consumers'."""
INDEX: Final = "batch.kubernetes.io/job-completion-index"
PRODUCER_INDEX: Final = "0"
GATE: Final = "quantum.braket/ready"
DEPENDS_KIND: Final = ANNOTATION_PREFIX + "depends-on-kind"
DEPENDS_PRODUCER: Final = ANNOTATION_PREFIX + "depends-on-producer"
DEPENDS_GATE: Final = ANNOTATION_PREFIX + "depends-on-gate"
RUNNING, SUBMITTED = "producer-running", "quantum-submit"
"""Kinds: the producer runs; the producer runs and has said in its annotation `quantum-job-id` what it submitted."""
KINDS: Final = (RUNNING, SUBMITTED)
JOB_ID: Final = ANNOTATION_PREFIX + "quantum-job-id"
_ENDED: Final = ("Succeeded", "Failed")

Group = tuple[str, str, str]
"""Namespace, the producer's group, and the uid of the controller that made the pods (empty: people did).

Two Jobs of one name, one after the other, are two.
"""


@dataclass(slots=True)
class Turn:
    """What is to be done now. Each pod is in one of the two, by name."""

    open: dict[str, tuple[Pod, Mapping[str, str | None]]] = field(default_factory=dict)
    """By key: consumers to be ungated, with the annotations that they get (None: none)."""
    delete: dict[str, Pod] = field(default_factory=dict)
    """By key: consumers whose producer is not to come any more."""
    waiting: dict[Group, list[Pod]] = field(default_factory=dict)
    """Consumers that nobody but us would end, and that are without a producer; those to be deleted, too."""


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
    return role_of(pod) == CONSUMER and _is_told(annotation)


def group_of(pod: Pod) -> Group | None:
    """Whose consumer, or which producer, it is; None where it is neither."""
    role = role_of(pod)
    name = pod.metadata.annotations.get(DEPENDS_PRODUCER) if role == CONSUMER else pod.metadata.labels.get(GROUP_LABEL)
    return (pod.metadata.namespace, name, _owner(pod)) if role and name else None


def decide(pods: Iterable[Pod], overdue: Iterable[Group] = ()) -> Turn:
    """What there is to do of these pods, whatever was done before.

    `overdue`: groups whose consumers were without a producer for too long.
    """
    late = set(overdue)
    producers: dict[Group, list[Pod]] = {}
    consumers: dict[Group, list[Pod]] = {}
    for pod in sorted(pods, key=lambda one: one.key):
        group = group_of(pod)
        if group is not None:
            if role_of(pod) == PRODUCER:
                producers.setdefault(group, []).append(pod)
            elif waits(pod):
                consumers.setdefault(group, []).append(pod)
    turn = Turn()
    for group, waiting in consumers.items():
        candidates = producers.get(group, [])
        first = {
            submits: next((one for one in candidates if _is_ready(one, submits)), None) for submits in (False, True)
        }
        for pod in waiting:
            ready = first[pod.metadata.annotations.get(DEPENDS_KIND) == SUBMITTED]
            if ready is not None:
                turn.open[pod.key] = (pod, told_by(ready, pod))
        orphaned = not any(_may_run(one) for one in candidates) and not group[2]
        left = [pod for pod in waiting if pod.key not in turn.open] if orphaned else []
        if left:
            turn.waiting[group] = left
        if group in late:
            turn.delete.update({pod.key: pod for pod in left})
    return turn


def told_by(producer: Pod, consumer: Pod) -> dict[str, str | None]:
    """The annotations by which a consumer learns its producer's backend, attributes and job; None removes one."""
    said = producer.metadata.annotations
    told: dict[str, str | None] = {name: None for name in consumer.metadata.annotations if _is_told(name)}
    told |= {name: said[name] for name in sorted(said) if _is_told(name) and said[name]}
    return told


def _is_told(name: str) -> bool:
    return name in (BACKEND_ANNOTATION, JOB_ID) or name.startswith(ATTRIBUTE_ANNOTATION_PREFIX)


def _is_ready(producer: Pod, submits: bool) -> bool:
    """Whether consumers may start; `submits`: those that wait for a submission.

    What has ended well has run, and says no more than it has said by then.
    """
    phase = producer.status.phase
    if phase == "Succeeded":
        return True
    if phase != "Running" or producer.metadata.deletion_timestamp is not None:
        return False
    return not submits or bool(producer.metadata.annotations.get(JOB_ID))


def _may_run(producer: Pod) -> bool:
    return producer.status.phase not in _ENDED and producer.metadata.deletion_timestamp is None


def _owner(pod: Pod) -> str:
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
