"""The settings in a directory among the FILEs: `config.yaml`, and the files that options of plugins name.

The command line takes them in place of the options, so that `fluence simulate examples/01-quickstart` needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from session_scheduler.errors import InputError
from session_scheduler.sdk.commands import PluginOption

CONFIG: Final = "config.yaml"
CONFIG_FLAG: Final = "--config"
_CONFIG_KIND: Final = "SchedulerConfiguration"


class Inputs:
    """The FILEs of a command line, the settings in its directories set apart."""

    def __init__(self, files: Sequence[str], flags: Mapping[str, str]) -> None:
        """`flags` maps the name of each file to its option: {"config.yaml": "--config"}. Raises InputError."""
        self.manifests: list[str] = []
        """The FILEs. A directory that contains settings is replaced by its other files."""
        self._flags = flags
        self._found: dict[str, list[Path]] = {}
        for file in files:
            self._add(file)

    def file(self, name: str) -> Path | None:
        """The one file of this name, if there is one. Raises InputError where two directories have one."""
        found = self._found.get(name, [])
        if len(found) > 1:
            raise InputError(f"{found[0]} and {found[1]}: only one can be used; choose one with {self._flags[name]}")
        return found[0] if found else None

    def option(self, option: PluginOption) -> str | None:
        """The value that a directory has for an option of a plugin. Raises InputError where two have one."""
        path = self.file(option.file) if option.file else None
        return str(path) if path else None

    def _add(self, file: str) -> None:
        settings = [path for name in self._flags if file and _is_setting(path := Path(file) / name)]
        if not settings:
            self.manifests.append(file)
            return
        from session_scheduler.cluster.documents import files_of  # heavy, and not needed for --help

        for path in settings:
            self._found.setdefault(path.name, []).append(path)
        self.manifests.extend(str(path) for path in files_of(file) if path not in settings)


def _is_setting(path: Path) -> bool:
    """Whether it is a file but not a manifest: one without a kind, or a configuration."""
    try:
        kind = _kind(path.read_bytes()) if path.is_file() else ""
    except OSError:  # what reads the directory reports it
        return False
    return kind is None or (path.name == CONFIG and kind == _CONFIG_KIND)


def _kind(text: bytes) -> object:
    """The kind of the first document that is not empty; None if it has none or cannot be parsed."""
    from session_scheduler.cluster.documents import MAX_BYTES
    from session_scheduler.config.yaml_text import Limits, YamlError, read_documents

    try:
        first = next((value for value in read_documents(text, limits=Limits(bytes=MAX_BYTES)) if value), None)
    except YamlError:
        return None
    return first.get("kind") if isinstance(first, dict) else None
