"""Queries and assertions about the pods of a cluster; a failed assertion shows the reason."""

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
    """A node's verdict for a pending pod: the total score, or the plugin that rejects it and its reason."""

    fits: bool
    score: float | None = None
    plugin: str | None = None
    reason: str = ""


class Results(DrivenCluster):
    """A cluster with queries and assertions."""

    def find(self, kind: type[_Kind], name: str, namespace: str = "default") -> _Kind:
        """The current object. Raises LookupError."""
        for obj in self.memory.objects(kind):
            if obj.key in (name, f"{namespace}/{name}"):
                return obj
        raise LookupError(f"{kind.__name__} {namespace}/{name} does not exist; add it first")

    def node_of(self, name: str, namespace: str = "default") -> str | None:
        """The node that the pod is bound to."""
        return self.find(Pod, name, namespace).spec.node_name or None

    def placements(self) -> dict[str, str | None]:
        """Every pod's node, by namespace/name."""
        return {obj.key: obj.spec.node_name or None for obj in self._objects().values() if isinstance(obj, Pod)}

    def pods_on(self, node: str) -> list[str]:
        """The pods (namespace/name) that are bound to a node, sorted."""
        return sorted((key for key, bound in self.placements().items() if bound == node), key=natural)

    def reasons(self, name: str, namespace: str = "default") -> str:
        """Why the last cycle did not place the pod; empty for a bound pod."""
        pod = self.find(Pod, name, namespace)
        if pod.spec.node_name:
            return ""
        task = self.scheduler.cache.tasks.get(pod.metadata.uid)
        return "the scheduler does not serve its schedulerName" if task is None else reason_of(self.scheduler, task)

    def verdicts(self, name: str, namespace: str = "default") -> dict[str, NodeVerdict]:
        """Each node's verdict for a pending pod, evaluated alone, as in `fluence explain`.

        Raises LookupError if the pod is not pending.
        """
        self.find(Pod, name, namespace)
        for pod in explain_pending(self._sync())["pods"]:
            if (pod["namespace"], pod["name"]) == (namespace, name):
                return {
                    node: NodeVerdict(one["fits"], one.get("score"), one.get("plugin"), one.get("reason") or "")
                    for node, one in pod["nodes"].items()
                }
        raise LookupError(f"pod {namespace}/{name} is not pending; call this before it is bound")

    # ------------------------------------------------------------------ assertions

    def assert_bound(self, name: str, node: str | None = None, *, namespace: str = "default") -> Self:
        """Assert that the pod is bound, to `node` if given. The AssertionError has the reason."""
        bound = self.node_of(name, namespace)
        if bound is None:
            raise AssertionError(f"pod {namespace}/{name} is not bound: {self.reasons(name, namespace)}")
        if node is not None and bound != node:
            raise AssertionError(f"pod {namespace}/{name}: expected on {node}, but it is bound to {bound}")
        return self

    def assert_all_bound(self) -> Self:
        """Assert that every pod is bound. The AssertionError has the others' reasons."""
        waiting = [key.split("/") for key, node in self.placements().items() if node is None]
        if waiting:
            lines = (f"pod {at}/{name} is not bound: {self.reasons(name, at)}" for at, name in waiting)
            raise AssertionError("\n".join(lines))
        return self

    def assert_pending(self, name: str, reason: str = "", *, namespace: str = "default") -> Self:
        """Assert that the pod is pending with a reason that contains `reason`."""
        bound = self.node_of(name, namespace)
        if bound is not None:
            raise AssertionError(f"pod {namespace}/{name} is bound to {bound}")
        given = self.reasons(name, namespace)
        if reason not in given:
            raise AssertionError(f"pod {namespace}/{name} is pending: expected a reason with {reason!r}, got {given!r}")
        return self

    def assert_fits(self, name: str, node: str, *, namespace: str = "default") -> Self:
        """Assert that the pending pod fits the node."""
        verdict = self._verdict_of(name, node, namespace)
        if not verdict.fits:
            raise AssertionError(
                f"pod {namespace}/{name} does not fit {node}: {verdict.plugin} rejects it: {verdict.reason!r}"
            )
        return self

    def assert_refused(
        self, name: str, node: str, *, by: str | None = None, reason: str = "", namespace: str = "default"
    ) -> Self:
        """Assert that the plugin `by` rejects the node for the pending pod, with a reason that contains `reason`."""
        verdict = self._verdict_of(name, node, namespace)
        if verdict.fits:
            raise AssertionError(f"pod {namespace}/{name} fits {node} with score {verdict.score:g}")
        if by not in (None, verdict.plugin) or reason not in verdict.reason:
            raise AssertionError(
                f"pod {namespace}/{name}: expected {by or 'a plugin'} to reject {node} with {reason!r}, "
                f"got {verdict.plugin} with {verdict.reason!r}"
            )
        return self

    def assert_preferred(self, name: str, node: str, than: str, *, namespace: str = "default") -> Self:
        """Assert that the pending pod fits both nodes, and `node` has the higher total score."""
        self.assert_fits(name, node, namespace=namespace).assert_fits(name, than, namespace=namespace)
        verdicts = self.verdicts(name, namespace)
        better, worse = verdicts[node].score or 0, verdicts[than].score or 0
        if better <= worse:
            raise AssertionError(f"pod {namespace}/{name}: {node} scores {better:g}, {than} {worse:g}")
        return self

    def assert_nominated(self, name: str, node: str, *, namespace: str = "default") -> Self:
        """Assert that the pod has this nominated node."""
        nominated = self.find(Pod, name, namespace).status.nominated_node_name
        if nominated != node:
            raise AssertionError(f"pod {namespace}/{name}: expected nominated node {node}, got {nominated or 'none'}")
        return self

    def assert_invariants(self) -> Self:
        """Check the invariants that hold when nothing is in flight. Raises InvariantError.

        See `invariants.check_at_rest`. The fixtures call it at the end of a test.
        """
        if self._scheduler is not None:
            finding = "\n".join(check_at_rest(self._sync(), self.memory.objects(Pod), self._given))
            if finding:
                raise InvariantError(finding)
        return self

    def _verdict_of(self, name: str, node: str, namespace: str) -> NodeVerdict:
        verdicts = self.verdicts(name, namespace)
        if node not in verdicts:
            raise LookupError(f"node {node} does not exist; available: {', '.join(verdicts) or 'none'}")
        return verdicts[node]
