"""`fluence plugins new`: writes the distribution of a new plugin, with tests, from the files in `templates`."""

from __future__ import annotations

import builtins
import keyword
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources, util
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from session_scheduler.errors import InputError, plain
from session_scheduler.sdk.commands import Output

_NAME: Final = re.compile(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]", re.ASCII)
"""A distribution's name: PEP 508."""
_LONGEST: Final = 40
"""The limit of a name's characters, so that lines which repeat it stay readable."""
_RESERVED: Final = frozenset(
    {"fluence", "fluence-scheduler", "fluxion", "fluxion-cy", "test", "tests", "src", "plugin"}
)
_IN_TEMPLATE: Final = frozenset({
    "ActionType", "BoolColumn", "ClusterEventWithHint", "FakeCluster", "InputError", "IntColumn", "Iterable", "Node",
    "NodeView", "PluginArguments", "Scope", "Sequence", "Settings",
})  # fmt: skip
"""Names in the templates, which the plugin's class must not have."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a new plugin: `name` of the distribution and the plugin, `package` of the module."""

    name: str
    package: str
    cls: str


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the plugin and of its distribution, such as rack-label.")
    ],
    *,
    directory: Annotated[
        Path,
        typer.Option(
            "--directory", metavar="D", help="Where to create the folder NAME; default: the current directory."
        ),
    ] = Path(),
    output: Annotated[
        Output | None, typer.Option("-o", "--output", help="The output format.", show_default=False)
    ] = None,
    context: typer.Context,
) -> int:
    """Write the distribution of a new plugin, with tests that pass.

    Examples:
      fluence plugins new rack-label
      fluence plugins new rack-label --directory ~/plugins
    """
    from session_scheduler.cli.host import rendered

    names = names_of(name)
    if output is None:  # `fluence plugins -o json new NAME`
        output = context.parent.params["output"] if context.parent is not None else Output.TABLE
    target = directory / names.name
    written = write(names, target)
    if output is Output.TABLE:
        typer.echo(f"wrote {target}:")
        typer.echo("".join(f"  {file}\n" for file in written), nl=False)
        typer.echo(f"To install and test it, see {target / 'README.md'}")
    else:
        plugin = {"name": names.name, "distribution": names.name, "package": names.package, "class": names.cls}
        typer.echo(rendered({**plugin, "directory": str(target), "files": written}, output), nl=False)
    return 0


def names_of(name: str) -> Names:
    """The names derived from one, normalised as in PEP 503 and 625. Raises InputError for an invalid one."""
    if not _NAME.fullmatch(name):
        raise _wrong(
            name, "is not a valid distribution name; use ASCII letters and digits, with -, _ or . between them"
        )
    if len(name) > _LONGEST:
        raise _wrong(name, f"has {len(name)} characters; use {_LONGEST} or fewer")
    normal = re.sub(r"[-_.]+", "-", name).lower()
    package = normal.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise _wrong(
            name,
            f"becomes the package {package!r}, which Python cannot import; start with a letter, and avoid keywords",
        )
    if normal in _RESERVED or package in sys.stdlib_module_names:
        raise _wrong(name, "is reserved; choose another name")
    if owner := _owner(normal):
        raise _wrong(name, f"is already {owner}; choose another name")
    if util.find_spec(package) is not None:
        raise _wrong(name, f"becomes the module {package!r}, which already exists; choose another name")
    cls = "".join(part.capitalize() for part in normal.split("-"))
    if keyword.iskeyword(cls) or cls in _IN_TEMPLATE or hasattr(builtins, cls):
        cls += "Plugin"
    return Names(normal, package, cls)


def _owner(name: str) -> str:
    """The plugin or distribution that has the name; empty if there is none."""
    from session_scheduler.builtin import BUILTIN
    from session_scheduler.registry.registry import Registry

    for plugin, distribution in Registry(BUILTIN).offers():
        if re.sub(r"[-_.]+", "-", plugin).lower() == name:
            return f"the plugin {plugin} of {distribution}"
    try:
        return f"an installed distribution ({name} {metadata.version(name)})"
    except metadata.PackageNotFoundError:
        return ""


def _wrong(name: str, problem: str) -> InputError:
    return InputError(f"NAME {plain(name)}: {problem}")


def write(names: Names, target: Path) -> list[str]:
    """Create the folder and its files. Returns their paths. Raises InputError, and then leaves no files."""
    texts = _texts(names)
    if not os.path.isdir(target.parent):
        raise InputError(f"--directory {plain(str(target.parent))}: is not a directory; create it, or name another")
    try:
        target.mkdir()
    except FileExistsError:
        raise InputError(f"{plain(str(target))}: already exists; choose another name or directory") from None
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        for path, text in texts.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise _unwritable(target, error) from error
    return sorted(texts)


def _unwritable(target: Path, error: OSError) -> InputError:
    return InputError(f"{plain(str(target))}: cannot be written ({error.strerror}); name another --directory")


def _texts(names: Names) -> Mapping[str, str]:
    """The files' contents by path."""
    try:
        requirement = f">={metadata.version('fluence-scheduler')}"  # this version and later ones
    except metadata.PackageNotFoundError:
        requirement = ""
    values = {
        "distribution": names.name,
        "plugin": names.name,
        "package": names.package,
        "cls": names.cls,
        "requirement": requirement,
    }
    source = f"src/{names.package}"
    paths = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{source}/__init__.py": "package.py",
        f"{source}/plugin.py": "plugin.py",
        "tests/test_plugin.py": "test_plugin.py",
    }
    templates = resources.files("session_scheduler.cli") / "templates"
    texts = {path: (templates / f"{name}.in").read_text(encoding="utf-8") for path, name in paths.items()}
    return {f"{source}/py.typed": "", **{path: Template(text).substitute(values) for path, text in texts.items()}}
