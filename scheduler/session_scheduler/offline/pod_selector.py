"""Selects pods by TYPE/NAME, as kubectl does: `pod/x`, `podgroup/x`, `job/x`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from session_scheduler.model.groups import Task

_WORDS: Final = {
    "Pod": "pod pods po",
    "PodGroup": "podgroup podgroups pg",
    "Job": "job jobs",
    "ReplicaSet": "replicaset replicasets rs",
    "StatefulSet": "statefulset statefulsets sts",
    "DaemonSet": "daemonset daemonsets ds",
}
KINDS: Final = {word: kind for kind, words in _WORDS.items() for word in words.split()}
"""The kind by TYPE."""


@dataclass(frozen=True, slots=True)
class PodSelector:
    """A pod, or the pods of a PodGroup or of a controller."""

    kind: str
    key: str
    """NAMESPACE/NAME of the object."""
    written: str
    """The argument, for messages."""

    def has(self, task: Task) -> bool:
        """Whether the task is the pod, or one of the object's pods."""
        if self.kind == "Pod":
            return task.key == self.key
        if self.kind == "PodGroup":
            return not task.group.single and f"{task.namespace}/{task.group.name}" == self.key
        owners = (owner.name for owner in task.pod.metadata.owner_references if owner.kind == self.kind)
        return any(f"{task.namespace}/{name}" == self.key for name in owners)


def names_object(word: str) -> bool:
    """Whether an argument is TYPE/NAME and not the path of a file."""
    kind, _, name = word.partition("/")
    return kind.lower() in KINDS and bool(name) and "/" not in name and not Path(word).exists()


def selectors(words: Sequence[str], namespace: str) -> list[PodSelector]:
    """The selectors of arguments of the form TYPE/NAME."""
    parts = [(word, *word.split("/")) for word in words]
    return [PodSelector(KINDS[kind.lower()], f"{namespace}/{name}", word) for word, kind, name in parts]


def selected(chosen: Sequence[PodSelector], task: Task) -> bool:
    """Whether a selector has the task; without selectors every task is selected."""
    return not chosen or any(each.has(task) for each in chosen)
