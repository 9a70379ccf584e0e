"""The resourceclaim controller for manifests: creates ResourceClaims from templates for loaded pods and PodGroups.

A claim is named `<pod>-<entry>`, or `<group>-<entry>` if the PodGroup has the same entry, so that its pods share the
claim. Kubernetes' own controller also appends random letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from session_scheduler.model.devices import POD_CLAIM_NAME, ResourceClaim, ResourceClaimTemplate
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import ClaimStatus, Pod, PodGroup


class ClaimMaker:
    """Creates the missing claims of pods, and collects them in `made`."""

    def __init__(
        self,
        templates: Mapping[str, ResourceClaimTemplate],
        known: Iterable[ResourceClaim],
        groups: Iterable[PodGroup] = (),
    ) -> None:
        self.made: list[ResourceClaim] = []
        self._templates = templates
        self._groups = {group.key: group for group in groups if group.native}
        self._shared: set[str] = set()
        self._names = {claim.key for claim in known}

    def with_claims(self, pod: Pod) -> Pod:
        """Return the pod with the names of its created claims in its status."""
        named = {status.name for status in pod.status.resource_claim_statuses}
        statuses = [
            ClaimStatus(name=name, resource_claim_name=claim)
            for entry in pod.spec.resource_claims
            if (name := str(entry.get("name", ""))) not in named
            and (claim := self._claim(self._owner(pod, entry), entry)) is not None
        ]
        if not statuses:
            return pod
        every = (*pod.status.resource_claim_statuses, *statuses)
        return replace(pod, status=replace(pod.status, resource_claim_statuses=every))

    def _owner(self, pod: Pod, entry: Mapping[str, Any]) -> Pod | PodGroup:
        """The pod, or its PodGroup if that has an equal entry."""
        name = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else ""
        group = self._groups.get(f"{pod.metadata.namespace}/{name}")
        return group if group is not None and entry in group.spec.resource_claims else pod

    def _claim(self, owner: Pod | PodGroup, entry: Mapping[str, Any]) -> str | None:
        """Create an entry's claim and return its name; None if the template is missing: the pod stays pending."""
        metadata, wanted = owner.metadata, entry.get("resourceClaimTemplateName")
        template = self._templates.get(f"{metadata.namespace}/{wanted}") if wanted is not None else None
        name = f"{metadata.name}-{entry.get('name', '')}"
        if f"{metadata.namespace}/{name}" in self._shared:
            return name
        if template is None or f"{metadata.namespace}/{name}" in self._names:
            return None
        reference = OwnerReference(
            api_version=owner.api_version,
            kind=type(owner).__name__,
            name=metadata.name,
            uid=metadata.uid,
            controller=True,
        )
        given = template.spec.metadata
        made = ObjectMeta(
            name=name, namespace=metadata.namespace, owner_references=(reference,), labels=given.labels,
            annotations={**given.annotations, POD_CLAIM_NAME: str(entry.get("name", ""))},
        )  # fmt: skip
        if isinstance(owner, PodGroup):
            self._shared.add(f"{metadata.namespace}/{name}")
        self._names.add(f"{metadata.namespace}/{name}")
        self.made.append(ResourceClaim(metadata=made, spec=template.spec.spec))
        return name
