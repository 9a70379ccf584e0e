"""The command tree: the core's commands, and plugins' commands and options, loaded when they are used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import metadata
from typing import Annotated, Any, Final

import typer

from session_scheduler.cli import commands, new_plugin
from session_scheduler.cli.entry_points import loaded
from session_scheduler.errors import InputError
from session_scheduler.sdk.commands import PluginOption

COMMANDS_GROUP: Final = "session_scheduler.commands"
OPTIONS_GROUP: Final = "session_scheduler.options"
_CORE: Final[dict[str, Callable[..., int | None]]] = {
    "simulate": commands.simulate,
    "explain": commands.explain,
    "snapshot": commands.snapshot,
    "status": commands.status,
    "queues": commands.queues,
    "run": commands.run,
}
"""The core's commands, which accept plugins' options."""
_PLUGINS: Final = "plugins"
"""A command without plugins' options, with subcommands."""


def build(words: Sequence[str], *, reads_cluster: bool = False) -> typer.Typer:
    """The application for a command line. It loads plugins' commands unless `words` call a core command.

    With `reads_cluster` a command without files reads the cluster, as a plugin of kubectl.
    """
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        callback=_root,
        help=_help(_root),
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    called = next((word for word in words if not word.startswith("-")), None)
    options = plugin_options() if called in _CORE else []
    for name, function in _CORE.items():
        app.command(name, help=_help(function))(_with_options(function, options, reads_cluster=reads_cluster))
    plugins = typer.Typer(add_completion=False, rich_markup_mode=None)
    plugins.callback(invoke_without_command=True, help=_help(commands.plugins))(commands.plugins)
    plugins.command("new", help=_help(new_plugin.new))(new_plugin.new)
    app.add_typer(plugins, name=_PLUGINS)
    if called not in _CORE and called != _PLUGINS:
        for name, added in _plugin_commands().items():
            if isinstance(added, typer.Typer):
                for command in added.registered_commands:
                    command.help = _help(command.callback, command.help)
                if isinstance(added.info.help, str):
                    added.info.help = _help(None, added.info.help)
                app.add_typer(added, name=name)
            else:
                app.command(name, help=_help(added))(added)
    return app


def _help(function: Callable[..., Any] | None, text: str | None = None) -> str:
    """A command's help text or docstring; the paragraph `Examples:` keeps its lines."""
    text = inspect.cleandoc(text or (function and function.__doc__) or "")
    return text.replace("\n\nExamples:\n", "\n\n\b\nExamples:\n")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fluence {metadata.version('fluence-scheduler')}")
        raise typer.Exit


def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the tracebacks of plugins' exceptions and internal errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Schedule pods for Kubernetes: groups all-or-nothing, devices matched in a resource graph.

    Examples:
      fluence simulate cluster.yaml workloads.yaml
      fluence explain pod/sampler -n science
      fluence run --config scheduler.yaml
      fluence --install-completion
    """
    del version  # it has a callback
    if debug:  # main reads it too, before anything can fail
        from session_scheduler.framework.failures import failure_log

        failure_log.tracebacks = True


def _plugin_commands() -> dict[str, Callable[..., Any] | typer.Typer]:
    return dict(sorted(loaded(COMMANDS_GROUP, taken=[*_CORE, _PLUGINS]).items()))


def plugin_options() -> list[PluginOption]:
    """The options that installed plugins add. Raises InputError where one cannot be imported."""
    options = [option for _, option in sorted(loaded(OPTIONS_GROUP).items())]
    for option in options:
        if not isinstance(option, PluginOption):
            raise InputError(
                f"expected a PluginOption in the entry points {OPTIONS_GROUP}, got {option!r}; fix the plugin"
            )
    return options


def _with_options(
    function: Callable[..., Any], options: Sequence[PluginOption], *, reads_cluster: bool
) -> Callable[..., Any]:
    """The function with a parameter for each option in place of its parameter `plugin_options`.

    Binds its parameter `reads_cluster`, if it has one.
    """
    signature = inspect.signature(function, eval_str=True)
    supplied = {"reads_cluster": reads_cluster} if "reads_cluster" in signature.parameters else {}
    own = [each for each in signature.parameters.values() if each.name not in ("plugin_options", *supplied)]
    added = {option.flag.lstrip("-").replace("-", "_"): option for option in options}

    @wraps(function)
    def command(**values: Any) -> Any:
        given = [(option, values.pop(name)) for name, option in added.items()]
        return function(**values, **supplied, plugin_options=given)

    reads_files = "files" in signature.parameters
    parameters = own + [_parameter(name, option, reads_files=reads_files) for name, option in added.items()]
    command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(name: str, option: PluginOption, *, reads_files: bool) -> inspect.Parameter:
    text = (
        f"{option.help} Default: {option.file} in a directory among the FILEs."
        if reads_files and option.file
        else option.help
    )
    annotation = Annotated[str | None, typer.Option(option.flag, help=text, metavar=option.metavar)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
