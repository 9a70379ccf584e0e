"""The command line's services for commands: read nodes, write results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from session_scheduler.cli.folders import CONFIG, CONFIG_FLAG, Inputs
from session_scheduler.cli.plugin_options import configuration
from session_scheduler.sdk.commands import Output, PluginOption, TableRows

if TYPE_CHECKING:
    from session_scheduler.config.settings import SchedulerConfig
    from session_scheduler.model.objects import Node


class CommandHost:
    """The `Host` of this process."""

    def __init__(self, options: Callable[[], Sequence[PluginOption]]) -> None:
        self._options = options
        """The options of all plugins. They are imported when they are asked for."""

    def nodes(self, files: Sequence[str]) -> Sequence[Node]:
        """The validated nodes in manifests (files, directories, `-`) or a snapshot. Raises InputError."""
        from session_scheduler.cluster.manifests import read_manifests  # heavy
        from session_scheduler.model.objects import Node

        loaded = read_manifests(self._inputs(files).manifests)
        return [*(obj for obj in loaded.saved if isinstance(obj, Node)), *loaded.nodes]

    def option_file(self, option: PluginOption, files: Sequence[str]) -> str | None:
        """The value that a directory among the files has for the option. Raises InputError."""
        return self._inputs(files).option(option)

    def settings(
        self, files: Sequence[str], config: Path | None, values: Mapping[str, str | None]
    ) -> tuple[list[str], SchedulerConfig | None]:
        """The files without settings, and the configuration that is given, if one is. Raises InputError."""
        options = self._options()
        read = inputs(files, options)
        path = config or read.file(CONFIG)
        given = [(option, values.get(option.flag)) for option in options]
        defaults = [(option, read.option(option)) for option, value in given if value is None]
        if path is None and not any(value for _, value in [*given, *defaults]):
            return read.manifests, None
        return read.manifests, configuration(path, given, defaults)

    def _inputs(self, files: Sequence[str]) -> Inputs:
        return inputs(files, self._options())

    def write(self, value: Any, output: Output) -> None:
        """Write a plain value to standard output as JSON or YAML."""
        sys.stdout.write(rendered(value, output))

    def show(self, parts: Sequence[str | TableRows]) -> None:
        """Write lines and tables to standard output."""
        from session_scheduler.cli.tables import print_parts

        print_parts(parts)


def inputs(files: Sequence[str], options: Sequence[PluginOption]) -> Inputs:
    """The FILEs, with the files in their directories that set `--config` and these options. Raises InputError."""
    flags = {option.file: option.flag for option in options if option.file}
    return Inputs(files, {CONFIG: CONFIG_FLAG, **flags})


def rendered(value: Any, output: Output) -> str:
    """A plain value as JSON or YAML with a final line break."""
    if output is Output.YAML:
        import yaml  # rarely used

        return yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
