"""The resourceclaim controller for manifests: creates ResourceClaims from templates for loaded pods.

A claim is named `<pod>-<entry>`; the controller would append random letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from session_scheduler.model.devices import POD_CLAIM_NAME, ResourceClaim, ResourceClaimTemplate
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import ClaimStatus, Pod


class ClaimMaker:
    """Creates the missing claims of pods, and collects them in `made`."""

    def __init__(self, templates: Mapping[str, ResourceClaimTemplate], known: Iterable[ResourceClaim]) -> None:
        self.made: list[ResourceClaim] = []
        self._templates = templates
        self._names = {claim.key for claim in known}

    def with_claims(self, pod: Pod) -> Pod:
        """Return the pod with the names of its created claims in its status."""
        named = {status.name for status in pod.status.resource_claim_statuses}
        statuses = [
            ClaimStatus(name=name, resource_claim_name=claim)
            for entry in pod.spec.resource_claims
            if (name := str(entry.get("name", ""))) not in named
            and (claim := self._claim(pod, name, entry.get("resourceClaimTemplateName"))) is not None
        ]
        if not statuses:
            return pod
        every = (*pod.status.resource_claim_statuses, *statuses)
        return replace(pod, status=replace(pod.status, resource_claim_statuses=every))

    def _claim(self, pod: Pod, entry: str, wanted: object) -> str | None:
        """Create an entry's claim and return its name; None if the template is missing: the pod stays pending."""
        template = self._templates.get(f"{pod.metadata.namespace}/{wanted}") if wanted is not None else None
        name = f"{pod.metadata.name}-{entry}"
        if template is None or f"{pod.metadata.namespace}/{name}" in self._names:
            return None
        owner = OwnerReference(
            api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True
        )
        given = template.spec.metadata
        metadata = ObjectMeta(
            name=name, namespace=pod.metadata.namespace, owner_references=(owner,), labels=given.labels,
            annotations={**given.annotations, POD_CLAIM_NAME: entry},
        )  # fmt: skip
        self._names.add(f"{pod.metadata.namespace}/{name}")
        self.made.append(ResourceClaim(metadata=metadata, spec=template.spec.spec))
        return name
