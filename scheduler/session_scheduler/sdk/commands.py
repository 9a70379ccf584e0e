"""Options and commands that a plugin adds to `fluence` by entry points. Public, for plugin authors.

* Group `session_scheduler.options`: a `PluginOption`. Commands such as `simulate` and `explain` then accept it.
* Group `session_scheduler.commands`: a typer function; the entry point's name is the command's name, the docstring its
  help. A parameter `context: typer.Context` passes the `Host`, as `context.obj`. A `typer.Typer` with several functions
  makes subcommands, such as `fluence pool list`. The last paragraph of a docstring may be `Examples:` with indented
  lines, which the help shows unchanged.

Every `--help` imports both: import heavy modules inside the functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from session_scheduler.config.settings import SchedulerConfig
    from session_scheduler.model.objects import Node


class Output(Enum):
    """A command's output format."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class LogLevel(Enum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    """The log format: text, or one JSON object per line."""

    CONSOLE = "console"
    JSON = "json"


class PluginOption(msgspec.Struct, frozen=True):
    """An option that sets one argument of a plugin, in every profile that enables the plugin.

    The value is a string; the plugin's `Arguments` validate it like the configuration's.
    """

    flag: str
    """Such as `--resources`."""
    plugin: str
    argument: str
    """The argument's name in the configuration."""
    help: str
    metavar: str = "TEXT"
    file: str | None = None
    """The name of the file that is the value where a directory among a command's FILEs has it, unless one is given."""


class TableRows(msgspec.Struct, frozen=True):
    """A table. None and an empty string print as -."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: Collection[str] = ()
    """The right-aligned columns."""

    def __post_init__(self) -> None:
        """Raises ValueError without columns, and for a row that does not have a cell for each column."""
        if not self.columns:
            raise ValueError("expected a table with columns, got none")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"expected rows of {len(self.columns)} cells ({', '.join(self.columns)}), got {row!r}")


class Host(Protocol):
    """What `fluence` offers to a plugin's command."""

    def nodes(self, files: Sequence[str]) -> Sequence[Node]:
        """The validated nodes in manifests (files, directories, `-`). Raises InputError."""

    def option_file(self, option: PluginOption, files: Sequence[str]) -> str | None:
        """The value of the option in a directory among the files (see `PluginOption.file`). Raises InputError."""

    def settings(
        self, files: Sequence[str], config: Path | None, values: Mapping[str, str | None]
    ) -> tuple[list[str], SchedulerConfig | None]:
        """The files without settings, and the configuration: of `config`, or of a directory among the files.

        `values` of options of plugins, by flag, take precedence over a directory's. If none of these is given, the
        configuration is None, and a snapshot's own configuration applies. Raises InputError.
        """

    def write(self, value: Any, output: Output) -> None:
        """Write a plain value to standard output as JSON or YAML."""

    def show(self, parts: Sequence[str | TableRows]) -> None:
        """Write lines and tables to standard output; without a terminal each row is one line."""
