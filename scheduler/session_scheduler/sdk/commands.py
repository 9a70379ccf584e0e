"""What a plugin adds to the command `fluence`, by entry points of its distribution. Public, for plugin authors.

* Group `session_scheduler.options`: a `PluginOption`. `simulate` and `explain` then have the option.
* Group `session_scheduler.commands`: a function, as typer takes it, whose name in the group is the command's. Its
  docstring is the help. A parameter `context: typer.Context` gives it the `Host`, as `context.obj`. Or a `typer.Typer`
  with several such functions, as `fluence pool list` and `fluence pool publish` are. The last paragraph of a docstring
  may be `Examples:` and indented lines, which the help shows as they are.

Both are imported for every `--help`: import what is heavy inside the functions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from session_scheduler.model.objects import Node


class Output(Enum):
    """How a command writes its result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class LogLevel(Enum):
    """From which level on logs are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    """How logs are written: for people, or an object a line."""

    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class PluginOption:
    """An option of the command line that sets one argument of a plugin, wherever a profile has the plugin on.

    The value is a string; the plugin's `Arguments` check it as they check the configuration's.
    """

    flag: str
    """As `--resources`."""
    plugin: str
    argument: str
    """The argument's name, as the configuration spells it."""
    help: str
    metavar: str = "TEXT"
    file: str | None = None
    """The name of the file that is the value where a directory among a command's FILEs has it, unless one is given."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table for people. None and an empty text are shown as -."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: Collection[str] = ()
    """The columns that are aligned at the right."""


class Host(Protocol):
    """What the command line does for a plugin's command."""

    def nodes(self, files: Sequence[str]) -> Sequence[Node]:
        """The nodes in manifests (files, directories, `-`), checked. Raises InputError."""

    def option_file(self, option: PluginOption, files: Sequence[str]) -> str | None:
        """The value of the option in a directory among the files (see `PluginOption.file`). Raises InputError."""

    def write(self, value: Any, output: Output) -> None:
        """Write a plain value to standard output as JSON or YAML."""

    def show(self, parts: Sequence[str | TableRows]) -> None:
        """Write lines and tables to standard output, for people; on no terminal each row is one line."""
