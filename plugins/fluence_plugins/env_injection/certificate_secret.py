"""The Secret in which replicas share CA and certificate. The webhook never overwrites a Secret without its label."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from fluence_plugins.env_injection.certificates import DamagedError, Material, check
from session_scheduler.errors import FluenceError

LABEL: Final = "app.kubernetes.io/name"
OWNER: Final = "fluence-webhook"
"""The value of the label on the webhook's Secrets."""
_KEYS: Final = {"ca.crt": "authorities", "ca.key": "authority_key", "tls.crt": "certificate", "tls.key": "key"}


class ForeignSecretError(FluenceError):
    """The Secret does not belong to the webhook."""


def new_secret(name: str, namespace: str, material: Material) -> dict[str, Any]:
    """The Secret to create."""
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL: OWNER}}
    data = _data(material)
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}


def with_material(secret: Mapping[str, Any], material: Material) -> dict[str, Any]:
    """An existing Secret with other material; its resourceVersion guards the write."""
    metadata = dict(secret["metadata"])
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL: OWNER}
    metadata.pop("managedFields", None)
    return {**secret, "metadata": metadata, "data": {**(secret.get("data") or {}), **_data(material)}}


def material_of(secret: Mapping[str, Any]) -> Material | None:
    """The Secret's material; None if it is empty, for example because an administrator wants new keys.

    Raises ForeignSecretError if it does not belong to the webhook, or DamagedError if it is unusable.
    """
    data = secret.get("data") or {}
    if not any(data.values()):
        return None
    metadata = secret.get("metadata") or {}
    if (metadata.get("labels") or {}).get(LABEL) != OWNER:
        raise ForeignSecretError(
            f"Secret {metadata.get('namespace')}/{metadata.get('name')} does not belong to the webhook: "
            f"it lacks the label {LABEL}: {OWNER}; choose another with --secret, or delete it if it is unused"
        )
    material = Material(**{field: _decoded(data, key) for key, field in _KEYS.items()})
    check(material)
    return material


def _decoded(data: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key) or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise DamagedError(f"{key} is not base64") from None


def _data(material: Material) -> dict[str, str]:
    return {key: base64.b64encode(getattr(material, field)).decode("ascii") for key, field in _KEYS.items()}
