"""What became of the pods of a cluster: questions, and assertions that say why they do not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeVar

from session_scheduler.engine.explain import explain_pending, reason_of
from session_scheduler.model.columns import natural
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.testing.driving import DrivenCluster
from session_scheduler.testing.invariants import InvariantError, check_at_rest

_Kind = TypeVar("_Kind", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a node is to a pod that waits: with its total score where it fits, else with what refuses it and why."""

    fits: bool
    score: float | None = None
    plugin: str | None = None
    reason: str = ""


class Results(DrivenCluster):
    """A cluster that can be asked what it did."""

    def find(self, kind: type[_Kind], name: str, namespace: str = "default") -> _Kind:
        """The object as it is now. Raises LookupError."""
        for obj in self.memory.objects(kind):
            if obj.key in (name, f"{namespace}/{name}"):
                return obj
        raise LookupError(f"there is no {kind.__name__} {namespace}/{name}: add it first")

    def node_of(self, name: str, namespace: str = "default") -> str | None:
        """The node that the pod is bound to, in the cluster."""
        return self.find(Pod, name, namespace).spec.node_name or None

    def placements(self) -> dict[str, str | None]:
        """namespace/name of every pod and its node."""
        return {obj.key: obj.spec.node_name or None for obj in self._objects().values() if isinstance(obj, Pod)}

    def pods_on(self, node: str) -> list[str]:
        """The pods (namespace/name) that are bound to a node, sorted."""
        return sorted((key for key, bound in self.placements().items() if bound == node), key=natural)

    def reasons(self, name: str, namespace: str = "default") -> str:
        """Why the pod was not placed when it was last tried; empty where it is bound."""
        pod = self.find(Pod, name, namespace)
        if pod.spec.node_name:
            return ""
        task = self.scheduler.cache.tasks.get(pod.metadata.uid)
        return "the scheduler does not serve it" if task is None else reason_of(self.scheduler, task)

    def verdicts(self, name: str, namespace: str = "default") -> dict[str, NodeVerdict]:
        """What each node is to a pod that waits, evaluated alone, now: as `fluence explain` reports it.

        Raises LookupError where the pod does not wait.
        """
        self.find(Pod, name, namespace)
        for pod in explain_pending(self._sync())["pods"]:
            if (pod["namespace"], pod["name"]) == (namespace, name):
                return {
                    node: NodeVerdict(one["fits"], one.get("score"), one.get("plugin"), one.get("reason") or "")
                    for node, one in pod["nodes"].items()
                }
        raise LookupError(f"pod {namespace}/{name} does not wait for a node: ask before it is bound")

    # ------------------------------------------------------------------ assertions

    def assert_bound(self, name: str, node: str | None = None, *, namespace: str = "default") -> Self:
        """The pod is bound, to this node if one is named; AssertionError says why it is not."""
        bound = self.node_of(name, namespace)
        if bound is None:
            raise AssertionError(f"pod {namespace}/{name} is not bound: {self.reasons(name, namespace)}")
        if node is not None and bound != node:
            raise AssertionError(f"pod {namespace}/{name} is bound to {bound}, not to {node}")
        return self

    def assert_all_bound(self) -> Self:
        """Every pod is bound; AssertionError names those that are not, and why."""
        waiting = [key.split("/") for key, node in self.placements().items() if node is None]
        if waiting:
            lines = (f"pod {at}/{name} is not bound: {self.reasons(name, at)}" for at, name in waiting)
            raise AssertionError("\n".join(lines))
        return self

    def assert_pending(self, name: str, reason: str = "", *, namespace: str = "default") -> Self:
        """The pod is not bound, and `reason` is a part of why."""
        bound = self.node_of(name, namespace)
        if bound is not None:
            raise AssertionError(f"pod {namespace}/{name} is bound to {bound}")
        given = self.reasons(name, namespace)
        if reason not in given:
            raise AssertionError(f"pod {namespace}/{name} waits because {given!r}, which does not say {reason!r}")
        return self

    def assert_fits(self, name: str, node: str, *, namespace: str = "default") -> Self:
        """No filter keeps the waiting pod off the node."""
        verdict = self._verdict_of(name, node, namespace)
        if not verdict.fits:
            raise AssertionError(
                f"pod {namespace}/{name} does not fit {node}: {verdict.plugin} says {verdict.reason!r}"
            )
        return self

    def assert_refused(
        self, name: str, node: str, *, by: str | None = None, reason: str = "", namespace: str = "default"
    ) -> Self:
        """A filter keeps the waiting pod off the node: the plugin `by`, with a text that says `reason`."""
        verdict = self._verdict_of(name, node, namespace)
        if verdict.fits:
            raise AssertionError(f"pod {namespace}/{name} fits {node}, with a score of {verdict.score:g}")
        if by not in (None, verdict.plugin) or reason not in verdict.reason:
            raise AssertionError(
                f"pod {namespace}/{name} is kept off {node} by {verdict.plugin}, which says {verdict.reason!r}"
            )
        return self

    def assert_preferred(self, name: str, node: str, than: str, *, namespace: str = "default") -> Self:
        """The waiting pod fits both nodes, and the first has the higher total score."""
        self.assert_fits(name, node, namespace=namespace).assert_fits(name, than, namespace=namespace)
        verdicts = self.verdicts(name, namespace)
        better, worse = verdicts[node].score or 0, verdicts[than].score or 0
        if better <= worse:
            raise AssertionError(f"pod {namespace}/{name}: {node} scores {better:g}, {than} {worse:g}")
        return self

    def assert_nominated(self, name: str, node: str, *, namespace: str = "default") -> Self:
        """The pod waits for room on the node, for which others were asked to end."""
        nominated = self.find(Pod, name, namespace).status.nominated_node_name
        if nominated != node:
            raise AssertionError(f"pod {namespace}/{name} is nominated for {nominated or 'no node'}, not for {node}")
        return self

    def assert_invariants(self) -> Self:
        """What must hold whenever nothing is in flight, whatever the plugins did. Raises InvariantError.

        See `invariants.check_at_rest`. The fixtures of the pytest plugin end with it.
        """
        if self._scheduler is not None:
            finding = "\n".join(check_at_rest(self._sync(), self.memory.objects(Pod), self._given))
            if finding:
                raise InvariantError(finding)
        return self

    def _verdict_of(self, name: str, node: str, namespace: str) -> NodeVerdict:
        verdicts = self.verdicts(name, namespace)
        if node not in verdicts:
            raise LookupError(f"there is no node {node}: there are {', '.join(verdicts) or 'none'}")
        return verdicts[node]
