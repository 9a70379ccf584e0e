"""`fluence backend drain|resume`: writes a resource's status into the resources file, in a ConfigMap or on disk.

The write of a ConfigMap is guarded by its resourceVersion; after a conflict the ConfigMap is read again. The caller
needs the permissions to get and patch that ConfigMap.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluence_plugins.resources.errors import ResourcesError
from fluence_plugins.resources.file import ResourcesFile
from fluence_plugins.resources.status_edit import with_status

if TYPE_CHECKING:
    from session_scheduler.sdk.dynamic_client import KubeApi

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Marked:
    """The result. True if the status has changed."""

    changed: bool
    within: tuple[str, ...] = ()
    """The resources above it that are down, the nearest first: while they are, the resource is down, too."""

    def __bool__(self) -> bool:
        return self.changed


@dataclass(frozen=True, slots=True)
class ConfigMapText:
    """A value in a ConfigMap."""

    namespace: str
    name: str
    key: str = "resources.yaml"

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The ConfigMap's API path."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


async def set_in_config_map(api: KubeApi, where: ConfigMapText, name: str, *, down: bool) -> Marked:
    """Set the status of the resource with this name.

    Raises ResourcesError or DocumentError for a wrong text, and the API server's ClusterError: Conflict if other
    clients change the ConfigMap at every attempt.
    """
    from session_scheduler.sdk.dynamic_client import Conflict

    for left in reversed(range(_TRIES)):
        found = await api.get(where.path)
        text = (found.get("data") or {}).get(where.key)
        if text is None:
            raise ResourcesError(f"{where}: has no {where.key}; select the ConfigMap of the resources with --configmap")
        changed, within = with_status(text, name, down=down, source=f"{where}: {where.key}")
        if changed == text:
            return Marked(changed=False, within=within)
        version = found["metadata"]["resourceVersion"]
        try:
            await api.patch(where.path, {"metadata": {"resourceVersion": version}, "data": {where.key: changed}})
        except Conflict:
            if not left:
                raise
            continue
        return Marked(changed=True, within=within)
    raise AssertionError("unreachable")


def set_in_file(path: str, name: str, *, down: bool) -> Marked:
    """Set the status of the resource with this name in a file, which is replaced atomically.

    Raises ResourcesError or DocumentError.
    """
    file = ResourcesFile(path)
    text = file.read()
    changed, within = with_status(text, name, down=down, source=path)
    if changed == text:
        return Marked(changed=False, within=within)
    real = Path(path).resolve()
    try:
        mode = real.stat().st_mode & 0o7777
        handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as new:
            new.write(changed)
        Path(temporary).chmod(mode)
        if file.changed():
            raise ResourcesError(f"{path}: another process has changed the file; try again")
        Path(temporary).replace(real)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
    return Marked(changed=True, within=within)


def _unwritable(path: str, error: OSError) -> ResourcesError:
    return ResourcesError(f"{path}: cannot be written ({error.strerror}); name a writable file")
