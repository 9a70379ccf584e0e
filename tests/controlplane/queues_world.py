"""Queue objects on a control plane, with the CustomResourceDefinition of deploy/."""

from __future__ import annotations

import yaml

from .harness import DEPLOY, ControlPlane

QUEUES = "fluence.flux-framework.org/v1alpha1"


def install_queues(plane: ControlPlane) -> None:
    """Create the CustomResourceDefinition, and wait until it is served."""
    for manifest in yaml.safe_load_all((DEPLOY / "queues.yaml").read_text()):
        plane.create(manifest)
    plane.wait_for(f"/apis/{QUEUES}/queues", lambda answer: "items" in answer)
