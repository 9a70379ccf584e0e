"""`fluence backend drain|resume`: a resource's status, written where the resources are: in a ConfigMap, or in a file.

A ConfigMap is written only if it still is what was read (its resourceVersion says so), else it is read again. The
rights that it takes are those of who calls it: to get and to patch the one ConfigMap.
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
    """What came of it. True where the resource was not so before."""

    changed: bool
    within: tuple[str, ...] = ()
    """What it lies in and is down, the nearest first: as long as it is, the resource is, too."""

    def __bool__(self) -> bool:
        return self.changed


@dataclass(frozen=True, slots=True)
class ConfigMapText:
    """A text in a ConfigMap."""

    namespace: str
    name: str
    key: str = "resources.yaml"

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


async def set_in_config_map(api: KubeApi, where: ConfigMapText, name: str, *, down: bool) -> Marked:
    """Mark the resource of that name.

    Raises ResourcesError or DocumentError for what the text says, ClusterError for what the API server answers:
    Conflict where somebody else changed it each time.
    """
    from session_scheduler.sdk.dynamic_client import Conflict

    for left in reversed(range(_TRIES)):
        found = await api.get(where.path)
        text = (found.get("data") or {}).get(where.key)
        if text is None:
            raise ResourcesError(f"{where}: has no {where.key}; name the ConfigMap of the resources by --configmap")
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
    """Mark the resource of that name in a file, which is replaced as a whole.

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
            raise ResourcesError(f"{path}: was changed by somebody else meanwhile; try again")
        Path(temporary).replace(real)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
    return Marked(changed=True, within=within)


def _unwritable(path: str, error: OSError) -> ResourcesError:
    return ResourcesError(f"{path}: cannot be written ({error.strerror}): name a file that can be")
