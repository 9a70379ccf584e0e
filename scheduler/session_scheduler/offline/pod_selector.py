"""Selects pods by TYPE/NAME, as kubectl does: `pod/x`, `podgroup/x`, `job/x`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from session_scheduler.errors import InputError
from session_scheduler.model.groups import Task

_WORDS: Final = {
    "Pod": "pod pods po",
    "PodGroup": "podgroup podgroups pg",
    "Job": "job jobs",
    "ReplicaSet": "replicaset replicasets rs",
    "StatefulSet": "statefulset statefulsets sts",
    "DaemonSet": "daemonset daemonsets ds",
}
_MOST_NAMED: Final = 3
"""The maximum number of pods that a message lists."""
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
        return self.key in self.objects([task])

    def objects(self, tasks: Iterable[Task]) -> list[str]:
        """NAMESPACE/NAME of the objects of this kind that the tasks are or belong to."""
        if self.kind == "Pod":
            return [task.key for task in tasks]
        if self.kind == "PodGroup":
            return [f"{task.namespace}/{task.group.name}" for task in tasks if not task.group.single]
        owners = [(task, owner) for task in tasks for owner in task.pod.metadata.owner_references]
        return [f"{task.namespace}/{owner.name}" for task, owner in owners if owner.kind == self.kind]

    def not_waiting(self, tasks: Iterable[Task], known: Sequence[str]) -> str:
        """The error for a pod that is not pending; `known` has the pending pods."""
        placed = next((task.node for task in tasks if task.key == self.key), None)
        if placed is not None:
            return f"{self.written}: already on node {placed}; name a pending pod"
        return f"{self.written}: no pending pod with this namespace and name; {self.remedy(known)}"

    def remedy(self, known: Sequence[str]) -> str:
        """What to write if no pod is selected: the nearest of these names, first of those in the same namespace."""
        namespace, _, name = self.key.rpartition("/")
        for keys in ([key for key in known if key.startswith(f"{namespace}/")], known):
            names = {key.partition("/")[2]: key for key in keys}
            if near := get_close_matches(name, names, 1, 0.6):
                return f"did you mean {self._argument(names[near[0]])}?"
        if not self._is_option:
            return "name another object, or another namespace with -n"
        if not namespace:
            return "write NAMESPACE/NAME"
        return "name a pending pod" + (f", such as {', '.join(known[:_MOST_NAMED])}" if known else "")

    @property
    def _is_option(self) -> bool:
        return self.written.startswith("--")

    def _argument(self, key: str) -> str:
        """How to name an object of this kind, in place of this one."""
        if self._is_option:
            return key
        namespace, _, name = key.partition("/")
        elsewhere = "" if self.key.startswith(f"{namespace}/") else f" -n {namespace}"
        return f"{self.written.partition('/')[0]}/{name}{elsewhere}"


def pod_option(pod: str, option: str = "--pod") -> PodSelector:
    """The selector of an option NAMESPACE/NAME."""
    return PodSelector("Pod", pod, f"{option} {pod}")


def names_object(word: str) -> bool:
    """Whether an argument is TYPE/NAME and not the path of a file. Raises InputError for an unknown TYPE."""
    kind, _, name = word.partition("/")
    if not (kind.isalpha() and name) or "/" in name or os.path.exists(word):
        return False
    if kind.lower() not in KINDS and not Path(name).suffix:
        near = get_close_matches(kind.lower(), KINDS, 1, 0.6)
        remedy = f"did you mean {near[0]}/{name}?" if near else f"use {', '.join(map(str.lower, _WORDS))}, or a file"
        raise InputError(f"{word}: no such file, and {kind} is not a type of object; {remedy}")
    return kind.lower() in KINDS


def selectors(words: Sequence[str], namespace: str) -> list[PodSelector]:
    """The selectors of arguments of the form TYPE/NAME."""
    parts = [(word, *word.split("/")) for word in words]
    return [PodSelector(KINDS[kind.lower()], f"{namespace}/{name}", word) for word, kind, name in parts]


def selected(chosen: Sequence[PodSelector], task: Task) -> bool:
    """Whether a selector has the task; without selectors every task is selected."""
    return not chosen or any(each.has(task) for each in chosen)
